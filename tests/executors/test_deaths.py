import signal

import pytest

from runmanager.executors import Step, deaths
from runmanager.executors.deaths import Deaths, whereabouts
from runmanager.storage.journal import EpochRecord, Status


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (3, "its process ended itself with exit code 3 in epoch 1"),
        (None, "its process ended itself with exit code None in epoch 1"),
        (-signal.SIGSEGV, "its process crashed (segmentation fault, signal 11) in epoch 1"),
        (-signal.SIGTERM, "its process crashed (SIGTERM, signal 15) in epoch 1"),
        (-99, "its process crashed (signal 99) in epoch 1"),
        (-9, "somebody killed its process (signal 9) in epoch 1: often the system ran out of memory"),
    ],
)
def test_the_cause_of_a_death_is_read_from_the_exit_code(code, cause, monkeypatch):
    monkeypatch.setattr(deaths, "_num_oom_kills", lambda: 7)

    assert Deaths().explain(code, " in epoch 1", 0) == (Status.KILLED, cause)


def test_a_process_that_the_system_killed_ran_out_of_memory_and_the_next_did_not(monkeypatch):
    kills = iter([7, 8, 8])
    monkeypatch.setattr(deaths, "_num_oom_kills", lambda: next(kills))
    known = Deaths()

    status, cause = known.explain(-9, "", 3 * 2**30)
    next_status, _ = known.explain(-9, "", 3 * 2**30)

    assert (status, next_status) == (Status.OUT_OF_MEMORY, Status.KILLED)
    assert cause.startswith("the system ran out of memory and killed its process (signal 9) (it had 3.0 of ")


def test_a_run_is_where_its_last_news_were():
    assert whereabouts(Step(2, 5)) == " in epoch 2, step 5"
    assert whereabouts(EpochRecord(3, {})) == " after epoch 3"
    assert whereabouts(None) == ""

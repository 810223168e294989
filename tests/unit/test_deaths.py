"""Whether the system has killed a process for its memory, which no test can make it do."""

import pytest

from runmanager.core.outcome import Status
from runmanager.executors import deaths


@pytest.mark.parametrize(
    ("groups", "num_kills"),
    [("0::/jobs/one\n", 3), ("4:memory:/own\n0::/\n", 9), ("0::/another\n", 9), ("0::/\xff\n", 9), (None, 9)],
    ids=["of its group", "version 1", "none that is seen", "not UTF-8", "no groups"],
)
def test_kills_are_counted_in_the_own_control_group_if_there_is_one(tmp_path, groups, num_kills):
    files = {
        "sys/fs/cgroup/jobs/one/memory.events": "low 0\nhigh 5\nmax 7\noom 4\noom_kill 3\noom_group_kill 0\n",
        "proc/vmstat": "nr_free_pages 100\noom_kill 9\n",
        "proc/self/cgroup": groups,
    }
    for name, content in files.items():
        if content is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content.encode("latin-1"))

    assert deaths._num_oom_kills(tmp_path) == num_kills


def test_a_process_that_is_killed_while_the_count_grows_ran_out_of_memory_and_the_next_did_not(monkeypatch):
    kills = iter([7, 8, 8])
    monkeypatch.setattr(deaths, "_num_oom_kills", lambda: next(kills))
    known = deaths.Deaths()

    assert known.explain(-9, "")[0] is Status.OUT_OF_MEMORY
    assert known.explain(-9, "")[0] is Status.KILLED

from typing import Any

from runmanager.answers.time_spent import time_spent
from runmanager.core.outcome import EpochRecord, Status
from runmanager.core.state import RunResult

FOLDER: Any = None


def epoch(number, run_duration, seconds=3.0, **times):
    return EpochRecord(number, {"epoch duration": seconds, "run duration": run_duration}, times)


def ran(seconds, epochs, status=Status.COMPLETED, before=()):
    """Return a run that was in a lane for some seconds, with these epochs after those before."""
    states = [RunResult(FOLDER, status, [*before, *each], 1, "", {}) for each in ((), epochs)]
    return (*states, seconds)


def test_the_time_of_a_grid_is_what_its_journals_and_lanes_say():
    before = [epoch(1, 4.0, phase_eval_s=0.5, phase_data_s=1.0), epoch(2, 9.0)]
    failed = ran(6.0, [epoch(1, 4.0)], Status.FAILED)
    continued = ran(5.0, [epoch(3, 13.0)], before=before)

    spent = time_spent(20.0, 2, 4.0, [ran(10.0, before), continued, failed, ran(2.0, [], Status.DIVERGED)])

    assert spent == (
        "20.0 s in 2 lanes: 30 % training (of it 8 % waiting for batches), 22 % between runs or "
        "idle, 20 % start, 11 % between epochs (checkpoints, logs), 10 % runs that did not "
        "complete, 5 % setup of runs, 1 % other"
    )


def test_interrupted_runs_have_no_setup():
    interrupted = ran(5.0, [epoch(1, 3.0)], Status.INTERRUPTED)

    assert time_spent(5.0, 1, 0.0, [interrupted]) == "5.0 s: 60 % training, 40 % runs that did not complete"

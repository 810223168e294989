import re

from runmanager.answers.time_spent import RunTime, time_spent
from runmanager.core.outcome import EpochRecord, Status


def epoch(number, run_duration, **times):
    return EpochRecord(number, {"epoch duration": 3.0, "run duration": run_duration}, times)


def test_the_time_of_a_grid_is_what_its_journals_and_lanes_say():
    begun = RunTime(
        10.0, [epoch(1, 4.0, phase_eval_s=0.5, phase_data_s=1.0), epoch(2, 9.0)], 0.0, Status.COMPLETED
    )
    continued = RunTime(5.0, [epoch(3, 13.0)], 9.0, Status.COMPLETED)
    failed = RunTime(6.0, [epoch(1, 4.0)], 0.0, Status.FAILED)
    nothing = RunTime(2.0, [], 0.0, Status.DIVERGED)

    spent = time_spent(20.0, 2, 4.0, [begun, continued, failed, nothing])

    assert spent == (
        "20.0 s in 2 lanes: 30 % training (of it 8 % waiting for batches), 23 % between runs (tables, idle "
        "lanes), 20 % start, 11 % between epochs (checkpoints, logs), 10 % runs that failed, 5 % setup of "
        "runs, 1 % other"
    )


def test_interrupted_runs_have_not_failed():
    interrupted = RunTime(5.0, [epoch(1, 3.0)], 0.0, Status.INTERRUPTED)

    assert time_spent(5.0, 1, 0.0, [interrupted]) == "5.0 s: 60 % training, 40 % interrupted runs"


def test_a_grid_that_executed_nothing_took_its_time():
    assert time_spent(1.5, 1, 0.0, []) == "1.5 s"


def test_the_percentages_of_a_grid_add_up():
    spent = time_spent(
        100.0,
        1,
        20.6,
        [
            RunTime(
                30.6 + 20.6,
                [EpochRecord(1, {"epoch duration": 30.6, "run duration": 30.6}, {})],
                0.0,
                Status.COMPLETED,
            ),
            RunTime(20.6, [], 0.0, Status.FAILED),
        ],
    )

    assert sum(int(share) for share in re.findall(r"(\d+) % (?!waiting)", spent)) == 100

import io
from dataclasses import replace

import pytest
from rich.console import Console

from runmanager import RunBuilder
from runmanager.outcome import EpochRecord, Status
from runmanager.screen.plan_table import estimated_seconds, plan_summary, plan_table
from runmanager.session.plan import Action, Plan, PlannedRun
from runmanager.storage import paths
from runmanager.storage.folders import RunFolder
from runmanager.storage.run_state import RunResult

EPOCHS = [EpochRecord(epoch, {"run duration": 10.0 * epoch}) for epoch in (1, 2, 3)]
BEFORE = [
    (Status.COMPLETED, EPOCHS, "", Action.LEAVE),
    (Status.FAILED, EPOCHS, "", Action.LEAVE),
    (Status.UNAVAILABLE, [], "device 'cuda' is not there, this machine has cpu", Action.LEAVE),
    (Status.INTERRUPTED, EPOCHS, "", Action.CONTINUE),
    (Status.PENDING, [], "", Action.EXECUTE),
]


@pytest.fixture
def plan(tmp_path):
    """A plan of five runs, of which the last two are to be executed."""
    runs = RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3, 0.4, 0.5], "device": ["cpu"]})
    planned = []
    for number, (run, (status, epochs, reason, action)) in enumerate(zip(runs, BEFORE, strict=True), 1):
        folder = RunFolder(tmp_path / str(number), number, str(number), run._asdict(), reason)
        folder.path.mkdir()
        (folder.path / paths.CHECKPOINT).touch()
        planned.append(PlannedRun(run, folder, RunResult(folder, status, epochs, 1, "", {}), action))
    return Plan(planned)


def printed(table, width=100):
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def lines_of(plan, past=(), width=100):
    return printed(plan_table(plan, estimated_seconds(plan, past), ["lr"]), width)


def test_a_plan_says_what_becomes_of_each_run(plan):
    seconds = estimated_seconds(plan, [({"lr": 0.1, "device": "cpu"}, 100.0)])

    assert printed(plan_table(plan, seconds, ["lr"])) == [
        "run   lr  device       takes  what",
        "  1  0.1  cpu                 completed",
        "  2  0.2  cpu                 failed, left as it is",
        "  3  0.3  cpu                 unavailable: device 'cuda' is not there, this machine has cpu",
        "  4  0.4  cpu     1 min 10 s  continue after epoch 3",
        "  5  0.5  cpu     1 min 40 s  execute",
    ]
    assert plan_summary(plan, seconds, 1) == (
        "5 runs · completed 1 · failed 1 · unavailable 1 · continue 1 · execute 1 · about 2 min 50 s"
    )
    assert plan_summary(plan, seconds, 2).endswith("execute 1 · about 1 min 40 s")


def test_where_nothing_is_known_no_time_is_told(plan):
    seconds = estimated_seconds(plan, [])

    assert set(seconds) == {None}
    assert plan_summary(plan, seconds, 1).endswith("execute 1")


def test_a_run_without_a_checkpoint_starts_over(plan):
    (plan.runs[3].folder.path / paths.CHECKPOINT).unlink()

    assert lines_of(plan)[4].endswith("start over")


@pytest.mark.parametrize(("number", "what"), [(0, "start over"), (3, "start over"), (4, "execute")])
def test_runs_whose_code_has_changed_start_over(plan, number, what):
    runs = [replace(planned, action=Action.START_OVER) for planned in plan.runs]

    assert lines_of(replace(plan, runs=runs))[1 + number].endswith(what)


def test_a_narrow_terminal_loses_nothing(plan):
    plan.runs[3].folder.params["lr"] = "a long value " * 5

    lines = lines_of(plan, width=60)

    assert all(len(line) <= 60 for line in lines)
    assert sum(line.count("long") for line in lines) == 5

import io
from dataclasses import replace

import pytest
from rich.console import Console

from runmanager import RunBuilder
from runmanager.launch.plan import ANEW, Plan
from runmanager.launch.plan_table import plan_table, planned, summary
from runmanager.outcome import EpochRecord, Status
from runmanager.storage import paths
from runmanager.storage.folders import RunFolder
from runmanager.storage.run_state import RunResult

EPOCHS = [EpochRecord(epoch, {"run duration": 10.0 * epoch}) for epoch in (1, 2, 3)]
BEFORE = [
    (Status.COMPLETED, EPOCHS, ""),
    (Status.FAILED, EPOCHS, ""),
    (Status.UNAVAILABLE, [], "device 'cuda' is not there; this machine has: cpu"),
    (Status.INTERRUPTED, EPOCHS, ""),
    (Status.PENDING, [], ""),
]


@pytest.fixture
def plan(tmp_path):
    """A plan of five runs, of which the last two are to be executed."""
    runs = RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3, 0.4, 0.5], "device": ["cpu"]})
    places = []
    for number, (run, (_, _, reason)) in enumerate(zip(runs, BEFORE, strict=True), 1):
        places.append(RunFolder(tmp_path / str(number), number, str(number), run._asdict(), reason))
        places[-1].path.mkdir()
        (places[-1].path / paths.CHECKPOINT).touch()
    before = [
        RunResult(place, status, epochs, 1, "", {})
        for place, (status, epochs, _) in zip(places, BEFORE, strict=True)
    ]
    return Plan(runs, places, before, runs[3:], frozenset(), failed=1, interrupted=1, changed={}, policy=ANEW)


def printed(table, width=100):
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_plan_says_what_becomes_of_each_run(plan):
    rows = planned(plan, [({"lr": 0.1, "device": "cpu"}, 100.0)])

    assert printed(plan_table(rows, ["lr"])) == [
        "run  lr   device       takes  what",
        "  1  0.1  cpu                 completed",
        "  2  0.2  cpu                 failed, stays so",
        "  3  0.3  cpu                 unavailable: device 'cuda' is not there; this machine has: cpu",
        "  4  0.4  cpu     1 min 10 s  go on after epoch 3",
        "  5  0.5  cpu     1 min 40 s  execute",
    ]
    assert summary(rows, 1) == (
        "5 runs · completed 1 · failed 1 · unavailable 1 · go on 1 · execute 1 · about 3 min"
    )
    assert summary(rows, 2).endswith("execute 1 · about 2 min")


def test_where_nothing_is_known_no_time_is_told(plan):
    rows = planned(plan, [])

    assert {row.seconds for row in rows} == {None}
    assert summary(rows, 1).endswith("execute 1")


def test_a_run_without_a_checkpoint_is_executed_anew(plan):
    (plan.places[3].path / paths.CHECKPOINT).unlink()

    assert planned(plan, [])[3].what == "execute anew"


@pytest.mark.parametrize(("number", "what"), [(0, "execute anew"), (3, "execute anew"), (4, "execute")])
def test_runs_whose_code_has_changed_are_executed_anew(plan, number, what):
    anew = frozenset({id(plan.runs[0]), id(plan.runs[3])})

    assert planned(replace(plan, todo=plan.runs, anew=anew), [])[number].what == what


def test_a_narrow_terminal_loses_nothing(plan):
    plan.places[3].params["lr"] = "a long value " * 5

    lines = printed(plan_table(planned(plan, []), ["lr"]), 60)

    assert all(len(line) <= 60 for line in lines)
    assert sum(line.count("long") for line in lines) == 5

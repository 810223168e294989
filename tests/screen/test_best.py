from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager.answers.findings import find
from runmanager.goal import Goal
from runmanager.outcome import EpochRecord, Status
from runmanager.screen.best import BestSoFar
from runmanager.storage.design import Design
from runmanager.storage.folders import RunFolder
from runmanager.storage.run_state import RunResult
from runmanager.tables import columns as tables
from runmanager.wording import cell


def result(number, *values, status=Status.COMPLETED, keep=None, **params):
    epochs = [EpochRecord(epoch, {"accuracy": value, "loss": -value}) for epoch, value in enumerate(values, 1)]
    folder = RunFolder(Path(f"runs/exp/{number:03}"), number, str(number), params)
    return RunResult(folder, status, epochs, 1, "", {"keep": keep} if keep else {})


def best(design, *results):
    names = [name for name in ("lr", "seed") if any(name in each.folder.params for each in results)]
    best = BestSoFar(design, names)
    for each in results:
        best.add(each)
    return str(best)


def test_the_best_run_is_named_by_what_varies():
    results = [result(1, 0.5, lr=0.1, device="cpu"), result(2, 0.75, lr=0.2, device="cpu")]

    assert best(Design(), *results) == "accuracy 0.75 · run 2 · lr=0.2"
    assert best(Design(Goal("accuracy", -1)), *results) == "accuracy 0.5 · run 1 · lr=0.1"
    assert best(Design(Goal("loss", -1)), *results) == "loss -0.75 · run 2 · lr=0.2"


@pytest.mark.parametrize("order", [1, -1])
def test_of_equal_runs_the_first_is_best_whichever_ends_first(order):
    results = [result(1, 0.5, lr=0.1), result(2, 0.5, lr=0.2)]

    assert best(Design(), *results[::order]) == "accuracy 0.5 · run 1 · lr=0.1"


def test_one_repeat_competes_with_two_but_not_with_three():
    def line(number):
        results = [result(seed, 0.5, lr=0.1, seed=seed) for seed in range(1, number + 1)]
        return best(Design(None, ("seed",)), *results, result(9, 0.9, lr=0.2, seed=1))

    assert line(2) == "accuracy 0.9 · 1 run · lr=0.2"
    assert line(3) == "accuracy 0.5 · mean of 3 · lr=0.1"


def test_repeats_are_averaged_and_counted():
    results = [result(1, 0.5, lr=0.1, seed=0), result(2, 0.75, lr=0.1, seed=1), result(3, 0.6, lr=0.2, seed=0)]

    design = Design(None, ("seed",))

    assert best(design, *results[:1]) == "accuracy 0.5 · 1 run · lr=0.1"
    assert best(design, *results) == "accuracy 0.625 · mean of 2 · lr=0.1"


def test_where_the_best_weights_are_kept_their_epoch_counts():
    late = result(1, 0.9, 0.1, keep="best:accuracy", lr=0.1)

    assert best(Design(), late) == "kept accuracy 0.9 · run 1 · lr=0.1"


def test_only_completed_runs_count():
    assert best(Design(), result(1, 0.9, lr=0.1, status=Status.PRUNED), result(2, lr=0.1)) == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_never_best(value):
    assert best(Design(), result(1, value, lr=0.1)) == ""
    assert best(Design(), result(1, value, lr=0.1), result(2, 0.1, lr=0.2)).startswith("accuracy 0.1 · run 2")


def test_the_metric_that_decides_may_come_later():
    other = RunResult(result(1, lr=1).folder, Status.COMPLETED, [EpochRecord(1, {"loss": 0.5})], 1, "", {})

    assert best(Design(), other) == "loss 0.5 · run 1 · lr=1"
    assert best(Design(), other, result(2, 0.1, lr=2)) == "accuracy 0.1 · run 2 · lr=2"


RESULTS = st.tuples(
    st.sampled_from([0.1, 0.2, 0.3]),
    st.sampled_from([0.25, 0.5, 0.75, float("nan")]),
    st.sampled_from([Status.COMPLETED, Status.COMPLETED, Status.DIVERGED]),
)


@pytest.mark.slow(everywhere=True)
@given(st.lists(RESULTS, min_size=1, max_size=9), st.sampled_from([(), ("seed",)]), st.sampled_from([1, -1]))
def test_the_best_so_far_is_the_one_that_the_panel_calls_best(drawn, repeats, sign):
    results = [
        result(number, value, status=status, lr=lr, seed=number)
        for number, (lr, value, status) in enumerate(drawn, 1)
    ]
    goal = Goal("accuracy", sign)

    line = best(Design(goal, repeats), *results)

    runs = tables.runs_table("exp", results)
    settings = find(runs, str(goal), repeats).settings
    assert bool(line) == bool(settings)
    if settings:
        ties = [results[s.rows[0]].folder.params for s in settings if s.mean == settings[0].mean]
        names = ["lr"] if repeats else ["lr", "seed"]
        assert line.startswith(f"accuracy {cell(settings[0].mean)} · ")
        assert line.endswith(tuple(" ".join(f"{name}={params[name]}" for name in names) for params in ties))

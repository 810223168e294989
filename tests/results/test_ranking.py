import math
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from runmanager import compare, effects, export, show
from runmanager.errors import GridError
from runmanager.results.ranking import best, default_metric, over_repeats, own_goals
from runmanager.results.tables import HYPERPARAMETERS
from tests.results.run_tables import METRIC, table_of

FUNCTIONS = [best, compare, effects, over_repeats, show, partial(export, path="runs.csv")]


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.01]), st.integers(0, 4), METRIC), min_size=1, max_size=30))
def test_averages_over_repeats_agree_with_scipy(rows):
    runs = table_of(*(({"lr": lr, "seed": seed, "device": "cpu"}, value) for lr, seed, value in rows))

    table = over_repeats(runs, "seed", "epoch duration")

    if "lr" not in table:
        table.insert(0, "lr", rows[0][0])
    assert table["lr"].tolist() == list(dict.fromkeys(lr for lr, _, _ in rows))
    for row in table.set_index("lr").itertuples(name=None):
        lr, n, mean, std, low, high = row
        values = [value for other, _, value in rows if other == lr and math.isfinite(value)]
        assert n == len(values)
        if n:
            assert mean == pytest.approx(np.mean(values), abs=1e-6)
        if n > 1:
            assert std == pytest.approx(np.std(values, ddof=1), abs=1e-6)
        if n > 1 and std > 1e-6:
            interval = stats.t.interval(0.95, n - 1, loc=mean, scale=stats.sem(values))
            assert (low, high) == pytest.approx(interval, rel=1e-6, abs=1e-6)
        if n < 2:
            assert all(map(math.isnan, (std, low, high)))


def test_statistics_count_completed_runs_only():
    rows = [({"lr": lr, "device": device}, 2.0) for lr in (0.1, 0.2) for device in ("cuda", "cpu")]
    runs = table_of(*rows).assign(status=["completed", "completed", "completed", "interrupted"], seed=0)
    runs.attrs[HYPERPARAMETERS] = ["lr", "device", "seed"]

    pairs, seeds, explained = (
        compare(runs),
        over_repeats(runs, "seed", "epoch duration"),
        effects(runs, "epoch duration"),
    )

    assert pairs["lr"].tolist() == [0.1]
    assert seeds["epoch duration n"].tolist() == [1, 1, 1, 0]
    assert explained.set_index(["axis", "value"])["n"].loc["device"].to_dict() == {"cuda": 2, "cpu": 1}


def test_combinations_keep_the_types_of_their_hyperparameters():
    runs = table_of(
        *(({"lr": lr, "n": n, "seed": s}, 1.0) for lr in (0.1, 0.2) for n in (1, 2) for s in (0, 1))
    )

    table = over_repeats(runs, "seed", ["epoch duration"])

    assert list(table) == [
        "lr",
        "n",
        *(f"epoch duration {name}" for name in ("n", "mean", "std", "low", "high")),
    ]
    assert [str(table[name].dtype) for name in ("lr", "n", "epoch duration n")] == ["float64", "int64", "int64"]


def test_equal_values_of_different_types_are_one_value():
    runs = table_of(({"x": 1, "seed": 0}, 1.0), ({"x": 1.0, "seed": 1}, 3.0), ({"x": [1], "seed": 1}, 5.0))

    table = over_repeats(runs, "seed", "epoch duration")

    assert table["x"].tolist() == [1, [1]]
    assert table["epoch duration mean"].tolist() == [2.0, 5.0]


@pytest.mark.parametrize(
    "helper", [compare, lambda runs, axis: over_repeats(runs, axis, "loss"), lambda runs, _: effects(runs)]
)
def test_epochs_are_not_taken_for_runs(helper):
    epochs = pd.DataFrame(
        {"run": [1, 1, 2], "epoch": [1, 2, 1], "lr": [0.1, 0.1, 0.2], "loss": [3.0, 2.0, 1.0]}
    )
    epochs = epochs.assign(**{"epoch duration": 1.0})
    epochs.attrs[HYPERPARAMETERS] = ["lr"]

    with pytest.raises(GridError, match=r"these rows are epochs.*results.groupby\('run'\).tail\(1\)"):
        helper(epochs, "lr")

    assert len(helper(epochs.groupby("run").tail(1), "lr"))


@given(st.lists(METRIC | st.sampled_from([1.0, 2.0]), min_size=1), st.booleans(), st.none() | st.integers(0, 5))
def test_the_best_runs_are_those_that_pandas_sorts_first(values, largest, n):
    runs = table_of(*(({"lr": number}, value) for number, value in enumerate(values)))

    found = best(runs, f"{'max' if largest else 'min'}:epoch duration", n)

    finite = runs["epoch duration"].replace(math.inf, math.nan)
    sign = -1 if largest else 1
    reference = (sign * finite).sort_values(kind="stable").index[:n]
    assert found.index.tolist() == reference.tolist()
    ranked = {"ranked": ("epoch duration", 1 if largest else -1), "assumed": ""}
    assert (list(found), found.attrs) == (list(runs), runs.attrs | ranked)


@pytest.mark.parametrize(
    ("by", "first"),
    [("accuracy", 2), ("best test_accuracy", 2), ("loss", 0), ("run duration", 0), ("peak memory", 0)],
)
def test_which_values_are_good_follows_from_the_name(by, first):
    runs = pd.DataFrame({by: [1.0, 2.0, 3.0]})

    assert best(runs, by).index[0] == first


@pytest.mark.parametrize(
    ("columns", "metric"),
    [
        ({"loss": 1, "accuracy": 1, "test_loss": 1, "test_accuracy": 1}, "test_accuracy"),
        ({"loss": 1, "accuracy": 1, "test_accuracy": 1, "validation_accuracy": 1}, "validation_accuracy"),
        ({"loss": 1, "accuracy": 1, "held_out_accuracy": 1}, "held_out_accuracy"),
        ({"loss": 1, "accuracy": 1, "best accuracy": 1, "test_loss": 1}, "accuracy"),
        ({"loss": 1, "accuracy": math.nan, "test_loss": 1}, "test_loss"),
        ({"loss": 1, "accuracy": math.nan}, "loss"),
        ({"loss": math.nan, "accuracy": math.nan}, None),
        ({"f9": 1, "error": 1, "epoch duration": 1}, None),
        ({"f1": 1}, "f1"),
        ({"loss": 1, "f1": 1}, "loss"),
        ({"policy_loss": 1, "value_loss": 1, "loss": 1, "reward": 1}, "reward"),
        ({"policy_loss": 1, "reward": 1, "eval_reward": 1}, "eval_reward"),
    ],
)
def test_the_main_metric_is_the_one_that_tells_most(columns, metric):
    runs = pd.DataFrame({name: [float(value)] for name, value in columns.items()})

    assert [goal.metric for goal in own_goals(runs)] == ([metric] if metric else [])


def test_without_accuracy_and_loss_the_metric_has_to_be_named():
    runs = pd.DataFrame({"f9": [0.1, 0.3], "loss": [math.nan] * 2})

    with pytest.raises(
        GridError,
        match=r"no run has an accuracy or a loss: name the metric, as goal='max:f1' \(--goal max:f1\)",
    ):
        best(runs)
    with pytest.raises(GridError, match=r"no run has an accuracy or a loss: .* as value='f1'$"):
        effects(runs)

    assert best(runs, "max:f9")["f9"].tolist() == [0.3, 0.1]
    assert best(runs, "min:f9")["f9"].tolist() == [0.1, 0.3]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"goal": "f2"}, "these runs have no column 'f2'; did you mean 'f9'?"),
        ({"goal": "max:status"}, "column 'status' does not hold numbers: give a metric, as 'loss'"),
        (
            {"goal": "f9"},
            "whether large values of 'f9' are good is not known: write goal='max:f9' or goal='min:f9'",
        ),
        ({"n": -1}, "n must be a whole number, 0 or more, got -1"),
        ({"n": 1.5}, "n must be a whole number, 0 or more, got 1.5"),
    ],
)
def test_what_cannot_be_sorted_is_refused(arguments, problem):
    runs = pd.DataFrame({"loss": [1.0], "f9": [1.0], "status": ["completed"]})

    with pytest.raises(GridError) as caught:
        best(runs, **arguments)

    assert caught.value.problems == [problem]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("wrong", ["runs", [1], None])
def test_what_is_no_table_is_refused(function, wrong):
    with pytest.raises(GridError, match=re.escape(f"as load_runs('runs') gives, got {wrong!r}")):
        function(wrong)


def test_an_axis_that_is_no_hyperparameter_cannot_be_averaged_over():
    runs = table_of(({"lr": 0.1}, 1.0))

    with pytest.raises(GridError) as caught:
        over_repeats(runs, "seed", ["epoch duration", "loss"])

    assert caught.value.problems == [
        "these runs have no hyperparameter 'seed'; they have: lr",
        "these runs have no column 'loss'; they have: lr, epoch duration",
    ]


def test_a_hyperparameter_is_never_taken_for_a_metric():
    runs = table_of(
        ({"target_accuracy": 0.9, "aux_loss": "none", "loss": 0.5}, 1.0),
        ({"target_accuracy": 0.95, "aux_loss": "mse", "loss": 0.25}, 1.0),
    )
    runs.attrs[HYPERPARAMETERS] = ["target_accuracy", "aux_loss"]

    assert default_metric(runs, "") == "loss"
    assert best(runs)["loss"].tolist() == [0.25, 0.5]

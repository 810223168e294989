import itertools
import math
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from runmanager import RunManager, export, load_runs, show
from runmanager.errors import GridError
from runmanager.results.ranking import best, compare, effects, main_metric, over_seeds
from runmanager.results.tables import HYPERPARAMETERS

GRID = list(itertools.product([0.1, 0.01], [64, 128], ["cpu", "cuda", "cuda:1"]))
FUNCTIONS = [best, compare, effects, over_seeds, show, partial(export, path="runs.csv")]
SECONDS = st.floats(0.001, 1000) | st.just(math.nan)


def table_of(*rows):
    """Make a table as `load_runs` does: hyperparameters, then the column `epoch duration`."""
    table = pd.DataFrame([row | {"epoch duration": seconds} for row, seconds in rows])
    table.attrs[HYPERPARAMETERS] = list(rows[0][0])
    return table


def rows_of(table):
    return table.to_dict(orient="records")


@given(st.dictionaries(st.sampled_from(GRID), SECONDS, min_size=1))
def test_comparing_agrees_with_pandas(seconds):
    names = ("lr", "batch_size", "device")
    runs = table_of(*((dict(zip(names, key, strict=True)), value) for key, value in seconds.items()))

    pairs = compare(runs, "device", "epoch duration")

    known = runs.dropna()["device"].unique()
    first, *others = [d for d in runs["device"].unique() if len(known) < 2 or d in known]
    reference = runs.pivot_table("epoch duration", ["lr", "batch_size"], "device", dropna=False)
    reference = reference.reindex(columns=[first, *others]).dropna()
    for other in others:
        reference[f"{other} / {first}"] = reference[other] / reference[first]
    found = pairs[list(reference)].itertuples(index=False, name=None)
    assert sorted(found) == sorted(reference.itertuples(index=False, name=None))


def test_runs_that_differ_in_the_axis_only_become_one_row():
    runs = table_of(
        ({"lr": 0.1, "amp": True, "device": "cuda"}, 1.0),
        ({"lr": 0.1, "amp": True, "device": "cpu"}, 2.0),
        ({"lr": 0.01, "amp": True, "device": "cuda"}, 1.5),
        ({"lr": 0.01, "amp": True, "device": "cpu"}, 6.0),
    )

    pairs = compare(runs)

    assert rows_of(pairs) == [  # amp does not vary
        {"lr": 0.1, "cuda": 1.0, "cpu": 2.0, "cpu / cuda": 2.0},
        {"lr": 0.01, "cuda": 1.5, "cpu": 6.0, "cpu / cuda": 4.0},
    ]


def test_runs_without_a_partner_or_a_number_are_left_out():
    runs = table_of(
        ({"lr": 0.1, "device": "cpu"}, 2.0),
        ({"lr": 0.1, "device": "cuda"}, 1.0),
        ({"lr": 0.2, "device": "cpu"}, 3.0),
        ({"lr": 0.3, "device": "cpu"}, 3.0),
        ({"lr": 0.3, "device": "cuda"}, math.nan),
    )

    pairs = compare(runs)

    assert rows_of(pairs) == [{"lr": 0.1, "cpu": 2.0, "cuda": 1.0, "cuda / cpu": 0.5}]


def test_a_value_of_which_no_run_has_a_number_leaves_the_pairs_of_the_others():
    runs = table_of(
        *(({"lr": lr, "device": d}, v) for lr in (1, 2) for d, v in (("tpu", math.nan), ("a", 2.0), ("b", 1.0)))
    )

    pairs = compare(runs)

    assert rows_of(pairs) == [{"lr": lr, "a": 2.0, "b": 1.0, "b / a": 0.5} for lr in (1, 2)]
    assert pairs.attrs["overall"][0]["n"] == 2


def test_only_runs_of_the_same_experiment_are_paired():
    runs = table_of(({"device": "cpu"}, 2.0), ({"device": "cuda"}, 1.0), ({"device": "cpu"}, 3.0))
    runs.insert(0, "experiment", ["a", "a", "b"])

    pairs = compare(runs)

    assert rows_of(pairs) == [{"experiment": "a", "cpu": 2.0, "cuda": 1.0, "cuda / cpu": 0.5}]


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ([0.12345678, 0.12345679], ["0.12345678", "0.12345679"]),
        ([1, "1"], ["1", "'1'"]),
        (["seed", "b"], ["'seed'", "'b'"]),
        ([(3, 3), (5, 5)], ["(3, 3)", "(5, 5)"]),
        ([True, "True"], ["True", "'True'"]),
    ],
)
def test_every_value_of_the_axis_has_a_column_of_its_own(values, columns):
    runs = table_of(*(({"x": value, "seed": seed}, 2.0**seed) for value in values for seed in (0, 1)))

    pairs = compare(runs.astype({"x": object}), "x")

    assert list(pairs) == ["seed", *columns, f"{columns[1]} / {columns[0]}"]
    assert [len(pairs), list(pairs[columns[1]])] == [2, [1.0, 2.0]]


@pytest.mark.parametrize(
    ("axis", "value", "message"),
    [
        ("momentum", "epoch duration", "'momentum' is no hyperparameter of these runs; they have: lr, device"),
        (
            "epoch duration",
            "epoch duration",
            "'epoch duration' is no hyperparameter of these runs; they have: lr, device",
        ),
        ("lr", "loss", "'loss' is no column of these runs; they have: lr, device, epoch duration"),
    ],
)
def test_an_axis_or_a_value_that_is_not_there_is_refused(axis, value, message):
    runs = table_of(({"lr": 0.1, "device": "cpu"}, 2.0))

    with pytest.raises(GridError) as caught:
        compare(runs, axis, value)

    assert caught.value.problems == [message]


def test_both_problems_are_told_at_once():
    with pytest.raises(GridError) as caught:
        compare(pd.DataFrame(), "device", "loss")

    assert caught.value.problems == [
        "'device' is no hyperparameter of these runs; they have: none",
        "'loss' is no column of these runs; they have: none",
    ]


def test_no_runs_are_no_pairs():
    runs = table_of(({"lr": 0.1, "device": "cpu"}, 2.0))

    assert len(compare(runs[runs["lr"] > 1])) == 0


def test_what_load_runs_gives_can_be_compared(tmp_path):
    manager = RunManager("study", tmp_path, tensorboard=False, display=False)
    for batch_size, loss in ((64, 1.0), (128, 3.0)):
        with manager.run({"batch_size": batch_size, "device": "cpu"}):
            for _ in manager.epochs(1):
                manager.track_loss(loss, batch_size)

    pairs = compare(load_runs(tmp_path), "batch_size", "loss")

    assert rows_of(pairs) == [{"64": 1.0, "128": 3.0, "128 / 64": 3.0}]


METRIC = st.floats(-1e6, 1e6, allow_subnormal=False) | st.just(math.nan) | st.just(math.inf)


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.01]), st.integers(0, 4), METRIC), min_size=1, max_size=30))
def test_averages_over_seeds_agree_with_scipy(rows):
    runs = table_of(*(({"lr": lr, "seed": seed, "device": "cpu"}, value) for lr, seed, value in rows))

    table = over_seeds(runs, values="epoch duration")

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


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=12))
def test_the_mean_ratio_and_its_interval_agree_with_scipy(pairs):
    runs = table_of(
        *(
            ({"seed": seed, "device": device}, seconds)
            for seed, pair in enumerate(pairs)
            for device, seconds in zip(("cuda", "cpu"), pair, strict=True)
        )
    )

    (overall,) = compare(runs).attrs["overall"]

    ratios = [cpu / cuda for cuda, cpu in pairs]
    assert (overall["ratio"], overall["n"]) == ("cpu / cuda", len(pairs))
    assert overall["mean"] == pytest.approx(stats.gmean(ratios))
    if len(pairs) == 1:
        assert math.isnan(overall["low"])
        assert math.isnan(overall["high"])
    else:
        logs = np.log(ratios)
        half = stats.t.ppf(0.975, len(pairs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(pairs))
        interval = np.exp([logs.mean() - half, logs.mean() + half]).tolist()
        assert [overall["low"], overall["high"]] == pytest.approx(interval, rel=1e-6)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_ratios_that_are_not_above_zero_have_no_geometric_mean(seconds):
    runs = table_of(*(({"seed": s, "device": d}, v) for s, d, v in ((0, "a", 2.0), (0, "b", seconds))))

    pairs = compare(runs)

    assert pairs["b / a"].tolist() == [seconds / 2]
    assert math.isnan(pairs.attrs["overall"][0]["mean"])


def test_no_pairs_have_no_mean_ratio():
    runs = table_of(({"seed": 0, "device": "a"}, 1.0), ({"seed": 1, "device": "b"}, 1.0))

    (overall,) = compare(runs).attrs["overall"]

    assert overall["n"] == 0
    assert math.isnan(overall["mean"])


def test_repeats_of_a_run_are_paired_by_their_mean():
    runs = table_of(
        *(({"device": device}, v) for device, v in (("a", 1.0), ("b", 2.0), ("a", 3.0), ("b", math.nan)))
    )

    assert rows_of(compare(runs)) == [{"a": 2.0, "b": 2.0, "b / a": 1.0}]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), METRIC), min_size=1, max_size=30))
def test_effects_agree_with_the_analysis_of_variance(rows):
    runs = table_of(*(({"width": width, "amp": bool(amp)}, value) for width, amp, value in rows))

    table = effects(runs, "epoch duration")

    numbers = runs["epoch duration"].where(np.isfinite(runs["epoch duration"]))
    for axis, found in table.groupby("axis"):
        groups = [numbers[runs[axis] == value].dropna() for value in found["value"]]
        assert found["n"].tolist() == [len(group) for group in groups]
        assert found["mean"].tolist() == pytest.approx([g.mean() for g in groups], abs=1e-6, nan_ok=True)
        assert found["std"].tolist() == pytest.approx([g.std() for g in groups], abs=1e-6, nan_ok=True)
        share = found["explained"].iloc[0]
        full = [group for group in groups if len(group)]
        within = sum(len(full_group) for full_group in full) - len(full)
        if len(full) > 1 and within > 0 and all(g.std(ddof=0) > 1e-3 for g in full):
            f = stats.f_oneway(*full).statistic
            assert share == pytest.approx(f * (len(full) - 1) / (f * (len(full) - 1) + within), abs=1e-6)
        if not math.isnan(share):
            assert -1e-9 <= share <= 1 + 1e-9
    varied = [name for name in ("width", "amp") if len(set(runs[name])) > 1]
    assert sorted(set(table["axis"])) == sorted(varied)


def test_the_axis_that_explains_most_stands_first():
    grid = itertools.product([1, 2], [10, 20])
    runs = table_of(*(({"seed": seed, "width": width}, 1.0 * width + seed) for seed, width in grid))

    table = effects(runs, "epoch duration")

    assert rows_of(table.drop(columns="std")) == [
        {"axis": "width", "value": 10, "n": 2, "mean": 11.5, "explained": pytest.approx(100 / 101)},
        {"axis": "width", "value": 20, "n": 2, "mean": 21.5, "explained": pytest.approx(100 / 101)},
        {"axis": "seed", "value": 1, "n": 2, "mean": 16.0, "explained": pytest.approx(1 / 101)},
        {"axis": "seed", "value": 2, "n": 2, "mean": 17.0, "explained": pytest.approx(1 / 101)},
    ]


def test_a_grid_in_which_nothing_varies_has_no_effects():
    runs = table_of(({"lr": 0.1}, 1.0), ({"lr": 0.1}, 2.0))

    table = effects(runs, "epoch duration")

    assert (len(table), list(table)) == (0, ["axis", "value", "n", "mean", "std", "explained"])


@pytest.mark.parametrize("seconds", [1.0, 0.1])
def test_a_result_that_does_not_vary_is_explained_by_nothing(seconds):
    runs = table_of(({"lr": 0.1}, seconds), ({"lr": 0.2}, seconds), ({"lr": 0.3}, seconds))

    assert effects(runs, "epoch duration")["explained"].isna().all()


def test_statistics_count_completed_runs_only():
    rows = [({"lr": lr, "device": device}, 2.0) for lr in (0.1, 0.2) for device in ("cuda", "cpu")]
    runs = table_of(*rows).assign(status=["completed", "completed", "completed", "interrupted"], seed=0)
    runs.attrs[HYPERPARAMETERS] = ["lr", "device", "seed"]

    pairs, seeds, explained = (
        compare(runs),
        over_seeds(runs, values="epoch duration"),
        effects(runs, "epoch duration"),
    )

    assert pairs["lr"].tolist() == [0.1]
    assert seeds["epoch duration n"].tolist() == [1, 1, 1, 0]
    assert explained.set_index(["axis", "value"])["n"].loc["device"].to_dict() == {"cuda": 2, "cpu": 1}


def test_combinations_keep_the_types_of_their_hyperparameters():
    runs = table_of(
        *(({"lr": lr, "n": n, "seed": s}, 1.0) for lr in (0.1, 0.2) for n in (1, 2) for s in (0, 1))
    )

    table = over_seeds(runs, values=["epoch duration"])

    assert list(table) == [
        "lr",
        "n",
        *(f"epoch duration {name}" for name in ("n", "mean", "std", "low", "high")),
    ]
    assert [str(table[name].dtype) for name in ("lr", "n", "epoch duration n")] == ["float64", "int64", "int64"]


def test_equal_values_of_different_types_are_one_value():
    runs = table_of(({"x": 1, "seed": 0}, 1.0), ({"x": 1.0, "seed": 1}, 3.0), ({"x": [1], "seed": 1}, 5.0))

    table = over_seeds(runs, values="epoch duration")

    assert table["x"].tolist() == [1, [1]]
    assert table["epoch duration mean"].tolist() == [2.0, 5.0]


@pytest.mark.parametrize(
    "helper", [compare, lambda runs, axis: over_seeds(runs, axis, "loss"), lambda runs, _: effects(runs)]
)
def test_epochs_are_not_taken_for_runs(helper):
    epochs = pd.DataFrame(
        {"run": [1, 1, 2], "epoch": [1, 2, 1], "lr": [0.1, 0.1, 0.2], "loss": [3.0, 2.0, 1.0]}
    )
    epochs = epochs.assign(**{"epoch duration": 1.0})
    epochs.attrs[HYPERPARAMETERS] = ["lr"]

    with pytest.raises(GridError, match=r"these are epochs.*results.groupby\('run'\).tail\(1\)"):
        helper(epochs, "lr")

    assert len(helper(epochs.groupby("run").tail(1), "lr"))


@given(st.lists(METRIC | st.sampled_from([1.0, 2.0]), min_size=1), st.booleans(), st.none() | st.integers(0, 5))
def test_the_best_runs_are_those_that_pandas_sorts_first(values, largest, n):
    runs = table_of(*(({"lr": number}, value) for number, value in enumerate(values)))

    found = best(runs, "epoch duration", n, largest=largest)

    finite = runs["epoch duration"].replace(math.inf, math.nan)
    sign = -1 if largest else 1
    reference = (sign * finite).sort_values(kind="stable").index[:n]
    assert found.index.tolist() == reference.tolist()
    assert (list(found), found.attrs) == (list(runs), runs.attrs)


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
        ({"f1": 1}, None),
    ],
)
def test_the_main_metric_is_the_one_that_tells_most(columns, metric):
    assert main_metric(pd.DataFrame({name: [float(value)] for name, value in columns.items()})) == metric


def test_without_accuracy_and_loss_the_metric_has_to_be_named():
    runs = pd.DataFrame({"f1": [0.1, 0.3], "loss": [math.nan] * 2})

    with pytest.raises(GridError, match="no run has an accuracy or a loss: say which column counts"):
        best(runs)
    with pytest.raises(GridError, match=r"no run has an accuracy or a loss: .* as value='f1'$"):
        effects(runs)

    assert best(runs, "f1", largest=True)["f1"].tolist() == [0.3, 0.1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"by": "f2"}, "'f2' is no column of these runs; they have: loss, f1, status"),
        ({"by": "status"}, "'status' is no column of numbers: give a metric, as 'loss'"),
        (
            {"by": "f1"},
            (
                "whether large values of 'f1' are good is not known: "
                "give largest=True or largest=False (--largest or --smallest)"
            ),
        ),
        ({"n": -1}, "n must be a number of runs, got -1"),
        ({"n": 1.5}, "n must be a number of runs, got 1.5"),
    ],
)
def test_what_cannot_be_sorted_is_refused(arguments, problem):
    runs = pd.DataFrame({"loss": [1.0], "f1": [1.0], "status": ["completed"]})

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
        over_seeds(runs, values=["epoch duration", "loss"])

    assert caught.value.problems == [
        "'seed' is no hyperparameter of these runs; they have: lr",
        "'loss' is no column of these runs; they have: lr, epoch duration",
    ]


def test_a_hyperparameter_is_never_taken_for_a_metric():
    runs = table_of(
        ({"target_accuracy": 0.9, "aux_loss": "none", "loss": 0.5}, 1.0),
        ({"target_accuracy": 0.95, "aux_loss": "mse", "loss": 0.25}, 1.0),
    )
    runs.attrs[HYPERPARAMETERS] = ["target_accuracy", "aux_loss"]

    assert main_metric(runs) == "loss"
    assert best(runs)["loss"].tolist() == [0.25, 0.5]

"""What a hyperparameter changes: pairs of `compare`, shares of `effects`, `importances` of a sample."""

import math
import re
import warnings
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from runmanager import (
    GridError,
    IntRange,
    LogUniform,
    RunBuilder,
    Uniform,
    compare,
    effects,
    importances,
    load_table,
    show,
    verdict,
)

TIME = "epoch duration"
METRIC = st.floats(-1e6, 1e6, allow_subnormal=False) | st.just(math.nan) | st.just(math.inf)


def table_of(*rows):
    """Make a table of hyperparameters and a duration."""
    table = pd.DataFrame([row | {TIME: seconds} for row, seconds in rows])
    table.attrs["hyperparameters"] = [*rows[0][0]]  # as `load_runs` has them
    return table


def rows_of(table):
    return table.to_dict(orient="records")


# compare


def test_runs_that_differ_in_the_axis_only_become_one_row():
    runs = table_of(
        ({"lr": 0.1, "amp": True, "device": "cuda"}, 1.0), ({"lr": 0.1, "amp": True, "device": "cpu"}, 2.0),
        ({"lr": 0.01, "amp": True, "device": "cuda"}, 1.5), ({"lr": 0.01, "amp": True, "device": "cpu"}, 6.0),
    )  # fmt: skip

    assert rows_of(compare(runs)) == [  # amp does not vary
        {"lr": 0.1, "cuda": 1.0, "cpu": 2.0, "cpu vs cuda": 1.0, "cpu / cuda": 2.0},
        {"lr": 0.01, "cuda": 1.5, "cpu": 6.0, "cpu vs cuda": 4.5, "cpu / cuda": 4.0},
    ]


PAIR = {"cpu": 2.0, "cuda": 1.0, "cuda vs cpu": -1.0, "cuda / cpu": 0.5}
LEFT_OUT: dict[str, Any] = {
    "a run without a partner or a number": (
        [(0.1, "cpu", 2.0), (0.1, "cuda", 1.0), (0.2, "cpu", 3.0), (0.3, "cpu", 3.0), (0.3, "cuda", math.nan)],
        [{"lr": 0.1, **PAIR}], "1 pair left out, as runs have no number",
    ),
    "a value of which no run has a number": (
        [(lr, d, v) for lr in (1, 2) for d, v in (("tpu", math.nan), ("cpu", 2.0), ("cuda", 1.0))],
        [{"lr": 1, **PAIR}, {"lr": 2, **PAIR}], "2 pairs left out",
    ),
    "repeats, by their mean": (
        [(1, "cpu", 1.0), (1, "cuda", 2.0), (1, "cpu", 3.0), (1, "cuda", math.nan)],
        [{"cpu": 2.0, "cuda": 2.0, "cuda vs cpu": 0.0, "cuda / cpu": 1.0}], "",
    ),
    "a ratio that is not above 0": (
        [(1, "cpu", 2.0), (1, "cuda", 0.0)],
        [{"cpu": 2.0, "cuda": 0.0, "cuda vs cpu": -2.0, "cuda / cpu": 0.0}], "",
    ),
    "no partner": ([(1, "cpu", 2.0), (2, "cuda", 0.0)], [], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_makes_no_pair_is_left_out_and_counted(case):
    rows, expected, sentence = LEFT_OUT[case]

    pairs = compare(table_of(*(({"lr": lr, "device": device}, value) for lr, device, value in rows)))

    assert rows_of(pairs) == expected
    assert sentence in pairs.sentence
    assert ("geometric" in pairs.sentence) == ("not above 0" not in case and len(pairs) > 0)


def test_only_runs_of_the_same_experiment_are_paired():
    runs = table_of(({"device": "cpu"}, 2.0), ({"device": "cuda"}, 1.0), ({"device": "cpu"}, 3.0))
    runs.insert(0, "experiment", ["a", "a", "b"])

    assert rows_of(compare(runs)) == [{"experiment": "a", **PAIR}]


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ([0.12345678, 0.12345679], ["0.12345678", "0.12345679"]),
        ([1, "1"], ["1", "'1'"]),
        ([True, "True"], ["True", "'True'"]),
        ([(3, 3), (5, 5)], ["(3, 3)", "(5, 5)"]),
        (["", "cpu"], ["", "cpu"]),
    ],
)
def test_every_value_of_the_axis_has_a_column_of_its_own(values, columns):
    runs = table_of(*(({"x": value, "seed": seed}, 2.0**seed) for value in values for seed in (0, 1)))

    pairs = compare(runs.astype({"x": object}), "x")

    assert list(pairs) == ["seed", *columns, *(f"{columns[1]} {sign} {columns[0]}" for sign in ("vs", "/"))]
    assert list(pairs[columns[1]]) == [1.0, 2.0]


def test_values_and_hyperparameters_that_are_called_like_computed_columns_keep_theirs():
    differences = table_of(*(({"x": x}, value) for x, value in (("a", 1.0), ("b", 2.0), ("b vs a", 4.0))))
    seeds = table_of(*(({"x": value, "seed": seed}, 2.0) for value in ("seed", "b") for seed in (0, 1)))
    values = {(1, "cuda"): 2.0, (1, "cpu"): 4.0, (2, "cuda"): 3.0, (2, "cpu"): 3.0}
    ratios = table_of(*(({"cpu / cuda": n, "device": device}, v) for (n, device), v in values.items()))

    assert compare(differences, "x")[["'b vs a'", "'b' vs 'a'"]].to_numpy().tolist() == [[4.0, 1.0]]
    pairs = compare(seeds, "x")
    assert [list(pairs[name]) for name in ("seed (hyperparameter)", "seed")] == [[0, 1], [2.0, 2.0]]
    pairs = compare(ratios, "device")
    assert pairs["cpu / cuda (hyperparameter)"].tolist() == [1, 2]
    assert pairs["cpu / cuda"].tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("axis", "value", "named"),
    [("momentum", TIME, "'momentum'"), (TIME, TIME, f"'{TIME}'"), ("lr", "loss", "no column 'loss'")],
)
def test_an_axis_or_a_value_that_is_not_there_is_refused(axis, value, named):
    runs = table_of(({"lr": 0.1, "device": "cpu"}, 2.0))

    with pytest.raises(GridError, match=f"{named}.* they have: lr, device"):
        compare(runs, axis, value)

    assert len(compare(runs[runs["lr"] > 1])) == 0


@settings(max_examples=15)
@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=12))
def test_the_mean_ratio_and_its_interval_agree_with_scipy(pairs):
    rows = [({"seed": seed, "device": device}, seconds) for seed, pair in enumerate(pairs)
            for device, seconds in zip(("cuda", "cpu"), pair, strict=True)]  # fmt: skip

    sentence = compare(table_of(*rows)).sentence

    ratios = [cpu / cuda for cuda, cpu in pairs]
    ((mean, number),) = re.findall(r"cpu / cuda: (\S+) \(geometric mean of (\d+)", sentence)
    assert float(mean) == pytest.approx(stats.gmean(ratios), rel=1e-3)
    assert int(number) == len(pairs)
    assert ("interval" in sentence) == (len(pairs) > 1)
    if len(pairs) > 1:
        logs = np.log(ratios)
        half = stats.t.ppf(0.975, len(pairs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(pairs))
        interval = np.exp([logs.mean() - half, logs.mean() + half]).tolist()
        (ends,) = re.findall(r"95 % interval (\S+) to (\S+)\)", sentence)
        assert list(map(float, ends)) == pytest.approx(interval, rel=1e-3)


# effects


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), METRIC), min_size=1, max_size=30))
def test_effects_agree_with_the_analysis_of_variance(rows):
    runs = table_of(*(({"width": width, "amp": bool(amp)}, value) for width, amp, value in rows))

    table = effects(runs, TIME)

    numbers = runs[TIME].where(np.isfinite(runs[TIME]))
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
        assert math.isnan(share) or -1e-9 <= share <= 1 + 1e-9
    varied = [name for name in ("width", "amp") if len(set(runs[name])) > 1]
    assert sorted(set(table["axis"])) == sorted(varied)


def test_the_interval_of_a_value_counts_a_setting_with_a_single_repeat():
    settings = {(1, 8): [1.0, 2.0, 3.0], (1, 16): [4.0], (1, 32): [6.0], (2, 8): [5.0]}
    rows = [
        {"lr": lr, "width": width, "seed": seed, "f1": value}
        for (lr, width), values in settings.items()
        for seed, value in enumerate(values)
    ]
    table = load_table(pd.DataFrame(rows), hyperparameters=["lr", "width"], repeats="seed", goal="max:f1")

    value = effects(table).query("axis == 'lr' and value == 1").iloc[0]

    half = stats.t.ppf(0.975, 2) * math.sqrt(1 / 3 + 1 + 1) / 3
    assert (value["low"], value["high"]) == pytest.approx((4 - half, 4 + half))


@pytest.mark.parametrize("seconds", [[1.0] * 4, [0.1] * 4, [1e308, -1e308, 1e308, 1.0]])
def test_what_does_not_vary_or_has_infinite_squares_is_explained_by_nothing(seconds):
    rows = zip((1, 1, 2, 2), seconds, strict=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert effects(table_of(*(({"lr": lr}, value) for lr, value in rows)), TIME)["explained"].isna().all()


def test_what_cannot_be_asked_has_a_form_too():
    alone = table_of(({"lr": 1, "device": "cpu"}, 2.0))

    for result in (effects(alone, TIME), compare(alone, "lr")):
        assert len(result) == 0
        assert repr(show(result)).startswith("no rows")
        assert show(result)._repr_html_().count("<table") == 0
    assert repr(show(effects(alone, TIME))).endswith("no hyperparameter varies")
    assert f"no two completed runs differ in lr alone and have {TIME}" in repr(show(compare(alone, "lr")))


# Samples

SPACE = {
    "lr": LogUniform(1e-5, 1e-1),
    "dropout": Uniform(0, 0.5),
    "width": IntRange(16, 512, log=True),
    "optimizer": ["adam", "sgd"],
}


def score(run):
    return math.exp(-((math.log10(run.lr) + 2) ** 2)) + 0.01 * (run.optimizer == "adam") - 0.01 * run.dropout


def sampled(seeds=(None,), **columns):
    names = [*SPACE, *(["seed"] if seeds != (None,) else [])]
    rows = [
        {**run._asdict(), "seed": seed, "accuracy": score(run) + 1e-4 * (seed or 0)}
        for run in RunBuilder.sample(SPACE, 60, seed=0)
        for seed in seeds
    ]
    return load_table(pd.DataFrame(rows).assign(**columns), hyperparameters=names)


def test_importances_are_those_of_a_study_with_the_same_trials():
    runs = sampled()
    study, of = optuna.create_study(direction="maximize"), optuna.distributions
    spaces = {
        "lr": of.FloatDistribution(runs.lr.min(), runs.lr.max(), log=True),
        "dropout": of.FloatDistribution(runs.dropout.min(), runs.dropout.max()),
        "width": of.IntDistribution(int(runs.width.min()), int(runs.width.max()), log=True),
        "optimizer": of.CategoricalDistribution(["adam", "sgd"]),
    }
    for row in runs.to_dict("records"):
        params = {name: row[name] for name in SPACE}
        study.add_trial(optuna.create_trial(params=params, distributions=spaces, value=row["accuracy"]))

    for quantile in (0.25, 0.5):
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
        expected = optuna.importance.get_param_importances(study, evaluator=evaluator)
        table = importances(runs, evaluator=evaluator if quantile == 0.5 else None)
        assert dict(zip(table["axis"], table["importance"], strict=True)) == pytest.approx(expected)
        assert table["axis"][0] == "lr"
        assert table["importance"].is_monotonic_decreasing


def test_means_of_repeats_and_runs_with_a_result_alone_count():
    runs = sampled()
    expected = importances(runs)
    loss = runs.assign(loss=-runs["accuracy"])
    lost = runs.assign(lr=0.5, status="failed", accuracy=math.nan)
    more = pd.concat([runs.assign(status="completed"), lost], ignore_index=True)
    more.attrs = runs.attrs

    pd.testing.assert_frame_equal(importances(loss, "loss"), expected)  # the least is best
    assert not importances(loss, "max:loss").equals(expected)
    pd.testing.assert_frame_equal(importances(sampled(range(3)), repeats="seed"), expected)
    pd.testing.assert_frame_equal(importances(more), expected)
    for value in (0.5, math.nan):
        assert importances(sampled(accuracy=value), "accuracy")["importance"].isna().all()


def test_effects_of_a_range_are_those_of_five_parts():
    table = effects(sampled())

    assert table.groupby("axis").size().to_dict() == {"lr": 5, "dropout": 5, "width": 5, "optimizer": 2}
    assert table["axis"][0] == "lr"
    assert table[table["axis"] == "lr"]["n"].tolist() == [12] * 5
    assert table["value"][0].split(" to ")[0] == f"{sampled().lr.min():g}"
    repeated = effects(sampled(range(3)), repeats="seed")
    assert (repeated["axis"] == "lr").sum() == 5
    assert (repeated["low"] < repeated["mean"]).all()


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ([2.0**-e for e in range(12)], 5),
        ([None, *range(20)], ["0 to 3", "4 to 7", "8 to 11", "12 to 15", "16 to 19", "none"]),
        ([None, *[2] * 15, *range(30)], "0 to 2"),
        ([*range(9)], 9),
        ([*range(12)] * 2, 12),
        ([True, False] * 10, 2),
        ([*map(str, range(20))], 20),
        ([math.inf, *range(20)], 21),
        ([10**400, *range(20)], 21),
    ],
    ids=["range", "with none", "repeated", "few", "twice", "bools", "texts", "inf", "huge"],
)
def test_a_range_has_many_numbers_of_which_hardly_any_occurs_twice(values, parts):
    runs = pd.DataFrame({"x": pd.Series(values, dtype="object"), "f1": [float(n) for n in range(len(values))]})

    runs.attrs["hyperparameters"] = ["x"]
    table = effects(runs, "f1")

    if isinstance(parts, list):
        assert table["value"].tolist() == parts
        assert table["n"].tolist() == [4, 4, 4, 4, 4, 1]
    elif isinstance(parts, str):
        assert (table["value"].iloc[0], table["value"].iloc[-1]) == (parts, "none")
        assert (table["n"] > 0).all()
    else:
        assert len(table) == parts


def test_no_value_of_a_range_can_be_compared_with_another_all_else_equal():
    for axis in ("lr", "optimizer"):
        assert compare(sampled(), axis).sentence.endswith(f"differ in {axis} alone and have accuracy")

    decision = verdict(sampled(), "lr")

    assert decision.sentence.startswith("undecided: there are no two values of lr to compare; not compared: ")
    assert not decision.decided

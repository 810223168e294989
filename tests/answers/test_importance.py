import logging
import math
import sys
import warnings

import numpy as np
import optuna
import pandas as pd
import pytest

from runmanager import (
    IntRange,
    LogUniform,
    MissingExtraError,
    RunBuilder,
    Uniform,
    compare,
    effects,
    importances,
    verdict,
)
from runmanager.answers.sampled import in_parts, is_in_magnitudes, is_sampled

SPACE = {
    "lr": LogUniform(1e-5, 1e-1),
    "dropout": Uniform(0, 0.5),
    "width": IntRange(16, 512, log=True),
    "optimizer": ["adam", "sgd"],
}


def score(run):
    return math.exp(-((math.log10(run.lr) + 2) ** 2)) + 0.01 * (run.optimizer == "adam") - 0.01 * run.dropout


def sampled(n=60, seeds=(None,), space=SPACE, **columns):
    runs = RunBuilder.sample(space, n, seed=0)
    names = [*space, *(["seed"] if seeds != (None,) else [])]
    rows = [
        {**run._asdict(), "seed": seed, "accuracy": score(run) + 1e-4 * (seed or 0)}
        for run in runs
        for seed in seeds
    ]
    table = pd.DataFrame(rows).assign(**columns)
    table.attrs["hyperparameters"] = names
    return table


def test_what_matters_most_is_first_and_all_shares_make_one():
    table = importances(sampled())

    assert table["axis"].tolist()[0] == "lr"
    assert set(table["axis"]) == set(SPACE)
    assert table["importance"].is_monotonic_decreasing
    assert table["importance"].sum() == pytest.approx(1)
    assert table["importance"][0] > 0.8


def test_importances_are_those_of_a_study_with_the_same_trials():
    runs = sampled()
    study = optuna.create_study(direction="maximize")
    spaces = {
        "lr": optuna.distributions.FloatDistribution(runs.lr.min(), runs.lr.max(), log=True),
        "dropout": optuna.distributions.FloatDistribution(runs.dropout.min(), runs.dropout.max()),
        "width": optuna.distributions.IntDistribution(int(runs.width.min()), int(runs.width.max()), log=True),
        "optimizer": optuna.distributions.CategoricalDistribution(["adam", "sgd"]),
    }
    for row in runs.to_dict("records"):
        value = row.pop("accuracy")
        row.pop("seed")
        study.add_trial(optuna.create_trial(params=row, distributions=spaces, value=value))

    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
    expected = optuna.importance.get_param_importances(study, evaluator=evaluator)

    table = importances(runs)
    assert dict(zip(table["axis"], table["importance"], strict=True)) == pytest.approx(expected)


def test_the_least_is_best_of_a_loss():
    runs = sampled()
    runs["loss"] = -runs.pop("accuracy")

    assert importances(runs)["axis"][0] == "lr"
    assert not importances(runs, "max:loss").equals(importances(runs))


def test_repeats_count_by_their_mean_and_are_no_hyperparameter():
    table = importances(sampled(seeds=range(3)), repeats="seed")

    assert set(table["axis"]) == set(SPACE)
    pd.testing.assert_frame_equal(table, importances(sampled()))


def test_runs_without_a_result_do_not_count():
    runs = sampled()
    more = pd.concat([runs.assign(status="completed"), runs.assign(lr=0.5, status="failed", accuracy=math.nan)])
    more.attrs = runs.attrs

    pd.testing.assert_frame_equal(importances(more.reset_index(drop=True)), importances(runs))


def test_an_axis_that_some_runs_lack_counts_in_the_others():
    runs = sampled()
    runs["momentum"] = np.where(runs["optimizer"] == "sgd", np.linspace(0.1, 0.9, len(runs)), np.nan)
    runs.attrs["hyperparameters"] = [*SPACE, "momentum"]

    table = importances(runs)

    assert set(table["axis"]) == {*SPACE, "momentum"}
    assert table["axis"][0] == "lr"


def test_an_evaluator_of_optuna_takes_the_place_of_its_own():
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.5)

    assert (
        importances(sampled(), evaluator=evaluator)["importance"][0] != importances(sampled())["importance"][0]
    )


@pytest.mark.parametrize("value", [0.5, math.nan])
def test_equal_results_have_no_importances(value):
    table = importances(sampled(accuracy=value), "accuracy")

    assert table["importance"].isna().all()


def test_optuna_says_nothing_and_keeps_what_it_is_set_to(caplog):
    before = optuna.logging.get_verbosity()
    with warnings.catch_warnings(), caplog.at_level(logging.DEBUG):
        warnings.simplefilter("error")
        importances(sampled())

    assert not caplog.records
    assert optuna.logging.get_verbosity() == before


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'torch-runmanager\[optuna\]'"):
        importances(sampled())


def test_effects_of_a_range_are_those_of_five_parts():
    table = effects(sampled())

    assert table.groupby("axis").size().to_dict() == {"lr": 5, "dropout": 5, "width": 5, "optimizer": 2}
    assert table["axis"][0] == "lr"
    assert table[table["axis"] == "lr"]["n"].tolist() == [12] * 5
    assert table["value"][0].split(" to ")[0] == f"{sampled().lr.min():g}"
    assert 0.5 < table["explained"][0] < 1


def test_effects_of_a_range_with_repeats_have_intervals():
    table = effects(sampled(seeds=range(3)), repeats="seed")

    assert (table["axis"] == "lr").sum() == 5
    assert (table["low"] < table["mean"]).all()


@pytest.mark.parametrize(
    ("values", "is_range"),
    [
        ([2.0**-e for e in range(12)], True),
        ([None, *range(12), math.nan], True),
        ([*range(9)], False),
        ([*range(12)] * 2, False),
        ([True, False] * 10, False),
        ([*map(str, range(20))], False),
        ([math.inf, *range(20)], False),
        ([10**400, *range(20)], False),
        ([], False),
    ],
)
def test_a_range_has_many_numbers_of_which_hardly_any_occurs_twice(values, is_range):
    assert is_sampled(values) == is_range


def test_parts_have_settings_alike_and_name_those_without_a_value():
    codes, parts = in_parts(pd.Series([None, *range(20)], dtype="object"))

    assert np.bincount(codes).tolist() == [4, 4, 4, 4, 4, 1]
    assert parts == ["0 to 3", "4 to 7", "8 to 11", "12 to 15", "16 to 19", "none"]


@pytest.mark.parametrize("number", [15, 100])
def test_a_value_that_a_search_repeats_leaves_no_part_empty(number):
    codes, parts = in_parts(pd.Series([None, *[2] * number, *range(30)], dtype="object"))

    assert [*dict.fromkeys(sorted(codes))] == [*range(len(parts))]
    assert parts[0] == "0 to 2"
    assert parts[-1] == "none"


@pytest.mark.parametrize(("axis", "expected"), [("lr", True), ("dropout", False), ("width", True)])
@pytest.mark.parametrize("n", [20, 50, 1000])
def test_magnitudes_are_told_from_the_numbers(axis, expected, n):
    assert is_in_magnitudes([getattr(run, axis) for run in RunBuilder.sample(SPACE, n, seed=1)]) == expected


@pytest.mark.slow(everywhere=True)
def test_no_value_of_a_range_can_be_compared_with_another_all_else_equal():
    for axis in ("lr", "optimizer"):
        assert compare(sampled(), axis).sentence.endswith(f"differ in {axis} alone and have accuracy")

    decision = verdict(sampled(), "lr")

    assert decision.sentence.startswith("undecided: there are no two values of lr to compare; not compared: ")
    assert not decision.decided

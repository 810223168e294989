import json
import math

import numpy as np
import pandas as pd
import pytest

from runmanager import GridError, load_runs, verdict
from runmanager.answers.findings import find
from runmanager.goal import parse_goal
from runmanager.storage.design import Design
from runmanager.storage.folders import Experiment
from runmanager.tables.columns import HYPERPARAMETERS, REPEATS
from tests.tables.run_tables import record, write_run

FEW = "a verdict needs at least 6 seeds"
UNSEEN = "seeds cannot show a difference below"


def table_of(means, num_seeds=8, noise=0.004, axis="optimizer", seed=0):
    """Make runs of which each seed moves all settings alike, and each run a little."""
    random = np.random.default_rng(seed)
    shared = random.normal(0, 0.01, num_seeds)
    rows = [
        (name, number, mean + shared[number] + noise * random.normal())
        for name, mean in means.items()
        for number in range(num_seeds)
    ]
    runs = pd.DataFrame(rows, columns=[axis, "seed", "accuracy"])
    runs["status"] = "completed"
    runs.attrs |= {HYPERPARAMETERS: [axis, "seed"], REPEATS: {"e": ["seed"]}}
    return runs


def lose(runs, axis, value, seeds, status="diverged"):
    rows = (runs[axis] == value) & runs["seed"].isin(seeds)
    runs.loc[rows, "status"] = status
    runs.loc[rows, "accuracy"] = math.nan
    return runs


def test_a_difference_is_decided_with_its_interval():
    decision = verdict(table_of({"sgd": 0.80, "adam": 0.82}), axis="optimizer")

    assert str(decision) == "adam is better than sgd by 0.024 (0.021 to 0.028), decided after 8 seeds"
    assert (decision.outcome, decision.decided) == ("better", True)
    assert (decision.better, decision.worse, decision.repeats) == ("adam", "sgd", 8)
    assert decision.low < decision.difference < decision.high
    assert decision.evidence > 20
    assert "equal values of optimizer could be swapped in any seed" in decision.assumptions
    assert decision.table["verdict"].tolist() == ["", "worse"]
    assert decision.table["difference"].tolist()[1] == decision.difference
    assert "<b>adam is better" in decision._repr_html_()


def test_the_direction_is_that_of_the_goal():
    runs = table_of({"sgd": 0.80, "adam": 0.82}).rename(columns={"accuracy": "cost"})

    with pytest.raises(GridError, match="name the metric"):
        verdict(runs, axis="optimizer")
    with pytest.raises(GridError, match="whether large values of 'cost' are good is not known"):
        verdict(runs, axis="optimizer", goal="cost")
    assert verdict(runs, axis="optimizer", goal="min:cost").better == "sgd"
    assert verdict(runs, axis="optimizer", goal="max:cost").better == "adam"
    assert verdict(runs, axis="optimizer", goal="min:cost").difference > 0
    assert verdict(runs.rename(columns={"cost": "loss"}), axis="optimizer").better == "sgd"


def test_settings_are_written_with_plain_numbers():
    runs = table_of({1: 0.80, 2: 0.82}, axis="width", num_seeds=7)

    decision = verdict(runs)

    assert json.dumps([decision.better, decision.worse]) == '[{"width": 2}, {"width": 1}]'


@pytest.mark.parametrize("axis", [None, "optimizer"])
def test_a_mean_is_that_of_the_ranking_to_the_last_digit(axis):
    runs = table_of({"sgd": 0.80, "adam": 0.81}, num_seeds=4)
    runs["accuracy"] = [
        0.838,
        0.725,
        0.801,
        0.845,
        0.772,
        0.745,
        0.737,
        0.835,
    ]  # a plain sum of four loses a digit

    decision = verdict(runs, axis=axis)

    assert decision.table["accuracy"].tolist() == [setting.mean for setting in find(runs).settings]
    assert "0.8023" in "".join(decision.drawn().lines())


def test_the_verdict_on_settings_is_that_of_the_panel():
    runs = table_of({"a": 0.80, "b": 0.82, "c": 0.78}, axis="net", num_seeds=12)

    decision = verdict(runs)

    assert decision.better == {"net": "b"}
    assert decision.sentence.startswith("net=b is the best of 3 settings, ahead of net=a by 0.0")
    assert find(runs).headline() == decision.sentence
    assert verdict(runs, axis="net").sentence == decision.sentence.replace("net=", "").replace(
        "settings", "values of net"
    )


def from_differences(*differences):
    runs = table_of({"x": 0.8, "y": 0.8}, len(differences), noise=0.0)
    runs["accuracy"] += [*differences, *[0.0] * len(differences)]
    return runs


FORESEEN = [
    ([0.01], ["1 seed does not decide it: x is ahead by 0.01", FEW]),
    (
        [0.01, 0.02, 0.03],
        [
            "3 seeds do not decide it: x is ahead by 0.02",
            FEW,
            "such a lead takes about 6 in half of the cases (3 more)",
        ],
    ),
    (
        [0.01, 0.02, 0.03, 0.0, -0.01, 0.01, 0.01],
        [
            "7 seeds do not decide it: x is ahead by 0.01",
            f"7 {UNSEEN} 0.02",
            "such a lead takes about 19 in half of the cases (12 more)",
        ],
    ),
    (
        [0.01, -0.01, 0.02, -0.02, 0.01, -0.0099],
        [
            "6 seeds do not decide it: x is ahead by 0.000017",
            f"6 {UNSEEN} 0.03",
            "12 can show a difference of 0.02",
        ],
    ),
]


@pytest.mark.parametrize(("differences", "parts"), FORESEEN)
def test_undecided_says_what_would_decide(differences, parts):
    decision = verdict(from_differences(*differences), axis="optimizer")

    assert decision.sentence == f"x leads y, but {'; '.join(parts)}"
    assert (decision.decided, decision.better) == (False, "x")
    assert math.isnan(decision.low) == (len(differences) < 6)


def test_as_many_seeds_as_are_foreseen_decide_differences_of_the_same_kind():
    differences = [0.01, 0.02, 0.03, 0.0, -0.01, 0.01, 0.01]
    more = int(
        verdict(from_differences(*differences), axis="optimizer").sentence.partition("about ")[2].split()[0]
    )

    longer = [verdict(from_differences(*(differences * 9)[: 7 + n]), axis="optimizer") for n in (0, 2 * more)]

    assert [each.decided for each in longer] == [False, True]


def test_equal_within_a_margin_and_identical():
    runs = table_of({"adam": 0.82, "sgd": 0.82}, 14, noise=0.0005)

    assert verdict(runs, axis="optimizer").outcome == "undecided"
    equal = verdict(runs, axis="optimizer", margin=0.002)
    assert equal.outcome == "equal"
    assert equal.sentence.startswith("sgd and adam are equal within 0.002 (-0.000")
    assert -0.002 < equal.low < equal.high < 0.002
    same = table_of({0: 0.82, 2: 0.82}, 5, noise=0.0, axis="num_workers")
    assert str(verdict(same, axis="num_workers")) == "num_workers=0 and num_workers=2 are identical in 5 seeds"
    assert not verdict(same[same["seed"] < 4], axis="num_workers").decided


def test_settings_that_are_equal_may_both_be_better_than_others():
    runs = table_of({"a": 0.82, "b": 0.82, "c": 0.5, "d": 0.4}, 20, noise=0.0005)

    text = verdict(runs, axis="optimizer", margin=0.002).sentence

    assert text.startswith(("a and b are equal within 0.002 (", "b and a are equal within 0.002 ("))
    assert text.endswith("is better than 2 others")


def test_differences_that_are_all_equal_decide_nothing():
    decision = verdict(table_of({"x": 0.82, "y": 0.80}, 9, noise=0.0), axis="optimizer")

    assert decision.sentence == (
        "x leads y, but 9 seeds do not decide it: x is ahead by 0.02 in each, to the last digit; one more "
        "seed is needed, which changes the results"
    )


def test_lost_repeats_are_said_and_what_only_one_has_is_left_out():
    runs = lose(table_of({"adam": 0.83, "sgd": 0.80}, 12), "optimizer", "adam", [1, 5])
    runs = runs.drop(runs[(runs["optimizer"] == "sgd") & (runs["seed"] == 7)].index)

    decision = verdict(runs, axis="optimizer")

    assert decision.repeats == 9
    assert decision.sentence.endswith(
        ", decided after 9 seeds; adam lost 2 of 12 seeds (diverged); "
        "left out: 1 seed that only one of adam and sgd has"
    )


def test_a_setting_that_lost_all_repeats_is_named_and_does_not_stop_the_verdict():
    runs = lose(table_of({"a": 0.83, "b": 0.80, "c": 0.7}, 10), "optimizer", "c", range(10), "out of memory")

    decision = verdict(runs)

    assert decision.decided
    assert decision.sentence.endswith("; optimizer=c lost all 10 seeds (out of memory)")
    assert decision.table["verdict"].tolist() == ["", "worse", "no result"]
    runs["status"] = runs["status"].replace("out of memory", "pending")
    assert not verdict(runs).decided  # it may still win


def test_a_value_that_shares_no_setting_with_others_is_not_said_to_have_no_result():
    rows = [(model, c, math.nan, seed, mean) for model, mean in (("svm", 0.8), ("knn", 0.7))
            for c in (1.0, 10.0) for seed in range(8)]  # fmt: skip
    rows += [("net", math.nan, lr, seed, 0.9) for lr in (0.1, 0.01) for seed in range(8)]
    random = np.random.default_rng(0)
    runs = pd.DataFrame(rows, columns=["model", "c", "lr", "seed", "accuracy"])
    runs["accuracy"] += 0.001 * random.normal(size=len(runs))
    runs.attrs |= {HYPERPARAMETERS: ["model", "c", "lr", "seed"], REPEATS: {"e": ["seed"]}}

    decision = verdict(runs, axis="model")

    assert decision.sentence.endswith(
        "; net is not compared: no run of another value has the same other hyperparameters"
    )
    assert decision.table["verdict"].tolist() == ["", "worse", "not compared"]


def test_an_axis_is_compared_where_all_else_is_equal_and_a_seed_counts_once():
    random = np.random.default_rng(1)
    rows = [
        (optimizer, lr, s, 0.8 - lr + 0.02 * (optimizer == "adam") + 0.004 * random.normal())
        for optimizer in ("adam", "sgd")
        for lr in (0.1, 0.01, 0.001)
        for s in range(7)
        if optimizer == "adam" or lr < 0.1  # the best is in what only one has
    ]
    runs = pd.DataFrame(rows, columns=["optimizer", "lr", "seed", "accuracy"])
    runs.attrs |= {HYPERPARAMETERS: ["optimizer", "lr", "seed"]}

    decision = verdict(runs, axis="optimizer")
    both = runs[runs["lr"] < 0.1].pivot_table(index="seed", columns="optimizer", values="accuracy")

    assert decision.sentence.startswith("adam is better than sgd by 0.02")
    assert decision.repeats == 7
    assert decision.difference == pytest.approx((both["adam"] - both["sgd"]).mean())
    assert "a seed counts once, by its mean over 2 settings" in decision.assumptions
    by_setting = verdict(runs[runs["seed"] == 0], axis="optimizer")
    assert by_setting.sentence.startswith("adam leads sgd, but 2 settings do not decide it")
    assert "counts as a repeat" in by_setting.assumptions


def test_without_repeats_nothing_is_decided():
    runs = table_of({"adam": 0.83, "sgd": 0.80})

    once = "undecided: each setting ran once, so any lead may be chance; "
    assert (
        verdict(runs, repeats=()).sentence == f"{once}repeats='seed' takes the runs of a setting as its repeats"
    )
    assert verdict(runs.drop(columns="seed")).sentence == (
        f'{once}repeat them, as with the axis "seed": range(6) and repeats="seed"'
    )
    assert not verdict(runs[runs["optimizer"] == "adam"]).decided
    assert verdict(runs.iloc[:0]).sentence == "undecided: there are no two settings to compare"


def test_rows_may_come_in_any_order():
    runs = table_of({"adam": 0.82, "sgd": 0.80}, 9)

    shuffled = runs.sample(frac=1.0, random_state=0)
    shuffled.attrs = runs.attrs

    assert verdict(shuffled, axis="optimizer").evidence == verdict(runs, axis="optimizer").evidence


def test_what_cannot_be_used_is_refused_at_once():
    runs = table_of({"adam": 0.82, "sgd": 0.80})

    with pytest.raises(GridError) as refused:
        verdict(runs, axis="optimiser", margin=0, error=5)
    assert [problem.partition(",")[0].partition(";")[0] for problem in refused.value.problems] == [
        "these runs have no hyperparameter 'optimiser'",
        "margin must be a number above 0",
        "error must be a number between 0 and 1",
    ]


def test_a_decision_without_an_interval_says_how_many_seeds_an_interval_needs():
    means = {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.6}

    decision = verdict(table_of(means, num_seeds=7))
    assert decision.sentence.startswith("optimizer=a is the best of 4 settings, ahead of optimizer=b by 0.")
    assert decision.sentence.endswith(" (an interval needs 8 seeds), decided after 7 seeds")
    assert math.isnan(decision.low)
    decision = verdict(table_of(means, num_seeds=8))
    assert "needs" not in decision.sentence
    assert decision.low > 0


def test_a_smaller_error_takes_more_evidence():
    runs = table_of({"x": 0.81, "y": 0.80}, 8, noise=0.003)

    assert [verdict(runs, axis="optimizer", error=error).decided for error in (0.05, 1e-4)] == [True, False]


def test_numbers_near_the_largest_float_decide_nothing():
    runs = table_of({"x": 0.81, "y": 0.80}, 8)
    runs["accuracy"] *= 1e308

    assert not verdict(runs, axis="optimizer").decided


def test_the_runs_of_an_experiment_are_judged_by_its_design(tmp_path):
    for net in ("a", "b"):
        for seed in range(6):
            write_run(tmp_path / "e", {"net": net, "fold": seed}, [record(1, kl=(net == "b") + 0.01 * seed**2)])
            write_run(tmp_path / "f", {"net": net, "fold": seed}, [record(1, kl=5.0 + 0.01 * (seed * 7 % 5))])
    for name in ("e", "f"):
        Experiment(tmp_path / name).decide(Design(goal=parse_goal("min:kl"), repeats=("fold",)))

    assert not verdict(load_runs(tmp_path / "e")).decided  # the differences are all 1
    decision = verdict(load_runs([tmp_path / "e", tmp_path / "f"]), axis="experiment")
    assert (decision.better, decision.metric, decision.repeats) == ("e", "kl", 6)
    assert "over these folds" in decision.assumptions


def test_repeats_that_have_not_ended_are_not_counted_as_lost_nor_as_all():
    runs = lose(table_of({"adam": 0.83, "sgd": 0.80}, 9), "optimizer", "sgd", [1, 5])
    runs = lose(runs, "optimizer", "sgd", [8], "pending")

    assert (
        verdict(runs, axis="optimizer")
        .sentence.partition("; ")[2]
        .startswith("sgd lost 2 of 8 seeds (diverged)")
    )

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from runmanager import best, compare, effects, show
from runmanager.answers.answers import answers_of
from runmanager.answers.conclusion import conclude
from runmanager.answers.verdict_sentence import sentence_of
from runmanager.errors import GridError
from runmanager.tables.columns import HYPERPARAMETERS

ROWS = [
    # lr, width, fold, seed, status, accuracy
    (0.1, 8, 0, 0, "completed", 0.50),
    (0.1, 8, 0, 1, "completed", 0.60),
    (0.1, 8, 1, 0, "completed", 0.70),
    (0.1, 8, 1, 1, "failed", 0.99),
    (0.2, 8, 0, 0, "completed", 0.61),
    (0.2, 8, 0, 1, "completed", 0.70),
    (0.2, 8, 1, 0, "completed", 0.81),
    (0.2, 8, 1, 1, "completed", 0.90),
    (0.3, 16, 0, 0, "diverged", math.nan),
    (0.3, 16, 0, 1, "diverged", 0.1),
    (0.3, 16, 1, 0, "killed", 0.2),
    (0.3, 16, 1, 1, "pending", math.nan),
]


@pytest.fixture
def runs():
    """Three settings, each in two folds and with two seeds; the third has no completed run."""
    names = ["lr", "width", "fold", "seed", "status", "accuracy"]
    table = pd.DataFrame(ROWS, columns=names)
    table.insert(0, "run", range(1, len(table) + 1))
    table["device"] = "cpu"
    table.attrs[HYPERPARAMETERS] = ["lr", "width", "fold", "seed", "device"]
    table.attrs["repeats"] = {"e": ["fold", "seed"]}
    return table


def test_settings_are_ranked_by_the_mean_of_their_completed_repeats(runs):
    table = best(runs)

    assert table["lr"].tolist() == [0.2, 0.1, 0.3]
    assert table["accuracy n"].tolist() == [4, 3, 0]
    assert table["accuracy mean"].tolist()[:2] == pytest.approx([0.755, 0.6])
    low, high = stats.t.interval(0.95, 2, loc=0.6, scale=stats.sem([0.5, 0.6, 0.7]))
    assert table[["accuracy low", "accuracy high"]].iloc[1].tolist() == pytest.approx([low, high])
    assert table["all repeats"].tolist() == [4, 4, 4]
    assert table["device"].tolist() == ["cpu"] * 3
    assert "seed" not in table
    assert best(runs, n=1)["lr"].tolist() == [0.2]
    assert best(runs, "min:accuracy")["lr"].tolist() == [0.1, 0.2, 0.3]


def test_a_setting_with_a_failed_repeat_says_so_everywhere(runs):
    assert best(runs)["failed repeats"].tolist() == [0, 1, 3]
    assert show(runs).table["repeats"].tolist() == ["4", "3 of 4, 1 failed", "0 of 4, 2 diverged, 1 killed"]


def test_one_repeat_is_a_mean_without_interval(runs):
    view = show(runs[runs["run"].isin([1, 5])])

    assert view.table.to_numpy().tolist() == [[0.2, 0.61, "1"], [0.1, 0.5, "1"]]


def test_settings_are_shown_with_their_interval_and_what_chance_could_do(runs):
    view = show(runs, n=2)

    assert list(view.table) == ["lr", "width", "accuracy", "95 % interval", "repeats"]
    assert view.table["95 % interval"].tolist() == ["0.5535 to 0.9565", "0.3516 to 0.8484"]
    assert view.caption == (
        "2 of 3 rows · best mean accuracy over fold and seed first · lr=0.2 width=8 leads 2 others, "
        "but 3 repeats do not decide it · The closest, lr=0.1 width=8, is 0.11 behind; a "
        "verdict needs at least 7 repeats; such a lead takes about 7 in half of the cases (4 more); lr=0.1 "
        "width=8 lost 1 of 4 repeats (failed); lr=0.3 width=16 lost 3 of 4 repeats (diverged and killed) · "
        "intervals are per setting, the verdict compares all pairs · 2 of 3 settings are ranked · the same "
        "in all: device=cpu"
    )


def test_runs_are_ranked_one_by_one_where_that_is_asked_for(runs):
    table = best(runs, repeats=())

    assert table["run"].tolist() == [8, 7, 3, 6, 5, 2, 1, 4, 9, 10, 11, 12]  # those without a result are last
    assert show(runs, repeats=()).table["run"].tolist()[:3] == [8, 7, 3]
    assert answers_of(runs, repeats=()).settings[0].rows == [7]


def test_repeat_axes_given_by_hand_are_used_instead(runs):
    table = best(runs, repeats="seed")

    assert table[["lr", "fold"]].head(2).to_numpy().tolist() == [[0.2, 1], [0.2, 0]]  # the others have one seed
    with pytest.raises(GridError, match="these runs have no hyperparameter 'sead'; did you mean 'seed'"):
        best(runs, repeats=["sead"])


def test_a_lead_is_decided_by_the_differences_at_the_same_repeats():
    bases = enumerate([("a", 0.1), ("b", 0.15), ("c", 0.1502)], 1)
    rows = [(net, s, base + 0.1 * s + 0.001 * (s * n % 5)) for n, (net, base) in bases for s in range(9)]
    runs = pd.DataFrame(rows, columns=["net", "seed", "accuracy"])
    runs.attrs |= {HYPERPARAMETERS: ["net", "seed"], "repeats": {"e": ["seed"]}}

    findings = answers_of(runs)

    # the spread between seeds is much larger than the lead, but the same in all
    assert (
        findings.settings[1].statistics[0]["low"]
        < findings.settings[0].mean
        < findings.settings[1].statistics[0]["high"]
    )
    assert [s.params["net"] for s in findings.settings] == ["c", "b", "a"]
    assert [*findings.decision.states.values()] == ["undecided", "worse"]
    assert sentence_of(findings.decision) == (
        "net=c leads net=b, but 9 seeds do not decide it: net=b is 0.00031 behind; more than 100 more "
        "seeds are needed; net=c is better than net=a"
    )
    assert not findings.is_decided


def test_a_lead_over_all_others_is_more_than_chance():
    rows = [
        (net, seed, base + 0.001 * (seed * net % 5)) for net, base in ((1, 0.1), (2, 0.5)) for seed in range(6)
    ]
    runs = pd.DataFrame(rows, columns=["net", "seed", "loss"])
    runs.attrs |= {HYPERPARAMETERS: ["net", "seed"], "repeats": {"e": ["seed"]}}

    findings = answers_of(runs)

    assert findings.settings[0].params == {"net": 1}
    assert findings.headline == "net=1 is better than net=2 by 0.4000 (0.3972 to 0.4027), decided after 6 seeds"
    assert findings.is_decided
    assert findings.decision.closest.mean > 0  # how much better, whatever the direction


def test_effects_are_those_of_settings_and_repeats_are_no_axis(runs):
    table = effects(runs)

    assert sorted(set(table["axis"])) == ["lr", "width"]
    row = table[table["axis"] == "width"].iloc[0]
    assert (row["value"], row["n"], row["mean"]) == (8, 2, pytest.approx((0.6 + 0.755) / 2))
    # pooled over two settings: 2 and 3 degrees of freedom
    variances = [pd.Series([0.5, 0.6, 0.7]).var(), pd.Series([0.61, 0.7, 0.81, 0.9]).var()]
    pooled = (2 * variances[0] + 3 * variances[1]) / 5
    half = stats.t.ppf(0.975, 5) * math.sqrt(pooled * (1 / 3 + 1 / 4)) / 2
    assert [row["low"], row["high"]] == pytest.approx([row["mean"] - half, row["mean"] + half])


def test_pairs_are_made_repeat_by_repeat_and_what_is_left_out_is_counted(runs):
    pairs = compare(runs[runs["width"] == 8], "lr")

    assert pairs[["fold", "seed"]].to_numpy().tolist() == [[0, 0], [0, 1], [1, 0]]
    assert pairs["0.1 vs 0.2"].tolist() == pytest.approx([-0.11, -0.1, -0.11])
    sentence = "0.1 vs 0.2: -0.1067 (mean of 3 pairs) · 1 pair left out, as runs have no number (1 failed)"
    assert show(pairs).caption.startswith(f"accuracy of runs that differ in lr only · {sentence}")


def test_a_value_that_failed_in_one_setting_leaves_the_pairs_of_the_others():
    rows = [(0.1, 8, 0.5), (0.2, 8, 0.6), (0.3, 8, 0.7), (0.1, 16, math.nan), (0.2, 16, 0.8), (0.3, 16, 0.9)]
    rows.append((0.1, 32, math.nan))  # it has no partner
    runs = pd.DataFrame(rows, columns=["lr", "width", "accuracy"])
    runs["status"] = ["completed"] * 3 + ["diverged"] + ["completed"] * 2 + ["failed"]
    runs.attrs[HYPERPARAMETERS] = ["lr", "width"]

    pairs = compare(runs, "lr")

    assert pairs["width"].tolist() == [8, 16]
    assert pairs["0.3 vs 0.2"].tolist() == pytest.approx([0.1, 0.1])
    assert pairs["0.1 vs 0.2"].isna().tolist() == [False, True]
    assert "1 pair left out, as runs have no number (1 diverged)" in pairs.sentence


def test_the_best_setting_is_named_with_its_mean_its_interval_and_its_repeats(runs):
    assert answers_of(runs, is_over=True).result == (
        "lr=0.2 width=8 leads: accuracy 0.755, the mean of 4 repeats, 95 % interval 0.5535 to 0.9565"
    )
    assert answers_of(runs, "min:accuracy", is_over=False).result == (
        "lr=0.1 width=8 leads so far: accuracy 0.600, the mean of 3 repeats, 95 % interval 0.3516 to 0.8484"
    )
    assert answers_of(runs, repeats="seed", is_over=True).result == (
        "lr=0.2 width=8 fold=1 leads: accuracy 0.855, the mean of 2 seeds, 95 % interval 0.283 to 1.000"
    )


def test_a_sentence_writes_a_mean_as_its_column_does(tmp_path):
    rows = [(lr, seed, mean + 0.01 * seed) for lr, mean in ((0.1, 0.918), (0.2, 0.6953)) for seed in (-1, 0, 1)]
    runs = pd.DataFrame(rows, columns=["lr", "seed", "accuracy"])
    runs["status"], runs["epochs"], runs["run duration"] = "completed", 1, 1.0
    runs.attrs |= {HYPERPARAMETERS: ["lr", "seed"], "repeats": {"e": ["seed"]}}

    conclusion = conclude(runs, tmp_path)

    assert conclusion.table
    assert conclusion.table.lines()[1].split()[1] == "0.9180"
    assert conclusion.best.details[0].startswith("lr=0.1 leads: accuracy 0.9180, the mean of 3 seeds")


def test_identical_settings_are_named_and_what_few_repeats_cannot_tell_apart():
    rows = [(net, seed, 0.5 + 0.1 * (net // 2) + 0.01 * seed) for net in range(40) for seed in range(5)]
    runs = pd.DataFrame(rows, columns=["net", "seed", "accuracy"])
    runs.attrs |= {HYPERPARAMETERS: ["net", "seed"], "repeats": {"e": ["seed"]}}
    runs["accuracy"] += runs["seed"] * 0.001 * (runs["net"] // 2 % 3)

    assert sentence_of(answers_of(runs).decision) == (
        "net=38 leads 38 others, but 5 seeds do not decide it: the closest, net=36, is 0.1 behind; a "
        "verdict needs at least 10 seeds; such a lead takes about 10 in half of the cases (5 more)"
    )


def test_what_the_decided_settings_leave_is_counted():
    means = {"a": 0.9, "b": 0.5, "c": 0.89, "d": 0.4}
    noise = np.random.default_rng(0).normal(size=(4, 12))
    rows = [
        (net, seed, mean + (0.2 if net == "c" else 0.01) * noise[index, seed])
        for index, (net, mean) in enumerate(means.items())
        for seed in range(12)
    ]
    runs = pd.DataFrame(rows, columns=["net", "seed", "accuracy"])
    runs.attrs |= {HYPERPARAMETERS: ["net", "seed"], "repeats": {"e": ["seed"]}}

    assert sentence_of(answers_of(runs).decision) == (
        "net=a leads net=c, but 12 seeds do not decide it: net=c is 0.03 behind; more than 100 "
        "more seeds are needed; net=a is better than 2 others"
    )
    assert answers_of(runs[runs["net"] != "c"]).headline.startswith(
        "net=a is the best of 3 settings, ahead of net=b by 0.40"
    )


def test_no_runs_have_no_findings(runs):
    runs["status"] = "pending"

    findings = answers_of(runs)

    assert (list(findings.settings), findings.headline) == ([], "No run has completed")
    assert findings.ranking
    assert len(findings.ranking.others) == 3


def test_the_best_run_is_named_with_every_axis_that_varies_in_the_grid():
    runs = pd.DataFrame(
        {
            "run": [1, 2, 3, 4],
            "lr": [0.1, 0.1, 1.0, 1.0],
            "width": [8, 16, 8, 16],
            "device": ["cpu", "cpu", "cpu", "cuda"],
            "status": ["completed", "completed", "pruned", "unavailable"],
            "accuracy": [0.9, 0.8, 0.4, math.nan],
        }
    )
    runs.attrs[HYPERPARAMETERS] = ["lr", "width", "device"]

    findings = answers_of(runs, "max:accuracy")

    assert findings.headline == "Run 1 (lr=0.1 width=8) is best: accuracy 0.9"


def test_pruned_runs_are_sorted_by_their_metric_below_completed_ones():
    statuses = ["pruned", "failed", "pruned", "completed", "pruned"]
    runs = pd.DataFrame(
        {"run": [1, 2, 3, 4, 5], "status": statuses, "accuracy": [0.2, 0.9, 0.6, 0.5, math.nan]}
    )

    assert best(runs, "max:accuracy")["run"].tolist() == [4, 3, 1, 2, 5]
    assert best(runs, "min:accuracy")["run"].tolist() == [4, 1, 3, 2, 5]


def test_a_pruned_repeat_breaks_no_tie_of_means():
    runs = pd.DataFrame(
        {
            "lr": [0.1, 0.1, 0.1, 0.2, 0.2, 0.2],
            "seed": [0, 1, 2, 0, 1, 2],
            "status": ["completed"] * 5 + ["pruned"],
            "accuracy": [0.4, 0.5, 0.45, 0.4, 0.5, 0.9],
        }
    )
    runs.attrs[HYPERPARAMETERS] = ["lr", "seed"]

    assert best(runs, "max:accuracy")["lr"].tolist() == [0.1, 0.2]


def test_a_goal_that_no_completed_run_has_breaks_no_tie():
    runs = pd.DataFrame({"run": [1, 2, 3], "lr": [0.1, 0.2, 0.3]})
    runs["status"] = ["completed", "completed", "pruned"]
    runs["accuracy"], runs["f1"] = [0.8, 0.8, 0.7], [math.nan, math.nan, 0.5]
    runs.attrs[HYPERPARAMETERS] = ["lr"]
    findings = answers_of(runs, ["max:accuracy", "max:f1"])

    assert findings.headline == "Run 1 (lr=0.1), tied with run 2 (lr=0.2), is best: accuracy 0.8"
    assert findings.details == []

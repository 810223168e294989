"""Which run or setting is the best: the metric that decides, its direction, what counts, and what is a tie."""

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from runmanager import (
    GridError,
    InvalidArgumentError,
    RunManager,
    best,
    compare,
    effects,
    export,
    load_results,
    load_run,
    load_runs,
    load_table,
    pareto,
    run_grid,
    show,
    verdict,
    write_report,
)
from tests.border.experiments import QUIET, execute
from tests.border.pages import parse, text_of
from tests.border.screens import command

GOALS = ["max:f1", "min:cost"]


def table(rows, names=("lr",), repeats=(), goal="max:f1", columns=None):
    return load_table(pd.DataFrame(rows, columns=columns), hyperparameters=[*names], repeats=repeats, goal=goal)


def page_of(runs, tmp_path):
    return text_of(parse(write_report(runs, tmp_path / "page.html")))


def panel_of(outcome):
    return " ".join(str(outcome.panel).split())


# The metric and its direction

PREFIXED = [
    prefix + name for prefix in ("", "val_", "test_") for name in ("acc", "r2", "iou", "bleu", "reward")
]
LARGER = "val_acc acc_val acc@5 acc1 acc_top5 balanced_acc acc_epoch val/mIoU mAP50 f1-score precision@1 bleu4"
SMALLER = "loss mae mse perplexity wer val_rmse test_rmse_mean MAE error_rate top1_error err@5 loss/val"
UNKNOWN = """
    entropy kl score top_k learning_rate f1_loss_weight value_loss_coef grad_norm accuracy_gap reward_std
    1-accuracy inverse_accuracy fps val top mean 5 MulticlassAccuracy
"""


@pytest.mark.parametrize(
    ("names", "first"), [([*PREFIXED, *LARGER.split()], 1), ([*SMALLER.split(), "run duration"], 0)]
)
def test_a_name_has_a_direction(names, first):
    assert {name: best(pd.DataFrame({name: [1.0, 2.0]}), name).index[0] for name in names} == dict.fromkeys(
        names, first
    )


@pytest.mark.parametrize("name", UNKNOWN.split())
def test_the_direction_of_an_ambiguous_name_is_asked_for(name):
    with pytest.raises(GridError, match=rf"'max:{name}' or goal='min:{name}'"):
        best(pd.DataFrame({name: [1.0, 2.0]}), name)


@pytest.mark.parametrize(
    ("names", "metric"),
    [
        ("loss accuracy test_loss test_accuracy", "test_accuracy"),
        ("loss accuracy test_accuracy validation_accuracy", "validation_accuracy"),
        ("loss accuracy held_out_accuracy", "held_out_accuracy"),
        ("loss test_loss eval_loss validation_loss", "validation_loss"),
        ("policy_loss value_loss loss reward", "reward"), ("policy_loss reward eval_reward", "eval_reward"),
        ("loss f1", "loss"), ("train_loss val_loss train_acc val_acc test_acc", "val_acc"),
        ("valid_loss valid_acc loss accuracy", "valid_acc"), ("loss/val acc/val", "acc/val"),
        ("loss val_loss val_mIoU", "val_loss"), ("d_loss g_loss latency fid", "fid"),
        ("val_acc5 val_acc1", "val_acc1"), ("val_top5_acc val_top1_acc", "val_top1_acc"),
        ("loss val_kl_loss reward", "reward"), ("loss val_kl_loss train_f1", "train_f1"),
    ],
)  # fmt: skip
def test_without_a_goal_the_usual_metric_decides(names, metric):
    runs = pd.DataFrame({name: [1.0, 2.0] for name in names.split()} | {"best accuracy": 1.0})

    assert show(runs).caption.startswith(f"best {metric} first")


def test_a_metric_without_a_number_and_a_hyperparameter_decide_nothing():
    runs = pd.DataFrame({"loss": [1.0, 2.0], "accuracy": math.nan})
    axes = table({"target_accuracy": [0.9, 0.8], "loss": [2.0, 1.0]}, ["target_accuracy"], goal=None)

    assert show(runs).caption.startswith("best loss first")
    assert best(axes)["loss"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("metric", "names", "other"),
    [
        ("val_acc", "train_loss val_loss", "val_loss"),
        ("val_loss", "train_acc val_acc", "val_acc"),
        ("acc/val", "loss loss/val", "loss/val"),
        ("val_acc", "loss val_kl_loss val_loss", "val_loss"),
    ],
)
def test_the_metric_beside_the_goal_is_of_the_same_data(metric, names, other):
    runs = pd.DataFrame({name: [1.0, 2.0] for name in ("lr", *names.split(), metric)})

    shown = [*show(load_table(runs, hyperparameters=["lr"]), metric).table]

    assert shown[:3] == ["lr", metric, other]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"goal": "f2"}, "no column 'f2'; did you mean 'f9'"),
        ({"goal": "max:status"}, "'status' does not hold numbers"),
        ({"goal": []}, r"'max:f1', got \[\]"),
        *(({"goal": wrong}, repr(wrong)) for wrong in ("max:", "val:loss", "bst:loss", "maximize:f9", 5)),
        ({"n": -1}, "n must be a whole number, 0 or more, got -1"),
        ({"n": 1.5}, "got 1.5"),
        ({"repeats": ["sead"]}, "no hyperparameter 'sead'; did you mean 'seed'"),
    ],
)
def test_what_cannot_be_ranked_is_refused(arguments, named):
    runs = {"seed": [1], "loss": [1.0], "f9": [1.0], "status": ["completed"]}

    with pytest.raises(GridError, match=named):
        best(table(runs, ["seed"], goal=None), **arguments)


def test_without_a_usual_metric_it_has_to_be_named():
    with pytest.raises(GridError, match=r"name the metric, as goal='max:f1' \(--goal max:f1\)"):
        best(pd.DataFrame({"f9": [0.1, 0.3], "loss": [math.nan] * 2}))


@pytest.mark.parametrize("values", [[True, False], [0.5, pd.NA], ["0.5", "0.6"]])
def test_columns_that_hold_no_numbers_are_refused_by_default_too(values):
    with pytest.raises(InvalidArgumentError, match="'accuracy' does not hold numbers"):
        verdict(table({"lr": [1, 2], "accuracy": pd.Series(values, dtype=object)}, goal=None))


@pytest.mark.parametrize("function", [best, verdict, compare, effects, show, partial(export, path="runs.csv")])
def test_what_is_no_table_is_refused(function):
    for wrong in ("runs", [1], None):
        with pytest.raises(GridError, match=r"as load_runs\('runs'\) gives, got"):
            function(wrong)


@pytest.mark.parametrize("helper", [lambda runs: compare(runs, "lr"), effects])
def test_epochs_are_not_taken_for_runs(helper):
    epochs = table(
        {"run": [1, 1, 2], "epoch": [1, 2, 1], "lr": [0.1, 0.1, 0.2], "loss": [3.0, 2, 1]}, goal=None
    )

    with pytest.raises(GridError, match=r"these rows are epochs.*results.groupby\('run'\).tail\(1\)"):
        helper(epochs)

    assert len(helper(epochs.groupby("run").tail(1)))


# What counts


@given(
    st.lists(st.floats(-9, 9) | st.sampled_from([1.0, math.nan, math.inf])), st.booleans(), st.integers(0, 5)
)
def test_the_best_runs_are_those_that_pandas_sorts_first(values, largest, n):
    runs = table({"lr": range(len(values) + 1), "f1": [*values, 0.5]}, goal=None)

    found = best(runs, f"{'max' if largest else 'min'}:f1", n)

    finite = (-1 if largest else 1) * runs["f1"].replace(math.inf, math.nan)
    assert found.index.tolist() == finite.sort_values(kind="stable").index[:n].tolist()
    assert (list(found), found.attrs) == (list(runs), runs.attrs)


ROWS = [
    (0.1, 8, 0, 0, "completed", 0.50), (0.1, 8, 0, 1, "completed", 0.60),
    (0.1, 8, 1, 0, "completed", 0.70), (0.1, 8, 1, 1, "failed", 0.99),
    (0.2, 8, 0, 0, "completed", 0.61), (0.2, 8, 0, 1, "completed", 0.70),
    (0.2, 8, 1, 0, "completed", 0.81), (0.2, 8, 1, 1, "completed", 0.90),
    (0.3, 16, 0, 0, "diverged", math.nan), (0.3, 16, 0, 1, "diverged", 0.1),
    (0.3, 16, 1, 0, "killed", 0.2), (0.3, 16, 1, 1, "pending", math.nan),
]  # fmt: skip


@pytest.fixture
def runs():
    """Three settings, each in two folds and with two seeds; the third has no completed run."""
    names = ["lr", "width", "fold", "seed"]
    rows = pd.DataFrame(ROWS, columns=[*names, "status", "f1"]).assign(device="cpu")
    rows.insert(0, "run", range(1, 13))
    return table(rows, [*names, "device"], ("fold", "seed"), goal=None)


def test_settings_are_shown_with_what_counts_and_what_was_lost(runs):
    ranked, view = best(runs), show(runs)

    assert ranked["f1 n"].tolist() == [4, 3, 0]
    assert ranked["all repeats"].tolist() == [4, 4, 4]
    assert ranked["failed repeats"].tolist() == [0, 1, 3]
    assert list(view.table) == ["lr", "width", "f1", "95 % interval", "repeats"]
    assert view.table["95 % interval"].tolist() == ["0.5535 to 0.9565", "0.3516 to 0.8484", ""]
    assert view.table["repeats"].tolist() == ["4", "3 of 4, 1 failed", "0 of 4, 2 diverged, 1 killed"]
    for fact in ("mean f1 over fold and seed", "lr=0.2 width=8 leads 2 others", "0.11 behind",
                 "lr=0.3 width=16 lost 3 of 4 repeats (diverged and killed)", "2 of 3 settings are ranked",
                 "intervals are per setting", "the same in all: device=cpu"):  # fmt: skip
        assert fact in view.caption
    assert "2 of 3 rows" in show(runs, n=2).caption


def test_other_goals_and_repeats_are_used_instead(runs):
    assert best(runs, "min:f1")["lr"].tolist() == [0.1, 0.2, 0.3]
    assert best(runs, n=1)["lr"].tolist() == [0.2]
    assert best(runs, repeats=())["run"].tolist() == [8, 7, 3, 6, 5, 2, 1, 4, 9, 10, 11, 12]
    assert best(runs, repeats="seed")[["lr", "fold"]].head(2).to_numpy().tolist() == [[0.2, 1], [0.2, 0]]
    assert show(runs[runs["run"].isin([1, 5])]).table.to_numpy().tolist() == [[0.2, 0.61, "1"], [0.1, 0.5, "1"]]


def test_effects_are_those_of_completed_settings_with_their_pooled_spread(runs):
    found = effects(runs)

    assert sorted(set(found["axis"])) == ["lr", "width"]
    row = found[found["axis"] == "width"].iloc[0]
    assert (row["value"], row["n"], row["mean"]) == (8, 2, pytest.approx((0.6 + 0.755) / 2))
    variances = [pd.Series([0.5, 0.6, 0.7]).var(), pd.Series([0.61, 0.7, 0.81, 0.9]).var()]
    pooled = (2 * variances[0] + 3 * variances[1]) / 5
    half = stats.t.ppf(0.975, 5) * math.sqrt(pooled * (1 / 3 + 1 / 4)) / 2
    assert [row["low"], row["high"]] == pytest.approx([row["mean"] - half, row["mean"] + half])


def noise_of(*settings):
    """Return rows of settings with 12 seeds: net -> mean and spread."""
    noise = np.random.default_rng(0).normal(size=(len(settings), 12))
    return [(net, s, mean + spread * noise[index, s])
            for index, (net, mean, spread) in enumerate(settings) for s in range(12)]  # fmt: skip


DECISIONS = {
    "the spread between seeds is larger than the lead": (
        [(net, s, base + 0.1 * s + 0.001 * (s * n % 5))
         for n, (net, base) in enumerate([("a", 0.1), ("b", 0.15), ("c", 0.1502)], 1) for s in range(9)],
        ["net=c leads net=b, but 9 seeds do not decide it", "over 100 more seeds", "better than net=a"],
    ),
    "some are identical": (
        [(net, s, 0.5 + 0.1 * (net // 2) + 0.01 * s + s * 0.001 * (net // 2 % 3))
         for net in range(40) for s in range(5)],
        ["net=38 leads 38 others, but 5 seeds do not decide it", "the closest, net=36, is 0.1 behind",
         "at least 10 seeds", "half of such leads are decided after about 10 seeds (5 more)"],
    ),
    "what the decided settings leave is counted": (
        noise_of(("a", 0.9, 0.01), ("b", 0.5, 0.01), ("c", 0.89, 0.2), ("d", 0.4, 0.01)),
        ["net=a leads net=c, but 12 seeds do not decide it", "net=a is better than 2 others"],
    ),
    "the best of all": (
        noise_of(("a", 0.9, 0.01), ("b", 0.5, 0.01), ("d", 0.4, 0.01)),
        ["net=a is the best of 3 settings, ahead of net=b by 0.40"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DECISIONS)
def test_a_verdict_names_who_leads_by_how_much_and_what_decides(case):
    rows, facts = DECISIONS[case]

    decision = verdict(table(rows, ["net", "seed"], "seed", columns=["net", "seed", "f1"]))

    assert [fact for fact in facts if fact not in str(decision)] == []


def test_a_pruned_repeat_breaks_no_tie_of_means():
    statuses = ["completed"] * 5 + ["pruned"]
    rows = {"lr": [1, 1, 1, 2, 2, 2], "seed": [0, 1, 2] * 2, "status": statuses,
            "f1": [0.4, 0.5, 0.45, 0.4, 0.5, 0.9]}  # fmt: skip

    assert best(table(rows, ["lr", "seed"], "seed"))["lr"].tolist() == [1, 2]


# The goals of an experiment


def test_every_reader_follows_the_goal_that_is_written_with_the_experiment(tmp_path):
    runs = execute(
        tmp_path, {"lr": [0, 5, 2]}, lambda run: {"kl": run.lr, "loss": 1.0}, epochs=2, goal="max:kl"
    ).runs

    assert best(runs)["run"].tolist() == [2, 3, 1]
    assert best(load_results(tmp_path)).iloc[0][["run", "epoch", "kl"]].tolist() == [2, 2, 5]
    assert show(runs).caption.startswith("best kl first")
    assert effects(runs)["mean"].tolist() == [0, 5, 2]
    assert compare(runs, "lr").sentence.startswith("kl of runs")
    assert best(runs, "kl")["run"].tolist() == [2, 3, 1]  # its direction is known
    assert best(runs, "min:kl")["run"].tolist() == [1, 3, 2]


def test_different_goals_are_asked_about_and_one_that_no_run_tracks_is_named(tmp_path):
    for name, goal in (("a", "max:f1"), ("b", "min:loss"), ("c", "max:f11")):
        execute(tmp_path, {"lr": [1, 2]}, lambda run: {"f1": run.lr, "loss": run.lr}, name, goal=goal)
    runs = load_runs([tmp_path / "a", tmp_path / "b"])

    with pytest.raises(GridError, match=r"different goals \(a has max:f1, b has min:loss\): give one"):
        best(runs)
    assert best(runs[runs["experiment"] == "b"], n=1)["lr"].tolist() == [1]
    assert best(runs, "f1", n=1)["lr"].tolist() == [2]
    with pytest.raises(GridError, match=r"'max:f11', but no run has .* did you mean 'f1'"):
        show(load_runs(tmp_path / "c"))


def test_where_the_best_weights_are_kept_the_goal_counts_at_their_epoch(tmp_path):
    nan, losses = math.nan, dict[int, list[Any]]()
    losses |= {1: [0.5, 0.25, nan], 2: [0.5, 0.5], 3: [nan], 4: [None, None], 5: [0.5, 0.25], 6: [0.5, nan]}
    f1s = {1: [0.1, 0.2, 0.9], 2: [0.7, 0.8], 3: [0.7], 4: [0.3, 0.6], 5: [0.2, 0.4], 6: [0.2, 0.9]}

    def train(run, manager):
        kinds = {4: None, 5: "last", 6: "max:f1"}
        with manager.run(run, nn.Linear(1, 1)):
            for epoch in manager.epochs(len(losses[run.lr]), keep=kinds.get(run.lr, "best:loss")):
                if losses[run.lr][epoch - 1] is not None:
                    manager.track_loss(losses[run.lr][epoch - 1], 1)
                manager.track(f1=f1s[run.lr][epoch - 1])

    runs = run_grid({"lr": [*losses]}, train, experiment="e", root=tmp_path, goal="max:f1", **QUIET).runs

    # the second of equal losses is not kept; an epoch that diverged is not either
    assert runs["kept f1"].fillna(-1).tolist() == [0.2, 0.7, -1, 0.6, 0.4, 0.2]
    assert runs["f1"].tolist() == [0.9, 0.8, 0.7, 0.6, 0.4, 0.9]
    assert best(runs)["run"].tolist()[:3] == [2, 4, 5]


def test_without_a_goal_the_metric_of_kept_weights_decides(tmp_path):
    def train(run, manager):
        with manager.run(run, nn.Linear(1, 1)):
            for _ in manager.epochs(1, keep="max:odd"):
                manager.track_loss(run.lr, 1)
                manager.track(odd=run.lr)

    runs = run_grid({"lr": [1, 2]}, train, experiment="e", root=tmp_path, **QUIET).runs

    assert best(runs)["lr"].tolist() == [2, 1]


def test_without_a_goal_a_table_is_shown_as_it_is():
    runs = pd.DataFrame({"run": [1, 2, 3], "lr": [1, 2, 3], "odd": [0.1, 0.3, 0.2]})

    assert [show(runs, goal).table["run"].tolist() for goal in (None, "max:odd")] == [[1, 2, 3], [2, 3, 1]]


def test_a_result_of_the_whole_run_is_not_of_an_epoch_whose_weights_are_kept(tmp_path):
    manager = RunManager("e", tmp_path, tensorboard=False, display=False, goal="max:final_f1")
    for lr in (1, 2):
        with manager.run({"lr": lr}, nn.Linear(1, 1)):
            for _ in manager.epochs(1, keep="best:loss"):
                manager.track_loss(1, 1)
            manager.summary(final_f1=lr / 10)

    assert "kept final_f1" not in load_runs(tmp_path)
    assert "Run 2 (lr=2) is best: final_f1 0.2" in page_of(load_runs(tmp_path), tmp_path)


def two_goals(run):
    """Let cost decide between equal accuracies, which differ by rounding."""
    f1 = {1: 0.3, 2: 0.1 + 0.2, 3: 0.1}[run.lr]
    return {"f1": f1, "cost": 1.0 if run.lr == 2 else 2.0}


def test_what_the_second_goal_decides_is_no_tie_and_an_exported_table_has_both(tmp_path):
    outcome = execute(tmp_path, {"lr": [1, 2, 3]}, two_goals, goal=GOALS, note="why")
    export(outcome.runs, tmp_path / "runs.csv")

    for runs in (outcome.runs, load_table(tmp_path / "runs.csv")):
        assert best(runs)["run"].tolist() == [2, 1, 3]
        assert pareto(runs)["run"].tolist() == [2]
        assert "note: why" in repr(show(runs))
    assert "Run 2 (lr=2) is best" in page_of(outcome.runs, tmp_path)
    assert "The Pareto front has 1 run: no other run is as good in every goal and better in one." in panel_of(
        outcome
    )


def test_means_and_sums_that_differ_by_rounding_are_a_tie(tmp_path):
    values = {1: [0.1, 0.2, -0.3], 2: [0.0, 0.0, 0.0]}
    rows = [{"lr": lr, "seed": s, "f1": value} for lr in values for s, value in enumerate(values[lr])]
    equal = [{"run": n, "lr": n, "f1": value, "f2": math.nan} for n, value in ((1, 0.3), (2, 0.1 + 0.2))]

    assert "ties with" in page_of(table(equal, goal=["max:f1", "max:f2"]), tmp_path)
    said = page_of(table(rows, ["lr", "seed"], "seed"), tmp_path)
    assert "lr=1" in said.partition("Runs")[0]
    assert "tie" in said or "identical" in said


@pytest.mark.parametrize("seeds", [(), (0, 1)])
def test_a_setting_that_lacks_a_goal_is_below_and_every_surface_says_so(tmp_path, seeds):
    def scores(run):
        return [{}, {"f1": 0.9}, {"f1": 0.5, "cost": 1.0}, {"f1": 0.4, "cost": 5.0}][run.lr]

    outcome = execute(tmp_path, {"lr": [1, 2, 3], **({"seed": seeds} if seeds else {})}, scores, goal=GOALS)

    page = page_of(outcome.runs, tmp_path)
    for said in (page, panel_of(outcome)):
        assert "has 0.9, but no cost: it ranks below." in said
    assert ("no cost: ranks below" in page) == bool(seeds)
    decision = verdict(outcome.runs)
    assert math.isnan(decision.difference) or decision.difference >= 0
    if seeds:
        assert decision.better == {"lr": 2}


# Several grids and experiments


def test_a_grid_that_adds_seeds_ends_with_the_ranking_of_all(tmp_path):
    values = {1: (0.9, 0.9, 0.9), 2: (0.5, 0.5, 0.95)}

    for seeds in ([0, 1], [2]):
        outcome = execute(tmp_path, {"lr": [1, 2], "seed": seeds}, lambda run: {"f1": values[run.lr][run.seed]})

    assert best(load_runs(tmp_path)).iloc[0]["lr"] == 1
    assert "do not decide it f1 0.90, the mean of 3 seeds" in panel_of(outcome)
    assert "The ranking has 6 completed runs of the experiment; this grid has 2." in panel_of(outcome)


def test_an_axis_called_as_a_computed_column_keeps_its_values(tmp_path):
    runs = execute(tmp_path, {"runs": [1, 2], "seed": [0, 1]}, lambda run: {"f1": run.runs}).runs

    ranked = best(runs)

    assert ranked["runs (hyperparameter)"].tolist() == [2, 1]
    assert load_run(ranked["runs"].iloc[0][0]).number == 3


def test_several_experiments_are_an_axis_and_are_compared_by_all_their_goals(tmp_path):
    for name, f1 in (("a", 0.7), ("b", 0.8)):  # the best run lacks a goal

        def scores(run, f1=f1):
            return {"f1": 0.9} if run.lr == 1 else {"f1": f1, "cost": 1.0}

        execute(tmp_path, {"lr": [1, 2], "seed": [0, 1]}, scores, name, goal=GOALS)

    assert {*effects(load_runs(tmp_path))["axis"]} == {"lr", "experiment"}
    assert command("list", tmp_path).err.count("Repeats by name: seed; ") == 1
    assert "lr=2" in " ".join(command("list", tmp_path, "--where", "lr<9").err.split())


# One answer on every surface


def ended(run):
    """Let runs end in every way that needs no other process."""
    if run.width == 8 and run.lr == 1:
        raise KeyboardInterrupt
    if run.width == 32:
        raise ValueError(f"width {run.width} is too little")
    return {"f1": run.lr * run.width, "loss": math.nan if run.width == 16 else 1.0}


def test_counts_causes_and_what_matters_are_the_same_everywhere(tmp_path):
    outcome = execute(tmp_path, {"lr": [0.1, 0.2, 1], "width": [32, 16, 64, 8]}, ended, goal="max:f1")

    page = parse(write_report(tmp_path / "e", tmp_path / "page.html"))
    notebook = text_of(parse(outcome._repr_html_()))
    surfaces = [panel_of(outcome), " ".join(notebook.split()), text_of(page)]
    counts = load_runs(tmp_path)["status"].value_counts().to_dict()
    assert set(counts) == {"completed", "failed", "diverged", "interrupted"}
    cards = {text_of(card[0]): text_of(card[1]) for card in next(page.iter("dl"))}
    for status, number in counts.items():
        assert f"{number} {status}" in surfaces[0]
        assert f"{number} {status}" in surfaces[1]
        assert f"{number} {status}" in " ".join(command("list", tmp_path / "e").err.split())
        assert cards.get(str(status), str(number)).split()[0] == str(number)
    causes = [element for element in page.iter() if "cause" in element.get("class", "").split()]
    assert len(causes) == 2
    for cause in causes:
        status, which = (text_of(next(cause.iter(name))) for name in ("span", "h3"))
        said = f"{status}: {which.removeprefix(status).strip()}"
        assert said in surfaces[0]
        assert said in surfaces[1]
        assert "Next: " in text_of(cause)


def test_what_changes_the_goal_is_not_said_from_the_survivors_of_pruning(tmp_path):
    rows = [{"lr": lr, "width": width, "f1": lr + width} for lr, width in itertools.product((1, 2, 3), (1, 2))]
    statuses = ["completed"] * 3 + ["pruned"] * 3

    page = page_of(table(pd.DataFrame(rows).assign(status=statuses), ["lr", "width"]), tmp_path)

    assert "All else equal" not in page

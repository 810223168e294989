"""Which setting is best, and why: best, show, verdict, compare, effects (docs/results.md, docs/verdict.md)."""

import math
import random
import re
import time

import pandas as pd
import pytest

from runmanager import (
    GridError,
    InvalidArgumentError,
    best,
    compare,
    effects,
    export,
    load_results,
    load_runs,
    load_table,
    pareto,
    show,
    verdict,
    write_report,
)
from tests.border.experiments import execute
from tests.border.pages import parse, text_of
from tests.border.screens import command


def table(rows, hyperparameters=("lr",), repeats="seed", goal="max:f1"):
    return load_table(pd.DataFrame(rows), hyperparameters=list(hyperparameters), repeats=repeats, goal=goal)


def seeds(means, number=6, **fixed):
    """Return rows of settings with seeds: lr -> its mean."""
    generator = random.Random(0)  # noqa: S311
    return [
        {"lr": lr, "seed": seed, "f1": mean + generator.gauss(0, 0.01), **fixed}
        for seed in range(number)
        for lr, mean in means.items()
    ]


# The ranking


def test_equal_repeats_have_exactly_their_value_and_no_spread():
    ranked = best(table([{"lr": 0.1, "seed": seed, "f1": 0.2} for seed in range(3)]))

    assert ranked[["f1 mean", "f1 std"]].iloc[0].tolist() == [0.2, 0]


@pytest.mark.slow(everywhere=True)
def test_none_is_named_as_the_value_of_the_best_setting_where_the_other_value_failed(tmp_path):
    def scores(run):
        if run.clip:
            raise ValueError("its loss is NaN")
        return {"f1": run.seed}

    execute(tmp_path, {"clip": [None, 1.0], "seed": [1, 2]}, scores, repeats="seed")

    assert "clip=None has f1" in command("list", tmp_path / "e").err


@pytest.mark.parametrize(("status", "is_named"), [("unavailable", False), ("failed", True)])
def test_a_device_on_which_no_run_ended_names_no_setting(status, is_named):
    rows = [
        {"lr": lr, "device": device, "seed": seed, "f1": lr if device == "cpu" else math.nan,
         "status": "completed" if device == "cpu" else status}
        for lr in (0.1, 0.2) for device in ("cpu", "cuda") for seed in range(3)
    ]  # fmt: skip

    caption = show(table(rows, ["lr", "device"])).caption

    assert "lr=0.2" in caption
    assert ("device=cpu" in caption) == is_named


def test_a_table_of_the_functions_is_a_data_frame_with_a_sentence():
    runs = table(seeds({0.1: 0.5, 0.2: 0.7}))

    for result in (best(runs), effects(runs), compare(runs, "lr"), pareto(runs, ["max:f1", "min:lr"])):
        assert isinstance(result, pd.DataFrame)
        assert result.head(1).sentence in show(result).caption


@pytest.mark.parametrize(("further", "overlaps"), [([], False), ([(1, 1), (2, 2)], True), ([(3, 3)], True)])
def test_effects_say_where_axes_may_explain_the_same_variation(further, overlaps):
    pairs = [(1, 1), (1, 2), (2, 1), (2, 2), *further]
    rows = [{"lr": lr, "wd": wd, "f1": lr + wd} for lr, wd in pairs]

    found = effects(table(rows, ("lr", "wd"), repeats=()), "f1")

    assert (found.drop_duplicates("axis")["explained"].sum() > 1.001) == overlaps
    assert ("the shares overlap" in found.sentence) == overlaps


# The verdict


def test_a_difference_is_decided_with_its_interval():
    decision = verdict(table(seeds({0.1: 0.83, 0.01: 0.71})))

    assert (decision.decided, decision.better, decision.worse) == (True, {"lr": 0.1}, {"lr": 0.01})
    assert decision.outcome == "better"
    assert decision.repeats == 6
    assert decision.evidence >= 20
    assert decision.low < decision.difference < decision.high
    assert decision.low > 0
    for part in ("lr=0.1 is better than lr=0.01", "6 seeds"):
        assert part in str(decision)
    assert decision.table["lr"].tolist() == [0.1, 0.01]
    assert decision.table["verdict"].tolist()[1:] == ["worse"]
    assert "0.01" in "\n".join(decision.drawn().lines())


def test_an_order_of_rows_changes_nothing():
    rows = seeds({0.1: 0.83, 0.01: 0.71})

    first, second = verdict(table(rows)), verdict(table(rows[::-1]))

    assert (first.difference, first.low, first.high) == pytest.approx(
        (second.difference, second.low, second.high)
    )


# What a number is of


def test_a_metric_that_the_last_epoch_lacks_is_named(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(3):
                manager.track(steps=epoch)
                if run.lr == 0.1 or epoch < 3:
                    manager.track(f1=run.lr)

    outcome = execute(tmp_path, {"lr": [0.1, 0.2]}, train, goal="max:f1")

    page = text_of(parse(write_report(tmp_path / "e", tmp_path / "page.html")))
    for words in (show(outcome.runs).caption, " ".join(str(outcome.panel).split()), page):
        assert "f1 of run 2 is from an epoch before the last" in words
    assert best(outcome.runs.query("lr > 1")).empty


def test_a_repeat_that_is_there_twice_counts_once():
    rows = seeds({0.1: 0.83, 0.01: 0.71})

    twice = best(table(rows + rows))

    pd.testing.assert_frame_equal(twice, best(table(rows)))
    assert "repeat counts once" in show(table(rows + rows)).caption


@pytest.mark.parametrize(("number", "mark"), [(1, "–"), (3, "–"), (6, "✓")])  # noqa: RUF001
def test_a_check_mark_stands_for_a_decision_alone(tmp_path, number, mark):
    grid = {"lr": [0.1, 0.9], "seed": range(number)}
    repeats = "seed" if number > 1 else ()

    outcome = execute(
        tmp_path, grid, lambda run: {"f1": run.lr + run.seed / (7 + run.lr)}, goal="max:f1", repeats=repeats
    )

    assert str(outcome.panel).splitlines()[1].startswith(f"{mark} ")


@pytest.mark.parametrize(("number", "draw", "ends"), [(2, 33, "(0.001 to"), (4, 270, "(above 0, at most")])
def test_a_decided_lead_has_no_bound_of_0(number, draw, ends):
    generator = random.Random(draw)  # noqa: S311
    runs = [(lr, seed) for seed in range(10) for lr in range(number)]
    rows = [{"lr": lr, "seed": seed, "f1": 0.12 * lr + generator.gauss(0, 0.1)} for lr, seed in runs]

    decision = verdict(table(rows))

    assert decision.outcome == "better"
    assert ends in str(decision)


def test_the_advised_number_of_seeds_suffices_for_the_settings():
    runs = table([{"lr": lr, "f1": lr} for lr in range(27)], repeats=())

    assert "range(10)" in str(verdict(runs))
    assert "range(7)" in str(verdict(runs.head(3)))


def test_folds_are_not_asked_for_beyond_their_split():
    rows = [
        {"lr": row["lr"], "fold": row["seed"], "f1": row["f1"]} for row in seeds({0.1: 0.9, 0.2: 0.8}, number=5)
    ]

    sentence = str(verdict(table(rows, repeats="fold")))

    assert "repeat the split with a seed axis" in sentence
    assert "6 folds" not in sentence


def test_a_seed_that_changes_nothing_is_asked_about():
    rows = [{"lr": lr, "seed": seed, "f1": lr} for lr in (0.1, 0.2) for seed in range(6)]

    assert "seed seems to change nothing: check that train() uses it" in str(verdict(table(rows)))


# What a reader needs in order to decide rightly


def repeated(run):
    """Let two of three seeds of lr=0.3 fail; its only result is the best."""
    if run.lr == 0.3 and run.seed > 1:
        raise ValueError("no")
    return {"f1": run.lr + 0.01 * run.seed * run.lr}


SAID = {
    "the lead of single runs": (
        {"lr": [0.1, 0.3]}, lambda run: {"f1": run.lr},
        ("Run 2 (lr=0.3) is best: f1 0.3 Its lead is 0.2; each setting ran once, so that may be chance: "
        'an axis "seed" repeats them.'),
    ),
    "a tie": (
        {"lr": [0.1, 0.3]}, lambda _: {"f1": 0.5},
        "Run 1 (lr=0.1) ties with run 2 (lr=0.3) for the lead: f1 0.5 Each setting ran once, so that may be",
    ),
    "nothing changes": (
        {"lr": [0.1, 0.3], "width": [8, 16]}, lambda _: {"f1": 0.5},
        "matters Changing lr or width alone does not change f1.",
    ),
    "more runs than the table has": (
        {"lr": [*range(7)]}, lambda run: {"f1": run.lr}, "(the first 5; all 7 runs are ranked)",
    ),
    "all are identical": (
        {"lr": [0.1, 0.3], "fold": [1, 2, 3, 4, 5]}, lambda run: {"f1": run.fold},
        ("identical in f1 in each of 5 folds Each has f1 3, the mean of 5 folds, 95 % interval "
        "1.037 to 4.963."),
    ),
    "a lead of few seeds, its mean and its interval": (
        {"lr": [0.1, 0.3], "seed": [1, 2]}, lambda run: {"f1": run.lr + 0.01 * run.seed * run.lr},
        ("decide it f1 0.3045, the mean of 2 seeds, 95 % interval 0.2854 to 0.3236. "
        "lr=0.1 is 0.2 behind; a verdict needs at least 6 seeds."),
    ),
    "how much repeats differ": (
        {"lr": [0.1, 0.3], "width": [8, 16], "seed": [1, 2]},
        lambda run: {"f1": run.lr + 0.01 * run.seed * run.lr}, "chance alone changes these means by 0.0013.",
    ),
    "a single seed": (
        {"lr": [0.1, 0.2, 0.3], "seed": [1, 2, 3]}, repeated,
        "lr=0.3 lost 2 of 3 seeds (failed). lr=0.3 has 0.303, but one seed: it ranks below.",
    ),
    "a goal that a run lacks": (
        {"lr": [0.1, 0.3]}, lambda run: {"f1": run.lr} if run.lr == 0.3 else {"f1": run.lr, "cost": 1.0},
        "Run 1 (lr=0.1) is best: f1 0.1, cost 1 Run 2 (lr=0.3) has 0.3, but no cost: it ranks below.",
    ),
    "several goals, the first is tied": (
        {"lr": [0.1, 0.3]}, lambda run: {"f1": 0.5, "cost": run.lr},
        "is best: f1 0.5, cost 0.1 f1 is tied, so cost counts; each setting ran once, so that may be chance: ",
    ),
    "all of the best have None": (
        {"lr": [0.1, 0.2, 0.3, 0.4, 0.5], "decay": [None, 3]},
        lambda run: {"f1": run.lr * (run.decay is None)},
        "run lr decay f1 run duration 9 0.5 None 0.5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_the_panel_says_what_decides(tmp_path, case):
    grid, scores, sentence = SAID[case]
    goal = ["max:f1", "min:cost"] if "goal" in case else "max:f1"

    outcome = execute(tmp_path, grid, scores, goal=goal)

    assert sentence in " ".join(str(outcome.panel).split())
    assert "intervals are per setting" not in str(outcome.panel) or "95 % interval  " in str(outcome.panel)


# Why


def numbers_in(sentence):
    """Return the numbers of a sentence of `compare`: a mean, its counts and the ends of its interval."""
    (summary,) = [part for part in sentence.split(" · ") if "mean of" in part]
    numbers = re.findall(r"[+-]?\d[\d.e-]*(?![\d%]| %)", summary.partition(": ")[2])
    return [float(number) for number in numbers]


@pytest.mark.parametrize(
    ("goals", "named"), [(["max:nothing", "min:f1"], "nothing"), (["max:f1", "min:f1"], "f1")]
)
def test_goals_that_cannot_be_used_are_named(goals, named):
    with pytest.raises(InvalidArgumentError, match=named):
        pareto(table(seeds({0.1: 0.5})), goals)


# Experiments and tables


def test_the_page_compare_and_decide_give_one_answer_where_a_value_failed(tmp_path):
    """0.1 failed where scores are low: its mean is higher, but it is behind in each pair."""

    def train(run):
        if run.lr == 0.1 and run.width > 4:
            raise ValueError("no memory")
        return {"f1": 0.9 - 0.1 * run.width - 0.02 * (run.lr == 0.1) + 0.001 * (run.lr * run.width)}

    runs = execute(tmp_path, {"lr": [0.1, 0.01], "width": [*range(8)]}, train, goal="max:f1").runs

    decision = verdict(runs, "lr")
    mean, number = numbers_in(compare(runs, "lr").sentence)
    words = text_of(parse(write_report(tmp_path, tmp_path / "page.html")))
    assert (decision.better, decision.worse) == (0.01, 0.1)
    assert "0.1 vs 0.01" in compare(runs, "lr").sentence
    assert (-mean, number) == (pytest.approx(decision.difference, rel=1e-3), 5)
    assert verdict(runs[runs["width"] < 2], "lr").repeats == 2
    assert (
        "All else equal, lr=0.01 leads lr=0.1, but 5 comparisons do not decide it; lr=0.1 is 0.02 behind"
        in words
    )


def test_compare_and_decide_have_one_interval():
    rows = [
        {"lr": lr, "width": width, "seed": seed, "f1": lr + width + (seed * 7 % 5) * 0.01 * (1 + lr * width)}
        for lr in (0.1, 0.2)
        for width in (1, 2)
        for seed in range(8)
    ]
    runs = table(rows, ["lr", "width"])

    decision = verdict(runs, "lr")
    mean, pairs, repeats, low, high = numbers_in(compare(runs, "lr").sentence)

    assert (repeats, pairs) == (decision.repeats, 16) == (8, 16)
    numbers = [decision.difference, decision.low, decision.high]
    assert [mean, low, high] == pytest.approx(numbers, rel=1e-3)


def ablation(number):
    base = {"augment": True, "norm": "batch"}
    generator = random.Random(0)  # noqa: S311
    settings = zip([base, {**base, "augment": False}, {**base, "norm": "none"}], (0.0, 0.0, 0.1), strict=True)
    rows = [
        {**setting, "seed": seed, "f1": 0.8 - drop + generator.gauss(0, 0.01)}
        for setting, drop in settings
        for seed in range(number)
    ]
    return base, table(rows, list(base))


def test_each_setting_is_compared_with_a_base():
    base, runs = ablation(10)

    result = compare(runs, base=base)

    assert result["setting"].tolist() == ["base", "augment=False", "norm=none"]
    assert result["verdict"].tolist() == ["base", "undecided", "worse"]
    assert result["seeds"].tolist() == [10, 10, 10]
    by_norm = result.set_index("norm")
    seeds_of = runs.pivot_table(index="seed", columns=["augment", "norm"], values="f1")
    expected = seeds_of[True, "none"] - seeds_of[True, "batch"]
    assert by_norm.loc["none", "difference"] == pytest.approx(expected.mean())
    low, high = map(float, by_norm.loc["none", ["low", "high"]].to_numpy())
    assert low < expected.mean() < high < 0
    assert "intervals hold together" in show(result).caption
    by_none = compare(runs, base={"augment": True, "norm": "none"})
    assert by_none["verdict"].tolist() == ["base", "better", "better"]


@pytest.mark.parametrize("number", [6, 7, 9])
def test_a_base_has_the_verdicts_of_the_best_setting(number):
    _, runs = ablation(number)
    decision = verdict(runs)

    against = compare(runs, base=decision.better)

    assert against["verdict"].tolist()[1:] == decision.table["verdict"].tolist()[1:]


@pytest.mark.parametrize(("norms", "least"), [(["batch", "none"], 7), (["batch"], 6)])
def test_few_repeats_say_how_many_the_intervals_need(norms, least):
    base, runs = ablation(5)

    caption = show(compare(runs[runs["norm"].isin(norms)], base=base)).caption

    assert f"a verdict needs at least {least} seeds" in caption


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ({"augment": True}, "norm"), ({"aug": True}, "augment"), ({"norm": "x"}, "0"),
        ({"augment": True, "norm": "none", "seed": 0}, "only repeats"), ({}, "values of one setting"),
    ],
)  # fmt: skip
def test_a_base_that_is_no_single_setting_is_refused(base, words):
    with pytest.raises(GridError, match=words):
        compare(ablation(3)[1], base=base)


def test_more_settings_make_the_intervals_of_a_base_wider():
    base, runs = ablation(10)

    wide, narrow = (compare(each, base=base) for each in (runs, runs[runs["augment"]]))

    ends = [each[each["norm"] == "none"].iloc[0] for each in (wide, narrow)]
    assert ends[0]["low"] < ends[1]["low"] < ends[1]["high"] < ends[0]["high"]


def test_the_panel_says_how_much_of_its_time_a_grid_took_to_set_up_its_runs(tmp_path):
    def train(run, manager):
        time.sleep(0.2)
        with manager.run(run):
            pass

    outcome = execute(tmp_path, {"lr": [1]}, train)

    assert "% setup of runs" in str(outcome.panel)
    assert "tensorboard" not in str(outcome.panel)  # which has nothing to show


def test_a_decided_difference_has_the_digits_that_its_interval_allows():
    runs = ablation(7)[1]

    sentence = str(verdict(runs[runs["augment"]]))

    assert "norm=batch is better than norm=none by 0.10 (0.07 to 0.13), decided after 7 seeds" in sentence


@pytest.mark.parametrize(
    ("ahead", "number", "words"),
    [
        (0, 1, "undecided;"),
        (0, 2, "undecided after 2 seeds;"),
        (5, 1, "lr=0.1 leads lr=0.2, but one run each decides nothing;"),
        (5, 2, "lr=0.1 leads lr=0.2, but 2 seeds do not decide it;"),
    ],
)
def test_few_seeds_are_counted_where_they_decide_nothing(ahead, number, words):
    rows = [
        {"lr": lr, "seed": seed, "f1": seed + ahead if lr == 0.1 else number - 1 - seed}
        for lr in (0.1, 0.2)
        for seed in range(number)
    ]

    assert str(verdict(table(rows))).startswith(words)


WANDB = "Unnamed: 0,Name,State,Created,Runtime,augment,lr,seed,train/loss,val/f1"


def wandb(folder, lost=(), changed=""):  # as pandas reads and writes it again
    generator = random.Random(0)  # noqa: S311
    lines = [WANDB + (",depth" if changed else "")]
    for lr in (0.1, 0.01):
        for seed in range(8):
            state = "crashed" if (lr, seed) in lost else "finished"
            value = 0.7 + lr + generator.gauss(0, 0.01)
            about = f"{len(lines)},r{lr}-{seed},{state},2026-01-0{seed + 1},{90 + seed}"
            extra = f",{generator.choice([1, 2])}" if changed else ""
            lines.append(f"{about},true,{lr},{seed},0.{seed}1,{value}{extra}")
    path = folder / "wandb.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("words", [["decide"], ["best"], ["compare", "lr"], ["compare", "--base", "lr=0.1"]])
def test_a_csv_of_another_tool_is_answered_by_the_commands(tmp_path, words):
    answer = command(*words, wandb(tmp_path), "--repeats", "seed", "--goal", "max:val/f1")

    assert answer.code == 0
    assert "the hyperparameters are lr" in answer.err
    assert "lr" in answer.out or "0.1" in answer.out
    assert words != ["decide"] or "lr=0.1 is better than lr=0.01" in answer.out


@pytest.mark.parametrize(("named", "options"), [("depth", ("--repeats", "seed")), ("", ())])
def test_a_column_that_may_be_a_hyperparameter_or_a_result_is_asked_for(tmp_path, named, options):
    path, goal = wandb(tmp_path, changed=named), ("--goal", "max:val/f1")

    refused = command("decide", path, *options, *goal)
    answer = command("decide", path, "--repeats", "seed", *goal, "--hyperparameters", "lr")

    assert refused.code == 2
    assert named in refused.err
    assert "--hyperparameters" in refused.err
    assert "lr=0.1 is better" in answer.out


def test_a_seed_column_that_is_not_listed_repeats_the_settings(tmp_path):
    frame = pd.DataFrame([row | {"note": "a"} for row in seeds({0.1: 1.0, 0.2: 1.01}, number=8)])
    frame.to_csv(path := tmp_path / "results.csv", index=False)
    words = (path, "--goal", "max:f1")

    refused, decided = command("decide", *words), command("decide", *words, "--hyperparameters", "lr")
    along = command("decide", "lr", *words, "--hyperparameters", "lr")

    assert "--repeats seed" in refused.err
    for answer in (decided, along):
        assert "8 seeds" in answer.out
        assert "one run each" not in answer.out
    rows = best(load_table(path, ["lr"], goal="max:f1"))
    assert rows["f1 mean"].tolist() == pytest.approx(
        frame.groupby("lr")["f1"].mean().sort_values()[::-1].tolist()
    )
    assert len(best(load_table(path, ["lr"], repeats=(), goal="max:f1"))) == 16
    assert "each setting ran once" not in f"{verdict(load_table(frame, ['lr'], goal='max:f1'))}"


def test_a_page_of_a_csv_says_what_the_commands_say(tmp_path):
    path = wandb(tmp_path, lost=[(0.01, 3)])
    words = (path, "--hyperparameters", "lr", "--repeats", "seed", "--goal", "max:val/f1")
    decided = command("decide", *words).out.splitlines()[0]

    answer = command("report", *words, "--base", "lr=0.01", "-o", tmp_path / "page.html")

    assert answer.code == 0
    text = text_of(parse(tmp_path / "page.html"))
    assert decided.partition(",")[0] in text
    assert "Against the base" in text
    assert "of each setting against lr=0.01, paired by seed" in text
    assert "1 failed" in text
    assert not {"null", "runmanager", "retry_failed"} & set(re.findall(r"\w+", text.partition("Written by")[0]))


def test_a_page_of_rows_keeps_the_numbers_of_their_runs_and_their_goal(tmp_path):
    execute(tmp_path, {"lr": [1, 2, 3, 4]}, lambda run: {"f1": run.lr, "loss": 1 / run.lr}, goal="max:f1")
    runs = load_runs(tmp_path)
    rows = runs[runs["lr"] > 1].assign(status=["completed", "completed", "interrupted"])

    page = text_of(parse(write_report(rows, tmp_path / "page.html", base={"lr": 2})))

    assert "Run 3 (lr=3) is best so far: f1 3" in page
    assert "f1 of each setting against lr=2" in page
    assert "1 of 3 runs is left to execute." in page
    assert "the same command" not in page


def test_a_page_needs_a_row_per_run(tmp_path):
    execute(tmp_path, {"lr": [1]}, lambda run: {"f1": run.lr}, epochs=2)

    with pytest.raises(InvalidArgumentError, match="row per run"):
        write_report(load_results(tmp_path), tmp_path / "page.html")


def test_an_axis_and_a_base_are_two_questions_but_a_folder_is_no_axis(own_folder):
    execute(own_folder, {"norm": [1, 2]}, lambda run: {"f1": run.norm})

    answer = command("compare", "norm", "e", "--base", "norm=1")

    assert command("compare", "e", "e", "--base", "norm=1").code == 0
    assert answer.code == 2
    assert "two questions" in answer.err
    for words in ("compare", "report"):
        assert "--base takes values, as lr=0.1,width=64, got 'e/1'" in command(words, "e", "--base", "e/1").err


def test_folds_that_are_still_to_come_are_waited_for():
    rows = [{"lr": lr, "fold": fold, "f1": lr + 0.01 * fold} for lr in (1, 2) for fold in range(5)]
    runs = table(rows, repeats="fold").assign(status=["completed", "completed", *["pending"] * 3] * 2)

    sentence = str(verdict(runs))

    assert "once all folds are executed" in sentence


def test_a_ranking_says_that_the_last_value_counts(tmp_path):
    execute(tmp_path, {"lr": [1, 2]}, lambda run: {"f1": run.lr}, epochs=2, goal="max:f1")

    assert "the last value of each run counts" in show(best(load_runs(tmp_path))).caption
    assert "the last value of each run counts" in command("best", tmp_path / "e").err


def test_a_value_that_fails_almost_everywhere_does_not_decide_which_other_value_leads(tmp_path):
    def scores(run):
        if run.lr == 1 and (run.width, run.dropout) != (8, 0.0):
            raise ValueError("no")
        steep = 8 if (run.lr, run.width) == (0.1, 8) else 1
        return {"f1": {1: 0.3, 0.1: 0.5, 0.01: 0.522}[run.lr] + 0.001 * run.width * steep + run.dropout}

    grid = {"lr": [1, 0.1, 0.01], "width": [8, 16, 32], "dropout": [0.0, 0.1, 0.2]}
    execute(tmp_path, grid, scores, goal="max:f1")
    runs = load_runs(tmp_path)

    page = text_of(parse(write_report(tmp_path / "e", tmp_path / "page.html")))

    assert "0.01 vs 0.1: +0.003333" in show(compare(runs, "lr")).caption
    assert str(verdict(runs, "lr")).startswith("lr=0.01 leads 2 others, but")
    assert re.search(
        r"All else equal, lr=0.01 leads 2 others, but .* the closest, lr=0.1, is 0.0033 behind", page
    )


def test_a_base_says_how_many_repeats_a_setting_has():
    base, runs = ablation(4)

    said = show(compare(runs.assign(status=["failed", *["completed"] * 11]), base=base)).caption

    assert "lost 1 of 4 seeds (failed)" in said


def test_a_page_of_an_exported_table_keeps_its_experiments_apart(tmp_path):
    for name, more in (("a", 0), ("b", 5)):
        execute(
            tmp_path, {"lr": [1, 2], "more": [more]}, lambda run: {"f1": run.lr + run.more}, name, goal="max:f1"
        )
    export(load_runs([tmp_path / "a", tmp_path / "b"]), tmp_path / "runs.csv")

    page = write_report(load_table(tmp_path / "runs.csv"), tmp_path / "page.html")

    assert "b run 2" in text_of(parse(page))
    assert "f1 7" in text_of(parse(page))

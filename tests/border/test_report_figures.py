"""The figures of the page of `write_report`: curves, means, labels, the timeline, and what ranges show."""

import itertools
import json
import math
import re
import sys
from unittest import mock

import pandas as pd
import pytest

from benchmarks.colors import SIGHTS, contrast, least_distance
from benchmarks.page import themes
from runmanager import (
    IntRange,
    LogUniform,
    MissingExtraError,
    RunBuilder,
    Uniform,
    importances,
    load_table,
    write_report,
)
from tests.border.experiments import execute
from tests.border.pages import by_id, parse, text_of

GRID = {"lr": [0.1, 0.01], "seed": range(4), "device": ["cpu"]}
SPACE = {"lr": LogUniform(1e-5, 1e-1), "dropout": Uniform(0, 0.5), "optimizer": ["adam", "sgd"]}


def page_of(tmp_path, grid, score, *, epochs=2, **options):
    """Write the page of runs that track a test_accuracy."""
    execute(tmp_path, grid, lambda run: {"test_accuracy": score(run)}, epochs=epochs, **options)
    return parse(write_report(tmp_path / "e", tmp_path / "page.html"))


def numbers(d):
    return [float(number) for number in re.findall(r"-?[\d.]+", d)]


def marks(page, name, kind):
    """Find the marks of a kind in a figure."""
    return [path for path in by_id(page, name).iter("path") if kind in path.get("class", "").split()]


def dots(element):
    return sum(
        path.get("d").count("h0") for path in element.iter("path") if "dots" in (path.get("class") or "")
    )


def test_repeats_have_their_mean_and_interval_and_the_best_line_its_name(tmp_path):
    page = page_of(tmp_path, GRID, lambda run: 0.5 + 4 * run.lr + 0.01 * run.seed, epochs=3)

    (band, other), middles = marks(page, "curves-0", "band"), marks(page, "curves-0", "middle")
    assert {band.get("data-runs"), other.get("data-runs")} == {"3 2 1 0", "7 6 5 4"}
    assert len(middles) == 2
    words = text_of(by_id(page, "learning"))
    assert "means" in words
    assert "95 % interval" in words
    assert "resumed" not in words
    ends = numbers(middles[0].get("d"))[-2:]
    _, low = numbers(band.get("d"))[4:6]
    assert low > ends[1]  # the lower side of the band is below the mean
    (label,) = [text for text in by_id(page, "curves-0").iter("text") if "end" in text.get("class", "")]
    (best,) = [line for line in marks(page, "curves-0", "run") if "best" in line.attrib["class"]]
    assert text_of(label) == "run 4"
    assert abs(float(label.attrib["y"]) - numbers(best.get("d"))[-1]) <= 5


@pytest.mark.parametrize(("seeds", "said"), [([1], ""), ([1, 2], "(of two runs, their range)")])
def test_the_key_of_the_curves_names_only_what_is_drawn(tmp_path, seeds, said):
    runs = [
        run
        for run in RunBuilder.get_runs({"lr": [0.1, 0.3], "seed": [*seeds, 4]})
        if (run.lr == 0.3) == (run.seed == 4)
    ]
    page = page_of(tmp_path, runs, lambda run: run.lr + run.seed / 100)

    words = text_of(by_id(page, "learning"))
    assert bool(said) == bool(marks(page, "curves-0", "band")) == ("means" in words)
    assert said in words
    assert ", the best" in words
    assert "resumed" not in words


def test_the_means_of_a_value_are_over_what_is_equal_otherwise(tmp_path):
    # width 512 was tried with the good lr alone: on average over all runs it would be far above the others
    every = RunBuilder.get_runs({"lr": [0.1, 0.01], "width": [32, 128, 512]})
    runs = [run for run in every if (run.lr, run.width) != (0.01, 512)]
    page = page_of(tmp_path, runs, lambda run: (0.9 if run.lr == 0.1 else 0.1) + run.width / 10_000)
    name = next(each for each in ("effect-0", "effect-1") if "width" in text_of(by_id(page, each)))

    heights = [numbers(mark.get("d"))[1] for mark in marks(page, name, "mean")]

    assert len(heights) >= 2
    assert max(heights) - min(heights) < 20  # of 200 and more that the two values of lr are apart


def test_the_best_epoch_is_marked_inside_the_frame(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(4):
                manager.track(f1=(0.1, 0.4, 0.9, 0.5)[epoch - 1] + run.number)

    execute(tmp_path, {"number": [0, 1]}, train, goal="max:f1")
    page = parse(write_report(tmp_path / "e", tmp_path / "page.html"))

    (peak,) = marks(page, "curves-0", "peak")
    (best,) = [mark for mark in marks(page, "curves-0", "run") if "best" in mark.attrib["class"]]
    assert numbers(peak.get("d"))[:2] == numbers(best.get("d"))[4:6]  # of the third epoch
    (frame,) = by_id(page, "curves-0").iter("rect")
    left, top, width, height = (float(frame.attrib[name]) for name in ("x", "y", "width", "height"))
    xs, ys = numbers(best.get("d"))[::2], numbers(best.get("d"))[1::2]
    assert left + 5 <= min(xs) < max(xs) <= left + width - 5  # a dot at an end is whole
    assert top + 5 <= min(ys) < max(ys) <= top + height - 5


@pytest.mark.slow(everywhere=True)
def test_curves_that_leave_the_frame_are_counted(tmp_path):
    page = page_of(tmp_path, {"lr": range(1, 61)}, lambda run: -100.0 if run.lr == 60 else 0.5 + run.lr / 1000)

    assert "1 curve leaves the frame." in text_of(by_id(page, "learning"))


def test_a_curve_of_one_point_is_a_dot_and_any_numbers_have_a_scale(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(1 if run.lr == 0 else 2):
                manager.track(f1=(run.lr or 0.5) * epoch)

    execute(tmp_path, {"lr": [0, 5e-324, 1e-300, 1e300, -8e307]}, train, goal="max:f1")
    page = parse(write_report(tmp_path / "e", tmp_path / "page.html"))

    assert [mark.get("data-r") for mark in marks(page, "curves-0", "dot")] == ["0"]
    assert all(map(math.isfinite, numbers(" ".join(path.get("d", "") for path in page.iter("path")))))


def test_attempts_have_a_bar_on_their_device(tmp_path):
    def score(run):
        if (run.lr, run.seed) == (0.1, 3):
            raise ValueError("no")
        return {"loss": math.nan if (run.lr, run.seed) == (0.01, 0) else run.lr}

    with mock.patch("time.time", itertools.count(1.7e9).__next__):
        execute(tmp_path, GRID, score)
    page = parse(write_report(tmp_path / "e", tmp_path / "page.html"))

    bars = marks(page, "timeline", "bar")
    assert sorted(int(bar.attrib["data-runs"]) for bar in bars) == list(range(8))
    assert [bar.get("data-runs") for bar in bars if "lost" in bar.attrib["class"]] == ["3", "4"]
    assert len(marks(page, "timeline", "cross")) == 2


@pytest.mark.slow
def test_the_page_has_everything_of_the_best_runs_and_numbers_of_all(tmp_path):
    page = page_of(tmp_path, {"lr": [number / 1000 for number in range(310)]}, lambda run: run.lr)

    data = json.loads(by_id(page, "page-data").text or "")
    assert (len(data["views"]), "309" in data["views"], "0" in data["views"]) == (300, True, False)
    assert len(data["scores"]) == 310
    assert 50 < len(marks(page, "curves-0", "run")) <= 100


def test_colors_are_told_apart_by_everybody_and_seen_by_everybody():
    for colors in themes().values():
        for kind in "co":
            palette = [colors[f"{kind}{index}"] for index in range(6)]
            assert min(contrast(color, colors[back]) for color in palette for back in ("card", "paper")) >= 3
            for sight in ("", *SIGHTS):
                assert least_distance(palette, sight, neighbours=kind == "o") >= 10
        for text in ("ink", "soft", "accent", "bad", "warn"):
            assert min(contrast(colors[text], colors[back]) for back in ("card", "paper")) >= 4.5


# Ranges


def score(run):
    return 0.9 * math.exp(-((math.log10(run.lr) + 2) ** 2)) + 0.01 * (run.optimizer == "adam")


@pytest.mark.slow(everywhere=True)
def test_a_sample_says_what_matters_where_the_best_are_and_how_they_rose(tmp_path):
    page = page_of(tmp_path, RunBuilder.sample(SPACE, 60, seed=0), score, epochs=1)

    words = text_of(by_id(page, "matters"))
    assert words.startswith("lr matters most for being among the best quarter by test_accuracy: ")
    assert "differ in one hyperparameter alone" not in text_of(by_id(page, "why"))
    rows = [text_of(row) for row in by_id(page, "changes").iter("th")]
    assert rows == ["lr", *sorted({"dropout", "optimizer"}, key=words.index)]
    lr = by_id(page, "effect-0")
    ticks = [text.text for text in lr.iter("text") if text.get("class") == "tick"]
    assert dots(lr) == 60
    assert {"0.0001", "0.001", "0.01"} <= {*ticks}
    assert len(ticks) < 20
    assert re.match(r"The best 6 of 60 runs have lr 0\.0.* were tried", text_of(by_id(page, "effect-0-words")))
    history = by_id(page, "history")
    (front,) = [path.attrib["d"] for path in history.iter("path") if path.get("class") == "front"]
    heights = numbers(front)[1::2]
    assert heights == sorted(heights, reverse=True)
    assert dots(history) == 60


def test_few_results_of_a_sample_may_be_chance_and_importances_need_optuna(tmp_path):
    runs = [{**run._asdict(), "seed": seed} for run in RunBuilder.sample(SPACE, 20, seed=0) for seed in (0, 1)]
    rows = [{**run, "test_accuracy": 0.5 - abs(run["dropout"] - 0.2)} for run in runs]
    table = load_table(pd.DataFrame(rows), hyperparameters=[*SPACE, "seed"])

    page = parse(write_report(table, tmp_path / "page.html"))
    with mock.patch.dict(sys.modules, optuna=None):
        without = parse(write_report(table, tmp_path / "page.html"))
        with pytest.raises(MissingExtraError, match=r"torch-runmanager\[optuna\]"):
            importances(table)

    assert "of only 20 results, that may be chance." in text_of(by_id(page, "matters"))
    assert text_of(by_id(without, "matters")).startswith("importances needs optuna: pip install")


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(("sign", "hint"), [(1, "upper end: larger"), (-1, "lower end: smaller")])
def test_a_range_that_is_too_narrow_is_named(tmp_path, sign, hint):
    runs = RunBuilder.sample({"lr": LogUniform(1e-5, 1e-1)}, 60, seed=0)
    page = page_of(tmp_path, runs, lambda run: 0.5 + sign * 0.05 * math.log10(run.lr))

    assert text_of(by_id(page, "effect-0-words")).endswith(f"They are at the {hint} values may be better.")


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    "values", [lambda _: 0.5, lambda run: -run.lr, lambda run: 1e300 * (run.lr - 0.01), lambda run: run.lr**0.9]
)
def test_any_scores_of_any_ranges_make_a_page(tmp_path, values):
    space = {
        "lr": LogUniform(1e-300, 1e300), "width": IntRange(1, 10**18), "x": Uniform(-1e308, 1e308),
        "lr2": Uniform(0, 1e-300),
    }  # fmt: skip

    page = page_of(tmp_path, RunBuilder.sample(space, 30, seed=0), values)

    assert by_id(page, "headline") is not None

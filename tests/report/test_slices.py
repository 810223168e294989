import math
import sys

import pytest

from runmanager import IntRange, LogUniform, RunBuilder, Uniform, write_report
from tests.report.reading import by_id, figure, parse, text_of, write_runs

SPACE = {"lr": LogUniform(1e-5, 1e-1), "dropout": Uniform(0, 0.5), "optimizer": ["adam", "sgd"]}


def score(params):
    return 0.9 * math.exp(-((math.log10(params["lr"]) + 2) ** 2)) + 0.01 * (params["optimizer"] == "adam")


def page_of(tmp_path, space=SPACE, n=60, score=score, **options):
    grid = [run._asdict() for run in RunBuilder.sample(space, n, seed=0)]
    return parse(write_report(write_runs(tmp_path / "grid", grid, score, **options), tmp_path / "report.html"))


def names(page):
    return {svg.get("id") for svg in page.iter("svg")}


def dots(element):
    return sum(
        path.get("d").count("h0") for path in element.iter("path") if "dots" in (path.get("class") or "")
    )


def test_a_sample_says_what_matters_by_importance(tmp_path):
    page = page_of(tmp_path)

    words = text_of(by_id(page, "matters"))
    assert words.startswith("lr matters most for being among the best quarter by test_accuracy: ")
    assert "differ in one hyperparameter alone" not in text_of(by_id(page, "why"))
    rows = [text_of(row) for row in by_id(page, "changes").iter("th")]
    assert rows == ["lr", *sorted({"dropout", "optimizer"}, key=words.index)]


@pytest.mark.slow
def test_whole_numbers_of_a_range_are_one_in_many_runs_too(tmp_path):
    space = {**SPACE, "width": IntRange(16, 60)}  # 45 numbers
    page = page_of(tmp_path, space, n=300, score=lambda params: params["width"] / 100 + params["lr"])

    words = text_of(page)
    assert "The best 30 of 300 runs have width 49 to 60; 16 to 60 were tried" in words


def test_few_runs_of_a_sample_may_be_chance(tmp_path):
    words = text_of(by_id(page_of(tmp_path, n=20), "matters"))

    assert words.endswith("of only 20 results, that may be chance.")


def test_without_optuna_the_page_says_what_importances_need(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)

    assert text_of(by_id(page_of(tmp_path), "matters")).startswith("importances needs optuna: pip install")


@pytest.mark.slow
def test_each_range_has_a_slice_with_all_runs_and_an_axis_of_numbers(tmp_path):
    page = page_of(tmp_path)

    lr = figure(page, "effect-0")
    ticks = [text.text for text in lr.iter("text") if text.get("class") == "tick"]
    assert dots(lr) == 60
    assert {"0.0001", "0.001", "0.01"} <= {*ticks}
    assert len(ticks) < 20


def test_a_slice_says_where_the_best_runs_are(tmp_path):
    page = page_of(tmp_path)

    words = text_of(by_id(page, "effect-0-words"))
    assert words.startswith("The best 6 of 60 runs have lr 0.0")
    assert "were tried" in words


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    ("sign", "hint"),
    [
        (1, "They are at the upper end: larger values may be better."),
        (-1, "They are at the lower end: smaller values may be better."),
    ],
)
def test_a_range_that_is_too_narrow_is_named(tmp_path, sign, hint):
    page = page_of(
        tmp_path, {"lr": LogUniform(1e-5, 1e-1)}, score=lambda run: 0.5 + sign * 0.05 * math.log10(run["lr"])
    )

    assert text_of(by_id(page, "effect-0-words")).endswith(hint)


@pytest.mark.slow(everywhere=True)
def test_the_best_so_far_rises_in_the_order_in_which_runs_ended(tmp_path):
    page = page_of(tmp_path)

    history = figure(page, "history")
    (front,) = [path.attrib["d"] for path in history.iter("path") if path.get("class") == "front"]
    heights = [float(number) for number in front.replace("M", "").replace("L", " ").split()[1::2]]
    assert heights == sorted(heights, reverse=True)
    assert dots(history) == 60
    assert "to end." in text_of(by_id(page, "history-words"))


def test_a_plain_grid_has_none_of_it(tmp_path):
    space = {"lr": [0.1, 0.01, 0.001], "dropout": [0, 0.1], "optimizer": ["adam", "sgd"]}

    page = page_of(tmp_path, space, n=12)

    assert "history" not in names(page)
    assert "alone changes" in text_of(by_id(page, "matters"))


@pytest.mark.slow(everywhere=True)
def test_a_sample_with_repeats_is_one_of_its_settings(tmp_path):
    grid = [
        {**run._asdict(), "seed": seed} for run in RunBuilder.sample(SPACE, 20, seed=0) for seed in range(3)
    ]
    page = parse(write_report(write_runs(tmp_path / "grid", grid, score), tmp_path / "report.html"))

    assert "of only 20 results, that may be chance." in text_of(by_id(page, "matters"))


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    "values",
    [
        lambda _: 0.5,
        lambda _: math.nan,
        lambda run: -run["lr"],
        lambda run: 1e300 * (run["lr"] - 0.01),
        lambda run: run["lr"] ** 0.9,
    ],
)
def test_any_scores_make_a_page(tmp_path, values):
    space = {
        "lr": LogUniform(1e-300, 1e300),
        "width": IntRange(1, 10**18),
        "x": Uniform(-1e308, 1e308),
        "lr2": Uniform(0, 1e-300),
    }

    page = page_of(tmp_path, space, n=30, score=values)

    assert by_id(page, "headline") is not None

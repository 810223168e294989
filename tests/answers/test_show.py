import math

import pandas as pd
import pytest

from runmanager import best, compare, effects
from runmanager.answers.show import show
from runmanager.errors import GridError
from runmanager.tables.columns import HYPERPARAMETERS


def runs_of(**columns):
    """Make a table as `load_runs` does, of runs that differ in `lr` and `net`."""
    runs = pd.DataFrame(
        {"run": [1, 2, 3], "status": "completed", "loss": [0.5, 0.25, 0.75], "accuracy": math.nan}
    )
    runs = runs.assign(lr=[0.1, 0.01, 0.1], device="cpu", net=["a", "b", "c"], error="", **columns)
    runs.attrs[HYPERPARAMETERS] = ["lr", "device", "net"]
    return runs


def test_the_best_run_stands_first_and_what_is_the_same_is_left_out():
    view = show(runs_of())

    assert view.table.to_dict(orient="records") == [
        {"run": 2, "lr": 0.01, "net": "b", "loss": 0.25},
        {"run": 1, "lr": 0.1, "net": "a", "loss": 0.5},
        {"run": 3, "lr": 0.1, "net": "c", "loss": 0.75},
    ]
    assert view.caption == "best loss first · the same in all: status=completed, device=cpu"


def test_a_long_table_is_cut_and_says_so():
    view = show(runs_of(), "max:lr", 2)

    assert view.table["run"].tolist() == [1, 3]
    assert view.caption.startswith("2 of 3 rows · best lr first")


def test_a_run_alone_is_shown_whole():
    view = show(runs_of().head(1))

    assert set(view.table) == set(runs_of())


def test_no_runs_are_shown_as_none():
    view = show(runs_of().head(0))

    assert (len(view.table), repr(view)) == (0, "no rows")


def test_a_terminal_gets_four_digits_and_nothing_for_what_is_missing():
    view = show(runs_of(test_accuracy=[0.123456, math.nan, 0.5]))

    lines = [line.split() for line in repr(view).splitlines()]

    assert lines[:4] == [
        ["run", "lr", "net", "test_accuracy", "loss"],
        ["3", "0.1", "c", "0.5000", "0.75"],
        ["1", "0.1", "a", "0.1235", "0.50"],
        ["2", "0.01", "b", "0.25"],
    ]


def test_a_notebook_gets_the_same_as_a_table_in_which_no_text_is_markup():
    runs = runs_of(note=[("<b>", 1), "&", "x" * 100])

    html = show(runs)._repr_html_()

    assert "<b>" not in html
    assert "(&lt;b&gt;, 1)" in html
    assert "x" * 100 in html
    assert html.count("<tr") == 4
    assert html.endswith("<p>best loss first<br>the same in all: status=completed, device=cpu</p>")


def test_pairs_are_shown_in_their_order_with_what_they_come_to():
    runs = runs_of(**{"epoch duration": [1.0, 2.0, 4.0]}).drop(columns="net")
    runs = runs.assign(lr=[0.1, 0.1, 0.1], device=["cuda", "cpu", "mps"])

    view = show(compare(runs))

    first = "the first value with the most results"
    assert view.table.to_dict(orient="records") == [
        {
            "cuda": 1.0,
            "cpu": 2.0,
            "mps": 4.0,
            "cpu vs cuda": 1.0,
            "mps vs cuda": 3.0,
            "cpu / cuda": 2.0,
            "mps / cuda": 4.0,
        }
    ]
    assert view.caption.split(" · ") == [
        f"epoch duration of runs that differ in device only, each against cuda, {first}",
        "cpu / cuda: 2 (geometric mean of 1)",
        "mps / cuda: 4 (geometric mean of 1)",
    ]


def test_the_interval_of_the_mean_ratio_is_shown():
    runs = pd.DataFrame(
        {"seed": [0, 0, 1, 1], "device": ["a", "b"] * 2, "epoch duration": [1.0, 2.0, 1.0, 2.0]}
    )
    runs.attrs[HYPERPARAMETERS] = ["seed", "device"]

    caption = show(compare(runs)).caption

    assert caption.endswith(" · b / a: 2 (geometric mean of 2, 95 % interval 2 to 2)")


def test_a_column_that_is_not_there_is_refused():
    with pytest.raises(GridError, match="these runs have no column 'f1'"):
        show(runs_of(), "f1")


def test_pairs_of_values_named_as_metrics_are_shown_in_their_order():
    runs = runs_of(**{"epoch duration": [2.0, 1.0, 2.0]}).assign(
        lr=[0.1, 0.2, 0.2], net=["accuracy", "loss", "accuracy"]
    )
    runs = pd.concat([runs, runs.head(1).assign(net="loss")])
    runs.attrs[HYPERPARAMETERS] = ["lr", "net"]

    view = show(compare(runs, "net"))

    assert view.table["lr"].tolist() == [0.1, 0.2]
    assert "first" not in view.caption


def test_a_hyperparameter_to_sort_by_is_shown_once():
    view = show(runs_of(), "min:lr")

    assert list(view.table) == ["run", "lr", "net", "loss"]


def test_a_hyperparameter_that_is_called_like_a_computed_column_is_shown_beside_it():
    runs = runs_of(repeats=[1, 2, 3], seed=1).rename(columns={"net": "loss mean"})
    runs.attrs[HYPERPARAMETERS] = ["lr", "repeats", "loss mean", "seed"]

    view = show(runs, repeats="seed")
    averaged = best(runs, repeats="seed").sort_values("loss mean (hyperparameter)")

    assert view.table["repeats (hyperparameter)"].tolist() == [2, 1, 3]
    assert view.table["repeats"].tolist() == [1, 1, 1]
    assert averaged["loss mean (hyperparameter)"].tolist() == ["a", "b", "c"]
    assert averaged["loss mean"].tolist() == [0.5, 0.25, 0.75]


def test_text_that_arrow_cannot_hold_is_shown_with_repeats():
    runs = runs_of(seed=1)
    runs["net"] = pd.Series(["\ud800", "b", "c"], dtype="object")
    runs.attrs[HYPERPARAMETERS] = ["lr", "net", "seed"]

    assert "\\ud800" in repr(show(runs, repeats="seed"))


def test_shares_that_overlap_are_said_to():
    grid = [{"lr": lr, "width": width} for lr in (1, 2, 3) for width in (8, 16)]
    rows = [{**params, "accuracy": params["lr"] / 4 + params["width"] / 100} for params in grid]
    even, uneven = (pd.DataFrame(part) for part in (rows, rows[:4]))
    for runs in (even, uneven, uneven[:3]):
        runs.attrs["hyperparameters"] = ["lr", "width"]

    captions = [show(effects(runs, "accuracy")).caption for runs in (even, uneven, uneven[:3])]

    assert ["the shares overlap" in caption for caption in captions] == [False, False, True]


def test_a_difference_is_named_by_both_values_and_has_its_sign():
    runs = pd.DataFrame({"lr": [0.1, 1.0, 0.01] * 2, "seed": [1, 1, 1, 2, 2, 2]})
    runs["accuracy"] = [0.5, 0.25, 0.75] * 2
    runs.attrs["hyperparameters"] = ["lr", "seed"]

    view = show(compare(runs, "lr", "accuracy"))

    assert {"1 vs 0.1", "0.01 vs 0.1"} <= {*view.table}
    assert "1 vs 0.1: -0.25 (mean of 2 pairs) · 0.01 vs 0.1: +0.25 (mean of 2 pairs)" in view.caption
    assert (
        "accuracy of runs that differ in lr only, each against 0.1, the first value with the most results · "
        "the verdict on lr compares the best value with the others · 1 vs 0.1"
    ) in view.caption
    assert "against" not in show(compare(runs[runs["lr"] < 1], "lr", "accuracy")).caption

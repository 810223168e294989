import io
import sys

import pandas as pd
import pytest

from runmanager import best, compare, effects, load_runs, show
from runmanager.answers.view import View
from runmanager.core.experiment import Design, Experiment
from runmanager.core.outcome import Outcome, Status
from tests.report.reading import parse, write_runs
from tests.screens import Terminal

FAILED = Outcome(Status.FAILED, "ValueError: no <batch> was left", 1)
GRID = [{"lr": lr, "net": net, "seed": s} for lr in (0.1, 0.01) for net in ("a_b", "c") for s in (1, 2, 3)]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "sweep"
    return write_runs(path, GRID, lambda run: run["lr"] + run["seed"] / 100, outcomes={4: FAILED})


@pytest.fixture
def runs(experiment):
    return load_runs(experiment)


@pytest.fixture
def tty(monkeypatch):
    """Make standard output a terminal of a width."""

    class Tty(io.StringIO):
        def isatty(self):
            return True

    def set_width(width):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "stdout", Tty())

    return set_width


@pytest.mark.parametrize("width", [40, 80, 120])
def test_print_fits_the_terminal_and_names_what_it_leaves_out(runs, tty, width):
    tty(width)
    lines = repr(show(runs, repeats=())).split("\n")

    assert max(map(len, lines)) <= width
    assert "not shown: " in " ".join(lines)
    assert "✗ failed" in "\n".join(lines) or width < 80


def test_a_file_gets_lines_as_long_as_they_need_to_be(runs):
    heading, *rows = repr(show(runs, repeats=())).split("\n")

    assert [row.split()[0] for row in rows[:-1]] == [str(run) for run in best(runs, repeats=())["run"]]
    assert FAILED.error in "\n".join(rows)
    assert "\x1b" not in "\n".join(rows)
    assert heading.split()[:4] == ["run", "lr", "net", "seed"]


def test_rich_prints_it_in_colors(runs):
    terminal = Terminal(100)

    terminal.console.print(show(runs, repeats=()))

    assert terminal.style_of("✗ failed") == ("red", False)
    assert terminal.style_of("✓ completed") == ("green", True)


def test_a_notebook_gets_at_most_eight_columns_with_bars_and_errors_on_one_line(runs):
    measured = runs.assign(**{f"metric_{n}": 0.5 + runs["run"] / 100 for n in range(9)})

    html = show(measured, repeats=())._repr_html_()

    assert html.count("<th ") == 8
    assert "linear-gradient" in html
    assert html.count("white-space: nowrap") == 8 * len(runs)
    assert "font-weight: bold" in html
    assert "<script" not in html
    assert "not shown: " in html


def test_each_result_has_a_form_to_read_and_stays_a_data_frame(runs):
    results = {
        "best": best(runs, repeats=()),
        "settings": best(runs),
        "compare": compare(runs, "lr"),
        "effects": effects(runs),
    }
    views = {name: show(result) for name, result in results.items()}

    assert all(isinstance(result, pd.DataFrame) for result in results.values())
    assert list(views["settings"].table)[:4] == ["lr", "net", "test_accuracy n", "test_accuracy mean"]
    assert list(views["effects"].table)[:4] == ["axis", "value", "n", "mean"]
    assert views["compare"].caption.startswith(
        "test_accuracy of runs that differ in lr only · 0.1 vs 0.01: +0.09 (mean of 5"
    )
    assert views["best"].table["run"].tolist() == results["best"]["run"].tolist()


def test_what_tells_no_averages_apart_is_named_below_them():
    runs = pd.DataFrame(
        {
            "run": range(1, 7),
            "lr": [0.1, 0.1, 0.1, 0.2, 0.2, 0.2],
            "device": "cpu",
            "seed": [1, 2, 3, 1, 2, 3],
            "epochs": 5,
            "accuracy": [0.7, 0.75, 0.8, 0.85, 0.9, 0.95],
        }
    )
    runs.attrs["hyperparameters"] = ["lr", "device", "seed"]

    view = show(runs, repeats="seed")

    assert list(view.table) == ["lr", "accuracy", "95 % interval", "repeats"]
    assert view.caption.endswith("the same in all: device=cpu")


def test_the_interval_of_an_accuracy_stays_between_0_and_1():
    runs = pd.DataFrame({"lr": [1, 1, 2, 2], "seed": [0, 1] * 2, "accuracy": [0.8, 0.9, 0.5, 0.5]})
    runs.attrs["hyperparameters"] = ["lr", "seed"]

    assert show(runs, repeats="seed").table["95 % interval"].tolist() == ["0.215 to 1.000", ""]
    assert best(runs)["accuracy high"].iloc[0] > 1  # what is computed stays as it is


def test_settings_are_written_with_mean_and_interval_for_a_text(runs):
    view = show(runs, repeats="seed", n=2)

    markdown, latex = view.to_markdown().split("\n"), view.to_latex().split("\n")
    assert markdown[0] == "| lr | net | test\\_accuracy | 95 % interval | repeats | test\\_loss |"
    assert markdown[1] == "| ---: | --- | ---: | --- | ---: | ---: |"
    assert markdown[2].startswith("| **0.1** | **a\\_b** | **0.12** | **0.0952 to 0.1448** | ")
    assert latex[0] == "\\begin{tabular}{rlrlrr}"
    assert latex[2] == "lr & net & test\\_accuracy & 95 \\% interval & repeats & test\\_loss \\\\"
    assert latex[4].startswith("0.1 & a\\_b & 0.12 & 0.09")
    assert latex[-1] == "\\end{tabular}"


def test_html_is_well_formed(runs, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(f"<html>{show(runs)._repr_html_()}{show(effects(runs))._repr_html_()}</html>", "utf-8")

    assert len(list(parse(page).iter("table"))) == 2


def test_the_first_rows_keep_their_emphasis():
    view = View(pd.DataFrame({"run": [1, 2, 3]}), "", ["run"], ["run"], [1, 2], {}, ["run"], "")

    head = view.head(2)

    assert (head.table["run"].tolist(), head.best) == ([1, 2], [1])


@pytest.mark.parametrize("repeats", [None, "seed"])
def test_a_table_without_rows_is_shown_as_such(runs, repeats):
    view = show(runs.query("lr > 5"), repeats=repeats)

    assert (repr(view), len(view.table)) == ("no rows", 0)
    assert view._repr_html_() == "<p>no rows</p>"
    assert view.to_markdown().count("\n") == 1


def test_what_cannot_be_compared_has_a_form_too(runs):
    alone = runs.head(1)

    assert repr(show(effects(alone))).startswith("no rows · explained: ")
    assert repr(show(effects(alone))).endswith("no hyperparameter varies")
    why = "no two completed runs differ in lr alone and have test_accuracy"
    assert repr(show(compare(alone, "lr"))) == f"no rows · test_accuracy of runs that differ in lr only · {why}"


def test_pairs_that_were_all_left_out_say_why_in_a_notebook(runs):
    failed = runs.assign(status=runs["status"].astype(str).where(runs["lr"] > 0.05, "failed"))

    page = show(compare(failed, "lr"))._repr_html_()

    assert "left out" in page
    assert " failed" in page
    assert "<table" not in page


def test_the_notes_of_experiments_are_below_their_rows(tmp_path):
    for name, note in (("a", "larger <steps>?"), ("b", "smaller steps?"), ("c", "")):
        path = write_runs(tmp_path / name, [{"lr": 0.1}, {"lr": 0.2}], lambda run: run["lr"])
        Experiment(path).decide(Design(note=note))

    one, both = show(load_runs(tmp_path / "a")), show(load_runs(tmp_path))

    assert " · note: larger <steps>? · " in one.caption
    assert "note: larger &lt;steps&gt;?" in one._repr_html_()
    assert " · note of a: larger <steps>? · note of b: smaller steps? · " in both.caption
    assert "note" not in show(load_runs(tmp_path).query("experiment == 'c'")).caption

"""What a terminal, a notebook and a file show of a grid: plan, live rows, lines, panel (docs/results.md)."""

import contextlib
import html
import io
import logging
import math
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from rich.cells import cell_len

from runmanager import LogUniform, OptunaSearch, Uniform, load_run
from tests.border import pages
from tests.border.experiments import Scored, complete, execute, manager_in
from tests.border.recording import SMALL, WIDTHS, file_of, noisy, screens
from tests.border.screens import command, terminal


def small(run):
    return {"loss": run.lr, "val_accuracy": run.lr + 0.01 * run.width, "val_loss": run.lr}


def panel_of(lines):
    begin = next(index for index, line in enumerate(lines) if line.startswith(("━━ ", "== ")))
    return [line for line in lines[begin:] if line]


@pytest.mark.parametrize("width", WIDTHS)
def test_whole_screens_are_as_recorded(width):
    for name, text in screens(width).items():
        assert text == file_of(name, width).read_text(), "if that is meant: python -m tests.border.recording"
        assert name != "grid" or max(map(len, text.splitlines())) <= width


def rows_of(panel):
    """Return the words of each row of the panel's table."""
    return [line.split() for line in panel if re.match(r" +[\d.]+ ", line) and line.endswith(" s")]


# The panel


def test_signs_have_colors_the_answer_is_bold_and_the_rule_of_the_title_dim(own_folder):
    with terminal(80) as screen:
        execute(Path(), {"lr": [0.4, 0.3], "width": [8, 9]}, noisy, display=True)

    assert screen.style_of("Run 3 (lr=0.3 width=8)")[1]
    assert [screen.style_of(text)[0] for text in ("✗ failed:", "✗ diverged:")] == ["red", "red"]
    assert screen.style_of("failed · 1")[0] == "red"
    assert not screen.style_of("━━━")[1]
    with terminal(80) as failing:
        execute(Path("failing"), {"lr": [0.4], "width": [8]}, noisy, display=True)
    assert ["\x1b[32m━━" in each.getvalue() for each in (failing, screen)] == [False, True]  # the bar


@pytest.mark.parametrize(("term", "colors"), [("dumb", False), ("xterm", True)])
def test_a_terminal_without_cursor_gets_lines_without_codes(tmp_path, term, colors):
    with terminal(80, TERM=term) as screen:
        execute(tmp_path, SMALL, small, display=True)

    assert ("\x1b" in screen.getvalue()) == colors
    assert "4 completed" in screen.text


def test_a_terminal_without_cursor_cuts_no_column_that_is_asked_for(tmp_path):
    execute(tmp_path, {"lr": [1]}, lambda _: {f"metric_{number}_loss": 0.4321 for number in range(9)})

    with terminal(60, TERM="dumb", LINES="") as screen:
        command("list", tmp_path / "e", "--all")

    assert screen.getvalue().split().count("0.4321") == 18  # last and best


def text_of(tmp_path, grid, scores=small, **options):
    return panel_of(str(execute(tmp_path, grid, scores, **options).panel).splitlines())


def test_a_file_gets_a_row_of_each_run_with_all_columns(tmp_path, capsys):
    grid = {f"hyperparameter_{number}": [1, 20] for number in range(2)}
    execute(tmp_path, grid, lambda run: {f"metric_{number}_loss": run[0] for number in range(9)}, display=True)

    out = capsys.readouterr().out
    assert "\x1b" not in out
    begin, *rows = [line for line in out.splitlines() if "epoch  " in line or "/4 " in line]
    metrics = [f"metric_{number}_loss" for number in range(9)]
    assert begin.split() == ["run", *grid, "epoch", *metrics, "run", "duration"]
    assert rows[0].split()[:5] == ["✓", "1/4", "1", "1", "1"]
    assert [len(row) for row in rows] == [len(begin)] * 4


@pytest.mark.slow(everywhere=True)
def test_a_file_gets_a_line_about_the_grid_each_minute(tmp_path, capsys, monkeypatch):
    wait = threading.Event.wait
    monkeypatch.setattr(threading.Event, "wait", lambda self, s=None: wait(self, s and s / 600))

    def slow(_):
        time.sleep(0.3)
        return {"loss": 0.5}

    execute(tmp_path, {"lr": [0.1, 0.2]}, slow, display=True)

    lines = [line for line in capsys.readouterr().out.splitlines() if " elapsed" in line]
    assert "0/2 runs · " in lines[0]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("is_live", [True, False])
def test_characters_that_are_two_columns_wide_move_no_column(tmp_path, capsys, is_live):
    with terminal(80) if is_live else contextlib.nullcontext() as screen:
        execute(tmp_path, {"optimizer": ["adam", "漢字漢字"]}, lambda _: {"loss": 0.5}, display=True)

    lines = screen.lines if screen else capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("✓")]
    assert len({cell_len(row[: row.index("0.5000")]) for row in rows}) == 1


def test_of_several_goals_the_table_is_the_pareto_front(tmp_path):
    cost = {8: 0.1, 9: 2.0}
    options = {"scores": lambda run: {"score": run.lr, "cost": run.lr * cost[run.width]}}
    lines = text_of(tmp_path, SMALL, goal=["max:score", "min:cost"], **options)

    assert [row[:3] for row in rows_of(lines)] == [["3", "0.2", "8"], ["1", "0.1", "8"]]
    assert "Pareto front" in " ".join(lines)


def test_a_search_has_one_heading_a_column_for_each_goal_and_says_once_what_matters(tmp_path):
    def scores(run):
        time.sleep(0.01)  # all durations have as many digits
        return {"loss": 0.5, "score": run.lr, "cost": run.width}

    grid, goals = {"lr": LogUniform(1e-4, 1), "width": Uniform(0, 1)}, ["max:score", "min:cost"]
    with terminal(80) as screen:
        execute(tmp_path, grid, scores, search=OptunaSearch(4), goal=goals, display=True)

    rows = [line.split() for line in screen.lines]
    (heading,) = [words for words in rows if {"run", "lr", "epoch"} <= {*words}]
    assert {"score", "cost"} <= {*heading}
    assert [words[:1] for words in rows].count(["matters"]) == 1


@pytest.mark.parametrize("has_log", [True, False])
def test_a_grid_of_failures_has_no_best_run(tmp_path, capsys, has_log):
    logger = logging.getLogger("runmanager")
    logger.propagate = has_log
    try:
        lines = text_of(tmp_path, {**SMALL, "lr": [0.4]}, noisy)
    finally:
        logger.propagate = True

    assert capsys.readouterr().err.count("no run is completed: 2 failed") == 1
    outcome = execute(tmp_path, {**SMALL, "lr": [0.4]}, noisy, display=True)
    out, err = capsys.readouterr()
    assert (outcome.exit_code, out.count("retry_failed=True"), err) == (1, 1, "")  # the panel says it
    assert "2 failed" in lines[0]
    assert not rows_of(lines)
    assert "No run has completed" in lines[1]


@pytest.mark.parametrize("after", [0, 2])
def test_ctrl_c_ends_in_a_panel_that_says_what_is_left(tmp_path, after):
    ended: list[Any] = []

    def scores(run):
        if len(ended) == after:
            raise KeyboardInterrupt
        ended.append(run)
        return small(run)

    outcome = execute(tmp_path, SMALL, scores)

    text = " ".join(str(outcome.panel).split())
    assert (outcome.exit_code, "; 2 completed runs are kept" in text) == (130, bool(after))
    assert re.search(rf"\b{4 - after} (of 4 )?runs are left", text)
    assert f"same command again: run {after + 1} starts over, unless it has its own checkpoint" in text
    assert f"execute this cell again: run {after + 1} starts over" in outcome._repr_html_()
    assert ("so far" in text) == bool(after)


def test_a_metric_of_unknown_direction_is_asked_for(tmp_path):
    for goal, parts in ((None, ("max:kl", "min:kl")), ("min:kl", ("kl 0.1",))):
        line = text_of(tmp_path, SMALL, lambda run: {"kl": run.lr, "entropy": run.width}, goal=goal)[1]
        assert [part for part in parts if part not in line] == []


def test_a_goal_that_the_first_run_lacks_is_named_once(tmp_path, capsys):
    outcome = execute(tmp_path, SMALL, small, goal="max:val_acuracy", display=True)

    named = [line for line in capsys.readouterr().out.splitlines() if "no such metric" in line]
    assert len(outcome.outcomes) == 4
    assert len(named) == 1
    assert "'max:val_acuracy', but run 1 has no such metric; did you mean 'val_accuracy'?" in named[0]


def test_runs_without_a_number_are_counted_and_not_ranked(tmp_path):
    grid = {"lr": [1, 2, 3]}
    lines = text_of(tmp_path, grid, lambda run: {"reward": [0, 1, 2, math.nan][run.lr]}, goal="max:reward")

    assert [row[1] for row in rows_of(lines)] == ["2", "1"]
    assert "2 of 3 runs are ranked" in " ".join(lines)


def test_the_note_is_below_the_title_and_the_panel_names_the_page_and_a_path_that_a_shell_reads(tmp_path):
    root = tmp_path / "my runs"
    outcome = execute(root, SMALL, small, note="does <width> matter?", report=tmp_path / "here.html")
    lines = str(outcome.panel).splitlines()
    own = text_of(root, SMALL, report=True)

    assert lines[1] == "note: does <width> matter?"
    assert "does &lt;width&gt; matter?" in outcome._repr_html_()
    assert f"'{root}/e'" in str(outcome.panel)
    assert f"page    {tmp_path}/here.html" in lines
    assert f"page    {root}/e/report.html" in own
    assert "runmanager report" not in " ".join(own)


def test_a_grid_with_nothing_left_ends_in_the_same_answer(tmp_path):
    first = text_of(tmp_path, SMALL)
    again = Scored(small)

    second = panel_of(str(execute(tmp_path, SMALL, again).panel).splitlines())

    assert again.executed == []
    assert second[1:4] == first[1:4]


def test_values_from_outside_cannot_steer_a_terminal(tmp_path):
    with terminal(80) as screen:
        execute(tmp_path, {"net": ["\x1b[31mred", "x" * 200]}, lambda _: {"loss": 1}, display=True)

    assert "\x1b[31mred" not in screen.getvalue()
    assert "\\x1b[31mred" in screen.text
    assert max(map(len, screen.lines)) <= 80


# A notebook


def test_a_notebook_draws_the_panel_with_bars_and_calls_of_python(tmp_path):
    outcome = execute(tmp_path, {"lr": [0.1, 0.2, 0.4], "width": [8]}, noisy)

    page, seen = html.unescape(outcome._repr_html_()), pages.text_of(pages.parse(outcome._repr_html_()))
    assert re.search(r"e · 2 completed · 1 failed.*next write_report\(.*\) a page: which is best", seen)
    assert (page.count("<code>"), page.count("━")) == (4, 0)
    assert "runmanager show" not in page
    assert "retry_failed=True" in page
    assert "linear-gradient" in page
    call = f'load_run("{tmp_path}/e/3").error'
    assert call in page
    assert "is too much" in str(eval(call, {"load_run": load_run}))  # noqa: S307
    assert "4 pending" in execute(tmp_path, SMALL, small, "other", plan_only=True)._repr_html_()


# While a grid runs


LONG = "validation_accuracy_of_the_second_head_at_the_largest_scale_xyz"


@pytest.mark.slow
def test_a_long_name_of_a_metric_hides_no_number(tmp_path):
    pictures: list[str] = []

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(**{LONG: run.lr})
                end = time.monotonic() + 20
                while run.lr == 0.2 and time.monotonic() < end and "best so far" not in "".join(pictures):
                    pictures[:] = running.lines
                    time.sleep(0.01)

    with terminal(80) as running:
        execute(tmp_path, {"lr": [0.1, 0.2]}, train, goal=f"max:{LONG}", display=True)

    assert re.search(r"best so far +validation_acc\S+ 0\.1000 · run 1", "\n".join(pictures))
    row = next(index for index, line in enumerate(running.lines) if line.startswith("✓ 1/2"))
    begin = next(index for index, line in enumerate(running.lines) if "validation" in line)
    assert row - begin <= 4
    assert "0.1000" in running.lines[row]


def test_a_handler_of_standard_output_does_not_repeat_what_the_screen_shows(own_folder):
    """Hydra configures logging in this way."""
    file = io.StringIO()
    with terminal(80) as screen:
        handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout), logging.StreamHandler(file)]
        logger = logging.getLogger()
        level = logger.level
        logger.setLevel("INFO")
        for handler in handlers:
            logger.addHandler(handler)
        try:
            execute(Path("r"), SMALL, small, display=True)
        finally:
            logger.setLevel(level)
            for handler in handlers:
                logger.removeHandler(handler)

    assert screen.text.count("4 completed") == screen.text.count("4 runs, 4 to execute") == 1
    assert file.getvalue().count("4 completed") == file.getvalue().count("4 runs, 4 to execute") == 1


def test_a_terminal_has_rows_of_ended_runs_and_below_them_the_runs_in_progress(tmp_path):
    pictures = []

    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(2):
                manager.track_loss(run.lr, 1)
                manager.track(val_accuracy=run.lr + epoch)
                end = time.monotonic() + 20
                while (run.lr, epoch) == (0.3, 2) and time.monotonic() < end:  # it is drawn now and then
                    pictures.append(running.lines)
                    if re.search(r"^… .* [12]/2 .*1\.3", "\n".join(pictures[-1]), re.MULTILINE):
                        break
                    time.sleep(0.01)

    with terminal(80) as running:
        execute(tmp_path, {"lr": [0.1, 0.2, 0.3]}, train, display=True)

    rows = pictures[-1]
    text = "\n".join(rows)
    assert re.search(r"^✓ +1/3 +1 +0\.1 .*2\.1", text, re.MULTILINE)
    assert re.search(r"^✓ +2/3 +2 +0\.2 .*2\.2", text, re.MULTILINE)
    assert re.search(r"^… +3 +0\.3 +[12]/2 .*1\.3", text, re.MULTILINE)
    assert re.search(r"best so far.*val_accuracy 2\.2.*lr=0\.2", text)
    assert re.search(r"━.*2/3", rows[-1])
    assert max(map(len, rows)) <= 80
    assert "best so far" not in "\n".join(running.lines)  # only while it runs


def test_every_line_is_logged_and_failures_as_warnings(tmp_path, caplog):
    caplog.set_level("INFO", "runmanager")

    outcome = execute(tmp_path, {"lr": [0.1, 0.4], "width": [8]}, noisy)

    panel = str(outcome.panel).splitlines()
    assert caplog.messages[-len(panel) :] == panel
    levels = {record.levelno for record in caplog.records if record.getMessage().startswith("✗")}
    assert levels == {logging.WARNING}
    assert any(record.levelno == logging.INFO for record in caplog.records)


def test_without_a_display_nothing_is_printed(tmp_path, capsys):
    execute(tmp_path, SMALL, small)
    complete({"lr": 0.1}, manager_in(tmp_path, "bare"))

    assert capsys.readouterr() == ("", "")


def test_a_bare_manager_shows_a_line_per_epoch_and_the_table(tmp_path):
    with terminal(80) as screen:
        complete({"lr": 0.1}, manager_in(tmp_path, "bare", display=True), (1.0, 0.5))

    lines = [line for line in screen.lines if "epoch" in line and "/2" in line]
    assert ["0.5" in line for line in lines] == [False, True]
    rows = [line.split()[:3] for line in screen.lines]
    assert rows[rows.index(["run", "epoch", "loss"]) :][1:3] == [["1", "1", "1"], ["1", "2", "0.5"]]
    assert max(map(len, screen.lines)) <= 80


def test_in_a_narrow_terminal_metrics_are_left_out_and_the_goal_stays(tmp_path):
    def scores(run):
        return {f"further_metric_{number}": 0.5 for number in range(5)} | {"val_accuracy": run.lr}

    with terminal(80) as screen:
        execute(tmp_path, {"alpha": [1], "lr": [0.1, 0.2]}, scores, goal="max:val_accuracy", display=True)

    assert "val_accuracy" in next(line for line in screen.lines if "lr" in line.split())
    assert max(map(len, screen.lines)) <= 80
    assert not [line for line in screen.lines if line.startswith("✓ 1/2") and "…" in line]


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_broken_terminal_harms_no_run(tmp_path, term):
    with terminal(80, TERM=term) as screen:
        screen.write = mock.Mock(side_effect=OSError("the terminal is gone"))  # type: ignore[method-assign]
        outcome = execute(tmp_path, SMALL, small, display=True)

    assert outcome.runs["status"].tolist() == ["completed"] * 4


def test_the_row_of_a_failed_run_has_its_committed_epochs_as_the_tables_have(tmp_path):
    with terminal(120) as screen:
        outcome = execute(tmp_path, {"lr": [0.1]}, fails_in_its_third_epoch, executor="lanes", display=True)

    assert outcome.runs["epochs"].tolist() == [2]
    row = next(line for line in screen.lines if line.startswith("✗ 1/1"))
    assert "2/5" in row.split()


def fails_in_its_third_epoch(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(5):
            for _ in range(3):
                manager.track_loss(run.lr, 1)
            if epoch == 3:
                raise ValueError("no")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_an_old_encoding_cannot_write_is_replaced_by_question_marks(tmp_path, encoding):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")

    with contextlib.redirect_stdout(file):
        execute(tmp_path, {"lr": [0.1]}, lambda run: {"f1": run.lr}, note="naïve …", display=True)

    file.flush()
    text = file.buffer.getvalue().decode(encoding)
    assert ("naïve" in text, "naïve …" in text) == (encoding != "ascii", encoding == "cp1252")
    assert "?" in text


def test_ipython_in_a_terminal_is_no_notebook(tmp_path, capsys):
    shell = SimpleNamespace(config={"TerminalIPythonApp": {}})

    with mock.patch.dict(sys.modules, IPython=SimpleNamespace(get_ipython=lambda: shell)):
        execute(tmp_path, {"lr": [0.1]}, lambda run: {"f1": run.lr}, display=True)

    assert "1 completed" in capsys.readouterr().out

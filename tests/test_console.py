import io
import re
import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from rich.text import Text

from runmanager import console
from runmanager.console import (
    NotebookLines,
    NotebookScreen,
    Screen,
    choose_screen,
    in_notebook,
    print_table,
    wide_console,
)
from runmanager.table import Table
from runmanager.wording import cell, printable

ROW = {
    "run": 1, "epoch": 1, "loss": 0.598666, "accuracy": 0.7812, "epoch duration": 7.504123,
    "run duration": 12.5, "lr": 0.01, "batch_size": 1000, "num_workers": 1, "device": "cuda:0",
}  # fmt: skip


@pytest.fixture
def notebook(monkeypatch):
    """IPython as a notebook's kernel has it; the list of what was displayed and updated."""
    shown: list[tuple[str, int]] = []

    def display(table, *, display_id):
        assert display_id
        shown.append(("display", len(table)))
        return SimpleNamespace(update=lambda table: shown.append(("update", len(table))))

    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return shown


def printed(table, width=200, title=None, *, is_terminal=False):
    file = io.StringIO()
    options: Any = {"highlight": False, "markup": False, "emoji": False, "color_system": None}
    print_table(table, title, Console(file=file, width=width, force_terminal=is_terminal, **options))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_of_a_long_table_the_last_rows_are_shown():
    table = pd.DataFrame({"run": range(1, 51)})

    lines = printed(table)

    assert lines[0] == "(10 earlier rows are in the table, not shown here)"
    assert [line.strip() for line in lines[1:]] == ["run", *map(str, range(11, 51))]


@pytest.mark.parametrize("text", ["[red]a[/red]", "cuda:on:0", "lr=0.01"])
def test_the_console_of_a_grid_prints_what_it_is_given(capsys, text):
    wide_console().print(text)

    assert capsys.readouterr().out == f"{text}\n"


def test_without_a_terminal_lines_are_not_folded_at_its_width(capsys):
    print_table(pd.DataFrame([ROW | {"error": "word " * 50}]))

    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.598666, "0.5987"),
        (9999.4, "9999"),
        (9999.96, "10000"),
        (-12345.6, "-12346"),
        (1e-5, "1e-05"),
        (float("inf"), "inf"),
        (float("nan"), ""),
        (pd.NA, ""),
        (None, "None"),
        (1000000, "1000000"),
        (True, "True"),
        ((0.10, "a"), "(0.1, a)"),
        ("a\nb\x07", r"a\nb\x07"),
    ],
)
def test_a_cell_has_four_digits_and_nothing_for_what_is_missing(value, expected):
    assert cell(value) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("Größe · 1 µs", "Größe · 1 µs"), ("\x9b2J\u202e", r"\x9b2J\u202e")]
)
def test_what_would_steer_a_terminal_is_escaped(text, expected):
    assert printable(text) == expected


def test_a_heading_cannot_steer_the_terminal():
    assert Table(["a\x1b[31m"], [[1.0]]).lines() == [r"a\x1b[31m", "        1"]


def test_rows_may_lack_columns():
    table = Table.of([{"run": 1, "loss": 0.5}, {"run": 2, "error": "x"}])

    assert table.lines() == ["run  loss  error", "  1   0.5", "  2        x"]


def test_a_notebook_draws_a_table_in_which_no_text_is_markup():
    html = Table(["name", "loss"], [["<b>", 0.123456]])._repr_html_()

    assert html.count("<tr>") == 2
    assert re.search(
        '<td style="text-align: left;[^>]*>&lt;b&gt;</td><td style="text-align: right;[^>]*>0.1235<', html
    )


def test_a_terminal_shows_the_table_at_the_end_of_a_run(capsys):
    screen = choose_screen(show=True)

    assert type(screen) is Screen
    screen.epoch_ended(lambda: pd.DataFrame([ROW]), lambda width: f"{width} wide")
    assert capsys.readouterr().out == ""
    screen.run_ended(pd.DataFrame({"run": [1]}))
    assert capsys.readouterr().out == "run\n  1\n"


def test_a_notebook_keeps_one_table_up_to_date(notebook, capsys):
    screen = choose_screen(show=True)

    assert isinstance(screen, NotebookScreen)
    for rows in (1, 2, 3):
        screen.epoch_ended(partial(pd.DataFrame, [ROW] * rows), str)
    screen.run_ended(pd.DataFrame([ROW] * 3))
    assert notebook == [("display", 1), ("update", 2), ("update", 3)]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("modules", ["plain Python", "IPython in a terminal", "IPython not in use"])
def test_only_a_kernel_is_a_notebook(monkeypatch, modules):
    shells = {"IPython in a terminal": SimpleNamespace(config={"TerminalIPythonApp": {}})}
    found = None if modules == "plain Python" else SimpleNamespace(get_ipython=lambda: shells.get(modules))
    monkeypatch.setitem(sys.modules, "IPython", found)

    assert not in_notebook()


class Tty(io.StringIO):
    """A terminal, of which what was written is known."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Screens are shown in a terminal of 40 columns."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    file = Tty()
    monkeypatch.setattr(console, "wide_console", lambda: Console(file=file, highlight=False, markup=False))
    return file


class Picture:
    """A picture of one line."""

    def __rich_console__(self, console, options):
        yield Text.assemble(("picture ", "green"), f"{options.max_width} wide")

    def __repr__(self):
        return "picture 110 wide"

    def _repr_html_(self):
        return "<b>picture</b>"


PICTURE = Picture()


def test_a_terminal_keeps_a_picture_below_its_lines(terminal):
    screen = choose_screen(show=True)
    assert screen.is_live

    screen.show_below(PICTURE)
    screen.print(["✓ one", "two"])
    screen.show_below(PICTURE)
    screen.show_below(None)

    written = terminal.getvalue()
    assert written.count("picture") >= 3
    assert written.index("one") < written.index("two") < written.rindex("picture")
    assert "40 wide" in written
    assert "\x1b[32m" in written
    assert written.endswith("\x1b[2K")  # the picture is gone at the end
    assert "\x1b[?25h" in written  # and the cursor is back


def test_a_terminal_shows_a_line_in_its_width_after_an_epoch(terminal):
    screen = choose_screen(show=True)

    screen.epoch_ended(partial(pd.DataFrame, [ROW]), lambda width: f"{width} wide")
    choose_screen(show=False).epoch_ended(partial(pd.DataFrame, [ROW]), str)

    assert terminal.getvalue() == "40 wide\n"


def test_a_terminal_breaks_lines_between_words(terminal):
    choose_screen(show=True).print(["word " * 9, "x" * 50])

    assert terminal.getvalue().splitlines() == [
        "word word word word word word word word",
        "    word",
        "x" * 50,
    ]


@pytest.mark.parametrize("forced", [False, True])
def test_a_file_gets_lines_as_they_are_and_no_picture(capsys, monkeypatch, forced):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    if forced:
        monkeypatch.setenv("FORCE_COLOR", "1")
    screen = choose_screen(show=True)

    screen.show_below(PICTURE)
    screen.show_below(PICTURE)
    screen.print(["a" * 50 if forced else "a" * 500, "[bold] :cat:"])
    screen.show_below(None)

    assert not screen.is_live
    assert capsys.readouterr().out == f"{'a' * (50 if forced else 500)}\n[bold] :cat:\n"


@pytest.mark.parametrize(
    ("encoding", "lines"),
    [
        ("ascii", ["v na?ve - 1 ~", "x 2", "setting", "~"]),
        ("latin-1", ["v naïve · 1", "x 2", "setting", "~"]),
        ("cp1252", ["v naïve · 1 …", "x 2", "setting", "…"]),
    ],
)
def test_what_an_old_encoding_cannot_write_is_replaced_by_letters(monkeypatch, encoding, lines):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    monkeypatch.setattr(sys, "stdout", file)

    choose_screen(show=True).print([f"✓ naïve · 1{' …' if encoding != 'latin-1' else ''}", "✗ 2"])
    print_table([{"setting": "…"}])

    file.flush()
    assert [line.strip() for line in file.buffer.getvalue().decode(encoding).splitlines()] == lines


def test_a_disk_that_is_full_ends_nothing():
    class Full(io.StringIO):
        def write(self, _text):
            raise OSError(28, "No space left on device")

    screen = Screen(Console(file=Full()))

    screen.print(["one"])
    screen.print(["two"])


@pytest.fixture
def cell_output(monkeypatch):
    """The places below a notebook's cell, by what they show now."""
    places: list[str] = []

    def display(content, *, display_id):
        assert display_id
        assert threading.current_thread() is threading.main_thread()
        number = len(places)
        places.append(repr(content))
        return SimpleNamespace(update=lambda content: places.__setitem__(number, repr(content)))

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return places


def test_a_notebook_keeps_lines_and_a_picture_below_them(cell_output):
    screen = NotebookScreen(Console(quiet=True))

    screen.show_below(PICTURE)
    screen.print(["one"])
    screen.print(["two"])
    begun = cell_output.copy()
    screen.show_below(None)
    screen.print(["three"])

    assert begun == ["one\ntwo", "picture 110 wide"]
    assert cell_output == ["one\ntwo\nthree", ""]


def test_a_notebook_keeps_the_last_lines(cell_output):
    screen = NotebookScreen(Console(quiet=True))

    screen.print([str(number) for number in range(1001)])

    assert cell_output[0].splitlines()[:2] == ["(1 earlier lines are not shown here)", "1"]
    assert cell_output[0].endswith("\n1000")


def test_a_notebook_colors_the_signs_of_lines_in_which_nothing_is_markup():
    html = NotebookLines(["exp: 2 runs", "! 1 <b> stopped"])._repr_html_()

    assert "exp: 2 runs\n" in html
    assert ">!</span> 1 &lt;b&gt; stopped</pre>" in html


def test_a_notebook_displays_the_panel_below_all_others(cell_output):
    screen = NotebookScreen(Console(quiet=True))

    screen.show_below(PICTURE)
    screen.print(["one"])
    screen.conclude("the panel")

    assert cell_output == ["one", "picture 110 wide", "'the panel'"]

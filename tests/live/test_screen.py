import io
import sys
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from runmanager.console import plain_table
from runmanager.live import screen
from runmanager.live.screen import NotebookScreen, Part, Screen, TerminalScreen, choose_screen


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
    monkeypatch.setattr(screen, "wide_console", lambda: Console(file=file, highlight=False, markup=False))
    return file


def draw(width, height):
    return [[Part("picture ", "green"), Part(f"{width} wide")]]


def test_a_terminal_keeps_a_picture_below_its_lines(terminal):
    screen = choose_screen(show=True)
    assert isinstance(screen, TerminalScreen)
    assert screen.is_live

    screen.begin(draw)
    screen.print(["✓ one", "two"])
    screen.refresh()
    screen.end()

    written = terminal.getvalue()
    assert written.count("picture") >= 3
    assert written.index("one") < written.index("two") < written.rindex("picture")
    assert "40 wide" in written
    assert "\x1b[32m" in written
    assert written.endswith("\x1b[2K")  # the picture is gone at the end
    assert "\x1b[?25h" in written  # and the cursor is back


def test_no_color_takes_the_colours_and_leaves_the_picture(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    screen = choose_screen(show=True)

    screen.begin(draw)
    screen.end()

    assert "picture 40 wide" in terminal.getvalue()
    assert "\x1b[32m" not in terminal.getvalue()


def test_a_dumb_terminal_gets_lines_and_no_codes(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    screen = choose_screen(show=True)

    screen.begin(draw)
    screen.print(["✗ one"])
    screen.refresh()
    screen.end()

    assert not screen.is_live
    assert terminal.getvalue() == "✗ one\n"


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

    screen.begin(draw)
    screen.refresh()
    screen.print(["a" * 50 if forced else "a" * 500, "[bold] :cat:"])
    screen.end()

    assert not screen.is_live
    assert capsys.readouterr().out == f"{'a' * (50 if forced else 500)}\n[bold] :cat:\n"


def test_a_screen_that_is_not_wanted_stays_empty(capsys):
    screen = choose_screen(show=False)

    screen.begin(draw)
    screen.print(["hello"])
    screen.print_table(plain_table("title"))
    screen.end()

    assert capsys.readouterr().out == ""


def test_what_an_old_encoding_cannot_write_ends_nothing():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\n")
    screen = Screen(Console(file=file))

    screen.print(["✓ naïve"])

    assert file.buffer.getvalue() == b"? na?ve\n"


def test_a_disk_that_is_full_ends_nothing():
    class Full(io.StringIO):
        def write(self, _text):
            raise OSError(28, "No space left on device")

    screen = Screen(Console(file=Full()))

    screen.print(["one"])
    screen.print(["two"])


def test_a_table_in_a_file_is_as_wide_as_it_needs_to_be(capsys):
    table = plain_table()
    table.add_column("what")
    table.add_row("x " * 300 + "end")

    choose_screen(show=True).print_table(table)

    heading, row = capsys.readouterr().out.splitlines()
    assert (heading, row) == ("what", "x " * 300 + "end")


@pytest.fixture
def notebook(monkeypatch):
    """IPython as a notebook's kernel has it; the places below the cell, by what they show now."""
    places: list[str] = []

    def display(content, *, display_id):
        assert display_id
        assert threading.current_thread() is threading.main_thread()
        number = len(places)
        places.append(repr(content))
        return SimpleNamespace(update=lambda content: places.__setitem__(number, repr(content)))

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return places


def test_a_notebook_keeps_lines_and_a_picture_below_them(notebook):
    screen = NotebookScreen(Console(quiet=True))

    screen.begin(draw)
    screen.print(["one"])
    screen.print(["two"])
    begun = notebook.copy()
    screen.end()
    screen.print(["three"])
    screen.refresh()

    assert begun == ["one\ntwo", "picture 110 wide"]
    assert notebook == ["one\ntwo\nthree", ""]


def test_a_notebook_keeps_the_last_lines(notebook):
    screen = NotebookScreen(Console(quiet=True))

    screen.print([str(number) for number in range(1001)])

    assert notebook[0].splitlines()[:2] == ["(1 earlier lines are not shown here)", "1"]
    assert notebook[0].endswith("\n1000")

"""The command line and the screens of a terminal, as a user has them."""

import contextlib
import io
import os
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pyte


class Terminal(io.StringIO):
    """What a program takes for a terminal of a width; `lines` are those on its screen."""

    encoding = "utf-8"

    def __init__(self, width: int = 80) -> None:
        super().__init__()
        self.width = width

    def isatty(self) -> bool:
        """Be a terminal."""
        return True

    @property
    def lines(self) -> list[str]:
        """The lines of the screen, without the empty ones at its end."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip("\n").split("\n")

    @property
    def text(self) -> str:
        """All words of the screen in one line."""
        return " ".join(" ".join(self.lines).split())

    @property
    def screen(self) -> pyte.Screen:
        """The screen after all that was written."""
        screen = pyte.Screen(self.width, 400)
        pyte.Stream(screen).feed(self.getvalue().replace("\n", "\r\n"))
        return screen

    def style_of(self, text: str) -> tuple[str, bool]:
        """Return the color of the first character of a text, and whether it is bold."""
        row, line = next((row, line) for row, line in enumerate(self.lines) if text in line)
        character = self.screen.buffer[row][line.index(text)]
        return character.fg, character.bold


@contextlib.contextmanager
def terminal(width: int = 80, **environment: str) -> Iterator[Terminal]:
    """Let standard output be a terminal of a width."""
    file = Terminal(width)
    usual = {"TERM": "xterm-256color", "COLUMNS": str(width), "LINES": "50", **environment}
    kept = {name: os.environ[name] for name in os.environ if name not in ("NO_COLOR", "FORCE_COLOR")}
    with mock.patch.dict(os.environ, {**kept, **usual}, clear=True), contextlib.redirect_stdout(file):
        yield file


@dataclass
class Answer:
    """What a command has returned and written."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line of standard output."""
        return [line.split() for line in self.out.splitlines()]

    @property
    def words(self) -> str:
        """All that was written, as one line without frames."""
        return " ".join((self.out + " " + self.err).replace("│", " ").split())


def command(*words: Any, answer: str = "") -> Answer:
    """Call `python -m runmanager` in this process.

    Args:
        words: Its arguments.
        answer: What is typed.
    """
    out = sys.stdout if isinstance(sys.stdout, Terminal) else io.StringIO()
    err, code = io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["runmanager", *map(str, words)]),
        mock.patch.object(sys, "stdin", io.StringIO(answer)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            runpy.run_module("runmanager", run_name="__main__")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Answer(code, out.getvalue(), err.getvalue())

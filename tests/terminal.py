"""What a terminal shows of a program: its output in a pseudo-terminal, drawn as a terminal draws it."""

import os
import re
import signal
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.warm import Warm

_PARTS = re.compile(
    r"\x1b\[(?P<numbers>[?\d;]*)(?P<what>[A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\r\n]|.", re.DOTALL
)
_TIMEOUT_S = 120


class Screen:
    """The lines of a terminal that is high enough for all of them; each character with its colors."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: list[list[tuple[str, str]]] = [[]]
        self._row = self._column = 0
        self._style = ""

    @property
    def lines(self) -> list[str]:
        """The lines as text."""
        return ["".join(character for character, _ in row).rstrip() for row in self._rows]

    def style_of(self, text: str) -> str:
        """Return how the first character of a text that is shown is drawn, as in "1;32"."""
        row = next(row for row, line in zip(self._rows, self.lines, strict=True) if text in line)
        return row["".join(character for character, _ in row).index(text)][1]

    def feed(self, content: str) -> None:
        """Draw what a program has written."""
        for part in _PARTS.finditer(content):
            if part["what"]:
                self._steer(part["what"], part["numbers"])
            elif part[0] == "\r":
                self._column = 0
            elif part[0] == "\n":
                self._down()
            elif not part[0].startswith("\x1b"):
                self._draw(part[0])

    def _steer(self, what: str, numbers: str) -> None:
        number = int(numbers) if numbers.isdecimal() else 1
        if what == "m":
            self._style = "" if numbers in ("", "0") else numbers
        elif what == "A":
            self._row = max(self._row - number, 0)
        elif what == "K":
            self._rows[self._row] = [] if numbers == "2" else self._rows[self._row][: self._column]

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])

    def _draw(self, character: str) -> None:
        if self._column == self.width:
            self._column = 0
            self._down()
        row = self._rows[self._row]
        row += [(" ", "")] * (self._column + 1 - len(row))
        row[self._column] = (character, self._style)
        self._column += 1


def screen_of(
    warm: Warm,
    program: Path,
    *,
    width: int = 80,
    environment: Mapping[str, str] | None = None,
    interrupt_when: Callable[[Sequence[str]], bool] = lambda _: False,
) -> Screen:
    """Execute a program in a terminal, and return what that shows at the end.

    Args:
        warm: What executes it.
        program: Its file.
        width: Columns of the terminal.
        environment: Variables to set or, if empty, to remove; TERM is one of many colors otherwise.
        interrupt_when: Looks at the lines; Ctrl-C is pressed once it returns True.
    """
    import fcntl
    import pty
    import termios

    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    removed = dict.fromkeys(("NO_COLOR", "COLUMNS", "LINES"))
    variables = {**removed, "TERM": "xterm-256color", **(environment or {})}
    screen, written = Screen(width), b""
    process = warm.begin(program, terminal=other, environment=variables)
    os.close(other)
    end, is_interrupted = time.monotonic() + _TIMEOUT_S, False
    while time.monotonic() < end:
        try:
            piece = os.read(main, 1 << 16)
        except OSError:  # the last one who could write has gone
            break
        if not piece:
            break
        written += piece
        if not is_interrupted:
            so_far = Screen(width)
            so_far.feed(written.decode("utf-8", "replace"))
            is_interrupted = interrupt_when(so_far.lines)
            if is_interrupted:
                os.kill(process, signal.SIGINT)
    else:
        os.kill(process, signal.SIGKILL)
    warm.wait()
    os.close(main)
    screen.feed(written.decode("utf-8", "replace"))
    return screen

"""Where a grid is shown: lines, and, where that is possible, a picture below them that changes in place."""

import contextlib
import html
import io
import textwrap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from runmanager.console import InPlace, in_notebook, wide_console

_MOST = 1000  # lines that a notebook keeps
_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT = 110, 100
_MARKS = {"✓": "green", "✗": "red", "!": "yellow"}


class Part(NamedTuple):
    """A part of a line: text in a style of rich's."""

    text: str
    style: str = ""


Draw = Callable[[int, int], Sequence[Sequence[Part]]]
"""Draws a picture, line by line, in a width and a height."""


class Screen:
    """Shows lines and no picture: a file, a pipe, a terminal whose cursor cannot be moved.

    Methods may be called in any thread, those of a live screen in one at a time.

    Attributes:
        is_live: Whether a picture is shown.
    """

    is_live = False

    def __init__(self, console: Console) -> None:
        self._console = console

    def print(self, lines: Sequence[str]) -> None:
        """Print lines; a terminal breaks long ones between words."""
        if self._console.is_terminal:
            folded = textwrap.TextWrapper(
                self._console.width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
            )
            lines = [part for line in lines for part in folded.wrap(line) or [""]]
        with self._unharmed():  # at once, as the picture below is drawn again
            self._console.print(Text("\n").join(map(self._colored, lines)), soft_wrap=True)

    def print_table(self, table: Table) -> None:
        """Print a table; it is as wide as it needs to be if this is no terminal."""
        width = self._console.width if self._console.is_terminal else 10_000
        drawn = Console(
            file=io.StringIO(), width=width, color_system=None, highlight=False, force_jupyter=False
        )
        drawn.print(table)
        assert isinstance(drawn.file, io.StringIO)
        self.print([line.rstrip() for line in drawn.file.getvalue().splitlines()])

    def begin(self, draw: Draw) -> None:
        """Begin to show a picture."""

    def refresh(self) -> None:
        """Draw the picture anew."""

    def end(self) -> None:
        """Take the picture away."""

    def _colored(self, line: str) -> Text:
        shown = Text(self._encodable(line))
        shown.stylize(_MARKS.get(line[:1], ""), 0, 1)
        return shown

    def _encodable(self, line: str) -> str:
        encoding = self._console.encoding
        return line.encode(encoding, "replace").decode(encoding)

    @contextlib.contextmanager
    def _unharmed(self) -> Iterator[None]:
        """Go on without a screen if it is gone, or the disk it was sent to is full: training matters more."""
        try:
            yield
        except OSError:
            self._console.quiet = True


class TerminalScreen(Screen):
    """Keeps a picture below the lines of a terminal."""

    is_live = True
    _live: Live | None = None

    def begin(self, draw: Draw) -> None:
        """Begin to show a picture."""
        picture = _Picture(draw, self._encodable)
        self._live = Live(
            get_renderable=lambda: picture, console=self._console, auto_refresh=False, transient=True
        )
        with self._unharmed():
            self._live.start(refresh=True)

    def refresh(self) -> None:
        """Draw the picture anew."""
        if self._live:
            with self._unharmed():
                self._live.refresh()

    def end(self) -> None:
        """Take the picture away."""
        if self._live:
            with self._unharmed():
                self._live.stop()
            self._live = None


class NotebookScreen(Screen):
    """Keeps lines and a picture up to date below a notebook's cell; rich's own way needs ipywidgets."""

    is_live = True
    _draw: Draw | None = None

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._lines: deque[str] = deque(maxlen=_MOST)
        self._num_lines = 0
        self._log, self._picture = InPlace(), InPlace()

    def print(self, lines: Sequence[str]) -> None:
        """Print lines above the picture."""
        self._lines += lines
        self._num_lines += len(lines)
        left_out = self._num_lines - len(self._lines)
        head = [f"({left_out} earlier lines are not shown here)"] if left_out else []
        self._log.show(_Preformatted([*head, *self._lines]))

    def begin(self, draw: Draw) -> None:
        """Begin to show a picture."""
        self._draw = draw
        self.print([])  # has its place above
        self.refresh()

    def refresh(self) -> None:
        """Draw the picture anew."""
        if self._draw:
            drawn = self._draw(_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT)
            self._picture.show(_Preformatted(["".join(part.text for part in line).rstrip() for line in drawn]))

    def end(self) -> None:
        """Take the picture away."""
        if self._draw:
            self._draw = None
            self._picture.show(_Preformatted([]))


def choose_screen(*, show: bool) -> Screen:
    """Return what can be done where the user looks; it shows nothing if that is wanted."""
    console = wide_console()
    console.quiet = not show
    if not show:
        return Screen(console)
    if in_notebook():
        return NotebookScreen(console)
    # FORCE_COLOR makes a terminal of a file for rich: colours are wanted there, a moving cursor is not
    return TerminalScreen(console) if console.is_interactive and console.file.isatty() else Screen(console)


class _Picture:
    """Draws a picture when rich asks for it."""

    def __init__(self, draw: Draw, encodable: Callable[[str], str]) -> None:
        self._draw = draw
        self._encodable = encodable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self._draw(options.max_width, console.height):
            for part in line:
                yield Segment(self._encodable(part.text), console.get_style(part.style))
            yield Segment.line()


class _Preformatted:
    """Lines as a notebook shows them."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._text = "\n".join(lines)

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text)}</pre>" if self._text else ""

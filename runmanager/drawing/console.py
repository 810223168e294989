"""The output of tables and lines to a terminal, a notebook or a file."""

import contextlib
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from runmanager.drawing.table import ENDLESS, Table, sign_color, signed, wrapped

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 40  # maximum number of printed rows of a table
_MOST_LINES = 1000  # maximum number of lines that a notebook shows
_NOTEBOOK_WIDTH = 110  # characters in a line of a notebook
_NOTEBOOK_HEIGHT = 100
_PLAIN = str.maketrans("✓✗–—·…━╌×±≥≤", "vx---~=.x~><")  # noqa: RUF001 - ASCII replacements
_INDENT = "    "
_LINES_STYLE = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; font-family: monospace"

Drawing = Callable[[int, int], list[Text]]
"""Returns the lines that fit a width and a height."""


def print_table(rows: "pd.DataFrame | Sequence[Mapping[str, Any]]", console: Console | None = None) -> None:
    """Print the last rows of a table."""
    console = console or wide_console()
    left_out = max(len(rows) - _MOST_ROWS, 0)
    if left_out:
        console.print(f"({left_out} earlier rows are in the table, not shown here)")
    if names := print_fitted(Table.of(rows[left_out:]), console):
        console.print(f"(not shown: {', '.join(names)})", style="dim", soft_wrap=True)


def print_fitted(table: Table, console: Console | None = None, *, everything: bool = False) -> list[str]:
    """Print the columns of a table that fit the terminal, or `everything`; return the names of the others."""
    console = console or wide_console()
    lines, names = table.fitted(console.width, everything=everything)
    console.print(Text("\n").join(lines), soft_wrap=True)
    return names


class Screen:
    """Shows lines and tables; a live screen also updates content below the lines in place.

    If the terminal is gone or the disk is full, output stops and training continues. Methods may be called in
    any thread; methods of a live screen only in one thread at a time.

    Attributes:
        is_live: Whether `show_below` shows anything.
    """

    def __init__(self, console: Console, *, is_live: bool = False) -> None:
        self.is_live = is_live
        self._console = console
        self._live: Live | None = None
        self._below: Drawing = lambda *_: []

    @property
    def width(self) -> int:
        """The width of a line in characters; practically unlimited for a file."""
        return self._console.width

    @property
    def is_shown(self) -> bool:
        """Whether the screen shows anything at all."""
        return not self._console.quiet

    def print(self, lines: Sequence[str]) -> None:
        """Print lines; in a terminal, long lines are wrapped between words."""
        if self.width < ENDLESS:
            lines = [part for line in lines for part in wrapped(line, self.width, "", _INDENT)]
        with self._unharmed():  # one call for all lines, as each call redraws the content below
            self._console.print(Text("\n").join(map(colored, lines)), soft_wrap=True)

    def conclude(self, panel: Any) -> int | None:
        """Print the final panel, which rich can render; return the cell of a notebook that shows it."""
        with self._unharmed():
            self._console.print(panel, soft_wrap=True)
        return None

    def epoch_ended(self, results: "Callable[[], pd.DataFrame]", line: Callable[[int], str]) -> None:
        """Show an epoch: a notebook replaces its table of results, a terminal prints a line."""
        # with FORCE_COLOR, rich treats a file as a terminal
        if self.is_shown and _is_terminal(self._console.file):
            self.print([line(self.width)])

    def run_ended(self, results: "pd.DataFrame") -> None:
        """Print the table of results after a run."""
        with self._unharmed():
            print_table(results, console=self._console)

    def show_start(self, line: str) -> None:
        """Show a line until other content is shown below; the line is not written to a file."""
        if self.is_live:
            self.show_below(lambda *_: [Text(line)])
        elif _is_terminal(self._console.file):
            self.print([line])

    def show_below(self, content: Drawing | None) -> None:
        """Replace the content below the lines; None removes it."""
        with self._unharmed():
            if content is None:
                live, self._live = self._live, None
                if live:
                    live.stop()
                return
            self._below = content
            if self._live:
                self._live.refresh()
            elif self.is_live:
                self._live = Live(self, console=self._console, auto_refresh=False, transient=True)
                self._live.start(refresh=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self._below(options.max_width, console.height):
            line.truncate(options.max_width, overflow="ellipsis")
            yield from line.render(console, end="\n")  # render without wrapping, which is slow

    @contextlib.contextmanager
    def _unharmed(self) -> Iterator[None]:
        try:
            yield
        except (OSError, IndexError):  # the IndexError of rich at the end of a `Live` whose begin failed
            self._console.quiet = True


class NotebookScreen(Screen):
    """Updates the output of a notebook's cell in place, without the ipywidgets that rich needs."""

    width = _NOTEBOOK_WIDTH

    def __init__(self, console: Console) -> None:
        super().__init__(console, is_live=True)
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._handles: dict[str, Any] = {}

    def print(self, lines: Sequence[str]) -> None:
        """Print lines above the live content."""
        self._lines += lines
        head = ["(earlier lines are not shown here)"] if len(self._lines) == _MOST_LINES else []
        self._show("above", NotebookLines([*head, *self._lines]))

    def conclude(self, panel: Any) -> int | None:
        """Display the final panel."""
        self._show("panel", panel)
        return cell_number()

    def epoch_ended(self, results: "Callable[[], pd.DataFrame]", line: Callable[[int], str]) -> None:
        """Replace the table of results."""
        self._show("below", results())

    def run_ended(self, results: "pd.DataFrame") -> None:
        """Do nothing, as the table of the last epoch stays visible."""

    def show_below(self, content: Drawing | None) -> None:
        """Replace the content below the lines; None removes it."""
        if "below" not in self._handles:
            self.print([])  # display the lines before the content
        lines = content(_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT) if content else []
        self._show("below", NotebookLines([line.plain.rstrip() for line in lines]))

    def _show(self, part: str, content: Any) -> None:
        """Display a part of the cell's output, or replace it."""
        from IPython.display import display

        if part in self._handles:
            self._handles[part].update(content)
        else:
            self._handles[part] = display(content, display_id=True)


class NotebookLines:
    """Lines for a notebook, with their leading signs in color."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    def __repr__(self) -> str:
        return "\n".join(self._lines)

    def _repr_html_(self) -> str:
        content = "\n".join(signed(line[:1], line[:1]) + signed(line[1:], "") for line in self._lines)
        return f'<pre style="{_LINES_STYLE}">{content}</pre>' if content else ""


def colored(line: str) -> Text:
    """Return a line as text, with its leading sign in color."""
    content = Text(line)
    content.stylize(sign_color(line[:1]), 0, 1)
    return content


def choose_screen(*, show: bool) -> Screen:
    """Return the screen for the terminal, notebook or file of the user; with `show=False`, a silent screen."""
    console = wide_console()
    console.quiet = not show
    if show and in_notebook():
        return NotebookScreen(console)
    # with FORCE_COLOR, rich treats a file as a terminal: the file gets colors, but no cursor movements
    return Screen(console, is_live=show and console.is_interactive and _is_terminal(console.file))


def _is_terminal(file: Any) -> bool:
    """Whether a stream is a terminal; a stream of the user's may lack the method."""
    return bool(getattr(file, "isatty", bool)())


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel; never imports IPython."""
    shell = _shell()
    return shell is not None and "IPKernelApp" in shell.config


def cell_number() -> int | None:
    """Return the number of the cell that a notebook executes; None outside IPython."""
    return getattr(_shell(), "execution_count", None)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython and hasattr(ipython, "get_ipython") else None


def wide_console() -> Console:
    """Return a console on standard output; without a terminal, lines are not wrapped."""
    console = _PlainConsole(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = ENDLESS
    elif console.is_dumb_terminal:
        console.size = shutil.get_terminal_size()  # without this size, rich assumes 80 columns
    return console


class _PlainConsole(Console):
    """A console for a file that may be closed, or whose encoding may lack symbols."""

    @property  # type: ignore[misc]
    def file(self) -> IO[str]:
        """The file; during a run in this process, the one beneath its output.log."""
        file: IO[str] = getattr(sys.stdout, "beneath", None) or super().file
        return file

    def on_broken_pipe(self) -> None:
        """Let the error reach the caller, instead of ending the process with exit code 1."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render text, with replacements for symbols that the encoding of the file lacks."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=encodable(segment.text, self.encoding))


def for_output(content: str) -> str:
    """Return a text that `print` can write to standard output, whatever its encoding."""
    return encodable(content, getattr(sys.stdout, "encoding", None) or "utf-8")


def encodable(content: str, encoding: str) -> str:
    """Replace characters that an encoding lacks; the project's symbols keep their width.

    >>> encodable("✓ 1/2 · lr=0.1 …", "ascii")
    'v 1/2 - lr=0.1 ~'
    """
    with contextlib.suppress(UnicodeEncodeError):
        content.encode(encoding)
        return content
    return content.translate(_PLAIN).encode(encoding, "replace").decode(encoding)

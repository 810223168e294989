"""The output of tables and lines to a terminal, a notebook or a file."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from runmanager.core.wording import counted
from runmanager.drawing.table import ENDLESS, Table, sign_color, signed, wrapped

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 40  # maximum number of printed rows of a table
_MOST_LINES = 1000  # maximum number of lines that a notebook shows
_NOTEBOOK_HEIGHT = 100  # lines below the printed ones
INDENT = "    "
_STYLE = "font-family: monospace; white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"


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
    """

    def __init__(self, console: Console, *, is_live: bool = False) -> None:
        self.is_live, self._console = is_live, console
        self._live: Live | None = None

    @property
    def width(self) -> int:
        """The width of a line in characters; practically unlimited for a file."""
        return self._console.width

    def print(self, lines: Sequence[str]) -> None:
        """Print lines, wrapped between words."""
        lines = [part for line in lines for part in wrapped(line, self.width, "", INDENT)]
        self._print(Text("\n").join(map(colored, lines)))  # one call, as each call redraws the content below

    def conclude(self, panel: Any) -> int | None:
        """Print the final panel, which rich can render; return the notebook cell that shows it, or 0."""
        self._print(panel)
        return 0

    def epoch_ended(self, results: "Callable[[], pd.DataFrame]", line: Callable[[int], str]) -> None:
        """Show an epoch: a notebook replaces its table of results, a terminal prints a line."""
        if self.width < ENDLESS:
            self.print([line(self.width)])

    def run_ended(self, results: "pd.DataFrame") -> None:
        """Print the last rows of the table of results after a run."""
        if len(results) > _MOST_ROWS:
            self._print(f"(the last {_MOST_ROWS} of {len(results):,} rows)")
        with self._unharmed():
            if names := print_fitted(Table.of(results[-_MOST_ROWS:]), self._console):
                self._print(f"(not shown: {', '.join(names)})")

    def show_below(self, content: Callable[[int, int], list[Text]] | None) -> None:
        """Replace the content below the lines, drawn for a width and a height; None removes it."""
        live = self._live
        with self._unharmed():
            if content is None:
                self._live = None
                if live:
                    live.stop()
            elif self.is_live:
                if live is None:
                    live = self._live = Live(console=self._console, auto_refresh=False, transient=True)
                    live.start()
                # text without wrapping is drawn faster
                lines = Text("\n", no_wrap=True, overflow="ellipsis")
                live.update(lines.join(content(self.width, self._console.height)), refresh=True)

    def _print(self, content: Any) -> None:
        with self._unharmed():
            self._console.print(content, soft_wrap=True)

    @contextlib.contextmanager
    def _unharmed(self) -> Iterator[None]:
        try:
            yield
        except (OSError, IndexError):  # the IndexError of rich at the end of a `Live` whose begin failed
            self._console.quiet = True


class NotebookScreen(Screen):
    """Updates the output of a notebook's cell in place, without the ipywidgets that rich needs."""

    width = 110

    def __init__(self, console: Console) -> None:
        super().__init__(console, is_live=True)
        self._lines: list[str] = []
        self._handles: dict[str, Any] = {}

    def print(self, lines: Sequence[str]) -> None:
        """Print lines above the live content; of very many lines, the last ones stay visible."""
        self._lines = [*self._lines, *lines][-_MOST_LINES:]
        self._show("above", NotebookLines(self._lines))

    def conclude(self, panel: Any) -> int | None:
        """Fold the lines, with the warnings above them, and display the final panel."""
        self._show("above", NotebookLines(self._lines, is_folded=True))
        self._show("panel", panel)
        return cell_number()

    def epoch_ended(self, results: "Callable[[], pd.DataFrame]", line: Callable[[int], str]) -> None:
        """Replace the table of results."""
        self._show("below", results())

    def run_ended(self, results: "pd.DataFrame") -> None:
        """Do nothing, as the table of the last epoch stays visible."""

    def show_below(self, content: Callable[[int, int], list[Text]] | None) -> None:
        """Replace the content below the lines; None removes it."""
        if "below" not in self._handles:
            self.print([])  # display the lines before the content
        self._show(
            "below", NotebookLines([*map(str, content(self.width, _NOTEBOOK_HEIGHT) if content else [])])
        )

    def _show(self, part: str, content: Any) -> None:
        """Display a part of the cell's output, or replace it."""
        from IPython.display import display

        if part in self._handles:
            self._handles[part].update(content)
        else:
            self._handles[part] = display(content, display_id=True)


@dataclass(frozen=True, repr=False)
class NotebookLines:
    """Lines for a notebook, with their leading signs in color."""

    lines: Sequence[str]
    is_folded: bool = False

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        lines = "\n".join(signed(line[:1], line[:1]) + escape(line[1:]) for line in self.lines)
        content = f'<pre style="{_STYLE}">{lines}</pre>'
        if self.is_folded:
            title = f"log of the grid, {counted(len(self.lines), 'line')}"
            warnings = NotebookLines([line for line in self.lines if line[:1] == "!"])
            content = f"{warnings._repr_html_()}<details><summary>{title}</summary>{content}</details>"
        return content if lines else ""


def colored(line: str, style: str = "") -> Text:
    """Return a line as text in a style, with its leading sign in color."""
    content = Text(line, style)
    content.stylize(sign_color(line[:1]), 0, 1)
    return content


def choose_screen(*, show: bool) -> Screen:
    """Return the screen for the terminal, notebook or file of the user; with `show=False`, a silent screen."""
    console = wide_console()
    console.quiet = not show
    if show and in_notebook():
        return NotebookScreen(console)
    return Screen(console, is_live=show and console.is_interactive and console.width < ENDLESS)


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel; never imports IPython."""
    return "IPKernelApp" in getattr(_shell(), "config", ())


def cell_number() -> int | None:
    """Return the number of the cell that a notebook executes; None outside IPython."""
    return getattr(_shell(), "execution_count", None)


def _shell() -> Any:
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def wide_console() -> Console:
    """Return a console on standard output; without a terminal, lines are not wrapped."""
    console = _PlainConsole(highlight=False, markup=False, emoji=False)
    # with FORCE_COLOR, rich treats a file as a terminal: the file gets colors; a stream may lack the method
    if not getattr(console.file, "isatty", bool)():
        console.width = ENDLESS
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
        """Render text, with "?" for symbols that the encoding of the file lacks."""
        for segment in super().render(renderable, options):
            content = segment.text.encode(self.encoding, "replace").decode(self.encoding)
            yield segment._replace(text=content)

"""Show tables and lines where the user looks: in a terminal, a notebook or a file."""

import contextlib
import os
import re
import shutil
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.style import Style
from rich.text import Text

from runmanager.markup import marked, sign_color
from runmanager.table import ENDLESS, Table, wrapped

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 40  # of a table that is printed
_MOST_LINES = 1000  # that a notebook keeps
_PLAIN = str.maketrans("✓✗–—·…━╌×±≥≤", "vx---~=.x~><")  # noqa: RUF001 - symbols for those without
_COMPLETED = re.compile(r"✓ +\d+/")  # how the line of a completed run begins
_OTHER = re.compile(r"[✗–] +\d+/")  # noqa: RUF001 - and that of another run; indented lines explain it
_INDENT = "    "
_MOST_UNFOLDED = 8  # of either kind, before they are folded
_LINES_STYLE = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; font-family: monospace"


def print_table(
    rows: "pd.DataFrame | Sequence[Mapping[str, Any]]",
    title: str | None = None,
    console: Console | None = None,
    *,
    most: int | None = _MOST_ROWS,
    right: Collection[str] = (),
) -> None:
    """Print the last rows of a table, or all of them if `most` is None; `rows` is what `Table.of` takes.

    A terminal gets the columns for which it has room, and the names of the others. A file gets them all. Texts
    in the columns of `right` are aligned right.
    """
    console = console or wide_console()
    left_out = 0 if most is None else max(len(rows) - most, 0)
    if left_out:
        console.print(f"({left_out} earlier rows are in the table, not shown here)")
    if title:
        console.print(title, style="italic")
    if names := print_fitted(Table.of(rows[left_out:], right=right), console):
        console.print(f"(not shown: {', '.join(names)})", style="dim", soft_wrap=True)


def print_fitted(table: Table, console: Console | None = None) -> list[str]:
    """Print a table as wide as the terminal, and return the names of the columns left out of it."""
    console = console or wide_console()
    if not console.is_terminal:
        console.print(Text("\n").join(table.texts(marked=False)), soft_wrap=True)  # no line is broken
        return []
    fitted, names = table.fitted(console.width)
    console.print(fitted, soft_wrap=True)
    return names


def colored(line: str) -> Text:
    """Draw a line, and in color the sign that it begins with."""
    content = Text(line)
    content.stylize(sign_color(line[:1]), 0, 1)
    return content


class Screen:
    """Shows lines and tables; a live one also keeps something below the lines that changes in place.

    A screen that is gone, or a disk that is full, ends the showing and not the training.
    Methods may be called in any thread, those of a live screen in one at a time.

    Attributes:
        is_live: Whether `show_below` shows anything.
        links: Words, and where they lead if a line begins with them and a colon, in terminals that have links.
    """

    def __init__(self, console: Console, *, is_live: bool = False) -> None:
        self.is_live = is_live
        self.links: Mapping[str, Callable[[], str]] = {}
        self._console = console
        self._live: Live | None = None
        self._picture = _Below(console)

    @property
    def width(self) -> int:
        """How many characters a line has; a file's lines have no end."""
        return self._console.width if self._console.is_terminal else ENDLESS

    @property
    def has_rows(self) -> bool:
        """Whether lines can be rows of a table: something below them stays, and says what the columns are."""
        return self.is_live and self._console.is_terminal

    @property
    def is_shown(self) -> bool:
        """Whether anything is shown at all."""
        return not self._console.quiet

    def print(self, lines: Sequence[str]) -> None:
        """Print lines; a terminal breaks long ones between words."""
        if self._console.is_terminal:
            lines = [part for line in lines for part in wrapped(line, self._console.width, "", _INDENT)]
        with self._unharmed():  # at once, as the picture below is drawn again
            self._console.print(Text("\n").join(map(self._colored, lines)), soft_wrap=True)

    def print_table(self, table: Table) -> None:
        """Print a table."""
        self.print(table.lines(self._console.width))

    def conclude(self, panel: Any) -> None:
        """Print what rich can draw, at the end."""
        with self._unharmed():
            self._console.print(panel, soft_wrap=True)

    def epoch_ended(self, results: "Callable[[], pd.DataFrame]", line: Callable[[int], str]) -> None:
        """Show the results after an epoch where they can replace those before, or a terminal its line."""
        if self.is_shown and self._console.file.isatty():  # FORCE_COLOR makes a terminal of a file for rich
            self.print([line(self._console.width)])

    def run_ended(self, results: "pd.DataFrame") -> None:
        """Show the results after a run."""
        with self._unharmed():
            print_table(results, console=self._console)

    def show_start(self, line: str) -> None:
        """Show that something has begun, until anything else is shown below; a file need not know."""
        if self.is_live:
            self.show_below(line)
        elif self._console.file.isatty():
            self.print([line])

    def show_below(self, content: Any) -> None:
        """Show what rich can draw below the lines, in place of what was there; None takes it away.

        A function is asked for it whenever it is drawn.
        """
        with self._unharmed():
            if content is None:
                live, self._live = self._live, None
                if live:
                    live.stop()
                    self._console.pop_render_hook()
                return
            self._picture.content = content
            if self._live:
                self._live.refresh()
            elif self.is_live:
                self._picture.lengths = []
                self._console.push_render_hook(self._picture)
                self._live = Live(self._picture, console=self._console, auto_refresh=False, transient=True)
                self._live.start(refresh=True)

    def _colored(self, line: str) -> Text:
        content = colored(line)
        for word, page in self.links.items():
            if line.startswith(f"{word}:"):
                content.stylize(Style(link=page()), 0, len(word))
        return content

    @contextlib.contextmanager
    def _unharmed(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._console.quiet = True


def _now(content: Any) -> Any:
    return content() if callable(content) else content


class _Below(RenderHook):
    """What rich's `Live` draws below the lines, and erases as many lines of.

    A terminal that is made narrower breaks lines, of which there are then more: they are erased here.
    """

    def __init__(self, console: Console) -> None:
        self.content: Any = ""
        self.lengths: Sequence[int] = []  # of the lines that were drawn last
        self._console = console

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        lines = console.render_lines(_now(self.content), options, pad=False)
        self.lengths = [Segment.get_line_length(line) for line in lines]
        for line in lines:
            yield from line
            yield Segment.line()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Erase what is above the lines that rich erases before it prints these."""
        width = self._console.width
        num_more = 0 if _cuts_lines() else sum(max(length - 1, 0) // width for length in self.lengths)
        more: list[Any] = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * num_more
        return [Control(*more), *renderables] if more else renderables


def _cuts_lines() -> bool:
    """Whether the terminal cuts lines that become too long; xterm, GNU screen and the kernel's console do."""
    term = os.environ.get("TERM", "")
    return "TMUX" not in os.environ and ("XTERM_VERSION" in os.environ or term.startswith(("screen", "linux")))


class NotebookScreen(Screen):
    """Keeps everything up to date below a notebook's cell; rich's own way needs ipywidgets."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, is_live=True)
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._num_lines = 0
        self._is_over = False
        self._above, self._below = _InPlace(), _InPlace()

    def print(self, lines: Sequence[str]) -> None:
        """Print lines above the rest."""
        self._lines += lines
        self._num_lines += len(lines)
        left_out = self._num_lines - len(self._lines)
        head = [f"({left_out} earlier lines are not shown here)"] if left_out else []
        self._above.show(NotebookLines([*head, *self._lines], is_over=self._is_over))

    def conclude(self, panel: Any) -> None:
        """Print what says the most: the notebook draws the whole panel, which is returned."""
        self.print([panel.headline])

    def epoch_ended(self, results: "Callable[[], pd.DataFrame]", line: Callable[[int], str]) -> None:
        """Replace the results that were shown."""
        self._below.show(results())

    def run_ended(self, results: "pd.DataFrame") -> None:
        """Leave the results as the last epoch left them."""

    def show_below(self, content: Any) -> None:
        """Show what a notebook can draw below the lines."""
        if self._below.handle is None or (content is None) != self._is_over:
            self._is_over = content is None
            self.print([])  # keeps the lines above
        if content is None or isinstance(content, str):
            content = NotebookLines([content] if content else [])
        self._below.show(_now(content))


class _InPlace:
    """Content below a notebook's cell that is replaced where it was shown first."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, content: Any) -> None:
        """Show content, in place of what was shown before."""
        from IPython.display import display

        if self.handle is None:
            self.handle = display(content, display_id=True)
        else:
            self.handle.update(content)


class NotebookLines:
    """Lines as a notebook shows them: of many runs the last ones; once all is over, they are folded."""

    def __init__(self, lines: Sequence[str], *, is_over: bool = True) -> None:
        self._lines = list(lines)
        self._is_over = is_over

    def __repr__(self) -> str:
        return "\n".join(self._lines)

    def _repr_html_(self) -> str:
        before: list[str] = []
        after: list[str] = []
        completed: list[list[str]] = []
        others: list[list[str]] = []  # each with the lines that explain it
        last = before
        for line in self._lines:
            if _COMPLETED.match(line) or _OTHER.match(line):
                last = [line]
                (completed if _COMPLETED.match(line) else others).append(last)
            elif last in others and line.startswith(_INDENT):
                last.append(line)
            else:
                last = after if completed or others else before
                last.append(line)
        if max(len(completed), len(others)) <= _MOST_UNFOLDED:
            return _pre(self._lines)
        of_completed = self._of_runs(completed, "completed runs")
        of_others = self._of_runs(others, "runs not completed")
        if self._is_over:
            return f"{_pre(before)}{of_completed}{of_others}{_pre(after)}"
        return f"{_pre([*before, *after])}{of_others}{of_completed}"

    def _of_runs(self, runs: Sequence[Sequence[str]], heading: str) -> str:
        heading = f"{len(runs)} {heading}"
        if len(runs) <= _MOST_UNFOLDED:
            return _pre([line for run in runs for line in run])
        if self._is_over:
            lines = _pre([line for run in runs for line in run])
            return f"<details><summary>{heading}</summary>{lines}</details>"
        last = [line for run in runs[-_MOST_UNFOLDED:] for line in run]
        return _pre([f"{heading}, the last {_MOST_UNFOLDED}:", *last])


def _pre(lines: Sequence[str]) -> str:
    content = "\n".join(map(marked, lines))
    return f'<pre style="{_LINES_STYLE}">{content}</pre>' if content else ""


def choose_screen(*, show: bool) -> Screen:
    """Return the screen for where the user looks; with `show=False`, one that shows nothing."""
    console = wide_console()
    console.quiet = not show
    if show and in_notebook():
        return NotebookScreen(console)
    # FORCE_COLOR makes a terminal of a file for rich: colours are wanted there, a moving cursor is not
    return Screen(console, is_live=show and console.is_interactive and console.file.isatty())


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel; never imports IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython and hasattr(ipython, "get_ipython") else None
    return shell is not None and "IPKernelApp" in shell.config


def wide_console() -> Console:
    """Return a console on standard output; without a terminal, lines are as long as they need to be."""
    console = _PlainConsole(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = ENDLESS
    elif console.is_dumb_terminal:
        console.size = shutil.get_terminal_size()  # for rich, all of them have 80 columns
    return console


class _PlainConsole(Console):
    """A console whose file may be closed, or may not be able to write all symbols."""

    def on_broken_pipe(self) -> None:
        """Leave it to who prints, instead of ending the process with 1."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render what the encoding of the file can write."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=encodable(segment.text, self.encoding))


def encodable(content: str, encoding: str) -> str:
    """Replace what an encoding cannot write, symbols of ours by letters of the same width.

    >>> encodable("✓ 1/2 · lr=0.1 …", "ascii")
    'v 1/2 - lr=0.1 ~'
    """
    with contextlib.suppress(UnicodeEncodeError):
        content.encode(encoding)
        return content
    return content.translate(_PLAIN).encode(encoding, "replace").decode(encoding)

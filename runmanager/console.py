"""Show tables and lines where the user looks: in a terminal, a notebook or a file."""

import contextlib
import html
import math
import sys
import textwrap
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from runmanager.hyperparameters import text

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 40  # of a table that is printed
_MOST_LINES = 1000  # that a notebook keeps
_COMPLETED = "✓"  # how the line of a completed run begins
_MOST_COMPLETED = 8  # of these lines in a notebook, before they are folded
_ENDLESS = 10_000  # columns of a file, whose lines are as long as they need to be
_GAP = "  "  # between columns
_PLAIN = str.maketrans("✓✗–—·…━╌×±≥≤", "vx---~=.x~><")  # noqa: RUF001 - symbols for those without
_MARKS = {"✓": "green", "✗": "red", "!": "yellow"}


class Table:
    """Rows under the headings of their columns, as text that cannot steer a terminal.

    Consoles, screens and notebooks show it. Numbers have four digits and are aligned right.

    Args:
        names: The headings; narrow lines fold them between words.
        rows: One value per column.
        right: Columns of text to align right.
        fold: Whether narrow lines fold values too. Otherwise a line is as long as its values are.
    """

    def __init__(
        self, names: Iterable[str], rows: Iterable[Any], *, right: Collection[str] = (), fold: bool = False
    ) -> None:
        values = [list(row) for row in rows]
        self._names = [printable(name) for name in names]
        self._rows = [[cell(value) for value in row] for row in values]
        self._is_left: list[bool] = []
        self._widths: list[tuple[int, int]] = []  # the least and the most that a column needs
        for index, name in enumerate(self._names):
            is_text = any(isinstance(row[index], str) for row in values)
            self._is_left.append(is_text and name not in right)
            word = max(map(cell_len, name.split()), default=0)
            most = max((cell_len(row[index]) for row in self._rows), default=0)
            self._widths.append((max(word, 2 if fold else most), max(cell_len(name), most)))

    @classmethod
    def of(cls, rows: "pd.DataFrame | Sequence[Mapping[str, Any]]") -> Self:
        """Make a table of a DataFrame, or of rows: name of the column -> value, which a row may lack."""
        if isinstance(rows, Sequence):
            names = list(dict.fromkeys(name for row in rows for name in row))
            return cls(names, ([row.get(name, math.nan) for name in names] for row in rows))
        # a column of floats has NaN where a row has no value, one of objects only where the value is NaN
        series = (rows.iloc[:, index] for index in range(len(rows.columns)))
        columns = [["nan" if str(v) == "nan" else v for v in c] if c.dtype == object else c for c in series]
        return cls(map(str, rows), zip(*columns, strict=True) if columns else [])

    def lines(self, width: int = _ENDLESS) -> list[str]:
        """Return the lines of the heading and of the rows, as narrow as asked for if that is possible."""
        return [line for line, _ in self._drawn(width)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        bold = console.get_style("bold")
        for line, is_heading in self._drawn(options.max_width):
            yield Segment(line, bold if is_heading else None)
            yield Segment.line()

    def to_html(self) -> str:
        """Return the table as a notebook draws it."""
        styles = [' style="text-align: left"' if is_left else "" for is_left in self._is_left]
        lines = []
        for tag, cells in [("th", self._names), *(("td", row) for row in self._rows)]:
            parts = zip(styles, map(html.escape, cells), strict=True)
            lines.append("".join(f"<{tag}{style}>{content}</{tag}>" for style, content in parts))
        head, *body = [f"<tr>{line}</tr>\n" for line in lines]
        return f'<table class="dataframe">\n<thead>{head}</thead>\n<tbody>{"".join(body)}</tbody></table>'

    _repr_html_ = to_html

    def _drawn(self, limit: int) -> Iterator[tuple[str, bool]]:
        """Yield each line, and whether it belongs to the heading."""
        widths = [most for _, most in self._widths]
        for _ in range(sum(widths) + len(_GAP) * (len(widths) - 1) - limit):
            pairs = enumerate(zip(widths, self._widths, strict=True))
            wide = [(width, index) for index, (width, (least, _)) in pairs if width > least]
            if not wide:
                break
            widths[max(wide)[1]] -= 1
        for number, cells in enumerate([self._names, *self._rows]):
            columns = [_folded(content, width) for content, width in zip(cells, widths, strict=True)]
            height = max(map(len, columns), default=0)
            if number == 0:  # headings are at the bottom, values at the top
                columns = [[""] * (height - len(column)) + column for column in columns]
            for parts in zip_longest(*columns, fillvalue=""):
                padded = (
                    set_cell_size(part, width) if is_left else " " * (width - cell_len(part)) + part
                    for part, width, is_left in zip(parts, widths, self._is_left, strict=True)
                )
                yield _GAP.join(padded).rstrip(), number == 0


def print_table(
    rows: "pd.DataFrame | Sequence[Mapping[str, Any]]",
    title: str | None = None,
    console: Console | None = None,
    *,
    most: int | None = _MOST_ROWS,
) -> None:
    """Print the last rows of a table, or all of them if `most` is None; `rows` is what `Table.of` takes."""
    console = console or wide_console()
    left_out = 0 if most is None else max(len(rows) - most, 0)
    if left_out:
        console.print(f"({left_out} earlier rows are in the table, not shown here)")
    if title:
        console.print(title, style="italic")
    console.print(Table.of(rows[left_out:]), soft_wrap=True)  # a terminal folds long lines: no column is lost


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

    @property
    def width(self) -> int:
        """How many characters a line has; a file's lines have no end."""
        return self._console.width if self._console.is_terminal else _ENDLESS

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
            folded = textwrap.TextWrapper(
                self._console.width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
            )
            lines = [part for line in lines for part in folded.wrap(line) or [""]]
        with self._unharmed():  # at once, as the picture below is drawn again
            self._console.print(Text("\n").join(map(self._colored, lines)), soft_wrap=True)

    def print_table(self, table: Table) -> None:
        """Print a table."""
        self.print(table.lines(self._console.width))

    def epoch_ended(self, results: "Callable[[], pd.DataFrame]", line: Callable[[int], str]) -> None:  # noqa: ARG002
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
        """Show what rich can draw below the lines, in place of what was there; None takes it away."""
        with self._unharmed():
            if content is None:
                live, self._live = self._live, None
                if live:
                    live.stop()
            elif self._live:
                self._live.update(content, refresh=True)
            elif self.is_live:
                self._live = Live(content, console=self._console, auto_refresh=False, transient=True)
                self._live.start(refresh=True)

    def _colored(self, line: str) -> Text:
        content = Text(line)
        content.stylize(_MARKS.get(line[:1], ""), 0, 1)
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
        self._above.show(_Preformatted([*head, *self._lines], is_over=self._is_over))

    def epoch_ended(self, results: "Callable[[], pd.DataFrame]", line: Callable[[int], str]) -> None:  # noqa: ARG002
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
            content = _Preformatted([content] if content else [])
        self._below.show(content)


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
        console.width = _ENDLESS
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


class _InPlace:
    """Content below a notebook's cell that is replaced where it was shown first."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, content: Any) -> None:
        from IPython.display import display

        if self.handle is None:
            self.handle = display(content, display_id=True)
        else:
            self.handle.update(content)


class _Preformatted:
    """Lines as a notebook shows them: of many completed runs the last ones; at the end, they are folded."""

    def __init__(self, lines: Sequence[str], *, is_over: bool = True) -> None:
        self._lines = list(lines)
        self._is_over = is_over

    def __repr__(self) -> str:
        return "\n".join(self._lines)

    def _repr_html_(self) -> str:
        completed = [index for index, line in enumerate(self._lines) if line.startswith(_COMPLETED)]
        if len(completed) <= _MOST_COMPLETED:
            return _pre(self._lines)
        others = [line for line in self._lines[completed[0] :] if not line.startswith(_COMPLETED)]
        runs = [self._lines[index] for index in completed]
        heading = f"{len(runs)} completed runs"
        if self._is_over:
            middle = f"<details><summary>{heading}</summary>{_pre(runs)}</details>"
        else:
            last = runs[-_MOST_COMPLETED:]
            middle = _pre([f"{heading}, the last {len(last)}:", *last])
            others, middle = [], f"{_pre(others)}{middle}"
        return f"{_pre(self._lines[: completed[0]])}{middle}{_pre(others)}"


def _pre(lines: Sequence[str]) -> str:
    content = html.escape("\n".join(lines))
    return f'<pre style="white-space: pre-wrap">{content}</pre>' if content else ""


def cell(value: Any) -> str:
    """Write a value as a table shows it: four digits, nothing for a missing value.

    >>> cell(0.598666), cell(7.504), cell(12345.6), cell(1e30), cell(1000), cell(float("nan")), cell("cpu")
    ('0.5987', '7.504', '12346', '1e+30', '1000', '', 'cpu')
    """
    if isinstance(value, bool) or not isinstance(value, float):
        return "" if type(value).__name__ == "NAType" else printable(text(value))  # pandas stays unimported
    if math.isnan(value):
        return ""
    return f"{value:.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"  # noqa: PLR2004 - four digits


def duration(seconds: float) -> str:
    """Write how long something took.

    >>> duration(1.25), duration(83), duration(4800), duration(200_000)
    ('1.2 s', '1 min 23 s', '1 h 20 min', '2 d 7 h')
    """
    if seconds < 59.95:  # noqa: PLR2004 - written as less than a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    first = next(index for index, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def printable(content: str) -> str:
    r"""Escape what would steer a terminal.

    >>> printable("a\x1b[31m")
    'a\\x1b[31m'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in content)


def encodable(content: str, encoding: str) -> str:
    """Replace what an encoding cannot write, symbols of ours by letters of the same width.

    >>> encodable("✓ 1/2 · lr=0.1 …", "ascii")
    'v 1/2 - lr=0.1 ~'
    """
    with contextlib.suppress(UnicodeEncodeError):
        content.encode(encoding)
        return content
    return content.translate(_PLAIN).encode(encoding, "replace").decode(encoding)


def join(parts: Iterable[str]) -> str:
    """Join the parts that are not empty with a middle dot."""
    return " · ".join(part for part in parts if part)


def _folded(content: str, width: int) -> list[str]:
    """Break text between words into lines of a width, and words that are longer."""
    if cell_len(content) <= width:
        return [content]
    lines = [""]
    for word in content.split():
        line = f"{lines[-1]} {word}".lstrip()
        lines[-1:] = [line] if cell_len(line) <= width else [*lines[-1:], *chop_cells(word, width)]
    return list(filter(None, lines))

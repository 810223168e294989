"""Tables of text, fitted to the width of a terminal."""

import math
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.text import Text

from runmanager import markup
from runmanager.outcome import Status
from runmanager.wording import aligned, cell, printable

if TYPE_CHECKING:
    import pandas as pd

ENDLESS = 10_000  # the width of a file, which is practically unlimited
GAP = "  "  # the gap between columns

_LEAST_TEXT = 20  # minimum width of a text whose middle is cut out
_LEAST_HEADING = len("optim…")
_PIECE = re.compile(r"\s*(?:[^\s_]+_*|_+)")  # a part of a heading, which may be folded behind it
_BREAK = re.compile(r"(?<!\d) | (?!%|(?:s|min|h)\b)")  # the blanks that may end a line
_STATUS = "status"
_SIGNS = {str(status): status.sign for status in Status}


class Table:
    """A table of text with terminal control sequences escaped.

    Terminals, files and notebooks can show the table. Numbers have four digits and are aligned right. In
    colored output, a status has its sign in front.

    Args:
        names: The headings; they are folded if the table is too wide.
        rows: The rows, with one value per column.
        right: Columns of text to align right; they are never cut.
        fold: Whether long texts are folded. Otherwise, their middle is cut out; other values are never cut.
        even: Columns of numbers to write with the same number of decimals in all rows.
        first: The important columns, in this order. To keep these columns, headings are folded, texts are
            shortened, and `fitted` leaves out all other columns first.
        least: Column -> its minimum width, for rows that follow later. With `least`, words of headings are cut
            before a column is left out.
        best: The indexes of the rows to emphasize.
        bars: Column of numbers -> the number with an empty bar, and the number with a full bar.
        hints: The tooltip over the status of each row in a notebook.

    Attributes:
        kept: The indexes of the columns that are drawn.
    """

    def __init__(
        self,
        names: Iterable[str],
        rows: Iterable[Any],
        *,
        right: Collection[str] = (),
        fold: bool = False,
        even: Collection[str] = (),
        first: Sequence[str] = (),
        least: Mapping[str, int] | None = None,
        best: Collection[int] = (),
        bars: Mapping[str, tuple[float, float]] | None = None,
        hints: Sequence[str] = (),
    ) -> None:
        self._values = [list(row) for row in rows]
        given = list(names)
        self._names = [printable(name) for name in given]
        self._rows = [[cell(value) for value in row] for row in self._values]
        for index in (index for index, name in enumerate(given) if name in even):
            numbers = [row[index] if isinstance(row[index], float) else math.nan for row in self._values]
            for row, number, content in zip(self._rows, numbers, aligned(numbers), strict=True):
                row[index] = row[index] if math.isnan(number) else content
        texts = [any(isinstance(row[index], str) for row in self._values) for index in range(len(given))]
        self._is_left = [is_text and name not in right for is_text, name in zip(texts, given, strict=True)]
        self._fold, self._best, self._hints = fold, frozenset(best), hints
        self._first = [given.index(name) for name in dict.fromkeys(first) if name in given]
        self._least = [(least or {}).get(name, 0) for name in given]
        self._bars = {given.index(name): ends for name, ends in (bars or {}).items() if name in given}
        self._status = given.index(_STATUS) if _STATUS in given else -1
        self.kept: Sequence[int] = range(len(given))

    @classmethod
    def of(cls, rows: "pd.DataFrame | Sequence[Mapping[str, Any]]", **options: Any) -> Self:
        """Make a table from a DataFrame, or from rows (column -> value) that may lack columns."""
        if isinstance(rows, Sequence):
            names = list(dict.fromkeys(name for row in rows for name in row))
            return cls(names, ([row.get(name, math.nan) for name in names] for row in rows), **options)
        # in a column of floats, NaN means a missing value; in a column of objects, the value is NaN
        series = (rows.iloc[:, index] for index in range(len(rows.columns)))
        columns = [["nan" if str(v) == "nan" else v for v in c] if c.dtype == object else c for c in series]
        return cls(map(str, rows), zip(*columns, strict=True) if columns else [], **options)

    def lines(self, width: int = ENDLESS, *, marked: bool = False) -> list[str]:
        """Return the lines of the headings and the rows, narrowed to `width` if possible.

        No column is left out. With `marked`, statuses have their signs.
        """
        return ["".join(text for text, _ in parts).rstrip() for parts in self._parts(width, marked=marked)]

    def texts(self, width: int = ENDLESS, *, marked: bool = True) -> Iterator[Text]:
        """Yield the lines as in `lines`, with their styles."""
        for parts in self._parts(width, marked=marked):
            line = Text.assemble(*parts, no_wrap=True, overflow="ignore")
            line.rstrip()
            yield line

    def _parts(self, width: int, *, marked: bool) -> Iterator[list[tuple[str, str]]]:
        kept, rooms = self.kept, self._rooms(marked=marked)
        widths = [rooms[index][3] for index in kept]
        for level in (2, 1, 0):
            _narrow(widths, [rooms[index][level] for index in kept], width)
        headings = [_folded_name(self._names[i], room) for i, room in zip(kept, widths, strict=True)]
        height = max(map(len, headings), default=0)  # headings are aligned at the bottom, values at the top
        headings = [[""] * (height - len(heading)) + heading for heading in headings]
        yield from self._padded(headings, widths, ["bold"] * len(kept))
        for number, row in enumerate(self._rows):
            cells = [self._marked(row, index) if marked else row[index] for index in kept]
            columns = [self._fit(content, room) for content, room in zip(cells, widths, strict=True)]
            weight = "bold " if number in self._best else ""
            color = markup.sign_color(self._sign(row))
            styles = [(weight + (color if index == self._status else "")).strip() for index in kept]
            yield from self._padded(columns, widths, styles)

    def fitted(self, width: int) -> tuple[Self, list[str]]:
        """Return the table with the columns that fit a width, and the names of the other columns."""
        rooms = self._rooms(marked=True)
        order = self._first or range(len(rooms))
        kept: list[int] = []
        for index in order:
            if kept and _sum(rooms[i][0] for i in [*kept, index]) > width:
                break
            kept.append(index)
        others = [index for index in range(len(rooms)) if index not in order]
        for index in others if len(kept) == len(order) else ():
            if _sum(rooms[i][2] for i in [*kept, index]) <= width:
                kept.append(index)
        fitted = copy(self)
        fitted.kept = sorted(kept)
        return fitted, [self._names[index] for index in (*order, *others) if index not in kept]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.texts(options.max_width, marked=console.is_terminal)

    def to_html(self) -> str:
        """Return the table as HTML for a notebook."""
        shares = {
            index: [_share(row[index], *ends) for row in self._values] for index, ends in self._bars.items()
        }
        hints = self._hints or [""] * len(self._rows)
        signs = list(zip(map(self._sign, self._rows), hints, strict=True))
        return markup.html(self._names, self._rows, self._is_left, self._best, shares, (self._status, signs))

    _repr_html_ = to_html

    def to_markdown(self) -> str:
        """Return the table as Markdown, with the best rows in bold."""
        return markup.markdown(self._names, self._rows, self._is_left, self._best)

    def to_latex(self) -> str:
        """Return the table as LaTeX for the package booktabs, with the best rows in bold."""
        return markup.latex(self._names, self._rows, self._is_left, self._best)

    def _sign(self, row: Sequence[str]) -> str:
        return _SIGNS.get(row[self._status], "") if self._status >= 0 else ""

    def _marked(self, row: Sequence[str], index: int) -> str:
        sign = self._sign(row) if index == self._status else ""
        return f"{sign} {row[index]}" if sign else row[index]

    def _rooms(self, *, marked: bool) -> list[tuple[int, int, int, int]]:
        """Return the widths of each column: with a cut heading, a folded one, a short text, and whole."""
        rooms = []
        for index, name in enumerate(self._names):
            cells = [self._marked(row, index) if marked else row[index] for row in self._rows]
            most = max([self._least[index], *map(cell_len, cells)])
            is_cut = self._is_left[index] and index != self._status
            short = min(most, _LEAST_TEXT) if is_cut else most
            piece = max((cell_len(piece.strip()) for piece in _PIECE.findall(name)), default=0)
            cut = min(piece, _LEAST_HEADING) if any(self._least) else piece
            whole = cell_len(name)
            rooms.append((max(cut, short), max(piece, short), max(whole, short), max(whole, most)))
        return rooms

    def _fit(self, content: str, width: int) -> list[str]:
        """Fold a text, or cut out its middle, as the start and the end identify the text better."""
        if cell_len(content) <= width:
            return [content]
        if self._fold:
            return textwrap.wrap(content, width)
        head, tail = set_cell_size(content, width - 1 - width // 3).rstrip(), content[-(width // 3) :]
        return [set_cell_size(f"{head}…{tail}", width).rstrip()]

    def _padded(
        self, columns: Sequence[list[str]], widths: Sequence[int], styles: Sequence[str]
    ) -> Iterator[list[tuple[str, str]]]:
        for parts in zip_longest(*columns, fillvalue=""):
            line: list[tuple[str, str]] = []
            for index, part, width, style in zip(self.kept, parts, widths, styles, strict=True):
                blank = " " * (width - cell_len(part))
                line += [(GAP, "")] if line else []
                line.append((f"{part}{blank}" if self._is_left[index] else f"{blank}{part}", style))
            yield line


def wrapped(content: str, width: int, first: str = "", others: str | None = None) -> list[str]:
    """Wrap text between words; only a word that is longer than `width` makes a line longer.

    A number and its unit count as one word.

    Args:
        content: The text.
        width: The width in columns of a terminal.
        first: The text in front of the first line.
        others: The text in front of the other lines; by default `first`.

    >>> wrapped("one two three", 9, "- ", "  ")
    ['- one two', '  three']
    >>> wrapped("it takes 4 % of 20 min", 10)
    ['it takes', '4 % of', '20 min']
    """
    others = first if others is None else others
    lines, is_empty = [first], True
    for word in _BREAK.split(content):
        if not is_empty and cell_len(f"{lines[-1]} {word}") > width:
            lines.append(others)
            is_empty = True
        lines[-1] += word if is_empty else f" {word}"
        is_empty = False
    return [line.rstrip() for line in lines]


def _sum(widths: Iterable[int]) -> int:
    return sum(width + len(GAP) for width in widths) - len(GAP)


def _share(value: Any, low: float, high: float) -> float:
    """Return the fraction of a cell that the bar of a value fills."""
    if not isinstance(value, float | int) or not math.isfinite(value):
        return 0.0
    return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 1.0


def _narrow(widths: list[int], least: Sequence[int], limit: int) -> None:
    """Narrow the widest columns, until a line fits or all columns have their minimum width."""
    for _ in range(_sum(widths) - limit):
        wide = [(width, index) for index, width in enumerate(widths) if width > least[index]]
        if not wide:
            break
        widths[max(wide)[1]] -= 1


def _folded_name(name: str, width: int) -> list[str]:
    lines = [""]
    for piece in _PIECE.findall(name) if cell_len(name) > width else [name]:
        if lines[-1] and cell_len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip()
    return [line if cell_len(line) <= width else f"{set_cell_size(line, width - 1)}…" for line in lines]

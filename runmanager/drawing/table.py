"""Tables of text, fitted to the width of a terminal."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import rich.table
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from runmanager.core.outcome import Status
from runmanager.core.wording import printable
from runmanager.drawing import markup
from runmanager.tables.cells import aligned, cell

if TYPE_CHECKING:
    import pandas as pd

ENDLESS = 10_000  # the width of a file, which is practically unlimited
GAP = "  "  # the gap between columns

_LEAST_TEXT = 20  # minimum width of a text that is cut
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
        fold: Whether long texts are folded. Otherwise, their end is cut; other values are never cut.
        even: Columns of numbers to write with the same number of decimals in all rows.
        first: The important columns, in this order; `fitted` leaves out all other columns first.
        least: Column -> its minimum width, for rows that follow later.
        best: The indexes of the rows to emphasize.
        bars: Column of numbers -> the number with an empty bar, and the number with a full bar.
        hints: The tooltip over the status of each row in a notebook.
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

    def lines(self) -> list[str]:
        """Return the lines of the headings and the rows as plain text, for a file."""
        rows = [self._names, *self._rows]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        return [
            GAP.join(
                set_cell_size(content, width) if is_left else " " * (width - cell_len(content)) + content
                for content, width, is_left in zip(row, widths, self._is_left, strict=True)
            ).rstrip()
            for row in rows
        ]

    def fitted(self, width: int, *, everything: bool = False) -> tuple[list[Text], list[str]]:
        """Draw the columns that fit a width, or `everything`; return the lines, and the names of the others."""
        if width >= ENDLESS:
            return list(map(Text, self.lines())), []
        cells = [[self._marked(row, index) for row in self._rows] for index in range(len(self._names))]
        rooms = [max([self._least[index], *map(cell_len, column)]) for index, column in enumerate(cells)]
        is_text = [self._fold or (left and index != self._status) for index, left in enumerate(self._is_left)]
        least_text = _LEAST_TEXT // 2 if self._fold else _LEAST_TEXT
        rooms = [min(room, least_text) if text else room for room, text in zip(rooms, is_text, strict=True)]
        order = [*self._first, *(index for index in range(len(cells)) if index not in self._first)]
        folded = [_folded(name, room) for name, room in zip(self._names, rooms, strict=True)]
        layouts = []
        for names in (self._names, folded):
            least = [
                max(
                    room,
                    *(min(cell_len(line), least_text if self._fold else ENDLESS) for line in name.split("\n")),
                )
                for room, name in zip(rooms, names, strict=True)
            ]
            kept: list[int] = []
            for index in order:
                if everything or self._fold or not kept or _sum(least[i] for i in [*kept, index]) <= width:
                    kept.append(index)
            layouts.append((len(kept), min(width - _sum(least[i] for i in kept), 0), names, least, kept))
        _, _, names, least, kept = max(layouts, key=lambda layout: layout[:2])
        widths = {index: least[index] for index in kept}
        longest = {index: max(map(cell_len, cells[index]), default=0) for index in kept if is_text[index]}
        for _ in range(width - _sum(widths.values())):  # each goes to the narrowest text that is cut
            cut = [index for index in longest if widths[index] < longest[index]]
            if cut:
                widths[min(cut, key=lambda index: widths[index])] += 1
        drawn = rich.table.Table(box=None, padding=(0, len(GAP), 0, 0), pad_edge=False, header_style="bold")
        for index in sorted(kept):
            justify: Any = "left" if self._is_left[index] else "right"
            drawn.add_column(
                Text(names[index], no_wrap=not self._fold),
                width=widths[index],
                justify=justify,
                overflow="fold" if self._fold else "ellipsis",
            )
        for number, row in enumerate(self._rows):
            weight, color = "bold " if number in self._best else "", markup.sign_color(self._sign(row))
            drawn.add_row(
                *(
                    Text(
                        cells[index][number],
                        weight + (color if index == self._status else ""),
                        no_wrap=not self._fold,
                    )
                    for index in sorted(kept)
                )
            )
        lines = []
        for segments in Console(width=max(width, _sum(widths.values())), force_jupyter=False).render_lines(
            drawn, pad=False
        ):
            line = Text.assemble(*((part.text, part.style or "") for part in segments))
            line.rstrip()
            lines.append(line)
        return lines, [self._names[index] for index in order if index not in kept]

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


def wrapped(content: str, width: int, first: str = "", others: str | None = None) -> list[str]:
    """Wrap text between words; only a word that is longer than `width` makes a line longer.

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


def _folded(name: str, width: int) -> str:
    """Fold a heading that is wider than its column behind blanks and underscores."""
    pieces, lines = _PIECE.findall(name), [""]
    width = max([width, *(cell_len(piece.strip()) for piece in pieces)])
    for piece in pieces if cell_len(name) > width else [name]:
        if lines[-1] and cell_len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip()
    return "\n".join(lines)

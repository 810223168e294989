"""Tables of text, drawn for terminals, files, notebooks and documents."""

import math
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Self

import rich.table
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from runmanager.core.outcome import Status
from runmanager.core.wording import printable
from runmanager.tables.cells import aligned, cell

if TYPE_CHECKING:
    import pandas as pd

ENDLESS = 10_000  # the width of a file, which is practically unlimited
GAP = "  "  # the gap between columns

_LEAST_TEXT = 20  # minimum width of a text that is cut
_LEAST_FOLDED = 10  # minimum width of a text that is folded
_MOST_LINES = 3  # maximum number of lines of a heading whose parts are short
_UNDERSCORES = re.compile(r"(?<=[^_])(_+)(?=[^_])")  # what a heading may be folded behind, beside blanks
_UNIT = re.compile(r"(?<=\d) (?=%|(?:s|min|h)\b)")  # the blanks that may not end a line
HARD = "\N{NO-BREAK SPACE}"
_STATUS = "status"
_BAR = "rgba(84, 137, 214, 0.32)"  # text on this color is readable on white and on black pages
_CELL = "white-space: nowrap; max-width: 26em; overflow: hidden; text-overflow: ellipsis"
# what pandas does not escape, although LaTeX's default fonts have other glyphs there
_LATEX = str.maketrans({"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"})
_SIGNS = {str(status): status.sign for status in Status}
_COLORS = {
    "✓": ("green", "#2e9e4f"),
    "✗": ("red", "#e5534b"),
    "!": ("yellow", "#c88a04"),
    "…": ("cyan", "#2f93c8"),
}
"""The colors of signs in a terminal and on a page. Page colors have a contrast of 3:1 on white and on black."""


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
        best: The indexes of the rows to emphasize.
        bars: Column of numbers -> the number with an empty bar, and the number with a full bar.
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
        best: Collection[int] = (),
        bars: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self._values = [list(row) for row in rows]
        self._rows = [[cell(value) for value in row] for row in self._values]
        heads = list(names)
        self._names = [printable(name) for name in heads]
        self._is_left: list[bool] = []
        for index, name in enumerate(heads):
            column = [row[index] for row in self._values]
            self._is_left.append(name not in right and any(isinstance(value, str) for value in column))
            if name in even:
                numbers = aligned(value if isinstance(value, float) else math.nan for value in column)
                for row, number in zip(self._rows, numbers, strict=True):
                    row[index] = number or row[index]
        self._fold, self._best = fold, frozenset(best)
        self._first = [heads.index(name) for name in dict.fromkeys(first) if name in heads]
        self._bars = {heads.index(name): ends for name, ends in (bars or {}).items() if name in heads}
        self._status = heads.index(_STATUS) if _STATUS in heads else -1

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
        cells = [[" ".join(filter(None, pair)) for pair in self._signed(row)] for row in self._rows]
        is_text = [self._fold or (left and index != self._status) for index, left in enumerate(self._is_left)]
        rooms = [max([0, *(cell_len(row[index]) for row in cells)]) for index in range(len(self._names))]
        rooms = [min(room, _LEAST_TEXT) if text else room for room, text in zip(rooms, is_text, strict=True)]
        folded = [_folded(name, room) for name, room in zip(self._names, rooms, strict=True)]
        layouts = []
        for heads in (self._names, folded):
            least = [
                max(room, *map(cell_len, head.split("\n"))) for room, head in zip(rooms, heads, strict=True)
            ]
            if self._fold:
                least = [min(room, _LEAST_FOLDED) for room in least]
            kept = [*range(len(rooms))] if everything or self._fold else self._kept(least, width)
            excess = max(_sum(least[i] for i in kept) - width, 0)
            layouts.append((len(kept), -excess, heads, least, kept))
        _, _, heads, least, kept = max(layouts, key=lambda layout: layout[:2])
        drawn = rich.table.Table(box=None, padding=(0, len(GAP), 0, 0), header_style="bold")
        for index in kept:
            drawn.add_column(
                Text(heads[index], no_wrap=not self._fold),
                min_width=least[index],
                no_wrap=not is_text[index],
                justify="left" if self._is_left[index] else "right",
                overflow="fold" if self._fold else "ellipsis",
            )
        for number, row in enumerate(cells):
            weight = "bold " if number in self._best else ""
            hue = sign_color(row[self._status][:1]) if self._status >= 0 else ""
            drawn.add_row(
                *(
                    Text(row[index], weight + (hue if index == self._status else ""), no_wrap=not self._fold)
                    for index in kept
                )
            )
        # the last column also has a gap
        console = Console(width=max(width, _sum(least[i] for i in kept)) + len(GAP), force_jupyter=False)
        lines = []
        for segments in console.render_lines(drawn, pad=False):
            line = Text.assemble(*((part.text, part.style or "") for part in segments))
            line.rstrip()
            lines.append(line)
        return lines, [name for index, name in enumerate(self._names) if index not in kept]

    def _kept(self, least: Sequence[int], width: int) -> list[int]:
        """Return the columns that fit a width, the important ones first."""
        kept: list[int] = []
        for index in dict.fromkeys([*self._first, *range(len(least))]):
            if not kept or _sum(least[i] for i in [*kept, index]) <= width:
                kept.append(index)
        return sorted(kept)

    def to_html(self) -> str:
        """Return the table as HTML for a notebook, for light and dark pages, and without scripts."""
        sides = [f"text-align: {'left' if is_left else 'right'}" for is_left in self._is_left]
        heads = (
            f'<th style="{side}">{escape(name)}</th>' for side, name in zip(sides, self._names, strict=True)
        )
        lines = [f"<thead><tr>{''.join(heads)}</tr></thead>"]
        for number, row in enumerate(self._rows):
            cells = []
            for index, (sign, content) in enumerate(self._signed(row)):
                style = f"{sides[index]}; {_CELL}"
                if number in self._best:
                    style += "; font-weight: bold"
                value, (low, high) = self._values[number][index], self._bars.get(index, (0.0, 0.0))
                if low < high and isinstance(value, float | int) and math.isfinite(value):
                    end = f"{100 * (value - low) / (high - low):.0f}%"
                    style += f"; background: linear-gradient(90deg, {_BAR} {end}, transparent {end})"
                front = f"{signed(sign, sign)} " if sign else ""
                cells.append(f'<td style="{style}" title="{escape(content)}">{front}{escape(content)}</td>')
            lines.append(f"<tr>{''.join(cells)}</tr>")
        content = "\n".join(lines)
        return f'<div style="overflow-x: auto"><table class="dataframe">{content}</table></div>'

    _repr_html_ = to_html

    def to_markdown(self) -> str:
        """Return the table as Markdown, with the best rows in bold."""
        rows = [[_markdown(content) for content in row] for row in [self._names, *self._rows]]
        for number in self._best:
            rows[number + 1] = [f"**{content}**" if content else "" for content in rows[number + 1]]
        rows.insert(1, ["---" if is_left else "---:" for is_left in self._is_left])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def to_latex(self) -> str:
        """Return the table as LaTeX for the package booktabs, with the best rows in bold."""
        import pandas as pd

        style = pd.DataFrame(self._rows, columns=self._names, dtype=object).style.hide(axis="index")
        style = style.format(escape="latex").format_index(escape="latex", axis="columns")
        style.set_properties(subset=(sorted(self._best), slice(None)), textbf="--rwrap")
        sides = "".join("l" if is_left else "r" for is_left in self._is_left)
        return str(style.to_latex(hrules=True, column_format=sides)).rstrip().translate(_LATEX)

    def _signed(self, row: Sequence[str]) -> list[tuple[str, str]]:
        """Return the sign and the text of each cell; only a status has a sign."""
        return [
            (_SIGNS.get(content, "") if index == self._status else "", content)
            for index, content in enumerate(row)
        ]


def sign_color(sign: str, *, is_page: bool = False) -> str:
    """Return the color of a sign; "" for a sign without a color."""
    return _COLORS.get(sign, ("", ""))[is_page]


def signed(content: str, sign: str) -> str:
    """Return text as HTML in the color of a sign.

    >>> signed("1 < 2", "!"), signed("1 < 2", "")
    ('<span style="color: #c88a04">1 &lt; 2</span>', '1 &lt; 2')
    """
    hue = sign_color(sign, is_page=True)
    return f'<span style="color: {hue}">{escape(content)}</span>' if hue else escape(content)


def wrapped(content: str, width: int, first: str = "", others: str | None = None) -> list[str]:
    """Wrap text between words; only a word that is longer than `width` makes a line longer.

    >>> wrapped("one two three", 9, "- ", "  ")
    ['- one two', '  three']
    >>> wrapped("it takes 4 % of 20 min", 10)
    ['it takes', '4 % of', '20 min']
    """
    others = first if others is None else others
    wrapper = textwrap.TextWrapper(
        width, first, others, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(HARD, " ") for line in wrapper.wrap(_UNIT.sub(HARD, content))] or [first.rstrip()]


def _sum(widths: Iterable[int]) -> int:
    return sum(width + len(GAP) for width in widths) - len(GAP)


def _folded(name: str, width: int) -> str:
    """Fold a heading that is wider than its column behind blanks and underscores."""
    spaced = _UNDERSCORES.sub(r"\1 ", name)
    width = max([width, cell_len(name) // _MOST_LINES, *map(cell_len, spaced.split())])
    return name if cell_len(name) <= width else textwrap.fill(spaced, width).replace("_ ", "_")


def _markdown(content: str) -> str:
    r"""Escape characters that are markup in Markdown, or in HTML inside Markdown.

    >>> _markdown("a|b_c <i>")
    'a\\|b\\_c &lt;i>'
    """
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", content).replace("&", "&amp;").replace("<", "&lt;")

"""Tables of text, drawn for terminals, files, notebooks and documents."""

import math
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Self

import rich.table
from rich.cells import cell_len
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
_UNDERSCORES = re.compile(r"(?<=[^_])_+(?=[^_])")  # what a heading may be folded behind, beside blanks
_UNIT = re.compile(r"(?<=\d) (?=%|\w)")  # the blanks that may not end a line
HARD = "\N{NO-BREAK SPACE}"
_STATUS = "status"
_SIGNED = {str(status): f"{status.sign} {status}" for status in Status}
_COLORS = {
    "✓": ("green", "#2e9e4f"),
    "✗": ("red", "#e5534b"),
    "!": ("yellow", "#c88a04"),
    "…": ("cyan", "#2f93c8"),
}  # the colors in a terminal, and on a page, mixed with the color of its text for a contrast of 4.5:1
_BAR = "rgba(84, 137, 214, 0.32)"  # text on this color is readable on white and on black pages
_CELL = "white-space: nowrap; max-width: 26em; overflow: hidden; text-overflow: ellipsis"
_MARKDOWN = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_[]|~$"} | {"&": "&amp;", "<": "&lt;"})
# what pandas does not escape, although LaTeX's default fonts have other glyphs there
_LATEX = str.maketrans({"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"})


class Table:
    """A table of text for terminals, files and notebooks; numbers have four digits and are aligned right.

    The columns of `right` are text, those of `even` have equal decimals. `fitted` leaves out those not in
    `first` before others, and folds headings only if one of `first` does not fit. `fold` folds long texts,
    whose end is cut otherwise; other values are never cut. `bars` has the numbers with an empty and a full bar.
    """

    def __init__(
        self,
        names: Iterable[str],
        rows: Iterable[Sequence[Any]],
        *,
        right: Collection[str] = (),
        fold: bool = False,
        even: Collection[str] = (),
        first: Sequence[str] = (),
        best: Collection[int] = (),
        bars: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self._names, self._values = list(names), list(rows)
        self._heads = [printable(name) for name in self._names]
        self._fold, self._first, self._best, self._bars = fold, first, best, bars or {}
        self._columns: list[list[str]] = []  # the texts of each column
        self._signed: list[list[str]] = []  # the same, with a sign in front of each status
        self._is_left: list[bool] = []
        for index, name in enumerate(self._names):
            values = [row[index] for row in self._values]
            texts = [cell(value) for value in values]
            if name in even:
                numbers = aligned(value if isinstance(value, float) else math.nan for value in values)
                texts = [number or content for number, content in zip(numbers, texts, strict=True)]
            self._columns.append(texts)
            self._signed.append([_SIGNED.get(text, text) for text in texts] if name == _STATUS else texts)
            self._is_left.append(name not in right and any(isinstance(value, str) for value in values))

    @classmethod
    def of(cls, rows: "pd.DataFrame | Sequence[Mapping[str, Any]]", **options: Any) -> Self:
        """Make a table from a DataFrame, or from rows (column -> value) that may lack columns."""
        if not isinstance(rows, Sequence):
            return cls(map(str, rows), rows.itertuples(index=False, name=None), **options)
        names = list(dict.fromkeys(name for row in rows for name in row))
        return cls(names, [[row.get(name, math.nan) for name in names] for row in rows], **options)

    def lines(self) -> list[str]:
        """Return the lines of the headings and the rows as plain text, for a file."""
        return [line.plain for line in self.fitted(ENDLESS)[0]]

    def fitted(self, width: int, *, everything: bool = False) -> tuple[list[Text], list[str]]:
        """Draw the columns that fit a width, or `everything`; return the lines, and the names of the others."""
        everything |= self._fold or width >= ENDLESS
        columns = self._columns if width >= ENDLESS else self._signed
        is_text = [width < ENDLESS and (is_left or self._fold) for is_left in self._is_left]
        rooms = [max(map(cell_len, texts), default=0) for texts in columns]
        rooms = [min(room, _LEAST_TEXT) if text else room for room, text in zip(rooms, is_text, strict=True)]
        for heads in (self._heads, [*map(_folded, self._heads, rooms)]):
            widths = [max(map(cell_len, head.split("\n"))) for head in heads]
            least = [*map(max, rooms, widths)]
            kept = self._kept(least, width)
            left_out = [head for index, head in enumerate(self._heads) if index not in kept]
            if {*self._first}.isdisjoint(left_out):
                break
        if everything:
            kept, left_out = [*range(len(heads))], []
        if self._fold:
            least = [min(room, _LEAST_FOLDED) for room in least]
        drawn = rich.table.Table(box=None, padding=(0, len(GAP), 0, 0))
        for index in kept:
            drawn.add_column(
                Text(heads[index]),
                min_width=least[index],
                no_wrap=not is_text[index],
                justify="left" if self._is_left[index] else "right",
                overflow="fold" if self._fold else "ellipsis",
            )
        for number, row in enumerate(zip(*(columns[index] for index in kept), strict=True)):
            cells = [Text(content, sign_color(content[:1]), no_wrap=not self._fold) for content in row]
            drawn.add_row(*cells, style="bold" if number in self._best else "")
        # the last column also has a gap; without a height, a dumb terminal would have 80 columns
        console = Console(width=max(width, _sum(least, kept)) + len(GAP), height=1)
        rows = []
        for segments in console.render_lines(drawn, pad=False):
            line = Text.assemble(*((part.text, part.style or "") for part in segments))
            line.rstrip()
            rows.append(line)
        return rows, left_out

    def _kept(self, least: Sequence[int], width: int) -> list[int]:
        """Return the columns that fit a width, the important ones first."""
        first = [self._names.index(name) for name in self._first if name in self._names]
        kept: list[int] = []
        for index in dict.fromkeys([*first, *range(len(least))]):
            if not kept or _sum(least, [*kept, index]) <= width:
                kept.append(index)
        return sorted(kept)

    def to_html(self) -> str:
        """Return the table as HTML for a notebook, for light and dark pages, and without scripts."""
        sides = [f"text-align: {'left' if is_left else 'right'}" for is_left in self._is_left]
        heads = zip(sides, self._heads, strict=True)
        rows = ["".join(f'<th style="{side}">{escape(head)}</th>' for side, head in heads), "</tr></thead>"]
        for number, row in enumerate(zip(*self._signed, strict=True)):
            rows.append("<tr>")
            for name, side, value, content in zip(self._names, sides, self._values[number], row, strict=True):
                style, (low, high) = f"{side}; {_CELL}", self._bars.get(name, (0.0, 0.0))
                if number in self._best:
                    style += "; font-weight: bold"
                if low < high and isinstance(value, float | int):  # of NaN, the style has no effect
                    end = f"{100 * (value - low) / (high - low):.0f}%"
                    style += f"; background: linear-gradient(90deg, {_BAR} {end}, transparent {end})"
                rows.append(
                    f'<td style="{style}" title="{escape(content)}">{signed(content, content[:1])}</td>'
                )
            rows.append("</tr>")
        return (
            f'<div style="overflow-x: auto"><table class="dataframe"><thead><tr>{"".join(rows)}</table></div>'
        )

    _repr_html_ = to_html

    def to_markdown(self) -> str:
        """Return the table as Markdown, with the best rows in bold."""
        rows = []
        for number, row in enumerate([self._heads, *zip(*self._columns, strict=True)], -1):
            texts = [content.translate(_MARKDOWN) for content in row]
            rows.append([f"**{text}**" if text else "" for text in texts] if number in self._best else texts)
        rows.insert(1, ["---" if is_left else "---:" for is_left in self._is_left])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def to_latex(self) -> str:
        """Return the table as LaTeX for the package booktabs."""
        import pandas as pd

        rows = pd.DataFrame(zip(*self._columns, strict=True), columns=self._heads, dtype=object)
        sides = "".join("l" if is_left else "r" for is_left in self._is_left)
        return rows.to_latex(index=False, escape=True, column_format=sides).rstrip().translate(_LATEX)


def sign_color(sign: str, *, is_page: bool = False) -> str:
    """Return the color of a sign; "" for a sign without a color."""
    return _COLORS.get(sign, ("", ""))[is_page]


def signed(content: str, sign: str) -> str:
    """Return text as HTML in the color of a sign."""
    hue = sign_color(sign, is_page=True)
    return (
        f'<span style="color: color-mix(in srgb, {hue} 65%, currentColor)">{escape(content)}</span>'
        if hue
        else escape(content)
    )


def wrapped(content: str, width: int, first: str = "", others: str = "") -> list[str]:
    """Wrap text between words; only a word that is longer than `width` makes a line longer."""
    wrapper = textwrap.TextWrapper(width, first, others, break_long_words=False, break_on_hyphens=False)
    return [line.replace(HARD, " ") for line in wrapper.wrap(_UNIT.sub(HARD, content))] or [first.rstrip()]


def _sum(widths: Sequence[int], columns: Sequence[int]) -> int:
    return sum(widths[index] + len(GAP) for index in columns) - len(GAP)


def _folded(head: str, width: int) -> str:
    """Fold a heading that is wider than its column behind blanks and underscores."""
    spaced = _UNDERSCORES.sub(r"\g<0> ", head)
    width = max([width, cell_len(head) // _MOST_LINES, *map(cell_len, spaced.split())])
    return head if cell_len(head) <= width else textwrap.fill(spaced, width).replace("_ ", "_")

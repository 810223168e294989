"""Display a table: in a notebook with bars and colors, elsewhere as text, Markdown or LaTeX."""

import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import pandas as pd
from pandas.api.types import is_float_dtype
from rich.text import Text

from runmanager.answers.sentences import capital
from runmanager.answers.verdict_sentence import two_digits
from runmanager.core.wording import listed
from runmanager.drawing.table import ENDLESS, Table, wrapped
from runmanager.tables.cells import aligned, cell, durations, join
from runmanager.tables.columns import hyperparameters_of
from runmanager.tables.where import check_columns

TIMES = ("run duration", "epoch duration")  # the columns of seconds that are displayed as durations

_MOST_IN_NOTEBOOK = 8  # maximum number of columns in a notebook
_MOST_NAMES = 6  # maximum number of hidden columns that the caption names


@dataclass(frozen=True, repr=False)
class View:
    """Some rows and columns of a table, drawn as a table in a notebook and written as text elsewhere."""

    rows: pd.DataFrame  # with all columns
    notes: Sequence[str]  # the caption, as sentences
    main: Sequence[str]  # the columns drawn by default
    first: Sequence[str]  # the columns by importance; narrow terminals leave out the last
    best: Sequence[int]  # positions of the rows to emphasize
    bars: Mapping[str, tuple[float, float]]  # column -> the number with an empty and with a full bar
    columns: Sequence[str]  # of `table`, by importance
    same: str  # the end of the caption: columns left out, as all values are equal

    def __repr__(self) -> str:
        is_terminal = bool(sys.stdout) and sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if is_terminal else ENDLESS
        lines, caption = self._fitted(width)
        return "\n".join([*(line.plain for line in lines), *wrapped(caption, width)])

    def _repr_html_(self) -> str:
        if self.table.empty:
            return f"<p>{escape(self._fitted(ENDLESS)[1])}</p>"
        main = self._main_with_values
        order = sorted(main, key=lambda name: self.first.index(name) if name in self.first else math.inf)
        left_out = order[_MOST_IN_NOTEBOOK:]
        table = self.drawn([name for name in main if name not in left_out]).to_html()
        sentences = filter(None, [*self.notes, self.same, self._not_drawn(left_out)])
        texts = [escape(capital(each) + "." * (each[-1] not in ".?!")) for each in sentences]
        return f"{table}\n<p>{' '.join(texts)}</p>"

    @property
    def table(self) -> pd.DataFrame:
        """The rows, without the columns that are the same in all of them."""
        return self.rows[list(self.columns)]

    @property
    def _main_with_values(self) -> list[str]:
        """The main columns, without those that are empty in all rows."""
        return [name for name in self.main if any(map(cell, self.rows[name]))]  # None is a value

    @property
    def caption(self) -> str:
        """The notes in one line."""
        return join([*self.notes, self.same])

    def to_markdown(self) -> str:
        """Return the columns that `print` shows as a table for GitHub and notebooks, the best rows in bold."""
        return self.drawn().to_markdown()

    def to_latex(self, names: Sequence[str] | None = None) -> str:
        r"""Return the columns that `print` shows as a LaTeX table, for ``\usepackage{booktabs}``.

        A mean has the standard deviation between the repeats (divisor n - 1) behind ±.
        """
        rows = self.rows.copy()
        for name in self.rows:
            if (std := f"{name} std") in rows:
                pairs = zip(aligned(rows[name]), map(two_digits, rows[std]), strict=True)
                rows[name] = [" ± ".join(pair).removesuffix(" ± nan") for pair in pairs]
        return replace(self, rows=rows).drawn(names).to_latex().replace("±", r"$\pm$")

    def drawn(self, names: Sequence[str] | None = None, *, is_plain: bool = False) -> Table:
        """Return the table for display, with the given columns or the main columns."""
        rows = self.rows
        if names is None:
            names = self._main_with_values
        check_columns(names, rows)
        table = rows[list(names)].replace({"95 % interval": {"": "–"}})  # noqa: RUF001
        measured = [name for name in names if is_float_dtype(table[name])]
        times = [name for name in TIMES if name in measured and not is_plain]
        for name in times:
            table[name] = pd.Series(durations(table[name]), table.index, dtype="object")
        return Table.of(
            table,
            right=[*times, "repeats"],
            even=[name for name in measured if name not in hyperparameters_of(rows)],
            first=self.first,
            best=self.best,
            bars=self.bars,
        )

    def head(self, number: int) -> "View":
        """Return a view with the first rows."""
        return replace(self, rows=self.rows.head(number), best=[row for row in self.best if row < number])

    def hidden(self, left_out: Sequence[str]) -> list[str]:
        """Return the columns that are not drawn: first `left_out`, for lack of space, then all others."""
        return [*left_out, *(str(name) for name in self.table if name not in self.main)]

    def _not_drawn(self, left_out: Sequence[str]) -> str:
        names = self.hidden(left_out)
        return f"not shown: {listed(names, _MOST_NAMES)}" if names else ""

    def _fitted(self, width: int) -> tuple[list[Text], str]:
        """Return the lines that fit a width, none without rows, and the caption."""
        if self.table.empty:
            return [], join(["no rows", self.caption])
        lines, left_out = self.drawn().fitted(width)
        return lines, join([self.caption, self._not_drawn(left_out)])


def span(values: Iterable[Any]) -> tuple[float, float]:
    """Return the numbers with an empty and with a full bar; the smallest number has a short bar."""
    numbers = [float(value) for value in values if isinstance(value, float | int) and math.isfinite(value)]
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    return low - (high - low) / 9, high

"""Show the best runs first, and only the columns that differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from runmanager.console import Table, cell, join, printable
from runmanager.results.effects import OVERALL
from runmanager.results.ranking import best, main_metric, numbered
from runmanager.results.tables import check_table, hyperparameters_of

_LEADING = ("experiment", "run", "epoch", "status")


@dataclass(frozen=True, repr=False)
class View:
    """Some rows and columns of a table: drawn in a notebook, text elsewhere."""

    table: pd.DataFrame
    caption: str  # how the rows are sorted, and what is left out

    def __repr__(self) -> str:
        return "\n".join([*Table.of(self.table).lines(), self.caption]) if len(self.table) else "no rows"

    def _repr_html_(self) -> str:
        return f"{Table.of(self.table).to_html()}\n<p>{escape(self.caption)}</p>"


def show(runs: pd.DataFrame, by: str | None = None, n: int = 20, *, largest: bool | None = None) -> View:
    """Show the best runs, without the columns that are the same in all of them.

    Args:
        runs: What `load_runs` or `load_results` returned, or rows of it. What `compare`, `over_seeds` or
            `effects` returned is shown in its own order.
        by: The column to sort by, as in `best`.
        n: How many rows.
        largest: As in `best`.

    Returns:
        What a notebook draws and `print` writes; its `table` has the rows and columns.

    Raises:
        InvalidArgumentError: As `best` does.

    Example:
        >>> runs = pd.DataFrame({"run": [1, 2], "lr": [0.1, 0.01], "epochs": 5, "accuracy": [0.81, 0.86]})
        >>> show(runs)  # doctest: +NORMALIZE_WHITESPACE
        run accuracy   lr
          2     0.86 0.01
          1     0.81  0.1
        best accuracy first · the same in all: epochs=5
    """
    check_table(runs)
    if by is None and OVERALL not in runs.attrs:
        by = main_metric(runs)
    same = {name: values[0] for name in runs if len(values := numbered(runs[name])[1]) == 1}
    first = dict.fromkeys([*_LEADING, *hyperparameters_of(runs), *([by] if by else [])])
    order = [*(name for name in first if name in runs), *(name for name in runs if name not in first)]
    columns = [name for name in order if len(runs) == 1 or name not in same or name in ("run", by)]
    rows = best(runs, by, n, largest=largest) if by else runs.head(n)
    dropped = {name: cell(same[name]) for name in order if name not in columns}
    left_out = ", ".join(f"{name}={value}" for name, value in dropped.items() if value)
    parts = (
        f"{len(rows):,} of {len(runs):,} rows" if len(rows) < len(runs) else "",
        f"best {by} first" if by else "",
        *map(_sentence, runs.attrs.get(OVERALL, ())),
        f"the same in all: {left_out}" if left_out else "",
    )
    return View(rows[columns].reset_index(drop=True), printable(join(parts)))


def _sentence(overall: Mapping[str, Any]) -> str:
    low, mean, high = (cell(overall[name]) for name in ("low", "mean", "high"))
    interval = f", 95 % interval {low} to {high}" if low else ""
    return f"{overall['ratio']}: {mean} (geometric mean of {overall['n']}{interval})" if mean else ""

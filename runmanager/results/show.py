"""Show runs as a person wants to see them: the best first, and only what differs."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from runmanager.console import Table, cell, join
from runmanager.results.ranking import OVERALL, best, main_metric, numbered
from runmanager.results.tables import HYPERPARAMETERS, check_table

if TYPE_CHECKING:
    import pandas as pd

_LEADING = ("experiment", "run", "epoch", "status")


@dataclass(frozen=True, repr=False)
class View:
    """Rows of a table as they are shown: drawn in a notebook, as text elsewhere.

    Attributes:
        table: What is shown, a plain DataFrame.
        caption: What is left out, and how the rows are sorted.
    """

    table: "pd.DataFrame"
    caption: str

    def __repr__(self) -> str:
        return "\n".join([*Table.of(self.table).lines(), self.caption]) if len(self.table) else "no rows"

    def _repr_html_(self) -> str:
        return f"{Table.of(self.table).to_html()}\n<p>{escape(self.caption)}</p>"


def show(runs: "pd.DataFrame", by: str | None = None, n: int = 20, *, largest: bool | None = None) -> View:
    """Show the best runs, without the columns that are the same in all of them.

    Args:
        runs: What `load_runs` or `load_results` gave, or rows of it; what `compare`, `over_seeds` or `effects`
            gave is shown in its own order.
        by: The column to sort by, as in `best`.
        n: How many rows.
        largest: As in `best`.

    Returns:
        What a notebook draws and `print` writes; the rows and columns are its `table`.

    Raises:
        GridError: As `best` does.
    """
    check_table(runs)
    if by is None and OVERALL not in runs.attrs:
        by = main_metric(runs)
    same = {name: values[0] for name in runs if len(values := numbered(runs[name])[1]) == 1}
    params = [name for name in runs.attrs.get(HYPERPARAMETERS, ()) if name in runs]
    first = dict.fromkeys([*_LEADING, *params, *([by] if by else [])])
    order = [*(name for name in first if name in runs), *(name for name in runs if name not in first)]
    shown = [name for name in order if len(runs) == 1 or name not in same or name in ("run", by)]
    rows = best(runs, by, n, largest=largest) if by else runs.head(n)
    left_out = ", ".join(
        f"{name}={cell(same[name])}" for name in order if name not in shown and cell(same[name])
    )
    parts = (
        f"{len(rows):,} of {len(runs):,} rows" if len(rows) < len(runs) else "",
        f"best {by} first" if by else "",
        *map(_sentence, runs.attrs.get(OVERALL, ())),
        f"the same in all: {left_out}" if left_out else "",
    )
    return View(rows[shown].reset_index(drop=True), join(parts))


def _sentence(overall: Mapping[str, Any]) -> str:
    low, mean, high = (cell(overall[name]) for name in ("low", "mean", "high"))
    interval = f", 95 % interval {low} to {high}" if low else ""
    return f"{overall['ratio']}: {mean} (geometric mean of {overall['n']}{interval})" if mean else ""

"""What the commands that print tables share: which rows and columns, in which order, and for which reader."""

import shutil
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runmanager.cli.common import say
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.wording import did_you_mean, join, listed

if TYPE_CHECKING:
    import pandas as pd

    from runmanager.results.view import View


def check_limit(limit: int | None) -> int | None:
    """Refuse a number of rows that is not positive."""
    problems = Problems()
    if limit is not None:
        problems.check_count("--limit (-n)", limit, 1)
    problems.raise_if_any(InvalidArgumentError)
    return limit


Where = Annotated[
    str | None,
    typer.Option(
        "--where", metavar="CONDITION", help="Which rows, as 'lr<0.1 and status=failed'.", show_default=False
    ),
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="A,B", help="These columns, in this order.", show_default=False),
]
Sort = Annotated[
    str | None,
    typer.Option(
        "--sort", metavar="A,-B", help="Sort by columns; '-' in front: descending.", show_default=False
    ),
]
All = Annotated[bool, typer.Option("--all", help="Every column and every row.")]
Limit = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--limit",
        callback=check_limit,
        metavar="N",
        help="How many rows; by default a screenful.",
        show_default=False,
    ),
]
SCREENFUL = 40
"""How many rows a terminal gets unless asked for more; a file gets all."""


def load(*folders: Path, where: str | None = None) -> "pd.DataFrame":
    """Load the runs of folders that meet a condition.

    Raises:
        FileNotFoundError: There are no runs at all.
        typer.Exit: No run meets the condition.
    """
    from runmanager.results.loading import load_runs
    from runmanager.storage.folders import no_runs

    runs = load_runs(folders)
    if runs.empty:
        raise FileNotFoundError(no_runs(folders[0]))
    return meeting(runs, where)


def meeting(runs: "pd.DataFrame", where: str | None) -> "pd.DataFrame":
    """Return the runs that meet a condition."""
    from runmanager.results.where import select

    if where is None:
        return runs
    rows = select(runs, where)
    if rows.empty:
        say(f"none of {len(runs):,} runs meets --where {where!r}")
    return rows


def in_order(view: "View", by: str | None) -> "View":
    """Sort the rows of a view by columns, those without a value last.

    Raises:
        InvalidArgumentError: There is no such column.
    """
    from runmanager.results.where import names_in

    rows = view.whole if len(view.whole) else view.table
    names = [(name, False) if name in rows else (name.removeprefix("-"), True) for name in names_in(by or "")]
    problems = [
        f"these runs have no column {name!r}; {did_you_mean(name, rows)}"
        for name, _ in names
        if name not in rows
    ]
    if problems:
        raise InvalidArgumentError(problems)
    order = list(range(len(rows)))
    for name, is_descending in reversed(names):
        keys = _keys(rows[name]).iloc[order].reset_index(drop=True)
        positions = keys.sort_values(ascending=not is_descending, kind="stable", na_position="last").index
        order = [order[position] for position in positions]
    return view.taken(order) if names else view


def _keys(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return what sorts values: numbers as such, values of several types as text."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(values):
        return values
    numbers = pd.to_numeric(values, errors="coerce") if values.dtype == object else None
    if numbers is not None and not numbers.isna().any():
        return numbers
    return pd.Series(list(map(str, values)), values.index, dtype="object")  # also half a surrogate pair


def print_view(view: "View", columns: str | None, *, everything: bool = False, title: str = "") -> None:
    """Print a table and what there is to say about it.

    A terminal gets the columns that matter most and for which it has room, and the names of the others. A file
    or a pipe gets every column whole, in lines as long as they need to be, as who searches it relies on that.
    """
    from runmanager.console import print_fitted, wide_console
    from runmanager.results.where import names_in

    console = wide_console()
    if view.table.empty:
        return
    names = names_in(columns) if columns else None
    if names is None and (everything or not console.is_terminal):
        others = [str(name) for name in view.whole if name not in view.table]
        names = [*map(str, view.table), *others]
    drawn = view.drawn(names, is_plain=not console.is_terminal)
    if title:
        tell(title)
    if columns or everything:
        console.print(drawn, soft_wrap=True)
        left_out = []
    else:
        left_out = print_fitted(drawn, console)
    hidden = view.hidden(left_out) if names is None else left_out
    tell(view.caption)
    if hidden:
        tell(f"not shown: {listed(hidden, 6)}; --all")


def tell(caption: str) -> None:
    """Write what there is to say about a table to standard error; a terminal need not break its lines."""
    if caption and sys.stderr and sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        lines = textwrap.wrap(caption, width, break_long_words=False, break_on_hyphens=False)
        caption = "\n".join(lines)
    if caption:
        say(caption)


def limited(view: "View", limit: int | None, what: str, *, everything: bool = False) -> "View":
    """Return as many rows as were asked for, else as a terminal shows; the caption counts them."""
    from runmanager.console import wide_console

    if limit is None and (everything or not wide_console().is_terminal):
        return view
    most, total = SCREENFUL if limit is None else limit, len(view.table)
    if total <= most:
        return view
    note = f"{most:,} of {total:,} {what}; {'--all' if limit is None else '-n'} for more"
    cut = view.taken(range(most))
    return replace(cut, caption=join([note, cut.caption]))

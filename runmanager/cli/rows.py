"""The selection, the order and the output of rows, for all commands that show rows."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from runmanager.cli.common import say, write_json
from runmanager.core.wording import listed
from runmanager.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pandas as pd

    from runmanager.answers.view import View


SCREENFUL = 40
"""The default number of rows in a terminal; a file gets all rows."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rows and columns that the user selected, for text and for JSON.

    Options:
        where (COMPARISON): Only these rows, as --where "lr<0.1". Repeat it for several comparisons.
        columns (A,B): Only these columns, in this order.
        limit (N): Number of rows. Default: 40 in a terminal.
        everything: Show every column and row.
        latex: Write a LaTeX table, for booktabs.
    """

    where: list[str] | None = None
    columns: str | None = None
    limit: int | None = None
    everything: bool = False
    latex: bool = False
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InvalidArgumentError(f"--limit (-n) must be a whole number, 1 or more, got {self.limit}")


def is_table(path: Path) -> bool:
    """Whether a path is a file that `load_table` reads."""
    return path.suffix in (".csv", ".json", ".parquet") and path.is_file()


def load_selected(
    *folders: Path,
    where: Sequence[str] | None = None,
    goal: str | Sequence[str] | None = None,
    repeats: Sequence[str] | None = None,
    hyperparameters: str | None = None,
) -> "pd.DataFrame":
    """Load those runs of the folders, or of a file of another tool, that meet a condition."""
    from runmanager.tables.columns import HYPERPARAMETERS
    from runmanager.tables.elsewhere import certain_hyperparameters
    from runmanager.tables.formats import load_table
    from runmanager.tables.loading import load_runs
    from runmanager.tables.roots import no_runs
    from runmanager.tables.where import names_in

    folders = folders or (Path("runs"),)
    file = next(filter(is_table, folders), None)
    if file is None:
        if hyperparameters:
            raise InvalidArgumentError("--hyperparameters is for a file of another tool: a run names its own")
        runs = load_runs(folders)
    elif len(folders) > 1:
        raise InvalidArgumentError(f"{file} is a table: give one table, or folders of runs")
    else:
        runs = load_table(file)
        names = names_in(hyperparameters or "") or runs.attrs.get(HYPERPARAMETERS)
        if not names and repeats:
            names = certain_hyperparameters(runs, [goal] if isinstance(goal, str) else goal or (), repeats)
            if names:
                say(f"{file}: the hyperparameters are {listed(names)}; to correct: --hyperparameters")
        if not names:
            raise InvalidArgumentError(
                f"{file} does not say which columns are hyperparameters: name them among {listed(runs)}, "
                "as --hyperparameters lr,width --repeats seed"
            )
        runs = load_table(runs, names, repeats=repeats, goal=goal)
    if runs.empty:
        raise FileNotFoundError(no_runs(folders[0]))
    runs = meeting(runs, where)
    if runs.empty:
        raise typer.Exit
    return runs


def meeting(runs: "pd.DataFrame", where: Sequence[str] | None) -> "pd.DataFrame":
    """Return the runs that meet all comparisons."""
    from runmanager.tables.where import select

    rows = select(runs, where or ())
    if where and rows.empty:
        say(f"none of {len(runs):,} runs meets {' and '.join(where)}")
    return rows


def print_json(rows: "pd.DataFrame", selection: Selection) -> None:
    """Print the selected rows and columns as JSON."""
    from runmanager.tables.formats import to_rows
    from runmanager.tables.where import check_columns, names_in

    if names := names_in(selection.columns or ""):
        # in tables of settings, the mean of a metric has the metric's name
        rows = rows.rename(columns={f"{name} mean": name for name in names if name not in rows})
        check_columns(names, rows)
        rows = rows[names]
    write_json(to_rows(rows[: selection.limit]))


def print_view(view: "View", selection: Selection) -> None:
    """Print the selected part of a table, in a terminal as many rows as fit by default, and its caption."""
    from runmanager.drawing.console import print_fitted, wide_console
    from runmanager.tables.where import names_in

    console, everything = wide_console(), selection.everything
    if view.table.empty:
        tell(view.caption)
        return
    number = len(view.rows)
    most = selection.limit or (SCREENFUL if console.is_terminal and not everything else number)
    if most < number:
        note = f"{most:,} of {number:,} rows; {'-n' if selection.limit else '--all'} for more"
        view = replace(view.head(most), notes=[note, *view.notes])
    names = names_in(selection.columns or "") or None
    if selection.latex:
        typer.echo(view.to_latex(names))
        return
    if names is None and (everything or not console.is_terminal):
        names = list(dict.fromkeys(map(str, [*view.table, *view.rows])))
        view = replace(view, same="")  # its columns are written too
    drawn = view.drawn(names, is_plain=not console.is_terminal)
    left_out = print_fitted(drawn, console, everything=names is not None)
    tell(view.caption)
    if names is None and (hidden := view.hidden(left_out)):
        tell(f"not shown: {listed(hidden, 6)}; --all")


def tell(caption: str) -> None:
    """Write a caption to standard error, wrapped to the width of a terminal."""
    if caption:
        if sys.stderr and sys.stderr.isatty():
            from runmanager.drawing.table import wrapped

            caption = "\n".join(wrapped(caption, shutil.get_terminal_size().columns))
        say(caption)

"""Commands that rank runs, and set them side by side: best, compare, diff."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runmanager.cli.common import AsJson, Folder, Largest, Metric, RunPath, find_run, say, write_json
from runmanager.hyperparameters import json_value

if TYPE_CHECKING:
    import pandas as pd


def best(
    folder: Folder = Path("runs"),
    by: Metric = None,
    n: Annotated[int, typer.Option("-n", min=1, metavar="N", help="How many rows.")] = 10,
    largest: Largest = None,
    repeats: Annotated[
        list[str] | None,
        typer.Option(
            "--repeats", metavar="AXIS", help="An axis that only repeats a setting; by default the grid's."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the best runs, best first; of repeated settings, the settings with the best mean.

    For example:

      runmanager best runs/fashion_grid
      runmanager best runs/fashion_grid --by "epoch duration" -n 3
      runmanager best runs/fashion_grid --by max:f9 --repeats seed
      runmanager best --json | jq '.[0]'

    Exit codes: 0 shown; 2 no runs or no such metric.
    """
    from runmanager.results.ranking import best as choose
    from runmanager.results.show import show as view

    runs = _load(folder)
    if as_json:
        _write_table(choose(runs, by, n, largest=largest, repeats=repeats), as_json=True)
    else:
        rows = view(runs, by, n, largest=largest, repeats=repeats)
        _write_table(rows.table, as_json=False)
        say(rows.caption)


def compare(
    axis: Annotated[
        str, typer.Argument(metavar="AXIS", help="The hyperparameter, such as device, or 'experiment'.")
    ],
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FOLDER...", help="Roots, experiments or runs.", show_default="runs"),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            metavar="COLUMN",
            help="The column to compare; by default the epoch duration between devices, else the goal.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs that differ in one hyperparameter only, pair by pair.

    For example:

      runmanager compare device runs/fashion_grid      how much faster is the GPU?
      runmanager compare num_workers runs/fashion_grid --value accuracy
      runmanager compare experiment runs/before runs/after

    Exit codes: 0 shown; 2 no runs, no such hyperparameter or no such column.
    """
    from runmanager.results.effects import COMPARED
    from runmanager.results.effects import compare as pair
    from runmanager.results.show import show as view

    pairs = pair(_load(*(folders or [Path("runs")])), axis, value)
    if not as_json:
        say(f"{pairs.attrs[COMPARED]} of runs that differ in {axis} only")
    _write_table(pairs, as_json=as_json)
    caption = view(pairs, n=len(pairs)).caption
    if caption and not as_json:
        say(caption)


def diff(first: RunPath, second: RunPath, as_json: AsJson = False) -> None:
    """Set two experiments or two runs side by side: what differs, and by how much.

    For example:

      runmanager diff runs/before runs/after
      runmanager diff runs/fashion_grid/2 runs/fashion_grid/5
      runmanager diff runs/before/2 runs/after/2 --json

    Exit codes: 0 shown; 2 no such experiment or run.
    """
    from runmanager.console import print_table
    from runmanager.results.diff import diff as differences

    sides = [path if path.exists() else find_run(path)[1].path for path in (first, second)]
    rows = differences(*sides)
    if as_json:
        write_json([{name: json_value(value) for name, value in row.items()} for row in rows])
    elif not rows:
        say(f"nothing differs between {first} and {second}")
    else:
        headings = {"first": str(first), "second": str(second)}
        print_table(
            [{headings.get(name, name): value for name, value in row.items()} for row in rows], most=None
        )


def _load(*folders: Path) -> "pd.DataFrame":
    from runmanager.results.loading import load_runs
    from runmanager.storage.folders import no_runs

    runs = load_runs(folders)
    if runs.empty:
        raise FileNotFoundError(no_runs(folders[0]))
    return runs


def _write_table(table: "pd.DataFrame", *, as_json: bool) -> None:
    from runmanager.console import print_table
    from runmanager.results.files import to_rows

    if as_json:
        write_json(to_rows(table))
    elif table.empty:
        say("nothing to compare: no two completed runs differ in this hyperparameter only and have the column")
    else:
        print_table(table, most=None)

"""The arguments and options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

from runmanager.errors import InvalidArgumentError, Problems


def check_limit(limit: int | None) -> int | None:
    """Refuse a number of rows that is not positive."""
    problems = Problems()
    if limit is not None:
        problems.check_count("--limit (-n)", limit, 1)
    problems.raise_if_any(InvalidArgumentError)
    return limit


Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The root of all experiments, an experiment, or a run.")
]
Root = Annotated[Path, typer.Argument(metavar="FOLDER", help="The root of all experiments, or one experiment.")]
Folders = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FOLDER...", help="Roots, experiments or runs.", show_default="runs"),
]
RunPath = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run's folder, or EXPERIMENT/NUMBER such as runs/fashion_grid/2."),
]
Largest = Annotated[
    bool | None,
    typer.Option(
        "--largest/--smallest",
        help="Which values are good. Known for accuracies, losses, durations and memory; "
        "for any other metric, say --largest or --smallest.",
        show_default=False,
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="COLUMN",
        help="The metric to judge by, also as max:NAME or min:NAME; by default the goal of the grid, else the "
        "validation, test or training accuracy, else a loss.",
    ),
]
Repeats = Annotated[
    list[str] | None,
    typer.Option(
        "--repeats", metavar="AXIS", help="An axis that only repeats a setting; by default the grid's."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Write JSON for scripts, of the rows and columns that were asked for.")
]
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
        help="How many rows; by default a screenful, of `best` 10.",
        show_default=False,
    ),
]

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
    typer.Argument(metavar="FOLDER", help="Roots, experiments or runs. Default: runs.", show_default=False),
]
RunPath = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run's folder, or EXPERIMENT/NUMBER such as runs/fashion_grid/2."),
]
Side = Annotated[Path, typer.Argument(metavar="RUN", help="An experiment, or EXPERIMENT/NUMBER for a run.")]
_GOAL = (
    "Metric that decides, as max:NAME or min:NAME, or its name where that tells its direction. Default: the "
    "goal of the grid, else the validation, test or training accuracy, else the loss."
)
GoalOption = Annotated[str | None, typer.Option("--goal", metavar="METRIC", help=_GOAL)]
Goals = Annotated[
    list[str] | None,
    typer.Option("--goal", metavar="METRIC", help=f"{_GOAL} Several: those that no other beats in all."),
]


def axes_given(repeats: list[str] | None) -> list[str] | None:
    """Return the repeat axes that an option names; '()' alone says that there are none."""
    return [] if repeats == ["()"] else repeats


Repeats = Annotated[
    list[str] | None,
    typer.Option(
        "--repeats",
        metavar="AXIS",
        help="Axis that only repeats a setting, such as seed; '()' for none. Default: the grid's, else axes "
        "that vary and are called seed, fold, split, trial or repeat.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for scripts.")]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Only these rows, as 'lr<0.1 and status=failed'.",
        show_default=False,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="A,B", help="Only these columns, in this order.", show_default=False),
]
Sort = Annotated[
    str | None,
    typer.Option(
        "--sort", metavar="A,-B", help="Sort by columns; '-' in front is descending.", show_default=False
    ),
]
All = Annotated[bool, typer.Option("--all", help="Show every column and row.")]
Limit = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--limit",
        callback=check_limit,
        metavar="N",
        help="Number of rows. Default: 40 in a terminal, 10 for `best`.",
        show_default=False,
    ),
]

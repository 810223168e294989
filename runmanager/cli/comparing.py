"""Commands that rank runs, and set them side by side: best, compare, importances, decide, diff."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from runmanager.cli.common import find_run, say, write, write_json
from runmanager.cli.options import (
    All,
    AsJson,
    Columns,
    Folder,
    Folders,
    GoalOption,
    Goals,
    Limit,
    Repeats,
    Side,
    Sort,
    Where,
    axes_given,
)
from runmanager.cli.rows import Selection, load_selected, print_view, tell, write_rows
from runmanager.hyperparameters import counted, json_value
from runmanager.wording import printable

_NUM_BEST = 10


def best_command(
    folder: Folder = Path("runs"),
    goal: Goals = None,
    limit: Limit = None,
    repeats: Repeats = None,
    where: Where = None,
    columns: Columns = None,
    sort: Sort = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """Rank the runs, or repeated settings, by one metric.

    Repeated settings are ranked by their mean. Of several metrics, the runs are listed that no other beats
    in all of them: the Pareto front. Runs without a value are counted, not listed. A terminal shows
    the columns that matter most; a pipe or a file gets every column.

    For example:

      runmanager best runs/fashion_grid
      runmanager best runs/fashion_grid --goal "epoch duration" -n 3
      runmanager best runs/fashion_grid --goal max:f9 --repeats seed
      runmanager best runs/fashion_grid --goal loss --goal "min:run duration"
      runmanager best --where "lr<0.1 and device=cpu"
      runmanager best --json | jq '.[0]'

    Exit codes: 0 shown; 2 no runs, no such metric or a mistaken condition.
    """
    from runmanager.results.pareto import pareto
    from runmanager.results.ranking import ranking_of, rows_of
    from runmanager.results.show import ranked, show

    selection = Selection(where, columns, sort, None, everything)  # the best are sorted
    n = limit or (None if everything else _NUM_BEST)
    axes = axes_given(repeats)
    runs = load_selected(folder, where=where)
    if runs.empty:
        return
    ranking = ranking_of(runs, goal, axes)
    has_front = len(ranking.goals) > 1
    if as_json:
        tell(ranking.assumption)
        settings = ranking.front if has_front else ranking.settings[:n]
        write_rows(rows_of(runs, ranking, settings), selection)
    elif has_front:
        front = pareto(runs, goal, repeats=axes)
        print_view(show(front, n=limit or len(front)), selection)
    else:
        print_view(ranked(runs, goal, n, axes, with_others=False), selection)


def compare_command(
    axis: Annotated[
        str, typer.Argument(metavar="AXIS", help="The hyperparameter, such as device, or 'experiment'.")
    ],
    folders: Folders = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            metavar="COLUMN",
            help="Column to compare. Default: the epoch duration for device and num_workers, else the goal.",
        ),
    ] = None,
    where: Where = None,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs that differ in one hyperparameter.

    Each row is a pair of runs that agree in all other hyperparameters.

    For example:

      runmanager compare device runs/fashion_grid      how much faster is the GPU?
      runmanager compare num_workers runs/fashion_grid --value accuracy
      runmanager compare lr --where "width=32" --limit 5
      runmanager compare experiment runs/before runs/after

    Exit codes: 0 shown; 2 no runs, no such hyperparameter or column, or no pairs in a sample or a search.
    """
    from runmanager.results.effects import compare as pair
    from runmanager.results.readable import pairs_view

    selection = Selection(where, columns, sort, limit, everything)
    runs = load_selected(*(folders or [Path("runs")]), where=where)
    pairs = runs if runs.empty else pair(runs, axis, value)
    if as_json:
        write_rows(pairs, selection)
    elif len(runs):
        view = pairs_view(pairs)
        for sentence in view.caption.split(" · "):
            tell(sentence)
        print_view(replace(view, caption=""), selection, what="pairs")


def importances_command(
    folder: Folder = Path("runs"),
    goal: GoalOption = None,
    repeats: Repeats = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Show which hyperparameters matter for a good result.

    It suits the runs of a sample or a search, whose hyperparameters vary together. The shares add up to 1: how
    much each hyperparameter distinguishes the best tenth of the runs from all (PED-ANOVA). It needs Optuna.

    For example:

      runmanager importances runs/searched
      runmanager importances runs/searched --goal min:test_loss
      runmanager importances runs/searched --where "optimizer=adam" --json

    Exit codes: 0 shown; 2 no runs, no such metric, or Optuna is not installed.
    """
    from runmanager.console import print_fitted
    from runmanager.results.files import to_rows
    from runmanager.results.importance import COUNTED, ENOUGH, IMPORTANT_FOR
    from runmanager.results.importance import importances as shares_of
    from runmanager.results.ranking import ASSUMED
    from runmanager.table import Table

    runs = load_selected(folder, where=where)
    if runs.empty:
        return
    shares = shares_of(runs, goal, repeats=axes_given(repeats))
    if as_json:
        write_json(to_rows(shares))
        return
    number, metric = shares.attrs[COUNTED], printable(shares.attrs[IMPORTANT_FOR])
    if shares.empty or shares["importance"].isna().all():
        say("no hyperparameter varies" if shares.empty else f"all runs have the same {metric}")
        return
    print_fitted(Table.of(shares, bars={"importance": (0.0, 1.0)}))
    chance = f"; of only {number:,}, that may be chance" if number < ENOUGH else ""
    tell(shares.attrs[ASSUMED])
    tell(f"what distinguishes the best tenth of {counted(number, 'result')} by {metric} from all{chance}")


def decide_command(
    axis: Annotated[
        str | None,
        typer.Argument(
            metavar="AXIS",
            help="Hyperparameter whose values are compared, or 'experiment', or 'setting'. "
            "Default: that of decide=, else 'setting'.",
        ),
    ] = None,
    folders: Folders = None,
    goal: GoalOption = None,
    repeats: Repeats = None,
    margin: Annotated[
        float | None,
        typer.Option(
            metavar="SIZE",
            help="Difference that does not matter, in units of the metric. Default: that of decide=.",
        ),
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Probability that the verdict is wrong. Default: that of decide=, else 0.05."
        ),
    ] = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Say whether the repeats have decided which one is best.

    It executes nothing. It may be asked after every repeat: that does not make it wrong more often.

    For example:

      runmanager decide optimizer runs/fashion_grid      is adam better than sgd?
      runmanager decide runs/fashion_grid                which setting is best?
      runmanager decide device runs/fashion_grid --goal accuracy --margin 0.002
      runmanager decide experiment runs/before runs/after

    Exit codes: 0 shown, decided or not; 2 no runs, no such hyperparameter or no such column.
    """
    from runmanager.console import print_fitted
    from runmanager.results.files import to_rows
    from runmanager.results.verdict import verdict

    is_folder = axis is not None and _is_folder(axis, alone=not folders)
    paths = [*([Path(str(axis))] if is_folder else ()), *(folders or ())] or [Path("runs")]
    runs = load_selected(*paths, where=where)
    if runs.empty:
        return
    answer = verdict(
        runs, None if is_folder else axis, goal=goal, repeats=axes_given(repeats), margin=margin, error=error
    )
    if as_json:
        names = ("sentence", "outcome", "decided", "better", "worse", "difference", "low", "high", "repeats")
        fields = {
            name: json_value(getattr(answer, name)) for name in (*names, "evidence", "metric", "assumptions")
        }
        write_json({**fields, "table": to_rows(answer.table)})
        return
    write(answer.sentence)
    print_fitted(answer.drawn())
    tell(answer.assumptions)


def _is_folder(axis: str, *, alone: bool) -> bool:
    """Whether what stands where an axis may be is the first folder; one alone may be missing."""
    is_name = all(part.isidentifier() for part in axis.split("."))
    return (alone or not is_name) and (Path(axis).is_dir() or (alone and not is_name))


def diff_command(first: Side, second: Side, as_json: AsJson = False) -> None:
    """Show what differs between two experiments or runs.

    For example:

      runmanager diff runs/before runs/after
      runmanager diff runs/fashion_grid/2 runs/fashion_grid/5
      runmanager diff runs/before/2 runs/after/2 --json

    Exit codes: 0 shown; 2 no such experiment or run.
    """
    from runmanager.console import print_fitted
    from runmanager.results.diff import diff as differences
    from runmanager.table import Table

    sides = [path if path.exists() else find_run(path)[1].path for path in (first, second)]
    rows = differences(*sides)
    if as_json:
        write_json([{name: json_value(value) for name, value in row.items()} for row in rows])
    elif not rows:
        say(f"nothing differs between {first} and {second}")
    else:
        headings = {"first": str(first), "second": str(second)}
        named = [{headings.get(name, name): value for name, value in row.items()} for row in rows]
        print_fitted(Table.of(named, right=list(headings.values()), fold=True))

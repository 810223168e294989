"""Commands that rank runs, and set them side by side: best, compare, decide, diff."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.cli.common import say, write_json, write_out
from runmanager.cli.rows import Selection, load_selected, print_json, print_view, tell
from runmanager.errors import InvalidArgumentError
from runmanager.tables.results_files import json_value

if TYPE_CHECKING:
    import pandas as pd


def best_command(
    folder: Path = Path("runs"),
    *,
    goals: list[str] | None = None,
    repeats: list[str] | None = None,
    hyperparameters: str | None = None,
    rows: Selection,
) -> None:
    """Rank the runs, or repeated settings, by one metric.

    Repeated settings are ranked by their mean. Of several metrics, the runs are listed that no other beats
    in all of them: the Pareto front. Runs without a value are counted, not listed.

    For example:

      runmanager best runs/fashion_grid
      runmanager best runs/fashion_grid --goal "epoch duration" -n 3
      runmanager best runs/fashion_grid --goal max:f9 --repeats seed
      runmanager best runs/fashion_grid --goal loss --goal "min:run duration"
      runmanager best --where "lr<0.1" --where device=cpu
      runmanager best --json | jq '.[0]'
      runmanager best wandb.csv --goal max:val/f1 --repeats seed

    Exit codes: 0 shown; 2 no runs, no such metric or a mistaken condition.

    Options:
        limit (N): Number of rows. Default: 10.
    """
    from runmanager.answers.ranking import ranking_of, rows_of
    from runmanager.answers.show import ranked

    runs = load_selected(folder, where=rows.where, goal=goals, repeats=repeats, hyperparameters=hyperparameters)
    ranking = ranking_of(runs, goals, repeats)
    if not (rows.limit or rows.everything or ranking.goals[1:]):  # the Pareto front is listed whole
        rows = replace(rows, limit=10)

    if rows.as_json:
        tell(ranking.assumption)
        print_json(rows_of(runs, ranking, ranking.first), rows)
    else:
        print_view(ranked(runs, goals, None, repeats, with_others=False), rows)


def compare_command(
    axis: str | None = None,
    folders: list[Path] | None = None,
    *,
    goal: str | None = None,
    base: str | None = None,
    repeats: list[str] | None = None,
    hyperparameters: str | None = None,
    rows: Selection,
) -> None:
    """Compare runs that differ in one hyperparameter, or all settings with one of them.

    Each row is a setting: the other hyperparameters, and a column for each value of the one compared. With
    --base, the columns are the mean and the difference from the base, with its interval.

    For example:

      runmanager compare device runs/fashion_grid      how much faster is the GPU?
      runmanager compare num_workers runs/fashion_grid --goal accuracy
      runmanager compare runs/ablation --base lr=0.1,width=64
      runmanager compare lr --where "width=32" --limit 5
      runmanager compare experiment runs/before runs/after

    Exit codes: 0 shown; 2 no runs, no such hyperparameter or column.

    Options:
        axis (AXIS): The hyperparameter, such as device, or 'experiment'. Default: device.
        goal (METRIC): Column to compare. Default: the epoch duration for device and num_workers, else the
            goal.
        base (VALUES): Compare all settings with the setting of these values, as lr=0.1,width=64.
    """
    from runmanager.answers.compare import compare
    from runmanager.answers.show import of_table

    axis, paths = _axis_and_folders(axis, folders)
    runs = load_selected(*paths, where=rows.where, goal=goal, repeats=repeats, hyperparameters=hyperparameters)
    pairs = compare(runs, axis, goal, base=values_of_base(base, runs), repeats=repeats)

    if rows.as_json:
        print_json(pairs, rows)
    else:
        tell(pairs.sentence)
        print_view(of_table(pairs), rows)


def _axis_and_folders(axis: str | None, folders: list[Path] | None) -> tuple[str | None, list[Path]]:
    """Separate the axis from the folders: the first word is a folder if it exists, or is a path alone."""
    paths = folders or []
    if axis and (Path(axis).exists() or (not paths and Path(axis).name != axis)):
        return None, [Path(axis), *paths]
    return axis, paths


def values_of_base(base: str | None, runs: "pd.DataFrame") -> dict[str, Any] | None:
    """Return the values of a base as the table has them."""
    from runmanager.tables.where import check_columns, select

    if not base:
        return None
    values = base.split(",")
    if base.count("=") < len(values):
        raise InvalidArgumentError(f"--base takes values, as lr=0.1,width=64, got {base!r}")
    names = [value.partition("=")[0].strip() for value in values]
    check_columns(names, runs)
    rows = select(runs, values)
    if rows.empty:
        raise InvalidArgumentError(f"--base: no run has {base}")
    return {name: rows[name].iloc[0] for name in names}


def decide_command(
    axis: str | None = None,
    folders: list[Path] | None = None,
    *,
    goal: str | None = None,
    repeats: list[str] | None = None,
    margin: float | None = None,
    error: float | None = None,
    hyperparameters: str | None = None,
    where: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Say whether the repeats have decided which one is best.

    It executes nothing. You may use it after every repeat, without a higher risk of a wrong verdict.

    For example:

      runmanager decide optimizer runs/fashion_grid      is adam better than sgd?
      runmanager decide runs/fashion_grid                which setting is best?
      runmanager decide device runs/fashion_grid --goal accuracy --margin 0.002
      runmanager decide experiment runs/before runs/after
      runmanager decide wandb.csv --repeats seed --goal max:val/f1

    Exit codes: 0 shown, decided or not; 2 no runs, no such hyperparameter or no such column.

    Options:
        axis (AXIS): Hyperparameter whose values are compared, or 'experiment', or 'setting'. Default: that of
            decide=, else 'setting'.
        margin (SIZE): Difference that does not matter, in units of the metric. Default: that of decide=.
        error (SHARE): Probability that the verdict is wrong. Default: that of decide=, else 0.05.
    """
    from runmanager.answers.verdict import verdict
    from runmanager.drawing.console import print_fitted
    from runmanager.tables.formats import to_rows

    axis, paths = _axis_and_folders(axis, folders)
    runs = load_selected(*paths, where=where, goal=goal, repeats=repeats, hyperparameters=hyperparameters)
    answer = verdict(runs, axis, goal=goal, repeats=repeats, margin=margin, error=error)

    if as_json:
        write_json(json_value({**vars(answer), "decided": answer.decided, "table": to_rows(answer.table)}))
    else:
        write_out(answer.sentence)
        print_fitted(answer.drawn())
        tell(answer.assumptions)


def diff_command(first: Path, second: Path, *, as_json: bool = False) -> None:
    """Show what differs between two experiments or runs.

    For example:

      runmanager diff runs/before runs/after
      runmanager diff runs/fashion_grid/2 runs/fashion_grid/5
      runmanager diff runs/before/2 runs/after/2 --json

    Exit codes: 0 shown; 2 no such experiment or run.

    Options:
        first (BEFORE): An experiment, or EXPERIMENT/NUMBER for a run.
        second (AFTER): The experiment or run to compare with.
    """
    from runmanager.answers.differences import diff as differences
    from runmanager.drawing.console import print_fitted
    from runmanager.drawing.table import Table
    from runmanager.tables.one_run import find_run

    sides = [path if path.exists() else find_run(path)[1].path for path in (first, second)]
    rows = differences(*sides)

    headings = {"first": str(first), "second": str(second)}
    named = [{headings.get(name, name): value for name, value in row.items()} for row in rows]
    if as_json:
        write_json(json_value(rows))
    elif rows:
        print_fitted(Table.of(named, right=list(headings.values()), fold=True))
    else:
        say(f"nothing differs between {first} and {second}")

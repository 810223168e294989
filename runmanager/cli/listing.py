"""The command that lists experiments, or the runs of one experiment: list."""

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.answers.sentences import statuses_in_words
from runmanager.cli.common import say, tell_damage
from runmanager.cli.rows import Selection, meeting, print_json, print_view, tell
from runmanager.core.experiment import Experiment
from runmanager.core.wording import counted
from runmanager.errors import InvalidArgumentError
from runmanager.tables.cells import duration
from runmanager.tables.notes import first_line_of_note

if TYPE_CHECKING:
    from runmanager.core.state import RunResult


def list_command(root: Path = Path("runs"), *, rows: Selection) -> None:
    """List experiments, or the runs of one experiment.

    A terminal shows the columns that matter most. A pipe or a file gets every column, one line per run. With
    --where, --columns or --limit, and as JSON, the runs of all experiments are listed.

    For example:

      runmanager list                                the experiments under runs/
      runmanager list runs/fashion_grid              its runs, by number
      runmanager list --where "status=failed"        those of all experiments
      runmanager list runs/fashion_grid --columns run,lr,loss
      runmanager list --json | jq '.[].folder'

    Exit codes: 0 listed; 1 something is damaged; 2 no such folder or column.
    """
    from runmanager.answers.show import runs_view
    from runmanager.tables.columns import notes_of, runs_table
    from runmanager.tables.loading import read_results
    from runmanager.tables.roots import no_runs

    results, damaged = read_results(root)
    experiments = {name: runs for name, runs in results if runs}
    table = runs_table(experiments)

    if rows.as_json:
        print_json(meeting(table, rows.where), rows)
    elif not experiments:
        say(no_runs(root))
    elif len(experiments) > 1 and not (rows.where or rows.columns or rows.limit):
        _print_experiments(experiments.values(), everything=rows.everything)
    elif not (runs := meeting(table, rows.where)).empty:
        folder = os.path.commonpath([Path(path).parent for path in table["folder"]])
        tell(f"{folder}: {counted(len(runs), 'run')}, {statuses_in_words(runs['status'])}")
        for note in notes_of(runs):
            tell(note)
        print_view(runs_view(runs), rows)
    tell_damage(damaged)


def _print_experiments(experiments: Iterable[Sequence["RunResult"]], *, everything: bool) -> None:
    """Print one line per experiment."""
    from runmanager.drawing.console import print_fitted
    from runmanager.drawing.table import Table

    rows, assumptions = zip(*map(_overview, experiments), strict=True)
    table = Table.of(
        rows,
        right=("last written", "run time", "size"),
        first=["experiment", "runs", "status", "best", "goal"],
    )
    if left_out := print_fitted(table, everything=everything):
        tell(f"not shown: {', '.join(left_out)}; --all")
    for assumption in dict.fromkeys(assumptions):
        tell(assumption)


def _overview(runs: Sequence["RunResult"]) -> tuple[dict[str, Any], str]:
    """Return the row of an experiment, and a sentence on repeats assumed by name."""
    from rich.filesize import decimal

    from runmanager.answers.ranking import ranking_of
    from runmanager.tables.columns import runs_table

    folder = runs[0].folder.path.parent
    goal, best, assumption = "", math.nan, ""
    with contextlib.suppress(InvalidArgumentError):  # the error of runs that no metric can rank
        ranking = ranking_of(runs_table({"": runs}))
        goal, assumption = str(ranking.goal), ranking.assumption
        best = ranking.settings[0].mean if ranking.settings else math.nan
    written = max((version[2] for run in runs for version in run.journals.values()), default=None)
    row = {
        "experiment": folder.name,
        "runs": len(runs),
        "status": statuses_in_words(run.status for run in runs),
        "goal": goal,
        "best": best,
        "last written": f"{datetime.fromtimestamp(written / 1e9):%Y-%m-%d %H:%M}" if written else "",  # noqa: DTZ006 - the user's clock
        "run time": duration(sum(run.seconds for run in runs if math.isfinite(run.seconds))),
        "size": decimal(sum(sizes_in(folder).values())),
    }
    note = first_line_of_note(Experiment(folder).design.note)
    return row | ({"note": note} if note else {}), assumption


def sizes_in(folder: Path) -> dict[str, int]:
    """Return the files below a folder with their sizes in bytes; links are not followed."""
    sizes = {}
    for top, _, names in os.walk(folder):
        for path in (Path(top, name) for name in names):
            with contextlib.suppress(OSError):  # another process may remove it meanwhile
                sizes[path.relative_to(folder).as_posix()] = path.lstat().st_size
    return dict(sorted(sizes.items()))

"""The command that lists experiments, or the runs of one experiment: list."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.cli.common import check_folder, say
from runmanager.cli.declare import Answer
from runmanager.cli.rows import Selection, chosen, meeting, print_view, tell
from runmanager.errors import InvalidArgumentError
from runmanager.goal import Goal
from runmanager.hyperparameters import counted, json_value
from runmanager.outcome import Status
from runmanager.storage import paths
from runmanager.storage.design import first_line_of_note
from runmanager.storage.folders import Experiment
from runmanager.storage.run_numbers import ranked_numbers
from runmanager.wording import duration, file_size

if TYPE_CHECKING:
    import pandas as pd

    from runmanager.storage.run_state import RunResult

RunsByFolder = Mapping[Path, Sequence["RunResult"]]


@dataclass(frozen=True)
class Overview:
    """The summary of an experiment."""

    folder: Path
    statuses: dict[Status, int]  # status -> number of runs, in the order of `Status`
    goal: Goal | None  # the goal that ranks the runs, None if no metric can rank them
    best: float  # mean score of the best setting, NaN without a best setting
    assumption: str  # a sentence on axes that are repeat axes by name
    last_written: float  # time of the last write to a journal, in seconds since 1970; 0 without journals
    run_seconds: float  # run time, summed over all runs
    num_bytes: int  # size of all files
    note: str  # the note of the experiment, "" without a note


def list_command(root: Path = Path("runs"), *, rows: Selection) -> Answer:
    """List experiments, or the runs of one experiment.

    A terminal shows the columns that matter most. A pipe or a file gets every column, one line per run. With
    --where, --columns, --sort or --limit, the runs of all experiments are listed. In JSON, an experiment may
    then appear more than once.

    For example:

      runmanager list                                the experiments under runs/
      runmanager list runs/fashion_grid              its runs, by number
      runmanager list --where "status=failed"        those of all experiments
      runmanager list runs/fashion_grid --sort=-lr --columns run,lr,loss
      runmanager list --json | jq '.[].runs[].folder'

    Exit codes: 0 listed; 1 something is damaged; 2 no such folder or column.
    """
    from runmanager.storage.folders import experiments, no_runs
    from runmanager.storage.run_state import read_experiment

    check_folder(root)
    if (root / paths.RUN).is_file():
        raise FileNotFoundError(f"{root} is one run: runmanager show {root}")
    damaged: list[str] = []
    by_folder = {folder: read_experiment(folder, damaged) for folder in experiments(root)}
    by_folder = {folder: runs for folder, runs in by_folder.items() if runs}

    def show() -> None:
        if not by_folder:
            say(no_runs(root))
        elif len(by_folder) > 1 and not rows.is_of_rows:
            _print_experiments(by_folder, everything=rows.everything)
        else:
            _print_runs(by_folder, rows)

    return Answer(show, partial(_to_json, by_folder, rows), damaged=damaged)


def _print_runs(by_folder: RunsByFolder, selection: Selection) -> None:
    """Print the selected runs in one table, below their counts and the notes."""
    from runmanager.answers.show import runs_view
    from runmanager.tables.columns import notes_of

    runs = meeting(_table(by_folder), selection.where)
    if runs.empty:
        return
    counts = Counter(runs["status"].astype(str))
    folder = next(iter(by_folder)) if len(by_folder) == 1 else next(iter(by_folder)).parent
    title = f"{folder}: {', '.join([counted(len(runs), 'run'), *(f'{n:,} {s}' for s, n in counts.items())])}"
    print_view(runs_view(runs), selection, [title, *notes_of(runs)], what="runs")


def _to_json(by_folder: RunsByFolder, selection: Selection) -> list[dict[str, Any]]:
    """Return the experiments with their selected runs, in the order of the runs.

    An experiment appears again if runs of another experiment are between its runs.
    """
    if not selection.is_of_rows:
        return [_experiment_to_json(folder, map(run_to_json, runs)) for folder, runs in by_folder.items()]
    from runmanager.tables.files import to_rows

    rows = chosen(meeting(_table(by_folder), selection.where), selection)
    # runs in the order of the table
    runs = [(folder, run) for folder, runs in by_folder.items() for run in runs]
    pairs = [runs[position] for position in rows.index]
    contents = to_rows(rows) if selection.columns else [run_to_json(run) for _, run in pairs]
    groups = groupby(zip(pairs, contents, strict=True), key=lambda each: each[0][0])
    return [_experiment_to_json(folder, (content for _, content in group)) for folder, group in groups]


def _table(by_folder: RunsByFolder) -> "pd.DataFrame":
    """Return the runs as the table that `load_runs` returns."""
    from runmanager.tables import columns as tables
    from runmanager.tables.loading import LAST, name_of

    named = [(name_of(folder.name), runs) for folder, runs in by_folder.items()]
    table = tables.concat([(name, tables.runs_table(name, runs)) for name, runs in named], LAST)
    return table.reset_index(drop=True)


def _print_experiments(by_folder: RunsByFolder, *, everything: bool) -> None:
    """Print one line per experiment."""
    from runmanager.console import print_fitted, wide_console
    from runmanager.table import Table

    console = wide_console()
    sums = [overview(folder, runs) for folder, runs in by_folder.items()]
    rows = [_row(each, is_short=console.is_terminal) for each in sums]
    if not any(row["note"] for row in rows):
        rows = [{name: value for name, value in row.items() if name != "note"} for row in rows]
    names = ["experiment", "runs", "status", "best", "goal"]
    table = Table.of(rows, right=("last written", "run time", "size"), first=names)
    if everything:
        console.print(table, soft_wrap=True)
    elif left_out := print_fitted(table, console):
        tell(f"not shown: {', '.join(name for name in left_out if name != 'note')}; --all")
        for each in sums if "note" in left_out else ():
            tell(f"{each.folder}: {each.note}" if each.note else "")
    for assumption in dict.fromkeys(each.assumption for each in sums):
        tell(assumption)
    if console.is_terminal:
        present = [status for status in Status if any(status in each.statuses for each in sums)]
        signs = dict.fromkeys(status.sign for status in present)
        words = {sign: ", ".join(status for status in present if status.sign == sign) for sign in signs}
        tell("   ".join(f"{sign} {statuses}" for sign, statuses in words.items()))


def overview(folder: Path, runs: Sequence["RunResult"]) -> Overview:
    """Return the summary of an experiment."""
    from runmanager.tables.columns import runs_table
    from runmanager.tables.loading import name_of
    from runmanager.tables.ranking import ranking_of

    goal, best, assumption = None, math.nan, ""
    with contextlib.suppress(InvalidArgumentError):  # the error of runs that no metric can rank
        ranking = ranking_of(runs_table(name_of(folder.name), runs))
        goal, assumption = ranking.goal, ranking.assumption
        best = ranking.settings[0].mean if ranking.settings else math.nan
    counts = Counter(run.status for run in runs)
    written = [version[2] / 1e9 for run in runs for version in run.journals.values()]
    durations = [run.epochs[-1].metrics.get("run duration", 0.0) for run in runs if run.epochs]
    return Overview(
        folder,
        {status: counts[status] for status in Status if counts[status]},
        goal,
        best,
        assumption,
        max(written, default=0.0),
        math.fsum(seconds for seconds in durations if math.isfinite(seconds)),
        size_of(folder),
        first_line_of_note(Experiment(folder).design.note),
    )


def size_of(folder: Path) -> int:
    """Return the size of all files below a folder (bytes); links are not followed."""
    total = 0
    with contextlib.suppress(OSError):  # another process may remove the folder meanwhile
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                total += 0 if path.is_dir() else path.lstat().st_size
    return total


def _row(each: Overview, *, is_short: bool) -> dict[str, Any]:
    """Return the row of an experiment: a short row for a terminal, a row with all values for programs."""
    row: dict[str, Any] = {"experiment": str(each.folder), "runs": sum(each.statuses.values())}
    if not is_short:
        when = _moment(each).isoformat(" ", "seconds") if each.last_written else ""
        row |= {str(status): number for status, number in each.statuses.items()}
        row |= {"goal": str(each.goal or ""), "best": each.best, "last written": when}
        return row | {"run seconds": each.run_seconds, "bytes": each.num_bytes, "note": each.note}
    by_sign: Counter[str] = Counter()
    for status, number in each.statuses.items():
        by_sign[status.sign] += number
    row["status"] = "  ".join(f"{sign} {number}" for sign, number in by_sign.items())
    row |= {"goal": each.goal.metric if each.goal else "", "best": each.best, "last written": _when(each)}
    row |= {"run time": duration(each.run_seconds), "size": file_size(each.num_bytes)}
    return row | {"note": each.note}


def _moment(each: Overview) -> datetime:
    return datetime.fromtimestamp(each.last_written).astimezone()


def _when(each: Overview) -> str:
    """Return the date of the last write in the format of `ls`: with the time of day, or with the past year."""
    if not each.last_written:
        return ""
    moment = _moment(each)
    is_this_year = moment.year == datetime.now().astimezone().year
    return f"{moment:%b %d %H:%M}" if is_this_year else f"{moment:%b %d  %Y}"


def _experiment_to_json(folder: Path, runs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    note = Experiment(folder).design.note
    return {"experiment": folder.name, "folder": str(folder), "note": note, "runs": list(runs)}


def run_to_json(run: "RunResult") -> dict[str, Any]:
    """Return the summary of a run as JSON."""
    (metrics,) = ranked_numbers([run], None)
    return {
        "run": run.folder.number,
        "folder": str(run.folder.path),
        "status": str(run.status),
        "params": {name: json_value(value) for name, value in run.folder.params.items()},
        "epochs": len(run.epochs),
        "metrics": {name: json_value(value) for name, value in metrics.items()},
        "attempts": run.attempts,
        "mixed": run.mixed,
        "jobs": run.jobs,
        "threads": run.threads,
        "error": run.error,
    }

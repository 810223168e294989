"""Commands that show experiments and runs: list, show."""

import math
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runmanager.cli.common import (
    AsJson,
    Damage,
    RunPath,
    check_folder,
    files_of,
    find_run,
    say,
    write,
    write_json,
)
from runmanager.cli.tables import (
    All,
    Columns,
    Limit,
    Sort,
    Where,
    in_order,
    limited,
    meeting,
    print_view,
    tell,
)
from runmanager.hyperparameters import counted, json_value
from runmanager.outcome import Status
from runmanager.storage import paths
from runmanager.wording import cell, duration, file_size

if TYPE_CHECKING:
    import pandas as pd

    from runmanager.results.overview import Overview
    from runmanager.storage.run_state import RunResult

_LAST_LINES = 12  # of a traceback
_EPOCHS_SHOWN = 10

RunsByFolder = Mapping[Path, Sequence["RunResult"]]


def list_runs(
    root: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The root of all experiments, or one experiment.")
    ] = Path("runs"),
    where: Where = None,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """List experiments, or the runs of one experiment, with their status.

    A terminal gets the columns that matter most. A pipe or a file gets all of them, whole, in one line per run.
    With --where, --columns, --sort or --limit, the runs of all experiments are listed.

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
    damaged = Damage()
    by_folder = {folder: read_experiment(folder, damaged) for folder in experiments(root)}
    by_folder = {folder: runs for folder, runs in by_folder.items() if runs}
    if as_json:
        chosen = by_folder if where is None else _meeting(by_folder, where)
        write_json([_experiment_to_json(folder, runs) for folder, runs in chosen.items()])
    elif not by_folder:
        say(no_runs(root))
    elif len(by_folder) > 1 and not any((where, columns, sort, limit)):
        _print_overview(by_folder, everything=everything)
    else:
        _print_runs(by_folder, where, columns, sort, limit, everything=everything)
    damaged.tell()


def show(run: RunPath, as_json: AsJson = False) -> None:
    """Show one run: hyperparameters, outcome, epochs, files and the end of its traceback.

    For example:

      runmanager show runs/fashion_grid/2
      runmanager show runs/fashion_grid/002-lr=0.01-device=cpu
      runmanager show runs/fashion_grid/2 --json | jq .params

    Exit codes: 0 shown; 1 something in it is damaged; 2 no such run.
    """
    from runmanager.storage.run_state import read_run

    damaged = Damage()
    result = read_run(find_run(run)[1], damaged)
    if as_json:
        write_json({**_run_to_json(result), **_more_to_json(result)})
    else:
        _print_run(result)
    damaged.tell()


def _meeting(by_folder: RunsByFolder, where: str) -> RunsByFolder:
    from runmanager.results.loading import name_of

    rows = meeting(_table(by_folder), where)
    named = {folder: name_of(folder.name) if "experiment" in rows else "" for folder in by_folder}
    experiments = rows["experiment"].map(str) if "experiment" in rows else [""] * len(rows)
    kept = set(zip(experiments, rows["run"], strict=True))
    return {
        folder: [run for run in runs if (named[folder], run.folder.number) in kept]
        for folder, runs in by_folder.items()
    }


def _table(by_folder: RunsByFolder) -> "pd.DataFrame":
    """Return the table of `load_runs`."""
    from runmanager.results import decisive, tables
    from runmanager.results.loading import LAST, name_of

    named = [(name_of(folder.name), runs) for folder, runs in by_folder.items()]
    return tables.concat([(name, decisive.runs_table(name, runs)) for name, runs in named], LAST)


def _print_runs(
    by_folder: RunsByFolder,
    where: str | None,
    columns: str | None,
    sort: str | None,
    limit: int | None,
    *,
    everything: bool,
) -> None:
    from runmanager.results.show import listed

    runs = meeting(_table(by_folder), where)
    if runs.empty:
        return
    counts = Counter(runs["status"].astype(str))
    folder = next(iter(by_folder)) if len(by_folder) == 1 else next(iter(by_folder)).parent
    title = f"{folder}: {', '.join([counted(len(runs), 'run'), *(f'{n:,} {s}' for s, n in counts.items())])}"
    view = limited(in_order(listed(runs), sort), limit, "runs", everything=everything)
    print_view(view, columns, everything=everything, title=title)


def _print_overview(by_folder: RunsByFolder, *, everything: bool) -> None:
    from runmanager.console import print_fitted, wide_console
    from runmanager.results.overview import overview
    from runmanager.table import Table

    console = wide_console()
    sums = [overview(folder, runs) for folder, runs in by_folder.items()]
    rows = [_row(each, is_short=console.is_terminal) for each in sums]
    names = ["experiment", "runs", "status", "best", "goal", "last written", "run time", "size"]
    table = Table.of(rows, right=("last written", "run time", "size"), first=names)
    if everything:
        console.print(table, soft_wrap=True)
    elif left_out := print_fitted(table, console):
        tell(f"not shown: {', '.join(left_out)}; --all")
    if console.is_terminal:
        present = [status for status in Status if any(status in each.statuses for each in sums)]
        signs = dict.fromkeys(status.sign for status in present)
        words = {sign: ", ".join(status for status in present if status.sign == sign) for sign in signs}
        tell("   ".join(f"{sign} {statuses}" for sign, statuses in words.items()))


def _row(each: "Overview", *, is_short: bool) -> dict[str, Any]:
    """Describe an experiment for people in a terminal, or for programs."""
    row: dict[str, Any] = {"experiment": str(each.folder), "runs": sum(each.statuses.values())}
    if not is_short:
        when = _moment(each).isoformat(" ", "seconds") if each.last_written else ""
        row |= {str(status): number for status, number in each.statuses.items()}
        row |= {"goal": str(each.goal or ""), "best": each.best, "last written": when}
        return row | {"run seconds": each.run_seconds, "bytes": each.num_bytes}
    by_sign: Counter[str] = Counter()
    for status, number in each.statuses.items():
        by_sign[status.sign] += number
    row["status"] = "  ".join(f"{sign} {number}" for sign, number in by_sign.items())
    row |= {"goal": each.goal.metric if each.goal else "", "best": each.best, "last written": _when(each)}
    return row | {"run time": duration(each.run_seconds), "size": file_size(each.num_bytes)}


def _moment(each: "Overview") -> datetime:
    return datetime.fromtimestamp(each.last_written).astimezone()


def _when(each: "Overview") -> str:
    """Write when an experiment was last written as `ls` does: with the time, or the year if that is another."""
    if not each.last_written:
        return ""
    moment = _moment(each)
    is_this_year = moment.year == datetime.now().astimezone().year
    return f"{moment:%b %d %H:%M}" if is_this_year else f"{moment:%b %d  %Y}"


def _last(run: "RunResult") -> Mapping[str, float]:
    return run.epochs[-1].metrics if run.epochs else {}


def _experiment_to_json(folder: Path, runs: Sequence["RunResult"]) -> dict[str, Any]:
    return {"experiment": folder.name, "folder": str(folder), "runs": [_run_to_json(run) for run in runs]}


def _run_to_json(run: "RunResult") -> dict[str, Any]:
    return {
        "run": run.folder.number,
        "folder": str(run.folder.path),
        "status": str(run.status),
        "params": {name: json_value(value) for name, value in run.folder.params.items()},
        "epochs": len(run.epochs),
        "metrics": {name: json_value(value) for name, value in _last(run).items()},
        "attempts": run.attempts,
        "mixed": run.mixed,
        "jobs": run.jobs,
        "threads": run.threads,
        "error": run.error,
    }


def _more_to_json(run: "RunResult") -> dict[str, Any]:
    per_epoch = [{"epoch": e.epoch, **{k: json_value(v) for k, v in e.metrics.items()}} for e in run.epochs]
    return {
        "per_epoch": per_epoch,
        "how": {name: json_value(value) for name, value in _how(run).items()},
        "files": {path.name: path.lstat().st_size for path in files_of(run.folder)},
        "next": run.next_step,
        "traceback": run.error_log_tail(_LAST_LINES),
    }


def _print_run(run: "RunResult") -> None:
    from runmanager.console import print_table

    _print_facts(run)
    _heading("Hyperparameters")
    _print_pairs({name: cell(value) for name, value in run.folder.params.items()})
    if run.epochs:
        _print_epochs(run)
    if how := _how(run):
        _heading("How it was executed")
        _print_pairs(how)
    if files := files_of(run.folder):
        _heading("Files")
        sizes = [{"file": path.name, "size": file_size(path.lstat().st_size)} for path in files]
        print_table(sizes, most=None, right=["size"])
    if lines := run.error_log_tail(_LAST_LINES):
        _heading(f"The last lines of {paths.ERROR_LOG}")
        write("\n".join(lines))


def _print_epochs(run: "RunResult") -> None:
    """Print the last epochs, and the best one if it is before them; its number is in bold and said below."""
    from runmanager.console import print_fitted
    from runmanager.goal import default_goal
    from runmanager.storage.folders import Experiment
    from runmanager.table import Table

    goal = Experiment(run.folder.path.parent).design.decisive([run.start])
    names = list(dict.fromkeys(name for record in run.epochs for name in record.metrics))
    goal = goal if goal and goal.metric in names else default_goal(names)
    best = max(run.epochs, key=lambda record: goal.score(record.metrics)) if goal else None
    last = list(run.epochs[-_EPOCHS_SHOWN:])
    records = [best, *last] if best and best.epoch < last[0].epoch else last
    rows = [
        {"epoch": r.epoch, **{n: "nan" if math.isnan(v) else float(v) for n, v in r.metrics.items()}}
        for r in records
    ]
    _heading("Epochs" if len(run.epochs) <= _EPOCHS_SHOWN else f"Epochs, the last {_EPOCHS_SHOWN}")
    first = ["epoch", *([goal.metric] if goal else [])]
    rows_best = [records.index(best)] if best and len(run.epochs) > 1 else []
    table = Table.of(rows, right=names, even=names, first=first, best=rows_best)
    left_out = print_fitted(table)
    if best and goal and not math.isnan(best.metrics.get(goal.metric, math.nan)):
        tell(f"best {goal.metric}: epoch {best.epoch}")
    if left_out:
        tell(f"not shown: {', '.join(left_out)}; --json has all")


def _print_facts(run: "RunResult") -> None:
    sign = f"{run.status.sign} " if sys.stdout and sys.stdout.isatty() else ""
    facts: dict[str, Any] = {"run": paths.for_people(run.folder.path), "status": f"{sign}{run.status}"}
    facts |= {"error": run.error, "next": run.next_step, "attempts": run.attempts if run.attempts > 1 else ""}
    facts |= {"mixed": "code, data, versions or threads changed between its epochs" if run.mixed else ""}
    facts |= {"jobs": f"{run.jobs} runs shared the machine" if run.jobs > 1 else ""}
    _print_pairs(facts)


def _heading(name: str) -> None:
    from runmanager.console import wide_console

    wide_console().out(f"\n{name}", style="bold", highlight=False)


def _print_pairs(pairs: Mapping[str, Any]) -> None:
    from runmanager.console import wide_console

    texts = {name: str(value) for name, value in pairs.items() if value not in ("", None)}
    width = max(map(len, texts), default=0)
    console = wide_console()
    for name, value in texts.items():
        line = f"{name:<{width}}  {value}"
        if console.is_terminal and "\n" not in value:
            blank = " " * (width + 2)
            folded = textwrap.TextWrapper(
                console.width, subsequent_indent=blank, break_long_words=False, break_on_hyphens=False
            )
            line = "\n".join(folded.wrap(line))
        write(line)


def _how(run: "RunResult") -> dict[str, Any]:
    start = run.start
    names = ("host", "device", "device_name", "parameters", "command", "commit")
    facts = {name: start.get(name) for name in names} | {"threads": run.threads}
    versions = start.get("versions")
    if isinstance(versions, Mapping):
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    # a run that raised before its network has 0 parameters
    return {name: value for name, value in facts.items() if value not in (None, "", 0)}

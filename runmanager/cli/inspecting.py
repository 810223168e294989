"""Commands that show experiments and runs: list, show."""

import math
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.cli.common import Damage, check_folder, files_of, find_run, say, write, write_json
from runmanager.cli.listing import print_experiments, print_runs, run_to_json, runs_to_json
from runmanager.cli.options import All, AsJson, Columns, Limit, Root, RunPath, Sort, Where
from runmanager.cli.rows import Selection, tell
from runmanager.hyperparameters import json_value
from runmanager.storage import paths
from runmanager.storage.folders import Experiment
from runmanager.wording import cell, file_size, join

if TYPE_CHECKING:
    from runmanager.storage.design import Design
    from runmanager.storage.run_state import RunResult

_LAST_LINES = 12  # of a traceback
_EPOCHS_SHOWN = 10


def list_runs(
    root: Root = Path("runs"),
    where: Where = None,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
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
    damaged = Damage()
    by_folder = {folder: read_experiment(folder, damaged) for folder in experiments(root)}
    by_folder = {folder: runs for folder, runs in by_folder.items() if runs}
    selection = Selection(where, columns, sort, limit, everything)
    if as_json:
        write_json(runs_to_json(by_folder, selection))
    elif not by_folder:
        say(no_runs(root))
    elif len(by_folder) > 1 and not selection.is_of_rows:
        print_experiments(by_folder, everything=everything)
    else:
        print_runs(by_folder, selection)
    damaged.tell()


def show_command(run: RunPath, as_json: AsJson = False) -> None:
    """Show one run: settings, outcome, epochs and files.

    A failed run shows the end of its traceback.

    For example:

      runmanager show runs/fashion_grid/2
      runmanager show runs/fashion_grid/002-lr=0.01-device=cpu
      runmanager show runs/fashion_grid/2 --json | jq .params

    Exit codes: 0 shown; 1 something in it is damaged; 2 no such run.
    """
    from runmanager.storage.run_state import read_run

    damaged = Damage()
    result = read_run(find_run(run)[1], damaged)
    design = Experiment(result.folder.path.parent).design
    if as_json:
        write_json({**run_to_json(result), **_more_to_json(result), **_notes(result, design)})
    else:
        _print_run(result, design)
    damaged.tell()


def _more_to_json(run: "RunResult") -> dict[str, Any]:
    per_epoch = [{"epoch": e.epoch, **{k: json_value(v) for k, v in e.metrics.items()}} for e in run.epochs]
    return {
        "per_epoch": per_epoch,
        "how": {name: json_value(value) for name, value in _how(run).items()},
        "files": files_of(run.folder),
        "next": run.next_step,
        "traceback": run.error_log_tail(_LAST_LINES),
    }


def _notes(run: "RunResult", design: "Design") -> dict[str, str | None]:
    return {"note": (design.run_notes or {}).get(run.folder.id), "experiment_note": design.note}


def _print_run(run: "RunResult", design: "Design") -> None:
    from runmanager.console import print_table

    _print_facts(run, design)
    _heading("Hyperparameters")
    _print_pairs({name: cell(value) for name, value in run.folder.params.items()})
    if run.epochs:
        _print_epochs(run, design)
    if how := _how(run):
        _heading("How it was executed")
        _print_pairs(how)
    if files := files_of(run.folder):
        _heading("Files")
        sizes = [{"file": name, "size": file_size(size)} for name, size in files.items()]
        print_table(sizes, most=None, right=["size"])
    if lines := run.error_log_tail(_LAST_LINES):
        _heading(f"The last lines of {paths.ERROR_LOG}")
        write("\n".join(lines))


def _print_epochs(run: "RunResult", design: "Design") -> None:
    """Print the last epochs, and the best one if it is before them; its number is in bold and said below."""
    from runmanager.console import print_fitted
    from runmanager.goal import default_goal
    from runmanager.table import Table

    goal = design.decisive([run.start])
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


def _print_facts(run: "RunResult", design: "Design") -> None:
    sign = f"{run.status.sign} " if sys.stdout and sys.stdout.isatty() else ""
    facts: dict[str, Any] = {"run": paths.for_people(run.folder.path), "status": f"{sign}{run.status}"}
    note, of_experiment = _notes(run, design).values()
    facts |= {"note": join([note or "", f"of the experiment: {of_experiment}" if of_experiment else ""])}
    next_step = run.outcome.next_step(paths.for_people(run.folder.path / paths.ERROR_LOG))
    facts |= {"error": run.error, "next": next_step, "attempts": run.attempts if run.attempts > 1 else ""}
    facts |= {"continues": run.inside if run.status.can_go_on else ""}
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

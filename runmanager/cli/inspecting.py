"""Commands that show experiments and runs: list, show."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runmanager.cli.common import (
    AsJson,
    Damage,
    RunPath,
    files_of,
    find_run,
    say,
    write,
    write_json,
)
from runmanager.hyperparameters import counted, json_value
from runmanager.storage import paths

if TYPE_CHECKING:
    from runmanager.storage.run_state import RunResult

_LAST_LINES = 12  # of a traceback
_EPOCHS_SHOWN = 10
_LONGEST_ERROR = 60  # characters in a list; `show` prints the whole error


def list_runs(
    root: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The root of all experiments, or one experiment.")
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List experiments, or the runs of one experiment, with their status.

    For example:

      runmanager list                        the experiments under runs/
      runmanager list runs/fashion_grid      its runs, with their last metrics
      runmanager list --json | jq '.[].runs[] | select(.status=="failed").folder'

    Exit codes: 0 listed; 1 something is damaged; 2 no such folder, or the folder of a run.
    """
    from runmanager.console import print_table
    from runmanager.storage.folders import experiments, no_runs
    from runmanager.storage.run_state import read_experiment

    if not root.is_dir():
        raise FileNotFoundError(
            f"no folder {str(root)!r}: give the folder that RunManager or run_grid wrote, such as 'runs'"
        )
    if (root / paths.RUN).is_file():
        raise FileNotFoundError(f"{root} is one run: runmanager show {root}")
    damaged = Damage()
    by_folder = {folder: read_experiment(folder, damaged) for folder in experiments(root)}
    by_folder = {folder: runs for folder, runs in by_folder.items() if runs}
    if as_json:
        write_json([_experiment_to_json(folder, runs) for folder, runs in by_folder.items()])
    elif not by_folder:
        say(no_runs(root))
    elif len(by_folder) == 1:
        ((folder, runs),) = by_folder.items()
        counts = [f"{number:,} {status}" for status, number in _by_status(runs).items()]
        write(f"{folder}: {', '.join([counted(len(runs), 'run'), *counts])}")
        print_table(_rows(runs), most=None)
    else:
        print_table([_summary(folder, runs) for folder, runs in by_folder.items()], most=None)
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


def _by_status(runs: Sequence["RunResult"]) -> dict[str, int]:
    return Counter(str(run.status) for run in runs)


def _summary(folder: Path, runs: Sequence["RunResult"]) -> dict[str, Any]:
    epochs = sum(len(run.epochs) for run in runs)
    return {"experiment": str(folder), "runs": len(runs), "epochs": epochs, **_by_status(runs)}


def _rows(runs: Sequence["RunResult"]) -> list[dict[str, Any]]:
    from runmanager.storage.naming import varying

    names = varying([run.folder.params for run in runs])
    metrics = list(dict.fromkeys(name for run in runs for name in _last(run)))
    return [
        {
            "run": run.folder.number,
            "status": str(run.status),
            "epochs": len(run.epochs),
            **{name: run.folder.params[name] for name in names if name in run.folder.params},
            **{name: _last(run).get(name, float("nan")) for name in metrics},
            **({"error": _shortened(run.error)} if run.error else {}),
        }
        for run in runs
    ]


def _shortened(error: str) -> str:
    """Cut an error in its middle: its last word is the line of the user's code."""
    if len(error) <= _LONGEST_ERROR:
        return error
    end = f"… {error.rsplit(maxsplit=1)[-1][-_LONGEST_ERROR // 2 :]}"
    return error[: _LONGEST_ERROR - len(end)] + end


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
    print_table([dict(run.folder.params)])
    if run.epochs:
        _heading("Epochs" if len(run.epochs) <= _EPOCHS_SHOWN else f"Epochs, the last {_EPOCHS_SHOWN}")
        print_table([{"epoch": record.epoch, **record.metrics} for record in run.epochs[-_EPOCHS_SHOWN:]])
    if how := _how(run):
        _heading("How it was executed")
        _print_pairs(how)
    if files := files_of(run.folder):
        _heading("Files")
        print_table([{"file": path.name, "bytes": path.lstat().st_size} for path in files], most=None)
    if lines := run.error_log_tail(_LAST_LINES):
        _heading(f"The last lines of {paths.ERROR_LOG}")
        _print_lines(lines)


def _print_facts(run: "RunResult") -> None:
    facts: dict[str, Any] = {"run": run.folder.path, "status": run.status, "error": run.error}
    facts |= {"next": run.next_step, "attempts": run.attempts if run.attempts > 1 else ""}
    facts |= {"mixed": "code, data, versions or threads changed between its epochs" if run.mixed else ""}
    facts |= {"jobs": f"{run.jobs} runs shared the machine" if run.jobs > 1 else ""}
    _print_pairs(facts)


def _heading(name: str) -> None:
    from runmanager.console import wide_console

    wide_console().out(f"\n{name}", style="bold", highlight=False)


def _print_pairs(pairs: Mapping[str, Any]) -> None:
    texts = {name: str(value) for name, value in pairs.items() if value not in ("", None)}
    width = max(map(len, texts), default=0)
    _print_lines([f"{name:<{width}}  {value}" for name, value in texts.items()])


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        write(line)


def _how(run: "RunResult") -> dict[str, Any]:
    start = run.start
    names = ("host", "device", "device_name", "parameters", "command", "commit")
    facts = {name: start.get(name) for name in names} | {"threads": run.threads}
    versions = start.get("versions")
    if isinstance(versions, Mapping):
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return {name: value for name, value in facts.items() if value not in (None, "")}

"""Commands that show what experiments and runs have left behind: list, show, best, compare."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runmanager.cli.common import AsJson, Damage, Folder, Largest, RunPath, files_of, find_run, say, write_json
from runmanager.hyperparameters import counted, json_value
from runmanager.storage import paths

if TYPE_CHECKING:
    import pandas as pd

    from runmanager.storage.run_state import RunResult

_LAST_LINES = 12  # of a traceback
_EPOCHS_SHOWN = 10
_LONGEST_ERROR = 60  # characters in a list; `show` has all of it


def list_runs(root: Folder = Path("runs"), as_json: AsJson = False) -> None:
    """List experiments, or the runs of one, with their status.

    For example:

      runmanager list                            the experiments under runs/
      runmanager list runs/fashion_grid          its runs, last values of their metrics
      runmanager list --json | jq '.[].runs[] | select(.status == "failed") | .folder'

    Exit codes: 0, or 1 if something was damaged; 2 if there is no such folder, or it is a run's.
    """
    from runmanager.console import print_rows
    from runmanager.storage.folders import experiments
    from runmanager.storage.run_state import read_experiment

    if not root.is_dir():
        raise FileNotFoundError(
            f"no folder {str(root)!r}: give the one that RunManager or run_grid wrote, as 'runs'"
        )
    if (root / paths.RUN).is_file():
        raise FileNotFoundError(f"{root} is one run: runmanager show {root}")
    damaged = Damage()
    found = {folder: read_experiment(folder, damaged) for folder in experiments(root)}
    found = {folder: runs for folder, runs in found.items() if runs}
    if as_json:
        write_json([_experiment_to_json(folder, runs) for folder, runs in found.items()])
    elif not found:
        say(f"no runs under {root}: start a grid first, or give the folder that it wrote")
    elif len(found) == 1:
        ((folder, runs),) = found.items()
        typer.echo(f"{folder}: {_counted(runs)}")
        print_rows(_rows(runs))
    else:
        print_rows([_summary(folder, runs) for folder, runs in found.items()])
    damaged.tell()


def show(run: RunPath, as_json: AsJson = False) -> None:
    """Show one run: hyperparameters, outcome, epochs, files, error and the last lines of its traceback.

    For example:

      runmanager show runs/fashion_grid/2
      runmanager show runs/fashion_grid/002_batch_size=1000,num_workers=0,device=cpu
      runmanager show runs/fashion_grid/2 --json | jq .params

    Exit codes: 0, or 1 if something of it was damaged; 2 if there is no such run.
    """
    from runmanager.storage.run_state import read_run

    damaged = Damage()
    _, folder = find_run(run, damaged)
    damaged.clear()  # of other runs
    found = read_run(folder, damaged)
    if as_json:
        write_json({**_run_to_json(found), **_more_to_json(found)})
    else:
        _print_run(found)
    damaged.tell()


def best(
    folder: Folder = Path("runs"),
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="The metric; without, the last accuracy or loss."),
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, metavar="N", help="How many runs.")] = 10,
    largest: Largest = None,
    as_json: AsJson = False,
) -> None:
    """Show the best runs, the best first.

    For example:

      runmanager best runs/fashion_grid
      runmanager best runs/fashion_grid --by "epoch duration" -n 3
      runmanager best --json | jq '.[0]'
    """
    from runmanager.results.ranking import best as choose
    from runmanager.results.show import show as view

    runs = _load(folder)
    if as_json:
        _write_table(choose(runs, by, n, largest=largest), as_json=True)
    else:
        shown = view(runs, by, n, largest=largest)
        _write_table(shown.table, as_json=False)
        say(shown.caption)


def compare(
    axis: Annotated[str, typer.Argument(metavar="AXIS", help="The hyperparameter, as device.")],
    folder: Folder = Path("runs"),
    value: Annotated[
        str, typer.Option("--value", metavar="COLUMN", help="What is compared.")
    ] = "epoch duration",
    as_json: AsJson = False,
) -> None:
    """Pair the runs that differ in one hyperparameter only, with the ratio of each pair.

    For example:

      runmanager compare device runs/fashion_grid           is the GPU faster, and by how much?
      runmanager compare num_workers runs/fashion_grid --value accuracy
    """
    from runmanager.results.ranking import compare as pair
    from runmanager.results.show import show as view

    pairs = pair(_load(folder), axis, value)
    _write_table(pairs, as_json=as_json)
    if len(pairs) and not as_json:
        say(view(pairs, n=len(pairs)).caption)


def _load(folder: Path) -> "pd.DataFrame":
    from runmanager.results.loading import load_runs

    runs = load_runs(folder)
    if runs.empty:
        raise FileNotFoundError(f"no runs under {folder}: start a grid first, or give the folder that it wrote")
    return runs


def _write_table(table: "pd.DataFrame", *, as_json: bool) -> None:
    from runmanager.console import print_rows
    from runmanager.results.tables import to_rows

    if as_json:
        write_json(to_rows(table))
    elif table.empty:
        say("nothing to show: no run has a value there, or none has a partner")
    else:
        print_rows(
            [dict(zip(map(str, table), row, strict=True)) for row in table.itertuples(index=False, name=None)]
        )


def _summary(folder: Path, runs: Sequence["RunResult"]) -> dict[str, Any]:
    counts = Counter(str(run.status) for run in runs)
    return {"experiment": str(folder), "runs": len(runs), "epochs": sum(len(r.epochs) for r in runs), **counts}


def _counted(runs: Sequence["RunResult"]) -> str:
    counts = Counter(str(run.status) for run in runs)
    return ", ".join(
        [counted(len(runs), "run"), *(f"{number:,} {status}" for status, number in counts.items())]
    )


def _rows(runs: Sequence["RunResult"]) -> list[dict[str, Any]]:
    from runmanager.storage.folders import varying

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
    return error if len(error) <= _LONGEST_ERROR else f"{error[: _LONGEST_ERROR - 1]}…"


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
        "error": run.error,
    }


def _more_to_json(run: "RunResult") -> dict[str, Any]:
    per_epoch = [{"epoch": e.epoch, **{k: json_value(v) for k, v in e.metrics.items()}} for e in run.epochs]
    return {
        "per_epoch": per_epoch,
        "how": {name: json_value(value) for name, value in _how(run).items()},
        "files": {path.name: path.lstat().st_size for path in files_of(run.folder)},
        "next": run.next_step,
        "traceback": _traceback(run),
    }


def _print_run(run: "RunResult") -> None:
    from runmanager.console import print_rows

    _print_facts(run)
    _heading("Hyperparameters")
    print_rows([dict(run.folder.params)])
    if run.epochs:
        _heading("Epochs" if len(run.epochs) <= _EPOCHS_SHOWN else f"Epochs, the last {_EPOCHS_SHOWN}")
        print_rows([{"epoch": record.epoch, **record.metrics} for record in run.epochs[-_EPOCHS_SHOWN:]])
    if how := _how(run):
        _heading("How it was executed")
        _print_pairs(how)
    if files := files_of(run.folder):
        _heading("Files")
        print_rows([{"file": path.name, "bytes": path.lstat().st_size} for path in files])
    if lines := _traceback(run):
        _heading(f"The last lines of {paths.ERROR_LOG}")
        _print_lines(lines)


def _print_facts(run: "RunResult") -> None:
    facts: dict[str, Any] = {"run": run.folder.path, "status": run.status, "error": run.error}
    facts |= {"next": run.next_step, "attempts": run.attempts if run.attempts > 1 else ""}
    facts |= {"mixed": "code, data or versions changed between its epochs" if run.mixed else ""}
    facts |= {"jobs": f"{run.jobs} runs shared the machine" if run.jobs > 1 else ""}
    _print_pairs(facts)


def _heading(name: str) -> None:
    from runmanager.console import wide_console

    wide_console().out(f"\n{name}", style="bold", highlight=False)


def _print_pairs(pairs: Mapping[str, Any]) -> None:
    shown = {name: str(value) for name, value in pairs.items() if value not in ("", None)}
    width = max(map(len, shown), default=0)
    _print_lines([f"{name:<{width}}  {value}" for name, value in shown.items()])


def _print_lines(lines: Sequence[str]) -> None:
    from runmanager.console import printable

    for line in lines:
        typer.echo(printable(line))


def _how(run: "RunResult") -> dict[str, Any]:
    start = run.start
    found = {
        name: start.get(name) for name in ("host", "device", "device_name", "parameters", "command", "commit")
    }
    versions = start.get("versions")
    if isinstance(versions, Mapping):
        found["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return {name: value for name, value in found.items() if value not in (None, "")}


def _traceback(run: "RunResult") -> list[str]:
    """Return the last lines of the run's error.log, if it is one that ended so."""
    from runmanager.storage.durable import read_file

    if not run.error:
        return []
    try:
        content = read_file(run.folder.path / paths.ERROR_LOG, 1 << 20)[0]
    except OSError:
        return []
    return content.decode("utf-8", "replace").rstrip().split("\n")[-_LAST_LINES:]

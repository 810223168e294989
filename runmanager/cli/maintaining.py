"""Commands that execute or remove runs: verify, rm."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runmanager.cli.common import SOME_WRONG, AsJson, Damage, RunPath, allow_unread, find_run, say, write_json
from runmanager.errors import GridError
from runmanager.hyperparameters import json_value

if TYPE_CHECKING:
    from runmanager.launch.verify import Verdict
    from runmanager.results.removal import Contents
    from runmanager.storage.folders import RunFolder
    from runmanager.storage.run_state import RunResult

_MIB = 2**20


def verify(
    run: RunPath,
    function: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="FILE:FUNCTION", help="What the run was executed with, train(run, manager)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Execute the first epoch of a run again and say whether its metrics are identical, or which are not.

    The run's own hyperparameters are given to the function, in this process and with as many threads as the run
    had; nothing is written to the run. Durations are not compared. On a cpu the same code, data, versions and
    number of threads give the same bits; accelerators promise that only with deterministic algorithms. The file
    is imported: what starts a grid in it belongs under `if __name__ == "__main__":`.

    For example:

      runmanager verify runs/fashion_grid/2 --with experiments/fashion_grid.py:train
      runmanager verify runs/mine/1 --with mypackage.training:train --json

    Exit codes: 0 identical; 1 different, or the epoch did not end; 2 nothing was executed.
    """
    from runmanager.launch.verify import load_function
    from runmanager.launch.verify import verify as execute
    from runmanager.storage.run_state import read_run

    _, folder = find_run(run, [])
    found = read_run(folder)
    if function is None:
        program = found.start.get("command") or "script.py"
        rule = "verify needs the function that the run was executed with"
        raise GridError([f"{rule}: --with path/to/{program}:train"])
    with contextlib.redirect_stdout(sys.stderr):  # whatever the function prints
        verdict = execute(found, load_function(function))
    with allow_unread():
        if as_json:
            write_json(_to_json(found, verdict))
        else:
            _print_verdict(found, verdict)
    raise typer.Exit(0 if verdict.is_identical else SOME_WRONG)


def rm(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs, or EXPERIMENT/NUMBER.", show_default=False),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove runs: the files that runmanager wrote for them, their place in the grid, their rows in the tables.

    Asks first. Refuses what is no run, and experiments that a process is running. Links are never
    followed; what else stands in a run's folder stays there and is named. A grid that is
    started again executes a removed run
    anew, if it is still one of its runs.

    For example:

      runmanager rm runs/fashion_grid/3
      runmanager rm --yes runs/fashion_grid/0*_lr=0.1*

    Exit codes: 0 removed; 1 not confirmed; 2 refused, nothing was removed; 74 storage failed.
    """
    from runmanager.results.removal import check_ended, look, remove
    from runmanager.storage.lock import check_free

    by_experiment: dict[Path, dict[str, RunFolder]] = {}
    for path in runs:
        experiment, folder = find_run(path, Damage())
        by_experiment.setdefault(experiment, {})[folder.id] = folder
    contents: dict[Path, Contents] = {}
    for experiment, found in by_experiment.items():
        check_free(experiment)
        contents |= {folder.path: look(folder) for folder in found.values()}
    for path, inside in contents.items():
        say(_described(path, inside))
    if not yes and not _is_confirmed(f"Remove {_count(len(contents), 'run')}?"):
        raise typer.Exit(SOME_WRONG)
    for found in by_experiment.values():  # all of them before the first is removed
        check_ended(found.values())
    for experiment, found in by_experiment.items():
        remove(experiment, found.values())
    say(f"{_count(len(contents), 'run')} removed")


def _is_confirmed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except BrokenPipeError as error:  # nobody can be asked
        raise typer.Exit(SOME_WRONG) from error


def _print_verdict(found: "RunResult", verdict: "Verdict") -> None:
    from runmanager.console import print_rows

    for change in verdict.changed:
        say(f"! {change} changed since the run was executed")
    if verdict.error:
        typer.echo(f"different: the first epoch did not end: {verdict.error}")
        return
    compared = [name for name in verdict.before if name in verdict.again]
    if verdict.is_identical:
        names = ", ".join(name for name in compared if name not in ("epoch duration", "run duration"))
        typer.echo(f"identical: the first epoch of {found.folder.path} gives the same {names}, to the last bit")
        return
    typer.echo(f"different: the first epoch of {found.folder.path} gives other numbers")
    rows = [_difference(name, verdict) for name in verdict.differing]
    print_rows(rows)


def _difference(name: str, verdict: "Verdict") -> dict[str, Any]:
    before, again = verdict.before.get(name), verdict.again.get(name)
    row = {"metric": name, "recorded": repr(before), "now": repr(again)}
    return row if before is None or again is None else {**row, "difference": again - before}


def _to_json(found: "RunResult", verdict: "Verdict") -> dict[str, Any]:
    return {
        "folder": str(found.folder.path),
        "identical": verdict.is_identical,
        "differing": verdict.differing,
        "recorded": {name: json_value(value) for name, value in verdict.before.items()},
        "now": {name: json_value(value) for name, value in verdict.again.items()},
        "changed": list(verdict.changed),
        "error": verdict.error,
    }


def _described(path: Path, inside: "Contents") -> str:
    stays = f"; stays there: {', '.join(other.name for other in inside.others)}" if inside.others else ""
    return f"{path}: {_count(len(inside.own), 'file')}, {inside.size / _MIB:.1f} MiB{stays}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

"""Commands that look after runs and machines: verify, rm, devices."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runmanager.cli.common import SOME_WRONG, AsJson, RunPath, allow_unread, find_run, say, write, write_json
from runmanager.errors import InvalidArgumentError
from runmanager.hyperparameters import counted, json_value

if TYPE_CHECKING:
    from runmanager.launch.verify import Verification
    from runmanager.results.removal import Contents
    from runmanager.storage.folders import RunFolder
    from runmanager.storage.run_state import RunResult

_MIB = 2**20


def verify(
    run: RunPath,
    function: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="FILE:FUNCTION",
            help="The function that the run was executed with, train(run, manager).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Repeat the first epoch of a run and report which metrics, if any, are not bit-identical.

    The function gets the run's own hyperparameters, in this process and with as many threads as the run had.
    Nothing is written to the run, and durations are not compared. On a CPU, the same code, data, versions and
    number of threads give the same bits; accelerators promise that only with deterministic algorithms. The file
    is imported: in it, start a grid only under `if __name__ == "__main__":`.

    For example:

      runmanager verify runs/mine/1 --with program.py:train
      runmanager verify runs/mine/1 --with mypackage.training:train --json

    Exit codes: 0 identical; 1 different, or the epoch did not end; 2 nothing was executed.
    """
    from runmanager.launch.verify import load_function
    from runmanager.launch.verify import verify as execute
    from runmanager.storage.run_state import read_run

    recorded = read_run(find_run(run)[1])
    if function is None:
        command = str(recorded.start.get("command"))
        program = command if command.endswith(".py") else "program.py"
        rule = "verify needs the function that the run was executed with"
        raise InvalidArgumentError([f"{rule}: --with path/to/{program}:train"])
    with contextlib.redirect_stdout(sys.stderr):  # whatever the function prints
        verdict = execute(recorded, load_function(function))
    with allow_unread():
        if as_json:
            write_json(_to_json(recorded, verdict))
        else:
            _print_verdict(recorded, verdict)
    raise typer.Exit(0 if verdict.is_identical else SOME_WRONG)


def rm(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders of runs, or EXPERIMENT/NUMBER.", show_default=False),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove runs: their files, their entries in the grid and their rows in the tables.

    Asks first. Refuses whatever is not a run, and experiments that a process is running. Only files that
    runmanager wrote are removed: others are kept and named, and links are not followed. A grid that still
    contains a removed run executes it again.

    For example:

      runmanager rm runs/fashion_grid/3
      runmanager rm --yes runs/fashion_grid/0*_lr=0.1*

    Exit codes: 0 removed; 1 not confirmed; 2 refused, nothing was removed; 74 storage failed.
    """
    from runmanager.results.removal import check_ended, look, remove
    from runmanager.storage.lock import check_free

    by_experiment: dict[Path, dict[str, RunFolder]] = {}
    for path in runs:
        experiment, folder = find_run(path)
        by_experiment.setdefault(experiment, {})[folder.id] = folder
    contents: dict[Path, Contents] = {}
    for experiment, folders in by_experiment.items():
        check_free(experiment)
        contents |= {folder.path: look(folder) for folder in folders.values()}
    for path, inside in contents.items():
        say(_described(path, inside))
    if not yes and not _is_confirmed(f"Remove {counted(len(contents), 'run')}?"):
        raise typer.Exit(SOME_WRONG)
    for folders in by_experiment.values():  # all are checked before the first is removed
        check_ended(folders.values())
    for experiment, folders in by_experiment.items():
        remove(experiment, folders.values())
    say(f"{counted(len(contents), 'run')} removed")


def devices(
    benchmark: Annotated[
        bool,
        typer.Option(
            "--benchmark",
            help="Time a matrix product and a training step on each device, compared with the CPU.",
        ),
    ] = False,
) -> None:
    """List the devices of this machine: name, memory, cores and precisions."""
    from runmanager.console import print_table
    from runmanager.devices.describe import describe_devices

    print_table(describe_devices(), title="Devices")
    if benchmark:
        from runmanager.devices.benchmark import benchmark_devices

        print_table(benchmark_devices(), title="\nSpeed, warm and synchronised, of several timings")


def _is_confirmed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except BrokenPipeError as error:  # nobody can be asked
        raise typer.Exit(SOME_WRONG) from error


def _print_verdict(recorded: "RunResult", verdict: "Verification") -> None:
    from runmanager.console import print_table
    from runmanager.launch.verify import TIMES

    for change in verdict.changed:
        say(f"! {change} changed since the run was executed")
    if verdict.error:
        write(f"different: the first epoch did not end: {verdict.error}")
        return
    epoch = f"the first epoch of {recorded.folder.path}"
    if verdict.is_identical:
        names = ", ".join(name for name in verdict.before if name in verdict.again and name not in TIMES)
        write(f"identical: {epoch} gives the same {names}, to the last bit")
        return
    write(f"different: {epoch} gives other numbers")
    print_table([_difference(name, verdict) for name in verdict.differing], most=None)


def _difference(name: str, verdict: "Verification") -> dict[str, Any]:
    before, again = verdict.before.get(name), verdict.again.get(name)
    row = {"metric": name, "recorded": repr(before), "now": repr(again)}
    return row if before is None or again is None else {**row, "difference": again - before}


def _to_json(recorded: "RunResult", verdict: "Verification") -> dict[str, Any]:
    return {
        "folder": str(recorded.folder.path),
        "identical": verdict.is_identical,
        "differing": verdict.differing,
        "recorded": {name: json_value(value) for name, value in verdict.before.items()},
        "now": {name: json_value(value) for name, value in verdict.again.items()},
        "changed": list(verdict.changed),
        "error": verdict.error,
    }


def _described(path: Path, inside: "Contents") -> str:
    others = f"; not removed: {', '.join(other.name for other in inside.others)}" if inside.others else ""
    return f"{path}: {counted(len(inside.files), 'file')}, {inside.size / _MIB:.1f} MiB{others}"

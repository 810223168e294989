"""Commands that look after runs and machines: verify, rm, note, devices."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runmanager.cli.common import (
    SOME_WRONG,
    allow_unread,
    find_run,
    find_target,
    say,
    write,
    write_json,
)
from runmanager.cli.options import AsJson, RunPath
from runmanager.errors import InvalidArgumentError
from runmanager.hyperparameters import json_value

if TYPE_CHECKING:
    from runmanager.launch.verify import Verification
    from runmanager.storage.run_state import RunResult


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
    targets: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|EXPERIMENT", help="Folders, or EXPERIMENT/NUMBER for a run.", show_default=False
        ),
    ],
    checkpoints: Annotated[
        bool,
        typer.Option("--checkpoints", help="Remove checkpoints alone: rows, journals and weights are kept."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove runs or whole experiments: their files, their entries in the grid and their rows in the tables.

    Asks first, and says how much disk is freed. Refuses whatever is neither, and what a process is writing.
    Only files that runmanager wrote are removed: others are kept and named, and links are not followed. A grid
    that still contains a removed run executes it again.

    With --checkpoints, which takes a root of experiments too, runs that are not completed can no longer be
    resumed: they are executed again from their first epoch.

    For example:

      runmanager rm runs/fashion_grid/3
      runmanager rm runs/fashion_grid
      runmanager rm --yes runs/fashion_grid/0*-lr=0.1*
      runmanager rm --checkpoints runs

    Exit codes: 0 removed; 1 not confirmed; 2 refused, nothing was removed; 74 storage failed.
    """
    from runmanager.cli.removing import remove_checkpoints, remove_targets

    (remove_checkpoints if checkpoints else remove_targets)(targets, is_confirmed=yes)


def note(
    target: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT|RUN", help="An experiment, or EXPERIMENT/NUMBER for a run.")
    ],
    text: Annotated[
        str | None, typer.Argument(help="One line; '' removes the note, without it the note is shown.")
    ] = None,
) -> None:
    """Note why an experiment was run, or what is special about a run; or show the note.

    `run_grid(..., note="...")` writes it at the start of a grid. `runmanager diff` shows those of both sides.

    For example:

      runmanager note runs/fashion_grid "does a larger batch need a larger lr?"
      runmanager note runs/fashion_grid/3 "best so far, look at its confusion matrix"
      runmanager note runs/fashion_grid

    Exit codes: 0 written or shown; 2 no such experiment or run, or it is being executed; 74 storage failed.
    """
    from runmanager.storage.design import Design, check_note
    from runmanager.storage.folders import Experiment
    from runmanager.storage.lock import hold

    path, run = find_target(target)
    experiment = Experiment(path)
    if text is None:
        design = experiment.design
        before = design.note if run is None else (design.run_notes or {}).get(run.id)
        if before:
            write(before)
        else:
            say(f'{target} has no note: runmanager note {target} "why it was run"')
        return
    line = check_note(text)
    with hold(path):
        experiment.decide(Design(note=line) if run is None else Design(run_notes={run.id: line}))
    say(f"{target}: {f'noted: {line}' if line else 'the note is removed'}")


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

"""Commands that check and describe runs and devices: verify, note, devices."""

import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.cli.common import SOME_WRONG, find_target, say, write
from runmanager.cli.declare import Answer
from runmanager.errors import InvalidArgumentError
from runmanager.hyperparameters import json_value

if TYPE_CHECKING:
    from runmanager.session.verification import Verification
    from runmanager.storage.run_state import RunResult


def verify_command(run: Path, *, function: str | None = None) -> Answer:
    """Repeat a run's first epoch and compare its metrics.

    It names the metrics that are not bit-identical. The function gets the run's hyperparameters, in this
    process, with as many threads as the run had. Nothing is written to the run. Durations are not compared.

    On a CPU, the same code, data, versions and threads give the same bits. Accelerators need deterministic
    algorithms for that. The file is imported: start a grid in it only under `if __name__ == "__main__":`.

    For example:

      runmanager verify runs/mine/1 --with program.py:train
      runmanager verify runs/mine/1 --with mypackage.training:train --json

    Exit codes: 0 identical; 1 different, or the epoch did not end; 2 nothing was executed.

    Options:
        function (FILE:FUNCTION): The training function of the run.
    """
    from runmanager.launch.verify import load_function, verify_first_epoch
    from runmanager.storage.run_state import read_run
    from runmanager.tables.one_run import find_run

    recorded = read_run(find_run(run)[1])
    if function is None:
        command = str(recorded.start.get("command"))
        program = command if command.endswith(".py") else "program.py"
        rule = "verify needs the function that the run was executed with"
        raise InvalidArgumentError([f"{rule}: --with path/to/{program}:train"])
    # standard output is for the result, not for output of the function
    with contextlib.redirect_stdout(sys.stderr):
        verdict = verify_first_epoch(recorded, load_function(function))
    return Answer(
        partial(_print_verdict, recorded, verdict),
        partial(_to_json, recorded, verdict),
        0 if verdict.is_identical else SOME_WRONG,
    )


def note_command(target: Path, text: str | None = None) -> None:
    """Write or show a note on an experiment or a run.

    `run_grid(..., note="...")` writes the note when a grid starts. `runmanager diff` shows the notes of both.

    For example:

      runmanager note runs/fashion_grid "does a larger batch need a larger lr?"
      runmanager note runs/fashion_grid/3 "best so far"
      runmanager note runs/fashion_grid

    Exit codes: 0 written or shown; 2 no such experiment or run, or it is being executed; 74 storage failed.

    Options:
        target (EXPERIMENT|RUN): An experiment, or EXPERIMENT/NUMBER for a run.
        text (TEXT): Lines of Markdown; '' removes the note. Without a text, the note is shown.
    """
    from runmanager.storage.design import Design, check_note, first_line_of_note
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
    note = check_note(text)
    with hold(path):
        experiment.decide(Design(note=note) if run is None else Design(run_notes={run.id: note}))
    say(f"{target}: {f'noted: {first_line_of_note(note)}' if note else 'the note is removed'}")


def devices_command(*, benchmark: bool = False) -> None:
    """List the devices: memory (GiB), cores, precisions.

    Options:
        benchmark: Time a matrix product and a training step on each device (seconds).
    """
    from runmanager.console import print_table
    from runmanager.devices.describe import describe_devices

    print_table(describe_devices(), title="Devices")
    if benchmark:
        from runmanager.devices.benchmark import benchmark_devices

        print_table(benchmark_devices(), title="\nSpeed, warm and synchronised, of several timings")


def _print_verdict(recorded: "RunResult", verdict: "Verification") -> None:
    from runmanager.console import print_table
    from runmanager.session.verification import TIMES

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

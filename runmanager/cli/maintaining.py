"""Commands that describe runs and devices: note, devices."""

from pathlib import Path

from runmanager.cli.common import find_target, say, write_out


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
    from runmanager.core.experiment import Design, Experiment
    from runmanager.core.lock import hold
    from runmanager.tables.notes import check_note, first_line_of_note

    path, run = find_target(target)
    experiment = Experiment(path)
    if text is None:
        design = experiment.design
        before = design.note if run is None else (design.notes or {}).get(run.id)
        if before:
            write_out(before)
        else:
            say(f'{target} has no note: runmanager note {target} "why it was run"')
        return
    note = check_note(text)
    with hold(path):
        experiment.decide(Design(note=note) if run is None else Design(notes={run.id: note}))
    say(f"{target}: {f'noted: {first_line_of_note(note)}' if note else 'the note is removed'}")


def devices_command() -> None:
    """List the devices: memory (GiB), cores, precisions.

    For example:

      runmanager devices
    """
    from runmanager.devices.describe import describe_devices
    from runmanager.drawing.console import print_fitted
    from runmanager.drawing.table import Table

    print_fitted(Table.of(describe_devices()))

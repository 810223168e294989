"""What `runmanager rm` says, asks and removes."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from runmanager.cli.common import SOME_WRONG, find_experiment, find_run, find_target, say
from runmanager.hyperparameters import counted

if TYPE_CHECKING:
    from runmanager.results.removal import Contents
    from runmanager.storage.folders import RunFolder

_MIB = 2**20
_MOST_NAMED = 8  # runs or files in a message


def remove_targets(targets: Sequence[Path], *, is_confirmed: bool) -> None:
    """Remove runs and experiments, once that is confirmed; all are checked before the first is removed."""
    from runmanager.results import removal
    from runmanager.storage.folders import read_runs
    from runmanager.storage.lock import check_free

    pairs = [find_target(path) for path in targets]
    whole = list(dict.fromkeys(experiment for experiment, run in pairs if run is None))
    runs: dict[Path, dict[str, RunFolder]] = {}
    for experiment, run in pairs:
        if run is not None and experiment not in whole:
            runs.setdefault(experiment, {})[run.id] = run
    for experiment in (*whole, *runs):
        check_free(experiment)
    for experiment in whole:
        inside = removal.look_at_experiment(experiment)
        say(_described(f"{experiment}: {counted(len(read_runs(experiment)), 'run')}, ", inside))
    for folders in runs.values():
        for folder in folders.values():
            say(_described(f"{folder.path}: ", removal.look(folder)))
    number = sum(len(folders) for folders in runs.values())
    counts = [(len(whole), "experiment"), (number, "run")]
    what = " and ".join(counted(count, word) for count, word in counts if count)
    _confirm(f"Remove {what}?", is_confirmed=is_confirmed)
    for folders in (*({run.id: run for run in read_runs(path)} for path in whole), *runs.values()):
        removal.check_ended(folders.values())
    for experiment in whole:
        removal.remove_experiment(experiment)
    for experiment, folders in runs.items():
        removal.remove(experiment, folders.values())
    say(f"{what} removed")


def remove_checkpoints_of(targets: Sequence[Path], *, is_confirmed: bool) -> None:
    """Remove the checkpoints of runs, experiments or roots, once that is confirmed."""
    from runmanager.results import removal
    from runmanager.storage.lock import check_free

    runs = _runs_in(targets)
    contents = {id_: removal.look_at_checkpoints(run) for id_, (_, run) in runs.items()}
    runs = {id_: pair for id_, pair in runs.items() if contents[id_].files}
    experiments = dict.fromkeys(experiment for experiment, _ in runs.values())
    for experiment in experiments:
        check_free(experiment)
    number = sum(len(contents[id_].files) for id_ in runs)
    size = f"{sum(contents[id_].size for id_ in runs) / _MIB:.1f} MiB"
    if not runs:
        say("there are no checkpoints: completed runs keep none, and weights.pt is none")
        return
    by_experiment = {path: [run for home, run in runs.values() if home == path] for path in experiments}
    for experiment, folders in by_experiment.items():
        say(_kept(experiment, folders))
    _confirm(f"Remove {counted(number, 'checkpoint')}, {size}?", is_confirmed=is_confirmed)
    for folders in by_experiment.values():
        removal.check_ended(folders)
    for experiment, folders in by_experiment.items():
        removal.remove_checkpoints(experiment, folders)
    say(f"{counted(number, 'checkpoint')} removed, {size} freed")


def _runs_in(targets: Iterable[Path]) -> dict[Path, tuple[Path, "RunFolder"]]:
    """Return path -> experiment and run, of all runs that are named, or are in what is named."""
    from runmanager.storage.folders import experiments, is_experiment, read_runs

    runs: dict[Path, tuple[Path, RunFolder]] = {}
    for path in targets:
        folders = experiments(path) if path.is_dir() and not path.is_symlink() else []
        if any(map(is_experiment, folders)):
            for experiment in (find_experiment(folder) for folder in folders if not folder.is_symlink()):
                runs |= {run.path: (experiment, run) for run in read_runs(experiment)}
        else:
            experiment, run = find_target(path) if path.is_symlink() else find_run(path)
            runs |= {run.path: (experiment, run)} if run else {}
    return runs


def _kept(experiment: Path, runs: Sequence["RunFolder"]) -> str:
    """Say which runs can no longer be resumed without their checkpoints."""
    from runmanager.outcome import Status
    from runmanager.storage.run_state import read_run

    results = [result for result in map(read_run, runs) if result.status is not Status.COMPLETED]
    named = [f"{result.folder.number} ({result.status} after epoch {len(result.epochs)})" for result in results]
    kept = "rows, journals and weights.pt are kept"
    if not named:
        return f"{experiment}: {kept}"
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    listed = f"{', '.join(named[:_MOST_NAMED])}{more}"
    who = "1 run" if len(named) == 1 else f"{len(named)} runs"
    return f"{experiment}: {kept}; {who} can no longer be resumed, only executed from the first epoch: {listed}"


def _described(start: str, inside: "Contents") -> str:
    names = [str(other.name) for other in inside.others]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    others = f"; not removed: {', '.join(names[:_MOST_NAMED])}{more}" if names else ""
    return f"{start}{counted(len(inside.files), 'file')}, {inside.size / _MIB:.1f} MiB{others}"


def _confirm(question: str, *, is_confirmed: bool) -> None:
    if is_confirmed:
        return
    try:
        is_confirmed = typer.confirm(question, err=True)
    except BrokenPipeError as error:  # nobody can be asked
        raise typer.Exit(SOME_WRONG) from error
    if not is_confirmed:
        raise typer.Exit(SOME_WRONG)

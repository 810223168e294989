"""The command that removes runs, experiments or checkpoints after a confirmation: rm."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from runmanager.cli.common import SOME_WRONG, find_experiment, find_target, say
from runmanager.core.wording import counted, listed

if TYPE_CHECKING:
    from runmanager.core.experiment import RunFolder
    from runmanager.tables.removal import Contents

_MIB = 2**20
_MOST_NAMED = 8  # maximum number of runs or files named in a message


def rm_command(targets: list[Path], *, checkpoints: bool = False, yes: bool = False) -> None:
    """Remove runs or experiments, or their checkpoints.

    A run's files, its entry in the grid and its rows in the tables are removed. The command asks first, and
    says how much disk is freed. It refuses a run that a process is writing. Files that runmanager did not write
    are kept and named; links are not followed.

    A grid that still contains a removed run executes it again. A run without its checkpoint starts again at its
    first epoch, unless it is completed.

    For example:

      runmanager rm runs/fashion_grid/3
      runmanager rm runs/fashion_grid
      runmanager rm --yes runs/fashion_grid/0*-lr=0.1*
      runmanager rm --checkpoints runs

    Exit codes: 0 removed; 1 not confirmed; 2 refused, nothing was removed; 74 storage failed.

    Options:
        targets (RUN|EXPERIMENT): Experiments, or EXPERIMENT/NUMBER for a run.
        checkpoints: Remove checkpoints only, also below a root.
        yes: Do not ask for confirmation.
    """
    (_remove_checkpoints if checkpoints else _remove)(targets, is_confirmed=yes)


def _remove(targets: Sequence[Path], *, is_confirmed: bool) -> None:
    """Remove runs and experiments after a confirmation."""
    from runmanager.core.experiment import read_runs
    from runmanager.core.lock import check_free
    from runmanager.tables import removal

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
            say(_described(f"{folder.path}: ", removal.look(folder.path)))
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


def _remove_checkpoints(targets: Sequence[Path], *, is_confirmed: bool) -> None:
    """Remove the checkpoints of runs, experiments or roots after a confirmation."""
    from runmanager.core.lock import check_free
    from runmanager.tables import removal

    by_experiment: dict[Path, dict[str, RunFolder]] = {}
    inside: list[Path] = []
    for experiment, run in {run.path: (experiment, run) for experiment, run in _runs_in(targets)}.values():
        if checkpoints := removal.look_at_checkpoints(run.path)[0]:
            by_experiment.setdefault(experiment, {})[run.id] = run
            inside += checkpoints
    for experiment in by_experiment:
        check_free(experiment)
    if not inside:
        say("there are no checkpoints: completed runs keep none, and weights.pt is none")
        return
    number, size = counted(len(inside), "checkpoint"), _size(inside)
    say("rows, journals and weights.pt are kept; runs that have not completed can no longer be resumed")
    _confirm(f"Remove {number}, {size}?", is_confirmed=is_confirmed)
    for runs in by_experiment.values():
        removal.check_ended(runs.values())
    for experiment, runs in by_experiment.items():
        removal.remove_checkpoints(experiment, runs.values())
    say(f"{number} removed, {size} freed")


def _runs_in(targets: Iterable[Path]) -> Iterator[tuple[Path, "RunFolder"]]:
    """Yield the experiment and the folder of each run that is a target or inside a target."""
    from runmanager.core.experiment import read_runs
    from runmanager.tables.one_run import find_run
    from runmanager.tables.roots import experiments, is_experiment

    for path in targets:
        folders = experiments(path) if path.is_dir() and not path.is_symlink() else []
        if any(map(is_experiment, folders)):
            for experiment in (find_experiment(folder) for folder in folders if not folder.is_symlink()):
                yield from ((experiment, run) for run in read_runs(experiment))
        else:
            experiment, run = find_target(path) if path.is_symlink() else find_run(path)
            yield from [(experiment, run)] if run else []


def _described(start: str, contents: "Contents") -> str:
    ours, kept = contents
    names = [path.name for path in kept]
    others = f"; not removed: {listed(names, _MOST_NAMED)}" if names else ""
    return f"{start}{counted(len(ours), 'file')}, {_size(ours)}{others}"


def _size(paths: Iterable[Path]) -> str:
    return f"{sum(path.lstat().st_size for path in paths) / _MIB:.1f} MiB"


def _confirm(question: str, *, is_confirmed: bool) -> None:
    if is_confirmed:
        return
    try:
        is_confirmed = typer.confirm(question, err=True)
    except BrokenPipeError as error:  # no user can answer the question
        raise typer.Exit(SOME_WRONG) from error
    if not is_confirmed:
        raise typer.Exit(SOME_WRONG)

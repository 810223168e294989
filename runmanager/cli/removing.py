"""The command that removes runs, experiments or checkpoints after a confirmation: rm."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from runmanager.cli.common import SOME_WRONG, find_target, say
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
    from runmanager.core.experiment import read_runs
    from runmanager.core.lock import check_free
    from runmanager.tables import removal

    look = removal.look_at_checkpoints if checkpoints else removal.look
    pairs = list(_runs_in(targets) if checkpoints else map(find_target, targets))
    whole = {path: {run.id: run for run in read_runs(path)} for path, run in pairs if run is None}
    runs: dict[Path, dict[str, RunFolder]] = {}
    inside: dict[Path, Contents] = {path: removal.look_at_experiment(path) for path in whole}
    for experiment, run in pairs:
        if run is not None and experiment not in whole and ((contents := look(run.path))[0] or not checkpoints):
            runs.setdefault(experiment, {})[run.id] = run
            inside[run.path] = contents
    for experiment in (*whole, *runs):
        check_free(experiment)
    if not inside:
        say("there are no checkpoints: completed runs keep none, and weights.pt is none")
        return
    if checkpoints:
        files = [path for ours, _ in inside.values() for path in ours]
        what = f"{counted(len(files), 'checkpoint')}, {_size(files)}"
        say("rows, journals and weights.pt are kept; runs that have not completed can no longer be resumed")
    else:
        counts = [(len(whole), "experiment"), (sum(map(len, runs.values())), "run")]
        what = " and ".join(counted(count, word) for count, word in counts if count)
        for path, contents in inside.items():
            say(f"{path}: {_described(contents, whole.get(path, ()))}")
    _confirm(f"Remove {what}?", is_confirmed=yes)
    for folders in (*whole.values(), *runs.values()):
        removal.check_ended(folders.values())
    for experiment in whole:
        removal.remove_experiment(experiment)
    remove = removal.remove_checkpoints if checkpoints else removal.remove
    for experiment, folders in runs.items():
        remove(experiment, folders.values())
    say(f"{what} removed")


def _runs_in(targets: Iterable[Path]) -> Iterator[tuple[Path, "RunFolder | None"]]:
    """Yield the experiment and the folder of each run that is a target or inside a target."""
    from runmanager.core.experiment import read_runs
    from runmanager.tables.one_run import find_run
    from runmanager.tables.roots import experiments, is_experiment

    for path in targets:
        folders = experiments(path) if path.is_dir() and not path.is_symlink() else []
        if any(map(is_experiment, folders)):
            for experiment in (find_target(folder)[0] for folder in folders if not folder.is_symlink()):
                yield from ((experiment, run) for run in read_runs(experiment))
        else:
            yield find_target(path) if path.is_symlink() else find_run(path)


def _described(inside: "Contents", runs: Collection[object]) -> str:
    """Describe what is removed, and what is not."""
    ours, kept = inside
    others = f"; not removed: {listed([path.name for path in kept], _MOST_NAMED)}" if kept else ""
    number = f"{counted(len(runs), 'run')}, " if runs else ""
    return f"{number}{counted(len(ours), 'file')}, {_size(ours)}{others}"


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

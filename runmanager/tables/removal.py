"""Remove runs or experiments: only runmanager's files, and only if no process executes them."""

import re
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from runmanager.core import files
from runmanager.core.experiment import Experiment, RunFolder, has_journals, read_runs
from runmanager.core.lock import hold
from runmanager.core.outcome import Status
from runmanager.core.state import read_experiment, read_run
from runmanager.errors import ExperimentLockedError
from runmanager.tables.results_files import write_results

_OF_RUNS = (
    r"(run\.json|(error|output)\.log|weights\.pt|checkpoint(\.prev|\.inside)?\.(pt|damaged)"
    r"|events\.out\.tfevents\..+|attempt-\d+(-\d+)?\.((steps\.)?jsonl|(weights|checkpoint)\.pt))"
)
_OF_EXPERIMENTS = (
    r"(grid\.json|hparams\.json|results\.(csv|json)|source-.{16}\.py\.gz|report\.html"
    r"|(holder|claim)\.json(\.[0-9a-f]{8})*)"
)
# in a run's folder: artifacts, what a writer of them left that died, and checkpoints
_FOLDERS = rf"(attempt-\d+\.)?{files.ARTIFACTS}|\.artifact\..+\.tmp|{files.TRAINER}"
_ANY = r"[\s\S]*"
_JUNCTION = 0xA0000003  # IO_REPARSE_TAG_MOUNT_POINT, which `stat` has on Windows alone

Contents = tuple[list[Path], list[Path]]
"""The files of runmanager, which a removal removes, and others, which it keeps."""


def look(run: Path) -> Contents:
    """Return the content of a run's folder."""
    return _contents(run, _written(_OF_RUNS), _FOLDERS)


def look_at_experiment(experiment: Path) -> Contents:
    """Return the content of an experiment's folder and of its runs."""
    ours, others = _contents(experiment, _written(_OF_EXPERIMENTS), "")
    for folder in _folders_in(experiment):
        of_run, others_of_run = look(folder)
        others.remove(folder)
        others += others_of_run
        ours[:0] = of_run  # grid.json stays last
    return ours, others


def remove(experiment: Path, runs: Collection[RunFolder]) -> None:
    """Remove runs of one experiment: their folders, and their rows in grid.json and in the tables."""
    with hold(experiment):
        check_ended(runs)
        Experiment(experiment).forget({run.id for run in runs})
        for run in runs:
            with files.explained(run.path):
                _unlink(look(run.path)[0])
                _remove_if_empty(run.path, _FOLDERS)
        write_results(read_experiment(experiment), experiment)


def remove_experiment(experiment: Path) -> None:
    """Remove an experiment with all of its runs; a folder that holds other files is kept."""
    with hold(experiment), files.explained(experiment):
        check_ended(read_runs(experiment))
        folders = _folders_in(experiment)
        holder = experiment / files.HOLDER  # the lock file is removed last, as it excludes other writers
        _unlink(path for path in look_at_experiment(experiment)[0] if path != holder)
        for folder in folders:
            _remove_if_empty(folder, _FOLDERS)
    _remove_if_empty(experiment, "")
    files.sync(experiment.parent)


def check_ended(runs: Iterable[RunFolder]) -> None:
    """Refuse to remove runs while a process executes one of them."""
    for run in runs:
        if read_run(run).status is Status.RUNNING:
            raise ExperimentLockedError(
                f"{run.path} is being executed: nothing was removed; wait for it, or end it"
            )


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _remove_if_empty(folder: Path, folders: str) -> None:
    """Remove a folder after its subfolders with such names; a folder with other files stays."""
    for path in folder.iterdir() if _is_folder(folder) else ():
        if re.fullmatch(folders, path.name):
            _remove_if_empty(path, _ANY)
    with suppress(OSError):
        if _is_folder(folder):
            folder.rmdir()


def _written(names: str) -> str:
    return rf"{names}|\.({names}|session)\..+\.tmp"  # the hidden files are from writers that died


def _contents(folder: Path, names: str, folders: str) -> Contents:
    """Return files with such names, and all files in subfolders with such names, as ours; follow no links."""
    ours: list[Path] = []
    others: list[Path] = []
    for path in sorted(folder.iterdir()) if _is_folder(folder) else ():
        if _is_folder(path) and re.fullmatch(folders, path.name):
            inside, others_inside = _contents(path, _ANY, _ANY)
            ours += inside
            others += others_inside
        elif re.fullmatch(names, path.name) and stat.S_ISREG(path.lstat().st_mode):
            ours.append(path)
        else:
            others.append(path)
    # run.json and grid.json come last, so that a stopped removal can be repeated
    return sorted(ours, key=lambda path: path.name in (files.RUN, files.GRID)), others


def _folders_in(experiment: Path) -> list[Path]:
    """Return the folders of an experiment's runs, even of runs whose files are unreadable."""
    folders = dict.fromkeys(run.path for run in read_runs(experiment))
    for path in experiment.iterdir():
        if files.run_number(path.name) is not None and ((path / files.RUN).is_file() or has_journals(path)):
            folders[path] = None
    return [*filter(_is_folder, folders)]


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder, and neither a link nor a junction of Windows."""
    with suppress(OSError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and getattr(status, "st_reparse_tag", 0) != _JUNCTION
    return False

"""Remove runs, experiments or checkpoints: only runmanager's files, and only if no process executes them."""

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runmanager.core import files
from runmanager.core.experiment import Experiment, RunFolder, has_journals, read_runs
from runmanager.core.lock import hold
from runmanager.core.outcome import Status
from runmanager.core.state import read_experiment, read_run
from runmanager.errors import ExperimentLockedError
from runmanager.tables.results_files import write_results

_CHECKPOINTS = r"(checkpoint(\.prev|\.inside)?\.(pt|damaged)|attempt-\d+(-\d+)?\.checkpoint\.pt)"
_OF_RUNS = (
    rf"(run\.json|(error|output)\.log|weights\.pt|{_CHECKPOINTS}|events\.out\.tfevents\..+"
    r"|attempt-\d+(-\d+)?\.((steps\.)?jsonl|weights\.pt))"
)
_OF_EXPERIMENTS = (
    r"(grid\.json|hparams\.json|results\.(csv|json)|source-.{16}\.py\.gz|report\.html"
    r"|(holder|claim)\.json(\.[0-9a-f]{8})*)"
)
_FOLDERS = re.compile(rf"(attempt-\d+\.)?{files.ARTIFACTS}|{files.TRAINER}")  # inside a run's folder
_ANY = re.compile(".*", re.DOTALL)


def _written(names: str) -> re.Pattern[str]:
    return re.compile(rf"{names}|\.({names}|session)\..+\.tmp")  # the hidden files are from writers that died


@dataclass(frozen=True)
class Contents:
    """The content of a run's folder, or of an experiment's folder with its runs."""

    # files of runmanager; run.json and grid.json come last, so that a stopped removal can be repeated
    files: Sequence[Path]
    others: Sequence[Path]  # other files, and links; a removal keeps them
    size: int  # the size of `files` in bytes


def look(run: RunFolder) -> Contents:
    """Return the files that the removal of a run removes, and the files that it keeps."""
    return _of_run(run.path)


def look_at_experiment(experiment: Path) -> Contents:
    """Return the files that the removal of an experiment removes, and the files that it keeps."""
    top, folders = _contents(experiment, _written(_OF_EXPERIMENTS), files.GRID), _folders_in(experiment)
    parts = [_of_run(folder) for folder in folders]
    others = [path for path in top.others if path not in folders]
    return Contents(
        [*(file for contents in parts for file in contents.files), *top.files],
        [*others, *(other for contents in parts for other in contents.others)],
        sum(contents.size for contents in (top, *parts)),
    )


def look_at_checkpoints(run: RunFolder) -> Contents:
    """Return the checkpoints of a run as `files`; the weights of ``keep=`` are not checkpoints."""
    return _with_folder(run.path / files.TRAINER, _contents(run.path, _written(_CHECKPOINTS)))


def remove(experiment: Path, runs: Iterable[RunFolder]) -> None:
    """Remove runs of one experiment: their folders, and their rows in grid.json and in the tables."""
    runs = list(runs)
    with _while_held(experiment, runs):
        Experiment(experiment).forget({run.id for run in runs})
        for run in runs:
            with files.explained(run.path):
                _unlink(look(run).files)
                _remove_run_if_empty(run.path)
                files.sync(experiment)
        write_results(read_experiment(experiment), experiment)


def remove_experiment(experiment: Path) -> None:
    """Remove an experiment with all of its runs; a folder that holds other files is kept."""
    with _while_held(experiment, read_runs(experiment)), files.explained(experiment):
        folders = _folders_in(experiment)
        holder = experiment / files.HOLDER  # the lock file is removed last, as it excludes other writers
        _unlink(path for path in look_at_experiment(experiment).files if path != holder)
        for folder in folders:
            _remove_run_if_empty(folder)
    _remove_if_empty(experiment)
    files.sync(experiment.parent)


def remove_checkpoints(experiment: Path, runs: Iterable[RunFolder]) -> None:
    """Remove the checkpoints of runs of one experiment; their rows and weights stay."""
    runs = list(runs)
    with _while_held(experiment, runs):
        for run in runs:
            with files.explained(run.path):
                _unlink(look_at_checkpoints(run).files)
                _remove_folders(run.path / files.TRAINER)


def check_ended(runs: Iterable[RunFolder]) -> None:
    """Refuse to remove runs while a process executes one of them."""
    for run in runs:
        if read_run(run).status is Status.RUNNING:
            raise ExperimentLockedError(
                f"{run.path} is being executed: nothing was removed; wait for it, or end it"
            )


@contextlib.contextmanager
def _while_held(experiment: Path, runs: Sequence[RunFolder]) -> Iterator[None]:
    """Hold the lock of an experiment during the block, after checking that no process executes the runs."""
    with hold(experiment):
        check_ended(runs)
        yield


def _unlink(files: Iterable[Path]) -> None:
    for path in files:
        path.unlink(missing_ok=True)


def _remove_run_if_empty(folder: Path) -> None:
    for inside in _folders_of(folder):
        _remove_folders(inside)
    _remove_if_empty(folder)


def _remove_folders(folder: Path) -> None:
    """Remove a folder and its subfolders, except folders that are not empty."""
    for inside, _, _ in os.walk(folder, topdown=False) if _is_folder(folder) else ():
        _remove_if_empty(Path(inside))


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # the error if the folder has other files, which stay
        folder.rmdir()


def _contents(folder: Path, names: re.Pattern[str], last: str = "") -> Contents:
    """Return the content of a folder; files whose names match are `files`. Links are not followed."""
    files: list[Path] = []
    others: list[Path] = []
    size = 0
    inside = folder.iterdir() if _is_folder(folder) else ()
    for path in sorted(inside, key=lambda path: (path.name == last, path.name)):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and names.fullmatch(path.name):
            files.append(path)
            size += status.st_size
        else:
            others.append(path)
    return Contents(files, others, size)


def _of_run(folder: Path) -> Contents:
    """Return the content of a run's folder, with its artifacts and its trainer's checkpoints."""
    contents = _contents(folder, _written(_OF_RUNS), files.RUN)
    for inside in _folders_of(folder):
        contents = _with_folder(inside, contents)
    return contents


def _folders_of(run: Path) -> list[Path]:
    """Return the folders of artifacts and of the trainer's checkpoints in a run's folder."""
    inside = run.iterdir() if _is_folder(run) else ()
    return [path for path in inside if _FOLDERS.fullmatch(path.name)]


def _with_folder(folder: Path, contents: Contents) -> Contents:
    """Add all files in a subfolder of a run, except links."""
    if not _is_folder(folder):
        return contents
    parts = [_contents(Path(inside), _ANY) for inside, _, _ in os.walk(folder)]
    files = [file for part in parts for file in part.files]
    others = [other for part in parts for other in part.others if not _is_folder(other)]
    others = [other for other in contents.others if other != folder] + others
    return Contents([*files, *contents.files], others, contents.size + sum(part.size for part in parts))


def _folders_in(experiment: Path) -> dict[Path, None]:
    """Return the folders of an experiment's runs, even of runs whose files are unreadable."""
    folders = dict.fromkeys(run.path for run in read_runs(experiment))
    for path in experiment.iterdir():
        if files.run_number(path.name) is not None and ((path / files.RUN).is_file() or has_journals(path)):
            folders[path] = None
    return dict.fromkeys(filter(_is_folder, folders))


_JUNCTION = 0xA0000003  # IO_REPARSE_TAG_MOUNT_POINT, which `stat` has on Windows alone


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder and not a link to a folder, or a junction of Windows."""
    is_junction = path.is_dir() and getattr(path.lstat(), "st_reparse_tag", 0) == _JUNCTION
    return path.is_dir() and not path.is_symlink() and not is_junction

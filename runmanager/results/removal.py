"""Remove runs: only files that runmanager wrote, and only while no process executes them."""

import contextlib
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runmanager.errors import ExperimentLockedError
from runmanager.outcome import Status
from runmanager.storage import durable, paths
from runmanager.storage.folders import Experiment, RunFolder
from runmanager.storage.lock import hold
from runmanager.storage.run_state import read_experiment, read_run

_NAMES = (
    r"(run\.json|error\.log|weights\.pt|checkpoint(\.prev)?\.(pt|damaged)|events\.out\.tfevents\..+"
    r"|attempt-\d+(-\d+)?\.(jsonl|evts|checkpoint\.pt|weights\.pt))"
)
_WRITTEN = re.compile(rf"{_NAMES}|\.({_NAMES}|session)\..+\.tmp")  # a writer that died leaves hidden files


@dataclass(frozen=True)
class Contents:
    """What is in the folder of a run."""

    files: Sequence[Path]  # that runmanager wrote; run.json is last: a removal that stops can be repeated
    others: Sequence[Path]  # links included; they stay
    size: int  # of `files`, in bytes


def look(run: RunFolder) -> Contents:
    """Return what removing a run would remove, and what it would leave.

    Raises:
        OSError: Its folder cannot be read.
    """
    files: list[Path] = []
    others: list[Path] = []
    size = 0
    inside = run.path.iterdir() if _is_folder(run.path) else ()
    for path in sorted(inside, key=lambda path: (path.name == paths.RUN, path.name)):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and _WRITTEN.fullmatch(path.name):
            files.append(path)
            size += status.st_size
        else:
            others.append(path)
    return Contents(files, others, size)


def remove(experiment: Path, runs: Iterable[RunFolder]) -> None:
    """Remove runs of one experiment: from their folders, from grid.json and from the tables.

    A folder that holds anything else stays, and keeps it.

    Raises:
        ExperimentLockedError: One of them is being executed; nothing was removed.
        StorageError: Something could not be removed; the same call removes the rest.
    """
    from runmanager.results import tables
    from runmanager.results.files import write_results

    runs = list(runs)
    with hold(experiment):
        check_ended(runs)
        for run in runs:
            with durable.explained(run.path):
                _remove_files(run)
        Experiment(experiment).forget({run.id for run in runs})
        write_results(tables.epochs_table(tables.by_column(read_experiment(experiment))), experiment)


def check_ended(runs: Iterable[RunFolder]) -> None:
    """Refuse to remove runs while one of them is being executed.

    Raises:
        ExperimentLockedError: One of them is being executed.
    """
    for run in runs:
        if read_run(run).status is Status.RUNNING:
            raise ExperimentLockedError(
                f"{run.path} is being executed: nothing was removed; wait for it, or end it"
            )


def _remove_files(run: RunFolder) -> None:
    if not _is_folder(run.path):
        return
    for path in look(run).files:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty: other files stay
        run.path.rmdir()
    durable.sync_folder(run.path.parent)


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder, and not a link to one."""
    return path.is_dir() and not path.is_symlink()

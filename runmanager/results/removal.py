"""Removing runs: their own files only, and only while nobody executes them."""

import contextlib
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runmanager.errors import HeldError
from runmanager.outcome import Status
from runmanager.storage import durable, paths
from runmanager.storage.folders import Experiment, RunFolder
from runmanager.storage.lock import hold
from runmanager.storage.run_state import read_experiment, read_run

_NAMES = (
    r"(run\.json|error\.log|weights\.pt|checkpoint(\.prev)?\.(pt|damaged)|events\.out\.tfevents\..+"
    r"|attempt-\d+(-\d+)?\.(jsonl|evts|checkpoint\.pt))"
)
_OWN = re.compile(rf"{_NAMES}|\.({_NAMES}|session)\..+\.tmp")  # what a writer that died left behind is hidden


@dataclass(frozen=True)
class Contents:
    """What is in the folder of a run.

    Attributes:
        own: The files that runmanager wrote, run.json last: while it is there, the rest can be removed again.
        others: Everything else, links included; it stays.
        size: How many bytes the own files take.
    """

    own: Sequence[Path]
    others: Sequence[Path]
    size: int


def look(run: RunFolder) -> Contents:
    """Find out what removing a run would remove.

    Raises:
        OSError: Its folder cannot be read.
    """
    own: list[Path] = []
    others: list[Path] = []
    size = 0
    inside = run.path.iterdir() if _is_folder(run.path) else ()
    for path in sorted(inside, key=lambda path: (path.name == paths.RUN, path.name)):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and _OWN.fullmatch(path.name):
            own.append(path)
            size += found.st_size
        else:
            others.append(path)
    return Contents(own, others, size)


def remove(experiment: Path, runs: Iterable[RunFolder]) -> None:
    """Remove runs of one experiment: from their folders, from grid.json and from the tables.

    A folder that holds something else stays, with that in it.

    Raises:
        HeldError: One of them is being executed; nothing was removed.
        StorageError: Something could not be removed; the same call goes on.
    """
    from runmanager.results import tables

    runs = list(runs)
    with hold(experiment):
        check_ended(runs)
        for run in runs:
            with durable.explained(run.path):
                _remove_files(run)
        Experiment(experiment).forget({run.id for run in runs})
        tables.export(tables.epochs_table(tables.by_column(read_experiment(experiment))), experiment)


def check_ended(runs: Iterable[RunFolder]) -> None:
    """Refuse runs of which one has not ended.

    Raises:
        HeldError: One of them is being executed.
    """
    for run in runs:
        if read_run(run).status is Status.RUNNING:
            raise HeldError(f"{run.path} is being executed: nothing was removed; wait for it, or end it")


def _remove_files(run: RunFolder) -> None:
    if not _is_folder(run.path):
        return
    for path in look(run).own:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty: what is not ours stays
        run.path.rmdir()
    durable.sync_folder(run.path.parent)


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder itself, no link to one."""
    return path.is_dir() and not path.is_symlink()

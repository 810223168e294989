"""Lightning's checkpoints of a run: a file for each of its last two epochs, or a folder where it is sharded."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runmanager.devices import ranks
from runmanager.storage import durable

_NAME = re.compile(r"epoch-(?P<epoch>\d+)\.ckpt")


def path_of(folder: Path, number: int) -> Path:
    """Name the checkpoint of an epoch."""
    return folder / f"epoch-{number}.ckpt"


def last(folder: Path, committed: int) -> int:
    """Return the last committed epoch that has a checkpoint, 0 if none has."""
    return max((number for number in _numbers(folder) if number <= committed), default=0)


@contextmanager
def written(folder: Path, number: int) -> Iterator[Path]:
    """Let the block write the checkpoint of an epoch; it is on disk afterwards, as the epoch is committed next.

    That of the epoch before stays: until this one is committed, it is the last.

    Raises:
        StorageError: The folder could not be made.
    """
    path = path_of(folder, number)
    if ranks.is_main():
        durable.make_folder(folder)
    yield path
    if ranks.is_main():
        for file in (path, *path.rglob("*")):
            if file.is_file():
                _sync(file)
        durable.sync_folder(folder)
        for other in _numbers(folder) - {number - 1, number}:
            _remove(path_of(folder, other))


def _numbers(folder: Path) -> set[int]:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return {int(match["epoch"]) for name in names if (match := _NAME.fullmatch(name))}


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

"""A copy of an experiment's table that loads fast, used only while no journal has changed since it was made.

Safe to delete, never trusted over the journals: its key holds what the system says of every folder and file
that was read. NumPy arrays and JSON, no pickles.
"""

import contextlib
import hashlib
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from runmanager.errors import StorageError
from runmanager.storage import durable, paths

if TYPE_CHECKING:
    import numpy as np

VERSION = 1
_WORTHWHILE = 200  # runs from which on a copy is made


def key(experiment: Path) -> str | None:
    """Hash what the system says of an experiment's journals; None if there are too few to be worth it.

    A run's folder changes its time when a journal is begun, a journal its size when it grows.
    """
    found = [_stat(experiment / paths.GRID)]
    names = sorted(entry.name for entry in os.scandir(experiment) if paths.run_number(entry.name) is not None)
    if len(names) < _WORTHWHILE:
        return None
    root = os.fspath(experiment)
    for name in names:
        folder = f"{root}/{name}"
        found.append(_stat(folder))
        number = 1
        while (journal := _stat(f"{folder}/{paths.journal(number)}")) is not None:
            found.append(journal)
            number += 1
    document = json.dumps([VERSION, names, found])
    return hashlib.sha256(document.encode()).hexdigest()


def load(experiment: Path, wanted: str) -> dict[str, "np.ndarray[tuple[int], np.dtype[np.generic]]"] | None:
    """Load the arrays that were stored under a key, None if there are none."""
    import numpy as np

    try:
        with np.load(_path(experiment), allow_pickle=False) as stored:
            return dict(stored) if str(stored["key"]) == wanted else None
    except Exception:  # noqa: BLE001 - whatever is wrong with it, the journals have it all
        return None


def store(
    experiment: Path, wanted: str, arrays: dict[str, "np.ndarray[tuple[int], np.dtype[np.generic]]"]
) -> None:
    """Store arrays under a key, if the folder can be written."""
    import numpy as np

    file = io.BytesIO()
    np.savez(file, allow_pickle=False, key=np.array(wanted), **arrays)
    with contextlib.suppress(StorageError):
        durable.make_folder(_path(experiment).parent)
        durable.write_file(_path(experiment), file.getvalue())


def _path(experiment: Path) -> Path:
    return experiment / paths.CACHE / "results.npz"


def _stat(path: str | Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - a third of the time of Path.stat, tens of thousands of times
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns

"""A copy of an experiment's numbers that loads fast, used only while no journal has changed since it was made.

Safe to delete, never trusted over the journals: it holds what the system said of every folder and journal
before they were read, and is used only if the system says the same again. NumPy arrays and JSON, no pickles.
"""

import contextlib
import io
import json
import os
from pathlib import Path

import numpy as np

from runmanager.errors import StorageError
from runmanager.storage import durable, paths
from runmanager.storage.tables import Epochs, Numbers
from runmanager.values import decode, encode

VERSION = 1
_WORTHWHILE = 200  # runs from which on a copy is made


def snapshot(experiment: Path) -> tuple[list[str], Numbers] | None:
    """Return the names of an experiment's grid, folders and journals, and what the system says of each.

    A run's folder changes its time when a journal is begun, a journal its size when it grows. None if the runs
    are too few for a copy to be worth it.
    """
    root = os.fspath(experiment)
    entries = sorted(entry.name for entry in os.scandir(root) if paths.run_number(entry.name) is not None)
    if len(entries) < _WORTHWHILE:
        return None
    names = [paths.GRID, *entries]
    for entry in entries:
        with contextlib.suppress(OSError):
            inside = os.listdir(f"{root}/{entry}")  # noqa: PTH208 - no Path each
            names += [f"{entry}/{name}" for name in inside if name.startswith("attempt-")]
    return names, _stats(root, names)


def load(experiment: Path) -> Epochs | None:
    """Load the copy if it is still true, None if not."""
    try:
        with _path(experiment).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            document = json.loads(stored["document"].tobytes())
            if document["v"] != VERSION or not _is_true(experiment, document["names"], stored["stats"]):
                return None
            params = {name: [decode(value) for value in values] for name, values in document["params"].items()}
            metrics = {name: stored[f"metric {number}"] for number, name in enumerate(document["metrics"])}
            return Epochs(document["numbers"], document["counts"], params, stored["epochs"], metrics)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, the journals have it all
        return None


def store(experiment: Path, epochs: Epochs, names: list[str], stats: Numbers) -> None:
    """Store a copy, if the folder can be written.

    Args:
        experiment: Its folder.
        epochs: What was read.
        names: What `snapshot` returned before it was read.
        stats: Likewise.
    """
    document = {
        "v": VERSION,
        "names": names,
        "numbers": epochs.numbers,
        "counts": epochs.counts,
        "params": {name: [encode(value) for value in values] for name, values in epochs.params.items()},
        "metrics": list(epochs.metrics),
    }
    arrays = {f"metric {number}": values for number, values in enumerate(epochs.metrics.values())}
    content = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, document=content, stats=stats, epochs=epochs.epochs, **arrays)
    with contextlib.suppress(StorageError):
        durable.make_folder(_path(experiment).parent)
        durable.write_file(_path(experiment), file.getvalue())


def _is_true(experiment: Path, names: list[str], stats: Numbers) -> bool:
    root = os.fspath(experiment)
    there = {entry.name for entry in os.scandir(root) if paths.run_number(entry.name) is not None}
    folders = {name for name in names[1:] if "/" not in name}
    return there == folders and np.array_equal(_stats(root, names), stats)


def _stats(root: str, names: list[str]) -> Numbers:
    found: Numbers = np.zeros((len(names), 3), dtype=np.int64)
    for row, name in enumerate(names):
        with contextlib.suppress(OSError):
            stat = os.stat(f"{root}/{name}")  # noqa: PTH116 - half the time of Path.stat
            found[row] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found


def _path(experiment: Path) -> Path:
    return experiment / paths.CACHE / "results.npz"

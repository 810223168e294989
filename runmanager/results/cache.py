"""A copy of an experiment's numbers that loads fast, used only while no journal has changed since it was made.

Safe to delete, never trusted over the journals: it holds what the system said of every folder and journal
before they were read, and is used only if the system says the same again. NumPy arrays and JSON, no pickles.
"""

import contextlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from runmanager.errors import StorageError
from runmanager.hyperparameters import decode, encode
from runmanager.results.tables import Epochs, Numbers
from runmanager.storage import durable, paths
from runmanager.storage.durable import version

VERSION = 3
_WORTHWHILE = 200  # runs from which on a copy is made

Snapshot = tuple[list[str], Numbers]


def snapshot(experiment: Path) -> Snapshot | None:
    """Return the names of an experiment's grid and folders, and what the system says of each.

    A run's folder changes its time when a journal is begun. None if the runs are too few for a copy to be worth
    it.
    """
    root = os.fspath(experiment)
    names = _entries(root)
    return (names, _versions(root, [paths.GRID, *names])) if len(names) >= _WORTHWHILE else None


def load(experiment: Path) -> Epochs | None:
    """Load the copy if it is still true, None if not."""
    try:
        with _path(experiment).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            document = json.loads(stored["document"].tobytes())
            if document["v"] != VERSION or not _is_true(experiment, document, stored["versions"]):
                return None
            params = {name: [decode(value) for value in values] for name, values in document["params"].items()}
            metrics = {name: stored[f"metric {number}"] for number, name in enumerate(document["metrics"])}
            numbers, counts, jobs = (document[name] for name in ("numbers", "counts", "jobs"))
            return Epochs(numbers, counts, params, jobs, stored["epochs"], metrics)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, the journals have it all
        return None


def store(
    experiment: Path, epochs: Epochs, journals: Mapping[str, tuple[int, int, int]], before: Snapshot
) -> None:
    """Store a copy, if the folder can be written.

    Args:
        experiment: Its folder.
        epochs: What was read.
        journals: The paths of the journals -> their versions before they were read.
        before: What `snapshot` returned before all that.
    """
    folders, versions = before
    document = {
        "v": VERSION,
        "folders": folders,
        "journals": [path[len(os.fspath(experiment)) + 1 :] for path in journals],
        "numbers": epochs.numbers,
        "counts": epochs.counts,
        "jobs": epochs.jobs,
        "params": {name: [encode(value) for value in values] for name, values in epochs.params.items()},
        "metrics": list(epochs.metrics),
    }
    arrays = {f"metric {number}": values for number, values in enumerate(epochs.metrics.values())}
    arrays["versions"] = np.concatenate([versions, _array(list(journals.values()))])
    content = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, document=content, epochs=epochs.epochs, **arrays)
    with contextlib.suppress(StorageError):
        durable.make_folder(_path(experiment).parent)
        durable.write_file(_path(experiment), file.getvalue())


def _is_true(experiment: Path, document: Mapping[str, list[str]], versions: Numbers) -> bool:
    root = os.fspath(experiment)
    folders = document["folders"]
    names = [paths.GRID, *folders, *document["journals"]]
    return _entries(root) == folders and np.array_equal(_versions(root, names), versions)


def _entries(root: str) -> list[str]:
    """List what may be the folders of runs: they begin with their number."""
    return sorted(name for name in os.listdir(root) if name[:1].isdigit())  # noqa: PTH208 - no Path each


def _versions(root: str, names: list[str]) -> Numbers:
    found: list[tuple[int, int, int]] = []
    for name in names:
        try:
            found.append(version(os.stat(f"{root}/{name}")))  # noqa: PTH116 - half the time of Path.stat
        except OSError:
            found.append((0, 0, 0))
    return _array(found)


def _array(versions: Sequence[tuple[int, int, int]]) -> Numbers:
    return np.array(versions, dtype=np.int64).reshape(-1, 3)


def _path(experiment: Path) -> Path:
    return experiment / paths.CACHE / "results.npz"

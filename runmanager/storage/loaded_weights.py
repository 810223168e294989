"""The weights of other runs that a run has loaded, and whether they have changed since."""

import functools
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runmanager.storage import durable, paths
from runmanager.storage.fingerprint_changes import Fingerprint, FingerprintChange, changes_between
from runmanager.storage.run_state import RunResult

_of_this_run: dict[Path, str] | None = None
"""Folder -> hash of the weights that the current run has loaded; the loading code does not know the run."""


@contextmanager
def noting_weights() -> Iterator[None]:
    """Record the weights that are loaded during the block."""
    global _of_this_run  # noqa: PLW0603 - there is one run at a time
    _of_this_run = {}
    try:
        yield
    finally:
        _of_this_run = None


def note_weights(folder: Path) -> None:
    """Record loaded weights of another run, if a run is being executed."""
    if _of_this_run is not None and (now := _hash_of(folder)):
        _of_this_run[folder.resolve()] = now


def loading_facts(root: Path) -> dict[str, Any]:
    """Return the journal's facts about loaded weights, with folders relative to the root."""
    loaded = {
        Path(os.path.relpath(folder, root)).as_posix(): now for folder, now in (_of_this_run or {}).items()
    }
    return {"loaded": loaded} if loaded else {}


def changes_since(before: RunResult, now: Fingerprint) -> list[FingerprintChange]:
    """Return the changes since a run began: loaded weights, code, data and versions."""
    loaded = [FingerprintChange("weights", *weights) for weights in _compared(before) if weights[2]]
    since = changes_between(before.start.get("fingerprint", {}), now)
    return [*(change for change in loaded if change.before != change.now), *since]


def lost_weights(before: RunResult) -> list[str]:
    """Return the runs whose weights a run has loaded and that are missing now."""
    return [name for name, _, new in _compared(before) if not new]


def _compared(before: RunResult) -> Iterator[tuple[str, str, str]]:
    root = before.folder.path.parent.parent
    for name, old in sorted(before.loaded.items()):
        yield name, old, _hash_of(root / name)


def _hash_of(folder: Path) -> str:
    path = folder / paths.WEIGHTS
    with suppress(OSError):
        return _hash_of_file(path, durable.version(path.stat()))
    return ""


@functools.lru_cache  # many runs may have loaded the same weights
def _hash_of_file(path: Path, _version: object) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]

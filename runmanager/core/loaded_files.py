"""The other runs whose weights or artifacts a run has loaded, and whether these files have changed since."""

import functools
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runmanager.core import files
from runmanager.core.fingerprint_changes import Fingerprint, FingerprintChange, changes_between
from runmanager.core.run_state import RunResult

_of_this_run: dict[Path, str] | None = None
"""Folder -> digest of the runs that the current run has loaded from; the loading code does not know the run."""


@contextmanager
def noting_files() -> Iterator[None]:
    """Record the runs from which files are loaded during the block."""
    global _of_this_run  # noqa: PLW0603 - there is one run at a time
    _of_this_run = {}
    try:
        yield
    finally:
        _of_this_run = None


def note_run(folder: Path) -> None:
    """Record the files of another run, if a run is being executed."""
    if _of_this_run is not None:
        _of_this_run[folder.resolve()] = files_digest(folder)


def loading_facts(run: Path) -> dict[str, Any]:
    """Return the journal's facts about the runs that a run has loaded from, with paths relative to its root."""
    others = {path: digest for path, digest in (_of_this_run or {}).items() if path != run.resolve()}
    loaded = {
        Path(os.path.relpath(path, run.parent.parent)).as_posix(): digest for path, digest in others.items()
    }
    return {"loaded": loaded} if loaded else {}


def changes_since(before: RunResult, now: Fingerprint) -> list[FingerprintChange]:
    """Return the changes since a run began: loaded files, code, data and versions."""
    root = before.folder.path.parent.parent
    loaded = [
        FingerprintChange("loaded", f"files of {path}", digest, files_digest(root / path))
        for path, digest in sorted(before.loaded.items())
    ]
    since = changes_between(before.start.get("fingerprint", {}), now)
    return [*(change for change in loaded if change.now not in ("", change.before)), *since]


def files_digest(run: Path) -> str:
    """Return the digest of the weights and artifacts of a run; "" without such files."""
    artifacts = sorted((run / files.ARTIFACTS).rglob("*"))
    loadable = [path for path in (run / files.WEIGHTS, *artifacts) if path.is_file()]
    texts = [
        f"{path.relative_to(run)} {_digest_of_file(path, files.version(path.stat()))}" for path in loadable
    ]
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogateescape")).hexdigest()[:16] if texts else ""


@functools.lru_cache  # many runs may have loaded the same file
def _digest_of_file(path: Path, _version: object) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

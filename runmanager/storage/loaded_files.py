"""The weights and artifacts of other runs that a run has loaded, and the changes of these files since then."""

import functools
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from runmanager.storage import durable, paths
from runmanager.storage.fingerprint_changes import Fingerprint, FingerprintChange, changes_between
from runmanager.storage.journal import Loaded
from runmanager.storage.run_state import RunResult

_of_this_run: dict[Path, Loaded] | None = None
"""The files that the current run has loaded; the loading code does not know the run."""


@contextmanager
def noting_files() -> Iterator[None]:
    """Record the files that are loaded during the block."""
    global _of_this_run  # noqa: PLW0603 - there is one run at a time
    _of_this_run = {}
    try:
        yield
    finally:
        _of_this_run = None


def note_file(folder: Path, name: str) -> None:
    """Record a loaded file or folder of another run, if a run is being executed."""
    if _of_this_run is not None and (digest := _digest_of(folder / name)):
        attempt = max(paths.journals_by_attempt(folder), default=0)
        _of_this_run[folder.resolve() / name] = {"attempt": attempt, "digest": digest}


def loading_facts(run: Path) -> dict[str, Any]:
    """Return the journal's facts about the files that a run has loaded, with paths relative to its root."""
    loaded = {
        _relative(path, run.parent.parent): facts
        for path, facts in (_of_this_run or {}).items()
        if run.resolve() not in path.parents  # files of the run itself do not count
    }
    return {"loaded": loaded} if loaded else {}


def _relative(path: Path, root: Path) -> str:
    with suppress(ValueError):  # the error on Windows for a file on another drive
        path = Path(os.path.relpath(path, root))
    return path.as_posix()


def loaded_name(path: str) -> str:
    """Name a loaded file by its path.

    >>> loaded_name("pretrain/001-lr=0.1/weights.pt"), loaded_name("pretrain/001/artifacts/plots/roc.png")
    ('weights of pretrain/001-lr=0.1', "artifact 'plots/roc.png' of pretrain/001")
    """
    run, _, artifact = path.partition(f"/{paths.ARTIFACTS}/")
    return f"artifact {artifact!r} of {run}" if artifact else f"weights of {PurePosixPath(path).parent}"


def built_on(run: RunResult) -> list[str]:
    """Name the files that a run has loaded, each with the attempt that wrote it."""
    return [f"{loaded_name(path)}, attempt {facts['attempt']}" for path, facts in sorted(run.loaded.items())]


def changes_since(before: RunResult, now: Fingerprint) -> list[FingerprintChange]:
    """Return the changes since a run began: loaded files, code, data and versions."""
    loaded = [FingerprintChange("loaded", loaded_name(path), *digests) for path, *digests in _compared(before)]
    since = changes_between(before.start.get("fingerprint", {}), now)
    return [*(change for change in loaded if change.now not in ("", change.before)), *since]


def not_known(before: RunResult, now: Fingerprint) -> list[str]:
    """Say why it is unknown whether a run has changed; return "" if it is known."""
    unknown = "a change of it is not noticed"
    lost = [loaded_name(path) for path, _, digest in _compared(before) if not digest]
    reasons = [f"had loaded {name}, gone now: {unknown}" for name in lost]
    has_data = "data" in before.start.get("fingerprint", {}) and "data" not in now
    return [*reasons, *([f"had been given data=, not given now: {unknown}"] if has_data else [])]


def _compared(before: RunResult) -> Iterator[tuple[str, str, str]]:
    root = before.folder.path.parent.parent
    for path, facts in sorted(before.loaded.items()):
        yield path, facts["digest"], _digest_of(root / path)


def _digest_of(path: Path) -> str:
    """Return the digest of a file, or of all files in a folder; "" if there is no file."""
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        texts = [f"{file.relative_to(path).as_posix()} {_digest_of(file)}" for file in inside]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    with suppress(OSError):
        if path.is_file():
            return _digest_of_file(path, durable.version(path.stat()))
    return ""


@functools.lru_cache  # many runs may have loaded the same file
def _digest_of_file(path: Path, _version: object) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]

"""One grid per experiment at a time: who holds its folder, and for how long.

No file locks, which network file systems may not have: the holder's file is created exclusively, and its
modification time is renewed while the holder lives.
"""

import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runmanager.errors import HeldError
from runmanager.storage import durable, paths, processes

RENEWED_EVERY_S = 10.0
GONE_AFTER_S = 90.0
BRIEF_S = 15.0
"""How long a holder that said it would be brief is waited for."""

_TRIES = 10

_held: dict[str, int] = {}
"""The nonces under which this process holds experiments -> the thread that does."""


@contextmanager
def hold(experiment: Path, *, is_brief: bool = False) -> Iterator[None]:
    """Hold an experiment while the block runs.

    Args:
        experiment: Its folder.
        is_brief: Whether that takes seconds: others wait for it, and it waits for nobody.

    Raises:
        HeldError: Another process or thread holds it; the message says which, and when it was last active.
        StorageError: The holder's file could not be written.
    """
    path = experiment / paths.HOLDER
    nonce = uuid.uuid4().hex
    content = {**processes.this_process(), "user": _user(), "nonce": nonce, "is_brief": is_brief}
    with _known(nonce):
        with durable.explained(path):
            _take(path, content)
        with _released(path, nonce), _renewed(path, nonce):
            yield


@contextmanager
def _known(nonce: str) -> Iterator[None]:
    """Know that this process holds by a nonce; what else bears its number was torn before it could let go."""
    _held[nonce] = threading.get_ident()
    try:
        yield
    finally:
        del _held[nonce]


@contextmanager
def _released(path: Path, nonce: str) -> Iterator[None]:
    try:
        yield
    finally:
        if _read(path).get("nonce") == nonce:
            with suppress(OSError):  # the file of a process that is gone holds nothing
                path.unlink()


@contextmanager
def _renewed(path: Path, nonce: str) -> Iterator[None]:
    done = threading.Event()
    renewer = threading.Thread(target=_renew, args=(path, nonce, done), daemon=True)
    renewer.start()
    try:
        yield
    finally:
        done.set()
        renewer.join()


def holder(experiment: Path) -> tuple[dict[str, Any], float] | None:
    """Return who holds an experiment and how many seconds ago it was active; None if nobody does."""
    return _holder(experiment / paths.HOLDER)


def _holder(path: Path) -> tuple[dict[str, Any], float] | None:
    content = _read(path)
    try:
        return (content, time.time() - path.stat().st_mtime) if content else None
    except OSError:
        return None


def check_free(experiment: Path) -> None:
    """Do nothing unless another process, or another thread of this one, holds an experiment.

    Raises:
        HeldError: It does.
    """
    _wait_for_brief(experiment / paths.HOLDER, time.monotonic() + BRIEF_S)
    held = holder(experiment)
    if held and is_holding(*held) and not _is_own(held[0]):
        raise HeldError(_refusal(experiment, *held))


def is_holding(process: dict[str, Any], age_s: float) -> bool:
    """Whether a holder is still there: on this machine its process is looked at, else its age."""
    if processes.is_this(process):
        return str(process.get("nonce")) in _held
    alive = processes.lives(process)
    return age_s < GONE_AFTER_S if alive is None else alive


def _is_own(process: dict[str, Any]) -> bool:
    return processes.is_this(process) and _held.get(str(process.get("nonce"))) == threading.get_ident()


def _wait_for_brief(path: Path, deadline: float) -> None:
    while (held := _holder(path)) and held[0].get("is_brief") is True and is_holding(*held):
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _take(path: Path, content: dict[str, Any]) -> None:
    tries, deadline = 0, time.monotonic() + (0 if content.get("is_brief") else BRIEF_S)
    while tries < _TRIES:
        if durable.create_file(path, json.dumps(content).encode()):
            return
        current = _read(path)
        age = _age(path)
        if current.get("nonce") == content["nonce"]:
            return  # a network file system lost its answer and asked itself again
        if current and is_holding(current, age):
            if current.get("is_brief") is True and time.monotonic() < deadline:
                _wait_for_brief(path, deadline)
                continue
            raise HeldError(_refusal(path.parent, current, age))
        if path.exists() and _succeed(path, current, content):
            return
        tries += 1
    raise HeldError(f"{path.parent} is being taken by others at this moment: start again")


def _succeed(path: Path, gone: dict[str, Any], content: dict[str, Any]) -> bool:
    """Replace the file of a holder that is gone; False if another process was faster.

    Who may replace it holds a second file, named by the one that is gone, which is taken in the same way:
    whoever dies in between has a successor too.
    """
    name = hashlib.sha256(str(gone.get("nonce")).encode()).hexdigest()[:8]
    heir = path.with_name(f"{path.name}.{name}")
    _take(heir, content)
    if _read(path).get("nonce") != gone.get("nonce"):
        heir.unlink(missing_ok=True)
        return False
    heir.replace(path)
    return True


def _renew(path: Path, nonce: str, done: threading.Event) -> None:
    while not done.wait(RENEWED_EVERY_S):
        if _read(path).get("nonce") == nonce:
            try:
                os.utime(path)
            except OSError:
                continue


def _age(path: Path) -> float:
    """Return how many seconds ago a file was renewed, by the clock of its file system alone."""
    probe = path.with_name(f".probe.{uuid.uuid4().hex}")
    try:
        probe.touch()
        return max(0.0, probe.stat().st_mtime - path.stat().st_mtime)
    except OSError:
        return 0.0
    finally:
        probe.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "someone"


def _refusal(experiment: Path, held: dict[str, Any], age_s: float) -> str:
    return (
        f"{experiment} is being run by {held.get('user')}@{held.get('host')} "
        f"(process {held.get('pid')}, active {age_s:.0f} s ago): wait for it, end it, "
        "or choose another experiment name"
    )

"""The lock of an experiment: one grid at a time.

The lock file is created exclusively. Its holder is alive while its process is alive, if that can be asked.
If not, as on another machine, the holder is alive while it renews the time of the file, or while the kernel
has the file locked. One of the two signs is enough: a long C call or a signal may stop the renewal, and a
file system may lack locks.
"""

import errno
import hashlib
import json
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runmanager.core import files, processes
from runmanager.core.wording import printable
from runmanager.errors import ExperimentLockedError, StorageError

RENEWED_EVERY_S = 10.0
GONE_AFTER_S = 90.0
_TRIES = 10
_ANSWER_S = 1.0  # timeout for a query for a kernel lock, which may never return on a network file system
_LARGEST = 2**20  # the maximum number of bytes of a lock file

_held: dict[str, int] = {}
"""Nonce -> thread of each lock of this process; a lock file with this process id and another nonce is stale."""


@contextmanager
def hold(experiment: Path, say: Callable[[str], object] = str) -> Iterator[None]:
    """Hold the lock of an experiment during the block."""
    path = experiment / files.HOLDER
    nonce = uuid.uuid4().hex
    content = {**processes.this_process(), "user": _user(), "nonce": nonce}
    _held[nonce] = threading.get_ident()
    try:
        with files.explained(path):
            _take(path, content, say)
        with _locked(path), _renewed(path, nonce):
            yield
    finally:
        try:
            _release(path, nonce)
        finally:
            del _held[nonce]


def _release(path: Path, nonce: str) -> None:
    if _read(path).get("nonce") == nonce:
        with suppress(OSError):  # a remaining lock file is stale
            path.unlink(missing_ok=True)


@contextmanager
def _renewed(path: Path, nonce: str) -> Iterator[None]:
    done = threading.Event()

    def renew() -> None:
        while not done.wait(RENEWED_EVERY_S):
            if _read(path).get("nonce") == nonce:
                with suppress(OSError):
                    os.utime(path)

    renewer = threading.Thread(target=renew, daemon=True)
    renewer.start()
    try:
        yield
    finally:
        done.set()
        renewer.join()


@contextmanager
def _locked(path: Path) -> Iterator[bool | None]:
    """Lock a file in the kernel during the block; yield whether the file was free, None if unknown."""
    answers: list[bool] = []
    answered, ended = threading.Event(), threading.Event()

    def lock() -> None:
        # without locks, without the file, without permission, or closed by the block
        with suppress(OSError, ImportError):
            descriptor = os.open(path, os.O_RDWR)
            try:
                answers.append(_lock_in_kernel(descriptor))
                answered.set()
                ended.wait()
            finally:
                os.close(descriptor)
        answered.set()

    locker = threading.Thread(target=lock, daemon=True)
    locker.start()
    try:
        answered.wait(_ANSWER_S)
        yield answers[0] if answers else None
    finally:
        ended.set()
        locker.join(_ANSWER_S)


def _lock_in_kernel(descriptor: int) -> bool:
    """Lock an open file; return whether it was free."""
    import fcntl  # not on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(experiment: Path) -> tuple[dict[str, Any], float] | None:
    """Return the holder of an experiment and the seconds since its last activity; None without a holder."""
    path = experiment / files.HOLDER
    content = _read(path)
    return (content, _age(path)) if content else None


def check_free(experiment: Path) -> None:
    """Raise an error if another process or thread holds an experiment.

    Raises:
        ExperimentLockedError: Another process or thread holds the experiment.
    """
    current = holder(experiment)
    if current and is_holding(*current) and not _is_this_thread(current[0]):
        raise ExperimentLockedError(_refusal(experiment, *current))


def is_holding(process: dict[str, Any], age_s: float) -> bool:
    """Whether a holder is alive: by its process on this machine, by the lock file's age on another machine."""
    alive = _lives_here(process)
    return age_s < GONE_AFTER_S if alive is None else alive


def _lives_here(process: dict[str, Any]) -> bool | None:
    """Whether a holder of this boot of this machine is alive; None for any other holder."""
    if processes.is_this(process):
        return str(process.get("nonce")) in _held
    is_another = process.get("boot") != processes.this_process()["boot"]
    return None if is_another else processes.lives(process)


def _is_this_thread(process: dict[str, Any]) -> bool:
    return processes.is_this(process) and _held.get(str(process.get("nonce"))) == threading.get_ident()


def _take(path: Path, content: dict[str, Any], say: Callable[[str], object] = str) -> None:
    for _ in range(_TRIES):
        try:
            return files.write_file(path, json.dumps(content).encode(), is_new=True)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
        current = _read(path)
        if current.get("nonce") == content["nonce"]:
            return None  # a network file system lost the answer to this process, and repeated the call
        lives = os.path.lexists(path) and _lives(path, current, say)
        if not os.path.lexists(path) or _read(path) != current:
            continue  # the lock was released, written or taken over in the meantime
        if not lives and _succeed(path, current, content):
            return None
        if lives and current:
            raise ExperimentLockedError(_refusal(path.parent, current, _age(path)))
    rule = f"start again; if that repeats, delete {path} and files that begin with its name"
    raise ExperimentLockedError(f"{path.parent} is being locked by several processes: {rule}")


def _lives(path: Path, process: dict[str, Any], say: Callable[[str], object]) -> bool:
    """Whether the holder named in a lock file is alive."""
    alive = _lives_here(process)
    if alive is not None:
        return alive
    with _locked(path) as is_free:
        is_elsewhere = process.get("host") != processes.this_process()["host"]
        # without locks, a heartbeat that is held up looks like a dead holder
        is_recent = bool(process) and (is_elsewhere or is_free is None) and _age(path) < GONE_AFTER_S
        if is_free is False or is_recent:
            return True
    before, watched_s = _state(path), 1.5 * RENEWED_EVERY_S
    holder = f"{_name(process)})" if process else "a process"
    say(f"{path.parent.name} was held by {holder}: watching for {watched_s:.0f} s for a sign of life")
    until = time.monotonic() + watched_s
    while time.monotonic() < until:
        time.sleep(RENEWED_EVERY_S / 20)
        if _state(path) != before:
            return True
    return False


def _state(path: Path) -> tuple[dict[str, Any], int]:
    try:
        return _read(path), path.stat().st_mtime_ns
    except OSError:
        return {}, 0


def _succeed(path: Path, gone: dict[str, Any], content: dict[str, Any]) -> bool:
    """Replace the lock file of a dead holder; return False if another process was faster."""
    name = hashlib.sha256(str(gone.get("nonce")).encode()).hexdigest()[:8]
    successor = path.with_name(f"{path.name}.{name}")
    _take(successor, content)
    if _read(path).get("nonce") != gone.get("nonce"):
        successor.unlink(missing_ok=True)
        return False
    successor.replace(path)
    return True


def _age(path: Path) -> float:
    """Return the seconds since a file was renewed, infinite for a missing file; clocks may differ."""
    try:
        return abs(time.time() - path.stat().st_mtime)
    except OSError:
        return math.inf


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(files.read_file(path, _LARGEST)[0])
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "someone"


def _refusal(experiment: Path, process: dict[str, Any], age_s: float) -> str:
    step = "wait for it, end it, or choose another experiment name"
    return f"{experiment} is in use by {_name(process)}, active {age_s:.0f} s ago): {step}"


def _name(process: dict[str, Any]) -> str:
    """Return the description of a holder, without the closing parenthesis."""
    return printable(f"{process.get('user')}@{process.get('host')} (process {process.get('pid')}")

"""The lock of an experiment, which admits one grid at a time, and whether a process is alive.

The lock file is created exclusively. Its holder is alive while its process is alive, if that can be asked.
If not, as on another machine, the holder is alive while it renews the time of the file, or while the kernel
has the file locked. One of the two signs is enough: a long C call or a signal may stop the renewal, and a
file system may lack locks.
"""

import errno
import getpass
import hashlib
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from runmanager.core import files
from runmanager.core.wording import printable
from runmanager.errors import ExperimentLockedError, StorageError

RENEWED_EVERY_S = 10.0
GONE_AFTER_S = 90.0
_TRIES = 10
_PAUSE_S = 0.02  # between two attempts to claim
_ANSWER_S = 1.0  # timeout for a query for a kernel lock, which may never return on a network file system
_LARGEST_PID = 2**31
_DEAD = "dead"

_held: dict[str, int] = {}
"""Nonce -> thread of each lock of this process; a lock file with this process id and another nonce is stale."""


def this_process() -> dict[str, Any]:
    """Return the identity of this process as JSON, unique across machines."""
    pid = os.getpid()
    return {"host": _host(), "boot": _boot(), "pid": pid, "pid_start": _start_of_this(pid)}


def lives(process: Mapping[str, Any]) -> bool | None:
    """Whether the process with an identity is alive; None if unknown, as for a process on another machine."""
    pid, expected = process.get("pid"), process.get("pid_start")
    if process.get("host") != _host():
        return None
    if process.get("boot", _boot()) != _boot() or not isinstance(pid, int) or not 0 < pid < _LARGEST_PID:
        return False
    started = _started(pid)
    # process ids are reused, so a process without its start time may be another one
    return False if started == _DEAD else expected == started if expected and started else None


@cache
def _host() -> str:
    return socket.gethostname()


@cache
def _boot() -> str:
    """Return an identifier of boot and container: process ids are unique within a boot and a container."""
    with suppress(OSError):  # not on Linux
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


@cache
def _start_of_this(pid: int) -> str:
    return _started(pid)


def _started(pid: int) -> str:
    """Return the start time of a process, `_DEAD` if there is no such process; empty if unavailable."""
    if sys.platform == "win32":
        return ""  # os.kill would end the process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return _DEAD
    except OSError:
        pass  # the process belongs to another user
    state = started = ""
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            words = ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)]
            # each process would write in its own language and time zone
            fixed = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
            printed = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True, env=fixed)  # noqa: S603
            state, _, started = printed.stdout.strip().partition(" ")
        else:
            # the name in parentheses may contain any character, so count from its end (proc_pid_stat(5))
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            state, started = fields[0], fields[19]  # ticks since boot
    return _DEAD if state[:1] == "Z" else started.strip()


@contextmanager
def hold(experiment: Path, say: Callable[[str], object] = str) -> Iterator[None]:
    """Hold the lock of an experiment during the block."""
    path = experiment / files.HOLDER
    done = threading.Event()
    with _owned(path, say) as nonce:

        def renew() -> None:
            while not done.wait(RENEWED_EVERY_S):
                if files.read_json(path).get("nonce") == nonce:
                    with suppress(OSError):
                        os.utime(path)

        renewer = threading.Thread(target=renew, daemon=True)
        with _locked(path):
            renewer.start()
            try:
                yield
            finally:
                done.set()
                renewer.join()


@contextmanager
def claim(experiment: Path) -> Iterator[None]:
    """Hold the lock of an experiment's folders during the block, after others; it is held for milliseconds."""
    path = experiment / files.CLAIM
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(_owned(path))
                break
            except ExperimentLockedError:
                time.sleep(_PAUSE_S)
        yield


@contextmanager
def _owned(path: Path, say: Callable[[str], object] = str) -> Iterator[str]:
    """Own a lock file during the block; yield its nonce."""
    nonce = uuid.uuid4().hex
    user = "someone"
    with suppress(OSError, KeyError, ImportError):  # without a name, as in some containers
        user = getpass.getuser()
    _held[nonce] = threading.get_ident()
    try:
        with files.explained(path):
            _take(path, {**this_process(), "user": user, "nonce": nonce}, say)
        yield nonce
    finally:
        try:
            if files.read_json(path).get("nonce") == nonce:
                with suppress(OSError):  # a remaining lock file is stale
                    path.unlink()
        finally:
            del _held[nonce]


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
    content = files.read_json(path)
    return (content, _age(path)) if content else None


def check_free(experiment: Path) -> None:
    """Raise an error if another process or thread holds an experiment."""
    current = holder(experiment)
    this = os.getpid(), threading.get_ident()  # a forked child has its parent's locks and thread
    if (
        current
        and is_holding(*current)
        and (current[0].get("pid"), _held.get(str(current[0].get("nonce")))) != this
    ):
        raise ExperimentLockedError(_refusal(experiment, *current))


def is_holding(process: dict[str, Any], age_s: float) -> bool:
    """Whether a holder is alive: by its process on this machine, by the lock file's age on another machine."""
    alive = _lives_here(process)
    return age_s < GONE_AFTER_S if alive is None else alive


def _lives_here(process: dict[str, Any]) -> bool | None:
    """Whether a holder of this boot of this machine is alive; None for any other holder."""
    this = this_process()
    if this.items() <= process.items():
        return str(process.get("nonce")) in _held
    return lives(process) if process.get("boot") == this["boot"] else None


def _take(path: Path, content: dict[str, Any], say: Callable[[str], object] = str) -> None:
    for _ in range(_TRIES):
        try:
            return files.write_file(path, json.dumps(content).encode(), is_new=True)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
        current = files.read_json(path)
        if current.get("nonce") == content["nonce"]:
            return None  # a network file system lost the answer to this process, and repeated the call
        lives = os.path.lexists(path) and _is_alive(path, current, say)
        if not os.path.lexists(path) or files.read_json(path) != current:
            continue  # the lock was released, written or taken over in the meantime
        if not lives and _succeed(path, current, content):
            return None
        if lives and current:
            raise ExperimentLockedError(_refusal(path.parent, current, _age(path)))
    rule = f"start again; if that repeats, delete {path} and files that begin with its name"
    raise ExperimentLockedError(f"{path.parent} is being locked by several processes: {rule}")


def _is_alive(path: Path, process: dict[str, Any], say: Callable[[str], object]) -> bool:
    """Whether the holder named in a lock file is alive."""
    alive = _lives_here(process)
    if alive is not None:
        return alive
    with _locked(path) as is_free:
        # without locks, a heartbeat that is held up looks like a dead holder
        may_be_slow = is_free is None or process.get("host") != _host()
        if is_free is False or (process and may_be_slow and _age(path) < GONE_AFTER_S):
            return True
    before, watched_s = files.version_of(path), 1.5 * RENEWED_EVERY_S
    holder = _name(process) if process else "a process"
    say(f"{path.parent.name} was held by {holder}: watching for {watched_s:.0f} s for a sign of life")
    until = time.monotonic() + watched_s
    while time.monotonic() < until:
        time.sleep(RENEWED_EVERY_S / 20)
        if files.version_of(path) != before:
            return True
    return False


def _succeed(path: Path, gone: dict[str, Any], content: dict[str, Any]) -> bool:
    """Replace the lock file of a dead holder; return False if another process was faster."""
    name = hashlib.sha256(str(gone.get("nonce")).encode()).hexdigest()[:8]
    successor = path.with_name(f"{path.name}.{name}")
    _take(successor, content)
    if files.read_json(path).get("nonce") != gone.get("nonce"):
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


def _refusal(experiment: Path, process: dict[str, Any], age_s: float) -> str:
    step = "wait for it, end it, or choose another experiment name"
    name = _name(process).removesuffix(")")
    return f"{experiment} is in use by {name}, active {age_s:.0f} s ago): {step}"


def _name(process: dict[str, Any]) -> str:
    return printable(f"{process.get('user')}@{process.get('host')} (process {process.get('pid')})")

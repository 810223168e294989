"""The identity of a process, and whether it is alive."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_DEAD = "dead"
_LARGEST = 2**31  # process ids are below
_ANSWER_S = 10.0  # timeout for a program of the system


def this_process() -> dict[str, Any]:
    """Return the identity of this process as JSON, unique across machines."""
    pid = os.getpid()
    return {"host": _host(), "boot": _boot(), "pid": pid, "pid_start": _start_of_this(pid)}


def is_this(process: Mapping[str, Any]) -> bool:
    """Whether this process has an identity from `this_process`."""
    return this_process().items() <= process.items()


def lives(process: Mapping[str, Any]) -> bool | None:
    """Whether the process with an identity is alive; None if unknown, as for a process on another machine."""
    pid = process.get("pid")
    # the name of a Mac changes with its network
    if process.get("host") != _host() and not (_boot() and process.get("boot") == _boot()):
        return None
    if process.get("boot", _boot()) != _boot() or not isinstance(pid, int) or not 0 < pid < _LARGEST:
        return False
    started = _started(pid)
    if started == _DEAD:
        return False
    expected = process.get("pid_start")
    # process ids are reused, so a process without its start time may be another one
    return expected == started if expected and started else None


@cache
def _host() -> str:
    return socket.gethostname()


@cache
def _boot() -> str:
    """Return an identifier of boot and container: process ids are unique within a boot and a container."""
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "kern.bootsessionuuid")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
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
    if sys.platform == "darwin":
        state, _, start = _output("ps", "-o", "stat=,lstart=", "-p", str(pid)).partition(" ")
        return _DEAD if state[:1] == "Z" else start.strip()
    try:
        # the name in parentheses may contain any character, so count from its end (proc_pid_stat(5): field 22)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return _DEAD if fields[0] == "Z" else fields[19]  # ticks since boot


def _output(*command: str) -> str:
    """Return what a program of the system prints, "" if there is no such program or it fails."""
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(  # noqa: S603
            command, env=environment, capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
        return done.stdout.strip()
    return ""

"""The identity of a process, and whether it still lives."""

import os
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """Return the identity of this process among all processes of all machines, as JSON.

    Its number is reused, so the machine's boot and the process's start are part of it, if the system has them.
    """
    pid = os.getpid()
    return {"host": _host(), "boot": _boot(), "pid": pid, "pid_start": _started(pid)}


def is_this(process: Mapping[str, Any]) -> bool:
    """Whether a process once described by `this_process` is this one."""
    return this_process().items() <= process.items()


def lives(process: Mapping[str, Any]) -> bool | None:
    """Whether a process once described by `this_process` still lives; None if it is on another machine."""
    pid = process.get("pid")
    if process.get("host") != _host():
        return None
    if process.get("boot", _boot()) != _boot() or not isinstance(pid, int) or pid <= 0:
        return False
    if os.name == "nt":  # pragma: no cover - os.kill ends the process there
        return True if pid == os.getpid() else None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # another user's
    started = process.get("pid_start", "")
    return not started or started == _started(pid)


@cache
def _host() -> str:
    return socket.gethostname()


def has_same_kernel(process: Mapping[str, Any]) -> bool:
    """Whether a process is, or was, on this boot of this machine, if in another container."""
    boot = str(process.get("boot")).partition(" ")[0]
    return bool(boot) and boot == _boot().partition(" ")[0]


@cache
def _boot() -> str:
    """Return what tells apart the boots of a machine, and its containers, which number their own processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process was started, in ticks since boot; empty if the system does not have it."""
    try:
        # the name in parentheses may hold anything, so count from its end (proc_pid_stat(5): field 22)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    if fields[0] == "Z":
        return "dead"
    return fields[19]

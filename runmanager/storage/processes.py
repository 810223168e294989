"""The identity of a process, and whether it is alive."""

import os
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """Return the identity of this process as JSON, unique across machines.

    Process ids are reused. So the identity includes the boot of the machine and the start time of the process,
    if available.
    """
    pid = os.getpid()
    return {"host": _host(), "boot": _boot(), "pid": pid, "pid_start": _started(pid)}


def is_this(process: Mapping[str, Any]) -> bool:
    """Whether this process has an identity from `this_process`."""
    return this_process().items() <= process.items()


def lives(process: Mapping[str, Any]) -> bool | None:
    """Whether the process with an identity is alive; None for a process on another machine."""
    pid = process.get("pid")
    if process.get("host") != _host():
        return None
    if process.get("boot", _boot()) != _boot() or not isinstance(pid, int) or pid <= 0:
        return False
    if os.name == "nt":  # pragma: no cover - os.kill would end the process on Windows
        return True if pid == os.getpid() else None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # the process belongs to another user
    started = process.get("pid_start", "")
    return not started or started == _started(pid)


@cache
def _host() -> str:
    return socket.gethostname()


def has_same_kernel(process: Mapping[str, Any]) -> bool:
    """Whether a process belongs to this boot of this machine, perhaps in another container."""
    boot = str(process.get("boot")).partition(" ")[0]
    return bool(boot) and boot == _boot().partition(" ")[0]


@cache
def _boot() -> str:
    """Return an identifier of boot and container: process ids are unique within a boot and a container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return the start time of a process, in ticks since boot; empty if unavailable."""
    try:
        # the name in parentheses may contain any character, so count from its end (proc_pid_stat(5): field 22)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    if fields[0] == "Z":
        return "dead"
    return fields[19]

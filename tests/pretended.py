"""Pretended systems: this machine refuses the package what Windows refuses, or lacks what macOS lacks.

`PRETENDED=windows pytest ...` (or `macos`) runs tests so, and `python -m tests.pretended windows script.py` a
program. The modules of the package get stand-ins for `os`, `signal` and others when they import them; calls of
`os` that the package makes by `pathlib`, `shutil` or `tempfile` are told by the calling frame. Dependencies and
tests see the real system, but for the method that starts processes, which is `spawn`.
"""

import builtins
import enum
import errno
import faulthandler
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import io
import multiprocessing
import os
import re
import runpy
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import connection, spawn
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

SYSTEMS = ("windows", "macos")
ASKED = os.environ.get("PRETENDED", "")
"""The system that this process and its lanes pretend, "" for the real one."""

_PACKAGE = "runmanager"
_ON_BEHALF = {
    "pathlib",
    "shutil",
    "tempfile",
    "contextlib",
    "os",
    "weakref",
}  # modules that call for the package
_STEP_S = 1 / 64  # of the clocks `time` and `monotonic` on Windows
_LONGEST_PATH = 259
_MOST_WAITED = 63  # handles, before Python 3.13
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_NO_NAME = re.compile(r'[<>:"|?*\\]|[. ]$')
_DENIED, _IN_USE, _NO_PATH, _BAD_NAME = 5, 32, 3, 123  # winerror

_NOT_ON_WINDOWS = {
    "os": """fork forkpty killpg getpgid getpgrp setpgid setpgrp setsid getsid sysconf sysconf_names
        sched_getaffinity sched_setaffinity register_at_fork getuid geteuid getgid O_NOFOLLOW uname
        getloadavg mkfifo chown fchown fchmod statvfs WNOHANG WIFSIGNALED wait3 wait4 pread pwrite nice openpty
        posix_fadvise posix_fallocate set_blocking get_blocking""",
    "signal": """SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGCHLD SIGALRM SIGQUIT SIGPIPE SIGSTOP SIGCONT SIGTSTP
        SIG_BLOCK SIG_UNBLOCK SIG_SETMASK ITIMER_REAL pthread_sigmask pthread_kill setitimer getitimer alarm
        pause sigwait sigpending siginterrupt""",
    "faulthandler": "register unregister",
}
MISSING = {
    "windows": {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"},
    "macos": set[str](),
}

_real = SimpleNamespace(
    time=time.time, monotonic=time.monotonic, wait=connection.wait, command_line=spawn.get_command_line
)  # fmt: skip


def install(system: str) -> None:
    """Pretend a system in this process, and in the processes that it spawns, before the package is imported."""
    assert system in SYSTEMS, f"PRETENDED must be one of {SYSTEMS}, got {system!r}"
    assert _PACKAGE not in sys.modules, "the system is pretended before the package is imported"
    sys.meta_path.insert(0, _Finder(_stand_ins(system), MISSING[system]))
    _refuse(system)
    multiprocessing.set_start_method("spawn", force=True)

    def command_line(**known: Any) -> list[str]:
        *command, program, last = _real.command_line(**known)
        first = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
        return [*command, f"{first}from tests import pretended; pretended.install({system!r}); {program}", last]

    spawn.get_command_line = command_line


class _Finder(importlib.abc.MetaPathFinder):
    """Gives the package's modules an `import` of their own."""

    def __init__(self, stand_ins: Mapping[str, ModuleType], missing: set[str]) -> None:
        self._stand_ins, self._missing = stand_ins, missing

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Find a module of the package."""
        if name.partition(".")[0] != _PACKAGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
            spec.loader.builtins = {**vars(builtins), "__import__": self._import}
        return spec

    def _import(
        self, name: str, names: Any = None, locals_: Any = None, parts: Any = (), level: int = 0
    ) -> Any:
        if name.partition(".")[0] in self._missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if level == 0 and name in self._stand_ins:
            return self._stand_ins[name]
        return builtins.__import__(name, names, locals_, parts, level)


class _Loader(importlib.machinery.SourceFileLoader):
    builtins: dict[str, Any]

    def exec_module(self, module: ModuleType) -> None:
        """Execute a module with its `import`."""
        vars(module)["__builtins__"] = self.builtins
        super().exec_module(module)


class StandIn(ModuleType):
    """A module that lacks some names and has others; what else a test sets in it, it sets in the real one."""

    def __init__(self, real: ModuleType, absent: str = "", **others: Any) -> None:
        super().__init__(real.__name__)
        vars(self).update(_real=real, _absent=set(absent.split()), _others=others)

    def __getattr__(self, name: str) -> Any:
        if name in self._absent:
            raise AttributeError(f"module {self._real.__name__!r} has no attribute {name!r}")
        return self._others[name] if name in self._others else getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._others:
            self._others[name] = value
        else:
            setattr(self._real, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._real, name)


def _stand_ins(system: str) -> dict[str, ModuleType]:
    import ctypes

    if system == "macos":
        import fcntl

        return {
            "os": StandIn(os, "sched_getaffinity sched_setaffinity posix_fadvise posix_fallocate"),
            "sys": StandIn(sys, platform="darwin"),
            "fcntl": StandIn(fcntl, F_FULLFSYNC=51, fcntl=_fcntl),
            "ctypes": StandIn(ctypes, CDLL=lambda _: SimpleNamespace()),
            "subprocess": StandIn(subprocess, run=_run),
        }

    def kill(pid: int, number: int) -> None:
        raise AssertionError(f"os.kill({pid}, {number}) ends a process on Windows")

    def step(name: str) -> Callable[[], float]:
        def clock() -> float:
            now: float = getattr(time, name)()
            is_real = getattr(time, name) is getattr(_real, name)
            return now // _STEP_S * _STEP_S if is_real else now

        return clock

    names = ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM")
    numbers = {name: getattr(signal, name) for name in names}
    Signals = enum.IntEnum(  # type: ignore[misc]  # noqa: N806
        "Signals", {**numbers, "SIGBREAK": 21, "CTRL_C_EVENT": 0, "CTRL_BREAK_EVENT": 1}
    )
    valid = {number for number in Signals if number.name.startswith("SIG")}
    return {
        "os": StandIn(os, _NOT_ON_WINDOWS["os"], name="nt", O_BINARY=0x8000, kill=kill),
        "sys": StandIn(sys, platform="win32"),
        "time": StandIn(time, time=step("time"), monotonic=step("monotonic")),
        "signal": StandIn(
            signal, _NOT_ON_WINDOWS["signal"], Signals=Signals, valid_signals=lambda: valid,
            SIGBREAK=Signals["SIGBREAK"], getsignal=_getsignal, signal=_signal,
        ),
        "faulthandler": StandIn(faulthandler, _NOT_ON_WINDOWS["faulthandler"]),
        "multiprocessing": StandIn(
            multiprocessing, get_all_start_methods=lambda: ["spawn"], connection=StandIn(connection, wait=_wait)
        ),
        "msvcrt": StandIn(ModuleType("msvcrt"), LK_NBLCK=2, locking=_locking),
        "ctypes": StandIn(ctypes, CDLL=_no_libc, WinDLL=_library, get_last_error=lambda: 87),
    }  # fmt: skip


def _run(command: Any, *arguments: Any, **options: Any) -> Any:
    if command == ("sysctl", "-n", "kern.bootsessionuuid"):
        command = ("cat", "/proc/sys/kernel/random/boot_id")
    return subprocess.run(command, *arguments, **options)  # noqa: PLW1510


def _fcntl(descriptor: int, command: int, argument: int = 0) -> int:
    import fcntl

    if command == 51:
        os.fsync(descriptor)
        return 0
    return fcntl.fcntl(descriptor, command, argument)


def _getsignal(number: int) -> Any:
    if number < 1:
        raise ValueError("signal number out of range")
    return signal.getsignal(number)


def _signal(number: int, handler: Any) -> Any:
    if number not in (2, 4, 6, 8, 11, 15, 21):
        raise ValueError("invalid signal value")
    return signal.signal(number, handler)


def _wait(sources: list[Any], timeout: float | None = None) -> list[Any]:
    if len(sources) > _MOST_WAITED:
        raise ValueError(f"need at most {_MOST_WAITED} handles, got a sequence of length {len(sources)}")
    return _real.wait(sources, timeout)  # type: ignore[no-any-return]


def _locking(descriptor: int, mode: int, num_bytes: int) -> None:
    """Lock a byte of an open file behind its end, as nobody can read locked bytes."""
    import fcntl

    assert (mode, num_bytes) == (2, 1)
    assert os.lseek(descriptor, 0, os.SEEK_CUR) >= os.fstat(descriptor).st_size
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from error


def _no_libc(name: str | None, *_: Any, **__: Any) -> Any:
    if name is None:
        raise TypeError("argument of type 'NoneType' is not iterable")
    raise OSError(errno.ENOENT, "no such library", name)


def _library(name: str, **_: Any) -> Any:
    """The parts of kernel32 and ntdll that tell whether a process lives, and whether paths may be long."""
    if name == "ntdll":
        return SimpleNamespace(RtlAreLongPathsEnabled=lambda: 0)
    assert name == "kernel32"

    def fields(pid: int) -> list[str]:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return []

    def times(handle: Any, created: Any, *_: Any) -> int:
        created._obj.value = int(fields(handle.value)[19])
        return 1

    def state(handle: Any, code: Any) -> int:
        code._obj.value = 1 if fields(handle.value)[0] == "Z" else 259
        return 1

    def opened(_access: int, _is_inherited: bool, pid: int) -> int | None:
        return pid if fields(pid) else None

    return SimpleNamespace(
        OpenProcess=opened, GetProcessTimes=times, GetExitCodeProcess=state, CloseHandle=lambda _: 1
    )


def _refuse(system: str) -> None:
    """Let the calls of `os` that the package makes fail as they do on a system."""
    for name, refusal in {**_OF_BOTH, **(_OF_WINDOWS if system == "windows" else {})}.items():
        setattr(os, name, _wrapped(getattr(os, name), refusal))
    Path.open.__globals__["io"] = StandIn(io, open=_wrapped(io.open, _no_proc))


def _wrapped(function: Callable[..., Any], refusal: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if _is_ours():
            refusal(*arguments, **options)
        return function(*arguments, **options)

    call.__module__ = "os"  # where a pickle finds it
    return call


def _is_ours() -> bool:
    frame = sys._getframe(2)
    while (module := frame.f_globals.get("__name__", "").partition(".")[0]) in _ON_BEHALF and frame.f_back:
        frame = frame.f_back
    return bool(module == _PACKAGE)


def _error(winerror: int, number: int, path: Any) -> OSError:
    error = OSError(number, os.strerror(number), os.fspath(path))
    error.winerror = winerror  # type: ignore[attr-defined]
    return error


def _no_proc(path: Any, *_: Any, **__: Any) -> None:
    if isinstance(path, (str, os.PathLike)) and str(path).startswith("/proc/"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _no_folder(path: Any, flags: int, *_: Any, **options: Any) -> None:
    if "dir_fd" in options:
        return  # `shutil.rmtree` opens folders, but not on Windows
    if Path(path).is_dir():
        raise _error(_DENIED, errno.EACCES, path)
    if flags & os.O_CREAT:
        _new_name(path)


def _new_name(path: Any, *_: Any, **__: Any) -> None:
    path = Path(path)
    if _RESERVED.fullmatch(path.name) or _NO_NAME.search(path.name):
        raise _error(_BAD_NAME, errno.EINVAL, path)
    if len(str(path.absolute())) > _LONGEST_PATH:
        raise _error(_NO_PATH, errno.ENOENT, path)


def _one_case(path: Any, *_: Any, **__: Any) -> None:
    path = Path(path)
    if path.parent.is_dir() and any(
        other.name != path.name and other.name.casefold() == path.name.casefold()
        for other in path.parent.iterdir()
    ):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def _not_open(path: Any, winerror: int, dir_fd: int | None = None) -> None:
    """Refuse a file that this process has open."""
    try:
        state = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(state.st_mode):
        return
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        try:
            other = os.fstat(int(descriptor.name))
        except OSError:
            continue
        if (other.st_dev, other.st_ino) == (state.st_dev, state.st_ino):
            raise _error(winerror, errno.EACCES, path)


def _moves(source: Any, target: Any, **_: Any) -> None:
    _new_name(target)
    _not_open(source, _IN_USE)
    _not_open(target, _DENIED)


def _renames(source: Any, target: Any, **options: Any) -> None:
    _moves(source, target)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))


def _links(_source: Any, target: Any, **_: Any) -> None:
    _new_name(target)


def _unlinks(path: Any, dir_fd: int | None = None) -> None:
    _not_open(path, _IN_USE, dir_fd)


def _is_written(descriptor: int) -> None:
    import fcntl

    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _both(*refusals: Callable[..., None]) -> Callable[..., None]:
    def refuse(*arguments: Any, **options: Any) -> None:
        for refusal in refusals:
            refusal(*arguments, **options)

    return refuse


_OF_BOTH: dict[str, Callable[..., None]] = {"readlink": _no_proc, "mkdir": _one_case}
_OF_WINDOWS: dict[str, Callable[..., None]] = {
    "open": _no_folder, "replace": _moves, "rename": _renames, "unlink": _unlinks, "remove": _unlinks,
    "mkdir": _both(_new_name, _one_case), "link": _links,
    "fsync": _is_written,
}  # fmt: skip


if __name__ == "__main__":
    from tests import pretended  # one module, which lanes import too

    pretended.install(sys.argv[1])
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")

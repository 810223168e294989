"""The process of a lane: executes one run after the other and reports to the parent."""

import ctypes
import faulthandler
import gc
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from types import FrameType
from typing import NamedTuple

from runmanager.core.contracts import Task
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome, Question
from runmanager.errors import GridError, first_line
from runmanager.executors import serialize
from runmanager.executors.signals import SIGNALS, leave_loaders

_COLLECT_AFTER_S = 1.0  # no garbage collection after shorter runs: it takes as long as a small run
_MOST_LEAKED = 32  # number of descriptors that a run may leave open; further ones would be missed by other runs
_M_MMAP_MAX, _M_TRIM_THRESHOLD = -4, -1  # constants of malloc.h
_PR_SET_PDEATHSIG = 1  # constant of prctl.h


class Stage(Enum):
    """The message of what a process has reached."""

    BINDING = auto()  # the task is loaded, and the process begins to bind its device
    READY = auto()  # the device is warm, and the lane is ready for runs
    SPENT = auto()  # no run may follow the run that ends now: it has failed, or left descriptors open


class Lost(NamedTuple):
    """The message that the device does not answer or is full, with the reason; then the process ends."""

    why: str
    is_full: bool = False


class Raised(NamedTuple):
    """The message of an exception that ends the grid, serialized by `dump_error`."""

    error: bytes


Message = Stage | Lost | Raised | EpochRecord | BatchProgress | Question | Outcome
"""A message of a worker; the last four types are the reports of its run, and the run's outcome."""


class _Stopped(KeyboardInterrupt):
    """The parent has requested the end of the run."""


def work(
    connection: Connection,
    output: Connection,
    faults: Connection,
    device: str,
    num_lanes: int,
    start_method: str,
    environment: Mapping[str, str],
    task: bytes,
) -> None:
    """Execute the runs received through a connection until it is closed."""
    with suppress(_Stopped, EOFError, ConnectionError):
        _obey(faults)
        os.environ.clear()
        os.environ.update(environment)
        multiprocessing.set_start_method(start_method, force=True)
        serialize.send_to_children_by_value()
        _redirect(output)
        send: Callable[[Message], None] = connection.send
        try:
            execute: Task = serialize.load_dumped(task)
        except Exception as error:  # noqa: BLE001 - whatever a module does when it is imported
            rule = f"train() cannot be loaded by a worker process: {type(error).__name__}: {error}"
            send(Raised(serialize.dump_error(GridError(rule))))
            return
        send(Stage.BINDING)
        problem = _bind(device, num_lanes)
        if problem is not None:
            send(problem)
            return
        gc.freeze()  # leave imported modules out of garbage collection, as scanning them takes 0.2 s
        num_open = _num_open()
        send(Stage.READY)
        while (sent := connection.recv()) is not None:
            _redirect(output)  # a run may have closed the output
            try:
                outcome = _execute(execute, sent, device, connection)
            except _Stopped:
                raise
            except BaseException as error:  # noqa: BLE001 - it ends the grid, in the parent
                send(Raised(serialize.dump_error(error)))
                return
            # an error may leave an accelerator or a module in a bad state, until the process ends
            if outcome.status.is_exception or _num_open() > num_open + _MOST_LEAKED:
                send(Stage.SPENT)
            send(outcome)


def _execute(execute: Task, sent: bytes, device: str, connection: Connection) -> Outcome:
    """Execute a run, and restore the settings of the process."""
    import torch

    from runmanager.devices import torch_devices
    from runmanager.devices.torch_devices import process_state, set_back

    before, state, process = time.monotonic(), process_state(), os.getpid()
    try:
        outcome = execute(serialize.load_dumped(sent), partial(_tell, connection, process))
    finally:
        if os.getpid() != process:  # a process forked by the run must not report
            os._exit(1)
    torch_devices.free_memory(torch.device(device))
    if device == "cpu" and time.monotonic() - before > _COLLECT_AFTER_S:
        gc.collect()
    set_back(state)
    return outcome


def _tell(connection: Connection, process: int, news: Message) -> str | None:
    """Report to the parent, only from the lane's process; return the answer to a question."""
    if os.getpid() != process:
        return None
    try:
        connection.send(news)
        return str(connection.recv()) if isinstance(news, Question) else None
    except (ConnectionError, EOFError):
        raise _Stopped from None


def _obey(faults: Connection) -> None:
    """Ignore Ctrl-C, end this process when the parent ends, and dump stacks on request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    if os.name == "posix":
        faulthandler.enable(faults.fileno())
        faulthandler.register(signal.SIGUSR1, faults.fileno())
        os.setpgid(0, 0)  # make a process group with the loaders' processes, to end all of them together
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*SIGNALS} - {signal.SIGINT})  # signals blocked until now
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_end_by_default)
    if sys.platform == "linux":
        _die_with_parent()
    threading.Thread(target=_follow_parent, daemon=True).start()


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _end_by_default() -> None:
    """Let SIGTERM end a process that the run has forked; it was blocked since before the fork."""
    if signal.getsignal(signal.SIGTERM) is _stop:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock()


def _die_with_parent() -> None:
    """Let Linux kill this process when its parent ends, and each process that its main thread forks.

    A loader's worker watches its parent, but takes the system's process for it if its own has ended before the
    worker looks. The signal comes when the thread that forked ends, so other threads' processes do without.
    Processes that forked processes fork do without too: a daemon outlives the process that forks it.
    """
    prctl = ctypes.CDLL(None).prctl
    lane, main = os.getpid(), threading.get_ident()

    def after_fork() -> None:
        nonlocal main
        if threading.get_ident() == main:  # the thread that forked has kept its identifier
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != lane:
                os._exit(1)
        main = 0  # processes that this one forks do without

    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.register_at_fork(after_in_child=after_fork)


def _stop(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_loaders()
    raise _Stopped


def _follow_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        if os.name == "posix":
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def _redirect(output: Connection) -> None:
    """Redirect standard output and standard error to the parent, line by line; Windows shows them directly."""
    if os.name == "nt":
        return
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        is_open = False
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
            is_open = stream.fileno() == descriptor
        os.dup2(output.fileno(), descriptor)
        if not is_open:
            stream = os.fdopen(descriptor, "w", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
        stream.reconfigure(line_buffering=True)


def _num_open() -> float:
    """Return the number of open descriptors; infinity if it is unknown, or none is left to count them."""
    try:
        return len(os.listdir("/dev/fd"))  # noqa: PTH208 - no Path each
    except OSError:
        return math.inf


def _bind(name: str, num_lanes: int) -> Lost | None:
    """Warm the device; return a message if it does not answer or is full."""
    import torch

    from runmanager.devices import torch_devices

    device = torch.device(name)
    try:
        if num_lanes > 1:
            torch.set_num_threads(max(1, torch.get_num_threads() // num_lanes))
        if device.type == "cpu":
            _keep_freed_memory()
        elif device.index is not None:
            torch.accelerator.set_device_index(device.index)
        torch_devices.warm(device)
    except RuntimeError as error:
        return Lost(first_line(error), torch_devices.is_out_of_memory(error))
    return None


def _keep_freed_memory() -> None:
    """Let malloc keep large freed buffers: new memory pages for a batch cost more time than its training."""
    with suppress(OSError, AttributeError, TypeError):  # only glibc has these functions
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)
        # before a fork, freed buffers are returned: copy-on-write of their pages in a loader's process is much
        # slower
        os.register_at_fork(before=lambda: libc.malloc_trim(0))

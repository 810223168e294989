"""What the process of a lane does: it gets one run after the other and reports what happens."""

import ctypes
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from types import FrameType
from typing import NamedTuple

from runmanager.errors import first_line
from runmanager.executors import serialize
from runmanager.executors.base import Task
from runmanager.executors.signals import SIGNALS, leave_loaders
from runmanager.outcome import BatchProgress, EpochRecord, Outcome, Question

_COLLECT_AFTER_S = 1.0  # looking for garbage takes as long as a small run
_M_MMAP_MAX, _M_TRIM_THRESHOLD = -4, -1  # malloc.h
_PR_SET_PDEATHSIG = 1  # prctl.h


class Ready(NamedTuple):
    """Its device is warm; runs may come."""


class Refused(NamedTuple):
    """The task cannot be executed here, and why."""

    why: str


class Binding(NamedTuple):
    """The task is loaded; from now on, the process waits for its device alone."""


class Lost(NamedTuple):
    """Its device does not answer, and why, or is full; the process ends."""

    why: str
    is_full: bool = False


class Raised(NamedTuple):
    """An exception left the task and ends the grid; `serialize.dump_error` wrote it."""

    error: bytes


class Changed(NamedTuple):
    """A run has changed settings of the process, and which; it is not to get another run."""

    names: str


Message = Binding | Ready | Refused | Lost | Raised | Changed | EpochRecord | BatchProgress | Question | Outcome
"""What a worker reports; the last four are news of its run, and how it ended."""


class LaneSettings(NamedTuple):
    """How a lane executes runs."""

    device: str  # that it is bound to: ``cuda`` in a run means this one
    num_lanes: int  # that share the cores
    start_method: str  # of the parent's processes
    environment: Mapping[str, str]  # the parent's: that of the ancestor of the lanes is from an earlier grid


class _Stopped(KeyboardInterrupt):
    """The parent wants the run to end."""


def work(
    connection: Connection, output: Connection | None, faults: Connection, settings: LaneSettings, task: bytes
) -> None:
    """Execute the runs that come through a connection until it is closed.

    A `Message` goes out there for whatever happens. Standard output and standard error go to `output`, None
    leaves them; stacks go to `faults` when the process crashes or gets SIGUSR1. `task` and the runs are what
    `serialize.dump` wrote.
    """
    with suppress(_Stopped, EOFError, ConnectionError):
        _obey(faults)
        os.environ.clear()
        os.environ.update(settings.environment)
        # the loaders of runs start processes as they would in the parent
        multiprocessing.set_start_method(settings.start_method, force=True)
        serialize.send_to_children_by_value()
        _redirect(output)
        _serve(connection, output, settings, task)


def _serve(connection: Connection, output: Connection | None, settings: LaneSettings, task: bytes) -> None:
    import torch

    from runmanager.devices.process_state import listed_changes, process_state, state_changes

    process, device = os.getpid(), settings.device
    send: Callable[[Message], None] = connection.send
    try:
        execute: Task = serialize.load_dumped(task)
    except Exception as error:  # noqa: BLE001 - whatever a module does when it is imported
        send(Refused(f"{type(error).__name__}: {error}"))
        return
    send(Binding())
    try:
        _bind(device, settings.num_lanes)
    except RuntimeError as error:
        is_full = isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)
        send(Lost(first_line(error), is_full))
        return
    gc.freeze()  # what is imported stays: looking through it takes 0.2 s
    send(Ready())
    while (sent := connection.recv()) is not None:
        before = time.monotonic()
        _redirect(output)  # a run may have closed it
        state = process_state()
        try:
            outcome = execute(serialize.load_dumped(sent), partial(_tell, connection, process))
        except _Stopped:
            raise
        except BaseException as error:  # noqa: BLE001 - it ends the grid, in the parent
            send(Raised(serialize.dump_error(error)))
            return
        finally:
            if os.getpid() != process:  # one that the run has forked
                os._exit(1)
        if device != "cpu" or time.monotonic() - before > _COLLECT_AFTER_S:
            gc.collect()
        if device != "cpu":
            with suppress(RuntimeError):  # a device that failed does not answer, and its process ends
                torch.accelerator.empty_cache()
        if names := state_changes(state, process_state()):
            send(Changed(listed_changes(names)))
        send(outcome)


def _tell(connection: Connection, process: int, news: Message) -> str | None:
    """Tell the parent news of a run, in the process of the lane alone; return its answer to a question.

    Raises:
        _Stopped: The parent has gone; the run that is to end is not at fault.
    """
    if os.getpid() != process:
        return None
    try:
        connection.send(news)
        return str(connection.recv()) if isinstance(news, Question) else None
    except (ConnectionError, EOFError):
        raise _Stopped from None


def _obey(faults: Connection) -> None:
    """Leave Ctrl-C to the parent, end with it, and show stacks when asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    faulthandler.enable(faults.fileno())
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, faults.fileno())
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # with the processes of its loaders, so that they can be ended together
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*SIGNALS} - {signal.SIGINT})  # blocked until now
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _stop(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_loaders()
    raise _Stopped


def _follow_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def _redirect(output: Connection | None) -> None:
    """Let standard output and standard error go to the parent, line by line."""
    if output is None:
        return
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        with suppress(OSError, ValueError):
            getattr(sys, name).flush()
        os.dup2(output.fileno(), descriptor)
        if getattr(sys, name).closed:
            setattr(sys, name, os.fdopen(descriptor, "w", closefd=False))
        getattr(sys, name).reconfigure(line_buffering=True)


def _bind(name: str, num_lanes: int) -> None:
    import torch

    from runmanager.devices import torch_devices

    device = torch.device(name)
    if num_lanes > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // num_lanes))
    if device.type == "cpu":
        _keep_freed_memory()
    elif device.index is not None:
        torch.accelerator.set_device_index(device.index)
    torch_devices.warm(device)


def _keep_freed_memory() -> None:
    """Let large freed buffers stay in the process: fresh pages for each batch cost more than the training."""
    with suppress(OSError, AttributeError):  # glibc only
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)
        # but what a loader's process shares is copied page by page when it is written, which costs far more
        os.register_at_fork(before=lambda: libc.malloc_trim(0))

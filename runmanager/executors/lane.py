"""A worker process, as seen by its parent."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import process
from types import ModuleType
from typing import Any

from runmanager.core.outcome import BatchProgress, EpochRecord
from runmanager.core.run import Run
from runmanager.executors import worker

PREFIX = "lane "
"""The prefix of a lane's process name."""

_LONGEST_LINE = 65_536  # maximum number of bytes of a line; longer lines are split
_MOST_READ = 1_048_576  # maximum number of bytes per read
_PATIENCE_S = 5.0  # time until a killed process counts as stuck
_SWAPPING = threading.Lock()


class Lane:
    """A worker process, as seen by its parent."""

    def __init__(self, number: int, device: str, context: Any, task: bytes, num_lanes: int) -> None:
        self.number = number  # number of the lane in which the run is executed, from 0
        self.device = device
        self.run: Run | None = None  # the run in execution; None in an idle process
        self.is_binding = False  # whether the process waits for its device
        self.is_ready = False  # whether the device is warm
        self.is_spent = False  # whether no run follows
        self.news: EpochRecord | BatchProgress | None = None  # the last report of its run
        self.heard = time.monotonic()  # time of the last report
        self._unfinished = b""
        self._stacks = b""
        self.connection, its_connection = context.Pipe()
        self.output, its_output = context.Pipe(duplex=False)
        self.faults, its_faults = context.Pipe(duplex=False)
        ends = its_connection, its_output, its_faults
        # the variables of the ancestor may be outdated
        settings = num_lanes, multiprocessing.get_start_method(), dict(os.environ)
        name = f"{PREFIX}{number}: {device}"
        self.process = context.Process(target=worker.work, args=(*ends, device, *settings, task), name=name)
        with without_main():
            self.process.start()
        for end in ends:
            end.close()

    def begin(self, run: Run, number: int) -> None:
        """Assign a run, which executes in lane `number`; the run is sent when the process is ready."""
        self.run, self.number, self.news, self.heard = run, number, None, time.monotonic()
        self._stacks = b""

    def send(self, order: bytes | str | None) -> None:
        """Send a run, an answer, or None to end the process; its death is detected elsewhere."""
        with suppress(OSError):
            self.connection.send(order)

    def messages(self) -> Iterator[worker.Message]:
        """Yield the received messages, without waiting."""
        with suppress(EOFError, OSError):
            while self.connection.poll():
                yield self.connection.recv()

    def lines(self, *, is_ended: bool = False) -> Iterator[str]:
        """Yield the printed lines, without waiting; at the end of a run, also a line without an end."""
        *lines, self._unfinished = (self._unfinished + _pending(self.output)).split(b"\n")
        if is_ended or len(self._unfinished) > _LONGEST_LINE:
            lines, self._unfinished = [*lines, self._unfinished], b""
        for line in lines:
            yield line.decode("utf-8", "replace")

    def stacks(self) -> str:
        """Return the stacks of the process's threads, "" if the process has not written them."""
        self._stacks += _pending(self.faults)
        return self._stacks.decode("utf-8", "replace")

    def show_stacks(self) -> None:
        """Request the stacks of the process's threads."""
        if not self.process.is_alive() or not hasattr(signal, "SIGUSR1"):
            return
        os.kill(self.process.pid, signal.SIGUSR1)
        self.faults.poll(1.0)
        while part := _pending(self.faults):
            self._stacks += part
            time.sleep(0.2)  # time to write the stacks

    def kill(self) -> None:
        """Kill the process and its children, except processes that cannot be killed."""
        self.process.kill()
        self.process.join(_PATIENCE_S)
        if os.name == "posix" and self.process.pid:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> bool:
        """End the process if it is alive, and release its resources; return whether it has ended."""
        self.kill()
        for end in (self.connection, self.output, self.faults):
            end.close()
        if self.process.is_alive():  # the process is blocked in the kernel until its device answers
            # otherwise this process would wait for it at exit
            vars(process)["_children"].discard(self.process)
            return False
        self.process.close()
        return True


@contextmanager
def without_main() -> Iterator[None]:
    """Prevent workers from executing the user's script again; the task contains all parts that they need."""
    with _SWAPPING:
        main = sys.modules["__main__"]

        def find(name: str) -> Any:
            if name == "__file__":  # the file could be executed again
                raise AttributeError(name)
            return getattr(main, name)  # other threads may pickle meanwhile

        sys.modules["__main__"] = stand_in = ModuleType(main.__name__)
        vars(stand_in)["__getattr__"] = find
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _pending(source: Any) -> bytes:
    """Read the content of a pipe, without waiting."""
    content = b""
    with suppress(OSError):
        while len(content) < _MOST_READ and source.poll() and (part := os.read(source.fileno(), 65_536)):
            content += part
    return content

"""One worker process, as the process that has started it sees it."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from runmanager.executors.base import Step
from runmanager.executors.messages import Message
from runmanager.executors.spawn import without_main
from runmanager.grid import Run
from runmanager.outcome import EpochRecord

PREFIX = "lane "
"""With which the names of lanes among processes begin."""

_LONGEST_LINE = 1 << 16  # bytes, from where on it is broken
_MOST_READ = 1 << 20  # bytes at a time
_MOST_LINES = 1000  # of a run's last words


class Lane:
    """One worker process, as its parent sees it.

    Attributes:
        number: From 0.
        device: What it is bound to.
        run: What it executes, None if it waits for work.
        is_ready: Whether its device is warm.
        is_spent: Whether it gets no more runs: its device met an error, or does not answer.
        news: The last that was heard of its run.
        quiet_s: For how long nothing was heard, in seconds in which this process was awake.
        memory: The most memory (bytes) it was seen to have.
    """

    def __init__(self, number: int, device: str, context: Any, work: bytes, num_lanes: int) -> None:
        from runmanager.executors import worker

        self.number = number
        self.device = device
        self.run: Run | None = None
        self.is_ready = False
        self.is_spent = False
        self.news: EpochRecord | Step | None = None
        self.quiet_s = 0.0
        self.memory = 0
        self._said = b""
        self._stacks = b""
        self._log: deque[str] = deque(maxlen=_MOST_LINES)
        self.connection, its_connection = context.Pipe()
        self.output: Any
        self.output, its_output = context.Pipe(duplex=False) if os.name == "posix" else (None, None)
        self.faults, its_faults = context.Pipe(duplex=False)
        place = worker.Place(device, num_lanes, multiprocessing.get_start_method())
        arguments = (its_connection, its_output, its_faults, place, work)
        self.process = context.Process(target=worker.main, args=arguments, name=f"{PREFIX}{number}: {device}")
        with without_main():
            self.process.start()
        for end in (its_connection, its_output, its_faults):
            if end is not None:
                end.close()

    def begin(self, run: Run) -> None:
        """Take a run; it is sent once the lane is ready."""
        self.run, self.news, self.quiet_s = run, None, 0.0
        self._stacks = b""
        self._log.clear()

    def send(self) -> None:
        """Send the run. A lane that has died meanwhile is noticed by its end."""
        with suppress(OSError):
            self.connection.send(self.run)

    def messages(self) -> Iterator[Message]:
        """Yield what has come, without waiting."""
        with suppress(EOFError, OSError):
            while self.connection.poll():
                yield self.connection.recv()

    def lines(self) -> Iterator[str]:
        """Yield the lines that have been printed, without waiting."""
        *lines, self._said = (self._said + _pending(self.output)).split(b"\n")
        if len(self._said) > _LONGEST_LINE:
            lines, self._said = [*lines, self._said], b""
        for line in lines:
            text = line.decode("utf-8", "replace").rpartition("\r")[2]
            self._log.append(text)
            yield text

    def log(self) -> str:
        """Return the last words of the run: what it printed, and where its threads were if that is known."""
        self._stacks += _pending(self.faults)
        stacks = self._stacks.decode("utf-8", "replace")
        return "\n".join([*self._log, self._said.decode("utf-8", "replace"), stacks]).strip()

    def measure(self) -> None:
        """Look how much memory the process has had: once it is dead nobody knows."""
        with suppress(OSError, ValueError, StopIteration):
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
            peak = next(line for line in status if line.startswith("VmHWM"))
            self.memory = int(peak.split()[1]) * 1024

    def show_stacks(self) -> None:
        """Ask the process for the stacks of its threads."""
        if hasattr(signal, "SIGUSR1") and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGUSR1)
            wait_s = 1.0
            while self.faults.poll(wait_s) and (part := _pending(self.faults)):
                self._stacks += part
                wait_s = 0.2  # until all are written

    def kill(self) -> None:
        """End the process and those that it started, at once."""
        self.process.kill()
        self.process.join()
        if hasattr(os, "killpg") and self.process.pid:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Forget a process that has ended."""
        self.kill()
        for end in (self.connection, self.output, self.faults):
            if end is not None:
                end.close()
        self.process.close()


def _pending(source: Any) -> bytes:
    """Read what is in a pipe, without waiting."""
    content = b""
    if source is None or os.name != "posix":
        return content
    while len(content) < _MOST_READ and source.poll() and (part := os.read(source.fileno(), 1 << 16)):
        content += part
    return content

"""What every executor promises."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from runmanager.errors import GridError
from runmanager.grid import Run
from runmanager.outcome import EpochRecord, Outcome, Status


class Step(NamedTuple):
    """How far a run is inside of an epoch.

    Attributes:
        epoch: The number of the epoch, from 1.
        step: The number of the batch, from 1.
        num_epochs: How many epochs are wanted, None if that is not known.
    """

    epoch: int
    step: int
    num_epochs: int | None = None


Report = Callable[[EpochRecord | Step], None]
"""Tells of an epoch that is committed, or, now and then, of a batch."""

Work = Callable[[Run, Report], Outcome]
"""Executes one run in the process that calls it, and records how it ended."""


class Watch(Protocol):
    """Is told what happens while runs are executed, in the process of `execute`."""

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """A run has begun in a lane, counted from 0, on a device as in ``"cuda:1"``."""

    def run_progressed(self, run: Run, news: EpochRecord | Step) -> None:
        """A run has committed an epoch, or got on with one."""

    def stopping(self) -> None:
        """Execution is being stopped by Ctrl-C or SIGTERM; may be said more than once."""

    def say(self, line: str) -> None:
        """Something is to be said to the user: what a run printed, a device that is lost."""


class Executor(ABC):
    """Executes runs, somewhere.

    Each run gets exactly one outcome, and a run that fails harms only itself: `work` turns its exceptions into
    outcomes, and a process that dies or hangs with a run becomes the outcome of that run. What leaves `work` as
    an exception (Ctrl-C, a disk that is full) ends the grid and passes through `execute`. However that ends,
    nothing that it started is left running.

    Args:
        jobs: How many runs are executed at the same time, at most; "auto": as many as there are devices for.
        runs_per_device: How many runs may share an accelerator.
        timeout: Seconds without news after which a run counts as hung; None waits for ever.

    Raises:
        GridError: An argument cannot be used; with all problems.
    """

    def __init__(self, *, jobs: int | str = 1, runs_per_device: int = 1, timeout: float | None = None) -> None:
        problems: list[str] = []
        if jobs != "auto" and not _is_count(jobs):
            problems.append(f"jobs must be a whole number, 1 or more, or 'auto', got {jobs!r}")
        if not _is_count(runs_per_device):
            problems.append(f"runs_per_device must be a whole number, 1 or more, got {runs_per_device!r}")
        if timeout is not None and not _is_time(timeout):
            problems.append(f"timeout must be a number of seconds, or None to wait for ever, got {timeout!r}")
        if problems:
            raise GridError(problems)
        self._jobs = jobs
        self._runs_per_device = runs_per_device
        self._timeout = timeout

    @abstractmethod
    def num_lanes(self, runs: Sequence[Run]) -> int:
        """Return how many of the runs are executed at the same time, at most."""

    def missing(self, device: str) -> str:
        """Return why a run that asks for this device cannot be executed, "" if it can.

        Raises:
            GridError: That cannot be found out, or the device can never be asked for.
        """
        from runmanager.devices import torch_devices

        return "" if torch_devices.is_available(device) else torch_devices.missing(device)

    def check(self, train: Callable[..., object]) -> None:  # noqa: B027 - some have nothing to do
        """Make sure that a training function reaches where runs are executed, before anything is written.

        Raises:
            GridError: It does not; the message names what of it cannot be sent.
        """

    def begin(self, folder: Path) -> None:  # noqa: B027 - most have nothing to do
        """Get ready for runs that write into an experiment's folder, which exists by now."""

    @abstractmethod
    def execute(self, runs: deque[Run], work: Work, watch: Watch) -> Generator[tuple[Run, Outcome]]:
        """Execute the runs and yield each with its outcome as it ends, in any order.

        Args:
            runs: What to execute: taken from the left until none is left. Who receives an outcome may add a
                run, and may thereby have the same one executed again.
            work: Executes one run.
            watch: Is told what happens.
        """


def uncommitted(status: Status, error: str, log: str = "") -> Outcome:
    """Return the outcome of a run that could not commit it itself: its process is gone, or it had none."""
    return Outcome(status, error, log=log, is_committed=False)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1

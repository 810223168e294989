"""The contract of executors."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from runmanager.core.outcome import News, Outcome, Status
from runmanager.core.run import Run
from runmanager.errors import InvalidArgumentError, Problems, is_count

Report = Callable[[News], str | None]
"""Called for each committed epoch and for some batches. If its argument is a question, it returns the
answer."""

Task = Callable[[Run, Report], Outcome]
"""Executes one run in the calling process, and commits its outcome."""


class Watch(Protocol):
    """Follows the execution of runs; `Executor.execute` calls the watch in the thread of its caller."""

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Called when a run begins in a lane (number, from 0) on a device, such as ``"cuda:1"``."""

    def run_progressed(self, run: Run, news: News) -> str | None:
        """Called when a run has committed an epoch or trained some batches; answers a `Question`."""

    def stopping(self) -> None:
        """Called when Ctrl-C or SIGTERM stops the execution; several signals cause several calls."""

    def say(self, line: str) -> None:
        """Show a line to the user: output of a run, or a change of a device."""


class Executor(ABC):
    """Executes runs.

    `is_in_process` is true if runs are executed in the process that calls `execute`. There, a run may modify
    global values in the modules of `train`. When the grid is started again, such modified values do not count
    as changed code.

    **Order of calls.** `prepare` comes first, once per grid, before anything is written or torch is imported;
    then `missing` and `num_lanes`, first with all runs of the grid; then `execute`, once or several times in
    sequence. A grid that is only planned never calls `execute`. One executor object serves one grid at a time.

    **Equal numbers.** Floating-point sums depend on the number of threads. So the number of threads of a run
    depends on the whole grid, not on the remaining runs: an interrupted grid gives the same numbers as an
    uninterrupted one. A resumed run gets the number of threads of its first attempt.

    **Outcomes.** Each run gets exactly one outcome, and a failing run affects no other run: the task turns
    exceptions into outcomes. If a process dies or hangs, `uncommitted` creates the outcome of its run.

    **Ownership of the runs.** `execute` removes runs from the left of its deque. After each outcome, the caller
    may add runs to the deque, for example a retry of an executed run. So `execute` checks the deque again after
    each `yield`, and ends when the deque is empty and no run is in progress.

    **Questions.** The task calls `report` with a `Question` and waits for the return value. This value is the
    answer of `watch.run_progressed`. Executors that return no answers do not support pruners that ask after
    each epoch.

    **Threads.** `execute` calls `watch` and touches the deque in the thread of its caller only.

    **Exceptions.** An exception of the task (Ctrl-C, a full disk) ends the grid and passes through `execute`.
    When `execute` ends, also by ``close()``, none of its processes and threads is left running.

    **A custom executor**, for ``run_grid(..., executor=InThisProcess())``:

    Args:
        jobs: The maximum number of concurrent runs; "auto": as many as the devices allow.
        runs_per_device: The maximum number of runs that share an accelerator.
        timeout: Seconds without progress after which a run counts as hung; None for no limit.

    Raises:
        InvalidArgumentError: An argument is invalid; the message lists all problems.

    Example:
        >>> from functools import partial
        >>> class InThisProcess(Executor):
        ...     is_in_process = True
        ...
        ...     def num_lanes(self, runs):
        ...         return 1
        ...
        ...     def execute(self, runs, task, watch):
        ...         while runs:
        ...             run = runs.popleft()
        ...             watch.run_started(run, 0, "cpu")
        ...             yield run, task(run, partial(watch.run_progressed, run))
    """

    is_in_process: ClassVar[bool] = False

    def __init__(self, *, jobs: int | str = 1, runs_per_device: int = 1, timeout: float | None = None) -> None:
        problems = Problems()
        if jobs != "auto" and not is_count(jobs, 1):
            problems.append(f"jobs must be a whole number, 1 or more, or 'auto', got {jobs!r}")
        problems.check_count("runs_per_device", runs_per_device, 1)
        is_time = isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0
        if timeout is not None and not is_time:
            problems.append(f"timeout must be a number of seconds, or None to wait for ever, got {timeout!r}")
        problems.raise_if_any(InvalidArgumentError)
        self._jobs = jobs
        self._runs_per_device = runs_per_device
        self._timeout = timeout

    def prepare(self, train: Callable[..., object], folder: Path) -> None:  # noqa: B027 - some need nothing
        """Start slow preparations, and check that a training function can be sent to worker processes.

        Args:
            train: The user's function, which the task calls.
            folder: The experiment's folder. The folder is created before runs are executed, but possibly after
                this call.

        Raises:
            GridError: The function cannot be sent; the message has the reason.

        Example:
            >>> from runmanager import InlineExecutor
            >>> InlineExecutor().prepare(lambda run, manager: None, Path("runs/example"))  # it needs nothing
        """

    @abstractmethod
    def num_lanes(self, runs: Sequence[Run]) -> int:
        """Return the maximum number of concurrent runs.

        Args:
            runs: All runs of the grid, or the remaining runs.

        Returns:
            The number of lanes, 1 or more; `Watch.run_started` counts lanes from 0.

        Example:
            >>> from runmanager import InlineExecutor, RunBuilder
            >>> InlineExecutor().num_lanes(RunBuilder.get_runs({"lr": [0.1, 0.01]}))
            1
        """

    def missing(self, device: str) -> str:
        """Return the reason why a run on this device cannot be executed.

        Args:
            device: A value of the axis `device`, such as "cuda:1".

        Returns:
            One line that lists the available devices; "" if the run can be executed.

        Raises:
            GridError: The device is not valid, or the available devices are unknown.

        Example:
            >>> from runmanager import InlineExecutor
            >>> InlineExecutor().missing("cpu"), InlineExecutor().missing("cuda:99").partition(",")[0]
            ('', "device 'cuda:99' is not there")
        """
        from runmanager.devices import torch_devices

        return "" if torch_devices.is_available(device) else torch_devices.missing(device)

    @abstractmethod
    def execute(self, runs: deque[Run], task: Task, watch: Watch) -> Generator[tuple[Run, Outcome]]:
        """Execute the runs; yield each run with its outcome when the run ends, in any order.

        Args:
            runs: The runs to execute. `execute` removes runs from the left until the deque is empty; the caller
                may add runs.
            task: Executes one run.
            watch: Follows the execution.

        Yields:
            Each run with its outcome, exactly once.

        Example:
            >>> from unittest.mock import Mock
            >>> from runmanager import InlineExecutor, RunBuilder
            >>> runs = deque(RunBuilder.get_runs({"lr": [0.1, 0.01]}))
            >>> task = lambda run, report: Outcome(Status.COMPLETED)
            >>> for run, outcome in InlineExecutor().execute(runs, task, Mock()):
            ...     print(run.lr, outcome.status)
            0.1 completed
            0.01 completed
        """


def uncommitted(status: Status, error: str, log: str = "") -> Outcome:
    """Return the outcome of a run whose process died or never started, so that the run could not commit it."""
    return Outcome(status, error, log=log, is_committed=False)

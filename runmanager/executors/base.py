"""What every executor promises."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from runmanager.errors import InvalidArgumentError, Problems, is_count
from runmanager.outcome import News, Outcome, Status
from runmanager.run import Run

Report = Callable[[News], str | None]
"""Called for each epoch that is committed and, now and then, for a batch; returns the answer to a question."""

Task = Callable[[Run, Report], Outcome]
"""Executes one run in the process that calls it, and commits how it ended."""


class Watch(Protocol):
    """Follows the execution of runs: called by `Executor.execute`, in its thread."""

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """A run has begun in a lane, counted from 0, on a device as in ``"cuda:1"``."""

    def run_progressed(self, run: Run, news: News) -> str | None:
        """A run has committed an epoch, or trained some batches; return the answer if it asks a question."""

    def stopping(self) -> None:
        """Execution is being stopped by Ctrl-C or SIGTERM; may be called more than once."""

    def say(self, line: str) -> None:
        """Show the user a line: what a run printed, or that a device is lost."""


class Executor(ABC):
    """Executes runs, somewhere.

    `is_in_process` says whether that is the process which calls `execute`. Then what runs change in the modules
    of `train` stays, and is no change when the grid is started again.

    **Order of calls.** `prepare` comes first, once per grid, before anything is written or torch is imported;
    then `missing` and `num_lanes`, first with all runs of the grid; then `execute`, once or several times, one
    after the other. A grid that is only planned ends without `execute`. An executor serves one grid at a time.

    **Equal numbers.** Sums depend on how many threads add them up. So the number of threads of a run depends on
    the grid, not on which of its runs are left: a grid that is continued gives the numbers of one that was not
    interrupted. The task lets a run that is resumed keep its number.

    **Outcomes.** Each run gets exactly one outcome, and a run that fails harms only itself: the task turns its
    exceptions into outcomes. A process that dies or hangs becomes the outcome of its run, by `uncommitted`.

    **Ownership of the runs.** `execute` takes runs from the left of its deque. Whenever its caller has received
    an outcome, it may add runs, also one that was executed before: a retry. So `execute` looks at the deque
    again after each `yield`, and ends when it is empty and nothing is being executed.

    **Questions.** What `watch.run_progressed` returns to a `Question` is returned by the task's `report`: the
    run waits for it. Where nothing comes back, grids stop no run early that ask after each epoch.

    **Threads.** `execute` calls `watch` and touches the deque in the thread of its caller only.

    **What may raise.** What leaves the task as an exception (Ctrl-C, a full disk) ends the grid and passes
    through `execute`. However that ends, also by ``close()``, nothing that it started is left running.

    **An executor of your own**, for ``run_grid(..., executor=InThisProcess())``:

    Args:
        jobs: How many runs are executed at the same time, at most; "auto": as many as there are devices for.
        runs_per_device: How many runs may share an accelerator.
        timeout: Seconds without news after which a run counts as hung; None waits for ever.

    Raises:
        InvalidArgumentError: An argument cannot be used; with all problems.

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
    tells_begun = False
    """Whether `execute` also yields runs that have begun, as running, and those that wait for their device, as
    pending, so that its caller may add runs then. Only lanes can; a loop of one's own asks for it."""

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
        """Start what takes long, and check that a training function can be sent to where runs are executed.

        Args:
            train: The user's function, which the task calls.
            folder: The experiment's; it is there when runs are executed, but may not be yet.

        Raises:
            GridError: The function cannot be sent; the message names the part that cannot.

        Example:
            >>> from runmanager import InlineExecutor
            >>> InlineExecutor().prepare(lambda run, manager: None, Path("runs/example"))  # it needs nothing
        """

    @abstractmethod
    def num_lanes(self, runs: Sequence[Run]) -> int:
        """Return how many of the runs are executed at the same time, at most.

        Args:
            runs: Those of the grid, or those that are left.

        Returns:
            The number of lanes, 1 or more; each counts from 0 in `Watch.run_started`.

        Example:
            >>> from runmanager import InlineExecutor, RunBuilder
            >>> InlineExecutor().num_lanes(RunBuilder.get_runs({"lr": [0.1, 0.01]}))
            1
        """

    def missing(self, device: str) -> str:
        """Explain why a run that asks for this device cannot be executed.

        Args:
            device: As the axis `device` has it, such as "cuda:1".

        Returns:
            One line that names the devices which are there; "" if the run can be executed.

        Raises:
            GridError: The device can never be asked for, or nobody knows.

        Example:
            >>> from runmanager import InlineExecutor
            >>> InlineExecutor().missing("cpu"), InlineExecutor().missing("cuda:99").partition(";")[0]
            ('', "device 'cuda:99' is not there")
        """
        from runmanager.devices import torch_devices

        return "" if torch_devices.is_available(device) else torch_devices.missing(device)

    @abstractmethod
    def execute(self, runs: deque[Run], task: Task, watch: Watch) -> Generator[tuple[Run, Outcome]]:
        """Execute the runs and yield each with its outcome as it ends, in any order.

        Args:
            runs: The runs to execute, taken from the left until none is left; the caller may add some.
            task: Executes one run.
            watch: Follows what happens.

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
    """Return the outcome of a run that could not commit it itself: its process is gone, or it had none."""
    return Outcome(status, error, log=log, is_committed=False)

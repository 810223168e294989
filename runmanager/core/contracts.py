"""The contracts of the parts of a run and a grid: listeners, executors, searches, pruners and displays."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from runmanager.core.experiment import Experiment, KeptTrial, RunFolder
from runmanager.core.goal import Goal
from runmanager.core.outcome import BatchProgress, EpochRecord, News, Outcome, Status
from runmanager.core.run import Run
from runmanager.core.state import RunResult
from runmanager.errors import InvalidArgumentError, Problems, first_line, is_count, of_grid

if TYPE_CHECKING:
    import torch

Block = Mapping[str, tuple[Sequence[int], Sequence[float]]]
"""Name -> the steps of the run, in order, and the values: what `manager.log` has collected."""


class Slot(NamedTuple):
    """The lane and device of a run."""

    id: str  # the identity of the run
    lane: int = 0  # the number of the lane, from 0; unknown in the worker
    device: str = "cpu"
    is_retried: bool = False  # whether the ended run is retried; available only in the parent


class Listener:
    """Follows the runs of a grid; a subclass overrides some of the methods, which do nothing by default.

    Pass a listener to ``run_grid(..., listeners=[...])``. A listener cannot harm a run: an exception is
    reported once, and the run continues. Events for a slow listener wait in a queue: steps are dropped while
    100 events wait, epochs and starts of runs while 1,000 wait, and ends of runs never. Under torchrun, only
    rank 0 has listeners.

    Attributes:
        where: "parent", the default: the listener is called in the process that started the grid, in a separate
            thread, where `network` and `loader` are None. "worker": the listener is pickled, and called in each
            process that executes runs. The time of these calls is part of no duration; random states, and modes
            and buffers of the network, are restored. With the executor "inline", parent and worker are the same
            process; a listener in the parent must then not draw from global generators.
        may_stop: Whether answers of `epoch_ended` can stop a run. The run waits for each answer; it waits up to
            10 seconds for a listener in the parent, and then continues without the answer.
        run: The run of the event, set before each call.
        slot: The lane and device of that run.

    Example:
        >>> from runmanager import run_grid
        >>> class Tell(Listener):
        ...     def run_ended(self, outcome):
        ...         if outcome.status.is_fault:
        ...             print(f"{self.run}: {outcome.status}")
        >>> def train(run, manager):
        ...     raise ValueError("no data")
        >>> how = {"experiment": "told", "executor": "inline", "display": False, "listeners": [Tell()]}
        >>> run_grid({"lr": [0.1]}, train, **how).exit_code
        Run(lr=0.1): failed
        1
    """

    where: str = "parent"
    may_stop: bool = False
    run: Run
    slot: Slot

    def run_began(self, run: Run, network: Any, loader: Any) -> None:
        """Called when a run begins or is resumed.

        Args:
            run: The hyperparameters of the run.
            network: The network, None in the parent.
            loader: The loader, None in the parent.

        Example:
            >>> class Announce(Listener):
            ...     def run_began(self, run, network, loader):
            ...         print(f"lr={run.lr} on {self.slot.device}")
        """

    def step_ended(self, progress: BatchProgress) -> None:
        """Called after a batch, at most twice a second.

        Args:
            progress: The progress within the epoch.

        Example:
            >>> class Bar(Listener):
            ...     def step_ended(self, progress):
            ...         print(f"epoch {progress.epoch}, batch {progress.batch} of {progress.num_batches}")
        """

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Called after an epoch was committed.

        If the listener `may_stop`, the call for the last epoch is repeated when a run is resumed.

        Args:
            record: The epoch, as in the journal.
            network: The network, None in the parent.

        Returns:
            The reason why the run should stop, None or "" to continue. If the listener `may_stop`, a reason
            prunes the run; the first reason of all listeners is recorded in the journal.

        Example:
            >>> class StopsBadStarts(Listener):
            ...     may_stop = True
            ...
            ...     def epoch_ended(self, record, network):
            ...         return "a bad start" if record.metrics["loss"] > 3 else None
        """

    def run_ended(self, outcome: Outcome) -> None:
        """Called when a run has ended and its outcome is committed.

        Args:
            outcome: The outcome.

        Example:
            >>> class Count(Listener):
            ...     failed = 0
            ...
            ...     def run_ended(self, outcome):
            ...         self.failed += outcome.status.is_fault
        """


class RunListener(Listener):
    """A listener within this package, which follows one run and receives further events.

    Its exceptions end the run. The answer None continues the run; any text stops the run, even "".
    """

    rule: str | None = ""  # recorded if it stops the run, which counts as completed with None
    seconds: float = 0.0  # spent in the listener so far that are part of no duration (s)
    learning_rate: float | None = None  # at the start of the epoch, if known
    gradient_norm: "torch.Tensor | None" = None  # of the last gradients, before they were clipped

    def attempt_began(
        self,
        records: Sequence[EpochRecord] = (),
        facts: Mapping[str, Any] = MappingProxyType({}),
        last_step: int = 0,
    ) -> None:
        """Called when the journal is created; `last_step` is the last step that is not executed again."""

    def asked_again(self, record: EpochRecord) -> str | None:
        """Answer again for the epoch after which the run was resumed: return the reason to stop, or None."""

    def steps_logged(self, block: "Block") -> None:
        """Called when values of single steps are written."""

    def image_logged(self, name: str, image: Any) -> None:
        """Called with the first image of a name in an epoch: a figure, uint8 ``(C, H, W)``, or a batch."""

    def evaluated(self, values: Mapping[str, float]) -> None:
        """Called when the network was evaluated before the first epoch."""

    def classes_counted(self, name: str, counts: Any, loader: Any) -> None:
        """Called when the predictions per class were counted in an evaluation."""


class Counts(Protocol):
    """Counts predictions per class in an evaluation."""

    def add(self, outputs: Any, targets: Any) -> None:
        """Count the predictions of a batch."""

    def add_ranks(self) -> None:
        """Add the counts of the other ranks."""


class Boards(NamedTuple):
    """TensorBoard's listener of an attempt, and what counts predictions per class in an evaluation."""

    follow: Callable[[RunFolder, int, Goal | None, str | None, Mapping[str, str] | None], RunListener]
    counts: Callable[[], Counts]


def guarded(
    listener: Listener, method: str, run: Run, slot: Slot, *arguments: object
) -> tuple[str | None, str]:
    """Call a method of a user's listener; return why the run should stop, if so, and the listener's problem."""
    try:
        listener.run, listener.slot = run, slot
        why = getattr(listener, method)(*arguments)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return None, f"{method}() raised {type(error).__name__}: {first_line(error)}"
    if method != "epoch_ended" or not listener.may_stop:
        return None, ""
    if why is None or isinstance(why, str):
        return why or None, ""
    return None, f"epoch_ended() must return why the run is to stop, or None, got a {type(why).__name__}"


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

    def run_printed(self, run: Run, line: str) -> None:
        """Show a line that a run has printed."""

    def last_output(self, run: Run) -> str:
        """Return the last lines that a run printed, as evidence of its end."""

    def say(self, line: str) -> None:
        """Show a line to the user, such as a change of a device."""


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
        problems.check_seconds("timeout", timeout)
        problems.raise_if_any(InvalidArgumentError)
        self._jobs = jobs
        self._runs_per_device = runs_per_device
        self._timeout = timeout

    def prepare(self, train: Callable[..., object], folder: Path) -> None:  # noqa: B027 - some need nothing
        """Start slow preparations, and check that a training function can be sent to worker processes.

        Args:
            train: The user's function, which the task calls.
            folder: The experiment's folder. The folder is created before runs are executed, but possibly after
                this call, and not for a `check`.

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

        return torch_devices.missing(device)

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


@dataclass(frozen=True)
class Decision:
    """A decision of a search; runs are given by identity."""

    due: Sequence[str] = ()  # to execute now, in this order; a run that was executed before is resumed
    sentences: Sequence[str] = ()  # to print
    new: Sequence[Run] = ()  # to execute after `due`; the grid creates their folders


class Search(ABC):
    """Chooses the next runs of a grid, from their folders and journals.

    Each launch of a grid creates a search and calls `begin` once. The grid calls `next` before the first run,
    and after every outcome, while other runs may be in progress. The grid ends when no run is due or in
    progress; runs that were never due stay pending and do not count as missing.

    A search may hold state during a launch. State that must survive a kill is derived from the journals, or is
    stored with the runs (`trials_of`): a search that is restarted with the same runs makes the same decisions.
    A run that was killed or ended by a fault in this launch does not become due again; the grid decides about
    retries.

    A search may create runs, as `Decision.new`. From then on, the runs belong to the grid and are in `results`.
    If this launch can execute none of the new runs, as their device is missing, `next` is called again at once.

    `begin` and `next` are called in one thread, under torchrun only on rank 0. An exception in one of them
    ends the grid; committed epochs stay.
    """

    num_lanes = 1
    """The maximum number of concurrent runs; the grid sets this number before the first decision."""
    axes: Sequence[str] = ()
    """The hyperparameters that vary in the runs that the search creates; empty if it creates no runs."""

    @abstractmethod
    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Receive the runs of the grid, in order.

        `executable` leaves out runs that are completed, unavailable, or ended by a fault and are not retried.
        """

    @abstractmethod
    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:
        """Decide which runs are executed next; a run that must start over counts as pending until then."""

    def runs(self, experiment: Experiment) -> list[Run] | None:
        """Return the runs in an experiment that belong to the search; None if the grid lists all its runs."""
        return None

    def trials_of(self, run: Run) -> Sequence[KeptTrial]:
        """Return the trials to store in the run.json of a run that the search created."""
        return ()

    def to_try(self) -> list[Run]:
        """Return sample runs; the grid is checked with these runs."""
        return []

    def examples(self) -> Sequence[Run]:
        """Return sample runs; their number is the maximum number of concurrent runs of the search."""
        return ()

    def num_more(self) -> int:
        """Return the number of runs that the search may still create."""
        return 0

    def left_out(self) -> Collection[str]:
        """Return the runs not requested so far; at the end, those that have not begun are dropped."""
        return ()

    def introduction(self) -> str:
        """Return a sentence to print before the first run, "" for none."""
        return ""

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return a sentence to print at the end, "" for none."""
        return ""


class Pruner(Listener, ABC):
    """Decides after each epoch of a run whether the run continues.

    Each launch of a grid creates a pruner and calls `begin` once. The grid calls `should_stop` when a run has
    committed an epoch; when a run is resumed, the grid calls `should_stop` for the last epoch. All calls are
    made in one thread of the process that starts the grid, under torchrun only on rank 0. The run waits for the
    answer.

    State that must survive a kill is derived from the journals; they name the `rule` for each stopped run.

    Args:
        goal: The metric by which runs are compared.
        rule: The description of the pruner, for journals and messages. A rule stops a run only once.
    """

    def __init__(self, goal: Goal, rule: str) -> None:
        self.goal = goal
        self.rule = rule

    may_stop = True

    @abstractmethod
    def begin(self, results: Iterable[RunResult]) -> None:
        """Receive the results of the runs in the order of the grid; a run that starts over has no epochs."""

    @abstractmethod
    def should_stop(self, id_: str, record: EpochRecord) -> str:
        """Receive the last epoch of a run; return the reason why the run should stop, "" to continue.

        An epoch that is executed again replaces its earlier values and all later epochs.
        """

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Return the reason why the run should stop, None to continue."""
        return self.should_stop(self.slot.id, record)

    def introduction(self) -> str:
        """Return a sentence to print before the first run."""
        return f"{self.rule}: a run that is behind is stopped"

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return a sentence to print at the end, "" for none."""
        return ""

    def value(self, record: EpochRecord) -> float:
        """Return the metric of an epoch by which runs are compared."""
        if self.goal.metric not in record.metrics:
            raise of_grid(
                f"pruning compares runs by {self.goal.metric!r}, which epoch {record.epoch} does not have; "
                f"it has: {', '.join(record.metrics)}. Track it in every epoch"
            )
        return record.metrics[self.goal.metric]

    def is_left(self, result: RunResult) -> bool:
        """Whether a pruned run stays pruned: this rule has pruned it, or would stop it again."""
        if result.status is not Status.PRUNED or not result.epochs:
            return False
        return result.pruned_by == self.rule or bool(self.should_stop(result.folder.id, result.epochs[-1]))


class Signals(Protocol):
    """The signals that end a grid, and its time limit."""

    exit_code: int
    """The exit code of the signal that has come, 0 before."""
    why: str
    """The reason why the grid ends, "" for a signal."""

    def end_after(self, began: float, max_seconds: float) -> None:
        """End the grid `max_seconds` after `began` (time.monotonic, s)."""

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""

    def at_once(self, is_at_once: bool = True) -> AbstractContextManager[None]:
        """Raise KeyboardInterrupt in a block as soon as a signal comes; with False, at the end of the block."""


class Display(Listener):
    """What a grid shows while it runs, called in the grid's thread; this class shows nothing."""

    is_shown = False  # whether a user sees it

    def say(self, line: str) -> None:
        """Show a permanent line."""

    def show_progress(self, line: str) -> None:
        """Replace the temporary line, if the display can replace lines."""

    def clear(self) -> None:
        """Clear temporary lines for other output."""

    def add_runs(self, folders: Sequence[RunFolder]) -> None:
        """Called when further runs are due."""

    def stopping(self, signals: Signals) -> None:
        """Called when a signal stops the grid; several signals cause several calls."""

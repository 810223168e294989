"""Listener: who follows runs, in the process that executes them or in the one that started the grid."""

from collections.abc import Callable
from typing import Any, NamedTuple

from runmanager.outcome import BatchProgress, EpochRecord, Outcome
from runmanager.run import Run


class Slot(NamedTuple):
    """Where a run is executed.

    Attributes:
        id: The identity of the run.
        lane: The number of its lane, from 0; a listener in the worker does not know it.
        device: As in "cuda:1".
        is_retried: Whether the run that has ended is executed again; told in the parent alone.
    """

    id: str
    lane: int = 0
    device: str = "cpu"
    is_retried: bool = False


class Listener:
    """Follows the runs of a grid: a subclass overrides what it wants to hear of, each method does nothing else.

    Give it to ``run_grid(..., listeners=[...])``. It can harm nothing: what it raises is said once, and the run
    goes on. Events that it is too slow for wait in a queue of 1,000; then those of steps are dropped first, and
    those of ends never. Under torchrun, rank 0 alone has listeners.

    Attributes:
        where: "parent", the default: called in the process that started the grid, in a thread of its own. Then
            `network` and `loader` are None. Or "worker": pickled, and called in each process that executes
            runs, outside all clocks. Random states, and modes and buffers of the network, are given back. With
            the executor "inline", both are this process: there, one in the parent must not draw from global
            generators.
        may_stop: Whether the answers of `epoch_ended` count. A run waits for them, in the parent up to 10
            seconds; without an answer it goes on.
        run: The run that the event is of, set before each call.
        slot: Where that run is executed.

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
        """A run has begun, or is resumed.

        Args:
            run: Its hyperparameters.
            network: What is trained, None in the parent.
            loader: What its batches come from, None in the parent.

        Example:
            >>> class Announce(Listener):
            ...     def run_began(self, run, network, loader):
            ...         print(f"lr={run.lr} on {self.slot.device}")
        """

    def step_ended(self, progress: BatchProgress) -> None:
        """A run has trained another batch; told at most twice a second.

        Args:
            progress: How far it is in its epoch.

        Example:
            >>> class Bar(Listener):
            ...     def step_ended(self, progress):
            ...         print(f"epoch {progress.epoch}, batch {progress.batch} of {progress.num_batches}")
        """

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """An epoch is committed; nothing that happens here can change it.

        A run that is resumed asks again about its last epoch, if answers count.

        Args:
            record: The epoch, as the journal has it.
            network: What is trained, None in the parent.

        Returns:
            Why the run is to stop here, which counts if the listener `may_stop`: it is then pruned, and the
            first reason of several listeners is in its journal. None or "" to go on.

        Example:
            >>> class StopsBadStarts(Listener):
            ...     may_stop = True
            ...
            ...     def epoch_ended(self, record, network):
            ...         return "a bad start" if record.metrics["loss"] > 3 else None
        """

    def run_ended(self, outcome: Outcome) -> None:
        """A run has ended, and is committed.

        Args:
            outcome: How it ended.

        Example:
            >>> class Count(Listener):
            ...     failed = 0
            ...
            ...     def run_ended(self, outcome):
            ...         self.failed += outcome.status.is_fault
        """


def problem_of(answer: object) -> str:
    """Return what is wrong with the answer of a listener, "" if nothing is.

    >>> problem_of(None) or problem_of("a bad start"), problem_of(True)
    ('', 'epoch_ended() must return why the run is to stop, or None, got True')
    """
    if answer is None or isinstance(answer, str):
        return ""
    return f"epoch_ended() must return why the run is to stop, or None, got {_text(answer, repr):.60}"


def fault_of(method: str, error: BaseException) -> str:
    """Return which method of a listener raised what.

    >>> fault_of("run_ended", ValueError("no data"))
    'run_ended() raised ValueError: no data'
    """
    return f"{method}() raised {type(error).__name__}: {_text(error, str)}"


def _text(value: object, write: Callable[[object], str]) -> str:
    try:
        return write(value)
    except Exception:  # noqa: BLE001 - whatever the class of a user does
        return f"a {type(value).__name__}, which cannot be written as text"

"""Listeners: they follow runs, in the worker or in the process that started the grid."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome
from runmanager.core.run import Run


class Slot(NamedTuple):
    """The lane and device of a run.

    Attributes:
        id: The identity of the run.
        lane: The number of the lane, from 0; unknown in the worker.
        device: The device, such as "cuda:1".
        is_retried: Whether the ended run is retried; available only in the parent.
    """

    id: str
    lane: int = 0
    device: str = "cpu"
    is_retried: bool = False


class Listener:
    """Follows the runs of a grid; a subclass overrides some of the methods, which do nothing by default.

    Pass a listener to ``run_grid(..., listeners=[...])``. A listener cannot harm a run: an exception is
    reported once, and the run continues. Events for a slow listener wait in a queue of 1,000 events; if the
    queue is full, steps are dropped first; ends of runs are never dropped. Under torchrun, only rank 0 has
    listeners.

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


def guarded(
    listener: Listener, method: str, run: Run, slot: Slot, *arguments: object
) -> tuple[str | None, str]:
    """Call a method of a user's listener, which can end no run: only Ctrl-C leaves the call.

    Returns:
        The reason why the run should stop, None to continue; and the problem of the listener, "" for none.

    >>> guarded(Listener(), "epoch_ended", None, Slot("1"), None, None)
    (None, '')
    >>> guarded(Listener(), "run_ended", None, Slot("1"))[1]
    "run_ended() raised TypeError: Listener.run_ended() missing 1 required positional argument: 'outcome'"
    """
    try:
        listener.run, listener.slot = run, slot
        why = getattr(listener, method)(*arguments)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return None, f"{method}() raised {type(error).__name__}: {_text(error, str)}"
    if method != "epoch_ended" or not listener.may_stop:
        return None, ""
    if why is None or isinstance(why, str):
        return why or None, ""
    return None, f"epoch_ended() must return why the run is to stop, or None, got {_text(why, repr):.60}"


def _text(value: object, write: Callable[[object], str]) -> str:
    try:
        return write(value)
    except Exception:  # noqa: BLE001 - whatever the class of a user does
        return f"a {type(value).__name__}, which cannot be written as text"

"""The outcome of an open run, and early stopping of its loop."""

import math
from typing import Any

from runmanager.core.epoch_options import EpochOptions
from runmanager.core.goal import Goal
from runmanager.core.listener import Listener
from runmanager.core.listeners import Listeners, Reason
from runmanager.core.outcome import BY_TRAIN, EpochRecord, Outcome, Status
from runmanager.errors import CheckpointError


class LeaveTrain(BaseException):
    """Leaves a `train` whose loop cannot be stopped.

    The base class is BaseException, because a loop may catch Exception.
    """


class Ending:
    """The outcome of an open run: completed, unless it diverges, fails, is interrupted, or stops early.

    After each epoch, the loop's early stopping and the listeners decide whether the run continues. The first
    reason to stop counts.
    """

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self.status, self.cause = Status.COMPLETED, ""
        self.early_stop = EarlyStop(EpochOptions())  # early stopping by the options of the loop
        self.stopped_early = ""  # reason why the loop ends before its last epoch
        self._num_epochs: int | None = None  # number of epochs, the argument of the loop
        self._resumed: EpochRecord | None = None  # the last record of earlier attempts
        self._pruned_by = ""  # the rule that pruned the run, see `Outcome`

    def begin_loop(self, num_epochs: int | None) -> int | None:
        """Return the last epoch of a loop: its argument, or an earlier epoch at which a listener stops the run.

        `num_epochs` is None for a loop without `epochs`, whose number of epochs is unknown.
        """
        self._num_epochs, self.stopped_early = num_epochs, ""
        ends = (num_epochs, self._listeners.last_epoch)
        return min((last for last in ends if last is not None), default=None)

    def resume(self, *records: EpochRecord) -> None:
        """Load the epochs of earlier attempts."""
        for self._resumed in records:
            self.early_stop.epoch_ended(self._resumed, None)

    def ask_again(self) -> None:
        """Ask the listeners again about the last epoch before the resume, as their answer may be lost."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._decide(resumed, self.early_stop.reason, self._listeners.asked_again(resumed))

    def epoch_ended(self, record: EpochRecord, *, is_left: bool) -> None:
        """Report a committed epoch; stop the run if an answer is a reason to stop, unless the loop was left."""
        stop_reason = self.early_stop.epoch_ended(record, None)
        reason = self._listeners.epoch_ended(record)
        if not is_left:
            self._decide(record, stop_reason, reason)

    def _decide(self, record: EpochRecord, stop_reason: str, reason: Reason | None) -> None:
        """Stop the run by the first reason, unless this epoch is the last epoch or the run has failed."""
        last = self._num_epochs
        if self.status is not Status.COMPLETED or (last is not None and record.epoch >= last):
            return
        why, rule = reason or ("", None)
        if not stop_reason and rule is not None:
            where = f"after epoch {record.epoch}" + ("" if last is None else f" of {last}")
            self.set(Status.PRUNED, f"{where}: {why}")
            self._pruned_by = rule
        else:
            self.stopped_early = stop_reason or why

    def go_on(self) -> None:
        """Clear the request to stop: a loop that does not use `epochs` may begin another epoch."""
        if self._pruned_by:
            self.set(Status.COMPLETED, "")

    def prune(self, cause: str) -> None:
        """End the run as pruned at the request of `train`, unless the grid has pruned the run before."""
        if not self._pruned_by:
            self.set(Status.PRUNED, cause)
            self._pruned_by, self.stopped_early = BY_TRAIN, ""

    @property
    def should_stop(self) -> bool:
        """Whether the loop should stop before its last epoch."""
        return self.status is not Status.COMPLETED or bool(self.stopped_early)

    def set(self, status: Status, cause: str) -> None:
        """Set the outcome, overriding earlier outcomes."""
        self.status, self.cause, self._pruned_by = status, cause, ""

    def outcome(self, num_committed: int) -> Outcome:
        """Return the outcome if the run ends now."""
        return Outcome(self.status, self.cause, num_committed, pruned_by=self._pruned_by)


class EarlyStop(Listener):
    """Early stopping that uses only committed epochs, so that a resumed run stops after the same epoch.

    Args:
        options: The options with `patience`, `min_delta` and `max_seconds`.
        goal: The metric that must improve; None if only the time counts.
    """

    may_stop = True

    def __init__(self, options: EpochOptions, goal: Goal | None = None) -> None:
        self._options, self._goal = options, goal
        self._best = -math.inf  # the best `Goal.score` so far
        self._best_epoch = 0
        self._value = math.nan  # the value of the metric in the best epoch
        self.reason = ""
        """The reason why the loop stops, "" while it continues."""

    def epoch_ended(self, record: EpochRecord, network: Any) -> str:
        """Return the reason why the loop should stop, "" to continue."""
        patience, most = self._options.patience, self._options.max_seconds
        if patience is not None and self._goal is not None:
            self._compare(record, self._goal, patience)
        duration = record.metrics["run duration"]
        if not self.reason and most is not None and duration >= most:
            self.reason = f"max_seconds={most:g} were over after {duration:.4g} s"
        return self.reason

    def _compare(self, record: EpochRecord, goal: Goal, patience: int) -> None:
        if goal.metric not in record.metrics:
            raise CheckpointError(
                f"patience= watches {goal.metric!r}, which epoch {record.epoch} does not have; "
                f"it has: {', '.join(record.metrics)}"
            )
        score = goal.score(record.metrics)
        if score > self._best + self._options.min_delta or not self._best_epoch:
            self._best, self._best_epoch = score, record.epoch
            self._value = record.metrics[goal.metric]
        elif record.epoch - self._best_epoch >= patience:
            best = f"{self._value:.4g} in epoch {self._best_epoch}"
            self.reason = f"{goal.metric} was not better than {best} for {patience} epochs"

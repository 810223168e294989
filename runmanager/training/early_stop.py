"""When a loop over epochs ends before its last one: nothing became better, or its time is over."""

import math
from typing import Any, TypeGuard

from runmanager.errors import CheckpointError, Problems
from runmanager.goal import Goal
from runmanager.listener import Listener
from runmanager.outcome import EpochRecord


class EarlyStop(Listener):
    """Decides from the committed epochs alone, so that a resumed run stops after the same epoch.

    Args:
        goal: The metric that has to become better; None where only the time counts.
        patience: How many epochs may pass without a better value; None for any number.
        min_delta: By how much a value has to be better than the best one so far.
        max_seconds: The run's duration (s) after which no epoch begins; None for any.
    """

    may_stop = True

    def __init__(
        self,
        goal: Goal | None = None,
        patience: int | None = None,
        min_delta: float = 0.0,
        max_seconds: float | None = None,
    ) -> None:
        self._goal = goal
        self._patience = patience
        self._min_delta = min_delta
        self._max_seconds = max_seconds
        self._best = -math.inf  # as `Goal.score` gives it
        self._best_epoch = 0
        self._value = math.nan  # of the metric in that epoch
        self.reason = ""
        """Why no epoch begins any more, "" while the loop goes on."""

    def epoch_ended(self, record: EpochRecord, network: Any) -> str:
        """Return why no further epoch is to begin, "" to go on.

        Raises:
            CheckpointError: The epoch lacks the metric.
        """
        if self._patience is not None and self._goal is not None:
            self._compare(record, self._goal, self._patience)
        duration = record.metrics["run duration"]
        if not self.reason and self._max_seconds is not None and duration >= self._max_seconds:
            self.reason = f"max_seconds={self._max_seconds:g} were over after {duration:.4g} s"
        return self.reason

    def _compare(self, record: EpochRecord, goal: Goal, patience: int) -> None:
        if goal.metric not in record.metrics:
            raise CheckpointError(
                f"patience= watches {goal.metric!r}, which epoch {record.epoch} does not have; "
                f"it has: {', '.join(record.metrics)}"
            )
        score = goal.score(record.metrics)
        if score > self._best + self._min_delta or not self._best_epoch:
            self._best, self._best_epoch = score, record.epoch
            self._value = record.metrics[goal.metric]
        elif record.epoch - self._best_epoch >= patience:
            best = f"{self._value:.4g} in epoch {self._best_epoch}"
            self.reason = f"{goal.metric} was not better than {best} for {patience} epochs"


def stop_problems(patience: object, min_delta: object, max_seconds: object) -> Problems:
    """Return what is wrong with the arguments of `RunManager.epochs` that stop early."""
    problems = Problems()
    if patience is not None:
        problems.check_count("patience", patience, 1)
    elif min_delta:
        problems.append(f"min_delta={min_delta!r} without patience=: write patience=10, the epochs to wait")
    if not _is_number(min_delta) or min_delta < 0:
        problems.append(f"min_delta must be a number, 0 or more, got {min_delta!r}")
    problems.check_seconds("max_seconds", max_seconds)
    return problems


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

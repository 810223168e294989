"""When a loop over epochs ends before its last one: nothing became better, or its time is over."""

import math
from typing import Any

from runmanager.errors import CheckpointError
from runmanager.goal import Goal
from runmanager.listener import Listener
from runmanager.outcome import EpochRecord
from runmanager.training.epoch_options import EpochOptions


class EarlyStop(Listener):
    """Decides from the committed epochs alone, so that a resumed run stops after the same epoch.

    Args:
        options: Say after how many epochs without a better value, or after which time, no epoch begins.
        goal: The metric that has to become better; None where only the time counts.
    """

    may_stop = True

    def __init__(self, options: EpochOptions, goal: Goal | None = None) -> None:
        self._options, self._goal = options, goal
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

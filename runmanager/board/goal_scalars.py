"""The goal of a run under tags that all experiments share, whatever the metric that decides is called."""

from runmanager.board import event_file
from runmanager.board.tags import BEST, BEST_AFTER, BEST_EPOCH, EPOCH_SECONDS, LAST
from runmanager.goal import Goal, default_goal
from runmanager.outcome import EpochRecord


class GoalScalars:
    """Follows the goal over the epochs of a run; without one, the metric that decides by its name.

    >>> scalars = GoalScalars(Goal("f1", 1))
    >>> scalars.after(EpochRecord(1, {"f1": 0.5, "epoch duration": 2.0, "run duration": 3.0}, {}))["Goal/best"]
    0.5
    """

    def __init__(self, goal: Goal | None = None) -> None:
        self._is_given = goal is not None
        self._goal = goal
        self._names: dict[str, None] = {}  # of the metrics so far
        self._values: dict[str, float] = {}

    def after(self, record: EpochRecord) -> dict[str, float]:
        """Return the scalars of an epoch, none before the goal has a number.

        An epoch in which it has none, as that of a run that diverged, changes neither the best nor the last.
        """
        metrics = record.metrics
        if not self._is_given and not metrics.keys() <= self._names.keys():
            self._names |= dict.fromkeys(metrics)
            goal = default_goal(self._names)
            if goal != self._goal:  # it has come with this epoch
                self._goal, self._values = goal, {}
        value = metrics.get(self._goal.metric) if self._goal else None
        if self._goal and value is not None and abs(value) <= event_file.LARGEST:
            if BEST not in self._values or self._goal.sign * (value - self._values[BEST]) > 0:
                after = metrics.get("run duration", 0.0)
                self._values |= {BEST: value, BEST_AFTER: after, BEST_EPOCH: record.epoch}
            self._values[LAST] = value
        if not self._values:
            return {}
        return {**self._values, EPOCH_SECONDS: metrics.get("epoch duration", 0.0)}

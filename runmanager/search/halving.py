"""Successive halving, the stopping variant of ASHA: a run behind the earlier runs at a rung is stopped."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from runmanager.core.contracts import Pruner
from runmanager.core.goal import Goal, parse_goal
from runmanager.core.outcome import BY_TRAIN, EpochRecord, Outcome, Status
from runmanager.core.state import RunResult
from runmanager.core.wording import counted
from runmanager.errors import InvalidArgumentError, Problems

NO_METRIC = "prune= has nothing to compare runs by: give run_grid(goal='max:<metric>')"


@dataclass(frozen=True)
class SuccessiveHalving:
    """Train each run for a few epochs, and continue it only if it is among the best runs so far.

    A rung is a number of epochs: the first rung is `min_epochs`, each further rung is `factor` times the
    previous rung. A run is judged as soon as it reaches a rung: it continues if it is among the best one in
    `factor` of the runs that have reached that rung so far. No lane waits for other runs. The first run at a
    rung always continues. A pruned run stays pruned.

    Source: Li et al. (2020), A System for Massively Parallel Hyperparameter Tuning.

    Args:
        metric: The metric by which runs are compared at a rung: a name that implies the direction, such as
            "test_loss", or "min:<metric>" or "max:<metric>". None uses the goal of the grid.
        factor: The ratio of all runs at a rung to the runs that continue.
        min_epochs: The number of epochs of the first rung.

    Raises:
        InvalidArgumentError: An argument is invalid; the message lists all problems.

    Example:
        >>> SuccessiveHalving("test_loss", min_epochs=2)  # for run_grid(..., prune=...)
        SuccessiveHalving(metric='test_loss', factor=3, min_epochs=2)
    """

    metric: str | None = None
    factor: int = 3
    min_epochs: int = 1

    def __post_init__(self) -> None:
        problems = Problems()
        if self.metric is not None:
            with problems.collecting():
                parse_goal(self.metric, "metric")
        problems.check_count("factor", self.factor, 2)
        problems.check_count("min_epochs", self.min_epochs, 1)
        problems.raise_if_any(InvalidArgumentError)

    def __str__(self) -> str:
        """Write the rule with the arguments that are no defaults."""
        given = [(each, getattr(self, each.name)) for each in fields(self)]
        arguments = [f"{each.name}={value!r}" for each, value in given if value != each.default]
        return f"SuccessiveHalving({', '.join(arguments)})"

    def pruner(self, goal: Goal | None = None) -> Pruner:
        """Create a pruner that judges each run by this rule when it reaches a rung.

        Args:
            goal: The goal of the grid, used if the rule has no metric.

        Returns:
            The pruner, for one launch of a grid.

        Raises:
            InvalidArgumentError: Neither this rule nor the grid has a metric.

        Example:
            >>> from runmanager import EpochRecord
            >>> pruner = SuccessiveHalving("loss", factor=2).pruner()
            >>> for run, loss in {"first": 3.0, "better": 2.0, "worse": 2.5}.items():
            ...     print(run, pruner.should_stop(run, EpochRecord(1, {"loss": loss})) or "goes on")
            first goes on
            better goes on
            worse behind 1 of 3 runs
        """
        rule = self if self.metric or goal is None else replace(self, metric=str(goal))
        if rule.metric is None:
            raise InvalidArgumentError(f"{NO_METRIC}, or SuccessiveHalving('max:<metric>')")
        return _Halving(rule, parse_goal(rule.metric, "metric"))


class _Halving(Pruner):
    """Stops a run at a rung unless the run is among the best runs that have reached the rung so far."""

    def __init__(self, rule: SuccessiveHalving, goal: Goal) -> None:
        super().__init__(goal, str(rule))
        self._rule = rule
        # rung -> identity of a run -> value of the run at that rung
        self._rungs: dict[int, dict[str, float]] = {}

    def begin(self, results: Iterable[RunResult]) -> None:
        """Load the values at the rungs."""
        for result in results:
            for record in result.epochs:
                if self._is_rung(record.epoch) and self.goal.metric in record.metrics:
                    self._rungs.setdefault(record.epoch, {})[result.folder.id] = self.value(record)

    def should_stop(self, id_: str, record: EpochRecord) -> str:
        """At a rung, compare the run with all runs that have reached that rung so far."""
        for rung, values in self._rungs.items():
            if rung >= record.epoch:
                values.pop(id_, None)
        if not self._is_rung(record.epoch):
            return ""
        others = self._rungs.setdefault(record.epoch, {})
        value, sign = self.value(record), self.goal.sign
        ahead = sum(math.isfinite(other) and sign * other >= sign * value for other in others.values())
        others[id_] = value
        if not math.isfinite(value):
            return f"{self.goal.metric} is {value}"
        is_among_best = ahead < max(len(others) // self._rule.factor, 1)
        return "" if is_among_best else f"behind {ahead} of {len(others)} runs"

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Say what was pruned, or warn if no run has continued after the first rung, so that none could be."""
        epochs = [outcome.epochs for outcome in outcomes if outcome.status is Status.COMPLETED]
        if not epochs or max(epochs) > self._rule.min_epochs:
            return pruned(outcomes)
        return f"! no run was stopped early: none has more epochs than min_epochs={self._rule.min_epochs}"

    def _is_rung(self, epoch: int) -> bool:
        rung = self._rule.min_epochs
        while rung < epoch:
            rung *= self._rule.factor
        return rung == epoch


def pruned(outcomes: Sequence[Outcome]) -> str:
    """Say how many runs a rule has pruned, and how one goes on with them."""
    number = sum(outcome.pruned_by not in ("", BY_TRAIN) for outcome in outcomes)
    return f"{counted(number, 'run')} pruned (continued by the same grid without prune=)" if number else ""

"""Successive halving: runs that are behind at a rung are stopped.

The method is one bracket of Hyperband: Li, Jamieson, DeSalvo, Rostamizadeh and Talwalkar (2018). The
asynchronous variant is the stopping variant of ASHA: Li, Jamieson, Rostamizadeh, Gonina, Hardt, Recht and
Talwalkar (2020).
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from runmanager.errors import InvalidArgumentError, Problems, of_grid
from runmanager.goal import Goal, parse_goal
from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.search.search import Decision, Pruner, Search
from runmanager.storage.folders import RunFolder
from runmanager.storage.run_state import RunResult
from runmanager.wording import cell

NO_METRIC = "prune= has nothing to compare runs by: give run_grid(goal='max:<metric>')"


@dataclass(frozen=True)
class SuccessiveHalving:
    """Train all runs for a few epochs, and repeatedly continue only the best runs.

    A rung is a number of epochs: the first rung is `min_epochs`, each further rung is `factor` times the
    previous rung. All runs are trained to the first rung. One in `factor` of the runs at a rung, at least one
    run, continues to the next rung. With the factor 3, 27 runs of 9 epochs take 27 x 1 + 9 x 2 + 3 x 6 = 63
    epochs, not 243.

    If `asynchronous`, a run is judged as soon as it reaches a rung: it continues if it is among the best runs
    at that rung so far. No lane waits for other runs. Early runs are compared with fewer runs, so more of the
    early runs continue, which costs some epochs. A pruned run stays pruned.

    Source: Jamieson and Talwalkar (2016), Non-stochastic Best Arm Identification and Hyperparameter
    Optimization; Li et al. (2020), A System for Massively Parallel Hyperparameter Tuning.

    Args:
        metric: The metric by which runs are compared at a rung: a name that implies the direction, such as
            "test_loss", or "min:<metric>" or "max:<metric>". None uses the goal of the grid.
        factor: The ratio of all runs at a rung to the runs that continue.
        min_epochs: The number of epochs of the first rung.
        asynchronous: Whether each run is judged as soon as it reaches a rung; otherwise all runs are judged
            together.

    Raises:
        InvalidArgumentError: An argument is invalid; the message lists all problems.

    Example:
        >>> prune = SuccessiveHalving("test_loss", factor=3)  # for run_grid(..., prune=prune)
        >>> str(prune.goal), prune.next_rung(0), prune.next_rung(3)
        ('min:test_loss', 1, 9)
    """

    metric: str | None = None
    factor: int = 3
    min_epochs: int = 1
    asynchronous: bool = False

    def __post_init__(self) -> None:
        problems = Problems()
        if self.metric is not None:
            with problems.collecting():
                parse_goal(self.metric, "metric")
        problems.check_count("factor", self.factor, 2)
        problems.check_count("min_epochs", self.min_epochs, 1)
        problems.check_choice("asynchronous", self.asynchronous, (True, False))
        problems.raise_if_any(InvalidArgumentError)

    def __str__(self) -> str:
        """Write the rule with the arguments that are no defaults."""
        given = [(each, getattr(self, each.name)) for each in fields(self)]
        arguments = [f"{each.name}={value!r}" for each, value in given if value != each.default]
        return f"SuccessiveHalving({', '.join(arguments)})"

    @property
    def goal(self) -> Goal:
        """The metric and its direction.

        Raises:
            InvalidArgumentError: Neither this rule nor the grid has a metric.
        """
        if self.metric is None:
            raise InvalidArgumentError([f"{NO_METRIC}, or SuccessiveHalving('max:<metric>')"])
        return parse_goal(self.metric, "metric")

    def towards(self, goal: Goal | None) -> "SuccessiveHalving":
        """Return this rule with the goal of a grid, unless the rule has a metric already.

        Args:
            goal: The goal of the grid; None for a grid without a goal.

        Returns:
            A rule with a metric.

        Raises:
            InvalidArgumentError: Neither this rule nor the goal has a metric.

        Example:
            >>> SuccessiveHalving().towards(parse_goal("max:reward")).metric
            'max:reward'
        """
        rule = self if self.metric or goal is None else replace(self, metric=str(goal))
        assert rule.goal
        return rule

    def pruner(self) -> Pruner:
        """Create a pruner that judges each run by this rule when it reaches a rung.

        Returns:
            The pruner, for one launch of a grid.

        Example:
            >>> from runmanager import EpochRecord
            >>> pruner = SuccessiveHalving("loss", factor=2, asynchronous=True).pruner()
            >>> for run, loss in {"first": 3.0, "better": 2.0, "worse": 2.5}.items():
            ...     print(run, pruner.should_stop(run, EpochRecord(1, {"loss": loss})) or "goes on")
            first goes on
            better goes on
            worse behind 1 of 3 runs
        """
        return _AsynchronousHalving(self)

    def search(self) -> Search:
        """Create a search that stops runs by this rule when all runs have reached a rung.

        Returns:
            The search, for one launch of a grid.

        Example:
            >>> print(SuccessiveHalving("loss").search().introduction())
            SuccessiveHalving(metric='loss'): runs that are behind are stopped, and can be continued
        """
        return _Halving(self)

    def rungs(self) -> Iterator[int]:
        """List the numbers of epochs after which runs are compared.

        Yields:
            The rungs in ascending order, without end.

        Example:
            >>> rungs = SuccessiveHalving("loss", factor=2).rungs()
            >>> [next(rungs) for _ in range(4)]
            [1, 2, 4, 8]
        """
        rung = self.min_epochs
        while True:
            yield rung
            rung *= self.factor

    def next_rung(self, epoch: int) -> int:
        """Find the first rung after an epoch.

        Args:
            epoch: The number of the epoch; 0 before the first epoch.

        Returns:
            The number of epochs at which runs are compared next.

        Example:
            >>> SuccessiveHalving("loss", min_epochs=2).next_rung(2)
            6
        """
        return next(rung for rung in self.rungs() if rung > epoch)

    def is_rung(self, epoch: int) -> bool:
        """Whether runs are compared after an epoch.

        Args:
            epoch: The number of the epoch.

        Returns:
            Whether the epoch is a rung.

        Example:
            >>> [epoch for epoch in range(10) if SuccessiveHalving("loss").is_rung(epoch)]
            [1, 3, 9]
        """
        return epoch > 0 and self.next_rung(epoch - 1) == epoch

    def check(self, metrics: Mapping[str, float]) -> None:
        """Check that the metrics of an epoch include the metric to compare.

        Args:
            metrics: The metrics of an epoch, by column.

        Raises:
            InvalidArgumentError: The metric is missing.

        Example:
            >>> SuccessiveHalving("loss").check({"loss": 0.5})  # raises nothing
        """
        name = self.goal.metric
        if name not in metrics:
            raise of_grid(
                f"pruning compares runs by {name!r}, which the epoch of a rung does not have; it has: "
                f"{', '.join(metrics)}. Track it in every epoch"
            )

    def best(self, values: Sequence[float]) -> list[int]:
        """Choose the runs that continue from a rung.

        Args:
            values: The metric of each run due at the rung; NaN if it is missing. A run with NaN is never among
                the best; of equal runs, the first run is better.

        Returns:
            The indexes of the best runs, the best run first; at least one index if any value is finite.

        Example:
            >>> SuccessiveHalving("accuracy").best([0.1, 0.3, math.nan, 0.3, 0.2, 0.4])
            [5, 1]
        """
        finite = [index for index, value in enumerate(values) if math.isfinite(value)]
        ordered = sorted(finite, key=lambda index: -self.goal.sign * values[index])
        return ordered[: max(len(values) // self.factor, 1)]


class _Halving(Search):
    """Decides at each rung which runs continue.

    A run that ended by a fault is never among the best; a killed run can still continue in the next launch.
    """

    def __init__(self, rule: SuccessiveHalving) -> None:
        self._rule = rule
        self._candidates: list[str] = []
        self._left: set[str] = set()  # runs that this launch does not execute, or no longer executes
        self._due: list[str] = []
        self._rung = 0
        self._short: dict[str, int] = {}  # runs that were stopped before their rung -> last epoch
        self._sentences: set[str] = set()

    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Make all runs due whose device is available."""
        self._candidates = [folder.id for folder in runs if not folder.unavailable]
        self._left = {folder.id for folder in runs} - set(executable)

    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:
        """When all due runs have ended, compare the runs at the rung, and return the runs due next."""
        if in_progress:
            return Decision()
        self._take_note(results)
        candidates = self._candidates
        behind: list[str] = []
        sentences: list[str] = []
        for rung in self._rule.rungs():
            self._rung = rung
            self._due = [
                id_ for id_ in candidates if id_ not in self._left and not self._is_there(results[id_])
            ]
            if self._due or all(
                id_ in self._left or results[id_].status is Status.COMPLETED for id_ in candidates
            ):
                break
            values = [self._value(results[id_]) for id_ in candidates]
            best = {candidates[index] for index in self._rule.best(values)}
            sentences += self._sentence(values, len(best))
            behind += [id_ for id_ in candidates if id_ not in best and self._is_there(results[id_])]
            candidates = [id_ for id_ in candidates if id_ in best]
        return Decision(self._due, behind, sentences)

    def introduction(self) -> str:
        """Return a sentence that states the rule."""
        return f"{self._rule}: runs that are behind are stopped, and can be continued"

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return a warning if no run could have been stopped early."""
        return _none_could_be_stopped(self._rule.min_epochs, outcomes)

    def _take_note(self, results: Mapping[str, RunResult]) -> None:
        """Exclude due runs that cannot continue in this launch."""
        for id_ in self._due:
            epoch, status = _last_epoch(results[id_]), results[id_].status
            # a run that lost its checkpoint starts over and stops at an earlier rung; if it stops at that rung
            # twice, it cannot continue at all
            is_short = status is Status.PRUNED and epoch < self._rung
            if not status.is_success or (is_short and epoch <= self._short.get(id_, 0)):
                self._left.add(id_)
            if is_short:
                self._short[id_] = epoch

    def _is_there(self, result: RunResult) -> bool:
        """Whether a run has reached the rung, or completed before it."""
        return result.status is Status.COMPLETED or _last_epoch(result) >= self._rung

    def _value(self, result: RunResult) -> float:
        """Return the metric of a run at the rung; NaN without the metric, or if the run can never continue."""
        is_lost = result.status.is_fault and result.folder.id in self._left
        records = [record for record in result.epochs if record.epoch <= self._rung]
        if is_lost or not records or not self._is_there(result):
            return math.nan
        self._rule.check(records[-1].metrics)
        return records[-1].metrics[self._rule.goal.metric]

    def _sentence(self, values: Sequence[float], num_best: int) -> list[str]:
        """Return a sentence about the decision at a rung.

        The list is empty if all runs continue, or if the decision is not new.
        """
        finite = sorted(filter(math.isfinite, values), key=lambda value: -self._rule.goal.sign * value)
        ends = [cell(value) for value in (*finite[:1], *finite[num_best - 1 : num_best])]
        extent = " to ".join(dict.fromkeys(ends))
        metric = f", {self._rule.goal.metric} {extent}" if finite else ""
        without, num_behind = len(values) - len(finite), len(values) - num_best
        go = "goes" if num_best == 1 else "go"
        facts = [f"after epoch {self._rung}, {num_best} of {len(values)} runs {go} on{metric}"]
        facts += [f"{num_behind} {'is' if num_behind == 1 else 'are'} behind"]
        facts += [f"{without} of these failed, were killed or have no number"] if without else []
        sentence = "; ".join(facts)
        is_new = num_best < len(values) and sentence not in self._sentences
        self._sentences.add(sentence)
        return [sentence] if is_new else []


class _AsynchronousHalving(Pruner):
    """Stops a run at a rung unless the run is among the best runs that have reached the rung so far."""

    def __init__(self, rule: SuccessiveHalving) -> None:
        super().__init__(rule.goal, str(rule))
        self._rule = rule
        # rung -> identity of a run -> value of the run at that rung
        self._rungs: dict[int, dict[str, float]] = {}

    def begin(self, results: Iterable[RunResult]) -> None:
        """Load the values at the rungs."""
        for result in results:
            for record in result.epochs:
                if self._rule.is_rung(record.epoch) and self.goal.metric in record.metrics:
                    self._rungs.setdefault(record.epoch, {})[result.folder.id] = self.value(record)

    def should_stop(self, id_: str, record: EpochRecord) -> str:
        """At a rung, compare the run with all runs that have reached that rung so far."""
        for rung, values in self._rungs.items():
            if rung >= record.epoch:
                values.pop(id_, None)
        if not self._rule.is_rung(record.epoch):
            return ""
        values = self._rungs.setdefault(record.epoch, {})
        values[id_] = value = self.value(record)
        index = len(values) - 1  # the index of this run, which came last
        if index in self._rule.best(list(values.values())):
            return ""
        if not math.isfinite(value):
            return f"{self.goal.metric} is {value}"
        ahead = sum(self.goal.sign * (other - value) >= 0 for other in values.values()) - 1
        return f"behind {ahead} of {len(values)} runs"

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return a warning if no run could have been stopped early."""
        return _none_could_be_stopped(self._rule.min_epochs, outcomes)


def _last_epoch(result: RunResult) -> int:
    """Return the last epoch after which a run can continue; an epoch that diverged does not count."""
    last = result.epochs[-1].epoch if result.epochs else 0
    return last - (result.status is Status.DIVERGED)


def _none_could_be_stopped(min_epochs: int, outcomes: Sequence[Outcome]) -> str:
    """Return a warning if no run has continued after the first rung."""
    epochs = [outcome.epochs for outcome in outcomes if outcome.status is Status.COMPLETED]
    if not epochs or max(epochs) > min_epochs:
        return ""
    return f"! no run was stopped early: none has more epochs than min_epochs={min_epochs}"

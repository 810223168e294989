"""The trials of a search, rebuilt from the runs of its experiment."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runmanager.errors import InvalidArgumentError
from runmanager.goal import Goal
from runmanager.outcome import Status
from runmanager.search.optuna_sampler import Sampler, TrialResult
from runmanager.search.optuna_search import OptunaSearch
from runmanager.search.space import Point, SearchSpace
from runmanager.storage.folders import Experiment
from runmanager.storage.identity import identity
from runmanager.storage.run_numbers import kept
from runmanager.storage.run_state import RunResult
from runmanager.storage.run_trials import KeptTrial, read_trials
from runmanager.wording import did_you_mean

MOST_REPEATS = 100
"""The number of repeated suggestions in a row after which the search ends."""


@dataclass
class Trial:
    """A setting that the sampler has suggested, and its result."""

    number: int
    point: Point
    runs: Sequence[str]  # the identities of the runs
    attributes: Mapping[str, Any] = field(default_factory=dict)
    result: TrialResult | None = None

    @property
    def stored(self) -> KeptTrial:
        """The trial as stored with each of its runs."""
        return KeptTrial(self.number, self.attributes)


class Trials:
    """The trials of an experiment, and the sampler that continues from these trials.

    The sampler is created before its first suggestion. It gets the runs without a trial, then the trials by
    number.

    Args:
        space: The axes; runs outside these axes do not count.
        goals: The metrics to optimize.
        search: The options with the sampler.
        experiment: The experiment with the runs.

    Attributes:
        all: The trials by number, in order.
    """

    def __init__(
        self, space: SearchSpace, goals: Sequence[Goal], search: OptunaSearch, experiment: Experiment
    ) -> None:
        self._space = space
        self._goals = goals
        self._search = search
        self._sampler: Sampler | None = None
        # runs without a trial: identity -> point, result
        self._others: dict[str, tuple[Point, TrialResult]] = {}
        self._num_repeats = 0  # number of repeated suggestions in a row
        last = experiment.last_trial
        self._next = 0 if last is None else last + 1
        trials: dict[int, Trial] = {}
        for folder in experiment.runs.values():
            stored = read_trials(folder)
            self._next = max([self._next, *(trial.number + 1 for trial in stored)])
            if stored and (point := space.point(folder.params, folder.id)):
                for entry in stored:
                    trials.setdefault(entry.number, self._trial(entry.number, point, entry.attributes))
        self.all = dict(sorted(trials.items()))

    @property
    def ids(self) -> set[str]:
        """The identities of the runs of all trials."""
        return {id_ for trial in self.all.values() for id_ in trial.runs}

    @property
    def open(self) -> list[Trial]:
        """The trials without a result, in order."""
        return [trial for trial in self.all.values() if trial.result is None]

    @property
    def is_exhausted(self) -> bool:
        """Whether the sampler has no further suggestions."""
        return self._sampler is not None and self._sampler.is_exhausted

    @property
    def repeats_itself(self) -> bool:
        """Whether the sampler suggests only settings that were suggested before."""
        return self._num_repeats >= MOST_REPEATS

    def begin(self, results: Mapping[str, RunResult]) -> None:
        """Load the ended runs that have no trial, in order, for the sampler."""
        ids = self.ids
        new_ids = sorted(results.keys() - ids, key=lambda id_: results[id_].folder.number)
        for folder in [results[id_].folder for id_ in new_ids]:
            point = self._space.point(folder.params, folder.id)
            if point is None or folder.id in ids:
                continue
            trial = self._trial(-1, point, {})
            if ids.isdisjoint(trial.runs) and (result := self.result(trial, results)):
                self._others[folder.id] = point, result
                ids.update(trial.runs)

    def ask(self) -> Trial | None:
        """Return the sampler's next suggestion, None if it is exhausted.

        The trial must be stored with one of its runs before that run is executed.
        """
        if self._sampler is None:
            self._sampler = self._built()
        if self.is_exhausted:
            return None
        seen = self.ids | self._others.keys()
        point, attributes = self._sampler.ask(self._next)
        trial = self.all[self._next] = self._trial(self._next, point, attributes)
        self._next += 1
        self._num_repeats = self._num_repeats + 1 if seen.issuperset(trial.runs) else 0
        return trial

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Record the result of a trial and report it to the sampler."""
        trial.result = result
        if self._sampler:
            self._sampler.tell(trial.number, result)

    def of_run(self, id_: str) -> list[KeptTrial]:
        """Return the trials to store with a run."""
        return [trial.stored for trial in self.all.values() if id_ in trial.runs]

    def result(
        self, trial: Trial, results: Mapping[str, RunResult], in_progress: Collection[str] = ()
    ) -> TrialResult | None:
        """Return the result of a trial, None if some of its runs have not ended.

        Raises:
            InvalidArgumentError: A completed run lacks the metric of a goal.
        """
        if any(id_ not in results or id_ in in_progress for id_ in trial.runs):
            return None
        runs = [results[id_] for id_ in trial.runs]
        statuses = {run.status for run in runs}
        if any(status.is_due or status.is_in_progress for status in statuses):
            return None
        if not statuses <= {Status.COMPLETED, Status.PRUNED}:
            return TrialResult("fail")
        if Status.PRUNED in statuses:
            return TrialResult("pruned", curve=_mean_curve(runs, self._goals[0]))
        values = [statistics.fmean(_goal_value(run, goal) for run in runs) for goal in self._goals]
        return TrialResult("complete", values) if all(map(math.isfinite, values)) else TrialResult("fail")

    def _trial(self, number: int, point: Point, attributes: Mapping[str, Any]) -> Trial:
        return Trial(number, point, [identity(run._asdict()) for run in self._space.runs(point)], attributes)

    def _built(self) -> Sampler:
        """Return a sampler that has received all results."""
        sampler = Sampler(self._space, self._goals, self._search, len(self.all))
        for number, (point, result) in enumerate(self._others.values(), 1):
            sampler.add(-number, point, {}, is_suggested=False)
            sampler.tell(-number, result)
        for trial in self.all.values():
            sampler.add(trial.number, trial.point, trial.attributes, is_suggested=True)
            if trial.result:
                sampler.tell(trial.number, trial.result)
        return sampler


def _mean_curve(runs: Iterable[RunResult], goal: Goal) -> dict[int, float]:
    """Return the mean of a metric in each epoch, over the runs that have the metric in that epoch."""
    by_epoch: dict[int, list[float]] = {}
    for run in runs:
        for record in run.epochs:
            if goal.metric in record.metrics:
                by_epoch.setdefault(record.epoch, []).append(record.metrics[goal.metric])
    return {epoch: statistics.fmean(values) for epoch, values in sorted(by_epoch.items())}


def _goal_value(run: RunResult, goal: Goal) -> float:
    """Return the goal's metric of a run at the epoch whose weights were saved by keep=, else at the last epoch.

    Raises:
        InvalidArgumentError: The run is completed and lacks the metric.
    """
    last = {name: value for record in run.epochs for name, value in record.metrics.items()}
    if goal.metric in run.summary:
        return run.summary[goal.metric]
    if goal.metric not in last and run.status is Status.COMPLETED:
        hint = did_you_mean(goal.metric, {**last, **run.summary}, "it has")
        fact = f"the goal is {str(goal)!r}, but run {run.folder.number} has no such metric"
        raise InvalidArgumentError([f"{fact}: track it, or give another goal=; {hint}"])
    return kept(run, goal, last)

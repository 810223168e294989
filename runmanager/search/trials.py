"""The trials of a search, built from the runs of its experiment: what was suggested and what became of it."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runmanager.errors import InvalidArgumentError
from runmanager.goal import Goal
from runmanager.outcome import Status
from runmanager.search.optuna_search import OptunaSearch
from runmanager.search.sampler import Sampler, TrialResult
from runmanager.search.space import Point, SearchSpace
from runmanager.storage.folders import Experiment
from runmanager.storage.identity import identity
from runmanager.storage.run_state import RunResult
from runmanager.storage.run_trials import KeptTrial, ToldValue, read_trials
from runmanager.wording import did_you_mean

MOST_REPEATS = 100
"""How many suggestions in a row may be settings that were there before: then the search ends."""


@dataclass
class Trial:
    """A suggestion, or a setting of the user's own, and what became of it."""

    number: int
    point: Point
    runs: Sequence[str]  # their identities
    is_own: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)
    result: TrialResult | None = None

    @property
    def kept(self) -> KeptTrial:
        """What each of its runs keeps of it."""
        return KeptTrial(self.number, self.is_own, self.attributes)


class Trials:
    """The trials of an experiment, and the sampler that goes on from them.

    The sampler is made when it is asked first. It sees the runs that nobody has suggested, then the trials by
    their numbers.

    Args:
        space: The axes: runs of others do not count.
        goals: What the runs are compared by.
        search: Has the sampler.
        experiment: Has the runs.

    Attributes:
        all: The trials, by number and in its order.
        told: The values that loops have told, by the identity of the run.
    """

    def __init__(
        self, space: SearchSpace, goals: Sequence[Goal], search: OptunaSearch, experiment: Experiment
    ) -> None:
        self._space = space
        self._goals = goals
        self._search = search
        self._sampler: Sampler | None = None
        self._others: dict[str, tuple[Point, TrialResult]] = {}  # runs that are no trials, by identity
        self._num_repeats = 0  # in a row
        last = experiment.last_trial
        self._next = 0 if last is None else last + 1
        trials: dict[int, Trial] = {}
        self.told: dict[str, ToldValue] = {}
        for folder in experiment.runs.values():
            kept = read_trials(folder)
            self._next = max([self._next, *(trial.number + 1 for trial in kept.trials)])
            point = space.point(folder.params, folder.id) if kept.trials or kept.told else None
            if point is None:
                continue
            if kept.told:
                self.told[folder.id] = kept.told
            for each in kept.trials:
                trial = self._trial(each.number, point, each.is_own, each.attributes)
                trials.setdefault(each.number, trial)
        self.all = dict(sorted(trials.items()))

    @property
    def num_asked(self) -> int:
        """How many suggestions there were."""
        return sum(not trial.is_own for trial in self.all.values())

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
        """Whether the sampler has nothing left to suggest."""
        return self._sampler is not None and self._sampler.is_exhausted

    @property
    def repeats_itself(self) -> bool:
        """Whether the sampler suggests nothing new any more."""
        return self._num_repeats >= MOST_REPEATS

    def begin(self, results: Mapping[str, RunResult]) -> None:
        """Take the runs that have ended and are no trials, the first run first: the sampler sees them too."""
        ids = self.ids
        others = sorted(results.keys() - ids, key=lambda id_: results[id_].folder.number)
        for folder in [results[id_].folder for id_ in others]:
            point = self._space.point(folder.params, folder.id)
            if point is None or folder.id in ids:
                continue
            trial = self._trial(-1, point)
            if ids.isdisjoint(trial.runs) and (result := self.result(trial, results)):
                self._others[folder.id] = point, result
                ids.update(trial.runs)

    def other(self, id_: str) -> TrialResult | None:
        """Return the result of a run that is no trial, None if it has none."""
        return self._others[id_][1] if id_ in self._others else None

    def ask(self) -> Trial | None:
        """Let the sampler suggest a setting, None if it has nothing left.

        It has to be kept with one of its runs before that is executed.
        """
        if self._sampler is None:
            self._sampler = self._built()
        if self.is_exhausted:
            return None
        seen = self.ids | self._others.keys()
        point, attributes = self._sampler.ask(self._next)
        trial = self._trial(self._next, point, attributes=attributes)
        self._add(trial)
        self._num_repeats = self._num_repeats + 1 if seen.issuperset(trial.runs) else 0
        return trial

    def give(self, point: Point) -> Trial:
        """Add a setting of the user's own."""
        trial = self._trial(self._next, point, is_own=True)
        self._add(trial)
        if self._sampler:
            self._sampler.add(trial.number, point, {}, is_suggested=False)
        return trial

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Note what became of a trial, and let the sampler know."""
        trial.result = result
        if self._sampler:
            self._sampler.tell(trial.number, result)

    def of_run(self, id_: str) -> list[KeptTrial]:
        """Return what a run keeps of its trials."""
        return [trial.kept for trial in self.all.values() if id_ in trial.runs]

    def result(
        self, trial: Trial, results: Mapping[str, RunResult], in_progress: Collection[str] = ()
    ) -> TrialResult | None:
        """Return what became of a trial, None if some of its runs have not ended.

        Raises:
            InvalidArgumentError: A completed run does not have the metric of a goal.
        """
        if any(id_ not in results or id_ in in_progress for id_ in trial.runs):
            return None
        runs = [results[id_] for id_ in trial.runs]
        statuses = {Status.COMPLETED if self.is_told(run) else run.status for run in runs}
        if any(status.is_due or status.is_in_progress for status in statuses):
            return None
        if not statuses <= {Status.COMPLETED, Status.PRUNED}:
            return TrialResult("fail")
        if Status.PRUNED in statuses:
            return TrialResult("pruned", curve=_mean_curve(runs, self._goals[0]))
        return result_of([statistics.fmean(self._value(run, goal) for run in runs) for goal in self._goals])

    def is_told(self, run: RunResult) -> bool:
        """Whether a told value counts, in place of what the journals of a run say."""
        told = self.told.get(run.folder.id)
        if told is None or told.attempts != run.attempts:
            return False
        return all(goal.metric in told.values for goal in self._goals)

    def _value(self, run: RunResult, goal: Goal) -> float:
        if self.is_told(run):
            value = self.told[run.folder.id].values[goal.metric]
            return math.nan if value is None else value
        return goal_value(run, goal)

    def _trial(
        self, number: int, point: Point, is_own: bool = False, attributes: Mapping[str, Any] | None = None
    ) -> Trial:
        ids = [identity(run._asdict()) for run in self._space.runs(point)]
        return Trial(number, point, ids, is_own, attributes or {})

    def _add(self, trial: Trial) -> None:
        self.all[trial.number] = trial
        self._next = trial.number + 1

    def _built(self) -> Sampler:
        """Return a sampler that has seen all there is."""
        sampler = Sampler(self._space, self._goals, self._search, self.num_asked)
        for number, (point, result) in enumerate(self._others.values(), 1):
            sampler.add(-number, point, {}, is_suggested=False)
            sampler.tell(-number, result)
        for trial in self.all.values():
            sampler.add(trial.number, trial.point, trial.attributes, is_suggested=not trial.is_own)
            if trial.result:
                sampler.tell(trial.number, trial.result)
        return sampler


def result_of(values: Sequence[float]) -> TrialResult:
    """Return the result of a trial that has come to its end; without finite values it has failed."""
    return TrialResult("complete", values) if all(map(math.isfinite, values)) else TrialResult("fail")


def _mean_curve(runs: Iterable[RunResult], goal: Goal) -> dict[int, float]:
    """Return the mean of a metric in each epoch, over the runs that have it."""
    values: dict[int, list[float]] = {}
    for run in runs:
        for record in run.epochs:
            if goal.metric in record.metrics:
                values.setdefault(record.epoch, []).append(record.metrics[goal.metric])
    return {epoch: statistics.fmean(each) for epoch, each in sorted(values.items())}


def goal_value(run: RunResult, goal: Goal) -> float:
    """Return what counts of a run: its metric at the epoch whose weights are kept, else at the last one.

    Raises:
        InvalidArgumentError: The run is completed, and has no such metric.
    """
    from runmanager.results import tables  # pandas, which takes its time: it is there once a run has ended

    last = {name: value for record in run.epochs for name, value in record.metrics.items()}
    if goal.metric in run.summary:
        return run.summary[goal.metric]
    if goal.metric not in last and run.status is Status.COMPLETED:
        hint = did_you_mean(goal.metric, last, "it has")
        fact = f"the goal is {str(goal)!r}, but run {run.folder.number} has no such metric"
        raise InvalidArgumentError([f"{fact}: track it, or give another goal=; {hint}"])
    return tables.kept(run, goal, last)

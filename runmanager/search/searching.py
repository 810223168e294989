"""One launch of a search: it executes the sampler's suggestions and reports the results to the sampler."""

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from runmanager.core.contracts import Decision, Search
from runmanager.core.experiment import Design, Experiment, KeptTrial, RunFolder, read_trials, write_run
from runmanager.core.goal import Goal
from runmanager.core.outcome import Outcome, Status
from runmanager.core.run import Run, id_of
from runmanager.core.state import RunResult, read_run
from runmanager.core.wording import counted, did_you_mean
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.search.optuna_sampler import Sampler, TrialResult, check_search, sampler_name
from runmanager.search.optuna_search import OptunaSearch
from runmanager.search.space import Point, SearchSpace
from runmanager.tables.cells import join
from runmanager.tables.run_numbers import kept

MOST_REPEATS = 100
"""The number of repeated suggestions in a row after which the search ends."""
_MOST_LANES = 1024


@dataclass
class _Trial:
    """A setting that the sampler has suggested, and its result."""

    number: int
    point: Point
    runs: Mapping[str, Run]  # identity -> run
    attributes: Mapping[str, Any]
    result: TrialResult | None = None

    @property
    def kept(self) -> KeptTrial:
        """The trial as stored with each of its runs."""
        return KeptTrial(self.number, self.attributes)


class Searching(Search):
    """Asks a sampler for one run per free lane."""

    def __init__(
        self, options: OptunaSearch, space: SearchSpace, goals: Sequence[Goal], experiment: Path
    ) -> None:
        self.axes: Sequence[str] = space.varying
        self._space, self._options, self._goals, self._experiment = space, options, goals, experiment
        self._executable: set[str] = set()  # runs that may become due
        self._again: list[str] | None = None  # runs without a trial, which are executed first
        self._is_ready = False  # whether the results of earlier launches are loaded
        self._others: list[tuple[Point, TrialResult]] = []  # ended runs without a trial
        self._other_ids: set[str] = set()
        self._sampler: Sampler | None = None
        self._num_repeats = 0  # number of repeated suggestions in a row
        self._seconds = 0.0  # total duration of the runs
        self._trials: dict[int, _Trial] = {}
        self._next = self._num_before = 0

    @classmethod
    def of_grid(cls, options: OptunaSearch, params: Any, design: Design, experiment: Path) -> Self:
        """Return the search over the axes of a grid."""
        problems = Problems()
        space, goals = SearchSpace(params), design.all_goals
        ranges = [axis.name for axis in space.axes if axis.range]
        repeats = design.repeating(name for name in space.varying if name not in ranges)
        for name in set(repeats).intersection(ranges):
            rule = f"repeats={name!r}, but {name!r} is a range"
            problems.append(f"{rule}: list its values, as {name!r}: [0, 1, 2]")
        if not goals:
            problems.append("search= needs a goal: give run_grid(goal='max:<metric>')")
        problems.raise_if_any()
        space = SearchSpace(params, repeats)
        check_search(space, goals, options)
        return cls(options, space, goals, experiment)

    def runs(self, experiment: Experiment) -> list[Run]:
        """Return the experiment's runs: all suggested runs, and other runs that have ended."""
        self._read(experiment)
        suggested = self._ids
        return [
            read[1]
            for folder in experiment.runs.values()
            if (read := self._space.read(folder))
            and (folder.id in suggested or (status := read_run(folder).status).is_success or status.is_fault)
        ]

    def examples(self) -> Sequence[Run]:
        """Return sample runs."""
        samples = itertools.cycle(self._space.samples())
        return list(itertools.islice(samples, min(self._options.n * self._space.num_repeats, _MOST_LANES)))

    def to_try(self) -> list[Run]:
        """Return sample runs; no runs if all suggestions are made."""
        return self._space.spread() if len(self._trials) < self._options.n else []

    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Load the trials of earlier launches."""
        self._read(Experiment(self._experiment))
        self._executable = set(executable)

    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:
        """Report the results of ended runs to the sampler, and suggest one run per free lane."""
        if self._again is None:
            ids = self._ids
            self._again = [id_ for id_ in results if id_ not in ids and self._is_due(id_, results)]
            if self._again:
                self._executable.difference_update(self._again)
                return Decision(self._again)
        if not set(self._again).isdisjoint(in_progress):
            return Decision()
        due: dict[str, Run] = {}
        if not self._is_ready:
            self._is_ready = True
            self._add_others(results)
            for trial in self._trials.values():
                due |= self._due(trial, results)
        if self._options.max_seconds is not None:
            self._seconds = sum(results[id_].seconds for id_ in self._ids if id_ in results)
        due = self._suggested(due, results, in_progress)
        self._executable.difference_update(due)
        return Decision(
            [id_ for id_ in due if id_ in results], new=[run for id_, run in due.items() if id_ not in results]
        )

    def trials_of(self, run: Run) -> Sequence[KeptTrial]:
        """Return the trials to store with a suggested run."""
        id_ = id_of(run)
        return [trial.kept for trial in self._trials.values() if id_ in trial.runs]

    def num_more(self) -> int:
        """Return the number of runs that the search may still suggest."""
        return 0 if self._has_ended else (self._options.n - len(self._trials)) * self._space.num_repeats

    def introduction(self) -> str:
        """Return a sentence with the sampler and its number of suggestions."""
        goals = " and ".join(map(str, self._goals))
        before = f"{self._num_before:,} of them before" if self._num_before else ""
        number = self._space.num_repeats
        runs_each = f"each is {number:,} runs" if number > 1 else ""
        suggestions = counted(self._options.n, "setting" if runs_each else "run")
        return join([f"{sampler_name(self._options)} suggests {suggestions} for {goals}", runs_each, before])

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return the reason why there are fewer suggestions than `n`, "" if there are `n` suggestions."""
        asked, n = len(self._trials), self._options.n
        if asked < n and self._num_repeats >= MOST_REPEATS:
            repeats = f"the last {MOST_REPEATS:,} suggestions were repeated settings"
            return f"! {repeats}: the search ends after {asked:,} of {n:,}"
        if asked < n and self._has_ended:
            spent = f"max_seconds={self._options.max_seconds:g} were spent"
            return f"! {spent} after {asked:,} of {n:,} suggestions: a larger one goes on"
        return ""

    def _suggested(
        self, due: dict[str, Run], results: Mapping[str, RunResult], in_progress: Collection[str]
    ) -> dict[str, Run]:
        """Return the due runs with those of further suggestions, until all lanes are busy."""
        while True:
            busy = {*in_progress, *due}
            waiting = 0
            for trial in self._trials.values():
                if trial.result is None:
                    self._tell(trial, self._result(trial.runs, results, busy))
                    waiting += not busy.isdisjoint(trial.runs)
            if max(len(busy), waiting) >= self.num_lanes or self._has_ended:
                return due
            trial = self._ask()
            due |= self._due(trial, results)
            if results.keys() >= trial.runs.keys():  # otherwise, its new runs store the trial
                write_run(results[next(iter(trial.runs))].folder, [trial.kept])

    def _read(self, experiment: Experiment) -> None:
        """Read the trials, by number, and the next number, which is larger than that of any removed trial."""
        last = experiment.last_trial
        self._next = 0 if last is None else last + 1
        trials: dict[int, _Trial] = {}
        for folder in experiment.runs.values():
            stored = read_trials(folder)
            self._next = max([self._next, *(trial.number + 1 for trial in stored)])
            if stored and (read := self._space.read(folder)):
                for entry in stored:
                    trials.setdefault(entry.number, self._trial(entry.number, read[0], entry.attributes))
        self._trials = dict(sorted(trials.items()))
        self._num_before = len(trials)

    def _trial(self, number: int, point: Point, attributes: Mapping[str, Any]) -> _Trial:
        runs = {id_of(run): run for run in self._space.runs(point)}
        return _Trial(number, point, runs, attributes)

    @property
    def _ids(self) -> set[str]:
        """The identities of the runs of all trials."""
        return {id_ for trial in self._trials.values() for id_ in trial.runs}

    @property
    def _has_ended(self) -> bool:
        """Whether the search suggests no further runs."""
        most = self._options.max_seconds
        is_late = most is not None and self._seconds >= most
        return is_late or len(self._trials) >= self._options.n or self._num_repeats >= MOST_REPEATS

    def _add_others(self, results: Mapping[str, RunResult]) -> None:
        """Note the results of ended runs that have no trial, in order, for the sampler."""
        ids = self._ids
        for run in sorted(results.values(), key=lambda run: run.folder.number):
            if run.folder.id in ids or (read := self._space.read(run.folder)) is None:
                continue
            trial = self._trial(-1, read[0], {})
            if ids.isdisjoint(trial.runs) and (result := self._result(trial.runs, results)):
                self._others.append((trial.point, result))
                self._other_ids.update(trial.runs)
                ids.update(trial.runs)

    def _ask(self) -> _Trial:
        """Return the sampler's next suggestion."""
        if self._sampler is None:
            self._sampler = Sampler(self._space, self._goals, self._options)
            for point, result in self._others:
                self._sampler.add_ended(point, result)
            for trial in self._trials.values():
                self._sampler.add(trial.number, trial.point, trial.attributes)
                self._tell(trial, trial.result)
        seen = self._ids | self._other_ids
        trial = self._trial(self._next, *self._sampler.ask(self._next))
        self._trials[self._next] = trial
        self._next += 1
        self._num_repeats = self._num_repeats + 1 if seen.issuperset(trial.runs) else 0
        return trial

    def _tell(self, trial: _Trial, result: TrialResult | None) -> None:
        """Record the result of a trial, if there is one, and report it to the sampler."""
        trial.result = result
        if self._sampler and result:
            self._sampler.tell(trial.number, result)

    def _due(self, trial: _Trial, results: Mapping[str, RunResult]) -> dict[str, Run]:
        """Return the runs of a trial that become due."""
        return {id_: run for id_, run in trial.runs.items() if id_ not in results or self._is_due(id_, results)}

    def _is_due(self, id_: str, results: Mapping[str, RunResult]) -> bool:
        return id_ in self._executable and results[id_].status is not Status.PRUNED

    def _result(
        self, ids: Collection[str], results: Mapping[str, RunResult], busy: Collection[str] = ()
    ) -> TrialResult | None:
        """Return the result of the runs of a trial, None if some of these runs have not ended."""
        if any(id_ not in results or id_ in busy for id_ in ids):
            return None
        runs = [results[id_] for id_ in ids]
        statuses = {run.status for run in runs}
        if any(status.is_due or status.is_in_progress for status in statuses):
            return None
        if not statuses <= {Status.COMPLETED, Status.PRUNED}:
            return TrialResult("FAIL")
        if Status.PRUNED in statuses:
            return TrialResult("PRUNED", curve=_mean_curve(runs, self._goals[0]))
        values = [statistics.fmean(_goal_value(run, goal) for run in runs) for goal in self._goals]
        return TrialResult("COMPLETE", values) if all(map(math.isfinite, values)) else TrialResult("FAIL")


def _mean_curve(runs: Iterable[RunResult], goal: Goal) -> dict[int, float]:
    """Return the mean of a metric in each epoch, over the runs that have the metric in that epoch."""
    by_epoch: dict[int, list[float]] = {}
    for run in runs:
        for record in run.epochs:
            if goal.metric in record.metrics:
                by_epoch.setdefault(record.epoch, []).append(record.metrics[goal.metric])
    return {epoch: statistics.fmean(values) for epoch, values in sorted(by_epoch.items())}


def _goal_value(run: RunResult, goal: Goal) -> float:
    """Return the goal's metric of a run at the epoch of its saved weights, else at the last epoch."""
    last = {name: value for record in run.epochs for name, value in record.metrics.items()}
    if goal.metric in run.summary:
        return run.summary[goal.metric]
    if goal.metric not in last and run.status is Status.COMPLETED:
        hint = did_you_mean(goal.metric, {**last, **run.summary}, "it has")
        fact = f"the goal is {str(goal)!r}, but run {run.folder.number} has no such metric"
        raise InvalidArgumentError(f"{fact}: track it, or give another goal=; {hint}")
    return kept(run, [goal.metric], last)[goal.metric]

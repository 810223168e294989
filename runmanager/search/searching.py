"""One launch of a search: it executes the sampler's suggestions and reports the results to the sampler."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from runmanager.goal import Goal
from runmanager.hyperparameters import counted
from runmanager.outcome import Outcome, Status
from runmanager.run import Run
from runmanager.search.optuna_sampler import sampler_name
from runmanager.search.optuna_search import OptunaSearch
from runmanager.search.search import Decision, Search
from runmanager.search.space import SearchSpace
from runmanager.search.trials import MOST_REPEATS, Trial, Trials
from runmanager.storage.folders import Experiment, RunFolder
from runmanager.storage.identity import identity
from runmanager.storage.run_state import RunResult, read_run
from runmanager.storage.run_trials import KeptTrial, write_run
from runmanager.wording import join

_MOST_LANES = 1024


class Searching(Search):
    """Asks a sampler for one run per free lane.

    Trials are stored with their runs, so that the next launch builds the same study. A suggestion counts
    towards `n` as soon as it is stored with one of its runs.
    """

    def __init__(
        self, options: OptunaSearch, space: SearchSpace, goals: Sequence[Goal], experiment: Path
    ) -> None:
        self.space: SearchSpace = space
        self.axes: Sequence[str] = space.varying
        self._options = options
        self._goals = goals
        self._experiment = experiment
        # runs without a trial, which are executed first; None until computed
        self._again: list[str] | None = None
        self._executable: set[str] = set()
        self._handed: set[str] = set()  # runs that became due in this launch
        self._is_ready = False  # whether the trials have their results
        self._seconds: dict[str, float] = {}  # duration of each run
        self._num_before = 0
        self._trials: Trials | None = None

    def runs(self, experiment: Experiment) -> list[Run]:
        """Return the experiment's runs: all suggested runs, and other runs that have ended."""
        trials = self._read(experiment)
        suggested, self._num_before = trials.ids, len(trials.all)
        return [
            run
            for run, folder in self.space.runs_of(experiment)
            if folder.id in suggested or _has_ended(read_run(folder).status)
        ]

    def examples(self) -> Sequence[Run]:
        """Return sample runs."""
        samples = itertools.cycle(self.space.samples())
        return list(itertools.islice(samples, min(self._options.n * self.space.num_repeats, _MOST_LANES)))

    def to_try(self) -> list[Run]:
        """Return sample runs; no runs if all suggestions are made."""
        num_asked = len(self._read(Experiment(self._experiment)).all)
        return self.space.spread() if num_asked < self._options.n else []

    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Load the trials of earlier launches."""
        self._trials = self._read(Experiment(self._experiment))
        self._executable = set(executable)
        self._num_before = len(self._trials.all)

    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:
        """Report the results of ended runs to the sampler, and suggest one run per free lane."""
        trials = self._trials
        assert trials
        if self._again is None:
            suggested = trials.ids
            self._again = [id_ for id_ in results if id_ not in suggested and self._is_due(id_, results)]
            self._handed |= set(self._again)
            if self._again:
                return Decision(self._again)
        if not set(self._again).isdisjoint(in_progress):
            return Decision()
        runs: dict[str, Run] = {}
        if not self._is_ready:
            self._is_ready = True
            trials.begin(results)
            for trial in trials.all.values():
                self._add_seconds(trial, results)
                runs |= self._not_handed(trial, results)
        runs = self._asked(trials, runs, results, set(in_progress))
        self._handed |= runs.keys()
        new = [run for id_, run in runs.items() if id_ not in results]
        return Decision([id_ for id_ in runs if id_ in results], new=new)

    def trials_of(self, run: Run) -> Sequence[KeptTrial]:
        """Return the trials to store with a suggested run."""
        return self._trials.of_run(identity(run._asdict())) if self._trials else ()

    def num_more(self) -> int:
        """Return the number of runs that the search may still suggest."""
        if self._trials and (self._has_ended(self._trials) or self._is_late()):
            return 0
        asked = len(self._trials.all) if self._trials else 0
        return max(self._options.n - asked, 0) * self.space.num_repeats

    def introduction(self) -> str:
        """Return a sentence with the sampler and its number of suggestions."""
        sampler = sampler_name(self._options)
        goals = " and ".join(map(str, self._goals))
        before = f"{self._num_before:,} of them before" if self._num_before else ""
        number = self.space.num_repeats
        runs_each = f"each is {number:,} runs" if number > 1 else ""
        suggestions = counted(self._options.n, "setting" if runs_each else "run")
        return join([f"{sampler} suggests {suggestions} for {goals}", runs_each, before])

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return the reason why there are fewer suggestions than `n`, "" if there are `n` suggestions."""
        if self._trials is None:
            return ""
        asked, n = len(self._trials.all), self._options.n
        if asked < n and self._trials.is_exhausted:
            return f"the sampler has nothing left to suggest after {asked:,} of {n:,}"
        if asked < n and self._trials.repeats_itself:
            repeats = f"the last {MOST_REPEATS:,} suggestions were repeated settings"
            return f"! {repeats}: the search ends after {asked:,} of {n:,}"
        if asked < n and self._is_late():
            spent = f"max_seconds={self._options.max_seconds:g} were spent"
            return f"! {spent} after {asked:,} of {n:,} suggestions: a larger one goes on"
        different = len({tuple(trial.runs) for trial in self._trials.all.values()})
        if different < asked:
            return f"{asked:,} suggestions were {counted(different, 'different setting')}"
        return ""

    def _read(self, experiment: Experiment) -> Trials:
        return Trials(self.space, self._goals, self._options, experiment)

    def _has_ended(self, trials: Trials) -> bool:
        return len(trials.all) >= self._options.n or trials.is_exhausted or trials.repeats_itself

    def _asked(
        self, trials: Trials, runs: dict[str, Run], results: Mapping[str, RunResult], busy: set[str]
    ) -> dict[str, Run]:
        """Return the given runs and the runs of further suggestions, until all lanes are busy."""
        while True:
            in_progress = busy | runs.keys()
            for trial in trials.open:
                if result := trials.result(trial, results, in_progress):
                    trials.tell(trial, result)
                    self._add_seconds(trial, results)
            waiting = sum(not in_progress.isdisjoint(trial.runs) for trial in trials.open)
            is_full = max(len(in_progress), waiting) >= self.num_lanes
            if is_full or self._has_ended(trials) or self._is_late():
                return runs
            if (suggested := trials.ask()) is None:
                return runs
            runs |= self._not_handed(suggested, results)
            if all(id_ in results for id_ in suggested.runs):  # otherwise, its new runs store the trial
                write_run(results[suggested.runs[0]].folder, [suggested.stored])

    def _not_handed(self, trial: Trial, results: Mapping[str, RunResult]) -> dict[str, Run]:
        """Return the due runs of a trial, except runs that became due before in this launch."""
        runs = {identity(run._asdict()): run for run in self.space.runs(trial.point)}
        return {
            id_: run
            for id_, run in runs.items()
            if id_ not in self._handed and (id_ not in results or self._is_due(id_, results))
        }

    def _is_due(self, id_: str, results: Mapping[str, RunResult]) -> bool:
        return id_ in self._executable and results[id_].status is not Status.PRUNED

    def _add_seconds(self, trial: Trial, results: Mapping[str, RunResult]) -> None:
        for id_ in trial.runs:
            if id_ in results and results[id_].epochs:
                self._seconds[id_] = results[id_].epochs[-1].metrics.get("run duration", 0.0)

    def _is_late(self) -> bool:
        most = self._options.max_seconds
        return most is not None and sum(self._seconds.values()) >= most


def _has_ended(status: Status) -> bool:
    return status.is_success or status.is_fault

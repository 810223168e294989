"""The trials of a search: what was suggested and what became of it, as the record and the sampler have it."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.errors import InvalidArgumentError
from runmanager.goal import Goal
from runmanager.hyperparameters import counted
from runmanager.outcome import Status
from runmanager.search.record import Ask, Begin, Record, State, Tell, Trial
from runmanager.search.sampler import DifferentError, Sampler
from runmanager.search.space import Point, SearchSpace
from runmanager.storage.folders import Experiment
from runmanager.storage.identity import identity
from runmanager.storage.run_state import RunResult
from runmanager.wording import did_you_mean

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

_REPEATED = "the sampler does not suggest again what it did before"


class Trials:
    """Goes on with the record of an experiment, which nobody else may write meanwhile.

    Args:
        space: The axes.
        goals: What the runs are compared by.
        sampler: That of Optuna; None is its default, with `seed`.
        seed: Makes the default repeatable.
        experiment: Its folder.

    Attributes:
        all: The trials of these axes, by number: those of other axes are forgotten.
        open: Those of them that have no result, in order.
        sentences: What to tell the user.
    """

    def __init__(
        self,
        space: SearchSpace,
        goals: Sequence[Goal],
        sampler: "BaseSampler | None",
        seed: int | None,
        experiment: Path,
    ) -> None:
        self._space = space
        self._goals = goals
        self._options = (sampler, seed)
        self._experiment = experiment
        self._record = Record.read(experiment)
        self._sampler: Sampler | None = None
        self._facts: dict[str, Any] = {"goals": list(map(str, goals)), "axes": space.as_json()}
        before = self._record.trials
        self.all = {number: trial for number, trial in before.items() if self._is_of_space(trial)}
        self.open = {number: trial for number, trial in self.all.items() if trial.told is None}
        self.sentences: list[str] = []
        # whether a sampler has to begin with what is there
        self._begins = self._record.is_damaged or len(self.all) < len(before)
        self._begins |= self._record.begin is None or self._record.begin.facts != self._facts

    @property
    def num_asked(self) -> int:
        """How many suggestions there were."""
        return sum(not trial.given for trial in self.all.values())

    @property
    def ids(self) -> set[str]:
        """The identities of all runs that were suggested, or given to the sampler."""
        return {id_ for trial in self.all.values() for id_ in trial.runs}

    @property
    def is_exhausted(self) -> bool:
        """Whether the sampler has nothing left to suggest."""
        return self._sampler is not None and self._sampler.is_exhausted

    def reconcile(self, results: Mapping[str, RunResult]) -> None:
        """Take over what became of runs since the record was written: they were removed, or executed again.

        `results` are what the journals say of runs that are not being executed.
        """
        told = [trial for trial in self.all.values() if trial.told]
        present = set(results)
        if not all(present.issuperset(trial.runs) for trial in told):
            present |= Experiment(self._experiment).runs.keys()
        for trial in told:
            if present.isdisjoint(trial.runs):
                del self.all[trial.number]
                self._begins = True
            elif (now := self.result(trial, results)) and now != trial.told:
                self._record.add(now)
                self._begins = True

    def begin(self, results: Mapping[str, RunResult]) -> None:
        """Give the sampler the runs that it has not suggested and that have ended, the first number first."""
        if self._begins:
            self._begin()
        ids = self.ids
        others = sorted(results.keys() - ids, key=lambda id_: results[id_].folder.number)
        for folder in [results[id_].folder for id_ in others]:
            point = self._space.point(folder.params, folder.id)
            if point is None or folder.id in ids:
                continue
            trial = self._trial(point, given=True)
            if ids.isdisjoint(trial.runs) and (now := self.result(trial, results)):
                self._add(trial)
                self.tell(now)
                ids.update(trial.runs)

    def revalue(self, results: Mapping[str, RunResult]) -> None:
        """Take the values of other metrics, if goals are others now: what has none does not count any more."""
        before = self._record.begin.facts.get("goals", []) if self._record.begin else []
        if [goal.partition(":")[2] for goal in before] == [goal.metric for goal in self._goals]:
            return
        for trial in [trial for trial in self.all.values() if trial.told]:
            if now := self.result(trial, results):
                self._record.add(now)
            else:
                del self.all[trial.number]
        self._begins = True

    def reopen(self, ids: Collection[str]) -> None:
        """Forget what became of runs that are to be executed again."""
        for trial in [each for each in self.all.values() if each.told and not set(ids).isdisjoint(each.runs)]:
            trial.told = None
            self.open[trial.number] = trial
            self._begins = True
        self.open = dict(sorted(self.open.items()))

    def give(self, point: Point) -> Trial:
        """Note a run that nobody has suggested; the sampler sees it once it has a result."""
        trial = self._trial(point, given=True)
        self._add(trial)
        return trial

    def ask(self) -> Trial | None:
        """Let the sampler suggest a run, and note that; None if it has nothing left.

        `write` has to come before the run is executed.
        """
        if self._sampler is None:
            self._sampler = self._repeated()
        if self._sampler.is_exhausted:
            return None
        number = self._record.next_number
        trial = self._trial(self._sampler.ask(number))
        self._add(trial)
        if saved := self._sampler.save():
            self._record.add(saved)
        return trial

    def tell(self, told: Tell) -> None:
        """Note what became of a trial, and let the sampler know."""
        self._record.add(told)
        del self.open[told.trial]
        if self._sampler:
            self._sampler.take(self._record.trials[told.trial], told)

    def write(self) -> None:
        """Write all that was noted, so that a kill does not undo it.

        Raises:
            StorageError: It is not there.
        """
        self._record.write()

    def sync(self) -> None:
        """Write all that was noted, so that a power failure does not undo it.

        Raises:
            StorageError: It is not there.
        """
        self._record.sync()

    def close(self) -> None:
        """Close the record."""
        self._record.close()

    def result(
        self, trial: Trial, results: Mapping[str, RunResult], in_progress: Collection[str] = ()
    ) -> Tell | None:
        """Return what became of a trial, None if some of its runs have not ended.

        Raises:
            InvalidArgumentError: A completed run does not have the metric of a goal.
        """
        if any(id_ not in results or id_ in in_progress for id_ in trial.runs):
            return None
        runs = [results[id_] for id_ in trial.runs]
        statuses = {run.status for run in runs}
        if any(status.is_due or status.is_in_progress for status in statuses):
            return None
        if not statuses <= {Status.COMPLETED, Status.PRUNED}:
            return told(trial, "fail")
        values = [statistics.fmean(goal_value(run, goal) for run in runs) for goal in self._goals]
        if Status.PRUNED in statuses:
            epochs = max(run.epochs[-1].epoch if run.epochs else 0 for run in runs)
            return told(trial, "pruned", [value for value in values if math.isfinite(value)], epochs)
        return told(trial, "complete", values)

    def _trial(self, point: Mapping[str, Any], *, given: bool = False) -> Trial:
        ids = [identity(run._asdict()) for run in self._space.runs(point)]
        return Trial(self._record.next_number, point, ids, given)

    def _add(self, trial: Trial) -> None:
        self._record.add(Ask(trial.number, trial.point, trial.runs, trial.given))
        self.all[trial.number] = self.open[trial.number] = self._record.trials[trial.number]

    def _begin(self) -> None:
        """Let a sampler begin with all that is there."""
        self._record.add(Begin(self._facts, list(self.all), self._record.num_suggested))
        self._sampler, self._begins = None, False

    def _repeated(self) -> Sampler:
        """Return a sampler that has suggested and seen all that the record has."""
        for _ in range(2):
            sampler = Sampler(self._space, self._goals, *self._options)
            try:
                sampler.replay(self._record)
            except DifferentError:
                if any(not event.given for event in self._record.since if isinstance(event, Ask)):
                    why = "it has another seed, or none, or is another one or of another version"
                    number = counted(len(self.all), "run")
                    self.sentences.append(f"! {_REPEATED} ({why}): it goes on from {number}")
                self._begin()
            else:
                return sampler
        raise AssertionError("nothing is asked for again")

    def _is_of_space(self, trial: Trial) -> bool:
        if trial.told and trial.told.state == "complete" and len(trial.told.values) != len(self._goals):
            return False
        return self._space.has(trial.point) and self._trial(trial.point).runs == list(trial.runs)


def told(trial: Trial, state: State, values: Sequence[float] = (), epochs: int = 0) -> Tell:
    """Return what became of a trial; one that has come to its end without finite values has failed."""
    if state == "complete" and not all(map(math.isfinite, values)):
        state, values = "fail", ()
    return Tell(trial.number, state, list(values), epochs)


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

"""The search of `AskTell`: a user's loop asks for runs, starts them and tells their values."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runmanager.errors import InvalidArgumentError
from runmanager.goal import Goal
from runmanager.nested import flat, mapping_of
from runmanager.outcome import Status
from runmanager.run import Run
from runmanager.search.optuna_sampler import TrialResult
from runmanager.search.search import Decision
from runmanager.search.searching import Searching, has_result
from runmanager.search.trials import Trial, Trials, goal_value, result_of
from runmanager.storage import folder_names
from runmanager.storage.folders import Experiment, RunFolder
from runmanager.storage.identity import identity
from runmanager.storage.run_state import RunResult, read_run
from runmanager.storage.run_trials import RunTrials, ToldValue, read_trials, write_run
from runmanager.wording import printable

_EXAMPLE = "tell(run, loss.item())"


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The result of a run started by `AskTell.start()`.

    Attributes:
        run: The run.
        status: The status of the run: "completed", "failed" and so on.
        error: The reason why the run did not complete, in one line; "" for a completed run.
        values: The values of the goals, in their order; NaN for a missing value.
        metrics: The metrics of the last epoch, and the results of the whole run.

    Example:
        >>> result = SearchResult("run", Status.COMPLETED, "", (0.25,), {"loss": 0.25})
        >>> result.value, result.status
        (0.25, <Status.COMPLETED: 'completed'>)
        >>> result
        <SearchResult of run: completed, value 0.25>
    """

    run: Run
    status: Status
    error: str
    values: tuple[float, ...]
    metrics: Mapping[str, float]

    def __repr__(self) -> str:
        values = ", ".join(f"{value:g}" for value in self.values)
        ended = self.error or f"value{'s' if len(self.values) > 1 else ''} {values}"
        return f"<SearchResult of {printable(str(self.run))}: {self.status}, {ended}>"

    @property
    def value(self) -> float:
        """The value of the first goal; NaN if it is missing."""
        return self.values[0]


class Asking(Searching):
    """Suggests a run on each `ask`; the runs that the loop starts become due.

    A run is open from `ask` to `tell`. Meanwhile the loop may start the run, which makes the run due, and
    receive the result. The received result counts, unless the loop tells another value before its next call.
    """

    experiment: Experiment
    """The experiment, to which `ask` adds runs."""
    _asked_for: dict[str, Run]  # identity -> open run; the dicts below have the same kind of keys
    _waiting: list[int]  # trials without a result, which the next calls of `ask` return
    _new: dict[str, Run]  # started runs whose execution has not begun
    _due: dict[str, Run]  # started runs without a result
    _taken: dict[str, RunResult]  # results that the loop has received and may still override
    _num_asked: int
    _has_feedback: bool  # whether the loop has told a value or started a run
    _sentences: list[str]  # sentences to print

    def open(
        self, experiment: Experiment, results: Mapping[str, RunResult], changed: Collection[str] = ()
    ) -> None:
        """Load the trials of earlier loops.

        Args:
            experiment: The experiment with the runs; new runs are added to the experiment.
            results: The results of the runs of these axes, by identity.
            changed: The identities of ended runs to execute again.
        """
        trials = self._read(experiment)
        for id_ in changed:
            trials.told.pop(id_, None)
        ended = {
            id_: result
            for id_, result in results.items()
            if id_ not in changed
            and (trials.is_told(result) or (has_result(result) and has_values(result, self._goals)))
        }
        self._num_before = trials.num_asked
        trials.begin(ended)
        for trial in trials.all.values():
            if result := trials.result(trial, ended):
                trials.tell(trial, result)
            self._add_seconds(trial, results)
        self._asked_for, self._new, self._due, self._taken = {}, {}, {}, {}
        self._waiting = [trial.number for trial in trials.open]
        self.experiment, self._trials = experiment, trials
        self._num_asked, self._has_feedback, self._sentences = 0, False, []

    def close(self) -> None:
        """Drop the loop's state; all persistent data are stored with the runs."""
        self._trials = None

    @property
    def is_open(self) -> bool:
        """Whether the trials are loaded."""
        return self._trials is not None

    def sentences(self) -> Sequence[str]:
        """Return the new sentences since the last call."""
        sentences, self._sentences = self._sentences, []
        return sentences

    @property
    def num_due(self) -> int:
        """The number of started runs whose result the loop has not received."""
        return len(self._due)

    def ask(self, params: object = None) -> Run | None:
        """Return the next run, or the run of a setting from the loop; None if there is no such run."""
        trials = self._opened
        self.settle()
        run = self._suggested(trials) if params is None else self._run_of(trials, params)
        self._num_asked += run is not None
        if run is None and params is None and self._num_asked > 1 and not self._has_feedback:
            rule = f"{self._num_asked:,} runs were asked for and none was told: the sampler learns nothing"
            self._sentences.append(f"! {rule}; write tell(run, value), or start(run)")
        return run

    def tell(self, run: Run, value: object) -> None:
        """Record the value of a run; a second value is refused."""
        trials, id_ = self._opened, self._id_of(run)
        if id_ in self._due:
            raise InvalidArgumentError([f"{run!r} is being executed: wait() for it, then tell its value"])
        values = self._checked(value)
        folder = self.experiment.runs[id_]
        result = self._taken.pop(id_, None) or read_run(folder)
        numbers = [number if math.isfinite(number) else None for number in values]
        told_value = ToldValue(
            result.attempts, {goal.metric: n for goal, n in zip(self._goals, numbers, strict=True)}
        )
        write_run(folder, RunTrials(read_trials(folder).trials, told_value))
        trials.told[id_] = told_value
        del self._asked_for[id_]
        for trial in _trials_of(trials, id_):
            trials.tell(trial, result_of(values))
            self._add_seconds(trial, {id_: result})

    def start(self, run: Run) -> None:
        """Make a run due."""
        id_ = self._id_of(run)
        if id_ in self._due:
            raise InvalidArgumentError([f"{run!r} is being executed: start each run once"])
        self._taken.pop(id_, None)  # an earlier result does not count, as the run is executed again
        self._due[id_] = self._new[id_] = self._asked_for[id_]

    def take(self, run: Run, result: RunResult) -> SearchResult:
        """Return the result of a due run to the loop; the result counts from the loop's next call on."""
        id_ = result.folder.id
        self._due.pop(id_)
        self._new.pop(id_, None)
        self._taken[id_] = result
        return _search_result(run, result, self._goals)

    def take_back(self, ended: Collection[str]) -> None:
        """Make due runs that were stopped before their end available to `ask` again."""
        for id_ in self._due.keys() - ended:
            self._waiting += [trial.number for trial in _trials_of(self._opened, id_)]
            del self._asked_for[id_], self._due[id_]
        self._waiting.sort()
        self._new = {}

    def settle(self) -> None:
        """Report to the sampler the results that the loop has received and not overridden with `tell`.

        Raises:
            InvalidArgumentError: A completed run lacks the metric of a goal.
        """
        for id_, result in list(self._taken.items()):
            self._count(self._opened, id_, result)

    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Do nothing, as the loop decides which runs are due."""

    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:
        """Return the runs that the loop has started."""
        new, self._new = self._new, {}
        return Decision(
            [id_ for id_ in new if id_ in results], new=[run for id_, run in new.items() if id_ not in results]
        )

    def _suggested(self, trials: Trials) -> Run | None:
        while True:
            if self._waiting:
                trial = trials.all[self._waiting.pop(0)]
            elif not self.num_more() or (suggested := trials.ask()) is None:
                return None
            else:
                trial = suggested
                self._keep(trial)
            if run := self._handed_out(trials, trial):
                return run

    def _run_of(self, trials: Trials, params: object) -> Run | None:
        """Return the run of a setting; None if the run is open, or has a result."""
        mapping = params._asdict() if isinstance(params, Run) else mapping_of(params)
        if mapping is None:
            raise InvalidArgumentError([f"ask() takes a setting, as ask({{'lr': 0.01}}), got {params!r:.60}"])
        point = self.space.point_of_setting(dict(_by_name(mapping)))
        (run,) = self.space.runs(point)
        id_ = identity(run._asdict())
        before = _trials_of(trials, id_)
        trial = before[0] if before else None
        if trial is None and (id_ in trials.ids or trials.other(id_)):
            return None
        if trial is None:
            trial = trials.give(point)
            self._keep(trial)
        elif trial.number in self._waiting:
            self._waiting.remove(trial.number)
        return self._handed_out(trials, trial)

    def _keep(self, trial: Trial) -> None:
        """Store a trial with its run; the folder of the run is created."""
        (run,) = self.space.runs(trial.point)
        if folder := self.experiment.find(run._asdict()):
            write_run(folder, read_trials(folder).adding([trial.stored]))
        else:
            names = folder_names.telling_first(self.axes, self.experiment.design.repeating(self.axes))
            self.experiment.add(run._asdict(), names, {}, [trial.stored])

    def _handed_out(self, trials: Trials, trial: Trial) -> Run | None:
        """Return the run of a trial; None if its setting has a result, or if its run is open."""
        (id_,) = trial.runs
        if result := self._result_of(trials, id_):
            trials.tell(trial, result)
        elif id_ not in self._asked_for:  # otherwise, the first trial of this run reports the result
            (self._asked_for[id_],) = self.space.runs(trial.point)
            return self._asked_for[id_]
        return None

    def _result_of(self, trials: Trials, id_: str) -> TrialResult | None:
        of_trials = (trial.result for trial in trials.all.values() if id_ in trial.runs and trial.result)
        return next(of_trials, None) or trials.other(id_)

    def _count(self, trials: Trials, id_: str, result: RunResult) -> None:
        """Report a result; a killed run has no result, and the loop may start it again."""
        for trial in _trials_of(trials, id_):
            try:
                now = trials.result(trial, {id_: result})
            except InvalidArgumentError as error:
                raise InvalidArgumentError([f"{error}, or tell() its value"]) from error
            if now:
                trials.tell(trial, now)
                self._add_seconds(trial, {id_: result})
                self._asked_for.pop(id_, None)
        self._taken.pop(id_, None)

    def _id_of(self, run: object) -> str:
        """Return the identity of an open run."""
        id_ = identity(run._asdict()) if isinstance(run, Run) else ""
        self._has_feedback = True
        if id_ not in self._asked_for:
            rule = "was not asked for in this block, or has its value"
            raise InvalidArgumentError([f"{run!r:.200} {rule}: tell once what ask() returned"])
        return id_

    def _checked(self, value: object) -> Sequence[float]:
        num = len(self._goals)
        entries: Sequence[Any] = (
            value
            if isinstance(value, list | tuple) and num > 1
            else [value] * num
            if value is None
            else [value]
        )
        try:
            values = [float("nan" if entry is None else entry) for entry in entries]
        except (TypeError, ValueError) as error:
            rule = f"tell() takes a number, or None for a run that failed, got {value!r:.60}"
            raise InvalidArgumentError([f"{rule}: write {_EXAMPLE}"]) from error
        if len(values) != num:
            goals = ", ".join(map(str, self._goals))
            raise InvalidArgumentError([f"tell() takes a value for each goal ({goals}), got {value!r:.60}"])
        return values

    @property
    def _opened(self) -> Trials:
        assert self._trials
        return self._trials


def _by_name(setting: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the names and values of a setting, which may be nested or paired as in a grid."""
    for key, value in flat(setting):
        if isinstance(key, tuple) and isinstance(value, list | tuple) and len(key) == len(value):
            yield from zip(key, value, strict=True)
        else:
            yield key, value


def has_values(result: RunResult, goals: Sequence[Goal]) -> bool:
    """Whether a completed run has the metric of every goal; other runs need no metric."""
    names = {name for record in result.epochs for name in record.metrics} | result.summary.keys()
    return result.status is not Status.COMPLETED or names.issuperset(goal.metric for goal in goals)


def _search_result(run: Run, result: RunResult, goals: Sequence[Goal]) -> SearchResult:
    values = [math.nan] * len(goals)
    if result.status.is_success and has_values(result, goals):
        values = [goal_value(result, goal) for goal in goals]
    last = result.epochs[-1].metrics if result.epochs else {}
    return SearchResult(run, result.status, result.error, tuple(values), {**last, **result.summary})


def _trials_of(trials: Trials, id_: str) -> list[Trial]:
    """Return the trials of a run that have no result."""
    return [trial for trial in trials.open if id_ in trial.runs]

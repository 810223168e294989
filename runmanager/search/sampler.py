"""An Optuna study in memory, whose sampler suggests points of a space."""

import copy
import logging
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runmanager.errors import GridError, MissingExtraError, first_line
from runmanager.goal import Goal
from runmanager.nested import Grid
from runmanager.ranges import IntRange
from runmanager.search.memory import Memory
from runmanager.search.record import Ask, Record, Saved, Tell, Trial
from runmanager.search.space import Point, SearchAxis, SearchSpace

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.storages import InMemoryStorage
    from optuna.study import Study
    from optuna.trial import TrialState

SECONDS = 1.0
"""How long a next start may take to repeat what was suggested since the memory of a sampler was saved."""

_NAME = "search"  # of the study
_CHOICES = (str, int, float, bool, type(None))  # that Optuna takes


class DifferentError(Exception):
    """A sampler has not suggested again what it did before."""


def space_for(
    params: Grid, goals: Sequence[Goal], sampler: "BaseSampler | None", repeats: Sequence[str] = ()
) -> SearchSpace:
    """Return the space of the axes that are searched, once it is sure that this sampler can do it.

    Raises:
        GridError: The axes cannot be searched, or not by this sampler; with all problems.
        MissingExtraError: Optuna, or a package that the sampler needs, is not installed.
    """
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        needs = "OptunaSearch needs optuna: pip install 'torch-runmanager[optuna]'"
        raise MissingExtraError([needs]) from error
    space = SearchSpace(params, repeats)
    space.check()
    _check_sampler(space, goals, sampler)
    return space


def _check_sampler(space: SearchSpace, goals: Sequence[Goal], sampler: "BaseSampler | None") -> None:
    """Make sure that a sampler of the user suggests points of these axes; Optuna's default does.

    Raises:
        GridError: It does not.
        MissingExtraError: A package that it needs is not installed.
    """
    if sampler is None:
        return
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # whatever it warns of, it does so when it is used
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probe = Sampler(space, goals, sampler, None)
            for number in range(2):  # some begin after a first result
                probe.ask(number)
                probe.tell(Tell(number, "complete", [0.0] * len(goals)))
    finally:
        logging.set_verbosity(before)


class Sampler:
    """What suggests the next point, from the points before and their values.

    Args:
        space: The axes.
        goals: What the values are of, and which of them are good.
        sampler: That of Optuna, which is copied; None is Optuna's default, with `seed`.
        seed: Makes the default repeatable.

    Raises:
        GridError: The sampler of Optuna fails, here or in a method.
        MissingExtraError: A package that it needs is not installed.
    """

    def __init__(
        self, space: SearchSpace, goals: Sequence[Goal], sampler: "BaseSampler | None", seed: int | None
    ) -> None:
        self._axes = {axis.name: axis for axis in space.axes}
        self._goals = goals
        self._distributions = {name: _distribution(axis) for name, axis in self._axes.items()}
        self._name = type(sampler).__name__
        self._storage = _storage(goals)
        self._study_id = self._storage.get_study_id_from_name(_NAME)
        with self._translating():
            self._study = _study(self._storage, copy.deepcopy(sampler) or _default(seed))
        self._memory = Memory(self._study.sampler)
        self._seconds = 0.0  # that suggestions took whose end is not saved
        self._open: dict[int, int] = {}  # trials that are not told: their numbers here -> in the study
        self.is_exhausted = False
        """Whether the sampler has nothing left to suggest, as after the last point of a grid."""
        vars(self._study)["stop"] = self._stop

    def ask(self, number: int) -> Point:
        """Suggest a point; `number` is what the trial is called from now on."""
        begin = time.perf_counter()
        with self._translating():
            trial = self._study.ask(self._distributions)
        self._seconds += time.perf_counter() - begin
        self._open[number] = trial.number
        return {name: self._value(name, trial.params[name]) for name in self._axes}

    def tell(self, told: Tell) -> None:
        """Say what became of a trial."""
        with self._translating():
            self._tell(self._open.pop(told.trial), told)

    def _tell(self, number: int, told: Tell) -> None:
        from optuna.trial import TrialState

        state = self._state(told)
        if state is TrialState.COMPLETE:
            self._study.tell(number, list(told.values))
            return
        if state is TrialState.PRUNED:
            id_ = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
            self._storage.set_trial_intermediate_value(id_, told.epochs, next(iter(told.values), math.nan))
        self._study.tell(number, state=state)

    def _state(self, told: Tell) -> "TrialState":
        """Return what Optuna calls it; of several goals it takes no value of a pruned trial, which fails."""
        from optuna.trial import TrialState

        if told.state == "pruned" and len(self._goals) > 1:
            return TrialState.FAIL
        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "fail": TrialState.FAIL}
        return states[told.state]

    def save(self) -> Saved | None:
        """Return what it has in memory beside the trials, None if that is not due, or cannot be saved."""
        if self._seconds < SECONDS:
            return None
        self._seconds = 0.0
        return self._memory.save()

    def take(self, trial: Trial, told: Tell) -> None:
        """Take what became of a trial, also of one that it has not suggested."""
        if trial.number in self._open:
            self.tell(told)
        else:
            self._add(replace(trial, told=told))

    def give(self, trial: Trial) -> None:
        """Add a trial that it has not suggested, or not in this way."""
        if trial.told is None:
            params = {name: self._choice(name, value) for name, value in trial.point.items()}
            self._study.enqueue_trial(params)
            self._open[trial.number] = self._study.ask(self._distributions).number
        else:
            self._add(trial)

    def replay(self, record: Record) -> None:
        """Do again what was done since a sampler began, and before that give it what was there.

        What came before its memory was saved is given to it too.

        Raises:
            DifferentError: It suggests something else than it did, or the record has what no sampler did.
        """
        assert record.begin
        start, saved = self._newest(record)
        for _ in range(0 if saved else record.begin.skip):
            _study(_storage(self._goals), self._study.sampler).ask(self._distributions)
        before, after = record.since[:start], record.since[start:]
        later = {event.trial for event in after if isinstance(event, Tell)}
        trials = {
            number: replace(trial, told=None) if number in later else trial
            for number, trial in record.trials.items()
        }
        for number in record.begin.trials:
            (self._add if saved else self.give)(trials[number])
        for event in before:
            is_asked = isinstance(event, Ask) and not event.given
            if is_asked or (isinstance(event, Tell) and self._is_new(trials[event.trial], record)):
                self._add(trials[event.trial])
        if saved:
            self._memory.restore(saved)
        for event in after:
            self._repeat(event, record)

    def _repeat(self, event: Ask | Tell, record: Record) -> None:
        """Do again what an event of the record says."""
        if isinstance(event, Ask):
            if not event.given and self.ask(event.trial) != event.point:
                raise DifferentError
        elif self._is_new(record.trials[event.trial], record):
            self.give(record.trials[event.trial])
        elif event.trial in self._open:
            self.tell(event)
        else:
            raise DifferentError

    def _newest(self, record: Record) -> tuple[int, Saved | None]:
        """Return what was saved before the last suggestion, which shows whether it is repeated, and where."""
        last = max(
            (i for i, event in enumerate(record.since) if isinstance(event, Ask) and not event.given),
            default=-1,
        )
        for start, saved in reversed(record.saved):
            if start <= last and self._memory.can_restore(saved, len(self._goals)):
                return start, saved
        return 0, None

    def _is_new(self, trial: Trial, record: Record) -> bool:
        """Whether a sampler gets a trial with its result, which it did not suggest and did not begin with."""
        assert record.begin
        return trial.given and trial.number not in record.begin.trials

    def _add(self, trial: Trial) -> None:
        """Add a trial as it is, with its result or without, and let the sampler suggest nothing."""
        from optuna.trial import TrialState, create_trial

        told = trial.told or Tell(trial.number, "fail")
        state = self._state(told) if trial.told else TrialState.RUNNING
        is_pruned = state is TrialState.PRUNED
        value = next(iter(told.values), math.nan)
        self._study.add_trial(
            create_trial(
                state=state,
                params={name: self._choice(name, value) for name, value in trial.point.items()},
                distributions=self._distributions,
                values=list(told.values) if told.state == "complete" else None,
                value=value if is_pruned and not math.isnan(value) else None,
                intermediate_values={told.epochs: value} if is_pruned else None,
            )
        )
        if trial.told is None:
            self._open[trial.number] = self._storage.get_n_trials(self._study_id) - 1

    def _stop(self) -> None:
        self.is_exhausted = True

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Say whose exception it is that a sampler raises."""
        try:
            yield
        except ImportError as error:
            package = error.name or first_line(error)
            raise MissingExtraError([f"{self._name} needs {package}: pip install {package}"]) from error
        except Exception as error:
            cause = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
            fact = f"{self._name} cannot search these axes: {cause}"
            raise GridError([f"{fact}; give OptunaSearch another sampler"]) from error

    def _value(self, name: str, choice: Any) -> Any:
        """Return what a point has for what Optuna suggests."""
        axis = self._axes[name]
        if axis.range is not None:
            return choice
        return axis.value(int(self._distributions[name].to_internal_repr(choice)))

    def _choice(self, name: str, value: Any) -> Any:
        """Return what Optuna has for a value of a point."""
        axis = self._axes[name]
        if axis.range is not None:
            return value
        index = axis.index(value)
        assert index is not None
        return self._distributions[name].to_external_repr(index)


def _default(seed: int | None) -> "BaseSampler":
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed)


def _storage(goals: Sequence[Goal]) -> "InMemoryStorage":
    """Make a storage in memory with an empty study, which Optuna would log."""
    from optuna.storages import InMemoryStorage
    from optuna.study import StudyDirection

    storage = InMemoryStorage()
    directions = [
        StudyDirection.MAXIMIZE if goal.is_larger_better else StudyDirection.MINIMIZE for goal in goals
    ]
    with _unlogged(logging.getLogger(InMemoryStorage.__module__)):
        storage.create_new_study(directions, _NAME)
    return storage


def _study(storage: "InMemoryStorage", sampler: "BaseSampler") -> "Study":
    from optuna.study import Study

    return Study(_NAME, storage, sampler)


@contextmanager
def _unlogged(logger: logging.Logger) -> Iterator[None]:
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _distribution(axis: SearchAxis) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    limits = axis.range
    if limits is None:
        values = [row[0] for row in axis.rows]
        # others have no name that Optuna knows: it gets their indexes
        is_plain = len(axis.names) == 1 and all(type(value) in _CHOICES for value in values)
        is_plain = is_plain and len(set(values)) == len(values)
        return CategoricalDistribution(values if is_plain else range(len(values)))
    if isinstance(limits, IntRange):
        return IntDistribution(limits.low, limits.high, log=limits.log)
    return FloatDistribution(float(limits.low), float(limits.high), log=limits.is_log)

"""Adapter of Optuna's samplers: a study in memory, whose sampler suggests points of a space."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from runmanager.core.experiment import without_text
from runmanager.core.goal import Goal
from runmanager.core.ranges import IntRange
from runmanager.errors import GridError, MissingExtraError, first_line
from runmanager.search.optuna_pruner import silent
from runmanager.search.optuna_search import OptunaSearch
from runmanager.search.space import Point, SearchAxis, SearchSpace

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

_NAME = "search"  # name of the study
_CHOICES = (str, int, float, bool, type(None))  # types of choices that Optuna stores
_CANNOT_RESUME = ("BruteForceSampler", "GridSampler", "QMCSampler")


@dataclass(frozen=True)
class TrialResult:
    """The state of a trial and its values."""

    state: Literal["COMPLETE", "PRUNED", "FAIL"]
    values: Sequence[float] = ()  # values of the goals, if the trial is complete
    # epoch -> value of the goal, if the trial was pruned
    curve: Mapping[int, float] = field(default_factory=dict)


def check_search(space: SearchSpace, goals: Sequence[Goal], search: OptunaSearch) -> None:
    """Check that there is something to search, and that the sampler supports these axes."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        needs = "OptunaSearch needs optuna: pip install 'torch-runmanager[optuna]'"
        raise MissingExtraError(needs) from error
    if not space.axes:
        rule = "search= has nothing to choose from, as every axis has one value"
        raise GridError(f"{rule}: write a range, as LogUniform(1e-5, 1e-1), or several values")
    if search.sampler is None:
        return
    with silent(logging.ERROR), warnings.catch_warnings():  # the search repeats the warnings when it runs
        warnings.simplefilter("ignore")
        sampler = Sampler(space, goals, search)
        if sampler.name in _CANNOT_RESUME:
            rule = f"{sampler.name} cannot resume, as its position is not stored with runs"
            raise GridError(f"{rule}: give OptunaSearch another sampler, as optuna.samplers.RandomSampler")
        for number in range(2):
            sampler.ask(number)
            sampler.tell(number, TrialResult("COMPLETE", [0.0] * len(goals)))


def sampler_name(search: OptunaSearch) -> str:
    """Return the name of the sampler's class."""
    make = search.sampler
    if make is None or isinstance(make, type):
        return make.__name__ if make else "TPESampler"
    return type(make(seed=0)).__name__


class Sampler:
    """Suggests the next point, from earlier points and their values."""

    def __init__(self, space: SearchSpace, goals: Sequence[Goal], search: OptunaSearch) -> None:
        import optuna

        self._axes = {axis.name: axis for axis in space.axes}
        self._distributions = {name: _distribution(axis) for name, axis in self._axes.items()}
        self._search = search
        self._numbers: dict[int, int] = {}  # number of a trial -> its number in the study
        self._storage = optuna.storages.InMemoryStorage()
        self.name = "sampler="
        with self._translating(), silent():
            sampler = self._new_sampler(0)
            self.name = type(sampler).__name__
            directions = ["maximize" if goal.is_larger_better else "minimize" for goal in goals]
            self._study = optuna.create_study(
                storage=self._storage, sampler=sampler, study_name=_NAME, directions=directions
            )

    def ask(self, number: int) -> tuple[Point, Mapping[str, Any]]:
        """Suggest a point for the trial with this number; return the point with the sampler's attributes."""
        with self._translating():
            self._study.sampler = self._new_sampler(number)
            trial = self._study.ask(self._distributions)
            attributes = self._study.get_trials(deepcopy=False)[trial.number].system_attrs
        self._numbers[number] = trial.number
        return {name: self._value(name, trial.params[name]) for name in self._axes}, without_text(attributes)

    def add(self, number: int, point: Point, attributes: Mapping[str, Any]) -> None:
        """Add a trial of an earlier launch, without its result."""
        self._numbers[number] = len(self._study.get_trials(deepcopy=False))
        self._add("RUNNING", point, system_attrs=dict(attributes))

    def add_ended(self, point: Point, result: TrialResult) -> None:
        """Add a run whose point the sampler has not suggested."""
        self._add(self._state(result), point, values=result.values or None, intermediate_values=result.curve)

    def tell(self, number: int, result: TrialResult) -> None:
        """Report the result of a trial."""
        from optuna.trial import TrialState

        index, state = self._numbers[number], self._state(result)
        with self._translating():
            if result.curve and state == "PRUNED":
                study_id = self._storage.get_study_id_from_name(_NAME)
                id_ = self._storage.get_trial_id_from_study_id_trial_number(study_id, index)
                for epoch, value in result.curve.items():
                    self._storage.set_trial_intermediate_value(id_, epoch, value)
            self._study.tell(index, list(result.values) or None, state=TrialState[state])

    def _state(self, result: TrialResult) -> str:
        # Optuna accepts no intermediate values for several goals
        is_lost = result.state == "PRUNED" and len(self._study.directions) > 1
        return "FAIL" if is_lost else result.state

    def _add(self, state: str, point: Point, **content: Any) -> None:
        from optuna.trial import TrialState, create_trial

        # Optuna's values of the axes for the values of the point
        params = {
            name: self._distributions[name].to_external_repr(value) if self._axes[name].range is None else value
            for name, value in point.items()
        }
        with self._translating():
            self._study.add_trial(
                create_trial(
                    state=TrialState[state], params=params, distributions=self._distributions, **content
                )
            )

    def _new_sampler(self, number: int) -> "BaseSampler":
        """Create the sampler of a trial."""
        import numpy as np
        from optuna.samplers import BaseSampler, TPESampler

        seed = self._search.seed
        # with a sum of seed and number, searches with consecutive seeds would get shifted copies of one
        # sequence
        sequence = np.random.SeedSequence(None if seed is None else [seed, number])
        make: Any = self._search.sampler or TPESampler
        sampler = make(seed=int(sequence.generate_state(1)[0]))
        if not isinstance(sampler, BaseSampler):
            raise TypeError(f"it returned {sampler!r:.60}, not a sampler")
        return sampler

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Translate an exception of a sampler, naming the sampler."""
        try:
            yield
        except ImportError as error:
            package = error.name or first_line(error)
            raise MissingExtraError(f"{self.name} needs {package}: pip install {package}") from error
        except Exception as error:
            cause = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
            fact = f"{self.name} cannot search these axes: {cause}"
            raise GridError(f"{fact}; give OptunaSearch another sampler") from error

    def _value(self, name: str, choice: Any) -> Any:
        """Return the value of a point for Optuna's value of an axis."""
        is_range = self._axes[name].range is not None
        return choice if is_range else int(self._distributions[name].to_internal_repr(choice))


def _distribution(axis: SearchAxis) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    limits = axis.range
    if limits is None:
        values = [row[0] for row in axis.rows]
        # Optuna does not store other types of values, so it gets the indexes of the values
        is_plain = len(axis.names) == 1 and all(type(value) in _CHOICES for value in values)
        is_plain = is_plain and len(set(values)) == len(values)
        return CategoricalDistribution(values if is_plain else range(len(values)))
    if isinstance(limits, IntRange):
        return IntDistribution(limits.low, limits.high, log=limits.log)
    return FloatDistribution(float(limits.low), float(limits.high), log=limits.is_log)

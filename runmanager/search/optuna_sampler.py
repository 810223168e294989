"""Adapter of Optuna's samplers: a study in memory, whose sampler suggests points of a space."""

import copy
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from runmanager.errors import GridError, MissingExtraError, first_line
from runmanager.goal import Goal
from runmanager.nested import Grid
from runmanager.ranges import IntRange
from runmanager.search.optuna_search import OptunaSearch, is_sampler
from runmanager.search.space import Point, SearchAxis, SearchSpace
from runmanager.storage.run_trials import without_text

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.storages import InMemoryStorage
    from optuna.study import Study

_NAME = "search"  # name of the study
_CHOICES = (str, int, float, bool, type(None))  # types of choices that Optuna stores


@dataclass(frozen=True)
class TrialResult:
    """The state of a trial and its values."""

    state: Literal["complete", "pruned", "fail"]
    values: Sequence[float] = ()  # values of the goals, if the trial is complete
    # epoch -> value of the goal, if the trial was pruned
    curve: Mapping[int, float] = field(default_factory=dict)


def space_for(
    params: Grid, goals: Sequence[Goal], search: OptunaSearch, repeats: Sequence[str] = ()
) -> SearchSpace:
    """Return the space of the searched axes; check that the sampler supports it.

    Raises:
        GridError: The axes cannot be searched, or the sampler does not support these axes; the message lists
            all problems.
        MissingExtraError: Optuna, or a package that the sampler needs, is not installed.
    """
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        needs = "OptunaSearch needs optuna: pip install 'torch-runmanager[optuna]'"
        raise MissingExtraError([needs]) from error
    space = SearchSpace(params, repeats)
    space.check()
    if search.sampler is not None:
        _try(space, goals, search)
    return space


def sampler_name(search: OptunaSearch) -> str:
    """Return the name of the sampler's class."""
    if search.sampler is None or isinstance(search.sampler, type):
        return search.sampler.__name__ if search.sampler else "TPESampler"
    return type(search.sampler if is_sampler(search.sampler) else search.sampler(seed=0)).__name__


def _try(space: SearchSpace, goals: Sequence[Goal], search: OptunaSearch) -> None:
    """Let the user's sampler suggest twice, as some samplers fail only after a first result."""
    from optuna import logging
    from optuna.samplers import GridSampler, QMCSampler

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # the search repeats the warnings when it runs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = Sampler(space, goals, search)
            if isinstance(sampler.current, QMCSampler):
                rule = "QMCSampler cannot resume, as its position is not stored with runs"
                raise GridError(
                    [f"{rule}: give OptunaSearch another sampler, as optuna.samplers.RandomSampler"]
                )
            if isinstance(sampler.current, GridSampler) and not is_sampler(search.sampler):
                rule = "GridSampler shuffles its grid by its seed, which differs for each suggestion"
                raise GridError([f"{rule}: write sampler=GridSampler(..., seed=0)"])
            for number in range(2):
                sampler.ask(number)
                sampler.tell(number, TrialResult("complete", [0.0] * len(goals)))
    finally:
        logging.set_verbosity(before)


class Sampler:
    """Suggests the next point, from earlier points and their values.

    A sampler class, or a function of a seed, creates a new sampler for each suggestion. So a suggestion depends
    only on its number and on the earlier trials: the suggestion is the same in every process.

    Args:
        space: The axes.
        goals: The metrics to optimize, and their directions.
        search: The options with the sampler and the seed.
        num_asked: The number of suggestions in earlier launches; it reseeds a sampler instance of the user.

    Raises:
        GridError: The Optuna sampler raises an exception, here or in a method.
        MissingExtraError: A package that the sampler needs is not installed.
    """

    def __init__(
        self, space: SearchSpace, goals: Sequence[Goal], search: OptunaSearch, num_asked: int = 0
    ) -> None:
        self._axes = {axis.name: axis for axis in space.axes}
        self._goals = goals
        self._distributions = {name: _distribution(axis) for name, axis in self._axes.items()}
        self._search = search
        self._name = "sampler="
        self._numbers: dict[int, int] = {}  # number of a trial -> its number in the study
        self._suggested: set[int] = set()
        self.is_exhausted = False
        """Whether the sampler has no further suggestions, for example after the last point of a grid."""
        with self._translating():
            sampler = copy.deepcopy(search.sampler) if is_sampler(search.sampler) else self._new_sampler(0)
            self._name = type(sampler).__name__
            for _ in range(num_asked if is_sampler(search.sampler) else 0):
                self._study_in(_storage(goals), sampler).ask(self._distributions)
            self._storage = _storage(goals)
            self._study = self._study_in(self._storage, sampler)

    @property
    def current(self) -> "BaseSampler":
        """The Optuna sampler of the last suggestion."""
        return self._study.sampler

    def ask(self, number: int) -> tuple[Point, Mapping[str, Any]]:
        """Suggest a point for the trial with this number; return the point with the sampler's attributes."""
        with self._translating():
            if not is_sampler(self._search.sampler):
                self._study.sampler = self._new_sampler(number)
            trial = self._study.ask(self._distributions)
            attributes = self._study.get_trials(deepcopy=False)[trial.number].system_attrs
        self._numbers[number] = trial.number
        self._suggested.add(number)
        return {name: self._value(name, trial.params[name]) for name in self._axes}, without_text(attributes)

    def add(self, number: int, point: Point, attributes: Mapping[str, Any], *, is_suggested: bool) -> None:
        """Add a trial of an earlier launch, or a trial whose point the sampler did not suggest."""
        from optuna.trial import TrialState, create_trial

        with self._translating():
            self._numbers[number] = len(self._numbers)
            self._study.add_trial(
                create_trial(
                    state=TrialState.RUNNING,
                    params={name: self._choice(name, value) for name, value in point.items()},
                    distributions=self._distributions,
                    system_attrs=dict(attributes),
                )
            )
            if is_suggested:
                self._suggested.add(number)

    def tell(self, number: int, result: TrialResult) -> None:
        """Report the result of a trial."""
        from optuna.trial import TrialState

        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "fail": TrialState.FAIL}
        state = states[result.state]
        if state is TrialState.PRUNED and len(self._goals) > 1:
            state = TrialState.FAIL  # Optuna accepts no intermediate values for several goals
        index = self._numbers[number]
        with self._translating():
            study_id = self._storage.get_study_id_from_name(_NAME)
            id_ = self._storage.get_trial_id_from_study_id_trial_number(study_id, index)
            for epoch, value in result.curve.items() if state is TrialState.PRUNED else ():
                self._storage.set_trial_intermediate_value(id_, epoch, value)
            if number in self._suggested:
                self._study.tell(index, list(result.values) or None, state=state)
            else:  # a sampler may raise an exception for a point that it has not suggested
                values = list(result.values) or [value for _, value in sorted(result.curve.items())][-1:]
                is_number = state is not TrialState.FAIL and not any(map(math.isnan, values))
                self._storage.set_trial_state_values(id_, state, values if is_number and values else None)

    def _new_sampler(self, number: int) -> "BaseSampler":
        """Create the sampler of a trial."""
        import numpy as np
        from optuna.samplers import TPESampler

        seed = self._search.seed
        # with a sum of seed and number, searches with consecutive seeds would get shifted copies of one
        # sequence
        sequence = np.random.SeedSequence(None if seed is None else [seed, number])
        make: Any = self._search.sampler or TPESampler
        sampler = make(seed=int(sequence.generate_state(1)[0]))
        if not is_sampler(sampler):
            raise TypeError(f"it returned {sampler!r:.60}, not a sampler")
        return sampler

    def _study_in(self, storage: "InMemoryStorage", sampler: "BaseSampler") -> "Study":
        from optuna.study import Study

        class StoppedStudy(Study):  # type: ignore[misc]  # Optuna is untyped
            """A study that accepts `stop` outside `optimize`, where Optuna's study raises an error."""

            def stop(study) -> None:  # noqa: N805 - `self` is the one around it
                self.is_exhausted = True

        return StoppedStudy(_NAME, storage, sampler)

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Translate an exception of a sampler, naming the sampler."""
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
        """Return the value of a point for Optuna's value of an axis."""
        axis = self._axes[name]
        if axis.range is not None:
            return choice
        return axis.value(int(self._distributions[name].to_internal_repr(choice)))

    def _choice(self, name: str, value: Any) -> Any:
        """Return Optuna's value of an axis for the value of a point."""
        axis = self._axes[name]
        if axis.range is not None:
            return value
        index = axis.index(value)
        assert index is not None
        return self._distributions[name].to_external_repr(index)


def _storage(goals: Sequence[Goal]) -> "InMemoryStorage":
    """Create a storage in memory with an empty study, without Optuna's log line."""
    from optuna.storages import InMemoryStorage
    from optuna.study import StudyDirection

    storage = InMemoryStorage()
    directions = [
        StudyDirection.MAXIMIZE if goal.is_larger_better else StudyDirection.MINIMIZE for goal in goals
    ]
    with _unlogged(logging.getLogger(InMemoryStorage.__module__)):
        storage.create_new_study(directions, _NAME)
    return storage


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
        # Optuna does not store other types of values, so it gets the indexes of the values
        is_plain = len(axis.names) == 1 and all(type(value) in _CHOICES for value in values)
        is_plain = is_plain and len(set(values)) == len(values)
        return CategoricalDistribution(values if is_plain else range(len(values)))
    if isinstance(limits, IntRange):
        return IntDistribution(limits.low, limits.high, log=limits.log)
    return FloatDistribution(float(limits.low), float(limits.high), log=limits.is_log)

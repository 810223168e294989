"""Adapter of Optuna's pruners: a study in memory whose trials are the runs of the grid."""

import copy
import inspect
import logging
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

from runmanager.core.contracts import Pruner
from runmanager.core.goal import Goal
from runmanager.core.outcome import BY_TRAIN, EpochRecord, Outcome, Status
from runmanager.core.state import RunResult
from runmanager.errors import InvalidArgumentError
from runmanager.search.halving import NO_METRIC, SuccessiveHalving, pruned

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.trial import Trial

_NAME = "grid"  # some pruners draw random numbers from the name of the study
_NOTE_NOTHING = ("MedianPruner", "NopPruner", "PercentilePruner", "ThresholdPruner", "WilcoxonPruner")
"""Stateless pruners, for which epochs of earlier launches need no replay."""
_PLAIN = (bool, int, float, str, type(None))


def is_optuna_pruner(value: object) -> "TypeGuard[BasePruner]":
    """Whether a value is a pruner of Optuna, without importing Optuna."""
    module = sys.modules.get("optuna.pruners")
    return module is not None and isinstance(value, module.BasePruner)


def pruner_of(prune: "SuccessiveHalving | BasePruner", goal: Goal | None) -> Pruner:
    """Return the pruner of a grid with this goal."""
    if isinstance(prune, SuccessiveHalving):
        return prune.pruner(goal)
    if goal is None:
        raise InvalidArgumentError(NO_METRIC)
    return OptunaPruner(prune, goal)


class OptunaPruner(Pruner):
    """Asks an Optuna pruner: a run is a trial, an epoch is a step, the goal's metric is the value."""

    def __init__(self, pruner: "BasePruner", goal: Goal) -> None:
        import optuna

        super().__init__(goal, f"{pruner_name(pruner)} by {goal}")
        self._kind = type(pruner).__name__
        self._trials: dict[str, Trial] = {}  # identity of a run -> trial; the dicts below have the same keys
        self._values: dict[str, dict[int, float]] = {}  # run -> epoch -> value reported to the trial
        self._ended: set[str] = set()  # runs whose trial has ended
        self._last: dict[str, tuple[int, float, str]] = {}  # run -> the last epoch, its value, and the answer
        self._states = optuna.trial.TrialState
        with silent():
            self._study = optuna.create_study(
                study_name=_NAME,
                direction="maximize" if goal.is_larger_better else "minimize",
                sampler=optuna.samplers.RandomSampler(seed=0),  # this sampler suggests nothing
                # some pruners have state, and a user may pass the same pruner again
                pruner=copy.deepcopy(pruner),
            )

    def begin(self, results: Iterable[RunResult]) -> None:
        """Create a trial for each run, in order: some pruners sort trials by number."""
        results = list(results)
        for result in results:
            self._begin_trial(result.folder.id)
        for result in sorted(results, key=lambda result: result.status is not Status.COMPLETED):
            for record in result.epochs:
                if self.goal.metric not in record.metrics:
                    continue
                if self._kind in _NOTE_NOTHING:
                    self._report(result.folder.id, record.epoch, self.value(record))
                else:
                    self.should_stop(result.folder.id, record)  # replay, as pruners store attributes
            if result.status is Status.COMPLETED or result.pruned_by in (self.rule, BY_TRAIN):
                self._end_trial(result.folder.id, result.status)

    def should_stop(self, id_: str, record: EpochRecord) -> str:
        """Report the epoch to the run's trial, and ask Optuna once per epoch."""
        value, before = self.value(record), self._last.get(id_)
        if before is not None and before[:2] == (record.epoch, value):
            return before[2]
        self._make_ready(id_, record.epoch)
        self._report(id_, record.epoch, value)
        with silent():
            is_behind = self._trials[id_].should_prune()
        answer = self._kind if is_behind else ""
        self._last[id_] = record.epoch, value, answer
        return answer

    def run_ended(self, outcome: Outcome) -> None:
        """End the trial of a run."""
        self._end_trial(self.slot.id, outcome.status)

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Say what was pruned."""
        return pruned(outcomes)

    def _end_trial(self, id_: str, status: Status) -> None:
        """End the trial of a run unless the run may continue: most pruners compare completed trials."""
        if id_ not in self._trials or id_ in self._ended or status.is_stopped:
            return
        self._ended.add(id_)
        values = self._values[id_]
        value = values[max(values)] if values else math.nan
        with silent():
            if status is Status.PRUNED:  # Optuna uses the last value of a pruned trial
                self._study.tell(self._trials[id_], state=self._states.PRUNED)
            elif status is Status.COMPLETED and not math.isnan(value):
                self._study.tell(self._trials[id_], value)
            else:
                self._study.tell(self._trials[id_], state=self._states.FAIL)

    def _begin_trial(self, id_: str) -> None:
        with silent():
            self._trials[id_] = self._study.ask()
        self._values[id_] = {}
        self._ended.discard(id_)

    def _report(self, id_: str, epoch: int, value: float) -> None:
        self._trials[id_].report(value, epoch)
        self._values[id_][epoch] = value

    def _make_ready(self, id_: str, epoch: int) -> None:
        """Ensure that a run has a trial for its next epoch: a new trial if that epoch was reported before."""
        former = self._values.get(id_, {})
        if id_ in self._trials and id_ not in self._ended and all(number < epoch for number in former):
            return
        self._end_trial(id_, Status.FAILED)
        self._begin_trial(id_)
        for number, value in former.items():
            if number < epoch:
                self._report(id_, number, value)


def pruner_name(pruner: "BasePruner") -> str:
    """Describe a pruner by its class and arguments, read from the attributes of the same names."""
    values = vars(pruner)
    arguments = [
        f"{name}={_text(values.get(f'_{name}', values.get(name)))}"
        for name in inspect.signature(type(pruner)).parameters
        if name in values or f"_{name}" in values
    ]
    return f"{type(pruner).__name__}({', '.join(arguments)})"


def _text(value: object) -> str:
    if is_optuna_pruner(value):
        return pruner_name(value)
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__


@contextmanager
def silent(level: int = logging.WARNING) -> Iterator[None]:
    """Silence Optuna's log below a level, and Optuna's warning about a NaN value."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, level))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)

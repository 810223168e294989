"""Pruners of Optuna: they get a study in memory, whose trials are the runs of the grid."""

import copy
import inspect
import math
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

from runmanager.goal import Goal
from runmanager.outcome import BY_TRAIN, EpochRecord, Outcome, Status
from runmanager.search.search import Pruner
from runmanager.storage.run_state import RunResult

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

_NAME = "grid"  # some pruners draw by the name of the study
_NOTE_NOTHING = ("MedianPruner", "NopPruner", "PercentilePruner", "ThresholdPruner", "WilcoxonPruner")
"""Pruners that need not be asked about epochs of earlier starts: they look at the values alone."""
_PLAIN = (bool, int, float, str, type(None))


def is_optuna_pruner(value: object) -> "TypeGuard[BasePruner]":
    """Whether a value is a pruner of Optuna, which is then imported already."""
    module = sys.modules.get("optuna.pruners")
    return module is not None and isinstance(value, module.BasePruner)


class OptunaPruner(Pruner):
    """Asks a pruner of Optuna; a run is a trial, an epoch a step, the goal's metric its intermediate value.

    No database is written: the journals have all that the trials are made of.
    """

    def __init__(self, pruner: "BasePruner", goal: Goal) -> None:
        import optuna

        super().__init__(goal, f"{pruner_name(pruner)} by {goal}")
        self._pruner = copy.deepcopy(pruner)  # some remember what they have seen, and a user may give it again
        self._kind = type(pruner).__name__
        self._trials: dict[str, int] = {}  # identity of a run -> trial
        self._last: dict[str, tuple[int, float, str]] = {}  # the last epoch of a run, its value, and the answer
        self._states = optuna.trial.TrialState
        self._storage = optuna.storages.InMemoryStorage()
        directions = optuna.study.StudyDirection
        direction = directions.MAXIMIZE if goal.is_larger_better else directions.MINIMIZE
        with _silent():
            self._study_id = self._storage.create_new_study([direction], _NAME)
            self._study = optuna.load_study(study_name=_NAME, storage=self._storage, pruner=self._pruner)

    def begin(self, results: Iterable[RunResult]) -> None:
        """Make a trial of each run, in order: some pruners sort trials by their number."""
        results = list(results)
        for result in results:
            self._begin_trial(result.folder.id)
        for result in sorted(results, key=lambda result: result.status is not Status.COMPLETED):
            for record in result.epochs:
                if self.goal.metric not in record.metrics:
                    continue
                if self._kind in _NOTE_NOTHING:
                    trial, value = self._trials[result.folder.id], self.value(record)
                    self._storage.set_trial_intermediate_value(trial, record.epoch, value)
                else:
                    self.should_stop(result.folder.id, record)  # what it notes at the trial counts
            if result.status is Status.COMPLETED or result.pruned_by in (self.rule, BY_TRAIN):
                self._end_trial(result.folder.id, result.status)

    def should_stop(self, id_: str, record: EpochRecord) -> str:
        """Report the epoch to the trial of the run, and ask Optuna; about the same epoch only once."""
        value, before = self.value(record), self._last.get(id_)
        if before is not None and before[:2] == (record.epoch, value):
            return before[2]
        trial = self._trial_for(id_, record.epoch)
        self._storage.set_trial_intermediate_value(trial, record.epoch, value)
        with _silent():
            is_behind = self._pruner.prune(self._study, self._storage.get_trial(trial))
        answer = self._kind if is_behind else ""
        self._last[id_] = record.epoch, value, answer
        return answer

    def run_ended(self, outcome: Outcome) -> None:
        """End the trial of a run."""
        self._end_trial(self.slot.id, outcome.status)

    def _end_trial(self, id_: str, status: Status) -> None:
        """End the trial of a run, unless that may go on: most pruners compare with completed trials alone."""
        if id_ not in self._trials or status.is_stopped:
            return
        trial = self._storage.get_trial(self._trials[id_])
        if trial.state.is_finished():
            return
        value = trial.intermediate_values.get(trial.last_step or 0, math.nan)
        is_number = not math.isnan(value)
        states = {Status.COMPLETED: self._states.COMPLETE if is_number else self._states.FAIL}
        state = states.get(status, self._states.PRUNED if status is Status.PRUNED else self._states.FAIL)
        self._storage.set_trial_state_values(self._trials[id_], state, [value] if is_number else None)

    def _begin_trial(self, id_: str) -> int:
        self._trials[id_] = self._storage.create_new_trial(self._study_id)
        return self._trials[id_]

    def _trial_for(self, id_: str, epoch: int) -> int:
        """Return the trial of a run for its next epoch: another one if the epoch was reported before."""
        if id_ not in self._trials:
            return self._begin_trial(id_)
        former = self._storage.get_trial(self._trials[id_])
        if not former.state.is_finished() and all(number < epoch for number in former.intermediate_values):
            return self._trials[id_]
        self._end_trial(id_, Status.FAILED)
        trial = self._begin_trial(id_)
        for number, value in former.intermediate_values.items():
            if number < epoch:
                self._storage.set_trial_intermediate_value(trial, number, value)
        return trial


def pruner_name(pruner: "BasePruner") -> str:
    """Write a pruner as it was made, with the arguments whose names its attributes have."""
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
def _silent() -> Iterator[None]:
    """Let Optuna say only what is wrong: nobody asked for its study. A run without a number is no reason."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
            yield
    finally:
        logging.set_verbosity(before)

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
    from optuna.trial import Trial

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
        self._kind = type(pruner).__name__
        self._trials: dict[str, Trial] = {}  # by identity of the run, as in all of these
        self._values: dict[str, dict[int, float]] = {}  # epoch -> what was reported to the trial
        self._ended: set[str] = set()  # whose trial has ended
        self._last: dict[str, tuple[int, float, str]] = {}  # the last epoch, its value, and the answer
        self._states = optuna.trial.TrialState
        with _silent():
            self._study = optuna.create_study(
                study_name=_NAME,
                direction="maximize" if goal.is_larger_better else "minimize",
                sampler=optuna.samplers.RandomSampler(seed=0),  # it suggests nothing
                pruner=copy.deepcopy(pruner),  # some remember what they have seen, and a user may give it again
            )

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
                    self._report(result.folder.id, record.epoch, self.value(record))
                else:
                    self.should_stop(result.folder.id, record)  # what it notes at the trial counts
            if result.status is Status.COMPLETED or result.pruned_by in (self.rule, BY_TRAIN):
                self._end_trial(result.folder.id, result.status)

    def should_stop(self, id_: str, record: EpochRecord) -> str:
        """Report the epoch to the trial of the run, and ask Optuna; about the same epoch only once."""
        value, before = self.value(record), self._last.get(id_)
        if before is not None and before[:2] == (record.epoch, value):
            return before[2]
        self._make_ready(id_, record.epoch)
        self._report(id_, record.epoch, value)
        with _silent():
            is_behind = self._trials[id_].should_prune()
        answer = self._kind if is_behind else ""
        self._last[id_] = record.epoch, value, answer
        return answer

    def run_ended(self, outcome: Outcome) -> None:
        """End the trial of a run."""
        self._end_trial(self.slot.id, outcome.status)

    def _end_trial(self, id_: str, status: Status) -> None:
        """End the trial of a run, unless that may go on: most pruners compare with completed trials alone."""
        if id_ not in self._trials or id_ in self._ended or status.is_stopped:
            return
        self._ended.add(id_)
        values = self._values[id_]
        value = values[max(values)] if values else math.nan
        with _silent():
            if status is Status.PRUNED:  # Optuna takes its last value
                self._study.tell(self._trials[id_], state=self._states.PRUNED)
            elif status is Status.COMPLETED and not math.isnan(value):
                self._study.tell(self._trials[id_], value)
            else:
                self._study.tell(self._trials[id_], state=self._states.FAIL)

    def _begin_trial(self, id_: str) -> None:
        with _silent():
            self._trials[id_] = self._study.ask()
        self._values[id_] = {}
        self._ended.discard(id_)

    def _report(self, id_: str, epoch: int, value: float) -> None:
        self._trials[id_].report(value, epoch)
        self._values[id_][epoch] = value

    def _make_ready(self, id_: str, epoch: int) -> None:
        """Make sure that the next epoch of a run has a trial: another one if it was reported before."""
        former = self._values.get(id_, {})
        if id_ in self._trials and id_ not in self._ended and all(number < epoch for number in former):
            return
        self._end_trial(id_, Status.FAILED)
        self._begin_trial(id_)
        for number, value in former.items():
            if number < epoch:
                self._report(id_, number, value)


def pruner_name(pruner: "BasePruner") -> str:
    """Write a pruner as it was made, with the arguments whose names its attributes have.

    Optuna has no public way to read them, and two pruners with other numbers are two rules. Tried on 5.0.0: of
    an argument that another version keeps elsewhere, the rule says nothing.
    """
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

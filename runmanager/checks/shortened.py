"""Shortened runs: two steps and one evaluation batch for a check."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from runmanager.core.contracts import RunListener
from runmanager.core.epoch import OpenEpoch
from runmanager.core.evaluate import OpenEvaluation
from runmanager.core.experiment import Experiment
from runmanager.core.manager import LeaveTrain
from runmanager.core.metrics import How
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.run import Run
from runmanager.core.task import RunTask, arguments_of

_NUM_STEPS = 2  # number of steps of a check


def shortened(task: RunTask, experiment: Path, listener: RunListener, epoch_type: type[OpenEpoch]) -> RunTask:
    """Return the task of a grid for shortened runs in another experiment."""
    context = replace(
        task.context, rule="", asks=False, boards=None, listeners=[listener],
        epoch_type=epoch_type, evaluation_type=CheckedEvaluation,
    )  # fmt: skip
    return replace(
        task, experiment=Experiment(experiment), train=Cut(task.train), context=context, users=(), raises=False
    )


class OneEpoch(RunListener):
    """Ends a run after its first epoch; the code after its loop is executed."""

    rule = None  # no rule is recorded: the loop ends as after its last epoch

    def epoch_ended(self, record: EpochRecord, network: Any) -> str:
        """Return the reason why the run should stop."""
        return "enough was tried"


class CheckedEpoch(OpenEpoch):
    """An epoch of two steps.

    A loop that gets its batches from another source is left when it tracks the third batch.
    """

    most_steps = _NUM_STEPS

    def __init__(self, number: int, *args: Any) -> None:
        if number > 1:  # a loop that does not use `epochs` begins a second epoch
            raise LeaveTrain
        super().__init__(number, *args)
        self._tracked: Counter[str] = Counter()

    def batches(self) -> Iterator[Any]:
        """Yield the first batches of the loader."""
        yield from itertools.islice(super().batches(), _NUM_STEPS)

    def add_loss(self, loss: torch.Tensor | float, batch: Any) -> None:
        """Add the mean loss of a batch."""
        self._count("loss")
        super().add_loss(loss, batch)

    def track(self, values: Mapping[str, torch.Tensor | float], how: How = "mean") -> None:
        """Add values of the current batch."""
        for name in values:
            self._count(f"value {name}")
        super().track(values, how)

    def _count(self, name: str) -> None:
        self._tracked[name] += 1
        if not self.counts_batches and self._tracked[name] > _NUM_STEPS:
            raise LeaveTrain


class CheckedEvaluation(OpenEvaluation):
    """An evaluation of one batch."""

    def batches(self) -> Iterator[Any]:
        """Yield the first batch of the loader."""
        yield from itertools.islice(super().batches(), 1)


@dataclass(frozen=True)
class Cut:
    """A training function that may be left after its checked part."""

    train: Callable[..., object]

    def __call__(self, run: Run, manager: Any) -> None:
        """Call the training function."""
        try:
            self.train(run, manager, **arguments_of(self.train, run))
        except LeaveTrain:
            pass
        except StopIteration:  # the loop called next() after the end of the shortened batches
            manager._is_open, manager.outcome = False, Outcome(Status.INTERRUPTED)

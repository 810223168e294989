"""A run that is checked: one epoch of two steps, and one batch of each evaluation."""

import gc
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from runmanager.devices.torch_devices import undisturbed_random
from runmanager.training.evaluation import OpenEvaluation
from runmanager.training.metrics import How
from runmanager.training.open_epoch import OpenEpoch

NUM_STEPS = 2
"""Of the one epoch."""

_NUM_BATCHES = 1  # of an evaluation


class CheckEnded(BaseException):
    """Leaves `train` where its loop cannot be cut; no Exception, as a loop may catch those."""


class CheckedEpoch(OpenEpoch):
    """An epoch of two steps. A loop that takes its batches elsewhere is left when it tracks the third one."""

    def __init__(self, number: int, *args: Any) -> None:
        if number > 1:  # of a loop that is not over `epochs`
            raise CheckEnded
        super().__init__(number, *args)
        self._tracked: Counter[str] = Counter()

    def batches(self) -> Iterator[Any]:
        """Yield the first batches of the loader."""
        yield from itertools.islice(super().batches(), NUM_STEPS)

    def add_loss(self, loss: torch.Tensor | float, batch: Any) -> None:
        """Add the mean loss of a batch.

        Raises:
            CheckEnded: It is one too many.
        """
        self._count("loss")
        super().add_loss(loss, batch)

    def track(self, values: Mapping[str, torch.Tensor | float], how: How = "mean") -> None:
        """Add values of the current batch.

        Raises:
            CheckEnded: They are those of one batch too many.
        """
        for name in values:
            self._count(f"value {name}")
        super().track(values, how)

    def _count(self, name: str) -> None:
        self._tracked[name] += 1
        if not self.counts_batches and self._tracked[name] > NUM_STEPS:
            raise CheckEnded


class CheckedEvaluation(OpenEvaluation):
    """An evaluation of one batch."""

    def batches(self) -> Iterator[Any]:
        """Yield the first batch of the loader."""
        yield from itertools.islice(super().batches(), _NUM_BATCHES)


def measured_by(*, is_check: bool) -> tuple[type[OpenEpoch], type[OpenEvaluation]]:
    """Return what measures the epochs and the evaluations of a run."""
    return (CheckedEpoch, CheckedEvaluation) if is_check else (OpenEpoch, OpenEvaluation)


@contextmanager
def leaving_nothing(device: torch.device) -> Iterator[None]:
    """Give the random states back that the block changes, and the memory of an accelerator."""
    try:
        with undisturbed_random(device):
            yield
    finally:
        if torch.accelerator.is_available():
            gc.collect()
            torch.accelerator.empty_cache()

"""Which classes are taken for which, counted on the device."""

from collections.abc import Sequence
from typing import Any

import torch

from runmanager.devices import ranks

MOST = 50
"""Classes up to which a picture can be read."""


class Confusion:
    """How often each class was taken for which. Counting waits for no device and never raises."""

    def __init__(self) -> None:
        self.problem = ""
        self._counts: torch.Tensor | None = None  # (C * C + 1,), the last for labels that are no classes
        self._num_classes = 0

    def add(self, preds: torch.Tensor, labels: torch.Tensor) -> None:
        """Count a batch.

        Args:
            preds: Scores ``(N, C)`` or ``(N, C, ...)``.
            labels: Class numbers ``(N,)`` or ``(N, ...)``; those that are no class are left out.
        """
        num = preds.shape[1]
        if not 1 < num <= MOST or self.problem:
            return
        try:
            if self._counts is None:
                self._counts = torch.zeros(num * num + 1, dtype=torch.int64, device=preds.device)
                self._num_classes = num
            if num != self._num_classes:
                # counted, they would be in others' cells, or outside, where CUDA ends the process
                self.problem = f"confusion: batches have scores of {self._num_classes} and of {num} classes"
                return
            labels = labels.long()
            is_class = (labels >= 0) & (labels < num)
            cells = torch.where(is_class, labels * num + preds.argmax(dim=1), num * num).reshape(-1)
            self._counts.index_add_(0, cells, torch.ones_like(cells))
        except Exception as error:  # noqa: BLE001 - no logging call may end a run
            self.problem = f"confusion: {type(error).__name__}: {error}"

    def join(self) -> None:
        """Add up what the ranks have counted; all of them call it."""
        if ranks.num_ranks() == 1:
            return
        own = None if self._counts is None or self.problem else self._counts.cpu()
        found = [counts for counts in ranks.gather(own) if counts is not None]
        is_whole = len(found) == ranks.num_ranks() and len({len(counts) for counts in found}) == 1
        self._counts = torch.stack(found).sum(dim=0) if is_whole else None

    def table(self) -> list[list[int]] | None:
        """Return the counts, a row per label and a column per prediction; None if there are none."""
        if self._counts is None or self.problem:
            return None
        rows: list[list[int]] = self._counts[:-1].reshape(self._num_classes, -1).tolist()
        return rows if any(map(any, rows)) else None


def class_names(loader: Any, num_classes: int) -> list[str]:
    """Return the names that a loader's dataset has for its classes, or their numbers."""
    dataset = getattr(loader, "dataset", None)
    while dataset is not None and not hasattr(dataset, "classes"):
        dataset = getattr(dataset, "dataset", None)  # of a Subset
    names = getattr(dataset, "classes", None)
    if not isinstance(names, Sequence) or len(names) != num_classes:
        return [str(number) for number in range(num_classes)]
    return [str(name) for name in names]

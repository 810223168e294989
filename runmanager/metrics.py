"""Sums kept on the device, read once per epoch."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch

from runmanager.errors import MetricError


class EpochSums:
    """The sums and counts of one epoch.

    Adding never waits for the device; `means` does, once.

    Attributes:
        last_size: The number of samples in the current batch, None before the first.
    """

    def __init__(self) -> None:
        self.last_size: int | None = None
        self._sums: dict[str, torch.Tensor] = {}
        self._weights: dict[str, int] = {}
        self._num_losses = 0
        self._unsized: deque[tuple[int, torch.Tensor | float]] = deque()
        self._sizes: list[int] = []

    def add_loss(self, loss: torch.Tensor | float, batch: Any) -> None:
        """Add the mean loss of a batch.

        Args:
            loss: A single value.
            batch: The batch or its number of samples; None if `add_correct` or `settle` will tell.

        Raises:
            MetricError: The loss is not a single value, or nothing in the batch can be counted.
        """
        loss = single("loss", loss)
        self._num_losses += 1
        if batch is None:
            self._unsized.append((self._num_losses, loss))
            self._match()
            return
        size = batch_size(batch)
        if size is not None and size < 1:
            raise MetricError(f"a batch has at least one sample, got {size}: leave it out")
        if size is None:
            raise MetricError(
                f"cannot count the samples of a {type(batch).__name__}: "
                "pass their number, as in track_loss(loss, len(labels))"
            )
        self.last_size = size
        self.add_mean("loss", loss, size)

    def add_correct(self, preds: torch.Tensor, labels: torch.Tensor) -> None:
        """Add what `num_correct` counts.

        Raises:
            MetricError: The shapes do not fit.
        """
        self._add("accuracy", num_correct(preds, labels), labels.numel())
        self.last_size = len(labels)
        self._sizes.append(len(labels))
        self._match()

    def add_mean(self, name: str, mean: torch.Tensor | float, weight: int) -> None:
        """Add a value that is a mean over `weight` samples.

        Raises:
            MetricError: It is not a single number.
        """
        self._add(name, single(name, mean) * weight, weight)

    def settle(self, size_of_batch: Callable[[int], int | None]) -> None:
        """Weigh the losses that came without a batch, at the end of the epoch.

        Args:
            size_of_batch: Number of the batch, from 1 -> its samples, None if that is not known.

        Raises:
            MetricError: It is not known.
        """
        for number, loss in self._unsized:
            size = size_of_batch(number)
            if size is None:
                raise MetricError(
                    "the loader does not tell how many samples a batch has: call track_loss(loss, batch)"
                )
            self.add_mean("loss", loss, size)
        self._unsized.clear()

    def total(self, name: str) -> float:
        """Read one sum, waiting for the device; 0 if nothing was added."""
        return self._sums[name].item() if name in self._sums else 0

    def means(self) -> dict[str, float]:
        """Read sum / number of samples of every metric, with one transfer per device."""
        totals: dict[str, float] = {}
        for device in dict.fromkeys(total.device for total in self._sums.values()):
            names = [name for name, total in self._sums.items() if total.device == device]
            stacked = torch.stack([self._sums[name] for name in names])
            totals.update(zip(names, stacked.tolist(), strict=True))
        return {name: totals[name] / weight for name, weight in self._weights.items() if weight}

    def _match(self) -> None:
        # the tutorial's older form is track_loss(loss): its n-th call and track_num_correct's are of one batch
        while self._unsized and self._unsized[0][0] <= len(self._sizes):
            number, loss = self._unsized.popleft()
            self.add_mean("loss", loss, self._sizes[number - 1])

    def _add(self, name: str, total: torch.Tensor | float, weight: int) -> None:
        # hooks are called inside and outside of no_grad and inference_mode alike
        with torch.inference_mode(mode=False), torch.no_grad():
            device = total.device if isinstance(total, torch.Tensor) else torch.device("cpu")
            if name not in self._sums:
                self._sums[name] = torch.zeros((), dtype=_exact(device), device=device)
            known = self._sums[name]
            known += total.to(known.device) if isinstance(total, torch.Tensor) else total
        self._weights[name] = self._weights.get(name, 0) + weight


def single(name: str, value: Any) -> torch.Tensor | float:
    """Return a value in double precision if it is a single number.

    Raises:
        MetricError: It is not.
    """
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise MetricError(
                f"{name} must be a single value, the mean over the batch, got a tensor of shape "
                f"{tuple(value.shape)}: call .mean() on it"
            )
        return value.detach().reshape(()).to(_exact(value.device), copy=True)  # the loop may change its own
    try:
        return float(value)
    except (TypeError, ValueError):
        raise MetricError(f"{name} must be a number or a tensor of one, got {value!r}") from None


def num_correct(preds: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Count on the device where the largest score is the label's.

    Args:
        preds: Scores ``(N, C)`` or ``(N, C, ...)``.
        labels: Class numbers ``(N,)`` or ``(N, ...)``.

    Raises:
        MetricError: The shapes do not fit; they would compare every sample with every other.
    """
    if preds.ndim < 2 or labels.shape != preds.shape[:1] + preds.shape[2:]:  # noqa: PLR2004 - (N, C)
        raise MetricError(
            "preds must have the shape (N, number of classes) and labels (N,), got "
            f"{tuple(preds.shape)} and {tuple(labels.shape)}"
        )
    return (preds.detach().argmax(dim=1) == labels).sum()


def batch_size(batch: Any) -> int | None:
    """Count the samples of a batch: the length of the first tensor in it, None if there is none.

    A number counts for itself.

    >>> batch_size((torch.zeros(7, 3), torch.zeros(7))), batch_size({"x": torch.zeros(5)}), batch_size(3)
    (7, 5, 3)
    """
    if isinstance(batch, int):
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else None
    items = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(items, (tuple, list)) and not isinstance(batch, Mapping):
        return None
    return next((size for item in items if (size := _tensor_size(item)) is not None), None)


def _tensor_size(item: Any) -> int | None:
    # numbers inside of a batch are data, not its size
    return None if isinstance(item, int) else batch_size(item)


def _exact(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64

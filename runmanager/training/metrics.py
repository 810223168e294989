"""Sums kept on the device, read once per epoch."""

import itertools
import math
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch

from runmanager.devices import ranks
from runmanager.errors import MetricError
from runmanager.grid import RESERVED

_FOLDED = 1024  # values that wait in a list, at most


class EpochSums:
    """The sums and counts of one epoch.

    Adding never waits for the device; `means` does, once.

    Attributes:
        last_size: The number of samples in the current batch, None before the first.
    """

    def __init__(self) -> None:
        self.last_size: int | None = None
        self._losses = _Trail()
        self._sums = {"loss": _Sum(self._losses), "accuracy": _Sum()}
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
        self._sums["loss"].add(loss, size, size)

    def add_correct(self, preds: torch.Tensor, labels: torch.Tensor) -> None:
        """Add what `num_correct` counts.

        Raises:
            MetricError: The shapes do not fit.
        """
        count = num_correct(preds, labels)
        self._sums["accuracy"].add(count.item() if _is_read_at_once(count) else count, 1, labels.numel())
        self.last_size = len(labels)
        self._sizes.append(len(labels))
        self._match()

    def add_mean(self, name: str, mean: torch.Tensor | float, weight: int) -> None:
        """Add a value that is a mean over `weight` samples.

        Raises:
            MetricError: It is not a single number.
        """
        value = single(name, mean)
        if name not in self._sums:
            self._sums[name] = _Sum()
        self._sums[name].add(value, weight, weight)

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
            self._sums["loss"].add(loss, size, size)
        self._unsized.clear()

    @property
    def num_samples(self) -> int:
        """How many samples the losses were means over."""
        return self._sums["loss"].weight

    def total(self, name: str) -> float:
        """Read one sum, waiting for the device; 0 if nothing was added."""
        return float(self._sums[name].total()) if name in self._sums else 0

    def means(self) -> dict[str, float]:
        """Read sum / number of samples of every metric, over all ranks, with one transfer per device."""
        totals = _read({name: found.total() for name, found in self._sums.items() if found.weight})
        merged: dict[str, tuple[float, int]] = {}
        for own in ranks.gather({name: (total, self._sums[name].weight) for name, total in totals.items()}):
            for name, (total, weight) in own.items():
                before = merged.get(name, (0.0, 0))
                merged[name] = (before[0] + total, before[1] + weight)
        return {name: total / weight for name, (total, weight) in merged.items()}

    def first_not_finite(self) -> tuple[int, float, float | None] | None:
        """Find the first loss that is NaN or infinite, on whichever rank; waits for the device.

        Returns:
            Which loss it was, from 1, its value, and the loss before it, None if there was none. None if all
            are finite.
        """
        self._sums["loss"].total()
        found = [first for first in ranks.gather(self._losses.first_not_finite()) if first]
        return min(found, key=lambda first: first[0], default=None)

    def _match(self) -> None:
        # the tutorial's older form is track_loss(loss): its n-th call and track_num_correct's are of one batch
        while self._unsized and self._unsized[0][0] <= len(self._sizes):
            number, loss = self._unsized.popleft()
            size = self._sizes[number - 1]
            self._sums["loss"].add(loss, size, size)


class _Sum:
    """A weighted sum of single values: of numbers at once, of tensors on their device and by the thousand.

    A tensor costs its place in a list until then: two operations less per batch, on the device and here.

    Args:
        trail: What the values are shown to, in their order.
    """

    def __init__(self, trail: "_Trail | None" = None) -> None:
        self.weight = 0
        self._of_numbers = 0.0
        self._values: list[torch.Tensor | float] = []
        self._factors: list[int] = []
        self._of_tensors: torch.Tensor | None = None
        self._trail = trail

    def add(self, value: torch.Tensor | float, factor: int, weight: int) -> None:
        """Add ``factor * value``, which stands for `weight` samples; the value is kept, not copied."""
        self.weight += weight
        if not (isinstance(value, torch.Tensor) or self._values or self._of_tensors is not None):
            self._of_numbers += value * factor
            if self._trail is not None:
                self._trail.add_number(value)
            return
        self._values.append(value)  # a number after a tensor waits with it, for the order
        self._factors.append(factor)
        if len(self._values) == _FOLDED:
            self._fold()

    def total(self) -> torch.Tensor | float:
        """Return the sum so far, on the device of its first tensor if there is one."""
        self._fold()
        return self._of_numbers if self._of_tensors is None else self._of_tensors + self._of_numbers

    def _fold(self) -> None:
        # out of place: hooks are called inside and outside of no_grad and inference_mode alike
        if not self._values:
            return
        values = _stacked(self._values, None if self._of_tensors is None else self._of_tensors.device)
        start = 0
        for factor, same in itertools.groupby(self._factors):  # one factor, but for the last batch
            end = start + len(list(same))
            part = values[start:end].sum() * factor
            self._of_tensors = part if self._of_tensors is None else self._of_tensors + part
            start = end
        if self._trail is not None:
            self._trail.add(values)
        self._values, self._factors = [], []


class _Trail:
    """Where in a series the first value is that is not finite, kept on the device without looking.

    Numbers come first, if there are any, then tensors.
    """

    def __init__(self) -> None:
        self._num_numbers = 0
        self._last_number = math.nan
        self._first: tuple[int, float, float | None] | None = None
        self._kept: torch.Tensor | None = None  # (1 + _FOLDED,): values, and in front the one before them

    def add_number(self, value: float) -> None:
        """Add the next value, before the first tensor."""
        self._num_numbers += 1
        if self._first is None and not math.isfinite(value):
            self._first = self._num_numbers, value, _if_finite(self._last_number)
        self._last_number = value

    def add(self, values: torch.Tensor) -> None:
        """Add the next values ``(n,)``, n up to `_FOLDED`."""
        if self._kept is None:
            self._last = values.new_full((1,), self._last_number)
            self._kept = values.new_zeros(1 + _FOLDED)
            self._found = values.new_zeros((), dtype=torch.bool)
            self._before = values.new_full((), self._num_numbers, dtype=torch.int64)
            self._size = 0
        window = torch.cat([self._last, values, values.new_zeros(_FOLDED - len(values))])
        self._before = torch.where(self._found, self._before, self._before + self._size)
        self._kept = torch.where(self._found, self._kept, window)
        self._found = self._found | ~values.isfinite().all()
        self._last, self._size = values[-1:], len(values)

    def first_not_finite(self) -> tuple[int, float, float | None] | None:
        """Return its number, from 1, its value and the one before it; None if all are finite."""
        if self._first is not None or self._kept is None:
            return self._first
        before, *values = self._kept.tolist()
        for number, value in enumerate(values, int(self._before) + 1):
            if not math.isfinite(value):
                return number, value, _if_finite(before)
            before = value
        return None


def _if_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _read(sums: Mapping[str, torch.Tensor | float]) -> dict[str, float]:
    """Read sums with one transfer per device."""
    read = {name: total for name, total in sums.items() if not isinstance(total, torch.Tensor)}
    tensors = {name: total for name, total in sums.items() if isinstance(total, torch.Tensor)}
    for device in dict.fromkeys(total.device for total in tensors.values()):
        names = [name for name, total in tensors.items() if total.device == device]
        read.update(zip(names, torch.stack([tensors[name] for name in names]).tolist(), strict=True))
    return {name: read[name] for name in sums}


def _stacked(values: Sequence[torch.Tensor | float], device: torch.device | None) -> torch.Tensor:
    """Put single values ``(n,)`` in double precision on a device, or on that of the first tensor."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    place = device or tensors[0].device
    if len(tensors) < len(values) or any(tensor.device != place for tensor in tensors):
        tensors = [torch.as_tensor(value, dtype=_exact(place), device=place) for value in values]
    return torch.stack(tensors).to(_exact(place))


def single(name: str, value: Any) -> torch.Tensor | float:
    """Return a value in double precision if it is a single number; one on the cpu as a float.

    Raises:
        MetricError: It is not.
    """
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise MetricError(
                f"{name} must be a single value, the mean over the batch, got a tensor of shape "
                f"{tuple(value.shape)}: call .mean() on it"
            )
        if not _is_read_at_once(value):
            kept = value.detach() if value.ndim == 0 else value.detach().reshape(())
            exact = _exact(kept.device)
            return kept.clone() if kept.dtype == exact else kept.to(exact)  # the loop may change its own
        value = value.item()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise MetricError(f"{name} must be a number or a tensor of one, got {value!r}") from None


def check_column(name: str, params: Container[str]) -> None:
    """Make sure that a metric may have a name, beside hyperparameters of other names.

    Raises:
        MetricError: It may not.
    """
    hook = {"loss": "track_loss", "accuracy": "track_num_correct"}.get(name)
    if not name.isidentifier():
        problem = "is not an identifier"
    elif hook:
        problem = f"is a column already, which {hook} fills"
    elif name in params:
        problem = "is a hyperparameter"
    elif name in RESERVED:
        problem = "is a column already"
    else:
        return
    raise MetricError(f"{name!r} {problem}: give the metric another name, as in track(f1=...)")


def num_correct(preds: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Count on the device where the largest score is the label's.

    Args:
        preds: Scores ``(N, C)`` or ``(N, C, ...)``.
        labels: Class numbers ``(N,)`` or ``(N, ...)``.

    Raises:
        MetricError: The shapes do not fit; they would compare every sample with every other.
    """
    shape = preds.shape
    if len(shape) < 2 or labels.shape != shape[:1] + shape[2:]:  # noqa: PLR2004 - (N, C)
        raise MetricError(
            "preds must have the shape (N, number of classes) and labels (N,), got "
            f"{tuple(preds.shape)} and {tuple(labels.shape)}"
        )
    return (preds.detach().argmax(dim=1) == labels).count_nonzero()


def batch_size(batch: Any) -> int | None:
    """Count the samples of a batch: the length of the first tensor in it, None if there is none.

    A number counts for itself.

    >>> batch_size((torch.zeros(7, 3), torch.zeros(7))), batch_size({"x": torch.zeros(5)}), batch_size(3)
    (7, 5, 3)
    """
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else None
    if isinstance(batch, int):
        return batch
    items = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(items, (tuple, list)) and not isinstance(batch, Mapping):
        return None
    return next((size for item in items if (size := _tensor_size(item)) is not None), None)


def _tensor_size(item: Any) -> int | None:
    # numbers inside of a batch are data, not its size
    return None if isinstance(item, int) else batch_size(item)


def _is_read_at_once(tensor: torch.Tensor) -> bool:
    """Whether reading a value waits for nothing; then a sum of numbers costs a fraction of one of tensors."""
    return tensor.is_cpu


def _exact(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64

"""Weighted sums of single values, and the first value that is not finite, without device synchronization."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

CHUNK = 1024
"""The maximum number of tensors in a chunk."""


class WeightedSum:
    """A weighted sum of single values: numbers are added immediately, tensors on their device in chunks.

    Tensors are collected in a list until a chunk is full, as this saves two operations per batch on the device.
    """

    def __init__(self, first_not_finite: "FirstNotFinite | None" = None) -> None:
        self.weight = 0  # the number of samples of the values
        self._of_numbers = 0.0
        self._values: list[torch.Tensor | float] = []
        self._factors: list[int] = []
        self._of_tensors: torch.Tensor | None = None
        self._first_not_finite = first_not_finite  # the object that receives the values in order

    def add(self, value: torch.Tensor | float, factor: int, weight: int) -> None:
        """Add ``factor * value`` for `weight` samples. A tensor is referenced, not copied."""
        self.weight += weight
        if not (isinstance(value, torch.Tensor) or self._values or self._of_tensors is not None):
            self._of_numbers += value * factor
            if self._first_not_finite is not None:
                self._first_not_finite.add_number(value)
            return
        # after a tensor, numbers are collected too, as the order of the values counts
        self._values.append(value)
        self._factors.append(factor)
        if len(self._values) == CHUNK:
            self._fold()

    def mean_of_numbers(self) -> float | None:
        """Return the mean so far; None without values."""
        is_exact = self.weight and not self._values and self._of_tensors is None
        return self._of_numbers / self.weight if is_exact else None

    def total(self) -> torch.Tensor | float:
        """Return the sum so far, on the device of its first tensor, if any."""
        self._fold()
        return self._of_numbers if self._of_tensors is None else self._of_tensors + self._of_numbers

    def state(self) -> dict[str, Any]:
        """Return the state to save."""
        first = self._first_not_finite
        return {
            **vars(self),
            "_values": packed(self._values),
            "_first_not_finite": None if first is None else dict(vars(first)),
        }

    def load(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore a saved state, replacing the sum."""
        first = self._first_not_finite
        if first is not None:
            vars(first).clear()
            vars(first).update(_on(device, state["_first_not_finite"]))
        values = unpacked(state["_values"], device)
        vars(self).update({**_on(device, state), "_values": values, "_first_not_finite": first})

    def _fold(self) -> None:
        # the addition is not in place, as hooks may be called inside or outside no_grad and inference_mode
        if not self._values:
            return
        tensors = [value for value in self._values if isinstance(value, torch.Tensor)]
        device = tensors[0].device if self._of_tensors is None else self._of_tensors.device
        if len(tensors) < len(self._values) or any(tensor.device != device for tensor in tensors):
            tensors = [torch.as_tensor(value, dtype=exact(device), device=device) for value in self._values]
        values = torch.stack(tensors).to(exact(device))
        start = 0
        # usually all factors are equal, except the factor of the last batch
        for factor, same in itertools.groupby(self._factors):
            end = start + len(list(same))
            part = values[start:end].sum() * factor
            self._of_tensors = part if self._of_tensors is None else self._of_tensors + part
            start = end
        if self._first_not_finite is not None:
            self._first_not_finite.add(values)
        self._values, self._factors = [], []


class FirstNotFinite:
    """Finds the first value of a series that is not finite, on the device, without synchronization.

    In a series with numbers and tensors, numbers come first.
    """

    def __init__(self) -> None:
        self._num_numbers = 0
        self._last_number = math.nan
        self._first: tuple[int, float, float | None] | None = None
        self._window: torch.Tensor | None = None  # (1 + CHUNK,): the value before the chunk, then the chunk

    def add_number(self, value: float) -> None:
        """Add the next value, before the first tensor."""
        self._num_numbers += 1
        if self._first is None and not math.isfinite(value):
            self._first = self._num_numbers, value, _if_finite(self._last_number)
        self._last_number = value

    def add(self, values: torch.Tensor) -> None:
        """Add the next values ``(n,)``, n up to `CHUNK`."""
        if self._window is None:
            self._last = values.new_full((1,), self._last_number)
            self._window = values.new_zeros(1 + CHUNK)
            self._has_first = values.new_zeros((), dtype=torch.bool)
            self._before = values.new_full((), self._num_numbers, dtype=torch.int64)
            self._size = 0
        newest = torch.cat([self._last, values, values.new_zeros(CHUNK - len(values))])
        self._before = torch.where(self._has_first, self._before, self._before + self._size)
        self._window = torch.where(self._has_first, self._window, newest)
        self._has_first = self._has_first | ~values.isfinite().all()
        self._last, self._size = values[-1:], len(values)

    def result(self) -> tuple[int, float, float | None] | None:
        """Return the number of the first value that is not finite, from 1, this value and the previous value.

        Return None if all values are finite.
        """
        if self._first is not None or self._window is None:
            return self._first
        before, *values = self._window.tolist()
        for number, value in enumerate(values, int(self._before) + 1):
            if not math.isfinite(value):
                return number, value, _if_finite(before)
            before = value
        return None


def _if_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def read_values(values: Sequence[torch.Tensor | float]) -> list[float]:
    """Read single values with one transfer per device."""
    numbers = [math.nan if isinstance(value, torch.Tensor) else value for value in values]
    tensors = [(index, value) for index, value in enumerate(values) if isinstance(value, torch.Tensor)]
    for device in dict.fromkeys(value.device for _, value in tensors):
        of_device = [(index, value) for index, value in tensors if value.device == device]
        read = torch.stack([value for _, value in of_device]).tolist()
        for (index, _), number in zip(of_device, read, strict=True):
            numbers[index] = number
    return numbers


Packed = tuple[list[float], list[bool]]
"""Single values as numbers, and for each value whether it was a tensor."""


def packed(values: Sequence[torch.Tensor | float]) -> Packed:
    """Convert single values for a checkpoint, in which each tensor would be a separate file."""
    return read_values(values), [isinstance(value, torch.Tensor) for value in values]


def unpacked(state: Packed, device: torch.device) -> list[torch.Tensor | float]:
    """Return the values of a packed list, with tensors on a device."""
    numbers, are_tensors = state
    are_counts = all(isinstance(number, int) for number in numbers)
    tensors = torch.tensor(numbers, dtype=torch.int64 if are_counts else exact(device), device=device).unbind()
    return [tensors[index] if are_tensors[index] else number for index, number in enumerate(numbers)]


def _on(device: torch.device, state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in state.items()
    }


def exact(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64

"""Metrics of an epoch: sums that stay on the device and are read once."""

import math
import warnings
from collections import deque
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from typing import Any, Literal, get_args

import torch

from runmanager.core.batch_size import Measure, batch_size, measured
from runmanager.core.correct import are_correct, has_no_classes
from runmanager.core.values import RESERVED
from runmanager.core.weighted_sum import FirstNotFinite, WeightedSum, exact, packed, read_values, unpacked
from runmanager.devices import ranks
from runmanager.errors import InvalidArgumentError, RunsWarning
from runmanager.user_frames import user_level

How = Literal["mean", "sum", "last", "min", "max"]
"""The reduction of a metric over the batches of an epoch."""

Expected = Callable[[], int | None]
"""Returns the loader's number of samples for the batch, None if unknown."""


class EpochSums:
    """The sums and counts of one epoch.

    `measure` is the user's function that counts the samples of a batch, None by default. Adding never waits for
    the device; `means` waits once.
    """

    def __init__(self, measure: Measure | None = None) -> None:
        self._measure = measure
        self._batch: Any = None  # the current batch, until its samples are counted
        self.last_size: int | None = None  # number of samples in the current batch
        self.is_tracked = False  # whether the current batch has a value
        self._first_not_finite = FirstNotFinite()
        self._loss = WeightedSum(self._first_not_finite)
        self._sums = {"loss": self._loss, "accuracy": WeightedSum()}
        self._hows: dict[str, How] = {}  # column -> reduction, for reductions other than the mean
        self._selected: dict[str, torch.Tensor | float] = {}  # column -> last, smallest or largest value
        self._num_losses = 0
        self._unsized: deque[tuple[int, torch.Tensor | float]] = deque()
        self._sizes: list[int] = []

    @property
    def is_measured(self) -> bool:
        """Whether a user's function counts the samples of a batch."""
        return self._measure is not None

    def begin_batch(self, batch: Any) -> None:
        """Set the current batch."""
        self._batch, self.last_size, self.is_tracked = batch, None, False

    def current_size(self, expected: Expected = lambda: None) -> int:
        """Count the samples of the current batch; 1 without a batch."""
        if self.last_size is None and self._batch is not None:
            self.last_size = self._count(self._batch, expected)
        return self.last_size or 1

    def add_loss(self, loss: torch.Tensor | float, batch: Any, expected: Expected = lambda: None) -> None:
        """Add the mean loss of a batch."""
        loss = single("loss", loss)
        self._num_losses += 1
        self.is_tracked = True
        if batch is None and self._measure is not None:
            batch = self._batch
        if batch is None:
            self._unsized.append((self._num_losses, loss))
            self._match()
            return
        size = self._count(batch, expected)
        if size < 1:
            raise InvalidArgumentError(f"a batch has at least one sample, got {size}: leave it out")
        self.last_size = size
        self._loss.add(loss, size, size)

    def add_correct(self, preds: torch.Tensor, labels: torch.Tensor) -> torch.Tensor | None:
        """Count the correct predictions of a batch; return which are correct, on the device."""
        if has_no_classes(preds, labels):
            self._add_size(len(labels))
            warnings.warn(
                f"predictions of shape {tuple(preds.shape)} are no scores of classes, so there is no accuracy: "
                "leave track_num_correct() out, override get_num_correct(), or track another metric",
                RunsWarning,
                stacklevel=user_level(),
            )
            return None
        correct = are_correct(preds, labels)
        self.add_count(correct.count_nonzero(), preds[:, :1].numel(), len(labels))
        return correct

    def add_count(self, count: torch.Tensor | float, num_predictions: int, size: int) -> None:
        """Add the number of correct predictions of a batch with `size` samples."""
        if isinstance(count, torch.Tensor) and _is_read_at_once(count):
            count = count.item()
        self._sums["accuracy"].add(count, 1, num_predictions)
        self._add_size(size)

    def _add_size(self, size: int) -> None:
        # otherwise the user's function counts the current batch
        if self._measure is None or self._batch is None:
            self.last_size = size
        self.is_tracked = True
        self._sizes.append(size)
        self._match()

    def add_mean(self, name: str, mean: torch.Tensor | float, weight: int) -> None:
        """Add the mean of a metric over `weight` samples."""
        value = single(name, mean)
        if name not in self._sums:
            self._sums[name] = WeightedSum()
        self._sums[name].add(value, weight, weight)

    def track(self, name: str, value: torch.Tensor | float, how: How, expected: Expected) -> None:
        """Add a value of the current batch, see `RunManager.track`."""
        if how not in get_args(How):
            rule = f"how must be one of {', '.join(map(repr, get_args(How)))}"
            raise InvalidArgumentError(f"{rule}, got {how!r}; a metric of that name: track({{'how': ...}})")
        before = self._hows.get(name, "mean" if name in self._sums else how)
        if before != how:
            raise InvalidArgumentError(
                f"{name!r} is tracked with how={before!r} and with how={how!r}: keep to one"
            )
        self.is_tracked = True
        if how == "mean":
            self.add_mean(name, value, self.current_size(expected))
            return
        self._hows[name] = how
        value = single(name, value)
        if how == "sum":
            self._sums.setdefault(name, WeightedSum()).add(value, 1, 1)
        else:
            self._selected[name] = _selected_of(how, self._selected.get(name, value), value)

    def settle(self, size_of_batch: Callable[[int], int | None]) -> None:
        """Weight the losses that were added without a batch, at the end of the epoch."""
        for number, loss in self._unsized:
            size = size_of_batch(number)
            if size is None:
                raise InvalidArgumentError(
                    "the loader does not show how many samples a batch has: call track_loss(loss, batch)"
                )
            self._loss.add(loss, size, size)
        self._unsized.clear()

    @property
    def num_samples(self) -> int:
        """The number of samples of the losses."""
        return self._loss.weight

    def loss_so_far(self) -> float | None:
        """Return the mean loss so far; None without a loss, or if the loss is on an accelerator."""
        return self._loss.mean_of_numbers()

    def total(self, name: str) -> float:
        """Read one sum, which waits for the device; 0 if nothing was added."""
        return float(self._sums[name].total()) if name in self._sums else 0

    def means(self) -> dict[str, float]:
        """Read the mean of every metric over all ranks, with one transfer per device."""
        values = {
            name: (total, 1 if name in self._selected else self._sums[name].weight)
            for name, total in self.read().items()
        }
        merged: dict[str, tuple[float, int]] = {}
        for of_rank in ranks.gather(values):
            for name, value in of_rank.items():
                merged[name] = self._merged(name, merged[name], value) if name in merged else value
        return {
            name: total if name in self._hows else total / weight for name, (total, weight) in merged.items()
        }

    def _merged(self, name: str, before: tuple[float, int], value: tuple[float, int]) -> tuple[float, int]:
        how, (total, weight) = self._hows.get(name, "sum"), value
        merged = before[0] + total if how == "sum" else float(_selected_of(how, total, before[0]))
        return merged, before[1] + weight

    def read(self) -> dict[str, float]:
        """Read the sums of this process, with one transfer per device."""
        totals = {name: values.total() for name, values in self._sums.items() if values.weight}
        totals |= self._selected
        return dict(zip(totals, read_values(list(totals.values())), strict=True))

    def first_not_finite(self) -> tuple[int, float, float | None] | None:
        """Return the first loss on any rank that is not finite, see `FirstNotFinite`; waits for the device."""
        self._loss.total()
        of_ranks = ranks.gather(self._first_not_finite.result())
        return min(filter(None, of_ranks), key=lambda first: first[0], default=None)

    def state(self, expected: Expected) -> dict[str, Any]:
        """Return the state of the sums to save after a batch; waits for the device."""
        with suppress(InvalidArgumentError):  # the error is raised when the size is used
            self.current_size(expected)
        numbers, losses = zip(*self._unsized, strict=True) if self._unsized else ((), ())
        return {
            "sums": {name: values.state() for name, values in self._sums.items()},
            "hows": dict(self._hows),
            "kept": (list(self._selected), packed(list(self._selected.values()))),
            "num_losses": self._num_losses,
            "unsized": (list(numbers), packed(list(losses))),
            "sizes": list(self._sizes),
            "last_size": self.last_size,
        }

    def load(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore a saved state, replacing all sums."""
        self._sums = {name: self._sums.get(name) or WeightedSum() for name in state["sums"]}
        for name, values in self._sums.items():
            values.load(state["sums"][name], device)
        (names, selected), (numbers, losses) = state["kept"], state["unsized"]
        self._hows = dict(state["hows"])
        self._selected = dict(zip(names, unpacked(selected, device), strict=True))
        self._num_losses, self._sizes = state["num_losses"], list(state["sizes"])
        self._unsized = deque(zip(numbers, unpacked(losses, device), strict=True))
        self._batch, self.last_size = None, state["last_size"]

    def _count(self, batch: Any, expected: Expected) -> int:
        if type(batch) is int or self._measure is None:
            return batch_size(batch, expected)
        return measured(self._measure, batch)

    def _match(self) -> None:
        # the tutorial's older form is track_loss(loss): its n-th call belongs to the n-th call of
        # track_num_correct
        while self._unsized and self._unsized[0][0] <= len(self._sizes):
            number, loss = self._unsized.popleft()
            size = self._sizes[number - 1]
            self._loss.add(loss, size, size)


def _selected_of(how: How, before: torch.Tensor | float, value: torch.Tensor | float) -> torch.Tensor | float:
    """Return the reduction of two values; NaN if one of them is NaN."""
    if how == "last":
        return value
    if isinstance(before, torch.Tensor) or isinstance(value, torch.Tensor):
        least_or_most = torch.minimum if how == "min" else torch.maximum
        device = next(item.device for item in (before, value) if isinstance(item, torch.Tensor))
        first, second = (torch.as_tensor(item, dtype=exact(device), device=device) for item in (before, value))
        return least_or_most(first, second)
    return math.nan if math.isnan(before + value) else (min if how == "min" else max)(before, value)


def warm_sums(device: torch.device) -> None:
    """Load an accelerator's kernels for the sums of an epoch, before a clock starts."""
    if device.type in ("cpu", "meta"):
        return
    sums, labels = EpochSums(), torch.zeros(2, dtype=torch.int64, device=device)
    for size in (2, 1):  # the last batch is often smaller
        sums.add_loss(torch.ones((), device=device), size)
        sums.add_correct(torch.zeros(2, 2, device=device), labels)
    sums.read()


def single(name: str, value: Any) -> torch.Tensor | float:
    """Return a single number in double precision; as a float if the number is on the cpu."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise InvalidArgumentError(
                f"{name} must be a single value, the mean over the batch, got a tensor of shape "
                f"{tuple(value.shape)}: call {'' if value.is_floating_point() else '.float()'}.mean() on it"
            )
        if not _is_read_at_once(value):
            scalar = value.detach() if value.ndim == 0 else value.detach().reshape(())
            dtype = exact(scalar.device)
            # clone the value, as the loop may modify the tensor
            return scalar.clone() if scalar.dtype == dtype else scalar.to(dtype)
        value = value.item()
    with suppress(TypeError, ValueError):
        if not isinstance(value, str | bytes):
            return float(value)
    raise InvalidArgumentError(f"{name} must be a number or a tensor of one, got {value!r}")


def check_column(name: str, params: Container[str]) -> None:
    """Check the name of a metric: it is an identifier, and not the name of a column or a hyperparameter."""
    if name.isidentifier() and name not in RESERVED and name not in params:
        return
    problem = "is a hyperparameter" if name in params else "is a column already"
    if hook := {"loss": "track_loss", "accuracy": "track_num_correct"}.get(name):
        problem = f"is a column already, which {hook} fills"
    if not name.isidentifier():
        problem = "is not an identifier"
    raise InvalidArgumentError(f"{name!r} {problem}: give the metric another name, as in track(f1=...)")


def column_of(name: str) -> str:
    """Return the column of a metric's name, in which a slash becomes an underscore.

    >>> column_of("val/loss")
    'val_loss'
    """
    return name.replace("/", "_")


def _is_read_at_once(tensor: torch.Tensor) -> bool:
    """Whether reading a value needs no synchronization; sums of numbers are faster than sums of tensors."""
    return tensor.is_cpu

"""Metrics of an epoch: sums that stay on the device and are read once."""

import itertools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from runmanager.core.loaders import Measure, batch_size, size_of_batch
from runmanager.core.values import RESERVED
from runmanager.devices import ranks
from runmanager.devices.torch_devices import send
from runmanager.errors import InvalidArgumentError, warn

How = Literal["mean", "sum", "last", "min", "max"]
"""The reduction of a metric over the batches of an epoch."""

CHUNK = 1024
"""The maximum number of tensors that wait until they are added up."""

IS_CPU_READ = True
"""Whether values on the cpu are read immediately, as sums of numbers are faster than sums of tensors."""

_HOWS = get_args(How)
_SAVED = ("_hows", "_selected", "_unsized", "_sizes", "_number", "_num_losses")  # the state of sums


@dataclass(eq=False, kw_only=True)
class Sum:
    """A weighted sum of single values that does not wait for the device."""

    is_watched: bool = False
    weight: int = 0  # the number of samples of the values
    of_numbers: float = 0.0
    chunk: list[torch.Tensor] | None = None  # None before the first tensor
    _factors: list[int] = field(default_factory=list)  # of the chunk
    _of_tensors: torch.Tensor | float = 0.0  # the sum of earlier chunks
    _count: int = 0  # the number of values before the chunk
    _last: torch.Tensor | float = 0.0  # the value before the chunk
    # the number (from 1) of the first value that is not finite, this value, and the value before it; None
    # without such a number; of tensors, a tensor (3,), of any value if all are finite
    first: Any = None

    def add(self, value: torch.Tensor | float, factor: int, weight: int) -> None:
        """Add ``factor * value`` for `weight` samples. A tensor is referenced, not copied."""
        self.weight += weight
        if self.chunk is None:
            if not isinstance(value, torch.Tensor):
                self.of_numbers += value * factor
                if self.is_watched:
                    self._count += 1
                    if self.first is None and not math.isfinite(value):
                        self.first = [self._count, value, self._last]
                    self._last = value
                return
            self.chunk, self._device = [], value.device
        # after a tensor, numbers are collected too, as the order of the values counts
        self.chunk.append(_tensor(value, self._device))
        self._factors.append(factor)
        if len(self.chunk) == CHUNK:
            self.total()

    def total(self) -> torch.Tensor | float:
        """Return the sum so far, on the device of its first tensor, if any."""
        if self.chunk:
            values = torch.stack(self.chunk).to(exact(self._device))
            start = 0
            # usually all factors are equal, except the last one; the addition is not in place, as hooks may be
            # called inside or outside no_grad and inference_mode
            for factor, same in itertools.groupby(self._factors):
                end = start + len(list(same))
                self._of_tensors = values[start:end].sum() * factor + self._of_tensors
                start = end
            self.chunk, self._factors = [], []
            if self.is_watched and not isinstance(self.first, list):
                self._watch(values)
        return self._of_tensors + self.of_numbers

    def _watch(self, values: torch.Tensor) -> None:
        """Find the first of the values ``(n,)`` that is not finite, on their device."""
        index = values.isfinite().logical_not().int().argmax(dim=0, keepdim=True)
        before = torch.cat([_tensor(self._last, values.device).reshape(1), values])
        first = torch.cat([index + self._count + 1, values[index], before[index]])
        if self.first is not None:
            first = torch.where(self.first[1].isfinite(), first, self.first)
        self.first, self._count, self._last = first, self._count + len(values), values[-1]

    def state(self) -> dict[str, Any]:
        """Return the state to save; the chunk is one tensor, as a checkpoint has a file for each tensor."""
        return {**vars(self), "chunk": torch.stack(self.chunk) if self.chunk else self.chunk, "_device": None}

    def load(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore a saved state, replacing the sum."""
        vars(self).update(send(state, device))
        self._device = device
        if self.chunk is not None:
            self.chunk = list(self.chunk)  # the rows of one tensor


class EpochSums:
    """The sums and counts of one epoch. Adding never waits for the device; `means` waits once.

    A mean is weighted by the samples of its batch. In a batch of `begin_batch`, the n-th value of a name
    belongs to the n-th loss with a size, or to the n-th labels; if their numbers differ, to the whole batch. In
    other loops, a value belongs to the last batch; if its name came before the first batch, to the next one.
    """

    def __init__(
        self,
        measure: Measure | None = None,
        loader: Any = None,
        check: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.measure: Measure | None = measure
        self._loader, self._check = loader, check
        self.is_tracked: bool = False  # whether the current batch has a value
        self.loss: Sum = Sum(is_watched=True)
        self.accuracy: Sum = Sum()
        self._sums = {"loss": self.loss, "accuracy": self.accuracy}
        self.sources: dict[str, str] = {}  # column -> what fills it: a name, a hook or an evaluation
        self._hows: dict[str, How] = {"loss": "mean", "accuracy": "mean"}
        self._selected: dict[str, torch.Tensor | float] = {}  # column -> last, smallest or largest value
        self._waiting: dict[str, list[torch.Tensor | float]] = {}  # the means whose batch has not ended
        self._batch: Any = None  # the current batch of `begin_batch`
        self._number = 0  # the number of these batches so far
        self._of_losses: list[int] = []  # the sizes that losses gave in the current batch
        self._of_labels: list[int] = []
        # in other loops, a name that came before the first size belongs to the next size, else to the last one
        self._size: int | None = None  # the last size
        # name -> the number of batches before it came, 0 before the first size
        self._first: dict[str, int] = {}
        # name -> its number of values in each batch, where several are doubtful
        self._usual: dict[str, int] = {}
        # in both, a loss without a size waits for the labels of the same number
        self._num_losses = 0
        self._sizes: list[int] = []  # of all labels
        self._unsized: list[tuple[int, torch.Tensor | float]] = []  # the losses that wait, and their numbers

    def begin_batch(self, batch: Any) -> None:
        """Set the current batch."""
        if self._waiting:
            self._end_batch()
        self._batch, self.is_tracked = batch, False
        self._number += 1
        self._of_losses, self._of_labels = [], []

    def add_loss(self, loss: torch.Tensor | float, batch: Any) -> None:
        """Add the mean loss of a batch."""
        loss = single("loss", loss)
        if not self._num_losses:
            claim_column(self.sources, "loss", "track_loss()")
        self._num_losses += 1
        self.is_tracked = True
        if batch is None and self.measure is not None:
            batch = self._batch
        if batch is None:
            self._unsized.append((self._num_losses, loss))
            self._match()
            return
        if isinstance(batch, torch.Tensor) and batch.ndim and self.measure is None:
            size = batch.shape[0]
        else:
            size = batch_size(batch, self.measure, self._loader, self._number or self._num_losses)
        if size < 1:
            raise InvalidArgumentError(f"a batch has at least one sample, got {size}: leave it out")
        self.loss.add(loss, size, size)
        if self._number:
            self._of_losses.append(size)
            return
        if self._waiting:
            self._end_unbatched(size)
        self._size = size

    def add_correct(self, preds: torch.Tensor, labels: torch.Tensor) -> None:
        """Count the correct predictions of a batch."""
        if preds.ndim > 0 and preds.shape[1:] in ((), (1,)) and labels.shape in (preds.shape, preds.shape[:1]):
            self._add_size(len(labels))
            warn(
                f"predictions of shape {tuple(preds.shape)} are no scores of classes, so there is no accuracy: "
                "leave track_num_correct() out, override get_num_correct(), or track another metric"
            )
        else:
            self.add_count(are_correct(preds, labels).count_nonzero(), preds[:, :1].numel(), len(labels))

    def add_count(self, count: torch.Tensor | float, num_predictions: int, size: int) -> None:
        """Add the number of correct predictions of a batch with `size` samples."""
        claim_column(self.sources, "accuracy", "track_num_correct()")
        if isinstance(count, torch.Tensor) and count.is_cpu and IS_CPU_READ:
            count = count.item()
        self.accuracy.add(count, 1, num_predictions)
        self._add_size(size)

    def _add_size(self, size: int) -> None:
        self.is_tracked = True
        self._sizes.append(size)
        self._match()
        if self.measure is not None:  # the user's function counts the batch
            return
        if self._number:
            self._of_labels.append(size)
            return
        self._end_unbatched(size)
        self._size = size

    def _match(self) -> None:
        # the tutorial's older form is track_loss(loss): its n-th call belongs to the n-th call of
        # track_num_correct
        while self._unsized and self._unsized[0][0] <= len(self._sizes):
            number, loss = self._unsized.pop(0)
            size = self._sizes[number - 1]
            self.loss.add(loss, size, size)

    def track(self, name: str, value: torch.Tensor | float, how: How) -> None:
        """Add a value of the current batch, see `RunManager.track`."""
        source, name = name, column_of(name)
        if name not in self.sources:
            self._check(name)
        if how not in _HOWS:
            raise InvalidArgumentError(
                f"how must be one of {', '.join(map(repr, _HOWS))}, got {how!r}; a metric of that name: "
                "track({'how': ...})"
            )
        claim_column(self.sources, name, source if how == "mean" else f"{source} with how={how!r}")
        self._hows[name] = how
        self.is_tracked = True
        value = single(name, value)
        if how not in ("mean", "sum"):
            self._selected[name] = _selected_of(how, self._selected.get(name, value), value)
            return
        if name not in self._sums:  # before its first sum, as columns keep the order of the calls
            self._sums[name] = Sum()
        if how == "sum":
            self._sums[name].add(value, 1, 1)
            return
        if not self._number and name not in self._first:
            self._first[name] = 0 if self._size is None else max(self._num_losses, len(self._sizes))
        self._waiting.setdefault(name, []).append(value)

    def _end_unbatched(self, size: int | None = None) -> None:
        """Add the means of a loop without `begin_batch`, when a size comes, or at the end of the loop."""
        for name, values in self._waiting.items():
            num, first = len(values), self._first[name]
            weight = self._size if first else size
            # several values of a later name come from a loop of its own; a change of their number, from a batch
            # that was left out
            is_certain = first == 1 or num == self._usual.setdefault(name, 1 if first else num)
            sizes = [weight] * num
            if weight is None:
                sizes = [size_of_batch(self._loader, number) for number in range(1, num + 2)]
                is_certain = self._size is None
                if not is_certain or None in sizes[:-1] or sizes.pop() is not None:
                    is_certain &= num == 1
                    sizes = [self._size or 1] * num
            if not is_certain:
                _say_unsized(name)
            for value, of_value in zip(values, sizes, strict=False):
                self._sums[name].add(value, of_value or 1, of_value or 1)
        self._waiting = {}

    def _end_batch(self) -> None:
        """Add the means of the current batch, or of a loop that has ended."""
        if not self._number:
            self._end_unbatched()
        waiting, self._waiting = self._waiting, {}
        given = self._of_losses or self._of_labels
        for name, values in waiting.items():
            if len(values) == len(self._of_losses):
                sizes = self._of_losses
            elif len(values) == len(self._of_labels):
                sizes = self._of_labels
            else:
                sizes = [self._whole_size(given)] * len(values)
                is_late = self._number > 1 and not self._sums[name].weight
                if len(values) > 1 and (is_late or not given):  # late as in a loop over other batches
                    _say_unsized(name)
            if self._first.pop(name, None) is not None:  # it came before the first batch too
                _say_unsized(name)
            for value, size in zip(values, sizes, strict=True):
                self._sums[name].add(value, size, size)

    def _whole_size(self, given: list[int]) -> int:
        """Return the size of the current batch; `given` are the sizes of its parts, or of other batches."""
        try:
            size = batch_size(self._batch, self.measure, self._loader, self._number)
        except InvalidArgumentError:
            if not given:
                raise
            return given[-1]
        return size if not given or sum(given) == size else given[-1]

    def means(self) -> dict[str, float]:
        """Read every metric of the epoch over all ranks, with one transfer per device."""
        if self._waiting:
            self._end_batch()
        for count, loss in self._unsized:
            size = size_of_batch(self._loader, count)
            if size is None:
                raise InvalidArgumentError(
                    "the loader does not show how many samples a batch has: call track_loss(loss, batch)"
                )
            self.loss.add(loss, size, size)
        self._unsized.clear()
        totals = {name: values.total() for name, values in self._sums.items() if values.weight}
        totals |= self._selected
        values = {
            name: (self._hows[name], number, self._sums[name].weight if name in self._sums else 1)
            for name, number in zip(totals, read_values(list(totals.values())), strict=True)
        }
        merged, *others = ranks.gather(values)
        for other in others:
            for name, (how, number, weight) in other.items():
                if name not in merged:
                    merged[name] = how, number, weight
                    continue
                _, before, num = merged[name]
                is_sum = how in ("mean", "sum")
                total = before + number if is_sum else float(_selected_of(how, number, before))
                merged[name] = how, total, num + weight
        return {
            name: number / weight if how == "mean" else number for name, (how, number, weight) in merged.items()
        }

    def first_not_finite(self) -> tuple[int, float, float] | None:
        """Return the number (from 1) of the first loss that is not finite, that loss, and the one before it."""
        self.loss.total()
        first = self.loss.first
        number, loss, before = first.tolist() if isinstance(first, torch.Tensor) else first or (0, 0.0, 0.0)
        of_rank = None if math.isfinite(loss) else (int(number), loss, before)
        return min(filter(None, ranks.gather(of_rank)), default=None)

    def state(self) -> dict[str, Any]:
        """Return the state of the sums to save after a batch; waits for the device."""
        if self._waiting:
            self._end_batch()
        sums = {name: values.state() for name, values in self._sums.items()}
        return {"sums": sums, **{name: vars(self)[name] for name in _SAVED}}

    def load(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore a saved state, replacing all sums."""
        self._sums = {name: self._sums.get(name, Sum()) for name in state["sums"]}
        for name, values in self._sums.items():
            values.load(state["sums"][name], device)
        vars(self).update(send({name: state[name] for name in _SAVED}, device))
        self._batch, self._waiting = None, {}


def _say_unsized(name: str) -> None:
    warn(
        f"values of {name!r} count the same, as the sizes of their batches are unknown: loop over "
        "manager.batches(), or call track_loss(loss, batch) for each of them"
    )


def _selected_of(how: How, before: torch.Tensor | float, value: torch.Tensor | float) -> torch.Tensor | float:
    """Return the reduction of two values; NaN if one of them is NaN."""
    if how == "last":
        return value
    for item in (value, before):
        if isinstance(item, torch.Tensor):
            select = torch.minimum if how == "min" else torch.maximum
            return select(_tensor(before, item.device), _tensor(value, item.device))
    if math.isnan(before) or math.isnan(value):
        return math.nan
    return (min if how == "min" else max)(before, value)


def _tensor(value: torch.Tensor | float, device: torch.device) -> torch.Tensor:
    """Return a single value on a device."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device)
    return torch.full((), value, dtype=exact(device), device=device)  # does not wait, unlike torch.tensor


def warm_sums(device: torch.device) -> None:
    """Load an accelerator's kernels for the sums of an epoch, before a clock starts."""
    sums, labels = EpochSums(), torch.zeros(2, dtype=torch.int64, device=device)
    for size in (2, 1):  # the last batch is often smaller
        sums.add_loss(torch.ones((), device=device), size)
        sums.add_correct(torch.zeros(2, 2, device=device), labels)
    read_values([sums.loss.total(), sums.accuracy.total()])


def single(name: str, value: Any) -> torch.Tensor | float:
    """Return a single number in double precision; as a float if the number is on the cpu."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise InvalidArgumentError(
                f"{name} must be a single value, the mean over the batch, got a tensor of shape "
                f"{tuple(value.shape)}: call .float().mean() on it"
            )
        if not (value.is_cpu and IS_CPU_READ):
            # copy the value, as the loop may modify the tensor
            return value.detach().reshape(()).to(exact(value.device), copy=True)
        value = value.item()
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise InvalidArgumentError(f"{name} must be a number or a tensor of one, got {value!r}")


def exact(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def read_values(values: Sequence[torch.Tensor | float]) -> list[float]:
    """Read single values with one transfer per device."""
    numbers: list[Any] = list(values)
    indices: dict[torch.device, list[int]] = {}
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            indices.setdefault(value.device, []).append(index)
    for of_device in indices.values():
        read = torch.stack([numbers[index] for index in of_device]).tolist()
        for index, number in zip(of_device, read, strict=True):
            numbers[index] = number
    return numbers


def are_correct(preds: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return whether the label of each sample has the largest score, on the device; shapes must match."""
    shape = preds.shape
    if labels.shape == shape and len(shape) > 1:
        labels = labels.argmax(dim=1)  # the labels are one-hot
    if not are_classes(preds, labels):
        raise InvalidArgumentError(
            "preds must have the shape (N, number of classes) and labels (N,), got "
            f"{tuple(preds.shape)} and {tuple(labels.shape)}"
        )
    return preds.detach().argmax(dim=1) == labels


def are_classes(preds: torch.Tensor, labels: torch.Tensor) -> bool:
    """Whether predictions are scores ``(N, C, ...)`` and labels class numbers ``(N, ...)``."""
    shape = preds.shape
    return preds.ndim > 1 and labels.shape == shape[:1] + shape[2:]


def check_column(name: str, params: Container[str]) -> None:
    """Check the name of a metric: it is an identifier, and not the name of a column or a hyperparameter."""
    if not name.isidentifier():
        problem = "is not an identifier"
    elif hook := {"loss": "track_loss", "accuracy": "track_num_correct"}.get(name):
        problem = f"is a column already, which {hook} fills"
    elif name in params:
        problem = "is a hyperparameter"
    elif name in RESERVED:
        problem = "is a column already"
    else:
        return
    raise InvalidArgumentError(f"{name!r} {problem}: give the metric another name, as in track(f1=...)")


def claim_column(sources: dict[str, str], column: str, source: str) -> None:
    """Refuse a second source of a column."""
    before = sources.setdefault(column, source)
    if before != source:
        raise InvalidArgumentError(
            f"{column!r} has two sources, {before} and {source}: give one of them another name"
        )


def column_of(name: str) -> str:
    """Return the column of a metric's name, in which a slash becomes an underscore."""
    return name.replace("/", "_")

"""The number of samples of a batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from runmanager.core.wording import counted
from runmanager.errors import InvalidArgumentError, is_count

Measure = Callable[[Any], int]
"""The function of `batch_size=`: batch -> its number of samples."""

_IMAGE_DIMENSIONS = 3  # number of dimensions of one image: channels, height and width


def batch_size(batch: Any, expected: Callable[[], int | None] = lambda: None) -> int:
    """Return the number of samples of a batch.

    >>> batch_size((torch.zeros(7, 3), torch.zeros(7))), batch_size({"x": torch.zeros(5)}), batch_size(3)
    (7, 5, 3)
    >>> batch_size(([torch.zeros(3, 9, 9)] * 5, [{"boxes": None}] * 5))
    5
    """
    sizes = _sizes(batch)
    if len(sizes) == 1:
        return sizes.pop()
    size = expected()
    if size is not None and size in (sizes or _sizes_of_parts(batch)):
        return size
    raise InvalidArgumentError(_problem(batch))


def measured(measure: Measure, batch: Any) -> int:
    """Return the number of samples of a batch, from the user's function."""
    size = measure(batch)
    if not is_count(size, 1):
        raise InvalidArgumentError(f"batch_size must return a whole number, 1 or more, got {size!r}")
    return size


def may_be_images(items: Sequence[Any]) -> bool:
    """Whether the items of a list may be images, instead of the parts of a batch."""
    return bool(items) and all(
        isinstance(item, torch.Tensor) and item.ndim == _IMAGE_DIMENSIONS and item.dtype == items[0].dtype
        for item in items
    )


def _sizes(item: Any, *, is_part: bool = False) -> set[int]:
    """Return the possible sizes of a batch, or of a part of a batch."""
    if isinstance(item, int) and not isinstance(item, bool):
        return set() if is_part else {item}  # a number in a part of a batch is data
    if isinstance(item, PackedSequence):
        return {int(item.batch_sizes[0])}
    if (shape := getattr(item, "shape", None)) is not None and not callable(shape):
        return {int(shape[0])} if len(shape) else set()
    if isinstance(item, str | bytes) or not isinstance(item, Mapping | tuple | list):
        return set()
    # parts without a size do not count
    parts = item.values() if isinstance(item, Mapping) else item
    of_parts = [
        _sizes(part, is_part=True) for part in parts if _sizes_of_parts(part) or _sizes(part, is_part=True)
    ]
    sizes = set.intersection(*of_parts) if of_parts else set()
    is_list = isinstance(item, list) and (is_part or may_be_images(item))
    return sizes | {len(item)} if is_list else sizes


def _sizes_of_parts(item: Any) -> set[int]:
    """Return the sizes of all parts, whether they are equal or not."""
    if isinstance(item, Mapping | tuple | list) and not isinstance(item, PackedSequence):
        parts = item.values() if isinstance(item, Mapping) else item
        return set().union(*(_sizes(part, is_part=True) | _sizes_of_parts(part) for part in parts))
    return set()


def _problem(batch: Any) -> str:
    step = "pass their number, as in track_loss(loss, len(labels)), or give batch_size=lambda batch: ..."
    if sizes := _sizes(batch) or _sizes_of_parts(batch):
        several = " or ".join(counted(size, "sample") for size in sorted(sizes)[:4])
        return f"the batch has {several}, depending on which part is counted: {step}"
    return f"cannot count the samples of a {type(batch).__name__}: {step}"

"""Cutting a batch of any form into pieces of its samples."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from runmanager.errors import MetricError
from runmanager.training.batch_size import batch_size, may_be_images


def num_samples(batch: Any) -> int:
    """Return how many samples can be cut from a batch; (inputs, labels) has as many as labels.

    Raises:
        MetricError: It cannot be cut: its parts have different lengths, or are of an unknown form.
    """
    is_pair = isinstance(batch, tuple) and len(batch) == 2  # noqa: PLR2004 - see above
    if is_pair and isinstance(batch[1], torch.Tensor) and batch[1].ndim:
        return len(batch[1])
    try:
        return batch_size(batch)
    except MetricError:
        raise MetricError(
            f"micro_batch cannot cut a {type(batch).__name__} whose parts have different lengths, or none: "
            "leave it out, or let the loader yield tensors of one length"
        ) from None


def piece_of(item: Any, size: int, piece: slice, *, is_part: bool = False) -> Any:
    """Cut samples from a batch of `size`, or from a part of one; numbers, text and the like are in each piece.

    A list within a batch may hold parts or samples, as for `batch_size`.

    Raises:
        MetricError: A part has another length.

    >>> piece_of({"x": torch.arange(4), "names": ["a", "b", "c", "d"], "scale": 2}, 4, slice(1, 3))
    {'x': tensor([1, 2]), 'names': ['b', 'c'], 'scale': 2}
    """
    if isinstance(item, Mapping):
        return {name: piece_of(part, size, piece, is_part=True) for name, part in item.items()}
    if isinstance(item, (tuple, list)) and not isinstance(item, PackedSequence):
        is_list = isinstance(item, list) and len(item) == size
        if is_list and (may_be_images(item) or (is_part and not _are_parts(item, size))):
            return item[piece]  # a sample per item
        parts = [piece_of(part, size, piece, is_part=True) for part in item]
        return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
    shape = getattr(item, "shape", None)
    if isinstance(item, PackedSequence) or (shape and shape[0] != size):
        what = f"a part of shape {tuple(shape)}" if shape else f"a {type(item).__name__}"
        raise MetricError(f"micro_batch cannot cut {what} in a batch of {size} samples: leave it out")
    return item[piece] if shape else item


def _are_parts(items: Any, size: int) -> bool:
    """Whether all items have as many samples as the batch, so that the list holds parts and not samples."""
    return all(isinstance(item, (torch.Tensor, list)) and len(item) == size for item in items)

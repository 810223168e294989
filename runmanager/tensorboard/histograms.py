"""The histograms of a network's parameters and gradients, computed on their device and read in one transfer."""

from collections.abc import Mapping, Sequence
from functools import reduce
from math import isfinite

import numpy as np
import torch
from tensorboard.compat.proto.summary_pb2 import HistogramProto

BINS = 30
"""The number of buckets in a histogram, TensorBoard's default."""

_AT_ONCE = 1 << 22  # number of values per pass, as a pass makes several copies


def histograms(values: Mapping[str, torch.Tensor]) -> dict[str, HistogramProto]:
    """Return the histogram of each tensor's finite values; the buckets are equal, from minimum to maximum."""
    drawn: dict[str, HistogramProto] = {}
    for name, row in statistics(values).items():
        low, high, total, squares, *counts = row
        if low == high:
            low, high, counts = low - 0.5, high + 0.5, [sum(counts)]
        limits = np.linspace(low, high, len(counts) + 1)[1:]  # the first bucket begins at the minimum
        drawn[name] = HistogramProto(
            min=low, max=high, num=sum(counts), sum=total, sum_squares=squares,
            bucket_limit=limits.tolist(), bucket=counts,
        )  # fmt: skip
    return drawn


def statistics(values: Mapping[str, torch.Tensor]) -> dict[str, list[float]]:
    """Return min, max, sum, sum of squares and counts of 30 buckets of each tensor's finite values."""
    of_device: dict[torch.device, dict[str, torch.Tensor]] = {}
    for name, tensor in values.items():
        of_device.setdefault(tensor.device, {})[name] = tensor.reshape(-1)
    rows: dict[str, list[float]] = {}
    with torch.no_grad():
        for tensors in of_device.values():
            rows |= zip(tensors, _rows([*tensors.values()]), strict=True)
        for name, (low, high, *_) in rows.items():
            if not (isfinite(low) and isfinite(high)):
                finite = values[name][values[name].isfinite()]
                rows[name] = _rows([finite])[0] if len(finite) else []
    return {name: rows[name] for name in values if rows[name]}


def _rows(tensors: Sequence[torch.Tensor]) -> list[list[float]]:
    """Return the statistics of tensors ``(n,)`` of one device, read at once."""
    double = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    # cat finds the common type of half, single and double precision
    ends = torch.cat([end.reshape(1) for tensor in tensors for end in torch.aminmax(tensor)]).to(double)
    lows, highs = ends[::2], ends[1::2]
    widths = (highs / BINS - lows / BINS).clamp_min(torch.finfo(double).tiny)
    rows = []
    for tensor, low, width in zip(tensors, lows, widths, strict=True):
        pieces = [tensor] if len(tensor) <= _AT_ONCE else torch.split(tensor, _AT_ONCE)
        rows.append(reduce(torch.add, [_sums(piece.to(double), low, width) for piece in pieces]))
    table: list[list[float]] = torch.cat([ends.reshape(-1, 2), torch.stack(rows)], dim=1).tolist()
    return table


def _sums(values: torch.Tensor, low: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
    """Compute sum, sum of squares and counts of buckets of doubles ``(n,)``."""
    sums = torch.stack([values.sum(), values.dot(values)])
    buckets = (values - low).div_(width).nan_to_num_(0).clamp_(0, BINS - 1).to(torch.uint8)
    return torch.cat([sums, torch.bincount(buckets, minlength=BINS)])

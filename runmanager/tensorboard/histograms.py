"""The histograms of a network's parameters and gradients, computed on their device and read in one transfer."""

from collections.abc import Mapping, Sequence
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
    rows: dict[str, list[float]] = {}
    with torch.no_grad():
        for device in dict.fromkeys(tensor.device for tensor in values.values()):
            names = [name for name, tensor in values.items() if tensor.device == device]
            pieces = {name: torch.split(values[name].reshape(-1), _AT_ONCE) for name in names}
            read = torch.stack([_row(pieces[name]) for name in names]).tolist()
            for name, row in zip(names, read, strict=True):
                rows[name] = row
                if not (isfinite(row[0]) and isfinite(row[1])):
                    finite = [numbers for piece in pieces[name] if len(numbers := piece[piece.isfinite()])]
                    rows[name] = _row(finite).tolist() if finite else []
    return {name: rows[name] for name in values if rows[name]}


def _row(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Compute the statistics ``(4 + BINS,)`` of a tensor in pieces, on its device."""
    double = torch.float32 if pieces[0].device.type == "mps" else torch.float64
    exact = double if pieces[0].dtype == torch.float64 else torch.float32
    ends = torch.stack([torch.stack(torch.aminmax(piece)) for piece in pieces]).to(exact)
    low, high = ends[:, 0].min(), ends[:, 1].max()
    width = (high / BINS - low / BINS).clamp_min(torch.finfo(exact).tiny)
    sums, counts = [], []
    for piece in pieces:
        numbers = piece.to(double)
        sums.append(torch.stack([numbers.sum(), numbers.square().sum()]))
        positions = ((piece.to(exact) - low) / width).nan_to_num_(0).clamp_(0, BINS - 1)
        counts.append(torch.bincount(positions.to(torch.uint8), minlength=BINS))
    total, count = torch.stack(sums).sum(dim=0), torch.stack(counts).sum(dim=0)
    return torch.cat([torch.stack([low, high]), total, count])

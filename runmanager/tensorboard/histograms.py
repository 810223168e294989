"""Histograms of parameters and gradients, computed on their device and read in one transfer."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import torch
from torch import nn

BINS = 30
"""The number of buckets in a histogram, TensorBoard's default."""

_LEAST = 32  # minimum number of values; with fewer values, a histogram has mostly gaps
_AT_ONCE = 1 << 22  # number of values per pass, as a pass makes several copies
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def tensors(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights and gradients of a network with enough values, by tag."""
    drawn: dict[str, torch.Tensor] = {}
    for name, parameter in network.named_parameters():
        if _has_values(parameter) and parameter.numel() >= _LEAST:
            kind = ":bias" if name.rpartition(".")[2].startswith("bias") else ""
            drawn[f"weights{kind}/{name}"] = parameter
            if parameter.grad is not None and _has_values(parameter.grad):
                drawn[f"weights:grad{kind}/{name}"] = parameter.grad
    return drawn


def statistics(values: Mapping[str, torch.Tensor]) -> dict[str, list[float]]:
    """Return min, max, sum, sum of squares and counts of 30 buckets of each tensor's finite values."""
    rows_by_name: dict[str, list[float]] = {}
    with torch.no_grad():
        for group in _groups(values):
            flat = [values[name].detach().reshape(-1) for name in group]
            rows = _in_pieces(flat[0]) if len(flat[0]) > _AT_ONCE else _statistics(flat)
            rows_by_name.update(zip(group, rows.tolist(), strict=True))
        for name, (low, high, *_) in list(rows_by_name.items()):
            if not (isfinite(low) and isfinite(high)):
                (rows_by_name[name],) = _in_pieces(values[name].detach().reshape(-1), only_finite=True).tolist()
    return {name: row for name, row in rows_by_name.items() if isfinite(row[0])}


def _groups(values: Mapping[str, torch.Tensor]) -> Iterator[list[str]]:
    """Yield groups of names; the tensors of a group are on one device and fit into memory together."""
    for device in dict.fromkeys(tensor.device for tensor in values.values()):
        group, size = list[str](), 0
        for name, tensor in values.items():
            if tensor.device != device:
                continue
            if group and size + tensor.numel() > _AT_ONCE:
                yield group
                group, size = [], 0
            group.append(name)
            size += tensor.numel()
        yield group


def _in_pieces(tensor: torch.Tensor, *, only_finite: bool = False) -> torch.Tensor:
    """Compute the row ``(1, 4 + BINS)`` of a tensor ``(n,)`` in pieces, to save memory."""

    def pieces() -> Iterator[torch.Tensor]:
        for piece in torch.split(tensor, _AT_ONCE):
            if len(values := piece[piece.isfinite()] if only_finite else piece):
                yield values

    ends = [torch.stack(torch.aminmax(piece)) for piece in pieces()]
    if not ends:
        return torch.full((1, 4 + BINS), torch.nan)
    ends = [_exact(end) for end in ends]
    ranges = torch.stack([torch.stack(ends)[:, 0].min(), torch.stack(ends)[:, 1].max()]).reshape(1, 2)
    rows = [_statistics([piece], ranges) for piece in pieces()]
    return torch.cat([rows[0][:, :2], torch.stack([row[:, 2:] for row in rows]).sum(dim=0)], dim=1)


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the precision in which its range and buckets are computed."""
    is_double = tensor.dtype == torch.float64 and tensor.device.type != "mps"
    return tensor.to(torch.float64 if is_double else torch.float32)


def _statistics(tensors: Sequence[torch.Tensor], ranges: torch.Tensor | None = None) -> torch.Tensor:
    """Compute the rows ``(len(tensors), 4 + BINS)`` of finite tensors ``(n,)`` on one device."""
    exact = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    tensors = [_exact(tensor) for tensor in tensors]
    sizes, shape = [len(tensor) for tensor in tensors], (len(tensors), -1)
    if ranges is None:
        ranges = torch.stack([end for tensor in tensors for end in torch.aminmax(tensor)]).reshape(shape)
    widths = (ranges[:, 1] / BINS - ranges[:, 0] / BINS).clamp_min(torch.finfo(ranges.dtype).tiny)
    values = torch.cat(tensors)
    doubles = torch.split(values.to(exact), sizes)
    totals = [total for part in doubles for total in (part.sum(), part.square().sum())]
    sums = torch.stack(totals).reshape(shape)
    for part, low, width in zip(torch.split(values, sizes), ranges[:, 0], widths, strict=True):
        part.sub_(low).div_(width)
    buckets = values.nan_to_num_(0).clamp_(0, BINS - 1).int()
    for number, part in enumerate(torch.split(buckets, sizes)):
        part.add_(number * BINS)
    counts = torch.bincount(buckets, minlength=len(tensors) * BINS).reshape(shape)
    return torch.cat([ranges, sums, counts], dim=1)


def gradient_norm(network: nn.Module) -> torch.Tensor | None:
    """Return the 2-norm of all gradients; None without gradients."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None and _has_values(p.grad)]
    with torch.no_grad():
        return nn.utils.get_total_norm([grad.detach() for grad in gradients]) if gradients else None


def _has_values(tensor: torch.Tensor) -> bool:
    return (
        not isinstance(tensor, nn.UninitializedParameter)
        and tensor.layout == torch.strided
        and tensor.dtype in _DTYPES
        and tensor.numel() > 0
        and tensor.device.type != "meta"
    )

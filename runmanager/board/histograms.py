"""Histograms of parameters and gradients, computed where they are and fetched at once."""

from collections.abc import Iterable, Mapping

import torch
from torch import nn

BINS = 30
"""Buckets of a histogram; TensorBoard draws 30 by default."""

_SHOWN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def tensors(network: nn.Module) -> dict[str, torch.Tensor]:
    """Collect what is drawn of a network: weights and gradients that have values, by tag."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in network.named_parameters():
        if _is_drawn(parameter):
            found[f"weights/{name}"] = parameter
            if parameter.grad is not None and _is_drawn(parameter.grad):
                found[f"weights_grad/{name}"] = parameter.grad
    return found


def statistics(values: Mapping[str, torch.Tensor]) -> dict[str, list[float]]:
    """Compute min, max, sum, sum of squares and the counts of 30 buckets of each tensor's finite values.

    One transfer per device. A tensor without finite values is left out.
    """
    found: dict[str, list[float]] = {}
    for device in dict.fromkeys(tensor.device for tensor in values.values()):
        names = [name for name, tensor in values.items() if tensor.device == device]
        with torch.no_grad():
            stacked = torch.stack([_statistics(values[name].detach()) for name in names])
        found.update(zip(names, stacked.tolist(), strict=True))
    return {name: stats for name, stats in found.items() if sum(stats[4:]) > 0}


def _statistics(tensor: torch.Tensor) -> torch.Tensor:
    exact = torch.float32 if tensor.device.type == "mps" else torch.float64
    values = tensor.reshape(-1).to(torch.float32 if tensor.dtype != torch.float64 else exact)
    finite = values.isfinite()
    low = values.masked_fill(~finite, torch.inf).amin()
    high = values.masked_fill(~finite, -torch.inf).amax()
    values = values.masked_fill(~finite, 0)
    width = ((high - low) / BINS).clamp_min(torch.finfo(values.dtype).tiny)
    buckets = ((values - low) / width).nan_to_num(0).clamp(0, BINS - 1).long()
    counts = torch.zeros(BINS, dtype=exact, device=values.device)
    counts.index_add_(0, buckets, finite.to(exact))
    sums = torch.stack([values.sum(dtype=exact), values.to(exact).square().sum()])
    return torch.cat([torch.stack([low, high]).to(exact), sums, counts])


def gradient_norm(network: nn.Module) -> torch.Tensor | None:
    """Compute the 2-norm of all gradients, None if there are none."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None and _is_drawn(p.grad)]
    return _norm(gradients) if gradients else None


def _norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return nn.utils.get_total_norm([gradient.detach() for gradient in gradients])


def _is_drawn(tensor: torch.Tensor) -> bool:
    return (
        not isinstance(tensor, nn.UninitializedParameter)
        and tensor.layout == torch.strided
        and tensor.dtype in _SHOWN
        and tensor.numel() > 0
        and tensor.device.type != "meta"
    )

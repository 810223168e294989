"""What a network computes of a batch, to train or to evaluate: the loss, outputs and targets."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from runmanager.errors import MetricError
from runmanager.training.correct import are_classes

Loss = Callable[[Any, Any], torch.Tensor]
BatchStep = Callable[[nn.Module, Any], Any]
"""What `step=` takes: the network and a batch -> (loss, outputs, targets)."""

Pair = tuple[Any, Any]
"""Inputs and labels."""

Computed = tuple[Any, Any, Any]
"""Loss, outputs and targets; the latter two are None where the step returned the loss alone."""


def pair_of(batch: Any, call: str) -> Pair:
    """Take a batch that is (inputs, labels); `call` is what needs it so.

    Raises:
        MetricError: It is none.
    """
    pair: Any = () if isinstance(batch, Mapping | torch.Tensor) else batch  # a mapping has its keys for items
    try:
        inputs, labels = pair
    except (TypeError, ValueError):
        rule = f"{call} takes batches of (inputs, labels), got {_described(batch)}"
        raise MetricError(f"{rule}: write step=lambda network, batch: (loss, outputs, targets)") from None
    return inputs, labels


def of_step(result: Any) -> Computed:
    """Take what a step returned: (loss, outputs, targets), or the loss alone.

    Raises:
        MetricError: It is neither.
    """
    if isinstance(result, tuple) and len(result) == 3:  # noqa: PLR2004 - see above
        return result
    if isinstance(result, tuple | list | Mapping):
        raise MetricError(f"step= must return (loss, outputs, targets) or the loss, got {_described(result)}")
    return result, None, None


def has_classes(outputs: Any, targets: Any, step: BatchStep | None) -> bool:
    """Whether predictions can be right or wrong: targets are classes. A step may have other targets too."""
    are_tensors = isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor)
    may_be = are_tensors and outputs.ndim > 1 and not targets.is_floating_point()
    return may_be and (step is None or are_classes(outputs, targets))


def counted_part(batch: Any, targets: Any, *, is_measured: bool) -> Any:
    """Return what the samples of a batch are counted by: its targets, unless the user counts them."""
    has_size = not is_measured and isinstance(targets, torch.Tensor) and targets.ndim > 0
    return targets if has_size else batch


def _described(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a mapping with {', '.join(map(repr, batch))}"
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"

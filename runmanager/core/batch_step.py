"""The computation of a batch, to train or to evaluate: loss, outputs and targets."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from runmanager.core.correct import are_classes
from runmanager.errors import InvalidArgumentError

Loss = Callable[[Any, Any], torch.Tensor]
BatchStep = Callable[[nn.Module, Any], Any]
"""The function of `step=`: network, batch -> (loss, outputs, targets)."""

Pair = tuple[Any, Any]
"""A batch of inputs and labels."""

Computed = tuple[Any, Any, Any]
"""Loss, outputs and targets. Outputs and targets are None if the step returned only the loss."""


def pair_of(batch: Any, call: str) -> Pair:
    """Unpack a batch of (inputs, labels); `call` names the caller for messages."""
    # unpacking a mapping would yield its keys
    pair: Any = () if isinstance(batch, Mapping | torch.Tensor) else batch
    try:
        inputs, labels = pair
    except (TypeError, ValueError):
        rule = f"{call} takes batches of (inputs, labels), got a {type(batch).__name__}"
        raise InvalidArgumentError(
            f"{rule}: write step=lambda network, batch: (loss, outputs, targets)"
        ) from None
    return inputs, labels


def of_step(result: Any) -> Computed:
    """Unpack the result of a step: (loss, outputs, targets), or only the loss."""
    if isinstance(result, tuple) and len(result) == 3:  # noqa: PLR2004 - see above
        return result
    if isinstance(result, tuple | list | Mapping):
        raise InvalidArgumentError(
            f"step= must return (loss, outputs, targets) or the loss, got a {type(result).__name__}"
        )
    return result, None, None


def has_classes(outputs: Any, targets: Any, step: BatchStep | None) -> bool:
    """Whether targets are classes, so that predictions can be right or wrong; a step may have other targets."""
    are_tensors = isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor)
    may_be = are_tensors and outputs.ndim > 1 and not targets.is_floating_point()
    return may_be and (step is None or are_classes(outputs, targets))


def counted_part(batch: Any, targets: Any, *, is_measured: bool) -> Any:
    """Return the part of a batch whose samples are counted: the targets, or for a user's function the batch."""
    has_size = not is_measured and isinstance(targets, torch.Tensor) and targets.ndim > 0
    return targets if has_size else batch

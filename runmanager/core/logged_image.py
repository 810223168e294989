"""The images among the values of `manager.log`."""

import math
from typing import Any

import numpy as np
import torch

from runmanager.errors import InvalidArgumentError

_CHANNELS = (1, 3)  # numbers of channels of gray and color images


def may_be_image(value: Any) -> bool:
    """Whether a value is a figure, or has the dimensions of an image.

    >>> may_be_image(torch.zeros(3, 8, 8)), may_be_image(torch.zeros(8)), may_be_image(torch.zeros(1, 1))
    (True, False, False)
    """
    dimensions = getattr(value, "ndim", None)
    if dimensions is None:
        return hasattr(value, "canvas") and callable(getattr(value, "savefig", None))
    return dimensions in (2, 3) and math.prod(value.shape) > 1


def image_of(name: str, value: Any) -> Any:
    """Return a figure unchanged, an image as uint8 ``(C, H, W)`` on the CPU, None for other matrices.

    An image is an array or tensor ``(H, W)``, ``(C, H, W)`` or ``(H, W, C)`` of uint8, bool, or floats from 0
    to 1; reading it waits for the device.

    Raises:
        InvalidArgumentError: The value has the shape of a color image, but floats outside 0 to 1.

    >>> image_of("mask", torch.tensor([[0.0, 1.0]])).tolist()
    [[[0, 255]]]
    """
    if not hasattr(value, "ndim"):
        return value
    try:
        image = (value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))).detach().cpu()
    except (TypeError, NotImplementedError):  # the errors of objects, and of a tensor without data
        return None
    if image.ndim == 2:  # noqa: PLR2004 - (H, W)
        image = image[None]
    elif image.shape[0] not in _CHANNELS:
        image = image.permute(2, 0, 1)
    if image.shape[0] not in _CHANNELS:
        return None
    if not image.is_floating_point():
        scales = {torch.uint8: 1, torch.bool: 255}
        return image.to(torch.uint8) * scales[image.dtype] if image.dtype in scales else None
    low, high = image.min().item(), image.max().item()
    if low >= 0 and high <= 1:
        return (image.float() * 255).round().to(torch.uint8)
    if value.ndim == 2:  # noqa: PLR2004 - a matrix of other values
        return None
    rule = f"{name} has values from {low:.4g} to {high:.4g}, but an image of floats has values from 0 to 1"
    raise InvalidArgumentError(f"{rule}: write log({name}=image.clamp(0, 1)), or scale it")

"""The PNG of an image or figure, and of a contact sheet of the first batch of a network."""

import io
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.utils.hooks import RemovableHandle

_PADDING = 2  # pixels between images
_WIDEST = 512  # the largest width of a sheet (pixels)
_MOST = 64  # the maximum number of images of a sheet
_CHANNELS = {1: "L", 3: "RGB"}

Picture = tuple[bytes, int, int, int]
"""A PNG, its width, its height, and its number of channels."""


def is_images(batch: object) -> bool:
    """Whether a network's input is a batch of images ``(N, 1 or 3, H, W)`` that fit on a sheet."""
    return (
        isinstance(batch, torch.Tensor)
        and batch.ndim == 4  # noqa: PLR2004 - (N, C, H, W)
        and batch.shape[1] in _CHANNELS
        and 0 < batch.shape[3] <= _WIDEST
        and 0 < batch.shape[2] <= _WIDEST
        and len(batch) > 0
        and not batch.is_complex()
        and batch.device.type != "meta"
    )


def num_shown(images: torch.Tensor) -> int:
    """Return the number of a batch's images that fit on a sheet."""
    columns = max(1, min(8, _WIDEST // (images.shape[3] + _PADDING)))
    rows = max(1, min(8, _WIDEST // (images.shape[2] + _PADDING)))
    return min(len(images), columns * rows, _MOST)


def picture(image: Any) -> Picture:
    """Draw a figure, or an image ``(1 or 3, H, W)`` of uint8."""
    file = io.BytesIO()
    if not isinstance(image, torch.Tensor):
        image.savefig(file, format="png")
        with Image.open(file) as drawn:
            return file.getvalue(), *drawn.size, len(drawn.getbands())
    channels, height, width = image.shape
    array = image[0].numpy() if channels == 1 else image.permute(1, 2, 0).contiguous().numpy()
    Image.fromarray(array, mode=None).save(file, format="PNG", compress_level=1)
    return file.getvalue(), width, height, channels


def sheet(images: torch.Tensor) -> Picture:
    """Draw images ``(N, 1 or 3, H, W)`` on a sheet, with the smallest value black and the largest white."""
    values = images[: num_shown(images)].detach().float().cpu().nan_to_num(0, 0, 0)
    low, high = values.min(), values.max()
    pixels = ((values - low) / (high - low).clamp_min(1e-12) * 255).round().to(torch.uint8)
    count, channels, height, width = pixels.shape
    columns = max(1, min(8, count, _WIDEST // (width + _PADDING)))
    rows = -(-count // columns)
    pitch = (height + _PADDING, width + _PADDING)
    canvas = torch.zeros(channels, rows * pitch[0] + _PADDING, columns * pitch[1] + _PADDING, dtype=torch.uint8)
    for index, image in enumerate(pixels):
        top, left = index // columns * pitch[0] + _PADDING, index % columns * pitch[1] + _PADDING
        canvas[:, top : top + height, left : left + width] = image
    return picture(canvas)


class FirstInput:
    """The first input of a network, captured by a hook without an extra pass and without random numbers."""

    def __init__(self) -> None:
        self.images: torch.Tensor | None = None  # the images for the sheet
        self._handle: RemovableHandle | None = None

    def watch(self, network: nn.Module, see: Callable[[nn.Module, tuple[Any, ...]], None]) -> None:
        """Call `see` with the network's inputs before each forward pass, until `forget` is called."""
        if not isinstance(network, torch.jit.ScriptModule):
            self._handle = network.register_forward_pre_hook(_Hook(see))

    def forget(self) -> None:
        """Remove the hook; a repeated call does nothing."""
        if self._handle:
            self._handle.remove()
            self._handle = None

    def take(self, inputs: tuple[Any, ...]) -> None:
        """Store the images to show, and remove the hook."""
        self.forget()
        if inputs and is_images(inputs[0]):
            part = inputs[0].detach()[: num_shown(inputs[0])]
            self.images = part.clone()  # copy the images, as a view would keep the whole batch in memory


class _Hook:
    """Passes the network's inputs on; the hook of a copied or saved network does nothing."""

    def __init__(self, see: Callable[[nn.Module, tuple[Any, ...]], None] | None = None) -> None:
        self._see = see

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._see:
            self._see(module, inputs)

    def __reduce__(self) -> tuple[type["_Hook"], tuple[()]]:
        return _Hook, ()

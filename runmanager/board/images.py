"""A sheet of sample images as one small PNG."""

import io

import torch
from PIL import Image

_PADDING = 2  # pixels between images
_WIDEST = 512  # pixels of a sheet
_MOST = 64  # images of a sheet
_CHANNELS = {1: "L", 3: "RGB"}


def is_images(batch: object) -> bool:
    """Whether a network's input can be shown: ``(N, 1 or 3, H, W)``, not larger than a sheet."""
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
    """Count the images of a batch that fit on a sheet."""
    columns = max(1, min(8, _WIDEST // (images.shape[3] + _PADDING)))
    rows = max(1, min(8, _WIDEST // (images.shape[2] + _PADDING)))
    return min(len(images), columns * rows, _MOST)


def sheet(images: torch.Tensor) -> tuple[bytes, int, int, int]:
    """Draw images ``(N, 1 or 3, H, W)`` on a sheet, the smallest value black and the largest white.

    Returns:
        The PNG, its width, its height, its number of channels.
    """
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
    array = canvas[0].numpy() if channels == 1 else canvas.permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(array, mode=None).save(file, format="PNG", compress_level=1)
    return file.getvalue(), canvas.shape[2], canvas.shape[1], channels

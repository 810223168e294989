"""The pictures of a run: logged images and figures, the first batch of a network, and confusion matrices."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.nn import functional
from torch.utils.tensorboard.summary import image as image_summary

from runmanager.devices import ranks

_PADDING = 2  # pixels between images
_WIDEST = 512  # the largest width of a sheet (pixels)
_CHANNELS = {1: "L", 3: "RGB"}

MOST = 50
"""The largest number of classes in a readable picture."""

_WITH_NUMBERS = 20  # the maximum number of classes with numbers in cells
_LONGEST = 24  # maximum number of characters of a class's name
_LARGE, _SMALL, _MARGIN = 28, 12, 8  # pixels
_OUTLINE = 136  # a level of grey
_COPIES = 64  # number of copies of the counts, as atomic additions to one cell wait for each other
_GREYS = [round(grey / 17) * 17 for grey in range(256)]  # 16 greys keep the file small
_DARK = 0.5  # shade of a cell above which its number is white


def picture(image: Any) -> Summary.Image:
    """Draw a figure, an image ``(1 or 3, H, W)`` of uint8, or a sheet of images ``(N, 1 or 3, H, W)``."""
    if isinstance(image, torch.Tensor):
        return sheet(fitting(image)) if image.ndim == 4 else _encoded(image, "CHW")  # noqa: PLR2004 - (N, C, H, W)
    file = io.BytesIO()
    image.savefig(file, format="png")
    with Image.open(file) as drawn:
        return Summary.Image(encoded_image_string=file.getvalue(), width=drawn.width, height=drawn.height)


def _encoded(pixels: Any, dimensions: str) -> Summary.Image:
    return image_summary("", pixels, dataformats=dimensions).value[0].image  # type: ignore[no-untyped-call]


def samples(batch: torch.Tensor) -> torch.Tensor | None:
    """Return the `fitting` images of a batch; None if it has no images."""
    if (
        batch.shape[1] not in _CHANNELS
        or max(batch.shape[2:]) > _WIDEST
        or batch.numel() == 0
        or batch.is_complex()
        or batch.device.type == "meta"
    ):
        return None
    return fitting(batch)


def fitting(batch: torch.Tensor) -> torch.Tensor:
    """Return the images of a batch ``(N, C, H, W)`` that fit on a sheet, or the first one."""
    rows, columns = (max(1, min(8, _WIDEST // (size + _PADDING))) for size in batch.shape[2:])
    # copy the images, as a view would keep the whole batch in memory
    return batch.detach()[: rows * columns if columns == 8 else columns].clone()  # noqa: PLR2004 - torch's row


def sheet(images: torch.Tensor) -> Summary.Image:
    """Draw `samples` ``(N, 1 or 3, H, W)``, eight in a row; the smallest value is black, the largest white."""
    values = images.float().cpu().nan_to_num(0, 0, 0)
    low, high = values.aminmax()
    shades = (values - low) / (high - low).clamp_min(1e-12)
    return _encoded(functional.pad(shades, (0, _PADDING, 0, _PADDING)), "NCHW")


class Confusion:
    """The counts of predictions per label. Counting never waits for the device and never raises."""

    def __init__(self) -> None:
        self.problem: str = ""
        # (_COPIES, C * C + 1) on an accelerator, else one copy; the last cell is for invalid labels
        self._counts: torch.Tensor | None = None
        self._num_classes = 0

    def add(self, preds: torch.Tensor, labels: torch.Tensor) -> None:
        """Count a batch: scores ``(N, C, ...)``, labels ``(N, ...)``; invalid labels are left out."""
        num = preds.shape[1]
        if not 1 < num <= MOST or self.problem:
            return
        try:
            if self._counts is None:
                shape = (1 if preds.is_cpu else _COPIES, num * num + 1)
                self._counts = torch.zeros(shape, dtype=torch.int64, device=preds.device)
                self._num_classes = num
            if num != self._num_classes:
                # such batches would be counted in wrong cells, or out of range, which kills a CUDA process
                self.problem = f"confusion: batches have scores of {self._num_classes} and of {num} classes"
                return
            labels = labels.long()
            cells = labels * num + preds.argmax(dim=1)
            cells = cells.masked_fill((labels < 0) | (labels >= num), num * num).reshape(-1)
            copies, size = self._counts.shape
            if copies > 1:
                cells = cells + torch.arange(len(cells), device=cells.device) % copies * size
            self._counts.view(-1).index_add_(0, cells, torch.ones_like(cells))
        except Exception as error:  # noqa: BLE001 - no logging call may end a run
            self.problem = f"confusion: {type(error).__name__}: {error}"

    def add_ranks(self) -> None:
        """Sum the counts over all ranks; every rank must call this."""
        if ranks.num_ranks() > 1:
            local = None if self._counts is None or self.problem else self._counts.sum(dim=0).cpu()
            counts = [total for total in ranks.gather(local) if total is not None]
            is_whole = len(counts) == ranks.num_ranks()
            self._counts = torch.stack(counts) if is_whole else None

    def table(self) -> list[list[int]]:
        """Return the counts, one row per label and one column per prediction; [] without counts."""
        if self._counts is None or self.problem:
            return []
        counts = self._counts.sum(dim=0)[:-1].reshape(self._num_classes, -1)
        return counts.tolist() if counts.any() else []


def class_names(loader: Any, num_classes: int) -> list[str]:
    """Return the class names of a loader's dataset; without names, the class numbers."""
    dataset = getattr(loader, "dataset", None)
    while dataset is not None and not hasattr(dataset, "classes"):
        dataset = getattr(dataset, "dataset", None)  # a Subset wraps the dataset
    names = getattr(dataset, "classes", None)
    if not isinstance(names, Sequence) or len(names) != num_classes:
        names = range(num_classes)
    return [*map(str, names)]


def draw(rows: Sequence[Sequence[int]], names: Sequence[str]) -> Summary.Image:
    """Draw counts: one row per label, one column per prediction, darker for a larger share of the row."""
    counts = np.array(rows)
    shades = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    has_numbers = len(rows) <= _WITH_NUMBERS
    line = _LARGE if has_numbers else _SMALL
    font = ImageFont.load_default(line)
    cell = round(max(font.getlength(str(counts.max())) + 2 * _MARGIN, 2 * line)) if has_numbers else line
    labels = [_label(name, font) for name in names]
    corner = _label("label \\ predicted", font)
    left = max(label.width for label in (*labels, corner)) + 2 * _MARGIN
    top = max(*(label.width for label in labels), 2 * line) + 2 * _MARGIN
    size = cell * len(rows)
    canvas = Image.new("L", (left + size + _MARGIN, top + size + _MARGIN), 255)
    cells = np.kron(255 - np.round(shades * 255), np.ones((cell, cell))).astype(np.uint8)
    canvas.paste(Image.fromarray(cells), (left, top))
    drawing = ImageDraw.Draw(canvas)
    drawing.rectangle((left - 1, top - 1, left + size, top + size), outline=_OUTLINE)
    canvas.paste(corner, (_MARGIN, top - corner.height - _MARGIN))
    for index, label in enumerate(labels):
        middle = index * cell + (cell - label.height) // 2
        canvas.paste(label, (left - label.width - _MARGIN, top + middle))
        turned = label.transpose(Image.Transpose.ROTATE_90)
        canvas.paste(turned, (left + middle, top - turned.height - _MARGIN))
    for truth, guess in np.argwhere(counts) if has_numbers else ():
        ink = 255 if shades[truth, guess] > _DARK else 0
        center = (left + (guess + 0.5) * cell, top + (truth + 0.5) * cell)
        drawing.text(center, str(counts[truth, guess]), fill=ink, font=font, anchor="mm")
    return _encoded(np.asarray(canvas.point(_GREYS)), "HW")


def _label(name: str, font: Any) -> Image.Image:
    text = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    label = Image.new("L", (int(font.getlength(text)) + 1, round(1.25 * font.size)), 255)
    ImageDraw.Draw(label).text((0, 0), text, fill=0, font=font)
    return label

"""Which classes are taken for which: counted on the device, drawn as one small PNG."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from runmanager.devices import ranks

MOST = 50
"""Classes up to which a picture can be read."""

_WITH_NUMBERS = 20  # classes up to which cells are wide enough for them
_LONGEST = 24  # characters of a class's name
_LINE, _MARGIN = 12, 4  # pixels
_COPIES = 64  # of the counts: neighbours would wait for each other at the same cell
_DARK = 0.5  # shade from which numbers are white


class Confusion:
    """How often each class was taken for which. Counting waits for no device and never raises."""

    def __init__(self) -> None:
        self.problem = ""
        # (_COPIES, C * C + 1) on an accelerator, the last for labels that are no classes; else one copy
        self._counts: torch.Tensor | None = None
        self._num_classes = 0

    def add(self, preds: torch.Tensor, labels: torch.Tensor) -> None:
        """Count a batch: scores ``(N, C, ...)``, labels ``(N, ...)``; a label that is no class is left out."""
        num = preds.shape[1]
        if not 1 < num <= MOST or self.problem:
            return
        try:
            if self._counts is None:
                shape = (1 if preds.is_cpu else _COPIES, num * num + 1)
                self._counts = torch.zeros(shape, dtype=torch.int64, device=preds.device)
                self._num_classes = num
            if num != self._num_classes:
                # counted, they would be in others' cells, or outside, where CUDA ends the process
                self.problem = f"confusion: batches have scores of {self._num_classes} and of {num} classes"
                return
            labels = labels.long()
            is_class = (labels >= 0) & (labels < num)
            cells = torch.where(is_class, labels * num + preds.argmax(dim=1), num * num).reshape(-1)
            copies, size = self._counts.shape
            if copies > 1:
                cells = cells + torch.arange(len(cells), device=cells.device) % copies * size
            self._counts.view(-1).index_add_(0, cells, torch.ones_like(cells))
        except Exception as error:  # noqa: BLE001 - no logging call may end a run
            self.problem = f"confusion: {type(error).__name__}: {error}"

    def add_ranks(self) -> None:
        """Add up the counts of all ranks; all of them call it."""
        if ranks.num_ranks() == 1:
            return
        local = None if self._counts is None or self.problem else self._counts.cpu()
        counts = [one for one in ranks.gather(local) if one is not None]
        is_whole = len(counts) == ranks.num_ranks() and len({len(one) for one in counts}) == 1
        self._counts = torch.stack(counts).sum(dim=0) if is_whole else None

    def table(self) -> list[list[int]] | None:
        """Return the counts, a row per label and a column per prediction; None if there are none."""
        if self._counts is None or self.problem:
            return None
        rows: list[list[int]] = self._counts.sum(dim=0)[:-1].reshape(self._num_classes, -1).tolist()
        return rows if any(map(any, rows)) else None


def class_names(loader: Any, num_classes: int) -> list[str]:
    """Return the names that a loader's dataset has for its classes, or their numbers."""
    dataset = getattr(loader, "dataset", None)
    while dataset is not None and not hasattr(dataset, "classes"):
        dataset = getattr(dataset, "dataset", None)  # of a Subset
    names = getattr(dataset, "classes", None)
    if not isinstance(names, Sequence) or len(names) != num_classes:
        return [str(number) for number in range(num_classes)]
    return [str(name) for name in names]


def draw(rows: Sequence[Sequence[int]], names: Sequence[str]) -> tuple[bytes, int, int, int]:
    """Draw counts, a row per label and a column per prediction; a larger part of its row is darker.

    Returns:
        The PNG, its width, its height, its number of channels.
    """
    counts = np.array(rows)
    shades = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    numbers = [[_short(count) for count in row] for row in rows]
    font = ImageFont.load_default()
    widest = font.getlength(max((number for row in numbers for number in row), key=len))
    has_numbers = len(rows) <= _WITH_NUMBERS
    cell = max(int(widest) + 6, 20) if has_numbers else _LINE
    side = [_label(name, font) for name in names]
    left = max(label.width for label in side) + 2 * _MARGIN
    corner = _label("label \\ predicted", font)
    head = max(left, corner.width + 2 * _MARGIN)
    size = (head + cell * len(rows) + _MARGIN, left + cell * len(rows) + _MARGIN)
    canvas = Image.new("L", size, 255)
    cells = np.kron(255 - np.round(shades * 255), np.ones((cell, cell))).astype(np.uint8)
    canvas.paste(Image.fromarray(cells), (head, left))
    canvas.paste(corner, (_MARGIN, left - _LINE - _MARGIN))
    draw = ImageDraw.Draw(canvas)
    draw.rectangle((head - 1, left - 1, size[0] - _MARGIN, size[1] - _MARGIN), outline=128)
    for index, label in enumerate(side):
        middle = index * cell + (cell - label.height) // 2
        canvas.paste(label, (head - label.width - _MARGIN, left + middle))
        turned = label.transpose(Image.Transpose.ROTATE_90)
        canvas.paste(turned, (head + middle, left - turned.height - _MARGIN))
    stamps: dict[str, Image.Image] = {}  # each drawn once: most numbers occur again
    for row, column in np.argwhere(counts) if has_numbers else ():
        number = numbers[row][column]
        stamp = stamps.get(number) or stamps.setdefault(number, _label(number, font, paper=0, ink=255))
        x, y = head + column * cell + (cell - stamp.width) // 2, left + row * cell + (cell - _LINE) // 2
        canvas.paste(255 if shades[row, column] > _DARK else 0, (x, y), stamp)
    file = io.BytesIO()
    canvas.save(file, format="PNG", compress_level=6)
    return file.getvalue(), canvas.width, canvas.height, 1


def _label(name: str, font: Any, paper: int = 255, ink: int = 0) -> Image.Image:
    text = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    label = Image.new("L", (int(font.getlength(text)) + 1, _LINE), paper)
    ImageDraw.Draw(label).text((0, 0), text, fill=ink, font=font)
    return label


def _short(count: int) -> str:
    """Write a count in up to five characters.

    >>> _short(9999), _short(123_456), _short(12_345_678)
    ('9999', '123k', '12M')
    """
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if count >= 10 * size:
            return f"{count // size}{unit}"
    return str(count)

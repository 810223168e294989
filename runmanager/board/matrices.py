"""A table of counts as one small PNG."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_WITH_NUMBERS = 20  # classes up to which cells are wide enough for them
_LONGEST = 24  # characters of a class's name
_LINE, _MARGIN = 12, 4  # pixels
_DARK = 0.5  # shade from which numbers are white
_CORNER = "label \\ predicted"


def picture(rows: Sequence[Sequence[int]], names: Sequence[str]) -> tuple[bytes, int, int, int]:
    """Draw counts, the darker the larger their part of the row, with the names of the classes.

    Args:
        rows: A row per label, a column per prediction.
        names: Of the classes.

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
    corner = _label(_CORNER, font)
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
        place = (head + column * cell + (cell - stamp.width) // 2, left + row * cell + (cell - _LINE) // 2)
        canvas.paste(255 if shades[row, column] > _DARK else 0, place, stamp)
    file = io.BytesIO()
    canvas.save(file, format="PNG", compress_level=6)
    return file.getvalue(), canvas.width, canvas.height, 1


def _label(name: str, font: Any, paper: int = 255, ink: int = 0) -> Image.Image:
    shown = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    label = Image.new("L", (int(font.getlength(shown)) + 1, _LINE), paper)
    ImageDraw.Draw(label).text((0, 0), shown, fill=ink, font=font)
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

"""The drawing tools of all figures: scales, the SVG image, lines and labels."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from runmanager.core.wording import printable
from runmanager.tables.cells import cell

WIDTH, HEIGHT = 400, 236
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 32
_LARGEST = 1e300  # larger numbers are outside the figure
_LETTER = 6.2  # average width of a letter in a label
_DECADES = 100  # minimum ratio of the largest to the smallest number for a logarithmic axis
_MOST_DOTS = 1500  # maximum number of dots per value
_ROOM = 0.03  # margin at both ends of an axis, as a share of the range


class Scale:
    """Maps numbers from `low` to `high` to positions from `start` to `end` in the figure."""

    def __init__(
        self, low: float, high: float, start: float, end: float, *, is_logarithmic: bool = False
    ) -> None:
        self._map: Callable[[float], float] = math.log10 if is_logarithmic else float
        low, high = (min(max(end, -_LARGEST), _LARGEST) for end in (low, high))
        if low == high:
            room = max(0.5, abs(low) / 2)  # the margin is relative for large numbers, as 1e17 + 0.5 is 1e17
            low, high = (low / 2 or low, high * 2) if is_logarithmic else (low - room, high + room)
        self.low, self.high, self.is_logarithmic = low, high, is_logarithmic
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """Return the position of a number."""
        low, high = self._map(self.low), self._map(self.high)
        if self.is_logarithmic:  # a number without a logarithm is outside the frame
            value = max(value, self.low / 10 or self.low)
        share = (self._map(value) - low) / (high - low)
        return self._start + share * (self._end - self._start)

    def ticks(self, about: int = 5) -> list[float]:
        """Return round numbers in the range, approximately `about` of them."""
        if self.is_logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
            inside = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(inside) > 2 * about:
                return [tick for tick in inside if f"{tick:e}"[0] == "1"]
            if len(inside) > 2:  # noqa: PLR2004 - a short range needs more
                return inside
        rough = (self.high - self.low) / about
        if rough == 0:  # the difference of subnormal numbers underflows
            return [self.low, self.high]
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


class Figure:
    """An SVG image with a title and a description in words."""

    def __init__(
        self,
        name: str,
        title: str,
        words: str,
        size: tuple[int, int] = (WIDTH, HEIGHT),
        right: int = RIGHT,
        **facts: object,
    ) -> None:
        self.width, self.height = size
        self.end = self.width - right
        described = {"role": "img", "aria-label": printable(title), "aria-describedby": f"{name}-words"}
        data = {f"data-{key}": printable(str(value)) for key, value in facts.items()}
        box = {"viewBox": f"0 0 {self.width} {self.height}", "class": "figure", "id": name}
        self._root = ET.Element("svg", {**box, **described, **data})
        ET.SubElement(self._root, "desc", id=f"{name}-words").text = printable(words)
        clip = ET.SubElement(ET.SubElement(self._root, "clipPath", id=f"{name}-clip"), "rect")
        clip.attrib |= {
            "x": f"{LEFT - 6}", "y": f"{TOP - 6}",  # room for half a dot and its ring
            "width": f"{self.end - LEFT + 12}", "height": f"{self.height - TOP - BOTTOM + 12}",
        }  # fmt: skip
        self._back = ET.SubElement(self._root, "g")
        self._marks = ET.SubElement(self._root, "g", {"clip-path": f"url(#{name}-clip)"})

    def path(self, d: str, kind: str, **attributes: str) -> None:
        """Draw a path in the foreground, for one run or several runs."""
        dashed = {name.replace("_", "-"): value for name, value in attributes.items()}
        ET.SubElement(self._marks, "path", {"d": d, "class": kind, **dashed})

    def dots(self, dots: Sequence[tuple[float, float, int]], kind_of: Callable[[int], str]) -> None:
        """Draw one dot per run; each dot is (x, y, index), and all dots of a kind form one path."""
        groups: dict[str, list[tuple[float, float, int]]] = {}
        for dot in spaced(dots, _MOST_DOTS):
            groups.setdefault(kind_of(dot[2]), []).append(dot)
        for kind, group in groups.items():
            d = "".join(f"M{x:.1f} {y:.1f}h0" for x, y, _ in group)
            self.path(d, f"dots {kind}", data_runs=" ".join(str(index) for _, _, index in group))

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draw a straight line behind the runs."""
        ET.SubElement(self._back, "path", {"d": f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", "class": kind})

    def text(self, x: float, y: float, words: str, kind: str = "tick", anchor: str = "middle") -> None:
        """Write a label."""
        position = {"x": f"{x:.1f}", "y": f"{y:.1f}", "class": kind, "text-anchor": anchor}
        ET.SubElement(self._root, "text", position).text = printable(words)

    def axes(self, x: Scale | None, y: Scale, x_name: str, *, is_whole: bool = False) -> None:
        """Draw the grid lines and numbers of the y-axis, and name and number the x-axis."""
        for tick in y.ticks():
            self.line(LEFT, y(tick), self.end, y(tick), "grid")
            self.text(LEFT - 6, y(tick) + 4, cell(tick), anchor="end")
        if x:
            for tick in filter(float.is_integer, x.ticks(4)) if is_whole else x.ticks(4):
                self.text(x(tick), self.height - BOTTOM + 15, cell(tick))
        self.text((LEFT + self.end) / 2, self.height - 3, x_name, "name")

    def __str__(self) -> str:
        return ET.tostring(self._root, encoding="unicode")


def range_of(values: Sequence[float], kept: Sequence[float]) -> tuple[float, float]:
    """Return the range of the values without 2 % of outliers at each end; it contains the values in `kept`."""
    ordered = sorted(values)
    cut = len(ordered) // 50
    low, high = ordered[cut], ordered[-1 - cut]
    return min([low, *kept]), max([high, *kept])


def value_scale(low: float, high: float, start: float, end: float, *, is_wide: bool | None = None) -> Scale:
    """Return a scale with a margin at both ends: logarithmic if positive numbers span over two decades."""
    if is_wide is None:
        is_wide = 0 < low < high / _DECADES
    if is_wide:
        room = min((high / low) ** _ROOM, 1e9)  # the margin is limited, as the ratio may overflow
        return Scale(low / room or low, high * room, start, end, is_logarithmic=True)
    room = _ROOM * (high - low)
    return Scale(low - room, high + room, start, end)


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Return the SVG path of a line; a single point becomes a dot."""
    start, *rest = [f"{x:.1f} {y:.1f}" for x, y in points]
    return f"M{start}" + (f"L{' '.join(rest)}" if rest else "h0")


def cut_text(label: str, room: float = 74.0) -> str:
    """Shorten a label to the available width."""
    most = max(4, int(room / _LETTER))
    return label if len(label) <= most else f"{label[: most - 1]}…"


def apart(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Spread positions until they are at least `gap` apart, inside the range if they fit."""
    ranked = sorted(range(len(positions)), key=lambda index: positions[index])
    moved = list(positions)
    for before, index in itertools.pairwise(ranked):
        moved[index] = max(moved[index], moved[before] + gap)
    limit = high
    for index in reversed(ranked):
        moved[index] = min(moved[index], limit)
        limit = moved[index] - gap
    return [max(position, low) for position in moved]


def spaced(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` items, evenly spaced, beginning with the first."""
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]

"""The drawing tools of all figures: scales, the SVG image, lines and labels."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from runmanager.core.wording import printable
from runmanager.tables.cells import cell

SIZE = 400, 236  # width and height
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 32
_LARGEST = 1e300  # larger numbers are outside the figure
_LETTER = 6.2  # average width of a letter in a label
_DECADES = 100  # minimum ratio of the largest to the smallest number for a logarithmic axis
_MOST_DOTS = 1500  # maximum number of dots per value
_ROOM = 0.03  # margin at both ends of an axis, as a share of the range

Dot = tuple[float, float, int]  # its position, and the index of its run


class Scale:
    """Maps numbers from `low` to `high` to positions from `start` to `end` in the figure."""

    def __init__(
        self, low: float, high: float, start: float, end: float, *, is_logarithmic: bool = False
    ) -> None:
        self._map: Callable[[float], float] = math.log10 if is_logarithmic else float
        low, high = (min(max(end, -_LARGEST), _LARGEST) for end in (low, high))
        if low == high:
            room = abs(low) / 2 or 0.5
            low, high = (low / 2 or low, high * 2) if is_logarithmic else (low - room, high + room)
        self.low, self.high, self.is_logarithmic = low, high, is_logarithmic
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        """Return the position of a number."""
        low, high = self._map(self.low), self._map(self.high)
        if self.is_logarithmic:  # a number without a logarithm is outside the frame
            value = max(value, self.low / 10 or self.low)
        share = (self._map(value) - low) / (high - low)
        return self.start + share * (self.end - self.start)

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
        self, name: str, title: str, size: tuple[int, int] = SIZE, right: int = RIGHT, **facts: str
    ) -> None:
        self.width, self.height = size
        self.end = self.width - right
        self.title, self.words, self.kinds = title, "", set[str]()  # the kinds of paths in the foreground
        described = {"role": "img", "aria-label": printable(title), "aria-describedby": f"{name}-words"}
        described |= {f"data-{key}": printable(value) for key, value in facts.items()}
        box = {"viewBox": f"0 0 {self.width} {self.height}", "class": "figure", "id": name}
        self._root = ET.Element("svg", {**box, **described})
        self._words = ET.SubElement(self._root, "desc", id=f"{name}-words")
        clip = ET.SubElement(self._root, "clipPath", id=f"{name}-clip")
        width, height = self.end - LEFT + 16, self.height - TOP - BOTTOM + 16  # with half a ring
        frame = {"x": LEFT - 8, "y": TOP - 8, "width": width, "height": height}
        ET.SubElement(clip, "rect", {side: str(number) for side, number in frame.items()})
        self._back = ET.SubElement(self._root, "g")
        self._marks = ET.SubElement(self._root, "g", {"clip-path": f"url(#{name}-clip)"})

    def across(self, low: float, high: float, *, is_wide: bool | None = None) -> Scale:
        """Return the scale of the x-axis; with `is_wide`, it has margins and may be logarithmic."""
        if is_wide is None:
            return Scale(low, high, LEFT + 6, self.end)  # the ring of a dot is beside the numbers
        return value_scale(low, high, LEFT, self.end, is_wide=is_wide)

    def up(self, low: float, high: float) -> Scale:
        """Return the scale of the y-axis."""
        return value_scale(low, high, self.height - BOTTOM, TOP)

    def path(self, d: str, kind: str, *, run: int | None = None, runs: Sequence[int] = ()) -> None:
        """Draw a path in the foreground, for one run or several runs."""
        self.kinds.add(kind.partition(" ")[0])
        path = ET.SubElement(self._marks, "path", {"d": d, "class": kind})
        if run is not None:
            path.set("data-r", str(run))
        if runs:
            path.set("data-runs", " ".join(map(str, runs)))

    def dots(self, dots: Sequence[Dot], kind_of: Callable[[int], str], best: int) -> None:
        """Draw one dot per run, all dots of a kind as one path, and a ring at the best run."""
        groups: dict[str, list[Dot]] = {}
        for dot in spaced(dots, _MOST_DOTS):
            groups.setdefault(kind_of(dot[2]), []).append(dot)
        for kind, group in groups.items():
            d = "".join(f"M{x:.1f} {y:.1f}h0" for x, y, _ in group)
            self.path(d, f"dots {kind}", runs=[index for _, _, index in group])
        for x, y, index in dots:
            if index == best:
                self.path(f"M{x - 6:.1f} {y:.1f}a6 6 0 1 0 12 0a6 6 0 1 0 -12 0", "halo", run=index)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draw a straight line behind the runs."""
        ET.SubElement(self._back, "path", {"d": f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", "class": kind})

    def text(self, x: float, y: float, words: str, kind: str = "tick", anchor: str = "middle") -> None:
        """Write a label."""
        position = {"x": f"{x:.1f}", "y": f"{y:.1f}", "class": kind, "text-anchor": anchor}
        ET.SubElement(self._root, "text", position).text = printable(words)

    def axes(self, x: Scale, y: Scale, x_name: str, labels: Mapping[Any, str] | None = None) -> None:
        """Draw the grid lines and numbers of the y-axis; name the x-axis, and write its numbers or labels."""
        for name, scale in (("x", x), ("y", y)):
            numbers = scale.low, scale.high, scale.start, scale.end, int(scale.is_logarithmic)
            self._root.set(f"data-{name}", " ".join(map(repr, numbers)))
        for tick in y.ticks():
            self.line(LEFT, y(tick), self.end, y(tick), "grid")
            self.text(LEFT - 6, y(tick) + 4, cell(tick), anchor="end")
        ticks = (
            x.ticks(4) if x.is_logarithmic or x.low % 1 or x.high % 1 else filter(float.is_integer, x.ticks(4))
        )
        for at, label in (labels or {tick: cell(tick) for tick in ticks}).items():
            self.text(x(at), self.height - BOTTOM + 15, label)
        self.text((LEFT + self.end) / 2, self.height - 3, x_name, "name")

    def __html__(self) -> str:
        self._words.text = printable(self.words)
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


def spaced(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` items, evenly spaced, beginning with the first."""
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]

"""The figures of a page, as SVG that scales with the page and takes its colors from the style sheet."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from xml.etree import ElementTree as ET

from runmanager.console import cell
from runmanager.report.model import Axis, Gathered

WIDTH, HEIGHT = 360, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 10, 32
_MOST_POINTS = 120  # of a curve
_MIXING = 7919  # a prime: lines are drawn in an order in which no value covers the others
_GOLDEN = 0.618034  # its multiples, modulo 1, lie evenly without a pattern
MANY = 100  # runs, from where on lines are faint and the means of a value are drawn too
NUM_COLORS = 6


class Scale:
    """Numbers in, positions in the figure out.

    Args:
        low: The smallest number.
        high: The largest.
        start: The position of the smallest.
        end: The position of the largest.
        is_logarithmic: Whether equal ratios are equally far apart.
    """

    def __init__(
        self, low: float, high: float, start: float, end: float, *, is_logarithmic: bool = False
    ) -> None:
        self._map: Callable[[float], float] = math.log10 if is_logarithmic else float
        if low == high:
            room = max(0.5, abs(low) / 2)  # 1e17 + 0.5 is 1e17
            low, high = (low / 2, high * 2) if is_logarithmic else (low - room, high + room)
        self.low, self.high, self.is_logarithmic = low, high, is_logarithmic
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """Return the position of a number."""
        low, high = self._map(self.low), self._map(self.high)
        share = (self._map(value) - low) / (high - low)
        return self._start + share * (self._end - self._start)

    def ticks(self, about: int = 5) -> list[float]:
        """Return round numbers in the range, about so many.

        >>> Scale(0.0, 1.0, 0, 1).ticks(5)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        >>> Scale(0.5, 20, 0, 1, is_logarithmic=True).ticks()
        [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
        >>> Scale(2.1, 4, 0, 1, is_logarithmic=True).ticks()
        [2.5, 3.0, 3.5, 4.0]
        >>> Scale(1e-14, 3e-14, 0, 1).ticks(2)
        [1e-14, 2e-14, 3e-14]
        """
        if self.is_logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
            inside = [tick for tick in found if self.low <= tick <= self.high]
            if len(inside) > 2 * about:
                return [tick for tick in inside if f"{tick:e}"[0] == "1"]
            if len(inside) > 2:  # noqa: PLR2004 - fewer say little about a short range
                return inside
        rough = (self.high - self.low) / about
        if rough == 0:  # the smallest numbers there are
            return [self.low, self.high]
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


class Figure:
    """An SVG image with its name and what it shows in words."""

    def __init__(
        self, name: str, title: str, words: str, width: int = WIDTH, height: int = HEIGHT, bottom: int = _BOTTOM
    ) -> None:
        self._root = ET.Element(
            "svg",
            {
                "viewBox": f"0 0 {width} {height}",
                "role": "img",
                "aria-labelledby": f"{name}-title {name}-words",
                "class": "figure",
            },
        )
        ET.SubElement(self._root, "title", id=f"{name}-title").text = title
        ET.SubElement(self._root, "desc", id=f"{name}-words").text = words
        clip = ET.SubElement(ET.SubElement(self._root, "clipPath", id=f"{name}-clip"), "rect")
        clip.attrib |= {
            "x": f"{_LEFT - 2}", "y": f"{_TOP - 2}",
            "width": f"{width - _LEFT - _RIGHT + 4}", "height": f"{height - _TOP - bottom + 4}",
        }  # fmt: skip
        self._back = ET.SubElement(self._root, "g")
        self._marks = ET.SubElement(self._root, "g", {"clip-path": f"url(#{name}-clip)"})
        self.width, self.height = width, height

    def path(self, d: str, kind: str, **attributes: str) -> None:
        """Draw a line as a mark of a run, or of several."""
        ET.SubElement(self._marks, "path", {"d": d, "class": kind, **_dashed(attributes)})

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draw a straight line that is no mark, behind the marks."""
        ET.SubElement(self._back, "path", {"d": f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", "class": kind})

    def text(self, x: float, y: float, words: str, kind: str = "tick", anchor: str = "middle") -> None:
        """Write a label."""
        attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "class": kind, "text-anchor": anchor}
        ET.SubElement(self._root, "text", attributes).text = words

    def axes(self, x: Scale | None, y: Scale, x_name: str) -> None:
        """Draw the grid with its numbers."""
        for tick in y.ticks():
            self.line(_LEFT, y(tick), self.width - _RIGHT, y(tick), "grid")
            self.text(_LEFT - 6, y(tick) + 4, cell(tick), anchor="end")
        if x:
            for tick in filter(float.is_integer, x.ticks()):
                self.text(x(tick), self.height - _BOTTOM + 15, cell(int(tick)))
        self.text((_LEFT + self.width - _RIGHT) / 2, self.height - 3, x_name, "name")

    def __str__(self) -> str:
        return ET.tostring(self._root, encoding="unicode", short_empty_elements=True)


def curves(gathered: Gathered, metric: str, colored: Axis | None, words: str, name: str) -> str:
    """Draw a metric over the epochs, a line per run, the best above the others."""
    points = {number: _points(run, metric) for number, run in enumerate(gathered.results)}
    points = {number: found for number, found in points.items() if found}
    values = [value for found in points.values() for _, value in found]
    best = gathered.order[0] if gathered.order else None
    low, high = _range(values, [value for _, value in points.get(best, [])] if best is not None else [])
    last = max(epoch for found in points.values() for epoch, _ in found)
    x, y = Scale(1, last, _LEFT, WIDTH - _RIGHT), Scale(low, high, HEIGHT - _BOTTOM, _TOP)
    figure = Figure(name, f"{metric} by epoch", words)
    figure.axes(x, y, "epoch")
    for number in sorted(points, key=lambda number: (number == best, number * _MIXING % 10_007)):
        kind = "run best" if number == best else f"run {color(colored, number)}"
        figure.path(_polyline((x(e), y(v)) for e, v in points[number]), kind, data_r=str(number))
    if colored and len(gathered.results) > MANY:
        for place in range(len(colored.labels)):
            own = [found for number, found in points.items() if colored.place[number] == place]
            if own:
                kind = f"middle c{color_of(colored, place)}"
                figure.path(_polyline((x(epoch), y(mean)) for epoch, mean in _means(own)), kind)
    return str(figure)


def parallel(gathered: Gathered, axes: Sequence[Axis], top: Sequence[int], words: str) -> str:
    """Draw each run that has a score as a line through its hyperparameters to its score."""
    height = 300
    width = max(640, 120 * (len(axes) + 1))
    figure = Figure(
        "parallel", f"Hyperparameters and {gathered.metric} of every run", words, width, height, bottom=2
    )
    places = [64 + number * (width - 120) / len(axes) for number in range(len(axes) + 1)]
    scores = [gathered.scores[number] for number in gathered.order]
    y = Scale(min(scores), max(scores), height - 14, 46)
    rows = [Scale(0, len(axis.labels) - 1, height - 14, 46) for axis in axes]
    for x, title in zip(places, [gathered.metric, *(axis.name for axis in axes)], strict=True):
        figure.line(x, 38, x, height - 6, "axis")
        figure.text(x, 24, _cut(title, 18), "name")
    chosen = set(top)
    for number in sorted(gathered.order, key=lambda number: (number == gathered.order[0], number in chosen)):
        points = [(x, row(axis.place[number])) for x, axis, row in zip(places[1:], axes, rows, strict=True)]
        kind = "run best" if number == gathered.order[0] else "run top" if number in chosen else "run rest"
        figure.path(_smooth([(places[0], y(gathered.scores[number])), *points]), kind, data_r=str(number))
    for x, axis, row in zip(places[1:], axes, rows, strict=True):
        step = math.ceil(len(axis.labels) / 12)
        for number in range(0, len(axis.labels), step):
            figure.text(x + 7, row(number) + 4, _cut(axis.labels[number]), "value", "start")
    for tick in y.ticks():
        figure.text(places[0] - 8, y(tick) + 4, cell(tick), "value", "end")
    return str(figure)


def effect(gathered: Gathered, axis: Axis, words: str, name: str) -> str:
    """Draw the scores of the runs by the value of one hyperparameter: a dot each, and the mean."""
    scores = [gathered.scores[number] for number in gathered.order]
    low, high = _range(scores, [max(scores), min(scores)])
    y = Scale(low, high, HEIGHT - _BOTTOM, _TOP)
    figure = Figure(name, f"{gathered.metric} by {axis.name}", words)
    figure.axes(None, y, axis.name)
    width = (WIDTH - _LEFT - _RIGHT) / len(axis.labels)
    step = math.ceil(len(axis.labels) / 8)
    means: list[tuple[float, float]] = []
    for number, label in enumerate(axis.labels):
        x = _LEFT + (number + 0.5) * width
        if number % step == 0:
            figure.text(x, HEIGHT - _BOTTOM + 15, _cut(label))
        own = [position for position in gathered.order if axis.place[position] == number]
        if own:
            spread = min(width * 0.32, 26)
            shifts = (
                (2 * (rank * _GOLDEN % 1) - 1) * spread if len(own) > 1 else 0 for rank in itertools.count()
            )
            dots = zip(shifts, own, strict=False)
            d = "".join(f"M{x + dx:.1f} {y(gathered.scores[p]):.1f}h0" for dx, p in dots)
            figure.path(d, f"dots {color(axis, own[0])}", data_n=str(len(own)))
            means.append((x, y(statistics.fmean(gathered.scores[position] for position in own))))
    figure.path(_polyline(means), "trend")
    for x, mean in means:
        figure.path(f"M{x - min(width * 0.3, 14):.1f} {mean:.1f}h{2 * min(width * 0.3, 14):.1f}", "mean")
    return str(figure)


def pairs(columns: Sequence[str], rows: Sequence[Sequence[float]], value: str, words: str) -> str:
    """Draw pairs of runs that differ in one hyperparameter only, a line each."""
    numbers = [number for row in rows for number in row]
    figure = Figure("pairs", f"{value} by device, pair by pair", words)
    y = Scale(min(numbers), max(numbers), HEIGHT - _BOTTOM, _TOP, is_logarithmic=min(numbers) > 0)
    figure.axes(None, y, "")
    places = [_LEFT + (n + 0.5) * (WIDTH - _LEFT - _RIGHT) / len(columns) for n in range(len(columns))]
    for x, column in zip(places, columns, strict=True):
        figure.text(x, HEIGHT - _BOTTOM + 16, _cut(column), "name")
    for row in rows:
        figure.path(_polyline(zip(places, map(y, row), strict=True)), "run pair")
    return str(figure)


def color(axis: Axis | None, position: int) -> str:
    """Return the class of a run's color: by its value of a hyperparameter."""
    return f"c{color_of(axis, axis.place[position])}" if axis else "c0"


def color_of(axis: Axis, place: int) -> int:
    """Return the number of the color of a value: spread over all colors if the values have an order.

    >>> [color_of(Axis("lr", ["0.1", "0.2", "0.3"], [], True), place) for place in range(3)]
    [0, 2, 5]
    """
    if not axis.is_ordered:
        return place % NUM_COLORS
    return place * (NUM_COLORS - 1) // max(1, len(axis.labels) - 1)


def _points(run: object, metric: str) -> list[tuple[int, float]]:
    epochs = getattr(run, "epochs", ())
    found = [(record.epoch, record.metrics.get(metric, math.nan)) for record in epochs]
    found = [(epoch, value) for epoch, value in found if math.isfinite(value)]
    step = math.ceil(len(found) / _MOST_POINTS)
    return [*found[:-1:step], found[-1]] if step > 1 else found


def _means(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Return the mean of curves at the epochs that at least half of them have."""
    at: dict[int, list[float]] = {}
    for epoch, value in itertools.chain.from_iterable(curves):
        at.setdefault(epoch, []).append(value)
    return [
        (epoch, statistics.fmean(found)) for epoch, found in sorted(at.items()) if 2 * len(found) >= len(curves)
    ]


def _range(values: Sequence[float], kept: Sequence[float]) -> tuple[float, float]:
    """Return the range of numbers without their wildest hundredths, which would flatten the rest."""
    ordered = sorted(values)
    cut = len(ordered) // 50
    low, high = ordered[cut], ordered[-1 - cut]
    low, high = min([low, *kept]), max([high, *kept])
    room = 0.03 * (high - low)
    return low - room, high + room


def _polyline(points: Iterable[tuple[float, float]]) -> str:
    """Write a line; a single point becomes a dot."""
    found = list(points)
    start, *rest = [f"{x:.1f} {y:.1f}" for x, y in found]
    return f"M{start}" + (f"L{' '.join(rest)}" if rest else "h0")


def _smooth(points: Sequence[tuple[float, float]]) -> str:
    parts = [f"M{points[0][0]:.0f} {points[0][1]:.1f}"]
    for (x1, y1), (x2, y2) in itertools.pairwise(points):
        middle = (x1 + x2) / 2
        parts.append(f"C{middle:.0f} {y1:.1f} {middle:.0f} {y2:.1f} {x2:.0f} {y2:.1f}")
    return "".join(parts)


def _cut(label: str, most: int = 12) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _dashed(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in attributes.items()}

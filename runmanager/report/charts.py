"""The figures of a report, as SVG that scales with the page and takes its colors from the style sheet."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from xml.etree import ElementTree as ET

from runmanager.console import cell, printable
from runmanager.report.model import Axis, ReportData
from runmanager.storage.run_state import RunResult

WIDTH, HEIGHT = 360, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 10, 32
_MOST_POINTS = 120  # of a curve
_MIXING = 7919  # a prime: lines are drawn in an order in which no value covers the others
_GOLDEN = 0.618034  # its multiples, modulo 1, lie evenly without a pattern
MANY = 100  # runs; with more, lines are faint and the mean curve of each value is drawn too
NUM_COLORS = 6
_LARGEST = 1e300  # that has a position: larger numbers are outside the figure


class Scale:
    """Numbers from `low` to `high` in, positions in the figure from `start` to `end` out."""

    def __init__(
        self, low: float, high: float, start: float, end: float, *, is_logarithmic: bool = False
    ) -> None:
        self._map: Callable[[float], float] = math.log10 if is_logarithmic else float
        low, high = (min(max(end, -_LARGEST), _LARGEST) for end in (low, high))
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
        """Return round numbers in the range, approximately `about` of them.

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
            ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
            inside = [tick for tick in ticks if self.low <= tick <= self.high]
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
        described = {"role": "img", "aria-labelledby": f"{name}-title {name}-words"}
        self._root = ET.Element("svg", {"viewBox": f"0 0 {width} {height}", **described, "class": "figure"})
        ET.SubElement(self._root, "title", id=f"{name}-title").text = printable(title)
        ET.SubElement(self._root, "desc", id=f"{name}-words").text = printable(words)
        clip = ET.SubElement(ET.SubElement(self._root, "clipPath", id=f"{name}-clip"), "rect")
        clip.attrib |= {
            "x": f"{_LEFT - 2}", "y": f"{_TOP - 2}",
            "width": f"{width - _LEFT - _RIGHT + 4}", "height": f"{height - _TOP - bottom + 4}",
        }  # fmt: skip
        self._back = ET.SubElement(self._root, "g")
        self._marks = ET.SubElement(self._root, "g", {"clip-path": f"url(#{name}-clip)"})
        self.width, self.height = width, height

    def path(self, d: str, kind: str, **attributes: str) -> None:
        """Draw a line that shows one run, or several."""
        dashed = {name.replace("_", "-"): value for name, value in attributes.items()}
        ET.SubElement(self._marks, "path", {"d": d, "class": kind, **dashed})

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draw a straight line behind the runs."""
        ET.SubElement(self._back, "path", {"d": f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", "class": kind})

    def text(self, x: float, y: float, words: str, kind: str = "tick", anchor: str = "middle") -> None:
        """Write a label."""
        attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "class": kind, "text-anchor": anchor}
        ET.SubElement(self._root, "text", attributes).text = printable(words)

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


def curves(data: ReportData, metric: str, colored: Axis | None, words: str, name: str) -> str:
    """Draw a metric over the epochs, a line per run, the best above the others."""
    lines = {index: _points(run, metric) for index, run in enumerate(data.results)}
    lines = {index: points for index, points in lines.items() if points}
    values = [value for points in lines.values() for _, value in points]
    best = data.order[0] if data.order else None
    low, high = _range(values, [value for _, value in lines.get(best, [])] if best is not None else [])
    last = max(epoch for points in lines.values() for epoch, _ in points)
    x, y = Scale(1, last, _LEFT, WIDTH - _RIGHT), Scale(low, high, HEIGHT - _BOTTOM, _TOP)
    figure = Figure(name, f"{metric} by epoch", words)
    figure.axes(x, y, "epoch")
    for index in sorted(lines, key=lambda index: (index == best, index * _MIXING % 10_007)):
        kind = "run best" if index == best else f"run {color(colored, index)}"
        figure.path(_polyline((x(e), y(v)) for e, v in lines[index]), kind, data_r=str(index))
    if colored and len(data.results) > MANY:
        for code in range(len(colored.labels)):
            group = [points for index, points in lines.items() if colored.codes[index] == code]
            if group:
                kind = f"middle c{color_of(colored, code)}"
                figure.path(_polyline((x(epoch), y(mean)) for epoch, mean in _means(group)), kind)
    return str(figure)


def parallel(data: ReportData, axes: Sequence[Axis], top: Sequence[int], words: str) -> str:
    """Draw each run that has a score as a line through its hyperparameters to its score."""
    height = 300
    width = max(640, 120 * (len(axes) + 1))
    title = f"Hyperparameters and {data.metric} of every run"
    figure = Figure("parallel", title, words, width, height, bottom=2)
    xs = [64 + number * (width - 120) / len(axes) for number in range(len(axes) + 1)]
    scores = [data.scores[index] for index in data.order]
    y = Scale(min(scores), max(scores), height - 14, 46)
    rows = [Scale(0, len(axis.labels) - 1, height - 14, 46) for axis in axes]
    for x, name in zip(xs, [data.metric, *(axis.name for axis in axes)], strict=True):
        figure.line(x, 38, x, height - 6, "axis")
        figure.text(x, 24, _cut(name, 18), "name")
    leaders = set(top)
    for index in sorted(data.order, key=lambda index: (index == data.order[0], index in leaders)):
        points = [(x, row(axis.codes[index])) for x, axis, row in zip(xs[1:], axes, rows, strict=True)]
        kind = "run best" if index == data.order[0] else "run top" if index in leaders else "run rest"
        figure.path(_smooth([(xs[0], y(data.scores[index])), *points]), kind, data_r=str(index))
    for x, axis, row in zip(xs[1:], axes, rows, strict=True):
        step = math.ceil(len(axis.labels) / 12)
        for code in range(0, len(axis.labels), step):
            figure.text(x + 7, row(code) + 4, _cut(axis.labels[code]), "value", "start")
    for tick in y.ticks():
        figure.text(xs[0] - 8, y(tick) + 4, cell(tick), "value", "end")
    return str(figure)


def effect(data: ReportData, axis: Axis, words: str, name: str) -> str:
    """Draw the scores of the runs by the value of one hyperparameter: a dot each, and the mean."""
    scores = [data.scores[index] for index in data.order]
    low, high = _range(scores, [max(scores), min(scores)])
    y = Scale(low, high, HEIGHT - _BOTTOM, _TOP)
    figure = Figure(name, f"{data.metric} by {axis.name}", words)
    figure.axes(None, y, axis.name)
    width = (WIDTH - _LEFT - _RIGHT) / len(axis.labels)
    step = math.ceil(len(axis.labels) / 8)
    means: list[tuple[float, float]] = []
    for code, label in enumerate(axis.labels):
        x = _LEFT + (code + 0.5) * width
        if code % step == 0:
            figure.text(x, HEIGHT - _BOTTOM + 15, _cut(label))
        runs = [index for index in data.order if axis.codes[index] == code]
        if runs:
            spread = min(width * 0.32, 26) if len(runs) > 1 else 0
            dots = [(x + (2 * (rank * _GOLDEN % 1) - 1) * spread, index) for rank, index in enumerate(runs)]
            d = "".join(f"M{dot:.1f} {y(data.scores[index]):.1f}h0" for dot, index in dots)
            figure.path(d, f"dots {color(axis, runs[0])}", data_n=str(len(runs)))
            means.append((x, y(statistics.fmean(data.scores[index] for index in runs))))
    figure.path(_polyline(means), "trend")
    half = min(width * 0.3, 14)
    for x, mean in means:
        figure.path(f"M{x - half:.1f} {mean:.1f}h{2 * half:.1f}", "mean")
    return str(figure)


def pairs(columns: Sequence[str], rows: Sequence[Sequence[float]], value: str, words: str) -> str:
    """Draw pairs of runs that differ in one hyperparameter only, a line each."""
    numbers = [number for row in rows for number in row]
    figure = Figure("pairs", f"{value} by device, pair by pair", words)
    y = Scale(min(numbers), max(numbers), HEIGHT - _BOTTOM, _TOP, is_logarithmic=min(numbers) > 0)
    figure.axes(None, y, "")
    xs = [_LEFT + (n + 0.5) * (WIDTH - _LEFT - _RIGHT) / len(columns) for n in range(len(columns))]
    for x, column in zip(xs, columns, strict=True):
        figure.text(x, HEIGHT - _BOTTOM + 16, _cut(column), "name")
    for row in rows:
        figure.path(_polyline(zip(xs, map(y, row), strict=True)), "run pair")
    return str(figure)


def color(axis: Axis | None, index: int) -> str:
    """Return the CSS class of a run's color, which shows its value of a hyperparameter."""
    return f"c{color_of(axis, axis.codes[index])}" if axis else "c0"


def color_of(axis: Axis, code: int) -> int:
    """Return the number of the color of a value; ordered values are spread over all colors.

    >>> [color_of(Axis("lr", ["0.1", "0.2", "0.3"], [], True), code) for code in range(3)]
    [0, 2, 5]
    """
    if not axis.is_ordered:
        return code % NUM_COLORS
    return code * (NUM_COLORS - 1) // max(1, len(axis.labels) - 1)


def _points(run: RunResult, metric: str) -> list[tuple[int, float]]:
    points = [(record.epoch, record.metrics.get(metric, math.nan)) for record in run.epochs]
    points = [(epoch, value) for epoch, value in points if math.isfinite(value)]
    step = math.ceil(len(points) / _MOST_POINTS)
    return [*points[:-1:step], points[-1]] if step > 1 else points


def _means(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Return the mean of curves at the epochs that at least half of them have."""
    by_epoch: dict[int, list[float]] = {}
    for epoch, value in itertools.chain.from_iterable(curves):
        by_epoch.setdefault(epoch, []).append(value)
    common = {epoch: values for epoch, values in by_epoch.items() if 2 * len(values) >= len(curves)}
    return [(epoch, statistics.fmean(values)) for epoch, values in sorted(common.items())]


def _range(values: Sequence[float], kept: Sequence[float]) -> tuple[float, float]:
    """Return the range of numbers without their 2 % at either end, which would flatten the rest."""
    ordered = sorted(values)
    cut = len(ordered) // 50
    low, high = ordered[cut], ordered[-1 - cut]
    low, high = min([low, *kept]), max([high, *kept])
    room = 0.03 * (high - low)
    return low - room, high + room


def _polyline(points: Iterable[tuple[float, float]]) -> str:
    """Write a line; a single point becomes a dot."""
    start, *rest = [f"{x:.1f} {y:.1f}" for x, y in points]
    return f"M{start}" + (f"L{' '.join(rest)}" if rest else "h0")


def _smooth(points: Sequence[tuple[float, float]]) -> str:
    parts = [f"M{points[0][0]:.0f} {points[0][1]:.1f}"]
    for (x1, y1), (x2, y2) in itertools.pairwise(points):
        middle = (x1 + x2) / 2
        parts.append(f"C{middle:.0f} {y1:.1f} {middle:.0f} {y2:.1f} {x2:.0f} {y2:.1f}")
    return "".join(parts)


def _cut(label: str, most: int = 12) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"

"""Parallel coordinates: each run is a line from its score through its hyperparameters."""

import math
from collections import Counter
from collections.abc import Sequence

from runmanager.report.curves import MANY, visible_of
from runmanager.report.model import PageAxis, ReportData
from runmanager.report.run_colors import color
from runmanager.report.search_text import scale_of, with_number
from runmanager.report.svg import Figure, Scale, cut_text, smooth, spaced
from runmanager.wording import cell

_TOP, _BASE, _LOST = 50, 276, 308  # y position of both ends of the axes, and of runs without a score
_HEIGHT = 322
_LEFT, _RIGHT = 70, 80
_LEAST_WIDTH = 860  # minimum width at which labels have the text size of the page on a desktop screen
_MOST_LINES = 3 * MANY
_MOST_LOST = 20
_MOST_LABELS = 12
_ROOM = 26.0  # the height over which lines with equal values are spread


def parallel(
    data: ReportData, axes: Sequence[PageAxis], top: Sequence[int], words: str, colored: PageAxis | None
) -> str:
    """Draw each run as a line through its hyperparameters; runs without a score begin below the first axis."""
    width = max(_LEAST_WIDTH, 120 * (len(axes) + 1))
    distance = (width - _LEFT - _RIGHT) / len(axes)
    xs = [_LEFT + number * distance for number in range(len(axes) + 1)]
    rated = data.rated
    scores = [data.scores[index] for index in rated]
    y = Scale(min(scores), max(scores), _BASE, _TOP)
    lost = data.lost
    lines = [*rated[:MANY], *spaced(rated[MANY:], _MOST_LINES - MANY), *spaced(lost, _MOST_LOST)]
    scales = [_scale(data, axis) for axis in axes]
    rows = [_rows(axis, scale, lines) for axis, scale in zip(axes, scales, strict=True)]
    facts = {
        "figure": "parallel", "xs": " ".join(f"{x:.1f}" for x in xs), "span": f"{_TOP} {_BASE} {_LOST}",
        "axes": "|".join([data.goal.metric, *(axis.name for axis in axes)]),
        "heights": "|".join(
            " ".join(f"{_height(axis, scale, code):.1f}" for code in range(len(axis.labels)))
            for axis, scale in zip(axes, scales, strict=True)
        ),
    }  # fmt: skip
    title = f"Hyperparameters and {data.goal.metric} of every run"
    figure = Figure("parallel", title, words, width, _HEIGHT, bottom=0, right=0, facts=facts)
    for x, name in zip(xs, [data.goal.metric, *(axis.name for axis in axes)], strict=True):
        figure.line(x, _TOP - 12, x, _BASE + 12, "axis")
        if x == xs[0]:
            figure.text(8, 24, cut_text(name, 1.3 * distance), "name", "start")
        else:
            figure.text(x, 24, cut_text(name, distance), "name")
    leaders, visible = set(top), {*visible_of(data, lines)}
    best = data.order[0]
    for index in sorted(lines, key=lambda index: (index == best, index in leaders)):
        start = y(data.scores[index]) if math.isfinite(data.scores[index]) else _LOST
        points = [(x, row[index]) for x, row in zip(xs[1:], rows, strict=True)]
        kind = "best" if index == best else "top" if index in leaders else "rest"
        kind += "" if index in visible else " spare"
        kind = "lost" if math.isnan(data.scores[index]) else f"{kind} {color(colored, index)}"
        figure.path(smooth([(xs[0], start), *points]), f"run {kind}", data_r=str(index))
    for x, axis, scale in zip(xs[1:], axes, scales, strict=True):
        _label(figure, axis, scale, x, distance - 14, Counter(axis.codes[run] for run in (*rated, *lost)))
    for tick in y.ticks():
        figure.text(xs[0] - 8, y(tick) + 4, cell(tick), "value", "end")
    if lost:
        figure.text(xs[0] - 8, _LOST + 4, f"{len(lost)} without", "value lost", "end")
    return str(figure)


def _scale(data: ReportData, axis: PageAxis) -> Scale:
    """Return the scale of an axis: by number for sampled values, else by the position of each value."""
    if axis.is_sampled and (runs := with_number(data, axis)):
        return scale_of(axis, runs, _BASE, _TOP)
    return Scale(0, max(1, len(axis.labels) - 1), _BASE, _TOP)


def _height(axis: PageAxis, scale: Scale, code: int) -> float:
    """Return the y position of a value; values that the scale cannot show are below the axis."""
    number = axis.numbers[code] if axis.is_sampled else code
    is_outside = math.isnan(number) or (scale.is_logarithmic and number <= 0)
    return _BASE + 16 if is_outside else min(scale(number), _BASE + 16.0)


def _rows(axis: PageAxis, scale: Scale, lines: Sequence[int]) -> dict[int, float]:
    """Return the y position of each run at an axis; equal values of an axis with few values are spread."""
    if axis.is_sampled:
        return {index: _height(axis, scale, axis.codes[index]) for index in lines}
    room = min(_ROOM, 0.6 * (_BASE - _TOP) / max(1, len(axis.labels) - 1))
    by_code: dict[int, list[int]] = {}
    for index in lines:
        by_code.setdefault(axis.codes[index], []).append(index)
    heights = {}
    for code, runs in by_code.items():
        step = room / max(len(runs) - 1, 4)
        for rank, index in enumerate(runs):
            heights[index] = scale(code) + (rank - (len(runs) - 1) / 2) * step
    return heights


def _label(figure: Figure, axis: PageAxis, scale: Scale, x: float, room: float, counts: Counter[int]) -> None:
    """Label an axis: for sampled values with round numbers, else with each value and its number of runs."""
    if axis.is_sampled:
        for tick in scale.ticks():
            figure.label(x + 8, scale(tick), cell(tick))
        return
    for code in range(0, len(axis.labels), math.ceil(len(axis.labels) / _MOST_LABELS)):
        number = f"\N{MULTIPLICATION SIGN}{counts[code]}" if len(axis.labels) <= _MOST_LABELS else ""
        figure.label(x + 8, scale(code), cut_text(axis.labels[code], room - 7 * len(number)), number)

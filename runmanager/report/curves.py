"""The learning curves: one line per run, means and bands of repeats, marks at best and resumed epochs."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from runmanager.answers.ranking import t_quantile
from runmanager.core.goal import x_column, x_of
from runmanager.core.state import RunResult
from runmanager.report.model import PageAxis, ReportData
from runmanager.report.run_colors import color, color_of
from runmanager.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    TOP,
    WIDTH,
    Figure,
    Scale,
    apart,
    cut_text,
    polyline,
    range_of,
    spaced,
    value_scale,
)

MANY = 100  # maximum number of lines that are visible at first
_MOST_LINES = 600  # maximum number of lines in the file
_MOST_POINTS = 120  # maximum number of points per curve
_MIXING = 7919  # a prime that shuffles the drawing order, so that no value covers the others
_MOST_BANDS = 5  # maximum number of settings whose mean and interval are drawn
_LABELS = 68  # width of the labels at the right end of the lines
_LEAST = 3  # minimum number of repeats for a confidence interval; the band of two repeats is their range

Curve = list[tuple[int, float]]


def curves(data: ReportData, metric: str, colored: PageAxis | None, words: str, name: str) -> str:
    """Plot a metric by epoch: one line per run, the best run on top."""
    lines = lines_of(data, metric)
    best = data.order[0] if data.order else None
    last = max(epoch for points in lines.values() for epoch, _ in points)
    first = min(epoch for points in lines.values() for epoch, _ in points) if data.x_axis else 1
    x = Scale(first, last, LEFT, WIDTH - _LABELS)
    y = _scale(lines, best)
    facts = {
        "figure": "curves", "metric": metric, "x": f"{x.low:g} {x.high:g} {LEFT} {WIDTH - _LABELS}",
        "y": f"{y.low!r} {y.high!r} {HEIGHT - BOTTOM} {TOP}", "log": int(y.is_logarithmic),
    }  # fmt: skip
    axis = x_column(data.x_axis)
    figure = Figure(name, f"{metric} by {axis}", words, right=_LABELS, facts=facts)
    figure.axes(x, y, axis)
    groups = groups_of(data, colored)
    drawn = {index: lines[index] for index in drawn_of(data, lines)}
    visible = {*visible_of(data, list(drawn))}
    for kind, runs, band in _bands(groups, lines):
        low_side = [(x(epoch), y(max(low, y.low))) for epoch, low, _ in band]
        high_side = [(x(epoch), y(min(high, y.high))) for epoch, _, high in band]
        figure.path(f"{polyline([*low_side, *reversed(high_side)])}Z", f"band {kind}", data_runs=_joined(runs))
    for index in sorted(drawn, key=lambda index: (index == best, index * _MIXING % 10_007)):
        kind = f"run {color(colored, index)}" + (" best" if index == best else "")
        kind += "" if index in visible else " spare"
        kind += " dot" if len(drawn[index]) == 1 else ""
        d = polyline((x(e), _within(y, v)) for e, v in drawn[index])
        figure.path(d, kind, data_r=str(index))
    for kind, runs in groups:
        middle = _means([lines[index] for index in runs if index in lines])
        if middle:
            d = polyline((x(epoch), _within(y, mean)) for epoch, mean in middle)
            figure.path(d, f"middle {kind}", data_runs=_joined(runs))
    _mark(figure, data, metric, drawn, x, y, visible)
    _label(figure, data, lines, colored, y)
    return str(figure)


def key(data: ReportData, metric: str, colored: PageAxis | None) -> list[str]:
    """Return the sentences that explain the means, the bands and the marks of resumed epochs, if any."""
    lines = lines_of(data, metric)
    groups = groups_of(data, colored)
    epochs = [values for _, runs in groups for _, values in _by_epoch([lines[i] for i in runs if i in lines])]
    has_interval, has_range = (any((len(v) >= _LEAST) == is_long for v in epochs) for is_long in (True, False))
    bands = "95 % interval" if has_interval else "range"
    more = " (of two runs, their range)" if has_interval and has_range else ""
    sentences = [f"Thick colored lines are means, bands their {bands}{more}."] if epochs else []
    if any(_resumed(data, run, lines[run]) for run in drawn_of(data, lines)):
        sentences.append("A short upright line marks an epoch from which a run was resumed.")
    return sentences


def num_outside(data: ReportData, metric: str) -> int:
    """Return the number of curves that leave the frame of a figure."""
    lines = lines_of(data, metric)
    y = _scale(lines, data.order[0] if data.order else None)
    return sum(any(not y.low <= value <= y.high for _, value in points) for points in lines.values())


def _scale(lines: Mapping[int, Curve], best: int | None) -> Scale:
    values = [value for points in lines.values() for _, value in points]
    low, high = range_of(values, [] if best is None else [value for _, value in lines.get(best, [])])
    return value_scale(low, high, HEIGHT - BOTTOM, TOP)


def lines_of(data: ReportData, metric: str) -> dict[int, Curve]:
    """Return the curve (epochs and values) of each run with the metric."""
    lines = {index: points_of(run, metric, data.x_axis) for index, run in enumerate(data.results)}
    return {index: points for index, points in lines.items() if points}


def points_of(run: RunResult, metric: str, x_axis: str | None = None) -> Curve:
    """Return the finite values of a metric with their x positions; long runs are thinned out."""
    points = [(x_of(record, x_axis), record.metrics.get(metric, math.nan)) for record in run.epochs]
    points = [(epoch, value) for epoch, value in points if math.isfinite(value)]
    step = math.ceil(len(points) / _MOST_POINTS)
    return [*points[:-1:step], points[-1]] if step > 1 else points


def drawn_of(data: ReportData, lines: Mapping[int, Curve]) -> set[int]:
    """Return the runs whose curves are in the file: all, or of many runs the best and a sample."""
    ranked = [index for index in data.order if index in lines]
    has_rank = set(ranked)
    others = [index for index in lines if index not in has_rank]
    return {*ranked[:MANY], *spaced(ranked, _MOST_LINES - MANY), *spaced(others, MANY)}


def visible_of(data: ReportData, drawn: Sequence[int]) -> list[int]:
    """Return the lines that are visible without a filter: all, or some of the best and a sample."""
    if len(drawn) <= MANY:
        return list(drawn)
    in_file = set(drawn)
    ranked = [index for index in data.order if index in in_file]
    return [*ranked[: MANY // 5], *spaced(drawn, MANY - MANY // 5)]


def groups_of(data: ReportData, colored: PageAxis | None) -> list[tuple[str, list[int]]]:
    """Return the groups of runs that get a mean line."""
    repeats = set(data.ranking.repeats)
    if any(axis.name in repeats for axis in data.axes):
        others = [axis for axis in data.axes if axis.name not in repeats]
        settings: dict[tuple[int, ...], list[int]] = {}
        for index in data.ranked:
            settings.setdefault(tuple(axis.codes[index] for axis in others), []).append(index)
        several = [runs for runs in settings.values() if len(runs) > 1][:_MOST_BANDS]
        return [(color(colored, runs[0]), runs) for runs in several]
    if colored and not colored.is_sampled and len(data.results) > MANY:
        values = [(code, [i for i, each in enumerate(colored.codes) if each == code])
                  for code in range(len(colored.labels))]  # fmt: skip
        return [(color_of(colored, code), runs) for code, runs in values if runs]
    return []


def _bands(
    groups: Sequence[tuple[str, list[int]]], lines: Mapping[int, Curve]
) -> list[tuple[str, list[int], list[tuple[int, float, float]]]]:
    """Return the band of each group: by epoch, the 95 % interval of the mean, or the range of two repeats."""
    bands = []
    for kind, runs in groups:
        band = []
        for epoch, values in _by_epoch([lines[index] for index in runs if index in lines]):
            mean = statistics.fmean(values)
            half = 0.0
            if len(values) >= _LEAST:
                half = float(t_quantile(len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
            low, high = (mean - half, mean + half) if half else (min(values), max(values))
            band.append((epoch, low, high))
        if len(band) > 1:
            bands.append((kind, runs, band))
    return bands


def _by_epoch(group: Sequence[Curve]) -> list[tuple[int, list[float]]]:
    """Return the values of the curves by epoch, for epochs that are in at least half of the curves."""
    by_epoch: dict[int, list[float]] = {}
    for epoch, value in itertools.chain.from_iterable(group):
        by_epoch.setdefault(epoch, []).append(value)
    return [(epoch, values) for epoch, values in sorted(by_epoch.items()) if 2 * len(values) >= len(group)]


def _means(group: Sequence[Curve]) -> Curve:
    return [(epoch, statistics.fmean(values)) for epoch, values in _by_epoch(group)]


def _within(y: Scale, value: float) -> float:
    """Return the position of a value; a logarithmic axis clips values below its range."""
    return y(max(value, y.low / 10)) if y.is_logarithmic else y(value)


def _mark(
    figure: Figure,
    data: ReportData,
    metric: str,
    drawn: Mapping[int, Curve],
    x: Scale,
    y: Scale,
    visible: set[int],
) -> None:
    """Mark the best epoch of the best run, and the first epoch after each resume."""
    for index, points in drawn.items():
        values = dict(points)
        if resumed := _resumed(data, index, points):
            kind = "resumed" if index in visible else "resumed spare"
            d = "".join(
                f"M{x(e):.1f} {_within(y, values[e]) - 4:.1f}L{x(e):.1f} {_within(y, values[e]) + 4:.1f}"
                for e in resumed
            )
            figure.path(d, kind, data_r=str(index))
    if data.order and data.order[0] in drawn:
        points = drawn[data.order[0]]
        sign = 1 if data.prefers_larger(metric) else -1
        epoch, value = max(points, key=lambda point: sign * point[1])
        figure.path(f"M{x(epoch):.1f} {_within(y, value):.1f}h0", "peak", data_r=str(data.order[0]))


def _resumed(data: ReportData, index: int, points: Curve) -> list[int]:
    """Return the x positions of the first epochs after a resume that the curve of a run has."""
    cold = [record for record in data.results[index].epochs if record.cold and record.epoch > 1]
    return [x for record in cold if (x := x_of(record, data.x_axis)) in dict(points)]


def _label(
    figure: Figure, data: ReportData, lines: Mapping[int, Curve], colored: PageAxis | None, y: Scale
) -> None:
    """Label the right end of the lines: the best run, and each value that has a color."""
    ends: list[tuple[float, str, str]] = []
    if data.order and data.order[0] in lines:
        end = _within(y, lines[data.order[0]][-1][1])
        ends.append((end, f"run {data.names[data.order[0]].rpartition('run ')[2]}", "end best"))
    if colored:
        codes = range(len(colored.labels))
        for code in spaced(codes, 6) if len(codes) > 6 else codes:  # noqa: PLR2004 - the number of colors
            # a label stands beside the line of a run that did not diverge
            values = [lines[i][-1][1] for i in data.order if i in lines and colored.codes[i] == code]
            if values:
                end = _within(y, statistics.median_low(values))
                ends.append((end, colored.labels[code], f"end {color_of(colored, code)}"))
    heights = apart([min(max(end[0], TOP), HEIGHT - BOTTOM) for end in ends], 12, TOP, HEIGHT - BOTTOM)
    for height, (_, label, kind) in zip(heights, ends, strict=True):
        figure.text(WIDTH - _LABELS + 14, height + 4, cut_text(label, _LABELS - 14), kind, "start")
        figure.line(WIDTH - _LABELS + 4, height, WIDTH - _LABELS + 11, height, f"swatch {kind[4:]}")


def _joined(runs: Sequence[int]) -> str:
    return " ".join(map(str, runs))

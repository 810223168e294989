"""The learning curves: one line per run, means and bands of repeats, marks at best and resumed epochs."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from runmanager.answers.ranking import t_quantile
from runmanager.answers.sentences import capital
from runmanager.answers.usual_goals import companion
from runmanager.answers.view import TIMES
from runmanager.core.goal import KEPT, x_column, x_of
from runmanager.core.outcome import Status
from runmanager.core.state import RunResult
from runmanager.core.wording import counted
from runmanager.report.model import ReportData
from runmanager.report.svg import Figure, Scale, polyline, range_of, spaced
from runmanager.tables.cells import cell
from runmanager.tables.columns import metrics_of

MANY = 100  # maximum number of lines in a figure
_MOST_LINES = 600  # maximum number of curves in the file
_MOST_POINTS = 120  # maximum number of points per curve
_MIXING = 7919  # a prime that shuffles the drawing order, so that no value covers the others
_MOST_BANDS = 5  # maximum number of settings whose mean and interval are drawn
_LABEL = 60  # width of the label at the end of the best curve
_LEAST = 3  # minimum number of repeats for a confidence interval; the band of two repeats is their range
_BETTER = 0.01  # relative margin over the last epoch from which a better earlier epoch is mentioned

Curve = list[tuple[int, float]]


def learning(data: ReportData) -> list[Figure]:
    """Plot the goals by epoch, or the goal and its companion, each with a sentence."""
    if max(len(run.epochs) for run in data.results) < 2:  # noqa: PLR2004 - a curve needs two
        return []
    lines = [(metric, lines_of(data, metric)) for metric in metrics_of_curves(data)]
    return [_figure(data, metric, curves, f"curves-{n}") for n, (metric, curves) in enumerate(lines) if curves]


def metrics(data: ReportData) -> list[str]:
    """Return the metric and its companions: the matching loss or accuracy, and the metrics on training data."""
    metric, runs = data.ranking.metric, data.runs
    names = [metric, companion(metric, metrics_of(runs))]
    names += ["accuracy"] if metric.endswith(("accuracy", "loss")) else []
    return [name for name in dict.fromkeys([*names, "loss"]) if name in runs and not runs[name].isna().all()]


def metrics_of_curves(data: ReportData) -> list[str]:
    """Return the goals, except durations; with a single goal, also its companion."""
    goals = [goal.metric.removeprefix(KEPT) for goal in data.ranking.goals if goal.metric not in TIMES]
    return goals if len(goals) > 1 else metrics(data)[:2]


def lines_of(data: ReportData, metric: str) -> dict[int, Curve]:
    """Return the curve (epochs and values) of each run with the metric."""
    lines = {index: points_of(run, metric, data.x_axis) for index, run in enumerate(data.results)}
    return {index: points for index, points in lines.items() if points}


def drawn_of(data: ReportData, lines: Mapping[int, Curve]) -> list[int]:
    """Return the runs whose curves are in the file: all, or of many runs the best and a sample."""
    ranked = [index for index in data.order if index in lines]
    others = sorted({*lines} - {*ranked})
    return sorted({*ranked[:MANY], *spaced(ranked, _MOST_LINES - MANY), *spaced(others, MANY)})


def points_of(run: RunResult, metric: str, x_axis: str | None, most: int = _MOST_POINTS) -> Curve:
    """Return the finite values of a metric with their x positions; long runs are thinned out."""
    points = [(x_of(record, x_axis), record.metrics.get(metric, math.nan)) for record in run.epochs]
    points = [(epoch, value) for epoch, value in points if math.isfinite(value)]
    step = math.ceil(len(points) / most)
    return [*points[:-1:step], points[-1]] if step > 1 else points


def _figure(data: ReportData, metric: str, lines: Mapping[int, Curve], name: str) -> Figure:
    """Plot a metric by epoch: one line per run, the best run on top."""
    points = [point for curve in lines.values() for point in curve]
    first = min(epoch for epoch, _ in points) if data.x_axis else 1
    best = data.order[0] if data.order else -1
    figure = Figure(name, f"{metric} by {x_column(data.x_axis)}", right=_LABEL, figure="curves", metric=metric)
    x = figure.across(first, max(epoch for epoch, _ in points))
    y = figure.up(*range_of([value for _, value in points], [value for _, value in lines.get(best, [])]))
    outside = sum(any(not y.low <= value <= y.high for _, value in curve) for curve in lines.values())
    figure.words = _sentence(data, metric)
    if outside:
        figure.words += f" {counted(outside, 'curve')} {'leaves' if outside == 1 else 'leave'} the frame."
    figure.axes(x, y, x_column(data.x_axis))
    groups = [(runs, _means([lines[index] for index in runs if index in lines])) for runs in _groups(data)]
    for runs, means in groups:
        if len(means) > 1:
            sides = [(x(epoch), y(low)) for epoch, _, low, _ in means]
            sides += [(x(epoch), y(high)) for epoch, _, _, high in reversed(means)]
            figure.path(f"{polyline(sides)}Z", f"band {data.color(runs[0])}", runs=runs)
    drawn = drawn_of(data, lines)
    visible = _visible(data, drawn)
    for index in sorted(visible, key=lambda index: (index == best, index * _MIXING % 10_007)):
        kind = f"run {data.color(index)}" + (" best" if index == best else "")
        kind += " dot" if len(lines[index]) == 1 else ""
        figure.path(polyline((x(epoch), y(value)) for epoch, value in lines[index]), kind, run=index)
    for runs, means in groups:
        if means:
            d = polyline((x(epoch), y(mean)) for epoch, mean, _, _ in means)
            figure.path(d, f"middle {data.color(runs[0])}", runs=runs)
    for index in drawn:
        if d := _resumed(data, index, lines[index], x, y):
            figure.path(d, "resumed" if index in visible else "resumed gone", run=index)
    if best in lines:
        sign = 1 if data.prefers_larger(metric) else -1
        last = lines[best][-1]  # it may equal an earlier best
        epoch, value = max(lines[best], key=lambda point: (sign * point[1], point == last))
        figure.path(f"M{x(epoch):.1f} {y(value):.1f}h0", "peak", run=best)
        label = f"run {data.names[best].rpartition('run ')[2]}"
        figure.text(x(last[0]) + 9, y(last[1]) + 4, label, "end", "start")
    return figure


def _sentence(data: ReportData, metric: str) -> str:
    """Return sentences on the course of the best run, and on runs that were better at an earlier epoch."""
    parts: list[str] = []
    larger = data.prefers_larger(metric)
    courses: dict[int, tuple[int, int, float, float]] = {}  # run -> best and last epoch, their values
    for index in data.order:
        values = {record.epoch: record.metrics.get(metric, math.nan) for record in data.results[index].epochs}
        values = {epoch: value for epoch, value in values.items() if math.isfinite(value)}
        if len(values) > 1:
            top = max(values, key=lambda epoch: values[epoch] if larger else -values[epoch])
            courses[index] = top, max(values), values[top], values[max(values)]
    if data.order and data.order[0] in courses:
        top, last, value, end = courses[data.order[0]]
        name = capital(data.names[data.order[0]])
        course = f"was best at epoch {top} of {last}: {cell(value)}"
        if top == last:
            course = f"was still improving at its last epoch, {last}"
        elif value == end:
            course = f"ended at its best, {cell(value)}"
        train = metric.rpartition("_")[2]
        on_train = data.results[data.order[0]].epochs[-1].metrics.get(train, math.nan)
        if train != metric and math.isfinite(on_train):
            course += f"; its {train} on the training data ended at {cell(on_train)}"
        parts.append(f"{name} {course}.")
    worse = sum(abs(value - end) > _BETTER * abs(end) for _, _, value, end in courses.values())
    if worse and len(courses) > 1:
        of = counted(data.answers.counts[Status.COMPLETED], "completed run")
        keep = f'; keep="{"max" if larger else "min"}:{metric}" keeps the weights of the best one'
        were = f"{worse} of {of} {'was' if worse == 1 else 'were'} over 1 % better"
        parts.append(f"{were} at an earlier epoch{keep if metric == data.ranking.metric else ''}.")
    return " ".join(parts)


def _groups(data: ReportData) -> list[list[int]]:
    """Return the groups of runs that get a mean line: repeats, or of many runs those of one color."""
    repeats, colored = data.ranking.repeats, data.colored
    groups: dict[Any, list[int]] = {}
    if any(axis.name in repeats for axis in data.axes):
        others = [axis for axis in data.axes if axis.name not in repeats]
        for index in data.ranked:
            groups.setdefault(tuple(axis.codes[index] for axis in others), []).append(index)
        return [runs for runs in groups.values() if len(runs) > 1][:_MOST_BANDS]
    if colored and not colored.is_sampled and len(data.results) > MANY:
        for index, code in enumerate(colored.codes):
            groups.setdefault(code, []).append(index)
    return [*groups.values()]


def _means(curves: Sequence[Curve]) -> list[tuple[int, float, float, float]]:
    """Return the means by epoch, with their 95 % interval, or the range of two repeats."""
    by_epoch: dict[int, list[float]] = {}
    for curve in curves:
        for epoch, value in curve:
            by_epoch.setdefault(epoch, []).append(value)
    means = []
    for epoch, values in sorted(by_epoch.items()):
        if 2 * len(values) >= len(curves):
            mean, low, high = statistics.fmean(values), min(values), max(values)
            if len(values) >= _LEAST:
                half = float(t_quantile(len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
                low, high = mean - half, mean + half
            means.append((epoch, mean, low, high))
    return means


def _visible(data: ReportData, drawn: Sequence[int]) -> set[int]:
    """Return the runs with a line: all, or some of the best and a sample; a filter draws further runs."""
    if len(drawn) <= MANY:
        return {*drawn}
    in_file = {*drawn}
    ranked = [index for index in data.order if index in in_file]
    return {*ranked[: MANY // 5], *spaced(drawn, MANY - MANY // 5)}


def _resumed(data: ReportData, index: int, curve: Curve, x: Scale, y: Scale) -> str:
    """Return the path of the marks at the first epochs after a resume."""
    cold = {
        x_of(record, data.x_axis) for record in data.results[index].epochs if record.cold and record.epoch > 1
    }
    return "".join(f"M{x(epoch):.1f} {y(value) - 4:.1f}v8" for epoch, value in curve if epoch in cold)

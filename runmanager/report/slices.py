"""The figures of a sample or a search: scores by one or two hyperparameters, and the best score so far."""

import math
from collections.abc import Sequence

from runmanager.core.wording import counted
from runmanager.report.charts import points
from runmanager.report.model import PageAxis, ReportData
from runmanager.report.search_text import scale_of, with_number
from runmanager.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Figure,
    Scale,
    polyline,
    range_of,
    value_scale,
)
from runmanager.report.timeline import Busy
from runmanager.tables.cells import aligned, cell

NUM_CLASSES = 6  # number of classes of scores, one per color of the ramp


def one_axis(data: ReportData, axis: PageAxis, words: str, name: str, colored: PageAxis | None) -> str:
    """Plot the scores by the values of one hyperparameter."""
    figure = Figure(
        name, f"{data.goal.metric} by {axis.name}", words, facts={"figure": "points", "what": axis.name}
    )
    runs = with_number(data, axis)
    y = _score_scale(data, runs)
    x = scale_of(axis, runs, LEFT + 4, WIDTH - RIGHT)
    figure.axes(None, y, axis.name)
    _tick(figure, x)
    points(figure, [(x(axis.number(run)), _height(y, data.scores[run]), run) for run in runs], colored, "")
    return str(figure)


def two_axes(data: ReportData) -> tuple[str, str, str, list[tuple[str, str]]] | None:
    """Plot the runs by the two most important sampled hyperparameters, colored by score."""
    axes = [axis for axis in data.compared if axis.is_sampled][:2]
    if len(axes) < 2:  # noqa: PLR2004
        return None
    across, up = axes
    runs = [run for run in with_number(data, across) if not math.isnan(up.number(run))]
    if len(runs) < NUM_CLASSES:
        return None
    x, y = scale_of(across, runs, LEFT + 4, WIDTH - RIGHT), scale_of(up, runs, HEIGHT - BOTTOM - 4, TOP + 4)
    rising = runs[::-1]  # worst runs first, so that the dots of the best runs cover the others
    classes = [
        rising[len(rising) * number // NUM_CLASSES : len(rising) * (number + 1) // NUM_CLASSES]
        for number in range(NUM_CLASSES)
    ]
    best = runs[0]
    words = (
        f"Each dot is a run, colored by its {data.goal.metric}; settings without a dot were not tried. "
        f"The best is {data.names[best]}: {across.name} {cell(across.number(best))}, "
        f"{up.name} {cell(up.number(best))}."
    )
    title = f"{across.name} and {up.name} together"
    facts = {"figure": "points", "what": across.name, "colors": "score"}
    figure = Figure("landscape", title, words, facts=facts)
    figure.axes(None, y, across.name)
    _tick(figure, x)
    figure.text(LEFT - 6, TOP - 1, up.name, "name", "start")
    for number, group in enumerate(classes):
        dots = [(x(across.number(run)), y(up.number(run)), run) for run in group]
        d = "".join(f"M{left:.1f} {height:.1f}h0" for left, height, _ in dots)
        figure.path(d, f"dots s{number}", data_runs=" ".join(str(run) for run in group))
    left, height = x(across.number(best)), y(up.number(best))
    for kind in ("circle halo", "circle"):
        figure.path(f"M{left - 8:.1f} {height:.1f}a8 8 0 1 0 16 0a8 8 0 1 0 -16 0", kind)
    ends = aligned([data.scores[run] for group in classes for run in (group[0], group[-1])])
    key = [(f"s{number}", f"{ends[2 * number]} to {ends[2 * number + 1]}") for number in range(NUM_CLASSES)]
    return title, str(figure), words, key


def best_so_far(data: ReportData, busy: Sequence[Busy], colored: PageAxis | None) -> tuple[str, str] | None:
    """Plot the scores in the order in which the runs ended, and the best score so far."""
    ends: dict[int, float] = {}
    for each in busy:
        ends[each.run] = max(each.end, ends.get(each.run, -math.inf))
    runs = sorted((run for run in data.order if run in ends), key=lambda run: ends[run])
    if len(runs) < 3:  # noqa: PLR2004 - two show no trend
        return None
    sign = data.goal.sign
    better = [runs[0]]  # the runs that were the best runs when they ended
    numbers = [1]
    for number, run in enumerate(runs[1:], start=2):
        if sign * data.scores[run] > sign * data.scores[better[-1]]:
            better.append(run)
            numbers.append(number)
    y = _score_scale(data, runs)
    x = Scale(1, len(runs), LEFT + 4, WIDTH - RIGHT)
    idle = len(runs) - numbers[-1]
    which = "The best single run" if data.ranking.repeats else "The best"
    words = f"{which}, {data.names[better[-1]]}, was number {numbers[-1]:,} of {len(runs):,} to end. " + (
        f"The last {counted(idle, 'run')} did not improve it." if idle else "It was the last one."
    )
    half = max(index for index, number in enumerate(numbers) if number <= (len(runs) + 1) // 2)
    if half < len(better) - 1:
        after = f"{cell(data.scores[better[half]])}, now {cell(data.scores[better[-1]])}"
        words += f" After half of them the best {data.goal.metric} was {after}."
    facts = {"figure": "points", "what": "order"}
    figure = Figure("history", f"The best {data.goal.metric} so far", words, facts=facts)
    figure.axes(x, y, "runs that have ended")
    points(
        figure,
        [(x(number), _height(y, data.scores[run]), run) for number, run in enumerate(runs, 1)],
        colored,
        "",
    )
    corners = [(x(numbers[0]), _height(y, data.scores[better[0]]))]
    for number, run in zip(numbers[1:], better[1:], strict=True):
        corners += [(x(number), corners[-1][1]), (x(number), _height(y, data.scores[run]))]
    figure.path(polyline([*corners, (x(len(runs)), corners[-1][1])]), "front")
    return str(figure), words


def _score_scale(data: ReportData, runs: Sequence[int]) -> Scale:
    scores = [data.scores[run] for run in runs]
    low, high = range_of(scores, [data.scores[runs[0]], data.scores[data.order[0]]])
    return value_scale(low, high, HEIGHT - BOTTOM, TOP)


def _height(y: Scale, score: float) -> float:
    """Return the position of a score; a logarithmic axis clips scores below its range."""
    return y(max(score, y.low / 10)) if y.is_logarithmic else y(score)


def _tick(figure: Figure, x: Scale) -> None:
    """Label an x-axis; its numbers may have fractions."""
    for tick in x.ticks(4):
        figure.text(x(tick), HEIGHT - BOTTOM + 15, cell(tick))

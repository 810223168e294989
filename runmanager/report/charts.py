"""Figures of points: scores by hyperparameter and by two goals."""

import itertools
import math
from collections.abc import Sequence

from runmanager.answers.findings import ON_FRONT
from runmanager.hyperparameters import counted
from runmanager.report.model import PageAxis, ReportData
from runmanager.report.run_colors import color
from runmanager.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Figure,
    apart,
    cut_text,
    polyline,
    spaced,
    value_scale,
)
from runmanager.wording import cell

_GOLDEN = 0.618034  # the step of the jitter: multiples of this number modulo 1 are spread evenly
_MOST_POINTS = 1500  # maximum number of points per figure


def effect(data: ReportData, axis: PageAxis, words: str, name: str, colored: PageAxis | None = None) -> str:
    """Plot the scores by one hyperparameter, and the mean of each value over otherwise equal settings."""
    scores = [data.scores[index] for index in data.order]
    y = value_scale(min(scores), max(scores), HEIGHT - BOTTOM, TOP)
    facts = {"figure": "points", "what": axis.name}
    figure = Figure(name, f"{data.goal.metric} by {axis.name}", words, facts=facts)
    figure.axes(None, y, axis.name)
    width = (WIDTH - LEFT - RIGHT) / len(axis.labels)
    step = math.ceil(len(axis.labels) / 8)
    change = data.answers.matters.changes.get(axis.name)
    compared = {axis.label(value): mean for value, mean in change.means} if change else {}
    means: list[tuple[float, float]] = []
    for code, label in enumerate(axis.labels):
        x = LEFT + (code + 0.5) * width
        if code % step == 0:
            figure.text(x, HEIGHT - BOTTOM + 15, cut_text(label, step * width))
        runs = [index for index in data.order if axis.codes[index] == code]
        if runs:
            spread = min(width * 0.32, 26) if len(runs) > 1 else 0
            dots = [(x + (2 * (rank * _GOLDEN % 1) - 1) * spread, index) for rank, index in enumerate(runs)]
            points(figure, [(dot, y(data.scores[index]), index) for dot, index in dots], colored, "")
        if label in compared:
            means.append((x, y(compared[label])))
    if means:
        figure.path(polyline(means), "trend")
    half = min(width * 0.3, 14)
    for x, mean in means:
        figure.path(f"M{x - half:.1f} {mean:.1f}h{2 * half:.1f}", "mean")
    return str(figure)


def _name(figure: Figure, corners: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Name some corners of a front, the best first; the names are above the line, inside the figure."""
    named = spaced(range(len(corners)), 4)
    heights = apart([corners[number][1] - 6 for number in named], 12, TOP + 8, HEIGHT - BOTTOM)
    for number, height in zip(named, heights, strict=True):
        x = corners[number][0]
        is_at_end = x + 8 + 6.2 * len(names[number]) > WIDTH
        figure.text(
            x - 6 if is_at_end else x + 6, height, names[number], "end", "end" if is_at_end else "start"
        )


def front(data: ReportData, colored: PageAxis | None) -> tuple[str, str] | None:
    """Plot the runs, or the means of settings, by the first two goals, with the Pareto front of these goals."""
    rated = [setting for setting in data.findings.leaders if all(map(math.isfinite, setting.means))]
    if len(data.goals) < 2 or len(rated) < 2:  # noqa: PLR2004 - a front needs two goals and two settings
        return None
    best = data.findings.front
    names = [goal.metric for goal in data.goals]
    what = counted(len(rated), data.findings.noun)
    words = f"{len(best):,} of {what} are on the Pareto front: {ON_FRONT}."
    if len(best) == 1:
        first = data.findings.name(best[0]) if data.findings.repeats else data.names[best[0].rows[0]]
        words = f"Each dot is a {data.findings.noun}; none is better than {first}, with a ring, in any goal."
    ups, acrosses = ([setting.means[number] for setting in rated] for number in (0, 1))
    y = value_scale(min(ups), max(ups), HEIGHT - BOTTOM, TOP + 20)  # below the names of axis and run
    x = value_scale(min(acrosses), max(acrosses), LEFT + 4, WIDTH - RIGHT)
    facts = {"figure": "points", "what": data.goals[1].metric}
    figure = Figure("front", " and ".join([", ".join(names[:-1]), names[-1]]), words, facts=facts)
    figure.axes(None, y, data.goals[1].metric)
    for tick in x.ticks(4):
        figure.text(x(tick), HEIGHT - BOTTOM + 15, cell(tick))
    figure.text(LEFT - 6, TOP - 1, data.goals[0].metric, "name", "start")
    points(figure, [(x(s.means[1]), y(s.means[0]), s.rows[0]) for s in rated], colored, "")
    corners = [(x(setting.means[1]), y(setting.means[0])) for setting in best]
    if len(data.goals) == 2 and len(best) > 1:  # noqa: PLR2004 - with more goals, a line in two of them would mislead
        figure.path(_staircase(corners[::-1]), "front")
    else:
        for left, height in corners:
            figure.path(f"M{left - 5:.1f} {height:.1f}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0", "circle thin")
    if not data.findings.repeats:
        _name(figure, corners, [data.names[setting.rows[0]] for setting in best])
    return str(figure), words


def points(
    figure: Figure, dots: Sequence[tuple[float, float, int]], colored: PageAxis | None, kind: str
) -> None:
    """Draw one dot per run; each dot is (x, y, index), and all dots of a color form one path."""
    by_color: dict[str, list[tuple[float, float, int]]] = {}
    for dot in dots if len(dots) <= _MOST_POINTS else spaced(range(len(dots)), _MOST_POINTS):
        each = dots[dot] if isinstance(dot, int) else dot
        by_color.setdefault(color(colored, each[2]), []).append(each)
    for name, group in by_color.items():
        d = "".join(f"M{x:.1f} {y:.1f}h0" for x, y, _ in group)
        runs = " ".join(str(index) for _, _, index in group)
        figure.path(d, f"dots {name} {kind}".rstrip(), data_runs=runs)


def _staircase(corners: Sequence[tuple[float, float]]) -> str:
    """Return the step line along a front: each step goes across first, then up or down."""
    pairs = itertools.pairwise(corners)
    steps = [point for (x1, y1), (x2, y2) in pairs for point in ((x1, y1), (x2, y1), (x2, y2))]
    return polyline(steps or corners)

"""Figures of points: scores by hyperparameter."""

import math
from collections.abc import Sequence

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
    cut_text,
    polyline,
    spaced,
    value_scale,
)

_GOLDEN = 0.618034  # the step of the jitter: multiples of this number modulo 1 are spread evenly
_MOST_POINTS = 1500  # maximum number of points per figure


def effect(data: ReportData, axis: PageAxis, words: str, name: str, colored: PageAxis | None = None) -> str:
    """Plot the scores by one hyperparameter, and the mean of each value over otherwise equal settings."""
    scores = [data.scores[index] for index in data.order]
    column, size = data.answers.matters.changes.get(axis.name, ("", math.nan))
    compared: dict[str, float] = {}
    if math.isfinite(size):
        contest = data.answers.verdict_on(column)
        compared = {axis.label(contest.levels[rival]): contest.means[rival] for rival in contest.positions}
    heights = [*scores, *filter(math.isfinite, compared.values())]  # a mean of pairs may be outside all scores
    y = value_scale(min(heights), max(heights), HEIGHT - BOTTOM, TOP)
    facts = {"figure": "points", "what": axis.name}
    figure = Figure(name, f"{data.goal.metric} by {axis.name}", words, facts=facts)
    figure.axes(None, y, axis.name)
    width = (WIDTH - LEFT - RIGHT) / len(axis.labels)
    step = math.ceil(len(axis.labels) / 8)
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

"""Figures with a dot per run: the scores by one hyperparameter, and the best score so far."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from runmanager.answers.sampled import is_in_magnitudes
from runmanager.answers.verdict_sentence import sentence_of
from runmanager.core.wording import counted, listed
from runmanager.report.model import PageAxis, ReportData
from runmanager.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Figure,
    Scale,
    cut_text,
    polyline,
    range_of,
    value_scale,
)
from runmanager.report.timeline import Busy
from runmanager.tables.cells import cell

_MOST_AXES = 8  # maximum number of figures
_GOLDEN = 0.618034  # the step of the jitter: multiples of this number modulo 1 are spread evenly
_OUTER = 0.25  # outer share of a range: if all best runs are in this share, the range may be too narrow
_FEWEST = 5  # minimum number of best runs; all five are in an outer quarter by chance in 1 of 500 axes
_MOST_NAMED = 4  # maximum number of values in a sentence


def effect_figures(data: ReportData) -> list[dict[str, str]]:
    """Plot the scores by each hyperparameter, each figure with a sentence."""
    figures = []
    for number, axis in enumerate(data.compared[:_MOST_AXES]):
        words = _range_sentence(data, axis) if data.is_searched else _effect_sentence(data, axis)
        figure = Figure(f"effect-{number}", f"{data.goal.metric} by {axis.name}", words, figure="points")
        (_slice if axis.is_sampled else _effect)(figure, data, axis)
        figures.append({"name": axis.name, "figure": str(figure), "words": words})
    return figures


def best_so_far(data: ReportData, busy: Sequence[Busy]) -> dict[str, str] | None:
    """Plot the scores in the order in which the runs ended, and the best score so far."""
    ends: dict[int, float] = {}
    for attempt in busy:
        ends[attempt.run] = max(attempt.end, ends.get(attempt.run, -math.inf))
    runs = sorted((run for run in data.order if run in ends), key=lambda run: ends[run])
    if len(runs) < 3:  # noqa: PLR2004 - two show no trend
        return None
    sign = data.goal.sign
    better = [(1, runs[0])]  # the runs that were the best runs when they ended, with their number
    for number, run in enumerate(runs, start=1):
        if sign * data.scores[run] > sign * data.scores[better[-1][1]]:
            better.append((number, run))
    last, best = better[-1]
    which = "The best single run" if data.ranking.repeats else "The best"
    words = f"{which}, {data.names[best]}, was number {last:,} of {len(runs):,} to end. " + (
        f"The last {counted(len(runs) - last, 'run')} did not improve it."
        if last < len(runs)
        else "It was the last one."
    )
    figure = Figure("history", f"The best {data.goal.metric} so far", words, figure="points")
    x, y = Scale(1, len(runs), LEFT + 4, WIDTH - RIGHT), _score_scale(data, runs)
    figure.axes(x, y, "runs that have ended", is_whole=True)
    figure.dots([(x(number), y(data.scores[run]), run) for number, run in enumerate(runs, 1)], data.color)
    height = y(data.scores[runs[0]])
    corners: list[tuple[float, float]] = []
    for number, run in better:
        corners.append((x(number), height))
        height = y(data.scores[run])
        corners.append((x(number), height))
    figure.path(polyline([*corners, (x(len(runs)), height)]), "front")
    return {"name": "The best so far", "figure": str(figure), "words": words}


def _effect(figure: Figure, data: ReportData, axis: PageAxis) -> None:
    """Draw the scores by the values of a grid, and the mean of each value over otherwise equal settings."""
    column, size = data.answers.matters.changes.get(axis.name, ("", math.nan))
    compared: dict[str, float] = {}
    if math.isfinite(size):
        contest = data.answers.verdict_on(column)
        compared = {axis.label(contest.levels[rival]): contest.means[rival] for rival in contest.positions}
    scores = [data.scores[index] for index in data.order]
    heights = [*scores, *filter(math.isfinite, compared.values())]  # a mean of pairs may be outside all scores
    y = value_scale(min(heights), max(heights), HEIGHT - BOTTOM, TOP)
    figure.axes(None, y, axis.name)
    width = (WIDTH - LEFT - RIGHT) / len(axis.labels)
    step = math.ceil(len(axis.labels) / 8)
    means: list[tuple[float, float]] = []
    for code, label in enumerate(axis.labels):
        x = LEFT + (code + 0.5) * width
        if code % step == 0:
            figure.text(x, HEIGHT - BOTTOM + 15, cut_text(label, step * width))
        runs = [index for index in data.order if axis.codes[index] == code]
        spread = min(width * 0.32, 26) if len(runs) > 1 else 0
        positions = [x + (2 * (rank * _GOLDEN % 1) - 1) * spread for rank in range(len(runs))]
        figure.dots(
            [(at, y(data.scores[run]), run) for at, run in zip(positions, runs, strict=True)], data.color
        )
        if label in compared:
            means.append((x, y(compared[label])))
    if means:
        figure.path(polyline(means), "trend")
    half = min(width * 0.3, 14)
    for x, mean in means:
        figure.path(f"M{x - half:.1f} {mean:.1f}h{2 * half:.1f}", "mean")


def _slice(figure: Figure, data: ReportData, axis: PageAxis) -> None:
    """Draw the scores by the values of a sample or a search."""
    runs = _with_number(data, axis)
    x, y = _scale_of(axis, runs, LEFT + 4, WIDTH - RIGHT), _score_scale(data, runs)
    figure.axes(x, y, axis.name)
    figure.dots([(x(axis.number(run)), y(data.scores[run]), run) for run in runs], data.color)


def _effect_sentence(data: ReportData, axis: PageAxis) -> str:
    """Say which value of a hyperparameter leads in otherwise equal settings, and whether that is decided."""
    change = data.answers.matters.changes.get(axis.name)
    if change is None:
        return ""
    column, size = change
    if math.isnan(size):
        return f"No two settings differ in {axis.name} alone."
    contest = data.answers.verdict_on(column)
    sentence = f"All else equal, {sentence_of(contest)}."
    if contest.alone:
        alone = listed((axis.label(contest.levels[rival]) for rival in contest.alone), _MOST_NAMED)
        sentence += f" Not in these comparisons: {alone}."
    return sentence


def _range_sentence(data: ReportData, axis: PageAxis) -> str:
    """Return a sentence about the values of the best tenth of the runs, at least five, for a hyperparameter."""
    best = data.order[: max(_FEWEST, math.ceil(len(data.order) / 10))]
    which = "The best run" if len(best) == 1 else f"The best {len(best):,} of {len(data.order):,} runs"
    if not axis.is_sampled:
        return f"{which}: {_counts(axis, best)}. All: {_counts(axis, data.order)}."
    runs = _with_number(data, axis)
    numbers = sorted(axis.number(run) for run in best if run in set(runs))
    if not numbers:
        return f"{which} have no {axis.name}."
    low, high = cell(numbers[0]), cell(numbers[-1])
    ends = [cell(end(axis.number(run) for run in runs)) for end in (min, max)]
    share = _scale_of(axis, runs, 0.0, 1.0)
    hint = ""
    if len(numbers) >= _FEWEST and share(numbers[-1]) < _OUTER:
        hint = " They are at the lower end: smaller values may be better."
    elif len(numbers) >= _FEWEST and share(numbers[0]) > 1 - _OUTER:
        hint = " They are at the upper end: larger values may be better."
    have = f"{low} to {high}" if low != high else low
    return f"{which} have {axis.name} {have}; {ends[0]} to {ends[1]} were tried.{hint}"


def _counts(axis: PageAxis, runs: Iterable[int]) -> str:
    counts = Counter(axis.codes[run] for run in runs).most_common(_MOST_NAMED)
    return ", ".join(f"{number} {axis.labels[code]}" for code, number in counts)


def _with_number(data: ReportData, axis: PageAxis) -> list[int]:
    """Return the runs with a score and a number on this axis, the best run first."""
    return [run for run in data.order if not math.isnan(axis.number(run))]


def _scale_of(axis: PageAxis, runs: Sequence[int], start: float, end: float) -> Scale:
    """Return the scale of a hyperparameter; a logarithmic scale if the numbers span orders of magnitude."""
    numbers = [axis.number(run) for run in runs]
    return value_scale(min(numbers), max(numbers), start, end, is_wide=is_in_magnitudes(numbers))


def _score_scale(data: ReportData, runs: Sequence[int]) -> Scale:
    low, high = range_of([data.scores[run] for run in runs], [data.scores[data.order[0]]])
    return value_scale(low, high, HEIGHT - BOTTOM, TOP)

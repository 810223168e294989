"""Figures with a dot per run: the scores by one hyperparameter, and the best score so far."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from runmanager.answers.sampled import is_in_magnitudes
from runmanager.answers.verdict_sentence import sentence_of
from runmanager.report.model import PageAxis, ReportData
from runmanager.report.svg import Dot, Figure, cut_text, polyline, range_of, value_scale
from runmanager.report.timeline import Busy
from runmanager.tables.cells import aligned, cell

_MOST_AXES = 8  # maximum number of figures
_GOLDEN = 0.618034  # the step of the jitter: multiples of this number modulo 1 are spread evenly
_OUTER = 0.25  # outer share of a range: if all best runs are in this share, the range may be too narrow
_BEST = 3  # minimum number of best runs
_FEWEST = 5  # minimum number of best runs for a hint: five are in an outer quarter by chance in 1 of 500 axes
_MOST_NAMED = 4  # maximum number of values in a sentence


def effect_figures(data: ReportData) -> list[Figure]:
    """Plot the scores by each hyperparameter whose effect is known, each figure with a sentence."""
    figures = []
    differ = len({data.scores[index] for index in data.order}) > 1
    axes = [axis for axis in data.compared if data.is_searched or axis.name in data.answers.matters.changes]
    for number, axis in enumerate(axes[:_MOST_AXES] if differ else ()):
        figure = Figure(f"effect-{number}", f"{data.goal.metric} by {axis.name}", figure="points")
        figure.words = _range_sentence(data, axis) if data.is_searched else _effect_sentence(data, axis)
        (_slice if axis.is_sampled else _effect)(figure, data, axis)
        figures.append(figure)
    return figures


def by_two_goals(data: ReportData) -> Figure | None:
    """Plot the first goal by the second, and the Pareto front."""
    metric, other = (goal.metric for goal in data.ranking.goals[:2])
    values = [float(value) for value in data.runs[other]]
    runs = [run for run in data.order if math.isfinite(values[run])]
    if len(runs) < 2:  # noqa: PLR2004 - a single run needs no figure
        return None
    figure = Figure("overview", f"{metric} by {other}", figure="points")
    front = sorted(setting.means[1::-1] for setting in data.ranking.front)
    figure.words = "A dot is a run; lines join the Pareto front."
    numbers, firsts = [values[run] for run in runs], [data.scores[run] for run in runs]
    x, y = figure.across(min(numbers), max(numbers), is_wide=False), figure.up(min(firsts), max(firsts))
    figure.axes(x, y, other)
    figure.path(polyline((x(second), y(first)) for second, first in front), "front")
    figure.dots([(x(values[run]), y(data.scores[run]), run) for run in runs], data.color, data.order[0])
    return figure


def by_rank(data: ReportData) -> Figure | None:
    """Plot the scores of all runs in columns, one for each ranked run or setting; None if they are equal."""
    ranking, columns = data.ranking, dict[int, list[int]]()
    number_of = {row: number for number, each in enumerate(ranking.all_settings) for row in each.rows}
    for run in data.ranked:
        if math.isfinite(data.scores[run]):
            columns.setdefault(number_of[run], []).append(run)
    runs = [run for column in columns.values() for run in column]
    if not data.order or len({data.scores[run] for run in runs}) == 1:
        return None
    figure = Figure("overview", f"{data.goal.metric} of all {ranking.noun}s", figure="points")
    columns_in_words = "A column is a setting, a dot a run, a bar the mean."
    figure.words = columns_in_words if ranking.repeats else "A dot is a run."
    if len(runs) > len(data.order):
        figure.words += " Pruned runs are drawn at their last epoch."
    _in_order(figure, data, [*columns.values()], f"{ranking.noun}s, the best first")
    return figure


def best_so_far(data: ReportData, busy: Sequence[Busy]) -> Figure | None:
    """Plot the scores in the order in which the runs ended, and the best score so far."""
    ends: dict[int, float] = {}
    for attempt in busy:
        ends[attempt.run] = max(attempt.end, ends.get(attempt.run, -math.inf))
    runs = sorted((run for run in data.order if run in ends), key=lambda run: ends[run])
    if len(runs) < 3:  # noqa: PLR2004 - two show no trend
        return None
    sign, scores = data.goal.sign, data.scores
    bests: list[int] = []
    for run in runs:
        is_better = not bests or sign * scores[run] > sign * scores[bests[-1]]
        bests.append(run if is_better else bests[-1])
    last = bests.index(bests[-1]) + 1
    figure = Figure("history", f"The best {data.goal.metric} so far", figure="points")
    figure.words = f"The best single run, {data.names[bests[-1]]}, was number {last:,} of {len(runs):,} to end."
    dots = _in_order(figure, data, [[run] for run in runs], "runs that have ended")
    y_of = {run: y for _, y, run in dots}
    corners: list[tuple[float, float]] = []
    for (x, _, _), before, best in zip(dots, [bests[0], *bests], bests, strict=False):
        corners += [(x, y_of[before]), (x, y_of[best])]
    figure.path(polyline(corners), "front")
    return figure


def _in_order(figure: Figure, data: ReportData, columns: Sequence[Sequence[int]], x_name: str) -> list[Dot]:
    """Draw the scores of runs in columns from left to right; return the place of each dot."""
    scores = [data.scores[run] for column in columns for run in column]
    x, y = figure.across(1, len(columns)), figure.up(min(scores), max(scores))
    figure.axes(x, y, x_name)
    dots = [(x(number), y(data.scores[run]), run) for number, column in enumerate(columns, 1) for run in column]
    figure.dots(dots, data.color, data.order[0])
    if data.ranking.repeats and len(columns) < len(scores):
        half = min(0.4 * (x(2) - x(1)), 14)
        for number, setting in enumerate(data.ranking.settings, 1):
            figure.path(f"M{x(number) - half:.1f} {y(setting.mean):.1f}h{2 * half:.1f}", "mean")
    return dots


def _effect(figure: Figure, data: ReportData, axis: PageAxis) -> None:
    """Draw the scores by the values of a grid, and the mean of each value over otherwise equal settings."""
    column, size = data.answers.matters.changes[axis.name]
    compared: dict[str, float] = {}
    if math.isfinite(size):
        contest = data.answers.verdict_on(column)
        compared = {axis.label(contest.levels[rival]): contest.means[rival] for rival in contest.positions}
    scores = [data.scores[index] for index in data.order]
    heights = [*scores, *filter(math.isfinite, compared.values())]  # a mean of pairs may be outside all scores
    x, y = figure.across(-0.5, len(axis.labels) - 0.5), figure.up(min(heights), max(heights))
    width, step = x(1) - x(0), math.ceil(len(axis.labels) / 8)
    labels = dict(enumerate(axis.labels))
    figure.axes(x, y, axis.name, {code: cut_text(labels[code], step * width) for code in [*labels][::step]})
    texts = dict(zip(compared, aligned([*compared.values()]), strict=True))
    means: list[tuple[float, float]] = []
    for code, label in labels.items():
        runs = [index for index in data.order if axis.codes[index] == code]
        spread = min(width * 0.32, 26) if len(runs) > 1 else 0
        positions = [x(code) + (2 * (rank * _GOLDEN % 1) - 1) * spread for rank in range(len(runs))]
        dots = [(at, y(data.scores[run]), run) for at, run in zip(positions, runs, strict=True)]
        figure.dots(dots, data.color, data.order[0])
        if label in compared:
            means.append((x(code), y(compared[label])))
            if step == 1:
                figure.text(x(code), means[-1][1] - 7, texts[label], "value")
    if means:
        figure.path(polyline(means), "trend")
    half = min(width * 0.3, 14)
    for at, mean in means:
        figure.path(f"M{at - half:.1f} {mean:.1f}h{2 * half:.1f}", "mean")


def _slice(figure: Figure, data: ReportData, axis: PageAxis) -> None:
    """Draw the scores by the values of a sample or a search."""
    numbers = _numbers(data, axis)
    values = [*numbers.values()]
    x = figure.across(min(values), max(values), is_wide=is_in_magnitudes(values))
    y = figure.up(*range_of([data.scores[run] for run in numbers], [data.scores[data.order[0]]]))
    figure.axes(x, y, axis.name)
    dots = [(x(number), y(data.scores[run]), run) for run, number in numbers.items()]
    figure.dots(dots, data.color, data.order[0])


def _effect_sentence(data: ReportData, axis: PageAxis) -> str:
    """Say which value of a hyperparameter leads in otherwise equal settings, and whether that is decided."""
    column, size = data.answers.matters.changes[axis.name]
    if len(data.compared) == 1:  # the headline says the rest
        return f"A dot is a run, a bar the mean of each {axis.name}."
    if math.isnan(size):
        return f"No two settings differ in {axis.name} alone."
    return f"All else equal, {sentence_of(data.answers.verdict_on(column))}."


def _range_sentence(data: ReportData, axis: PageAxis) -> str:
    """Say which values of a hyperparameter the best tenth of the runs have, at least three runs."""
    number, scores = max(_BEST, math.ceil(len(data.order) / 10)), data.scores
    left_out = {scores[run] for run in data.order[number : number + 1]}  # of ties, all are named or none
    best = [run for run in data.order[:number] if scores[run] not in left_out]
    best = best or [run for run in data.order if scores[run] in left_out]
    which = "The best run" if len(best) == 1 else f"The best {len(best):,} of {len(data.order):,} runs"
    if not axis.is_sampled:
        return f"{which}: {_counts(axis, best)}. All: {_counts(axis, data.order)}."
    numbers = _numbers(data, axis)
    ours, tried = sorted(numbers[run] for run in best if run in numbers), sorted(numbers.values())
    if not ours:
        return f"{which} have no {axis.name}."
    low, high, first, last = map(cell, (ours[0], ours[-1], tried[0], tried[-1]))
    share = value_scale(tried[0], tried[-1], 0.0, 1.0, is_wide=is_in_magnitudes(tried))
    have = f"{low} to {high}" if low != high else low
    text, end = f"{which} have {axis.name} {have}; {first} to {last} were tried.", ""
    if share(ours[-1]) < _OUTER:
        end = "lower end: smaller"
    elif share(ours[0]) > 1 - _OUTER:
        end = "upper end: larger"
    return f"{text} They are at the {end} values may be better." if end and len(ours) >= _FEWEST else text


def _counts(axis: PageAxis, runs: Iterable[int]) -> str:
    counts = Counter(axis.codes[run] for run in runs).most_common(_MOST_NAMED)
    return ", ".join(f"{number} {axis.labels[code]}" for code, number in counts)


def _numbers(data: ReportData, axis: PageAxis) -> dict[int, float]:
    """Return the number on this axis of each run with a score, the best run first."""
    numbers = {run: axis.numbers[axis.codes[run]] for run in data.order}
    return {run: number for run, number in numbers.items() if not math.isnan(number)}

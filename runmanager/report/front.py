"""Several goals: the figure and the table of the runs that no other beats in all of them."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from runmanager.report.charts import points
from runmanager.report.model import PageAxis, ReportData
from runmanager.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Figure,
    polyline,
    value_scale,
)
from runmanager.results.findings import ON_FRONT
from runmanager.results.tables import KEPT
from runmanager.wording import aligned

_MOST_ROWS = 20  # of the table


class Front(NamedTuple):
    """What the page shows of several goals."""

    title: str
    words: str
    figure: str
    columns: Sequence[str]  # of the table: the goals, then the setting
    rows: Sequence[Sequence[str]]
    number: int  # of settings in the front


def front(data: ReportData, colored: PageAxis | None) -> Front | None:
    """Draw the runs, or the means of settings, by the first two goals; None if no two have a number of each."""
    means = {
        index: setting.means
        for index, setting in enumerate(data.findings.leaders)
        if all(map(math.isfinite, setting.means))
    }
    if len(means) < 2:  # noqa: PLR2004 - a choice is between two
        return None
    best = [data.findings.settings.index(setting) for setting in data.findings.front]
    names = [goal.metric.removeprefix(KEPT) for goal in data.goals]
    title = " and ".join([", ".join(names[:-1]), names[-1]])
    what = "settings" if data.findings.repeats else "runs"
    are = "are" if len(best) > 1 else "is"
    words = f"{len(best):,} of {len(means):,} {what} {are} on the Pareto front: {ON_FRONT}."
    settings = data.findings.settings
    texts = [aligned([means[index][number] for index in best[:_MOST_ROWS]]) for number in range(len(names))]
    rows = [
        [*(column[row] for column in texts), data.findings.name(settings[index])]
        for row, index in enumerate(best[:_MOST_ROWS])
    ]
    figure = _figure(data, title, words, means, best, colored)
    columns = [*names, what.removesuffix("s")]
    return Front(title, words, figure, columns, rows, len(best))


def _figure(
    data: ReportData,
    title: str,
    words: str,
    means: dict[int, list[float]],
    best: Sequence[int],
    colored: PageAxis | None,
) -> str:
    settings = data.findings.settings
    ups, acrosses = ([values[number] for values in means.values()] for number in (0, 1))
    y = value_scale(min(ups), max(ups), HEIGHT - BOTTOM, TOP)
    x = value_scale(min(acrosses), max(acrosses), LEFT + 4, WIDTH - RIGHT)
    facts: dict[str, Any] = {"figure": "points", "what": data.goals[1].metric}
    figure = Figure("front", title, words, facts=facts)
    figure.axes(None, y, data.goals[1].metric)
    for tick in x.ticks(4):
        figure.text(x(tick), HEIGHT - BOTTOM + 15, f"{tick:.4g}")
    figure.text(LEFT - 6, TOP - 1, data.goals[0].metric, "name", "start")
    dots = [(x(values[1]), y(values[0]), settings[index].rows[0]) for index, values in means.items()]
    points(figure, dots, colored, "")
    corners = [(x(means[index][1]), y(means[index][0])) for index in best]
    if len(data.goals) == 2:  # noqa: PLR2004 - of more, a line between two of them says nothing
        steps = [
            point
            for (x1, y1), (x2, y2) in itertools.pairwise(corners)
            for point in ((x1, y1), (x1, y2), (x2, y2))
        ]
        figure.path(polyline(steps or corners), "front")
    else:
        for left, height in corners:
            figure.path(f"M{left - 5:.1f} {height:.1f}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0", "circle thin")
    return str(figure)

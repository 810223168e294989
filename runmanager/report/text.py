"""The sentences that describe the parts of a report."""

import math
from collections.abc import Mapping, Sequence

from runmanager.answers.answers import Answers
from runmanager.answers.contest import EQUAL, UNDECIDED
from runmanager.answers.ranking import is_same
from runmanager.answers.sentences import capital, left_to_execute
from runmanager.answers.verdict_sentence import two_digits
from runmanager.core.goal import KEPT, is_larger_better
from runmanager.core.outcome import Status
from runmanager.core.state import RunResult
from runmanager.core.wording import counted
from runmanager.report.model import PageAxis, ReportData
from runmanager.tables.cells import aligned, cell

_BETTER = 0.01  # relative margin over the last epoch from which a better earlier epoch is mentioned
_MOST_NAMED = 4  # maximum number of values in a sentence


def basis(data: ReportData) -> str:
    """Say which value of a run counts, which direction is better, and how often the verdict is wrong."""
    answers, metric = data.answers, data.goal.metric
    if len(answers.settings) < 2:  # noqa: PLR2004 - a comparison needs two
        return ""
    which = metric if metric.startswith((KEPT, "best ")) else f"last {metric}"
    text = f"The {which} of each run counts, {'higher' if data.goal.is_larger_better else 'lower'} is better."
    if answers.has_verdict:
        text += f" In at most {100 * answers.decision.error:g} of 100 experiments is the verdict wrong."
    return text


def behind(data: ReportData, rank: int) -> str:
    """Return the distance of a setting to the leading setting, and whether this distance may be chance."""
    ranking = data.ranking
    if not rank:
        return ""
    best, setting = ranking.settings[0], ranking.settings[rank]
    if why_below := ranking.why_below(setting):
        return f"{why_below}: ranks below"
    if is_same(best.mean, setting.mean):
        return "the same mean"
    verdict = data.answers.verdict
    state = verdict.states.get(rank, UNDECIDED)
    chance = {UNDECIDED: ", may be chance", EQUAL: f", equal within {cell(verdict.margin)}"}.get(state, "")
    return f"{two_digits(best.mean - setting.mean)}{chance}"


def effect_sentence(data: ReportData, axis: PageAxis) -> str:
    """Say which value of a hyperparameter leads in otherwise equal settings, by how much, and if by chance."""
    change = data.answers.matters.changes.get(axis.name)
    if change is None:
        return ""
    column, size = change
    if math.isnan(size):
        return f"No two settings differ in {axis.name} alone."
    contest = data.answers.verdict_on(column)
    if not contest.leads:  # all values but one lack one of several goals
        return ""
    names = [axis.label(level) for level in contest.levels]
    best, *others = contest.positions
    lead = contest.closest
    mean = aligned([contest.means[rival] for rival in (best, *others)])[0]
    comparisons = "one comparison" if lead.n == 1 else f"{lead.n} {contest.unit}s"
    top = [names[rival] for rival in contest.positions if is_same(contest.means[rival], contest.means[best])]
    most, side = ("highest", "above") if data.goal.is_larger_better else ("lowest", "below")
    average = " on average" if lead.n > 1 else ""
    sentence = (
        f"All else equal, {names[best]} has the {most} {data.ranking.metric}{average}: {mean}, "
        f"{two_digits(lead.mean)} {side} {names[others[0]]} ({comparisons})"
    )
    if len(top) > 1:
        sentence = f"All else equal, {_listed(top)} have the same mean: {mean} ({comparisons})"
    elif not lead.mean > 0:
        sentence = f"All else equal, no value is ahead of all others ({comparisons})"
    parts = [f"{sentence}."]
    if len(top) == 1 and lead.mean > 0 and contest.outcome == UNDECIDED:
        parts.append("That may be chance.")
    if contest.alone:
        parts.append(f"Not in these comparisons: {_listed([names[rival] for rival in contest.alone])}.")
    return " ".join(parts)


def curves_sentence(data: ReportData, metric: str) -> str:
    """Return sentences on the course of the best run, and on runs that were better at an earlier epoch."""
    parts: list[str] = []
    larger = data.prefers_larger(metric)
    if data.order:
        run = data.results[data.order[0]]
        values = _values(run, metric)
        if values:
            top = max(values, key=lambda epoch: values[epoch] if larger else -values[epoch])
            last = max(values)
            name = capital(data.names[data.order[0]])
            if len(values) > 1 and top == last:
                parts.append(f"{name} was still improving at its last epoch, {last}.")
            elif len(values) > 1:
                parts.append(f"{name} was best at epoch {top} of {last}: {cell(values[top])}.")
    completed = [run for run in data.results if run.status is Status.COMPLETED]
    worse = sum(_was_better(_values(run, metric), larger=larger) for run in completed)
    if worse:
        of = counted(len(completed), "run" if len(completed) == len(data.results) else "completed run")
        were = f"{worse} of {of} {'was' if worse == 1 else 'were'} over 1 % better"
        direction = "best" if is_larger_better(metric) == larger else "max" if larger else "min"
        keep = f'; keep="{direction}:{metric}" keeps the weights of the best one'
        parts.append(f"{were} at an earlier epoch{keep if metric == data.ranking.metric else ''}.")
    return " ".join(parts)


def shared_sentence(data: ReportData) -> str:
    """Return a sentence on the varying hyperparameters that all completed runs share, "" if there are none."""
    same = [axis for axis in data.axes if len({axis.codes[index] for index in data.order}) == 1]
    values = [f"{axis.name}={axis.labels[axis.codes[data.order[0]]]}" for axis in same]
    is_said = values and len(data.order) > 1
    return f"All completed runs have {_listed(values)}; other values are not compared." if is_said else ""


def order_sentence(data: ReportData) -> str:
    """Return a sentence on the order of the table of runs, of which at least one is ranked."""
    ranking = data.ranking
    count = f"{counted(len(data.results), 'run')}; {ranking.count}" if ranking.repeats else ranking.count
    first = "those of the leading setting first" if ranking.repeats else f"the best first by {data.goal.metric}"
    return f"{capital(count)}, {first}."


def left_sentence(answers: Answers, *, is_over: bool) -> str:
    """Say how many runs may still get a result; "" if there is no such run."""
    number = sum(number for word, number in answers.counts.items() if Status(word).is_open)
    if not number:
        return ""
    is_stopped = is_over and not any(Status(word).is_in_progress for word in answers.counts)
    step = "; start the same command again to execute them" if is_stopped else ""
    return f"{left_to_execute(number, len(answers.runs))}{step}"


def _listed(names: Sequence[str]) -> str:
    some = list(names[:_MOST_NAMED])
    if len(names) > _MOST_NAMED:
        some.append(f"{len(names) - _MOST_NAMED} more")
    return " and ".join([", ".join(some[:-1]), some[-1]] if len(some) > 1 else some)


def _values(run: RunResult, metric: str) -> dict[int, float]:
    values = {record.epoch: record.metrics.get(metric, math.nan) for record in run.epochs}
    return {epoch: value for epoch, value in values.items() if math.isfinite(value)}


def _was_better(values: Mapping[int, float], *, larger: bool) -> bool:
    if len(values) < 2:  # noqa: PLR2004 - an earlier epoch exists only with two
        return False
    last = values[max(values)]
    best = max(values.values()) if larger else min(values.values())
    return abs(best - last) > _BETTER * abs(last)

"""The sentences that describe the parts of a report."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from runmanager.answers.answers import Answers
from runmanager.answers.changes import Change
from runmanager.answers.conclusion import resumes
from runmanager.answers.verdict_sentence import EQUAL, UNDECIDED
from runmanager.goal import is_larger_better
from runmanager.hyperparameters import counted
from runmanager.outcome import Status
from runmanager.report import search_text
from runmanager.report.model import PageAxis, ReportData
from runmanager.storage.run_state import RunResult
from runmanager.tables.ranking import is_same
from runmanager.wording import aligned, capital, cell, duration

_BETTER = 0.01  # relative margin over the last epoch from which a better earlier epoch is mentioned
_MOST_NAMED = 4  # maximum number of values in a sentence


def headline(answers: Answers) -> tuple[str, list[str]]:
    """Return the headline, which names the trade-offs of several goals, and sentences that complete it."""
    findings, details = answers.findings, list(answers.details)
    if findings is None or len(findings.goals) < 2 or len(findings.front) < 2:  # noqa: PLR2004 - a choice
        return answers.headline, details
    goals = _listed([goal.metric for goal in findings.goals])
    which = f"{counted(len(findings.front), findings.noun)} are trade-offs between {goals}"
    return which, [f"{answers.headline}.", *details]


def behind(data: ReportData, rank: int) -> str:
    """Return the distance of a setting to the leading setting, and whether this distance may be chance."""
    findings = data.findings
    if not rank:
        return ""
    best, setting = findings.settings[0], findings.settings[rank]
    if why_below := findings.why_below(setting):
        return f"{why_below}: ranks below" if setting.number > 1 or setting.run else f"{why_below}: not ranked"
    if is_same(best.mean, setting.mean):
        return "the same mean"
    race = findings.setting_race
    state = dict(zip(race.positions[1:], race.states, strict=True)).get(rank, UNDECIDED)
    chance = {UNDECIDED: ", may be chance", EQUAL: f", equal within {cell(race.margin)}"}.get(state, "")
    return f"{abs(best.mean - setting.mean):.2g}{chance}"


def effect_sentence(data: ReportData, axis: PageAxis) -> str:
    """Say which value of a hyperparameter leads in otherwise equal settings, by how much, and if by chance."""
    change = data.answers.matters.changes.get(axis.name)
    if change is None:
        return ""
    if not change.means:
        return f"No two settings differ in {axis.name} alone. {_correlation(data, change)}".strip()
    (best, mean), (_, following) = change.means[:2]
    mean_text, *_ = aligned([each for _, each in change.means])
    comparisons = "one comparison" if change.num == 1 else f"{change.num} comparisons"
    repeats, number = data.findings.repeats, len(change.means)
    compared = f"means over {' and '.join(repeats)}" if repeats else "values"
    if number > 2:  # noqa: PLR2004 - two values need no number
        comparisons += f" of {number} {compared}"
    elif repeats:
        comparisons += f" of {compared}"
    top = [axis.label(value) for value, other in change.means if is_same(other, mean)]
    if len(top) > 1:
        listed = _listed(top)
        sentence = f"All else equal, {listed} have the same mean: {mean_text} ({comparisons})"
    else:
        most, side = data.goal.extreme, "above" if data.goal.is_larger_better else "below"
        average = " on average" if change.num > 1 else ""
        sentence = (
            f"All else equal, {axis.label(best)} has the {most} {data.findings.metric}{average}: {mean_text}, "
            f"{abs(mean - following):.2g} {side} {axis.label(change.means[1][0])} ({comparisons}"
        )
        sentence += f", {most} in {change.num_best})" if change.num > 1 else ")"
    parts = [f"{sentence}."]
    if len(top) == 1 and data.answers.race(change.axis).outcome == UNDECIDED:
        parts.append("That may be chance.")
    setting = data.findings.settings[0].rows[0]
    if (label := axis.labels[axis.codes[setting]]) not in top:
        which = "leading" if repeats else "best"
        parts.append(f"The {which} {data.findings.noun} has {label}.")
    if change.left_out:
        left_out = _listed([axis.label(value) for value in change.left_out])
        parts.append(f"Not in these comparisons: {left_out}.")
    return " ".join(filter(None, [*parts, _correlation(data, change)]))


def curves_sentence(data: ReportData, metric: str, partner: str | None) -> str:
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
        if partner and partner in (run.epochs[-1].metrics if run.epochs else {}) and values:
            parts.append(f"Its last {partner} on the training data is {cell(run.epochs[-1].metrics[partner])}.")
    completed = [run for run in data.results if run.status is Status.COMPLETED]
    worse = sum(_was_better(_values(run, metric), larger=larger) for run in completed)
    if worse:
        of = counted(len(completed), "run" if len(completed) == len(data.results) else "completed run")
        were = f"{worse} of {of} {'was' if worse == 1 else 'were'} over 1 % better"
        direction = "best" if is_larger_better(metric) == larger else "max" if larger else "min"
        keep = f'; keep="{direction}:{metric}" keeps the weights of the best one'
        parts.append(f"{were} at an earlier epoch{keep if metric == data.findings.metric else ''}.")
    return " ".join(parts)


def best_runs(data: ReportData) -> tuple[Sequence[int], str]:
    """Return the runs that the parallel coordinates highlight, and what they are; repeats stay together."""
    settings, number = data.findings.settings, len(data.order)
    if not data.findings.repeats:
        top = data.order[: max(1, min(3, number // 3), number // 10)]
        return top, f"the best {len(top)} runs" if len(top) > 1 else "the best run"
    best = settings[: max(1, len(settings) // 10)]
    rows = {row for setting in best for row in setting.rows}
    top = [row for row in data.order if row in rows]
    which = f"the {len(top)} runs of" if len(top) > 1 else "the run of"
    return top, f"{which} the {f'{len(best)} leading settings' if len(best) > 1 else 'leading setting'}"


def parallel_sentence(data: ReportData) -> str:
    """Return sentences on common values of the best runs, and on how runs without a score are drawn."""
    top, name = best_runs(data)
    left_out = len(data.lost)
    begins = "begins" if left_out == 1 else "begin"
    lost = f" {counted(left_out, 'run')} without a score {begins} below the first axis."
    absent = lost if left_out else ""
    axes = [axis for axis in data.axes if axis.name not in data.findings.repeats]  # there, values are chance
    is_one = len({tuple(axis.codes[index] for axis in axes) for index in top}) == 1
    which = f"Of {name} (thick),"
    if is_one:
        which = capital(f"{name} has" if len(top) == 1 else f"{name} (thick) have")
    common: list[str] = []
    for axis in axes:
        if axis.is_sampled:
            common += search_text.in_common(axis, top)
            continue
        counts = Counter(axis.codes[index] for index in top)
        code, number = counts.most_common(1)[0]
        base = sum(axis.codes[index] == code for index in data.order) / len(data.order)
        share = number / len(top)
        if is_one:
            common.append(f"{axis.name}={axis.labels[code]}")
        elif share >= max(0.6, 1.3 * base):
            amount = "all" if share == 1 else f"{number}"
            common.append(f"{amount} have {axis.name}={axis.labels[code]}")
    if not common:
        return f"No value is much more frequent among {name} (thick) than among all.{absent}"
    return f"{which} {', '.join(common)}.{absent}"


def shared_sentence(data: ReportData) -> str:
    """Return a sentence on the varying hyperparameters that all completed runs share, "" if there are none."""
    same = [axis for axis in data.axes if len({axis.codes[index] for index in data.order}) == 1]
    values = [f"{axis.name}={axis.labels[axis.codes[data.order[0]]]}" for axis in same]
    is_said = values and len(data.order) > 1
    return f"All completed runs have {_listed(values)}; other values are not compared." if is_said else ""


def order_sentence(data: ReportData) -> str:
    """Return a sentence on the order of the table of runs, of which at least one is ranked."""
    findings = data.findings
    count = f"{counted(len(data.results), 'run')}; {findings.count}" if findings.repeats else findings.count
    first = (
        "those of the leading setting first" if findings.repeats else f"the best first by {data.goal.metric}"
    )
    parts = [capital(count), first]
    parts += ["then pruned runs by their last epoch" if len(data.order) < len(data.rated) else ""]
    parts += ["then the others" if len(data.rated) < len(data.results) else ""]
    return f"{', '.join(filter(None, parts))}."


def left_sentence(answers: Answers, *, is_over: bool) -> str:
    """Say how many runs may still get a result, and where they resume; "" if there is no such run.

    The sentence has no period. If the grid is over, and no run is in progress, it says how to execute them.
    """
    number = sum(number for word, number in answers.counts.items() if Status(word).is_open)
    if not number:
        return ""
    which = f"{number:,} of {counted(len(answers.runs), 'run')}"
    parts = [f"{which} {'is' if number == 1 else 'are'} left to execute"]
    if is_over and not any(Status(word).is_in_progress for word in answers.counts):
        parts += resumes(answers.runs, answers.runs["status"] == Status.INTERRUPTED)
        parts += ["start the same command again to execute " + ("it" if number == 1 else "them")]
    return "; ".join(parts)


def failures_sentence(answers: Answers) -> str:
    """Return a sentence on the runs that failed or lack their device, by status; "" if there are none."""
    counts = Counter(answers.runs["status"].iloc[row] for each in answers.failures for row in each.rows)
    listed = ", ".join(f"{number:,} {word}" for word, number in counts.most_common())
    which = f"{counts.total():,} of {counted(len(answers.runs), 'run')}"
    return f"{which} {'has' if counts.total() == 1 else 'have'} no result: {listed}." if counts else ""


def execution(data: ReportData, facts: Mapping[str, Any]) -> str:
    """Return a sentence on the number of epochs, the run time and the number of machines."""
    machines = len(facts.get("machine", ()))
    where = f" on {machines} machine" + ("s" if machines > 1 else "") if machines else ""
    return (
        f"{counted(data.num_epochs, 'epoch')}, with a run time of {duration(data.answers.run_seconds)}{where}."
    )


def _correlation(data: ReportData, change: Change) -> str:
    """Return a sentence on the rank correlation of the metric with a hyperparameter."""
    rho = change.correlation
    if not math.isfinite(rho):
        return ""
    over = f"rank correlation {rho:.2f} over {change.num_settings} settings"
    if change.is_chance:
        return f"{capital(data.goal.metric)} neither rises nor falls with it beyond chance ({over})."
    return f"{capital(data.goal.metric)} {'rises' if rho > 0 else 'falls'} with it ({over})."


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

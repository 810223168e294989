"""What each part of a report shows, in a sentence from its data."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runmanager.console import cell, duration
from runmanager.errors import InvalidArgumentError
from runmanager.goal import is_larger_better
from runmanager.hyperparameters import counted
from runmanager.outcome import Status
from runmanager.report.model import Axis, ReportData
from runmanager.results.effects import speeds
from runmanager.results.findings import Setting
from runmanager.results.ranking import over_repeats
from runmanager.storage.run_state import RunResult

if TYPE_CHECKING:
    import pandas as pd

_SEED = "seed"
_LITTLE = 0.05  # a share of the variation that is too small to list
_BETTER = 0.01  # how much better an earlier epoch must be to be mentioned, relative to the last one


def headline(data: ReportData) -> str:
    """Say which run is best, of repeated settings which setting is."""
    if not data.order:
        return f"No run has a {data.metric} yet"
    if data.findings.repeats:
        setting = data.findings.settings[0]
        name = data.settings(setting.rows[0]) or "The only setting"
        return f"{name} is best: {data.metric} {cell(setting.mean)}{_repeated(data, setting)}"
    best = data.order[0]
    score = f"{data.metric} {cell(data.scores[best])}"
    if len(data.order) == 1:
        return f"{_capital(data.names[best])} is the only run with a result: {score}"
    return f"{_capital(data.names[best])} is best: {score}"


def margin(data: ReportData) -> str:
    """Say what the best run's settings are, and how far it leads."""
    if not data.order:
        return ""
    if data.findings.repeats:
        return _margin_of_settings(data)
    best, *others = data.order
    parts = [f"Its settings: {data.settings(best)}."] if data.axes else []
    if others:
        ties = sum(data.scores[index] == data.scores[best] for index in others)
        if ties == len(others):
            return " ".join([*parts, f"All {len(data.order)} runs with a result have the same score."])
        gap = abs(data.scores[best] - data.scores[others[0]])
        side = "above" if data.is_larger_better else "below"
        first, last = data.names[others[0]], data.names[others[-1]]
        lead = f"That is {gap:.2g} {side} the next, {first}"
        if ties:
            more = f" and {counted(ties - 1, 'other')} have" if ties > 1 else " has"
            lead = f"{_capital(first)}{more} the same score"
        parts.append(f"{lead}; the last, {last}, has {cell(data.scores[others[-1]])}.")
    return " ".join(parts)


def _repeated(data: ReportData, setting: Setting) -> str:
    """Say how many repeats a mean is of, with its interval; a failed one is never left out."""
    axes = " and ".join(data.findings.repeats)
    of = f"one {axes}" if setting.number == 1 else f"the mean of {setting.number} repeats ({axes})"
    interval = f", 95 % interval {cell(setting.low)} to {cell(setting.high)}" if cell(setting.low) else ""
    failed = "".join(f"; {counted(number, 'repeat')} {status}" for status, number in setting.lost.items())
    return f", {of}{interval}{failed}"


def _margin_of_settings(data: ReportData) -> str:
    """Say how far the best setting leads, and whether that may be chance."""
    best, *others = data.findings.settings
    if not others:
        return ""
    gap = abs(best.mean - others[0].mean)
    side = "above" if data.is_larger_better else "below"
    first, last = others[0], others[-1]
    lead = f"That is {gap:.2g} {side} the next, {data.settings(first.rows[0])}{_repeated(data, first)}"
    if not gap:
        lead = f"{data.settings(first.rows[0])} has the same mean"
    final = f"the last, {data.settings(last.rows[0])}, has {cell(last.mean)}"
    return f"{lead}; {final}. {data.findings.verdict}"


def seeds(data: ReportData) -> str:
    """Say which settings are best on average over their seeds, "" if no seed varies."""
    is_varied = any(axis.name == _SEED for axis in data.axes) and len(data.axes) > 1
    if data.findings.repeats or not is_varied:
        return ""
    column = data.findings.goal.metric
    try:
        table = over_repeats(data.runs, [_SEED], column)
    except InvalidArgumentError:
        return ""
    mean = table[f"{column} mean"]
    if mean.isna().all():
        return ""
    row = table.iloc[int(mean.argmax() if data.is_larger_better else mean.argmin())]
    names = [axis.name for axis in data.axes if axis.name != _SEED and axis.name in table]
    settings = ", ".join(f"{name} {cell(row[name])}" for name in names)
    number, best, low, high = (float(row[f"{column} {part}"]) for part in ("n", "mean", "low", "high"))
    interval = f", 95 % interval {cell(low)} to {cell(high)}" if math.isfinite(low) else ""
    return (
        f"On average over seeds, {settings} is best: {cell(best)} ({counted(int(number), 'seed')}{interval}). "
        "A single run may lead because of its seed."
    )


def why(data: ReportData) -> str:
    """Say which hyperparameters the differences come from."""
    shares = {axis.name: data.explained.get(axis.name, math.nan) for axis in data.compared}
    shares = {name: share for name, share in shares.items() if math.isfinite(share)}
    if not shares or len(data.order) < 2:  # noqa: PLR2004 - a difference needs two
        return "Too few completed runs differ to show what matters."
    (first, share), *others = shares.items()
    named = [f"{name} {_percent(part)}" for name, part in others if part >= _LITTLE]
    little = len(others) - len(named)
    parts = [f"{first} explains {_percent(share)} of the differences in {data.metric}", *named]
    sentence = ", ".join(parts)
    if little:
        what = "the other" if little == 1 else f"the other {little}"
        sentence += f"; {what} less than {_percent(_LITTLE)}" + (" each" if little > 1 else "")
    if sum(shares.values()) > 1 + _LITTLE:
        sentence += ". In an uneven grid, axes that vary together share what they explain: over 100 % in all"
    return f"{sentence}."


def effect(data: ReportData, axis: Axis) -> str:
    """Say which value of a hyperparameter is best, and by how much."""
    means = {}
    for code in range(len(axis.labels)):
        scores = [s.mean for s in data.findings.settings if axis.codes[s.rows[0]] == code]
        if scores:
            means[code] = (statistics.fmean(scores), len(scores))
    ranked = sorted(means, key=lambda code: means[code][0], reverse=data.is_larger_better)
    if len(ranked) < 2:  # noqa: PLR2004 - a comparison needs two
        return f"Only runs with {axis.name} {axis.labels[ranked[0]]} have a result." if ranked else ""
    (best_mean, number), (last_mean, _) = means[ranked[0]], means[ranked[-1]]
    best, last = axis.labels[ranked[0]], axis.labels[ranked[-1]]
    share = data.explained.get(axis.name, math.nan)
    if share < _LITTLE:
        return (
            f"It hardly matters: from {cell(last_mean)} ({last}) to {cell(best_mean)} ({best}) on "
            f"average. It explains {_percent(share)}."
        )
    gap = abs(best_mean - last_mean)
    side = "above" if data.is_larger_better else "below"
    what = "setting" if data.findings.repeats else "run"
    number_of = f"one {what}" if number == 1 else f"{number} {what}s"
    return (
        f"{best} is best on average: {cell(best_mean)} ({number_of}), {gap:.2g} {side} {last}. "
        f"It explains {_percent(share)}."
    )


def curves(data: ReportData, metric: str, partner: str | None) -> str:
    """Say how the best run developed, and which runs were better at an earlier epoch."""
    parts: list[str] = []
    larger = data.is_larger_better if metric == data.metric else bool(is_larger_better(metric))
    if data.order:
        run = data.results[data.order[0]]
        values = _values(run, metric)
        if values:
            top = max(values, key=lambda epoch: values[epoch] if larger else -values[epoch])
            last = max(values)
            name = _capital(data.names[data.order[0]])
            if len(values) > 1 and top == last:
                parts.append(f"{name} was still improving at its last epoch, {last}.")
            elif len(values) > 1:
                parts.append(f"{name} was best at epoch {top} of {last}: {cell(values[top])}.")
        if partner and partner in (run.epochs[-1].metrics if run.epochs else {}) and values:
            parts.append(f"Its last {partner} on the training data is {cell(run.epochs[-1].metrics[partner])}.")
    worse = sum(_was_better(_values(run, metric), larger=larger) for run in data.results)
    if worse:
        were = f"{worse} of {len(data.results)} runs were over 1 % better at an earlier epoch"
        parts.append(f'{were}; keep="best:{metric}" keeps the weights of the best one.')
    return " ".join(parts)


def parallel(data: ReportData, top: Sequence[int]) -> str:
    """Say what the best runs have in common."""
    if len(data.order) < 2:  # noqa: PLR2004 - something in common needs two
        return "Each line is a run."
    which = "The best run has" if len(top) == 1 else f"Of the best {len(top)} runs (colored),"
    common: list[str] = []
    for axis in data.axes:
        if axis.name == _SEED:
            continue  # what seeds have in common is chance
        counts = Counter(axis.codes[index] for index in top)
        code, number = counts.most_common(1)[0]
        base = sum(axis.codes[index] == code for index in data.order) / len(data.order)
        share = number / len(top)
        if len(top) == 1:
            common.append(f"{axis.name} {axis.labels[code]}")
        elif share >= max(0.6, 1.3 * base):
            amount = "all" if share == 1 else f"{number}"
            common.append(f"{amount} have {axis.name} {axis.labels[code]}")
    if not common:
        return f"The best {len(top)} runs (colored) share no value more often than chance would have it."
    return f"{which} {', '.join(common)}."


def devices(data: ReportData, pairs: "pd.DataFrame | None") -> str:
    """Say which device is faster, and by how much."""
    if pairs is None or pairs.empty:
        used = sorted({str(run.start.get("device")) for run in data.results if run.start.get("device")})
        if not any(run.epochs for run in data.results):
            return "No run has a result yet."
        if len(used) == 1:
            rule = "there is no other device to compare with"
            return f"All runs with a result were executed on {used[0]}: {rule}."
        return "No two completed runs differ in their device only: there are no pairs to compare."
    return " ".join(speeds(pairs)) or "No pair of runs has durations to compare."


def failures(results: Sequence[RunResult]) -> str:
    """Say how many runs have no result, and why."""
    counts = Counter(str(run.status) for run in results if run.status is not Status.COMPLETED)
    if not counts:
        return f"Nothing: all {len(results)} runs completed." if len(results) > 1 else "Nothing."
    listed = ", ".join(f"{number} {status}" for status, number in counts.most_common())
    return f"{counts.total()} of {counted(len(results), 'run')} did not complete: {listed}."


def execution(results: Sequence[RunResult], facts: Mapping[str, Any]) -> str:
    """Say how much was executed, and where."""
    epochs = sum(len(run.epochs) for run in results)
    seconds = sum(run.epochs[-1].metrics.get("run duration", 0.0) for run in results if run.epochs)
    machines = len(facts.get("machine", ()))
    where = f" on {machines} machine" + ("s" if machines > 1 else "") if machines else ""
    return f"{counted(epochs, 'epoch')} took {duration(seconds)} of training{where}."


def _values(run: RunResult, metric: str) -> dict[int, float]:
    values = {record.epoch: record.metrics.get(metric, math.nan) for record in run.epochs}
    return {epoch: value for epoch, value in values.items() if math.isfinite(value)}


def _was_better(values: Mapping[int, float], *, larger: bool) -> bool:
    if len(values) < 2:  # noqa: PLR2004 - an earlier epoch needs two
        return False
    last = values[max(values)]
    best = max(values.values()) if larger else min(values.values())
    return abs(best - last) > _BETTER * abs(last)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if math.isfinite(share) else "an unknown share"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

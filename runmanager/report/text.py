"""What each part of a page shows, in a sentence from its data."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runmanager.console import cell, duration
from runmanager.errors import GridError
from runmanager.hyperparameters import counted
from runmanager.outcome import Status
from runmanager.report.model import Axis, Gathered
from runmanager.results.effects import OVERALL
from runmanager.results.ranking import over_seeds
from runmanager.storage.run_state import RunResult

if TYPE_CHECKING:
    import pandas as pd

_SEED = "seed"
_LITTLE = 0.05  # a share of the variation that is not worth its name
_BETTER = 0.01  # how much better an earlier epoch has to be to be told, of the last one's value


def headline(gathered: Gathered) -> str:
    """Say which run is best."""
    if not gathered.order:
        return f"No run has a {gathered.metric} yet"
    best = gathered.order[0]
    score = f"{gathered.metric} {cell(gathered.scores[best])}"
    if len(gathered.order) == 1:
        return f"{_capital(gathered.names[best])} is the only one with a result: {score}"
    return f"{_capital(gathered.names[best])} is best: {score}"


def margin(gathered: Gathered) -> str:
    """Say with what settings, and by how much."""
    if not gathered.order:
        return ""
    best, *others = gathered.order
    parts = [f"Its settings: {gathered.params(best)}."] if gathered.axes else []
    if others:
        same = [position for position in others if gathered.scores[position] == gathered.scores[best]]
        if len(same) == len(others):
            return " ".join([*parts, f"All {len(gathered.order)} runs with a result have the same."])
        gap = abs(gathered.scores[best] - gathered.scores[others[0]])
        side = "above" if gathered.is_larger_better else "below"
        first, last = gathered.names[others[0]], gathered.names[others[-1]]
        lead = f"That is {gap:.2g} {side} the next, {first}" if gap else _ties(_capital(first), len(same) - 1)
        parts.append(f"{lead}; the last, {last}, has {cell(gathered.scores[others[-1]])}.")
    return " ".join(parts)


def _ties(name: str, others: int) -> str:
    if not others:
        return f"{name} has the same"
    return f"{name} and {others} {'other' if others == 1 else 'others'} have the same"


def seeds(gathered: Gathered) -> str:
    """Say which settings are best on average over their seeds, "" if no seed varies."""
    if not any(axis.name == _SEED for axis in gathered.axes) or len(gathered.axes) == 1:
        return ""
    try:
        table = over_seeds(gathered.runs, _SEED, gathered.metric)
    except GridError:
        return ""
    mean = table[f"{gathered.metric} mean"]
    if mean.isna().all():
        return ""
    row = table.iloc[int(mean.argmax() if gathered.is_larger_better else mean.argmin())]
    names = [axis.name for axis in gathered.axes if axis.name != _SEED and axis.name in table]
    settings = ", ".join(f"{name} {cell(row[name])}" for name in names)
    found = {part: row[f"{gathered.metric} {part}"] for part in ("n", "mean", "low", "high")}
    interval = ""
    if math.isfinite(found["low"]):
        interval = f", 95 % interval {cell(float(found['low']))} to {cell(float(found['high']))}"
    return (
        f"On average over seeds, {settings} is best: {cell(float(found['mean']))} ({int(found['n'])} "
        f"seeds{interval}). A single run's lead may be its seed's."
    )


def why(gathered: Gathered) -> str:
    """Say which hyperparameters the differences come from."""
    known = {axis.name: gathered.explained.get(axis.name, math.nan) for axis in gathered.compared}
    known = {name: share for name, share in known.items() if math.isfinite(share)}
    if not known or len(gathered.order) < 2:  # noqa: PLR2004 - a difference needs two
        return "There are not enough completed runs that differ to tell what matters."
    (first, share), *others = known.items()
    named = [f"{name} {_percent(part)}" for name, part in others if part >= _LITTLE]
    little = len(others) - len(named)
    parts = [f"{first} explains {_percent(share)} of the differences in {gathered.metric}", *named]
    sentence = ", ".join(parts)
    if little:
        what = "the other" if little == 1 else f"the other {little}"
        sentence += f"; {what} less than {_percent(_LITTLE)}" + (" each" if little > 1 else "")
    if sum(known.values()) > 1 + _LITTLE:
        sentence += ". In an uneven grid, axes that go together share what they explain: over 100 % in all"
    return f"{sentence}."


def effect(gathered: Gathered, axis: Axis) -> str:
    """Say which value of a hyperparameter is best, and by how much."""
    means = {}
    for place in range(len(axis.labels)):
        own = [gathered.scores[p] for p in gathered.order if axis.place[p] == place]
        if own:
            means[place] = (statistics.fmean(own), len(own))
    ranked = sorted(means, key=lambda place: means[place][0], reverse=gathered.is_larger_better)
    if len(ranked) < 2:  # noqa: PLR2004 - a comparison needs two
        return f"Only runs with {axis.name} {axis.labels[ranked[0]]} have a result." if ranked else ""
    (best_mean, number), (last_mean, _) = means[ranked[0]], means[ranked[-1]]
    best, last = axis.labels[ranked[0]], axis.labels[ranked[-1]]
    share = gathered.explained.get(axis.name, math.nan)
    if share < _LITTLE:
        return (
            f"It hardly matters: from {cell(last_mean)} ({last}) to {cell(best_mean)} ({best}) on "
            f"average. It explains {_percent(share)}."
        )
    gap = abs(best_mean - last_mean)
    side = "above" if gathered.is_larger_better else "below"
    runs = "one run" if number == 1 else f"{number} runs"
    return (
        f"{best} is best on average: {cell(best_mean)} ({runs}), {gap:.2g} {side} {last}. "
        f"It explains {_percent(share)}."
    )


def curves(gathered: Gathered, metric: str, partner: str | None) -> str:
    """Say how the best run went, and whether stopping earlier would have been better."""
    parts: list[str] = []
    larger = gathered.is_larger_better if metric == gathered.metric else metric.endswith("accuracy")
    if gathered.order:
        run = gathered.results[gathered.order[0]]
        values = _values(run, metric)
        if values:
            top = max(values, key=lambda epoch: values[epoch] if larger else -values[epoch])
            last = max(values)
            name = _capital(gathered.names[gathered.order[0]])
            if len(values) > 1 and top == last:
                parts.append(f"{name} was still getting better at its last epoch, {last}.")
            elif len(values) > 1:
                parts.append(f"{name} was best at epoch {top} of {last}: {cell(values[top])}.")
        if partner and partner in (run.epochs[-1].metrics if run.epochs else {}) and values:
            seen = run.epochs[-1].metrics[partner]
            parts.append(f"Its last {partner} on the training data is {cell(seen)}.")
    worse = sum(_was_better(_values(run, metric), larger=larger) for run in gathered.results)
    if worse:
        of = f"{worse} of {len(gathered.results)} runs were"
        parts.append(f'{of} over 1 % better at an earlier epoch; keep="best:{metric}" keeps its weights.')
    return " ".join(parts)


def parallel(gathered: Gathered, top: Sequence[int]) -> str:
    """Say what the best runs have in common."""
    if len(gathered.order) < 2:  # noqa: PLR2004 - something in common needs two
        return "Each line is a run."
    which = "The best run has" if len(top) == 1 else f"Of the best {len(top)} runs (colored),"
    common: list[str] = []
    for axis in gathered.axes:
        if axis.name == _SEED:
            continue  # what seeds have in common is chance
        counts = Counter(axis.place[number] for number in top)
        place, number = counts.most_common(1)[0]
        base = sum(axis.place[p] == place for p in gathered.order) / len(gathered.order)
        share = number / len(top)
        if len(top) == 1:
            common.append(f"{axis.name} {axis.labels[place]}")
        elif share >= max(0.6, 1.3 * base):
            amount = "all" if share == 1 else f"{number}"
            common.append(f"{amount} have {axis.name} {axis.labels[place]}")
    if not common:
        return f"The best {len(top)} runs (colored) have no value in common more often than chance would."
    return f"{which} {', '.join(common)}."


def devices(gathered: Gathered, pairs: "pd.DataFrame | None") -> str:
    """Say which device is faster, and by how much."""
    if pairs is None or pairs.empty:
        used = sorted({str(run.start.get("device")) for run in gathered.results if run.start.get("device")})
        if not any(run.epochs for run in gathered.results):
            return "No run has a result yet."
        if len(used) == 1:
            return f"All runs with a result were executed on {used[0]}: there is nothing to compare it with."
        return "No two completed runs differ in their device only: there are no pairs to compare."
    parts = []
    for found in pairs.attrs[OVERALL]:
        other, _, first = str(found["ratio"]).partition(" / ")
        ratio, low, high = found["mean"], found["low"], found["high"]
        if not math.isfinite(ratio) or ratio <= 0:
            continue
        faster, slower = (first, other) if ratio > 1 else (other, first)
        if ratio < 1:
            ratio, low, high = 1 / ratio, 1 / high, 1 / low
        number = "one pair" if found["n"] == 1 else f"{found['n']} pairs"
        interval = f", 95 % interval {low:.2f} to {high:.2f}" if math.isfinite(low) else ""
        parts.append(f"An epoch on {faster} is {ratio:.2f} times as fast as on {slower} ({number}{interval}).")
    return " ".join(parts) or "No pair of runs has durations to compare."


def failures(results: Sequence[RunResult]) -> str:
    """Say how many runs have no result, and why."""
    counts = Counter(str(run.status) for run in results if run.status is not Status.COMPLETED)
    if not counts:
        return f"Nothing: all {len(results)} runs are completed." if len(results) > 1 else "Nothing."
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
    found = {record.epoch: record.metrics.get(metric, math.nan) for record in run.epochs}
    return {epoch: value for epoch, value in found.items() if math.isfinite(value)}


def _was_better(values: Mapping[int, float], *, larger: bool) -> bool:
    if len(values) < 2:  # noqa: PLR2004 - an earlier epoch needs two
        return False
    last = values[max(values)]
    best = max(values.values()) if larger else min(values.values())
    return abs(best - last) > _BETTER * abs(last)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if math.isfinite(share) else "nothing that is known"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

"""The numbers of a run: last and best values of its metrics, and values at the epoch of the kept weights."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from runmanager.core.goal import KEPT, Goal, goal_of_kept, is_larger_better
from runmanager.core.outcome import Status
from runmanager.core.state import RunResult


def tracked(runs: Iterable[RunResult]) -> list[str]:
    """Return the metrics that the epochs of runs have, in the order of their first use."""
    return list(dict.fromkeys(name for run in runs for record in run.epochs for name in record.metrics))


def ranked_numbers(runs: Sequence[RunResult], goals: Sequence[Goal]) -> list[dict[str, float]]:
    """Return the summary of each run; if any run keeps its best weights, with the values at their epoch."""
    summaries = [_summary(run) for run in runs]
    names = tracked(runs)
    keeping = {goal.metric for run in runs if (goal := goal_of_kept([run.start]))}
    if goals and keeping.intersection(names):
        metrics = [goal.metric for goal in goals]
        names = [n for n in names if n in metrics or (is_larger_better(n) is not None and " " not in n)]
        for run, summary in zip(runs, summaries, strict=True):
            summary |= {f"{KEPT}{name}": value for name, value in kept(run, names, summary).items()}
    return summaries


def _summary(run: RunResult) -> dict[str, float]:
    """Return the last value of each metric, its best value, and the results of the whole run."""
    summary: dict[str, float] = {}
    for record in run.epochs:
        summary.update(record.metrics)  # the last value of a metric; the last epoch may lack it
    for name in list(summary):
        values = [r.metrics[name] for r in run.epochs if math.isfinite(r.metrics.get(name, math.nan))]
        if values and name.endswith("loss"):
            summary[f"best {name}"] = min(values)
        elif values and name.endswith("accuracy"):
            summary[f"best {name}"] = max(values)
        elif values and name == "epoch duration":
            summary[name] = statistics.median(values)
    return {**summary, **run.summary}


def kept(run: RunResult, names: Iterable[str], last: Mapping[str, float]) -> dict[str, float]:
    """Return metrics at the epoch whose weights a run keeps, else their last values."""
    by = goal_of_kept([run.start])
    values: dict[str, float] = {**last} if by is None else {}
    if by:
        # weights of a diverged epoch are not kept; of epochs with equal values, the first counts
        records = run.epochs[: len(run.epochs) - (run.status is Status.DIVERGED)]
        scores = [by.score(record.metrics) for record in records]
        best = max(scores, default=-math.inf)
        for record in records[: scores.index(best) + 1] if best > -math.inf else ():
            values.update(record.metrics)  # the epoch of the weights may lack a metric
    return {name: values.get(name, math.nan) for name in names}


def lacking(run: RunResult) -> str:
    """Name the metrics of a run that its last epoch lacks, so that their last value is of an earlier epoch."""
    last = {**run.epochs[-1].metrics, **run.summary} if run.epochs else {}
    return ", ".join(name for name in tracked([run]) if name not in last)

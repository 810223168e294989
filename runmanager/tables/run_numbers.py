"""The numbers of a run: last and best values of its metrics, and values at the epoch of the kept weights."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from runmanager.core.experiment import RunFolder
from runmanager.core.goal import KEPT, Goal, goal_of_kept
from runmanager.core.outcome import Status
from runmanager.core.state import RunResult, read_run
from runmanager.core.values import closest


def ranked_numbers(runs: Sequence[RunResult], goal: Goal | None) -> list[dict[str, float]]:
    """Return the summary of each run; if any run keeps its best weights, with the goal's value at their epoch.

    Without a goal, or if the goal is a result of the whole run, a summary has no such value.
    """
    summaries = [_summary(run) for run in runs]
    records = (record for run in runs for record in run.epochs)
    if goal and any(map(keeps, runs)) and any(goal.metric in record.metrics for record in records):
        for run, summary in zip(runs, summaries, strict=True):
            summary[f"{KEPT}{goal.metric}"] = kept(run, goal, summary)
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


def keeps(run: RunResult) -> Goal | None:
    """Return the goal by which a run keeps its best weights, None if it does not keep its best weights."""
    return goal_of_kept([run.start])


def kept(run: RunResult, goal: Goal, last: Mapping[str, float]) -> float:
    """Return the metric of a goal at the epoch whose weights a run keeps, else the last value of the metric."""
    by = keeps(run)
    if by is None:
        return last.get(goal.metric, math.nan)
    # weights of a diverged epoch are not kept; of epochs with equal values, the first counts
    records = run.epochs[: len(run.epochs) - (run.status is Status.DIVERGED)]
    best = max(records, key=lambda record: by.score(record.metrics), default=None)
    if best is None or by.score(best.metrics) == -math.inf:
        return math.nan
    values = [r.metrics[goal.metric] for r in records if r.epoch <= best.epoch and goal.metric in r.metrics]
    return values[-1] if values else math.nan


def missing_goal(goals: Iterable[Goal], folder: RunFolder) -> str:
    """Return a sentence if a completed run lacks a goal, but logged it or has a similar metric; else ""."""
    from runmanager.tables.steps import read_steps

    run = read_run(folder)
    metrics = {*run.summary, *(name for record in run.epochs for name in record.metrics)}
    names = sorted(name for name in metrics if not name.endswith("duration"))
    for goal in goals:
        if goal.metric.removeprefix("best ").removeprefix(KEPT) in names:  # columns of the table
            continue
        fact = f"the goal is {str(goal)!r}, but run {folder.number} has no such metric"
        if goal.metric in read_steps(folder, []):
            return f"{fact}: log() writes single steps, without a column; write track() in place of log()"
        if close := closest(goal.metric, names):
            return f"{fact}; did you mean {close!r}? Another goal= executes nothing again"
    return ""

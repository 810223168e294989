"""The check of a completed run for the metrics of the goals."""

from collections.abc import Iterable

from runmanager.core.experiment import RunFolder
from runmanager.core.goal import KEPT, Goal
from runmanager.core.state import read_run
from runmanager.core.values import closest


def missing_goal(goals: Iterable[Goal], folder: RunFolder) -> str:
    """Return a sentence if a completed run lacks a goal, but logged it or has a similar metric; else ""."""
    from runmanager.core.steps import read_steps

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

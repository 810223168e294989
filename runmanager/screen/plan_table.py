"""The plan of a grid as a table: the device, the estimated time and the action of each run."""

import math
from collections import Counter
from collections.abc import Collection, Sequence

from runmanager.core import files
from runmanager.core.loop import Action, Plan, PlannedRun
from runmanager.core.outcome import Status
from runmanager.core.wording import counted
from runmanager.drawing.table import Table
from runmanager.screen.time_left import Cost, costs, rounded, scheduled
from runmanager.tables.cells import duration, join

Seconds = Sequence[float | None]
"""The estimated remaining time of each run; None if the run is not executed or there is no estimate."""


def estimated_seconds(plan: Plan, past: Sequence[Cost], repeats: Collection[str] = ()) -> Seconds:
    """Estimate the remaining time of each run from the durations of other runs."""
    if not past:
        return [None] * len(plan.runs)
    estimated = costs([planned.folder.params for planned in plan.runs], past, repeats)
    return [
        max(cost - _spent(planned), 0.0) if planned.action.is_due else None
        for planned, cost in zip(plan.runs, estimated, strict=True)
    ]


def costs_of(plan: Plan) -> list[Cost]:
    """Return the hyperparameters and the duration (s) of each completed run."""
    ended = [planned for planned in plan.runs if planned.before.status is Status.COMPLETED]
    return [(each.folder.params, each.before.seconds) for each in ended if each.before.epochs]


def plan_table(plan: Plan, seconds: Seconds, names: Sequence[str]) -> Table:
    """Return a table with one row per run and the hyperparameters `names`."""
    has_times = any(estimated is not None for estimated in seconds)
    rows = []
    for planned, estimated in zip(plan.runs, seconds, strict=True):
        values = [planned.folder.params.get(name, math.nan) for name in [*names, "device"]]
        takes = ["" if estimated is None else duration(estimated)] if has_times else []
        rows.append([planned.folder.number, *values, *takes, "".join(_what(planned))])
    return Table(["run", *names, "device", *["takes"] * has_times, "what"], rows, right=["takes"], fold=True)


def plan_summary(plan: Plan, seconds: Seconds, lanes: int) -> str:
    """Return the number of runs per action, and the estimated time in this number of lanes."""
    counts = Counter(_what(planned)[0] for planned in plan.runs)
    estimated = [duration for duration in seconds if duration is not None]
    total = f"about {rounded(scheduled(estimated, lanes))}" if estimated else ""
    whats = (f"{what} {number:,}" for what, number in counts.items())
    return join([counted(len(plan.runs), "run"), *whats, total])


def _what(planned: PlannedRun) -> tuple[str, str]:
    """Return the action for a run, or the status of a run that is not executed; and details."""
    before = planned.before if planned.action is Action.START_OVER else planned.start
    if planned.action.is_due:
        if not (before.epochs or before.inside):
            return Action.EXECUTE, ""
        if _starts_over(planned):
            return Action.START_OVER, ""
        return Action.CONTINUE, f" {before.inside or f'after epoch {before.epochs[-1].epoch}'}"
    if planned.folder.unavailable:
        return Status.UNAVAILABLE, f": {planned.folder.unavailable}"
    return before.status, "" if before.status is Status.COMPLETED else ", left as it is"


def _starts_over(planned: PlannedRun) -> bool:
    has_checkpoint = (planned.folder.path / files.CHECKPOINT).exists()
    is_inside_first = planned.start.inside is not None and not planned.start.epochs
    return planned.action is Action.START_OVER or not (has_checkpoint or is_inside_first)


def _spent(planned: PlannedRun) -> float:
    """Return the duration of the epochs that a run need not repeat."""
    return 0.0 if _starts_over(planned) else planned.start.seconds

"""The plan of a grid: the device and the action of each run, and the estimated time."""

import math
from collections import Counter
from collections.abc import Collection, Sequence

from runmanager.core import files
from runmanager.core.loop import Action, Plan, PlannedRun
from runmanager.core.outcome import Status
from runmanager.core.wording import counted
from runmanager.drawing.table import Table
from runmanager.screen.time_left import Cost, costs, rounded, scheduled
from runmanager.tables.cells import join


def costs_of(plan: Plan) -> list[Cost]:
    """Return the hyperparameters and the duration (s) of each completed run."""
    return [
        (planned.folder.params, planned.before.seconds)
        for planned in plan.runs
        if planned.before.status is Status.COMPLETED and planned.before.epochs
    ]


def plan_table(plan: Plan, names: Sequence[str]) -> Table:
    """Return a table with one row per run and the hyperparameters `names`."""
    rows = []
    for planned in plan.runs:
        values = [planned.folder.params.get(name, math.nan) for name in [*names, "device"]]
        rows.append([planned.folder.number, *values, "".join(_what(planned))])
    return Table(["run", *names, "device", "what"], rows, fold=True)


def plan_summary(plan: Plan, lanes: int, repeats: Collection[str]) -> str:
    """Return the number of runs per action, and the estimated time in this number of lanes."""
    counts = Counter(_what(planned)[0] for planned in plan.runs)
    parts = [counted(len(plan.runs), "run"), *(f"{what} {number:,}" for what, number in counts.items())]
    if plan.due and (past := costs_of(plan)):
        seconds = costs([planned.folder.params for planned in plan.due], past, repeats)
        # without the epochs that a run need not repeat
        left = [max(s - due.start.seconds, 0.0) for s, due in zip(seconds, plan.due, strict=True)]
        parts.append(f"about {rounded(scheduled(left, lanes))}")
    return join(parts)


def _what(planned: PlannedRun) -> tuple[str, str]:
    """Return the action for a run, or the status of a run that is not executed; and details."""
    start = planned.start
    if planned.action is Action.CONTINUE:
        has_checkpoint = (planned.folder.path / files.CHECKPOINT).exists()
        if has_checkpoint or (start.inside and not start.epochs):
            return Action.CONTINUE, f" {start.inside or f'after epoch {start.epochs[-1].epoch}'}"
    if planned.action.is_due:
        has_begun = planned.before.epochs or planned.before.inside
        return Action.START_OVER if has_begun else Action.EXECUTE, ""
    if planned.folder.unavailable:
        return Status.UNAVAILABLE, f": {planned.folder.unavailable}"
    return start.status, ""

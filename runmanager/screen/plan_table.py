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
    ended = [planned for planned in plan.runs if planned.before.status is Status.COMPLETED]
    return [(planned.folder.params, planned.before.seconds) for planned in ended if planned.before.epochs]


def plan_table(plan: Plan, names: Sequence[str]) -> Table:
    """Return a table with one row per run and the hyperparameters `names`."""
    rows = (
        [
            planned.folder.number,
            *(planned.folder.params.get(name, math.nan) for name in [*names, "device"]),
            "".join(_what(planned)),
        ]
        for planned in plan.runs
    )
    return Table(["run", *names, "device", "what"], rows, fold=True)


def plan_summary(plan: Plan, lanes: int, repeats: Collection[str]) -> str:
    """Return the number of runs per action, and the estimated time in this number of lanes."""
    counts = Counter(_what(planned)[0] for planned in plan.runs)
    parts = [counted(len(plan.runs), "run"), *(f"{what} {number:,}" for what, number in counts.items())]
    if plan.due and (past := costs_of(plan)):
        seconds = costs([planned.folder.params for planned in plan.due], past, repeats)
        for index, planned in enumerate(plan.due):
            # without the epochs that a run need not repeat
            spent = 0.0 if _starts_over(planned) else planned.start.seconds
            seconds[index] = max(seconds[index] - spent, 0.0)
        parts.append(f"about {rounded(scheduled(seconds, lanes))}")
    return join(parts)


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

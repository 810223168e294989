"""What a grid would do with its runs, as a table."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from runmanager.console import Table, cell, duration, join
from runmanager.hyperparameters import counted
from runmanager.launch.plan import Plan
from runmanager.live import time_left
from runmanager.outcome import Status
from runmanager.storage import paths
from runmanager.storage.folders import RunFolder
from runmanager.storage.run_state import RunResult


class Planned(NamedTuple):
    """What becomes of a run.

    Attributes:
        place: Where it lives.
        what: In a word or two.
        more: What is to be added to that.
        seconds: How long it takes, None if it is not executed or nothing is known.
    """

    place: RunFolder
    what: str
    more: str = ""
    seconds: float | None = None


def planned(plan: Plan, known: Sequence[time_left.Cost]) -> list[Planned]:
    """Say what becomes of each run, from what other runs took."""
    todo = {id(run) for run in plan.todo}
    costs = (
        time_left.costs([place.params for place in plan.places], known) if known else [None] * len(plan.runs)
    )
    return [
        _to_execute(before, cost, is_anew=id(run) in plan.anew) if id(run) in todo else _left_alone(before)
        for run, before, cost in zip(plan.runs, plan.before, costs, strict=True)
    ]


def plan_table(rows: Sequence[Planned], names: Sequence[str]) -> Table:
    """Make a table of one row per run, with the hyperparameters that are named."""
    cells = []
    for place, what, more, seconds in rows:
        params = [cell(place.params[name]) if name in place.params else "" for name in [*names, "device"]]
        cells.append([place.number, *params, "" if seconds is None else duration(seconds), f"{what}{more}"])
    return Table(["run", *names, "device", "takes", "what"], cells, right=["takes"], fold=True)


def summary(rows: Sequence[Planned], lanes: int) -> str:
    """Count the rows, and add up how long they take in so many lanes."""
    counts = Counter(row.what for row in rows)
    seconds = [row.seconds for row in rows if row.seconds is not None]
    total = time_left.about(time_left.scheduled(seconds, [0.0] * lanes)) if seconds else ""
    return join([counted(len(rows), "run"), *(f"{what} {number:,}" for what, number in counts.items()), total])


def _to_execute(before: RunResult, cost: float | None, *, is_anew: bool) -> Planned:
    if not before.epochs:
        return Planned(before.folder, "execute", seconds=cost)
    if is_anew or not (before.folder.path / paths.CHECKPOINT).exists():
        return Planned(before.folder, "execute anew", seconds=cost)
    last = before.epochs[-1]
    left = None if cost is None else max(cost - last.metrics.get("run duration", 0.0), 0.0)
    return Planned(before.folder, "go on", f" after epoch {last.epoch}", left)


def _left_alone(before: RunResult) -> Planned:
    if before.folder.unavailable:
        return Planned(before.folder, "unavailable", f": {before.folder.unavailable}")
    stays = "" if before.status is Status.COMPLETED else ", stays so"
    return Planned(before.folder, str(before.status), stays)

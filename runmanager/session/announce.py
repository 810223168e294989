"""What a grid says before its first run."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from runmanager.board.link import hint
from runmanager.console import Screen, choose_screen
from runmanager.hyperparameters import counted
from runmanager.live import time_left
from runmanager.live.progress import GridProgress
from runmanager.outcome import RETRY_FAILED, Status
from runmanager.search.search import Pruner, Search
from runmanager.session.plan import Action, Plan, PlannedRun
from runmanager.storage import paths
from runmanager.table import Table
from runmanager.wording import cell, duration, join

Say = Callable[[str], None]
Seconds = Sequence[float | None]
"""The duration of each run, None where it is not executed or cannot be estimated."""


@contextlib.contextmanager
def starting(experiment: str, num_runs: int, *, show: bool) -> Iterator[Screen]:
    """Say at once that a grid starts, as the import of torch takes seconds; what follows replaces that."""
    screen = choose_screen(show=show)
    screen.show_start(starting_line(experiment, num_runs))
    try:
        yield screen
    finally:
        screen.show_below(None)


def starting_line(experiment: str, num_runs: int) -> str:
    """Return what is shown until there is more to say."""
    return f"{experiment}: starting {counted(num_runs, 'run')}"


@contextlib.contextmanager
def cleared(screen: Screen, *, when: bool, then: str = "") -> Iterator[None]:
    """Take away what is below the lines, where something else may be shown; then show a line there."""
    if when:
        screen.show_below(None)
    yield
    if when:
        screen.show_below(then or None)


def show_plan(experiment_name: str, plan: Plan, search: Search, lanes: int, *, show: bool) -> None:
    """Show what would be executed where, what is done already, and what chooses further runs."""
    progress = GridProgress(experiment_name, [], plan.varying, show=show)
    seconds = estimated_seconds(plan, plan.costs)
    names = [name for name in plan.varying if name != "device"]
    if plan.changes:
        progress.say(plan.changes)
    if search.axes:  # it brings forth runs
        progress.say(search.introduction())
    if search.axes and not plan.runs:
        return
    progress.show_plan(plan_table(plan, seconds, names), plan_summary(plan, seconds, max(lanes, 1)))


def estimated_seconds(plan: Plan, past: Sequence[time_left.Cost]) -> Seconds:
    """Estimate how long each run still takes, from what other runs took."""
    if not past:
        return [None] * len(plan.runs)
    costs = time_left.costs([planned.folder.params for planned in plan.runs], past)[0]
    return [
        max(cost - _spent(planned), 0.0) if planned.action.is_due else None
        for planned, cost in zip(plan.runs, costs, strict=True)
    ]


def plan_table(plan: Plan, seconds: Seconds, names: Sequence[str]) -> Table:
    """Make a table of one row per run, with the hyperparameters that are named."""
    rows = []
    for planned, estimated in zip(plan.runs, seconds, strict=True):
        params = planned.folder.params
        values = [cell(params[name]) if name in params else "" for name in [*names, "device"]]
        takes = "" if estimated is None else duration(estimated)
        rows.append([planned.folder.number, *values, takes, "".join(_what(planned))])
    return Table(["run", *names, "device", "takes", "what"], rows, right=["takes"], fold=True)


def plan_summary(plan: Plan, seconds: Seconds, lanes: int) -> str:
    """Count the runs, and say how long they take in this number of lanes."""
    counts = Counter(_what(planned)[0] for planned in plan.runs)
    estimated = [duration for duration in seconds if duration is not None]
    total = f"about {time_left.rounded(time_left.scheduled(estimated, [0.0] * lanes))}" if estimated else ""
    whats = (f"{what} {number:,}" for what, number in counts.items())
    return join([counted(len(plan.runs), "run"), *whats, total])


def announce(say: Say, experiment: Path, plan: Plan, search: Search, pruner: Pruner | None = None) -> None:
    """Say how many runs changed, how many there are and are executed, and why the others are not."""
    missing = Counter(planned.folder.unavailable for planned in plan.runs if planned.folder.unavailable)
    statuses = Counter(
        (planned.action, planned.before.status) for planned in plan.runs if not planned.folder.unavailable
    )
    num_failed = sum(statuses[Action.LEAVE, status] for status in Status if status.is_fault)
    numbers = {
        "of them begun before": sum(statuses[Action.CONTINUE, status] for status in Status),
        "done before": statuses[Action.LEAVE, Status.COMPLETED],
        "failed before": num_failed,
        "pruned before": sum(statuses[action, Status.PRUNED] for action in (Action.WAIT, Action.LEAVE))
        + len(plan.behind),
        "unavailable": missing.total(),
    }
    more = search.num_more()
    counts = [counted(len(plan.runs) + more, "run"), f"{len(plan.due) + more:,} to execute"]
    counts += [f"{number:,} {words}" for words, number in numbers.items() if number]
    if plan.changes:
        say(plan.changes)
    say(f"{experiment}: {', '.join(counts)}")
    for introduction in filter(None, (search.introduction(), pruner.introduction() if pruner else "")):
        say(introduction)
    for reason, count in missing.items():
        runs = f"{counted(count, 'run')} unavailable"
        say(f"! {reason}: {runs}; run the same command on a machine that has it")
    if num_failed:
        say(f"! {counted(num_failed, 'run')} ended by a fault before; {RETRY_FAILED}")


def point_to_tensorboard(say: Say, experiment: Path) -> None:
    """Say how to look at the runs."""
    for line in hint(experiment):
        say(line)


def _what(planned: PlannedRun) -> tuple[str, str]:
    """Return what happens to a run in a word or two, and the details."""
    before = planned.before
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
    has_checkpoint = (planned.folder.path / paths.CHECKPOINT).exists()
    is_inside_first = planned.before.inside is not None and not planned.before.epochs
    return planned.action is Action.START_OVER or not (has_checkpoint or is_inside_first)


def _spent(planned: PlannedRun) -> float:
    """Return the seconds of the epochs that a run need not repeat."""
    if not planned.before.epochs or _starts_over(planned):
        return 0.0
    return planned.before.epochs[-1].metrics.get("run duration", 0.0)

"""The plan of a grid: which runs are due, and why, decided before any run is executed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from runmanager.core.experiment import RunFolder
from runmanager.core.outcome import BY_TRAIN, Status
from runmanager.core.run import Run
from runmanager.core.state import RunResult, read_run
from runmanager.core.task import RunTask

_ASKED_S = 600.0  # results of changed runs that took this time are replaced only if the user says so


class Action(StrEnum):
    """The action for a run."""

    EXECUTE = "execute"
    CONTINUE = "continue"  # execute the run, from its last checkpoint if it has one
    # execute the run from its first epoch, as code, data, versions or loaded weights have changed
    START_OVER = "start over"
    WAIT = "wait"  # the run waits for a decision of the search, or for changed=
    LEAVE = "leave"

    def __init__(self, text: str) -> None:
        self.is_due: bool = text in ("execute", "continue", "start over")  # whether the run is executed


@dataclass(frozen=True)
class PlannedRun:
    """A run of a grid with its folder and its action."""

    run: Run
    folder: RunFolder  # the folder's id identifies the run everywhere
    before: RunResult  # the state of the run before the grid starts, from all attempts
    start: RunResult  # the state from which the run starts; without attempts before a change
    action: Action
    cause: str = ""  # what has changed since the run began


@dataclass(frozen=True)
class Plan:
    """The runs of a grid with their actions."""

    runs: Sequence[PlannedRun]  # all runs of the grid, in order
    varying: Sequence[str] = ()  # the hyperparameters that vary, also in runs that a search will create
    sentences: Sequence[str] = ()  # sentences of the search, to be printed

    @cached_property
    def due(self) -> list[PlannedRun]:
        """The runs to execute, in order."""
        return [planned for planned in self.runs if planned.action.is_due]

    @cached_property
    def asked(self) -> list[PlannedRun]:
        """The changed runs that wait for changed=, in order, without those whose device is missing."""
        return [each for each in self.runs if each.cause and each.start.status is Status.CHANGED]


def make_plan(
    runs: Iterable[tuple[Run, RunFolder]], task: RunTask, *, retry_failed: bool, asks: bool = False
) -> Plan:
    """Plan runs according to their journals and the options of `run_grid`.

    If asked, changed runs wait when their results took long.
    """
    context, keep_changed = task.context, task.context.keep_changed
    digests: dict[Path, str] = {}  # of results that runs have loaded
    planned: list[PlannedRun] = []
    at_stake: list[int] = []  # the indexes of runs not at fault whose epochs would not count from now on
    again: set[str] = set()  # paths, relative to the root, of the runs that start over
    for run, folder in runs:
        if folder.unavailable:
            before = read_run(folder)
            planned.append(PlannedRun(run, folder, before, before, Action.LEAVE))
            continue
        before = start = read_run(replace(folder, is_changed=False))
        folder = before.folder  # noqa: PLW2901 - it is marked again if it waits again
        differences = context.changes_since(before, of_results=digests) if before.start else []
        if differences and before.error and before.status is Status.COMPLETED and not keep_changed:
            # a later attempt, which failed before its first epoch, may have begun with the present code
            later = read_run(replace(folder, since=before.start.get("attempt", 0)))
            if not context.changes_since(later, of_results=digests):
                start, differences = later, []
        if not differences:
            differences = [f"files of {path} (executed again)" for path in start.loaded if path in again]
        if differences and not keep_changed:
            is_ended = before.epochs or before.inside or before.status.is_success
            at_stake += [len(planned)] if is_ended and not before.status.is_fault else []
            again.add(f"{folder.path.parent.name}/{folder.path.name}")
            folder = replace(folder, since=folder.last_attempt)  # noqa: PLW2901 - its epochs do not count
            start, action = RunResult(folder, Status.PENDING, [], before.attempts, "", {}), Action.START_OVER
        else:
            action = Action.CONTINUE if start.epochs or start.inside else Action.EXECUTE
            has_failed = start.status.is_fault or start.pruned_by == BY_TRAIN
            is_pruned = start.pruned_by != "" and start.pruned_by == context.rule
            if start.status is Status.COMPLETED or is_pruned or (has_failed and not retry_failed):
                action = Action.LEAVE
        planned.append(PlannedRun(run, start.folder, before, start, action, ", ".join(differences)))
    if asks and sum(planned[index].before.seconds for index in at_stake) >= _ASKED_S:
        for index in at_stake:  # the run keeps its earlier results, marked, and waits for changed=
            before = planned[index].before
            folder = replace(before.folder, is_changed=True)
            start = replace(before, folder=folder, status=Status.CHANGED)
            planned[index] = replace(planned[index], folder=folder, start=start, action=Action.WAIT)
    return Plan(planned)

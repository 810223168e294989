"""The plan of a grid: which runs are due, and why, decided before any run is executed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from runmanager.core import files
from runmanager.core.experiment import RunFolder, varying
from runmanager.core.outcome import Status, argument
from runmanager.core.run import Run
from runmanager.core.state import RunResult, files_digest, read_run
from runmanager.core.task import Fingerprint, RunTask
from runmanager.core.wording import counted

_MOST_CAUSES = 4  # maximum number of causes in a sentence


class Action(StrEnum):
    """The action for a run."""

    EXECUTE = "execute"
    CONTINUE = "continue"  # execute the run, from its last checkpoint if it has one
    # execute the run from its first epoch, as code, data, versions or loaded weights have changed
    START_OVER = "start over"
    WAIT = "wait"  # the run waits for a decision of the search
    LEAVE = "leave"

    @property
    def is_due(self) -> bool:
        """Whether the run is executed."""
        return self in (Action.EXECUTE, Action.CONTINUE, Action.START_OVER)


@dataclass(frozen=True)
class PlannedRun:
    """A run of a grid with its folder and its action."""

    run: Run
    folder: RunFolder  # the folder's id identifies the run everywhere
    before: RunResult  # the state of the run before the grid starts, from all attempts
    action: Action

    @property
    def start(self) -> RunResult:
        """The state from which the run starts; a run that starts over has no epochs."""
        if self.action is not Action.START_OVER:
            return self.before
        return RunResult(self.folder, Status.PENDING, [], self.before.attempts, "", {})


@dataclass(frozen=True)
class Plan:
    """The runs of a grid with their actions."""

    runs: Sequence[PlannedRun]  # all runs of the grid, in order
    changes: Sequence[str] = ()  # sentences about changed runs, and about runs whose changes are not noticed
    axes: Sequence[str] = ()  # the varying hyperparameters, if a search creates runs
    sentences: Sequence[str] = ()  # sentences of the search, to be printed

    @cached_property
    def due(self) -> list[PlannedRun]:
        """The runs to execute, in order."""
        return [planned for planned in self.runs if planned.action.is_due]

    @property
    def varying(self) -> list[str]:
        """The hyperparameters that vary."""
        return list(self.axes) or varying([planned.folder.params for planned in self.runs])

    @property
    def costs(self) -> list[tuple[Mapping[str, Any], float]]:
        """The hyperparameters and the duration (s) of each completed run."""
        return [
            (planned.folder.params, planned.before.epochs[-1].metrics["run duration"])
            for planned in self.runs
            if planned.before.status is Status.COMPLETED and planned.before.epochs
        ]


def resumed(before: RunResult) -> Action:
    """Return the action for a run that is due and not changed."""
    return Action.CONTINUE if before.epochs or before.inside else Action.EXECUTE


def make_plan(runs: Sequence[Run], folders: Sequence[RunFolder], task: RunTask, *, retry_failed: bool) -> Plan:
    """Plan runs according to their journals and the options of `run_grid`."""
    keep_changed = task.keep_changed
    planned: list[PlannedRun] = []
    changed: Counter[str] = Counter()
    again: set[str] = set()  # paths, relative to the root, of the runs that start over
    for run, folder in zip(runs, folders, strict=True):
        before = read_run(folder)
        if folder.unavailable:
            planned.append(PlannedRun(run, folder, before, Action.LEAVE))
            continue
        differences = task.changes_since(before)
        if differences and before.error and before.status is Status.COMPLETED and not keep_changed:
            # a completed run keeps its state if later attempts fail before their first epoch
            failed = read_run(replace(folder, since=before.start.get("attempt", 0)))
            if not task.changes_since(failed):  # the change was undone
                before, differences = failed, []
        if not differences:
            differences = [f"files of {path} (executed again)" for path in before.loaded if path in again]
        if differences:
            changed[", ".join(differences)] += 1
        if differences and not keep_changed:
            again.add(f"{folder.path.parent.name}/{folder.path.name}")
            since = replace(folder, since=max(files.journals_by_attempt(folder.path)))
            planned.append(PlannedRun(run, since, before, Action.START_OVER))
            continue
        is_left = before.status is Status.COMPLETED or (before.status.is_fault and not retry_failed)
        planned.append(PlannedRun(run, before.folder, before, Action.LEAVE if is_left else resumed(before)))
    sentences = [_changes(changed, keep_changed=keep_changed)] if changed else []
    if any(run.before.attempts for run in planned):
        sentences += _unnoticed(planned, task.fingerprint)
    return Plan(planned, sentences)


def _unnoticed(planned: Sequence[PlannedRun], now: Fingerprint) -> list[str]:
    """Return sentences about runs whose changes are not noticed."""
    before = [run.before for run in planned]
    continued = [run.before for run in planned if run.action is not Action.START_OVER]
    without_data = sum("data" in each.start.get("fingerprint", {}) and "data" not in now for each in continued)
    without_files = sum(
        not all(files_digest(each.folder.path.parent.parent / path) for path in each.loaded) for each in before
    )
    facts = {
        "been given data=, not given now": without_data,
        "loaded weights or artifacts of another run, gone now": without_files,
    }
    return [
        f"! {counted(number, 'run')} had {fact}: a change of it is not noticed"
        for fact, number in facts.items()
        if number
    ]


def _changes(changed: Mapping[str, int], *, keep_changed: bool) -> str:
    """Return a sentence about the numbers of changed runs by cause."""
    is_one_cause = len(changed) == 1
    causes = [cause if is_one_cause else f"{cause} ({count:,})" for cause, count in changed.items()]
    # there are many causes, for example if runs load the weights of many encoders
    if len(causes) > _MOST_CAUSES:
        causes[_MOST_CAUSES - 1 :] = [f"{len(causes) - _MOST_CAUSES + 1:,} other causes"]
    done, meaning = "kept", "unfinished runs resume, marked as mixed"
    if not keep_changed:
        step = argument("changed='keep'", "--changed keep")
        done, meaning = "executed again", f"old attempts are kept; {step} continues them"
    number = sum(changed.values())
    verb = "is" if number == 1 else "are"
    return f"! {counted(number, 'run')} changed and {verb} {done}: {'; '.join(causes)}; {meaning}"

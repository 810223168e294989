"""The plan of a grid: the action for each run, decided before any run is executed."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from runmanager.core import files
from runmanager.core.folder_names import varying
from runmanager.core.folders import RunFolder
from runmanager.core.outcome import Status, argument
from runmanager.core.run import Run
from runmanager.core.state import Fingerprint, RunResult, changes_since, files_digest, read_run
from runmanager.core.wording import counted
from runmanager.devices import ranks
from runmanager.search.search import Search

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
        return RunResult(self.before.folder, Status.PENDING, [], 0, "", {})


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


class Decisions:
    """Runs a search over a plan; all ranks get the decisions of rank 0.

    Args:
        plan: The runs of the grid.
        search: The search.
        plan_new: Creates folders for new runs of the search, and plans these runs.
    """

    def __init__(self, plan: Plan, search: Search, plan_new: Callable[[Sequence[Run]], Plan]) -> None:
        self._plan = plan
        self._search = search
        self._plan_new = plan_new
        self._runs = {planned.folder.id: planned for planned in plan.runs}
        self.results = {id_: planned.start for id_, planned in self._runs.items()}
        if ranks.is_main():
            search.begin([planned.folder for planned in plan.runs], {planned.folder.id for planned in plan.due})

    def first(self) -> Plan:
        """Return the plan in which the due runs are executed and all other runs wait."""
        return self._next((), whole=True)

    def next(self, in_progress: Collection[str]) -> Plan:
        """Return the plan of the runs that become due now."""
        return self._next(in_progress, whole=False)

    def _next(self, in_progress: Collection[str], *, whole: bool) -> Plan:
        plan, new = ranks.from_main(lambda: self._decided(in_progress, whole=whole))
        if new and not ranks.is_main():
            self._runs |= {planned.folder.id: planned for planned in new}
        return plan

    @property
    def plan(self) -> Plan:
        """The plan with all runs, including the runs created by the search."""
        return replace(self._plan, runs=list(self._runs.values()))

    def asked_for(self) -> Plan:
        """Return the plan without the runs that have not begun and are left out by the search."""
        left_out = self._search.left_out()
        runs = [run for run in self._runs.values() if run.before.attempts or run.folder.id not in left_out]
        return replace(self._plan, runs=runs)

    def _decided(self, in_progress: Collection[str], *, whole: bool) -> tuple[Plan, list[PlannedRun]]:
        due: list[str] = []
        sentences: list[str] = []
        new: list[PlannedRun] = []
        while True:
            decision = self._search.next(self.results, in_progress)
            due += decision.due
            sentences += decision.sentences
            planned_new = self._plan_new(decision.new).runs if decision.new else []
            new += planned_new
            self._runs |= {planned.folder.id: planned for planned in planned_new}
            self.results |= {planned.folder.id: planned.before for planned in planned_new}
            due += [planned.folder.id for planned in planned_new if planned.action.is_due]
            if due or not planned_new:
                break
        now = set(due)
        runs: list[PlannedRun] = []
        for planned in self.asked_for().runs if whole else [self._runs[id_] for id_ in due]:
            id_, action, before = planned.folder.id, planned.action, planned.before
            if id_ in now and (action is not Action.START_OVER or self.results[id_].attempts):
                before = self.results[id_]
                action = _executed(before)
            elif id_ not in now and action is not Action.LEAVE:
                action = Action.WAIT
            runs.append(PlannedRun(planned.run, planned.folder, before, action))
        return replace(self._plan, runs=runs, sentences=sentences), new


def _executed(before: RunResult) -> Action:
    return Action.CONTINUE if before.epochs or before.inside else Action.EXECUTE


def make_plan(
    runs: Sequence[Run],
    folders: Sequence[RunFolder],
    now: Fingerprint,
    *,
    retry_failed: bool,
    keep_changed: bool,
    axes: Sequence[str],
) -> Plan:
    """Plan runs with their folders according to the options of `run_grid`."""
    planned: list[PlannedRun] = []
    changed: Counter[str] = Counter()
    without_data = without_files = 0
    again: set[str] = set()  # paths, relative to the root, of the runs that start over
    for run, folder in zip(runs, folders, strict=True):
        before = read_run(folder)
        differences = [] if folder.unavailable else list(map(str, changes_since(before, now)))
        # a completed run keeps its state if later attempts fail before their first epoch
        if differences and before.error and before.status is Status.COMPLETED and not keep_changed:
            failed = read_run(replace(folder, since=before.start.get("attempt", 0)))
            if not changes_since(failed, now):
                before, differences = failed, []
        if not (differences or folder.unavailable):
            differences = [f"files of {path} (executed again)" for path in before.loaded if path in again]
        if differences:
            changed[", ".join(differences)] += 1
        if folder.unavailable:
            action = Action.LEAVE
        elif differences and not keep_changed:
            action = Action.START_OVER
            before = replace(before, folder=replace(folder, since=max(files.journals_by_attempt(folder.path))))
            again.add(f"{folder.path.parent.name}/{folder.path.name}")
        elif before.status is Status.COMPLETED or (before.status.is_fault and not retry_failed):
            action = Action.LEAVE
        else:
            action = _executed(before)
        had_data = "data" in before.start.get("fingerprint", {}) and "data" not in now
        without_data += had_data and action is not Action.START_OVER
        without_files += not all(files_digest(folder.path.parent.parent / path) for path in before.loaded)
        planned.append(PlannedRun(run, before.folder, before, action))
    changes = [_changes(changed, keep_changed=keep_changed)] if changed else []
    changes += [
        f"! {counted(number, 'run')} had {fact}: a change of it is not noticed"
        for number, fact in (
            (without_data, "been given data=, not given now"),
            (without_files, "loaded weights or artifacts of another run, gone now"),
        )
        if number
    ]
    return Plan(planned, changes, axes)


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

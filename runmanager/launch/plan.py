"""What a grid will do with each of its runs, decided before anything is started."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from runmanager.grid import Run
from runmanager.outcome import Status
from runmanager.search.base import Decision
from runmanager.storage.fingerprint import Fingerprint, changes
from runmanager.storage.folders import RunFolder, varying
from runmanager.storage.run_state import RunResult, read_run

STARTED_OVER = (
    "they start over, their old attempts are kept; "
    "resume_anyway=True (--resume-anyway) keeps and continues them"
)
KEPT = "they are kept and continued, and marked as mixed"


class Action(StrEnum):
    """What a grid does with a run."""

    EXECUTE = "execute"
    CONTINUE = "continue"  # after its last committed epoch, if it has a checkpoint
    START_OVER = "start over"  # because what it depends on has changed
    WAIT = "wait"  # until the search decides about it
    PRUNE = "prune"  # it is behind and its journal does not say so: it was interrupted
    LEAVE = "leave"

    @property
    def is_due(self) -> bool:
        """Whether the run is executed."""
        return self in (Action.EXECUTE, Action.CONTINUE, Action.START_OVER)


@dataclass(frozen=True)
class PlannedRun:
    """A run of a grid, where it lives, and what is done with it.

    Attributes:
        run: Its hyperparameters, as `train` gets them.
        before: What its journals say before anything is done.
        action: What is done with it.
    """

    run: Run
    folder: RunFolder
    before: RunResult
    action: Action

    @property
    def id(self) -> str:
        """The run's identity: the key by which it is found everywhere."""
        return self.folder.id


@dataclass(frozen=True)
class Plan:
    """What a grid does with its runs.

    Attributes:
        runs: All runs of the grid, in order.
        changed: What changed since runs were begun -> how many runs.
        policy: What is done about that.
        order: The identities of the runs to execute, in their order, where a search has decided it.
        sentences: What the search has to tell the user.
    """

    runs: Sequence[PlannedRun]
    changed: Mapping[str, int]
    policy: str
    order: Sequence[str] = ()
    sentences: Sequence[str] = ()

    def __iter__(self) -> Iterator[PlannedRun]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def due(self) -> list[PlannedRun]:
        """The runs to execute, in the order in which they are handed out."""
        indexes = {id_: index for index, id_ in enumerate(self.order)}
        due = [planned for planned in self.runs if planned.action.is_due]
        return sorted(due, key=lambda planned: indexes.get(planned.id, 0))

    @property
    def behind(self) -> list[PlannedRun]:
        """The runs to commit as pruned."""
        return [planned for planned in self.runs if planned.action is Action.PRUNE]

    @property
    def varying(self) -> list[str]:
        """The hyperparameters that tell the runs apart."""
        return varying([planned.folder.params for planned in self.runs])

    @property
    def costs(self) -> list[tuple[Mapping[str, Any], float]]:
        """Hyperparameters and duration (s) of the runs that are completed."""
        return [
            (planned.folder.params, planned.before.epochs[-1].metrics["run duration"])
            for planned in self.runs
            if planned.before.status is Status.COMPLETED and planned.before.epochs
        ]

    @property
    def num_continued(self) -> int:
        """How many runs go on after their last committed epoch, if they can."""
        return sum(planned.action is Action.CONTINUE for planned in self.runs)

    @property
    def num_done(self) -> int:
        """How many runs are completed and stay so."""
        return sum(planned.before.status is Status.COMPLETED for planned in self._left())

    @property
    def num_failed(self) -> int:
        """How many runs ended by a fault before and are not repeated."""
        return sum(planned.before.status.is_fault for planned in self._left())

    @property
    def num_pruned(self) -> int:
        """How many runs were stopped at a rung before and are not to be continued now."""
        waiting = (planned for planned in self.runs if planned.action is Action.WAIT)
        return len(self.behind) + sum(planned.before.status is Status.PRUNED for planned in waiting)

    def decided(self, decision: Decision, results: Mapping[str, RunResult]) -> "Plan":
        """Return the plan in which the runs that a search hands out are executed, and the others wait.

        Args:
            decision: Of the search.
            results: What the journals say now; only those of the runs it decides about are asked for.
        """
        due, behind = set(decision.due), set(decision.behind)
        runs: list[PlannedRun] = []
        for planned in self.runs:
            is_due = planned.id in due
            result = results[planned.id] if is_due or planned.id in behind else planned.before
            if is_due and planned.action is Action.START_OVER and not result.attempts:
                runs.append(planned)
                continue
            if is_due:
                action = _execute_or_continue(result)
            elif planned.id in behind and result.status.is_stopped:
                action = Action.PRUNE
            else:
                action = Action.LEAVE if planned.action is Action.LEAVE else Action.WAIT
            runs.append(replace(planned, before=result, action=action))
        return replace(self, runs=runs, order=decision.due, sentences=decision.sentences)

    def _left(self) -> Iterator[PlannedRun]:
        return (
            planned
            for planned in self.runs
            if planned.action is Action.LEAVE and not planned.folder.unavailable
        )


def make_plan(
    runs: Sequence[Run],
    folders: Sequence[RunFolder],
    now: Fingerprint,
    *,
    retry_failed: bool,
    resume_anyway: bool,
) -> Plan:
    """Decide which runs are executed.

    Args:
        runs: Those of the grid.
        folders: Where each of them lives.
        now: The code, data and versions of today.
        retry_failed: Execute runs again that ended by a fault.
        resume_anyway: Keep and continue runs that were begun with other code, data or versions.
    """
    planned: list[PlannedRun] = []
    changed: Counter[str] = Counter()
    for run, folder in zip(runs, folders, strict=True):
        before = read_run(folder, [])
        differences = [] if folder.unavailable else changes(before.start.get("fingerprint", {}), now)
        if differences:
            changed[", ".join(differences)] += 1
        if folder.unavailable:
            action = Action.LEAVE
        elif differences and not resume_anyway:
            action = Action.START_OVER
        elif before.status is Status.COMPLETED or (before.status.is_fault and not retry_failed):
            action = Action.LEAVE
        else:
            action = _execute_or_continue(before)
        planned.append(PlannedRun(run, folder, before, action))
    return Plan(planned, changed, KEPT if resume_anyway else STARTED_OVER)


def _execute_or_continue(before: RunResult) -> Action:
    return Action.CONTINUE if before.epochs else Action.EXECUTE

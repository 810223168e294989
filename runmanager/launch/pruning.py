"""What a grid stops runs early by, and which pruned runs are left as they are."""

from dataclasses import replace
from typing import TYPE_CHECKING

from runmanager.errors import InvalidArgumentError, Problems
from runmanager.goal import Goal
from runmanager.launch.plan import Action, Plan, PlannedRun
from runmanager.outcome import BY_TRAIN, Status
from runmanager.search.halving import NO_METRIC, SuccessiveHalving
from runmanager.search.optuna_pruner import OptunaPruner, is_optuna_pruner
from runmanager.search.search import Pruner
from runmanager.storage.run_state import RunResult

if TYPE_CHECKING:
    from optuna.pruners import BasePruner


def check_prune(prune: object, problems: Problems) -> None:
    """Collect what is wrong with `prune`."""
    if not (prune is None or isinstance(prune, SuccessiveHalving) or is_optuna_pruner(prune)):
        rule = "prune must be SuccessiveHalving(metric=...), a pruner of Optuna, or None to stop no run"
        problems.append(f"{rule}, got {prune!r}")


def rules_of(
    prune: "SuccessiveHalving | BasePruner | None", goal: Goal | None
) -> tuple[SuccessiveHalving | None, Pruner | None]:
    """Return the rule by which a search stops runs at rungs, and the pruner that runs ask; one or none of them.

    Raises:
        InvalidArgumentError: There is nothing to compare runs by.
    """
    if prune is None:
        return None, None
    if isinstance(prune, SuccessiveHalving):
        rule = prune.towards(goal)
        return (None, rule.pruner()) if rule.asynchronous else (rule, None)
    if goal is None:
        raise InvalidArgumentError([NO_METRIC])
    return None, OptunaPruner(prune, goal)


def leave_pruned(plan: Plan, pruner: Pruner | None, *, retry_failed: bool, **_: object) -> Plan:
    """Begin the pruner, and leave the runs of a plan that stay pruned: by its rule, or by `train`.

    Those of `train` are executed again with the runs that failed.
    """
    if pruner:
        pruner.begin([_before(planned) for planned in plan.runs])

    def is_left(planned: PlannedRun) -> bool:
        before = planned.before
        if not planned.action.is_due or planned.action is Action.START_OVER:
            return False
        if before.status is Status.PRUNED and before.pruned_by == BY_TRAIN:
            return not retry_failed
        return pruner is not None and pruner.is_left(before)

    runs = [replace(planned, action=Action.LEAVE) if is_left(planned) else planned for planned in plan.runs]
    return replace(plan, runs=runs)


def _before(planned: PlannedRun) -> RunResult:
    """Return what the journals of a run say, nothing if it starts over."""
    if planned.action is not Action.START_OVER:
        return planned.before
    return replace(planned.before, status=Status.PENDING, epochs=[], pruned_by="")

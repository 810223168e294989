"""Which runs of a grid are executed together: all that are to do, or under pruning those of one rung."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from runmanager.console import cell
from runmanager.devices import ranks
from runmanager.launch.plan import Plan
from runmanager.outcome import Status
from runmanager.search.halving import SuccessiveHalving
from runmanager.storage.run_state import RunResult, read_run


@dataclass(frozen=True)
class Round:
    """Runs that are executed together, and what was decided before.

    Attributes:
        plan: What to do; `before` is what is there now.
        behind: The numbers, from 0, of runs that are behind at a rung and whose journals do not say so, as they
            were interrupted there or later.
        decisions: A sentence for each rung at which something was decided anew.
    """

    plan: Plan
    behind: Sequence[int] = ()
    decisions: Sequence[str] = ()


def rounds(plan: Plan, prune: SuccessiveHalving | None) -> Iterator[Round]:
    """Yield one round after the other, each decided by what the journals say once the one before was executed.

    The first is yielded even if nothing is to do. Nothing but the journals is remembered from one start of a
    grid to the next, so that the same rounds come after a kill.

    Raises:
        PruneError: Runs cannot be compared, as the epoch of a rung has no such metric.
    """
    if prune is None:
        yield Round(plan)
        return
    halving = _Halving(plan, prune)
    while True:
        following = ranks.from_main(halving.decide)
        yield following
        if not following.plan.todo:
            return


class _Halving:
    """Decides rung by rung which runs go on.

    A run that ended by a fault is never among the best; one that was killed keeps its place for the next start.
    """

    def __init__(self, plan: Plan, prune: SuccessiveHalving) -> None:
        self._plan = plan
        self._prune = prune
        todo = {id(run) for run in plan.todo}
        self._left = {number for number, run in enumerate(plan.runs) if id(run) not in todo}  # in this start
        self._to_begin = {number for number, run in enumerate(plan.runs) if id(run) in plan.anew}
        self._due: list[int] = []
        self._rung = 0
        self._short: dict[int, int] = {}
        self._told: set[str] = set()

    def decide(self) -> Round:
        """Find out what became of the runs that were due, and which are due next."""
        found = [read_run(place) for place in self._plan.places]
        self._take_note(found)
        standing = [number for number, place in enumerate(self._plan.places) if not place.unavailable]
        behind: list[int] = []
        decisions: list[str] = []
        for rung in self._prune.rungs():
            self._rung = rung
            self._due = [n for n in standing if n not in self._left and not self._is_there(n, found[n])]
            if self._due or all(n in self._left or found[n].status is Status.COMPLETED for n in standing):
                break
            values = [self._value(n, found[n]) for n in standing]
            best = [standing[place] for place in self._prune.best(values)]
            decisions += self._decision(values, len(best))
            behind += [n for n in standing if n not in best and self._is_there(n, found[n])]
            standing = sorted(best)
        untold = [n for n in behind if found[n].status.is_stopped]
        return Round(self._following(found, behind), untold, decisions)

    def _take_note(self, found: Sequence[RunResult]) -> None:
        """Leave those that were due and cannot get on alone until the next start."""
        for number in self._due:
            epoch, status = _last_epoch(found[number]), found[number].status
            self._to_begin.discard(number)
            # one whose checkpoint was lost began anew and is before the rung; once more, and it gets nowhere
            is_short = status is Status.PRUNED and epoch < self._rung
            if not status.is_success or (is_short and epoch <= self._short.get(number, 0)):
                self._left.add(number)
            if is_short:
                self._short[number] = epoch

    def _is_there(self, number: int, found: RunResult) -> bool:
        """Whether a run was at the rung, or is completed before."""
        if number in self._to_begin:
            return False
        return found.status is Status.COMPLETED or _last_epoch(found) >= self._rung

    def _value(self, number: int, found: RunResult) -> float:
        """Return the metric of a run at the rung, NaN if it has none or can never go on."""
        is_lost = found.status.is_fault and number in self._left
        records = [record for record in found.epochs if record.epoch <= self._rung]
        if is_lost or not records or not self._is_there(number, found):
            return math.nan
        self._prune.check(records[-1].metrics)
        return records[-1].metrics[self._prune.goal.metric]

    def _decision(self, values: Sequence[float], num_best: int) -> list[str]:
        """Say what was decided at the rung, unless all go on, or that was said in this start."""
        finite = sorted(filter(math.isfinite, values), key=lambda value: -self._prune.goal.sign * value)
        shown = (
            f", {self._prune.goal.metric} {cell(finite[0])} to {cell(finite[num_best - 1])}" if finite else ""
        )
        without = len(values) - len(finite)
        facts = [f"after epoch {self._rung}, {num_best} of {len(values)} runs go on{shown}"]
        facts += [f"{len(values) - num_best} are behind"]
        facts += [f"{without} of these failed, were killed or have no number"] if without else []
        said = "; ".join(facts)
        is_new = num_best < len(values) and said not in self._told
        self._told.add(said)
        return [said] if is_new else []

    def _following(self, found: Sequence[RunResult], behind: Sequence[int]) -> Plan:
        due = set(self._due)
        pruned = {n for n, run in enumerate(found) if run.status is Status.PRUNED} | set(behind)
        return replace(
            self._plan,
            before=found,
            todo=[self._plan.runs[number] for number in self._due],
            interrupted=sum(bool(found[number].epochs) for number in due - self._to_begin),
            pruned=len(pruned - due - self._left),
        )


def _last_epoch(found: RunResult) -> int:
    """Return the epoch after which a run can go on: not the one in which it diverged."""
    last = found.epochs[-1].epoch if found.epochs else 0
    return last - (found.status is Status.DIVERGED)

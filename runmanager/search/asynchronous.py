"""Asynchronous successive halving: each run is judged when it comes to a rung."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from runmanager.outcome import EpochRecord, Outcome
from runmanager.search.pruning import Pruner, none_could_be_stopped
from runmanager.storage.run_state import RunResult

if TYPE_CHECKING:
    from runmanager.search.halving import SuccessiveHalving


class AsynchronousHalving(Pruner):
    """Stops a run at a rung unless it is among the best that have come there up to now."""

    def __init__(self, rule: "SuccessiveHalving") -> None:
        super().__init__(rule.goal, str(rule))
        self._rule = rule
        self._rungs: dict[int, dict[str, float]] = {}  # rung -> identity of a run -> its value there

    def begin(self, results: Iterable[RunResult]) -> None:
        """Take the values at the rungs."""
        for result in results:
            for record in result.epochs:
                if self._rule.is_rung(record.epoch) and self.goal.metric in record.metrics:
                    self._rungs.setdefault(record.epoch, {})[result.folder.id] = self.value(record)

    def should_stop(self, id_: str, record: EpochRecord) -> str:
        """Compare the run with those that have come to the rung so far, if it is at one."""
        for rung, values in self._rungs.items():
            if rung >= record.epoch:
                values.pop(id_, None)
        if not self._rule.is_rung(record.epoch):
            return ""
        values = self._rungs.setdefault(record.epoch, {})
        values[id_] = value = self.value(record)
        index = len(values) - 1  # of this run: it came last
        if index in self._rule.best(list(values.values())):
            return ""
        if not math.isfinite(value):
            return f"{self.goal.metric} is {value}"
        ahead = sum(self.goal.sign * (other - value) >= 0 for other in values.values()) - 1
        return f"behind {ahead} of {len(values)} runs"

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return that no run could be stopped early, if that is so."""
        return none_could_be_stopped(self._rule.min_epochs, outcomes)

"""A listener that warns after the first epoch of a grid if the goal is misspelled."""

from collections.abc import Callable, Iterable
from typing import Any

from runmanager.listener import Listener
from runmanager.outcome import EpochRecord
from runmanager.storage.design import Design
from runmanager.storage.run_state import RunResult


class GoalWatch(Listener):
    """Compares the metrics of a grid's first epoch with its goals.

    Args:
        design: The design of the experiment.
        results: Returns the results of earlier runs; if these results have the metric of a goal, a later epoch
            may have the metric too.
        say: Prints a line.
    """

    def __init__(
        self, design: Design, results: Callable[[], Iterable[RunResult]], say: Callable[[str], None]
    ) -> None:
        self._design, self._results, self._say = design, results, say
        self._is_new = True

    def epoch_ended(self, record: EpochRecord, network: Any) -> None:
        """Warn that the first epoch lacks the metric of a goal but has a metric with a similar name."""
        if self._is_new and (sentence := self._design.misspelled(record)) and not self._is_measured_before():
            self._say(f"! {sentence}")
        self._is_new = False

    def _is_measured_before(self) -> bool:
        metrics = {goal.metric for goal in self._design.all_goals}
        return any(
            metrics <= {*run.summary, *(name for record in run.epochs for name in record.metrics)}
            for run in self._results()
        )

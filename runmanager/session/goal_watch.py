"""A listener that says after the first epoch of a grid that its goal is misspelled."""

from collections.abc import Callable, Iterable
from typing import Any

from runmanager.listener import Listener
from runmanager.outcome import EpochRecord
from runmanager.storage.design import Design
from runmanager.storage.run_state import RunResult


class GoalWatch(Listener):
    """Compares the first epoch of a grid with its goals.

    Args:
        design: The design of the experiment.
        results: Returns the results of its earlier runs; if they have the goal, a later epoch may have it.
        say: Prints a line.
    """

    def __init__(
        self, design: Design, results: Callable[[], Iterable[RunResult]], say: Callable[[str], None]
    ) -> None:
        self._design, self._results, self._say = design, results, say
        self._is_new = True

    def epoch_ended(self, record: EpochRecord, network: Any) -> None:
        """Say that the first epoch has a similar metric in the place of a goal."""
        if self._is_new and (sentence := self._design.misspelled(record)) and not self._is_measured_before():
            self._say(f"! {sentence}")
        self._is_new = False

    def _is_measured_before(self) -> bool:
        metrics = {goal.metric for goal in self._design.all_goals}
        return any(
            metrics <= {*run.summary, *(name for record in run.epochs for name in record.metrics)}
            for run in self._results()
        )

"""A listener that warns after the first epoch of a grid if the goal is misspelled or only logged."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from runmanager.listener import Listener
from runmanager.outcome import EpochRecord
from runmanager.storage.design import Design
from runmanager.storage.folders import RunFolder
from runmanager.storage.run_state import RunResult


class GoalWatch(Listener):
    """Compares the metrics of a grid's first epoch with its goals.

    Args:
        design: The design of the experiment.
        results: Returns the results of earlier runs; if these results have the metric of a goal, a later epoch
            may have the metric too.
        folder: Returns the folder of the run with an identity.
        say: Prints a line.
    """

    def __init__(
        self,
        design: Design,
        results: Callable[[], Iterable[RunResult]],
        folder: Callable[[str], RunFolder],
        say: Callable[[str], None],
    ) -> None:
        self._design, self._results, self._folder, self._say = design, results, folder, say
        self._is_new = True

    def epoch_ended(self, record: EpochRecord, network: Any) -> None:
        """Warn that the first epoch lacks the metric of a goal, but logged it or has a similar name."""
        if self._is_new:
            self._is_new = False
            sentence = self._design.misspelled(record, self._logged)
            if sentence and not self._is_measured_before():
                self._say(f"! {sentence}")

    def _logged(self) -> Collection[str]:
        from runmanager.storage.steps import read_steps

        return read_steps(self._folder(self.slot.id), []).keys()

    def _is_measured_before(self) -> bool:
        metrics = {goal.metric for goal in self._design.all_goals}
        return any(
            metrics <= {*run.summary, *(name for record in run.epochs for name in record.metrics)}
            for run in self._results()
        )

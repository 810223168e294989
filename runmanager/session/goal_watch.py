"""A listener that warns after the first completed run of a grid if the goal is misspelled or only logged."""

from collections.abc import Callable, Mapping, Sequence

from runmanager.core.folders import RunFolder
from runmanager.core.goal import Goal
from runmanager.core.listener import Listener
from runmanager.core.missing_goal import missing_goal
from runmanager.core.outcome import Outcome, Status


class GoalWatch(Listener):
    """Compares the metrics of a grid's first completed run with its goals.

    Args:
        goals: The goals of the experiment.
        folders: The folders of the runs, by identity.
        say: Prints a line.
    """

    def __init__(
        self, goals: Sequence[Goal], folders: Mapping[str, RunFolder], say: Callable[[str], None]
    ) -> None:
        self._goals, self._folders, self._say = goals, folders, say
        self._is_new = True

    def run_ended(self, outcome: Outcome) -> None:
        """Warn that the first completed run lacks the metric of a goal, but logged it or has a similar name."""
        if self._is_new and outcome.status is Status.COMPLETED:
            self._is_new = False
            if sentence := missing_goal(self._goals, self._folders[self.slot.id]):
                self._say(f"! {sentence}")

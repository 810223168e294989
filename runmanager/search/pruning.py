"""What every pruner promises: it decides after each epoch of a run whether that goes on."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from runmanager.errors import PruneError
from runmanager.goal import Goal
from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.storage.run_state import RunResult


class Pruner(ABC):
    """Decides after each epoch of a run whether that goes on; which runs come next, a search decides.

    Each start of a grid makes a pruner and calls `begin` once. It asks `should_stop` when a run has committed
    an epoch, and when one is resumed, about the last one before. All calls are made in one thread of the
    process that starts the grid, under torchrun on rank 0 alone. The run waits for the answer.

    What has to survive a kill follows from the journals, in which each run that was stopped has the `rule`.

    Args:
        goal: What runs are compared by.
        rule: What stops runs, for journals and people: the same rule stops no run a second time.
    """

    def __init__(self, goal: Goal, rule: str) -> None:
        self.goal = goal
        self.rule = rule

    @abstractmethod
    def begin(self, results: Iterable[RunResult]) -> None:
        """Get to know what the journals of the grid say, in its order; a run that starts over has no epochs."""

    @abstractmethod
    def should_stop(self, id_: str, record: EpochRecord) -> str:
        """Take the last epoch of a run, by its identity; return why the run is to stop there, "" to go on.

        An epoch that comes again replaces those from it on.

        Raises:
            PruneError: The runs cannot be compared.
        """

    def run_ended(self, id_: str, status: Status) -> None:  # noqa: B027 - not all need it
        """Take note of how a run has ended."""

    def introduction(self) -> str:
        """Return a sentence that is printed before the first run."""
        return f"{self.rule}: a run that is behind is stopped at once, and can be continued"

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:  # noqa: ARG002 - for those who have one
        """Return a sentence that is printed at the end, "" for none."""
        return ""

    def value(self, record: EpochRecord) -> float:
        """Return what an epoch is compared by.

        Raises:
            PruneError: It has no such metric.
        """
        if self.goal.metric not in record.metrics:
            raise PruneError(
                f"runs are to be compared by {self.goal.metric!r}, which epoch {record.epoch} does not have; "
                f"it has: {', '.join(record.metrics)}. Track it in every epoch"
            )
        return record.metrics[self.goal.metric]

    def is_left(self, result: RunResult) -> bool:
        """Whether a run that was pruned before stays so: by the same rule, or as it would be stopped again."""
        if result.status is not Status.PRUNED or not result.epochs:
            return False
        return result.pruned_by == self.rule or bool(self.should_stop(result.folder.id, result.epochs[-1]))


def none_could_be_stopped(min_epochs: int, outcomes: Sequence[Outcome]) -> str:
    """Return that no run has gone on after the first rung, if that is so."""
    epochs = [outcome.epochs for outcome in outcomes if outcome.status is Status.COMPLETED]
    if not epochs or max(epochs) > min_epochs:
        return ""
    return f"! no run was stopped early: none has more epochs than min_epochs={min_epochs}"

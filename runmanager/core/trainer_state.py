"""Adapter for trainers that write and restore their own checkpoints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from runmanager.core.grid_context import GridContext
from runmanager.core.outcome import EpochRecord, Status
from runmanager.core.state import RunResult
from runmanager.devices import ranks


def continued(earlier: RunResult, grid: GridContext) -> Sequence[EpochRecord]:
    """Return the epochs of earlier attempts to resume from, without an epoch that diverged."""
    if grid.starts_over(earlier):
        return ()
    return earlier.epochs[: -1 if earlier.status is Status.DIVERGED else None]


@dataclass
class TrainerState:
    """The checkpoints of an external trainer, with the interface of `ResumeState`.

    Attributes:
        last: Number of committed epochs -> epoch after which the trainer resumes, 0 for none.
        save_epoch: Called with the number of an epoch before its commit, to write its checkpoint.
        forget: Called when the run has completed.
        learning_rate: Returns the current learning rate, None without a learning rate. The function never
            raises an exception.
        is_saved: Whether checkpoints are written, so that the run may be stopped and resumed.
        was_left: Whether the loop had ended early; always False, as trainers handle an early end themselves.
        inexact: The reason why a resumed run may differ from an uninterrupted run, "" if there is none.
    """

    last: Callable[[int], int] = int
    save_epoch: Callable[[int], None] = lambda _: None
    forget: Callable[[], None] = lambda: None
    learning_rate: Callable[[], float | None] = lambda: None
    is_saved: bool = True
    was_left: bool = False
    inexact: str = ""

    def restore(self, committed: Sequence[EpochRecord]) -> tuple[list[EpochRecord], list[str]]:
        """Return the records of the epochs not to execute again, and no problems."""
        records = ranks.from_main(lambda: list(committed[: self.last(len(committed))]))
        return records, []

    def score(self, record: EpochRecord) -> None:
        """Do nothing, as a trainer keeps its own weights."""

    def save(self, record: EpochRecord, network: nn.Module | None, *, is_left: bool = False) -> None:
        """Let the trainer save its state before the record is committed to the journal."""
        del network, is_left
        self.save_epoch(record.epoch)

"""The state of a trainer that writes its own checkpoints, and resumes from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from runmanager.devices import ranks
from runmanager.outcome import EpochRecord, Status
from runmanager.storage.run_state import RunResult
from runmanager.training.grid_context import GridContext


def _nothing(_: int) -> None:
    """Leave it to the trainer."""


def continued(earlier: RunResult, grid: GridContext) -> Sequence[EpochRecord]:
    """Return the epochs of earlier attempts that may be continued: not the one in which the run diverged."""
    if grid.starts_over(earlier):
        return ()
    return earlier.epochs[: -1 if earlier.status is Status.DIVERGED else None]


@dataclass
class TrainerState:
    """What a run asks of such a trainer, in place of `ResumeState`.

    Attributes:
        last: Given how many epochs are committed, returns after which of them the trainer resumes: 0 for none.
        save_epoch: Called with the number of an epoch before it is committed: its checkpoint is there then.
        forget: Called when the run is completed.
        learning_rate: Returns the current learning rate, None if there is none. Never raises.
        is_saved: Whether there are checkpoints, so that the run may be stopped and resumed.
        was_left: Whether the loop had ended by itself; trainers know that.
    """

    last: Callable[[int], int] = int
    save_epoch: Callable[[int], None] = _nothing
    forget: Callable[[], None] = lambda: None
    learning_rate: Callable[[], float | None] = lambda: None
    is_saved: bool = True
    was_left: bool = False

    def restore(self, committed: Sequence[EpochRecord]) -> tuple[list[EpochRecord], list[str]]:
        """Return the records of the epochs that need not be executed again, and no problems."""
        records = ranks.from_main(lambda: list(committed[: self.last(len(committed))]))
        return records, []

    def save(self, record: EpochRecord, network: nn.Module | None, *, is_left: bool = False) -> None:
        """Let the trainer save its state, before the record is committed to the journal."""
        del network, is_left
        self.save_epoch(record.epoch)

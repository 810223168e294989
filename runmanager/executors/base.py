"""What every executor promises."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from runmanager.grid import Run
from runmanager.storage.journal import EpochRecord, Outcome

OnEpoch = Callable[[Run, EpochRecord], None]
Work = Callable[[Run, OnEpoch], Outcome]
"""Executes one run in the process that calls it, and records how it ended."""


class Executor(ABC):
    """Executes runs, somewhere.

    Each run gets exactly one outcome, and a run that fails harms only itself: `work` turns its exceptions into
    outcomes. What leaves `work` as an exception (Ctrl-C, a disk that is full) ends the grid and passes through
    `execute`. `on_epoch` is called in the process of `execute`, between two of its outcomes.
    """

    @abstractmethod
    def execute(
        self, runs: Sequence[Run], work: Work, on_start: Callable[[Run], None], on_epoch: OnEpoch
    ) -> Iterator[tuple[Run, Outcome]]:
        """Execute the runs and yield each with its outcome as it ends, in any order.

        Args:
            runs: What to execute.
            work: Executes one run.
            on_start: Called when a run begins.
            on_epoch: Called when a run has committed an epoch.
        """

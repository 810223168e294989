"""Runs in this process, one after the other."""

from collections.abc import Callable, Iterator, Sequence

from runmanager.executors.base import Executor, OnEpoch, Work
from runmanager.grid import Run
from runmanager.storage.journal import Outcome


class InlineExecutor(Executor):
    """Execute runs in this process, in their order: the simplest, and the one to debug with."""

    def execute(
        self, runs: Sequence[Run], work: Work, on_start: Callable[[Run], None], on_epoch: OnEpoch
    ) -> Iterator[tuple[Run, Outcome]]:
        """Execute the runs and yield each with its outcome."""
        for run in runs:
            on_start(run)
            yield run, work(run, on_epoch)

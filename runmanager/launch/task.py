"""One run of a grid, executed in the process that calls."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runmanager.errors import LifecycleError, PruneError, StorageError
from runmanager.executors import BatchProgress, Report
from runmanager.grid import Run
from runmanager.outcome import Outcome
from runmanager.search.halving import SuccessiveHalving
from runmanager.storage.fingerprint import Fingerprint
from runmanager.storage.folders import Experiment

if TYPE_CHECKING:
    from runmanager.training.manager import RunManager

Train = Callable[[Run, "RunManager"], object]

_REPORT_EVERY_S = 0.5


@dataclass(frozen=True)
class GridWork:
    """Executes one run in the process that calls it; can be pickled if its parts can.

    Attributes:
        train: The user's function.
        experiment: The folder that the run lives in, and the other runs of the grid.
        tensorboard: Whether event files are written.
        histogram_every: Epochs from one set of histograms to the next.
        fingerprint: Code, data and versions that results depend on.
        resume_anyway: Whether runs that were begun with others are continued nevertheless.
        jobs: How many runs of the grid share the machine, at most.
        prune: Ends the run at its next rung.
    """

    train: Train
    experiment: Experiment
    tensorboard: bool
    histogram_every: int
    fingerprint: Fingerprint
    resume_anyway: bool
    jobs: int
    prune: SuccessiveHalving | None = None

    def __call__(self, run: Run, report: Report) -> Outcome:
        """Execute a run and return how it ended, which is committed by then.

        Raises:
            StorageError: Something could not be committed.
            PruneError: The run cannot be stopped at a rung, or not be compared there.
            Exception: Whatever `train` raised, if other ranks execute the run too: they wait for this one, and
                torchrun ends them when it is gone.
        """
        from runmanager.training.manager import RunManager

        manager = RunManager(
            self.experiment,
            tensorboard=self.tensorboard,
            histogram_every=self.histogram_every,
            display=False,
            on_epoch=report,
            tables=False,
            fingerprint=self.fingerprint,
            resume_anyway=self.resume_anyway,
            jobs=self.jobs,
            only=run,
            prune=self.prune,
            on_step=_Steps(report),
        )
        try:
            return self._execute(run, manager)
        except (StorageError, PruneError, KeyboardInterrupt, GeneratorExit):
            manager.end_interrupted()
            raise

    def _execute(self, run: Run, manager: "RunManager") -> Outcome:
        from runmanager.devices import ranks

        process = os.getpid()
        try:
            self.train(run, manager)
            if manager.is_open:
                manager.end_run()
            if manager.outcome is None:
                raise LifecycleError(  # noqa: TRY301 - a failure like those of train()
                    "train() began no run: write `with manager.run(run, network, loader):` in it"
                )
        except (StorageError, PruneError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # here a failing run becomes an outcome
            if os.getpid() != process:  # one that the run has forked: it has no say in it
                os._exit(1)
            outcome = manager.outcome
            if outcome is None or not outcome.status.is_exception:
                outcome = manager.end_failed(error, run)
            if ranks.num_ranks() > 1:
                raise
            return outcome
        return manager.outcome


class _Steps:
    """Reports steps, but not each: what is done per batch has to be cheap."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._next = 0.0

    def __call__(self, epoch: int, step: int, num_epochs: int | None) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REPORT_EVERY_S
            self._report(BatchProgress(epoch, step, num_epochs))

"""The common part of adapters for trainers: epochs, their values, and the trainer's checkpoints."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from runmanager.checks.unsaved import by_workers
from runmanager.core import files
from runmanager.core.checkpoint import TrainerState
from runmanager.devices import ranks, torch_devices
from runmanager.errors import LifecycleError, warn
from runmanager.front.manager import RunManager
from runmanager.front.reported import columns, log_steps

if TYPE_CHECKING:
    from runmanager.core.epoch import OpenEpoch
    from runmanager.core.open_run import OpenRun


class TrainedRun:
    """The open run of a manager, for the callbacks of a trainer."""

    def __init__(self, manager: RunManager) -> None:
        self.manager = manager
        self.folder: Path = self.opened.folder.path / files.TRAINER
        self._evaluation_start: float | None = None

    @property
    def opened(self) -> "OpenRun":
        """The open run."""
        return self.manager._open_run("a trainer's epoch")

    @property
    def epoch(self) -> "OpenEpoch":
        """The open epoch."""
        return self.manager._open_epoch("a trainer's step")  # noqa: SLF001 - as adapters do

    @property
    def is_in_epoch(self) -> bool:
        """Whether an epoch is open."""
        return self.manager._is_open and self.opened.epoch is not None

    @property
    def most_steps(self) -> int | None:
        """The maximum number of steps of an epoch if the run is only checked; an evaluation has one batch."""
        return self.opened.context.epoch_type.most_steps

    def resume_trainer(self, saved: Mapping[int, Path]) -> Path | None:
        """Resume after the last committed epoch that has a checkpoint in `saved`, and return the checkpoint."""
        opened = self.opened

        def last(committed: int) -> int:
            return max((number for number in saved if number <= committed), default=0)

        def forget() -> None:
            if ranks.is_main():
                shutil.rmtree(self.folder, ignore_errors=True)

        self.manager._resume_from(TrainerState(last=last, forget=forget))
        if not opened.number:
            forget()  # these checkpoints come from changed code
        return saved.get(opened.number)

    def begin(
        self,
        after: int,
        step: str,
        optimizer: Any,
        loader: Any,
        *,
        is_saving: bool,
        inexact: str = "",
        save_epoch: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Check that a trainer starts after the run's epoch; `step` is what to write otherwise."""
        opened, state = self.opened, self.opened.state
        if after != opened.number:
            raise LifecycleError(
                f"the trainer continues after epoch {after}, the run after epoch {opened.number}: "
                f"write {step}, once in a run"
            )
        assert isinstance(state, TrainerState)
        state.is_saved = is_saving
        if is_saving:
            state.save_epoch = save_epoch
            state.inexact = inexact or by_workers(loader)  # known too late for the journal's first line
        if state.inexact:
            warn(state.inexact)
        if optimizer:
            state.learning_rate = lambda: float(optimizer.param_groups[0]["lr"])
        if opened.loader is None:  # the loader of a stream has no length and therefore no truth value
            opened.loader = loader

    def begin_epoch(self, num_epochs: int | None) -> None:
        """Begin an epoch; `num_epochs` is the number of all epochs, None if unknown."""
        self.opened.num_epochs = num_epochs
        self.manager.begin_epoch()

    def log(self, values: Mapping[str, Any]) -> None:
        """Log the values of a step, as curves."""
        log_steps(self.manager, columns(values, self.opened.folder.params))

    def begin_evaluation(self) -> None:
        """Stop the clock of the epoch."""
        torch_devices.wait_for(self.opened.device)
        self._evaluation_start = perf_counter()

    def end_evaluation(self) -> None:
        """Restart the clock of the epoch."""
        if self._evaluation_start is not None:
            torch_devices.wait_for(self.opened.device)
            self.opened.add_evaluation({}, perf_counter() - self._evaluation_start)
            self._evaluation_start = None

    def end_epoch(self, values: Mapping[str, Any]) -> bool:
        """Commit the epoch with the trainer's values; return whether the trainer should stop."""
        opened = self.opened
        opened.add_evaluation(columns(values, opened.folder.params), 0.0)
        self.manager.end_epoch()
        return self.manager.should_stop

    def end(self, num_epochs: int | None) -> None:
        """Record that the trainer ended before its last epoch, unless the run has recorded a reason."""
        opened = self.opened
        if num_epochs and opened.number < num_epochs and not self.manager.should_stop:
            opened.stopped_early = f"the trainer stopped after epoch {opened.number} of {num_epochs}"

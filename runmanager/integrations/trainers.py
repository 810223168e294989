"""What a trainer of others calls while it executes a run: epochs, their values, its own checkpoints."""

import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from runmanager.devices import ranks, torch_devices
from runmanager.errors import LifecycleError, RunsWarning
from runmanager.hyperparameters import RESERVED
from runmanager.launch.manager import RunManager, hooks_of
from runmanager.storage import paths
from runmanager.training.trainer_state import TrainerState

if TYPE_CHECKING:
    from runmanager.training.open_run import OpenRun

_FILLED = ("loss", "accuracy")  # columns that a trainer's metric of the same name fills


class TrainedRun:
    """The open run of a manager, as the callbacks of a trainer see it.

    Args:
        manager: Its run is open, as in ``with manager.run(run):``.

    Raises:
        LifecycleError: No run is open.
    """

    def __init__(self, manager: RunManager) -> None:
        self.manager = manager
        self.folder: Path = self.opened.folder.path / paths.TRAINER
        self._evaluation_start: float | None = None

    @property
    def opened(self) -> "OpenRun":
        """The open run."""
        return hooks_of(self.manager).open_run("a trainer's epoch")

    @property
    def is_in_epoch(self) -> bool:
        """Whether an epoch is open."""
        return hooks_of(self.manager).is_open and self.opened.epoch is not None

    @property
    def most_steps(self) -> int | None:
        """The most steps of an epoch where the run is only tried, with one batch of each evaluation."""
        return self.opened.epoch_type.most_steps

    def resume_trainer(self, last: Callable[[int], int]) -> int:
        """Resume the run after an epoch of which the trainer has a checkpoint.

        Args:
            last: Given how many epochs are committed, returns the last one that has a checkpoint, 0 for none.

        Returns:
            The number of that epoch.

        Raises:
            LifecycleError: An epoch has begun already.
        """
        if self.opened.has_begun:
            raise LifecycleError("checkpoint_path() after an epoch of this run: call it once, before the first")
        state = TrainerState(last=last, forget=lambda: remove_trainer_files(self.folder))
        records, problems = self.opened.resume_with(state)
        hooks_of(self.manager).add_rows(records)
        if problems:
            warnings.warn("; ".join(problems), RunsWarning, stacklevel=4)
        if not records:
            remove_trainer_files(self.folder)  # of other code
        return self.opened.number

    @property
    def state(self) -> TrainerState:
        """What the open run asks of the trainer."""
        state = self.opened.resume_state
        assert isinstance(state, TrainerState)
        return state

    def begin_epoch(self, num_epochs: int | None) -> None:
        """Begin an epoch of `num_epochs`, None if that is not known."""
        self.opened.num_epochs = self.opened.ending.begin_loop(num_epochs)
        self.manager.begin_epoch()

    def begin_evaluation(self) -> None:
        """Stop the clock of the epoch."""
        torch_devices.wait_for(self.opened.device)
        self._evaluation_start = perf_counter()

    def end_evaluation(self) -> None:
        """Start it again."""
        if self._evaluation_start is not None:
            torch_devices.wait_for(self.opened.device)
            seconds, self._evaluation_start = perf_counter() - self._evaluation_start, None
            self.opened.add_evaluation({}, seconds)

    def end_epoch(self, values: Mapping[str, Any]) -> bool:
        """Commit the epoch with what the trainer reports of it; return whether the trainer is to stop."""
        opened = self.opened
        opened.add_evaluation(columns(values, opened.folder.params), 0.0)
        self.manager.end_epoch()
        return self.manager.should_stop

    def end(self, num_epochs: int | None) -> None:
        """Note that the trainer ended before its last epoch, unless the run has said so."""
        opened = self.opened
        if num_epochs and opened.number < num_epochs and not self.manager.should_stop:
            sentence = f"the trainer stopped after epoch {opened.number} of {num_epochs}"
            opened.ending.stopped_early = sentence

    def add_test(self, values: Mapping[str, Any]) -> None:
        """Add what a test after the epochs has reported to the results of the run, while it is open."""
        if hooks_of(self.manager).is_open and not self.is_in_epoch:
            of_test = {name: value for name, value in values.items() if name.startswith("test")}
            self.opened.add_summary(columns(of_test, self.opened.folder.params))


def remove_trainer_files(folder: Path) -> None:
    """Remove the checkpoints of a run that is completed, or starts over."""
    if ranks.is_main():
        shutil.rmtree(folder, ignore_errors=True)


def columns(values: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, float]:
    """Return the single numbers among what a trainer reports, by column.

    What an identifier cannot have becomes ``_``. A name that is taken gets ``_logged`` at its end, as that of a
    hyperparameter: a trainer does not end because of a name.

    >>> columns({"val/loss": 0.5, "lr-SGD": 0.1, "lr": 0.1, "epoch": 1, "text": "a"}, {"lr": 0.1})
    {'val_loss': 0.5, 'lr_SGD': 0.1, 'lr_logged': 0.1, 'epoch_logged': 1.0}
    """
    taken = (RESERVED - {*_FILLED}) | params.keys()
    named: dict[str, float] = {}
    for name, value in values.items():
        number = _number(value)
        column = re.sub(r"\W", "_", name)
        column = column if column.isidentifier() else f"_{column}"
        while column in taken or column in named:
            column += "_logged"
        if number is not None:
            named[column] = number
    return named


def _number(value: Any) -> float | None:
    """Return a single number as a float, None if it is none."""
    try:
        return None if isinstance(value, str) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None

"""Adapter for Lightning's Trainer."""

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from runmanager.core import files
from runmanager.core.loaders import generators
from runmanager.devices import ranks, torch_devices
from runmanager.errors import LifecycleError, MissingExtraError
from runmanager.front.manager import RunManager
from runmanager.trainers.base import TrainedRun

__all__ = ["RunManagerCallback", "checkpoint_path", "trainer_options"]

try:  # Lightning has two packages; use the package that the program has imported
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning.callbacks import Checkpoint
        from pytorch_lightning.loggers import Logger
        from pytorch_lightning.utilities.data import extract_batch_size
        from pytorch_lightning.utilities.exceptions import SIGTERMException
    else:
        from lightning.pytorch.callbacks import Checkpoint
        from lightning.pytorch.loggers import Logger
        from lightning.pytorch.utilities.data import extract_batch_size
        from lightning.pytorch.utilities.exceptions import SIGTERMException
except ImportError as error:
    raise MissingExtraError(
        "runmanager.trainers.lightning needs lightning: pip install 'torch-runmanager[lightning]'"
    ) from error


def trainer_options(manager: RunManager, **options: Any) -> dict[str, Any]:
    """Return the arguments of Lightning's Trainer for the open run: its device, its logger, its callback.

    Lightning's progress bar, summary and hints are off, and nothing is written to the working directory: files
    of your callbacks become artifacts of the run. Warnings stay.

    Args:
        manager: A manager with an open run.
        **options: Further arguments of Trainer; they have precedence, except `callbacks` and `logger`, which
            are added.

    Returns:
        The arguments, for ``Trainer(**trainer_options(manager, max_epochs=5))``.

    Raises:
        LifecycleError: No run is open.
    """
    run = TrainedRun(manager)
    opened = run.opened
    # Lightning's hints are off until the run ends
    logger = logging.getLogger(f"{Logger.__module__.partition('.loggers')[0]}.utilities.rank_zero")
    manager._scope.callback(logger.setLevel, logger.level)
    logger.setLevel(max(logger.level, logging.WARNING))
    callbacks, loggers = (
        [*value] if isinstance(value, Sequence) else [value] if value and value is not True else []
        for value in (options.pop("callbacks", None), options.pop("logger", None))
    )
    if not any(isinstance(callback, RunManagerCallback) for callback in callbacks):
        callbacks.append(RunManagerCallback(manager))
    device, num_ranks = opened.device, ranks.num_ranks()
    arguments: dict[str, Any] = {
        "accelerator": device.type,
        "devices": 1 if device.type in ("cpu", "mps") else [device.index or 0],
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(opened.folder.path / files.ARTIFACTS),
    }
    if num_ranks > 1:
        num_local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        arguments |= {"devices": num_local, "num_nodes": num_ranks // num_local, "strategy": "ddp"}
    arguments |= {**options, "callbacks": callbacks, "logger": [_StepLogger(run), *loggers]}
    if run.most_steps:
        arguments |= {
            "limit_train_batches": run.most_steps, "limit_val_batches": 1, "limit_test_batches": 1,
            "limit_predict_batches": 1, "max_epochs": 1, "val_check_interval": 1.0,
        }  # fmt: skip
    return arguments


def checkpoint_path(manager: RunManager) -> Path | None:
    """Resume the open run: return Lightning's checkpoint of the last committed epoch.

    Args:
        manager: A manager with an open run, before its first epoch.

    Returns:
        A path for ``trainer.fit(model, ckpt_path=checkpoint_path(manager))``; None for a run that starts at its
        first epoch.

    Raises:
        LifecycleError: No run is open, or an epoch has begun already.
    """
    run = TrainedRun(manager)
    saved = {int(path.stem.removeprefix("epoch-")): path for path in run.folder.glob("epoch-*.ckpt")}
    path = run.resume_trainer(saved)
    folder, attempt = run.opened.folder.path, run.opened.attempt
    checkpoints = folder / files.ARTIFACTS / "checkpoints"
    # of callbacks of a superseded attempt; on rank 0, else ModelCheckpoint would write last-v1.ckpt
    if path is None and attempt > 1 and checkpoints.exists():
        os.renames(checkpoints, folder / f"attempt-{attempt - 1}.{files.ARTIFACTS}" / checkpoints.name)
    return path


class RunManagerCallback(Checkpoint):  # type: ignore[misc]  # mypy does not follow lightning
    """Records the epochs of Lightning's Trainer as epochs of the run.

    Each epoch is a row with the mean training loss as `loss`, and the module's logged values, from
    ``trainer.callback_metrics`` at the end of the epoch. Before an epoch is committed, Lightning's checkpoint
    of the epoch is written to the folder of the run, with the random states. A loss that is not finite, and
    pruning, stop the trainer.

    Args:
        manager: A manager with an open run.
        checkpoint: False writes no checkpoints; an interrupted run then starts over.
    """

    def __init__(self, manager: RunManager, *, checkpoint: bool = True) -> None:
        super().__init__()
        self.run = TrainedRun(manager)
        self._is_saving = checkpoint
        self._state: dict[str, Any] = {}  # this callback's state in Lightning's checkpoint
        self._loaded: dict[str, Any] = {}  # this callback's state in the loaded checkpoint
        self._reported: dict[str, Any] = {}  # the trainer's metrics at the end of the last epoch
        self._sigint: Any = signal.SIG_DFL

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check that the trainer's processes are the ranks of the run."""
        self._sigint = signal.getsignal(signal.SIGINT)
        if trainer.world_size != ranks.num_ranks():
            raise LifecycleError(
                f"Lightning trains in {trainer.world_size} processes, the run knows of {ranks.num_ranks()}: "
                f"start the program with torchrun --nproc-per-node={trainer.world_size}"
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of this callback from a checkpoint."""
        self._loaded = state_dict

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this callback, for a checkpoint."""
        return self._state

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Mark the epoch as complete.

        Lightning marks the epoch only after the hooks, and after a resume would end the epoch twice.
        """
        if self._state:
            for progress in checkpoint["loops"]["fit_loop"]["epoch_progress"].values():
                progress["completed"] = progress["processed"]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check that the trainer resumes at the run's epoch."""
        opened = self.run.opened
        if not opened.has_begun:
            checkpoint_path(self.run.manager)  # what the program has left out
        self.run.begin(
            self._loaded.get("epoch", 0),
            "trainer.fit(..., ckpt_path=checkpoint_path(manager))",
            next(iter(trainer.optimizers), None),
            trainer.train_dataloader,
            is_saving=self._is_saving,
            inexact="a run with reload_dataloaders_every_n_epochs cannot be resumed exactly"
            if trainer.reload_dataloaders_every_n_epochs
            else "",
            save_epoch=partial(self._save, trainer),
        )
        if self._loaded:
            trainer.should_stop |= self._loaded["should_stop"]
            metrics = self._loaded["metrics"]
            for config in trainer.lr_scheduler_configs if pl_module.automatic_optimization else ():
                # Lightning steps ReduceLROnPlateau only after its checkpoint
                is_due = config.interval == "epoch" and opened.number % config.frequency == 0
                if config.reduce_on_plateau and is_due and config.monitor in metrics:
                    pl_module.lr_scheduler_step(config.scheduler, metrics[config.monitor])

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the epoch; restore the random states first if the trainer has just resumed."""
        if self._loaded:
            # with max_steps, the trainer may resume inside an ended epoch
            trainer.fit_loop.epoch_loop.restarting = False
            # the random states of the last epoch's end determine the order of batches
            of_ranks = self._loaded["random"]
            if ranks.rank() < len(of_ranks):
                random, loader_states = of_ranks[ranks.rank()]
                for name, generator in generators(trainer.train_dataloader):
                    if name in loader_states:
                        generator.set_state(loader_states[name])
                torch_devices.restore_random(random, self.run.opened.device)
            if trainer.fit_loop.is_resuming:  # Lightning has made its iterator before the states were restored
                iter(trainer.fit_loop._data_fetcher)  # noqa: SLF001 - as Lightning does
        self._loaded = {}
        self.run.begin_epoch(_num_epochs(trainer))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Compute the norm of the gradients before the trainer clips them, for TensorBoard."""
        board = self.run.opened.board
        if board and trainer.gradient_clip_val:
            gradients = [part.grad for part in pl_module.parameters() if part.grad is not None]
            board.gradient_norm = torch.nn.utils.get_total_norm(gradients)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the loss of the batch to the mean of the epoch."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, torch.Tensor):
            return  # the step was skipped
        loss = loss * trainer.accumulate_grad_batches  # by which Lightning has divided it
        try:
            size = max(int(extract_batch_size(batch)), 1)
        except Exception:  # noqa: BLE001 - Lightning's own error, for a batch without a tensor
            size = 1
        self.run.manager.track_loss(loss, size)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Stop the clock of the epoch."""
        if self.run.is_in_epoch:
            self.run.begin_evaluation()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Restart the clock."""
        self.run.end_evaluation()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Commit the epoch with its logged values."""
        reported = dict(trainer.callback_metrics)
        forks = {f"{name}{end}" for name in reported for end in ("_step", "_epoch")}
        values = {
            name: value
            for name, value in reported.items()
            # a value that was not logged again is from an earlier epoch
            if value is not self._reported.get(name) and name not in forks
        }
        self._reported = reported
        if self.run.end_epoch(values):
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Record early stopping of the trainer."""
        self.run.end(_num_epochs(trainer))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Let Ctrl-C and SIGTERM interrupt the run, as Lightning would exit with an error."""
        if isinstance(exception, (KeyboardInterrupt, SIGTERMException)) and trainer.world_size == 1:
            trainer._teardown()  # noqa: SLF001 - what Lightning does next
            signal.signal(signal.SIGINT, self._sigint)
            if isinstance(exception, KeyboardInterrupt):
                raise exception
            raise KeyboardInterrupt from exception

    def _save(self, trainer: Any, number: int) -> None:
        """Write Lightning's checkpoint of an epoch; keep the previous checkpoint until the commit."""
        loader_states = {
            name: generator.get_state() for name, generator in generators(trainer.train_dataloader)
        }
        self._state = {
            "epoch": number,
            "random": ranks.gather((torch_devices.random_states(self.run.opened.device), loader_states)),
            "metrics": self._reported,
            "should_stop": trainer.should_stop,
        }
        folder = self.run.folder
        trainer.save_checkpoint(folder / f"epoch-{number}.ckpt", weights_only=False)
        # on disk before the epoch is committed, unless a plugin writes it later, in a thread
        if ranks.is_main():
            folder.mkdir(exist_ok=True)
            for part in (*folder.rglob("*"), folder, folder.parent):
                files.sync(part)
        trainer.strategy.remove_checkpoint(folder / f"epoch-{number - 2}.ckpt")
        self._state = {}


class _StepLogger(Logger):  # type: ignore[misc]  # as above
    """Logs Lightning's metrics as values of steps: in TensorBoard, and in `load_steps`."""

    def __init__(self, run: TrainedRun) -> None:
        super().__init__()
        self.run = run

    @property
    def name(self) -> str:
        """An empty name, as files of Lightning are inside the folder of the run."""
        return ""

    version = name

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log the values of a step; steps are the batches of the run."""
        if self.run.is_in_epoch:  # Lightning logs values again that the callback has committed
            self.run.log({name: value for name, value in metrics.items() if name != "epoch"})

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing, as the table has the run's hyperparameters."""


def _num_epochs(trainer: Any) -> int | None:
    return trainer.max_epochs if trainer.max_epochs > 0 > trainer.max_steps else None

"""Adapter for the Trainer of Hugging Face's transformers."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from runmanager.core.manager import LeaveTrain
from runmanager.devices import ranks
from runmanager.errors import InvalidArgumentError, MissingExtraError, is_count
from runmanager.front.manager import RunManager
from runmanager.trainers.base import TrainedRun

try:
    from transformers import TrainerCallback, TrainingArguments
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    raise MissingExtraError(
        "runmanager.trainers.huggingface needs transformers: pip install 'torch-runmanager[huggingface]'"
    ) from error

if TYPE_CHECKING:
    from transformers import TrainerControl
    from transformers import TrainerState as State


def training_arguments(
    manager: RunManager, kind: type[TrainingArguments] = TrainingArguments, **options: Any
) -> TrainingArguments:
    """Return the arguments of transformers' Trainer for the open run: its device, its folder, its seed.

    The trainer writes its checkpoints to the run's folder, and nothing to the working directory. It reports
    only to the run, and shows no progress bar. A NaN loss is reported as NaN. The hyperparameter `seed`, if the
    run has it, seeds the trainer.

    Args:
        manager: A manager with an open run.
        kind: The class of the arguments, such as Seq2SeqTrainingArguments.
        **options: Further arguments; they have precedence over the run's values.

    Returns:
        The arguments, for ``Trainer(model, training_arguments(manager, num_train_epochs=3), ...)``.

    Raises:
        LifecycleError: No run is open.
    """
    run = TrainedRun(manager)
    device, seed = run.opened.device, run.opened.folder.params.get("seed")
    arguments: dict[str, Any] = {
        "output_dir": str(run.folder), "use_cpu": device.type == "cpu", "report_to": "none",
        "disable_tqdm": True, "logging_strategy": "epoch", "save_strategy": "epoch",
        "restore_callback_states_from_checkpoint": True,
        "save_total_limit": 2,  # one of the last committed epoch, and one of the next epoch
    }  # fmt: skip
    arguments |= {"seed": seed} if is_count(seed) else {}
    training = kind(**{**arguments, **options})
    if training.disable_tqdm:
        disable_progress_bar()  # type: ignore[no-untyped-call]  # that of its checkpoints
    if device.type == "cuda" and ranks.num_ranks() == 1:
        # otherwise the trainer uses the first GPU and splits batches over all GPUs
        torch.cuda.set_device(device)
        vars(training)["_setup_devices"] = training.distributed_state.device = device
        training._n_gpu = 1  # noqa: SLF001 - as above
    return training


def checkpoint_path(manager: RunManager) -> str | None:
    """Resume the open run: return the trainer's checkpoint of the last committed epoch.

    Args:
        manager: A manager with an open run, before its first epoch.

    Returns:
        A path for ``trainer.train(resume_from_checkpoint=checkpoint_path(manager))``; None for a run that
        starts at its first epoch.

    Raises:
        LifecycleError: No run is open, or an epoch has begun already.
    """
    run = TrainedRun(manager)
    saved: dict[int, Path] = {}
    for state in run.folder.glob("checkpoint-*/trainer_state.json"):
        try:
            epoch = json.loads(state.read_text(encoding="utf-8"))["epoch"]
        except (OSError, ValueError, LookupError):
            continue  # a kill interrupted the writing of this checkpoint
        if epoch == int(epoch) and epoch > 0:  # at the end of an epoch
            saved[int(epoch)] = state.parent
    path = run.resume_trainer(saved)
    return str(path) if path else None


class RunManagerCallback(TrainerCallback):
    """Records the epochs of transformers' Trainer as epochs of the run.

    Each epoch is a row with the trainer's logged values: the mean of `loss` over its steps, and the last value
    of each other metric; speeds are left out. Values of single steps are curves in TensorBoard, and in
    `load_steps`. Each epoch ends with a checkpoint of the trainer; then the row is committed. A loss that is
    not finite, and pruning, stop the trainer.

    Args:
        manager: A manager with an open run.
        checkpoint: False writes no checkpoints; an interrupted run then starts over.
    """

    def __init__(self, manager: RunManager, *, checkpoint: bool = True) -> None:
        super().__init__()
        self.run = TrainedRun(manager)
        self._is_saving = checkpoint
        self._first_step = 0  # number of the trainer's steps before the epoch
        self._has_ended = False  # whether the epoch has ended, and is committed with its checkpoint

    def on_train_begin(
        self, args: TrainingArguments, state: "State", control: "TrainerControl", **kwargs: Any
    ) -> None:
        """Check that the trainer resumes at the run's epoch, and saves to the run's folder."""
        args.logging_nan_inf_filter = False  # the filter would hide NaN losses of a diverged run
        if not self.run.opened.has_begun:
            checkpoint_path(self.run.manager)  # what the program has left out
        self.run.begin(
            round(state.epoch or 0),
            "trainer.train(resume_from_checkpoint=checkpoint_path(manager))",
            kwargs.get("optimizer"),
            kwargs.get("train_dataloader"),
            is_saving=self._is_saving,
        )
        if self._is_saving and Path(args.output_dir or "") != self.run.folder:
            raise InvalidArgumentError(
                f"output_dir is {args.output_dir!r}, but checkpoints have to be in the folder of the run: "
                "write training_arguments(manager), or RunManagerCallback(manager, checkpoint=False)"
            )
        state.max_steps = self.run.most_steps or state.max_steps

    def on_epoch_begin(
        self, args: TrainingArguments, state: "State", control: "TrainerControl", **kwargs: Any
    ) -> None:
        """Begin an epoch; commit the previous epoch if it had no checkpoint."""
        self._commit(state, control)
        self.run.begin_epoch(state.num_train_epochs)
        self._first_step = state.global_step

    def on_step_end(
        self, args: TrainingArguments, state: "State", control: "TrainerControl", **kwargs: Any
    ) -> None:
        """Count the step; stop the clock if an evaluation follows."""
        self.run.epoch.step += 1
        self.run.opened.report_step()
        if control.should_evaluate:
            self.run.begin_evaluation()

    def on_epoch_end(
        self, args: TrainingArguments, state: "State", control: "TrainerControl", **kwargs: Any
    ) -> None:
        """Stop the clock, and request the values and the checkpoint of the epoch from the trainer."""
        self.run.epoch.stop_clock()
        self._has_ended = control.should_log = True
        control.should_save = self._is_saving and not self.run.most_steps
        if control.should_evaluate:
            self.run.begin_evaluation()

    def on_log(
        self,
        args: TrainingArguments,
        state: "State",
        control: "TrainerControl",
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log the values of a step; do not save an epoch whose loss is not finite."""
        if self._has_ended:
            if not math.isfinite(self._values(state).get("loss", 0.0)):
                control.should_save, control.should_training_stop = False, True
        elif self.run.is_in_epoch:
            self.run.log(_without_speeds(logs or {}))

    def on_prediction_step(
        self, args: TrainingArguments, state: "State", control: "TrainerControl", **kwargs: Any
    ) -> None:
        """Cut the evaluation short if the run is only checked."""
        if self.run.most_steps:
            raise LeaveTrain

    def on_evaluate(
        self, args: TrainingArguments, state: "State", control: "TrainerControl", **kwargs: Any
    ) -> None:
        """Restart the clock."""
        self.run.end_evaluation()

    def on_save(
        self, args: TrainingArguments, state: "State", control: "TrainerControl", **kwargs: Any
    ) -> None:
        """Commit the epoch, as its checkpoint is complete."""
        self._commit(state, control)

    def on_train_end(
        self, args: TrainingArguments, state: "State", control: "TrainerControl", **kwargs: Any
    ) -> None:
        """Commit the last epoch; record early stopping of the trainer."""
        self._commit(state, control)
        self.run.end(state.num_train_epochs)

    def _commit(self, state: "State", control: "TrainerControl") -> None:
        """Commit the ended epoch, if any."""
        if self._has_ended:
            self._has_ended = False
            if self.run.end_epoch(self._values(state)):
                control.should_training_stop = True

    def _values(self, state: "State") -> dict[str, Any]:
        """Return the last values that the trainer logged in the epoch, and the mean loss over its steps."""
        values: dict[str, Any] = {}
        loss = 0.0
        logged_step: float = self._first_step
        for log in state.log_history:
            # the trainer logs its runtime last, after all epochs
            if log["step"] > self._first_step and "train_runtime" not in log:
                values |= _without_speeds(log)
                if "loss" in log:
                    loss += log["loss"] * ((log["step"] - logged_step) / (state.global_step - self._first_step))
                    values["loss"], logged_step = loss, log["step"]
        return values


def _without_speeds(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what a row has of its own, also its durations."""
    return {
        name: value
        for name, value in logs.items()
        if name not in ("epoch", "step") and not name.endswith(("_runtime", "_per_second"))
    }

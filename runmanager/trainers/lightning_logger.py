"""A logger for Lightning and Fabric."""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from runmanager.errors import LifecycleError, MissingExtraError
from runmanager.front.manager import RunManager
from runmanager.trainers.trainers import TrainedRun, columns

__all__ = ["PACKAGE", "Checkpoint", "RunManagerLogger", "SIGTERMException", "extract_batch_size"]

# Lightning has two packages; use the package that the program has imported
_is_other = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
PACKAGE = "pytorch_lightning" if _is_other else "lightning.pytorch"

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Checkpoint
    from lightning.pytorch.loggers import Logger
    from lightning.pytorch.utilities.data import extract_batch_size
    from lightning.pytorch.utilities.exceptions import SIGTERMException
else:
    try:
        Checkpoint = import_module(f"{PACKAGE}.callbacks").Checkpoint
        Logger = import_module(f"{PACKAGE}.loggers").Logger
        extract_batch_size = import_module(f"{PACKAGE}.utilities.data").extract_batch_size
        SIGTERMException = import_module(f"{PACKAGE}.utilities.exceptions").SIGTERMException
    except ImportError as error:
        raise MissingExtraError(
            ["runmanager.trainers.lightning needs lightning: pip install 'torch-runmanager[lightning]'"]
        ) from error


class RunManagerLogger(Logger):  # type: ignore[misc]  # mypy does not follow lightning
    """Logs the metrics of Lightning or Fabric as values of steps: in TensorBoard, and in `load_steps`.

    With Fabric, the last value of each epoch is also a column of the table. With Lightning's Trainer, columns
    come from `RunManagerCallback`.

    Args:
        manager: A manager with an open run.
    """

    def __init__(self, manager: RunManager) -> None:
        super().__init__()
        self.manager = manager
        self.is_followed = False  # whether a RunManagerCallback writes the columns

    @property
    def name(self) -> str:
        """An empty name, as files of Lightning are inside the folder of the run."""
        return ""

    version = name

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log the values of a step.

        Args:
            metrics: Name -> value.
            step: Ignored, as steps are the batches of the run.

        Raises:
            LifecycleError: No epoch is open.
        """
        if self.is_followed and not self.manager.is_open:
            return
        run = TrainedRun(self.manager)
        if not run.is_in_epoch:
            if self.is_followed:
                return  # Lightning logs values again that the callback has committed
            raise LifecycleError(
                "RunManagerLogger outside an epoch: call manager.begin_epoch() first; with Lightning's "
                "Trainer, write Trainer(**trainer_options(manager))"
            )
        values = {name: value for name, value in metrics.items() if name != "epoch"}
        named = columns(values, run.opened.folder.params)
        if not self.is_followed:
            run.opened.add_evaluation(named, 0.0)
        free = {name: value for name, value in named.items() if name not in ("loss", "accuracy", "step")}
        self.manager.log(free)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing, as the table has the run's hyperparameters."""

"""Run grids of PyTorch experiments, each run on its device, with TensorBoard and one results table.

The public names are loaded on first use: ``import runmanager`` loads neither torch nor tensorboard nor pandas.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from runmanager.board.notebook import open_tensorboard as open_tensorboard
    from runmanager.board.reading import from_tensorboard as from_tensorboard
    from runmanager.devices import available_devices as available_devices
    from runmanager.devices import num_gpus as num_gpus
    from runmanager.devices import try_all_gpus as try_all_gpus
    from runmanager.devices import try_gpu as try_gpu
    from runmanager.errors import BoardError as BoardError
    from runmanager.errors import CheckpointError as CheckpointError
    from runmanager.errors import DataError as DataError
    from runmanager.errors import DeviceError as DeviceError
    from runmanager.errors import GridError as GridError
    from runmanager.errors import HeldError as HeldError
    from runmanager.errors import HyperparameterError as HyperparameterError
    from runmanager.errors import LifecycleError as LifecycleError
    from runmanager.errors import MetricError as MetricError
    from runmanager.errors import PruneError as PruneError
    from runmanager.errors import RankError as RankError
    from runmanager.errors import RunManagerError as RunManagerError
    from runmanager.errors import RunsWarning as RunsWarning
    from runmanager.errors import SettingError as SettingError
    from runmanager.errors import StorageError as StorageError
    from runmanager.experiment import GridOutcome as GridOutcome
    from runmanager.experiment import run_grid as run_grid
    from runmanager.exports import export as export
    from runmanager.exports import load_table as load_table
    from runmanager.grid import Run as Run
    from runmanager.grid import RunBuilder as RunBuilder
    from runmanager.halving import SuccessiveHalving as SuccessiveHalving
    from runmanager.inventory import describe_devices as describe_devices
    from runmanager.manager import RunManager as RunManager
    from runmanager.page import write_report as write_report
    from runmanager.report import best as best
    from runmanager.report import compare as compare
    from runmanager.report import effects as effects
    from runmanager.report import over_seeds as over_seeds
    from runmanager.speed import benchmark_devices as benchmark_devices
    from runmanager.storage.results import load_results as load_results
    from runmanager.storage.results import load_runs as load_runs
    from runmanager.trackers import export_mlflow as export_mlflow
    from runmanager.trackers import export_wandb as export_wandb
    from runmanager.training import fit as fit
    from runmanager.view import show as show

_HOMES = {
    "board.notebook": ("open_tensorboard",),
    "board.reading": ("from_tensorboard",),
    "devices": ("available_devices", "num_gpus", "try_all_gpus", "try_gpu"),
    "errors": (
        "BoardError", "CheckpointError", "DataError", "DeviceError", "GridError", "HeldError",
        "HyperparameterError", "LifecycleError", "MetricError", "PruneError", "RankError", "RunManagerError",
        "RunsWarning",
        "SettingError", "StorageError",
    ),
    "experiment": ("GridOutcome", "run_grid"),
    "exports": ("export", "load_table"),
    "grid": ("Run", "RunBuilder"),
    "halving": ("SuccessiveHalving",),
    "inventory": ("describe_devices",),
    "manager": ("RunManager",),
    "page": ("write_report",),
    "report": ("best", "compare", "effects", "over_seeds"),
    "speed": ("benchmark_devices",),
    "storage.results": ("load_results", "load_runs"),
    "trackers": ("export_mlflow", "export_wandb"),
    "training": ("fit",),
    "view": ("show",),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605 - a list of names, as it should be


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'runmanager' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"runmanager.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

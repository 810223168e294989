"""Run grids of PyTorch experiments, each run on its device, with TensorBoard and one results table.

The public names are loaded on first use: ``import runmanager`` loads neither torch nor tensorboard nor pandas.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from runmanager.board.import_events import from_tensorboard as from_tensorboard
    from runmanager.board.launch import open_tensorboard as open_tensorboard
    from runmanager.devices.benchmark import benchmark_devices as benchmark_devices
    from runmanager.devices.describe import describe_devices as describe_devices
    from runmanager.devices.torch_devices import available_devices as available_devices
    from runmanager.devices.torch_devices import num_gpus as num_gpus
    from runmanager.devices.torch_devices import try_all_gpus as try_all_gpus
    from runmanager.devices.torch_devices import try_gpu as try_gpu
    from runmanager.errors import BoardError as BoardError
    from runmanager.errors import CheckpointError as CheckpointError
    from runmanager.errors import DataError as DataError
    from runmanager.errors import DeviceError as DeviceError
    from runmanager.errors import ExperimentLockedError as ExperimentLockedError
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
    from runmanager.grid import Run as Run
    from runmanager.grid import RunBuilder as RunBuilder
    from runmanager.integrations.trackers import export_mlflow as export_mlflow
    from runmanager.integrations.trackers import export_wandb as export_wandb
    from runmanager.launch.run_grid import GridOutcome as GridOutcome
    from runmanager.launch.run_grid import run_grid as run_grid
    from runmanager.report import write_report as write_report
    from runmanager.results.files import export as export
    from runmanager.results.files import load_table as load_table
    from runmanager.results.loading import load_results as load_results
    from runmanager.results.loading import load_runs as load_runs
    from runmanager.results.ranking import best as best
    from runmanager.results.ranking import compare as compare
    from runmanager.results.ranking import effects as effects
    from runmanager.results.ranking import over_seeds as over_seeds
    from runmanager.results.show import show as show
    from runmanager.search.halving import SuccessiveHalving as SuccessiveHalving
    from runmanager.training.fit import fit as fit
    from runmanager.training.manager import RunManager as RunManager

_HOMES = {
    "board.launch": ("open_tensorboard",),
    "board.import_events": ("from_tensorboard",),
    "devices.torch_devices": ("available_devices", "num_gpus", "try_all_gpus", "try_gpu"),
    "errors": (
        "BoardError", "CheckpointError", "DataError", "DeviceError", "ExperimentLockedError", "GridError",
        "HeldError", "HyperparameterError", "LifecycleError", "MetricError", "PruneError", "RankError",
        "RunManagerError", "RunsWarning", "SettingError", "StorageError",
    ),
    "launch.run_grid": ("GridOutcome", "run_grid"),
    "results.files": ("export", "load_table"),
    "grid": ("Run", "RunBuilder"),
    "search.halving": ("SuccessiveHalving",),
    "devices.describe": ("describe_devices",),
    "training.manager": ("RunManager",),
    "report": ("write_report",),
    "results.ranking": ("best", "compare", "effects", "over_seeds"),
    "devices.benchmark": ("benchmark_devices",),
    "results.loading": ("load_results", "load_runs"),
    "integrations.trackers": ("export_mlflow", "export_wandb"),
    "training.fit": ("fit",),
    "results.show": ("show",),
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

"""Run grids of PyTorch experiments, each run on its device, with TensorBoard and one results table.

The public names are loaded on first use: ``import runmanager`` loads neither torch nor tensorboard nor pandas.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from runmanager.answers.compare import compare as compare
    from runmanager.answers.effects import effects as effects
    from runmanager.answers.importance import importances as importances
    from runmanager.answers.ranking import best as best
    from runmanager.answers.ranking import pareto as pareto
    from runmanager.answers.show import show as show
    from runmanager.answers.verdict import Verdict as Verdict
    from runmanager.answers.verdict import verdict as verdict
    from runmanager.core.contracts import Executor as Executor
    from runmanager.core.contracts import Listener as Listener
    from runmanager.core.grid import RunBuilder as RunBuilder
    from runmanager.core.loaders import ImageTensors as ImageTensors
    from runmanager.core.loaders import TensorLoader as TensorLoader
    from runmanager.core.outcome import EpochRecord as EpochRecord
    from runmanager.core.outcome import Outcome as Outcome
    from runmanager.core.outcome import Status as Status
    from runmanager.core.ranges import IntRange as IntRange
    from runmanager.core.ranges import LogUniform as LogUniform
    from runmanager.core.ranges import Uniform as Uniform
    from runmanager.core.run import Run as Run
    from runmanager.datasets import fashion_mnist as fashion_mnist
    from runmanager.devices.describe import describe_devices as describe_devices
    from runmanager.devices.torch_devices import available_devices as available_devices
    from runmanager.devices.torch_devices import num_gpus as num_gpus
    from runmanager.devices.torch_devices import try_all_gpus as try_all_gpus
    from runmanager.devices.torch_devices import try_gpu as try_gpu
    from runmanager.errors import CheckpointError as CheckpointError
    from runmanager.errors import DeviceError as DeviceError
    from runmanager.errors import ExperimentLockedError as ExperimentLockedError
    from runmanager.errors import GridError as GridError
    from runmanager.errors import InvalidArgumentError as InvalidArgumentError
    from runmanager.errors import LifecycleError as LifecycleError
    from runmanager.errors import MissingExtraError as MissingExtraError
    from runmanager.errors import RunManagerError as RunManagerError
    from runmanager.errors import RunsWarning as RunsWarning
    from runmanager.errors import StorageError as StorageError
    from runmanager.executors.inline import InlineExecutor as InlineExecutor
    from runmanager.executors.lanes import LanesExecutor as LanesExecutor
    from runmanager.executors.ray import RayExecutor as RayExecutor
    from runmanager.front.command import Command as Command
    from runmanager.front.expand import expand as expand
    from runmanager.front.fit import fit as fit
    from runmanager.front.grid_outcome import GridOutcome as GridOutcome
    from runmanager.front.manager import RunManager as RunManager
    from runmanager.front.run_grid import run_grid as run_grid
    from runmanager.front.script import main as main
    from runmanager.report import write_report as write_report
    from runmanager.search.decide import Decide as Decide
    from runmanager.search.halving import SuccessiveHalving as SuccessiveHalving
    from runmanager.search.optuna_search import OptunaSearch as OptunaSearch
    from runmanager.tables.formats import export as export
    from runmanager.tables.formats import load_table as load_table
    from runmanager.tables.loading import load_results as load_results
    from runmanager.tables.loading import load_runs as load_runs
    from runmanager.tables.one_run import LoadedRun as LoadedRun
    from runmanager.tables.one_run import load_run as load_run
    from runmanager.tables.steps import load_steps as load_steps
    from runmanager.tensorboard.event_options import TensorBoard as TensorBoard
    from runmanager.tensorboard.import_events import from_tensorboard as from_tensorboard
    from runmanager.tensorboard.server import open_tensorboard as open_tensorboard
    from runmanager.trainers.mlflow import export_mlflow as export_mlflow
    from runmanager.trainers.wandb import export_wandb as export_wandb

_HOMES = {
    "tensorboard.import_events": ("from_tensorboard",),
    "tensorboard.server": ("open_tensorboard",),
    "tensorboard.event_options": ("TensorBoard",),
    "datasets": ("fashion_mnist",),
    "devices.describe": ("describe_devices",),
    "devices.torch_devices": ("available_devices", "num_gpus", "try_all_gpus", "try_gpu"),
    "errors": (
        "CheckpointError", "DeviceError",
        "ExperimentLockedError", "GridError", "InvalidArgumentError",
        "LifecycleError", "MissingExtraError", "RunManagerError", "RunsWarning", "StorageError",
    ),
    "executors.inline": ("InlineExecutor",),
    "executors.lanes": ("LanesExecutor",),
    "executors.ray": ("RayExecutor",),
    "front.expand": ("expand",),
    "core.grid": ("Run", "RunBuilder"),
    "trainers.mlflow": ("export_mlflow",),
    "trainers.wandb": ("export_wandb",),
    "front.grid_outcome": ("GridOutcome",),
    "front.run_grid": ("run_grid",),
    "front.command": ("Command",),
    "front.script": ("main",),
    "core.contracts": ("Executor", "Listener"),
    "core.outcome": ("EpochRecord", "Outcome", "Status"),
    "core.ranges": ("IntRange", "LogUniform", "Uniform"),
    "report": ("write_report",),
    "answers.compare": ("compare",),
    "answers.effects": ("effects",),
    "tables.formats": ("export", "load_table"),
    "answers.importance": ("importances",),
    "tables.loading": ("load_results", "load_runs"),
    "tables.one_run": ("LoadedRun", "load_run"),
    "answers.ranking": ("best", "pareto"),
    "answers.show": ("show",),
    "tables.steps": ("load_steps",),
    "answers.verdict": ("Verdict", "verdict"),
    "search.decide": ("Decide",),
    "search.halving": ("SuccessiveHalving",),
    "search.optuna_search": ("OptunaSearch",),
    "front.fit": ("fit",),
    "core.loaders": ("ImageTensors", "TensorLoader"),
    "front.manager": ("RunManager",),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605 - a list of names, as it should be


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from runmanager.core.wording import did_you_mean

        raise AttributeError(
            f"module 'runmanager' has no attribute {name!r}; {did_you_mean(name, _HOME, 'it has')}"
        )
    value = getattr(importlib.import_module(f"runmanager.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

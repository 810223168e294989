"""Run grids of PyTorch experiments, each run on its device, with TensorBoard and one results table.

The public names are loaded on first use: ``import runmanager`` loads neither torch nor tensorboard nor pandas.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from runmanager.answers.effects import compare as compare
    from runmanager.answers.effects import effects as effects
    from runmanager.answers.importance import importances as importances
    from runmanager.answers.pareto import pareto as pareto
    from runmanager.answers.show import show as show
    from runmanager.answers.verdict import Verdict as Verdict
    from runmanager.answers.verdict import verdict as verdict
    from runmanager.board.import_events import from_tensorboard as from_tensorboard
    from runmanager.board.launch import open_tensorboard as open_tensorboard
    from runmanager.board.options import TensorBoard as TensorBoard
    from runmanager.configurations import expand as expand
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
    from runmanager.executors.base import Executor as Executor
    from runmanager.executors.inline import InlineExecutor as InlineExecutor
    from runmanager.executors.lanes import LanesExecutor as LanesExecutor
    from runmanager.executors.ray import RayExecutor as RayExecutor
    from runmanager.grid import RunBuilder as RunBuilder
    from runmanager.integrations.mlflow import export_mlflow as export_mlflow
    from runmanager.integrations.wandb import export_wandb as export_wandb
    from runmanager.launch.fit import fit as fit
    from runmanager.launch.manager import RunManager as RunManager
    from runmanager.launch.run_grid import run_grid as run_grid
    from runmanager.launch.script import main as main
    from runmanager.listener import Listener as Listener
    from runmanager.outcome import EpochRecord as EpochRecord
    from runmanager.outcome import Outcome as Outcome
    from runmanager.outcome import Status as Status
    from runmanager.ranges import IntRange as IntRange
    from runmanager.ranges import LogUniform as LogUniform
    from runmanager.ranges import Uniform as Uniform
    from runmanager.report import write_report as write_report
    from runmanager.run import Run as Run
    from runmanager.search.decide import Decide as Decide
    from runmanager.search.halving import SuccessiveHalving as SuccessiveHalving
    from runmanager.search.optuna_search import OptunaSearch as OptunaSearch
    from runmanager.session.grid_outcome import GridOutcome as GridOutcome
    from runmanager.tables.files import export as export
    from runmanager.tables.files import load_table as load_table
    from runmanager.tables.loading import load_results as load_results
    from runmanager.tables.loading import load_runs as load_runs
    from runmanager.tables.one_run import LoadedRun as LoadedRun
    from runmanager.tables.one_run import load_run as load_run
    from runmanager.tables.ranking import best as best
    from runmanager.tables.step_table import load_steps as load_steps
    from runmanager.training.loaders import ImageTensors as ImageTensors
    from runmanager.training.loaders import TensorLoader as TensorLoader

_HOMES = {
    "board.import_events": ("from_tensorboard",),
    "board.launch": ("open_tensorboard",),
    "board.options": ("TensorBoard",),
    "configurations": ("expand",),
    "datasets": ("fashion_mnist",),
    "devices.describe": ("describe_devices",),
    "devices.torch_devices": ("available_devices", "num_gpus", "try_all_gpus", "try_gpu"),
    "errors": (
        "CheckpointError", "DeviceError",
        "ExperimentLockedError", "GridError", "InvalidArgumentError",
        "LifecycleError", "MissingExtraError", "RunManagerError", "RunsWarning", "StorageError",
    ),
    "executors.base": ("Executor",),
    "executors.inline": ("InlineExecutor",),
    "executors.lanes": ("LanesExecutor",),
    "executors.ray": ("RayExecutor",),
    "grid": ("Run", "RunBuilder"),
    "integrations.mlflow": ("export_mlflow",),
    "integrations.wandb": ("export_wandb",),
    "session.grid_outcome": ("GridOutcome",),
    "launch.run_grid": ("run_grid",),
    "launch.script": ("main",),
    "listener": ("Listener",),
    "outcome": ("EpochRecord", "Outcome", "Status"),
    "ranges": ("IntRange", "LogUniform", "Uniform"),
    "report": ("write_report",),
    "answers.effects": ("compare", "effects"),
    "tables.files": ("export", "load_table"),
    "answers.importance": ("importances",),
    "tables.loading": ("load_results", "load_runs"),
    "tables.one_run": ("LoadedRun", "load_run"),
    "answers.pareto": ("pareto",),
    "tables.ranking": ("best",),
    "answers.show": ("show",),
    "tables.step_table": ("load_steps",),
    "answers.verdict": ("Verdict", "verdict"),
    "search.decide": ("Decide",),
    "search.halving": ("SuccessiveHalving",),
    "search.optuna_search": ("OptunaSearch",),
    "launch.fit": ("fit",),
    "training.loaders": ("ImageTensors", "TensorLoader"),
    "launch.manager": ("RunManager",),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605 - a list of names, as it should be


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from runmanager.close_names import closest

        close = closest(name, _HOME)
        hint = f"; did you mean {close!r}?" if close else ""
        raise AttributeError(f"module 'runmanager' has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(f"runmanager.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

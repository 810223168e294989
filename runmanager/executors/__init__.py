"""Executors of runs, each loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from runmanager.executors.base import Executor, Report, Task, Watch
from runmanager.outcome import BatchProgress

if TYPE_CHECKING:
    from runmanager.executors.inline import InlineExecutor
    from runmanager.executors.lanes import LanesExecutor
    from runmanager.executors.ray.executor import RayExecutor

EXECUTORS = {"lanes": "LanesExecutor", "inline": "InlineExecutor", "ray": "RayExecutor"}
"""Name in `run_grid` -> class."""

_MODULES = {"LanesExecutor": "lanes", "InlineExecutor": "inline", "RayExecutor": "ray.executor"}

__all__ = [
    "EXECUTORS",
    "BatchProgress",
    "Executor",
    "InlineExecutor",
    "LanesExecutor",
    "RayExecutor",
    "Report",
    "Task",
    "Watch",
    "executor_type",
]


def executor_type(name: str) -> type[Executor]:
    """Return the class of an executor by its name in `EXECUTORS`."""
    executor: type[Executor] = __getattr__(EXECUTORS[name])
    return executor


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

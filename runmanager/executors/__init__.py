"""Where runs are executed."""

from runmanager.executors.base import Executor, Report, Task, Watch
from runmanager.executors.inline import InlineExecutor
from runmanager.executors.lanes import LanesExecutor
from runmanager.executors.ray.executor import RayExecutor
from runmanager.outcome import BatchProgress

EXECUTORS: dict[str, type[Executor]] = {"lanes": LanesExecutor, "inline": InlineExecutor, "ray": RayExecutor}
"""Name -> executor, as `run_grid` takes it."""

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
]

"""Executors of runs, each loaded on first use."""

from runmanager.core.contracts import Executor, Report, Task, Watch
from runmanager.core.outcome import BatchProgress

EXECUTORS = ("lanes", "inline", "ray")
"""The names of executors in `run_grid`."""

__all__ = ["EXECUTORS", "BatchProgress", "Executor", "Report", "Task", "Watch", "executor_type"]


def executor_type(name: str) -> type[Executor]:
    """Return the class of an executor by its name in `EXECUTORS`."""
    if name == "inline":
        from runmanager.executors.inline import InlineExecutor

        return InlineExecutor
    if name == "ray":
        from runmanager.executors.ray import RayExecutor

        return RayExecutor
    from runmanager.executors.lanes import LanesExecutor

    return LanesExecutor

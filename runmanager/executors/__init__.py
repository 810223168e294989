"""Executors of runs, each loaded on first use."""

from runmanager.core.contracts import Executor, Report, Task, Watch
from runmanager.core.outcome import BatchProgress

EXECUTORS = ("lanes", "inline", "ray")
"""The names of executors in `run_grid`."""

__all__ = ["EXECUTORS", "BatchProgress", "Executor", "Report", "Task", "Watch"]

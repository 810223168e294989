"""Where runs are executed."""

from runmanager.executors.base import Executor, Report, Step, Watch, Work
from runmanager.executors.inline import InlineExecutor

EXECUTORS: dict[str, type[Executor]] = {"inline": InlineExecutor}
"""Name -> executor, as `run_grid` takes it."""

__all__ = ["EXECUTORS", "Executor", "InlineExecutor", "Report", "Step", "Watch", "Work"]

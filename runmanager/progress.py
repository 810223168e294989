"""What a grid shows while it runs: a live line in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from runmanager.display import cell, join, printable, wide_console
from runmanager.storage.folders import RunFolder
from runmanager.storage.journal import EpochRecord, Outcome, Status
from runmanager.values import text


class GridProgress:
    """Shows how far a grid is.

    Args:
        name: The experiment.
        total: The number of runs to execute.
        varying: The hyperparameters that tell the runs apart.
        show: False shows nothing at all.
    """

    def __init__(self, name: str, total: int, varying: list[str], *, show: bool = True) -> None:
        self._console = wide_console()
        self._console.quiet = not show
        self._total = total
        self._varying = varying
        self._begun = 0
        self._run = ""
        self._started = 0.0
        self._live = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}", markup=False),
            console=self._console,
            transient=True,
            disable=not (show and self._console.is_terminal),
        )
        self._task = self._live.add_task(name, total=total, now="")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """Print a line above the live one."""
        self._console.print(line, soft_wrap=True)

    def run_started(self, folder: RunFolder) -> None:
        """Show that a run has begun."""
        self._begun += 1
        self._run = f"run {folder.number} {label(folder.params, self._varying)}".rstrip()
        self._started = time.monotonic()
        self._live.update(self._task, now=self._run)

    def epoch_ended(self, record: EpochRecord) -> None:
        """Show the values of an epoch."""
        self._live.update(self._task, now=join([self._run, f"epoch {record.epoch}", _values(record)]))

    def run_ended(self, folder: RunFolder, outcome: Outcome, record: EpochRecord | None) -> None:
        """Print how a run ended."""
        seconds = f"{time.monotonic() - self._started:.1f} s"
        what = outcome.status if outcome.status is not Status.COMPLETED else ""
        facts = [what, _values(record), printable(outcome.error), seconds]
        mark = "✓" if outcome.status is Status.COMPLETED else "✗"
        self.say(f"{mark} {self._begun}/{self._total} {join([self._run, *facts])}")
        if outcome.status is Status.FAILED:
            self.say(f"    the traceback is in {folder.path / 'error.log'}; the other runs go on")
        self._live.advance(self._task)


def label(params: Mapping[str, Any], names: list[str]) -> str:
    """Name a run by the hyperparameters that vary.

    >>> label({"lr": 0.01, "device": "cpu"}, ["lr"])
    'lr=0.01'
    """
    return printable(" ".join(f"{name}={text(params[name])}" for name in names if name in params))


def _values(record: EpochRecord | None) -> str:
    if record is None:
        return ""
    shown = [name for name in record.metrics if name.endswith(("loss", "accuracy"))]
    return join(f"{name} {cell(record.metrics[name])}" for name in shown)

"""What a grid shows while it runs: a live line in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from runmanager.display import cell, join, printable, wide_console
from runmanager.executors import Step
from runmanager.grid import Run
from runmanager.plan import Plan
from runmanager.storage.folders import RunFolder
from runmanager.storage.journal import EpochRecord, Outcome, Status
from runmanager.values import text


class GridProgress:
    """Shows how far a grid is.

    Args:
        name: The experiment.
        places: id() of each run of the grid -> where it lives.
        todo: The runs to execute.
        varying: The hyperparameters that tell the runs apart.
        lanes: How many runs are executed at the same time, at most.
        past: Hyperparameters and duration (s) of the runs that were completed before.
        show: False shows nothing at all.
    """

    def __init__(
        self,
        name: str,
        places: Mapping[int, RunFolder],
        todo: Sequence[Run],
        varying: list[str],
        *,
        lanes: int = 1,
        past: Sequence[tuple[Mapping[str, Any], float]] = (),
        show: bool = True,
    ) -> None:
        self._console = wide_console()
        self._console.quiet = not show
        self._places = places
        self._total = len(todo)
        self._varying = varying
        self._ended = 0
        self._started: dict[int, float] = {}
        self._last: dict[int, EpochRecord] = {}
        self._is_stopping = False
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
        self._task = self._live.add_task(name, total=self._total, now="")

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

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Show that a run has begun in a lane."""
        self._started[id(run)] = time.monotonic()
        self._live.update(self._task, now=self._name(run))

    def run_progressed(self, run: Run, news: EpochRecord | Step) -> None:
        """Show how far a run is."""
        if isinstance(news, EpochRecord):
            self._last[id(run)] = news
            self._live.update(self._task, now=join([self._name(run), f"epoch {news.epoch}", _values(news)]))

    def run_ended(self, run: Run, outcome: Outcome, next_step: str) -> None:
        """Print how a run ended."""
        self._ended += 1
        seconds = f"{time.monotonic() - self._started.pop(id(run), time.monotonic()):.1f} s"
        what = outcome.status if outcome.status is not Status.COMPLETED else ""
        facts = [what, _values(self._last.pop(id(run), None)), printable(outcome.error), seconds]
        mark = "✓" if outcome.status is Status.COMPLETED else "✗"
        self.say(f"{mark} {self._ended}/{self._total} {join([self._name(run), *facts])}")
        if next_step:
            self.say(f"    {next_step}")
        self._live.advance(self._task)

    def stopping(self) -> None:
        """Say, once, that the grid is being stopped."""
        if not self._is_stopping:
            self._is_stopping = True
            self.say(
                f"Stopping: {len(self._started)} running runs stop now, the epoch in progress is dropped, "
                "everything committed is kept. Press again to force."
            )

    def show_plan(self, plan: Plan) -> None:
        """Print what would be executed where, and what is done already."""
        for run, place, before in zip(plan.runs, plan.places, plan.before, strict=True):
            what = "execute" if any(run is other for other in plan.todo) else str(before.status)
            self.say(f"run {place.number} {label(place.params, self._varying)} · {what}")

    def _name(self, run: Run) -> str:
        place = self._places[id(run)]
        return f"run {place.number} {label(place.params, self._varying)}".rstrip()


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

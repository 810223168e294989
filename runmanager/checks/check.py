"""The check of settings before a grid starts, by default with two steps and one evaluation batch each."""

import contextlib
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from runmanager.core import files
from runmanager.core.contracts import Report, Signals
from runmanager.core.lock import check_free
from runmanager.core.loop import Loop, unavailable_runs
from runmanager.core.outcome import News, Outcome, Status
from runmanager.core.run import Run, device_of, id_of
from runmanager.core.task import RunTask
from runmanager.core.values import key_of
from runmanager.core.wording import counted
from runmanager.devices import ranks
from runmanager.tables.cells import duration

LONGEST_S = 300.0
"""The time limit (s) after which no further check of a setting begins."""


@dataclass(frozen=True)
class CheckTask:
    """Checks one run in the calling process, in a temporary folder.

    The error of a completed outcome is a sentence to print.
    """

    task: RunTask  # the grid's task
    folder: str = ""  # parent of the temporary folders on this machine; leftovers of dead processes are removed

    done: ClassVar[str] = "two steps and one evaluation batch each, no problem"
    num_executions: ClassVar[int] = 0  # of a setting, if only as many settings are checked as have all values

    def __call__(self, run: Run, report: Report) -> Outcome:
        """Execute two steps and one batch of each evaluation; return the outcome."""
        import torch

        from runmanager.checks.shortened import CheckedEpoch, OneEpoch, shortened
        from runmanager.devices.torch_devices import free_memory, undisturbed_random

        device = torch.device(ranks.device_of_rank(device_of(run)))
        try:
            with self.temporary_folder() as folder, undisturbed_random(device):
                path = Path(folder) / self.task.experiment.path.name
                return shortened(self.task, path, OneEpoch(), CheckedEpoch)(run, report)
        finally:
            free_memory(device)

    def temporary_folder(self) -> tempfile.TemporaryDirectory[str]:
        """Return a folder for a block; other processes recognize it by its name if it is left behind."""
        parent = self.folder if self.folder and Path(self.folder).is_dir() else None
        return tempfile.TemporaryDirectory(prefix="runmanager-check-", dir=parent, ignore_cleanup_errors=True)


@dataclass(frozen=True)
class Stopping:
    """A watch that only stops; the errors of runs are in their outcomes."""

    signals: Signals

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Check the signals."""
        self.signals.check()

    def run_progressed(self, run: Run, news: News) -> None:
        """Check the signals; no run is stopped early."""
        self.signals.check()

    def stopping(self) -> None:
        """Show nothing."""

    def run_printed(self, run: Run, line: str) -> None:
        """Show nothing."""

    def last_output(self, run: Run) -> str:
        """Return nothing."""
        return ""

    def say(self, line: str) -> None:
        """Show nothing."""


def try_settings(loop: Loop, task: CheckTask) -> tuple[list[tuple[Run, Outcome]], Sequence[str], list[str]]:
    """Check each due setting of a grid with its executor; return outcomes, repeat axes and sentences."""
    began = time.monotonic()
    path, display, executor = loop.task.experiment.path, loop.display, loop.executor
    check_free(path)
    plan = ranks.from_main(lambda: loop.plan(is_written=False))
    likely = loop.search.to_try() if loop.search else []
    absent = unavailable_runs(likely, executor)
    runs = [planned.run for planned in plan.due]
    runs += [run for run in likely if id_of(run) not in absent]
    repeats = loop.design.repeating(plan.varying)
    every, num_covering = settings_of(runs, repeats)
    settings = every[:num_covering] if task.num_executions else every
    if not settings:
        return [], repeats, []
    words = f"{path.name}: checking {counted(len(settings), 'setting')}"
    if task.num_executions:
        words += (
            f" of {len(every):,}, which have all values, by {task.num_executions * len(settings):,} executions"
        )
        display.say(words)
    display.show_start(words)
    waiting = deque(settings)
    watch = Stopping(loop.signals)
    executor.num_lanes(settings)
    ended: list[tuple[Run, Outcome]] = []
    with (
        _experiment_folder(path),
        task.temporary_folder() as folder,
        loop.signals.at_once(),
        contextlib.closing(executor.execute(waiting, replace(task, folder=folder), watch)) as outcomes,
    ):
        for run, outcome in outcomes:
            ended.append((run, outcome))
            display.show_progress(f"{words}: {len(ended)} done")
            if ranks.from_main(lambda: time.monotonic() - began > LONGEST_S):
                waiting.clear()
    display.clear()
    checked = f"checked {counted(len(ended), 'setting')} in {duration(time.monotonic() - began)}"
    lines = [
        f"! {f'{run}: ' if len(settings) > 1 else ''}{outcome.error}"
        for run, outcome in ended
        if outcome.status is Status.COMPLETED and outcome.error
    ]
    last = f"{checked}: {'no other difference' if lines else task.done}"
    if len(ended) < len(settings):
        last = f"! {checked}; the time limit leaves the others of {len(settings):,} unchecked"
    return ended, repeats, [*lines, last]


def settings_of(runs: Sequence[Run], repeats: Sequence[str]) -> tuple[list[Run], int]:
    """Return one run of each setting, and the number of first ones, which have each value of each axis.

    >>> from runmanager.core.grid import RunBuilder
    >>> runs = RunBuilder.get_runs({"lr": [1, 2], "width": [8, 16], "seed": range(5)})
    >>> settings, number = settings_of(runs, ["seed"])
    >>> [run[:2] for run in settings], number
    ([(1, 8), (1, 16), (2, 8), (2, 16)], 3)
    """
    first: list[Run] = []
    others: list[Run] = []
    settings: set[frozenset[tuple[str, str]]] = set()
    values: set[tuple[str, str]] = set()
    for run in runs:
        params = run._asdict()
        setting = frozenset((name, key_of(params[name])) for name in params if name not in repeats)
        if setting not in settings:
            (first if setting - values else others).append(run)
        settings.add(setting)
        values |= setting
    return [*first, *others], len(first)


@contextlib.contextmanager
def _experiment_folder(path: Path) -> Iterator[None]:
    """Create a missing experiment folder, which executors expect; remove the folder after the block."""
    missing = [folder for folder in (path, path.parent) if not folder.exists()]
    files.make_folder(path)
    try:
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):  # the error if the folder is not empty
                folder.rmdir()

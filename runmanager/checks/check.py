"""The check of settings before a grid starts: by default, two steps and one batch of each evaluation."""

import contextlib
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from runmanager.core.contracts import Report, RunListener, Signals
from runmanager.core.epoch import OpenEpoch
from runmanager.core.evaluate import OpenEvaluation
from runmanager.core.experiment import Experiment
from runmanager.core.lock import check_free
from runmanager.core.loop import Loop, unavailable_runs
from runmanager.core.manager import LeaveTrain
from runmanager.core.metrics import How
from runmanager.core.outcome import EpochRecord, News, Outcome, Status
from runmanager.core.run import Run, device_of, id_of
from runmanager.core.task import RunTask, arguments_of
from runmanager.core.values import identity
from runmanager.core.wording import counted
from runmanager.devices import ranks
from runmanager.devices.torch_devices import free_memory, undisturbed_random
from runmanager.tables.cells import duration


@dataclass(frozen=True)
class CheckTask:
    """Checks one run in the calling process, in a temporary folder."""

    task: RunTask  # the grid's task
    folder: str = ""  # parent of the temporary folders on this machine; leftovers of dead processes are removed

    done: ClassVar[str] = "two steps and one evaluation batch each, no problem"

    def __call__(self, run: Run, report: Report) -> Outcome:
        """Execute two steps and one batch of each evaluation; return the outcome."""
        device = ranks.device_of_rank(device_of(run))
        try:
            with self.temporary_folder() as folder, undisturbed_random(device):
                return shortened(self.task, Path(folder), ShortRun())(run, report)
        finally:
            free_memory(device)

    def temporary_folder(self) -> tempfile.TemporaryDirectory[str]:
        """Return a folder for a block."""
        parent = self.folder if self.folder and Path(self.folder).is_dir() else None
        return tempfile.TemporaryDirectory(prefix="runmanager-check-", dir=parent, ignore_cleanup_errors=True)


def try_settings(
    loop: Loop, task: CheckTask, most: int | None
) -> tuple[list[tuple[Run, Outcome]], Sequence[str], list[str]]:
    """Check the due settings of a grid, or the first ones; return outcomes, repeat axes and sentences."""
    began = time.monotonic()
    path, display, executor = loop.task.experiment.path, loop.display, loop.executor
    check_free(path)
    plan = ranks.from_main(lambda: loop.plan(is_written=False))
    likely = loop.search.to_try() if loop.search else []
    absent = unavailable_runs(likely, executor)
    runs = [planned.run for planned in plan.due]
    runs += [run for run in likely if id_of(run) not in absent]
    repeats = loop.design.repeating(plan.varying)
    settings = settings_of(runs, repeats)[:most]
    if not settings:
        return [], repeats, []
    words = f"{path.name}: checking {counted(len(settings), 'setting')}"
    display.show_progress(words)
    executor.num_lanes(settings)
    ended: list[tuple[Run, Outcome]] = []
    with task.temporary_folder() as folder, loop.signals.at_once():
        execution = executor.execute(deque(settings), replace(task, folder=folder), Stopping(loop.signals))
        with contextlib.closing(execution) as outcomes:
            for pair in outcomes:
                ended.append(pair)
                display.show_progress(f"{words}: {len(ended)} done")
    display.clear()
    lines = [
        f"! {run}: {outcome.error}" for run, outcome in ended if outcome.error and not outcome.status.is_lost
    ]
    checked = f"checked {counted(len(settings), 'setting')} in {duration(time.monotonic() - began)}"
    return ended, repeats, [*lines, f"{checked}: {'no other difference' if lines else task.done}"]


def settings_of(runs: Sequence[Run], repeats: Sequence[str]) -> list[Run]:
    """Return one run of each setting."""
    settings: dict[str, Run] = {}
    for run in runs:
        setting = {name: value for name, value in run._asdict().items() if name not in repeats}
        settings.setdefault(identity(setting), run)
    return [*settings.values()]


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


class ShortEpoch(OpenEpoch):
    """An epoch of two steps; a loop over other batches is left when it tracks the third one."""

    num_epochs, num_steps = 1, 2
    most_steps: int | None = 2

    def __init__(self, number: int, *args: Any) -> None:
        if number > self.num_epochs:  # a loop that does not use `epochs` begins another epoch
            raise LeaveTrain
        super().__init__(number, *args)
        self._tracked: Counter[str] = Counter()

    def batches(self) -> Iterator[Any]:
        """Yield the first batches of the loader."""
        for batch in super().batches():
            yield batch
            if self.step >= self.num_steps:
                return

    def add_loss(self, loss: torch.Tensor | float, batch: Any) -> None:
        """Add the mean loss of a batch."""
        self._count("")
        super().add_loss(loss, batch)

    def track(self, values: Mapping[str, torch.Tensor | float], how: How = "mean") -> None:
        """Add values of the current batch."""
        self._count(*values)
        super().track(values, how)

    def _count(self, *names: str) -> None:
        self._tracked.update(names)
        is_over = max(self._tracked.values(), default=0) > self.num_steps
        if is_over and self.most_steps and not self.counts_batches:
            raise LeaveTrain


class CheckedEvaluation(OpenEvaluation):
    """An evaluation of one batch."""

    def batches(self) -> Iterator[Any]:
        """Yield the first batch of the loader."""
        for batch in super().batches():
            yield batch
            return


class ShortRun(RunListener):
    """Ends a run after its first epochs; the code after its loop is executed."""

    rule = None  # no rule is recorded: the loop ends as after its last epoch
    epoch_type: type[ShortEpoch] = ShortEpoch
    manager: Any = None  # of the run, when `train` is called

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Return the reason why the run should stop, None before its last epoch."""
        return "enough was tried" if record.epoch >= self.epoch_type.num_epochs else None


def shortened(task: RunTask, folder: Path, listener: ShortRun) -> RunTask:
    """Return the task of a grid for shortened runs in another folder of experiments."""
    context = replace(
        task.context, rule="", asks=False, boards=None, listeners=[listener],
        epoch_type=listener.epoch_type, evaluation_type=CheckedEvaluation,
    )  # fmt: skip
    train = partial(leave_early, task.train, listener)
    experiment = Experiment(folder / task.experiment.path.name)
    return replace(task, experiment=experiment, train=train, context=context, users=(), raises=False)


def leave_early(train: Callable[..., object], listener: ShortRun, run: Run, manager: Any) -> None:
    """Call a training function, which may be left after its checked part."""
    listener.manager = manager
    try:
        train(run, manager, **arguments_of(train, run))
    except LeaveTrain:
        pass
    except StopIteration:  # the loop called next() after the end of the shortened batches
        manager._is_open, manager.outcome = False, Outcome(Status.INTERRUPTED)

"""The check of settings before a grid starts, by default with two steps and one evaluation batch each."""

import contextlib
import json
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runmanager.devices import ranks
from runmanager.errors import Problems
from runmanager.executors import Executor, Report
from runmanager.executors.base import Task
from runmanager.executors.signals import Stop
from runmanager.hyperparameters import column, counted
from runmanager.outcome import News, Outcome, Status
from runmanager.run import Run, device_of
from runmanager.session.display import Display
from runmanager.session.task import RunTask
from runmanager.storage import durable
from runmanager.storage.folders import Experiment
from runmanager.storage.identity import canonical
from runmanager.storage.lock import check_free
from runmanager.wording import duration

LONGEST_S = 300.0
"""The time limit (s) after which no further check of a setting begins."""


@dataclass(frozen=True)
class CheckTask:
    """Checks one run in the calling process, in a temporary folder."""

    task: RunTask  # the grid's task
    folder: str  # parent of the temporary folders on this machine; leftovers of dead processes are removed

    def __call__(self, run: Run, report: Report) -> Outcome:
        """Execute two steps and one batch of each evaluation; return the outcome."""
        import torch

        from runmanager.session.trial import CheckedEpoch, CheckedEvaluation, Cut, OneEpoch, leaving_nothing

        name = self.task.experiment.path.name
        with (
            temporary_folder(self.folder if Path(self.folder).is_dir() else None) as folder,
            leaving_nothing(torch.device(ranks.device_of_rank(device_of(run)))),
        ):
            experiment = Experiment(Path(folder) / name)
            task = replace(
                self.task, experiment=experiment, train=Cut(self.task.train), tensorboard=False,
                rule="", asks=False, listeners=[OneEpoch()], raises=False,
                epoch_type=CheckedEpoch, evaluation_type=CheckedEvaluation,
            )  # fmt: skip
            return task(run, report)


def temporary_folder(parent: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """Return a folder for a block; other processes recognize it by its name if it is left behind."""
    return tempfile.TemporaryDirectory(prefix="runmanager-check-", dir=parent, ignore_cleanup_errors=True)


class _Watch:
    """Shows the number of checked settings, and drops the output of their runs."""

    def __init__(self, display: Display, words: str) -> None:
        self._display, self._words = display, words
        display.show_start(words)

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Do nothing."""

    def run_progressed(self, run: Run, news: News) -> None:
        """Do nothing."""

    def stopping(self) -> None:
        """Do nothing."""

    def say(self, line: str) -> None:
        """Do nothing, as errors are in the outcomes."""

    def ended(self, number: int) -> None:
        """Show the number of checked settings."""
        self._display.show_progress(f"{self._words}: {number} done")


@dataclass(frozen=True)
class Check:
    """What is done with each setting.

    Attributes:
        task: Parent of temporary folders -> the task that checks one run. The error of a completed outcome is a
            sentence to print.
        done: What was done, and found.
        num_executions: The maximum number of executions of a setting, to print first; such a check takes only
            as many settings as have all values. 0 checks all settings.
    """

    task: Callable[[str], Task]
    done: str = "two steps and one evaluation batch each, no problem"
    num_executions: int = 0


def try_settings(
    runs: Sequence[Run],
    check: Check,
    path: Path,
    executor: Executor,
    stop: Stop,
    display: Display,
    repeats: Sequence[str],
) -> list[str]:
    """Check the settings of runs of an experiment; return sentences to print.

    Raises:
        GridError: Some settings fail; the message lists all causes.
        ExperimentLockedError: Another process is running this experiment.
        KeyboardInterrupt: Ctrl-C.
    """
    began = time.monotonic()
    check_free(path)
    every = settings_of(runs, repeats)
    settings = covering(every, repeats) if check.num_executions else every
    names = dict.fromkeys(name for run in settings for name in run._fields if name not in repeats)
    if not settings:
        return []
    words = f"{path.name}: checking {counted(len(settings), 'setting')}"
    if check.num_executions:
        words += f" of {len(every):,}, which have all values" if len(settings) < len(every) else ""
        words += f", by {check.num_executions * len(settings):,} executions in a temporary folder"
        display.say(words)
    watch = _Watch(display, words)
    waiting = deque(settings)
    executor.num_lanes(settings)
    ended: list[tuple[Run, Outcome]] = []
    with _experiment_folder(path), temporary_folder() as folder, stop.at_once():
        outcomes = executor.execute(waiting, check.task(folder), watch)
        with contextlib.closing(outcomes):
            for run, outcome in outcomes:
                ended.append((run, outcome))
                watch.ended(len(ended))
                if ranks.from_main(lambda: time.monotonic() - began > LONGEST_S):
                    waiting.clear()
    display.clear()
    Problems(_problems(ended, names)).raise_if_any()
    number, seconds = counted(len(ended), "setting"), duration(time.monotonic() - began)
    varying = [
        name for name in names if any(_value(run, name) != _value(settings[0], name) for run in settings)
    ]
    notes = [
        f"! {''.join(f'{name}={_value(run, name):.40}: ' for name in varying)}{outcome.error}"
        for run, outcome in ended
        if outcome.status is Status.COMPLETED and outcome.error
    ]
    if len(ended) < len(settings):
        return [
            *notes,
            f"! checked {number} in {seconds}; the time limit leaves the others of {len(settings):,} unchecked",
        ]
    return [*notes, f"checked {number} in {seconds}: {'no other difference' if notes else check.done}"]


def settings_of(runs: Sequence[Run], repeats: Sequence[str]) -> list[Run]:
    """Return one run of each setting, ordered so that the first runs cover each value of each axis.

    >>> from runmanager.grid import RunBuilder
    >>> runs = RunBuilder.get_runs({"lr": [1, 2], "width": [8, 16], "seed": range(5)})
    >>> [run[:2] for run in settings_of(runs, ["seed"])]
    [(1, 8), (1, 16), (2, 8), (2, 16)]
    """
    by_values: dict[str, Run] = {}
    for run in runs:
        by_values.setdefault(json.dumps(sorted(_values(run, repeats))), run)
    settings = list(by_values.values())
    first = covering(settings, repeats)
    return [*first, *(run for run in settings if not any(run is other for other in first))]


def covering(settings: Sequence[Run], repeats: Sequence[str]) -> list[Run]:
    """Return the settings with a value that no setting before them has."""
    first: list[Run] = []
    values: set[tuple[str, str]] = set()
    for run in settings:
        contents = _values(run, repeats)
        first += [run] if contents - values else []
        values |= contents
    return first


def _values(run: Run, repeats: Sequence[str]) -> set[tuple[str, str]]:
    params = {name: value for name, value in run._asdict().items() if name not in repeats}
    return {(name, json.dumps(canonical(value))) for name, value in params.items()}


def _value(run: Run, name: str) -> str:
    return repr(getattr(run, name, None))


@contextlib.contextmanager
def _experiment_folder(path: Path) -> Iterator[None]:
    """Create a missing experiment folder, which executors expect; remove the folder after the block."""
    missing = [folder for folder in (path, path.parent) if not folder.exists()]
    durable.make_folder(path)
    try:
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):  # the error if the folder is not empty
                folder.rmdir()


def _problems(ended: Sequence[tuple[Run, Outcome]], names: Collection[str]) -> list[str]:
    """Return sentences about failed settings, in the form of the sentences about failed runs of a grid."""
    import pandas as pd

    from runmanager.answers.failures import failures
    from runmanager.tables.columns import HYPERPARAMETERS

    outcomes = [outcome for _, outcome in ended]
    params = [{column(name): run._asdict().get(name) for name in names} for run, _ in ended]
    table = pd.DataFrame(params, dtype=object)
    table.attrs[HYPERPARAMETERS] = list(map(column, names))
    # a loss that is not finite does not fail the check
    fine = (Status.DIVERGED, Status.UNAVAILABLE)
    statuses = [Status.COMPLETED if outcome.status in fine else outcome.status for outcome in outcomes]
    table["status"] = list(map(str, statuses))
    table["error"] = [outcome.error for outcome in outcomes]
    if len(outcomes) == 1:
        return [f"the only setting: {outcomes[0].error}"] if statuses[0].is_lost else []
    return [f"{failure.runs}: {failure.cause}" for failure in failures(table, "setting")]

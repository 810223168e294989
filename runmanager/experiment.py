"""run_grid: plan a grid, execute what is missing, summarise."""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from runmanager.display import join
from runmanager.errors import DeviceError, GridError, LifecycleError, StorageError
from runmanager.executors import EXECUTORS, OnEpoch
from runmanager.grid import Run, RunBuilder
from runmanager.progress import GridProgress
from runmanager.storage import paths, results
from runmanager.storage.folders import Experiment, RunFolder, varying
from runmanager.storage.journal import EpochRecord, Outcome, Status
from runmanager.values import identity

if TYPE_CHECKING:
    import pandas as pd

    from runmanager.manager import RunManager

Train = Callable[[Run, "RunManager"], object]

COMPLETED, STORAGE_FAILED, INTERRUPTED, TERMINATED = 0, 74, 130, 143
"""Exit codes; 1 is that some runs failed or diverged, 2 that nothing was started."""


@dataclass(frozen=True)
class GridOutcome:
    """What became of a grid.

    Attributes:
        outcomes: Each run of the grid with its outcome, in order.
        results: One row per epoch of these runs, as `load_results`.
        runs: One row per run, as `load_runs`.
        exit_code: 0 all done or unavailable, 1 some failed or diverged, 74 storage failed, 130 Ctrl-C,
            143 SIGTERM.
        folder: The experiment's folder.
    """

    outcomes: Sequence[tuple[Run, Outcome]]
    results: "pd.DataFrame"
    runs: "pd.DataFrame"
    exit_code: int
    folder: Path


def run_grid(
    params: Mapping[Any, Any] | Sequence[Run],
    train: Train,
    *,
    experiment: str,
    root: str | PathLike[str] = "runs",
    executor: str = "inline",
    on_error: str = "continue",
    missing_device: str = "skip",
    max_runs: int = 1000,
    tensorboard: bool = True,
    histogram_every: int = 1,
    display: bool | None = None,
) -> GridOutcome:
    """Execute every run of a grid that this experiment has not completed yet.

    Args:
        params: A mapping of axes as for `RunBuilder.get_runs`, or runs.
        train: Called as ``train(run, manager)``; it opens the run with ``with manager.run(...)``.
        experiment: The folder under `root`. Started again, only what is missing is executed.
        root: The folder that TensorBoard is started on.
        executor: Where runs are executed: "inline", in this process.
        on_error: "continue" with the other runs when one fails, or "stop".
        missing_device: "skip" the runs whose device is not there (they are listed as unavailable and
            executed when the grid is started where it is), or "error".
        max_runs: The most runs that are wanted.
        tensorboard: Whether event files are written.
        histogram_every: Epochs from one set of histograms to the next, 0 for none.
        display: False shows nothing.

    Raises:
        GridError: The grid or an argument cannot be used; every problem at once, nothing was written.
        DeviceError: A device is not there and `missing_device` is "error"; nothing was written.
    """
    runs = _checked(params, train, experiment, executor, on_error, missing_device, max_runs)
    missing = _missing_devices(runs, missing_device)
    folder = Experiment(Path(root) / experiment)
    grid = [run._asdict() for run in runs]
    planned = folder.plan(grid, missing)
    done = {run.id: result for run in planned if (result := _completed(run))}
    work = _Work(train, Path(root), experiment, tensorboard, histogram_every)
    by_run = {id(run): place for run, place in zip(runs, planned, strict=True)}
    todo = [run for run in runs if by_run[id(run)].id not in done and by_run[id(run)].id not in missing]
    progress = GridProgress(experiment, len(todo), varying(grid), show=display is not False)
    _announce(progress, folder.path, planned, done, missing, len(todo))
    ended, exit_code = _execute(EXECUTORS[executor](), todo, work, progress, by_run, on_error)
    outcomes = [(run, _outcome(by_run[id(run)], ended, done)) for run in runs]
    damaged: list[str] = []
    own = [(experiment, results.read_run(place, damaged)) for place in planned]
    table = results.epochs_table(own)
    if exit_code != STORAGE_FAILED:
        _export(folder.path)
    _conclude(progress, folder.path, outcomes)
    return GridOutcome(outcomes, table, results.runs_table(own), exit_code, folder.path)


@dataclass(frozen=True)
class _Work:
    """Executes one run in the process that calls it; can be pickled."""

    train: Train
    root: Path
    experiment: str
    tensorboard: bool
    histogram_every: int

    def __call__(self, run: Run, on_epoch: OnEpoch) -> Outcome:
        from runmanager.manager import RunManager

        manager = RunManager(
            self.experiment,
            self.root,
            tensorboard=self.tensorboard,
            histogram_every=self.histogram_every,
            display=False,
            on_epoch=lambda record: on_epoch(run, record),
            tables=False,
        )
        try:
            self.train(run, manager)
            if manager.is_open:
                manager.end_run()
            if manager.outcome is None:
                raise LifecycleError(  # noqa: TRY301 - a failure like those of train()
                    "train() began no run: write `with manager.run(run, network, loader):` in it"
                )
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - here a failing run becomes an outcome
            if manager.outcome is None or manager.outcome.status is Status.COMPLETED:
                return manager.end_failed(error, run)
        except BaseException:
            manager.end_interrupted()
            raise
        return manager.outcome


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a grid as Ctrl-C does."""


def _checked(
    params: Mapping[Any, Any] | Sequence[Run],
    train: Any,
    experiment: str,
    executor: str,
    on_error: str,
    missing_device: str,
    max_runs: int,
) -> list[Run]:
    problems: list[str] = []
    choices = (
        ("executor", executor, tuple(EXECUTORS)),
        ("on_error", on_error, ("continue", "stop")),
        ("missing_device", missing_device, ("skip", "error")),
    )
    for name, value, known in choices:
        if value not in known:
            problems.append(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    if not callable(train):
        problems.append(f"train must be a function of (run, manager), got {train!r}")
    runs: list[Run] = []
    try:
        paths.check_experiment(experiment)
    except GridError as error:
        problems += error.problems
    try:
        runs = _runs(params, max_runs)
    except GridError as error:
        problems += error.problems
    if problems:
        raise GridError(problems)
    return runs


def _runs(params: Mapping[Any, Any] | Sequence[Any], max_runs: int) -> list[Run]:
    if isinstance(params, Mapping):
        return RunBuilder.get_runs(params, max_runs=max_runs)
    runs = list(params)
    if not runs or not all(isinstance(run, Run) for run in runs):
        raise GridError(
            [f"a grid is a mapping of axes, or runs from RunBuilder.get_runs(), got {params!r:.60}"]
        )
    if len(runs) > max_runs:
        raise GridError([f"these are {len(runs):,} runs, the limit is {max_runs:,}: allow it with max_runs="])
    counts = Counter(identity(run._asdict()) for run in runs)
    twice = [run for run in runs if counts[identity(run._asdict())] > 1]
    if twice:
        raise GridError([f"{twice[0]!r} stands in this grid twice: give every run once"])
    return runs


def _missing_devices(runs: Iterable[Run], missing_device: str) -> dict[str, str]:
    from runmanager import devices

    there: dict[str, bool] = {}
    missing: dict[str, str] = {}
    for run in runs:
        device = str(getattr(run, "device", "cpu"))
        if device not in there:
            there[device] = devices.is_available(device)
        if not there[device]:
            missing[identity(run._asdict())] = devices.missing(device)
    if missing and missing_device == "error":
        reasons = "; ".join(dict.fromkeys(missing.values()))
        raise DeviceError(f"{reasons}: {len(missing)} runs ask for it; nothing was started")
    return missing


def _completed(folder: RunFolder) -> Outcome | None:
    result = results.read_run(folder, [])
    if result.status is not Status.COMPLETED:
        return None
    return Outcome(Status.COMPLETED, "", len(result.epochs))


def _execute(
    executor: Any,
    todo: Sequence[Run],
    work: _Work,
    progress: GridProgress,
    by_run: Mapping[int, RunFolder],
    on_error: str,
) -> tuple[dict[str, Outcome], int]:
    ended: dict[str, Outcome] = {}
    last: dict[str, EpochRecord] = {}

    def on_start(run: Run) -> None:
        progress.run_started(by_run[id(run)])

    def on_epoch(run: Run, record: EpochRecord) -> None:
        last[by_run[id(run)].id] = record
        progress.epoch_ended(record)

    try:
        with progress, _sigterm_as_interrupt():
            for run, outcome in executor.execute(todo, work, on_start, on_epoch):
                place = by_run[id(run)]
                ended[place.id] = outcome
                progress.run_ended(place, outcome, last.get(place.id))
                _export(place.path.parent)
                if on_error == "stop" and outcome.status is not Status.COMPLETED:
                    progress.say("stopped at the first failure (on_error='stop')")
                    break
    except KeyboardInterrupt as interrupt:
        progress.say("Stopped: the epoch in progress is dropped, everything committed is kept.")
        progress.say("Start the same command again to go on.")
        return ended, TERMINATED if isinstance(interrupt, _Terminated) else INTERRUPTED
    except StorageError as error:
        progress.say(f"✗ {error}")
        return ended, STORAGE_FAILED
    return ended, int(any(outcome.status is not Status.COMPLETED for outcome in ended.values()))


def _outcome(folder: RunFolder, ended: Mapping[str, Outcome], done: Mapping[str, Outcome]) -> Outcome:
    known = ended.get(folder.id) or done.get(folder.id)
    if known:
        return known
    result = results.read_run(folder, [])
    return Outcome(result.status, result.error, len(result.epochs))


def _export(folder: Path) -> None:
    runs = [(folder.name, run) for run in results.read_experiment(folder, [])]
    results.export(results.epochs_table(runs), folder)


def _announce(
    progress: GridProgress,
    folder: Path,
    planned: Sequence[RunFolder],
    done: Mapping[str, Outcome],
    missing: Mapping[str, str],
    todo: int,
) -> None:
    counts = [f"{len(planned)} runs", f"{todo} to execute"]
    counts += [f"{len(done)} done before"] if done else []
    counts += [f"{len(missing)} unavailable"] if missing else []
    progress.say(f"{folder}: {', '.join(counts)}")
    for reason, count in Counter(missing.values()).items():
        progress.say(f"! {reason}: {count} runs are marked unavailable; start this again where it is")


def _conclude(progress: GridProgress, folder: Path, outcomes: Sequence[tuple[Run, Outcome]]) -> None:
    counts = Counter(outcome.status for _, outcome in outcomes)
    counted = join(f"{status} {counts[status]}" for status in Status if counts[status])
    progress.say(f"{counted} — {folder / paths.RESULTS_CSV}")


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

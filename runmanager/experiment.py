"""run_grid: plan a grid, execute what is missing, summarise."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.display import join
from runmanager.errors import DeviceError, GridError, LifecycleError, StorageError
from runmanager.executors import EXECUTORS, Executor, OnEpoch
from runmanager.grid import Run, RunBuilder, params_of
from runmanager.progress import GridProgress
from runmanager.stopping import INTERRUPTED, Stop
from runmanager.storage import durable, paths
from runmanager.storage.fingerprint import Fingerprint, changes, fingerprint
from runmanager.storage.folders import Experiment, RunFolder, varying
from runmanager.storage.history import RunResult, read_experiment, read_run
from runmanager.storage.holder import hold
from runmanager.storage.journal import EpochRecord, Outcome, Status
from runmanager.values import identity

if TYPE_CHECKING:
    import pandas as pd

    from runmanager.manager import RunManager

Train = Callable[[Run, "RunManager"], object]

COMPLETED, SOME_FAILED, STORAGE_FAILED = 0, 1, 74
"""Exit codes; 2 is that nothing was started."""

RETRY_FAILED = "retry_failed=True (--retry-failed) executes them again"
ANEW = (
    "they are executed anew, their old attempts are kept; "
    "resume_anyway=True (--resume-anyway) keeps and continues them"
)
KEPT = "they are kept and continued, and marked as mixed"


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
    retry_failed: bool = False,
    resume_anyway: bool = False,
    data: Any = None,
) -> GridOutcome:
    """Execute every run of a grid that this experiment has not completed yet.

    A run that was interrupted goes on after its last committed epoch if `train` uses
    ``manager.epochs(n, checkpoint={...})``. Runs that failed or diverged stay so unless `retry_failed`.
    Runs that were begun with other code, data or library versions are executed anew, their old attempts kept.

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
        retry_failed: Execute runs that failed or diverged again.
        resume_anyway: Keep and continue runs that were begun with other code, data or versions.
        data: What `train` trains on, to be told when it has changed: tensors, a dataset, or text for it.

    Raises:
        GridError: The grid or an argument cannot be used; every problem at once, nothing was written.
        DeviceError: A device is not there and `missing_device` is "error"; nothing was written.
        HeldError: Another process is running this experiment.
        StorageError: The experiment's folder could not be written before the first run.
    """
    from runmanager.storage import tables

    runs = _checked(params, train, experiment, executor, on_error, missing_device, max_runs)
    missing = _missing_devices(runs, missing_device)
    folder = Experiment(Path(root) / experiment)
    durable.make_folder(folder.path)
    with Stop() as stop, hold(folder.path):
        now = fingerprint(train, data)
        work = _Work(train, Path(root), experiment, tensorboard, histogram_every, now, resume_anyway)
        grid = [run._asdict() for run in runs]
        places = folder.plan(grid, missing)
        plan = _plan(runs, places, now, retry_failed=retry_failed, resume_anyway=resume_anyway)
        progress = GridProgress(experiment, len(plan.todo), varying(grid), show=display is not False)
        _announce(progress, folder.path, plan)
        by_run = {id(run): place for run, place in zip(runs, places, strict=True)}
        exit_code = _execute(EXECUTORS[executor](), plan.todo, work, progress, by_run, on_error, stop)
        if exit_code != STORAGE_FAILED:
            _export(folder.path)
        own = [read_run(place, []) for place in places]
        outcomes = [(run, _outcome(result)) for run, result in zip(runs, own, strict=True)]
        _conclude(progress, folder.path, outcomes)
        fine = (Status.COMPLETED, Status.UNAVAILABLE)
        if exit_code == COMPLETED and any(outcome.status not in fine for _, outcome in outcomes):
            exit_code = SOME_FAILED
        epochs, summary = tables.epochs_table(tables.by_column(own)), tables.runs_table(own)
    return GridOutcome(outcomes, epochs, summary, stop.exit_code or exit_code, folder.path)


@dataclass(frozen=True)
class _Plan:
    """What a grid does with its runs.

    Attributes:
        todo: The runs to execute.
        places: Where each run of the grid lives.
        done: How many are completed.
        failed: How many failed or diverged before and stay so.
        interrupted: How many were interrupted and go on after their last committed epoch, if they can.
        changed: What changed since runs were begun -> how many.
        policy: What is done about that.
    """

    todo: Sequence[Run]
    places: Sequence[RunFolder]
    done: int
    failed: int
    interrupted: int
    changed: Mapping[str, int]
    policy: str


def _plan(
    runs: Sequence[Run],
    places: Sequence[RunFolder],
    now: Fingerprint,
    *,
    retry_failed: bool,
    resume_anyway: bool,
) -> _Plan:
    todo: list[Run] = []
    interrupted = 0
    counts: Counter[Status] = Counter()
    changed: Counter[str] = Counter()
    for run, place in zip(runs, places, strict=True):
        if place.unavailable:
            continue
        before = read_run(place, [])
        differences = changes(before.start.get("fingerprint", {}), now)
        if differences:
            changed[", ".join(differences)] += 1
        is_failed = before.status in (Status.FAILED, Status.DIVERGED) and not retry_failed
        if (differences and not resume_anyway) or not (before.status is Status.COMPLETED or is_failed):
            todo.append(run)
            interrupted += bool(before.epochs) and not differences
        else:
            counts[before.status] += 1
    failed = counts[Status.FAILED] + counts[Status.DIVERGED]
    policy = KEPT if resume_anyway else ANEW
    return _Plan(todo, places, counts[Status.COMPLETED], failed, interrupted, changed, policy)


@dataclass(frozen=True)
class _Work:
    """Executes one run in the process that calls it; can be pickled."""

    train: Train
    root: Path
    experiment: str
    tensorboard: bool
    histogram_every: int
    fingerprint: Fingerprint
    resume_anyway: bool

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
            fingerprint=self.fingerprint,
            resume_anyway=self.resume_anyway,
        )
        try:
            self.train(run, manager)
            if manager.is_open:
                manager.end_run()
            if manager.outcome and identity(params_of(manager.run_params)) != identity(params_of(run)):
                raise LifecycleError(  # noqa: TRY301
                    f"train() was given {run!r} and ran {manager.run_params!r}: give manager.run() the run"
                )
            if manager.outcome is None:
                raise LifecycleError(  # noqa: TRY301 - a failure like those of train()
                    "train() began no run: write `with manager.run(run, network, loader):` in it"
                )
        except StorageError:
            manager.end_interrupted()
            raise
        except Exception as error:  # noqa: BLE001 - here a failing run becomes an outcome
            if manager.outcome is None or manager.outcome.status is not Status.FAILED:
                return manager.end_failed(error, run)
        except BaseException:
            manager.end_interrupted()
            raise
        return manager.outcome


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


def _execute(
    executor: Executor,
    todo: Sequence[Run],
    work: _Work,
    progress: GridProgress,
    by_run: Mapping[int, RunFolder],
    on_error: str,
    stop: Stop,
) -> int:
    last: dict[int, EpochRecord] = {}
    exports = _Exports(work.root / work.experiment)
    exit_code = COMPLETED

    def on_start(run: Run) -> None:
        progress.run_started(by_run[id(run)])

    def on_epoch(run: Run, record: EpochRecord) -> None:
        last[id(run)] = record
        progress.epoch_ended(record)

    try:
        with progress, stop.at_once():
            for run, outcome in executor.execute(todo, work, on_start, on_epoch):
                progress.run_ended(by_run[id(run)], outcome, last.get(id(run)))
                exports.after_run()
                if outcome.status is not Status.COMPLETED:
                    exit_code = SOME_FAILED
                    if on_error == "stop":
                        progress.say("stopped at the first failure (on_error='stop')")
                        break
    except KeyboardInterrupt:
        progress.say("Stopped: the epoch in progress is dropped, everything committed is kept.")
        progress.say("Start the same command again to go on.")
        return stop.exit_code or INTERRUPTED
    except StorageError as error:
        progress.say(f"✗ {error}")
        return STORAGE_FAILED
    return exit_code


def _outcome(result: RunResult) -> Outcome:
    return Outcome(result.status, result.error, len(result.epochs))


class _Exports:
    """Writes the tables of an experiment, in at most a twentieth of the time that passes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0.0

    def after_run(self) -> None:
        """Write them, unless that takes long and was just done; the end of the grid writes them anyway."""
        before = time.monotonic()
        if before >= self._next:
            _export(self._folder)
            now = time.monotonic()
            self._next = now + 20 * (now - before)


def _export(folder: Path) -> None:
    from runmanager.storage import tables

    tables.export(tables.epochs_table(tables.by_column(read_experiment(folder, []))), folder)


def _announce(progress: GridProgress, folder: Path, plan: _Plan) -> None:
    missing = Counter(place.unavailable for place in plan.places if place.unavailable)
    numbers = {
        "of them begun before": plan.interrupted,
        "done before": plan.done,
        "failed before": plan.failed,
        "unavailable": missing.total(),
    }
    counts = [f"{len(plan.places)} runs", f"{len(plan.todo)} to execute"]
    counts += [f"{number} {what}" for what, number in numbers.items() if number]
    progress.say(f"{folder}: {', '.join(counts)}")
    for reason, count in missing.items():
        progress.say(f"! {reason}: {count} runs are marked unavailable; start this again where it is")
    for what, count in plan.changed.items():
        progress.say(f"! {what} changed since {count} runs were executed; {plan.policy}")
    if plan.failed:
        progress.say(f"! {plan.failed} runs failed or diverged before and stay so; {RETRY_FAILED}")


def _conclude(progress: GridProgress, folder: Path, outcomes: Sequence[tuple[Run, Outcome]]) -> None:
    counts = Counter(outcome.status for _, outcome in outcomes)
    counted = join(f"{status} {counts[status]}" for status in Status if counts[status])
    progress.say(f"{counted} — {folder / paths.RESULTS_CSV}")

"""run_grid: plan a grid, execute what is missing, summarise."""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.board import hparams
from runmanager.board.launch import hint
from runmanager.console import join
from runmanager.errors import GridError, StorageError
from runmanager.executors import EXECUTORS, Executor, InlineExecutor
from runmanager.executors.base import uncommitted
from runmanager.executors.signals import INTERRUPTED, Stop
from runmanager.grid import Run
from runmanager.hyperparameters import counted
from runmanager.launch import plan as planning
from runmanager.launch.plan import Plan
from runmanager.launch.plan_table import plan_table, planned, summary
from runmanager.launch.rounds import Round, rounds
from runmanager.launch.task import GridWork, Train
from runmanager.live.progress import GridProgress
from runmanager.outcome import RETRY_FAILED, Outcome, Status
from runmanager.search.halving import SuccessiveHalving
from runmanager.storage import durable, paths
from runmanager.storage.fingerprint import fingerprint
from runmanager.storage.folders import Experiment, RunFolder, varying
from runmanager.storage.journal import end_abandoned
from runmanager.storage.lock import hold
from runmanager.storage.run_state import read_experiment, read_run

if TYPE_CHECKING:
    import pandas as pd

COMPLETED, SOME_FAILED, STORAGE_FAILED = 0, 1, 74
"""Exit codes; 2 is that nothing was started."""


@dataclass(frozen=True)
class GridOutcome:
    """What became of a grid.

    Attributes:
        outcomes: Each run of the grid with its outcome, in order.
        results: One row per epoch of these runs, as `load_results`.
        runs: One row per run, as `load_runs`.
        exit_code: 0 all done or unavailable, 1 some failed or were not executed, 74 storage failed, 129 SIGHUP,
            130 Ctrl-C, 143 SIGTERM.
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
    executor: str | Executor = "lanes",
    jobs: int | str = 1,
    runs_per_device: int = 1,
    timeout: float | None = None,
    retries: int = 0,
    on_error: str = "continue",
    missing_device: str = "skip",
    max_runs: int = 1000,
    tensorboard: bool = True,
    histogram_every: int = 1,
    group_seeds: bool = False,
    display: bool | None = None,
    retry_failed: bool = False,
    resume_anyway: bool = False,
    data: Any = None,
    plan_only: bool = False,
    prune: SuccessiveHalving | None = None,
) -> GridOutcome:
    """Execute every run of a grid that this experiment has not completed yet.

    A run that was interrupted goes on after its last committed epoch if `train` uses
    ``manager.epochs(n, checkpoint={...})``. Runs that ended by a fault stay so unless `retry_failed`.
    Runs that were begun with other code, data or library versions are executed anew, their old attempts kept.

    Args:
        params: A mapping of axes as for `RunBuilder.get_runs`, or runs.
        train: Called as ``train(run, manager)``; it opens the run with ``with manager.run(...)``.
        experiment: The folder under `root`. Started again, only what is missing is executed.
        root: The folder that TensorBoard is started on.
        executor: Where runs are executed: "lanes", worker processes of this machine that are bound to a device
            each and replaced when they die; "inline", in this process, for debugging; "ray", or a
            `RayExecutor`, on a Ray cluster.
        jobs: How many runs are executed at the same time, at most; "auto" for as many as there are devices for.
            With 1, no run shares the machine with another, and durations can be compared.
        runs_per_device: How many runs may share an accelerator.
        timeout: Seconds without a batch or an epoch after which a run counts as hung; None waits for ever.
        retries: How often a run is executed again whose process was killed, or hung.
        on_error: "continue" with the other runs when one fails, or "stop".
        missing_device: "skip" the runs whose device is not there (they are listed as unavailable and
            executed when the grid is started where it is), or "error".
        max_runs: The most runs that are wanted.
        tensorboard: Whether event files are written.
        histogram_every: Epochs from one set of histograms to the next, 0 for none; the last epoch has one.
        group_seeds: Average the runs that differ in the hyperparameter `seed` alone in TensorBoard's HParams.
        display: False shows nothing.
        retry_failed: Execute runs again that ended by a fault: failed, diverged, hung, or out of memory.
        resume_anyway: Keep and continue runs that were begun with other code, data or versions.
        data: What `train` trains on, to be told when it has changed: tensors, a dataset, text for it, or a
            function that returns one of them, called once the grid is accepted.
        plan_only: Show what would be executed where and what is done already, and stop; nothing is written.
        prune: Stops runs early that are behind, as `SuccessiveHalving`: their rows are of fewer epochs than
            those of the others. They keep their checkpoint; the same grid without `prune`, or with one that
            stops fewer, continues them.

    Raises:
        GridError: The grid or an argument cannot be used, or `train` cannot be sent to the workers; every
            problem at once, nothing was written.
        DeviceError: A device is not there and `missing_device` is "error"; nothing was written.
        ExperimentLockedError: Another process is running this experiment.
        PruneError: Runs cannot be stopped early: `train` gives ``manager.epochs`` no checkpoint, or the epoch
            of a rung has no such metric. What was committed is kept.
        StorageError: The experiment's folder could not be written before the first run.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP came while the data were loaded; nothing was written.
    """
    from runmanager.devices import ranks

    problems: list[str] = []
    place = _executor(executor, jobs, runs_per_device, timeout, problems)
    _check_choices(on_error, missing_device, retries, prune, problems)
    if ranks.num_ranks() > 1 and not isinstance(place, InlineExecutor):
        problems.append(
            "RANK and WORLD_SIZE are set, as by torchrun, where each rank executes the runs itself: write "
            "executor='inline', or unset them"
        )
    with contextlib.ExitStack() as closing:
        stop = closing.enter_context(Stop())
        runs = planning.check(params, train, experiment, max_runs, problems)
        groups = _seed_groups(runs) if group_seeds else None
        place.check(train)  # first: the workers' torch is imported while this process imports its own
        missing = planning.missing_devices(runs, place.missing, missing_device)
        with stop.at_once():  # data may be downloaded for minutes, and nothing is there yet
            now = fingerprint(train, data() if callable(data) else data)
        folder = Experiment(Path(root) / experiment)
        grid = [run._asdict() for run in runs]
        policy = {"retry_failed": retry_failed, "resume_anyway": resume_anyway}
        is_main = ranks.is_main()
        if plan_only:
            made = planning.make_plan(runs, folder.place(grid, missing), now, **policy)
            made = next(rounds(made, prune)).plan
            _show_plan(experiment, made, place.num_lanes(made.todo), show=is_main)
            return replace(_grid_outcome(made, COMPLETED, folder.path), exit_code=stop.exit_code)
        if is_main:
            durable.make_folder(folder.path)
            closing.enter_context(hold(folder.path))
        made = ranks.from_main(lambda: planning.make_plan(runs, folder.plan(grid, missing), now, **policy))
        if is_main and tensorboard:
            hparams.decide(folder.path, group_seeds=groups is not None)
        place.begin(folder.path)
        exit_code, is_shown = COMPLETED, is_main and display is not False
        for number, round_ in enumerate(rounds(made, prune)):
            made = round_.plan
            lanes = place.num_lanes(made.todo)
            work = GridWork(train, folder, tensorboard, histogram_every, now, resume_anyway, lanes, prune)
            progress = _progress(experiment, made, lanes, show=is_shown, check=stop.check)
            if not number:
                _announce(progress, folder.path, made, prune)
                _point(progress, folder.path, to_board=tensorboard and is_shown and bool(made.todo))
            ended = _execute(place, round_, work, progress, on_error, retries, stop)
            exit_code = ended or exit_code
            if ended not in (COMPLETED, SOME_FAILED) or (ended and on_error == "stop"):
                break
        if is_main and exit_code != STORAGE_FAILED:
            exit_code = _export_at_last(folder.path, progress) or exit_code
        outcome = ranks.from_main(lambda: _grid_outcome(made, exit_code, folder.path))
        _point(progress, folder.path, to_board=tensorboard and is_shown)
        _conclude(progress, outcome, prune)
    return replace(outcome, exit_code=stop.exit_code or outcome.exit_code)


def _executor(
    wanted: str | Executor,
    jobs: int | str,
    runs_per_device: int,
    timeout: float | None,
    problems: list[str],
) -> Executor:
    """Make the executor that is wanted; what is wrong goes to `problems`."""
    if isinstance(wanted, Executor):
        if (jobs, runs_per_device, timeout) != (1, 1, None):
            problems.append(
                "jobs, runs_per_device and timeout belong to an executor that is named: "
                f"give them to {type(wanted).__name__}()"
            )
        return wanted
    made: Executor = EXECUTORS["inline"]()
    if wanted not in tuple(EXECUTORS):
        problems.append(f"executor must be one of {', '.join(map(repr, EXECUTORS))}, got {wanted!r}")
        return made
    try:
        return EXECUTORS[wanted](jobs=jobs, runs_per_device=runs_per_device, timeout=timeout)
    except GridError as error:
        problems += error.problems
    return made


def _check_choices(
    on_error: str, missing_device: str, retries: Any, prune: object, problems: list[str]
) -> None:
    choices = (
        ("on_error", on_error, ("continue", "stop")),
        ("missing_device", missing_device, ("skip", "error")),
    )
    for name, value, known in choices:
        if value not in known:
            problems.append(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        problems.append(f"retries must be a whole number, 0 or more, got {retries!r}")
    if not (prune is None or isinstance(prune, SuccessiveHalving)):
        problems.append(f"prune must be SuccessiveHalving(metric=...), or None to stop no run, got {prune!r}")


def _seed_groups(runs: Sequence[Run]) -> list[str]:
    """Return which hyperparameters tell runs apart that differ in more than their seeds."""
    grid = [run._asdict() for run in runs]
    if not any(hparams.SEED in params for params in grid):
        raise GridError(["group_seeds=True averages over the hyperparameter 'seed': give the grid one"])
    return [name for name in varying(grid) if name != hparams.SEED]


def _progress(
    experiment: str, plan: Plan, lanes: int, *, show: bool, check: Callable[[], None] | None = None
) -> GridProgress:
    names = varying([place.params for place in plan.places])
    return GridProgress(
        experiment, plan.place_of, plan.todo, names, lanes=lanes, past=plan.costs, show=show, check=check
    )


def _show_plan(experiment: str, plan: Plan, lanes: int, *, show: bool) -> None:
    rows = planned(plan, plan.costs)
    names = [name for name in varying([place.params for place in plan.places]) if name != "device"]
    progress = _progress(experiment, plan, lanes, show=show)
    progress.show_plan(plan_table(rows, names), summary(rows, max(lanes, 1)))


def _execute(
    executor: Executor,
    round_: Round,
    work: GridWork,
    progress: GridProgress,
    on_error: str,
    retries: int,
    stop: Stop,
) -> int:
    from runmanager.devices import ranks

    plan = round_.plan
    places = plan.place_of
    left = dict.fromkeys(places, retries)
    runs = deque(plan.todo)
    committer, exports = _Committer(plan, work), _Exports(work.experiment.path)
    exit_code = COMPLETED
    outcomes = executor.execute(runs, work, progress)
    try:
        with progress, stop.at_once(), contextlib.closing(outcomes):
            for decision in round_.decisions:
                progress.say(decision)
            if ranks.is_main():
                with stop.later():
                    committer.commit_pruned(round_.behind)
            for run, ended in outcomes:
                with stop.later():
                    outcome = committer.commit(run, places[id(run)], ended)
                    is_retried = outcome.status.is_worth_a_retry and left[id(run)] > 0
                    if is_retried:
                        left[id(run)] -= 1
                        runs.append(run)
                    next_step = outcome.next_step(places[id(run)].path / paths.ERROR_LOG, is_retried=is_retried)
                    progress.run_ended(run, outcome, next_step)
                    if ranks.is_main():
                        exports.after_run()
                if not outcome.status.is_success and not is_retried:
                    exit_code = SOME_FAILED
                    if on_error == "stop":
                        progress.say("stopped at the first failure (on_error='stop')")
                        break
    except KeyboardInterrupt:
        progress.stopping()
        return stop.exit_code or INTERRUPTED
    except StorageError as error:
        progress.say(f"✗ {error}")
        return STORAGE_FAILED
    return exit_code


class _Committer:
    """Commits the outcomes of runs that could not do so themselves: their process is gone, or they had none."""

    def __init__(self, plan: Plan, work: GridWork) -> None:
        self._plan = plan
        self._work = work
        self._attempts = {id(run): found.attempts for run, found in zip(plan.runs, plan.before, strict=True)}

    def commit(self, run: Run, place: RunFolder, ended: Outcome) -> Outcome:
        """Return how a run ended, which its journal has by then.

        Raises:
            StorageError: It could not be committed.
        """
        if ended.is_committed:
            return ended
        from runmanager.board.run_log import end_abandoned as end_board

        found = read_run(place)
        is_begun = found.attempts > self._attempts[id(run)]
        if is_begun and not (found.status is Status.INTERRUPTED or found.status.is_in_progress):
            return found.outcome  # its last words were lost, not what it had committed
        outcome = replace(ended, epochs=len(found.epochs))
        self._work.experiment.open(place.params)
        if outcome.log:
            log = f"{outcome.error}\n\n{outcome.log}\n".encode("utf-8", "replace")
            durable.write_file(place.path / paths.ERROR_LOG, log)
        print_ = found.start.get("fingerprint", self._work.fingerprint)  # of the epochs that stand
        end_abandoned(place.path, outcome, {"fingerprint": print_})
        end_board(place.path, outcome)
        self._attempts[id(run)] = read_run(place).attempts
        return outcome

    def commit_pruned(self, numbers: Iterable[int]) -> None:
        """Commit that runs are pruned which were interrupted after the rung at which they are behind.

        Raises:
            StorageError: It could not be committed.
        """
        for number in numbers:
            self.commit(
                self._plan.runs[number], self._plan.places[number], uncommitted(Status.PRUNED, "behind")
            )


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
    from runmanager.results import tables
    from runmanager.results.files import write_results

    write_results(tables.epochs_table(tables.by_column(read_experiment(folder))), folder)


def _export_at_last(folder: Path, progress: GridProgress) -> int:
    try:
        _export(folder)
    except StorageError as error:
        progress.say(f"✗ {error}")
        return STORAGE_FAILED
    return COMPLETED


def _grid_outcome(plan: Plan, exit_code: int, folder: Path) -> GridOutcome:
    from runmanager.results import tables

    own = [read_run(place) for place in plan.places]
    outcomes = [(run, result.outcome) for run, result in zip(plan.runs, own, strict=True)]
    if exit_code == COMPLETED and any(outcome.status.exit_code for _, outcome in outcomes):
        exit_code = SOME_FAILED
    epochs, summary = tables.epochs_table(tables.by_column(own)), tables.runs_table(own)
    return GridOutcome(outcomes, epochs, summary, exit_code, folder)


def _announce(progress: GridProgress, folder: Path, plan: Plan, prune: SuccessiveHalving | None) -> None:
    missing = Counter(place.unavailable for place in plan.places if place.unavailable)
    numbers = {
        "of them begun before": plan.interrupted,
        "done before": plan.done,
        "failed before": plan.failed,
        "pruned before": plan.pruned,
        "unavailable": missing.total(),
    }
    counts = [counted(len(plan.places), "run"), f"{len(plan.todo):,} to execute"]
    counts += [f"{number:,} {what}" for what, number in numbers.items() if number]
    progress.say(f"{folder}: {', '.join(counts)}")
    if prune:
        progress.say(f"{prune}: runs that are behind are stopped, and can be continued")
    for reason, count in missing.items():
        progress.say(f"! {reason}: {counted(count, 'run')} unavailable; start this again where it is")
    for what, count in plan.changed.items():
        progress.say(f"! {what} changed since the execution of {counted(count, 'run')}; {plan.policy}")
    if plan.failed:
        progress.say(f"! {counted(plan.failed, 'run')} ended by a fault before; {RETRY_FAILED}")


def _point(progress: GridProgress, folder: Path, *, to_board: bool) -> None:
    for line in hint(folder) if to_board else []:
        progress.say(line)


def _conclude(progress: GridProgress, outcome: GridOutcome, prune: SuccessiveHalving | None) -> None:
    counts = Counter(ended.status for _, ended in outcome.outcomes)
    statuses = join(f"{status} {counts[status]}" for status in Status if counts[status])
    progress.say(f"{statuses} — {outcome.folder / paths.RESULTS_CSV}")
    epochs = [ended.epochs for _, ended in outcome.outcomes if ended.status is Status.COMPLETED]
    if prune and epochs and max(epochs) <= prune.min_epochs:
        progress.say(f"! no run was stopped early: none has more epochs than min_epochs={prune.min_epochs}")
    stopped = [ended for _, ended in outcome.outcomes if ended.status.is_due]
    if stopped:
        begun = [str(ended.epochs) for ended in stopped if ended.epochs]
        runs = (
            "1 run that goes on after epoch "
            if len(begun) == 1
            else f"{len(begun)} runs that go on after epochs "
        )
        going_on = f", {runs}{', '.join(begun)}" if begun else ""
        progress.say(f"kept: {counts[Status.COMPLETED]} completed{going_on}")
    if stopped or outcome.exit_code not in (COMPLETED, SOME_FAILED):
        progress.say("next: start the same command again")
    elif counts[Status.PRUNED]:
        progress.say("pruned runs keep their checkpoints: the same grid without prune= continues them")

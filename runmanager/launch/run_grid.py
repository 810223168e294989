"""run_grid: plan a grid, execute the runs that are missing, summarise."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.board import hparams
from runmanager.devices import ranks
from runmanager.errors import Problems
from runmanager.executors import Executor
from runmanager.executors.signals import Stop
from runmanager.grid import Run
from runmanager.launch import announce, arguments, searched
from runmanager.launch import only as only_runs
from runmanager.launch.check import try_settings
from runmanager.launch.execute import COMPLETED, STORAGE_FAILED, Execution
from runmanager.launch.grid_outcome import GridOutcome, conclude_grid, export_tables, read_outcome
from runmanager.launch.live_page import LivePage
from runmanager.launch.plan import Decisions, Plan, make_plan
from runmanager.launch.pruning import leave_pruned, rules_of
from runmanager.launch.task import RunTask, Train
from runmanager.nested import Grid
from runmanager.search.decide import Decide
from runmanager.search.halving import SuccessiveHalving
from runmanager.search.optuna_search import OptunaSearch
from runmanager.search.search import AllRuns, Search
from runmanager.search.searching import Searching
from runmanager.storage import durable
from runmanager.storage.beginning import check_beginning
from runmanager.storage.design import Design
from runmanager.storage.fingerprint import note_changes_by_runs
from runmanager.storage.folders import Experiment
from runmanager.storage.lock import hold

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

    from runmanager.training.batch_size import Measure


def run_grid(
    params: "Grid | Sequence[Run]",
    train: Train,
    *,
    experiment: str,
    root: str | PathLike[str] = "runs",
    executor: str | Executor | None = None,
    jobs: int | str = 1,
    runs_per_device: int = 1,
    timeout: float | None = None,
    retries: int = 0,
    max_seconds: float | None = None,
    on_error: str = "continue",
    missing_device: str = "skip",
    max_runs: int = 1000,
    tensorboard: bool = True,
    histogram_every: int = 1,
    batch_size: "Measure | None" = None,
    display: bool | None = None,
    retry_failed: bool = False,
    changed: str = "rerun",
    data: Any = None,
    plan_only: bool = False,
    check: bool = False,
    prune: "SuccessiveHalving | BasePruner | None" = None,
    decide: Decide | None = None,
    search: OptunaSearch | None = None,
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
    note: str | None = None,
    x_axis: str | None = None,
    only: int | Sequence[int] | None = None,
    report: bool | str | PathLike[str] = False,
) -> GridOutcome:
    """Execute every run of a grid that this experiment has not completed yet.

    An interrupted run continues after its last committed epoch if `train` uses
    ``manager.epochs(n, checkpoint={...})``. Runs that ended by a fault stay so unless `retry_failed`.
    Runs that were begun with other code, data or library versions are executed again, see `changed`; their old
    attempts are kept.

    Args:
        params: A mapping of axes as for `RunBuilder.get_runs`, or runs.
        train: Called as ``train(run, manager)``; it opens the run with ``with manager.run(...)``. Further
            parameters that are hyperparameters get the run's values, the others have defaults, as
            ``num_epochs=5``.
        experiment: The folder under `root`. A second start executes only the runs that are missing.
        root: The folder that TensorBoard is started on.
        executor: Where runs are executed: "lanes", the default, in worker processes of this machine, each bound
            to a device and replaced when it dies; "inline", in this process; "ray", or a `RayExecutor`, on a
            Ray cluster.
        jobs: How many runs are executed at the same time, at most; "auto": as many as there are devices for.
            With 1, no run shares the machine with another, and durations can be compared.
        runs_per_device: How many runs may share an accelerator.
        timeout: Seconds without a batch or an epoch after which a run counts as hung; None waits for ever.
        retries: How often a run is executed again whose process was killed, or hung.
        max_seconds: Stop as Ctrl-C does, with exit code 75, when the call has taken that long (s); the same
            call goes on. None never stops.
        on_error: "continue" with the other runs when one fails, or "stop".
        missing_device: "skip" the runs whose device is not there, or "error". Skipped runs are unavailable; a
            start on a machine that has the device executes them.
        max_runs: The most runs that a grid may have.
        tensorboard: Whether event files are written.
        histogram_every: Epochs from one set of histograms to the next, 0 for none; the last epoch has one.
        batch_size: Counts the samples of a batch, as in `RunManager`.
        display: False shows nothing.
        retry_failed: Execute runs again that failed, diverged, hung, ran out of memory, or raised
            optuna.TrialPruned.
        changed: What is done with runs that were begun with other code, data or versions: "rerun", the default,
            or "keep", which continues them, marked as mixed. Dicts, lists and tensors that `train` reads from
            your modules count by their content, up to 256 MiB each.
        data: What `train` trains on, so that a change of it is noticed however large it is: tensors, a dataset,
            text for it, or a function that returns one of them, called once the grid is accepted.
        plan_only: Show what would be executed where and what is done already, and stop; nothing is written.
        check: Try each setting before the first run begins, where runs are executed: two steps, and one batch
            of each evaluation. Nothing is written; all that fails is raised. For a `search`, it tries each
            listed value and some values of the ranges. Not with `plan_only` and `only`.
        prune: Stops runs early that are behind: a `SuccessiveHalving`, or a pruner of Optuna, which is asked
            after each epoch (``optuna.pruners.MedianPruner()``). Pruned runs keep their checkpoint; the same
            grid without `prune`, or with one that stops fewer runs, continues them.
        decide: Adds repeats until it is decided which setting is best, or which value of an axis is better, as
            `Decide`. `repeats` names the one axis that it repeats over.
        search: An `OptunaSearch` chooses the runs from the results so far. Axes may then be ranges, and `goal`
            is needed.
        goal: The metric that decides: "max:reward", "min:wer", or a name whose direction is known, as
            "test_accuracy". Tables, report, command line, pruning and TensorBoard follow it, at the epoch whose
            weights are kept, else at the last. By default it is that of ``manager.epochs(keep=...)``, else the
            validation, test or training accuracy or loss. It is written with the experiment: a start without
            it keeps it, another one replaces it. A search may have several, as ["max:test_accuracy",
            "min:test_loss"]: its sampler gets all of them; everything else follows the first.
        repeats: The axes that only repeat a setting, as ("fold", "seed"): settings are then ranked by their
            mean. By default axes that vary and are called seed, fold, split, trial or repeat, which is said;
            () says that none does. Written with the experiment, as `goal`.
        note: Why this grid is executed, in one line. Written with the experiment, as `goal`; "" removes it.
        x_axis: What curves are drawn over in TensorBoard and the report: "epoch", the default; "steps" or
            "samples" seen, which are then a column; or a metric that `train` tracks, as
            ``manager.track({"env_steps": n}, how="last")``. Written with the experiment, as `goal`.
        only: The number of a run, or of several, as the column `run` has it: they alone are executed, also
            those that failed, in this process and without a live display, for a debugger. What `train` raises
            is recorded and raised. `prune`, `jobs`, `timeout`, `retries` and the like do not count.
        report: Whether the page of `write_report` is written while the grid runs, as `report.html` in the
            experiment's folder, or the file to write. It is renewed in at most a twentieth of the time, and at
            the end; a browser that shows it follows. With `only`, it is not written.

    Returns:
        The outcome of each run, the tables of all, and the exit code for `sys.exit`.

    Raises:
        LifecycleError: `verify` imports this file.
        GridError: The grid or an argument cannot be used, `train` cannot be sent to the workers, or a setting
            fails in a `check`; with all problems, nothing was written.
        DeviceError: A device is not there and `missing_device` is "error"; nothing was written.
        ExperimentLockedError: Another process is running this experiment.
        InvalidArgumentError: A run of a search does not have the goal's metric. What was committed is kept.
        PruneError: Runs cannot be stopped early: `train` gives ``manager.epochs`` no checkpoint, or the epoch
            of a rung has no such metric. What was committed is kept.
        StorageError: The experiment's folder could not be written before the first run.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP came while the data were loaded, or settings were checked;
            nothing was written. With `only`, at any time.
        Exception: With `only`, what `train` raises.

    Example:
        >>> def train(run, manager):
        ...     with manager.run(run):
        ...         for epoch in manager.epochs(2):
        ...             manager.track_loss(run.lr / epoch, 1)
        >>> outcome = run_grid({"lr": [0.1, 0.01]}, train, experiment="a", executor="inline", display=False)
        >>> outcome.runs[["run", "status", "loss"]].values.tolist()
        [[1, 'completed', 0.05], [2, 'completed', 0.005]]
    """
    began = time.monotonic()
    check_beginning()  # before data are loaded
    problems = Problems()
    numbers = only_runs.numbers_of(only, problems)
    executor = arguments.make_executor(
        executor, jobs, runs_per_device, timeout, problems, is_here=only is not None
    )
    arguments.check_choices(
        on_error, missing_device, retries, max_seconds, batch_size, prune, decide, changed, report, problems
    )
    searched.check_search(search, prune, decide, max_runs, problems)
    keep_changed = changed == "keep"
    is_main = ranks.is_main()
    is_shown = is_main and display is not False
    with contextlib.ExitStack() as closing:
        stop = Stop() if numbers else closing.enter_context(Stop())  # a debugger wants Ctrl-C for itself
        runs = arguments.check_runs(
            params, train, experiment, root, max_runs, problems, decide, repeats,
            expand=searched.samples if search else None,
        )  # fmt: skip
        path = (Path(root) / experiment).absolute()  # train() may change the working directory
        design, changes = Experiment(path).design.updated(
            arguments.check_design(goal, repeats, note, x_axis, runs, decide)
        )
        halving, pruner = rules_of(None if numbers else prune, design.goal)
        chooses = _search_of(search, halving, decide, params, design, path)
        sampled, runs = runs, searched.runs_of(chooses, runs, path)
        num_runs = len(runs) + chooses.num_more()
        screen = closing.enter_context(announce.starting(experiment, num_runs, show=is_shown))
        executor.prepare(train, path)  # first: lanes import their torch while this process imports its own
        missing = arguments.missing_devices(
            [*sampled, *runs], executor.missing, "skip" if numbers else missing_device
        )
        grid = [run._asdict() for run in runs]
        chosen = only_runs.choose(numbers, grid, missing, Experiment(path))
        with (
            announce.cleared(screen, when=plan_only or bool(numbers)),
            announce.cleared(screen, when=callable(data), then=announce.starting_line(experiment, num_runs)),
            stop.at_once(),
        ):
            # data may be downloaded for minutes, with a bar of their own, and nothing is there yet
            now = arguments.take_fingerprint(train, data)
        task = RunTask(
            train, Experiment(path), tensorboard, histogram_every, now, keep_changed, 1, halving,
            rule=pruner.rule if pruner else "", batch_size=batch_size, goal=design.goal, x_axis=design.x_axis,
            raises=bool(numbers),
        )  # fmt: skip
        policy: dict[str, Any] = {
            "retry_failed": retry_failed or bool(numbers), "keep_changed": keep_changed, "axes": chooses.axes
        }  # fmt: skip
        if plan_only or check:
            plan = leave_pruned(
                make_plan(runs, task.experiment.assign(grid, missing, design), now, chosen=chosen, **policy),
                pruner,
                **policy,
            )
        if plan_only:
            batch = _show_plan(plan, chooses, executor, experiment, show=is_main)
            return replace(read_outcome(batch, COMPLETED, path, is_over=False), exit_code=stop.exit_code)
        tried = (
            try_settings(
                searched.to_try(chooses, plan, executor.missing), task, executor, stop, screen,
                design.repeating(plan.varying),
            )
            if check and not numbers
            else []
        )  # fmt: skip
        if is_main:
            closing.enter_context(_held(path))
        plan = ranks.from_main(
            lambda: leave_pruned(
                make_plan(runs, task.experiment.plan(grid, missing, design), now, chosen=chosen, **policy),
                pruner,
                **policy,
            )
        )
        if executor.is_in_process:
            closing.callback(note_changes_by_runs, train, now)
        if is_main and tensorboard:
            hparams.decide(path)
        if numbers:
            return _execute_alone(plan, task, num_runs=len(runs), show=is_shown)
        execution = Execution(
            plan, chooses, executor, task, stop, retries=retries, on_error=on_error, show=is_shown,
            design=design, notes=[*(f"! {change}" for change in changes), *tried], screen=screen, pruner=pruner,
            page=closing.enter_context(
                LivePage(path, report if is_main else False, is_alone=executor.is_in_process)
            ),
            plan_new=searched.plans_new(chooses, task.experiment, design, now, executor.missing, policy),
        )  # fmt: skip
        stop.end_after(began, max_seconds)
        exit_code = execution.run()
        if is_main and exit_code != STORAGE_FAILED:
            exit_code = export_tables(path, execution.progress.say) or exit_code
        outcome = conclude_grid(execution, exit_code, path, began, has_events=tensorboard)
    return replace(outcome, exit_code=stop.exit_code or outcome.exit_code)


def _show_plan(plan: Plan, search: Search, executor: Executor, experiment: str, *, show: bool) -> Plan:
    batch = Decisions(plan, AllRuns() if isinstance(search, Searching) else search).next()
    lanes = executor.num_lanes([due.run for due in batch.due])
    announce.show_plan(experiment, batch, search, lanes, show=show)
    return batch


def _search_of(
    search: OptunaSearch | None,
    prune: SuccessiveHalving | None,
    decide: Decide | None,
    params: Any,
    design: Design,
    path: Path,
) -> Search:
    if search:
        return searched.make_search(search, params, design, path)
    if decide and design.repeats:
        return decide.search(*design.repeats)
    return prune.search() if prune else AllRuns()


@contextlib.contextmanager
def _held(experiment: Path) -> Iterator[None]:
    """Make the folder of an experiment, and hold it."""
    durable.make_folder(experiment)
    with hold(experiment):
        yield


def _execute_alone(plan: Plan, task: RunTask, *, num_runs: int, show: bool) -> GridOutcome:
    """Execute the runs of a plan in this process, and raise what they raise; write the tables in any case."""
    __tracebackhide__ = True  # for IPython and pytest
    path = task.experiment.path
    progress = only_runs.begin(plan, task.experiment, num_runs=num_runs, show=show)
    try:
        only_runs.execute_here(plan, task, progress)
    finally:
        exit_code = export_tables(path, progress.say) if ranks.is_main() else COMPLETED
    return ranks.from_main(lambda: read_outcome(plan, exit_code, path, is_over=True))

"""run_grid: plan a grid, execute the runs that are missing, summarise."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from runmanager.devices import ranks
from runmanager.executors import Executor
from runmanager.launch.live_page import LivePage
from runmanager.launch.train_function import Train, manager_of
from runmanager.listener import Listener
from runmanager.nested import Grid
from runmanager.run import Run
from runmanager.screen.live import make_display
from runmanager.search.decide import Decide
from runmanager.search.halving import SuccessiveHalving
from runmanager.search.optuna_search import OptunaSearch
from runmanager.session.grid_options import GridOptions
from runmanager.session.grid_outcome import GridOutcome
from runmanager.session.session import Session

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
    listeners: Sequence[Listener] = (),
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
        listeners: Objects of subclasses of `Listener`: they hear how runs begin, go on and end, and may stop
            them early.

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
    options = GridOptions(
        **{name: value for name, value in locals().items() if name not in ("params", "train")}
    )
    with Session.open(params, train, options, manager_of, make_display) as session:
        if options.plan_only:
            outcome = session.show_plan()
        elif options.is_alone:
            outcome = session.only()
        else:
            report = options.report if ranks.is_main() else False
            with LivePage(options.path, report, is_alone=session.executor.is_in_process) as page:
                outcome = session.execute([page])
    return replace(outcome, exit_code=session.stop.exit_code or outcome.exit_code)

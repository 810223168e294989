"""run_grid: plan a grid, execute its missing runs, and summarise the results."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from runmanager.core.listener import Listener
from runmanager.core.nested import Grid
from runmanager.core.run import Run
from runmanager.devices import ranks
from runmanager.executors import Executor
from runmanager.front.live_page import LivePage
from runmanager.front.train_function import Train, manager_of
from runmanager.screen.live import make_display
from runmanager.search.decide import Decide
from runmanager.search.halving import SuccessiveHalving
from runmanager.search.optuna_search import OptunaSearch
from runmanager.session.grid_options import GridOptions
from runmanager.session.grid_outcome import GridOutcome
from runmanager.session.session import Session
from runmanager.tensorboard.options import TensorBoard

if TYPE_CHECKING:
    from optuna.pruners import BasePruner


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
    tensorboard: bool | TensorBoard = True,
    display: bool | None = None,
    retry_failed: bool = False,
    changed: str = "rerun",
    data: Any = None,
    plan_only: bool = False,
    check: bool | str = False,
    prune: "SuccessiveHalving | BasePruner | None" = None,
    decide: Decide | None = None,
    search: OptunaSearch | None = None,
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
    note: str | None = None,
    only: int | Sequence[int] | None = None,
    report: bool | str | PathLike[str] = False,
    listeners: Sequence[Listener] = (),
) -> GridOutcome:
    """Execute every run of a grid that this experiment has not completed yet.

    An interrupted run resumes after its last committed epoch if `train` uses
    ``manager.epochs(n, checkpoint={...})``. Failed runs are executed again only with `retry_failed`.
    Runs that began with other code, data or library versions are executed again, see `changed`; the files of
    their old attempts stay.

    Args:
        params: A mapping of axes as in `RunBuilder.get_runs`, with at most 10,000 runs, or a list of any number
            of runs. Runs whose device is missing are skipped; a launch on a machine with the device executes
            them.
        train: Called as ``train(run, manager)``; it opens the run with ``with manager.run(...)``. A further
            parameter gets the run's value if the parameter is a hyperparameter; otherwise the parameter needs a
            default, such as ``num_epochs=5``.
        experiment: The folder under `root`. A second launch executes only the missing runs.
        root: The folder of all experiments, for ``tensorboard --logdir``.
        executor: The executor of runs. "lanes", the default: worker processes of this machine, each bound to a
            device and replaced when it dies. "inline": this process. "ray", or a `RayExecutor`: a Ray cluster.
        jobs: The maximum number of concurrent runs; "auto" for as many as the devices allow. With 1, no
            run shares the machine with another, and durations are comparable.
        runs_per_device: The number of runs that may share an accelerator.
        timeout: The seconds without a batch or an epoch after which a run counts as hung; None is no limit.
        retries: The maximum number of retries of a run whose process was killed or hung.
        max_seconds: The time (s) after which the grid stops in the same way as after Ctrl-C, with exit code 75;
            the same call resumes the grid. None is no limit.
        on_error: The action when a run fails: "continue" with the other runs, or "stop".
        tensorboard: Whether event files are written, or a `TensorBoard` with the interval of histograms and the
            x axis of curves.
        display: False shows nothing.
        retry_failed: Whether to execute those runs again that failed, diverged, hung, ran out of memory, or
            raised optuna.TrialPruned.
        changed: The action for runs that began with other code, data or versions: "rerun", the default, or
            "keep", which resumes these runs and marks them as mixed. Dicts, lists and tensors that `train`
            reads from your modules are compared by content, up to 1 MiB each.
        data: The training data of `train`, so that a change in them is detected at any size: tensors, a
            dataset, a text that identifies the data, or a function that returns tensors, a dataset or such a
            text. The function is called after the grid is validated.
        plan_only: Whether to show only the plan: the device of each run, and the runs that are done. Nothing is
            written.
        check: Whether to try each setting with the executor before the first run begins: two steps, and one
            batch of each evaluation. Nothing is written; all failures are raised together. With a `search`,
            each listed value and some values of the ranges are tried. With `plan_only` or `only`, there is no
            check. "resume" checks instead that runs resume: settings that have all values are executed five
            times for two epochs of up to six steps, undisturbed and killed, and compared.
        prune: The pruner, which stops unpromising runs early: a `SuccessiveHalving`, or a pruner of Optuna
            (``optuna.pruners.MedianPruner()``), which decides after each epoch. Pruned runs keep their
            checkpoint; the same grid without `prune`, or with a less strict pruner, resumes these runs.
        decide: A `Decide`, which adds repeats until the verdict names the best setting, or the better value of
            an axis. `repeats` names the single axis to repeat over.
        search: An `OptunaSearch`, which chooses the runs from the results so far. Axes may then be ranges, and
            `goal` is required.
        goal: The metric that decides: "max:reward", "min:wer", or a name with a known direction, such as
            "test_accuracy". Tables, report, command line, pruning and TensorBoard use the metric's value at the
            epoch whose weights are saved, else at the last epoch. The default is the metric of
            ``manager.epochs(keep=...)``, else the validation, test or training accuracy or loss. The goal is
            stored with the experiment: a launch without `goal` uses the stored goal, another goal replaces it.
            A search may have several goals, such as ["max:test_accuracy", "min:test_loss"]: its sampler gets
            all goals; tables, pruning and all other parts use the first goal.
        repeats: The axes that only repeat a setting, such as ("fold", "seed"); settings are then ranked by
            their mean. By default, these are all axes that vary and are named seed, fold, split, trial or
            repeat; a message names the axes found. () stands for no repeat axes. `repeats` is stored with the
            experiment, like `goal`.
        note: The reason why this grid is executed, as lines of Markdown. The report shows them, all other
            screens the first one. The note is stored with the experiment, like `goal`; "" removes the note.
        only: The number of a run, or several numbers, as in the column `run`. For a debugger, only these runs
            are executed, even if they failed, in this process and without a live display. An exception of
            `train` is recorded and raised. `prune`, `jobs`, `timeout`, `retries` and similar options have no
            effect.
        report: Whether to write the page of `write_report` while the grid runs, as `report.html` in the
            experiment's folder; or the file to write. Updates take at most a twentieth of the time; the last
            update is at the end of the grid. An open page in a browser reloads itself. With `only`, no page is
            written.
        listeners: Instances of subclasses of `Listener`; they are called when runs begin, progress and end, and
            may stop runs early.

    Returns:
        The outcome of each run, the tables of all runs, and the exit code for `sys.exit`.

    Raises:
        LifecycleError: A new process executes the script again.
        GridError: The grid or an argument cannot be used, `train` cannot be sent to the workers, or a setting
            fails in a `check`; the message lists all problems, and nothing was written.
        ExperimentLockedError: Another process executes this experiment.
        InvalidArgumentError: A run of a search does not have the goal's metric, or an epoch lacks the metric by
            which `prune` compares runs. Committed results are kept.
        StorageError: The experiment's folder could not be written before the first run.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP came while data were loaded or settings were checked;
            nothing was written. With `only`, Ctrl-C and these signals raise this exception at any time.
        Exception: With `only`, the exception of `train`.

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
        experiment=experiment, root=root, executor=executor, jobs=jobs, runs_per_device=runs_per_device,
        timeout=timeout, retries=retries, max_seconds=max_seconds, on_error=on_error, tensorboard=tensorboard,
        display=display, retry_failed=retry_failed, changed=changed, data=data, plan_only=plan_only,
        check=check, prune=prune, decide=decide, search=search, goal=goal, repeats=repeats, note=note,
        only=only, report=report, listeners=listeners,
    )  # fmt: skip
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

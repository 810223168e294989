"""run_grid: plan a grid, execute its missing runs, and summarise the results."""

import gzip
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.answers.sentences import statuses_in_words
from runmanager.checks.changed import changes_since, fingerprint, note_changes_by_runs, short_hash
from runmanager.checks.only import choose, numbers_of
from runmanager.core import files
from runmanager.core.contracts import Display, Executor, Listener, Search
from runmanager.core.experiment import Experiment, check_beginning
from runmanager.core.files import for_people, open_closed_streams
from runmanager.core.grid import Grid
from runmanager.core.lock import hold
from runmanager.core.loop import COMPLETED, SOME_FAILED, STORAGE_FAILED, Loop, Plan, unavailable_runs
from runmanager.core.outcome import Status, advice
from runmanager.core.run import Run
from runmanager.core.task import RunTask
from runmanager.core.wording import printable
from runmanager.devices import ranks
from runmanager.errors import Problems, StorageError
from runmanager.executors import serialize
from runmanager.executors.hidden import name_hidden_module
from runmanager.executors.output import kept_output
from runmanager.executors.signals import Stop
from runmanager.front.command import Command, with_program
from runmanager.front.grid_outcome import GridOutcome
from runmanager.front.options import GridOptions, check_runs, open_experiment
from runmanager.search.decide import Decide
from runmanager.search.halving import SuccessiveHalving
from runmanager.search.optuna_pruner import pruner_of
from runmanager.search.optuna_search import OptunaSearch
from runmanager.tables import results_files
from runmanager.tensorboard import hparams
from runmanager.tensorboard.event_options import TensorBoard
from runmanager.user_code import user_frames

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

    from runmanager.front.manager import RunManager
    from runmanager.screen.live import GridProgress

Train = Callable[[Run, "RunManager"], object]
"""A training function."""


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
    changed: str | None = None,
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
    Runs that began with other code, data or library versions are executed again or wait, see `changed`; the
    files of their old attempts stay.

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
        changed: The action for runs that began with other code, data or versions. By default, these runs are
            executed again if their results together took less than ten minutes; otherwise, they wait, and a
            line asks for a value. If `train` reaches the changed code neither by name nor by a hyperparameter,
            the runs are kept, and a line names the code. "rerun" executes all of these runs again. "keep" keeps
            completed runs, and resumes the others and marks them as mixed.
        data: The training data of `train`, so that a change in them is detected: tensors, a dataset, a `Path`
            of a file or a folder, a text that identifies the data, or a function that returns one of these.
            The function is called after the grid is validated.
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
            `train` is recorded and raised. `executor`, `prune`, `jobs`, `timeout`, `retries` and similar
            options have no effect.
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
        **{name: value for name, value in locals().items() if name not in ("params", "train")}
    )
    __tracebackhide__ = True  # IPython and pytest leave this frame out of tracebacks
    with ExitStack() as closing:
        loop, progress, notes = open_grid(params, train, options, closing)
        if plan_only:
            first = loop.begin(is_written=False)
            if progress and ranks.is_main():
                progress.show_plan(loop, first)
            return outcome_of(loop, loop.signals.exit_code)
        if only is not None:  # without what a debugger does not need
            options, notes = replace(options, check=False, report=False, max_seconds=None), []
        elif check:
            notes += check_settings(loop, is_of_resuming=check == "resume")
        first, page = _begin(loop, progress, notes, options, closing)
        exit_code = STORAGE_FAILED if only is None else SOME_FAILED  # if the loop raises an exception
        try:
            # a live display would hide the prompt of a debugger
            with progress if progress and only is None else nullcontext():
                exit_code = loop.run(first)
        except BaseException as error:
            if only is not None:  # the exception of `train`
                error.__traceback__ = user_frames(error.__traceback__)
            raise
        finally:
            if ranks.is_main() and exit_code != STORAGE_FAILED:
                try:
                    results_files.write_results(loop.of_tables(), loop.task.experiment.path)
                except StorageError as error:
                    loop.say(f"✗ {error}")
                    exit_code = STORAGE_FAILED
        # a debugger needs no conclusion
        facts = {} if only is not None else {"has_events": bool(tensorboard), "page": page}
        ended = ranks.from_main(lambda: outcome_of(loop, exit_code, **facts))
        if progress and facts:
            progress.conclude(ended.panel, loop, [outcome for _, outcome in ended.outcomes])
    statuses = {outcome.status for _, outcome in ended.outcomes} - ({Status.PENDING} if loop.is_over else set())
    has_failed = any(status.exit_code for status in statuses)
    has_failed |= loop.is_over and statuses == {Status.UNAVAILABLE}
    ended.exit_code = loop.signals.exit_code or ended.exit_code or (SOME_FAILED if has_failed else COMPLETED)
    return ended


DEFAULTS: dict[str, Any] = run_grid.__kwdefaults__ or {}
"""The options of a grid and their defaults, but `experiment`."""


def open_grid(  # noqa: PLR0915 - one sequence
    params: Any, train: Train, options: GridOptions, closing: ExitStack
) -> tuple[Loop, "GridProgress | None", list[str]]:
    """Check all arguments and read the experiment: the loop, a display (None if unseen), and first lines."""
    began = time.monotonic()
    open_closed_streams()
    check_beginning()  # validate before data are loaded
    problems = Problems()
    numbers = [] if options.only is None else numbers_of(options.only, problems)
    executor = options.make_executor(problems)
    # with a debugger, Ctrl-C must keep its usual effect
    stop = Stop() if numbers else closing.enter_context(Stop.on_signals())
    runs = listed = check_runs(params, train, options, problems)
    experiment, design, notes = open_experiment(options, listed, problems)
    search: Search | None = None  # None executes all runs
    if options.decide:
        search = options.decide.search(*design.repeats or ())
    elif options.search:
        from runmanager.search.searching import Searching

        search = Searching.of_grid(options.search, params, design, experiment.path)
        runs = search.runs(experiment) or []
    progress = None
    is_shown = ranks.is_main() and (options.plan_only or options.display is not False)
    if is_shown or logging.getLogger("runmanager").hasHandlers():
        from runmanager.screen.live import GridProgress

        progress = GridProgress(experiment.path.name, show=is_shown)
        closing.callback(progress.clear)
        # show this line now, as the import of torch takes seconds
        progress.show_progress(f"{options.experiment}: {'planning' if options.plan_only else 'starting'}")
    try:
        executor.prepare(train, experiment.path)  # lanes import torch while this process does
        unavailable = unavailable_runs([*listed, *runs], executor)
    except Exception as error:
        name_hidden_module(error)
        raise
    in_parent = [listener for listener in options.listeners if listener.where == "parent"]
    in_worker = [listener for listener in options.listeners if listener.where == "worker"]
    for listener in in_worker if not executor.is_in_process else ():
        serialize.dump(listener)
    chosen = choose(numbers, runs, unavailable, experiment) if numbers else range(len(runs))
    if progress and (options.plan_only or numbers or callable(options.data)):
        # the function `data` may download files for minutes, with its own progress bar
        progress.clear()
    from runmanager.core.grid_context import GridContext  # imports torch
    from runmanager.front.manager import RunManager

    with stop.at_once():
        data = options.data() if callable(options.data) else options.data
        now = fingerprint(train, data, [*runs, *(search.to_try() if search else ())])
        if isinstance(train, Command):
            now = with_program(now, train)
    source = now["source"]["text"]
    now = {**now, "source": {"hash": short_hash(source)}}
    pruner = pruner_of(options.prune, design.goal) if options.prune and not numbers else None
    names = [type(listener).__name__ for listener in options.listeners if listener.may_stop]
    boards = None
    if options.tensorboard:
        from runmanager.tensorboard.run_log import boards_of

        boards = boards_of(options.tensorboard)
    context = GridContext(
        fingerprint=now, keep_changed=options.changed == "keep",
        changes_since=partial(changes_since, now=now, is_strict=options.changed == "rerun"),
        # whether a listener of this process may stop runs; the value is the same on all ranks
        asks=pruner is not None or any(listener.may_stop for listener in in_parent),
        rule="; ".join([pruner.rule, *names] if pruner else names),
        goal=design.goal, x_axis=design.x_axis, boards=boards,
    )  # fmt: skip
    task = RunTask(
        train=train, manager_of=RunManager.of_grid, experiment=Experiment(experiment.path), context=context,
        users=in_worker, raises=bool(numbers),
        kept_output=kept_output if os.name == "posix" and not numbers else None,
    )  # fmt: skip
    loop = Loop(
        task=task, executor=executor, signals=stop, display=progress or Display(), design=design, grid=runs,
        unavailable=unavailable, chosen=chosen, search=None if numbers else search, pruner=pruner,
        users=in_parent if ranks.is_main() else [],
        retries=options.retries, retry_failed=options.retry_failed or bool(numbers),
        asks=options.changed is None and not numbers, source=source,
        stops_at_failure=options.on_error == "stop", began=began,
    )  # fmt: skip
    return loop, progress, [f"! {note}" for note in notes]


def check_settings(loop: Loop, *, is_of_resuming: bool) -> list[str]:
    """Check each due setting of a grid; return sentences to print."""
    from runmanager.checks.check import CheckTask, try_settings  # imports torch
    from runmanager.checks.resumes import ResumeTask

    task = ResumeTask(loop.task) if is_of_resuming else CheckTask(loop.task)
    most = 1 if isinstance(loop.task.train, Command) else None  # as it is shortened by the user's words alone
    ended, repeats, lines = try_settings(loop, task, most)
    if any(outcome.status.is_lost for _, outcome in ended):
        from runmanager.answers.failures import failed_settings  # imports pandas

        Problems(failed_settings(ended, repeats)).raise_if_any()
    return lines


def _begin(
    loop: Loop, progress: "GridProgress | None", notes: Sequence[str], options: GridOptions, closing: ExitStack
) -> tuple[Plan, Path | None]:
    """Lock the experiment, write the plan, print what comes before the first run; return plan and page."""
    path = loop.task.experiment.path
    if ranks.is_main():
        files.make_folder(path)
        closing.enter_context(hold(path, loop.say))
    first = loop.begin(is_written=True)
    if loop.executor.is_in_process:
        closing.callback(note_changes_by_runs, loop.task.train, loop.task.context.fingerprint)
    loop.listeners = [*filter(None, (loop.pruner, progress))]
    if ranks.is_main():
        kept = path / files.SOURCE.format(short_hash(loop.source))
        if not kept.exists():
            files.write_file(kept, gzip.compress(loop.source.encode("utf-8", "replace"), mtime=0))
        loop.committed = Tables(loop).write
        if options.tensorboard:
            hparams.decide(loop.task.experiment, loop.search)
    for note in notes:
        loop.say(note)
    if progress:
        progress.begin(loop, first)
    page = None
    if options.report and ranks.is_main():
        from runmanager.report.live_page import LivePage  # imports pandas

        live = LivePage(path, options.report, loop.say, is_alone=loop.executor.is_in_process)
        loop.listeners.append(closing.enter_context(live))
        page = live.target
    if options.max_seconds is not None:
        loop.signals.end_after(loop.began, options.max_seconds)
    return first, page


@dataclass(eq=False)
class Tables:
    """The tables of an experiment, written at the end of a run, in at most a twentieth of the time."""

    loop: Loop
    _next: float = 0.0

    def write(self, *_: object) -> None:
        """Write the tables, unless writing is slow and they were written recently."""
        before = time.monotonic()
        if before >= self._next:
            results_files.write_results(self.loop.of_tables(), self.loop.task.experiment.path)
            self._next = time.monotonic() + 20 * (time.monotonic() - before)


def outcome_of(loop: Loop, exit_code: int, **facts: Any) -> GridOutcome:
    """Return the outcome of a grid; `facts` are arguments of `conclude`, none for no conclusion."""
    experiment = loop.task.experiment
    asked_for = loop.without_left_out(loop.search) if loop.search else [*loop.runs.values()]
    states = [loop.states[planned.folder.id] for planned in asked_for]
    left_out = loop.runs.keys() - {state.folder.id for state in states}
    if left_out:
        with suppress(StorageError):  # runs that could not be dropped stay pending
            experiment.forget(left_out)
    end: dict[str, Any] | None = None
    if facts:
        end = facts | {"is_over": loop.is_over, "more": loop.num_more}
        # changed runs without an epoch since the change: tables have their earlier epochs
        end["num_changed"] = sum(
            bool(planned.folder.since and planned.before.epochs and not loop.states[id_].epochs)
            for id_, planned in loop.runs.items()
        )
        if loop.first_began:
            seconds, starting = time.monotonic() - loop.began, loop.first_began - loop.began
            runs = [(loop.runs[id_].before, loop.states[id_], taken) for id_, taken in loop.seconds.items()]
            end["times"] = seconds, loop.num_lanes, starting, runs
        statuses = [state.status for state in states]
        are_lost = all(status.is_lost or status is Status.UNAVAILABLE for status in statuses)
        if states and are_lost and not loop.display.is_shown:
            first = states[0].outcome.error or advice(statuses[0], "")
            line = f"{for_people(experiment.path)}: no run is completed: {statuses_in_words(statuses)}; {first}"
            print(printable(line), file=sys.stderr)  # noqa: T201 - no display shows it
    return GridOutcome(
        [(planned.run, state.outcome) for planned, state in zip(asked_for, states, strict=True)],
        exit_code, experiment.path, states, experiment.design, loop.others, end,
    )  # fmt: skip

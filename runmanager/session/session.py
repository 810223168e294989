"""The session of one opened grid: its experiment, search, fingerprint and plan, each created once."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from runmanager.checks.fingerprint import note_changes_by_runs
from runmanager.core import files, folder_names
from runmanager.core.design import Design
from runmanager.core.folders import Experiment, RunFolder
from runmanager.core.goal import Goal, is_larger_better
from runmanager.core.import_guard import check_beginning
from runmanager.core.lock import hold
from runmanager.core.outcome import BY_TRAIN, Status
from runmanager.core.run import Run, id_of
from runmanager.core.state import Fingerprint
from runmanager.core.wording import counted
from runmanager.devices import ranks
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.executors import Executor, serialize
from runmanager.executors.signals import Stop
from runmanager.search.halving import NO_METRIC, SuccessiveHalving
from runmanager.search.optuna_pruner import OptunaPruner
from runmanager.search.search import AllRuns, Pruner, Search
from runmanager.search.space import SearchSpace
from runmanager.session import arguments, debug_runs
from runmanager.session.check import CheckTask, try_settings
from runmanager.session.dispatch import Guarded
from runmanager.session.display import Display, GridListener
from runmanager.session.execute import COMPLETED, Execution
from runmanager.session.grid_options import GridOptions
from runmanager.session.grid_outcome import GridOutcome, conclude_grid, export_tables, read_outcome
from runmanager.session.plan import Action, Decisions, Plan, PlannedRun, make_plan
from runmanager.session.resume_check import ResumeTask
from runmanager.session.task import RunTask, Train
from runmanager.tensorboard import hparams

if TYPE_CHECKING:
    from runmanager.answers.foresight import Foresight


@dataclass(eq=False)
class Session:
    """One opened grid with its runs, executor and options.

    `open` validates all arguments and reads the experiment. `show_plan` and `check` write nothing; `execute`
    and `only` lock the experiment until the session is closed.
    """

    train: Train
    manager_of: Callable[..., Any]  # a function that creates the manager for `train`
    options: GridOptions
    experiment: Experiment
    executor: Executor
    search: Search  # the search that selects the due runs, or creates runs
    design: Design  # the design to store with the experiment
    fingerprint: Fingerprint  # code, data and versions that results depend on
    stop: Stop  # the state of signals; its exit code overrides the exit code of the runs
    display: Display  # the display that shows the grid to the user
    runs: Sequence[Run]  # the runs of the grid; for a search, the runs of the experiment
    missing: Mapping[str, str]  # identity of a run -> reason why the run cannot be executed here
    chosen: Sequence[int]  # the indexes of the selected runs
    notes: Sequence[str] = ()  # sentences to print before the first run
    began: float = field(default_factory=time.monotonic)
    closing: ExitStack = field(default_factory=ExitStack)
    saving: Any = None  # the functions of a loop that saves and loads its own state, for the check of resuming

    def __post_init__(self) -> None:
        self.pruner = _pruner_of(self.options, self.design.goal)

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        params: Any,
        train: Train,
        options: GridOptions,
        manager_of: Callable[..., Any],
        make_display: Callable[[GridOptions], Display] = lambda _: Display(),
    ) -> Iterator[Self]:
        """Open the grid of `run_grid`; nothing is written."""
        began = time.monotonic()
        check_beginning()  # validate before data are loaded
        problems = Problems()
        numbers = debug_runs.numbers_of(options.only, problems)
        executor = options.make_executor(problems)
        options.check_values(problems)
        with ExitStack() as closing:
            # with a debugger, Ctrl-C must keep its usual effect
            stop = Stop() if numbers else closing.enter_context(Stop())
            listed = arguments.check_runs(params, train, options, problems)
            experiment = Experiment(options.path)
            design, changes = experiment.design.updated(arguments.check_design(options, listed))
            search = _search_of(params, options, design)
            suggested = search.runs(experiment)
            runs = listed if suggested is None else suggested
            num_more = search.num_more()
            display = make_display(options)
            up_to = "up to " if num_more or options.decide else ""  # a search may end with fewer runs
            starting = f"{options.experiment}: starting {up_to}{counted(len(runs) + num_more, 'run')}"
            display.show_start(starting)  # show this line now, as the import of torch takes seconds
            closing.callback(display.clear)
            # start lanes now, so that they import torch while this process does
            executor.prepare(train, options.path)
            if not executor.is_in_process:
                for listener in options.listeners_in("worker"):
                    serialize.dump(listener)
            missing = arguments.missing_devices([*listed, *runs], executor.missing)
            chosen = debug_runs.choose(numbers, [run._asdict() for run in runs], missing, experiment)
            with (
                display.cleared(when=options.plan_only or bool(numbers)),
                display.cleared(when=callable(options.data), then=starting),
                stop.at_once(),
            ):
                # the function `data` may download files for minutes, with its own progress bar
                now = arguments.take_fingerprint(train, options.data)
            notes = changes + [
                f"goal={str(goal)!r} ranks {'large' if goal.is_larger_better else 'small'} values first; "
                f"otherwise write goal={str(Goal(goal.metric, -goal.sign))!r}"
                for goal in design.all_goals
                if is_larger_better(goal.metric) not in (None, goal.is_larger_better)
            ]
            yield cls(
                train, manager_of, options, Experiment(options.path), executor, search, design, now, stop,
                display, runs, missing, chosen, [f"! {note}" for note in notes], began, closing,
            )  # fmt: skip

    def plan_of(self, runs: Sequence[Run], folders: Sequence[RunFolder]) -> Plan:
        """Plan runs according to their journals and the options."""
        options = self.options
        return make_plan(
            runs, folders, self.fingerprint, retry_failed=options.executes_failed,
            keep_changed=options.changed == "keep", axes=self.search.axes,
        )  # fmt: skip

    def plan(self, *, is_written: bool = True) -> Plan:
        """Plan the runs of the grid; store them with the experiment if `is_written`."""
        give_folders = self.experiment.plan if is_written else self.experiment.assign
        folders = give_folders(self.runs, self.missing, self.design)
        runs = [self.runs[index] for index in self.chosen]
        return self._leaving_pruned(self.plan_of(runs, [folders[index] for index in self.chosen]))

    def plan_new(self, runs: Sequence[Run]) -> Plan:
        """Create folders for new runs of a search, and plan them."""
        names = folder_names.telling_first(self.search.axes, self.design.repeating(self.search.axes))
        reasons = arguments.missing_devices(runs, self.executor.missing)
        folders = [self.experiment.add(run, names, reasons, self.search.trials_of(run)) for run in runs]
        return self.plan_of(runs, folders)

    def show_plan(self) -> GridOutcome:
        """Show the plan: runs to execute, their devices, and completed runs; nothing is written."""
        search = AllRuns() if self.search.axes else self.search
        plan = self.plan(is_written=False)
        batch = Decisions(plan, search, self.plan_new).first()
        lanes = self.executor.num_lanes([planned.run for planned in batch.due])
        if ranks.is_main():
            foresight: Foresight | None = None
            if not self.search.axes and self.display.is_shown and self.design.repeating(plan.varying):
                from runmanager.answers.foresight import foresee  # imports pandas

                before, is_anytime = [planned.before for planned in plan.runs], self.options.decide is not None
                foresight = foresee(self.experiment.path, self.design, before, anytime=is_anytime)
            self.display.show_plan(batch, self.search, lanes, foresight)
        outcome = read_outcome(batch, COMPLETED, self.experiment.path, is_over=False)
        return replace(outcome, exit_code=COMPLETED)

    def check(self) -> list[str]:
        """Check each due setting with the executor, by the option `check`; return sentences to print."""
        plan = self.plan(is_written=False)
        likely = self.search.to_try()
        absent = arguments.missing_devices(likely, self.executor.missing)
        runs = [planned.run for planned in plan.due]
        runs += [run for run in likely if id_of(run) not in absent]
        repeats = self.design.repeating(plan.varying)
        is_resume = self.options.check == "resume"
        task = ResumeTask(self.task, functions=self.saving) if is_resume else CheckTask(self.task)
        return try_settings(runs, task, self.experiment.path, self.executor, self.stop, self.display, repeats)

    def only(self) -> GridOutcome:
        """Execute the selected runs in this process; write the tables even if a run raises its exception."""
        __tracebackhide__ = True  # IPython and pytest leave this frame out of tracebacks
        self.hold()
        plan, path, display = self.begin(), self.experiment.path, self.display
        debug_runs.begin(plan, self.experiment, self.design, display, num_runs=len(self.runs))
        listeners = [Guarded(listener, display.say) for listener in self.options.listeners_in("parent")]
        try:
            debug_runs.execute_here(plan, self.task, display, listeners)
        finally:
            for listener in listeners:
                listener.close()
            exit_code = export_tables(path, display.say) if ranks.is_main() else COMPLETED
        return ranks.from_main(lambda: read_outcome(plan, exit_code, path, is_over=True))

    def execute(self, followers: Sequence[GridListener] = ()) -> GridOutcome:
        """Execute the due runs, after a check if one is requested; `followers` are further listeners."""
        notes = [*self.notes, *(self.check() if self.options.check else [])]
        self.hold()
        path = self.experiment.path
        execution = Execution(
            self.begin(), self.search, self.executor, self.task, self.stop, self.options, self.design,
            display=self.display, followers=followers, pruner=self.pruner, plan_new=self.plan_new,
        )  # fmt: skip
        self.closing.callback(execution.close)  # close the execution even if it raises an exception
        if self.options.max_seconds is not None:
            self.stop.end_after(self.began, self.options.max_seconds)
        exit_code = execution.run(notes)
        execution.close()
        if ranks.is_main() and execution.error is None:
            exit_code = export_tables(path, self.display.say) or exit_code
        return conclude_grid(execution, exit_code, path, self.began, has_events=bool(self.options.tensorboard))

    def hold(self) -> None:
        """Create the experiment's folder, and lock it until the session is closed."""
        if ranks.is_main():
            files.make_folder(self.experiment.path)
            self.closing.enter_context(hold(self.experiment.path, self.display.say))

    def begin(self) -> Plan:
        """Store the planned runs with the experiment, and TensorBoard's format of their hyperparameters."""
        plan = ranks.from_main(self.plan)
        if self.executor.is_in_process:
            self.closing.callback(note_changes_by_runs, self.train, self.fingerprint)
        if ranks.is_main() and self.options.tensorboard:
            hparams.decide(self.experiment.path)
        return plan

    @property
    def task(self) -> RunTask:
        """The task that executes one run in any process."""
        options, design = self.options, self.design
        # whether a listener of this process may stop runs; the value is the same on all ranks
        stoppers = [listener for listener in options.listeners if listener.may_stop]
        is_asked = self.pruner is not None or any(listener.where == "parent" for listener in stoppers)
        return RunTask(
            train=self.train, manager_of=self.manager_of, experiment=self.experiment,
            tensorboard=options.tensorboard,
            fingerprint=self.fingerprint, keep_changed=options.changed == "keep", jobs=1,
            rule=self.stopping_rule, asks=is_asked,
            listeners=options.listeners_in("worker"), goal=design.goal,
            x_axis=design.x_axis, raises=options.is_alone,
        )  # fmt: skip

    @property
    def stopping_rule(self) -> str:
        """The rule that may stop a run after any epoch, as recorded in the run's journal."""
        rules = [self.pruner.rule] if self.pruner else []
        rules += [type(listener).__name__ for listener in self.options.listeners if listener.may_stop]
        return "; ".join(rules)

    def _leaving_pruned(self, plan: Plan) -> Plan:
        """Begin the pruner."""
        pruner = self.pruner
        if pruner:
            pruner.begin([planned.start for planned in plan.runs])

        def is_left(planned: PlannedRun) -> bool:
            before = planned.before
            if not planned.action.is_due or planned.action is Action.START_OVER:
                return False
            if before.status is Status.PRUNED and before.pruned_by == BY_TRAIN:
                return not self.options.executes_failed
            if before.status is Status.PRUNED and before.pruned_by == (self.stopping_rule or None):
                return True
            return pruner is not None and pruner.is_left(before)

        runs = [replace(planned, action=Action.LEAVE) if is_left(planned) else planned for planned in plan.runs]
        return replace(plan, runs=runs)


def _search_of(params: Any, options: GridOptions, design: Design) -> Search:
    """Return the search of a grid."""
    search = options.search
    if not search:
        return options.decide.search(*design.repeats) if options.decide and design.repeats else AllRuns()
    from runmanager.search.optuna_sampler import check_search
    from runmanager.search.searching import Searching

    problems = Problems()
    space, goals = SearchSpace(params), design.all_goals
    ranges = [axis.name for axis in space.axes if axis.range]
    repeats = design.repeating(name for name in space.varying if name not in ranges)
    for name in set(repeats).intersection(ranges):
        problems.append(f"repeats={name!r}, but {name!r} is a range: list its values, as {name!r}: [0, 1, 2]")
    if not goals:
        problems.append("search= has nothing to compare runs by: give run_grid(goal='max:<metric>')")
    problems.raise_if_any()
    space = SearchSpace(params, repeats)
    check_search(space, goals, search)
    return Searching(search, space, goals, options.path)


def _pruner_of(options: GridOptions, goal: Goal | None) -> Pruner | None:
    """Return the pruner that runs ask, None without one."""
    prune = None if options.is_alone else options.prune
    if prune is None:
        return None
    if isinstance(prune, SuccessiveHalving):
        return prune.pruner(goal)
    if goal is None:
        raise InvalidArgumentError([NO_METRIC])
    return OptunaPruner(prune, goal)

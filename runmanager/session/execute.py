"""The execution of a plan: due runs go to an executor, and outcomes are committed."""

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from runmanager.core import files
from runmanager.core.design import Design
from runmanager.core.outcome import Outcome
from runmanager.core.run import Run, id_of
from runmanager.core.state import RunResult, read_run
from runmanager.devices import ranks
from runmanager.errors import StorageError
from runmanager.executors import Executor
from runmanager.executors.signals import INTERRUPTED, Stop
from runmanager.search.search import Pruner, Search
from runmanager.session.announce import announce
from runmanager.session.dispatch import Dispatcher, Guarded
from runmanager.session.display import Display, GridListener
from runmanager.session.exports import Exports, commit_outcome
from runmanager.session.goal_watch import GoalWatch
from runmanager.session.grid_options import GridOptions
from runmanager.session.plan import Action, Decisions, Plan, PlannedRun
from runmanager.session.stopwatch import Stopwatch
from runmanager.session.task import RunTask
from runmanager.session.unread_axes import unread_axes
from runmanager.tensorboard.server import hint

COMPLETED, SOME_FAILED, STORAGE_FAILED = 0, 1, 74
"""Exit codes; 2 means that no run was started."""


class Execution:
    """Executes the due runs of a plan, and further runs of its search."""

    is_over = False
    """Whether the search has ended, with no further runs."""
    num_lanes = 0
    """The maximum number of concurrent runs."""
    error: StorageError | None = None
    """The storage error that has ended the grid."""

    def __init__(
        self,
        plan: Plan,
        search: Search,
        executor: Executor,
        task: RunTask,
        stop: Stop,
        options: GridOptions,
        design: Design,
        *,
        display: Display,
        followers: Sequence[GridListener] = (),
        pruner: Pruner | None = None,
        plan_new: Callable[[Sequence[Run]], Plan],
    ) -> None:
        self._search, self._executor, self._task, self._stop = search, executor, task, stop
        self._options, self._design, self._followers, self._pruner = options, design, followers, pruner
        self._decisions = Decisions(plan, search, plan_new)
        self.display, self.experiment, self.stopwatch = display, task.experiment.path, Stopwatch()
        display.begin_grid(design, plan.varying, self._results(plan))
        self._guarded = [Guarded(listener, display.say) for listener in options.listeners_in("parent")]
        goal_watch = GoalWatch(design.all_goals, task.experiment.runs, display.say)
        listeners = [*filter(None, [pruner]), self.stopwatch, goal_watch, display]
        listeners += [Exports(self.experiment), *followers] if ranks.is_main() else []
        stopping = partial(display.stopping, stop)
        self._dispatcher = Dispatcher([*listeners, *self._guarded], stop, display.say, stopping)
        self._in_progress: dict[str, PlannedRun] = {}
        self._num_retries: Counter[str] = Counter()

    def _results(self, plan: Plan) -> Iterator[RunResult]:
        """Yield the results of all runs of the experiment, except the runs of this grid that start over."""
        planned = {planned.folder.id for planned in plan.runs}
        for folder in self._task.experiment.runs.values():
            if folder.id not in planned:
                yield read_run(folder)
        for run in plan.runs:
            if run.action is not Action.START_OVER:
                yield run.before

    def run(self, notes: Sequence[str]) -> int:
        """Print sentences, and execute runs until no run is due; return the exit code."""
        search, display = self._search, self.display
        available = [planned.run for planned in self.plan.runs if not planned.folder.unavailable]
        search.num_lanes = self._executor.num_lanes([*available, *search.examples()])
        first = self._decisions.first()
        runs = deque(planned.run for planned in first.due)
        self.num_lanes = self._executor.num_lanes([*runs, *search.examples()])
        folders = [planned.folder for planned in first.due]
        display.begin_batch(folders, lanes=self.num_lanes, past=first.costs, more=search.num_more())
        self._announce(first, notes)
        exit_code = COMPLETED
        outcomes = self._executor.execute(runs, replace(self._task, jobs=self.num_lanes), self._dispatcher)
        try:
            with display, self._stop.at_once(), contextlib.closing(outcomes):
                self._begin(first)
                for run, ended in outcomes:
                    with self._stop.at_once(False):
                        outcome, is_retried = self._end(run, ended)
                        if is_retried:
                            runs.append(run)
                    if is_retried:
                        continue
                    exit_code = exit_code if outcome.status.is_success else SOME_FAILED
                    if exit_code and self._options.on_error == "stop":
                        display.say("stopped at the first failure (on_error='stop')")
                        return exit_code
                    more = self._decisions.next(self._in_progress.keys())
                    display.add_runs([planned.folder for planned in more.due], search.num_more())
                    self._begin(more)
                    runs.extend(planned.run for planned in more.due)
        except KeyboardInterrupt:
            self.stopwatch.stop()
            display.stopping(self._stop)
            return self._stop.exit_code or INTERRUPTED
        except StorageError as error:
            display.say(f"✗ {error}")
            self.error = error
            return STORAGE_FAILED
        self.is_over = True
        return exit_code

    @property
    def stoppers(self) -> list[str]:
        """The arguments of `run_grid` without which pruned runs continue."""
        names = [type(listener).__name__ for listener in self._options.listeners if listener.may_stop]
        return [*(["prune="] if self._options.prune or not names else []), *names]

    @property
    def plan(self) -> Plan:
        """All runs, including the runs created by the search."""
        return self._decisions.plan

    @property
    def num_more(self) -> int:
        """The number of runs that the search has not created, as the grid was stopped."""
        return 0 if self.is_over else self._search.num_more()

    def close(self) -> None:
        """Deliver pending events to the user's listeners, even events of stopped runs."""
        for id_, planned in self._in_progress.items():
            if id_ in self._dispatcher.begun:
                outcome = read_run(planned.folder).outcome
                self._dispatcher.run_ended(planned.run, outcome, listeners=self._guarded)
        for listener in self._guarded:
            listener.close()

    def conclusions(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Return the final sentences of the search and the pruner."""
        of_pruner = self._pruner.conclusion(outcomes) if self._pruner else ""
        return [*filter(None, [self._search.conclusion(outcomes), of_pruner])]

    def asked_for(self) -> Plan:
        """Return the plan with the requested runs."""
        plan = self._decisions.asked_for()
        if self.is_over:
            others = {planned.folder.id for planned in self.plan.runs}
            others -= {planned.folder.id for planned in plan.runs}
            with contextlib.suppress(StorageError):  # runs that could not be dropped stay pending
                if others:
                    self._task.experiment.forget(others)
        return plan

    def _announce(self, first: Plan, notes: Sequence[str]) -> None:
        """Print what comes before the first run."""
        say, where = self.display.say, files.for_people(self.experiment)
        for note in filter(None, [*notes, self._design.assumption(first.varying), self._unread(first)]):
            say(note)
        announce(say, where, first, self._search, self._pruner)
        for follower in self._followers:
            follower.grid_began(say)
        if self._task.tensorboard and self.display.is_shown and first.due:
            for line in hint(where):
                say(line)

    def _begin(self, batch: Plan) -> None:
        """Print the decision."""
        self._in_progress |= {planned.folder.id: planned for planned in batch.due}
        for sentence in batch.sentences:
            self.display.say(sentence)

    def _unread(self, batch: Plan) -> str:
        """Return a warning about axes that `train` never reads, or ""."""
        if not batch.due:
            return ""
        run = batch.due[0].run
        # a run of expand() also has values of its configuration, which are not axes
        names = batch.varying if hasattr(run, "__dict__") else run._fields
        axes = [
            name for name in names if name != "device" and name not in self._design.repeating(batch.varying)
        ]
        sentence = unread_axes(self._task.train, axes)
        return sentence and f"! {sentence}"

    def _end(self, run: Run, ended: Outcome) -> tuple[Outcome, bool]:
        """Commit and show the outcome of a run; return the outcome, and whether the run is retried."""
        id_ = id_of(run)
        planned = self._in_progress.pop(id_)
        outcome = commit_outcome(planned, ended, self._task)
        result = self._decisions.results[id_] = read_run(planned.folder)
        is_retried = outcome.status.is_worth_a_retry and self._num_retries[id_] < self._options.retries
        if is_retried:
            self._num_retries[id_] += 1
            self._in_progress[id_] = replace(planned, before=result)
        self._dispatcher.run_ended(run, outcome, is_retried=is_retried)
        return outcome, is_retried

"""The loop over the runs of a grid: plan, execute what is due, commit each outcome, ask the search again."""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from runmanager.core import files
from runmanager.core.contracts import Display, Executor, Listener, Pruner, Search, Signals, Slot
from runmanager.core.experiment import Design, telling_first
from runmanager.core.journal import end_abandoned_attempt
from runmanager.core.listener_thread import ListenerThread
from runmanager.core.outcome import BY_TRAIN, EpochRecord, News, Outcome, Question, Status
from runmanager.core.plan import Action, Plan, PlannedRun, make_plan, resumed
from runmanager.core.run import Run, copy_of, device_of, id_of
from runmanager.core.state import RunResult, read_run
from runmanager.core.task import RunTask
from runmanager.devices import ranks
from runmanager.errors import StorageError

COMPLETED, SOME_FAILED, STORAGE_FAILED, INTERRUPTED = 0, 1, 74, 130
"""Exit codes; 2 means that no run was started."""


@dataclass(eq=False, kw_only=True)
class Loop:
    """One launch of a grid; the watch of its executor.

    `plan`, `begin` and `run` are called in this order. All ranks of torchrun get the decisions of rank 0.

    Attributes:
        runs: Identity -> the planned run, also of the runs that the search has created.
        states: Identity -> the present state of the run; a run that starts over has no epochs.
    """

    task: RunTask
    executor: Executor
    signals: Signals
    display: Display
    design: Design
    grid: Sequence[Run]  # the runs of the grid; for a search, the runs of the experiment
    unavailable: Mapping[str, str]  # identity of a run -> the reason why it cannot be executed here
    chosen: Sequence[int]  # the indexes of the runs to plan
    search: Search | None = None  # what chooses the due runs, or creates runs; None executes all runs
    pruner: Pruner | None = None
    listeners: list[Listener] = field(default_factory=list)  # exceptions of these end the grid
    users: Sequence[Listener] = ()  # the user's listeners in this process
    retries: int = 0
    retry_failed: bool = False
    stops_at_failure: bool = False
    began: float = field(default_factory=time.monotonic)  # the time of the call of `run_grid`
    is_over: bool = False  # whether the search has ended, with no further runs
    num_lanes: int = 0  # the maximum number of concurrent runs
    first_began: float | None = None  # the time when the first run began (time.monotonic, s)
    seconds: dict[str, float] = field(default_factory=dict)  # identity -> time of all attempts in a lane (s)

    def plan(self, *, is_written: bool) -> Plan:
        """Plan the chosen runs, on rank 0; store all runs with the experiment if `is_written`."""
        folders = self.task.experiment.plan(self.grid, self.unavailable, self.design, is_written=is_written)
        chosen = [self.grid[number] for number in self.chosen], [folders[number] for number in self.chosen]
        plan = make_plan(*chosen, self.task, retry_failed=self.retry_failed)
        if self.pruner:
            self.pruner.begin([planned.start for planned in plan.runs])
        runs = list(plan.runs)
        for number, planned in enumerate(runs):
            is_pruned = planned.before.status is Status.PRUNED and planned.action is not Action.START_OVER
            if is_pruned and planned.action.is_due and self._stays_pruned(planned.before):
                runs[number] = replace(planned, action=Action.LEAVE)
        return replace(plan, runs=runs, axes=self.search.axes if self.search else ())

    def begin(self, plan: Plan, *, is_asked: bool = True) -> Plan:
        """Return the plan in which the runs that the search chooses first are executed, and the others wait."""
        self.whole = first = plan
        self.runs = {planned.folder.id: planned for planned in plan.runs}
        self.states = {id_: planned.start for id_, planned in self.runs.items()}
        self._in_progress: dict[str, PlannedRun] = {}
        self._begun: dict[str, tuple[Run, Slot, float]] = {}  # a copy for listeners, and the time of the start
        available = [planned.run for planned in plan.runs if not planned.folder.unavailable]
        examples = self.search.examples() if self.search else ()
        self.num_lanes = self.executor.num_lanes([*available, *examples])
        if self.search and is_asked:
            self.search.num_lanes = self.num_lanes
            if ranks.is_main():
                due = {planned.folder.id for planned in plan.due}
                self.search.begin([planned.folder for planned in plan.runs], due)
            first = self._decide(self.search, is_first=True)
        self.num_lanes = self.executor.num_lanes([*(planned.run for planned in first.due), *examples])
        return first

    def run(self, first: Plan) -> int:
        """Execute the due runs, and those that become due, until no run is due; return the exit code."""
        __tracebackhide__ = True  # IPython and pytest leave this frame out of tracebacks
        self._threads = [ListenerThread(listener, self.say) for listener in self.users]
        num_retries: Counter[str] = Counter()
        runs = deque(planned.run for planned in first.due)
        exit_code = COMPLETED
        self._hand_over(first)
        outcomes = self.executor.execute(runs, replace(self.task, jobs=self.num_lanes), self)
        try:
            with self.signals.at_once(), contextlib.closing(outcomes):
                for run, ended in outcomes:
                    id_ = id_of(run)
                    planned = self._in_progress[id_]
                    with self.signals.at_once(False):
                        outcome = self._commit(planned, ended)
                        del self._in_progress[id_]
                        is_retried = outcome.status.is_worth_a_retry and num_retries[id_] < self.retries
                        self._tell_end(id_, outcome, is_retried=is_retried)
                        if is_retried:
                            num_retries[id_] += 1
                            self._in_progress[id_] = replace(planned, before=self.states[id_])
                            runs.append(run)
                            continue
                    exit_code = exit_code if outcome.status.is_success else SOME_FAILED
                    if exit_code and self.stops_at_failure:
                        self.say("stopped at the first failure (on_error='stop')")
                        return exit_code
                    if self.search:
                        more = self._decide(self.search, is_first=False)
                        self.display.add_runs([each.folder for each in more.due], self.num_more)
                        self._hand_over(more)
                        runs.extend(planned.run for planned in more.due)
        except KeyboardInterrupt:
            if self.task.raises:
                raise
            self.display.stopping(self.signals)
            return self.signals.exit_code or INTERRUPTED
        except StorageError as error:
            if self.task.raises:
                raise
            self.say(f"✗ {error}")
            return STORAGE_FAILED
        finally:
            self._close()
        self.is_over = True
        return exit_code

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Report that a run has begun."""
        self.signals.check()
        id_, now = id_of(run), time.monotonic()
        self.first_began = now if self.first_began is None else self.first_began
        copy, slot = copy_of(run), Slot(id_, lane, device)
        self._begun[id_] = copy, slot, now
        for listener in (*self.listeners, *self._threads):
            listener.run, listener.slot = copy, slot
            listener.run_began(copy, None, None)

    def run_progressed(self, run: Run, news: News) -> str:
        """Report the progress of a run; return the first reason why it should stop, or ""."""
        self.signals.check()
        if id_of(run) not in self._begun:  # a process that counts as dead may report late
            return ""
        copy, slot, _ = self._begun[id_of(run)]
        reasons: list[str | None] = []
        for listener in (*self.listeners, *self._threads):
            listener.run, listener.slot = copy, slot
            if isinstance(news, EpochRecord):
                listener.epoch_ended(news, None)
            elif not isinstance(news, Question):
                listener.step_ended(news)
            elif news.is_new or listener.may_stop:
                why = listener.epoch_ended(news.record, None)
                reasons += [why] if listener.may_stop else []
        return next(filter(None, reasons), "")

    def stopping(self) -> None:
        """Report that a signal stops the execution."""
        self.display.stopping(self.signals)

    def say(self, line: str) -> None:
        """Show a line."""
        self.display.say(line)

    @property
    def num_more(self) -> int:
        """The number of runs that the search has not created."""
        return self.search.num_more() if self.search and not self.is_over else 0

    def results(self) -> list[tuple[PlannedRun, RunResult]]:
        """Return the runs that the search has asked for, with their states; the experiment drops the others."""
        asked_for = self._asked_for()
        others = self.runs.keys() - {planned.folder.id for planned in asked_for}
        if self.is_over and others:
            with contextlib.suppress(StorageError):  # runs that could not be dropped stay pending
                self.task.experiment.forget(others)
        return [(planned, self.states[planned.folder.id]) for planned in asked_for]

    @property
    def others(self) -> list[RunResult]:
        """The states of the experiment's runs that are not in this grid, also not by the search since then."""
        return [state for state in self._others if state.folder.id not in self.runs]

    @cached_property
    def _others(self) -> list[RunResult]:
        folders = self.task.experiment.runs.values()
        return [read_run(folder) for folder in folders if folder.id not in self.runs]

    def of_tables(self) -> list[RunResult]:
        """Return the states of the experiment's runs as in its tables, in order.

        A changed run has its earlier epochs until it has an epoch.
        """
        states = self.others
        for id_, planned in self.runs.items():
            if id_ in self._begun:
                self.states[id_] = read_run(planned.folder)
            state = self.states[id_]
            is_hidden = planned.folder.since and not state.epochs
            states.append(self.before_change(planned) if is_hidden else state)
        return sorted(states, key=lambda state: state.folder.number)

    def before_change(self, planned: PlannedRun) -> RunResult:
        """Return the state of a changed run before its change."""
        is_read = planned.action is Action.START_OVER
        return planned.before if is_read else read_run(replace(planned.folder, since=0))

    def _stays_pruned(self, before: RunResult) -> bool:
        """Whether a pruned run stays so: by `train`, by the present rule, or by what it has reached."""
        if before.pruned_by == BY_TRAIN:
            return not self.retry_failed
        is_same = bool(self.task.rule) and before.pruned_by == self.task.rule
        return is_same or (self.pruner is not None and self.pruner.is_left(before))

    def _asked_for(self) -> list[PlannedRun]:
        """Return the runs without those that have not begun and are left out by the search."""
        left_out = self.search.left_out() if self.search else ()
        return [each for id_, each in self.runs.items() if each.before.attempts or id_ not in left_out]

    def _decide(self, search: Search, *, is_first: bool) -> Plan:
        """Ask the search: return the plan of the runs that become due, at first of all runs."""

        def decide() -> tuple[Plan, list[PlannedRun]]:
            due: list[str] = []
            sentences: list[str] = []
            new: list[PlannedRun] = []
            while True:
                decision = search.next(self.states, self._in_progress.keys())
                due += decision.due
                sentences += decision.sentences
                created = self._create(search, decision.new) if decision.new else []
                new += created
                due += [planned.folder.id for planned in created if planned.action.is_due]
                if due or not created:
                    break
            runs, now = [], set(due)
            for planned in self._asked_for() if is_first else [self.runs[id_] for id_ in due]:
                id_, action, before = planned.folder.id, planned.action, planned.before
                state = self.states[id_]
                if id_ in now and (action is not Action.START_OVER or state.attempts > before.attempts):
                    before, action = state, resumed(state)
                elif id_ not in now and action is not Action.LEAVE:
                    action = Action.WAIT
                runs.append(PlannedRun(planned.run, planned.folder, before, action))
            return replace(self.whole, runs=runs, sentences=sentences), new

        plan, new = ranks.from_main(decide)
        self.runs |= {planned.folder.id: planned for planned in new}
        return plan

    def _create(self, search: Search, runs: Sequence[Run]) -> list[PlannedRun]:
        """Create folders for new runs of a search, and plan them."""
        names = telling_first(search.axes, self.design.repeating(search.axes))
        unavailable = unavailable_runs(runs, self.executor)
        add = self.task.experiment.add
        folders = [add(run, names, unavailable, search.trials_of(run)) for run in runs]
        created = [*make_plan(runs, folders, self.task, retry_failed=self.retry_failed).runs]
        self.runs |= {planned.folder.id: planned for planned in created}
        self.states |= {planned.folder.id: planned.before for planned in created}
        return created

    def _hand_over(self, batch: Plan) -> None:
        """Print a decision; its due runs are in progress from now on."""
        for sentence in batch.sentences:
            self.say(sentence)
        self._in_progress |= {planned.folder.id: planned for planned in batch.due}

    def _commit(self, planned: PlannedRun, outcome: Outcome) -> Outcome:
        """Read the state of an ended run; commit the outcome of a process that has died, and return it."""
        folder, before = planned.folder, planned.before
        state = read_run(folder)
        is_ended = not (state.status is Status.INTERRUPTED or state.status.is_in_progress)
        if not outcome.is_committed and state.attempts > before.attempts and is_ended:
            outcome = state.outcome  # the journal has the end line; only the last message was lost
        elif not outcome.is_committed:
            outcome = replace(outcome, epochs=len(state.epochs))
            # use the run's values, as the folder stores values of most types as text
            self.task.experiment.open(planned.run)
            if outcome.log:
                log = f"{outcome.error}\n\n{outcome.log}\n".encode("utf-8", "replace")
                files.write_file(folder.path / files.ERROR_LOG, log)
            # the fingerprint of the committed epochs, which stay until a new attempt commits an epoch; those of
            # a completed run are not resumed
            start = state.start or ({} if before.status is Status.COMPLETED else before.start)
            fingerprint = start.get("fingerprint", self.task.fingerprint)
            end_abandoned_attempt(folder.path, outcome, {"fingerprint": fingerprint})
            state = read_run(folder)
        self.states[folder.id] = state
        return outcome

    def _tell_end(self, id_: str, outcome: Outcome, *, is_retried: bool) -> None:
        """Report the outcome of a run after it was committed."""
        now, run = time.monotonic(), self.runs[id_].run
        copy, slot, began = self._begun.pop(id_, (run, Slot(id_), now))
        self.seconds[id_] = self.seconds.get(id_, 0.0) + now - began
        for listener in (*self.listeners, *self._threads):
            listener.run, listener.slot = copy, slot._replace(is_retried=is_retried)
            listener.run_ended(outcome)

    def _close(self) -> None:
        """Read the states of stopped runs; deliver all events to the user's listeners, also these ends."""
        self.states |= {id_: read_run(planned.folder) for id_, planned in self._in_progress.items()}
        for id_, (copy, slot, began) in self._begun.items():
            self.seconds[id_] = self.seconds.get(id_, 0.0) + time.monotonic() - began
            for listener in self._threads:
                listener.run, listener.slot = copy, slot
                listener.run_ended(self.states[id_].outcome)
        self._begun.clear()
        for listener in self._threads:
            listener.close()


def unavailable_runs(runs: Iterable[Run], executor: Executor) -> dict[str, str]:
    """Return identity -> reason for each run whose device is missing."""
    reasons: dict[str, str] = {}
    unavailable: dict[str, str] = {}
    for run in runs:
        device = device_of(run)
        if device not in reasons:
            reasons[device] = executor.missing(device)
        if reasons[device]:
            unavailable[id_of(run)] = reasons[device]
    return unavailable

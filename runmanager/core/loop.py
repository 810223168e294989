"""The loop over the runs of a grid: plan, hand over, commit each outcome, tell listeners, ask again."""

import contextlib
import functools
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from runmanager.core import files
from runmanager.core.contracts import Display, Executor, Listener, Pruner, Search, Signals, Slot
from runmanager.core.experiment import Design, RunFolder, varying
from runmanager.core.journal import end_abandoned_attempt
from runmanager.core.listener_thread import ListenerThread
from runmanager.core.outcome import BY_TRAIN, BatchProgress, EpochRecord, News, Outcome, Status
from runmanager.core.run import Run, copy_of, device_of, id_of
from runmanager.core.state import RunResult, read_output, read_run
from runmanager.core.task import RunTask
from runmanager.core.wording import last_state
from runmanager.devices import ranks
from runmanager.errors import StorageError

COMPLETED, SOME_FAILED, STORAGE_FAILED, INTERRUPTED = 0, 1, 74, 130
"""Exit codes; 2 means that no run was started."""

_MOST_OUTPUT = 100_000  # the maximum number of characters of output.log that error.log repeats
_MOST_ALIKE = 3  # runs in a row that fail with the same error, after which the last due run is next
_ASKED_S = 600.0  # results of changed runs that took this time are replaced only if the user says so
_NUMBER = re.compile(r"\d[\d.e+-]*")  # two errors are the same if they differ only in numbers


class Action(StrEnum):
    """The action for a run."""

    EXECUTE = "execute"
    CONTINUE = "continue"  # execute the run, from its last checkpoint if it has one
    # execute the run from its first epoch, as code, data, versions or loaded weights have changed
    START_OVER = "start over"
    WAIT = "wait"  # the run waits for a decision of the search, or for changed=
    LEAVE = "leave"

    def __init__(self, text: str) -> None:
        self.is_due: bool = text in ("execute", "continue", "start over")  # whether the run is executed


@dataclass(frozen=True)
class PlannedRun:
    """A run of a grid with its folder and its action."""

    run: Run
    folder: RunFolder  # the folder's id identifies the run everywhere
    before: RunResult  # the state of the run before the grid starts, from all attempts
    start: RunResult  # the state from which the run starts; without attempts before a change
    action: Action
    cause: str = ""  # what has changed since the run began


@dataclass(frozen=True)
class Plan:
    """The runs of a grid with their actions."""

    runs: Sequence[PlannedRun]  # all runs of the grid, in order
    varying: Sequence[str] = ()  # the hyperparameters that vary, also in runs that a search will create
    sentences: Sequence[str] = ()  # sentences of the search, to be printed

    @cached_property
    def due(self) -> list[PlannedRun]:
        """The runs to execute, in order."""
        return [planned for planned in self.runs if planned.action.is_due]

    @cached_property
    def asked(self) -> list[PlannedRun]:
        """The changed runs that wait for changed=, in order, without those whose device is missing."""
        return [each for each in self.runs if each.cause and each.start.status is Status.CHANGED]


@dataclass(eq=False, kw_only=True)
class Loop:
    """One launch of a grid, and the watch of its executor; torchrun's ranks get the decisions of rank 0."""

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
    committed: Callable[[RunFolder, Outcome], object] = lambda *_: None  # on rank 0, it writes the tables
    retries: int = 0
    retry_failed: bool = False
    source: str = ""  # the source that `train` reaches
    asks: bool = False  # whether changed runs whose results took long wait for changed=
    stops_at_failure: bool = False
    began: float = field(default_factory=time.monotonic)  # the time of the call of `run_grid`
    is_over: bool = False  # whether the search has ended, with no further runs
    num_more: int = 0  # the number of runs that the search has not created
    num_lanes: int = 0  # the maximum number of concurrent runs
    first_began: float | None = None  # the time when the first run began (time.monotonic, s)
    seconds: dict[str, float] = field(default_factory=dict)  # identity -> time of all attempts in a lane (s)

    def plan(self, *, is_written: bool) -> Plan:
        """Plan the chosen runs, on rank 0; store all runs with the experiment if `is_written`."""
        folders = self.task.experiment.plan(self.grid, self.unavailable, self.design, is_written=False)
        chosen = [(self.grid[index], folders[index]) for index in self.chosen]
        plan = make_plan(chosen, self.task, retry_failed=self.retry_failed, asks=self.asks)
        runs = list(plan.runs)
        if is_written:
            for index, planned in zip(self.chosen, runs, strict=True):
                folders[index] = replace(planned.folder, since=0)
            self.task.experiment.write(self.design, folders)
        if self.pruner:
            self.pruner.begin([each.start for each in runs if each.start.status is not Status.CHANGED])
            for number, planned in enumerate(runs):
                by_train = planned.start.pruned_by == BY_TRAIN  # it is due only with `retry_failed`
                if planned.action.is_due and not by_train and self.pruner.is_left(planned.start):
                    runs[number] = replace(planned, action=Action.LEAVE)
        axes = self.search.axes if self.search else ()
        return replace(plan, runs=runs, varying=axes or varying([run.folder.params for run in runs]))

    def begin(self, *, is_written: bool) -> Plan:
        """Plan the runs; return the plan in which those that the search chooses first are executed."""
        self.whole = first = ranks.from_main(lambda: self.plan(is_written=is_written))
        self.runs = {planned.folder.id: planned for planned in first.runs}  # also those of the search later
        self.states = {id_: planned.start for id_, planned in self.runs.items()}
        folders = self.task.experiment.runs.values()
        self.others = [read_run(folder) for folder in folders if folder.id not in self.runs]
        self._in_progress: dict[str, PlannedRun] = {}
        self._begun: dict[str, tuple[Run, Slot, float]] = {}  # a copy for listeners, and the time of the start
        examples: Sequence[Run] = ()
        if self.search:
            examples, self.num_more = self.search.examples(), self.search.num_more()
        available = [planned.run for planned in first.runs if not planned.folder.unavailable]
        self.num_lanes = self.executor.num_lanes([*available, *examples])
        if self.search and (is_written or not self.search.axes):
            first = ranks.from_main(functools.partial(self._ask, self.search, is_first=True))
        self.num_lanes = self.executor.num_lanes([*(planned.run for planned in first.due), *examples])
        return first

    def run(self, first: Plan) -> int:
        """Execute the due runs, and those that become due, until no run is due."""
        __tracebackhide__ = True  # IPython and pytest leave this frame out of tracebacks
        threads = [ListenerThread(listener, self.say) for listener in self.users]
        self.listeners += threads
        num_retries: Counter[str] = Counter()
        self._alike: list[str] = []  # the last runs, if they failed alike
        self._error, self._last = "", ""  # of them, and the last due run, which came before others
        runs: deque[Run] = deque()
        self._hand_over(first, runs)
        task = replace(self.task, context=replace(self.task.context, jobs=self.num_lanes))
        outcomes = self.executor.execute(runs, task, self)
        try:
            with self.signals.at_once(), contextlib.closing(outcomes):
                for run, ended in outcomes:
                    id_ = id_of(run)
                    with self.signals.at_once(False):
                        planned = self._in_progress[id_]
                        outcome = ended if ended.is_committed else self._commit(planned, ended)
                        self.states[id_] = read_run(planned.folder)
                        del self._in_progress[id_]
                        is_retried = outcome.status.is_worth_a_retry and num_retries[id_] < self.retries
                        self._tell_end(id_, outcome, self.listeners, is_retried=is_retried)
                        self.committed(planned.folder, outcome)
                        if is_retried:
                            num_retries[id_] += 1
                            self._in_progress[id_] = replace(planned, before=self.states[id_])
                            runs.append(run)
                            continue
                    if outcome.status.is_success:
                        self._alike = []
                    elif why := self._why_stop(id_, outcome, runs):
                        self.say(why)
                        return SOME_FAILED
                    if self.search:
                        more = ranks.from_main(functools.partial(self._ask, self.search))
                        self.display.add_runs([planned.folder for planned in more.due])
                        self._hand_over(more, runs)
        except (KeyboardInterrupt, StorageError) as error:
            if self.task.raises:
                raise
            return self._broken_off(error)
        finally:
            # the user's listeners hear the ends of stopped runs too
            self.states |= {id_: read_run(planned.folder) for id_, planned in self._in_progress.items()}
            for id_ in [*self._begun]:
                self._tell_end(id_, self.states[id_].outcome, threads)
            for listener in threads:
                listener.close()
        self.is_over = not (self.search and self.whole.asked)
        self.num_more = 0 if self.is_over else self.num_more
        return COMPLETED

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Report that a run has begun."""
        self.signals.check()
        id_, now = id_of(run), time.monotonic()
        self.first_began = self.first_began or now
        copy, slot = copy_of(run), Slot(id_, lane, device)
        self._begun[id_] = copy, slot, now
        for listener in self.listeners:
            listener.run, listener.slot = copy, slot
            listener.run_began(copy, None, None)

    def run_progressed(self, run: Run, news: News) -> str:
        """Report the progress of a run; return the first reason why it should stop, or ""."""
        self.signals.check()
        if id_of(run) not in self._begun:  # a process that counts as dead may report late
            return ""
        copy, slot, _ = self._begun[id_of(run)]
        reason = ""
        for listener in self.listeners:
            listener.run, listener.slot = copy, slot
            if isinstance(news, BatchProgress):
                listener.step_ended(news)
            elif isinstance(news, EpochRecord):
                listener.epoch_ended(news, None)
            elif news.is_new or listener.may_stop:
                why = listener.epoch_ended(news.record, None)
                reason = reason or (listener.may_stop and why) or ""
        return reason

    def run_printed(self, run: Run, line: str) -> None:
        """Show a line that a run has printed, with the run's number if there are several lanes."""
        if self.num_lanes > 1:
            line = f"[run {self.runs[id_of(run)].folder.number}] {last_state(line)}"
        self.say(line)

    def last_output(self, run: Run) -> str:
        """Return the last lines that a run printed in its last attempt."""
        content = read_output(self.runs[id_of(run)].folder.path)
        return content.rpartition(files.ATTEMPT)[2][-_MOST_OUTPUT:]

    def stopping(self) -> None:
        """Report that a signal stops the execution."""
        self.display.stopping(self.signals)

    def say(self, line: str) -> None:
        """Show a line."""
        self.display.say(line)

    def without_left_out(self, search: Search) -> list[PlannedRun]:
        """Return the runs without those that have not begun and are left out by the search."""
        left_out = search.left_out()
        return [each for id_, each in self.runs.items() if each.before.attempts or id_ not in left_out]

    def of_tables(self) -> list[RunResult]:
        """Return the states of the experiment's runs as in its tables, in order."""
        states = list(self.others)
        for id_, planned in self.runs.items():
            if id_ in self._begun:
                self.states[id_] = read_run(planned.folder)
            state = self.states[id_]
            states.append(planned.before if planned.folder.since and not state.epochs else state)
        return sorted(states, key=lambda state: state.folder.number)

    def _ask(self, search: Search, *, is_first: bool = False) -> Plan:
        """Ask the search on rank 0: return the plan of the runs that become due, at first of all runs."""
        if is_first:
            search.num_lanes = self.num_lanes
            search.begin(
                [planned.folder for planned in self.whole.runs], {run.folder.id for run in self.whole.due}
            )
        due: list[str] = []
        sentences: list[str] = []
        while not due and not self.whole.asked:  # a choice depends on the results of all runs
            decision = search.next(self.states, self._in_progress.keys())
            sentences += decision.sentences
            due += decision.due
            if not decision.new:
                break
            unavailable = unavailable_runs(decision.new, self.executor)
            add = self.task.experiment.add
            new = [(run, add(run, search.axes, unavailable, search.trials_of(run))) for run in decision.new]
            created = make_plan(new, self.task, retry_failed=self.retry_failed)
            self.runs |= {planned.folder.id: planned for planned in created.runs}
            self.states |= {planned.folder.id: planned.start for planned in created.runs}
            self.others = [state for state in self.others if state.folder.id not in self.runs]
            due += [planned.folder.id for planned in created.due]
        self.num_more = search.num_more()
        runs = [self.runs[id_] for id_ in due]
        if is_first:
            now, runs = set(due), self.without_left_out(search)
            for number, planned in enumerate(runs):
                if planned.action.is_due and planned.folder.id not in now:
                    runs[number] = replace(planned, action=Action.WAIT)
        return replace(self.whole, runs=runs, sentences=sentences)

    def _hand_over(self, plan: Plan, runs: deque[Run]) -> None:
        """Print a decision of the search; give its due runs to the executor."""
        for sentence in plan.sentences:
            self.say(sentence)
        due = {planned.folder.id: planned for planned in plan.due}
        self.runs |= due  # other ranks than rank 0 do not have those that the search has created
        self._in_progress |= due
        runs.extend(planned.run for planned in plan.due)

    def _why_stop(self, id_: str, outcome: Outcome, runs: deque[Run]) -> str:
        """Return why the grid stops after a failure, "" if it goes on; the last due run comes after three."""
        if self.stops_at_failure:
            return "stopped at the first failure (on_error='stop')"
        before, self._error = self._error, _NUMBER.sub("0", outcome.error)
        has_failed = outcome.status is Status.FAILED
        self._alike = [*(self._alike if self._error == before else ()), id_] if has_failed else []
        num_left = len(self._in_progress) + self.num_more
        # a run of a search has begun after the three, where no due run was left to be next
        is_later = self._last not in self._in_progress and len(self._alike) >= _MOST_ALIKE + self.num_lanes
        is_tried = id_ == self._last or not self._in_progress or is_later
        if len(self._alike) > _MOST_ALIKE and num_left and is_tried:
            step = f"once it is fixed, the same command goes on with the other runs ({num_left:,})"
            return f"stopped: {len(self._alike)} runs in a row failed alike ({outcome.error}); {step}"
        if len(self._alike) >= _MOST_ALIKE and runs and self._last not in self._in_progress:
            runs.appendleft(runs.pop())
            self._last = id_of(runs[0])
        return ""

    def _broken_off(self, error: BaseException) -> int:
        """Say why the loop is broken off; return the exit code."""
        if isinstance(error, StorageError):
            self.say(f"✗ {error}")
            return STORAGE_FAILED
        self.display.stopping(self.signals)
        return self.signals.exit_code or INTERRUPTED

    def _commit(self, planned: PlannedRun, outcome: Outcome) -> Outcome:
        """Commit the outcome of a process that has died, unless its journal has an end; return the outcome."""
        folder, before = planned.folder, planned.before
        state = read_run(folder)
        is_ended = not (state.status is Status.INTERRUPTED or state.status.is_in_progress)
        if is_ended and state.attempts > before.attempts:
            return state.outcome  # only the last message was lost
        outcome = replace(outcome, epochs=len(state.epochs))
        # use the run's values, as the folder stores values of most types as text
        self.task.experiment.open(planned.run)
        if outcome.log:
            log = f"{outcome.error}\n\n{outcome.log}\n".encode("utf-8", "replace")
            files.write_file(folder.path / files.ERROR_LOG, log)
        # the fingerprint of the committed epochs, which stay until a new attempt commits an epoch; those of a
        # completed run are not resumed
        start = state.start or ({} if before.status is Status.COMPLETED else before.start)
        fingerprint = start.get("fingerprint", self.task.context.fingerprint)
        end_abandoned_attempt(folder.path, outcome, {"fingerprint": fingerprint})
        return outcome

    def _tell_end(
        self, id_: str, outcome: Outcome, listeners: Iterable[Listener], *, is_retried: bool = False
    ) -> None:
        """Report the outcome of a run after it was committed."""
        now = time.monotonic()
        copy, slot, began = self._begun.pop(id_, (self.runs[id_].run, Slot(id_), now))
        self.seconds[id_] = self.seconds.get(id_, 0.0) + now - began
        for listener in listeners:
            listener.run, listener.slot = copy, slot._replace(is_retried=is_retried)
            listener.run_ended(outcome)


def unavailable_runs(runs: Iterable[Run], executor: Executor) -> dict[str, str]:
    """Return identity -> reason for each run whose device is missing."""
    missing = functools.cache(executor.missing)
    return {id_of(run): reason for run in runs if (reason := missing(device_of(run)))}


def make_plan(
    runs: Iterable[tuple[Run, RunFolder]], task: RunTask, *, retry_failed: bool, asks: bool = False
) -> Plan:
    """Plan runs according to their journals and the options of `run_grid`."""
    context, keep_changed = task.context, task.context.keep_changed
    digests: dict[Path, str] = {}  # of results that runs have loaded
    planned: list[PlannedRun] = []
    at_stake: list[int] = []  # the indexes of runs not at fault whose epochs would not count from now on
    again: set[str] = set()  # paths, relative to the root, of the runs that start over
    for run, folder in runs:
        if folder.unavailable:
            before = read_run(folder)
            planned.append(PlannedRun(run, folder, before, before, Action.LEAVE))
            continue
        before = start = read_run(replace(folder, is_changed=False))
        folder = before.folder  # noqa: PLW2901 - it is marked again if it waits again
        differences = context.changes_since(before, of_results=digests) if before.start else []
        if differences and before.error and not keep_changed:
            # a later attempt, which failed before its first epoch, may have begun with the present code
            later = read_run(replace(folder, since=before.start.get("attempt", 0)))
            if later.start and not context.changes_since(later, of_results=digests):
                start, differences = later, []
        if not differences:
            differences = [f"files of {path} (executed again)" for path in start.loaded if path in again]
        if differences and not keep_changed:
            is_ended = before.epochs or before.inside or before.status.is_success
            at_stake += [len(planned)] if is_ended and not before.status.is_fault else []
            again.add(f"{folder.path.parent.name}/{folder.path.name}")
            folder = replace(folder, since=folder.last_attempt)  # noqa: PLW2901 - its epochs do not count
            start, action = RunResult(folder, Status.PENDING, [], before.attempts, "", {}), Action.START_OVER
        else:
            action = Action.CONTINUE if start.epochs or start.inside else Action.EXECUTE
            has_failed = start.status.is_fault or start.pruned_by == BY_TRAIN
            is_pruned = start.pruned_by != "" and start.pruned_by == context.rule
            if start.status is Status.COMPLETED or is_pruned or (has_failed and not retry_failed):
                action = Action.LEAVE
        planned.append(PlannedRun(run, start.folder, before, start, action, ", ".join(differences)))
    if asks and sum(planned[index].before.seconds for index in at_stake) >= _ASKED_S:
        for index in at_stake:  # the run keeps its earlier results, marked, and waits for changed=
            before = planned[index].before
            folder = replace(before.folder, is_changed=True)
            start = replace(before, folder=folder, status=Status.CHANGED)
            planned[index] = replace(planned[index], folder=folder, start=start, action=Action.WAIT)
    return Plan(planned)

"""The live display of a grid: rows and a progress bar in a terminal or a notebook, plain lines elsewhere."""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len
from rich.text import Text

from runmanager.answers.sentences import VARIABLE
from runmanager.core.contracts import Display, Signals
from runmanager.core.experiment import RunFolder, varying
from runmanager.core.loop import Loop, Plan
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome, Status
from runmanager.core.run import Run
from runmanager.core.wording import counted, did_you_mean, last_state, printable
from runmanager.drawing.console import INDENT, choose_screen, colored
from runmanager.drawing.table import GAP
from runmanager.errors import InvalidArgumentError
from runmanager.screen.announcements import announce, changes_of
from runmanager.screen.plan_table import costs_of, plan_summary, plan_table
from runmanager.screen.run_rows import COUNT, DEVICE, Running, RunTable
from runmanager.screen.time_left import costs, rounded, scheduled
from runmanager.tables.cells import brief, duration, durations, join, steady
from runmanager.tables.run_numbers import ranked_numbers

if TYPE_CHECKING:
    from runmanager.screen.panel import Panel

_LIVE_S = 0.5  # time between two drawings
_PLAIN_S = 60.0  # time between two plain lines about the whole grid
_PROBLEMS = ("✗", "!")  # first characters of lines that are logged as warnings
_MOST_BELOW = 20  # number of runs after which the headings are printed again, as they scroll out of view
_NUM_OTHER_LINES = 7  # lines of a drawing beside the rows; the line of the cursor stays free
_SPREAD = 1.75  # factor by which the time left may differ, as the load of a machine does


class GridProgress(Display):
    """Shows the progress of a grid: a dispatcher reports events in one thread, a second thread draws."""

    def __init__(self, name: str, *, show: bool = True) -> None:
        self._name, self.is_shown = brief(name), show
        self._screen = choose_screen(show=show)
        self._streams = [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]  # rich replaces the first two
        self._lines: deque[str] = deque()  # lines to print
        self._printing = threading.Lock()
        self._end = threading.Event()  # of the drawing thread
        self._end.set()
        self._is_stopping = self._are_goals_checked = False
        self._folders: dict[str, RunFolder] = {}
        self._running: dict[str, Running] = {}
        self._ended: set[str] = set()
        self._free: dict[int, float] = {}  # lane -> time at which its last run ended
        self._explained: dict[str, int] = {}  # cause -> the first run that ended by it
        self._headings: Sequence[str] = ()  # those printed last
        self._best = ""
        self._rank_next = self._estimate_next = 0.0
        self._finish: Sequence[float] = ()  # the end as estimated: probably, at the earliest, at the latest

    def begin(self, loop: Loop, first: Plan) -> None:
        """Begin a grid with the existing results of the experiment, and announce its first runs."""
        self._loop, plan = loop, loop.whole
        # a run that is executed alone has the columns of the whole experiment
        axes = plan.varying or varying([folder.params for folder in loop.task.experiment.runs.values()])
        self._repeats = loop.design.repeating(axes)
        self._table = RunTable(sorted(axes, key=lambda name: name in self._repeats), loop.design.all_goals)
        self._past = costs_of(first)
        self.add_runs([planned.folder for planned in first.due])
        self._table.widen({COUNT: f"✓ {self._count}"})
        announce(loop, first)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._rank()
        self._end.clear()
        self._thread = threading.Thread(target=self._keep_up_to_date, name="progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._flush()
        self._screen.show_below(self._drawing)  # until the panel

    def say(self, line: str) -> None:
        """Print a line above the picture, and log it; terminal control sequences are escaped."""
        lines = [printable(last_state(part).expandtabs()) for part in line.split("\n")]
        self._log("\n".join(lines))
        self._lines += lines
        if self._end.is_set() or not self._screen.is_live:
            self._flush()

    def _log(self, text: str) -> None:
        """Log lines; without a handler, logging would print warnings that the screen shows already."""
        logger = logging.getLogger("runmanager")
        level = logging.WARNING if text.startswith(_PROBLEMS) else logging.INFO
        if not logger.isEnabledFor(level):
            return
        record = logger.makeRecord(logger.name, level, __file__, 0, text, (), None)
        for handler in [*logger.handlers, *(logging.root.handlers if logger.propagate else [])]:
            # such a handler, as Hydra has one, would repeat what the screen shows
            is_repeated = self.is_shown and getattr(handler, "stream", None) in self._streams
            if level >= handler.level and not is_repeated:
                handler.handle(record)

    def _flush(self) -> None:
        """Print all queued lines."""
        with self._printing:
            if lines := [self._lines.popleft() for _ in range(len(self._lines))]:
                self._screen.print(lines)

    def add_runs(self, folders: Sequence[RunFolder]) -> None:
        """Add runs to execute or to repeat."""
        self._folders = self._folders | {folder.id: folder for folder in folders}
        self._ended -= {folder.id for folder in folders}
        for folder in folders:
            self._table.add_run(folder)

    def run_began(self, run: Run, network: Any, loader: Any) -> None:
        """Show that a run has begun in a lane."""
        self._ended.discard(self.slot.id)  # the run may be executed again
        self._table.devices.add(self.slot.device)
        state = self._loop.states[self.slot.id]
        fixed = {**self._table.add_run(state.folder), DEVICE: printable(self.slot.device)}
        self._running[self.slot.id] = Running(state.folder, fixed, time.monotonic() - state.seconds)

    def step_ended(self, progress: BatchProgress | EpochRecord) -> None:
        """Show the progress of a run."""
        if running := self._running.get(self.slot.id):
            running.hear(progress, time.monotonic())
            self._table.add_metrics(running.metrics)

    def epoch_ended(self, record: EpochRecord, network: Any) -> None:
        """Show the metrics of an epoch."""
        self.step_ended(record)

    def run_ended(self, outcome: Outcome) -> None:
        """Print the outcome of a run, and the next step."""
        now = time.monotonic()
        self._rank()  # while the run has its row, as the first call imports pandas
        result, status, cause = self._loop.states[self.slot.id], outcome.status, printable(outcome.error)
        folder = result.folder
        running = self._running.pop(folder.id, None) or Running(folder, self._table.add_run(folder), 0.0)
        self._ended.add(folder.id)
        metrics, sign = ranked_numbers([result], self._table.goals)[0], status.sign
        note, seconds = str(status), ""  # the note takes the place of the duration
        below: list[str] = []
        if status is Status.COMPLETED:
            note = f"from epoch {running.first}" if running.first > 1 else ""
            (seconds,) = durations([result.seconds])
            # with what lies between two runs of a lane
            in_lane = max(self._loop.seconds[folder.id], now - self._free.get(self.slot.lane, now))
            self._past.append((folder.params, max(result.seconds, in_lane)))
        elif not status.is_success:
            metrics, sign = {}, "✗"  # the cause says more
            # the panel at the end says what to do
            below = [cause, "executed again after the other runs" if self.slot.is_retried else ""]
            first = self._explained.setdefault(VARIABLE.sub("", cause), folder.number)
            if first != folder.number:
                note, below = f"{status} · as run {first}", []
        self._free[self.slot.lane] = now
        self._table.add_metrics(metrics)
        row = running.cells(f"{sign} {self._count}", outcome.epochs, seconds, metrics)
        headings, (line,) = self._table.lines([row], self._screen.width)
        lines = [f"{line}{GAP}{note}".rstrip(), *(f"{INDENT}{content}" for content in below if content)]
        if headings != self._headings or len(self._ended) % _MOST_BELOW == 0:
            self.say("\n".join(headings))
            self._headings = headings
        self.say("\n".join(lines))
        if status is not Status.COMPLETED or self._are_goals_checked:
            return
        self._are_goals_checked = True  # of the first run, before the whole grid runs for a misspelt goal
        for goal in self._loop.design.all_goals:
            if goal.metric not in metrics:
                self.say(
                    f"! the goal is {str(goal)!r}, but run {folder.number} has no such metric; "
                    f"{did_you_mean(goal.metric, metrics, 'it has')} (another goal= executes nothing again)"
                )

    def stopping(self, signals: Signals) -> None:
        """Print, once, that the grid is stopping, and the reason unless the reason is a signal."""
        if self._is_stopping:
            return
        self._is_stopping = True
        why = f"{signals.why}. " if signals.why else ""
        self.say(f"{why}Stopping; the same command resumes. Press Ctrl-C again to stop without waiting.")

    def conclude(self, panel: "Panel", loop: Loop, outcomes: Sequence[Outcome]) -> None:
        """Print the results of the search and the pruner, and the panel at the end of a grid."""
        for part in (loop.search, loop.pruner):
            if part and (sentence := part.conclusion(outcomes)):
                self.say(sentence)
        for line in str(panel).split("\n"):
            self._log(line)
        self.clear()
        panel.cell = self._screen.conclude(panel)

    def show_progress(self, line: str) -> None:
        """Show a status line below the others, if the screen can update such a line."""
        self._screen.show_below(lambda *_: [Text(line)])

    def clear(self) -> None:
        """Remove the live display below the lines."""
        self._screen.show_below(None)

    def show_plan(self, loop: Loop, plan: Plan) -> None:
        """Print the planned runs with their devices, the finished runs, and the search that adds more."""
        for sentence in changes_of(loop, plan):
            self.say(sentence)
        search = loop.search if loop.search and loop.search.axes else None  # one that adds runs
        if search:
            self.say(search.introduction())
        repeats = loop.design.repeating(plan.varying)
        if plan.runs:
            table = plan_table(plan, [name for name in plan.varying if name != DEVICE])
            lines, _ = table.fitted(self._screen.width)
            self._screen.print([line.plain for line in lines])
            self.say(plan_summary(plan, loop.num_lanes, repeats))
        if repeats and not search:
            from runmanager.answers.foresight import foresee  # imports pandas

            before = [planned.before for planned in loop.whole.runs]
            if sentence := foresee(loop.task.experiment.path.name, loop.design, before):
                self.say(sentence)

    @property
    def _total(self) -> int:
        return len(self._folders) + self._loop.num_more

    @property
    def _count(self) -> str:
        return f"{len(self._ended):>{len(str(self._total))}}/{self._total}"

    def _rank(self) -> None:
        """Update the best run so far, in at most a twentieth of the elapsed time."""
        before, imported, loop = time.monotonic(), self._best and len(sys.modules), self._loop
        results = [*loop.others, *loop.states.values()]
        has_completed = any(result.status is Status.COMPLETED for result in results)
        if not (self.is_shown and has_completed) or before < self._rank_next:
            return
        from runmanager.answers.ranking import ranking_of  # loads pandas, so imported after a run
        from runmanager.tables.columns import runs_table

        results.sort(key=lambda result: result.folder.number)
        with suppress(InvalidArgumentError):  # no metric can rank the runs
            ranking = ranking_of(runs_table({"": results}, loop.design))
            for best in ranking.settings[:1]:
                values = ", ".join(
                    f"{brief(goal.metric)} {steady(mean)}"  # a long name would hide the number
                    for goal, mean in zip(ranking.goals, best.means, strict=True)
                )
                count = f"mean of {counted(best.number, ranking.unit)}" if ranking.repeats else ""
                self._best = join([values, count, ranking.name(best)])
        if len(sys.modules) == imported:  # the first time, or with imports such as scipy, says nothing
            self._rank_next = time.monotonic() + 20 * (time.monotonic() - before)

    def _keep_up_to_date(self) -> None:
        while not self._end.wait(_LIVE_S if self._screen.is_live else _PLAIN_S):
            if self._screen.is_live:
                self._flush()
                self._screen.show_below(self._drawing)
            else:
                self.say("\n".join(map(str, self._drawing(80, 0))))  # a file has no width

    def _drawing(self, width: int, height: int) -> list[Text]:
        """Return the lines below the printed ones: a row per running run, the best run so far, and a bar."""
        now = time.monotonic()
        lines: list[Text] = []
        due = [folder for id_, folder in self._folders.items() if id_ not in self._ended]
        runs = [*self._running.values()]
        if not (runs or self._is_stopping):  # a run begins, whose process or data may take seconds
            runs = [Running(folder, self._table.add_run(folder), now) for folder in due[: self._loop.num_lanes]]
        if top := runs[: max(height - _NUM_OTHER_LINES, 1)]:
            headings, rows = self._table.lines([run.row(now) for run in top], width)
            if headings != self._headings:
                lines += map(Text, headings)
            for run, row in zip(top, rows, strict=True):
                whole = f"{row}{GAP}{run.position}".rstrip()
                lines.append(colored(whole if cell_len(whole) <= width else row))
        if self._best:
            lines.append(Text(f"best so far{GAP}{self._best}"))
        left = self._left(now, due) if self._table.devices else "starting"
        numbers = join([f"{self._count} runs", f"{duration(now - self._began, 0)} elapsed", left])
        bar = width - len(f"{self._name}    {numbers}^C ")  # a terminal that wraps ^C leaves a line
        full = int(bar * (len(self._ended) + sum(run.done for run in runs)) / max(self._total, 1))
        color = "green" if self._past or not self._explained else "red"
        parts = ("━" * full, color), ("╌" * (bar - full), "bright_black")
        lines.append(Text.assemble(self._name, GAP, *parts, GAP, numbers))
        return lines

    def _left(self, now: float, due: Sequence[RunFolder]) -> str:
        """Return the time left in words, estimated in at most a 200th of the elapsed time."""
        running, search = dict(self._running), self._loop.search
        past = [*self._past, *((run.folder.params, run.total) for run in running.values() if run.total)]
        if past and now >= self._estimate_next:
            params = [*(folder.params for folder in due), *[{}] * self._loop.num_more]
            seconds = costs(params, past, self._repeats)
            for index, folder in enumerate(due):
                if run := running.get(folder.id):
                    seconds[index] = max(seconds[index] - (now - run.zero), 0.0)
            left, factor = scheduled(seconds, self._loop.num_lanes), _SPREAD + len(past) ** -0.5
            self._finish = [now + left * share for share in (1, 1 / factor, factor)]
            self._estimate_next = now + 200 * (time.monotonic() - now)
        if not self._finish or len(self._ended) == self._total:
            return ""
        likely, low, high = (rounded(end - now) for end in self._finish)
        if self._loop.pruner:
            return f"up to {high} left"
        these = " for these" if search and search.left_out() else ""  # repeats that may follow
        return f"{likely} left{these}{f' ({low} to {high})' if low != high else ''}"

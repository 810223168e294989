"""The live display of a grid: rows and a progress bar in a terminal or a notebook, plain lines elsewhere."""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len
from rich.text import Text

from runmanager.answers.sentences import VARIABLE
from runmanager.core import files
from runmanager.core.contracts import Display, Signals
from runmanager.core.experiment import Design, RunFolder, varying
from runmanager.core.goal import KEPT, Goal, default_goal, goal_of_kept
from runmanager.core.loop import Loop, Plan
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome, Status
from runmanager.core.run import Run
from runmanager.core.state import RunResult
from runmanager.core.wording import counted, last_state, listed, printable
from runmanager.drawing.console import choose_screen, colored
from runmanager.drawing.table import GAP
from runmanager.errors import InvalidArgumentError
from runmanager.executors.signals import INTERRUPTED, TIME_IS_OVER
from runmanager.screen.announcements import announce, announce_alone, changes_of
from runmanager.screen.plan_table import costs_of, plan_summary, plan_table
from runmanager.screen.run_rows import DEVICE, DURATION, Row, RunColumns, lines_below
from runmanager.screen.running import Running
from runmanager.screen.time_left import costs, rounded, scheduled
from runmanager.tables.cells import brief, duration, join, steady
from runmanager.tables.run_numbers import ranked_numbers

if TYPE_CHECKING:
    from runmanager.screen.panel import Panel

_LIVE_S = 0.5  # time between two drawings
_PLAIN_S = 60.0  # time between two plain lines about the whole grid
_PROBLEMS = ("✗", "!")  # first characters of lines that are logged as warnings
_MOST_BELOW = 20  # number of lines after which the headings are printed again, as they scroll out of view
_NUM_OTHER_LINES = 7  # lines of a drawing beside the rows; the line of the cursor stays free
_BAR = 40  # maximum width of the bar
_ECHO = 5  # number of free columns after the last line, so that an echoed ^C^C does not wrap


class GridProgress(Display):
    """Shows the progress of a grid.

    A dispatcher reports events in one thread; a second thread draws, from copies of the shared containers.

    Args:
        name: The name of the experiment.
        show: False prints nothing; lines are still logged.
    """

    def __init__(self, name: str, *, show: bool = True) -> None:
        self._name, self.is_shown = name, show
        self.states: Mapping[str, RunResult] = {}  # identity -> the present state of a run
        self._screen = choose_screen(show=show)
        self._lines: deque[str] = deque()  # lines to print
        self._printing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self._is_stopping = False
        self.start(Design(), [])

    def start(
        self,
        design: Design,
        axes: Sequence[str],
        num_lanes: int = 1,
        past: Iterable[tuple[Mapping[str, Any], float]] = (),
    ) -> None:
        """Set the goals, the hyperparameters that vary, and the costs of runs before."""
        self._design, self._repeats = design, design.repeating(axes)
        self._goals: Sequence[Goal] = design.all_goals
        self._columns = RunColumns(sorted(axes, key=lambda name: name in self._repeats))
        self._num_lanes, self._past = max(num_lanes, 1), list(past)
        self._folders: dict[str, RunFolder] = {}
        self._running: dict[str, Running] = {}
        self._ended: set[str] = set()
        self._num_more = 0
        self._devices: set[str] = set()
        self._metrics: dict[str, None] = {}
        self._headings: Sequence[str] = ()  # those printed last
        self._num_below = 0  # number of lines printed since then
        self._explained: dict[str, int] = {}  # a printed cause or next step -> the first run with this text
        self._results: dict[str, RunResult] = {}  # the runs that `best_line` ranks
        self._best, self._is_best_old, self._rank_next = "", True, 0.0
        self._left: float | None = None
        self._estimated = self._estimate_next = float("-inf")
        self._began = time.monotonic()

    def begin(self, loop: Loop, first: Plan) -> None:
        """Begin a grid with the existing results of the experiment, and announce its first runs."""
        self.states, plan = loop.states, loop.whole
        is_alone = loop.task.raises  # all runs of the experiment are its surroundings
        folders = loop.task.experiment.runs.values()
        axes = varying([run.params for run in folders]) if is_alone else plan.varying
        self.start(loop.design, axes, loop.num_lanes, [] if is_alone else costs_of(first))
        if self.is_shown and not is_alone:
            before = [*loop.others, *(planned.start for planned in plan.runs)]
            self._results = {result.folder.id: result for result in before}
            self._rank()
        self.add_runs([planned.folder for planned in (plan.runs if is_alone else first.due)], loop.num_more)
        if is_alone:
            announce_alone(loop, plan)
        else:
            announce(loop, first)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self.is_shown:
            self._end.clear()
            self._screen.show_below(self._drawing)
            self._thread = threading.Thread(target=self._keep_up_to_date, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        try:
            if self._thread:
                self._thread.join()
                self._thread = None
            self.flush()
        finally:
            self.clear()

    def say(self, line: str) -> None:
        """Print a line above the picture, and log it; terminal control sequences are escaped."""
        lines = [printable(last_state(part).expandtabs()) for part in line.split("\n")]
        self._say(lines, lines)

    def _say(self, logged: Sequence[str], printed: Sequence[str]) -> None:
        """Log and print lines; no other line is printed between them."""
        _log("\n".join(logged), is_shown=self.is_shown)
        self._lines.extend(printed)
        if self._thread is None or not self._screen.is_live:
            self.flush()

    def add_runs(self, folders: Sequence[RunFolder], more: int = 0) -> None:
        """Add runs to execute or to repeat; `more` is the number of runs that a search may still add."""
        self._num_more = more
        self._folders = self._folders | {folder.id: folder for folder in folders}
        self._ended = self._ended - {folder.id for folder in folders}
        for folder in folders:
            self._columns.add(
                Running(folder, 0, "", 0.0, 0.0).ended(self._count, Outcome(Status.COMPLETED), {}, "")
            )

    def run_began(self, run: Run, network: Any, loader: Any) -> None:
        """Show that a run has begun in a lane."""
        self._rank()
        (id_, lane, device, _), now = self.slot, time.monotonic()
        self._ended.discard(id_)  # the run may be executed again
        self._devices.add(device)
        self._columns.has_device |= len(self._devices) > 1
        self._running[id_] = Running(self._folders[id_], lane, device, now, now)

    def step_ended(self, progress: BatchProgress) -> None:
        """Show the progress of a run inside its epoch."""
        self._went_on(progress, [] if progress.loss is None else ["loss"])

    def epoch_ended(self, record: EpochRecord, network: Any) -> None:
        """Show the metrics of an epoch."""
        self._went_on(record, record.metrics)

    def _went_on(self, news: EpochRecord | BatchProgress, metrics: Iterable[str]) -> None:
        self._show_metrics(metrics)
        if running := self._running.get(self.slot.id):
            now = time.monotonic()
            running.hear(news, now)
            if isinstance(news, EpochRecord):  # only epochs can widen a column; steps are frequent
                self._columns.add(running.row(now))

    def _show_metrics(self, names: Iterable[str]) -> None:
        """Give metrics a column: first those of the goals, then losses and accuracies."""
        if self._metrics.keys() >= set(names):
            return
        self._metrics |= dict.fromkeys(names)
        goals = self._goals or filter(None, [default_goal(self._metrics)])
        of_goals = dict.fromkeys(name for goal in goals for name in (f"{KEPT}{goal.metric}", goal.metric))
        first = [name for name in of_goals if name in self._metrics and name != DURATION]
        usual = [
            n for n in self._metrics if n.endswith(("loss", "accuracy")) and n not in first and " " not in n
        ]
        self._columns.metrics, self._columns.num_goals = [*first, *usual], len(first)

    def run_ended(self, outcome: Outcome) -> None:
        """Print the outcome of a run, and the next step."""
        folder, now = self._folders[self.slot.id], time.monotonic()  # `now` is before the import of pandas
        begun = self._running.pop(folder.id, None)
        running = begun or Running(folder, 0, str(folder.params.get(DEVICE, "")), now, now)
        self._ended.add(folder.id)
        metrics = dict(running.metrics)
        if self.is_shown:
            result = self._results[folder.id] = self.states[folder.id]
            if not self._goals and (goal := goal_of_kept([result.start])):
                self._goals = [goal]
            metrics |= ranked_numbers([result], self._goals)[0] if begun else {}
            self._is_best_old = True
            self._rank()
        if running.first == 1 and outcome.status is Status.COMPLETED:  # not of a resumed run
            self._past.append((folder.params, now - running.started))
        self._show_metrics(metrics)
        kind, error_log = VARIABLE.sub("", outcome.error), files.for_people(folder.path / files.ERROR_LOG)
        next_step = outcome.next_step(error_log, is_retried=self.slot.is_retried)
        is_new = self._explained.keys().isdisjoint({kind, next_step})
        first = self._explained.get(kind, folder.number)
        if first != folder.number and outcome.status is not Status.PRUNED:
            outcome = replace(outcome, error=f"as run {first}")
        self._explained = {text: folder.number for text in (kind, next_step) if text} | self._explained
        metrics = {name: metrics[name] for name in self._columns.metrics if name in metrics}
        row = running.ended(self._count, outcome, metrics, next_step if is_new else "")
        self._columns.add(row)
        line = self._columns.in_words(row, self._screen.width)
        lines = [line, *lines_below(row, line)]
        self._say(lines, self._table_lines(row) if self._screen.is_live else lines)

    def _table_lines(self, row: Row) -> list[str]:
        headings, (line,), hidden = self._columns.lines([row], self._screen.width)
        lines = [line, *lines_below(row, line)]
        if headings != self._headings or self._num_below >= _MOST_BELOW:
            note = [f"(not shown: {listed(hidden)})"] if hidden and not self._headings else []
            lines = [*note, *headings, *lines]
            self._headings, self._num_below = headings, 0
        self._num_below += len(lines)
        return lines

    def stopping(self, signals: Signals) -> None:
        """Print, once, that the grid is stopping, and the reason unless the reason is a signal."""
        if self._is_stopping:
            return
        self._is_stopping = True
        running = (
            f"{counted(len(self._running), 'running run')} now; what came after the last checkpoint is dropped"
        )
        dropped = f" {running}" if self._running else ""
        why = f"{signals.why}. " if signals.why else ""
        # after SIGTERM or SIGHUP, there may be no user at the keyboard
        is_by_hand = signals.exit_code in (0, INTERRUPTED, TIME_IS_OVER)
        force = " Press Ctrl-C again to stop without waiting." if is_by_hand else ""
        self.say(f"{why}Stopping{dropped}.{force}")
        self.flush()

    def conclude(self, panel: "Panel", loop: Loop, outcomes: Sequence[Outcome]) -> "Panel":
        """Print the results of the search and the pruner, and the panel at the end of a grid."""
        for part in (loop.search, loop.pruner):
            if part and (sentence := part.conclusion(outcomes)):
                self.say(sentence)
        self.flush()
        for line in str(panel).split("\n"):
            _log(line, is_shown=self.is_shown)
        return replace(panel, cell=self._screen.conclude(panel))

    def show_start(self, line: str) -> None:
        """Show a line until the next output."""
        self._screen.show_start(line)

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
        if loop.search and loop.search.axes:  # the search generates runs
            self.say(loop.search.introduction())
            if not plan.runs:
                return
        names = [name for name in plan.varying if name != "device"]
        lines, _ = plan_table(plan, names).fitted(self._screen.width)
        self._screen.print([line.plain for line in lines])
        self.say(plan_summary(plan, loop.num_lanes, loop.design.repeating(plan.varying)))
        if not (loop.search and loop.search.axes) and loop.design.repeating(loop.whole.varying):
            from runmanager.answers.foresight import foresee  # imports pandas

            before = [planned.before for planned in loop.whole.runs]
            if sentence := foresee(loop.task.experiment.path.name, loop.design, before):
                self.say(sentence)

    @property
    def _total(self) -> int:
        return len(self._folders) + self._num_more

    @property
    def _count(self) -> str:
        return f"{len(self._ended):>{len(str(self._total))}}/{self._total}"

    def _rank(self) -> None:
        """Update the best run so far, in at most a twentieth of the elapsed time."""
        before, is_first = time.monotonic(), not self._best
        if self._is_best_old and before >= self._rank_next:
            self._is_best_old = False
            self._best = best_line(list(self._results.values()), self._design)
            if not is_first:  # the first time includes imports, such as those of pandas and scipy
                self._rank_next = time.monotonic() + 20 * (time.monotonic() - before)

    def _keep_up_to_date(self) -> None:
        last_line = ""
        while not self._end.wait(_LIVE_S if self._screen.is_live else _PLAIN_S):
            if self._screen.is_live:
                self.flush()
                self._screen.show_below(self._drawing)
            elif (line := self._in_words()) != last_line:
                self.say(line)
                last_line = line

    def flush(self) -> None:
        """Print all queued lines."""
        with self._printing:
            if lines := [self._lines.popleft() for _ in range(len(self._lines))]:
                self._screen.print(lines)

    def _drawing(self, width: int, height: int) -> list[Text]:
        """Return the lines below the printed ones: a row per running run, the best run so far, and a bar."""
        now = time.monotonic()
        runs = sorted(self._running.copy().values(), key=lambda running: running.lane)
        rows = [running.row(now) for running in runs[: max(height - _NUM_OTHER_LINES, 1)]]
        headings, texts, _ = self._columns.lines(rows, width) if rows else ([], [], [])
        lines = [] if headings == self._headings else [Text(line, "dim") for line in headings]
        lines += map(colored, texts)
        if len(rows) < len(runs):
            lines.append(Text(f"and {len(runs) - len(rows)} more lanes", "dim"))
        if self._best:
            lines.append(Text.assemble(("best so far", "dim"), f"{GAP}{self._best}"))
        name, total = f"{brief(self._name)}{GAP}", self._total
        counts = f"{GAP}{self._count}{GAP}{duration(now - self._began, 0)}"
        if left := self._left_in_words(now) if self._devices else "starting":
            counts += f"{GAP}{left}"
        length = min(max(width - _ECHO - cell_len(name + counts), 10), _BAR)
        done = min(len(self._ended) + sum(running.done for running in runs), total)
        full = int(length * done / total) if total else length
        lines.append(
            Text.assemble(name, ("━" * full, "green"), ("╌" * (length - full), "bright_black"), counts)
        )
        return lines

    def _in_words(self) -> str:
        parts = [f"{len(self._ended)}/{self._total} done", f"{len(self._running)} running"]
        best = f"best so far: {self._best}" if self._best else ""
        return ", ".join([*parts, *filter(None, [self._left_in_words(time.monotonic()), best])])

    def _left_in_words(self, now: float) -> str:
        if now >= self._estimate_next:
            before = time.perf_counter()
            self._left, self._estimated = self._time_left(now), now
            self._estimate_next = now + 200 * (time.perf_counter() - before)
        if self._left is None:
            return ""
        return f"{rounded(max(self._left - (now - self._estimated), 0.0))} left"

    def _time_left(self, now: float) -> float | None:
        running = self._running.copy()
        past = [
            *self._past,
            *((run.folder.params, run.total) for run in running.values() if run.total and run.first == 1),
        ]
        if not past:
            return None
        ended = self._ended.copy()
        folders = [folder for id_, folder in self._folders.items() if id_ not in ended]
        folders += list(self._folders.values())[-1:] * self._num_more
        seconds = costs([folder.params for folder in folders], past, self._repeats)
        for index, folder in enumerate(folders):
            if run := running.get(folder.id):
                seconds[index] = max((run.total or seconds[index]) - (now - run.started), 0.0)
        return scheduled(seconds, self._num_lanes)


def best_line(results: Sequence[RunResult], design: Design) -> str:
    """Return the best score and its run or setting as one line; "" before a run has a score.

    The runs are ranked as by the function `best`: without goals by the metric of ``keep=``, else by the
    default metric.
    """
    results = sorted(results, key=lambda result: result.folder.number)
    if not any(result.status is Status.COMPLETED for result in results):
        return ""
    from runmanager.answers.ranking import ranking_of  # loads pandas, so imported after a run
    from runmanager.tables.columns import runs_table

    try:
        ranking = ranking_of(runs_table({"": results}, design))
    except InvalidArgumentError:  # the error of runs that no metric can rank
        return ""
    if not ranking.settings:
        return ""
    best = ranking.settings[0]
    count = f"mean of {best.number}" if best.run is None else ""
    # a long name would hide the number
    return join([f"{brief(ranking.goal.metric)} {steady(best.mean)}", count, ranking.name(best)])


def _log(text: str, *, is_shown: bool) -> None:
    """Log lines; without a handler, logging would print warnings that the screen shows already."""
    logger = logging.getLogger("runmanager")
    level = logging.WARNING if text.startswith(_PROBLEMS) else logging.INFO
    if not logger.hasHandlers() or not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(logger.name, level, __file__, 0, text, (), None)
    standard = [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]
    standard += [getattr(stream, "rich_proxied_file", stream) for stream in standard]  # behind rich's Live
    for handler in [*logger.handlers, *(logging.root.handlers if logger.propagate else [])]:
        # such a handler, as Hydra has one, would repeat what the screen shows
        if level >= handler.level and not (is_shown and getattr(handler, "stream", None) in standard):
            handler.handle(record)

"""The live display of a grid: a picture in a terminal or a notebook, plain lines elsewhere."""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from runmanager.answers.sentences import VARIABLE
from runmanager.core import files
from runmanager.core.contracts import Display, Signals
from runmanager.core.experiment import Design, RunFolder, varying
from runmanager.core.goal import KEPT, default_goal, goal_of_kept
from runmanager.core.loop import Loop, Plan
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome, Status
from runmanager.core.run import Run
from runmanager.core.state import RunResult
from runmanager.core.wording import last_state, listed, printable
from runmanager.drawing.console import choose_screen
from runmanager.errors import RunManagerError
from runmanager.executors.signals import INTERRUPTED, TIME_IS_OVER
from runmanager.screen.announcements import announce, announce_alone, changes_of
from runmanager.screen.best import BestSoFar
from runmanager.screen.ended import ended_row
from runmanager.screen.picture import Picture
from runmanager.screen.plan_table import costs_of, estimated_seconds, plan_summary, plan_table
from runmanager.screen.run_rows import DEVICE, DURATION, Row, RunColumns
from runmanager.screen.running import Running
from runmanager.screen.time_left import costs, rounded, scheduled
from runmanager.tables.run_numbers import ranked_numbers
from runmanager.tensorboard.server import page_of

if TYPE_CHECKING:
    from runmanager.screen.panel import Panel

_LIVE_S = 0.5  # minimum time between two pictures
_CLOCK_S = 1.0  # maximum time between two pictures, as pictures show clocks
_PLAIN_S = 60.0  # minimum time between two plain lines about the whole grid
_PROBLEMS = ("✗", "!")  # first characters of lines that are logged as warnings
_MOST_BELOW = 20  # number of rows after which the headings are printed again, as they scroll out of view


def make_display(path: Path, *, show: bool) -> "GridProgress":
    """Return the display of the grid in a folder, in the terminal or notebook of the user."""

    def page() -> str:
        try:
            return page_of(path).link()
        except (OSError, RunManagerError):  # the error if TensorBoard has no runs to show
            return ""

    return GridProgress(path.name, show=show, page=page)


class GridProgress(Display):
    """Shows the progress of a grid.

    A dispatcher reports events in one thread; a second thread draws, from copies of the shared containers.

    Args:
        name: The name of the experiment.
        show: False prints nothing; lines are still logged.
        page: Returns the link behind the word "TensorBoard".
    """

    def __init__(self, name: str, *, show: bool = True, page: Callable[[], str] | None = None) -> None:
        self._name, self.is_shown = name, show
        self.states: Mapping[str, RunResult] = {}  # identity -> the present state of a run
        self._screen = choose_screen(show=show)
        self._screen.links = {"TensorBoard": page} if page else {}
        self._lines: deque[str] = deque()
        self._printing = threading.Lock()
        self._printed = float("-inf")
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self.set_design(Design(), [])
        self.begin_batch([])

    def begin(self, loop: Loop, first: Plan) -> None:
        """Begin a grid with the existing results of the experiment, and announce its first runs."""
        self.states, plan = loop.states, loop.whole
        is_alone = loop.task.raises  # all runs of the experiment are its surroundings
        folders = loop.task.experiment.runs.values()
        self.set_design(loop.design, varying([run.params for run in folders]) if is_alone else plan.varying)
        if self.is_shown and not is_alone:
            for result in (*loop.others, *(planned.start for planned in plan.runs)):
                self._best.add(result)
        runs = plan.runs if is_alone else first.due
        past = [] if is_alone else costs_of(first)
        self.begin_batch([each.folder for each in runs], lanes=loop.num_lanes, past=past, more=loop.num_more)
        if is_alone:
            announce_alone(loop, plan)
        else:
            announce(loop, first)

    def set_design(self, design: Design, varying: Sequence[str]) -> None:
        """Set the goals, and the hyperparameters that vary."""
        self._repeats = design.repeating(varying)
        self._design = design
        axes = sorted(varying, key=lambda name: name in self._repeats)
        self._columns = RunColumns(axes, has_device=DEVICE in axes)
        self._folders: dict[str, RunFolder] = {}
        self._ended: set[str] = set()
        self._best = BestSoFar(design, varying)
        self._best_line, self._is_best_old, self._rank_next = "", True, 0.0

    def begin_batch(
        self,
        folders: Sequence[RunFolder],
        *,
        lanes: int = 1,
        past: Sequence[tuple[Mapping[str, Any], float]] = (),
        more: int = 0,
    ) -> None:
        """Add runs that have not begun, and reset the state of the previous runs."""
        self._num_lanes, self._past = max(lanes, 1), list(past)
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._running: dict[str, Running] = {}
        self._devices: dict[int, str] = {}  # lane -> device of the lane
        self._headings: Sequence[str] = ()
        self._num_below = 0  # number of rows printed since the last headings
        self._explained: dict[str, int] = {}  # a printed cause or next step -> the first run with this text
        self._num_more = 0
        self._is_stopping = False
        self._left: float | None = None
        self._estimated = self._estimate_next = float("-inf")
        self._began = time.monotonic()
        if self.is_shown:
            self._rank()
        self.add_runs(folders, more)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self.is_shown:
            self._end.clear()
            self._screen.show_below(self._picture)
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
        self._say([printable(last_state(part).expandtabs()) for part in line.split("\n")])

    def _say(self, lines: Sequence[str], instead: Sequence[str] | None = None) -> None:
        """Log lines, and print them or the lines `instead`; no other line is printed between them."""
        _log("\n".join(lines))
        self._lines.extend(lines if instead is None else instead)
        if self._thread is None or not self._screen.is_live or time.monotonic() >= self._printed + _LIVE_S:
            self.flush()

    def add_runs(self, folders: Sequence[RunFolder], more: int = 0) -> None:
        """Add runs to execute or to repeat; `more` is the number of runs that a search may still add."""
        self._num_more = more
        self._folders = self._folders | {folder.id: folder for folder in folders}
        self._ended = self._ended - {folder.id for folder in folders}
        self._waiting = self._waiting | {folder.id: folder.params for folder in folders}
        count = f"✓ {self._total}/{self._total}"
        rows = [Row(count, str(folder.number), folder.params) for folder in folders]
        self._columns = self._columns.holding(rows)
        self._is_changed = True

    def _rank(self) -> None:
        """Update the best run so far."""
        if self._is_best_old and time.monotonic() >= self._rank_next:
            before, is_first = time.monotonic(), not self._best_line
            self._best_line, self._is_best_old = str(self._best), False
            if not is_first:  # the first time includes imports, such as those of pandas and scipy
                self._rank_next = time.monotonic() + 20 * (time.monotonic() - before)

    def run_began(self, run: Run, network: Any, loader: Any) -> None:
        """Show that a run has begun in a lane."""
        self._rank()
        (id_, lane, device, _), now = self.slot, time.monotonic()
        folder = self._folders[id_]
        self._waiting.pop(id_, None)
        self._ended.discard(id_)  # the run may be executed again
        self._devices[lane] = device
        if len({*self._devices.values()}) > 1:
            self._columns = replace(self._columns, has_device=True)
        self._running[id_] = Running(folder.number, folder.params, lane, device, now, now)
        self._is_changed = True

    def step_ended(self, progress: BatchProgress) -> None:
        """Show the progress of a run inside its epoch."""
        if progress.loss is not None:
            self._show_metrics(["loss"])
        self._went_on(progress)

    def epoch_ended(self, record: EpochRecord, network: Any) -> None:
        """Show the metrics of an epoch."""
        self._show_metrics(record.metrics)
        self._went_on(record)

    def _show_metrics(self, names: Iterable[str]) -> None:
        metrics = self._in_order([*self._columns.metrics, *names])
        self._columns = replace(self._columns, metrics=metrics)

    def _went_on(self, news: EpochRecord | BatchProgress) -> None:
        running = self._running.get(self.slot.id)
        if running is not None:
            now = time.monotonic()
            self._running[self.slot.id] = running = running.after(news, now)
            if isinstance(news, EpochRecord):  # only epochs can widen a column; steps are frequent
                self._columns = self._columns.holding([running.row(now)])
            self._is_changed = True

    def run_ended(self, outcome: Outcome) -> None:
        """Print the outcome of a run, and the next step."""
        folder, now = self._folders[self.slot.id], time.monotonic()  # `now` is before the import of pandas
        next_step = outcome.next_step(
            files.for_people(folder.path / files.ERROR_LOG), is_retried=self.slot.is_retried
        )
        running = self._running.pop(folder.id, None)
        self._waiting.pop(folder.id, None)
        self._ended.add(folder.id)
        metrics = dict(running.metrics) if running else {}
        if self.is_shown:
            result = self.states[folder.id]
            kept_by = goal_of_kept([result.start])
            goals = self._design.all_goals or ([kept_by] if kept_by else [])
            (numbers,) = ranked_numbers([result], goals)
            metrics |= numbers if running else {}
            self._best.add(result)
            self._is_best_old = True
            self._rank()
        if running and outcome.status is Status.COMPLETED:
            self._past.append((folder.params, (now - running.started) / running.part))
        if self._left is None:
            self._estimate_next = float("-inf")
        total = str(self._total)
        count = f"{len(self._ended):>{len(total)}}/{total}"
        metrics = {name: metrics[name] for name in self._in_order(metrics)}
        self._show_metrics(metrics)
        kind = VARIABLE.sub("", outcome.error)
        is_new = self._explained.keys().isdisjoint({kind, next_step})
        step = next_step if is_new else ""
        row = replace(ended_row(count, folder, outcome, running, metrics), next_step=step)
        self._columns = self._columns.holding([row])
        first = self._explained.get(kind, folder.number)
        self._explained = {text: folder.number for text in (kind, next_step) if text} | self._explained
        is_repeated = first != folder.number and outcome.status is not Status.PRUNED
        brief = row
        if is_repeated:
            as_first = replace(outcome, error=f"as run {first}")
            brief = replace(ended_row(count, folder, as_first, running, metrics), next_step=step)
        self._say(self._columns.in_words(brief, self._screen.width), self._live_lines(row, brief))
        self._is_changed = True

    def _live_lines(self, row: Row, brief: Row) -> Sequence[str] | None:
        """Return the lines of an ended run for a live display; None if the screen has no live display."""
        if not self._screen.is_live:
            return None
        columns, width = self._columns, self._screen.width
        lines = columns.explained(row, width)
        if len(lines) > 1 and brief != row:
            lines = columns.explained(brief, width)[:1]
        headings, _, hidden = columns.lines([row], width)
        if hidden and not self._headings:
            self._lines.append(f"(not shown: {listed(hidden)})")
        is_due = headings != self._headings or self._num_below >= _MOST_BELOW
        self._headings, self._num_below = headings, len(lines) + (0 if is_due else self._num_below)
        return [*(headings if is_due else []), *lines]

    def stopping(self, signals: Signals) -> None:
        """Print, once, that the grid is stopping, and the reason unless the reason is a signal."""
        if self._is_stopping:
            return
        self._is_stopping = True
        number = len(self._running)
        is_one = number == 1
        stops = "1 running run stops" if is_one else f"{number} running runs stop"
        since = f"what came after {'its' if is_one else 'their'} last checkpoint is dropped"
        dropped = f": {stops} now; {since}" if number else ""
        why = f"{signals.why}. " if signals.why else ""
        # after SIGTERM or SIGHUP, there may be no user at the keyboard
        is_by_hand = signals.exit_code in (0, INTERRUPTED, TIME_IS_OVER)
        force = " Press Ctrl-C again to stop without waiting." if is_by_hand else ""
        self.say(f"{why}Stopping{dropped}.{force}")
        self.flush()

    def conclude(self, panel: "Panel") -> "Panel":
        """Print the panel at the end of a grid, and log its text."""
        self.flush()
        for line in str(panel).split("\n"):
            _log(line)
        return replace(panel, cell=self._screen.conclude(panel))

    def show_start(self, line: str) -> None:
        """Show a line until the next output."""
        self._screen.show_start(line)

    def show_progress(self, line: str) -> None:
        """Show a status line below the others, if the screen can update such a line."""
        self._screen.show_below(line)

    def clear(self, then: str = "") -> None:
        """Remove the live display below the lines, or replace it by the line `then`."""
        self._screen.show_below(then or None)

    def show_plan(self, loop: Loop, plan: Plan) -> None:
        """Print the planned runs with their devices, the finished runs, and the search that adds more."""
        for sentence in changes_of(loop, plan):
            self.say(sentence)
        if loop.search and loop.search.axes:  # the search generates runs
            self.say(loop.search.introduction())
            if not plan.runs:
                return
        seconds = estimated_seconds(plan, costs_of(plan), self._repeats)
        names = [name for name in plan.varying if name != "device"]
        self.flush()
        self._screen.print_table(plan_table(plan, seconds, names))
        self.say(plan_summary(plan, seconds, loop.num_lanes))
        if not (loop.search and loop.search.axes) and loop.design.repeating(loop.whole.varying):
            from runmanager.answers.foresight import foresee  # imports pandas

            before = [planned.before for planned in loop.whole.runs]
            if sentence := foresee(loop.task.experiment.path.name, loop.design, before):
                self.say(sentence)

    @property
    def _total(self) -> int:
        return len(self._folders) + self._num_more

    def _in_order(self, metrics: Iterable[str]) -> list[str]:
        """Return the metrics to show: first the metrics of the goals in order, then losses and accuracies."""
        names = list(dict.fromkeys(metrics))
        goals = self._best.goals or [*filter(None, [self._design.goal or default_goal(names)])]
        of_goals = (name for goal in goals for name in (f"{KEPT}{goal.metric}", goal.metric))
        first = [name for name in dict.fromkeys(of_goals) if name in names and name != DURATION]
        return [
            *first,
            *(n for n in names if n.endswith(("loss", "accuracy")) and n not in first and " " not in n),
        ]

    def _keep_up_to_date(self) -> None:
        drawn, width, last_line = float("-inf"), 0, ""
        while not self._end.wait(_LIVE_S if self._screen.is_live else _PLAIN_S):
            now = time.monotonic()
            if not self._screen.is_live:
                if (line := self._in_words(now)) != last_line:
                    self.say(line)
                    last_line = line
                continue
            self.flush()
            if self._is_changed or now >= drawn + _CLOCK_S or self._screen.width != width:
                self._is_changed, drawn, width = False, now, self._screen.width
                self._screen.show_below(self._picture)

    def flush(self) -> None:
        """Print all queued lines."""
        with self._printing:
            lines: list[str] = []
            with contextlib.suppress(IndexError):
                while True:
                    lines.append(self._lines.popleft())
            if lines:
                self._screen.print(lines)
                self._printed = time.monotonic()

    def _picture(self) -> Picture:
        now = time.monotonic()
        runs = {running.lane: running for running in list(self._running.values())}
        lanes = [(device, runs.get(lane)) for lane, device in sorted(self._devices.copy().items())]
        idle = [Row(device=printable(device), notes=["idle"]) for device, run in lanes if run is None]
        rows = [run.row(now) for _, run in lanes if run] + (idle if self._columns.has_device else [])
        num_done = min(len(self._ended) + sum(run.done for run in runs.values()), self._total)
        left = self._left_in_words(now) if lanes else "starting"
        return Picture(
            self._name,
            self._columns,
            rows,
            self._best_line,
            len(self._ended),
            self._total,
            num_done,
            now - self._began,
            left,
            self._headings,
        )

    def _in_words(self, now: float) -> str:
        parts = [f"{len(self._ended)}/{self._total} done", f"{len(self._running)} running"]
        best = f"best so far: {self._best_line}" if self._best_line else ""
        return ", ".join([*parts, *filter(None, [self._left_in_words(now), best])])

    def _left_in_words(self, now: float) -> str:
        if now >= self._estimate_next:
            before = time.perf_counter()
            self._left, self._estimated = self._time_left(now), now
            self._estimate_next = now + max(_CLOCK_S, 200 * (time.perf_counter() - before))
        if self._left is None:
            return ""
        return f"{rounded(max(self._left - (now - self._estimated), 0.0))} left"

    def _time_left(self, now: float) -> float | None:
        running = list(self._running.values())
        past = [*self._past, *((run.params, run.total / run.part) for run in running if run.total is not None)]
        if not past:
            return None
        waiting = list(self._waiting.values())
        waiting += [folder.params for folder in list(self._folders.values())[-1:]] * self._num_more
        seconds = costs([*(run.params for run in running), *waiting], past, self._repeats)
        busy = [
            max((cost * run.part if run.total is None else run.total) - (now - run.started), 0.0)
            for run, cost in zip(running, seconds, strict=False)
        ]
        return scheduled(seconds[len(running) :], [*busy, *[0.0] * (self._num_lanes - len(busy))])


def _log(text: str) -> None:
    """Log lines; without a handler, logging would print warnings that the screen shows already."""
    logger = logging.getLogger("runmanager")
    if logger.hasHandlers():
        logger.log(logging.WARNING if text.startswith(_PROBLEMS) else logging.INFO, "%s", text)

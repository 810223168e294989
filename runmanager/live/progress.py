"""What a grid shows while it runs: a picture in a terminal or a notebook, plain lines elsewhere."""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from rich.cells import cell_len

from runmanager.console import Table, cell, choose_screen, duration, join, printable
from runmanager.goal import Goal, default_goal
from runmanager.grid import Run
from runmanager.live import time_left
from runmanager.live.picture import Picture, Running, label
from runmanager.live.screen import LivePicture, Part
from runmanager.outcome import BatchProgress, EpochRecord, Outcome, Status
from runmanager.storage.folders import RunFolder
from runmanager.storage.identity import identity

_LIVE_S = 0.25  # from one picture to the next, at least
_CLOCK_S = 1.0  # and at most, as clocks go on
_VALUE = 7  # characters of most values, so that lines are aligned
_PLAIN_S = 60.0  # from one plain line on the whole grid to the next, at least
_PROBLEMS = ("✗", "!")  # how lines begin that are logged as warnings

_log = logging.getLogger("runmanager")
_log.addHandler(logging.NullHandler())  # an application routes the lines; without one, the screen is enough


class GridProgress:
    """Shows how far a grid has come.

    The executor reports in one thread; another one draws. All they share is replaced, never changed.

    Args:
        varying: The hyperparameters that tell the runs apart.
        past: Hyperparameters and duration (s) of the runs that were completed before.
        goal: Its metric is before all others; by default the one that decides by its name.
        check: Called when a run begins or makes progress; what it raises goes to the executor.
    """

    def __init__(
        self,
        name: str,
        folders: Sequence[RunFolder],
        varying: list[str],
        *,
        lanes: int = 1,
        past: Sequence[tuple[Mapping[str, Any], float]] = (),
        show: bool = True,
        check: Callable[[], None] | None = None,
        goal: Goal | None = None,
    ) -> None:
        self._name = name
        self._goal = goal
        self._check = check or (lambda: None)
        self._folders: dict[str, RunFolder] = {}
        self._varying = varying
        self._num_lanes = max(lanes, 1)
        self._past = list(past)
        self._show = show
        self._screen = choose_screen(show=show)
        self._picture = LivePicture(self._draw)
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._begun: dict[str, Run] = {}
        self._running: dict[str, Running] = {}
        self._ended: set[str] = set()
        self._devices: dict[int, str] = {}
        self._metrics: dict[str, None] = {}
        self._names = [name for name in varying if name != "device"]  # which has a column of its own
        self._label_width = 0
        self.add(folders)
        self._is_stopping = False
        self._lines: deque[str] = deque()
        self._printing = threading.Lock()
        self._printed = float("-inf")
        self._is_changed = True
        self._left: time_left.Estimate | None = None
        self._estimated = float("-inf")
        self._estimate_next = float("-inf")
        self._began = time.monotonic()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._show:
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
            self._flush()
        finally:
            self._screen.show_below(None)

    def say(self, line: str) -> None:
        """Print a line above the picture, and log it; what would steer a terminal is escaped."""
        parts = (part.rstrip("\r").rpartition("\r")[2] for part in line.split("\n"))  # bars are drawn over
        lines = [printable(part.expandtabs()) for part in parts]
        _log.log(logging.WARNING if line.startswith(_PROBLEMS) else logging.INFO, "%s", "\n".join(lines))
        self._lines.extend(lines)
        if self._thread is None or not self._screen.is_live or time.monotonic() >= self._printed + _LIVE_S:
            self._flush()

    def add(self, folders: Sequence[RunFolder]) -> None:
        """Count more runs that are to be executed, or executed again."""
        self._folders = self._folders | {folder.id: folder for folder in folders}
        self._ended = self._ended - {folder.id for folder in folders}
        self._waiting = self._waiting | {folder.id: folder.params for folder in folders}
        labels = (" ".join(label(folder.params, self._names)) for folder in folders)
        self._label_width = max([self._label_width, *map(cell_len, labels)])
        self._number_width = max([len(str(folder.number)) for folder in self._folders.values()], default=1)
        self._name_width = 0
        self._name_width = max([cell_len(self._named(each)) for each in self._folders.values()], default=0)
        self._is_changed = True

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Show that a run has begun in a lane."""
        self._check()
        folder, now = self._folders[self._id(run)], time.monotonic()
        self._begun[folder.id] = run
        self._waiting.pop(folder.id, None)
        self._ended.discard(folder.id)  # it may be executed again
        self._devices[lane] = device
        labels = label(folder.params, self._names)
        self._running[folder.id] = Running(folder.number, folder.params, labels, lane, device, now, now)
        self._is_changed = True

    def run_progressed(self, run: Run, news: EpochRecord | BatchProgress) -> None:
        """Show how far a run has come."""
        self._check()
        id_ = self._id(run)
        running = self._running.get(id_)
        if running is None:
            return
        self._running[id_] = running.after(news, time.monotonic())
        if isinstance(news, BatchProgress):
            self._metrics |= {} if news.loss is None else {"loss": None}
        else:
            self._metrics = dict.fromkeys(self._in_order([*self._metrics, *news.metrics]))
        self._is_changed = True

    def run_ended(self, run: Run, outcome: Outcome, next_step: str) -> None:
        """Print how a run ended."""
        folder = self._folders[self._id(run)]
        running = self._running.pop(folder.id, None)
        self._begun.pop(folder.id, None)
        self._waiting.pop(folder.id, None)
        self._ended.add(folder.id)
        is_completed, waits = outcome.status is Status.COMPLETED, outcome.status is Status.PRUNED
        mark = "✓" if is_completed else "–" if waits else "✗"  # noqa: RUF001 - a dash
        total = str(len(self._folders))
        start = f"{mark} {len(self._ended):>{len(total)}}/{total} {self._named(folder)}"
        before = [] if is_completed else ["waits" if waits else outcome.status]  # until all are at the rung
        cause, after, values = printable(outcome.error), [], []
        if running:
            seconds = time.monotonic() - running.started
            after = [f"{duration(seconds):>6}"]
            ordered = ((name, running.metrics[name]) for name in self._in_order(running.metrics))
            values = [f"{printable(name)} {cell(value) or 'nan':<{_VALUE}}" for name, value in ordered]
            if is_completed:
                self._past.append((folder.params, seconds / running.part))
        if outcome.status.is_exception or outcome.status is Status.DIVERGED:
            values = []  # the cause says more
        while values and cell_len(join([start, *before, *values, cause, *after])) > self._screen.width:
            values.pop()
        lines = [join([start, *before, *values, cause, *after])]
        if cell_len(lines[0]) > self._screen.width:
            lines = [join([start, *before, *after]), f"    {cause}"]
        lines += [f"    {next_step}"] if next_step else []
        self.say("\n".join(lines))  # together: nothing is printed between them
        self._is_changed = True

    def _named(self, folder: RunFolder) -> str:
        """Name a run by what varies, as wide as all runs are, so that their lines are aligned."""
        name = f"run {folder.number:>{self._number_width}} {' '.join(label(folder.params, self._varying))}"
        return name.rstrip() + " " * (self._name_width - cell_len(name.rstrip()))

    def stopping(self) -> None:
        """Say, once, that the grid is being stopped."""
        if self._is_stopping:
            return
        self._is_stopping = True
        number = len(self._running)
        stops = "1 running run stops" if number == 1 else f"{number} running runs stop"
        dropped = f": {stops} now; the epoch in progress is dropped" if number else ""
        self.say(f"Stopping{dropped}. Press Ctrl-C again to force.")
        self._flush()

    def conclude(self, panel: Any) -> None:
        """Print the panel at the end of a grid, which rich can draw, and log its text."""
        self._flush()
        for line in str(panel).split("\n"):
            _log.log(logging.WARNING if line.startswith(_PROBLEMS) else logging.INFO, "%s", line)
        self._screen.conclude(panel)

    def show_plan(self, table: Table, summary: str) -> None:
        """Print what would be executed where, and what is done already."""
        self._flush()
        self._screen.print_table(table)
        self.say(summary)

    def _id(self, run: Run) -> str:
        """Return the identity of a run; of one that runs as it was: inline, `train` may change a list in it."""
        begun = (id_ for id_, begun in self._begun.items() if begun is run)
        return next(begun, "") or identity(run._asdict())

    def _in_order(self, metrics: Iterable[str]) -> list[str]:
        """Return the metrics to show: the one that decides, then losses and accuracies."""
        names = list(dict.fromkeys(metrics))
        goal = self._goal or default_goal(names)
        first = [goal.metric] if goal and goal.metric in names else []
        return [*first, *(n for n in names if n.endswith(("loss", "accuracy")) and n not in first)]

    def _keep_up_to_date(self) -> None:
        drawn, last_line = float("-inf"), ""
        while not self._end.wait(_LIVE_S if self._screen.is_live else _PLAIN_S):
            now = time.monotonic()
            if not self._screen.is_live:
                if (line := self._in_words(now)) != last_line:
                    self.say(line)
                    last_line = line
                continue
            self._flush()
            if self._is_changed or now >= drawn + _CLOCK_S:
                self._is_changed, drawn = False, now
                self._screen.show_below(self._picture)

    def _flush(self) -> None:
        with self._printing:
            lines: list[str] = []
            with contextlib.suppress(IndexError):
                while True:
                    lines.append(self._lines.popleft())
            if lines:
                self._screen.print(lines)
                self._printed = time.monotonic()

    def _draw(self, width: int, height: int) -> list[list[Part]]:
        now = time.monotonic()
        runs = {running.lane: running for running in list(self._running.values())}
        lanes = [(device, runs.get(lane)) for lane, device in sorted(self._devices.copy().items())]
        picture = Picture(
            self._name, lanes, self._label_width, list(self._metrics),
            len(self._ended), len(self._folders), now - self._began, self._left_in_words(now), now,
        )  # fmt: skip
        return picture.draw(width, height)

    def _in_words(self, now: float) -> str:
        parts = [f"{len(self._ended)}/{len(self._folders)} done", f"{len(self._running)} running"]
        return ", ".join([*parts, *filter(None, [self._left_in_words(now)])])

    def _left_in_words(self, now: float) -> str:
        if now >= self._estimate_next:
            before = time.perf_counter()
            self._left, self._estimated = self._time_left(now), now
            self._estimate_next = now + max(_CLOCK_S, 200 * (time.perf_counter() - before))
        return time_left.about(self._left.after(now - self._estimated)) if self._left else ""

    def _time_left(self, now: float) -> time_left.Estimate | None:
        running = list(self._running.values())
        underway = [time_left.Underway(r.params, now - r.started, r.total, r.part) for r in running]
        return time_left.time_left(list(self._waiting.values()), underway, self._past.copy(), self._num_lanes)

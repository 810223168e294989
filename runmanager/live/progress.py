"""What a grid shows while it runs: a picture in a terminal or a notebook, plain lines elsewhere."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rich.cells import cell_len

from runmanager.console import Table, cell, choose_screen, duration, join, printable
from runmanager.executors import Step
from runmanager.grid import Run
from runmanager.live import time_left
from runmanager.live.picture import Picture, Running, label
from runmanager.live.screen import LivePicture, Part
from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.storage.folders import RunFolder

_LIVE_S = 0.25  # from one picture to the next, at least
_CLOCK_S = 1.0  # and at most, as clocks go on
_PLAIN_S = 60.0  # from one plain line on the whole grid to the next, at least


class GridProgress:
    """Shows how far a grid is.

    What executors tell comes in one thread; another one draws. All they share is replaced, never changed.

    Args:
        name: The experiment.
        places: id() of each run of the grid -> where it lives.
        todo: The runs to execute.
        varying: The hyperparameters that tell the runs apart.
        lanes: How many runs are executed at the same time, at most.
        past: Hyperparameters and duration (s) of the runs that were completed before.
        show: False shows nothing at all.
        check: Called when a run begins or gets on; what it raises goes to the executor.
    """

    def __init__(
        self,
        name: str,
        places: Mapping[int, RunFolder],
        todo: Sequence[Run],
        varying: list[str],
        *,
        lanes: int = 1,
        past: Sequence[tuple[Mapping[str, Any], float]] = (),
        show: bool = True,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._check = check or (lambda: None)
        self._places = places
        self._total = len(todo)
        self._varying = varying
        self._num_lanes = max(lanes, 1)
        self._known = list(past)
        self._show = show
        self._screen = choose_screen(show=show)
        self._picture = LivePicture(self._draw)
        self._waiting = {id(run): places[id(run)].params for run in todo}
        self._running: dict[int, Running] = {}
        self._ended: set[int] = set()
        self._devices: dict[int, str] = {}
        self._metrics: dict[str, None] = {}
        self._beside = [name for name in varying if name != "device"]  # which has a column of its own
        labels = [" ".join(label(params, self._beside)) for params in self._waiting.values()]
        self._label_width = max(map(cell_len, labels), default=0)
        self._is_stopping = False
        self._lines: deque[str] = deque()
        self._printing = threading.Lock()
        self._printed = float("-inf")
        self._is_changed = True
        self._left: float | None = None
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
        """Print a line above the picture; what would steer a terminal is escaped."""
        parts = (part.rstrip("\r").rpartition("\r")[2] for part in line.split("\n"))  # bars are drawn over
        self._lines.extend(printable(part.expandtabs()) for part in parts)
        if self._thread is None or not self._screen.is_live or time.monotonic() >= self._printed + _LIVE_S:
            self._flush()

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Show that a run has begun in a lane."""
        self._check()
        place, now = self._places[id(run)], time.monotonic()
        self._waiting.pop(id(run), None)
        self._ended.discard(id(run))  # once more
        self._devices[lane] = device
        shown = label(place.params, self._beside)
        self._running[id(run)] = Running(place.number, place.params, shown, lane, device, now, now)
        self._is_changed = True

    def run_progressed(self, run: Run, news: EpochRecord | Step) -> None:
        """Show how far a run is."""
        self._check()
        running = self._running.get(id(run))
        if running is None:
            return
        self._running[id(run)] = running.after(news, time.monotonic())
        if isinstance(news, EpochRecord):
            self._metrics.update(dict.fromkeys(_shown(news.metrics)))
        self._is_changed = True

    def run_ended(self, run: Run, outcome: Outcome, next_step: str) -> None:
        """Print how a run ended."""
        running, place = self._running.pop(id(run), None), self._places[id(run)]
        self._waiting.pop(id(run), None)
        self._ended.add(id(run))
        is_completed, waits = outcome.status is Status.COMPLETED, outcome.status is Status.PRUNED
        facts = [" ".join(["run", str(place.number), *label(place.params, self._varying)])]
        facts += [] if is_completed else ["waits" if waits else outcome.status]  # until all are at the rung
        if running:
            seconds = time.monotonic() - running.started
            facts += [_values(running.metrics), printable(outcome.error), duration(seconds)]
            if is_completed:
                self._known.append((place.params, seconds / running.part))
        else:
            facts.append(printable(outcome.error))
        mark = "✓" if is_completed else "–" if waits else "✗"  # noqa: RUF001 - a dash
        lines = [f"{mark} {len(self._ended)}/{self._total} {join(facts)}"]
        lines += [f"    {next_step}"] if next_step else []
        self.say("\n".join(lines))  # nothing comes between them
        self._is_changed = True

    def stopping(self) -> None:
        """Say, once, that the grid is being stopped."""
        if self._is_stopping:
            return
        self._is_stopping = True
        number = len(self._running)
        what = "1 running run stops" if number == 1 else f"{number} running runs stop"
        dropped = f": {what} now; the epoch in progress is dropped" if number else ""
        self.say(f"Stopping{dropped}. Press Ctrl-C again to force.")
        self._flush()

    def show_plan(self, table: Table, summary: str) -> None:
        """Print what would be executed where, and what is done already."""
        self._flush()
        self._screen.print_table(table)
        self.say(summary)

    def _keep_up_to_date(self) -> None:
        drawn, said = float("-inf"), ""
        while not self._end.wait(_LIVE_S if self._screen.is_live else _PLAIN_S):
            now = time.monotonic()
            if not self._screen.is_live:
                if (line := self._in_words(now)) != said:
                    self.say(line)
                    said = line
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
            len(self._ended), self._total, now - self._began, self._left_in_words(now), now,
        )  # fmt: skip
        return picture.draw(width, height)

    def _in_words(self, now: float) -> str:
        parts = [f"{len(self._ended)}/{self._total} done", f"{len(self._running)} running"]
        return ", ".join([*parts, *filter(None, [self._left_in_words(now)])])

    def _left_in_words(self, now: float) -> str:
        if now >= self._estimate_next:
            before = time.perf_counter()
            self._left = self._time_left(now)
            self._estimate_next = now + max(_CLOCK_S, 200 * (time.perf_counter() - before))
        return "" if self._left is None else f"{time_left.about(self._left)} left"

    def _time_left(self, now: float) -> float | None:
        running = list(self._running.values())
        underway = [time_left.Underway(r.params, now - r.started, r.total, r.part) for r in running]
        return time_left.time_left(list(self._waiting.values()), underway, self._known.copy(), self._num_lanes)


def _shown(metrics: Mapping[str, float]) -> list[str]:
    return [name for name in metrics if name.endswith(("loss", "accuracy"))]


def _values(metrics: Mapping[str, float]) -> str:
    return join(f"{printable(name)} {cell(metrics[name])}" for name in _shown(metrics))

"""The timeline of the devices: one bar for every attempt at a run."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from runmanager.core.journal import read_attempt
from runmanager.core.outcome import Status
from runmanager.core.state import RunResult
from runmanager.core.wording import counted, printable
from runmanager.report.model import PageAxis
from runmanager.report.run_colors import color
from runmanager.report.svg import Figure, Scale, cut_text, spaced
from runmanager.tables.cells import duration

_MOST_RUNS = 2000  # maximum number of runs whose journals are read for times
_MOST_LANES = 24
_LANE, _TOP, _LEFT, _RIGHT, _WIDTH, _BOTTOM = 16, 8, 110, 14, 1000, 40
_PAUSE = 0.1  # a gap above this share of the busy time is cut out


class Busy(NamedTuple):
    """An attempt at a run; times are in seconds since 1970."""

    run: int  # the index of the run
    device: str
    begin: float
    end: float
    is_success: bool  # whether the attempt is completed, pruned, running or interrupted


def timeline(busy: Sequence[Busy], colored: PageAxis | None) -> tuple[str, str] | None:
    """Draw the attempts of all runs by device and time, with a sentence; None without enough attempts."""
    if len(busy) < 2:  # noqa: PLR2004 - a single bar shows nothing
        return None
    spans = union([(each.begin, each.end) for each in busy])
    total = sum(end - begin for begin, end in spans)
    if total <= 0:
        return None
    words = _sentence(busy, spans[-1][1] - spans[0][0])
    positions, pauses, length = _compress(spans, total)
    lanes = [(device, row) for device, rows in _lanes(busy).items() for row in rows][:_MOST_LANES]
    base = _TOP + _LANE * len(lanes)
    facts = {"figure": "bars"}
    figure = Figure(
        "timeline", "Runs by device and time", words, _WIDTH, base + _BOTTOM, bottom=0, right=0, facts=facts
    )
    x = Scale(0.0, length, _LEFT, _WIDTH - _RIGHT)
    for tick in x.ticks(6):
        figure.line(x(tick), _TOP, x(tick), base, "grid")
        figure.text(x(tick), base + 15, duration(tick) if tick else "0")
    figure.text(
        _LEFT,
        base + 33,
        f"time without pauses over {duration(_PAUSE * total)}" if pauses else "time since the first start",
        "name",
        "start",
    )
    for begin in pauses:
        figure.line(x(begin), _TOP, x(begin), base, "pause")
    for number, (device, row) in enumerate(lanes):
        y = _TOP + _LANE * (number + 0.5)
        if number == 0 or lanes[number - 1][0] != device:
            figure.text(_LEFT - 8, y + 4, cut_text(device, _LEFT - 10), "name", "end")
        for each in row:
            begin, end = x(positions(each.begin)), x(positions(each.end))
            d = f"M{begin:.1f} {y:.1f}h{max(1.0, end - begin - 1):.1f}"
            kind = f"bar {color(colored, each.run)}" if each.is_success else "bar lost"
            figure.path(d, kind, data_runs=str(each.run))
            if not each.is_success:
                figure.path(
                    f"M{end - 3:.1f} {y - 3:.1f}l6 6M{end - 3:.1f} {y + 3:.1f}l6 -6",
                    "cross",
                    data_r=str(each.run),
                )
    return str(figure), words


def attempts(results: Sequence[RunResult]) -> list[Busy]:
    """Read the start and end times of attempts; if there are many runs, of a sample of the runs."""
    busy = []
    for index in spaced(range(len(results)), _MOST_RUNS):
        run = results[index]
        for path, (_, _, changed_ns) in run.journals.items():
            try:
                attempt = read_attempt(path)
            except OSError:
                continue
            begin = attempt.start.get("t_wall", math.nan)
            end = attempt.end.get("t_wall", changed_ns / 1e9)  # a killed attempt has no end line
            if not (isinstance(end, (int, float)) and begin <= end):
                continue
            status = attempt.outcome.status if attempt.outcome else run.status
            is_success = status.is_success or status in (Status.RUNNING, Status.INTERRUPTED)
            device = str(attempt.start.get("device") or "device")
            busy.append(Busy(index, printable(device), float(begin), float(end), is_success))
    return busy


def union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge overlapping spans of time.

    >>> union([(0, 2), (5, 6), (1, 3)])
    [(0, 3), (5, 6)]
    """
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _sentence(busy: Sequence[Busy], whole: float) -> str:
    """Return a sentence on the share of the whole time in which each device was busy."""
    parts = []
    for device in dict.fromkeys(each.device for each in busy):
        times = [(each.begin, each.end) for each in busy if each.device == device]
        seconds = sum(end - begin for begin, end in union(times))
        lost = sum(not each.is_success for each in busy if each.device == device)
        failed = f", {lost} of them failed" if lost else ""
        attempts = f"{counted(len(times), 'attempt')}{failed}"
        parts.append(f"{device} was busy for {duration(seconds)} ({100 * seconds / whole:.0f} %, {attempts})")
    return f"In the {duration(whole)} from the first start to the last end, {'; '.join(parts)}."


def _lanes(busy: Sequence[Busy]) -> dict[str, list[list[Busy]]]:
    """Return the rows of each device; attempts that overlap are in different rows."""
    lanes: dict[str, list[list[Busy]]] = {}
    for each in sorted(busy, key=lambda each: (each.device, each.begin)):
        rows = lanes.setdefault(each.device, [])
        row = next((row for row in rows if row[-1].end <= each.begin + 0.01), None)
        if row is None:
            rows.append([each])
        else:
            row.append(each)
    return lanes


def _compress(
    spans: Sequence[tuple[float, float]], total: float
) -> tuple[Callable[[float], float], list[float], float]:
    """Cut out long pauses."""
    starts: list[tuple[float, float]] = []  # pairs of a time (s) and its position
    pauses: list[float] = []  # positions
    at = 0.0
    for number, (begin, end) in enumerate(spans):
        if number:
            gap = begin - spans[number - 1][1]
            if gap > _PAUSE * total:
                pauses.append(at)
                gap = 0.0
            at += gap
        starts.append((begin, at))
        at += end - begin

    def position(time: float) -> float:
        begin, offset = next(pair for pair in reversed(starts) if pair[0] <= time)
        return offset + time - begin

    return position, pauses, at

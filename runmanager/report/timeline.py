"""The timeline of the devices: one bar for every attempt at a run."""

import itertools
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from runmanager.answers.sentences import statuses_in_words
from runmanager.core.journal import read_attempt
from runmanager.core.outcome import Status
from runmanager.core.state import RunResult
from runmanager.core.wording import counted, printable
from runmanager.report.model import ReportData
from runmanager.report.svg import Figure, Scale, cut_text, spaced
from runmanager.tables.cells import duration

_MOST_RUNS = 2000  # maximum number of runs whose journals are read for times
_MOST_LANES = 24
_LANE, _TOP, _LEFT, _RIGHT, _WIDTH, _BOTTOM = 22, 20, 110, 24, 1000, 40
_PAUSE = 0.1  # a gap above this share of the busy time is cut out


class Busy(NamedTuple):
    """An attempt at a run; times are in seconds since 1970."""

    run: int  # the index of the run
    device: str
    begin: float
    end: float
    status: Status


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
            if isinstance(end, (int, float)) and begin <= end:
                status = attempt.outcome.status if attempt.outcome else run.status
                device = printable(str(attempt.start.get("device") or "device"))
                busy.append(Busy(index, device, float(begin), float(end), status))
    return busy


def timeline(busy: Sequence[Busy], data: ReportData) -> Figure | None:
    """Draw the attempts of all runs by device and time, with a sentence; None without enough attempts."""
    spans = union(busy)
    is_timed = any(begin < end for begin, end in spans) and any(run.epochs for run in data.results)
    if len(busy) < 2 or not is_timed:  # noqa: PLR2004 - one bar
        return None
    first, last = spans[0][0], spans[-1][1]
    pauses = _pauses(spans)

    def position(time: float) -> float:  # without the pauses before
        return time - first - sum(seconds for begin, seconds in pauses if begin < time)

    lanes = [(device, row) for device, rows in _lanes(busy).items() for row in rows][:_MOST_LANES]
    base = _TOP + _LANE * len(lanes)
    figure = Figure("timeline", "Runs by device and time", size=(_WIDTH, base + _BOTTOM), figure="bars")
    figure.words = f"{_sentence(busy, position(last))}."
    x = Scale(0.0, position(last), _LEFT, _WIDTH - _RIGHT)
    for tick in x.ticks(6):
        figure.line(x(tick), _TOP, x(tick), base, "grid")
        figure.text(x(tick), base + 15, duration(tick).replace(".0 s", " s") if tick else "0")
    figure.text(_LEFT, base + 33, "time without pauses", "name", "start")
    for time, seconds in pauses:
        at = x(position(time))
        figure.line(at, _TOP - 4, at, base, "pause")
        figure.text(at, _TOP - 7, f"+{duration(seconds)}")
    for number, (device, row) in enumerate(lanes):
        y = _TOP + _LANE * (number + 0.5)
        if number == 0 or lanes[number - 1][0] != device:
            figure.text(_LEFT - 8, y + 4, cut_text(device, _LEFT - 10), "name", "end")
        for attempt in row:
            left, right = x(position(attempt.begin)), x(position(attempt.end))
            is_lost = not (attempt.status.is_success or attempt.status in (Status.RUNNING, Status.INTERRUPTED))
            kind = "lost" if is_lost else data.color(attempt.run)
            d = f"M{left:.1f} {y:.1f}h{max(1.0, right - left - 1):.1f}"
            figure.path(d, f"bar {kind}", runs=[attempt.run])
            if is_lost:
                d = f"M{right - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6"
                figure.path(d, "cross", run=attempt.run)
    return figure


def times(busy: Sequence[Busy], *, is_over: bool) -> str:
    """Say when the first attempt began, and how long all took, with pauses; "" without attempts."""
    if not busy:
        return ""
    spans = union(busy)
    first, last = spans[0][0], spans[-1][1]
    text = f"Began {datetime.fromtimestamp(first, tz=UTC):%Y-%m-%d %H:%M} UTC, "
    text += f"{'took' if is_over else 'so far'} {duration(last - first)}"
    if pauses := _pauses(spans):
        text += f", with {counted(len(pauses), 'pause')} ({duration(sum(seconds for _, seconds in pauses))})"
    return f"{text}."


def _pauses(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the long gaps between spans of time: the begin and the length (s) of each."""
    total = sum(end - begin for begin, end in spans)
    gaps = [(end, begin - end) for (_, end), (begin, _) in itertools.pairwise(spans)]
    return [(time, seconds) for time, seconds in gaps if seconds > _PAUSE * total]


def union(busy: Sequence[Busy]) -> list[tuple[float, float]]:
    """Return the spans of time in which a run was executed, without overlaps."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted((attempt.begin, attempt.end) for attempt in busy):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _sentence(busy: Sequence[Busy], whole: float) -> str:
    """Return a sentence on the share of the time without long pauses in which each device was busy."""
    parts = []
    for device in dict.fromkeys(attempt.device for attempt in busy):
        attempts = [attempt for attempt in busy if attempt.device == device]
        seconds = sum(end - begin for begin, end in union(attempts))
        counts = statuses_in_words(attempt.status for attempt in attempts)
        share = f"{100 * seconds / whole:.0f} % of {duration(whole)}"
        parts.append(f"{device} was busy for {share} ({counted(len(attempts), 'attempt')}: {counts})")
    return "; ".join(parts)


def _lanes(busy: Sequence[Busy]) -> dict[str, list[list[Busy]]]:
    """Return the rows of each device; attempts that overlap are in different rows."""
    lanes: dict[str, list[list[Busy]]] = {}
    for attempt in sorted(busy, key=lambda attempt: (attempt.device, attempt.begin)):
        rows = lanes.setdefault(attempt.device, [])
        row = next((row for row in rows if row[-1].end <= attempt.begin + 0.01), None)
        if row is None:
            rows.append(row := [])
        row.append(attempt)
    return lanes

"""Metrics that other programs report: as columns, from the files that hold them, and as the rows of a run."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, NamedTuple

from runmanager.core import files
from runmanager.core.open_run import OpenRun
from runmanager.core.outcome import LEADING
from runmanager.core.state import read_run
from runmanager.core.values import RESERVED
from runmanager.core.wording import listed
from runmanager.front.manager import RunManager

if TYPE_CHECKING:
    from runmanager.tensorboard.import_events import EventRun

POSITION = "position"
"""The column of the program's own epoch, else of its step, at the end of a row."""

_TIME = "_timestamp"
_POSITIONS = {"epoch": "epoch", "step": "step", "global_step": "step", "iteration": "step"}
_FILLED = ("loss", "accuracy")  # a metric with one of these names fills the column of that name
_CHUNK = 1 << 16  # bytes that are read at once; no line of ours is longer
_DECODER = json.JSONDecoder()
_MOST_ROWS = 10_000  # of a run; later values are steps, and the last row has the last ones


def columns(values: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, float]:
    """Return those values of a program or a trainer that are single numbers, by column.

    Characters that are invalid in an identifier become ``_``. A name that is in use, for example by a
    hyperparameter, gets the suffix ``_logged``, so that no name stops a trainer.
    """
    taken = (RESERVED - {*_FILLED}) | params.keys()
    named: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, str):
            continue
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):  # not a single number
            continue
        column = column_name(name)
        while column in taken or column in named:
            column += "_logged"
        named[column] = number
    return named


def column_name(name: str) -> str:
    """Return the column of a metric's name: characters that are invalid in an identifier become ``_``."""
    return re.sub(r"\W|^(?=\d)", "_", name)


def log_steps(manager: RunManager, values: Mapping[str, float]) -> None:
    """Log columns as values of a step; those of `_FILLED` belong to epochs, and get other names."""
    manager.log({f"step_{name}" if name in _FILLED else name: value for name, value in values.items()})


class Reported(NamedTuple):
    """Metrics that a program reported at once."""

    values: Mapping[str, float]  # name -> value
    positions: Mapping[str, float]  # "epoch", "step" -> the program's own
    time: float  # of time.time()

    @property
    def position(self) -> float | None:
        """The epoch, else the step."""
        return self.positions.get("epoch", self.positions.get("step"))


def reported(content: Mapping[str, Any], at: float) -> Reported | None:
    """Return the numbers of a mapping, which may be nested, and its position; None without a number."""
    values: dict[str, float] = {}
    positions: dict[str, float] = {}
    for name, value in _numbers(content):
        if name == _TIME:
            at = value
        elif kind := _POSITIONS.get(name.lower()):
            positions.setdefault(kind, value)
        else:
            values[name] = value
    return Reported(values, positions, at) if values else None


def _numbers(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):  # an integer beyond all floats
                yield f"{prefix}{name}", float(value)


class LinesFile:
    """A file to which a program adds lines of JSON, which may have text around it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._show: Callable[[bytes], None] | None = None
        self._offset, self._rest = 0, b""

    def begin(self, show: Callable[[bytes], None] | None = None) -> None:
        """Begin with what a program adds from now on; `show` is called with it."""
        self._offset = self._path.stat().st_size if self._path.exists() else 0
        self._rest, self._show = b"", show

    def read(self, *, is_over: bool = False) -> Iterator[Reported]:
        """Yield what was added since the last call, at the end also from a last line without a newline."""
        with suppress(OSError), files.opened(self._path) as (file, state):
            file.seek(self._offset)
            while self._offset < state.st_size and (content := file.read(_CHUNK)):
                self._offset += len(content)
                if self._show:
                    self._show(content)
                *lines, self._rest = (self._rest + content).split(b"\n")
                yield from _of_lines(lines, state.st_mtime)
                if len(self._rest) > _CHUNK:  # no line of ours: what follows of it is no JSON
                    self._rest = b"-"
            if is_over:
                yield from _of_lines([self._rest], state.st_mtime)


def _of_lines(lines: Iterable[bytes], at: float) -> Iterator[Reported]:
    """Yield what lines of JSON report, at most once for a line."""
    for line in lines:
        text = line.decode("utf-8-sig", "replace")
        for opening in re.finditer("{", text):
            with suppress(ValueError, RecursionError):
                content = reported(_DECODER.raw_decode(text, opening.start())[0], at)
                if content:
                    yield content
                break


class MetricsFile:
    """A .csv file with a header, or lines of JSON, to which a program adds rows.

    It may also write the file again: with the rows so far, and further columns, or with new rows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: Sequence[Reported] = ()

    def begin(self) -> None:
        """Begin with what a program adds from now on."""
        self._rows = self._content(is_over=True)

    def read(self, *, is_over: bool = False) -> Sequence[Reported]:
        """Return the rows behind those that were there."""
        rows = self._content(is_over=is_over)
        is_same = [row.positions for row in rows[:1]] == [row.positions for row in self._rows[:1]]
        added = rows[len(self._rows) if is_same else 0 :]
        if added:
            self._rows = rows
        return added

    def _content(self, *, is_over: bool) -> Sequence[Reported]:
        """Return all rows, but for a last line without a newline of which more may come."""
        with suppress(OSError), files.opened(self._path) as (file, state):
            content = file.read()
            lines = content.splitlines()[: None if is_over or content.endswith(b"\n") else -1]
            if self._path.suffix != ".csv":
                return [*_of_lines(lines, state.st_mtime)]
            texts = [line.decode("utf-8-sig", "replace") for line in lines]
            rows = csv.DictReader(texts, restval="", skipinitialspace=True)
            numbers = [{name: _number(cell) for name, cell in row.items() if name} for row in rows]
            return [*filter(None, (reported(row, state.st_mtime) for row in numbers))]
        return ()


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


class EventFiles:
    """TensorBoard's event files in a folder and its subfolders, to which a program adds scalars.

    A part of the folder may be ``*``. A tag in a subfolder has its name in front, as those of `add_scalars`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._runs: dict[Path, EventRun] = {}
        self._offsets: dict[Path, int] = {}

    def _files(self) -> list[Path]:
        """Return the files, without those that we write."""
        root, *parts = self._folder.parts
        paths = sorted(Path(root).glob("/".join([*parts, "**/*tfevents*"])))
        return [path for path in paths if not (path.parent / files.RUN).exists()]

    def begin(self) -> None:
        """Begin with what a program adds from now on."""
        self._offsets = {path: path.stat().st_size for path in self._files()}

    def read(self, **_: bool) -> Sequence[Reported]:
        """Return what was added since the last call, by time."""
        from runmanager.tensorboard import event_file
        from runmanager.tensorboard.import_events import EventRun  # imports pandas

        given: list[Reported] = []
        for path in self._files():
            prefix = "".join(f"{part}/" for part in path.parent.parts[len(self._folder.parts) :])
            with suppress(OSError, ValueError), event_file.mapped(path) as content:
                for position in event_file.records(content, self._offsets.get(path, 0)):
                    event = event_file.read_event(content[position])
                    self._offsets[path] = position.stop
                    run = self._runs.setdefault(path, EventRun())
                    if values := {f"{prefix}{tag}": value for tag, value in run.scalars(event)}:
                        given.append(Reported(values, {"step": event.step}, event.wall_time))
        return sorted(given, key=lambda each: each.time)


class Rows:
    """The rows of a run: a row ends when its metrics come again, and has the last value of each metric.

    A row ends where the epoch differs, else where the step differs, else where a metric comes again. With a
    goal, no row ends without its metric. What comes more often in a row is logged as steps too.

    A program that resumes by itself goes on at a position of the goal's metric. The rows before it are kept;
    those that were reported before it, but not committed, are added.
    """

    def __init__(self, manager: RunManager, run: OpenRun) -> None:
        self._manager, self._run = manager, run
        self._goal = column_name(run.context.goal.metric) if run.context.goal else None
        self._row: dict[str, float] = {}
        self._positions: dict[str, float] = {}  # the last ones of the row
        self._dense: set[str] = set()  # columns that came more often than once in a row
        self._start = self._end = perf_counter()  # of the row
        self._before: list[tuple[dict[str, float], list[Reported]]] = []  # earlier rows, and their reports
        self._held: list[Reported] = []  # until it is clear where the program goes on

    def resume(self, before: Iterable[Reported]) -> bool:
        """Wait where the program goes on, if earlier attempts that it may go on from reported a position."""
        if self._run.context.continued(read_run(self._run.folder)) is None:
            return False
        reports: list[Reported] = []
        for each in before:
            values = columns(each.values, self._run.folder.params)
            if self._ends(values, each):
                self._keep(reports)
                reports = []
            self._take(values, each)
            reports.append(each)
        self._keep(reports)
        return bool(self._before)

    def _keep(self, reports: list[Reported]) -> None:
        """Keep the open row as an earlier one, in place of those of an attempt that was resumed before it."""
        if {POSITION, self._goal} <= self._row.keys():
            while self._before and self._before[-1][0][POSITION] >= self._row[POSITION]:
                self._before.pop()
            self._before.append((self._row, reports))
        self._row, self._positions = {}, {}

    def add(self, given: Reported) -> None:
        """Add metrics, and end the row before them if they belong to the next one."""
        self._run.report_step()
        values = columns(given.values, self._run.folder.params)
        if self._before:
            self._held.append(given)
            if self._goal in values and given.position is not None:
                self._go_on(given.position)
            return
        if self._ends(values, given):
            self._commit()
        if self._manager.should_stop:
            return
        if not self._row:
            self._manager.begin_epoch()
        again = values.keys() & self._row.keys() - self._dense
        self._dense |= again
        for part in ({name: self._row[name] for name in again}, values):
            log_steps(self._manager, {name: value for name, value in part.items() if name in self._dense})
        self._take(values, given)
        self._end = max(self._end, perf_counter() - max(0.0, time() - given.time))

    def _take(self, values: Mapping[str, float], given: Reported) -> None:
        """Take values into the open row."""
        self._row |= values
        self._positions |= given.positions
        if given.position is not None and (self._goal in values or self._goal not in self._row):
            self._row[POSITION] = given.position

    def _ends(self, values: Mapping[str, float], given: Reported) -> bool:
        """Whether the open row ends before these values."""
        if self._run.number > _MOST_ROWS or (self._goal and self._goal not in self._row):
            return False
        for kind in ("epoch", "step"):
            if kind in self._positions and kind in given.positions:
                return self._positions[kind] != given.positions[kind]
        return not values.keys().isdisjoint(self._row)

    def end(self) -> None:
        """Commit the last row, unless it lacks the goal's metric, as losses after the last evaluation do."""
        if self._before:
            self._go_on(math.inf)
        if self._goal and self._goal not in self._row and self._run.records:
            self._run.epoch, self._run.number, self._row = None, len(self._run.records), {}
        if self._row:
            self._commit()

    def lacking(self) -> str:
        """Return what no row has, the goal's metric or any, and which there are; "" if nothing is lacking."""
        names = {name for record in self._run.records for name in record.metrics} - {*LEADING[2:], POSITION}
        if not names:
            return "no metric"
        return "" if self._goal in {*names, None} else f"no {self._goal}, but {listed(sorted(names))}"

    def _commit(self) -> None:
        """Commit the open row."""
        epoch = self._manager._open_epoch("a row")  # noqa: SLF001 - as adapters of trainers do
        epoch.add_evaluation(self._row, 0.0)
        # the program went on while listeners took their time, which is left out of the time of the run
        epoch.start = self._start + self._run.outside
        epoch.stop_clock(self._end + self._run.outside)
        self._row, self._positions, self._start = {}, {}, self._end
        self._manager.end_epoch()

    def _go_on(self, start: float) -> None:
        """Keep the earlier rows before a position, and add what was reported before and after it."""
        earlier = self._run.context.continued(read_run(self._run.folder)) or ()
        before, self._before = [pair for pair in self._before if pair[0][POSITION] < start], []
        kept = 0
        for record, (row, _) in zip(earlier, before, strict=False):
            if any(record.metrics.get(name) != row[name] for name in (POSITION, self._goal or "")):
                break
            kept += 1
        self._manager.resume_epoch = kept
        self._manager._resume_from()  # now, as a program that had ended begins no row
        for _, reports in before[kept:]:
            for each in reports:
                self.add(each)
        for each in self._held:
            self.add(each)

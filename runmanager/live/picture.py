"""What a grid looks like while it runs: a line for each lane, and a bar."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from runmanager.console import cell, printable
from runmanager.hyperparameters import text
from runmanager.live.screen import Part
from runmanager.outcome import BatchProgress, EpochRecord

_SILENT_S = 30  # without news before the line says so
_LONGEST_VALUE = 20
_LEAST_LABEL = 24  # characters left for hyperparameters before a column is left out
_BAR = (10, 40)  # its least and greatest width
_GAP = "  "
_LEAST_PROGRESS = 0.01  # of a run, before its own speed counts
_ECHO = 5  # columns free behind the last line: a terminal that echoes ^C there, twice, begins no new line


@dataclass(frozen=True)
class Running:
    """The progress of a run that is being executed; all times are of one clock."""

    number: int
    params: Mapping[str, Any]
    label: Sequence[str]  # the hyperparameters that tell it from the others, each as text
    lane: int  # from 0
    device: str
    started: float  # when this attempt began
    heard: float  # when its last message came
    epoch: int = 0  # of that message, 0 before the first one
    step: int = 0  # the batch of that message, 0 if it had none
    num_epochs: int | None = None  # of the run, None if that is not known
    first: int = 0  # the first epoch of this attempt, 0 before it began
    committed: int = 0  # the last epoch that is committed
    num_steps: int = 0  # of an epoch: as the loader says, else the largest number of a batch so far
    is_measured: bool = False  # whether the loader says it
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last committed epoch; the loss so far
    first_done: tuple[float, float] | None = None  # when this attempt was first heard of, the part done then

    def after(self, news: EpochRecord | BatchProgress, now: float) -> "Running":
        """Return the progress after a message."""
        first = self.first or news.epoch
        if isinstance(news, EpochRecord):
            progress = replace(self, epoch=news.epoch, step=0, committed=news.epoch, metrics=news.metrics)
        else:
            progress = replace(
                self, epoch=news.epoch, step=news.batch, num_epochs=news.num_epochs or self.num_epochs,
                num_steps=max(news.num_batches or self.num_steps, news.batch),
                is_measured=self.is_measured or bool(news.num_batches),
                metrics=self.metrics if news.loss is None else {**self.metrics, "loss": news.loss},
            )  # fmt: skip
        progress = replace(progress, first=first, heard=now)
        return replace(progress, first_done=self.first_done or (now, progress.done))

    @property
    def part(self) -> float:
        """The part of its epochs that this attempt executes: 1 unless it continues after some."""
        return max(self._num_to_execute / self.num_epochs, 0.0) or 1.0 if self.num_epochs else 1.0

    @property
    def done(self) -> float:
        """The part of this attempt that is done; 0 in its first epoch if nobody says how long that is."""
        if not self.num_epochs or not self.first or (self.committed < self.first and not self.is_measured):
            return 0.0
        in_epoch = self.step / self.num_steps if self.num_steps and self.epoch > self.committed else 0.0
        num_done = max(self.committed - self.first + 1, 0) + in_epoch
        return min(num_done / max(self._num_to_execute, 1), 1.0)

    @property
    def total(self) -> float | None:
        """The estimated duration of this attempt (s), None before there is progress to judge by.

        What comes before its first batch, such as loading data, is not repeated.
        """
        if not self.done or self.first_done is None:
            return None
        begin, done = self.first_done
        if self.done - done < _LEAST_PROGRESS:
            return None
        return begin - self.started + (self.heard - begin) * (1 - done) / (self.done - done)

    @property
    def _num_to_execute(self) -> int:
        return (self.num_epochs or 0) - max(self.first, 1) + 1


class Picture(NamedTuple):
    """The lanes of a grid and its bar, at one moment."""

    name: str  # of the experiment
    lanes: Sequence[tuple[str, Running | None]]  # the device of each lane and the run in it, None if idle
    label_width: int  # of the longest label of all runs
    metrics: Sequence[str]  # that have columns, the most important first
    ended: int  # runs
    total: int  # runs
    elapsed: float  # seconds since the grid began
    left: str  # the time left, in words
    now: float  # of the same clock as that of the runs

    def draw(self, width: int, height: int) -> list[list[Part]]:
        """Return lines of at most `width` characters, at most `height` of them."""
        most = max(height - 4, 1)  # lanes; the cursor's line stays free
        lanes = self.lanes if len(self.lanes) <= most + 1 else self.lanes[:most]
        lines = self._lanes(lanes, width) if lanes else []
        if len(lanes) < len(self.lanes):
            lines.append([Part(_cut(f"and {len(self.lanes) - len(lanes)} more lanes", width), "dim")])
        return [*lines, self._bar(max(width - _ECHO, 1))]

    def _width(self, name: str) -> int:
        """Return the width of a column, with the gap in front of it."""
        steps = [_value(running, name) for _, running in self.lanes if running and name == "step"]
        return len(_GAP) + max(cell_len(printable(name)), 5 if steps else 6, *map(len, steps))

    def _lanes(self, lanes: Sequence[tuple[str, Running | None]], width: int) -> list[list[Part]]:
        devices = max(len("device"), *(cell_len(printable(device)) for device, _ in lanes))
        epochs = max(len("epoch"), *(len(_epoch(running)) for _, running in lanes if running), 0)
        room = width - len(_GAP.join(["", "run", "", "", "   time"])) - devices - epochs
        columns = self._columns(room)
        room -= sum(map(self._width, columns))
        label = max(min(room, self.label_width), 0)
        names = [printable(name).rjust(self._width(name) - len(_GAP)) for name in columns]
        head = ["device".ljust(devices), "run", " " * label, "epoch".rjust(epochs), *names, "   time"]
        lines = [[Part(_cut(_GAP.join(head), width), "dim")]]
        for device, running in lanes:
            start = Part(f"{set_cell_size(printable(device), devices)}{_GAP}")
            line = self._run(running, label, epochs, columns) if running else [Part("idle", "dim")]
            lines.append(_fitting([start, *line], width))
        return lines

    def _columns(self, room: int) -> list[str]:
        """Choose what there is room for: the first ones leave some of a label, others all of it."""
        decisive = self.metrics[0] if self.metrics else "loss"
        names = dict.fromkeys((decisive, "loss", "accuracy", "step"))
        first = [name for name in names if name == "step" or name in self.metrics]
        columns: list[str] = []
        for name in [*first, *(name for name in self.metrics if name not in first)]:
            least = min(self.label_width, _LEAST_LABEL) if name in first else self.label_width
            if room - self._width(name) >= least:
                columns.append(name)
                room -= self._width(name)
        return sorted(columns, key=["step", *self.metrics].index)

    def _run(self, running: Running, label: int, epochs: int, columns: Sequence[str]) -> list[Part]:
        silent = self.now - running.heard
        notice = f"no news for {silent:.0f} s" if silent > _SILENT_S else ""
        values = ["" if notice else _value(running, name) for name in columns]
        cells = [
            value.rjust(self._width(name) - len(_GAP)) for value, name in zip(values, columns, strict=True)
        ]
        epoch = _epoch(running).rjust(epochs)
        line = _GAP.join([f"{running.number:>3}", _padded(running.label, label), epoch, *cells])
        start = set_cell_size(line, max(cell_len(line) - len(notice), 0))
        time = f"{_GAP}{clock(self.now - running.started):>7}"
        return [Part(start), Part(notice, "yellow"), Part(time)]

    def _bar(self, width: int) -> list[Part]:
        done = self.ended + sum(running.done for _, running in self.lanes if running)
        ended = f"{self.ended:>{len(str(self.total))}}/{self.total}"
        counts = _GAP.join(["", ended, clock(self.elapsed), *filter(None, [self.left])])
        least, most = _BAR
        name = _cut(printable(self.name), max(width - len(counts) - least - len(_GAP), 0))
        room = width - cell_len(name) - len(_GAP) - len(counts)
        length = max(min(room, most), 0)
        full = min(int(length * done / self.total), length) if self.total else length
        bar = [Part("━" * full, "green"), Part("╌" * (length - full), "bright_black")]
        return _fitting([Part(f"{name}{_GAP}" if name else ""), *bar, Part(counts)], width)


def label(params: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Name a run by the hyperparameters that vary; long values are cut.

    >>> label({"lr": 0.01, "device": "cpu"}, ["lr"])
    ['lr=0.01']
    """
    values = ((name, printable(text(params[name]))) for name in names if name in params)
    return [f"{printable(name)}={_cut(value, _LONGEST_VALUE)}" for name, value in values]


def clock(seconds: float) -> str:
    """Write a time as a clock shows it.

    >>> clock(83), clock(4983.4)
    ('1:23', '1:23:03')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _epoch(running: Running) -> str:
    of = "" if running.num_epochs is None else f"/{running.num_epochs}"
    return f"{running.epoch}{of}" if running.epoch else ""


def _value(running: Running, name: str) -> str:
    if name == "step":
        of = f"/{running.num_steps}" if running.is_measured else ""
        return f"{running.step}{of}" if running.step else ""
    return cell(running.metrics[name]) or "nan" if name in running.metrics else ""


def _cut(line: str, width: int) -> str:
    if cell_len(line) <= width:
        return line
    return f"{set_cell_size(line, width - 1)}…" if width > 0 else ""


def _padded(parts: Sequence[str], width: int) -> str:
    """Write as many parts as there is room for; part of a number would be another number."""
    some = (" ".join([*parts[:number], "…"]) for number in range(len(parts) - 1, 0, -1))
    fitting = (label for label in [" ".join(parts), *some] if cell_len(label) <= width)
    return set_cell_size(next(fitting, "") or _cut(" ".join(parts), width), width)


def _fitting(line: Sequence[Part], width: int) -> list[Part]:
    """Cut a line at the width."""
    fitting: list[Part] = []
    for part in line:
        fitting.append(part._replace(text=_cut(part.text, width)))
        width -= cell_len(fitting[-1].text)
    return fitting

"""The rows of runs in a terminal; ended and running runs share the same columns."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.cells import cell_len, set_cell_size

from runmanager.core.goal import KEPT
from runmanager.core.outcome import LEADING
from runmanager.core.wording import printable
from runmanager.drawing.table import GAP, Table
from runmanager.tables.cells import brief, cell, join, steady

DEVICE = "device"

_COUNT, _RUN, _EPOCH, DURATION = "", "run", "epoch", "run duration"
_LEAST = {DURATION: len("59.9 s")}
_LONG_TIME = len("59 min 59 s")
_METRIC = len("0.0000")  # the minimum width of a metric
_INDENT = "    "
_NUM_FIRST_AXES = 3  # number of axes that a narrow terminal keeps longest


@dataclass(frozen=True)
class Row:
    """The contents of a run's row."""

    count: str = ""  # the sign of the run's status, and the number of ended runs
    number: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    epoch: str = ""
    time: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    # alternative texts for the end of the row; the first text that fits is shown, else the last text
    notes: Sequence[str] = ()
    cause: str = ""  # the cause, as a part of a note or on a separate line
    next_step: str = ""  # the next step, on a separate line


@dataclass(frozen=True)
class RunColumns:
    """The columns that the rows of all runs of a grid share.

    A column never becomes narrower, so that rows printed one after another stay aligned.

    Attributes:
        axes: The hyperparameters that vary, the least important last.
        metrics: The metrics with a column, the most important first.
        has_device: Whether the device has a column.
    """

    axes: Sequence[str] = ()
    metrics: Sequence[str] = ()
    has_device: bool = False
    widths: Mapping[str, int] = field(default_factory=lambda: _LEAST)
    texts: frozenset[str] = frozenset()  # axes that have values other than numbers

    def holding(self, rows: Iterable[Row]) -> "RunColumns":
        """Return the columns, widened to fit these rows."""
        widths, texts = dict(self.widths), set(self.texts)
        for row in rows:
            for name, content in self._cells(row).items():
                width = _LONG_TIME if name == DURATION and "min" in content else cell_len(content)
                widths[name] = max(widths.get(name, 0), width)
            texts |= {
                name
                for name, value in row.params.items()
                if isinstance(value, bool) or not isinstance(value, int | float)
            }
        if widths == self.widths and texts == self.texts:
            return self
        return replace(self, widths=widths, texts=frozenset(texts))

    def lines(self, rows: Sequence[Row], width: int) -> tuple[list[str], list[str], list[str]]:
        """Return the lines of the headings, one line per row, and the axes that do not fit."""
        drawn, left_out = self._table(rows).fitted(width)
        lines = [line.plain for line in drawn]
        headings = lines[: len(lines) - len(rows)]
        noted = [_noted(line, row.notes, width) for line, row in zip(lines[len(headings) :], rows, strict=True)]
        return headings, noted, [name for name in left_out if name not in self.metrics]

    def explained(self, row: Row, width: int) -> list[str]:
        """Return the line of a row, and further lines with the cause, if it does not fit, and the next step."""
        _, (line,), _ = self.lines([row], width)
        cause = row.cause if row.cause and row.notes[1] not in line else ""
        return [line, *_indented(cause, row.next_step)]

    def in_words(self, row: Row, width: int) -> list[str]:
        """Return the row as a line of named values, and further lines as in `explained`."""
        name, time = self.label(row.params), f"{row.time:>7}" if row.time else ""
        start = f"{row.count} run {row.number:>{self.widths.get(_RUN, 0)}}{name and f' {name}'}"
        values = [f"{printable(name)} {steady(value):<{_METRIC}}" for name, value in row.metrics.items()]
        for num_values in range(len(values), -1, -1):
            line = join([start, *values[:num_values], row.notes[0], time])
            if cell_len(line) <= width:
                return [line.rstrip(), *_indented(row.next_step)]
        return [join([start, row.notes[-1], time]), *_indented(row.cause, row.next_step)]

    def label(self, params: Mapping[str, Any]) -> str:
        """Return the varying values of a run as text, each padded to the longest value of its axis.

        >>> columns = RunColumns(["lr", "seed"]).holding([Row(params={"lr": 0.01}), Row(params={"seed": 1})])
        >>> columns.label({"lr": 0.1, "seed": 1, "device": "cpu"})
        'lr=0.1  seed=1'
        """
        parts = []
        for name in self.axes:
            value = _value(params[name]) if name in params else ""
            padding = " " * (self.widths.get(_column(name), 0) - cell_len(value))
            part = f"{printable(name)}={value}"
            parts.append(f"{part if name in params else ' ' * cell_len(part)}{padding}")
        return " ".join(parts)

    @property
    def _axes(self) -> list[str]:
        return [_column(name) for name in self.axes if name != DEVICE]

    @property
    def _names(self) -> list[str]:
        return [_COUNT, _RUN, *self._axes, *[DEVICE] * self.has_device, _EPOCH, DURATION, *self.metrics]

    @property
    def _right(self) -> list[str]:
        return [name for name in self._names if name not in (_COUNT, DEVICE, *map(_column, self.texts))]

    def _table(self, rows: Sequence[Row]) -> Table:
        axes, names = self._axes, self._names
        first = [_COUNT, _RUN, _EPOCH, DURATION, *axes[:1], *self.metrics[:1], *axes[1:_NUM_FIRST_AXES]]
        last = [name for name in self.metrics if f"{KEPT}{name}" in self.metrics]
        return Table(
            names,
            [[each.get(name, "") for name in names] for each in map(self._cells, rows)],
            right=self._right,
            first=[*first, DEVICE, *axes[_NUM_FIRST_AXES:], *last],
            least={
                **self.widths,
                **{name: max(self.widths.get(name, 0), _METRIC) for name in self.metrics},
            },
        )

    def _cells(self, row: Row) -> dict[str, str]:
        axes = {_column(name): _value(row.params[name]) for name in self.axes if name in row.params}
        metrics = {name: steady(value) for name, value in row.metrics.items()}
        device = row.device or axes.get(DEVICE, "")
        others = {_COUNT: row.count, _RUN: row.number, DEVICE: device, _EPOCH: row.epoch, DURATION: row.time}
        return {**axes, **metrics, **others}


def _column(axis: str) -> str:
    """Return the heading of an axis, which must differ from all other headings."""
    return f"{axis} (hyperparameter)" if axis in (*LEADING, _RUN, _EPOCH, DURATION, "status") else axis


def _value(value: Any) -> str:
    return cell(value) if isinstance(value, float) and math.isfinite(value) else brief(value)


def _indented(*lines: str) -> list[str]:
    return [f"{_INDENT}{line}" for line in lines if line]


def _noted(line: str, notes: Sequence[str], width: int) -> str:
    for note in notes:
        noted = f"{line}{GAP}{note}".rstrip()
        if cell_len(noted) <= width:
            return noted
    if not notes:
        return line
    end = f"{GAP}{notes[-1]}"
    return f"{set_cell_size(line, max(width - cell_len(end), 0))}{end}"

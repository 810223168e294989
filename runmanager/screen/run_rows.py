"""The rows of runs in a terminal: those that have ended and those that go on have the same columns."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.cells import cell_len, set_cell_size

from runmanager.outcome import LEADING
from runmanager.table import GAP, Table
from runmanager.wording import brief, cell, join, printable, steady

DEVICE = "device"

_COUNT, _RUN, _EPOCH, _TIME, _NOTE = "", "run", "epoch", "time", " "
_LEAST = {_TIME: len("59.9 s")}
_LONG_TIME = len("59 min 59 s")
_LEAST_METRIC = len("0.0000")
_VALUE = 7  # the width of most values, so that lines in words are aligned
_INDENT = "    "
_NUM_FIRST_AXES = 3  # that are as good as all: the goal comes before further ones


@dataclass(frozen=True)
class Row:
    """What there is to say about a run."""

    count: str = ""  # its sign, and how many have ended
    number: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    epoch: str = ""
    time: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()  # the row ends in the first one that fits, else in the last one
    cause: str = ""  # is in a note, or has a line of its own


@dataclass(frozen=True)
class RunColumns:
    """The columns that all runs of a grid have in common, from the first to the last that is shown.

    None becomes narrower, so that rows are aligned that are printed one after the other.

    Attributes:
        axes: The hyperparameters that tell runs apart, the least important last.
        metrics: Those that have columns, the most important first.
        has_device: Whether runs have several devices.
    """

    axes: Sequence[str] = ()
    metrics: Sequence[str] = ()
    has_device: bool = False
    widths: Mapping[str, int] = field(default_factory=lambda: _LEAST)
    texts: frozenset[str] = frozenset()  # axes that have values that are no numbers

    def holding(self, rows: Iterable[Row]) -> "RunColumns":
        """Return the columns in which there is room for these rows too."""
        widths, texts = dict(self.widths), set(self.texts)
        for row in rows:
            for name, content in self._cells(row).items():
                width = _LONG_TIME if name == _TIME and "min" in content else cell_len(content)
                widths[name] = max(widths.get(name, 0), width)
            texts |= {name for name, value in row.params.items() if not _is_number(value)}
        if widths == self.widths and texts == self.texts:
            return self
        return replace(self, widths=widths, texts=frozenset(texts))

    def lines(self, rows: Sequence[Row], width: int) -> tuple[list[str], list[str], list[str]]:
        """Return the lines of the headings, one for each row, and the axes for which there is no room.

        The metrics are the last columns, so that notes are in their place where a row has none.
        """
        fitted, left_out = self._table(rows).fitted(width)
        lines = fitted.lines(width)
        headings = lines[: len(lines) - len(rows)]
        noted = [_noted(line, row.notes, width) for line, row in zip(lines[len(headings) :], rows, strict=True)]
        return headings, noted, [name for name in left_out if name not in self.metrics]

    def to_html(self, rows: Sequence[Row]) -> str:
        """Return a table for a notebook."""
        return self._table(rows, has_notes=True).to_html()

    def explained(self, row: Row, width: int) -> list[str]:
        """Return the line of a row; the cause is below it where there is no room."""
        _, (line,), _ = self.lines([row], width)
        return [line] if not row.cause or row.notes[1] in line else [line, f"{_INDENT}{row.cause}"]

    def in_words(self, row: Row, width: int) -> list[str]:
        """Return a line that names each value; the cause has a line of its own where there is no room."""
        name, time = self.label(row.params), f"{row.time:>6}" if row.time else ""
        start = f"{row.count} run {row.number:>{self.widths.get(_RUN, 0)}}{name and f' {name}'}"
        values = [f"{printable(name)} {cell(value) or 'nan':<{_VALUE}}" for name, value in row.metrics.items()]
        for num_values in range(len(values), -1, -1):
            line = join([start, *values[:num_values], row.notes[0], time])
            if cell_len(line) <= width:
                return [line.rstrip()]
        return [join([start, row.notes[-1], time]), f"{_INDENT}{row.cause}"]

    def label(self, params: Mapping[str, Any]) -> str:
        """Name a run by what varies, each value as wide as the longest one of its axis.

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

    def _table(self, rows: Sequence[Row], *, has_notes: bool = False) -> Table:
        axes = [_column(name) for name in self.axes if name != DEVICE]
        device = [DEVICE] if self.has_device else []
        names = [_COUNT, _RUN, *axes, *device, _EPOCH, _TIME, *self.metrics, *([_NOTE] if has_notes else [])]
        first = [_COUNT, _RUN, _EPOCH, _TIME, *axes[:1], *self.metrics[:1], *axes[1:_NUM_FIRST_AXES]]
        cells = [{**self._cells(row), _NOTE: "".join(row.notes[:1])} for row in rows]
        return Table(
            names,
            [[each.get(name, "") for name in names] for each in cells],
            right=[name for name in names if name not in (_COUNT, DEVICE, _NOTE, *map(_column, self.texts))],
            first=[*first, *device, *axes[_NUM_FIRST_AXES:]],
            least={
                **self.widths,
                **{name: max(self.widths.get(name, 0), _LEAST_METRIC) for name in self.metrics},
            },
        )

    def _cells(self, row: Row) -> dict[str, str]:
        axes = {_column(name): _value(row.params[name]) for name in self.axes if name in row.params}
        metrics = {name: steady(value) for name, value in row.metrics.items()}
        device = row.device or axes.get(DEVICE, "")
        others = {_COUNT: row.count, _RUN: row.number, DEVICE: device, _EPOCH: row.epoch, _TIME: row.time}
        return {**axes, **others, **metrics}


def _column(axis: str) -> str:
    """Return the heading of an axis: none is that of another column."""
    return f"{axis} (hyperparameter)" if axis in (*LEADING, _RUN, _EPOCH, _TIME, "status") else axis


def _value(value: Any) -> str:
    return cell(value) if isinstance(value, float) and math.isfinite(value) else brief(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _noted(line: str, notes: Sequence[str], width: int) -> str:
    for note in notes:
        noted = f"{line}{GAP}{note}".rstrip()
        if cell_len(noted) <= width:
            return noted
    if not notes:
        return line
    end = f"{GAP}{notes[-1]}"
    return f"{set_cell_size(line, max(width - cell_len(end), 0))}{end}"

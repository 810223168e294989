"""The rows of runs: of a table in a terminal or a notebook, of named values elsewhere."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size

from runmanager.core.values import column
from runmanager.core.wording import printable
from runmanager.drawing.table import GAP, Table
from runmanager.tables.cells import brief, cell, join, steady

COUNT, RUN, EPOCH, DEVICE, DURATION = "", "run", "epoch", "device", "run duration"

_SECONDS, _MINUTES = len("0.00638 s"), len("59 min 59 s")
_METRIC = len("0.0000")  # the minimum width of a metric
_DRAWN = len("0.0001569")  # the width of a number that a search draws from a range
_INDENT = "    "
_NUM_FIRST_AXES = 3  # number of axes that a narrow terminal keeps longest


@dataclass(frozen=True)
class Row:
    """The contents of a run's row."""

    params: Mapping[str, Any]
    cells: Mapping[str, str]  # column -> text, for the columns that are neither axes nor metrics
    metrics: Mapping[str, float]
    notes: Sequence[str]  # ends of the row: the first text that fits is shown, else the last text
    below: Sequence[str] = ()  # further lines, unless the row already has their text


class RunColumns:
    """The columns that the rows of all runs of a grid share.

    A column never becomes narrower, so that rows printed one after another stay aligned.

    Args:
        axes: The hyperparameters that vary, the least important last.

    Attributes:
        metrics: The metrics with a column, the most important first.
        num_goals: The number of metrics that decide which run is best.
        has_device: Whether the device has a column.
    """

    def __init__(self, axes: Sequence[str]) -> None:
        self.metrics: Sequence[str] = ()
        self.num_goals = 1
        self.has_device = DEVICE in axes
        self._axes = axes
        self._widths = {DURATION: _SECONDS}
        self._texts: set[str] = set()  # axes that have values other than numbers

    def add(self, row: Row) -> None:
        """Widen the columns to fit a row."""
        for name, content in self._cells(row).items():
            width = _MINUTES if name == DURATION and "min" in content else cell_len(content)
            self._widths[name] = max(self._widths.get(name, 0), width)
        for axis, value in row.params.items():
            name = column(axis)
            if isinstance(value, bool) or not isinstance(value, int | float):
                self._texts.add(name)
            elif value != float(f"{value:g}"):  # a search draws such numbers, and the next one may be longer
                self._widths[name] = max(self._widths.get(name, 0), _DRAWN)

    def lines(self, rows: Sequence[Row], width: int) -> tuple[list[str], list[str], list[str]]:
        """Return the lines of the headings, one line per row, and the axes that do not fit."""
        axes = [column(name) for name in self._axes if name != DEVICE]
        goals, others = self.metrics[: self.num_goals], self.metrics[self.num_goals :]
        names = [COUNT, RUN, *axes, *[DEVICE] * self.has_device, EPOCH, DURATION, *self.metrics]
        first = [COUNT, RUN, EPOCH, *axes[:1], *goals, DURATION, *axes[1:_NUM_FIRST_AXES]]
        widths = self._widths | {name: max(self._widths.get(name, 0), _METRIC) for name in self.metrics}
        drawn, left_out = Table(
            names,
            [
                [_padded(cells.get(name, ""), widths.get(name, 0)) for name in names]
                for cells in map(self._cells, rows)
            ],
            right=[name for name in names if name not in (COUNT, DEVICE, *self._texts)],
            first=[*first, DEVICE, *axes[_NUM_FIRST_AXES:], *others],
        ).fitted(width)
        lines = [line.plain for line in drawn]
        headings = lines[: len(lines) - len(rows)]
        noted = [_noted(line, row.notes, width) for line, row in zip(lines[len(headings) :], rows, strict=True)]
        return headings, noted, [name for name in left_out if name not in self.metrics]

    def in_words(self, row: Row, width: int) -> str:
        """Return the row as a line of named values."""
        parts = [f"{row.cells[COUNT]} run {row.cells[RUN]:>{self._widths.get(RUN, 0)}}"]
        for name in self._axes:
            size = self._widths.get(column(name), 0)
            value = _padded(_value(row.params[name]), size) if name in row.params else ""
            parts.append(f"{printable(name)}={value}" if value else " " * (len(name) + 1 + size))
        values = [f"{printable(name)} {steady(value):<{_METRIC}}" for name, value in row.metrics.items()]
        start, time = " ".join(parts), row.cells.get(DURATION, "")
        for num_values in range(len(values), -1, -1):
            line = join([start, *values[:num_values], row.notes[0], time and f"{time:>7}"])
            if cell_len(line) <= width:
                return line.rstrip()
        return join([start, row.notes[-1], time])

    def _cells(self, row: Row) -> dict[str, str]:
        axes = {column(name): _value(row.params[name]) for name in self._axes if name in row.params}
        return axes | {name: steady(value) for name, value in row.metrics.items()} | dict(row.cells)


def lines_below(row: Row, line: str) -> list[str]:
    """Return the further lines of a row: those whose text its line does not have."""
    return [f"{_INDENT}{content}" for content in row.below if content and content not in line]


def _value(value: Any) -> str:
    return cell(value) if isinstance(value, float) and math.isfinite(value) else brief(value)


def _padded(content: str, width: int) -> str:
    return content + " " * (width - cell_len(content))


def _noted(line: str, notes: Sequence[str], width: int) -> str:
    for note in notes:
        if cell_len(noted := f"{line}{GAP}{note}".rstrip()) <= width:
            return noted
    end = f"{GAP}{notes[-1]}"
    return f"{set_cell_size(line, max(width - cell_len(end), 0))}{end}"

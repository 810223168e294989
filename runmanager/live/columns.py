"""The columns of a table that is drawn again and again: which ones there is room for, and how wide they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from runmanager.hyperparameters import text
from runmanager.wording import printable

GAP = "  "
ALWAYS, FIRST_AXIS, GOAL, AXIS, STEP, LATER_AXIS, LOSS, ACCURACY, METRIC, EMPTY = range(10)
"""The ranks of columns: where room is short, the last rank is left out first, and in it the last column."""

METRICS = (GOAL, LOSS, ACCURACY, METRIC)
_NUM_FIRST_AXES = 3  # that are as good as all
_LONGEST_VALUE = 20
_LEAST_HEADING, _LEAST_METRIC = 6, len("test_acc")
_SHORTER = {"validation": "val", "accuracy": "acc"}


class AxisColumn(NamedTuple):
    """A hyperparameter that tells runs apart."""

    name: str
    width: int  # of its longest value
    is_number: bool

    @classmethod
    def of(cls, name: str, values: Sequence[Any]) -> "AxisColumn":
        """Return the axis that has these values.

        >>> AxisColumn.of("lr", [0.1, 0.01])
        AxisColumn(name='lr', width=4, is_number=True)
        """
        are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        return cls(name, max(map(cell_len, map(short_value, values)), default=0), are_numbers)

    def joined(self, other: "AxisColumn") -> "AxisColumn":
        """Return the axis that has the values of another one too."""
        return AxisColumn(self.name, max(self.width, other.width), self.is_number and other.is_number)


@dataclass(frozen=True)
class Column:
    """A column of text; its heading gives way before a column that matters is left out."""

    heading: str
    cells: Sequence[str]  # one per row
    rank: int
    is_left: bool = False
    most: int = 0  # the width that cells may need later
    style: str = ""

    @cached_property
    def width(self) -> int:
        """How wide it is, without the gap before it."""
        return max(cell_len(self.heading), self._width_of_cells)

    @cached_property
    def _width_of_cells(self) -> int:
        return max(self.most, *map(cell_len, self.cells), 0)

    def shortened(self) -> "Column":
        """Return the column with the shortest heading that still says something."""
        heading = abbreviated(self.heading)
        least = max(_LEAST_METRIC if self.rank in METRICS else _LEAST_HEADING, self._width_of_cells)
        return replace(self, heading=cut(heading, least))

    def padded(self, content: str) -> str:
        """Return a cell that is as wide as the column."""
        if self.is_left:
            return set_cell_size(content, self.width)
        return " " * (self.width - cell_len(content)) + content


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns there is room for, in their order.

    >>> lr, accuracy = Column("lr", ["0.1"], FIRST_AXIS), Column("accuracy", ["0.75"], METRIC)
    >>> [column.heading for column in fitting([lr, accuracy], 10)]
    ['lr']
    """
    kept = list(enumerate(columns))
    total = _width(columns)
    for rank in range(EMPTY, ALWAYS, -1):
        if total <= width:
            break
        if rank == LOSS:
            kept = [(index, column.shortened()) for index, column in kept]
            total = _width([column for _, column in kept])
        for entry in [entry for entry in reversed(kept) if entry[1].rank == rank]:
            if total <= width:
                break
            kept.remove(entry)
            total -= entry[1].width + len(GAP)
    room = width - total
    whole = []
    for index, column in kept:  # what was left out may have made room for whole headings
        more = columns[index].width - column.width
        whole.append(columns[index] if more <= room else column)
        room -= more if more <= room else 0
    return whole


def of_axes(axes: Sequence[AxisColumn], runs: Sequence[Mapping[str, Any] | None]) -> list[Column]:
    """Return a column for each axis, with its value in each run; None is no run."""
    all_columns = []
    for index, axis in enumerate(axes):
        cells = [short_value(params[axis.name]) if params and axis.name in params else "" for params in runs]
        rank = FIRST_AXIS if not index else AXIS if index < _NUM_FIRST_AXES else LATER_AXIS
        all_columns.append(Column(printable(axis.name), cells, rank, not axis.is_number, axis.width))
    return all_columns


def rank_of_metric(index: int, name: str) -> int:
    """Return the rank of a metric; the first one is the goal."""
    return {"loss": LOSS, "accuracy": ACCURACY}.get(name, METRIC) if index else GOAL


def axis_label(params: Mapping[str, Any], axes: Sequence[AxisColumn]) -> str:
    """Name a run by what varies, each value as wide as its longest, so that names are aligned.

    >>> axes = [AxisColumn.of("lr", [0.1, 0.01]), AxisColumn.of("seed", [1, 2])]
    >>> axis_label({"lr": 0.1, "seed": 1, "device": "cpu"}, axes)
    'lr=0.1  seed=1'
    """
    parts = []
    for axis in axes:
        name = f"{printable(axis.name)}="
        part = f"{name}{short_value(params[axis.name])}" if axis.name in params else ""
        parts.append(set_cell_size(part, cell_len(name) + axis.width))
    return " ".join(parts)


def short_value(value: Any) -> str:
    """Write a value as a column shows it; long ones are cut."""
    return cut(printable(text(value)), _LONGEST_VALUE)


def clock(seconds: float) -> str:
    """Write a time as a clock shows it.

    >>> clock(83), clock(4983.4)
    ('1:23', '1:23:03')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def abbreviated(name: str) -> str:
    """Abbreviate a metric as the field does.

    >>> abbreviated("validation_accuracy")
    'val_acc'
    """
    for word, shorter in _SHORTER.items():
        name = name.replace(word, shorter)
    return name


def cut(line: str, width: int) -> str:
    """Cut a line at a width, visibly."""
    if cell_len(line) <= width:
        return line
    return f"{set_cell_size(line, width - 1)}…" if width > 0 else ""


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * max(len(columns) - 1, 0)

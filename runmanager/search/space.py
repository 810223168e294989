"""The space of a search: axes whose values are listed or lie in a range."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runmanager.axes import space_of
from runmanager.errors import GridError
from runmanager.hyperparameters import common_kind, decode, encode, kind
from runmanager.nested import Grid
from runmanager.ranges import IntRange, Range
from runmanager.run import Run, make_run
from runmanager.storage.folders import Experiment, RunFolder
from runmanager.storage.identity import canonical, identity

Point = Mapping[str, Any]
"""A point of the space: name of each varying axis -> a number, or the canonical form of a value."""


@dataclass(frozen=True)
class SearchAxis:
    """An axis with more than one value; a paired axis has several names."""

    names: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]] = ()  # the listed values; empty for a range
    range: Range | None = None

    @property
    def name(self) -> str:
        """The name of the axis for the sampler."""
        return ", ".join(self.names)

    @property
    def columns(self) -> Iterator[tuple[Any, ...]]:
        """The values of each name of the axis; for a range, one sample."""
        return zip(*([(self.range.low,)] if self.range else self.rows), strict=True)

    @cached_property
    def _indexes(self) -> dict[str, int]:
        return {_key(row): index for index, row in enumerate(self.rows)}

    @cached_property
    def _lasting(self) -> dict[str, int]:
        """The index of each listed value, by its form in files, where values of most types are text."""
        return {
            _key(tuple(decode(encode(value)) for value in row)): index for index, row in enumerate(self.rows)
        }

    def value(self, index: int) -> Any:
        """Return the value with which a point represents one of the listed values."""
        row = canonical(self.rows[index])
        return row if len(self.names) > 1 else row[0]

    def spread(self, index: int, number: int) -> Any:
        """Return the value with this index among `number` values that are spread over the axis."""
        if self.range is not None:
            return self.range.from_fraction((index + 0.5) / number)
        return self.value(index % len(self.rows))

    def index(self, value: Any) -> int | None:
        """Return the index of a point's value among the listed values, None if it is not listed."""
        return self._indexes.get(json.dumps(value if len(self.names) > 1 else [value]))

    def read(self, row: tuple[Any, ...]) -> tuple[Any] | None:
        """Return a point's value for the stored values of a run.

        Return None if the axis does not have these values.
        """
        if self.range is not None:
            return (row[0],)
        index = self._indexes.get(_key(row), self._lasting.get(_key(row)))
        return None if index is None else (self.value(index),)

    def has(self, value: Any) -> bool:
        """Whether a value belongs to the axis."""
        if self.range is None:
            return self.index(value) is not None
        kinds = (int,) if isinstance(self.range, IntRange) else (int, float)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        return is_number and self.range.low <= value <= self.range.high

    def row(self, value: Any) -> tuple[Any, ...]:
        """Return the hyperparameter values for a point's value."""
        if self.range is not None:
            return (value,)
        index = self.index(value)
        assert index is not None
        return self.rows[index]


class SearchSpace:
    """The axes of a search.

    Args:
        params: The axes, as for `RunBuilder.get_runs`; some axes may be ranges.
        repeats: The repeat axes; each suggestion is executed with all values of these axes.

    Raises:
        GridError: The axes are not a valid grid; the message lists all problems.
    """

    def __init__(self, params: Grid, repeats: Sequence[str] = ()) -> None:
        order = [
            SearchAxis(names, range=values) if isinstance(values, Range) else SearchAxis(names, values)
            for names, values in space_of(params).items()
        ]
        self.names: tuple[str, ...] = tuple(name for axis in order for name in axis.names)
        self._repeated = [axis for axis in order if not set(axis.names).isdisjoint(repeats)]
        rest = [axis for axis in order if axis not in self._repeated]
        self._constant = [axis for axis in rest if len(axis.rows) == 1]
        self.axes: list[SearchAxis] = [axis for axis in rest if len(axis.rows) != 1]
        columns = [column for axis in order for column in axis.columns]
        self._kinds = tuple(common_kind(map(kind, column)) for column in columns)

    def check(self) -> None:
        """Check that at least one axis varies.

        Raises:
            GridError: Every axis has one value.
        """
        if not self.axes:
            rule = "search= has nothing to choose from, as every axis has one value"
            raise GridError([f"{rule}: write a range, as LogUniform(1e-5, 1e-1), or several values"])

    @property
    def varying(self) -> list[str]:
        """The hyperparameters that vary."""
        varying = {name for axis in self.axes for name in axis.names}
        varying |= {name for axis in self._repeated if len(axis.rows) > 1 for name in axis.names}
        return [name for name in self.names if name in varying]

    @property
    def num_repeats(self) -> int:
        """The number of runs per suggestion."""
        return math.prod(len(axis.rows) for axis in self._repeated)

    def runs(self, point: Point) -> list[Run]:
        """Return the runs of a suggestion: a single run, or one run for each combination of the repeat axes."""
        values = _named(self._constant, [axis.rows[0] for axis in self._constant])
        values |= _named(self.axes, [axis.row(point[axis.name]) for axis in self.axes])
        return [
            self._run(values | _named(self._repeated, rows))
            for rows in itertools.product(*(axis.rows for axis in self._repeated))
        ]

    def point(self, params: Mapping[str, Any], id_: str) -> Point | None:
        """Return the point of a run from its stored hyperparameters; None if a value is outside its axis."""
        if params.keys() != set(self.names):
            return None
        point: dict[str, Any] = {}
        for axis in self.axes:
            value = axis.read(tuple(params[name] for name in axis.names))
            if value is None or not axis.has(*value):
                return None
            (point[axis.name],) = value
        return point if id_ in {identity(run._asdict()) for run in self.runs(point)} else None

    def runs_of(self, experiment: Experiment) -> Iterator[tuple[Run, RunFolder]]:
        """Yield the experiment's runs whose values belong to these axes."""
        for folder in experiment.runs.values():
            point = self.point(folder.params, folder.id)
            for run in () if point is None else self.runs(point):
                if identity(run._asdict()) == folder.id:
                    yield run, folder

    def samples(self) -> list[Run]:
        """Return one run per device of the space."""
        first = {axis.name: axis.range.low if axis.range else axis.value(0) for axis in self.axes}
        points: list[Point] = [first]
        if device := next((axis for axis in self.axes if "device" in axis.names), None):
            points = [{**first, device.name: device.value(index)} for index in range(len(device.rows))]
        return list(itertools.chain.from_iterable(map(self.runs, points)))

    def spread(self) -> list[Run]:
        """Return runs that together contain each listed value, and values spread over the ranges."""
        number = max([1, *(len(axis.rows) for axis in self.axes)])
        points = [{axis.name: axis.spread(index, number) for axis in self.axes} for index in range(number)]
        return list(itertools.chain.from_iterable(map(self.runs, points)))

    def _run(self, values: Mapping[str, Any]) -> Run:
        return make_run(self.names, (values[name] for name in self.names), self._kinds)


def _named(axes: Iterable[SearchAxis], rows: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    pairs: Iterator[tuple[str, Any]] = itertools.chain.from_iterable(
        zip(axis.names, row, strict=True) for axis, row in zip(axes, rows, strict=True)
    )
    return dict(pairs)


def _key(row: tuple[Any, ...]) -> str:
    return json.dumps(canonical(row))

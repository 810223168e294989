"""The space of a search: axes whose values are listed or lie in a range."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runmanager.core.experiment import RunFolder
from runmanager.core.grid import Grid, space_of
from runmanager.core.ranges import IntRange, Range
from runmanager.core.run import Run, id_of, make_run
from runmanager.core.values import decode, encode, key_of

Point = Mapping[str, Any]
"""A point of the space: name of each searched axis -> a number of its range, or the index of a listed value."""


@dataclass(frozen=True)
class SearchAxis:
    """An axis of a search; a paired axis has several names."""

    names: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]] = ()  # the listed values; empty for a range
    range: Range | None = None

    @property
    def name(self) -> str:
        """The name of the axis for the sampler."""
        return ", ".join(self.names)

    @cached_property
    def _indexes(self) -> dict[str, int]:
        """The index of each listed value, by its form in files, where values of most types are text."""
        return {key_of([decode(encode(value)) for value in row]): index for index, row in enumerate(self.rows)}

    def read(self, params: Mapping[str, Any]) -> Any:
        """Return a point's value for the stored values of a run, None if the axis does not have them."""
        if self.range is None:
            return self._indexes.get(key_of([params[name] for name in self.names]))
        value = params[self.name]
        kinds = (int,) if isinstance(self.range, IntRange) else (int, float)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        return value if is_number and self.range.low <= value <= self.range.high else None

    def row(self, value: Any) -> tuple[Any, ...]:
        """Return the hyperparameter values for a point's value."""
        return self.rows[value] if self.range is None else (value,)

    def spread(self, index: int, number: int) -> Any:
        """Return the point's value with this index among `number` values that are spread over the axis."""
        return (
            index % len(self.rows) if self.range is None else self.range.from_fraction((index + 0.5) / number)
        )


class SearchSpace:
    """The axes of a search."""

    def __init__(self, params: Grid, repeats: Sequence[str] = ()) -> None:
        space = space_of(params)
        self._order = [
            SearchAxis(names, range=values) if isinstance(values, Range) else SearchAxis(names, values)
            for names, values in space.items()
        ]
        self.names: tuple[str, ...] = tuple(name for axis in self._order for name in axis.names)
        # axes that are not searched: repeat axes, and axes with one value
        self._fixed = [
            axis for axis in self._order if len(axis.rows) == 1 or not set(axis.names).isdisjoint(repeats)
        ]
        self.axes: list[SearchAxis] = [axis for axis in self._order if axis not in self._fixed]

    @property
    def varying(self) -> list[str]:
        """The hyperparameters that vary."""
        return [name for axis in self._order if len(axis.rows) != 1 for name in axis.names]

    @property
    def num_repeats(self) -> int:
        """The number of runs per suggestion."""
        return math.prod(len(axis.rows) for axis in self._fixed)

    def runs(self, point: Point) -> list[Run]:
        """Return the runs of a suggestion: a single run, or one run for each combination of the repeat axes."""
        indexes = itertools.product(*(range(len(axis.rows)) for axis in self._fixed))
        names = [axis.name for axis in self._fixed]
        return [self._run({**point, **dict(zip(names, each, strict=True))}) for each in indexes]

    def read(self, folder: RunFolder) -> tuple[Point, Run] | None:
        """Return the point and the run of a folder; None if a value is outside its axis."""
        if folder.params.keys() != set(self.names):
            return None
        values = {axis.name: axis.read(folder.params) for axis in self._order}
        if None in values.values():
            return None
        run = self._run(values)
        if id_of(run) != folder.id:
            return None
        return {axis.name: values[axis.name] for axis in self.axes}, run

    def samples(self) -> list[Run]:
        """Return runs that together contain each device of the space."""
        return self._spread(max([1, *(len(axis.rows) for axis in self.axes if "device" in axis.names)]))

    def spread(self) -> list[Run]:
        """Return runs that together contain each listed value, and values spread over the ranges."""
        return self._spread(max([1, *(len(axis.rows) for axis in self.axes)]))

    def _spread(self, number: int) -> list[Run]:
        points = [{axis.name: axis.spread(index, number) for axis in self.axes} for index in range(number)]
        return list(itertools.chain.from_iterable(map(self.runs, points)))

    def _run(self, values: Mapping[str, Any]) -> Run:
        """Return the run for the index or number of each axis."""
        return make_run(self.names, (value for axis in self._order for value in axis.row(values[axis.name])))

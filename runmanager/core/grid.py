"""Grids: `RunBuilder` expands a mapping of axes into runs."""

import dataclasses
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Protocol, TypeAlias

from runmanager.core.outcome import argument
from runmanager.core.ranges import Range
from runmanager.core.run import Run, make_run
from runmanager.core.values import check_names, check_values, identity, kinds_of, number, plain
from runmanager.core.wording import listed
from runmanager.errors import GridError, Problems

_MOST_VALUES = 1_000_000  # maximum number of values of an axis
_MOST_RUNS = 1_000_000  # maximum number of combinations that are tried for where=
_MOST_REPEATED = 100_000  # number of repeated draws in a row after which sampling ends


class DataClass(Protocol):
    """An instance of any data class."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Grid: TypeAlias = Mapping[Any, Any] | DataClass
"""The types in which users write a grid."""


Space: TypeAlias = dict[tuple[str, ...], Range | list[tuple[Any, ...]]]
"""Names of an axis -> its range, or its list of tuples of values."""


class RunBuilder:
    """Expand a grid of hyperparameters into runs.

    Example:
        >>> len(RunBuilder.get_runs({"lr": [0.1, 0.01], "width": [8, 64]}))
        4
    """

    @staticmethod
    def get_runs(
        params: Grid,
        *,
        where: Callable[[Run], bool] | None = None,
        max_runs: int | None = None,
    ) -> list[Run]:
        """Expand a mapping of name -> values into the runs of its product, last axis fastest.

        A tuple of names is a paired axis, whose values are tuples of the same length. A nested mapping contains
        axes too: ``{"opt": {"lr": [0.1]}}`` is ``{"opt.lr": [0.1]}``, read as ``run.opt.lr``.

        Args:
            params: The axes in order. The values of an axis are any ordered iterable except a string. A data
                class or an OmegaConf configuration is accepted too.
            where: A filter: only runs for which the function returns true.
            max_runs: The maximum number of runs, to detect a grid that is too large by accident; with None, the
                maximum is a million.

        Returns:
            The runs in order, without duplicates.

        Raises:
            GridError: The grid is not valid; the message lists every problem with the code to write instead.

        Example:
            >>> RunBuilder.get_runs({"lr": [0.1, 0.01], "device": ["cpu"]})
            [Run(lr=0.1, device='cpu'), Run(lr=0.01, device='cpu')]
            >>> RunBuilder.get_runs({("lr", "momentum"): [(0.1, 0.9), (0.01, 0.99)]})
            [Run(lr=0.1, momentum=0.9), Run(lr=0.01, momentum=0.99)]
            >>> RunBuilder.get_runs({"opt": {"lr": [0.1, 0.01], "name": ["sgd"]}})
            [Run(opt.lr=0.1, opt.name='sgd'), Run(opt.lr=0.01, opt.name='sgd')]
        """
        space = space_of(params, with_ranges=False)
        axes = [values for values in space.values() if isinstance(values, list)]
        number, most = math.prod(map(len, axes)), max_runs or _MOST_RUNS
        runs: list[Run] = []
        if number <= (most if where is None else max(most, _MOST_RUNS)):
            names = tuple(itertools.chain.from_iterable(space))
            rows = itertools.product(*axes)
            runs = chosen_runs((make_run(names, itertools.chain.from_iterable(row)) for row in rows), where)
            number = len(runs)
        if number > most:
            factors = " x ".join(str(len(values)) for values in axes)
            step = f"shorten an axis, or write RunBuilder.get_runs(params, max_runs={number})"
            raise GridError(f"this grid has {number:,} runs ({factors}), the limit is {most:,}: {step}")
        return runs

    @staticmethod
    def sample(
        params: Grid,
        n: int,
        seed: int,
        *,
        where: Callable[[Run], bool] | None = None,
    ) -> list[Run]:
        """Draw `n` different runs of a grid, all equally likely, without expanding the grid.

        With the same seed, a larger sample begins with the runs of a smaller sample, so that a sample can grow.

        Args:
            params: The axes, as for `get_runs`; ranges may be among them: `Uniform`, `LogUniform`, `IntRange`.
                The values of a range do not depend on the other axes.
            n: The number of runs to draw.
            seed: Determines the sample; the global random state is not used.
            where: A filter: only runs for which the function returns true are drawn.

        Returns:
            The `n` runs, in the order in which they were drawn.

        Raises:
            GridError: As for `get_runs`, or the grid has fewer than `n` runs.

        Example:
            >>> RunBuilder.sample({"lr": [0.1, 0.01, 0.001], "seed": range(10**4)}, 2, seed=0)
            [Run(lr=0.001, seed=7670), Run(lr=0.01, seed=2624)]
            >>> from runmanager import IntRange, LogUniform
            >>> RunBuilder.sample({"lr": LogUniform(1e-5, 1e-1), "width": IntRange(16, 512)}, 2, seed=0)
            [Run(lr=3.019e-05, width=213), Run(lr=0.06511, width=436)]
        """
        problems = Problems()
        problems.check_count("n", n, 1)
        if type(seed) is not int:
            problems.append(f"seed must be a whole number, so that the same runs are drawn again, got {seed!r}")
        space = space_of(params, problems)
        names = tuple(itertools.chain.from_iterable(space))
        rows = itertools.islice(_drawn(space, seed), max(n, _MOST_RUNS))
        tried = (make_run(names, itertools.chain.from_iterable(row)) for row in rows)
        runs = list(itertools.islice(tried if where is None else filter(where, tried), n))
        if len(runs) < n:
            step = f"write n={len(runs)}" if where is None else "lower n, or let where= keep more"
            raise GridError(f"only {len(runs):,} of {n:,} different runs were drawn: {step}")
        return chosen_runs(runs, None)

    @staticmethod
    def num_runs(params: Grid) -> int:
        """Return the number of runs of a grid, without expanding the grid.

        Args:
            params: The axes, as for `get_runs`.

        Returns:
            The number of runs, even if it is too large for `get_runs`.

        Raises:
            GridError: As for `get_runs`, but without a limit.

        Example:
            >>> RunBuilder.num_runs({f"p{i}": range(10) for i in range(12)})
            1000000000000
        """
        space = space_of(params, with_ranges=False)
        return math.prod(len(values) for values in space.values() if isinstance(values, list))


def chosen_runs(runs: Iterable[Run], where: Callable[[Run], bool] | None) -> list[Run]:
    """Return the runs for which a filter is true; they carry their ids, and the types of all, from now on."""
    runs = [run for run in runs if where is None or where(run)]
    if not runs:
        raise GridError("where= keeps no run of the grid: keep at least one")
    kinds = kinds_of(run._asdict() for run in runs)
    for run in runs:
        vars(run).update(_id=identity(run._asdict()), _kinds=kinds)
    return runs


def space_of(params: Grid, others: Iterable[str] = (), *, with_ranges: bool = True) -> Space:
    """Return the axes of a grid; an axis may be a range, unless the grid is to be expanded."""
    problems = Problems(others)
    if mapping_of(params) is None:
        step = "write {'lr': [...]}"
        problems.append(f"a grid is a mapping of name -> list of values, got {params!r:.60}: {step}")
    space: Space = {}
    number_of: Counter[Any] = Counter()
    for key, values in flat(params):
        names = key if isinstance(key, tuple) else (key,)
        number_of.update(names)
        if isinstance(values, Range) and not isinstance(key, tuple):
            space[names] = values
            continue
        with problems.collecting():
            rows = space[names] = _rows(key, values)
            problems += check_values(pair for row in rows for pair in zip(names, row, strict=True))
    problems += check_names(number_of)
    problems += [f"{name!r} is an axis twice: keep one" for name, number in number_of.items() if number > 1]
    ranges = [name for names, values in space.items() if isinstance(values, Range) for name in names]
    if "device" in ranges:
        problems.append("'device' is a range of numbers: write a list of devices")
    if ranges and not with_ranges:
        sample = argument("RunBuilder.sample(params, n=50, seed=0)", "--sample 50")
        step = f"give run_grid a search=, draw runs with {sample}, or list values"
        problems.append(f"a grid executes listed values, got a range for {listed(ranges)}: {step}")
    problems.raise_if_any()
    return space


def mapping_of(value: Any) -> Mapping[Any, Any] | None:
    """Return the fields of a mapping, a data class or an OmegaConf configuration; None for anything else."""
    value = plain(value)
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (Range, type)) or not dataclasses.is_dataclass(value):
        return None
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}


def flat(grid: Grid, prefix: str = "") -> Iterator[tuple[Any, Any]]:
    """Yield the axes of a grid and their values, with dotted names for nested mappings."""
    for key, axis in (mapping_of(grid) or {}).items():
        values = plain(axis)
        if isinstance(key, tuple):
            yield tuple(f"{prefix}{name}" if isinstance(name, str) else name for name in key), values
            continue
        name = f"{prefix}{key}" if isinstance(key, str) else key
        # a data class may be an iterable of values, such as a custom range
        is_group = isinstance(values, Mapping) or not hasattr(type(values), "__iter__")
        inner = mapping_of(values) if isinstance(key, str) and is_group else None
        if inner:
            yield from flat(inner, f"{name}.")
        else:
            yield name, values if inner is None else ()


def _rows(key: Any, values: Any) -> list[tuple[Any, ...]]:
    """Return the values of an axis, each as a tuple."""
    names = key if isinstance(key, tuple) else ()
    name = ", ".join(map(str, names)) if names else key
    if isinstance(key, tuple) and not key:
        raise GridError("a paired axis without names: write {('a', 'b'): [(1, 2)]}")
    if isinstance(values, (set, frozenset, Mapping)):
        step = "a list of tuples" if names else "a list"
        raise GridError(f"values of {key!r} must be in order, got a {type(values).__name__}: write {step}")
    items: Iterator[Any] | None = None
    with suppress(TypeError):  # arrays without dimensions are instances of Iterable
        items = None if isinstance(values, (str, bytes)) else iter(values)
    if items is None:
        single = "[(...)]" if names else f"[{values!r:.60}]"
        written = f"{name}={single}" if str(key).isidentifier() else f"{key!r}: {single}"
        rule = f"values of {name!r} must be a list or tuple, got {values!r:.60}"
        raise GridError(f"{rule}; write {written} for a single value")
    row = [number(value) for value in itertools.islice(items, _MOST_VALUES + 1)]
    if not row:
        raise GridError(f"axis {name!r} has no values: give it at least one, or leave it out")
    if len(row) > _MOST_VALUES:
        raise GridError(f"axis {name!r} has more than {_MOST_VALUES:,} values: write a shorter list")
    for value in row:
        if isinstance(value, Range):
            raise GridError(
                f"values of {name!r} have a range among them: write {key!r}: {value!r}, without a list"
            )
        if names and (not isinstance(value, (tuple, list)) or len(value) != len(names)):
            rule = f"the paired axis {key!r} must be a list of tuples of {len(names)}"
            raise GridError(f"{rule}, got {value!r:.60}")
    return [tuple(map(number, value)) if names else (value,) for value in row]


def _drawn(space: Space, seed: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the values of the axes of distinct runs in random order, without end if there is a range."""
    lists = [values for values in space.values() if isinstance(values, list)]
    if len(lists) == len(space):
        for index in _shuffled(math.prod(map(len, lists)), seed):
            row = []
            for rows in reversed(lists):
                index, position = divmod(index, len(rows))  # noqa: PLW2901 - the rest is that of the other axes
                row.append(rows[position])
            yield row[::-1]
        return
    # the numbers of an axis do not depend on other axes
    randoms = [random.Random(f"{seed} {names}") for names in space]  # noqa: S311 - no secret
    seen: set[tuple[Any, ...]] = set()
    num_repeated = 0
    while num_repeated < _MOST_REPEATED:
        row, draw = [], []
        for values, random_ in zip(space.values(), randoms, strict=True):
            fraction = random_.random()
            if isinstance(values, Range):
                draw.append(values.from_fraction(fraction))
                row.append((draw[-1],))
            else:
                draw.append(int(fraction * len(values)))
                row.append(values[draw[-1]])
        num_repeated += 1
        if (key := tuple(draw)) not in seen:
            seen.add(key)
            num_repeated = 0
            yield row


def _shuffled(size: int, seed: int) -> Iterator[int]:
    """Yield the numbers below `size` in random order; memory and time depend on the numbers drawn."""
    random_ = random.Random(seed)  # noqa: S311 - no secret
    moved: dict[int, int] = {}
    index = 0
    while index < size:  # `size` may be too large for range()
        other = random_.randrange(index, size)
        first, drawn = moved.get(index, index), moved.get(other, other)
        moved[other] = first
        yield drawn
        index += 1

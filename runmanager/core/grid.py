"""Grids: `RunBuilder` expands a mapping of axes into a list of `Run`."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from runmanager.core.axes import Axes, Space, axes_of_grid, space_of
from runmanager.core.hyperparameters import common_kind, counted, kind
from runmanager.core.nested import Grid
from runmanager.core.ranges import Range
from runmanager.core.run import Run, make_run
from runmanager.errors import GridError, Problems

T = TypeVar("T")

_MOST_RUNS = 1_000_000  # maximum number of combinations that are tried for where=
_MOST_REPEATED = 100_000  # number of repeated draws in a row after which sampling ends


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
        return _expanded(axes_of_grid(params, _where_problems(where)), where, max_runs or _MOST_RUNS)

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
        number: object = seed
        if not isinstance(number, int) or isinstance(number, bool):
            rule = "seed must be a whole number, so that the same runs are drawn again"
            problems.append(f"{rule}, got {number!r}")
        space = space_of(params, [*problems, *_where_problems(where)])
        size = math.prod(_num_values(values) for values in space.values())
        if n > size:
            raise GridError([f"a sample of {n:,} runs was asked for, this grid has {size:,}: write n={size}"])
        kinds = _kinds(space)
        drawn = (make(space, values, kinds) for values in _drawn(space, seed))
        tried = itertools.islice(drawn, max(n, _MOST_RUNS))
        selected = list(itertools.islice(tried if where is None else filter(where, tried), n))
        if len(selected) < n:
            seen = f"all {size:,} runs of this grid" if size <= _MOST_RUNS else f"{_MOST_RUNS:,} runs drawn"
            if where is None:
                raise GridError([f"only {len(selected):,} different runs were drawn of {n:,}: lower n"])
            raise GridError(
                [f"where= keeps {len(selected)} of {seen}, a sample of {n:,} was asked for: lower n"]
            )
        return selected

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
        return math.prod(len(values) for values in axes_of_grid(params).values())


def make(space: Space, values: Iterable[tuple[Any, ...]], kinds: tuple[str, ...] = ()) -> Run:
    """Return the run with the given values of the axes.

    >>> from runmanager.core.ranges import LogUniform
    >>> space = space_of({"lr": LogUniform(0.001, 0.1), ("a", "b"): [(1, 2), (3, 4)]})
    >>> make(space, [(0.02,), (3, 4)])
    Run(lr=0.02, a=3, b=4)
    """
    names = tuple(itertools.chain.from_iterable(space))
    return make_run(names, itertools.chain.from_iterable(values), kinds or _kinds(space))


def _expanded(axes: Axes, where: Callable[[Run], bool] | None, max_runs: int) -> list[Run]:
    size = math.prod(len(values) for values in axes.values())
    most = max_runs if where is None else max(max_runs, _MOST_RUNS)
    if size > most:
        raise GridError([_too_many(axes, size, most)])
    space: Space = {**axes}
    kinds = _kinds(space)
    runs = (make(space, values, kinds) for values in itertools.product(*axes.values()))
    selected = [run for run in runs if where is None or where(run)]
    if len(selected) > max_runs:
        raise GridError([_too_many(axes, len(selected), max_runs)])
    if not selected:
        raise GridError([f"where= keeps none of {counted(size, 'run')}: keep at least one"])
    return selected


def _too_many(axes: Axes, size: int, max_runs: int) -> str:
    factors = " x ".join(str(len(values)) for values in axes.values())
    return (
        f"this grid has {size:,} runs ({factors}), the limit is {max_runs:,}: "
        f"shorten an axis, or write RunBuilder.get_runs(params, max_runs={size})"
    )


def _where_problems(where: Any) -> list[str]:
    if where is None or callable(where):
        return []
    return [f"where must be a function of a run, such as lambda run: run.lr > 0.01, got {where!r}"]


def _num_values(values: Range | list[tuple[Any, ...]]) -> int:
    return values.num_values if isinstance(values, Range) else len(values)


def _drawn(space: Space, seed: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the axes' values of distinct runs, in random order."""
    lists = [values for values in space.values() if not isinstance(values, Range)]
    if len(lists) == len(space):
        size = math.prod(map(len, lists))
        return (_combination(lists, index) for index in _shuffled(size, seed))
    drawn = (
        tuple(
            values.from_fraction(fraction) if isinstance(values, Range) else int(fraction * len(values))
            for values, fraction in zip(space.values(), row, strict=True)
        )
        for row in _fractions([*space], seed)
    )
    return (
        [
            (value,) if isinstance(values, Range) else values[value]
            for values, value in zip(space.values(), row, strict=True)
        ]
        for row in _distinct(drawn)
    )


def _shuffled(size: int, seed: int) -> Iterator[int]:
    """Yield the numbers below `size` in random order; memory and time depend on the numbers drawn.

    >>> sorted(_shuffled(4, seed=0)), next(_shuffled(10**30, seed=0)) < 10**30
    ([0, 1, 2, 3], True)
    """
    random_ = random.Random(seed)  # noqa: S311 - no secret
    moved: dict[int, int] = {}
    index = 0
    while index < size:  # `size` may be too large for range()
        other = random_.randrange(index, size)
        first, drawn = moved.get(index, index), moved.get(other, other)
        moved[other] = first
        yield drawn
        index += 1


def _fractions(names: Sequence[object], seed: int) -> Iterator[list[float]]:
    """Yield numbers in [0, 1) for each axis, without end; the numbers of an axis do not depend on other axes.

    >>> next(_fractions(["lr", "width"], seed=0))[1] == next(_fractions(["width"], seed=0))[0]
    True
    """
    randoms = [random.Random(f"{seed} {name}") for name in names]  # noqa: S311 - no secret
    while True:
        yield [random_.random() for random_ in randoms]


def _distinct(draws: Iterable[T]) -> Iterator[T]:
    """Yield distinct draws, until many draws in a row are repetitions.

    >>> [*_distinct([3, 1, 3, 3, 2])]
    [3, 1, 2]
    """
    seen: set[T] = set()
    num_repeated = 0
    for draw in draws:
        if draw not in seen:
            seen.add(draw)
            num_repeated = 0
            yield draw
        elif (num_repeated := num_repeated + 1) == _MOST_REPEATED:
            return


def _combination(axes: Sequence[Sequence[T]], index: int) -> list[T]:
    """Return the combination at an index of `itertools.product` of the axes.

    >>> [_combination([[0.1, 0.01], [8, 64]], index) for index in range(4)]
    [[0.1, 8], [0.1, 64], [0.01, 8], [0.01, 64]]
    """
    values: list[T] = []
    for axis in reversed(axes):
        index, position = divmod(index, len(axis))
        values.append(axis[position])
    return values[::-1]


def _kinds(space: Space) -> tuple[str, ...]:
    """Return the type of each hyperparameter, in the order of the fields."""
    kinds: list[str] = []
    for values in space.values():
        columns = [(values.low,)] if isinstance(values, Range) else zip(*values, strict=True)
        kinds += [common_kind(map(kind, column)) for column in columns]
    return tuple(kinds)

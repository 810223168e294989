"""Grids: `RunBuilder` expands a mapping of axes into a list of `Run`; `expand` does so over a configuration."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from runmanager.core.nested import Grid, flat, leaves, mapping_of, outline, plain_config, replaced
from runmanager.core.ranges import Range
from runmanager.core.run import Run, make_run
from runmanager.core.values import (
    check_device,
    check_groups,
    check_names,
    check_values,
    common_kind,
    kind,
    plain,
)
from runmanager.core.wording import counted, did_you_mean, listed
from runmanager.errors import GridError, Problems, first_line

MOST_VALUES = 1_000_000
"""The maximum number of values of an axis."""
_LONGEST = 60  # maximum number of characters of a value in a message

Axes = dict[tuple[str, ...], list[tuple[Any, ...]]]
Space = dict[tuple[str, ...], Range | list[tuple[Any, ...]]]
"""Names of an axis -> its range, or its list of tuples of values."""


def space_of(params: Grid, others: Sequence[str] = ()) -> Space:
    """Return the axes of a grid; an axis may be a range.

    >>> from runmanager.core.ranges import LogUniform
    >>> space_of({"lr": LogUniform(0.001, 0.1), "width": [8, 64]})
    {('lr',): LogUniform(0.001, 0.1), ('width',): [(8,), (64,)]}
    """
    problems = Problems(others)
    space = _checked(params, problems)
    problems.raise_if_any()
    return space


def axes_of_grid(params: Grid, others: Sequence[str] = ()) -> Axes:
    """Return the axes of a grid without ranges; arguments and errors as for `space_of`.

    >>> axes_of_grid({"width": [8, 64]})
    {('width',): [(8,), (64,)]}
    """
    problems = Problems(others)
    axes: Axes = {}
    ranges: list[str] = []
    for names, values in _checked(params, problems).items():
        if isinstance(values, Range):
            ranges += names
        else:
            axes[names] = values
    if ranges:
        rule = f"{listed(ranges)} {'are ranges' if len(ranges) > 1 else 'is a range'}, which no grid can expand"
        step = "draw runs with RunBuilder.sample(params, n=50, seed=0), or give run_grid a search="
        problems.append(f"{rule}: {step}")
    problems.raise_if_any()
    return axes


def _checked(params: Grid, problems: list[str]) -> Space:
    """Return the valid axes; append the errors of invalid axes to `problems`."""
    grid = mapping_of(params)
    if grid is None:
        step = "write {'lr': [...]}"
        problems.append(f"a grid is a mapping of name -> list of values, got {_short(params)}: {step}")
        return {}
    space: Space = {}
    seen: set[str] = set()
    for key, values in flat(grid):
        names = key if isinstance(key, tuple) else (key,)
        problems += check_names(names)
        problems += [f"{name!r} is in two axes: keep one" for name in dict.fromkeys(names) if name in seen]
        problems += [f"{key!r} has a name twice: keep one"] if len(set(names)) < len(names) else []
        seen.update(name for name in names if isinstance(name, str))
        if isinstance(values, Range) and not isinstance(key, tuple):
            problems += [f"{key!r} is a range of numbers: write a list of devices"] if key == "device" else []
            space[names] = values
            continue
        rows = _rows(key, values, problems)
        if not (odd := check_values(pair for row in rows for pair in zip(names, row, strict=True))):
            for name, column in zip(names, zip(*rows, strict=True), strict=False):
                problems += filter(None, map(check_device, column)) if name == "device" else []
        problems += odd
        space[names] = rows
    problems += check_groups(seen)
    return space


def _rows(key: Any, values: Any, problems: list[str]) -> list[tuple[Any, ...]]:
    name = ", ".join(key) if isinstance(key, tuple) and all(isinstance(part, str) for part in key) else key
    if isinstance(values, Range):
        values = [values]
    if isinstance(values, (str, bytes)) or not _is_iterable(values):
        single = f"{name}=[{_short(values)}]" if str(name).isidentifier() else f"{key!r}: [{_short(values)}]"
        single = f"{key!r}: [(...)]" if isinstance(key, tuple) else single
        problems.append(
            f"values of {name!r} must be a list or tuple, got {_short(values)}; "
            f"write {single} for a single value"
        )
        return []
    if isinstance(values, Mapping):
        problems.append(f"values of the paired axis {key!r} are a mapping: write a list of tuples")
        return []
    if isinstance(values, (set, frozenset)):
        problems.append(f"values of {name!r} are a set, which has no order: write a list")
        return []
    return _listed_rows(key, name, values, problems)


def _listed_rows(key: Any, name: Any, values: Iterable[Any], problems: list[str]) -> list[tuple[Any, ...]]:
    items = [plain(value) for value in itertools.islice(values, MOST_VALUES + 1)]
    if ranges := [value for value in items if isinstance(value, Range)]:
        step = f"write {key!r}: {ranges[0]!r}, without a list"
        if isinstance(key, tuple):
            step = "give each name a range of its own, or write a list of tuples"
        problems.append(f"values of {name!r} have a range among them: {step}")
        return []
    if not items:
        problems.append(f"axis {name!r} has no values: give it at least one, or leave it out")
    if len(items) > MOST_VALUES:
        problems.append(f"axis {name!r} has more than {MOST_VALUES:,} values: write a shorter list")
        return []
    if not isinstance(key, tuple):
        return [(value,) for value in items]
    return _paired_rows(key, items, problems)


def _paired_rows(key: tuple[Any, ...], values: list[Any], problems: list[str]) -> list[tuple[Any, ...]]:
    for value in values:
        if not isinstance(value, (tuple, list)) or len(value) != len(key):
            problems.append(
                f"each value of the paired axis {key!r} must be a tuple of {len(key)}, got {_short(value)}"
            )
            return []
    return [tuple(plain(item) for item in value) for value in values]


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever the code of its class does
        text = object.__repr__(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)  # arrays without dimensions are instances of Iterable, but raise an error here
    except TypeError:
        return False
    return True


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


_DEVICE = "device"  # the name of an axis that a configuration may lack
_OWN = "config"  # the attribute of a run that holds its configuration
_MOST_REFUSALS = 5


def expand(
    config: Any,
    params: "Grid | Sequence[Run]",
    *,
    where: Callable[[Run], bool] | None = None,
    max_runs: int | None = None,
) -> list[Run]:
    """Return the runs of a grid over an existing configuration; each has a copy as ``run.config``.

    All values of the configuration are hyperparameters with dotted names, so another base configuration gives
    other runs. `run_grid` accepts the result, alone or combined with other runs.

    Args:
        config: A nested data class, mapping (as from a YAML file) or OmegaConf configuration. Copies have the
            same types.
        params: The axes over fields, as for `RunBuilder.get_runs`, or the runs of a sample. The axis `device`
            need not be a field.
        where: A filter: only runs for which the function returns true.
        max_runs: The maximum number of combinations; with None, the maximum is a million.

    Returns:
        The runs, last axis fastest, for `run_grid`.

    Raises:
        GridError: A field does not exist, or a value is refused; the message lists all problems.

    Example:
        >>> from dataclasses import dataclass, field
        >>> @dataclass
        ... class Optimizer:
        ...     name: str = "sgd"
        ...     lr: float = 0.1
        >>> @dataclass
        ... class Config:
        ...     opt: Optimizer = field(default_factory=Optimizer)
        ...     width: int = 64
        >>> first, second = expand(Config(), {"opt.lr": [0.1, 0.01]})
        >>> second, second.config.opt
        (Run(opt.name='sgd', opt.lr=0.01, width=64), Optimizer(name='sgd', lr=0.01))
    """
    problems = Problems()
    combinations: Sequence[Run] = []
    fields: Mapping[Any, Any] | None = None
    with problems.collecting():
        fields = mapping_of(outline(config))
        if fields is None:
            step = f": write {config.__name__}()" if isinstance(config, type) else ""
            problems.append(f"a configuration is a data class or a mapping, got {config!r:.60}{step}")
    with problems.collecting():
        axes: Any = params
        is_sample = isinstance(axes, Sequence) and axes and all(isinstance(run, Run) for run in axes)
        combinations = axes if is_sample else RunBuilder.get_runs(axes, max_runs=max_runs)
    names = list(dict.fromkeys(name for run in combinations for name in run._fields))
    if fields is not None:
        problems += [_no_field(name, config) for name in names if name != _DEVICE and not _has(config, name)]
        problems += [f"the configuration has the field {_OWN!r}, which is run.{_OWN}: rename it"] * (
            _OWN in fields
        )
    problems.raise_if_any()
    pairs = [(_params_of(run, copied), copied) for run, copied in _copies(config, combinations)]
    values = [pair for params, _ in pairs for pair in params.items()]
    names = list(dict.fromkeys(name for name, _ in values))
    problems += [*check_names(names), *check_groups(names), *check_values(values)]
    problems.raise_if_any()
    kinds = {name: common_kind(kind(params[name]) for params, _ in pairs if name in params) for name in names}
    runs = [
        make_run(tuple(params), params.values(), tuple(kinds[name] for name in params), "run", copied)
        for params, copied in pairs
    ]
    selected = [run for run in runs if where is None or where(run)]
    if not selected:
        raise GridError([f"where= keeps none of {len(runs):,} runs: keep at least one"])
    return selected


def _has(config: Any, name: str) -> bool:
    value = outline(config)
    for part in name.split("."):
        fields = mapping_of(value)
        if fields is None or part not in fields:
            return False
        value = fields[part]
    return True


def _no_field(name: str, config: Any) -> str:
    names = dict(leaves(outline(config)))
    return f"the configuration has no field {name!r}; {did_you_mean(name, names, 'it has')}"


def _copies(config: Any, combinations: Sequence[Run]) -> list[tuple[Run, Any]]:
    """Return each combination with a copy of the configuration that has its values."""
    problems = Problems()
    copies: list[tuple[Run, Any]] = []
    base = mapping_of(outline(config)) or {}
    for run in combinations:
        values = {name: value for name, value in run._asdict().items() if name != _DEVICE or _DEVICE in base}
        try:
            copies.append((run, replaced(config, values)))
        except Exception as error:  # noqa: BLE001 - whatever the code of its class does
            problems.append(f"the configuration refuses {run!r} ({type(error).__name__}: {first_line(error)})")
            if len(problems) == _MOST_REFUSALS:
                break
    problems.raise_if_any()
    return copies


def _params_of(run: Run, config: Any) -> dict[str, Any]:
    """Return all values of a configuration by name, and the values of axes that the configuration lacks."""
    values = dict(leaves(config, run._fields))  # the values as converted by the classes of the configuration
    values |= {name: value for name, value in run._asdict().items() if name not in values}
    return {name: plain(plain_config(value)) for name, value in values.items()}

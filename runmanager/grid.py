"""Hyperparameters in, runs out: `RunBuilder` expands a mapping of axes into a list of `Run`."""

import itertools
import math
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from runmanager.errors import GridError, HyperparameterError, Problems
from runmanager.hyperparameters import (
    check_device,
    check_names,
    check_values,
    common_kind,
    counted,
    kind,
    plain,
    safe_repr,
)  # fmt: skip
from runmanager.sampling import combination, shuffled

_MOST_VALUES = 1_000_000  # of one axis, and combinations walked or drawn for where=
_LONGEST = 60  # characters of a value in a message

Axes = dict[tuple[str, ...], list[tuple[Any, ...]]]


class Run(tuple[Any, ...]):
    """One assignment of hyperparameters: a namedtuple that pickles.

    Its fields are the axes of the grid in their order. `RunBuilder.get_runs` makes them. Runs with other fields
    are other runs, whatever their values: ``[run for run in runs_b if run not in runs_a]``.

    Example:
        >>> run = RunBuilder.get_runs({"lr": [0.1], "device": ["cpu"]})[0]
        >>> run.lr, run._asdict()
        (0.1, {'lr': 0.1, 'device': 'cpu'})
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _kinds: tuple[str, ...] = ()  # of each field in the whole grid, which a single run does not know

    if TYPE_CHECKING:

        def _asdict(self) -> dict[str, Any]: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise HyperparameterError(
            f"run has no hyperparameter {name!r}; it has: {', '.join(self._fields) or 'none'}"
        )

    def __eq__(self, other: object) -> bool:
        return not self._has_other_fields(other) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return self._has_other_fields(other) or tuple.__ne__(self, other)

    def __hash__(self) -> int:
        return tuple.__hash__(self)

    def _has_other_fields(self, other: object) -> bool:
        return isinstance(other, Run) and other._fields != self._fields

    def __reduce__(self) -> tuple[Callable[..., "Run"], tuple[tuple[Any, ...], ...]]:
        return _make_run, (self._fields, tuple(self), self._kinds)


class RunBuilder:
    """Expand a grid of hyperparameters into runs.

    Example:
        >>> len(RunBuilder.get_runs({"lr": [0.1, 0.01], "width": [8, 64]}))
        4
    """

    @staticmethod
    def get_runs(
        params: Mapping[Any, Any],
        *,
        where: Callable[[Run], bool] | None = None,
        max_runs: int | None = None,
    ) -> list[Run]:
        """Expand a mapping of name -> values into the runs of its product, last axis fastest.

        A tuple of names is a paired axis, whose values are tuples of the same length.

        Args:
            params: The axes in order. Values are any iterable with an order, but no string.
            where: Keeps the runs for which it is true.
            max_runs: The most runs to accept, to catch a grid that is large by accident; None for a million.

        Returns:
            The runs in order, each once.

        Raises:
            GridError: This is no grid; it lists every problem with what to write instead.

        Example:
            >>> RunBuilder.get_runs({"lr": [0.1, 0.01], "device": ["cpu"]})
            [Run(lr=0.1, device='cpu'), Run(lr=0.01, device='cpu')]
            >>> RunBuilder.get_runs({("lr", "momentum"): [(0.1, 0.9), (0.01, 0.99)]})
            [Run(lr=0.1, momentum=0.9), Run(lr=0.01, momentum=0.99)]
        """
        return _expanded(_checked_axes(params, _where_problems(where)), where, max_runs or _MOST_VALUES)

    @staticmethod
    def sample(
        params: Mapping[Any, Any],
        n: int,
        seed: int,
        *,
        where: Callable[[Run], bool] | None = None,
    ) -> list[Run]:
        """Draw `n` different runs of a grid, all of them equally likely, without expanding it.

        They come in the order in which they are drawn: with the same seed, a larger `n` begins with the runs of
        a smaller one, so that a sample can grow.

        Args:
            params: The axes, as for `get_runs`.
            n: How many runs to draw.
            seed: Determines the sample; the global random state is not used.
            where: Draws from the runs for which it is true.

        Returns:
            The `n` runs, in the order in which they were drawn.

        Raises:
            GridError: As `get_runs`, or the grid has fewer runs.

        Example:
            >>> RunBuilder.sample({"lr": [0.1, 0.01, 0.001], "seed": range(10**4)}, 2, seed=0)
            [Run(lr=0.001, seed=7670), Run(lr=0.01, seed=2624)]
        """
        axes = _checked_axes(params, [*_sample_problems(n, seed), *_where_problems(where)])
        names = tuple(itertools.chain.from_iterable(axes))
        size = math.prod(len(values) for values in axes.values())
        if n > size:
            raise GridError([f"a sample of {n:,} runs was asked for, this grid has {size:,}: write n={size}"])
        kinds = _kinds(axes)
        drawn = (_run(names, combination([*axes.values()], index), kinds) for index in shuffled(size, seed))
        if where is None:
            return list(itertools.islice(drawn, n))
        tried = itertools.islice(drawn, max(n, _MOST_VALUES))
        kept = list(itertools.islice(filter(where, tried), n))
        if len(kept) < n:
            seen = f"all {size:,} runs of this grid" if size <= _MOST_VALUES else f"{_MOST_VALUES:,} runs drawn"
            raise GridError([f"where= keeps {len(kept)} of {seen}, a sample of {n:,} was asked for: lower n"])
        return kept

    @staticmethod
    def num_runs(params: Mapping[Any, Any]) -> int:
        """Count the runs of a grid without expanding it.

        Args:
            params: The axes, as for `get_runs`.

        Returns:
            The number of runs, also where it is too large for `get_runs`.

        Raises:
            GridError: As `get_runs`, but of any size.

        Example:
            >>> RunBuilder.num_runs({f"p{i}": range(10) for i in range(12)})
            1000000000000
        """
        return math.prod(len(values) for values in _checked_axes(params).values())


def params_of(run: Any) -> dict[str, Any]:
    """Return the hyperparameters of a run: a namedtuple, whoever made it, or a mapping.

    Raises:
        GridError: It is neither, or a name or its device cannot be used.
    """
    params = run._asdict() if hasattr(run, "_asdict") else run
    if not isinstance(params, Mapping):
        raise GridError([f"a run is a namedtuple or a mapping of hyperparameters, got {run!r}"])
    problems = Problems(check_names(params))
    problems += check_values(params.items())
    if not problems and "device" in params and (problem := check_device(params["device"])):
        problems.append(problem)
    problems.raise_if_any()
    return dict(params)


def device_of(run: Run) -> str:
    """Return the device that a run asks for, as in ``"cuda:1"``; ``"cpu"`` if it has no such axis."""
    return str(getattr(run, "device", "cpu"))


def kinds_of(run: Any) -> dict[str, str]:
    """Return the kind of each hyperparameter in the grid of a run, empty if RunBuilder did not make it."""
    if not isinstance(run, Run):
        return {}
    return dict(zip(run._fields, run._kinds, strict=False))  # noqa: SLF001 - of this module


def _checked_axes(params: Mapping[Any, Any], others: Sequence[str] = ()) -> Axes:
    """Return the axes if they and everything else can be used.

    Args:
        params: The axes as the user wrote them.
        others: What else is wrong.
    """
    if not isinstance(params, Mapping):
        raise GridError(
            [
                *others,
                f"a grid is a mapping of name -> list of values, got {_short(params)}: write {{'lr': [...]}}",
            ]
        )
    problems = Problems(others)
    axes: Axes = {}
    seen: set[str] = set()
    for key, values in params.items():
        names = key if isinstance(key, tuple) else (key,)
        problems += check_names(names)
        problems += [f"{name!r} is in two axes: keep one" for name in dict.fromkeys(names) if name in seen]
        problems += [f"{key!r} has a name twice: keep one"] if len(set(names)) < len(names) else []
        seen.update(name for name in names if isinstance(name, str))
        rows = _rows(key, values, problems)
        if not (odd := check_values(pair for row in rows for pair in zip(names, row, strict=True))):
            _check_devices(names, rows, problems)
        problems += odd
        axes[names] = rows
    problems.raise_if_any()
    return axes


def _rows(key: Any, values: Any, problems: list[str]) -> list[tuple[Any, ...]]:
    name = ", ".join(key) if isinstance(key, tuple) and all(isinstance(part, str) for part in key) else key
    if isinstance(values, (str, bytes)) or not _is_iterable(values):
        single = f"{name}=[{_short(values)}]" if not isinstance(key, tuple) else f"{key!r}: [(...)]"
        problems.append(
            f"values of {name!r} must be a list or tuple, got {_short(values)}; "
            f"write {single} for a single value"
        )
        return []
    if isinstance(values, Mapping):
        first = next(iter(values), "lr")
        problems.append(
            f"values of {name!r} are a mapping: write an axis for each of its keys, as {f'{name}_{first}'!r}: "
            f"[...], or a list of mappings, {name!r}: [{{...}}]"
        )
        return []
    if isinstance(values, (set, frozenset)):
        problems.append(f"values of {name!r} are a set, which has no order: write a list")
        return []
    items = [plain(value) for value in itertools.islice(values, _MOST_VALUES + 1)]
    if not items:
        problems.append(f"axis {name!r} has no values: give it at least one, or leave it out")
    if len(items) > _MOST_VALUES:
        problems.append(f"axis {name!r} has more than {_MOST_VALUES:,} values: write a shorter list")
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


def _check_devices(names: tuple[Any, ...], rows: list[tuple[Any, ...]], problems: list[str]) -> None:
    for name, values in zip(names, zip(*rows, strict=True), strict=False):
        if name == "device":
            problems += filter(None, map(check_device, values))


def _expanded(axes: Axes, where: Callable[[Run], bool] | None, max_runs: int) -> list[Run]:
    size = math.prod(len(values) for values in axes.values())
    most = max_runs if where is None else max(max_runs, _MOST_VALUES)
    if size > most:
        raise GridError([_too_many(axes, size, most)])
    names, kinds = tuple(itertools.chain.from_iterable(axes)), _kinds(axes)
    runs = (_run(names, combination, kinds) for combination in itertools.product(*axes.values()))
    kept = [run for run in runs if where is None or where(run)]
    if len(kept) > max_runs:
        raise GridError([_too_many(axes, len(kept), max_runs)])
    if not kept:
        raise GridError([f"where= keeps none of {counted(size, 'run')}: keep at least one"])
    return kept


def _too_many(axes: Axes, size: int, max_runs: int) -> str:
    factors = " x ".join(str(len(values)) for values in axes.values())
    return (
        f"this grid has {size:,} runs ({factors}), the limit is {max_runs:,}: "
        f"shorten an axis, or allow it with max_runs={size}"
    )


def _short(value: Any) -> str:
    return text if len(text := safe_repr(value)) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)  # arrays without dimensions are Iterable and raise here
    except TypeError:
        return False
    return True


def _where_problems(where: Any) -> list[str]:
    if where is None or callable(where):
        return []
    return [f"where must be a function of a run, such as lambda run: run.lr > 0.01, got {where!r}"]


def _sample_problems(n: Any, seed: Any) -> list[str]:
    problems = Problems()
    problems.check_count("n", n, 1)
    if not isinstance(seed, int) or isinstance(seed, bool):
        problems.append(f"seed must be a whole number, so that the same runs are drawn again, got {seed!r}")
    return problems


def _kinds(axes: Axes) -> tuple[str, ...]:
    """Return the kind of each hyperparameter, in the order of the fields."""
    columns = itertools.chain.from_iterable(zip(*rows, strict=True) for rows in axes.values())
    return tuple(common_kind(map(kind, column)) for column in columns)


def _run(names: tuple[str, ...], combination: Iterable[tuple[Any, ...]], kinds: tuple[str, ...]) -> Run:
    return _make_run(names, itertools.chain.from_iterable(combination), kinds)


def _make_run(names: tuple[str, ...], values: Iterable[Any], kinds: tuple[str, ...] = ()) -> Run:
    run: Run = _run_type(names, kinds)._make(values)
    return run


@lru_cache(maxsize=256)
def _run_type(names: tuple[str, ...], kinds: tuple[str, ...]) -> Any:
    # Run comes second, so that the fields win over its __getattr__, and __reduce__ over tuple's
    fields = namedtuple("Run", names)  # type: ignore[misc]  # noqa: PYI024 - the names are the grid's
    return type("Run", (fields, Run), {"__slots__": (), "_kinds": kinds, "__reduce__": Run.__reduce__})

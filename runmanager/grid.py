"""Hyperparameters in, runs out: `RunBuilder` expands a mapping of axes into a list of `Run`."""

import difflib
import itertools
import json
import keyword
import math
import random
import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from runmanager.errors import GridError, HyperparameterError
from runmanager.hyperparameters import canonical, counted, is_nameable, plain

RESERVED = frozenset(
    (
        "experiment",
        "run",
        "epoch",
        "loss",
        "accuracy",
        "status",
        "epochs",
        "jobs",
        "parameters",
        "attempts",
        "mixed",
        "error",
        "hyperparameters",
    )
)
"""Names that columns of the results already have."""

DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "meta")
_DEVICE = re.compile(r"(?P<type>[a-z]+)(:(?P<index>0|[1-9][0-9]?))?")  # torch reads cuda:256 as cuda:0
_MOST_VALUES = 1_000_000  # of one axis, and combinations walked or drawn for where=
_SHOWN = 60  # characters of a value in a message

Axes = dict[tuple[str, ...], list[tuple[Any, ...]]]


class Run(tuple[Any, ...]):
    """One assignment of hyperparameters: a namedtuple that pickles.

    Its fields are the axes of the grid in their order. `RunBuilder.get_runs` makes them. Runs with other fields
    are other runs, whatever their values: ``[run for run in runs_b if run not in runs_a]``.
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()

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

    __hash__ = tuple.__hash__

    def _has_other_fields(self, other: object) -> bool:
        return isinstance(other, Run) and other._fields != self._fields

    def __reduce__(self) -> tuple[Callable[..., "Run"], tuple[tuple[str, ...], tuple[Any, ...]]]:
        return _make_run, (self._fields, tuple(self))


class RunBuilder:
    """Expand a grid of hyperparameters into runs."""

    @staticmethod
    def get_runs(
        params: Mapping[Any, Any],
        *,
        where: Callable[[Run], bool] | None = None,
        max_runs: int = 1000,
    ) -> list[Run]:
        """Expand a mapping of name -> values into the runs of its product, last axis fastest.

        A tuple of names is a paired axis, whose values are tuples of the same length.

        Args:
            params: The axes in order. Values are any iterable with an order, but no string.
            where: Keeps the runs for which it is true.
            max_runs: The most runs that are wanted, to catch a grid that is large by accident.

        Raises:
            GridError: Nothing can be run; it lists every problem with what to write instead.

        >>> RunBuilder.get_runs({"lr": [0.1, 0.01], "device": ["cpu"]})
        [Run(lr=0.1, device='cpu'), Run(lr=0.01, device='cpu')]
        >>> RunBuilder.get_runs({("lr", "momentum"): [(0.1, 0.9), (0.01, 0.99)]})
        [Run(lr=0.1, momentum=0.9), Run(lr=0.01, momentum=0.99)]
        """
        axes = _checked_axes(params, _where_problems(where))
        size = math.prod(len(values) for values in axes.values())
        most = max_runs if where is None else max(max_runs, _MOST_VALUES)
        if size > most:
            raise GridError([_too_many(axes, size, most)])
        names = tuple(itertools.chain.from_iterable(axes))
        runs = (_run(names, combination) for combination in itertools.product(*axes.values()))
        kept = list(runs) if where is None else [run for run in runs if where(run)]
        if len(kept) > max_runs:
            raise GridError([_too_many(axes, len(kept), max_runs)])
        if not kept:
            raise GridError([f"where= keeps none of {counted(size, 'run')}: keep at least one"])
        return kept

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
            n: How many are wanted.
            seed: What the sample follows from; the global random state is not used.
            where: Draws from the runs for which it is true.

        Raises:
            GridError: As `get_runs`, or there are not so many runs.

        >>> RunBuilder.sample({"lr": [0.1, 0.01, 0.001], "seed": range(10**4)}, 2, seed=0)
        [Run(lr=0.001, seed=7670), Run(lr=0.01, seed=2624)]
        """
        axes = _checked_axes(params, [*_sample_problems(n, seed), *_where_problems(where)])
        names = tuple(itertools.chain.from_iterable(axes))
        size = math.prod(len(values) for values in axes.values())
        if n > size:
            raise GridError([f"a sample of {n:,} runs is wanted, this grid has {size:,}: write n={size}"])
        drawn = (_run(names, _combination(axes, place)) for place in _shuffled(size, seed))
        if where is None:
            return list(itertools.islice(drawn, n))
        tried = itertools.islice(drawn, max(n, _MOST_VALUES))
        kept = list(itertools.islice(filter(where, tried), n))
        if len(kept) < n:
            seen = f"all {size:,} runs of this grid" if size <= _MOST_VALUES else f"{_MOST_VALUES:,} runs drawn"
            raise GridError([f"where= keeps {len(kept)} of {seen}, a sample of {n:,} is wanted: lower n"])
        return kept

    @staticmethod
    def num_runs(params: Mapping[Any, Any]) -> int:
        """Count the runs of a grid without expanding it.

        Raises:
            GridError: As `get_runs`, but of any size.

        >>> RunBuilder.num_runs({f"p{i}": range(10) for i in range(12)})
        1000000000000
        """
        return math.prod(len(values) for values in _checked_axes(params).values())


def check_names(names: Iterable[str]) -> list[str]:
    """Return a sentence for each hyperparameter name that no run can have."""
    return [problem for name in names if (problem := _name_problem(name))]


def check_device(value: Any) -> str | None:
    """Return what is wrong with a device as written, or None; whether it exists is not asked.

    >>> check_device("cuda:1"), check_device("cpu:3")
    (None, "the cpu has no numbers, got 'cpu:3': write 'cpu'")
    """
    text = str(value)
    match = _DEVICE.fullmatch(text)
    if isinstance(value, (bool, int)) or value is None:
        return f"a device is named by text, got {value!r}: write 'cpu' or 'cuda:0'"
    if match is None or match["type"] not in DEVICE_TYPES:
        return f"unknown device {text!r}: {_device_hint(text)}"
    if match["type"] == "cpu" and match["index"] is not None:
        # torch accepts cpu:3 silently and computes on the cpu
        return f"the cpu has no numbers, got {text!r}: write 'cpu'"
    return None


def _device_hint(text: str) -> str:
    kind, _, number = text.lower().replace("gpu", "cuda").partition(":")
    close = difflib.get_close_matches(kind, DEVICE_TYPES, n=1)
    if not close:
        return "write one of: " + ", ".join(DEVICE_TYPES[:4])
    numbered = f"{close[0]}:{number.lstrip('0') or number[:1]}"
    name = numbered if _DEVICE.fullmatch(numbered) and close[0] != "cpu" else close[0]
    return f"did you mean {name!r}?"


def params_of(run: Any) -> dict[str, Any]:
    """Return the hyperparameters of a run: a namedtuple, whoever made it, or a mapping.

    Raises:
        GridError: It is neither, or a name or its device cannot be used.
    """
    params = run._asdict() if hasattr(run, "_asdict") else run
    if not isinstance(params, Mapping):
        raise GridError([f"a run is a namedtuple or a mapping of hyperparameters, got {run!r}"])
    problems = check_names(params)
    if "device" in params and (problem := check_device(params["device"])):
        problems.append(problem)
    if problems:
        raise GridError(problems)
    return dict(params)


def device_of(run: Run) -> str:
    """Return the device that a run asks for, as in ``"cuda:1"``; ``"cpu"`` if it has no such axis."""
    return str(getattr(run, "device", "cpu"))


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
    problems = list(others)
    axes: Axes = {}
    seen: set[str] = set()
    for key, values in params.items():
        names = key if isinstance(key, tuple) else (key,)
        problems += check_names(names)
        problems += [f"{name!r} stands in two axes: keep one" for name in dict.fromkeys(names) if name in seen]
        problems += [f"{key!r} has a name twice: keep one"] if len(set(names)) < len(names) else []
        seen.update(name for name in names if isinstance(name, str))
        rows = _rows(key, values, problems)
        _check_values(names, rows, problems)
        axes[names] = rows
    if problems:
        raise GridError(problems)
    return axes


def _name_problem(name: Any) -> str | None:
    if not isinstance(name, str):
        return f"a hyperparameter name must be text, got {name!r}"
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        suggestion = re.sub(r"\W", "_", name.strip()).strip("_") or "name"
        suggestion = f"{suggestion}_" if keyword.iskeyword(suggestion) else suggestion
        suggestion = f"p{suggestion}" if suggestion[0].isdigit() else suggestion
        return f"{name!r} cannot be read as run.{name}: write {suggestion!r}"
    if name in RESERVED:
        return f"{name!r} is a column of the results: write {f'num_{name}'!r} or another name"
    return None


def _rows(key: Any, values: Any, problems: list[str]) -> list[tuple[Any, ...]]:
    name = ", ".join(key) if isinstance(key, tuple) and all(map(_is_text, key)) else key
    if isinstance(values, (str, bytes)) or not _is_iterable(values):
        single = f"{name}=[{_short(values)}]" if not isinstance(key, tuple) else f"{key!r}: [(...)]"
        problems.append(
            f"values of {name!r} must be a list or tuple, got {_short(values)}; "
            f"write {single} for a single value"
        )
        return []
    if isinstance(values, (set, frozenset)):
        problems.append(f"values of {name!r} are a set, which has no order: write a list")
        return []
    found = [plain(value) for value in itertools.islice(values, _MOST_VALUES + 1)]
    if not found:
        problems.append(f"axis {name!r} has no values: give it at least one, or leave it out")
    if len(found) > _MOST_VALUES:
        problems.append(f"axis {name!r} has more than {_MOST_VALUES:,} values: write a shorter list")
        return []
    if not isinstance(key, tuple):
        return [(value,) for value in found]
    return _paired_rows(key, found, problems)


def _paired_rows(key: tuple[Any, ...], found: list[Any], problems: list[str]) -> list[tuple[Any, ...]]:
    for value in found:
        if not isinstance(value, (tuple, list)) or len(value) != len(key):
            problems.append(
                f"each value of the paired axis {key!r} must be a tuple of {len(key)}, got {_short(value)}"
            )
            return []
    return [tuple(plain(item) for item in value) for value in found]


def _check_values(names: tuple[Any, ...], rows: list[tuple[Any, ...]], problems: list[str]) -> None:
    seen: dict[str, tuple[Any, ...]] = {}
    for row in rows:
        for name, value in zip(names, row, strict=True):
            if name == "device" and (problem := check_device(value)):
                problems.append(problem)
            if not is_nameable(value):
                problems.append(
                    f"a value of {name!r} has no lasting name, got {_short(value)}: "
                    f"write its name and look it up, as in networks[run.{name}]"
                )
        known = seen.setdefault(json.dumps(canonical(row)), row)
        if known is not row:
            name = ", ".join(map(str, names))
            value = row[0] if len(row) == 1 else row
            problems.append(f"{name!r} has the value {_short(value)} twice: write it once")


def _too_many(axes: Axes, size: int, max_runs: int) -> str:
    factors = " x ".join(str(len(values)) for values in axes.values())
    return (
        f"this grid has {size:,} runs ({factors}), the limit is {max_runs:,}: "
        f"shorten an axis, or allow it with max_runs={size}"
    )


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)  # arrays without dimensions are Iterable and raise here
    except TypeError:
        return False
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _where_problems(where: Any) -> list[str]:
    if where is None or callable(where):
        return []
    return [f"where is a function of a run, as lambda run: run.lr > 0.01, got {where!r}"]


def _sample_problems(n: Any, seed: Any) -> list[str]:
    problems = []
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        problems.append(f"n is how many runs are drawn, a whole number, 1 or more, got {n!r}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        problems.append(f"seed must be a whole number, so that the same runs are drawn again, got {seed!r}")
    return problems


def _shuffled(size: int, seed: int) -> Iterator[int]:
    """Yield the numbers below `size` in a random order; memory and time are those of the numbers drawn.

    Fisher and Yates' shuffle, which remembers no more than what it has moved.
    """
    random_ = random.Random(seed)  # noqa: S311 - no secret
    moved: dict[int, int] = {}
    place = 0
    while place < size:  # which may be more than range() can count
        other = random_.randrange(place, size)
        first, drawn = moved.get(place, place), moved.get(other, other)
        moved[other] = first
        yield drawn
        place += 1


def _combination(axes: Axes, place: int) -> list[tuple[Any, ...]]:
    """Return what `itertools.product` of the axes has at a place."""
    found: list[tuple[Any, ...]] = []
    for values in reversed(axes.values()):
        place, number = divmod(place, len(values))
        found.append(values[number])
    return found[::-1]


def _run(names: tuple[str, ...], combination: Iterable[tuple[Any, ...]]) -> Run:
    return _make_run(names, itertools.chain.from_iterable(combination))


def _make_run(names: tuple[str, ...], values: Iterable[Any]) -> Run:
    run: Run = _run_type(names)._make(values)
    return run


@lru_cache(maxsize=256)
def _run_type(names: tuple[str, ...]) -> Any:
    # Run comes second, so that the fields win over its __getattr__, and __reduce__ over tuple's
    fields = namedtuple("Run", names)  # type: ignore[misc]  # noqa: PYI024 - the names are the grid's
    return type("Run", (fields, Run), {"__slots__": (), "__reduce__": Run.__reduce__})

"""The axes of a grid: validation of their values and ranges."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runmanager.core.hyperparameters import check_device, check_groups, check_names, check_values, plain
from runmanager.core.nested import Grid, flat, mapping_of
from runmanager.core.ranges import Range
from runmanager.core.wording import listed
from runmanager.errors import Problems

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

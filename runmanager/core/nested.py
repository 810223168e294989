"""Nested mappings, data classes and OmegaConf configurations, flattened to values with dotted names."""

import copy
import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Protocol, TypeAlias

from runmanager.core.ranges import Range
from runmanager.core.values import check_names
from runmanager.errors import GridError, first_line


class DataClass(Protocol):
    """An instance of any data class."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Grid: TypeAlias = Mapping[Any, Any] | DataClass
"""The types in which users write a grid."""

_DEEPEST = 50  # the maximum depth of nested mappings


def mapping_of(value: Any) -> Mapping[Any, Any] | None:
    """Return the fields of a mapping, a data class or an OmegaConf configuration; None for anything else.

    >>> mapping_of({"lr": 0.1}), mapping_of([0.1])
    ({'lr': 0.1}, None)
    """
    value = plain_config(value)
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (Range, type)) or not dataclasses.is_dataclass(value):
        return None
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}


def plain_config(value: Any, *, is_outline: bool = False) -> Any:
    """Convert an OmegaConf configuration to dicts and lists, with interpolations resolved; keep other values.

    With `is_outline`, interpolations and missing values stay, for the names of the fields alone.

    Raises:
        GridError: A value is missing, or cannot be resolved.
    """
    omega = getattr(sys.modules.get("omegaconf"), "OmegaConf", None)
    if omega is None or not omega.is_config(value):
        return value
    try:
        return omega.to_container(value, resolve=not is_outline, throw_on_missing=not is_outline)
    except Exception as error:
        cause = f"{type(error).__name__}: {first_line(error)}"
        raise GridError([f"the configuration cannot be read ({cause}): give it that value"]) from error


def has(config: Any, name: str) -> bool:
    """Whether a configuration has a field, by its dotted name.

    >>> has({"opt": {"lr": 0.1}}, "opt.lr"), has({"opt": {"lr": 0.1}}, "opt.lr.min")
    (True, False)
    """
    head, _, below = name.partition(".")
    fields = mapping_of(config) or {}
    return head in fields and (not below or has(fields[head], below))


def flat(grid: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[Any, Any]]:
    """Yield the axes of a grid and their values, with dotted names for nested mappings.

    >>> list(flat({"opt": {"lr": [0.1], ("a", "b"): [(1, 2)]}, "device": ["cpu"]}))
    [('opt.lr', [0.1]), (('opt.a', 'opt.b'), [(1, 2)]), ('device', ['cpu'])]
    """
    if prefix.count(".") > _DEEPEST:
        raise GridError([f"mappings of a grid are nested more than {_DEEPEST} deep: make it flatter"])
    for key, axis in grid.items():
        values = plain_config(axis)
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


def leaves(config: Any, unexpanded: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in a configuration by their dotted names.

    >>> dict(leaves({"opt": {"lr": 0.1, "betas": [0.9, 0.99]}, "labels": {0: "cat"}}))
    {'opt.lr': 0.1, 'opt.betas': [0.9, 0.99], 'labels': {0: 'cat'}}
    """
    for key, value in (mapping_of(config) or {}).items():
        name = f"{prefix}{key}" if isinstance(key, str) else key
        inner = None if name in unexpanded or prefix.count(".") == _DEEPEST else mapping_of(value)
        if inner and all(isinstance(key, str) and not check_names([f"x.{key}"]) for key in inner):
            yield from leaves(inner, unexpanded, f"{name}.")
        else:
            yield name, value


def replaced(config: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a configuration with some values replaced, by dotted name; types do not change.

    >>> replaced({"opt": {"lr": 0.1, "name": "sgd"}}, {"opt.lr": 0.5})
    {'opt': {'lr': 0.5, 'name': 'sgd'}}
    """
    config = copy.deepcopy(config)
    omega = getattr(sys.modules.get("omegaconf"), "OmegaConf", None)
    if omega is None or not omega.is_config(config):
        return _replaced(config, values)
    omega.set_readonly(config, False)
    for name, value in values.items():
        omega.update(config, name, value, merge=False)
    return config


def _replaced(config: Any, values: Mapping[str, Any]) -> Any:
    """Replace values of a configuration that the caller owns: in place if the configuration is mutable."""
    fields = mapping_of(config) or {}
    changes: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            below.setdefault(head, {})[rest] = value
        else:
            changes[head] = copy.deepcopy(value)
    for head, inner in below.items():
        changes[head] = _replaced(changes.get(head, fields.get(head)), inner)
    if isinstance(config, MutableMapping):
        config.update(changes)
        return config
    return {**fields, **changes} if isinstance(config, Mapping) else dataclasses.replace(config, **changes)

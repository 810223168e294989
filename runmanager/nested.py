"""Nested mappings, data classes and OmegaConf's configurations, by the dotted names of what is in them."""

import copy
import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Protocol, TypeAlias

from runmanager.errors import GridError, first_line
from runmanager.hyperparameters import check_names
from runmanager.ranges import Range


class DataClass(Protocol):
    """An instance of any data class."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Grid: TypeAlias = Mapping[Any, Any] | DataClass
"""A grid as users write it."""

_DEEPEST = 50  # mappings within each other


def mapping_of(value: Any) -> Mapping[Any, Any] | None:
    """Return the fields of a mapping, a data class or a configuration of OmegaConf; None of anything else.

    >>> mapping_of({"lr": 0.1}), mapping_of([0.1])
    ({'lr': 0.1}, None)
    """
    value = plain_config(value)
    if isinstance(value, Mapping):
        return value
    if isinstance(value, Range):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None


def plain_config(value: Any) -> Any:
    """Turn a configuration of OmegaConf into dicts and lists, with its interpolations; leave all else alone.

    Raises:
        GridError: It lacks a value, or cannot be resolved.
    """
    omega = _omegaconf(value)
    if omega is None:
        return value
    try:
        return omega.to_container(value, resolve=True, throw_on_missing=True)
    except Exception as error:
        cause = f"{type(error).__name__}: {first_line(error)}"
        raise GridError([f"the configuration cannot be read ({cause}): give it that value"]) from error


def outline(config: Any) -> Any:
    """Return what has the names of a configuration; values of OmegaConf may be missing in it."""
    omega = _omegaconf(config)
    return config if omega is None else omega.to_container(config, resolve=False)


def _omegaconf(value: Any) -> Any:
    """Return the class that handles a configuration of OmegaConf, None if the value is none."""
    omega = getattr(sys.modules.get("omegaconf"), "OmegaConf", None)
    return omega if omega is not None and omega.is_config(value) else None


def flat(grid: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the axes of a grid and their values, those in a nested mapping with dotted names.

    Raises:
        GridError: Mappings are nested too deep.

    >>> list(flat({"opt": {"lr": [0.1], ("a", "b"): [(1, 2)]}, "device": ["cpu"]}))
    [('opt.lr', [0.1]), (('opt.a', 'opt.b'), [(1, 2)]), ('device', ['cpu'])]
    """
    return _flat(grid, "", 0)


def _flat(grid: Mapping[Any, Any], prefix: str, depth: int) -> Iterator[tuple[Any, Any]]:
    if depth > _DEEPEST:
        raise GridError([f"mappings of a grid are nested more than {_DEEPEST} deep: make it flatter"])
    for key, values in grid.items():
        name = tuple(_below(prefix, part) for part in key) if isinstance(key, tuple) else _below(prefix, key)
        inner = mapping_of(values) if isinstance(key, str) and not _yields_values(values) else None
        if inner:
            yield from _flat(inner, f"{name}.", depth + 1)
        else:
            yield name, () if inner is not None else plain_config(values)


def _yields_values(values: Any) -> bool:
    """Whether a data class yields values, as a range of one's own."""
    return not isinstance(values, Mapping) and hasattr(type(values), "__iter__") and _omegaconf(values) is None


def _below(prefix: str, name: Any) -> Any:
    return f"{prefix}{name}" if isinstance(name, str) else name


def leaves(config: Any, kept: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in a configuration by their dotted names.

    What is `kept` is not looked into, nor a mapping whose keys are no names, which is a value itself.

    >>> dict(leaves({"opt": {"lr": 0.1, "betas": [0.9, 0.99]}, "labels": {0: "cat"}}))
    {'opt.lr': 0.1, 'opt.betas': [0.9, 0.99], 'labels': {0: 'cat'}}
    """
    for key, value in (mapping_of(config) or {}).items():
        name = _below(prefix, key)
        inner = None if name in kept else mapping_of(value)
        is_group = inner and all(isinstance(key, str) and not check_names([f"x.{key}"]) for key in inner)
        if is_group and prefix.count(".") < _DEEPEST:
            yield from leaves(value, kept, f"{name}.")
        else:
            yield name, value


def replaced(config: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a configuration with other values by their dotted names; all types stay as they are.

    Raises:
        Exception: What the classes of the configuration raise where they check a value.

    >>> replaced({"opt": {"lr": 0.1, "name": "sgd"}}, {"opt.lr": 0.5})
    {'opt': {'lr': 0.5, 'name': 'sgd'}}
    """
    config = copy.deepcopy(config)
    if (omega := _omegaconf(config)) is not None:
        is_readonly = omega.is_readonly(config)
        omega.set_readonly(config, False)
        for name, value in values.items():
            omega.update(config, name, value, merge=False)
        omega.set_readonly(config, is_readonly or None)
        return config
    return _replaced(config, values)


def _replaced(config: Any, values: Mapping[str, Any]) -> Any:
    """Replace values in a configuration that nobody else has."""
    changes: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            inner.setdefault(head, {})[rest] = value
        else:
            changes[head] = copy.deepcopy(value)
    fields = mapping_of(config) or {}
    changes |= {name: _replaced(changes.get(name, fields.get(name)), below) for name, below in inner.items()}
    if isinstance(config, MutableMapping):
        config.update(changes)
        return config
    return {**fields, **changes} if isinstance(config, Mapping) else dataclasses.replace(config, **changes)

"""The dicts, lists, tensors, ... that code reads: which they are, and the hash of their content."""

import argparse
import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import math
import os
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from runmanager.hyperparameters import digest, full_name, is_array, is_torch, plain
from runmanager.storage.clock_readings import without_clock
from runmanager.storage.code_parts import (
    LOADS,
    codes,
    enclosed,
    functions_of,
    is_plain,
    is_users,
    is_users_module,
    own_instructions,
)
from runmanager.storage.mutations import Mutations, mutations

MOST_BYTES = 1 << 28
"""Of a value that is compared; an object in it counts as 1 KiB."""

_OBJECT_BYTES = 1 << 10
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_NONE = Mutations()
_RECORDS: dict[int, Any] = {}  # what runs in this process changed; kept, so that no other value gets its id
_HOLDERS = (argparse.Namespace, types.SimpleNamespace)
_SIMPLE = frozenset((bool, int, float, complex, str, bytes, type(None)))
_SEQUENCES = (list, tuple, collections.deque)
PARTS_OF_DATA = (("tensors",), ("images", "labels"), ("dataset", "indices"), ("dataset",))
"""What a TensorDataset, an ImageTensors, a Subset and a DataLoader consist of."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A value that code loads: a global one, or an attribute of settings, as of argparse."""

    name: str
    value: Any
    settings: Any = None


def hashes_of_values(
    parts: Collection[Any], arguments: Mapping[str, Any], data: Any, too_large: list[str]
) -> dict[str, str]:
    """Hash the values that functions and classes of the user read from their modules, by name, and arguments.

    What the code itself changes is a record of what was done and is left out. So is what is in `data`, which is
    compared for itself. Names of values that are too large go to `too_large`.
    """
    hashes: dict[str, str] = {}
    excluded = _excluded(parts, data)
    for name, loaded in _compared(parts, arguments, excluded).items():
        try:
            hashes[name] = hash_of_content(loaded.value, excluded)
        except (_TooLargeError, RecursionError):
            too_large.append(name)
    return hashes


def note_records(parts: Collection[Any], arguments: Mapping[str, Any], before: Mapping[str, str]) -> None:
    """Leave out from now on, in this process, what has another content than before its runs."""
    excluded = _excluded(parts, None)
    for name, loaded in _compared(parts, arguments, excluded).items():
        with contextlib.suppress(_TooLargeError, RecursionError):
            if name in before and hash_of_content(loaded.value, excluded) != before[name]:
                record = loaded.value if loaded.settings is None else loaded.settings
                _RECORDS[id(record)] = record


def _excluded(parts: Collection[Any], data: Any) -> Mutations:
    changed = mutations(parts)
    return Mutations({*_RECORDS, *changed.ids, *map(id, _contents_of_data(data))}, changed.names)


def _compared(parts: Collection[Any], arguments: Mapping[str, Any], excluded: Mutations) -> dict[str, Loaded]:
    """Find the values to compare, each once, by a name of its own."""
    compared: dict[str, Loaded] = {}
    seen: set[tuple[int, str]] = set()
    given = (Loaded(name, value) for name, value in arguments.items())
    for loaded in (*_values(parts), *given):
        key = (id(loaded.value), "") if loaded.settings is None else (id(loaded.settings), loaded.name)
        if key in seen or _is_excluded(loaded, excluded):
            continue
        seen.add(key)
        name, number = loaded.name, 1
        while name in compared:  # several modules have one
            number += 1
            name = f"{loaded.name} ({number})"
        compared[name] = loaded
    return compared


def _values(parts: Collection[Any]) -> Iterator[Loaded]:
    for part in parts:
        for function in functions_of(part):
            yield from loaded_values(function.__code__, function.__globals__)
            yield from (Loaded(name, value) for name, value in enclosed(function).items())
        if isinstance(part, type):
            members = [(name, value) for name, value in vars(part).items() if name[:2] != "__"]
            yield from (Loaded(f"{part.__qualname__}.{name}", value, part) for name, value in members)


def _is_excluded(loaded: Loaded, excluded: Mutations) -> bool:
    if not is_plain(loaded.value) and id(loaded.value) in excluded.ids:
        return True
    is_attribute = loaded.settings is not None
    if is_attribute and (
        id(loaded.settings) in excluded.ids or loaded.name.rpartition(".")[2] in excluded.names
    ):
        return True
    is_constant = is_plain(loaded.value) and (loaded.settings is None or isinstance(loaded.settings, type))
    return is_constant or not (is_plain(loaded.value) or _has_content(loaded.value))


def loaded_values(code: types.CodeType, scope: Mapping[str, Any]) -> Iterator[Loaded]:
    """Yield the global values that code loads; of the user's modules and of settings, their attributes."""
    for inner in codes(code):
        loaded: Loaded | None = None
        for step in own_instructions(inner):
            inside = _attributes(loaded.value) if loaded and step.opname in _ATTRIBUTES else {}
            if loaded and step.argval in inside:
                is_module = isinstance(loaded.value, types.ModuleType)
                name = step.argval if is_module else f"{loaded.name}.{step.argval}"
                loaded = Loaded(name, inside[step.argval], loaded.settings if is_module else loaded.value)
                continue
            if loaded:
                yield loaded
            # a name as __file__ is a path
            is_global = step.opname in LOADS and step.argval in scope and not step.argval.startswith("__")
            loaded = Loaded(step.argval, scope[step.argval]) if is_global else None


def _attributes(value: Any) -> Mapping[str, Any]:
    """Return the attributes of what holds values: modules of the user's, and settings as of argparse."""
    if isinstance(value, types.ModuleType):
        return vars(value) if is_users_module(value) else {}
    return _fields(value) if _is_settings(value) else {}


def _is_settings(value: Any) -> bool:
    if isinstance(value, type) or callable(value) or hasattr(value, "state_dict"):
        return False  # training changes what has a state
    return isinstance(value, _HOLDERS) or dataclasses.is_dataclass(value) or is_users(type(value))


def _fields(value: Any) -> Mapping[str, Any]:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return dict(getattr(value, "__dict__", {}))


def _has_content(value: Any) -> bool:
    """Whether a value is compared here: it is no constant, which is a part of the code, and no other object."""
    if isinstance(value, (type, types.ModuleType, enum.Enum)):
        return False
    kinds = (*_SEQUENCES, set, frozenset, bytearray, functools.partial)
    is_pandas = type(value).__module__.partition(".")[0] == "pandas"
    return (
        isinstance(value, kinds) or _is_mapping(value) or is_array(value) or is_pandas
        or plain(value) is not value or _parts_of_data(value) is not None or _is_settings(value)
    )  # fmt: skip


def hash_of_content(value: Any, excluded: Mutations = _NONE) -> str:
    """Hash the content of a value to 16 hex digits; objects of unknown classes count by their class alone.

    Raises:
        _TooLargeError: It has more than `MOST_BYTES`.
    """
    hasher = hashlib.sha256()
    for text in _content(value, _Budget(), excluded, ()):
        hasher.update(f"{len(text)}:{text}".encode("utf-8", "replace"))
    return hasher.hexdigest()[:16]


class _TooLargeError(Exception):
    """A value has more bytes than are compared."""


class _Budget:
    def __init__(self) -> None:
        self._left = MOST_BYTES

    def spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _TooLargeError


def _content(value: Any, budget: _Budget, excluded: Mutations, holders: tuple[int, ...]) -> Iterator[str]:
    """Yield the content of a value as text, `holders` are the ids of what it is in."""
    budget.spend(_OBJECT_BYTES)
    value = without_clock(plain(value))
    if is_plain(value) and not isinstance(value, (tuple, enum.Enum)):
        budget.spend(len(value) if isinstance(value, (str, bytes)) else 0)
        yield f"{type(value).__name__} {value!r}"
        return
    if id(value) in holders or id(value) in excluded.ids:
        yield "held"
        return
    yield full_name(type(value))
    if is_array(value):
        yield from _array(value, budget)
    elif is_torch(value, "device", "dtype") or isinstance(value, (range, slice, bytearray)):
        yield repr(value)
    elif isinstance(value, enum.Enum):
        yield value.name
    elif callable(value) and hasattr(value, "__qualname__"):
        yield value.__qualname__
    else:
        inside = _inside(value, excluded.names)
        if isinstance(inside, (set, frozenset)):
            budget.spend(_OBJECT_BYTES * len(inside))
            yield from sorted(hash_of_content(item, excluded) for item in inside)
        elif all(type(item) in _SIMPLE for item in inside):  # ten times faster than one by one
            budget.spend(sum(_OBJECT_BYTES + (len(item) if hasattr(item, "__len__") else 0) for item in inside))
            yield repr([without_clock(item) for item in inside])
        else:
            yield str(len(inside))
            for item in inside:
                yield from _content(item, budget, excluded, (*holders, id(value)))


def _inside(value: Any, excluded: Collection[str] = ()) -> Collection[Any]:
    """Return what a value consists of, without attributes that are `excluded`; of unknown classes nothing."""
    if isinstance(value, (*_SEQUENCES, set, frozenset)):
        return value
    if _is_mapping(value):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *(part for pair in value.keywords.items() for part in pair)]
    if type(value).__module__.partition(".")[0] == "pandas":
        return _of_pandas(value)
    if (parts := _parts_of_data(value)) is not None:
        return parts
    fields = _fields(value).items() if _is_settings(value) else ()
    return [part for name, item in fields if name not in excluded for part in (name, item)]


def _is_mapping(value: Any) -> bool:
    """Whether a value is a mapping in memory: not the environment, and no file."""
    return isinstance(value, Mapping) and value is not os.environ and not hasattr(value, "close")


def _array(value: Any, budget: _Budget) -> Iterator[str]:
    yield f"{value.dtype} {tuple(value.shape)}"
    if getattr(value, "requires_grad", False) or getattr(value, "is_meta", False):
        return  # training changes the one, and the other has no elements
    budget.spend(math.prod(value.shape) * value.dtype.itemsize)
    with contextlib.suppress(NotImplementedError, RuntimeError, TypeError):  # quantized or nested, say
        yield digest(value)


def _of_pandas(value: Any) -> Collection[Any]:
    if not hasattr(value, "memory_usage"):
        return ()
    columns = list(getattr(value, "columns", ()))
    types = [str(value[name].dtype) for name in columns] or [str(value.dtype)]
    try:
        hashes = sys.modules["pandas"].util.hash_pandas_object(value).to_numpy()
    except TypeError:  # it holds lists, say
        hashes = value.to_numpy()
    return [hashes, columns, types]


def _parts_of_data(value: Any) -> Collection[Any] | None:
    if isinstance(value, type) or not (is_users(type(value)) or _is_of_torch(value)):
        return None
    inside = getattr(value, "__dict__", {})  # not a property, which would be executed
    return next(
        ([inside[name] for name in names] for names in PARTS_OF_DATA if inside.keys() >= {*names}), None
    )


def _is_of_torch(value: Any) -> bool:
    return type(value).__module__.startswith(("torch.utils.data", "runmanager."))


def _contents_of_data(data: Any, depth: int = 3) -> Iterator[Any]:
    yield data
    inside = _inside(data) if depth and not is_plain(data) and not is_array(data) else ()
    for part in inside:
        if not is_plain(part):
            yield from _contents_of_data(part, depth - 1)

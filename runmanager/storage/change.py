"""What counts as changed: the source that `train` reaches, the plain values that it reads, and data."""

import argparse
import ast
import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import inspect
import itertools
import math
import os
import re
import sys
import tempfile
import time
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from runmanager.hyperparameters import digest, full_name, is_array, is_torch, plain
from runmanager.storage import source
from runmanager.storage.fingerprint import Fingerprint, versions

MOST_BYTES = 1 << 20
"""Of a value that is compared by content; a larger one counts by its shape or length."""

_MOST_HASHED = 1 << 26  # bytes of a tensor in data=: a larger one is sampled evenly
_MOST_PARTS = 8  # of data that have a hash each
_MOST_SHOWN = 80  # characters of a value; texts in it may be keys, so longer ones are not shown
_MOST_OF_A_TEXT = 24
_SECRET = re.compile("key|token|secret|passw|credential", re.IGNORECASE)
_HOLDERS = (argparse.Namespace, types.SimpleNamespace)
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_BRACKETS: Mapping[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}")}
_PARTS_OF_DATA = (("tensors",), ("images", "labels"), ("dataset", "indices"), ("dataset",))
"""What a TensorDataset, an ImageTensors, a Subset and a DataLoader consist of."""

_GIVING = ("time", "datetime", "uuid", "tempfile", "secrets")
"""Modules that give another value at each start."""
_GIVEN = "<clock or id>"
_BEFORE_S = 600  # since the program began; it may import this package late
_CLOCKS = (time.time, time.perf_counter, time.monotonic)
_BEGAN = [clock() - _BEFORE_S for clock in _CLOCKS]
_MOMENT = re.compile(
    r"(?P<date>20\d\d[-_./]?\d\d[-_./]?\d\d)"
    r"(?:[-_T ]{0,2}\d\d[-_:.h]?\d\d(?:[-_:.m]?\d\d)?(?:[.,]\d+)?(?![0-9a-f]))?(?!\d)"
    r"|(?<![\d.])(?P<seconds>1\d{9})(?:\d{3,9}|\.\d+)?(?!\d)"
    r"|(?P<id>[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12})"
)

_RECORDS: dict[object, Any] = {}
"""What runs in this process have changed; the values are kept, so that no other gets the id of one."""


def fingerprint(train: Callable[..., Any], data: Any = None, notes: list[str] | None = None) -> Fingerprint:
    """Take the fingerprint of a training function.

    What counts is the source of the user's own functions and classes that `train` reaches, and the plain values
    that they read. Of what is not plain, as a transform, the statements count that give it its name, and what
    they read. A value that a clock, a random name or a process id gave counts by its statement too.

    `data` is tensors, arrays, a dataset of them, or text that stands for it; of anything else the type, length
    and repr count. Sentences about what is not compared go to `notes`.
    """
    reached = _Reached(train, data)
    code, statements = (
        {name: _short_hash(text) for name, text in texts.items()}
        for texts in (reached.code, reached.statements)
    )
    values = {name: _shown(name, text) for name, (text, *_) in reached.values.items()}
    if notes is not None:
        notes += reached.notes()
    kinds = {"code": code, "statements": statements, "values": values, "versions": versions()}
    return kinds if data is None else {**kinds, "data": {"data": _hash_of_data(data)}}


def note_changes_by_runs(train: Callable[..., Any], before: Fingerprint) -> None:
    """Compare no longer, in this process, what `train` reads and runs that were executed in it have changed."""
    for name, (text, key, value) in _Reached(train, None).values.items():
        if before["values"].get(name) != _shown(name, text):
            _RECORDS[key] = value


def reached_source(train: Callable[..., Any]) -> list[str]:
    """Return the source of the functions and classes that a training function reaches."""
    reached = _Reached(train, None)
    return [*reached.code.values(), *reached.statements.values()]


@dataclasses.dataclass(frozen=True)
class _Scope:
    """Where names have their values: a module, or the functions around a function."""

    values: Mapping[str, Any]
    bindings: Mapping[str, Sequence[ast.stmt]]  # name -> the statements that give it a value
    owner: object  # that the names belong to
    outer: "_Scope | None" = None

    def having(self, name: str) -> "_Scope | None":
        """Return this scope or the next outer one that has a name."""
        if name in self.values or (self.outer and name in self.bindings):
            return self
        return self.outer.having(name) if self.outer else None


class _Reached:
    """What a training function reaches, its parts and values by names of their own."""

    def __init__(self, train: Any, data: Any) -> None:
        self.code: dict[str, str] = {}
        self.statements: dict[str, str] = {}
        self.values: dict[str, tuple[str, object, Any]] = {}  # name -> text, key of a record, value
        self._data = set(map(id, _contents_of_data(data)))
        self._seen: set[object] = set()
        self._given: dict[object, Sequence[Any]] = {}  # by the owner of a scope
        self._too_large: list[str] = []
        self._without_source: list[str] = []
        self._waiting: list[Any] = []
        self._read_part(source.unwrapped(train))  # whoever wrote it
        self._read_arguments(train)
        while self._waiting:
            part = self._waiting.pop()
            if id(part) not in self._seen and source.is_users(part):
                self._read_part(part)

    def notes(self) -> list[str]:
        """Say what is not compared."""
        notes = []
        if self._too_large:
            names, size = ", ".join(dict.fromkeys(self._too_large)), f"{MOST_BYTES >> 20} MiB"
            notes += [f"train reads {names}, larger than {size}: only its shape counts; pass it as data="]
        if self._without_source:
            names = ", ".join(self._without_source)
            notes += [f"the source of {names} is not known: a change of it is not noticed; put it into a file"]
        return notes

    def _read_arguments(self, train: Any) -> None:
        """Note what a partial gives to the function."""
        given: dict[str, Any] = {}
        while isinstance(train, functools.partial):
            numbered = {f"argument {number}": value for number, value in enumerate(train.args, 1)}
            given = {**numbered, **train.keywords, **given}
            train = train.func
        for name, value in given.items():
            if not isinstance(value, str):  # mostly a path
                self._read_value(name, value, _Scope({}, {}, id(train)))

    def _read_part(self, part: Any) -> None:
        self._seen.add(id(part))
        module = source.source_of(part)
        scope = _Scope(getattr(part, "__globals__", None) or _module_of(part), module.bindings, part.__module__)
        text = source.text_of(part) or _text_of(module.bindings.get(part.__name__, ()))
        if not text and isinstance(part, types.FunctionType):
            self._without_source.append(part.__qualname__)
        if "<locals>" in part.__qualname__:
            cells = _cells(part) if isinstance(part, types.FunctionType) else {}
            scope = _Scope(cells, source.enclosing_bindings(part), part, scope)
        self._add(self.code, part.__qualname__, text, scope)

    def _add(self, sources: dict[str, str], name: str, text: str, scope: _Scope) -> None:
        """Add a source under a name of its own, and what it reads."""
        sources[_unique(name, sources)] = text
        for chain in source.names_read(text):
            self._read(chain.split("."), scope)

    def _read(self, chain: Sequence[str], scope: _Scope) -> None:
        (name, *attributes) = chain
        where = scope.having(name)
        if where is None or name.startswith("__"):
            return
        if name not in where.values:  # a name of an outer function that no inner one uses
            self._read_statements(name, where)
            return
        value = where.values[name]
        if isinstance(value, types.ModuleType):
            if attributes and source.is_users_module(value):
                self._read(attributes, _Scope(vars(value), source.source_of(value).bindings, value.__name__))
            return
        fields = _fields(value) if attributes and _is_settings(value) else {}
        if attributes and attributes[0] in fields:
            self._waiting.append(type(value))
            self._read_value(f"{name}.{attributes[0]}", fields[attributes[0]], where, value)
        else:
            self._read_value(name, value, where)

    def _read_value(self, name: str, value: Any, scope: _Scope, owner: Any = None) -> None:
        """Note a value by its text, and by the statements that give it its name where it is not plain."""
        if isinstance(value, PurePath) or value is os.environ or is_torch(value, "device"):
            return
        if _is_code(value):
            self._waiting.append(source.unwrapped(value))
            if source.is_users(value) or name == getattr(value, "__name__", name):
                return
        owned_by = scope.owner if owner is None else id(owner)
        key: object = (owned_by, name) if isinstance(value, _SCALARS) else id(value)
        if key in _RECORDS or id(value) in self._data or (key, name) in self._seen:
            return
        self._seen.add((key, name))
        if _is_settings(value) and owner is None:
            self._waiting.append(type(value))
            fields = _fields(value)
            for field, inside in fields.items():
                self._read_value(f"{name}.{field}", inside, scope, value)
            return
        writer = _Text(self._data, self._all_given(scope))
        text = writer.of(value)
        self._waiting += writer.parts
        self._too_large += [name] if writer.is_too_large else []
        # where a clock is read beside, a number may come from elsewhere
        depth = 5 if isinstance(value, str) else 1
        is_given = isinstance(value, (str, int, float)) and self._is_given(name, scope, depth)
        text = _GIVEN if is_given else text
        is_known = text != f"<{full_name(type(value))}>"
        if is_known and self.values.get(name, ("",))[0] != text:
            self.values[_unique(name, self.values)] = text, key, value
        if is_given or not writer.is_whole:
            self._read_statements(name.partition(".")[0], scope)

    def _read_statements(self, name: str, scope: _Scope) -> None:
        """Add the statements that give a name its value, which may be in the module it is imported from."""
        name, scope = _home(name, scope)
        key, nodes = (scope.owner, name, "statements"), scope.bindings.get(name, ())
        if nodes and key not in self._seen:
            self._seen.add(key)
            self._add(self.statements, name, _text_of(nodes), scope)

    def _is_given(self, name: str, scope: _Scope, depth: int = 5) -> bool:
        """Whether a clock, a random name or a process id gave a value, as its statements say."""
        name, scope = _home(name, scope)
        return self._gives(_text_of(scope.bindings.get(name, ())), scope, depth)

    def _gives(self, text: str, scope: _Scope, depth: int) -> bool:
        for chain in source.names_read(text) if depth else ():
            name = chain.partition(".")[0]
            where = scope.having(name)
            value = where.values.get(name) if where else None
            if isinstance(value, types.ModuleType):
                module = value.__name__
            else:
                module = (value if _is_code(value) else type(value)).__module__
            if name == "__file__" or module in _GIVING or chain.endswith("getpid"):
                return True
            if where and isinstance(value, str) and self._is_given(name, where, depth - 1):
                return True
            if isinstance(value, types.FunctionType) and source.is_users(value):
                inside = _Scope(value.__globals__, source.source_of(value).bindings, value.__module__)
                if self._gives(source.text_of(value), inside, depth - 1):
                    return True
        return False

    def _all_given(self, scope: _Scope) -> Sequence[Any]:
        """Return what a clock, a random name or a process id gave in a scope, which other values may hold."""
        if scope.owner not in self._given:
            texts = {
                name: value for name, value in list(scope.values.items()) if isinstance(value, str) and value
            }
            given = [value for name, value in texts.items() if name[:2] != "__" and self._is_given(name, scope)]
            uses_pid = any("getpid" in _text_of(nodes) for nodes in scope.bindings.values())
            self._given[scope.owner] = [*given, os.getpid()] if uses_pid else given
        return self._given[scope.owner]


def _home(name: str, scope: _Scope) -> tuple[str, _Scope]:
    """Return where a name has its value, which may be a module that it is imported from, and its name there."""
    module = sys.modules.get(scope.owner) if isinstance(scope.owner, str) else None
    for node in scope.bindings.get(name, ()) if module else ():
        if origin := source.origin_of(node, name, getattr(module, "__package__", None) or ""):
            home, name = origin
            return _home(name, _Scope(vars(home), source.source_of(home).bindings, home.__name__))
    return name, scope


def _text_of(nodes: Sequence[ast.stmt]) -> str:
    return "\n".join(map(ast.unparse, nodes))


class _Text:
    """Writes a value so that equal ones have the same text in every process."""

    def __init__(self, data: set[int], given: Sequence[Any]) -> None:
        self._data = data
        self._given = given
        self._left = MOST_BYTES
        self.parts: list[Any] = []  # functions and classes in the value
        self.is_whole = True
        self.is_too_large = False

    def of(self, value: Any, holders: tuple[int, ...] = ()) -> str:  # noqa: PLR0911 - one for each kind
        """Return the text of a value; `holders` are the ids of what it is in."""
        value = plain(value)
        if isinstance(value, _SCALARS) and not isinstance(value, enum.Enum):
            return self._scalar(value)
        if id(value) in holders or id(value) in _RECORDS or id(value) in self._data:
            return "..."
        if isinstance(value, enum.Enum) or is_torch(value, "device", "dtype"):
            return repr(value)
        if isinstance(value, (range, slice, bytearray)):
            return repr(value)
        if _is_code(value):
            self.parts.append(source.unwrapped(value))
            return full_name(value)
        if is_array(value):
            return self._array(value)
        if type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "memory_usage"):
            return self._table(value)
        return self._inside(value, (*holders, id(value)))

    def _scalar(self, value: Any) -> str:
        if isinstance(value, str):
            for text in self._given:
                value = value.replace(text, _GIVEN) if isinstance(text, str) else value
            value = _MOMENT.sub(_without_moment, value).replace(tempfile.gettempdir(), "<temporary>")
        elif type(value) in (int, float) and (_is_reading(value) or value in self._given):
            return _GIVEN
        self._spend(len(value) if isinstance(value, (str, bytes)) else 8)
        return repr(value)

    def _array(self, value: Any) -> str:
        name = type(value).__name__
        text = f"{name}({str(value.dtype).removeprefix('torch.')}, {list(value.shape)}"
        if getattr(value, "requires_grad", False) or getattr(value, "is_meta", False):
            self.is_whole = False  # training changes the one, the other has no elements
        elif self._spend(math.prod(value.shape) * value.dtype.itemsize):
            with contextlib.suppress(NotImplementedError, RuntimeError, TypeError):  # quantized or nested, say
                return f"{text}, {digest(value)})"
        return f"{text})"

    def _table(self, value: Any) -> str:
        """Write a data frame or series of pandas."""
        names = list(getattr(value, "columns", ()))
        text = f"{type(value).__name__}({len(value)}, {names}"
        size = value.memory_usage()
        if not self._spend(int(size if isinstance(size, int) else size.sum())):
            return f"{text})"
        try:
            rows = sys.modules["pandas"].util.hash_pandas_object(value).to_numpy()
        except TypeError:  # it holds lists, say
            rows = value.to_numpy()
        kinds = [str(kind) for kind in (value.dtypes if names else [value.dtype])]
        return f"{text}, {kinds}, {digest(rows)})"

    def _inside(self, value: Any, holders: tuple[int, ...]) -> str:
        kind, is_unordered = type(value).__name__, isinstance(value, (set, frozenset))
        items: Iterator[str]
        if isinstance(value, _SEQUENCES):
            items = (self.of(item, holders) for item in value)
        elif isinstance(value, Mapping) and not hasattr(value, "close"):  # a file
            items = (f"{self.of(key, holders)}: {self.of(item, holders)}" for key, item in value.items())
        elif isinstance(value, functools.partial):
            items = (self.of(item, holders) for item in (value.func, value.args, value.keywords))
        elif _is_settings(value):
            self.parts.append(type(value))
            items = (f"{name}={self.of(item, holders)}" for name, item in _fields(value).items())
        else:
            self.is_whole = False
            self.parts.append(type(value))
            return f"<{full_name(type(value))}>"
        texts = list(itertools.takewhile(lambda _: not self.is_too_large, items))
        if self.is_too_large:
            return f"{kind} of {len(value) if hasattr(value, '__len__') else 'many'}"
        opening, closing = _BRACKETS.get(type(value), (f"{kind}(", ")"))
        return f"{opening}{', '.join(sorted(texts) if is_unordered else texts)}{closing}"

    def _spend(self, size: int) -> bool:
        """Whether a value is still small enough with more bytes."""
        self._left -= size
        if self._left < 0:
            self.is_too_large, self.is_whole = True, False
        return self._left >= 0


def _is_code(value: Any) -> bool:
    """Whether a value is a function or a class, which counts by its source."""
    kinds = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
    return isinstance(value, kinds) or isinstance(
        inspect.getattr_static(value, "__wrapped__", None), types.FunctionType
    )


def _is_settings(value: Any) -> bool:
    """Whether the attributes of an object count; training changes what has a state."""
    if (
        _is_code(value)
        or isinstance(value, (enum.Enum, types.ModuleType, *_SEQUENCES, Mapping))
        or hasattr(value, "state_dict")
    ):
        return False
    return isinstance(value, _HOLDERS) or dataclasses.is_dataclass(value) or source.is_users(type(value))


def _fields(value: Any) -> Mapping[str, Any]:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return dict(getattr(value, "__dict__", {}))


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function closes over, by name."""
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # nothing was put into it yet
            cells[name] = cell.cell_contents
    return cells


def _module_of(part: Any) -> Mapping[str, Any]:
    module = sys.modules.get(part.__module__)
    return vars(module) if module else {}


def _unique(name: str, names: Mapping[str, Any]) -> str:
    """Return a name that is not taken: several modules may have one."""
    number, unique = 1, name
    while unique in names:
        number += 1
        unique = f"{name} ({number})"
    return unique


def _is_reading(number: float) -> bool:
    """Whether a clock of this process gave a number of seconds, or of milliseconds or nanoseconds."""
    clocks = [*zip(_BEGAN, (clock() for clock in _CLOCKS), strict=True)]
    if number > 1 and round(number, 4) != number:  # a number by hand has fewer digits
        return any(began <= number <= now for began, now in clocks)
    began, now = clocks[0]
    return any(began - 1 <= number / unit <= now for unit in (1, 1e3, 1e9))


def _without_moment(match: re.Match[str]) -> str:
    if match["date"]:
        days = (time.localtime(moment)[:3] for moment in (_BEGAN[0], time.time()))
        is_now = re.sub(r"\D", "", match["date"]) in {f"{year}{month:02}{day:02}" for year, month, day in days}
    else:
        is_now = bool(match["id"]) or _is_reading(float(match["seconds"]))
    return _GIVEN if is_now else match[0]


def _shown(name: str, text: str) -> str:
    """Return the text of a value as a journal has it: short, and without what may be a key."""
    longest = max(map(len, re.split(r"['\"]", text)[1::2]), default=0)
    if _SECRET.search(name) or longest > _MOST_OF_A_TEXT or len(text) > _MOST_SHOWN:
        return f"a value with hash {_short_hash(text)[:8]}"
    return text


def _short_hash(content: str) -> str:
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]


def _contents_of_data(data: Any, depth: int = 3) -> Iterator[Any]:
    if isinstance(data, _SCALARS):
        return
    yield data
    for part in (_parts_of_data(data) or ()) if depth and not is_array(data) else ():
        yield from _contents_of_data(part, depth - 1)


def _hash_of_data(data: Any) -> str:
    if isinstance(data, str):
        return data
    if hasattr(data, "untyped_storage"):
        return _hash_of_tensor(data)
    if _is_numbers(data):
        import torch

        return _hash_of_tensor(torch.as_tensor(data))
    parts = _parts_of_data(data)
    if parts is not None:
        joined = "-".join(map(_hash_of_data, parts))
        return joined if len(parts) <= _MOST_PARTS else _short_hash(joined)
    length = len(data) if hasattr(data, "__len__") else ""
    # a dataset's repr names its folder and transforms
    return _short_hash(f"{type(data).__qualname__} {length} {data!r}".partition(" at 0x")[0])


def _is_numbers(data: Any) -> bool:
    if hasattr(data, "__array_interface__"):
        return str(data.dtype.kind) in "biufc"
    return isinstance(data, list) and bool(data) and all(isinstance(item, int) for item in data)


def _parts_of_data(data: Any) -> Sequence[Any] | None:
    """Return what data consists of, None if that is not known."""
    if isinstance(data, Mapping):
        return [part for item in data.items() for part in item]
    if isinstance(data, (list, tuple)):
        return data
    for names in _PARTS_OF_DATA:
        if all(hasattr(data, name) for name in names):
            return [getattr(data, name) for name in names]
    return None


def _hash_of_tensor(tensor: Any) -> str:
    flat = tensor.detach().cpu().reshape(-1)
    step = -(-flat.numel() * flat.element_size() // _MOST_HASHED)
    sample = flat[:: max(1, step)].contiguous()
    import torch

    content = sample.view(torch.uint8).numpy() if sample.numel() else b""
    return f"{zlib.crc32(content):08x}{tuple(tensor.shape)}{tensor.dtype}".replace(" ", "")

"""Fingerprints of training functions: the source that `train` reaches, the plain values it reads, and data."""

import argparse
import ast
import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import itertools
import math
import os
import re
import sys
import tempfile
import time
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from runmanager.hyperparameters import digest, full_name, is_array, is_torch, plain
from runmanager.storage import source
from runmanager.storage.fingerprint_changes import Fingerprint
from runmanager.storage.provenance import versions

MOST_BYTES = 1 << 20
"""The maximum number of bytes of an array compared by content; of a larger array, only the shape is
compared."""

_MOST_TEXT = 1 << 24  # the maximum number of characters of a value of any other type
# number of characters added per nested object, as a shared object is written wherever it occurs
_OBJECT_SIZE = 128
_MOST_HASHED = 1 << 26  # maximum number of bytes of a tensor in data=; a larger tensor is sampled evenly
_MOST_PARTS = 8  # maximum number of parts of data with separate hashes
_MOST_SHOWN = 80  # maximum number of shown characters of a value
_SECRET = re.compile("key|token|secret|pass|auth|credential|url|://", re.IGNORECASE)
_LONG = re.compile(r"[^\s,'\"()\[\]{}]{24,}")  # a word that may be a key
_HOLDERS = (argparse.Namespace, types.SimpleNamespace)
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_BRACKETS: Mapping[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}")}
_PARTS_OF_DATA = (("tensors",), ("images", "labels"), ("dataset", "indices"), ("dataset",))
"""The attributes with the parts of a TensorDataset, an ImageTensors, a Subset and a DataLoader."""

_CLOCKS_AND_IDS = ("time", "datetime", "uuid", "tempfile", "secrets")
"""Modules whose functions return different values at each launch."""
_VOLATILE = "<clock or id>"
_DEPTH = 5  # the maximum number of statements and functions followed in search of a clock
# time when this process began; 600 s earlier, as the program may import this package late
_BEGAN = time.time() - 600
_MOMENT = re.compile(
    r"(?P<moment>20\d\d[-_./]?\d\d[-_./]?\d\d[-_T ]{0,2}\d\d[-_:.h]?\d\d(?:[-_:.m]?\d\d)?)"
    r"(?:[.,]\d+)?(?![0-9a-f])"
    r"|(?<![\d.])(?P<seconds>1\d{9})(?:\d{3,9}|\.\d+)?(?!\d)"
    r"|(?P<id>[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})"
)

_RECORDS: dict[object, Any] = {}
"""Values changed by runs in this process; the references prevent reuse of the values' ids."""


def fingerprint(train: Callable[..., Any], data: Any = None, notes: list[str] | None = None) -> Fingerprint:
    """Compute the fingerprint of a training function.

    The fingerprint has the source of the user's functions and classes that `train` reaches, and the plain
    values that these functions and classes read. Any other object, such as a transform, is compared by the
    statements that assign it and the values that these statements read. A value that comes from a clock, a
    random name or a process id is compared in the same way.

    `data` consists of tensors, arrays, or a dataset of tensors or arrays; or it is a text that names a version
    of the data. Other data are compared by type, length and repr. `notes` gets sentences about values that are
    not compared.
    """
    reached = _Reached(train, data)
    if notes is not None:
        notes += reached.notes()
    kinds = {
        "code": {name: _short_hash(text) for name, text in reached.code.items()},
        "statements": {name: _short_hash(text) for name, text in reached.statements.items()},
        "values": {name: _journal_text(name, value.text) for name, value in reached.values.items()},
        "objects": {name: _journal_text(name, text) for name, text in reached.objects.items()},
        "versions": versions(),
    }
    return kinds if data is None else {**kinds, "data": {"data": _hash_of_data(data)}}


def note_changes_by_runs(train: Callable[..., Any], before: Fingerprint) -> None:
    """From now on, ignore values that runs in this process have modified."""
    for name, value in _Reached(train, None).values.items():
        if before["values"].get(name) != _journal_text(name, value.text):
            _RECORDS[value.key] = value


def reached_source(train: Callable[..., Any]) -> list[str]:
    """Return the source of all functions, classes and statements reachable from a training function."""
    reached = _Reached(train, None)
    return [*reached.code.values(), *reached.statements.values()]


@dataclasses.dataclass(frozen=True)
class _Scope:
    """A scope of names: a module, or the functions around a function."""

    values: Mapping[str, Any]
    bindings: Mapping[str, Sequence[ast.stmt]]  # name -> the statements that assign it
    owner: object  # the name of the module, or the function
    outer: "_Scope | None" = None

    def having(self, name: str) -> "_Scope | None":
        """Return the innermost scope that has a name: this scope or an outer scope."""
        if name in self.values or (self.outer and name in self.bindings):
            return self
        return self.outer.having(name) if self.outer else None

    def origin(self, name: str) -> "tuple[str, _Scope]":
        """Return a name and its scope; an imported name is followed to the user's module that defines it."""
        module = sys.modules.get(self.owner) if isinstance(self.owner, str) else None
        for node in (self.bindings.get(name) or self.bindings.get("*", ())) if module else ():
            if home := source.origin_of(node, name, getattr(module, "__package__", None) or ""):
                return _scope_of(home[0]).origin(home[1])
        return name, self

    def statements(self, name: str) -> str:
        """Return the text of the statements that assign a name, or an attribute such as `args.name`."""
        nodes = self.bindings.get(name.partition(".")[0], ())
        if "." in name:
            nodes = [
                one for one in nodes if isinstance(one, ast.Assign) and name in map(ast.unparse, one.targets)
            ]
        return "\n".join(map(source.unparsed, nodes))


@dataclasses.dataclass(frozen=True)
class _Value:
    """A plain value that code reads."""

    text: str
    key: object  # the key of this value in `_RECORDS`
    content: Any


class _Reached:
    """The parts and values that a training function reaches, each under a unique name."""

    def __init__(self, train: Any, data: Any) -> None:
        self.code: dict[str, str] = {}
        self.statements: dict[str, str] = {}
        self.values: dict[str, _Value] = {}
        self.objects: dict[str, str] = {}  # name -> description of an object that is not plain
        self._data = set(map(id, _contents_of_data(data)))
        self._seen: set[object] = set()
        self._volatile = _Volatile()
        self._too_large: list[str] = []
        self._without_source: list[str] = []
        self._waiting: list[Any] = []
        for part in source.layers(train):
            self._read_part(part)  # read the part always, even if it is a function of an installed package
        self._read_arguments(train)
        while self._waiting:
            part = self._waiting.pop()
            if id(part) not in self._seen and source.is_users(part):
                self._read_part(part)

    def notes(self) -> list[str]:
        """The sentences about values that are not compared."""
        notes = []
        if self._too_large:
            names, size = ", ".join(dict.fromkeys(self._too_large)), f"{MOST_BYTES >> 20} MiB"
            notes += [f"train reads {names}, larger than {size}: only its shape counts; pass it as data="]
        if self._without_source:
            names = ", ".join(self._without_source)
            notes += [f"the source of {names} is not known: a change of it is not noticed; put it into a file"]
        return notes

    def _read_arguments(self, train: Any) -> None:
        """Record the arguments of a partial."""
        arguments: dict[str, Any] = {}
        while isinstance(train, functools.partial):
            numbered = {f"argument {number}": value for number, value in enumerate(train.args, 1)}
            arguments = {**numbered, **train.keywords, **arguments}
            train = train.func
        for name, value in arguments.items():
            if not isinstance(value, str):  # a text is usually a path
                self._read_value(name, value, _Scope({}, {}, id(train)))

    def _read_part(self, part: Any) -> None:
        """Add the source of a function or a class, and the values that it reads."""
        self._seen.add(id(part))
        is_function = isinstance(part, types.FunctionType)
        scope = _scope_of(part)
        text = source.text_of(part) or scope.statements(part.__name__)
        self._without_source += [part.__qualname__] if is_function and not text else []
        # functools.wraps copies the name of the wrapped function
        name = part.__code__.co_qualname if is_function and hasattr(part, "__wrapped__") else part.__qualname__
        members = vars(part) if isinstance(part, type) else {}
        functions = [one for one in (part, *members.values()) if isinstance(one, types.FunctionType)]
        if "<locals>" in (part.__code__.co_qualname if is_function else name):
            cells = dict(itertools.chain.from_iterable(_cells(one).items() for one in functions))
            scope = _Scope(cells, source.enclosing_bindings(part), part, scope)
        self._add(self.code, name, text, scope)
        body = _Scope({}, source.class_bindings(part), part, scope)
        for member, value in members.items():  # an attribute may be assigned outside the class
            is_content = type(value).__module__ == "builtins" and not _is_code(value)
            if is_content and not member.startswith("__") and not self._volatile.is_name(member, body):
                self._read_value(f"{part.__qualname__}.{member}", value, scope, part)

    def _add(self, texts: dict[str, str], name: str, text: str, scope: _Scope) -> None:
        """Add a source under a unique name, and the values that it reads."""
        texts[_unique(name, texts)] = text
        for chain in source.names_read(text):
            self._read(chain.split("."), scope)

    def _read(self, chain: Sequence[str], scope: _Scope) -> None:
        (name, *attributes) = chain
        where = scope.having(name)
        if where is None or (name.startswith("__") and name.endswith("__")):
            return
        if name not in where.values:  # a name of an outer function that no inner function uses
            self._read_statements(name, where)
            return
        value = where.values[name]
        if isinstance(value, types.ModuleType):
            if attributes and source.is_users_module(value):
                self._read(attributes, _scope_of(value))
            return
        fields = _fields(value) if attributes and _is_settings(value) else {}
        if attributes and attributes[0] in fields:
            self._waiting.append(type(value))
            self._read_value(f"{name}.{attributes[0]}", fields[attributes[0]], where, value)
        else:
            self._read_value(name, value, where)

    def _read_value(self, name: str, value: Any, scope: _Scope, owner: Any = None) -> None:
        """Record a value as text; if the text is incomplete, also record the value's statements.

        If the value is an attribute, `owner` is its object.
        """
        if isinstance(value, PurePath) or value is os.environ or is_torch(value, "device"):
            return
        home = scope.owner if owner is None else id(owner)
        key: object = (home, name) if isinstance(value, _SCALARS) else id(value)
        if key in _RECORDS or id(value) in self._data or (key, name) in self._seen:
            return
        self._seen.add((key, name))
        if _is_code(value):
            self._read_code(name, value, scope)
        elif owner is None and _is_settings(value):
            fields = _fields(value)
            self._waiting.append(type(value))
            self._note(name, _Value(f"{type(value).__name__}({', '.join(fields)})", key, value), scope)
            for field, inside in fields.items():
                self._read_value(f"{name}.{field}", inside, scope, value)
        else:
            self._read_content(name, value, key, scope)

    def _read_code(self, name: str, value: Any, scope: _Scope) -> None:
        """Record a function or class by its source, a library's function with an alias also by full name."""
        self._waiting += source.layers(value)
        # an assignment such as step = scaled(step, 2)
        if isinstance(next(iter(scope.bindings.get(name, ())), None), ast.Assign):
            self._read_statements(name, scope)
        if not source.is_users(value) and not name.endswith(getattr(value, "__name__", name)):
            self._note(name, _Value(full_name(value), id(value), value), scope)

    def _read_content(self, name: str, value: Any, key: object, scope: _Scope) -> None:
        writer = _Text(self._data, self._volatile.values_in(scope))
        try:
            text = writer.of(value)
        except Exception:  # noqa: BLE001 - raised by a user's class, or the value is nested too deep
            text, writer.is_plain = f"<{full_name(type(value))}>", False
        self._waiting += writer.parts
        self._too_large += [name] if writer.is_too_large else []
        # if a function reads a clock, the number that it returns need not come from the clock
        depth = _DEPTH if isinstance(value, str) else 1
        if isinstance(value, (str, int, float)) and self._volatile.is_name(name, scope, depth):
            text, writer.is_plain = _VOLATILE, False
        if writer.is_plain:
            self._note(name, _Value(text, key, value), scope)
        elif name not in self.objects:
            self.objects[name] = text
            self._read_statements(name.partition(".")[0], scope)

    def _note(self, name: str, value: _Value, scope: _Scope) -> None:
        """Record a plain value and its statements, for a launch at which the value is not plain."""
        if name not in self.values or self.values[name].text != value.text:
            name = _unique(name, self.values)
            self.values[name] = value
            origin, home = scope.origin(name)
            if text := home.statements(origin):
                self.statements.setdefault(name, text)

    def _read_statements(self, name: str, scope: _Scope) -> None:
        """Add the statements that assign a name, and the values that they read."""
        name, scope = scope.origin(name)
        key, text = (scope.owner, name, "statements"), scope.statements(name)
        if text and key not in self._seen:
            self._seen.add(key)
            if self.statements.get(name) == text:
                del self.statements[name]
            self._add(self.statements, name, text, scope)


class _Volatile:
    """Finds values from clocks, random names and process ids, by the statements that assign them."""

    def __init__(self) -> None:
        self._texts: dict[object, bool] = {}
        self._values: dict[object, Sequence[Any]] = {}

    def is_name(self, name: str, scope: _Scope, depth: int = _DEPTH) -> bool:
        """Whether the statements that assign a name read a volatile value."""
        name, scope = scope.origin(name)
        return self._is_text(scope.statements(name), scope, depth)

    def values_in(self, scope: _Scope) -> Sequence[Any]:
        """Return the values that may be volatile parts of other values: texts, and the process id if read."""
        if scope.owner not in self._values:
            texts = {
                name: value for name, value in list(scope.values.items()) if isinstance(value, str) and value
            }
            volatile: list[Any] = [value for name, value in texts.items() if self.is_name(name, scope)]
            for name, nodes in scope.bindings.items():
                volatile += self._items(scope.values.get(name), nodes, scope)
            has_pid = any("getpid" in scope.statements(name) for name in scope.bindings)
            self._values[scope.owner] = [*volatile, os.getpid()] if has_pid else volatile
        return self._values[scope.owner]

    def _items(self, value: Any, nodes: Iterable[ast.stmt], scope: _Scope) -> Iterator[Any]:
        """Yield the texts and numbers in a mapping or settings object whose expressions read a clock."""
        inside = value if isinstance(value, dict) else _fields(value) if isinstance(value, _HOLDERS) else {}
        for part in itertools.chain.from_iterable(map(ast.walk, nodes)) if inside else ():
            pairs: list[tuple[Any, Any]] = []
            if isinstance(part, ast.Dict):
                keys = (getattr(key, "value", None) for key in part.keys)
                pairs = list(zip(keys, part.values, strict=True))
            elif isinstance(part, ast.Call):
                pairs = [(keyword.arg, keyword.value) for keyword in part.keywords]
            for key, item in pairs:
                content = inside.get(key) if isinstance(key, str) else None
                is_scalar = isinstance(content, (str, int, float)) and bool(content)
                if is_scalar and self._is_text(ast.unparse(item), scope, _DEPTH):
                    yield content

    def _is_text(self, text: str, scope: _Scope, depth: int) -> bool:
        key = (text, scope.owner, depth)
        if key not in self._texts:
            self._texts[key] = False  # this entry ends the recursion
            self._texts[key] = depth > 0 and any(
                self._is_chain(chain, scope, depth) for chain in source.names_read(text)
            )
        return self._texts[key]

    def _is_chain(self, chain: str, scope: _Scope, depth: int) -> bool:
        name = chain.partition(".")[0]
        where = scope.having(name)
        value = where.values.get(name) if where else None
        if isinstance(value, types.ModuleType):
            module = value.__name__
        else:
            module = (value if _is_code(value) else type(value)).__module__
        if name == "__file__" or module in _CLOCKS_AND_IDS or chain.endswith("getpid"):
            return True
        if where and isinstance(value, str):
            return self.is_name(name, where, depth - 1)
        if isinstance(value, types.FunctionType) and source.is_users(value):
            return self._is_text(source.text_of(value), _scope_of(value), depth - 1)
        return False


class _Text:
    """Writes a value as text that is the same in every process."""

    def __init__(self, data: set[int], volatile: Sequence[Any]) -> None:
        self._data = data
        self._volatile = volatile
        self._left = _MOST_TEXT
        self.parts: list[Any] = []  # functions and classes in the value
        self.is_plain = True
        self.is_too_large = False

    def of(self, value: Any, holders: tuple[int, ...] = ()) -> str:  # noqa: PLR0911 - one for each kind
        """Return the text of a value; `holders` are the ids of its containers."""
        value = plain(value)
        if isinstance(value, _SCALARS) and not isinstance(value, enum.Enum):
            return self._scalar(value)
        if id(value) in holders or id(value) in _RECORDS or id(value) in self._data:
            return "..."
        if not self._spend(_OBJECT_SIZE):
            return "..."
        if is_torch(value, "device", "dtype") or isinstance(value, (range, slice, bytearray)):
            return repr(value)
        if _is_code(value):
            functions = source.layers(value)
            self.parts += functions
            return full_name(functions[0])
        self.parts.append(type(value))
        holders = (*holders, id(value))
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}={self.of(value.value, holders)}"
        if is_array(value):
            return self._array(value, holders)
        if type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "memory_usage"):
            return self._table(value)
        return self._inside(value, holders)

    def _scalar(self, value: Any) -> str:
        self._spend(len(value) if isinstance(value, (str, bytes)) else 8)
        if isinstance(value, str):
            for text in self._volatile:
                value = value.replace(text, _VOLATILE) if isinstance(text, str) else value
            value = _MOMENT.sub(_without_moment, value).replace(tempfile.gettempdir(), "<temporary>")
        elif type(value) in (int, float) and (_is_time(value) or value in self._volatile):
            return _VOLATILE
        return repr(value)

    def _array(self, value: Any, holders: tuple[int, ...]) -> str:
        text = f"{type(value).__name__}({str(value.dtype).removeprefix('torch.')}, {list(value.shape)}"
        if getattr(value, "requires_grad", False) or getattr(value, "is_meta", False):
            self.is_plain = False  # not plain: training changes a parameter; a meta tensor has no elements
        elif getattr(value.dtype, "hasobject", False):
            return f"{text}, {self.of(value.tolist(), holders)})"
        elif self._has_room(math.prod(value.shape) * value.dtype.itemsize):
            # the errors of quantized or nested tensors
            with contextlib.suppress(NotImplementedError, RuntimeError, TypeError):
                return f"{text}, {digest(value)})"
        return f"{text})"

    def _table(self, value: Any) -> str:
        """Return the text of a pandas data frame or series."""
        names = list(getattr(value, "columns", ()))
        text = f"{type(value).__name__}({len(value)}, {names}"
        size = value.memory_usage()
        if not self._has_room(int(size if isinstance(size, int) else size.sum())):
            return f"{text})"
        try:
            rows = sys.modules["pandas"].util.hash_pandas_object(value).to_numpy()
        except TypeError:  # the error of cells such as lists
            rows = value.to_numpy()
        kinds = [str(kind) for kind in (value.dtypes if hasattr(value, "columns") else [value.dtype])]
        return f"{text}, {kinds}, {digest(rows)})"

    def _inside(self, value: Any, holders: tuple[int, ...]) -> str:
        kind, fields = type(value).__name__, _fields(value) if _is_settings(value) else {}
        items: Iterator[str]
        if isinstance(value, _SEQUENCES):
            items = (self.of(item, holders) for item in value)
        # a mapping without `close` is not backed by a file
        elif isinstance(value, Mapping) and not hasattr(type(value), "close"):
            items = (f"{self.of(key, holders)}: {self.of(item, holders)}" for key, item in value.items())
        elif isinstance(value, functools.partial):
            items = (self.of(item, holders) for item in (value.func, value.args, value.keywords))
        elif fields:
            items = (f"{name}={self.of(item, holders)}" for name, item in fields.items())
        else:
            self.is_plain = False
            return f"<{full_name(type(value))}>"
        texts = list(itertools.takewhile(lambda _: not self.is_too_large, items))
        if self.is_too_large:
            return f"{kind} of {len(value) if hasattr(type(value), '__len__') else 'many'}"
        opening, closing = _BRACKETS.get(type(value), (f"{kind}(", ")"))
        is_unordered = isinstance(value, (set, frozenset))
        return f"{opening}{', '.join(sorted(texts) if is_unordered else texts)}{closing}"

    def _has_room(self, size: int) -> bool:
        """Whether an array is small enough to be compared by content."""
        return self._spend(0 if size <= MOST_BYTES else _MOST_TEXT)

    def _spend(self, size: int) -> bool:
        """Subtract characters from the budget; return whether any characters are left."""
        self._left -= size
        if self._left <= 0:
            self.is_too_large, self.is_plain = True, False
        return self._left > 0


def _scope_of(part: Any) -> _Scope:
    """Return the scope of a module, or of the module of a function or class."""
    name = part.__name__ if isinstance(part, types.ModuleType) else part.__module__
    return _Scope(source.names_of(part), source.source_of(part).bindings, name)


def _is_code(value: Any) -> bool:
    """Whether a value is a function or a class, and is therefore compared by source."""
    if isinstance(value, functools.partial):
        return False
    return isinstance(value, types.MethodType) or source.layers(value)[0] is not type(value)


def _is_settings(value: Any) -> bool:
    """Whether an object is compared by its attributes: objects with a state that training changes are not."""
    others = (enum.Enum, types.ModuleType, *_SEQUENCES, Mapping)
    if _is_code(value) or isinstance(value, others) or hasattr(type(value), "state_dict"):
        return False
    return isinstance(value, _HOLDERS) or dataclasses.is_dataclass(value) or source.is_users(type(value))


def _fields(value: Any) -> Mapping[str, Any]:
    """Return the attributes of an object, without the attributes of its class."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    filled = {name: getattr(value, name) for name in slots if isinstance(name, str) and hasattr(value, name)}
    return {
        name: item for name, item in {**filled, **getattr(value, "__dict__", {})}.items() if name[:2] != "__"
    }


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """Return the closure variables of a function, by name."""
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the error of an empty cell
            cells[name] = cell.cell_contents
    return cells


def _unique(name: str, names: Mapping[str, Any]) -> str:
    """Return a unique name: several modules may use the same name."""
    numbered = (f"{name} ({number})" for number in itertools.count(2))
    return next(unique for unique in itertools.chain([name], numbered) if unique not in names)


def _is_time(number: float) -> bool:
    """Whether a number is a time since this process began, in s, ms or ns since 1970."""
    return any((_BEGAN - 1) * unit <= number <= (time.time() + 1) * unit for unit in (1, 10**3, 10**9))


def _without_moment(match: re.Match[str]) -> str:
    """Replace an id, or a time since this process began, with a placeholder; keep other times."""
    if match["id"]:
        return _VOLATILE
    if match["seconds"]:
        return _VOLATILE if _is_time(float(match["seconds"])) else match[0]
    digits = re.sub(r"\D", "", match["moment"])
    for zone in (time.localtime, time.gmtime):
        began, now = (
            time.strftime("%Y%m%d%H%M%S", zone(at))[: len(digits)] for at in (_BEGAN, time.time() + 1)
        )
        if began <= digits <= now:
            return _VOLATILE
    return match[0]


def _journal_text(name: str, text: str) -> str:
    """Return the text of a value for a journal: shortened, with a hash in place of possible keys."""
    may_be_key = _SECRET.search(f"{name} {text}") or _LONG.search(text)
    if len(text) > _MOST_SHOWN or (may_be_key and re.search("['\"]", text)):
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
    # the repr of a dataset includes its folder and transforms
    return _short_hash(f"{type(data).__qualname__} {length} {data!r}".partition(" at 0x")[0])


def _is_numbers(data: Any) -> bool:
    if hasattr(data, "__array_interface__"):
        return str(data.dtype.kind) in "biufc"
    return isinstance(data, list) and bool(data) and all(isinstance(item, int) for item in data)


def _parts_of_data(data: Any) -> Sequence[Any] | None:
    """Return the parts of data, None if the type of data is unknown."""
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

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
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from runmanager.checks import source
from runmanager.core.provenance import files_digest, versions
from runmanager.core.state import RunResult
from runmanager.core.task import Fingerprint
from runmanager.core.values import full_name, plain

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

_SHORTEST_ID = 6  # characters; a shorter text may be part of another value by chance
_FRESH = re.compile(
    r"\b(time(_ns)?|perf_counter|monotonic|now|today|utcnow|strftime|ctime|localtime|uuid[14]|getpid|urandom"
    r"|token_\w+|mkdtemp|mkstemp|gettempdir|TemporaryDirectory|NamedTemporaryFile)\("
)
"""Calls that return different values at each launch."""

_RECORDS: dict[object, Any] = {}
"""Values changed by runs in this process; the references prevent reuse of the values' ids."""


def fingerprint(train: Callable[..., Any], data: Any = None, notes: list[str] | None = None) -> Fingerprint:
    """Compute the fingerprint of a training function."""
    reached = Reached(train, data)
    sentences = [] if notes is None else notes
    if reached.too_large:
        names, size = ", ".join(dict.fromkeys(reached.too_large)), f"{MOST_BYTES >> 20} MiB"
        sentences.append(f"train reads {names}, larger than {size}: only its shape counts; pass it as data=")
    if reached.not_compared:
        names = ", ".join(dict.fromkeys(reached.not_compared))
        table = "pass it as data=, a table as table.to_numpy()"
        sentences.append(f"the content of {names} is not compared: {table}")
    if reached.without_source:
        names = ", ".join(reached.without_source)
        file = "a change of it is not noticed; put it into a file"
        sentences.append(f"the source of {names} is not known: {file}")
    kinds = {
        "code": {name: _short_hash(text) for name, text in reached.code.items()},
        "statements": {name: _short_hash(text) for name, text in reached.statements.items()},
        "values": {name: _journal_text(name, value.text) for name, value in reached.values.items()},
        "versions": versions(),
    }
    return kinds if data is None else {**kinds, "data": {"data": _hash_of_data(data)}}


def note_changes_by_runs(train: Callable[..., Any], before: Fingerprint) -> None:
    """From now on, ignore values that runs in this process have modified."""
    for name, value in Reached(train, None).values.items():
        if before["values"].get(name) != _journal_text(name, value.text):
            _RECORDS[value.key] = value


@dataclasses.dataclass(frozen=True)
class _Scope:
    """A scope of names: a module, or the functions around a function."""

    values: Mapping[str, Any]
    bindings: Mapping[str, Sequence[ast.stmt]]  # name -> the statements that assign it
    owner: object  # the name of the module, or the function
    outer: "_Scope | None" = None

    def origin(self, name: str) -> "tuple[str, _Scope]":
        """Return a name and its scope; an imported name is followed to the user's module that defines it."""
        module = sys.modules.get(self.owner) if isinstance(self.owner, str) else None
        for node in (self.bindings.get(name) or self.bindings.get("*", ())) if module else ():
            if home := source.origin_of(node, name, getattr(module, "__package__", None) or ""):
                return _scope_of(home[0]).origin(home[1])
        return name, self

    def statements(self, name: str) -> str:
        """Return the text of the statements that assign a name."""
        return "\n".join(map(source.unparsed, self.bindings.get(name, ())))

    def fresh(self, name: str) -> set[str]:
        """Return the parts of a name, as `args.name` and `d['key']`, assigned from a clock or a process id."""
        nodes = [node for node in self.bindings.get(name, ()) if _FRESH.search(source.unparsed(node))]
        return set().union(*map(_assigned_by, nodes))

    def is_fresh(self, name: str, holders: frozenset[str] = frozenset()) -> bool:
        """Whether a name or attribute is assigned from a clock or process id, or a text with such a value."""
        value = self.values.get(name)
        others = source.names_read(self.statements(name)) if isinstance(value, str) else ()
        holders |= {name}
        return name in self.fresh(name.partition(".")[0]) or any(
            isinstance(self.values[other], _SCALARS) and str(self.values[other]) in str(value)
            and self.is_fresh(other, holders) for other in others if other in self.values.keys() - holders
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Value:
    """A value that code reads."""

    text: str
    key: object  # the key of this value in `_RECORDS`
    content: Any


class Reached:
    """The parts and values that a training function reaches, each under a unique name."""

    def __init__(self, train: Any, data: Any) -> None:
        self.code: dict[str, str] = {}
        self.statements: dict[str, str] = {}
        self.values: dict[str, _Value] = {}
        self._data = set() if data is None else set(map(id, _contents_of_data(data)))
        self._seen: set[object] = set()
        self.too_large: list[str] = []
        self.not_compared: list[str] = []
        self.without_source: list[str] = []
        self._waiting: list[Any] = []
        for part in source.layers(train):
            self._read_part(part)  # read the part always, even if it is a function of an installed package
        arguments: dict[str, Any] = {}
        while isinstance(train, functools.partial):
            numbered = {f"argument {number}": value for number, value in enumerate(train.args, 1)}
            arguments = {**numbered, **train.keywords, **arguments}
            train = train.func
        for name, value in arguments.items():
            if not isinstance(value, str):  # a text is usually a path
                self._read_value(name, value, _Scope({}, {}, id(train)))
        while self._waiting:
            part = self._waiting.pop()
            if id(part) not in self._seen and source.is_users(part):
                self._read_part(part)

    def _read_part(self, part: Any) -> None:
        """Add the source of a function or a class, and the values that it reads."""
        self._seen.add(id(part))
        is_function = isinstance(part, types.FunctionType)
        scope = _scope_of(part)
        text = source.text_of(part) or scope.statements(part.__name__)
        self.without_source += [part.__qualname__] if is_function and not text else []
        # functools.wraps copies the name of the wrapped function
        name = part.__code__.co_qualname if is_function and hasattr(part, "__wrapped__") else part.__qualname__
        members = vars(part) if isinstance(part, type) else {}
        functions = [one for one in (part, *members.values()) if isinstance(one, types.FunctionType)]
        if "<locals>" in (part.__code__.co_qualname if is_function else name):
            cells = dict(itertools.chain.from_iterable(_cells(one).items() for one in functions))
            scope = _Scope(cells, source.enclosing_bindings(part), part, scope)
        self._add(self.code, name, text, scope)
        nodes = source.source_of(part).definitions.get(part.__qualname__, []) if members else []
        inside = [statement for node in nodes if isinstance(node, ast.ClassDef) for statement in node.body]
        body = _Scope({}, source.bindings_in(inside), part, scope)
        for member, value in members.items():  # an attribute may be assigned outside the class
            is_content = type(value).__module__ == "builtins" and not _is_code(value)
            if is_content and not member.startswith("__") and not body.is_fresh(member):
                self._read_value(f"{part.__qualname__}.{member}", value, scope, part)

    def _add(self, texts: dict[str, str], name: str, text: str, scope: _Scope) -> None:
        """Add a source under a unique name, and the values that it reads."""
        texts[_unique(name, texts)] = text
        for chain in source.names_read(text):
            self._read(chain.split("."), scope)

    def _read(self, chain: Sequence[str], scope: _Scope) -> None:
        (name, *attributes) = chain
        where: _Scope | None = scope  # the innermost scope that has the name
        while where and not (name in where.values or (where.outer and name in where.bindings)):
            where = where.outer
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
        """Record a value as text; if the text is incomplete, also record the value's statements."""
        if isinstance(value, PurePath) or value is os.environ or full_name(type(value)) == "torch.device":
            return
        home = scope.owner if owner is None else id(owner)
        key: object = (home, name) if isinstance(value, _SCALARS) else id(value)
        if key in _RECORDS or id(value) in self._data or (key, name) in self._seen:
            return
        self._seen.add((key, name))
        fields: Mapping[str, Any] = {}
        if _is_code(value):  # by its source; a library's function with an alias also by its full name
            self._waiting += source.layers(value)
            # an assignment such as step = scaled(step, 2)
            if isinstance(next(iter(scope.bindings.get(name, ())), None), ast.Assign):
                self._read_statements(name, scope)
            if source.is_users(value) or name.endswith(getattr(value, "__name__", name)):
                return
            key, text, is_plain = id(value), full_name(value), True
        elif owner is None and _is_settings(value):
            fields = _fields(value)
            self._waiting.append(type(value))
            text, is_plain = f"{type(value).__name__}({', '.join(fields)})", True
        else:
            text, is_plain = self._content(name, value, scope, owner)
        if name not in self.values or self.values[name].text != text:
            self.values[_unique(name, self.values)] = _Value(text, key, value)
        for field, inside in fields.items():
            self._read_value(f"{name}.{field}", inside, scope, value)
        if not is_plain:
            self._read_statements(name.partition(".")[0], scope)

    def _content(self, name: str, value: Any, scope: _Scope, owner: Any) -> tuple[str, bool]:
        """Return a value as text, and whether the text is complete."""
        writer = _Text(self._data, _MOST_TEXT)
        root, _, field = name.partition(".")
        origin, home = scope.origin(name)
        compared = value
        if type(value) is dict:
            fresh = home.fresh(origin)
            read = source.names_read(home.statements(origin)) & home.values.keys()
            texts = [home.values[other] for other in read if home.is_fresh(other)]
            ids = [each for each in texts if isinstance(each, str) and len(each) >= _SHORTEST_ID]
            compared = {
                key: item
                for key, item in value.items()
                if f"{origin}[{key!r}]" not in fresh
                and not (isinstance(item, str) and any(each in item for each in ids))
            }
        try:
            text = writer.of(compared)
        except Exception:  # noqa: BLE001 - raised by a user's class, or the value is nested too deep
            text, writer.is_plain = f"<{full_name(type(value))}>", False
        self._waiting += writer.parts
        self.too_large += [name] if writer.is_too_large else []
        # a name that is assigned from a clock or a process id, or an attribute by a line of its class
        origin, home = scope.origin(root)
        lines = source.text_of(type(owner)).splitlines() if field and source.is_users(type(owner)) else []
        if (
            home.is_fresh(origin)
            or (field and home.is_fresh(f"{origin}.{field}"))
            or any(re.search(rf"\b{re.escape(field)}\b.*=", line) and _FRESH.search(line) for line in lines)
        ):
            text, writer.is_plain = f"<{type(value).__name__} of a clock or id>", False
            self.not_compared += [] if isinstance(value, _SCALARS) else [name]
        elif writer.has_table:
            self.not_compared.append(name)
        return text, writer.is_plain

    def _read_statements(self, name: str, scope: _Scope) -> None:
        """Add the statements that assign a name, and the values that they read."""
        name, scope = scope.origin(name)
        key, text = (scope.owner, name, "statements"), scope.statements(name)
        if text and key not in self._seen:
            self._seen.add(key)
            self._add(self.statements, name, text, scope)


@dataclasses.dataclass
class _Text:
    """Writes a value as text that is the same in every process."""

    data: set[int]  # the ids of the parts of data=, which are compared as data
    left: int  # number of characters that are left
    parts: list[Any] = dataclasses.field(default_factory=list)  # functions and classes in the value
    is_plain: bool = True
    is_too_large: bool = False
    has_table: bool = False

    def of(self, value: Any, holders: tuple[int, ...] = ()) -> str:  # noqa: PLR0911 - one for each kind
        """Return the text of a value; `holders` are the ids of its containers."""
        value = plain(value)
        if isinstance(value, _SCALARS) and not isinstance(value, enum.Enum):
            self._spend(len(value) if isinstance(value, (str, bytes)) else 8)
            return repr(value)
        if id(value) in holders or id(value) in _RECORDS or id(value) in self.data:
            return "..."
        if not self._spend(_OBJECT_SIZE):
            return "..."
        if full_name(type(value)) in ("torch.device", "torch.dtype") or isinstance(
            value, (range, slice, bytearray)
        ):
            return repr(value)
        if _is_code(value):
            functions = source.layers(value)
            self.parts += functions
            return full_name(functions[0])
        self.parts.append(type(value))
        holders = (*holders, id(value))
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}={self.of(value.value, holders)}"
        if _is_array(value):
            return self._array(value, holders)
        return self._inside(value, holders)

    def _array(self, value: Any, holders: tuple[int, ...]) -> str:
        text = f"{type(value).__name__}({str(value.dtype).removeprefix('torch.')}, {list(value.shape)}"
        if getattr(value, "requires_grad", False) or getattr(value, "is_meta", False):
            self.is_plain = False  # not plain: training changes a parameter; a meta tensor has no elements
        elif getattr(value.dtype, "hasobject", False):
            return f"{text}, {self.of(value.tolist(), holders)})"
        elif self._spend(0 if math.prod(value.shape) * value.dtype.itemsize <= MOST_BYTES else _MOST_TEXT):
            # the errors of quantized or nested tensors
            with contextlib.suppress(NotImplementedError, RuntimeError, TypeError):
                return f"{text}, {_digest(value)})"
        return f"{text})"

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
            self.is_plain, self.has_table = False, self.has_table or hasattr(type(value), "to_numpy")
            return f"<{full_name(type(value))}>"
        texts = list(itertools.takewhile(lambda _: not self.is_too_large, items))
        if self.is_too_large:
            return f"{kind} of {len(value) if hasattr(type(value), '__len__') else 'many'}"
        opening, closing = _BRACKETS.get(type(value), (f"{kind}(", ")"))
        is_unordered = isinstance(value, (set, frozenset))
        return f"{opening}{', '.join(sorted(texts) if is_unordered else texts)}{closing}"

    def _spend(self, size: int) -> bool:
        """Subtract characters from the budget; return whether any characters are left."""
        self.left -= size
        if self.left <= 0:
            self.is_too_large, self.is_plain = True, False
        return self.left > 0


def _scope_of(part: Any) -> _Scope:
    """Return the scope of a module, or of the module of a function or class."""
    name = part.__name__ if isinstance(part, types.ModuleType) else part.__module__
    return _Scope(source.names_of(part), source.source_of(part).bindings, name)


def _assigned_by(node: ast.stmt) -> set[str]:
    """Return the names and attributes that an assignment gives a new value."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    parts = [part for target in targets if target for part in ast.walk(target)]
    return {ast.unparse(part) for part in parts if isinstance(getattr(part, "ctx", None), ast.Store)}


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
    for part in (_parts_of_data(data) or ()) if depth and not _is_array(data) else ():
        yield from _contents_of_data(part, depth - 1)


def _hash_of_data(data: Any) -> str:
    if isinstance(data, str):
        return data
    if hasattr(data, "__array_interface__"):
        is_numbers = str(data.dtype.kind) in "biufc"
    else:
        is_numbers = isinstance(data, list) and bool(data) and all(isinstance(item, int) for item in data)
    if is_numbers or hasattr(data, "untyped_storage"):
        import torch

        tensor = torch.as_tensor(data)
        step = max(1, -(-tensor.numel() * tensor.element_size() // _MOST_HASHED))
        digest = _digest(tensor.reshape(-1)[::step])
        return f"{digest}{tuple(tensor.shape)}{tensor.dtype}".replace(" ", "")
    parts = _parts_of_data(data)
    if parts is not None:
        joined = "-".join(map(_hash_of_data, parts))
        return joined if len(parts) <= _MOST_PARTS else _short_hash(joined)
    length = len(data) if hasattr(data, "__len__") else ""
    # the repr of a dataset includes its folder and transforms
    return _short_hash(f"{type(data).__qualname__} {length} {data!r}".partition(" at 0x")[0])


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


def _is_array(value: Any) -> bool:
    """Whether a value is a NumPy array or a torch tensor."""
    return hasattr(type(value), "untyped_storage") or hasattr(type(value), "__array_interface__")


def _digest(array: Any) -> str:
    """Hash the elements of an array or a tensor."""
    if hasattr(array, "untyped_storage"):
        import torch

        flat = array.detach().to_dense().cpu().resolve_conj().resolve_neg().reshape(-1).contiguous()
        array = (torch.view_as_real(flat) if flat.is_complex() else flat).view(torch.uint8).numpy()
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def changes_since(run: RunResult, now: Fingerprint) -> list[str]:
    """Return the changes since a run began: loaded files, code, data and versions."""
    changes: list[str] = []
    for path, digest in sorted(run.loaded.items()):
        present = files_digest(run.folder.path.parent.parent / path)
        if present not in ("", digest):
            changes.append(f"files of {path}")
    for kind, name, old, new in changes_between(run.start.get("fingerprint", {}), now):
        if kind in ("code", "statements"):
            changes.append(f"source of {name}")
        elif kind == "values":
            changes.append(f"{name} was {old}, is {new}")
        elif kind == "data":
            changes.append("the data" if old else "data= is given now")
        else:
            changes.append(f"{name} {old or 'none'} -> {new or 'none'}")
    return changes


def changes_between(before: Fingerprint, now: Fingerprint) -> list[tuple[str, str, str, str]]:
    """Return (kind, name, old, new) of each difference; kinds that only one fingerprint has are not compared.

    >>> changes_between({"values": {"BATCH": "32"}}, {"values": {"BATCH": "64"}})
    [('values', 'BATCH', '32', '64')]
    """
    changes: list[tuple[str, str, str, str]] = []
    for kind in ("code", "statements", "values", "data", "versions"):
        old, new = before.get(kind, {} if kind == "data" and before else None), now.get(kind)
        if old is None or new is None:
            continue
        # code that no longer reads a value has changed too
        names = old.keys() & new.keys() if kind in ("statements", "values") else {*old, *new}
        for name in sorted(names):
            pair = old.get(name, ""), new.get(name, "")
            parts = [text.partition("+")[0].split(".")[:2] if kind == "versions" else text for text in pair]
            if parts[0] != parts[1]:
                changes.append((kind, name, *pair))
    return changes

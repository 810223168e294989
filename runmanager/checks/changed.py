"""What counts as changed: the code, values and data of `train` and of the hyperparameters of its runs."""

import ast
import contextlib
import copyreg
import functools
import hashlib
import inspect
import itertools
import linecache
import operator
import os
import re
import symtable
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path, PurePath
from typing import Any

from runmanager.core.provenance import digest_of_file, files_digest, versions
from runmanager.core.run import Run
from runmanager.core.state import RunResult
from runmanager.core.task import Fingerprint
from runmanager.core.values import full_name, key_of, plain
from runmanager.tables.loading import results_digest
from runmanager.user_code import is_users_file

MOST_BYTES = 1 << 30
"""The maximum number of bytes of an array that is compared as a whole; a larger array is sampled evenly."""

_MOST_OBJECTS = 10**6  # maximum number of objects in a value
_MOST_NESTED = 100
_MOST_ITEMS = 50  # maximum number of items that are compared under names of their own
_MOST_TEXT = 1000  # maximum number of characters of a value in another one
_MOST_SHOWN = 80  # maximum number of shown characters of a value
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CODE = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_BLOCKS = (ast.If, ast.Try, ast.TryStar, ast.Match, ast.ExceptHandler, ast.match_case)
_LAMBDA = "<lambda>"
_BRACKETS: Mapping[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}")}
_DEVICE = "device"  # the text of any device
_CLOCKS, _UNSEEDED = "a clock", "random: give it a seed"
_PARTLY = {"weights", "size"}
"""Reasons why only a part of a value is compared."""

_CONTAINERS: tuple[type[Sized], ...] = (*_BRACKETS, set, frozenset)

_SECRET = re.compile("key|token|secret|pass|auth|credential|url|://", re.IGNORECASE)
_LONG = re.compile(r"[^\s,'\"()\[\]{}]{24,}")  # a word that may be a key
_CLOCK = re.compile(
    r"\b(time(_ns)?|perf_counter|monotonic|now|today|utcnow|strftime|ctime|localtime|uuid[14]|getpid|urandom"
    r"|token_\w+|mkdtemp|mkstemp|gettempdir|TemporaryDirectory|NamedTemporaryFile)\("
)
_RANDOM = re.compile(
    r"\b(rand(n|int|perm)?|rand(n|int)?_like|random|normal|uniform|choices?|shuffle|sample|permutation|integers"
    r"|bernoulli|multinomial|random_split|train_test_split)\((?!.*\b(generator|random_state|seed)=)"
    r"|\b(default_rng|RandomState|Random)\(\)"
)
_ADDRESS = "_torchdynamo_wrapper_id"  # torch.compile sets it
_STARTS = re.compile(r"\b(run_grid|main)\(")  # calls that start a grid
_OPENS = re.compile(
    r"\b(open\((?!.*, '[wax]b?')|load\(|loadtxt\(|imread\(|read_\w+\(|from_pretrained\(|load_dataset\("
    r"|urlopen\(|fromfile\(|genfromtxt\(|memmap\(|File\(|connect\(|getlines?\(|listdir\(|scandir\(|r?i?glob\(|iterdir\("
    r"|ImageFolder\(|check_output\(|getenv\(|environ\.get\(|environ\[[^]]*\](?! =))"
)
_SOURCES: dict[int, tuple[Any, "Source"]] = {}
"""Sources by the id of a module's spec or of a notebook cell's code; the references keep the ids unique."""

_BY_RUNS: dict[tuple[int, str], tuple[str, str | None]] = {}
"""Module of `train` and a name -> the value that runs in this process have left, and any before them."""


def fingerprint(train: Callable[..., Any], data: Any = None, runs: Iterable[Run] = ()) -> Fingerprint:
    """Compute the fingerprint of a training function, of its data, and of the hyperparameters of runs."""
    of_data = Reached(is_data=True)
    if data is not None:
        of_data.read("data", _with_files(data))
    reached = Reached(of_data.finish())
    reached.read("", train)
    runs = list(runs)
    for kind in {type(vars(run)["config"]) for run in runs if "config" in vars(run)}:
        reached.read("config", kind)
    reached.finish()
    hyperparameters: dict[str, str] = {}
    source = reached.statements | reached.code
    for value in itertools.chain.from_iterable(runs):
        if type(value) not in _PLAIN and (key := key_of(value)) not in hyperparameters:
            own = Reached(reached)
            own.read("value", value)
            hyperparameters[key] = own.digest() if own.finish().code else ""
            source |= own.statements | own.code
    home = id(names_of(inner_of(train)))
    values: dict[str, str] = {}
    for name, text in reached.values.items():
        left, before = _BY_RUNS.get((home, name), ("", None))
        if text != left:  # the user's, who may also set it to the one left later
            _BY_RUNS.pop((home, name), None)
            before = text
        if before is not None:
            values[name] = before
    kinds: dict[str, Mapping[str, str]] = {
        "code": {name: short_hash(text) for name, text in reached.code.items()},
        "statements": {name: short_hash(text) for name, text in reached.statements.items()},
        "values": values,
        "hyperparameters": {key: digest for key, digest in hyperparameters.items() if digest},
        "files": _rest_of_files(reached),
        "source": {"text": "\n\n".join(f"# %% {name}\n{text}" for name, text in source.items()) + "\n"},
        "named": {**of_data.named, **reached.named},
        "versions": versions(),
    }
    return kinds if data is None else {**kinds, "data": {"data": of_data.digest()}}


def note_changes_by_runs(train: Callable[..., Any], before: Fingerprint) -> None:
    """From now on, count what runs in this process have left in a value as the value from before them."""
    after = Reached()
    after.read("", train)
    home = id(names_of(inner_of(train)))
    for name, text in after.finish().values.items():
        # what was data= then is not new
        if (old := before["values"].get(name, text if "data" in before else None)) != text:
            _BY_RUNS[home, name] = text, old


class Source:
    """The statements of a file, a notebook or a function: what they assign, and what differs at each start.

    Attributes:
        bindings: Name -> the statements that assign it, its items or its attributes.
        fresh: Name -> item or attribute -> why it differs at each start; "" is the whole, "*" a text in it.
        definitions: Qualified name -> functions and classes.
    """

    def __init__(self, body: Sequence[ast.stmt]) -> None:
        self.body, is_seeded = body, False
        self.bindings: dict[str, list[ast.stmt]] = {}
        self.fresh: dict[str, dict[str, str]] = {}
        whole = set(map(id, body))  # a statement in a block may be skipped
        for node in _simple(body):
            is_code = isinstance(node, _DEFINITIONS)
            is_seeded |= not is_code and "seed(" in unparsed(node)
            for target, value in _pairs(node):
                why = "" if is_code else _freshness(value, is_seeded=is_seeded)
                names = {part.id for part in ast.walk(value) if isinstance(part, ast.Name) and not is_code}
                causes = [self.fresh[name] for name in sorted(names) if self.fresh.get(name)]
                why = why or (_UNSEEDED if any(_UNSEEDED in cause.values() for cause in causes) else "")
                for name, part in _assigned(target):
                    if not part and id(node) in whole and not isinstance(node, ast.AugAssign):
                        self.bindings[name], self.fresh[name] = [], {}
                    self.bindings.setdefault(name, []).append(node)
                    fresh = self.fresh.setdefault(name, {})
                    if why and isinstance(value, ast.Dict):
                        items = zip(value.keys, value.values, strict=True)
                        fresh |= {getattr(key, "value", ""): why for key, item in items if _freshness(item)}
                    elif why:
                        fresh[part.strip("*")] = why
                    elif causes:
                        fresh["*"] = _CLOCKS

    @functools.cached_property
    def definitions(self) -> dict[str, list[ast.AST]]:
        """Qualified name -> functions and classes; lambdas share a name."""
        definitions: dict[str, list[ast.AST]] = {}
        for statement in self.body:
            inside: dict[str, list[ast.AST]] = {}
            for name, node in _definitions(statement, ""):
                inside.setdefault(name, []).append(node)
            inside[_LAMBDA] = [*definitions.get(_LAMBDA, ()), *inside.get(_LAMBDA, ())]
            definitions |= inside  # the last definition of a name counts, as in a notebook
        return definitions

    @functools.cached_property
    def effects(self) -> str:
        """The statements before a grid that call imported or own functions, or set attributes of such."""
        texts, bodies = [], [self.body]
        for body in bodies:
            for node in _simple(body):
                text = unparsed(node)
                is_start = _STARTS.search(text)
                if isinstance(node, _DEFINITIONS):
                    bodies += [node.body] if is_start else []
                    continue
                if is_start:
                    break
                bodies += [node.body] if isinstance(node, (ast.For, ast.While, ast.With)) else []
                firsts = [self.bindings.get(name, [node])[0] for name, part in _assigned(node) if part]
                if any(isinstance(first, (*_IMPORTS, *_DEFINITIONS)) for first in firsts):
                    texts.append(text)
        return "\n".join(texts)


Scope = tuple[Mapping[str, Any], Source]
"""The values and the statements of a module, or of the functions around a function."""

Scopes = Sequence[Scope]
"""The scopes in which a name is looked up, from the inside."""

Home = tuple[str, Scopes]
"""The name to which a value is assigned, and its scopes."""


class Reached:
    """The code, statements and values that are reached from a function, a hyperparameter or data."""

    def __init__(self, earlier: "Reached | None" = None, *, is_data: bool = False) -> None:
        self.is_data, self.is_exact = is_data, False
        self.most_bytes, self.most_objects = MOST_BYTES, sys.maxsize if is_data else _MOST_OBJECTS
        self.code: dict[str, str] = {}
        self.statements: dict[str, str] = {}
        self.values: dict[str, str] = {}
        self.named: dict[str, str] = {}  # what is not compared -> why
        self.data: set[int] = set()  # ids of what data= compares
        self.seen: set[object] = set()
        # definitions of files that are reached, also from other hyperparameters
        self.roots: set[tuple[int, str]] = earlier.roots if earlier else set()
        self.homes: dict[int, Home] = earlier.homes if earlier else {}  # computed for the first imported value
        if earlier and earlier.is_data:
            self.data |= set() if earlier.named else earlier.texts.keys()
        elif earlier:
            self.data, self.seen = earlier.data, {*earlier.seen}
        self.texts: dict[int, str] = {}
        self._alive: list[Any] = [earlier]  # objects whose ids must not be used again
        self._waiting: list[Any] = []
        self.blind: set[str] = set()  # reasons why parts of the present value are not compared
        self.left = 0

    def finish(self) -> "Reached":
        """Read the functions and classes that are reached."""
        while self._waiting:
            part = self._waiting.pop()
            if id(part) not in self.seen:
                self.seen.add(id(part))
                self._read_part(part)
        return self

    def digest(self) -> str:
        """Return a hash of everything."""
        return short_hash(repr([sorted(part.items()) for part in (self.code, self.statements, self.values)]))

    def read(self, name: str, value: Any, home: Home | None = None) -> None:
        """Compare a value; of a mapping, a partial or an object, compare each item under its own name."""
        is_data = id(value) in self.data and not isinstance(value, tuple)  # equal tuples may be one object
        is_left_out = value is os.environ or isinstance(value, types.ModuleType)
        if is_data or is_left_out or (name, id(value)) in self.seen:
            return
        self.seen.add((name, id(value)))
        self._alive.append(value)
        home = home or ("", [({}, _source(()))])
        source = home[1][0][1]
        fresh = source.fresh.get(home[0], {})
        text, reasons = self.text(value), self.blind
        if _is_code(value):
            if not is_users(inner_of(value)):
                _add(self.values, name or "train", text)
                for cell, inside in _cells(value).items() if isinstance(value, types.FunctionType) else ():
                    if is_users(inside):  # a function of a library that calls one of the user
                        self.read(cell, inside)
            if isinstance(source.bindings.get(home[0], [None])[0], ast.Assign):  # step = scaled(step, 2)
                self._read_statements(*home)
            if not isinstance(value, types.MethodType):
                return
            value = value.__self__
        items = _items(value)
        if "" in fresh or items is None or (reasons - _PARTLY and not is_users(type(value))):
            self._compare(name or "train", value, home, next(iter(fresh.values()), ""))
            return
        _add(self.values, name or "train", f"{type(value).__name__}({', '.join(items)})")
        for item, inside in items.items():
            why = fresh.get("*", "") if isinstance(inside, str) else ""
            self._compare(f"{name}.{item}".lstrip("."), inside, home, fresh.get(item, why))

    def _compare(self, name: str, value: Any, home: Home, why: str) -> None:
        """Compare a value by its content; what has none is named, and compared by its statements."""
        text, reasons = self.text(value), self.blind
        if why or (reasons - _PARTLY and not is_users(type(value))):
            text, reasons = f"<{full_name(type(value))}>", {why} if why else reasons
        # shortened for the journal, with a hash in place of possible keys
        may_be_key = _SECRET.search(f"{name} {text}") or _LONG.search(text)
        if len(text) > _MOST_SHOWN or (may_be_key and re.search("['\"]", text)):
            text = f"a value with hash {short_hash(text)[:8]}"
        if text != _DEVICE:
            _add(self.values, name, text)
        if reasons - {_CLOCKS} or (why and isinstance(value, dict)):
            self.named[name] = ", ".join(sorted(reasons))
        if reasons:
            self._read_statements(*home)

    def _read_statements(self, name: str, scopes: Scopes) -> None:
        source = scopes[0][1]
        text = "\n".join(map(unparsed, source.bindings.get(name, ())))
        if text and (id(source), name) not in self.seen:
            self.seen.add((id(source), name))
            self._alive.append(source)
            _add(self.statements, name, text)
            self.read_names(text, scopes)

    def read_names(self, text: str, scopes: Scopes) -> None:
        """Compare what a source reads by name."""
        for chain in names_read(text):
            name, _, attributes = chain.partition(".")
            for number, (values, source) in enumerate(scopes):
                if name in values:
                    if not name.startswith("__"):
                        self._read_name(name, attributes, values[name], scopes[number:])
                    break
                if name in source.bindings and number + 1 < len(scopes):  # no inner function uses the name
                    self._read_statements(name, scopes[number:])
                    break

    def _read_name(self, name: str, attributes: str, value: Any, scopes: Scopes) -> None:
        if isinstance(value, types.ModuleType) and is_users(value) and (id(value), attributes) not in self.seen:
            self.seen.add((id(value), attributes))
            inner = scope_of(value)
            names = [name for name in inner[1].bindings if name in inner[0]]
            self.read_names(attributes or "\n".join(names), [inner])
        if isinstance(value, types.ModuleType):
            return
        nodes = scopes[0][1].bindings.get(name)
        home = (name, scopes)
        is_of_library = isinstance(value, type) and not is_users(value)
        if not is_of_library and (not nodes or isinstance(nodes[0], _IMPORTS)):
            self.homes.update({} if self.homes else _homes_of_values())
            home = self.homes.get(id(value), home)
        first, items = attributes.partition(".")[0], _items(value)
        if items and first in items and not home[1][0][1].fresh.get(home[0]):
            self.text(type(value))
            self.read(f"{name}.{first}", items[first], home)
        else:
            self.read(name, value, home)

    def _read_part(self, part: Any) -> None:
        """Compare the source of a function or a class, what it reads, and its attributes."""
        code = part.__code__ if isinstance(part, types.FunctionType) else None
        members = getattr(part, "__dict__", {})
        name = getattr(part, "__qualname__", "")
        defined = code.co_qualname if code else name  # functools.wraps copies the other name
        if "__wrapped__" in members:
            self._waiting.append(members["__wrapped__"])
            name = defined
        if is_users(part):
            values, source = scope = scope_of(part)
            nodes: list[Any] = source.definitions.get(_LAMBDA if defined.endswith(_LAMBDA) else defined, [])
            same_line = [
                node for node in nodes
                if code and code.co_firstlineno == [*getattr(node, "decorator_list", ()), node][0].lineno
            ]  # fmt: skip
            text = "\n".join(dict.fromkeys(map(unparsed, same_line or nodes)))
            is_inner = "<locals>" in defined
            scopes = [(_cells(part), _enclosing(part, source)), scope] if is_inner else [scope]
            if code and not text:
                self.named[name] = "source"
            if opened := _OPENS.search(text):
                self.named[name] = f"what {opened[1].partition('(')[0]}() reads"
            self.roots.add((id(values), name.partition(".")[0]))
            _add(self.code, name, text)
            self.read_names(text, scopes)
        fresh = fresh_attributes(part) if isinstance(part, type) else set()
        for member, value in members.items():
            is_code = _is_code(value) or (isinstance(part, type) and type(value).__module__ != "builtins")
            if not is_code and not member.endswith("_") and member not in {*fresh, _ADDRESS}:
                self.read(f"{name}.{member}", value)

    def text(self, value: Any, depth: int = 0) -> str:
        """Return the content of a value as text; note in `blind` why parts of it are missing."""
        if depth == 0:
            self.blind, self.left = set(), self.most_objects
        if type(value) not in _BRACKETS:  # most objects of a long value are in these
            with contextlib.suppress(RuntimeError, NotImplementedError):  # a tensor without elements
                value = plain(value)
            if type(value) in _PLAIN:
                return repr(value)
            if isinstance(value, (types.ModuleType, PurePath)) or full_name(type(value)) == "torch.device":
                return str(value) if isinstance(value, PurePath) else getattr(value, "__name__", _DEVICE)
            if _is_code(value):
                part = inner_of(value)
                self._waiting += [getattr(value, "__func__", value)] if is_users(part) else []
                return full_name(part)
        if id(value) in self.texts:
            return self.texts[id(value)]
        self._alive.append(value)
        num_blind, self.texts[id(value)] = len(self.blind), "..."
        try:
            text = self._content(value, depth + 1)
        except Exception:  # noqa: BLE001 - a lock, an open file; an exception of a user's class
            self.blind.add("size" if self.left < 0 else type(value).__name__)
            text = f"<{full_name(type(value))} of {len(value) if isinstance(value, _CONTAINERS) else 1}>"
        self.texts[id(value)] = text = text if len(text) <= _MOST_TEXT else short_hash(text)
        if len(self.blind) > num_blind:
            del self.texts[id(value)]  # to be named wherever it occurs
        return text

    def _content(self, value: Any, depth: int) -> str:
        """Return what pickle would store of an object, as text that is the same in every process."""
        kind = type(value)
        self.left -= len(value) if isinstance(value, _CONTAINERS) else 1
        # drawing from an iterator changes it, so that its position is read in a run only
        if depth > _MOST_NESTED or self.left < 0 or (hasattr(kind, "__next__") and not self.is_exact):
            raise RecursionError
        if hasattr(kind, "untyped_storage") or hasattr(kind, "__array_interface__"):
            return self._array(value, depth)
        is_mapping = kind in (dict, types.MappingProxyType)
        items = value if is_mapping else _items(value, is_exact=self.is_exact)
        if items is not None:
            texts = [f"{self.text(key, depth)}: {self.text(item, depth)}" for key, item in items.items()]
        elif kind in (list, tuple, set, frozenset):
            texts = [self.text(item, depth) for item in value]
        else:
            reduce = copyreg.dispatch_table.get(kind)
            reduced: Any = reduce(value) if reduce else value.__reduce_ex__(4)
            parts = [reduced] if isinstance(reduced, str) else reduced
            texts = [
                self.text(list(part) if hasattr(type(part), "__next__") else part, depth)
                for part in parts
                if part is not None
            ]
        opening, closing = _BRACKETS.get(kind, (f"{self.text(kind, depth)}(", ")"))
        return f"{opening}{', '.join(sorted(texts) if kind in (set, frozenset) else texts)}{closing}"

    def _array(self, value: Any, depth: int) -> str:
        kind = f"{type(value).__name__}({str(value.dtype).removeprefix('torch.')}, {list(value.shape)}"
        if getattr(value, "requires_grad", False) and not self.is_data:
            self.blind.add("weights")  # random, and changed by training
            return f"{kind})"
        is_tensor = hasattr(value, "untyped_storage")
        if not is_tensor and value.dtype.hasobject:
            return f"{kind}, {self.text(value.tolist(), depth)})"
        flat = value.detach().to_dense().resolve_conj().resolve_neg() if is_tensor else value
        flat = flat.reshape(-1)
        step = max(1, -(-flat.nbytes // self.most_bytes))
        if step > 1:
            self.blind.add("size")
        flat = flat[::step]
        if is_tensor:
            import torch

            flat = flat.cpu().contiguous().view(torch.uint8).numpy()
        return f"{kind}, {hashlib.sha256(flat.tobytes()).hexdigest()[:16]})"


def names_of(part: Any) -> dict[str, Any]:
    """Return the names in a module, or in the module of a function or class."""
    if isinstance(part, types.FunctionType):
        return part.__globals__  # do not use sys.modules, as the module might not be imported
    if isinstance(part, types.ModuleType):
        return vars(part)  # do not read its attributes, which a module may compute
    name = getattr(part, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    return vars(module) if module else {}


def scope_of(part: Any) -> Scope:
    """Return the values and the statements of a module, or of the module of a function or class."""
    values, code = names_of(part), getattr(part, "__code__", None)
    code = code if isinstance(code, types.CodeType) else None  # a module may have any variable
    if "__file__" not in values and isinstance(cells := values.get("In"), list):
        return values, _source(tuple(cells))  # up to the executed cell
    is_typed = code is not None and code.co_filename.startswith("<")
    key = code if is_typed else values.get("__spec__") or values
    if id(key) not in _SOURCES:
        file = values.get("__file__") or ""
        file = code.co_filename if code and (is_typed or not file) else file
        linecache.checkcache(file)
        _SOURCES[id(key)] = key, _source(("".join(linecache.getlines(file, values)),))
    return values, _SOURCES[id(key)][1]


def is_users(part: Any) -> bool:
    """Whether a module, function or class is defined in a file of the user, but for a module in a notebook."""
    if not isinstance(part, (type, types.FunctionType)) and type(part) is not types.ModuleType:
        return False
    file = names_of(part).get("__file__")
    return is_users_file(file) if isinstance(file, str) else getattr(part, "__module__", "") == "__main__"


def inner_of(value: Any) -> Any:
    """Return the function or class that a function, a method or a wrapper calls in the end."""
    return inspect.unwrap(getattr(value, "__func__", value))


def fresh_attributes(kind: type) -> set[str]:
    """Return the attributes that the user's class assigns from a clock, a process id or random numbers."""
    attributes = set()
    for base in filter(is_users, kind.__mro__):
        for node in scope_of(base)[1].definitions.get(base.__qualname__, ()):
            for inner in ast.walk(node):
                for target, value in _pairs(inner) if isinstance(inner, (ast.Assign, ast.AnnAssign)) else ():
                    if _freshness(value):
                        attributes |= {part or name for name, part in _assigned(target)}
    return attributes


# the cache compares nodes by identity, as every launch of a grid requests the same nodes
@functools.lru_cache(maxsize=1 << 16)
def unparsed(node: ast.AST) -> str:
    """Return the text of a node."""
    return ast.unparse(node)


@functools.lru_cache(maxsize=1 << 16)
def names_read(text: str) -> tuple[str, ...]:
    r"""Return the free names that a source reads, sorted, with their attributes.

    >>> names_read("def step(x):\n    return x * args.scale + LIMIT")
    ('LIMIT', 'args.scale')
    """
    tables, free = [symtable.symtable(text, "source", "exec")], set()
    for table in tables:
        is_outside = table.get_type() == "module"
        free |= {symbol.get_name() for symbol in table.get_symbols() if is_outside or symbol.is_global()}
        tables += table.get_children()
    chains, inner = set(), set()
    for node in [*ast.walk(ast.parse(text))]:  # an attribute comes before what it is of
        if isinstance(node, ast.Attribute):
            inner.add(node.value)
        elif not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store):
            continue
        chain = re.match(r"[\w.]+", ast.unparse(node)) if node not in inner else None
        chains |= {chain[0]} if chain and chain[0].partition(".")[0] in free else set()
    return tuple(sorted(chains))


def short_hash(content: str) -> str:
    """Return 16 hex digits."""
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]


def _rest_of_files(reached: Reached) -> dict[str, str]:
    """Return hashes of the definitions and statements of the user's files that `train` does not reach."""
    rest: dict[str, str] = {}
    for values, source in map(scope_of, filter(is_users, [*sys.modules.values()])):
        module = values["__name__"]
        for name, nodes in source.bindings.items():
            node = nodes[-1]
            is_reached = (id(values), name) in reached.roots
            if isinstance(node, _DEFINITIONS) and not is_reached and not _STARTS.search(unparsed(node)):
                rest[f"{name} in {module}"] = short_hash(unparsed(node))
        if source.effects:
            effects = Reached(reached)
            effects.read_names(source.effects, [(values, source)])
            rest[f"statements of {module}"] = short_hash(source.effects + effects.finish().digest())
    return rest


def _homes_of_values() -> dict[int, Home]:
    """Return where the user's files assign each value, but of imports: its id -> the first name, and scopes."""
    homes: dict[int, Home] = {}
    for values, source in map(scope_of, filter(is_users, [*sys.modules.values()])):
        for name, nodes in source.bindings.items():
            if name in values and nodes and not isinstance(nodes[0], _IMPORTS):
                homes.setdefault(id(values[name]), (name, [(values, source)]))
    return homes


def _is_code(value: Any) -> bool:
    """Whether a value is a function or a class, and is therefore compared by source."""
    return isinstance(value, _CODE) or isinstance(inspect.getattr_static(value, "__wrapped__", None), _CODE)


def _items(value: Any, *, is_exact: bool = False) -> Mapping[str, Any] | None:
    """Return the items of a mapping or a partial, or the attributes of an object; None if it has no names."""
    kind: Any = type(value)
    names = ("__reduce__", "__reduce_ex__", *(() if is_users(kind) else ("__getstate__",)))
    if isinstance(value, functools.partial):
        numbered = {f"argument {number}": item for number, item in enumerate(value.args, 1)}
        return {"function": value.func, **numbered, **value.keywords}
    if isinstance(value, (dict, types.SimpleNamespace)):
        items: Any = value if isinstance(value, dict) else vars(value)
    elif _is_code(value) or any(vars(object)[name] is not getattr(kind, name) for name in names):
        return None
    else:
        try:
            items = value.__getstate__()
        except Exception:  # noqa: BLE001 - of a user's class
            return None
    if not isinstance(items, dict) or len(items) > _MOST_ITEMS or kind in copyreg.dispatch_table:
        return None
    fresh = fresh_attributes(kind) if is_users(kind) and not is_exact else ()
    items = {name: item for name, item in items.items() if name not in fresh}
    return items if all(isinstance(name, str) for name in items) else None


def _simple(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Yield statements, also those in branches; loops and `with` are one statement."""
    for node in body:
        if isinstance(node, _BLOCKS):
            yield from _simple(ast.iter_child_nodes(node))
        elif isinstance(node, ast.stmt):
            yield node


def _pairs(node: Any) -> list[tuple[Any, Any]]:
    """Return the assigned parts of a statement, each with the part that gives its value."""
    if not isinstance(node, ast.Assign):
        return [(node, node)]
    pairs: list[tuple[Any, Any]] = []
    for target in node.targets:
        sides = [getattr(side, "elts", ()) for side in (target, node.value)]
        is_split = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        pairs += (
            zip(*sides, strict=True) if is_split and len(sides[0]) == len(sides[1]) else [(target, node.value)]
        )
    return pairs


def _freshness(value: ast.AST, *, is_seeded: bool = False) -> str:
    """Return what a part of a statement draws that differs at each start, or ""."""
    text = unparsed(value)
    if _CLOCK.search(text):
        return _CLOCKS
    return _UNSEEDED if _RANDOM.search(text) and not is_seeded else ""


def _assigned(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that a statement assigns, each with an attribute or item, "" for all, "*" by a call."""
    if isinstance(node, _DEFINITIONS):
        yield node.name, ""
        return
    if isinstance(node, _IMPORTS):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], ""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):  # such as layers.append(...)
        root = node.value.func
        while isinstance(root, ast.Attribute | ast.Call | ast.Subscript):
            root = root.func if isinstance(root, ast.Call) else root.value
        yield getattr(root, "id", ""), "*"
    for part in ast.walk(node):
        inside: Any = part
        name = ""
        while isinstance(inside, ast.Attribute | ast.Subscript):
            name = str(getattr(inside, "attr", getattr(getattr(inside, "slice", None), "value", "")))
            inside = inside.value
        if isinstance(getattr(part, "ctx", None), ast.Store) and isinstance(inside, ast.Name):
            yield inside.id, name


def _cells(part: Any) -> dict[str, Any]:
    """Return the values that a function, or the methods of a class, have from the functions around them."""
    cells: dict[str, Any] = {}
    for function in (part, *vars(part).values()):
        if isinstance(function, types.FunctionType):
            pairs = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            # a name may not be bound yet
            cells |= {name: cell.cell_contents for name, cell in pairs if cell != types.CellType()}
    return cells


def _enclosing(part: Any, source: Source) -> Source:
    """Return the statements of the functions that enclose a function or class."""
    names = part.__qualname__.split(".<locals>.")[:-1]
    outer = [".<locals>.".join(names[: number + 1]) for number in range(len(names))]
    nodes = [node for name in outer for node in source.definitions.get(name, [])[-1:]]
    return Source([statement for node in nodes if isinstance(node, _FUNCTIONS) for statement in node.body])


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the functions and classes in a node, with their qualified names."""
    below = ""
    if isinstance(node, (*_DEFINITIONS, ast.Lambda)):
        prefix += getattr(node, "name", _LAMBDA)
        yield _LAMBDA if isinstance(node, ast.Lambda) else prefix, node
        below = "." if isinstance(node, ast.ClassDef) else ".<locals>."
    for child in ast.iter_child_nodes(node):
        yield from _definitions(child, prefix + below)


@functools.lru_cache(maxsize=1024)
def _source(texts: tuple[str, ...]) -> Source:
    return Source([node for text in texts for node in _body(text)])


@functools.lru_cache(maxsize=1024)
def _body(text: str) -> list[ast.stmt]:
    """Return the statements of a file or a cell, without docstrings and annotations of functions."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    match tree.body:  # the body of a cell magic such as %%time is text
        case [ast.Expr(ast.Call(ast.Attribute(attr="run_cell_magic"), [_, _, ast.Constant(str() as cell)]))]:
            return _body(cell)
    for node in ast.walk(tree):
        if isinstance(node, (*_DEFINITIONS, ast.Module)) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, _FUNCTIONS):
            node.returns = None
        if isinstance(node, ast.Nonlocal):
            node.__class__ = ast.Global  # type: ignore[assignment]  # valid without its outer function
    return tree.body


def _add(texts: dict[str, str], name: str, text: str) -> None:
    """Add a text; functions may read different values by one name."""
    while texts.get(name, text) != text:
        name += "'"
    texts[name] = text


def _with_files(data: Any, depth: int = 0) -> Any:
    """Return data with the content of files in place of paths, also of those in lists and mappings."""
    if isinstance(data, PurePath):
        path = Path(data)
        paths = sorted(path.rglob("*")) if path.is_dir() else [path]
        return [(str(each.relative_to(path)), digest_of_file(each)) for each in paths if each.is_file()]
    if type(data) not in (list, tuple, dict) or depth == _MOST_NESTED:
        return data
    items = list(data.items() if type(data) is dict else data)
    inside = [_with_files(item, depth + 1) for item in items]
    return data if all(map(operator.is_, items, inside)) else inside


def changes_since(
    run: RunResult, now: Fingerprint, *, is_strict: bool = False, of_results: dict[Path, str] | None = None
) -> list[str]:
    """Return the changes since a run began, of what it loaded, of code, data and versions.

    If strict, code that `train` does not reach counts, too. `of_results` collects the digests of results.
    """
    changes: list[str] = []
    of_results = {} if of_results is None else of_results
    for path, digests in sorted(run.loaded.items()):
        folder = (run.folder.path.parent.parent / path).resolve()
        results, _, weights = digests.partition(" ")
        if weights and files_digest(folder) not in ("", weights):
            changes.append(f"files of {path}")
        elif results:
            of_results[folder] = of_results.get(folder) or results_digest(folder)
            if of_results[folder] not in ("", results):
                changes.append(f"results of {path}")
    for kind, name, old, new in changes_between(run.start.get("fingerprint", {}), now):
        if kind == "values":
            changes.append(f"{name} was {old}, is {new}")
        elif kind == "data":
            changes.append("the data" if old else "data= is given now")
        elif kind == "versions":
            changes.append(f"{name} {old or 'none'} -> {new or 'none'}")
        elif kind != "files" or is_strict:
            changes.append("source of " + re.sub(r'{"\w+": "([^"]+)"}', r"\1", name))  # {"name": "module.Net"}
    return changes


def changes_between(before: Fingerprint, now: Fingerprint) -> list[tuple[str, str, str, str]]:
    """Return (kind, name, old, new) of each difference; kinds that only one fingerprint has are not compared.

    >>> changes_between({"values": {"BATCH": "32"}}, {"values": {"BATCH": "64"}})
    [('values', 'BATCH', '32', '64')]
    """
    changes: list[tuple[str, str, str, str]] = []
    for kind in ("code", "statements", "values", "hyperparameters", "files", "data", "versions"):
        old, new = before.get(kind, {} if kind == "data" and before else None), now.get(kind)
        if old is None or new is None:
            continue
        # code that no longer reads a value has changed too
        is_complete = kind in ("code", "data", "versions")
        for name in sorted({*old, *new} if is_complete else old.keys() & new.keys()):
            pair = old.get(name, ""), new.get(name, "")
            minors = [text.partition("+")[0].split(".")[:2] for text in pair]
            if pair[0] != pair[1] and (kind != "versions" or minors[0] != minors[1]):
                changes.append((kind, name, *pair))
    return changes

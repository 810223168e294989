"""What counts as changed: the code, values and data of `train` and of the hyperparameters of its runs."""

import ast
import contextlib
import copyreg
import functools
import hashlib
import inspect
import itertools
import linecache
import os
import re
import symtable
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
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
_CODE = (type, types.FunctionType, types.BuiltinFunctionType)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_IMPORTS: tuple[type[ast.AST], ...] = (ast.Import, ast.ImportFrom)
_BLOCKS = (ast.If, ast.Try, ast.TryStar, ast.Match, ast.ExceptHandler, ast.match_case)
_OUTSIDE = (*_IMPORTS, *_DEFINITIONS, ast.Expr)  # what first binds a name that no statement assigns
_LOOPS = (ast.For, ast.While, ast.With)
_LAMBDA = "<lambda>"
_BRACKETS: Mapping[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}")}
_CONTAINERS: tuple[type[Sized], ...] = (*_BRACKETS, set, frozenset)
_CLOCKS, _UNSEEDED = "a clock", "random: give it a seed"
_PARTLY = {"weights", "size"}
"""Reasons why only a part of a value is compared."""

# what may be a secret: by its name, or a long word
_KEY = re.compile(r"(?i:key|token|secret|pass|auth|credential|url|://)|[^\s,'\"()\[\]{}]{24,}")
_CLOCK = re.compile(
    r"\b(time(_ns)?|perf_counter|monotonic|now|today|utcnow|strftime|ctime|localtime|uuid[14]|getpid|urandom"
    r"|token_\w+|mkdtemp|mkstemp|gettempdir|TemporaryDirectory|NamedTemporaryFile)\("
)
_RANDOM = re.compile(
    r"\b(rand(n|int|perm)?|rand(n|int)?_like|random|normal|uniform|choices?|shuffle|sample|permutation|integers"
    r"|bernoulli|multinomial|random_split|train_test_split)\((?!.*\b(generator|random_state|seed)=)"
    r"|\b(default_rng|RandomState|Random)\(\)"
)
_STARTS = re.compile(r"\b(run_grid|main)\(")  # calls that start a grid
_OPENS = re.compile(
    r"\b(open\((?!.*, '[wax]b?')|load\(|loadtxt\(|imread\(|read_\w+\(|from_pretrained\(|load_dataset\("
    r"|urlopen\(|fromfile\(|genfromtxt\(|memmap\(|File\(|connect\(|getlines?\(|listdir\(|scandir\(|r?i?glob\(|iterdir\("
    r"|ImageFolder\(|check_output\(|parse_args\(|getenv\(|environ\.get\(|(environ|argv)\[[^]]*\](?! =))"
)
_SOURCES: dict[tuple[object, ...], "Source"] = {}
"""Sources by file and id of a module's spec, which their values keep unique, or by the cells of a notebook."""

_BY_RUNS: dict[tuple[str, str], tuple[str, str | None]] = {}
"""Module of `train` and a name -> the value that runs in this process have left, and any before them."""


def fingerprint(train: Callable[..., Any], data: Any = None, runs: Iterable[Run] = ()) -> Fingerprint:
    """Compute the fingerprint of a training function, of its data, and of the hyperparameters of runs."""
    of_data = Reached(is_data=True, most_objects=sys.maxsize)
    if data is not None:
        of_data.texts |= _files_of(data)
        of_data.reach("data", data)
    reached = Reached(data=set() if of_data.named else {*of_data.texts})
    reached.reach("train", train)
    runs = list(runs)
    for kind in {type(vars(run)["config"]) for run in runs if "config" in vars(run)}:
        reached.reach("config", kind)
    source = reached.statements | reached.code
    hyperparameters: dict[str, str] = {}
    for value in itertools.chain.from_iterable(runs):
        if type(value) not in _PLAIN and (key := key_of(value)) not in hyperparameters:
            part = reached.branch().reach("value", value)
            hyperparameters[key] = part.digest() if part.code else ""
            source |= part.statements | part.code
    values: dict[str, str] = {}
    for name, text in reached.values.items():
        of_runs = (str(getattr(train, "__module__", "")), name)
        left, before = _BY_RUNS.get(of_runs, ("", None))
        if text != left:  # the user's, who may also set it to the one left later
            _BY_RUNS.pop(of_runs, None)
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
    for name, text in Reached().reach("train", train).values.items():
        # what was data= then is not new
        if (old := before["values"].get(name, text if "data" in before else None)) != text:
            _BY_RUNS[str(getattr(train, "__module__", "")), name] = text, old


class Source:
    """The statements of a file, a notebook or a function: what they assign, and what differs at each start.

    Attributes:
        bindings: Name -> the statements that assign it, its items or its attributes.
        fresh: Name -> item or attribute -> why it differs at each start; "" is the whole, "*" the texts in it.
    """

    is_seeded = False

    def __init__(
        self, values: Mapping[str, Any], body: Iterable[ast.stmt], outer: "Source | None" = None
    ) -> None:
        self.values, self.body = values, [*body]
        self.bindings: dict[str, list[ast.stmt]] = {}
        self.fresh: dict[str, dict[str, str]] = {}
        if outer:
            self.is_seeded = outer.is_seeded
            self.bindings |= {name: [*nodes] for name, nodes in outer.bindings.items()}
            self.fresh |= {name: {**parts} for name, parts in outer.fresh.items()}
        whole = {*self.body}  # a statement in a block may be skipped
        for node in _simple(self.body):
            text = "" if isinstance(node, (*_DEFINITIONS, *_IMPORTS)) else unparsed(node)
            self.is_seeded |= "seed(" in text
            parts = {name for name, part in _assigned(node) if part}  # self.n = n takes nothing from self
            words = {*re.findall(r"\w+", text)} - parts
            causes = [why for word in words for why in self.fresh.get(word, {}).values()]
            why = _CLOCKS if _CLOCK.search(text) else ""
            if _UNSEEDED in causes or (not why and not self.is_seeded and _RANDOM.search(text)):
                why = _UNSEEDED
            for name, part in _assigned(node):
                if not part and node in whole and not isinstance(node, ast.AugAssign):
                    self.bindings[name] = []
                    self.fresh.pop(name, None)
                self.bindings.setdefault(name, []).append(node)
                if why or causes:
                    self.fresh.setdefault(name, {})[part.strip("*") if why else part or "*"] = why or _CLOCKS

    @functools.cached_property
    def definitions(self) -> dict[str, list[Any]]:
        """Name -> functions and classes of that name, also inside others."""
        definitions: dict[str, list[Any]] = {}
        for node in itertools.chain.from_iterable(map(ast.walk, self.body)):
            if isinstance(node, (*_DEFINITIONS, ast.Lambda)):
                definitions.setdefault(getattr(node, "name", _LAMBDA), []).append(node)
        return definitions

    def inside(self, names: Sequence[str], values: Mapping[str, Any]) -> "Source":
        """Return the statements around a function or class that is defined in functions of these names."""
        nodes = [
            node for name in names for node in self.definitions.get(name, ()) if isinstance(node, _FUNCTIONS)
        ]
        body = itertools.chain.from_iterable(node.body for node in nodes)
        return Source({**self.values, **values}, body, outer=self)

    @functools.cached_property
    def effects(self) -> list[ast.stmt]:
        """The statements before a grid that call functions but of own values, or set attributes of modules."""
        effects: list[ast.stmt] = []
        bodies: list[Any] = [self.body]
        for body in bodies:
            node: Any
            for node in _simple(body):
                is_start, is_definition = _STARTS.search(unparsed(node)), isinstance(node, _DEFINITIONS)
                if is_start and not is_definition:
                    break
                if is_start or isinstance(node, _LOOPS):
                    bodies.append(node.body)
                elif not is_definition:
                    roots = {name for name, part in _assigned(node) if part and name != "print"}
                    firsts = [self.bindings.get(name, [node])[0] for name in roots]
                    effects += [node] if any(isinstance(first, _OUTSIDE) for first in firsts) else []
        return effects


Home = tuple[str, Source]
"""The name to which a value is assigned, and the statements that do so."""


@dataclass(eq=False)
class Reached:
    """The code, statements and values that are reached from a function, a hyperparameter or data."""

    data: set[int] = field(default_factory=set)  # ids of what data= compares
    # definitions of files that are reached, also from other hyperparameters
    roots: set[tuple[int, str]] = field(default_factory=set)
    homes: dict[int, Home] = field(default_factory=dict)  # computed for the first imported value
    seen: set[object] = field(default_factory=set)
    is_data: bool = False
    is_exact: bool = False
    most_bytes: int = field(default_factory=lambda: MOST_BYTES)
    most_objects: int = field(default_factory=lambda: _MOST_OBJECTS)
    code: dict[str, str] = field(default_factory=dict)
    statements: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)  # what is not compared -> why
    texts: dict[int, str] = field(default_factory=dict)
    blind: set[str] = field(default_factory=set)  # reasons why parts of the present value are not compared
    _alive: list[Any] = field(default_factory=list)  # objects whose ids must not be used again
    _waiting: list[Any] = field(default_factory=list)

    def branch(self) -> "Reached":
        """Return an object for what is reached beyond this one."""
        return Reached(self.data, self.roots, self.homes, {*self.seen})

    def digest(self) -> str:
        """Return a hash of everything."""
        return short_hash(repr([sorted(part.items()) for part in (self.code, self.statements, self.values)]))

    def reach(self, name: str, value: Any) -> "Reached":
        """Compare a value, and the functions and classes that are reached from it."""
        self.read(name, value)
        while self._waiting:
            part = self._waiting.pop()
            if id(part) not in self.seen:
                self.seen.add(id(part))
                self._read_part(part)
        return self

    def read(self, name: str, value: Any, home: Home | None = None) -> None:  # noqa: C901 - one thought
        """Compare a value; of a mapping, a partial or an object, compare each item under its own name."""
        is_data = id(value) in self.data and not isinstance(value, tuple)  # equal tuples may be one object
        is_left_out = value is os.environ or isinstance(value, types.ModuleType)
        if is_data or is_left_out or (name, id(value)) in self.seen:
            return
        self.seen.add((name, id(value)))
        self._alive.append(value)
        root, source = home or ("", _NOWHERE)
        fresh, text = source.fresh.get(root, {}), self.text(value)
        ignored = _IMPORTS
        if _is_code(value):
            ignored += _LOOPS if scope_of(inspect.unwrap(value)) is None else (*_LOOPS, *_DEFINITIONS)
        nodes = [node for node in source.bindings.get(root, ()) if not isinstance(node, ignored)]
        if isinstance(value, types.MethodType):
            value = value.__self__
        items = _items(value)
        if items is None or "" in fresh or text.startswith("<"):
            items = {"": value}
        else:
            _add(self.values, name, f"{type(value).__name__}({', '.join(items)})")
        for item, inside in items.items():
            label, why = f"{name}.{item}".rstrip("."), fresh.get(item, "")
            if fresh and not (why or item):
                why = next(iter(fresh.values()))
            elif isinstance(inside, str):
                why = why or fresh.get("*", "")
            text, blind = self.text(inside), {why} if why else self.blind
            if why:
                text = f"<{full_name(type(inside))}>"
            # shortened for the journal, with a hash in place of possible keys
            elif len(text) > _MOST_SHOWN or (_KEY.search(f"{label} {text}") and re.search("['\"]", text)):
                text = f"a value with hash {short_hash(text)[:8]}"
            _add(self.values, label, text)
            if blind - {_CLOCKS}:
                self.named[label] = ", ".join(sorted(blind))
            if nodes and (blind or _is_code(value)):  # step = scaled(step, 2)
                # args.folder = f"runs/{time()}" says nothing about the rest of args
                of_item = [node for node in nodes if item and (root, item) in _assigned(node)]
                self.read_source(self.statements, root, of_item if why and of_item else nodes, source)

    def read_source(self, texts: dict[str, str], name: str, nodes: Iterable[ast.AST], source: Source) -> None:
        """Compare statements, functions or classes, and what they read by name."""
        text = "\n".join(dict.fromkeys(map(unparsed, nodes)))
        if (name, text, id(source)) in self.seen:
            return
        self.seen.add((name, text, id(source)))
        self._alive.append(source)
        _add(texts, name, text)
        if opened := _OPENS.search(text):
            self.named[name] = f"what {opened[1].partition('(')[0]}() reads"
        self.read_names(names_read(text), source)

    def read_names(self, chains: Iterable[str], source: Source) -> None:
        """Compare what is read by names, with the attributes that are read of them."""
        for name, _, attributes in (chain.partition(".") for chain in chains):
            value, nodes = source.values.get(name), source.bindings.get(name, ())
            if name not in source.values:  # of an outer function, whose inner ones do not use it
                if nodes:
                    self.read_source(self.statements, name, nodes, source)
            elif isinstance(value, types.ModuleType):
                inner = scope_of(value)
                if inner and (id(value), attributes) not in self.seen:
                    self.seen.add((id(value), attributes))
                    names = [name for name in inner.bindings if name in inner.values]
                    self.read_names([attributes] if attributes else names, inner)
            elif not name.startswith("__"):
                home, is_of_library = (name, source), isinstance(value, type) and not scope_of(value)
                if not is_of_library and (not nodes or isinstance(nodes[0], _IMPORTS)):
                    self.homes.update({} if self.homes else _homes_of_values())
                    home = self.homes.get(id(value), home)
                first, items = attributes.partition(".")[0], _items(value) or {}
                fresh = home[1].fresh.get(home[0], {}).keys()
                if first in items and not {first, "", "*"} & fresh:
                    self.text(type(value))
                    self.read(f"{name}.{first}", items[first], None if fresh else home)
                else:
                    self.read(name, value, home)

    def _read_part(self, part: Any) -> None:  # noqa: C901 - one for each kind of part
        """Compare the source of a function or a class, what it reads, and the attributes of a function."""
        source, code = scope_of(part), part.__code__ if isinstance(part, types.FunctionType) else None
        # the name of the code, as functools.wraps copies the other
        name = code.co_qualname if code else getattr(part, "__qualname__", "")
        members = {**getattr(part, "__dict__", {})}
        if isinstance(part, type):  # what is assigned outside it, as by setattr, has no statement
            fresh = fresh_attributes(part) | (source or _NOWHERE).fresh.get(name, {}).keys()
            members = {
                member: value for member, value in members.items()
                if member not in fresh and isinstance(value, _PLAIN + _CONTAINERS)
            }  # fmt: skip
        for member, value in members.items():
            if member == "__wrapped__":
                self._waiting.append(value)
            elif not member.startswith("_"):
                self.read(f"{name}.{member}", value)
        if not source:  # a function of a library that calls one of the user
            for cell, inside in _cells(part).items() if code else ():
                if isinstance(inside, _CODE) and scope_of(inside):
                    self.read(cell, inside)
            return
        names = name.split(".")
        self.roots.add((id(source), names[0]))
        nodes = source.definitions.get(names[-1], [])
        if code:
            lines = [[*getattr(node, "decorator_list", ()), node][0].lineno for node in nodes]
            nodes = [node for node, line in zip(nodes, lines, strict=True) if line == code.co_firstlineno]
            if not nodes:
                self.named[name] = "source"
        if "<locals>" in names:
            source = source.inside(names[:-1], _cells(part))
        self.read_source(self.code, name, nodes, source)

    def text(self, value: Any, depth: int = 0) -> str:  # noqa: C901 - one for each kind of value
        """Return the content of a value as text; note in `blind` why parts of it are missing."""
        if depth == 0:
            self.blind = set()
        if type(value) not in _BRACKETS:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # a tensor without elements
                value = plain(value)
            if type(value) in _PLAIN:  # most objects of a long value
                return repr(value)
            if isinstance(value, types.MethodType):
                value = [value.__func__, value.__self__]
            elif isinstance(value, types.MappingProxyType):
                value = {**value}
            if isinstance(value, PurePath):
                return self.texts.get(id(value), str(value))
            if full_name(type(value)) == "torch.device":
                return "device"  # any
            if _is_code(value):
                part = inspect.unwrap(value)
                self._waiting.append(value)
                return part.__qualname__ if scope_of(part) else full_name(part)
        if id(value) in self.texts:
            return self.texts[id(value)]
        self._alive.append(value)
        blind, self.blind, self.texts[id(value)] = self.blind, set(), "..."
        try:
            text = self._content(value, depth + 1)
        except Exception:  # noqa: BLE001 - a lock, an open file; an exception of a user's class
            self.blind.add("size" if isinstance(value, _CONTAINERS) else type(value).__name__)
            text = ""
        if not text or (
            self.blind - _PARTLY and not isinstance(value, _CONTAINERS) and not scope_of(type(value))
        ):
            text = f"<{full_name(type(value))} of {len(value) if isinstance(value, _CONTAINERS) else 1}>"
        self.texts[id(value)] = text = text if len(text) <= _MOST_TEXT else short_hash(text)
        if self.blind:
            del self.texts[id(value)]  # to be named wherever it occurs
        self.blind |= blind
        return text

    def _content(self, value: Any, depth: int) -> str:
        """Return what pickle would store of an object, as text that is the same in every process."""
        kind, items = type(value), _items(value, is_exact=self.is_exact)
        is_moved = hasattr(kind, "__next__") and not self.is_exact  # runs draw from an iterator
        if (
            is_moved
            or depth > _MOST_NESTED
            or (isinstance(value, _CONTAINERS) and len(value) > self.most_objects)
        ):
            raise RecursionError
        if hasattr(kind, "untyped_storage") or hasattr(kind, "__array_interface__"):
            return self._array(value, depth)
        if kind is dict or items is not None:
            items = value if items is None else items
            texts = [f"{self.text(key, depth)}: {self.text(item, depth)}" for key, item in items.items()]
        elif kind in (list, tuple):
            texts = [self.text(item, depth) for item in value]
        elif kind in (set, frozenset):
            texts = sorted(self.text(item, depth) for item in value)
        else:
            reduce = copyreg.dispatch_table.get(kind)
            reduced: Any = reduce(value) if reduce else value.__reduce_ex__(4)
            parts = [reduced] if isinstance(reduced, str) else [part for part in reduced if part is not None]
            texts = [self.text([*part] if hasattr(part, "__next__") else part, depth) for part in parts]
        opening, closing = _BRACKETS.get(kind, (f"{self.text(kind, depth)}(", ")"))
        return f"{opening}{', '.join(texts)}{closing}"

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
        self.blind |= {"size"} if step > 1 else set()
        flat = flat[::step]
        if is_tensor:
            import torch

            flat = flat.cpu().contiguous().view(torch.uint8).numpy()
        return f"{kind}, {hashlib.sha256(flat.tobytes()).hexdigest()[:16]})"


def scope_of(part: Any) -> Source | None:
    """Return the statements of a user's module, or of that of a function or class; None of others."""
    code = part.__code__ if isinstance(part, types.FunctionType) else None
    values: Any = {}
    if code:
        values = part.__globals__  # do not use sys.modules, as the module might not be imported
    elif isinstance(part, type):
        values = vars(sys.modules.get(part.__module__, ast))
    elif type(part) is types.ModuleType:
        values = vars(part)  # do not read its attributes, which a module may compute
    file = values.get("__file__") or ""
    if not (is_users_file(file) if file else values and getattr(part, "__module__", "") == "__main__"):
        return None
    cells = tuple(values.get("In") or ()) if not file else ()
    if code and not cells and (not file or code.co_filename.startswith("<")):
        file = code.co_filename
    # the file as it was when the module was imported, the notebook up to the executed cell
    key = cells or (file, id(values.get("__spec__") or values))
    if key not in _SOURCES:
        linecache.checkcache(file)
        nodes = [node for text in cells or ["".join(linecache.getlines(file, values))] for node in _body(text)]
        # the last definition in a notebook counts
        body = {getattr(node, "name", node): node for node in nodes}.values() if cells else nodes
        _SOURCES[key] = Source(values, body)
    return _SOURCES[key]


@functools.lru_cache(maxsize=1024)
def fresh_attributes(kind: type) -> set[str]:
    """Return the attributes that the user's class assigns from a clock, a process id or random numbers."""
    attributes: set[str] = set()
    for base in kind.__mro__:
        source = scope_of(base)
        for node in source.definitions.get(base.__name__, ()) if source else ():
            statements = [inner for inner in ast.walk(node) if isinstance(inner, (ast.Assign, ast.AnnAssign))]
            for parts in Source({}, statements).fresh.values():
                attributes |= {part for part in parts if part.strip("*")}
            attributes |= {*Source({}, node.body).fresh}
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
        symbols = [symbol for symbol in table.get_symbols() if symbol.is_referenced()]
        free |= {symbol.get_name() for symbol in symbols if is_outside or symbol.is_global()}
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
    for source in filter(None, map(scope_of, [*sys.modules.values()])):
        module = source.values["__name__"]
        for name, nodes in source.bindings.items():
            text = unparsed(nodes[-1]) if isinstance(nodes[-1], _DEFINITIONS) else ""
            if text and (id(source), name) not in reached.roots and not _STARTS.search(text):
                rest[f"{name} in {module}"] = short_hash(text)
        if source.effects:
            part = reached.branch()
            part.read_source(part.statements, "", source.effects, source)
            rest[f"statements of {module}"] = part.reach("", None).digest()
    return rest


def _homes_of_values() -> dict[int, Home]:
    """Return where the user's files assign each value: its id -> the first name, and the statements."""
    homes: dict[int, Home] = {}
    for source in filter(None, map(scope_of, [*sys.modules.values()])):
        for name, nodes in source.bindings.items():
            if name in source.values and not isinstance(nodes[0], _IMPORTS):
                homes.setdefault(id(source.values[name]), (name, source))
    return homes


def _is_code(value: Any) -> bool:
    """Whether a value is a function or a class, and is therefore compared by source."""
    return isinstance(value, _CODE) or isinstance(inspect.getattr_static(value, "__wrapped__", None), _CODE)


def _items(value: Any, *, is_exact: bool = False) -> dict[str, Any] | None:
    """Return the items of a mapping or a partial, or the attributes of an object; None if it has no names."""
    kind: Any = type(value)
    items: Any = getattr(value, "__dict__", None) or {}
    if isinstance(value, functools.partial):
        numbered = {f"argument {number}": item for number, item in enumerate(value.args, 1)}
        return {"function": value.func, **numbered, **value.keywords}
    if isinstance(value, dict):
        items = items | value
    elif kind is not types.SimpleNamespace:
        # without them, pickle stores the attributes alone
        names = ("__reduce__", "__reduce_ex__", *(() if scope_of(kind) else ("__getstate__",)))
        is_plain = all(getattr(kind, name) is getattr(object, name) for name in names)
        if not is_plain or kind in copyreg.dispatch_table or isinstance(value, (*_CONTAINERS, *_PLAIN, *_CODE)):
            return None
        items = None
        with contextlib.suppress(Exception):  # what pickle refuses, such as an open file; a user's __getattr__
            items = value.__reduce_ex__(4)[2]
    if (
        not isinstance(items, dict)
        or len(items) > _MOST_ITEMS
        or not all(isinstance(name, str) for name in items)
    ):
        return None
    fresh = fresh_attributes(kind) if scope_of(kind) and not is_exact else ()
    return {name: item for name, item in items.items() if name not in fresh}


def _simple(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Yield statements, also those in branches and in `a, b = 1, 2`; loops and `with` are one statement."""
    for node in body:
        if isinstance(node, _BLOCKS):
            yield from _simple(ast.iter_child_nodes(node))
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Tuple)
            and isinstance(node.targets[0], ast.Tuple)
        ):
            for target, value in zip(node.targets[0].elts, node.value.elts, strict=False):
                yield ast.copy_location(ast.Assign([target], value), node)
        elif isinstance(node, ast.stmt):
            yield node


def _assigned(node: Any) -> Iterator[tuple[str, str]]:
    """Yield the names that a statement assigns, each with an attribute or item, "" for all, "*" by a call."""
    if isinstance(node, _DEFINITIONS):
        yield node.name, ""
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], ""
    for part in ast.walk(node):
        is_call = isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)  # such as layers.append(...)
        root: Any = part.value if isinstance(part, ast.Expr) else part
        name = "*" if is_call else ""
        while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
            if not is_call:
                name = str(getattr(root, "attr", getattr(getattr(root, "slice", None), "value", "")))
            root = root.func if isinstance(root, ast.Call) else root.value
        if isinstance(root, ast.Name) and (is_call or isinstance(getattr(part, "ctx", None), ast.Store)):
            yield root.id, name


def _cells(part: Any) -> dict[str, Any]:
    """Return the values that a function, or the methods of a class, have from the functions around them."""
    cells: dict[str, Any] = {}
    for function in (part, *vars(part).values()):
        if isinstance(function, types.FunctionType):
            pairs = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            # a name may not be bound yet
            cells |= {name: cell.cell_contents for name, cell in pairs if cell != types.CellType()}
    return cells


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


def _files_of(data: Any, depth: int = 0) -> dict[int, str]:
    """Return the content of the files of paths, also of those in lists and mappings, by the paths' ids."""
    if isinstance(data, PurePath):
        files = sorted(path for path in (Path(data), *Path(data).rglob("*")) if path.is_file())
        return {
            id(data): short_hash(repr([(str(path.relative_to(data)), digest_of_file(path)) for path in files]))
        }
    contents: dict[int, str] = {}
    if type(data) in _BRACKETS and depth < _MOST_NESTED:
        for item in data.values() if type(data) is dict else data:
            contents |= _files_of(item, depth + 1)
    return contents


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


_NOWHERE = Source({}, ())

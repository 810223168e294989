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
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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

_MOST_NESTED = 100
_MOST_ITEMS = 50  # maximum number of items that are compared under names of their own
_MOST_TEXT = 1000  # maximum number of characters of a value in another one
_MOST_SHOWN = 80  # maximum number of shown characters of a value
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CODE = (type, types.FunctionType, types.BuiltinFunctionType)
_BRACKETS: Mapping[type, Sequence[str]] = {list: "[]", tuple: "()", dict: "{}"}
_CONTAINERS: tuple[type[Collection[Any]], ...] = (*_BRACKETS, set, frozenset)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_BLOCKS = (ast.If, ast.Try, ast.TryStar, ast.Match, ast.ExceptHandler, ast.match_case)
_LOOPS = (ast.For, ast.While, ast.With)
_CLOCKS, _UNSEEDED = "a clock", "random: give it a seed"

# text that may be a secret: by its name, or a long word
_KEY = re.compile(r"((?i:key|token|secret|pass|auth|credential|url|://)|[^\s,'\"()\[\]{}]{24,}).*['\"]")
_CLOCK = re.compile(
    r"\b(time(_ns)?|perf_counter|monotonic|now|today|utcnow|strftime|ctime|localtime|uuid[14]|getpid|urandom"
    r"|token_\w+|mkdtemp|mkstemp|gettempdir|TemporaryDirectory|NamedTemporaryFile)\("
    r"|\bdefault_factory=[\w.]*(time|now|today|uuid[14])\b|\bruntime\.output_dir\b"  # of Hydra
)
_RANDOM = re.compile(
    r"\b(rand(n|int|perm)?|rand(n|int)?_like|random|normal|uniform|choices?|shuffle|sample|permutation|integers"
    r"|bernoulli|multinomial|random_split|train_test_split)\((?!.*\b(generator|random_state|seed)=)"
    r"|\b(default_rng|RandomState|Random)\(\)"
    r"|^\w+ = (?!.*load).*\bnn\.(Linear|Bilinear|Conv|Embedding|RNN|LSTM|GRU|Transformer|Multihead)"
)
_STARTS = re.compile(r"\b(run_grid|main)\(")  # calls that start a grid
_OPENS = re.compile(
    r"\b(open\((?!.*, '[wax]b?')|load\(|loadtxt\(|imread\(|read_\w+\(|from_pretrained\(|load_dataset\("
    r"|urlopen\(|fromfile\(|genfromtxt\(|memmap\(|File\(|connect\(|getlines?\(|listdir\(|scandir\(|r?i?glob\(|iterdir\("
    r"|globals\(|ImageFolder\(|check_output\(|parse_args\(|getenv\("
    r"|environ\.get\(|(environ|argv)\[[^]]*\](?! =))"
)
# by file, id of a module's spec, which their values keep unique, and the cells of a notebook
_SOURCES: dict[tuple[object, ...], "Source"] = {}

_BY_RUNS: dict[tuple[str, str], tuple[str | None, str]] = {}
"""Module of `train` and a name -> the value before the last runs in this process, if any, and after them."""


def fingerprint(train: Callable[..., Any], data: Any = None, runs: Sequence[Run] = ()) -> Fingerprint:
    """Compute the fingerprint of a training function, of its data, and of the hyperparameters of runs."""
    kinds: dict[str, Mapping[str, str]] = {}
    of_data = Reached()
    if data is not None:
        of_data.texts.update(_files_of(data))
        of_data.is_data, of_data.most_objects = True, sys.maxsize
        kinds["data"] = {"data": of_data.reach("data", data).digest()}
    reached = Reached(set() if of_data.named else {*of_data.texts}).reach("train", train)
    hyperparameters: dict[str, str] = {}
    for kind in {type(vars(run)["config"]) for run in runs if "config" in vars(run)}:
        reached.reach("config", kind)
    objects = {key_of(value): value for run in runs for value in run if type(value) not in _PLAIN}
    for key, value in objects.items():
        part = reached.branch().reach("value", value)
        reached.source |= part.source
        if part.code:
            hyperparameters[key] = part.digest()
    values: dict[str, str] = {}
    for name, text in reached.values.items():
        before, left = _BY_RUNS.get((train.__module__, name), (text, text))
        if (value := before if text == left else text) is not None:
            values[name] = value
    return kinds | {
        "code": reached.code,
        "statements": reached.statements,
        "values": values,
        "hyperparameters": hyperparameters,
        "files": _rest_of_files(reached),
        "source": {"text": "\n\n".join(f"# %% {name}\n{text}" for name, text in reached.source.items()) + "\n"},
        "named": {**of_data.named, **reached.named},
        "versions": versions(),
    }


def note_changes_by_runs(train: Callable[..., Any], before: Fingerprint) -> None:
    """From now on, count what runs in this process have left in a value as the value from before them."""
    for name, text in Reached().reach("train", train).values.items():
        old = before["values"].get(name, text if "data" in before else None)  # what was data= then is not new
        _BY_RUNS[train.__module__, name] = old, text


class Source:
    """The statements of a file, a notebook or a function.

    `bindings`: name -> the statements that assign it, each with the item or attribute that it assigns, "" for
    all and "*" for the texts in it, and with the reason if it differs at each start.
    """

    def __init__(
        self, values: Mapping[str, Any], body: Iterable[ast.AST], outer: "Source | None" = None
    ) -> None:
        self.values, self.body = values, [*body]
        self.bindings: ChainMap[str, list[tuple[ast.stmt, str, str]]] = ChainMap()
        self.is_seeded = False
        if outer:
            self.bindings, self.is_seeded = outer.bindings.new_child(), outer.is_seeded
        whole = {*self.body}  # a statement in a block may be skipped
        for node in _simple(self.body):
            text = "" if isinstance(node, _DEFINITIONS) else unparsed(node)
            self.is_seeded |= "seed(" in text
            is_loading = re.match(r"(?!self).*\.load_state_dict\(", text)  # which replaces random weights
            targets = [*_assigned(node)]
            partly, attributes = {name for name, part in targets if part}, re.findall(r"\w+\.\w+", text)
            causes = {
                why
                for name in ([] if is_loading else re.findall(r"\w+", text))
                for item, why in self.fresh(name).items()
                # self.n = n takes nothing from self, but self.n = self.t does
                if name not in partly or f"{name}.{item}" in attributes
            }
            why = _CLOCKS if _CLOCK.search(text) else ""
            if _UNSEEDED in causes or (_RANDOM.search(text) and not self.is_seeded):
                why = _UNSEEDED
            for name, part in targets:
                is_new = is_loading or (not part and node in whole and not isinstance(node, ast.AugAssign))
                before = [] if is_new else self.bindings.get(name, [])
                item = part.strip("*") if why else part or "*"
                self.bindings[name] = [*before, (node, item, why or (_CLOCKS if causes else ""))]

    def fresh(self, name: str) -> dict[str, str]:
        """Return the items and attributes of a value that differ at each start, and why."""
        return {item: why for _, item, why in self.bindings.get(name, ()) if why}

    @functools.cached_property
    def definitions(self) -> dict[object, list[Any]]:
        """Name, and name and first line -> functions and classes, also inside others."""
        definitions: dict[object, list[Any]] = {}
        for node in itertools.chain.from_iterable(map(ast.walk, self.body)):
            if isinstance(node, (*_DEFINITIONS, ast.Lambda)):
                name, first = getattr(node, "name", "<lambda>"), [*getattr(node, "decorator_list", ()), node][0]
                for key in (name, (name, first.lineno)):
                    definitions.setdefault(key, []).append(node)
        return definitions

    @functools.cached_property
    def outline(self) -> list[ast.stmt]:
        """The definitions before a grid, and the statements that call functions or set attributes of others."""
        outline = []
        for node in _before_grid(self.body):
            is_effect = isinstance(node, _DEFINITIONS)
            for name, part in _assigned(node):
                first = self.bindings.get(name, [(node,)])[0][0]
                # what has a value, and no statement that assigns it, is imported
                is_imported = name in self.values and (name, "") not in _assigned(first)
                if part and name != "print":
                    is_effect |= is_imported or isinstance(first, (*_DEFINITIONS, ast.Expr))
            if is_effect:
                outline.append(node)
        return outline


Home = tuple[str, Source]
"""The name to which a value is assigned, and the statements that do so."""


@dataclass(eq=False)
class Reached:
    """The code, statements and values that are reached from a function, a hyperparameter or data."""

    is_data = is_exact = False
    most_bytes = 1 << 30  # of an array that is compared as a whole; a larger array is sampled evenly
    most_objects = 10**6  # in a list, set or mapping

    data: set[int] = field(default_factory=set)  # ids of what data= compares
    homes: dict[int, Home] = field(default_factory=dict)  # computed for the first imported value
    seen: set[object] = field(default_factory=set)
    code: dict[str, str] = field(default_factory=dict)
    statements: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)  # what is not compared -> why
    # id of a value -> its content, and the reasons why parts of it are not compared
    texts: dict[int, tuple[str, set[str]]] = field(default_factory=dict)
    blind: set[str] = field(default_factory=set)  # reasons why parts of the present value are not compared
    _alive: list[Any] = field(default_factory=list)  # objects whose ids must not be used again
    _waiting: list[Any] = field(default_factory=list)

    def branch(self) -> "Reached":
        """Return an object for what is reached beyond this one."""
        return Reached(self.data, self.homes, {*self.seen})

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

    def read(self, name: str, value: Any, home: Home | None = None, attribute: str = "") -> None:  # noqa: C901 - one thought
        """Compare a value, or one of its attributes; items and attributes count under names of their own."""
        if isinstance(value, types.MethodType):
            self.text(value)
            value = value.__self__
        is_data = id(value) in self.data and not isinstance(value, tuple)  # equal tuples may be one object
        key = name, id(value), attribute
        if is_data or value is os.environ or key in self.seen:
            return
        self.seen.add(key)
        self._alive.append(value)
        (root, source), self.blind = home or ("", _NOWHERE), set()
        fresh, items = source.fresh(root), {} if self.is_data else _items(value)
        items = self._lasting(type(value), items)
        is_partly = bool(self.blind)
        if not items or "" in fresh:
            items = {"": value}
        elif attribute in items and not hasattr(dict, attribute):
            items = {attribute: items[attribute]}
        else:
            _add(self.values, name, f"{type(value).__name__}({', '.join(items)})")
        self.text(type(value))
        ignored: tuple[type[ast.AST], ...] = ()
        if _is_code(value) and not fresh:
            ignored = (*_LOOPS, *(_DEFINITIONS if scope_of(inspect.unwrap(value)) else ()))
        assigning = [part for part in source.bindings.get(root, ()) if not isinstance(part[0], ignored)]
        for item, inside in items.items():
            label = f"{name}.{item}".rstrip(".")
            why = fresh.get(item, "") if item else next(iter(fresh.values()), "")
            if isinstance(inside, str):
                why = why or fresh.get("*", "")
            # the statement has what such a value is made of
            text = f"<{full_name(type(inside))}>" if why else self.text(inside)
            if why:
                self.blind = {why}
            # shortened for the journal, with a hash in place of possible keys
            if len(text) > _MOST_SHOWN or _KEY.search(f"{label} {text}"):
                text = f"a value with hash {short_hash(text)[:8]}"
            _add(self.values, label, text)
            if self.blind - {_CLOCKS}:
                self.named[label] = ", ".join(sorted(self.blind))
            if self.blind or is_partly or _is_code(value):  # step = scaled(step, 2)
                # args.folder = f"runs/{time()}" says nothing about the rest of args
                nodes = [node for node, part, _ in assigning if part == item or not (why and item)]
                self.read_source(self.statements, root, nodes, source)

    def read_source(self, texts: dict[str, str], name: str, nodes: Iterable[ast.AST], source: Source) -> None:
        """Compare statements, functions or classes, and what they read by name."""
        text = "\n".join(dict.fromkeys(map(unparsed, nodes)))
        if text and (name, text, source) not in self.seen:
            self.seen.add((name, text, source))
            _add(self.source, name, text)
            _add(texts, name, short_hash(text))
            if opened := _OPENS.search(text):
                self.named[name] = f"what {opened[1].partition('(')[0]}() reads"
            self.read_names(names_read(text), source)

    def read_names(self, chains: Iterable[str], source: Source) -> None:
        """Compare what is read by names, with the attributes that are read of them."""
        for name, _, attributes in (chain.partition(".") for chain in chains):
            value, assigning = source.values.get(name), source.bindings.get(name, [])
            if isinstance(value, types.ModuleType):
                inner = scope_of(value)
                if inner and (value, attributes) not in self.seen:
                    self.seen.add((value, attributes))
                    self.read_names([attributes] if attributes else [*inner.values], inner)
            elif name in source.values and not name.startswith("__"):
                home = name, source
                if not assigning and (scope_of(value) or not isinstance(value, type)):
                    self.homes.update({} if self.homes else _homes_of_values())
                    home = self.homes.get(id(value), home)
                self.read(name, value, home, attributes.partition(".")[0])
            else:  # of an outer function, whose inner ones do not use it
                self.read_source(self.statements, name, [node for node, *_ in assigning], source)

    def _read_part(self, part: Any) -> None:
        """Compare the source of a function or a class, what it reads, and what is set on it."""
        source, code = scope_of(part), part.__code__ if isinstance(part, types.FunctionType) else None
        if not source:  # a function of a library that calls one of the user
            for value in _cells(part).values() if code and code.co_freevars else ():
                if isinstance(value, (*_CODE, dict)):  # such as the functions of singledispatch
                    self.text(value)
            return
        # the name of the code, as functools.wraps copies the other
        name: str = code.co_qualname if code else part.__qualname__
        members = self._lasting(part, vars(part)) if vars(part) else {}
        for member, value in members.items():  # what setattr has set has no statement
            is_plain = isinstance(value, _PLAIN + _CONTAINERS) and not member.startswith("_")
            if is_plain and member not in source.fresh(name):
                self.read(f"{name}.{member}", value)
        outer, _, last = name.rpartition(".")
        nodes = source.definitions.get((last, code.co_firstlineno) if code else last, [])
        if code and not nodes:
            self.named[name] = "source"
        if outer.endswith("<locals>"):
            around = [node for name in outer.split(".") for node in source.definitions.get(name, ())]
            statements = [
                statement for node in around if isinstance(node, _FUNCTIONS) for statement in node.body
            ]
            source = Source({**source.values, **_cells(part)}, statements, source)
        self.read_source(self.code, name, nodes, source)

    def text(self, value: Any, depth: int = 0) -> str:
        """Return the content of a value as text; note in `blind` why parts of it are missing."""
        if depth == 0:
            self.blind = set()
        if type(value) in _PLAIN:  # most objects of a long value
            return repr(value)
        if isinstance(value, _CODE) or (_is_code(value) and not scope_of(type(value))):
            part = inspect.unwrap(value)
            self._waiting += [value, part]
            return part.__qualname__ if scope_of(part) else full_name(part)
        if isinstance(value, types.MethodType):
            self.text(value.__func__, depth + 1)
        if id(value) not in self.texts:
            self._alive.append(value)
            blind, self.blind, self.texts[id(value)] = self.blind, set(), ("...", set())
            try:
                text = self._content(value, depth + 1)
            except Exception:  # noqa: BLE001 - a lock, an open file; an exception of a user's class
                is_container = isinstance(value, _CONTAINERS)
                self.blind.add("size" if is_container else type(value).__name__)
                text = f"<{full_name(type(value))} of {len(value) if is_container else 1}>"
            # the reasons are named wherever the value occurs
            self.texts[id(value)] = (text if len(text) <= _MOST_TEXT else short_hash(text)), self.blind
            self.blind = blind
        text, blind = self.texts[id(value)]
        self.blind |= blind
        return text

    def _content(self, value: Any, depth: int) -> str:  # noqa: C901 - one for each kind of value
        """Return what pickle would store of an object, as text that is the same in every process."""
        value = plain(value)
        kind: Any = type(value)
        is_moved = hasattr(kind, "__next__") and not self.is_exact  # runs draw from an iterator
        is_long = isinstance(value, _CONTAINERS) and len(value) > self.most_objects
        if is_moved or is_long or depth > _MOST_NESTED:
            raise RecursionError
        if kind in _PLAIN:
            return repr(value)
        if isinstance(value, PurePath):
            return str(value)
        if full_name(kind) == "torch.device":
            return "device"  # any
        if hasattr(kind, "untyped_storage") or hasattr(kind, "__array_interface__"):
            return self._array(value, depth)
        if kind is dict:
            texts = [f"{self.text(key, depth)}: {self.text(item, depth)}" for key, item in value.items()]
        elif kind in _CONTAINERS:
            texts = [self.text(item, depth) for item in value]
        else:
            reduce = copyreg.dispatch_table.get(kind)
            reduced: Any = reduce(value) if reduce else value.__reduce_ex__(4)
            texts = []
            for part in [reduced] if isinstance(reduced, str) else reduced:
                content = [*part] if hasattr(type(part), "__next__") else part
                if type(part) is dict:
                    content = self._lasting(kind, part)
                texts.append(self.text(content, depth))
            # of an object of a library, a lock hides the rest
            if self.blind - {"weights", "size", _CLOCKS} and not scope_of(kind):
                raise TypeError
        if kind in (set, frozenset):
            texts.sort()
        opening, closing = _BRACKETS.get(kind, (f"{self.text(kind, depth)}(", ")"))
        return f"{opening}{', '.join(texts)}{closing}"

    def _lasting(self, kind: Any, items: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the attributes that do not differ at each start; arrays of data= count all the same."""
        fresh = () if self.is_exact else fresh_attributes(kind)
        left_out = {
            name for name in fresh if name in items and not (self.is_data and hasattr(items[name], "nbytes"))
        }
        if left_out:
            self.blind.add(_CLOCKS)
        left_out |= {"__doc__", "__annotations__"}  # of a function that an object wraps
        return {name: item for name, item in items.items() if name not in left_out}

    def _array(self, value: Any, depth: int) -> str:
        kind = f"{type(value).__name__}({value.dtype}, {list(value.shape)}"
        is_tensor = hasattr(value, "untyped_storage")
        if getattr(value, "requires_grad", False) and not (self.is_data or self.is_exact):
            self.blind.add("weights")  # random, and changed by training
            return f"{kind})"
        if not is_tensor and value.dtype.hasobject:
            return f"{kind}, {self.text(value.tolist(), depth)})"
        flat = (value.detach().to_dense() if is_tensor else value).reshape(-1)
        step = max(1, -(-flat.nbytes // self.most_bytes))
        if step > 1:
            self.blind.add("size")
        flat = flat[::step]
        if is_tensor:
            import torch

            flat = flat.cpu().contiguous().view(torch.uint8).numpy()
        return f"{kind}, {hashlib.sha256(flat.tobytes()).hexdigest()[:16]})"


def scope_of(part: Any) -> Source | None:
    """Return the statements of a user's module, or of that of a function or class; None of others."""
    values: Any = {}
    if type(part) is types.ModuleType:  # first, as each start of a grid asks about thousands
        values = vars(part)  # do not read its attributes, which a module may compute
    elif isinstance(part, types.FunctionType):
        values = part.__globals__  # do not use sys.modules, as the module might not be imported
    elif isinstance(part, type):
        values = vars(sys.modules.get(part.__module__, ast))
    file = values.get("__file__") or ""
    if not (is_users_file(file) if file else values and getattr(part, "__module__", "") == "__main__"):
        return None
    cells = () if file else values.get("In", ())
    # the file as it was when the module was imported, the notebook up to the executed cell
    key = (file, id(values.get("__spec__") or values), *cells)
    if key not in _SOURCES:
        linecache.checkcache(file)
        nodes = [
            node for text in cells or ["".join(linecache.getlines(file, values))] for node in body_of(text)
        ]
        # the last definition in a notebook counts
        body = {getattr(node, "name", node): node for node in nodes}.values() if cells else nodes
        _SOURCES[key] = Source(values, body)
    return _SOURCES[key]


@functools.lru_cache(maxsize=1024)
def fresh_attributes(kind: Any) -> set[str]:
    """Return the attributes that the user's class assigns from a clock, a process id or random numbers."""
    attributes: set[str] = set()
    for base in getattr(kind, "__mro__", ()):
        source, of_class = scope_of(base), {*vars(base), *getattr(base, "__dataclass_fields__", ())}
        for node in source.definitions.get(base.__name__, ()) if source else ():
            inner = Source({}, ast.walk(node))
            for name in inner.bindings:
                if fresh := inner.fresh(name):
                    # "" is of register_buffer("noise", torch.randn(3))
                    attributes |= {*(item or "_buffers" for item in fresh), *({name} & of_class)}
    return attributes


# nodes are compared by identity, as every launch of a grid requests the same nodes
@functools.lru_cache(maxsize=1 << 16)
def unparsed(node: ast.AST) -> str:
    """Return the text of a node."""
    return ast.unparse(node)


@functools.lru_cache(maxsize=1 << 16)
def names_read(text: str) -> tuple[str, ...]:
    """Return the free names that a source reads, sorted, with their attributes."""
    tables, free = [symtable.symtable(text, "source", "exec")], set()
    for table in tables:
        symbols = [symbol for symbol in table.get_symbols() if symbol.is_referenced()]
        free |= {symbol.get_name() for symbol in symbols if symbol.is_global()}
        tables += table.get_children()
    chains, inner = set(), set()
    for node in ast.walk(ast.parse(text)):  # an attribute comes before what it is of
        if isinstance(node, ast.Attribute):
            inner.add(node.value)
        if isinstance(node, (ast.Attribute, ast.Name)) and node not in inner:
            chains |= {*re.findall(r"^[\w.]+", ast.unparse(node))}
    return tuple(sorted(chain for chain in chains if chain.partition(".")[0] in free))


def short_hash(content: str) -> str:
    """Return 16 hex digits."""
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]


def _rest_of_files(reached: Reached) -> dict[str, str]:
    """Return hashes of the definitions and statements of the user's files that no run reaches."""
    rest, texts = {}, {*reached.source.values()}
    for source in filter(None, map(scope_of, [*sys.modules.values()])):
        module = source.values["__name__"]
        effects = []
        for node in source.outline:
            if not isinstance(node, _DEFINITIONS):
                effects.append(node)
            elif unparsed(node) not in texts:
                rest[f"{node.name} in {module}"] = short_hash(unparsed(node))
        if effects:
            part = reached.branch()
            part.read_source(part.statements, "", effects, source)
            rest[f"statements of {module}"] = part.reach("", None).digest()
    return rest


def _before_grid(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Yield the statements before one that starts a grid, also inside a function that does so."""
    for node in _simple(body):
        if not _STARTS.search(unparsed(node)):
            yield node
        elif isinstance(node, _DEFINITIONS):
            yield from _before_grid(node.body)
        else:
            return


def _homes_of_values() -> dict[int, Home]:
    """Return where the user's files assign each value: its id -> the first name, and the statements."""
    homes: dict[int, Home] = {}
    for source in filter(None, map(scope_of, [*sys.modules.values()])):
        for name in source.bindings:
            if name in source.values:
                homes.setdefault(id(source.values[name]), (name, source))
    return homes


def _items(value: Any) -> dict[str, Any]:
    """Return the items of a mapping or a partial, or the attributes of a user's object; {} of others."""
    kind: Any = type(value)
    items: dict[Any, Any] = {}
    if isinstance(value, functools.partial):
        items = {"function": value.func, "arguments": value.args, **value.keywords}
    elif isinstance(value, dict):
        items = {**getattr(value, "__dict__", {}), **value}
    elif scope_of(kind) or "Namespace" in kind.__name__:
        with contextlib.suppress(Exception):  # what pickle refuses
            match value.__reduce_ex__(4):
                case (_, (_,), dict() as state, None, None) | (_, (), dict() as state):
                    items = state
    is_named = len(items) <= _MOST_ITEMS and all(isinstance(name, str) for name in items)
    return items if is_named else {}


def _is_code(value: Any) -> bool:
    """Whether a value is a function or a class, and is therefore compared by source."""
    return isinstance(value, _CODE) or isinstance(inspect.getattr_static(value, "__wrapped__", None), _CODE)


def _simple(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Yield statements, also those in branches; loops and `with` are one statement."""
    for node in body:
        if isinstance(node, _BLOCKS):
            yield from _simple(ast.iter_child_nodes(node))
        elif isinstance(node, ast.stmt):
            yield node


def _assigned(node: Any) -> Iterator[tuple[str, str]]:
    """Yield the names that a statement assigns, each with an attribute or item, "" for all, "*" by a call."""
    for part in [node] if isinstance(node, _DEFINITIONS) else ast.walk(node):
        if isinstance(part, _DEFINITIONS):
            yield part.name, ""
        is_call = isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)  # such as layers.append(...)
        if is_call or isinstance(getattr(part, "ctx", None), ast.Store):
            name, *parts = re.findall(r"\w+", unparsed(part))
            yield name, "*" if is_call else "".join(parts[:1])


def _cells(part: Any) -> dict[str, Any]:
    """Return the values that a function, or the methods of a class, have from the functions around them."""
    cells: dict[str, Any] = {}
    for function in (part, *vars(part).values()):
        if isinstance(function, types.FunctionType):
            pairs = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            # a name may not be bound yet
            cells |= {name: cell.cell_contents for name, cell in pairs if cell != types.CellType()}
    return cells


def body_of(text: str) -> list[ast.stmt]:
    """Return the statements of a file or a cell, without docstrings and annotations of functions."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    for node in ast.walk(tree):
        if isinstance(node, (*_DEFINITIONS, ast.Module)) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
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


def _files_of(data: Any) -> Iterator[tuple[int, tuple[str, set[str]]]]:
    """Yield the ids of paths, also in lists and mappings, with the names and digests of their files."""
    if isinstance(data, PurePath):
        texts = [
            f"{file.relative_to(data)} {digest_of_file(file)}"
            for file in (Path(data), *Path(data).rglob("*"))
            if file.is_file()
        ]
        yield id(data), (repr(sorted(texts)), set())
    elif isinstance(data, _CONTAINERS):
        for item in data.values() if isinstance(data, dict) else data:
            yield from _files_of(item)


def changes_since(
    run: RunResult, now: Fingerprint, of_results: dict[Path, str], *, is_strict: bool = False
) -> list[str]:
    """Return the changes since a run began, of what it loaded, of code, data and versions."""
    changes: list[str] = []
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
        text = f"{name} was {old}, is {new}"
        if kind == "data":
            text = "the data" if old else "data= is given now"
        elif kind not in ("values", "versions"):
            text = "source of " + re.sub(r'{"\w+": "([^"]+)"}', r"\1", name)  # {"name": "module.Net"}
        if kind != "files" or is_strict:
            changes.append(text)
    return changes


def changes_between(before: Fingerprint, now: Fingerprint) -> list[tuple[str, str, str, str]]:
    """Return (kind, name, old, new) of each difference in the kinds that both fingerprints have."""
    changes: list[tuple[str, str, str, str]] = []
    for kind, new in now.items():
        if kind in ("source", "named"):
            continue
        old = before.get(kind, {} if kind == "data" and before else new)
        # code that no longer reads a value has changed too
        names = {*old, *new} if kind in ("code", "data") else old.keys() & new.keys()
        for name in sorted(names):
            pair = old.get(name, ""), new.get(name, "")
            parts = [re.split(r"[.+]", text)[:2] if kind == "versions" else text for text in pair]
            if parts[0] != parts[1]:
                changes.append((kind, name, *pair))
    return changes


_NOWHERE = Source({}, ())

"""The source of the user's code: functions and classes, and the names that they read."""

import ast
import functools
import importlib.util
import inspect
import itertools
import linecache
import symtable
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runmanager.core.user_code import is_users_file

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IN_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_LAMBDA = "<lambda>"
_SOURCES: dict[int, tuple[Any, "Source"]] = {}
"""Sources by the id of a module's spec or of a notebook cell's code; the references keep the ids unique."""


@dataclass(frozen=True)
class Source:
    """The statements of a module or notebook, and its functions and classes by qualified name.

    Comments, docstrings, layout and annotations of functions are removed.
    """

    body: list[ast.stmt]
    definitions: Mapping[str, list[ast.AST]]

    @functools.cached_property
    def bindings(self) -> dict[str, list[ast.stmt]]:
        """Name -> the module's statements that assign it."""
        return bindings_in(self.body)


def is_users_module(module: types.ModuleType | None) -> bool:
    """Whether a module is a file of the user."""
    file = getattr(module, "__file__", None)
    return type(module) is types.ModuleType and isinstance(file, str) and is_users_file(file)


def is_users(part: Any) -> bool:
    """Whether a function or class is defined in a file of the user, or in a notebook."""
    file = names_of(part).get("__file__")
    return is_users_file(file) if isinstance(file, str) else part.__module__ == "__main__"


def names_of(part: Any) -> dict[str, Any]:
    """Return the names in a module, or in the module of a function or class."""
    if isinstance(part, types.FunctionType):
        return part.__globals__  # do not use sys.modules, as the module might not be imported
    name = getattr(part, "__module__", None)
    module = (
        part if isinstance(part, types.ModuleType) else sys.modules.get(name) if isinstance(name, str) else None
    )
    return vars(module) if module else {}


def layers(function: Any) -> list[Any]:
    """Return the functions or the class wrapped by a callable, outermost first."""
    functions: list[Any] = []
    while not any(function is one for one in functions):
        functions.append(function)
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            owner = function.__self__ if isinstance(function.__self__, type) else type(function.__self__)
            function = owner if is_users(owner) else function.__func__
        else:  # the object is a wrapper of functools.cache or functools.wraps
            function = inspect.getattr_static(function, "__wrapped__", function)
    kinds = (type, types.FunctionType, types.BuiltinFunctionType)
    return [one for one in functions if isinstance(one, kinds)] or [type(functions[-1])]


def source_of(part: Any) -> Source:
    """Return the source of a module, or of the module of a function or class; empty if unavailable."""
    scope, code = names_of(part), getattr(part, "__code__", None)
    code = code if isinstance(code, types.CodeType) else None  # a module may have any variable
    if "__file__" not in scope and isinstance(cells := scope.get("In"), list):
        return _merged(map(_parsed, cells))  # the cells of a notebook, up to the executed cell
    is_typed = code is not None and code.co_filename.startswith("<")
    key = code if is_typed else scope.get("__spec__") or scope
    if id(key) not in _SOURCES:
        file = scope.get("__file__") or ""
        file = code.co_filename if code and (is_typed or not file) else file
        linecache.checkcache(file)
        _SOURCES[id(key)] = key, _parsed("".join(linecache.getlines(file, scope)))
    return _SOURCES[id(key)][1]


def text_of(part: Any) -> str:
    """Return the cleaned source of a function or class, "" without source."""
    code = part.__code__ if isinstance(part, types.FunctionType) else None
    name = code.co_qualname if code else part.__qualname__
    named: list[Any] = source_of(part).definitions.get(_LAMBDA if name.endswith(_LAMBDA) else name, [])
    same_line = [
        node for node in named
        if code and code.co_firstlineno == [*getattr(node, "decorator_list", ()), node][0].lineno
    ]  # fmt: skip
    return "\n".join(dict.fromkeys(map(unparsed, same_line or named)))


# the cache compares nodes by identity, as every launch of a grid requests the same nodes
@functools.lru_cache(maxsize=4096)
def unparsed(node: ast.AST) -> str:
    """Return the text of a node."""
    return ast.unparse(node)


def origin_of(node: ast.stmt, name: str, package: str) -> tuple[types.ModuleType, str] | None:
    """Return the user's module from which a statement imports a name, and the name in that module."""
    if not isinstance(node, ast.ImportFrom):
        return None
    try:
        module = sys.modules.get(importlib.util.resolve_name("." * node.level + (node.module or ""), package))
    except ImportError:  # a relative import outside a package: another statement replaces it
        return None
    names = [name if alias.name == "*" else alias.name for alias in node.names
             if alias.name == "*" or name == (alias.asname or alias.name)]  # fmt: skip
    is_there = module is not None and is_users_module(module) and hasattr(module, names[0])
    return (module, names[0]) if module and is_there else None


def bindings_in(body: Iterable[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Return name -> statements that assign the name, its items or its attributes, even in nested blocks."""
    bindings: dict[str, list[ast.stmt]] = {}
    for node in body:
        for inner in _simple([node]):
            for name, is_new in _bound(inner).items():
                bindings[name] = [*([] if is_new and inner is node else bindings.get(name, [])), inner]
    return bindings


def enclosing_bindings(part: Any) -> dict[str, list[ast.stmt]]:
    """Return `bindings_in` of the functions that enclose a function or class."""
    names = part.__qualname__.split(".<locals>.")[:-1]
    outer = [".<locals>.".join(names[: number + 1]) for number in range(len(names))]
    nodes = [node for name in outer for node in source_of(part).definitions.get(name, [])[-1:]]
    return bindings_in(statement for node in nodes if isinstance(node, _FUNCTIONS) for statement in node.body)


@functools.lru_cache(maxsize=4096)
def names_read(text: str) -> tuple[str, ...]:
    r"""Return the free names that a source reads, sorted, with their attributes.

    >>> names_read("def step(x):\n    return x * args.scale + LIMIT")
    ('LIMIT', 'args.scale')
    """
    tree = ast.parse(text)
    free = set(_free(symtable.symtable(text, "source", "exec")))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)]
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    is_read = (
        node for node in nodes
        if id(node) not in inner and not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )  # fmt: skip
    return tuple(sorted({chain for node in is_read if (chain := _chain(node)).partition(".")[0] in free}))


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Source:
    try:
        tree = _cleaned(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return Source([], {})
    match tree.body:  # the body of a cell magic such as %%time is text
        case [ast.Expr(ast.Call(ast.Attribute(attr="run_cell_magic"), [_, _, ast.Constant(str() as cell)]))]:
            return _parsed(cell)
    definitions: dict[str, list[ast.AST]] = {}
    for name, node in _definitions(tree, ""):
        definitions.setdefault(name, []).append(node)
    return Source(tree.body, definitions)


def _merged(sources: Iterable[Source]) -> Source:
    body: list[ast.stmt] = []
    definitions: dict[str, list[ast.AST]] = {}
    for source in sources:
        body += source.body
        for name, nodes in source.definitions.items():
            definitions[name] = [*definitions.get(name, ()), *nodes] if name == _LAMBDA else nodes
    return Source(body, definitions)


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        name, below = prefix, ""
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            name = prefix + getattr(child, "name", _LAMBDA)
            yield _LAMBDA if isinstance(child, ast.Lambda) else name, child
            below = "." if isinstance(child, ast.ClassDef) else ".<locals>."
        yield from _definitions(child, name + below)


def _simple(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Yield functions, classes and simple statements, even in nested blocks, and each `for` and `with`."""
    for node in body:
        inside = [one for one in ast.iter_child_nodes(node) if isinstance(one, _IN_BLOCKS)]
        is_whole = not inside or isinstance(node, (*_FUNCTIONS, ast.ClassDef))
        if isinstance(node, ast.stmt) and (is_whole or isinstance(node, ast.For | ast.With)):
            yield node
        if not is_whole:
            yield from _simple(inside)


def _bound(node: ast.stmt) -> dict[str, bool]:
    """Return name -> whether a statement gives the name a new value, for all names that it assigns."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name: True}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {alias.asname or alias.name.partition(".")[0]: True for alias in names}
        case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):  # a call such as layers.append(...)
            return {_root(method): False}
    header = {ast.For: "target", ast.With: "items"}.get(type(node), "")
    parts = getattr(node, header, node)
    walked = itertools.chain.from_iterable(map(ast.walk, parts if isinstance(parts, list) else [parts]))
    targets = [one for one in walked if isinstance(getattr(one, "ctx", None), ast.Store)]
    is_new = not isinstance(node, ast.AugAssign)
    return {_root(one): is_new and isinstance(one, ast.Name) for one in reversed(targets)}


def _root(node: ast.AST) -> str:
    """Return the first name of an expression."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _chain(node: ast.AST) -> str:
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(attributes)]) if isinstance(node, ast.Name) else ""


def _free(table: symtable.SymbolTable) -> Iterator[str]:
    is_outside = table.get_type() == "module"
    yield from (symbol.get_name() for symbol in table.get_symbols() if is_outside or symbol.is_global())
    for inner in table.get_children():
        yield from _free(inner)


def _cleaned(tree: ast.Module) -> ast.Module:
    """Remove docstrings and annotations of functions; a class may define fields by annotations."""
    for node in ast.walk(tree):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Module)) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, _FUNCTIONS):
            node.returns = None
        if isinstance(node, ast.Nonlocal):
            node.__class__ = ast.Global  # type: ignore[assignment]  # valid without its outer function
    return ast.fix_missing_locations(tree)

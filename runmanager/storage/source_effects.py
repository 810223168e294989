"""Code without what its source has for readers and debuggers: annotations, and stops at a debugger."""

import ast
import functools
import linecache
import types
from collections.abc import Sequence
from typing import Any

from runmanager.storage.code_parts import codes, instructions

_ANNOTATED = 0x04 | 0x10  # flags of a function that is made: annotations, and what computes them
_DEBUGGERS = ("pdb", "ipdb", "pudb", "debugpy", "IPython")
_STOPS = ("breakpoint", *_DEBUGGERS)
_ONLY_READ = ("isnan", "isinf", "isfinite", "any", "all", "item", "abs", "len", "isinstance", "max", "min")
"""Functions and methods that a condition of a stop may call: they change nothing, random states included."""


@functools.cache  # the source may change while this process executes what it was
def without_effect(code: types.CodeType) -> types.CodeType:
    """Compile code without the annotations of the functions inside and without stops at a debugger.

    A stop is a call such as ``breakpoint()`` or ``pdb.set_trace()``, with its import, and the condition that it
    alone depends on. Code whose source is not there, or is not what is executed, stays as it is.
    """
    if not any(_may_have_no_effect(step) for step in instructions(code)):
        return code
    linecache.checkcache(code.co_filename)
    source = "".join(linecache.getlines(code.co_filename))
    try:
        tree = ast.parse(source)
        if _find(code, tree) != code:
            return code
        return _find(code, ast.fix_missing_locations(_Effects(tree).visit(tree))) or code
    except (SyntaxError, ValueError, RecursionError):
        return code


def _may_have_no_effect(step: Any) -> bool:
    if step.opname in ("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"):
        return bool((step.arg or 0) & _ANNOTATED)
    return isinstance(step.argval, str) and step.argval.partition(".")[0] in (*_STOPS, "set_trace", "embed")


def _find(code: types.CodeType, tree: ast.Module) -> types.CodeType | None:
    """Compile a source and return the code that has the name and the line of another."""
    module = compile(tree, code.co_filename, "exec", dont_inherit=True)
    name = (code.co_qualname, code.co_firstlineno)
    return next((inner for inner in codes(module) if (inner.co_qualname, inner.co_firstlineno) == name), None)


class _Effects(ast.NodeTransformer):
    """Removes stops at a debugger, and the annotations of functions; of classes they may be the fields."""

    def __init__(self, tree: ast.Module) -> None:
        nodes: list[Any] = list(ast.walk(tree))
        imported = [alias for node in nodes if _imports_debugger(node) for alias in node.names]
        functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        names = {(alias.asname or alias.name).partition(".")[0] for alias in imported}
        self._stops = {*_STOPS, *names} - functions  # the user's own are none

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Remove the stops among the statements of a block, which must not be empty then."""
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                kept = [each for each in statements if not self._is_stop(each)]
                setattr(node, name, kept or ([ast.Pass()] if name == "body" else []))
        return super().generic_visit(node)

    def _is_stop(self, node: ast.AST) -> bool:
        if isinstance(node, ast.If):
            return _only_reads(node.test) and all(map(self._is_stop, [*node.body, *node.orelse]))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            given = [*node.value.args, *(keyword.value for keyword in node.value.keywords)]
            return _root(node.value) in self._stops and all(map(_only_reads, given))
        return _imports_debugger(node)


def _imports_debugger(node: Any) -> bool:
    modules: Sequence[str] = ()
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        modules = [node.module or ""] if not node.level else ()
    return bool(modules) and all(module.partition(".")[0] in _DEBUGGERS for module in modules)


def _root(node: ast.AST) -> str:
    """Return the name that a call or an attribute begins with: `pdb` of ``__import__("pdb").set_trace()``."""
    while isinstance(node, ast.Attribute | ast.Call):
        if isinstance(node, ast.Call):
            is_import = isinstance(node.func, ast.Name) and node.func.id == "__import__" and bool(node.args)
            if is_import and isinstance(node.args[0], ast.Constant):
                return str(node.args[0].value)
            node = node.func
        else:
            node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _only_reads(test: ast.AST) -> bool:
    """Whether nothing in the syntax of an expression can change anything."""
    for node in ast.walk(test):
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name not in _ONLY_READ:
                return False
    return True

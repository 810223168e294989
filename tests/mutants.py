# ruff: noqa: T201
"""Change a module in small ways, and see which changes its unit tests do not find.

`python -m tests.mutants` prints the survivors of the modules in MODULES; EQUIVALENT says why some may survive.
"""

import ast
import copy
import importlib.abc
import importlib.util
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
MODULES = {
    "runmanager.storage.journal": ["test_journal.py", "test_large_journals.py"],
    "runmanager.storage.durable": ["test_durable.py"],
}
"""Module -> its unit tests in tests/storage."""

EQUIVALENT: dict[str, str] = {}
"""Mutant, as `mutants` names it -> why no test can find it, or need not."""

_PATIENCE_S = 60
_NAMED = (ast.FunctionDef, ast.ClassDef)
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitOr: ast.BitAnd,
}


def mutants(source: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield each mutant of a module: its function, what is there instead of which statement, and its tree."""
    tree = ast.parse(source)
    for index, _ in enumerate(ast.walk(tree)):
        changed = copy.deepcopy(tree)
        node = next(itertools.islice(ast.walk(changed), index, None))
        parents = {child: parent for parent in ast.walk(changed) for child in ast.iter_child_nodes(parent)}
        ancestors = [node]
        while ancestors[-1] in parents:
            ancestors.append(parents[ancestors[-1]])
        statement = next((each for each in ancestors if isinstance(each, ast.stmt)), None)
        if statement is None or (isinstance(statement, ast.AnnAssign) and statement.value not in ancestors):
            continue  # an annotation
        before = _line(statement)
        if _mutate(node):
            ast.fix_missing_locations(changed)
            names = [getattr(each, "name", "") for each in ancestors if isinstance(each, _NAMED)]
            yield f"{names[0] if names else 'module'}: {before} -> {_line(statement)}", changed


def _line(statement: ast.stmt) -> str:
    return ast.unparse(statement).partition("\n")[0]


def _mutate(node: ast.AST) -> bool:
    """Change a node; return False if it is left as it is."""
    match node:
        case ast.Compare(ops=[op]):
            node.ops = [_COMPARED[type(op)]()]
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _COMPUTED:
            node.op = _COMPUTED[type(node.op)]()
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=int() as value):
            node.value = value + 1
        case ast.Expr(value=ast.Call()):
            node.value = ast.Constant(value=None)
        case ast.If():
            node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
        case ast.Raise():
            node.exc, node.cause = ast.Call(func=ast.Name("KeyError"), args=[], keywords=[]), None
        case _:
            return False
    return True


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a mutant in place of its module."""

    def __init__(self, name: str, tree: ast.Module, path: Path) -> None:
        self._name, self._code, self._path = name, compile(tree, str(path), "exec"), path

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        """Find the mutant alone."""
        return (
            importlib.util.spec_from_file_location(name, self._path, loader=self)
            if name == self._name
            else None
        )

    def exec_module(self, module: Any) -> None:
        """Execute the mutant."""
        exec(self._code, vars(module))  # noqa: S102


def survives(name: str, tree: ast.Module, tests: list[str]) -> bool:
    """Whether the tests of a module pass with a mutant of it."""
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        sys.meta_path.insert(0, _Finder(name, tree, HOME / f"{name.replace('.', '/')}.py"))
        import pytest

        base = tempfile.mkdtemp(prefix="mutants-")
        paths = [str(HOME / "tests/storage" / test) for test in tests]
        options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = pytest.main([*options, f"--basetemp={base}", *paths])
        os._exit(0 if code == 0 else 1)
    until = time.monotonic() + _PATIENCE_S
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:  # it hangs: that is found too
            os.killpg(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.02)
    return ended[1] == 0


def main() -> None:
    """Print what survives."""
    import hypothesis  # noqa: F401 - once, before the forks
    import msgspec  # noqa: F401
    import numpy as np  # noqa: F401
    import pandas as pd  # noqa: F401
    import pytest  # noqa: F401

    for name in sys.argv[1:] or MODULES:
        source = (HOME / f"{name.replace('.', '/')}.py").read_text()
        found = equivalent = 0
        for text, tree in mutants(source):
            if not survives(name, tree, MODULES[name]):
                found += 1
            elif text in EQUIVALENT:
                equivalent += 1
            else:
                print(f"  survives {text}", flush=True)
        counted = sum(1 for _ in mutants(source)) - equivalent
        print(f"{name}: {found} of {counted} mutants found; {equivalent} more are equivalent", flush=True)


if __name__ == "__main__":
    main()

# ruff: noqa: T201
"""Change a module in small ways, and see which changes its tests do not find.

`python -m tests.mutants` prints the survivors of the modules in MODULES, and fails if they are over 10 %.
EQUIVALENT lists those that no test can find.
"""

import ast
import copy
import importlib.util
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).parents[1]
MODULES = {
    "runmanager.core.journal": ["test_journal.py"],
    "runmanager.core.files": ["test_disk.py", "test_results.py"],
}
"""Module -> its tests in tests/border."""

EQUIVALENT = {
    "module: PIECE = 6[4 -> 5] * 2 ** 20": "how much is read at once is free",
    "module: LENGTH = len(_CRC % [0 -> 1])": "every checksum is as long",
    "module: PIECE = 64 * [2 -> 3] ** 20": "how much is read at once is free",
    "module: PIECE = 64 * 2 ** 2[0 -> 1]": "how much is read at once is free",
    "Attempt: number: int = [0 -> 1]": "whoever reads a run's journals sets it",
    "read_attempt: if len(rest) >[= -> ] PIECE:": "a line of exactly that length is none of ours either",
    "read_attempt: CE, state.st_size + [1 -> 2])": "what is asked for beyond the end is free",
    "_read_whole:  lines.rfind(b'\\n', [0 -> 1], -1) + 1)": "a first line is longer than a line end",
    "_read_whole: es.rfind(b'\\n', 0, -[1 -> 2]) + 1)": "no last line has one character",
    "module: r(os, 'O_NONBLOCK', [0 -> 1])": "Linux has it",
    "_open: r(os, 'O_NOFOLLOW') [and -> or] os.path.islink": "Linux refuses the link with the same error",
    "close: self._descriptor = -[1 -> 2]": "no descriptor is negative",
    "_open: r(os, 'O_NOFOLLOW', [0 -> 1]) | _BINARY)": "Linux has it",
    "_temporary: .{uuid.uuid4().hex[:[8 -> 9]]}.tmp')": "the length of a random name is free",
}
"""Mutant, as `mutants` names it -> why no test can find it, or need not."""

_TESTS = HOME / "tests/border"
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
            yield f"{names[0] if names else 'module'}: {_difference(before, _line(statement))}", changed


def _line(statement: ast.stmt) -> str:
    return ast.unparse(statement).partition("\n")[0]


def _difference(before: str, after: str) -> str:
    """Write what differs between brackets, with a few characters around it."""
    start = _num_equal(before, after)
    end = _num_equal(before[start:][::-1], after[start:][::-1])
    stop = len(before) - end
    changed = f"[{before[start:stop]} -> {after[start : len(after) - end]}]"
    return f"{before[max(0, start - 20) : start]}{changed}{before[stop : stop + 15]}"


def _num_equal(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


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


def survives(name: str, tree: ast.Module, tests: list[str]) -> bool:
    """Whether the tests of a module pass with a mutant of it."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            _run_tests(name, tree, tests, folder)
        until = time.monotonic() + _PATIENCE_S
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > until:  # it hangs: that is found too
                os.killpg(child, signal.SIGKILL)
                ended = os.waitpid(child, 0)
                break
            time.sleep(0.02)
    return ended[1] == 0


def _run_tests(name: str, tree: ast.Module, tests: list[str], folder: str) -> None:
    """Run tests with a mutant in place of its module, and end this process with 0 if they pass."""
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        spec = importlib.util.find_spec(name)
        assert spec
        assert spec.origin
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        parent, _, child = name.rpartition(".")
        setattr(sys.modules[parent], child, module)
        exec(compile(tree, spec.origin, "exec"), vars(module))  # noqa: S102
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = pytest.main([*options, f"--basetemp={folder}/tests", *map(str, map(_TESTS.joinpath, tests))])
    finally:
        os._exit(int(code != 0))


def main() -> int:
    """Print what survives; return 1 if that is more than a tenth of the mutants that a test can find."""
    import hypothesis  # noqa: F401 - once, before the forks
    import msgspec  # noqa: F401
    import numpy as np  # noqa: F401
    import pandas as pd  # noqa: F401
    import pytest  # noqa: F401
    import torch._dynamo  # noqa: F401

    exit_code = 0
    for name in sys.argv[1:] or MODULES:
        source = (HOME / f"{name.replace('.', '/')}.py").read_text()
        names, surviving, equivalent = [], [], 0
        for text, tree in mutants(source):
            names.append(text)
            if text in EQUIVALENT:
                equivalent += 1
            elif survives(name, tree, MODULES[name]):
                surviving.append(text)
                print(f"  survives {text}", flush=True)
        number = len(names) - equivalent
        print(f"{name}: {number - len(surviving)} of {number} found, {equivalent} are equivalent", flush=True)
        exit_code |= len(surviving) > number / 10
    return exit_code


if __name__ == "__main__":
    sys.exit(main())

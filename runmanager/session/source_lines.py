"""The lines of a file that create variables, and whether a loop reads a variable before it assigns it."""

import ast
import linecache
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from runmanager.storage.paths import for_people

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
_BLOCKS = (ast.If, ast.Try, ast.While, ast.Match, ast.IfExp, ast.BoolOp)  # may be left out in a turn of a loop


class Files(dict[str, "Lines"]):
    """File -> its source, read when it is needed."""

    def __missing__(self, file: str) -> "Lines":
        self[file] = Lines(file)
        return self[file]


class Lines:
    """The source of a file."""

    def __init__(self, file: str) -> None:
        path = for_people(Path(file))
        self._file = path.name if path.is_absolute() else str(path)
        try:
            self._tree = ast.parse("".join(linecache.getlines(file)))
        except SyntaxError:
            self._tree = ast.parse("")
        self._scopes: dict[int, _Scope] = {}  # first line of a function -> the function
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._scopes |= {line.lineno: node for line in (node, *node.decorator_list)}
        self._lines: dict[_Scope, dict[str, int]] = {}
        self._first_uses: dict[tuple[_Scope, int], dict[str, str]] = {}

    def of_global(self, name: str) -> str:
        """Return the line that creates a variable of the module, "" if there is none."""
        return self._line(name, self._tree)

    def of_local(self, name: str, frame: FrameType) -> tuple[str, bool]:
        """Return the line that creates a variable of a frame, and whether the frame may read its value.

        The value is not read if the innermost loop around the frame's line assigns the variable first.
        """
        scope = self._scopes.get(frame.f_code.co_firstlineno, self._tree)
        position = (scope, frame.f_lineno)
        if position not in self._first_uses:
            loops = [node for node in ast.walk(scope) if isinstance(node, ast.For | ast.While)]
            around = [loop for loop in loops if loop.lineno <= frame.f_lineno <= (loop.end_lineno or 0)]
            self._first_uses[position] = dict(reversed([*_uses(around[-1:])]))
        is_read = self._first_uses[position].get(name) != "assigned"
        return self._line(name, scope) or self.of_global(name), is_read

    def _line(self, name: str, scope: _Scope) -> str:
        if scope not in self._lines:
            lines = self._lines[scope] = {}
            for node in ast.walk(scope):
                if isinstance(node, ast.ClassDef):
                    lines[node.name] = node.lineno
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
        first = self._lines[scope].get(name)
        return f"{self._file}:{first}" if first else ""


def _uses(nodes: Sequence[ast.AST], *, is_certain: bool = True) -> Iterator[tuple[str, str]]:
    """Yield each name in the order of execution, and whether it is read, assigned, or perhaps assigned."""
    for node in nodes:
        if isinstance(node, ast.Name):
            is_assigned = isinstance(node.ctx, ast.Store)
            yield node.id, ("assigned" if is_certain else "perhaps assigned") if is_assigned else "read"
        elif isinstance(node, ast.AugAssign):
            names = [part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)]
            yield from ((name, "read") for name in names)
            yield from _uses([node.value], is_certain=is_certain)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from _uses([*filter(None, [node.value]), *targets], is_certain=is_certain)
        elif isinstance(node, ast.For):
            yield from _uses([node.iter, node.target, *node.body, *node.orelse], is_certain=is_certain)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            inside = [item for part in node.generators for item in (part.iter, part.target, *part.ifs)]
            yield from _uses([*inside, *results], is_certain=False)
        else:
            certain = is_certain and not isinstance(node, _BLOCKS)
            yield from _uses([*ast.iter_child_nodes(node)], is_certain=certain)

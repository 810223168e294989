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

    def attributes(self) -> dict[str, str]:
        """Return ".name" -> the first line that assigns an attribute of this name."""
        return {name: line for lines in self.values() for name, line in lines.attributes().items()}


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
        self._of_loops: dict[_Scope, set[str]] = {}  # the variables that a loop creates
        self._first_uses: dict[tuple[_Scope, int], dict[str, str]] = {}

    def of_global(self, name: str) -> str:
        """Return the line that creates a variable of the module, "" if there is none."""
        return self._line(name, self._tree)

    def attributes(self) -> dict[str, str]:
        """Return ".name" -> the first line that assigns an attribute of this name."""
        self.of_global("")
        return {
            name: f"{self._file}:{line}" for name, line in self._lines[self._tree].items() if name[0] == "."
        }

    def of_local(self, name: str, frame: FrameType) -> tuple[str, bool, bool]:
        """Return the line that creates a variable of a frame, and two facts about the variable.

        The first fact is whether the frame may read its value, as the innermost loop around the frame's line
        does not assign the variable first; the second one is whether a loop creates the variable.
        """
        scope = self._scopes.get(frame.f_code.co_firstlineno, self._tree)
        position = (scope, frame.f_lineno)
        if position not in self._first_uses:
            loops = [node for node in ast.walk(scope) if isinstance(node, ast.For | ast.While)]
            around = [loop for loop in loops if loop.lineno <= frame.f_lineno <= (loop.end_lineno or 0)]
            self._first_uses[position] = dict(reversed([*_uses(around[-1:])]))
        is_read = self._first_uses[position].get(name) != "assigned"
        line = self._line(name, scope)
        is_of_loop = bool(line) and name in self._of_loops[scope]
        return line or self.of_global(name), is_read, is_of_loop

    def _line(self, name: str, scope: _Scope) -> str:
        if scope not in self._lines:
            lines = self._lines[scope] = {}
            nodes = [*ast.walk(scope)]
            inside = [node.target for node in nodes if isinstance(node, ast.comprehension)]
            hidden = {id(name) for target in inside for name in ast.walk(target)}  # they are no variables here
            for node in nodes:
                if id(node) in hidden:
                    continue
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    lines.setdefault(node.name, node.lineno)
                elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                    created = node.id if isinstance(node, ast.Name) else f".{node.attr}"
                    lines[created] = min(node.lineno, lines.get(created, node.lineno))
            loops = [node for node in nodes if isinstance(node, ast.For | ast.While)]
            self._of_loops[scope] = {
                name for name, line in lines.items()
                if any(loop.lineno <= line <= (loop.end_lineno or 0) for loop in loops)
            }  # fmt: skip
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

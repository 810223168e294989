"""The messages of all errors that the package raises on purpose, as its source has them: `…` is what varies."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import runmanager

HOME = Path(__file__).parents[2]
ERRORS = {
    name
    for name in runmanager.__all__
    if isinstance(getattr(runmanager, name), type) and issubclass(getattr(runmanager, name), Exception)
}
Function = ast.FunctionDef | ast.Module


def messages() -> dict[str, str]:
    """Return each message -> the file that raises it."""
    return {
        text: str(path.relative_to(HOME))
        for path in sorted((HOME / "runmanager").rglob("*.py"))
        for text in _messages_of(ast.parse(path.read_text(encoding="utf-8")))
    }


def _messages_of(module: ast.Module) -> Iterator[str]:
    """Yield the messages of a module that say something: those with three words of their own."""
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef):
            for node in _nodes_of(function):
                for message in _said_by(node):
                    text = " ".join(_text(message, function, module).split())
                    text = re.sub(r"…(\W*…)+", "…", text)
                    if len(re.findall(r"[a-z]{2,}", text)) >= 3:
                        yield text


def _nodes_of(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions in it."""
    nodes: list[ast.AST] = list(function.body)
    while nodes:
        node = nodes.pop(0)
        yield node
        nodes += [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.FunctionDef)]


def _said_by(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what an error is made of: `raise GridError([...])`, `problems.append(...)`, `problems += [...]`."""
    match node:
        case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=[*_, message])) if name in ERRORS:
            yield from message.elts if isinstance(message, ast.List) else [message]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="problems"), attr="append"), args=[message]):
            yield message
        case ast.AugAssign(target=ast.Name(id="problems"), value=ast.List(elts=messages)):
            yield from messages
        case ast.AugAssign(target=ast.Name(id="problems"), value=ast.ListComp(elt=message)):
            yield message


def _text(node: ast.AST, function: Function, module: ast.Module) -> str:
    """Write an expression as text; names are looked up where they are assigned once."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, function, module) for part in parts)
        case ast.FormattedValue(value=ast.Name() as name, conversion=-1):
            return _text(name, function, module)
        case ast.Name(id=name):
            for scope in (function, module):
                values = [
                    each.value
                    for each in ast.walk(scope)
                    if isinstance(each, ast.Assign)
                    and any(isinstance(target, ast.Name) and target.id == name for target in each.targets)
                ]
                if len(values) == 1 and isinstance(values[0], ast.Constant | ast.JoinedStr):
                    return _text(values[0], function, module)
            return "…"
        case _:
            return "…"


if __name__ == "__main__":  # what docs/errors.md lacks, and what it has for nothing
    page = (HOME / "docs" / "errors.md").read_text(encoding="utf-8")
    listed = [text for _, text in re.findall(r"^\| (`+)(.+?) ?\1 \|", page, flags=re.MULTILINE)]
    raised = messages()
    for text in raised.keys() - set(listed):
        print(f"add ({raised[text]}): | `{text}` | cause | fix |")  # noqa: T201
    for text in set(listed) - raised.keys():
        print(f"remove: {text}")  # noqa: T201

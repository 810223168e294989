"""Measure the package by folder, and fail where a figure of .ci/size.toml does not hold.

A folder is measured in syntax nodes: statements and expressions, without docstrings and annotations. So line
breaks, documentation and types do not change its figure. CONTRIBUTING.md says how a figure is raised.
"""

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HOME = Path(__file__).parents[1]
SLACK = 0.03
"""The share by which a folder that is not yet written afresh may stay below its figure."""

COMPUTED = {"runmanager/__init__.py"}
"""Files that import by a computed name: the literal table of public names."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Size(NamedTuple):
    """The size of a file, or of several."""

    nodes: int = 0
    functions: int = 0
    text: int = 0
    lines: int = 0
    files: int = 0

    def plus(self, other: "Size") -> "Size":
        """Add the sizes."""
        return Size(*map(sum, zip(self, other, strict=True)))


def measure(source: str) -> Size:
    """Count what a module consists of, without docstrings and annotations."""
    nodes = list(_nodes(ast.parse(source)))
    return Size(
        nodes=sum(isinstance(node, ast.stmt | ast.expr) for node in nodes),
        functions=sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes),
        text=sum(
            len(node.value) for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ),
        lines=len(source.splitlines()),
        files=1,
    )


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    if not isinstance(node, ast.Pass):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("returns", "annotation"):
            continue
        children = value if isinstance(value, list) else [value]
        if name == "body" and isinstance(node, Documented):
            children = children[_has_docstring(children) :]
        for child in children:
            if isinstance(child, ast.AST):
                yield from _nodes(child)


def _has_docstring(body: list[ast.stmt]) -> bool:
    match body[:1]:
        case [ast.Expr(value=ast.Constant())]:  # or an ellipsis
            return True
    return False


def sizes(root: Path) -> dict[str, Size]:
    """Measure a folder of Python files: the name of each folder in it -> its size; "top" for its own files."""
    folders: dict[str, Size] = defaultdict(Size)
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        name = parts[0] if len(parts) > 1 else "top"
        folders[name] = folders[name].plus(measure(path.read_text(encoding="utf-8")))
    return folders


def problems(
    folders: Mapping[str, Size], beside: Mapping[str, int], figures: Mapping[str, Any]
) -> Iterator[str]:
    """Yield each figure that does not hold.

    Args:
        folders: The size of each folder of the package.
        beside: What else is measured, by its name in `figures`.
        figures: The content of .ci/size.toml.
    """
    old, new, unused = figures["old"], figures["new"], figures["unused"]
    for name in sorted(folders.keys() | old.keys() | new.keys()):
        nodes, figure = folders.get(name, Size()).nodes, old.get(name, new.get(name))
        if figure is None:
            yield f"{name} has no figure: write it into .ci/size.toml"
        elif nodes > figure:
            yield f"{name} has {nodes:,} nodes, {nodes - figure:,} above its figure {figure:,}: delete as many"
        elif name in old and nodes < figure * (1 - SLACK):
            yield f"{name} has {nodes:,} nodes, far below its figure {figure:,}: lower the figure to {nodes:,}"
    nodes = sum(size.nodes for name, size in folders.items() if name not in unused)
    for name, value in {"all": nodes, **beside}.items():
        if value > figures[name]:
            yield f"{name}: {value:,}, above its figure {figures[name]:,}: delete as much"


def computed(name: str, source: str) -> Iterator[str]:
    """Yield each call of a module that executes text, or imports a module whose name is computed."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            is_import = call in ("__import__", "import_module", "importlib.import_module")
            is_literal = is_import and node.args and isinstance(node.args[0], ast.Constant)
            if call in ("exec", "eval") or (is_import and not is_literal):
                yield f"{name}:{node.lineno} calls {call}(): import or call by a name that can be read"


def main() -> None:
    """Print the size of each folder, and exit with 1 if a figure does not hold."""
    package = HOME / "runmanager"
    folders = sizes(package)
    everything = Size()
    print(f"{'':16}" + "".join(f"{name:>11}" for name in Size._fields))
    for name, size in sorted(folders.items()):
        print(f"{name:16}" + "".join(f"{count:11,}" for count in size))
        everything = everything.plus(size)
    print(f"{'all':16}" + "".join(f"{count:11,}" for count in everything))
    others = [path for path in package.rglob("*") if path.suffix in {".js", ".css", ".html", ".json", ".toml"}]
    beside = {
        "characters_in_strings": everything.text,
        "lines_of_other_files": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in others),
        "benchmarks_and_experiments": sum(
            size.nodes for name in ("benchmarks", "experiments") for size in sizes(HOME / name).values()
        ),
    }
    print(", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in beside.items()))
    figures = tomllib.loads((HOME / ".ci" / "size.toml").read_text(encoding="utf-8"))
    wrong = list(problems(folders, beside, figures))
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(HOME).as_posix()
        if name not in COMPUTED:
            wrong += computed(name, path.read_text(encoding="utf-8"))
    print(*(f"! {problem}" for problem in wrong), sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

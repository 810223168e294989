"""The tests of this folder stand at the border: what they import survives a rewrite of the whole inside."""

import ast
from pathlib import Path

import runmanager

HOME = Path(__file__).parents[2]
FILES = sorted(Path(__file__).parent.rglob("*.py"))
OPEN = ("runmanager.trainers", "runmanager.testing")


def imports_of(path):
    """Return (module, name) of each import of a file, or (module, None) of `import module`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", name.name) for name in node.names)
        elif isinstance(node, ast.Import):
            yield from ((name.name, None) for name in node.names)


def is_open(module, name):
    is_public = module == "runmanager" and (
        name is None or name in runmanager.__all__ or name == "integrations"
    )
    return is_public or module.startswith(OPEN)


def inside_of(path, seen):
    """Return what a file, and the modules of tests that it imports, import from inside the package."""
    seen.add(path)
    inner = []
    for module, name in imports_of(path):
        if module.split(".")[0] == "runmanager" and not is_open(module, name):
            inner.append(f"{path.relative_to(HOME)}: {module} {name}")
        elif module.split(".")[0] == "tests":
            for dotted in (module, f"{module}.{name}"):
                helper = HOME.joinpath(*dotted.split(".")).with_suffix(".py")
                if helper.is_file() and helper not in seen:
                    inner += inside_of(helper, seen)
    return inner


def test_tests_at_the_border_import_public_names_alone():
    seen: set[Path] = set()

    assert [line for path in FILES if path not in seen for line in inside_of(path, seen)] == []

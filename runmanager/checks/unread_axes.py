"""Axes whose names the training function never mentions."""

import ast
import re
from collections.abc import Callable, Iterable
from inspect import signature

from runmanager.core.wording import listed

_TAKERS = ("run", "begin_run", "fit", "getattr", "hasattr")
"""Functions that get the run, and read no axis that is not named elsewhere."""


def unread_axes(train: Callable[..., object], source: str, axes: Iterable[str]) -> str:
    """Return a sentence about axes whose names occur nowhere in the source that `train` reaches, or ""."""
    tree, words = ast.parse(source), {*re.findall(r"\w+", source)}
    unread = [name for name in axes if name.partition(".")[0] not in words]
    if not tree.body or not unread or _is_passed_on(next(iter(signature(train).parameters), "run"), tree):
        return ""
    return f"train never reads {listed(map(repr, unread))}: read run.{unread[0]}, or leave it out"


def _is_passed_on(run: str, tree: ast.AST) -> bool:
    """Whether a variable is used as a whole."""
    names, fine = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value, name) if not name.startswith("_"):
                fine.add(value)
            case ast.Call(ast.Name(name) | ast.Attribute(attr=name), [first, *_]) if name in _TAKERS:
                fine.add(first)
            case ast.Name(name, ast.Load()) if name == run:
                names.add(node)
    return not names <= fine

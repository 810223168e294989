"""Axes whose names the training function never mentions."""

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from inspect import signature

from runmanager.checks.changed import Reached
from runmanager.core.wording import listed

_TAKERS = ("run", "begin_run", "fit", "getattr", "hasattr")
"""Functions that get the run, and read no axis that is not named elsewhere."""


def unread_axes(train: Callable[..., object], axes: Iterable[str]) -> str:
    """Return a sentence about axes whose names occur nowhere in the source that `train` reaches, or ""."""
    reached = Reached()
    reached.read("", train)
    reached.finish()
    sources = [*reached.code.values(), *reached.statements.values()]
    words = {*re.findall(r"\w+", "\n".join(sources))}
    unread = [name for name in axes if name.partition(".")[0] not in words]
    if not words or not unread or _is_passed_on(next(iter(signature(train).parameters), "run"), sources):
        return ""
    return f"train never reads {listed(map(repr, unread))}: read run.{unread[0]}, or leave it out"


def _is_passed_on(run: str, sources: Sequence[str]) -> bool:
    """Whether a variable is used as a whole."""
    for tree in map(ast.parse, sources):
        fine = set()
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value, name) if not name.startswith("_"):
                    fine.add(value)
                case ast.Call(ast.Name(name) | ast.Attribute(attr=name), [first, *_]) if name in _TAKERS:
                    fine.add(first)
        names = {node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == run}
        if any(isinstance(node.ctx, ast.Load) for node in names - fine):
            return True
    return False

"""The hash of code as fingerprints had it at first, so that those are recognised."""

import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

from runmanager.storage.code_hash import short_hash
from runmanager.storage.code_parts import (
    LOADS,
    enclosed,
    functions_of,
    instructions,
    is_plain,
    is_users_module,
    parts,
)

_MISSING = object()


def former_code(train: Any) -> dict[str, str]:
    """Hash the code of a function, as `fingerprint` did before it compared content.

    Annotations in functions and docstrings that were added counted; dicts, lists and tensors did not.
    """
    all_parts = parts(train, with_classes_of_objects=False)
    return {name: _hash(part) for name, part in sorted(all_parts.items())}


def _constants(code: types.CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the constants that code loads, also as ``module.NAME`` from modules of the user."""
    value: Any = None
    for step in instructions(code):
        is_attribute = step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, types.ModuleType)
        if step.opname not in LOADS and not is_attribute:
            value = None
            continue
        value = (vars(value) if is_attribute else scope).get(step.argval, _MISSING)
        if value is not _MISSING and is_plain(value):
            yield step.argval, value
        if not (isinstance(value, types.ModuleType) and is_users_module(value)):
            value = None


def _hash(part: Any) -> str:
    """Hash the code as it is executed; its source may have changed since."""
    functions = functions_of(part)
    content = [part.__qualname__, *(_compiled(function.__code__) for function in functions)]
    for function in functions:
        content += sorted({*map(repr, _constants(function.__code__, function.__globals__))})
        content += [value for value in enclosed(function).values() if is_plain(value)]
    if inspect.isclass(part):
        content += [pair for pair in vars(part).items() if is_plain(pair[1]) and not pair[0].startswith("__")]
    return short_hash(repr(content))


def _compiled(code: types.CodeType) -> tuple[Any, ...]:
    """Return what compiled code does, without its docstring; its own repr would have addresses."""
    first = code.co_consts[:1]
    has_docstring = bool(first) and isinstance(first[0], str) and code.co_name != "<lambda>"
    constants = (
        _compiled(constant) if isinstance(constant, types.CodeType)
        # the order of a set differs from process to process
        else sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)
        for constant in code.co_consts[has_docstring:]
    )  # fmt: skip
    return code.co_code, code.co_names, *constants

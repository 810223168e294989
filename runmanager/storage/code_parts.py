"""The functions and classes that a function consists of: those of the user's own files, however deep."""

import contextlib
import dis
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from runmanager.storage.user_code import is_users_file

LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
"""The instructions that load a global name."""


def parts(train: Any) -> dict[str, Any]:
    """Find the functions and classes that a function consists of, by name, itself first."""
    parts: dict[str, Any] = {}
    seen: set[int] = set()
    waiting: list[Any] = [unwrapped(train)]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen and (not parts or is_users(part)):
            seen.add(id(part))
            name, number = part.__qualname__, 1
            while name in parts:  # several modules have one
                number += 1
                name = f"{part.__qualname__} ({number})"
            parts[name] = part
            waiting += _named_in(part)
    return parts


def unwrapped(function: Any) -> Any:
    """Return the function or the class that is executed where something is called."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)  # what functools.cache and wraps put round it
    if isinstance(function, types.MethodType):
        return function.__func__
    return function if hasattr(function, "__qualname__") else type(function)


def _named_in(part: Any) -> Iterator[Any]:
    for function in functions_of(part):
        code, scope = function.__code__, function.__globals__
        loaded = {name: scope[name] for name in _loaded(code) if name in scope}
        values = [*_looked_up(loaded.values(), list(_names(code)), set()), *enclosed(function).values()]
        for value in itertools.chain.from_iterable(_items(value, depth=3) for value in values):
            if callable(value):
                yield unwrapped(value)
            elif is_users(type(value)):
                yield type(value)
    if inspect.isclass(part):
        yield from part.__bases__


def _looked_up(values: Iterable[Any], names: Sequence[str], seen: set[int]) -> Iterator[Any]:
    """Yield values, and instead of a module its members of these names."""
    for value in values:
        if not isinstance(value, types.ModuleType):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            inside = vars(value)
            yield from _looked_up([inside[name] for name in names if name in inside], names, seen)


def enclosed(function: types.FunctionType) -> dict[str, Any]:
    """Return the defaults of a function's parameters and what it closes over, by name."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    values = {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # nothing was put into it yet
            values[name] = cell.cell_contents
    return values


def functions_of(part: Any) -> list[types.FunctionType]:
    """Return a function, or the functions in a class."""
    return [part] if isinstance(part, types.FunctionType) else _methods(part)


def _methods(part: Any) -> list[types.FunctionType]:
    members = vars(part).values() if inspect.isclass(part) else ()
    inner = ("__func__", "fget", "func")  # of class methods, properties and cached properties
    plain = [getattr(member, name, None) for member in members for name in inner]
    return [member for member in (*members, *plain) if isinstance(member, types.FunctionType)]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code, and that of the functions inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of code, and those of the functions inside."""
    return itertools.chain.from_iterable(map(own_instructions, codes(code)))


@functools.lru_cache(maxsize=4096)  # all that a fingerprint consists of asks for them, at each start of a grid
def own_instructions(code: types.CodeType) -> tuple[dis.Instruction, ...]:
    """Return the instructions of code, without those of the functions inside."""
    return tuple(dis.get_instructions(code))


def _names(code: types.CodeType) -> Iterator[str]:
    for part in codes(code):
        yield from part.co_names


def _loaded(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that code loads; `co_names` has those of attributes too."""
    return (step.argval for step in instructions(code) if step.opname in LOADS)


def is_users(part: Any) -> bool:
    """Whether a function or a class is of the user's own files."""
    module = sys.modules.get(getattr(part, "__module__", ""), None)
    if getattr(module, "__file__", None) is None:  # a notebook's cell, or built in
        return getattr(part, "__module__", "") == "__main__"
    return is_users_module(module)


def is_users_module(module: types.ModuleType | None) -> bool:
    """Whether a module is one of the user's own files."""
    file = getattr(module, "__file__", None)
    return file is not None and is_users_file(file)


def _items(value: Any, depth: int) -> Iterator[Any]:
    """Yield a value, or what is in it if it is a list, tuple or mapping, as of networks by name."""
    if depth and isinstance(value, (list, tuple, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _items(item, depth - 1)
    else:
        yield value


def is_plain(value: Any) -> bool:
    """Whether a value is a constant; what can be changed in place may be a record of what was done."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes))

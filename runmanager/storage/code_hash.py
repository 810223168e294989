"""The hash of what code does: its instructions, without what cannot change numbers."""

import dis
import hashlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

from runmanager.storage.clock_readings import without_clock
from runmanager.storage.code_parts import enclosed, functions_of, is_plain, own_instructions
from runmanager.storage.read_values import loaded_values
from runmanager.storage.source_effects import without_effect

_NO_EFFECT = ("NOP", "RESUME", "CACHE", "EXTENDED_ARG")  # they follow from the layout of the source
_OF_CLASS_BODIES = ("__doc__", "__firstlineno__", "__static_attributes__")
_KINDS = (
    inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)  # fmt: skip


def hash_of_code(part: Any) -> str:
    """Hash the code of a function or a class as it is executed, with the constants that it loads.

    Its source may have changed since. Comments, docstrings, annotations, layout, names of variables inside and
    stops at a debugger do not count.
    """
    functions = functions_of(part)
    content: list[Any] = [part.__qualname__]
    for function in functions:
        if function.__name__ in ("__annotate__", "__annotate_func__"):  # they compute annotations
            continue
        code = without_effect(function.__code__)
        constants = [one for one in loaded_values(code, function.__globals__) if one.settings is None]
        content += [_compiled(code)]
        content += sorted(
            {repr((one.name, without_clock(one.value))) for one in constants if is_plain(one.value)}
        )
        content += [without_clock(value) for value in enclosed(function).values() if is_plain(value)]
    if inspect.isclass(part):
        members = [pair for pair in vars(part).items() if is_plain(pair[1]) and not pair[0].startswith("__")]
        content += [(name, without_clock(value)) for name, value in members]
    return short_hash(repr(content))


def short_hash(content: str) -> str:
    """Hash text to 16 hex digits."""
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]


def _compiled(code: types.CodeType) -> tuple[Any, ...]:
    """Return what compiled code does; its own repr would have addresses."""
    steps = list(_steps(code))
    offsets = {step.offset: index for index, step in enumerate(steps)}

    def index_of(offset: int) -> int:
        """Return the position of the first instruction from an offset on."""
        return next((index for at, index in offsets.items() if at >= offset), len(steps))

    handlers = [
        (index_of(entry.start), index_of(entry.end), index_of(entry.target), entry.depth)
        for entry in getattr(dis.Bytecode(code), "exception_entries", ())  # since 3.11
    ]
    does = [(step.opname, _argument(step, index_of)) for step in steps]
    parameters = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _KINDS)
    return parameters, does, [entry for entry in handlers if entry[0] < entry[1]]


def _steps(code: types.CodeType) -> Iterator[dis.Instruction]:
    steps = [step for step in own_instructions(code) if step.opname not in _NO_EFFECT]
    stores = {index for index, step in enumerate(steps) if _is_store_of_class_body(step)}
    hidden = stores | {index - 1 for index in stores}  # and what is loaded to be stored
    return (step for index, step in enumerate(steps) if index not in hidden)


def _is_store_of_class_body(step: dis.Instruction) -> bool:
    return step.opname == "STORE_NAME" and step.argval in _OF_CLASS_BODIES


def _argument(step: dis.Instruction, index_of: Any) -> Any:
    if step.opcode in dis.hasconst:
        return _constant(step.argval)
    if step.opcode in dis.hasname:
        return step.argval
    if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
        return index_of(step.argval)
    return step.arg  # variables by number: their names do not count


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _compiled(value)
    # the order of a set differs from process to process
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)

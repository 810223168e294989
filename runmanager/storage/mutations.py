"""Which values code changes in place, such as a list that it appends to."""

import dis
import re
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runmanager.hyperparameters import is_array
from runmanager.storage.code_parts import LOADS, codes, enclosed, functions_of, own_instructions

_CHANGE = frozenset((
    "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "pop", "popleft", "popitem",
    "remove", "discard", "clear", "setdefault", "sort", "reverse", "rotate", "subtract", "__setitem__",
    "difference_update", "intersection_update", "symmetric_difference_update",
))  # fmt: skip
"""Methods that change what they are called on."""
_CHANGE_AN_ARRAY = ("fill", "put", "resize", "partition", "itemset", "__setitem__")
"""Those of arrays; of tensors they end with an underscore."""
_BEGIN = ("__init__", "__post_init__", "__new__", "__setstate__")
"""Methods that give an object its attributes."""

_MOVES = re.compile("(LOAD|STORE)_FAST")
_UNKNOWN = object()


@dataclass(frozen=True)
class Mutations:
    """What code changes: the ids of values, and the names of attributes of objects that are not known."""

    ids: Collection[int] = ()
    names: Collection[str] = ()


def mutations(parts: Collection[Any]) -> Mutations:
    """Find what functions and classes change, where their code shows it."""
    names: set[str] = set()
    ids: set[int] = set()
    for part in parts:
        for function in functions_of(part):
            if function.__name__ in _BEGIN:
                continue
            for code in codes(function.__code__):
                for value in _changed(code, function.__globals__, enclosed(function)):
                    if isinstance(value, _Attribute):
                        names.add(value.name)
                    else:
                        ids.add(id(value))
    return Mutations(ids, names)


class _Attribute:
    """An attribute of something that is not known, such as `self`."""

    def __init__(self, name: str) -> None:
        self.name = name


def _changed(code: types.CodeType, scope: Mapping[str, Any], enclosed: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values that code changes, by following what is on the stack, without its branches.

    What comes of an operation counts as its first operand: ``settings["lists"][0].append(1)`` changes settings.
    """
    frame = _Frame(scope, enclosed)
    for step in own_instructions(code):
        yield from frame.changed_by(step)
        frame.execute(step)


def _changes(owner: Any, method: str) -> bool:
    if is_array(owner):
        return method in _CHANGE_AN_ARRAY or (method.endswith("_") and not method.startswith("_"))
    return method in _CHANGE


def _attribute(owner: Any, name: str) -> Any:
    if owner is _UNKNOWN or isinstance(owner, _Attribute):
        return _Attribute(name)
    inside = getattr(owner, "__dict__", {})  # not a property, which would be executed
    return inside.get(name, owner)


class _Frame:
    """The values on the stack and in the variables of code; what is not known of them is unknown."""

    def __init__(self, scope: Mapping[str, Any], enclosed: Mapping[str, Any]) -> None:
        self._scope = scope
        self._variables = dict(enclosed)
        self._stack: list[Any] = []

    def changed_by(self, step: dis.Instruction) -> Iterator[Any]:
        """Yield the values that an instruction changes."""
        match step.opname:
            case "STORE_SUBSCR" | "DELETE_SUBSCR":
                yield self._top(2)
            case "STORE_SLICE":
                yield self._top(3)
            case "STORE_ATTR" | "DELETE_ATTR":
                yield self._top(1)
                yield _Attribute(step.argval)
            case "STORE_GLOBAL":
                yield self._scope.get(step.argval, _UNKNOWN)
            case "STORE_DEREF":
                yield self._variables.get(step.argval, _UNKNOWN)
            case "LOAD_ATTR" | "LOAD_METHOD" if _changes(self._top(1), step.argval):
                yield self._top(1)

    def execute(self, step: dis.Instruction) -> None:
        """Change the stack as an instruction does."""
        effect = dis.stack_effect(step.opcode, step.arg, jump=False)
        match step.opname:
            case name if name in LOADS:
                self._push(self._scope.get(step.argval, _UNKNOWN), effect)
            case name if moves := _MOVES.findall(name):
                self._move(moves, step.argval)
            case "LOAD_DEREF":
                self._push(self._variables.get(step.argval, _UNKNOWN), effect)
            case "LOAD_ATTR" | "LOAD_METHOD":
                owner = self._stack.pop() if self._stack else _UNKNOWN
                self._push(_attribute(owner, step.argval), effect + 1)
            case "COPY" | "FOR_ITER":
                self._push(self._top(step.arg or 1 if step.opname == "COPY" else 1), effect)
            case "SWAP" if step.arg and step.arg <= len(self._stack):
                stack, number = self._stack, step.arg
                stack[-1], stack[-number] = stack[-number], stack[-1]
            case _:
                self._push(_UNKNOWN, effect)

    def _move(self, moves: Sequence[str], names: Any) -> None:
        """Load or store variables; since 3.13 an instruction may be for two."""
        for move, name in zip(moves, names if isinstance(names, tuple) else (names,), strict=True):
            if move == "LOAD":
                self._push(self._variables.get(name, _UNKNOWN), 1)
            else:
                self._variables[name] = self._top(1)
                self._push(_UNKNOWN, -1)

    def _top(self, number: int) -> Any:
        return self._stack[-number] if number <= len(self._stack) else _UNKNOWN

    def _push(self, value: Any, effect: int) -> None:
        """Add a value as often as the effect says, or remove values if it is negative."""
        if effect < 0:
            del self._stack[effect:]
        else:
            self._stack += [value] * effect

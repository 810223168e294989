"""Values of an axis, as words of a command line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from runmanager.hyperparameters import text
from runmanager.ranges import IntRange, Range

Reader = Callable[[str], Any]
"""Reads a word; raises a ValueError that says what it takes."""


def reader(values: Sequence[Any] | Range) -> Reader:
    """Return what reads further values that are like these."""
    if isinstance(values, Range):
        return partial(_range_or_number, values)
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return partial(_one_of, {"true": True, "false": False})
    if kinds == {int}:
        return _whole
    if kinds and kinds <= {int, float}:
        return _number
    if kinds == {str} or not kinds:
        return str
    return partial(_one_of, {text(value): value for value in values})


def _whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ValueError("whole numbers") from None


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError("numbers") from None


def _range_or_number(values: Range, word: str) -> Any:
    low, dots, high = word.partition("..")
    read = _whole if isinstance(values, IntRange) else _number
    try:
        return replace(values, low=read(low), high=read(high)) if dots else read(word)
    except ValueError:
        numbers = "whole numbers" if isinstance(values, IntRange) else "numbers"
        raise ValueError(f"{numbers}, or a range as {values.low}..{values.high}") from None


def _one_of(choices: Mapping[str, Any], word: str) -> Any:
    if word not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
    return choices[word]


def axis_of(values: list[Any]) -> Any:
    """Return what a flag gives an axis: its values, or a range alone."""
    return values[0] if len(values) == 1 and isinstance(values[0], Range) else values

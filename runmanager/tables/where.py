"""Select rows by comparisons such as ``lr<0.1``; names and values are written as in a table."""

import math
import operator
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from runmanager.core.outcome import Status
from runmanager.core.values import text
from runmanager.core.wording import did_you_mean
from runmanager.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pandas as pd

_COMPARISON = re.compile(r"(?:([^<>=!]+)(?:([<>!=]=|[=<>])([^<>=]+)?)?)?")  # matches up to an error
_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def select(runs: "pd.DataFrame", where: Sequence[str]) -> "pd.DataFrame":
    """Return the rows of a table that meet all comparisons, in their order."""
    for condition in where:
        match = next(_COMPARISON.finditer(condition))
        name, sign, given = match.groups("")
        if not given or match.end() < len(condition):
            raise _refusal("write a column, one of < <= > >= = !=, and a value", condition, match.end())
        name = name.strip()
        check_columns([name], runs)
        given = re.sub(r"""^(["'])(.*)\1$""", r"\2", given.strip())  # as pandas writes a text
        values, number = runs[name].tolist(), _number(given)
        is_text = number is None and given.lower() not in ("nan", "none")
        if is_text and (there := runs[name].dropna().tolist()) and all(map(_is_number, there)):
            raise _refusal(f"column {name!r} holds numbers", condition, match.start(3))
        if name == "status" and given not in {*Status, *values}:
            hint = did_you_mean(given, Status, "the statuses are")
            raise InvalidArgumentError(f"--where: no status is {given!r}; {hint}")
        runs = runs.iloc[[row for row, value in enumerate(values) if _meets(value, sign, given, number)]]
    return runs


def _refusal(rule: str, condition: str, position: int) -> InvalidArgumentError:
    """Return an error that marks the position in a condition from which it is wrong."""
    example = 'For example: --where "lr<0.1"; repeat it for several comparisons.'
    return InvalidArgumentError(f"--where: {rule}:\n  {condition}\n  {' ' * position}^\n{example}")


def check_columns(names: Iterable[str], columns: "Collection[Any] | pd.DataFrame") -> None:
    """Refuse names of missing columns."""
    problems = [
        f"these runs have no column {name!r}; {did_you_mean(name, columns)}"
        for name in names
        if name not in columns
    ]
    if problems:
        raise InvalidArgumentError(problems)


def names_in(given: str) -> list[str]:
    """Split names at commas; a name with a comma is in quotes."""
    parts = re.findall(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""", given)
    return [name for part in parts if (name := re.sub(r"[\"']", "", part).strip())]


def _meets(value: Any, sign: str, given: str, number: float | None) -> bool:
    is_number = _is_number(value)
    if sign in _ORDER:
        if number is None:
            return isinstance(value, str) and bool(_ORDER[sign](value, given))
        return is_number and bool(_ORDER[sign](value, number))
    written = "nan" if type(value).__name__ in ("NAType", "NaTType") else text(value)
    is_equal = value == number if is_number and number is not None else written.lower() == given.lower()
    return bool(is_equal) != (sign == "!=")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(given: str) -> float | None:
    try:
        number = float(given)
    except ValueError:
        return None
    return None if math.isnan(number) else number

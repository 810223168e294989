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

_COMPARISON = re.compile(r"\s*([^<>=!]+?)\s*(<=|>=|!=|==|[=<>])\s*([^<>=]+?)\s*")
_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def select(runs: "pd.DataFrame", where: Sequence[str]) -> "pd.DataFrame":
    """Return the rows of a table that meet all comparisons, in their order."""
    for condition in where:
        match = _COMPARISON.fullmatch(condition)
        if not match:
            rule = "write one comparison of a column with a value, as lr<0.1; for several, repeat it"
            raise InvalidArgumentError(f"where: {rule}; got {condition!r}")
        name, sign, given = match.groups()
        check_columns([name], runs)
        given = re.sub(r"""^(["'])(.*)\1$""", r"\2", given)  # as pandas writes a text
        values = runs[name].tolist()
        is_text = _number(given) is None and given.lower() not in ("nan", "none")
        if is_text and (there := runs[name].dropna().tolist()) and all(map(_is_number, there)):
            raise InvalidArgumentError(f"where: column {name!r} holds numbers, got {given!r}: write {name}<0.1")
        if name == "status" and given not in {*Status, *values}:
            hint = did_you_mean(given, Status, "the statuses are")
            raise InvalidArgumentError(f"where: no status is {given!r}; {hint}")
        runs = runs.iloc[[row for row, value in enumerate(values) if _meets(value, sign, given)]]
    return runs


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


def _meets(value: Any, sign: str, given: str) -> bool:
    number, is_number = _number(given), _is_number(value)
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

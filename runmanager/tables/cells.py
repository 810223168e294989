"""How values, numbers, durations and settings are written in tables, lines and sentences."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from runmanager.core.values import text
from runmanager.core.wording import printable

_LARGEST_ERROR = 0.01  # the largest relative error of rounding
_MINUTE = 59.95  # the shortest duration (s) that rounds to a minute
_LONGEST_VALUE = 20  # the maximum number of characters of a hyperparameter in a sentence


def cell(value: Any) -> str:
    """Format a value for a table: four digits, "" for a missing value."""
    if isinstance(value, bool) or not isinstance(value, float):
        # test for pandas.NA without importing pandas
        return "" if type(value).__name__ == "NAType" else printable(text(value))
    if math.isnan(value):
        return ""
    return f"{value:.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"  # noqa: PLR2004 - four digits


def label(params: Mapping[str, Any]) -> str:
    """Format a setting's hyperparameters."""
    return labels([params])[0]


def labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format settings; settings that look alike have six digits."""
    texts = [_label(params, concise) for params in settings]
    number_of = Counter(texts)
    return [
        short if number_of[short] == 1 else _label(params, brief)
        for short, params in zip(texts, settings, strict=True)
    ]


def _label(params: Mapping[str, Any], write: Callable[[Any], str]) -> str:
    return " ".join(f"{printable(name)}={write(value)}" for name, value in params.items())


def concise(value: Any) -> str:
    """Format the value of a hyperparameter: four digits if six do not suffice, as for numbers from a range."""
    is_long = isinstance(value, float) and math.isfinite(value) and float(f"{value:g}") != value
    return f"{value:.4g}" if is_long else brief(value)


def brief(value: Any) -> str:
    """Format the value of a hyperparameter for a sentence; a long value is cut."""
    content = "none" if type(value).__name__ == "NAType" else printable(text(value))
    return content if len(content) <= _LONGEST_VALUE else f"{content[: _LONGEST_VALUE - 1]}…"


def all_of(number: int, nouns: str) -> str:
    """Return a number with its noun, and "both" or "all" in front."""
    return f"both {nouns}" if number == 2 else f"all {number:,} {nouns}"  # noqa: PLR2004


def aligned(values: Iterable[float]) -> list[str]:
    """Format numbers with equal decimals, four digits for the largest; separately, if digits would be lost."""
    numbers = list(values)
    finite = [number for number in numbers if math.isfinite(number)]
    sizes = [abs(number) for number in finite if number]
    decimals = max(3 - math.floor(math.log10(max(sizes))), 0) if sizes else 0
    are_lost = any(abs(round(size, decimals) - size) > _LARGEST_ERROR * size for size in sizes)
    if not sizes or max(sizes) >= 1000 or are_lost:  # noqa: PLR2004 - no decimals
        return [cell(number) for number in numbers]
    while decimals and all(round(number, decimals) == round(number, decimals - 1) for number in finite):
        decimals -= 1  # zeros that end all numbers
    return [f"{number:.{decimals}f}" if math.isfinite(number) else cell(number) for number in numbers]


def steady(value: float) -> str:
    """Format a number of a column whose other numbers are unknown: four digits, zeros included."""
    if not math.isfinite(value) or abs(value) >= 1000 or round(value) == value > 9:  # noqa: PLR2004 - no decimals
        return cell(value) or "nan"
    decimals = 4 - len(f"{abs(value):.4g}".partition(".")[0].lstrip("0"))
    is_lost = abs(round(value, decimals) - value) > _LARGEST_ERROR * abs(value)
    return cell(value) if is_lost else f"{value:.{decimals}f}"


def duration(seconds: float, decimals: int = 1) -> str:
    """Format a duration; fractions of a second keep two digits, unless `decimals` is 0."""
    if decimals and 0.001 <= seconds < 0.95:  # noqa: PLR2004 - rounds to less than a second
        return f"{seconds:.2g} s"
    if round(seconds, decimals) < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{seconds:.{decimals}f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    first = next(index for index, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def durations(values: Iterable[float]) -> list[str]:
    """Format the durations of a column: three digits, zeros included; each reads the same in every column."""
    texts = []
    for seconds in values:
        if 0 <= seconds < _MINUTE:
            texts.append(f"{seconds:#.3g} s")
        else:
            texts.append(duration(seconds) if math.isfinite(seconds) else cell(seconds))
    return texts


def join(parts: Iterable[str]) -> str:
    """Join non-empty parts with a middle dot."""
    return " · ".join(part for part in parts if part)

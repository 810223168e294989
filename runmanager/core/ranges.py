"""Ranges: axes without a list of values, for samples and searches."""

import math
import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar

from runmanager.core.values import plain
from runmanager.errors import InvalidArgumentError, Problems

_STEPS = 3  # number of orders of magnitude between the width of a range and its step


@dataclass(frozen=True)
class Range:
    """The base of all ranges, with inclusive bounds."""

    low: float
    high: float
    _number: ClassVar[type[int] | type[float]] = float

    def __post_init__(self) -> None:
        problems = Problems()
        problems.check_choice("log", self.is_log, (True, False))
        rule = "a whole number" if self._number is int else "a finite number"
        rule += " above 0" if self.is_log else ""
        for which in ("low", "high"):
            value = plain(getattr(self, which))
            object.__setattr__(self, which, value)
            is_number = isinstance(value, (int, self._number)) and not isinstance(value, bool)
            if not is_number or not abs(value) <= sys.float_info.max or (self.is_log and value <= 0):
                problems.append(f"{which} of {self!r} must be {rule}")
        if not problems and self.low >= self.high:
            swapped = f"{type(self).__name__}({self.high!r}, {self.low!r})"
            step = swapped if self.low > self.high else f"the list [{self.low!r}]"
            problems.append(f"low of {self!r} must be below high: write {step}")
        problems.raise_if_any(InvalidArgumentError)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.low!r}, {self.high!r})"

    @property
    def is_log(self) -> bool:
        """Whether orders of magnitude are equally likely, instead of intervals of the same width."""
        return False

    def from_fraction(self, fraction: float) -> Any:
        """Return the quantile of a fraction: the value below which this fraction of draws lies.

        Args:
            fraction: A number from 0 to 1, for example from ``random.random()``.

        Returns:
            The value, inside the bounds, with few digits.

        Example:
            >>> Uniform(-1, 1).from_fraction(0.5), LogUniform(1, 10_000).from_fraction(0.5)
            (0.0, 100.0)
        """
        value = (1 - fraction) * self.low + fraction * self.high
        if self.is_log:
            value = math.exp((1 - fraction) * math.log(self.low) + fraction * math.log(self.high))
        return float(min(max(self._rounded(value), self.low), self.high))

    def _rounded(self, value: float) -> float:
        """Return the closest number with few digits, which may be outside the bounds."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Uniform(Range):
    """Numbers between two bounds; all numbers are equally likely.

    Values are rounded to about a thousandth of the width, for readable tables and folder names.

    Attributes:
        low: The smallest value.
        high: The largest value.

    Raises:
        InvalidArgumentError: The bounds are not finite numbers, or `low` is not below `high`.

    Example:
        >>> Uniform(0, 0.5).from_fraction(0.123456), Uniform(0, 0.5).is_log
        (0.0617, False)
    """

    def _rounded(self, value: float) -> float:
        magnitude = math.log10(max(self.high / 2 - self.low / 2, 5e-324)) + math.log10(2)
        # adding 0.0 turns -0.0 into 0.0
        return round(value, _STEPS - math.floor(magnitude)) + 0.0


@dataclass(frozen=True, repr=False)
class LogUniform(Range):
    """Positive numbers between two bounds, such as learning rates; all orders of magnitude are equally likely.

    Values are rounded to four digits, or to more digits for close bounds.

    Attributes:
        low: The smallest value, above 0.
        high: The largest value.

    Raises:
        InvalidArgumentError: The bounds are not finite numbers above 0, or `low` is not below `high`.

    Example:
        >>> [LogUniform(1e-5, 1e-1).from_fraction(fraction) for fraction in (0, 0.25, 0.5, 0.777)]
        [1e-05, 0.0001, 0.001, 0.01282]
    """

    is_log = True

    def _rounded(self, value: float) -> float:
        ratio = max(math.log(self.high) - math.log(self.low), 1e-13)
        decimals = _STEPS + max(0, -math.floor(math.log10(ratio)))
        return float(f"{value:.{decimals}e}")


@dataclass(frozen=True, repr=False)
class IntRange(Range):
    """Whole numbers between two bounds, both included.

    Attributes:
        low: The smallest value.
        high: The largest value.
        log: Whether all orders of magnitude are equally likely, instead of all numbers.

    Raises:
        InvalidArgumentError: The bounds are not whole numbers, `low` is not below `high`, or `low` is not above
            0 with `log`.

    Example:
        >>> [IntRange(16, 512, log=True).from_fraction(fraction) for fraction in (0, 0.5, 0.99)]
        [16, 89, 495]
        >>> IntRange(16, 512, log=True).is_log
        True
    """

    low: int
    high: int
    log: bool = field(default=False, kw_only=True)
    _number = int

    def __repr__(self) -> str:
        return f"IntRange({self.low!r}, {self.high!r}{', log=True' if self.log else ''})"

    @property
    def is_log(self) -> bool:
        """Whether all orders of magnitude are equally likely."""
        return self.log

    def from_fraction(self, fraction: float) -> int:
        """Return the quantile of a fraction: the value below which this fraction of draws lies.

        Args:
            fraction: From 0 to 1.

        Returns:
            The value.

        Example:
            >>> IntRange(1, 4).from_fraction(0.5)
            3
        """
        if not self.log:
            return min(self.low + int(fraction * (self.high - self.low + 1)), self.high)
        # the smallest and the largest value are as likely as the others
        low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
        value = round(math.exp((1 - fraction) * low + fraction * high))
        return min(max(value, self.low), self.high)

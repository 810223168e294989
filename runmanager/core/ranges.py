"""Ranges: axes without a list of values, for samples and searches."""

import math
from dataclasses import dataclass
from typing import Any

from runmanager.core.values import plain
from runmanager.errors import InvalidArgumentError, Problems

_STEPS = 3  # number of orders of magnitude between the width of a range and its step


@dataclass(frozen=True)
class Range:
    """The base of all ranges, with inclusive bounds."""

    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        problems = self._problems()
        problems.raise_if_any(InvalidArgumentError)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.low!r}, {self.high!r})"

    @property
    def is_log(self) -> bool:
        """Whether orders of magnitude are equally likely, instead of intervals of the same width."""
        raise NotImplementedError

    @property
    def num_values(self) -> int:
        """The number of distinct values."""
        raise NotImplementedError

    def from_fraction(self, fraction: float) -> Any:
        """Return the quantile of a fraction: the value below which this fraction of draws lies.

        Args:
            fraction: A number from 0 to 1, for example from ``random.random()``.

        Returns:
            The value, rounded in the same way as by `rounded`.

        Raises:
            NotImplementedError: In the base class.
        """
        raise NotImplementedError

    def rounded(self, value: float) -> Any:
        """Return the value of this range closest to a number: inside the bounds, with few digits."""
        raise NotImplementedError

    def _problems(self) -> Problems:
        """Return the errors of the bounds."""
        problems = Problems()
        name = type(self).__name__
        bounds = {"low": self.low, "high": self.high}
        problems += [
            f"{which} of {name} must be {self._needs()}, got {_text(value)}"
            for which, value in bounds.items()
            if not self._is_bound(value)
        ]
        if not problems and not self._has_values():
            rule = f"low of {name} must be below high, got {self.low!r} and {self.high!r}"
            swap = f"write {name}({self.high!r}, {self.low!r})"
            single = f"write [{self.low!r}] in the place of the range"
            problems.append(f"{rule}: {swap if self.low > self.high else single}")
        return problems

    def _needs(self) -> str:
        return "a finite number"

    def _is_bound(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        try:
            return math.isfinite(value)
        except OverflowError:  # a whole number may be too large for a float
            return False

    def _has_values(self) -> bool:
        return self.low < self.low / 2 + self.high / 2 < self.high

    def _inside(self, value: float) -> float:
        return min(max(value, self.low), self.high)


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
        >>> Uniform(0, 0.5).from_fraction(0.123456), Uniform(0, 1).num_values
        (0.0617, 1001)
    """

    is_log = False

    @property
    def num_values(self) -> int:
        """The number of distinct values."""
        return int(10 ** (_STEPS + self._magnitude % 1) + 1e-6) + 1

    def from_fraction(self, fraction: float) -> float:
        """Return the quantile of a fraction: the value below which this fraction of draws lies.

        Args:
            fraction: From 0 to 1.

        Returns:
            The value, rounded.

        Example:
            >>> Uniform(-1, 1).from_fraction(0.5)
            0.0
        """
        return self.rounded((1 - fraction) * self.low + fraction * self.high)

    def rounded(self, value: float) -> float:
        """Return the value of this range closest to a number.

        Args:
            value: Any finite number.

        Returns:
            The value, inside the bounds.

        Example:
            >>> Uniform(0, 0.5).rounded(0.333333), Uniform(0, 0.5).rounded(9)
            (0.3333, 0.5)
        """
        # adding 0.0 turns -0.0 into 0.0
        return float(self._inside(round(self._inside(value), self._decimals) + 0.0))

    @property
    def _decimals(self) -> int:
        return _STEPS - math.floor(self._magnitude)

    @property
    def _magnitude(self) -> float:
        return math.log10(max(self.high / 2 - self.low / 2, 5e-324)) + math.log10(2)


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
        >>> LogUniform(1, 10).num_values
        9001
    """

    is_log = True

    @property
    def num_values(self) -> int:
        """The number of distinct values."""
        return self._rank(self.high) - self._rank(self.low) + 1

    def from_fraction(self, fraction: float) -> float:
        """Return the quantile of a fraction: the value below which this fraction of draws lies.

        Args:
            fraction: From 0 to 1.

        Returns:
            The value, rounded.

        Example:
            >>> LogUniform(1, 10_000).from_fraction(0.5)
            100.0
        """
        return self.rounded(math.exp((1 - fraction) * math.log(self.low) + fraction * math.log(self.high)))

    def rounded(self, value: float) -> float:
        """Return the value of this range closest to a number.

        Args:
            value: Any finite number.

        Returns:
            The value, inside the bounds.

        Example:
            >>> LogUniform(1e-5, 1e-1).rounded(0.00123456)
            0.001235
        """
        return float(self._inside(float(f"{self._inside(value):.{self._digits - 1}e}")))

    def _rank(self, value: float) -> int:
        """Return the index of a value in the order of all values, counted from an arbitrary origin."""
        power = math.floor(math.log10(value))
        steps = 10 ** (self._digits - 1)
        return int(steps * (9 * power + 10 ** (math.log10(value) - power)))

    @property
    def _digits(self) -> int:
        ratio = max(math.log(self.high) - math.log(self.low), 1e-13)
        return 1 + _STEPS + max(0, -math.floor(math.log10(ratio)))

    def _needs(self) -> str:
        return "a finite number above 0"

    def _is_bound(self, value: Any) -> bool:
        return super()._is_bound(value) and value > 0


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
        >>> IntRange(16, 512).num_values, IntRange(16, 512, log=True).is_log
        (497, True)
    """

    low: int
    high: int
    log: bool = False

    def __repr__(self) -> str:
        return f"IntRange({self.low!r}, {self.high!r}{', log=True' * self.log})"

    @property
    def is_log(self) -> bool:
        """Whether all orders of magnitude are equally likely."""
        return self.log

    @property
    def num_values(self) -> int:
        """The number of distinct values."""
        return self.high - self.low + 1

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
            return self._bounded(self.low + int(fraction * self.num_values))
        least, most = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return self.rounded(math.exp((1 - fraction) * least + fraction * most))

    def rounded(self, value: float) -> int:
        """Return the value of this range closest to a number.

        Args:
            value: Any finite number.

        Returns:
            The value, inside the bounds.

        Example:
            >>> IntRange(1, 4).rounded(2.6), IntRange(1, 4).rounded(17)
            (3, 4)
        """
        return self._bounded(round(value))

    def _bounded(self, value: int) -> int:
        return min(max(value, self.low), self.high)

    def _problems(self) -> Problems:
        problems = super()._problems()
        problems.check_choice("log of IntRange", self.log, (True, False))
        return problems

    def _needs(self) -> str:
        return "a whole number above 0 (log=True)" if self.log else "a whole number"

    def _is_bound(self, value: Any) -> bool:
        return super()._is_bound(value) and isinstance(value, int) and (not self.log or value > 0)

    def _has_values(self) -> bool:
        return self.low < self.high


def _text(value: Any) -> str:
    return "one of over 300 digits" if isinstance(value, int) and abs(value) > 10**300 else repr(value)

"""What repeats decide: the interval of a mean difference that holds however often one looks.

The Bayes factor of the t statistic with a normal prior on the standardised effect (Gönen et al. 2005; Rouder et
al. 2009) is an e-process for differences of two equal settings, which are as likely to be positive as negative:
the probability that it ever exceeds 1 / error is at most `error` (Pérez-Ortiz, Lardy, de Heide and Grünwald
2024). So repeats may be added until the interval is short enough. None exists before the fourth repeat.
"""

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

ERROR = 0.05
_LARGEST = 1e100  # of what is compared
_PRIOR = 4.0  # variance of the standardised effect
_IDENTICAL = 5  # repeats after which results that were always equal count as identical


class Difference(NamedTuple):
    """The mean of differences, and the interval that holds at every number of them; NaN where there is none."""

    n: int
    mean: float
    low: float
    high: float

    @property
    def is_decided(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def difference(values: Iterable[float], *, num_pairs: int = 1, error: float = ERROR) -> Difference:
    """Describe differences between two settings, one per repeat.

    Args:
        values: Finite numbers.
        num_pairs: How many pairs of settings are compared in all: the error is divided between them.
        error: The probability that any of the intervals ever misses its mean.

    >>> difference([1.0, 2.0, 3.0])
    Difference(n=3, mean=2.0, low=nan, high=nan)
    >>> difference([1.0, 2.0, 3.0, 2.0]).is_decided, difference([4.0, 5.0, 5.5, 4.5]).is_decided
    (False, True)
    """
    numbers = list(values)
    n = len(numbers)
    if max(map(abs, numbers), default=0.0) > _LARGEST:  # or infinite: no float has the sum of their squares
        return Difference(n, math.nan, *_NONE)
    mean = statistics.fmean(numbers) if numbers else math.nan
    if n >= _IDENTICAL and not any(numbers):
        return Difference(n, mean, 0.0, 0.0)
    spread = statistics.stdev(numbers) if n > 1 else 0.0
    half = _quantile(n, num_pairs / error) * spread / math.sqrt(n) if spread else math.nan
    return Difference(n, mean, mean - half, mean + half) if math.isfinite(half) else Difference(n, mean, *_NONE)


def _quantile(n: int, least: float) -> float:
    """Return the t statistic of `n` differences at which the e-process is `least`, infinity if none is."""
    prior = 1 + n * _PRIOR
    ratio = (least * math.sqrt(prior)) ** (2 / n)
    return math.sqrt((n - 1) * (ratio - 1) / (1 - ratio / prior)) if ratio < prior else math.inf


_NONE = (math.nan, math.nan)

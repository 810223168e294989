"""The mathematics of a verdict: an e-process for differences, and a confidence sequence for their mean.

The null hypothesis is that two settings are equal: swapping their results in any repeat changes nothing. Each
difference is then as likely to be positive as negative, whatever its size. The evidence is the capital of a
gambler who starts with 1 and bets on the sign of each difference, knowing its size. The bets are fair. So the
probability that the evidence ever reaches 1 / error is at most `error`, however often the evidence is computed
(Ville's inequality). The stakes follow the Bayes factor of the t statistic with a normal prior on the
standardised effect (Gönen et al. 2005; Rouder et al. 2009), which has a closed form:

    log B_n = -log(g) / 2 - n / 2 * log(1 - (1 - 1 / g) * S^2 / (n * Q)),    g = 1 + n * prior,

with the sum S and the sum of squares Q of n differences. A step multiplies the evidence by 2 B / (B + B'),
where B' is B with the sign of the newest difference flipped. B alone is valid evidence too if differences are
normal (Pérez-Ortiz, Lardy, de Heide and Grünwald 2024). B alone is misleading if differences have only two
values, for example if some trainings fail to learn. `python -m benchmarks verdict` shows both kinds of
evidence.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from runmanager.tables.columns import Numbers

ERROR = 0.05
"""The probability that a verdict is wrong, over all settings and all evaluations of the verdict."""
IDENTICAL = 5
"""The number of repeats after which results that were always equal count as identical."""
LARGEST = 1e100
"""The maximum difference that is compared: the squares of larger differences may overflow."""
MOST = 100
"""The maximum number of further repeats that an estimate looks at."""
ROUNDING = 1e-12
"""The relative size below which a deviation counts as rounding."""

_PRIOR = 8.0  # variance of the standardised effect
_CASES = 500  # number of simulated continuations
_FARTHEST = 1e7  # maximum distance of an interval's end, in units of the largest deviation from the mean
_REFINED = 6  # number of refinements of the grid on which the end of an interval is searched
_MOST_PAIRED = 300  # maximum number of rivals for which all pairs are compared, not only pairs with the leader
_MOST_EVIDENCE = 200.0  # largest logarithm of evidence, to avoid an overflow


class Lead(NamedTuple):
    """The difference of two settings, with an interval that is valid after any number of repeats."""

    n: int  # number of repeats
    mean: float  # NaN without repeats, or if a difference is too large
    std: float  # standard deviation of the differences, NaN for fewer than two
    low: float  # the interval of the mean; NaN without an interval
    high: float
    evidence: float  # evidence for a difference, corrected for all pairs of settings
    least: float  # the evidence that decides, 1 / error

    @property
    def is_decided(self) -> bool:
        """Whether the settings differ by more than chance."""
        return self.evidence >= self.least

    @property
    def is_identical(self) -> bool:
        """Whether the results were equal in all repeats, and there are enough repeats."""
        return self.n >= IDENTICAL and self.mean == self.std == 0

    @property
    def is_constant(self) -> bool:
        """Whether all differences are the same; real repeats of a training differ."""
        return self.n > 1 and self.std <= ROUNDING * abs(self.mean)


def leads(scores: Numbers, leader: int, error: float = ERROR, *, is_fixed: bool = False) -> dict[int, Lead]:
    """Compare one rival, `is_fixed` if named in advance, with each other; scores: (rivals, repeats, parts).

    `error` is the probability that any interval ever misses its true mean.
    """
    k = len(scores)
    pairs = np.zeros((k, k))
    for row in range(k) if k <= _MOST_PAIRED else [leader]:  # pairs without the leader can only add evidence
        pairs[row] = pairs[:, row] = evidence_of(differences(scores, row))
    can_decide = scores.shape[1] >= fewest(k / 2 / error)
    together = closed(pairs, leader) if can_decide or k <= _MOST_PAIRED else pairs[leader] * 2 / k
    rows = {
        rival: row[~np.isnan(row)] for rival, row in enumerate(differences(scores, leader)) if rival != leader
    }
    is_best = all(together[rival] >= 1 / error and math.fsum(row) > 0 for rival, row in rows.items())
    num_pairs = k - 1 if is_best or is_fixed else k * (k - 1) // 2
    results = {}
    for rival, row in rows.items():
        n, is_decided = len(row), together[rival] >= 1 / error
        mean = std = low = high = math.nan
        if n and not np.abs(row).max() > LARGEST:  # a number is larger, or infinite
            mean = math.fsum(row) / n
            std = float(np.sqrt(((row - mean) ** 2).sum() / (n - 1))) if n > 1 else math.nan
            is_identical = n >= IDENTICAL and not row.any()
            low, high = (0.0, 0.0) if is_identical else interval(row, num_pairs / error)
        # the decision uses the pairs of all rivals, the interval does not; min() and max() keep NaN
        if not is_decided:
            low, high = min(low, 0.0), max(high, 0.0)
        elif mean > 0:
            low = max(low, 0.0)
        else:
            high = min(high, 0.0)
        results[rival] = Lead(n, mean, std, low, high, float(together[rival]), 1 / error)
    return results


def differences(scores: Numbers, leader: int) -> Numbers:
    """Return the leader's score minus each rival's: (rivals, repeats), NaN if either has no score."""
    with np.errstate(over="ignore", invalid="ignore"):  # differences of huge numbers may overflow
        each = scores[leader] - scores
        number = (~np.isnan(each)).sum(axis=-1)
        return np.where(number > 0, np.nansum(each, axis=-1) / np.maximum(number, 1), math.nan)


def evidence_of(rows: Numbers) -> Numbers:
    """Return the evidence of each row of differences alone; constant or huge differences are no evidence."""
    with np.errstate(invalid="ignore"):
        rows = np.where((np.abs(rows) > LARGEST).any(axis=-1, keepdims=True), math.nan, rows)
    if not rows.size:
        return np.ones(len(rows))
    low, high = np.fmin.reduce(rows, axis=-1), np.fmax.reduce(rows, axis=-1)
    is_constant = high - low <= ROUNDING * np.maximum(np.abs(low), np.abs(high))
    return np.where(is_constant, 1.0, np.exp(np.minimum(log_evidence(rows)[:, -1], _MOST_EVIDENCE)))


def log_evidence(differences: Numbers) -> Numbers:
    """Return the logarithm of the evidence against equality, after each repeat."""
    is_there = np.isfinite(differences)
    values = np.where(is_there, differences, 0.0)
    largest = np.abs(values).max(axis=-1, keepdims=True, initial=0.0)
    values = values / np.where(largest > 0, largest, 1.0)
    n = is_there.cumsum(axis=-1)
    sums, squares = values.cumsum(axis=-1), (values * values).cumsum(axis=-1)
    as_it_is, turned = (_log_bayes(n, total, squares) for total in (sums, sums - 2 * values))
    steps: Numbers = math.log(2.0) - np.logaddexp(0.0, turned - as_it_is)
    return steps.cumsum(axis=-1)


def _log_bayes(n: Numbers, sums: Numbers, squares: Numbers) -> Numbers:
    """Return the logarithm of the Bayes factor of `n` differences, from their sum and their sum of squares."""
    share = np.minimum(sums * sums / np.where(squares > 0, n * squares, 1.0), 1.0)
    g = 1.0 + n * _PRIOR
    return -0.5 * np.log(g) - n / 2 * np.log1p(-(1.0 - 1.0 / g) * share)


def interval(differences: Numbers, least: float) -> tuple[float, float]:
    """Return the interval of all means that the evidence does not exclude; NaN if it is unbounded."""
    middle = differences.mean()
    centered = differences - middle
    spread = np.abs(centered).max()
    if len(differences) < fewest(least) or spread <= ROUNDING * abs(middle):
        return math.nan, math.nan
    centered = centered / spread
    steps = np.geomspace(1e-3, _FARTHEST, 60)
    ends = [_end(centered, side, steps, math.log(least)) for side in (-1.0, 1.0)]
    return float(middle + spread * ends[0]), float(middle + spread * ends[1])


def _end(centered: Numbers, side: float, steps: Numbers, level: float) -> float:
    """Return the farthest mean on a side that is not excluded, to six digits; NaN if there is no bound."""
    for _ in range(_REFINED):
        is_inside = log_evidence(centered - side * steps[:, None])[:, -1] < level
        last = int(np.flatnonzero(is_inside)[-1]) if is_inside.any() else 0
        if last == len(steps) - 1:
            return math.nan
        steps = np.linspace(steps[last], steps[last + 1], 40)
    return float(side * steps[0])


def closed(evidence: Numbers, leader: int) -> Numbers:
    """Return the evidence that the leader differs from each other setting, corrected for all pairs of settings.

    This is a closed test (Marcus, Peritz and Gabriel 1976): its error holds for all pairs together. A partition
    divides all settings into groups of equal settings. Two settings differ if every partition that has both
    settings in one group is rejected. The evidence against a partition is a weighted mean of the evidence
    against the pairs in its groups; in a group of m out of k settings, a pair has the weight 2 / (k (m - 1)).
    Pairs that contain neither of the two settings can only add evidence. Such pairs are left out, so that the
    partition with the smallest evidence is easy to find.

    Args:
        evidence: (..., settings, settings) The evidence for a difference of each pair alone, symmetric.
        leader: The position of a setting; it may be chosen after seeing the results.

    Returns:
        (..., settings), 0 for the leader itself. With two settings, the result is the evidence of their pair.
        If the leader has the evidence e against each other setting, the result is e * 2 / k; a Bonferroni
        correction would give e * 2 / (k (k - 1)).
    """
    k = evidence.shape[-1]
    together = np.zeros(evidence.shape[:-1])
    for other in range(k):
        if other != leader:
            sums = evidence[..., leader, :] + evidence[..., other, :]
            sums[..., leader] = -1.0  # the leader is sorted to the front
            sums[..., other] = -1.0
            sums = np.sort(sums, axis=-1)[..., 1:]
            sums[..., 0] = evidence[..., leader, other]
            together[..., other] = (2 * sums.cumsum(axis=-1) / (k * np.arange(1, k))).min(axis=-1)
    return together


@functools.cache
def fewest(least: float) -> int:
    """Return the minimum number of repeats whose evidence can reach `least`."""
    return int((log_evidence(np.ones(64)) >= math.log(least)).argmax()) + 1


def needed(values: Numbers, least: float) -> float:
    """Return after how many repeats half of such differences are decided; infinity if `MOST` more do not."""
    more = np.random.default_rng(0).normal(values.mean(), values.std(ddof=1), (_CASES, MOST))
    # what the first repeats have lost, the others have to win
    continued = np.hstack([np.tile(values, (_CASES, 1)), more])
    is_decided = log_evidence(continued)[:, len(values) :] >= math.log(least)
    stops = np.where(is_decided.any(axis=1), is_decided.argmax(axis=1), math.inf)
    return len(values) + 1 + float(np.median(stops))

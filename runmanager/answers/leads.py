"""The leads of one rival over all others, from the differences in each repeat."""

import math
from dataclasses import dataclass

import numpy as np

from runmanager.answers.evidence import (
    ERROR,
    IDENTICAL,
    LARGEST,
    ROUNDING,
    closed,
    fewest,
    interval,
    log_evidence,
)
from runmanager.tables.columns import Numbers

_MOST_PAIRED = 300  # maximum number of rivals for which all pairs are compared, not only pairs with the leader
_MOST_EVIDENCE = 200.0  # largest logarithm of evidence, to avoid an overflow


@dataclass(frozen=True)
class Lead:
    """The lead of one rival over another."""

    n: int  # number of repeats that both rivals have
    mean: float  # mean difference, positive if the rival is better; NaN without repeats or if too large
    std: float  # standard deviation of the differences, NaN for fewer than two differences
    low: float  # the interval of the mean, valid at every look; NaN without an interval
    high: float
    evidence: float  # evidence for a difference, corrected for all pairs; the lead is decided at 1 / error
    least: float  # the evidence that decides, 1 / error
    fewest: int = 0  # minimum number of repeats that an interval needs

    @property
    def is_decided(self) -> bool:
        """Whether the rival is better by more than chance."""
        return self.evidence >= self.least and self.mean > 0

    @property
    def is_identical(self) -> bool:
        """Whether the results were equal in all repeats, and there are enough repeats."""
        return self.n >= IDENTICAL and self.mean == self.std == 0

    @property
    def is_constant(self) -> bool:
        """Whether all differences are the same; real repeats of a training differ."""
        return self.n > 1 and self.std <= ROUNDING * abs(self.mean)

    def is_within(self, margin: float) -> bool:
        """Whether the whole interval is closer to 0 than a margin."""
        return -margin < self.low and self.high < margin


def leads(scores: Numbers, leader: int, error: float = ERROR) -> list[Lead]:
    """Compare one rival with each other rival."""
    k = len(scores)
    others = [other for other in range(k) if other != leader]
    pairs = np.zeros((k, k))
    can_decide = scores.shape[1] >= fewest(k / 2 / error)
    for row in range(k) if k <= _MOST_PAIRED else [leader]:  # pairs without the leader can only add evidence
        pairs[row] = pairs[:, row] = _evidence(differences(scores, row))
    together = closed(pairs, leader) if can_decide or k <= _MOST_PAIRED else pairs[leader] * 2 / k
    each = differences(scores, leader)
    results = [_lead(each[other], float(together[other]), 1 / error, k * (k - 1) // 2) for other in others]
    if k > 2 and all(lead.is_decided for lead in results):  # noqa: PLR2004 - two rivals are one pair
        results = [_lead(each[other], float(together[other]), 1 / error, k - 1) for other in others]
    return results


def differences(scores: Numbers, leader: int) -> Numbers:
    """Return the leader's score minus each rival's: (rivals, repeats), NaN if either has no score."""
    with np.errstate(over="ignore", invalid="ignore"):  # differences of huge numbers may overflow
        each = scores[leader] - scores
        is_there = ~np.isnan(each)
        number = is_there.sum(axis=-1)
        total = np.where(is_there, each, 0.0).sum(axis=-1)
        return np.where(number > 0, total / np.maximum(number, 1), math.nan)


def _evidence(rows: Numbers) -> Numbers:
    """Return the evidence from the differences of each row alone."""
    with np.errstate(invalid="ignore"):
        is_usable: Numbers = ~np.any(np.abs(rows) > LARGEST, axis=-1)
        usable = np.where(is_usable[:, None], rows, math.nan)
        result = (
            np.exp(np.minimum(log_evidence(usable)[:, -1], _MOST_EVIDENCE)) if rows.size else np.ones(len(rows))
        )
        number = np.isfinite(usable).sum(axis=-1)
        low, high = (np.where(np.isfinite(usable), usable, end) for end in (math.inf, -math.inf))
        low, high = low.min(axis=-1, initial=math.inf), high.max(axis=-1, initial=-math.inf)
        is_constant = (number > 0) & (high - low <= ROUNDING * np.maximum(np.abs(low), np.abs(high)))
    return np.where(is_constant, 1.0, result)


def _lead(row: Numbers, evidence: float, least: float, num_pairs: int) -> Lead:
    values = row[~np.isnan(row)]
    n = len(values)
    if not n or np.abs(values).max() > LARGEST:
        return Lead(n, math.nan, math.nan, math.nan, math.nan, evidence, least)
    mean = math.fsum(values) / n
    std = float(np.sqrt(((values - mean) ** 2).sum() / (n - 1))) if n > 1 else math.nan
    if n >= IDENTICAL and not values.any():
        return Lead(n, 0.0, 0.0, 0.0, 0.0, evidence, least)
    low, high = interval(values, num_pairs * least)
    if evidence >= least and mean > 0:
        low = max(low, 0.0)  # the leader is decided to be better, so its lead is positive; max() keeps NaN
    return Lead(n, mean, std, low, high, evidence, least, fewest(num_pairs * least))


def arranged(rivals: Numbers, repeats: Numbers, parts: Numbers, numbers: Numbers, k: int) -> Numbers:
    """Arrange the results of runs as scores for `leads`; average the runs of the same cell, ignoring NaN."""
    num_repeats = int(repeats.max(initial=0)) + 1
    kept, sizes = np.unique(np.unique(np.stack([parts, rivals]), axis=1)[0], return_counts=True)
    kept = kept[sizes > 1] if len(kept) > 1 else kept
    is_used = np.isin(parts, kept) & ~np.isnan(numbers)
    shape = (k, num_repeats, len(kept))
    index = (rivals[is_used], repeats[is_used], np.searchsorted(kept, parts[is_used]))
    total, count = np.zeros(shape), np.zeros(shape)
    with np.errstate(over="ignore"):
        np.add.at(total, index, numbers[is_used])
    np.add.at(count, index, 1)
    return np.where(count > 0, total / np.maximum(count, 1), math.nan)

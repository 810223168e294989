"""How often a number of repeats decides a difference, by simulation of the verdict's evidence."""

import functools
import math

import numpy as np

from runmanager.answers.evidence import fewest, log_evidence

PROMISED = 0.8  # the fraction of cases in which a named difference is decided
ENOUGH = 3  # the minimum number of repeats whose spread counts as known

_NUMBERS = 400_000  # maximum number of simulated differences
_CASES = (200, 4000)  # minimum and maximum number of simulated cases
_STEPS = 14  # number of bisections of the smallest difference


def power(effect: float, n: int, num_rivals: int, error: float, *, known_by: float, anytime: bool) -> float:
    """Return the fraction of cases that are decided after `n` repeats, or at any of them, for normal noise."""
    num_cases = int(min(max(_NUMBERS // (num_rivals * n), _CASES[0]), _CASES[1]))
    random = np.random.default_rng(0)
    true = np.full(num_cases, effect)
    if math.isfinite(known_by):
        true = effect * np.sqrt(random.chisquare(known_by, num_cases) / known_by)
    noise = random.normal(0, math.sqrt(0.5), (num_cases, num_rivals, n))
    differences = true[:, None, None] + noise[:, :1] - noise[:, 1:]
    # by the closed test, the leader beats all others once it reaches this evidence against each of them
    is_decided = log_evidence(differences).min(axis=1) >= math.log(level(num_rivals, error))
    return float((is_decided.any(axis=1) if anytime else is_decided[:, -1]).mean())


def level(num_rivals: int, error: float) -> float:
    """Return the evidence against each other rival that decides for the leader, see `evidence.closed`."""
    return num_rivals / 2 / error


@functools.cache
def smallest(n: int, num_rivals: int, error: float, *, known_by: float, anytime: bool) -> float:
    """Return the smallest difference, in standard deviations, that `n` repeats decide in most cases."""
    if n < fewest(level(num_rivals, error)):
        return math.inf
    low, high = 1e-2, 1e3
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        share = power(middle, n, num_rivals, error, known_by=known_by, anytime=anytime)
        low, high = (low, middle) if share >= PROMISED else (middle, high)
    return high

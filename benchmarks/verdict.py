"""How often a verdict is wrong, and how many repeats it takes, simulated with a look after every repeat.

Target: at most 5 % of verdicts on equal settings are wrong, and the interval holds the mean difference in 95 %
of cases at the moment of stopping, for 2, 4 and 8 settings. Beside it: a t-test at every look, and the Bayes
factor of the t statistic with the error divided by the number of pairs, for normal differences only.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import stdtrit

from runmanager.answers.evidence import ERROR, _log_bayes, closed, log_evidence

SEQUENCES, LOOKS = 4000, 40
SETTINGS = (2, 4, 8)
EFFECTS = (0.5, 1.0, 1.5, 2.0, 3.0)  # standard deviations of the differences

Numbers = np.ndarray[Any, np.dtype[Any]]
Noise = Callable[[np.random.Generator, tuple[int, ...]], Numbers]


def bimodal(random: np.random.Generator, shape: tuple[int, ...]) -> Numbers:
    """Draw from two narrow modes, as of a network that learns or does not."""
    return np.asarray(random.choice([-1.0, 1.0], shape) + random.normal(0, 0.2, shape))


NOISES: dict[str, Noise] = {
    "normal": lambda random, shape: random.normal(size=shape),
    "skewed": lambda random, shape: random.exponential(size=shape),
    "bimodal": bimodal,
    "heavy tails": lambda random, shape: random.standard_t(3, shape),
}
DIFFERENCES: dict[str, Noise] = {
    "of two values": bimodal,
    "skewed": lambda random, shape: random.exponential(size=shape) - 1,
    "normal - skewed": lambda random, shape: random.normal(0, 0.5, shape) - random.exponential(size=shape) + 1,
}


def main() -> None:
    """Print all tables."""
    print(f"{SEQUENCES:,} sequences, a look after each of {LOOKS} repeats, error {ERROR}\n")
    print("false verdicts of equal settings, of any pair; target at most 0.05")
    print(f"{'noise of a run':<18}" + "".join(f"{k} settings: verdict, t-test   " for k in SETTINGS))
    for name, noise in NOISES.items():
        print(f"{name:<18}" + "".join(f"{'':12}{_wrong(noise, k)}   " for k in SETTINGS))
    print("\nfalse verdicts where the difference has the mean 0, but two settings differ in shape")
    print(f"{'difference':<18}verdict   Bayes factor   the same from the 5th repeat   t-test")
    for name, noise in DIFFERENCES.items():
        print(f"{name:<18}{_unequal(noise)}")
    print(f"\none setting is better than all others: decided within {LOOKS}, median repeats; mean covered")
    print(f"{'difference':<18}" + "".join(f"{k} settings: verdict, Bonferroni        " for k in SETTINGS))
    for effect in EFFECTS:
        print(f"{effect:<4} s.d.{'':9}" + "".join(f"{_power(effect, k):<42}" for k in SETTINGS))


def draw(noise: Noise, k: int, number: int, seed: int) -> Numbers:
    """Draw the results of k equal settings whose differences have a standard deviation of about 1."""
    random = np.random.default_rng(seed)
    return np.asarray(noise(random, (number, k, LOOKS)) / np.sqrt(2))


def evidence_of(results: Numbers, shifts: Numbers | None = None) -> Numbers:
    """Return the evidence of each pair: (sequences, looks, settings, settings)."""
    number, k, looks = results.shape
    results = results if shifts is None else results - shifts[:, None]
    pairs = np.zeros((number, looks, k, k))
    for one, other in itertools.combinations(range(k), 2):
        pairs[..., one, other] = np.exp(log_evidence(results[:, one] - results[:, other]))
        pairs[..., other, one] = pairs[..., one, other]
    return pairs


def _wrong(noise: Noise, k: int) -> str:
    wrong, by_t = 0, 0
    for seed in range(4):
        results = draw(noise, k, SEQUENCES // 4, seed)
        pairs = evidence_of(results)
        together = np.stack([closed(pairs, leader) for leader in range(k)], axis=-1)
        wrong += int((together >= 1 / ERROR).any(axis=(1, 2, 3)).sum())
        differences = [results[:, i] - results[:, j] for i, j in itertools.combinations(range(k), 2)]
        by_t += int(np.any([_by_t_test(d).any(axis=1) for d in differences], axis=0).sum())
    return f"{wrong / SEQUENCES:.3f}, {by_t / SEQUENCES:.3f}"


def _by_t_test(differences: Numbers) -> Numbers:
    """Whether a t-test finds a difference at each look, from the third repeat on."""
    n = np.arange(1, LOOKS + 1)
    mean = differences.cumsum(axis=-1) / n
    variance = np.maximum((differences**2).cumsum(axis=-1) / n - mean**2, 1e-30) * n / np.maximum(n - 1, 1)
    t = np.abs(mean) / np.sqrt(variance / n)
    return np.asarray((t > stdtrit(np.maximum(n - 1, 1), 1 - ERROR / 2)) & (n > 2))  # noqa: PLR2004 - as it says


def bayes_factor(differences: Numbers) -> Numbers:
    """Return the Bayes factor of the t statistic at each look, in its logarithm."""
    n = np.arange(1, LOOKS + 1)
    return _log_bayes(n, differences.cumsum(axis=-1), (differences**2).cumsum(axis=-1))


def _unequal(noise: Noise) -> str:
    differences = noise(np.random.default_rng(0), (SEQUENCES, LOOKS))
    level = -np.log(ERROR)
    by_bayes = bayes_factor(differences) >= level
    each = (log_evidence(differences) >= level, by_bayes, by_bayes[:, 4:], _by_t_test(differences))
    verdict, factor, later, t_test = (found.any(axis=1).mean() for found in each)
    return f"{verdict:.3f}     {factor:.3f}          {later:.3f}                          {t_test:.3f}"


def _power(effect: float, k: int) -> str:
    """Return how often the best of k settings is found, after how many repeats, and how often it is covered."""
    stops, by_pairs, covered = [], [], 0
    for seed in range(4):
        results = draw(NOISES["normal"], k, SEQUENCES // 4, 10 + seed)
        results[:, 0] += effect
        is_decided = np.all(closed(evidence_of(results), 0)[..., 1:] >= 1 / ERROR, axis=-1)
        stop = _first(is_decided)
        stops.append(stop)
        shifts = np.eye(k)[0] * effect
        against = evidence_of(results, shifts)[np.arange(len(stop)), np.minimum(stop, LOOKS) - 1, 0]
        num_pairs = np.where(stop <= LOOKS, k - 1, k * (k - 1) / 2)
        covered += int((against.max(axis=-1) < num_pairs / ERROR).sum())
        factors = [bayes_factor(results[:, 0] - results[:, other]) for other in range(1, k)]
        by_pairs.append(_first(np.min(factors, axis=0) >= np.log(k * (k - 1) / 2 / ERROR)))
    ours, theirs = (_described(np.concatenate(each)) for each in (stops, by_pairs))
    return f"{ours} ({covered / SEQUENCES:.3f}), {theirs}"


def _first(is_decided: Numbers) -> Numbers:
    """Return the first look at which it is decided, one more than there are if it is not."""
    return np.where(is_decided.any(axis=1), is_decided.argmax(axis=1) + 1, LOOKS + 1)


def _described(stops: Numbers) -> str:
    median = np.median(stops)
    return f"{(stops <= LOOKS).mean():.2f}, {'-' if median > LOOKS else f'{median:.0f}'}"

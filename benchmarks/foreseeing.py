"""How often repeats decide the difference of which `--plan` says "decided in 8 of 10 cases".

Targets: 75 to 85 % of 1,000 simulated grids if the spread between repeats is known, at least 70 % if it is
estimated from a few repeats, and 20 to 28 of 30 grids of real trainings. A grid is decided as `Decide` decides
it, with a look after each repeat, or by the verdict after its last repeat; the right setting must be the best.
"""

import itertools
import math
from bisect import bisect_left
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from runmanager.answers.evidence import ERROR, closed, differences, fewest, log_evidence
from runmanager.answers.power import level, smallest

GRIDS, REAL = 1000, 30
SIMULATED = ((2, 6), (2, 8), (2, 20), (4, 8), (4, 20), (8, 12))  # settings, repeats
KNOWN_BY = (3, 5, 10)  # repeats from which a spread is estimated
POOL, POINTS, STEPS, BATCH = 400, 300, 200, 30  # of the real trainings: seeds, points, steps, points of a step
SETTINGS = tuple(itertools.product((16, 32, 64), (0.005, 0.02)))  # width, lr; all of them learn

Numbers = np.ndarray[Any, np.dtype[Any]]


def main() -> None:
    """Print all tables."""
    print(f"{GRIDS:,} simulated grids: fraction decided for the best setting; target 0.75 to 0.85, then 0.70")
    print(f"{'':<34}known       " + "".join(f"   of {n} repeats" for n in KNOWN_BY))
    for (k, n), anytime in itertools.product(SIMULATED, (True, False)):
        shares = [_share(k, n, known, anytime=anytime) for known in (None, *KNOWN_BY)]
        name = f"{k} settings, {n} repeats{'' if anytime else ', at the end'}"
        print(f"{name:<34}" + "".join(f"{share:<14.3f}" for share in shares))
    pool = trainings()
    known, estimated, median = _real(pool)
    print(
        f"\n{REAL} real grids from {POOL} trainings of each of {len(SETTINGS)} small networks (target 20 to 28)"
    )
    print(
        f"decided with the spread of all: {known}; with that of 5 earlier seeds: {estimated}; median {median:g}"
    )


def is_decided(scores: Numbers, *, anytime: bool) -> bool:
    """Whether the first setting is decided to be the best: scores (settings, repeats), as in `Decide`."""
    k, n = scores.shape
    first = fewest(level(k, ERROR)) if anytime else n
    asked = np.full(k, min(first, n))
    while True:
        seen = np.where(np.arange(n) < asked[:, None], scores, math.nan)[:, :, None]
        best = int(np.nanmean(seen, axis=(1, 2)).argmax())
        pairs = np.array([np.exp(log_evidence(differences(seen, one))[:, -1]) for one in range(k)])
        together = closed(pairs, best)
        undecided = [one for one in range(k) if one != best and together[one] < 1 / ERROR]
        if not undecided:
            return best == 0
        number = max(asked[one] for one in [best, *undecided]) + 1
        if number > n:
            return False
        asked[[best, *undecided]] = number


def _share(k: int, n: int, known: int | None, *, anytime: bool) -> float:
    random = np.random.default_rng([k, n, known or 0])
    known_by = math.inf if known is None else known - 1
    effect = smallest(n, k, ERROR, known_by=known_by, anytime=anytime)
    decided = 0
    for _ in range(GRIDS):
        std = 1.0 if known is None else float(np.diff(_noise(random, 2, known), axis=0).std(ddof=1))
        scores = _noise(random, k, n)
        scores[0] += effect * std
        decided += is_decided(scores, anytime=anytime)
    return decided / GRIDS


def _noise(random: np.random.Generator, k: int, n: int) -> Numbers:
    """Draw the results of equal settings, with something that they share in each repeat."""
    return np.asarray(random.normal(0, math.sqrt(0.5), (k, n)) + random.normal(0, 3, n))


def trainings() -> Numbers:
    """Train all settings with all seeds, the seeds of a setting at once; return test accuracies."""
    return np.stack([_trained(width, lr) for width, lr in SETTINGS])


def _trained(width: int, lr: float) -> Numbers:
    generator = torch.Generator().manual_seed(0)
    (inputs, labels), (test, answers) = (_points(number, generator) for number in (POINTS, 2000))
    first, second = (
        torch.randn(POOL, 2, width, generator=generator),
        torch.randn(POOL, width, 2, generator=generator),
    )
    weights = [first, torch.zeros(POOL, 1, width), second / math.sqrt(width), torch.zeros(POOL, 1, 2)]
    weights = [weight.requires_grad_() for weight in weights]
    optimizer = torch.optim.Adam(weights, lr=lr)
    for _ in range(STEPS):
        index = torch.randint(POINTS, (POOL, BATCH), generator=generator)  # each seed has its own batches
        scores = _network(inputs[index], weights)
        optimizer.zero_grad()
        functional.cross_entropy(scores.flatten(0, 1), labels[index].flatten(), reduction="sum").backward()
        optimizer.step()
    with torch.no_grad():
        scores = _network(test.expand(POOL, -1, -1), weights)
    return (scores.argmax(-1) == answers).float().mean(1).double().numpy()


def _points(number: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    points = torch.rand(number, 2, generator=generator) * 2 - 1
    return points, (points.norm(dim=1) < 0.8).long()  # noqa: PLR2004 - is a point inside the circle?


def _network(inputs: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    return torch.relu(inputs @ weights[0] + weights[1]) @ weights[2] + weights[3]


def _real(pool: Numbers) -> tuple[int, int, float]:
    """Draw grids of two settings from the pool; each has as many repeats as its difference is said to take."""
    random = np.random.default_rng(0)
    order = (-pool.mean(axis=1)).argsort()
    pairs = list(itertools.combinations(order, 2))
    known = estimated = number = 0
    lengths = []
    while number < REAL:
        better, other = pairs[random.integers(len(pairs))]
        row = pool[better] - pool[other]
        n = _repeats_for(float(row.mean() / row.std()), math.inf)
        if n > POOL / 8:  # so many seeds that the grids would share most of them
            continue
        seeds = random.permutation(POOL)
        lengths.append(n)
        known += is_decided(pool[[better, other]][:, seeds[: int(n)]], anytime=True)
        std = row[seeds[-5:]].std(ddof=1)
        n = min(_repeats_for(float(row.mean() / std), 4), POOL - 5)
        estimated += is_decided(pool[[better, other]][:, seeds[: int(n)]], anytime=True)
        number += 1
    return known, estimated, float(np.median(lengths))


def _repeats_for(effect: float, known_by: float) -> int:
    """Return the number of repeats that decide an effect in 8 of 10 cases, at most `POOL`."""
    return bisect_left(
        range(POOL), -effect, key=lambda n: -smallest(n, 2, ERROR, known_by=known_by, anytime=True)
    )

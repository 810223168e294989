"""The estimated remaining time of a grid, from the durations of similar runs."""

import heapq
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runmanager.hyperparameters import text
from runmanager.wording import duration

Cost = tuple[Mapping[str, Any], float]
"""The hyperparameters of a run, and its duration in seconds."""

_MOST = 200  # number of the latest costs that an estimate uses
_PRIOR = 0.2  # regularization: the number of runs without an effect that are added to each value
_SWEEPS = 5
_LEAST_S = 1e-3
_OVERDUE = 1.2  # an overdue run is expected to take its elapsed time times this factor
_SPREAD = (0.05, 0.35)  # standard deviation of log costs: the minimum, and the default with too few costs
_DRIFT = 0.08  # standard deviation of a machine's log speed, common to all runs
_RANGE = 1.8  # number of standard deviations on either side of an estimate
_SECOND, _MINUTE, _HOUR, _DAY = 1, 60, 3600, 86400
_FINE = (  # (seconds, step): a time below these seconds is rounded to this step
    (10, _SECOND),
    (_MINUTE, 5 * _SECOND),
    (5 * _MINUTE, 10 * _SECOND),
)
_COARSE = (
    *_FINE[:2],
    (20 * _MINUTE, _MINUTE),
    (_HOUR, 5 * _MINUTE),
    (10 * _HOUR, 10 * _MINUTE),
    (2 * _DAY, _HOUR),
    (float("inf"), _DAY),
)


class Underway(NamedTuple):
    """A run that is being executed; times in seconds."""

    params: Mapping[str, Any]
    elapsed: float
    total: float | None = None  # total time, estimated from the run's progress; None before there is progress
    # fraction of the run's epochs that this attempt executes; earlier attempts executed the rest
    part: float = 1.0


class Estimate(NamedTuple):
    """An estimated time in seconds, and its likely range."""

    seconds: float
    least: float
    most: float

    def after(self, seconds: float) -> "Estimate":
        """Return the estimate after some seconds have passed."""
        return Estimate(*(max(estimate - seconds, 0.0) for estimate in self))

    def scaled(self, seconds: float) -> "Estimate":
        """Return an estimate of these seconds with the same relative range."""
        factor = seconds / self.seconds if self.seconds else 1.0
        return Estimate(*(estimate * factor for estimate in self))


def time_left(
    waiting: Sequence[Mapping[str, Any]],
    running: Sequence[Underway],
    past: Sequence[Cost],
    lanes: int,
    between: float = 0.0,
) -> Estimate | None:
    """Estimate the seconds until all runs have ended; None before any cost is known.

    Waiting runs start in order, each `between` seconds after the previous run in its lane. At most `lanes`
    runs are executed at the same time.
    """
    if not waiting and not running:
        return Estimate(0.0, 0.0, 0.0)
    past = [*past, *((run.params, run.total / run.part) for run in running if run.total is not None)]
    if not past:
        return None
    estimated, spread, new = costs([*(run.params for run in running), *waiting], past)
    overdue = [
        (run.params, _OVERDUE * run.elapsed / run.part)
        for run, cost in zip(running, estimated, strict=False)
        if run.total is None and run.elapsed > cost * run.part
    ]
    if overdue:  # overdue runs raise the estimates of similar runs
        estimated, spread, new = costs([*(run.params for run in running), *waiting], [*past, *overdue])
    common = math.hypot(new, _DRIFT)
    alone = math.hypot(spread, common)
    together = math.hypot(spread * math.sqrt(1 / len(past) + 1 / max(len(waiting), 1)), common)

    def seconds(deviations: float) -> float:
        busy = []
        for run, cost in zip(running, estimated, strict=False):
            least = _OVERDUE * run.elapsed if run.elapsed > cost * run.part else 0.0
            total = max(math.exp(deviations * alone) * cost * run.part, least)
            total = total if run.total is None else math.exp(deviations * _DRIFT) * run.total
            busy.append(max(total - run.elapsed, 0.0))
        queued = [math.exp(deviations * together) * (cost + between) for cost in estimated[len(running) :]]
        return scheduled(queued, [*busy, *[0.0] * (lanes - len(busy))])

    return Estimate(seconds(0), seconds(-_RANGE), seconds(_RANGE))


def scheduled(seconds: Sequence[float], free_in: Sequence[float]) -> float:
    """Return the seconds until all runs have ended, if the first free lane takes the next run.

    >>> scheduled([3, 2, 2], [0, 0])
    4
    """
    ends = list(free_in)
    heapq.heapify(ends)
    for of_run in seconds:
        heapq.heapreplace(ends, ends[0] + of_run)
    return max(ends)


def costs(runs: Sequence[Mapping[str, Any]], past: Sequence[Cost]) -> tuple[list[float], float, float]:
    """Estimate the seconds that each run takes, from the cost of at least one other run.

    Each value of a hyperparameter gets a factor: 1 for a new value, and a factor near 1 for a learning rate.
    The factors are fitted to the logarithms of the costs, one hyperparameter after the other (backfitting, as
    in Hastie and Tibshirani, Generalized Additive Models). No estimate is below the minimum or above the
    maximum past cost.

    Returns:
        The estimates, and two standard deviations of their logarithms: one deviation for each estimate alone,
        and one deviation common to all estimates. The common deviation grows with the share of new values.

    >>> past = [({"lr": 0.1, "device": "cpu"}, 90.0), ({"lr": 0.2, "device": "cuda"}, 10.0)]
    >>> runs = [{"lr": 0.3, "device": "cpu"}, {"lr": 0.3, "device": "mps"}]
    >>> [round(cost) for cost in costs(runs, past)[0]]
    [46, 30]
    """
    samples = [_Sample(params, seconds) for params, seconds in past[-_MOST:]]
    mean = statistics.fmean(sample.rest for sample in samples)
    for sample in samples:
        sample.rest -= mean
    least, most = min(sample.rest for sample in samples), max(sample.rest for sample in samples)
    names = dict.fromkeys(name for sample in samples for name in sample.values)
    factors: dict[str, dict[str, float]] = {name: defaultdict(float) for name in names}
    for _ in range(_SWEEPS):
        for name, of_values in factors.items():
            _fit(name, of_values, samples)
    estimates, unseen = [], 0
    for params in runs:
        values = _values(params)
        logarithm = sum(factors[name].get(value, 0.0) for name, value in values.items() if name in factors)
        estimates.append(math.exp(mean + min(max(logarithm, least), most)))
        unseen += any(value not in factors[name] for name, value in values.items() if name in factors)
    num_free = len(samples) - sum(len(of_values) - 1 for of_values in factors.values())
    smallest, unknown = _SPREAD
    squares = sum(sample.rest**2 for sample in samples)
    spread = max(math.sqrt(squares / num_free), smallest) if num_free > 1 else unknown
    return estimates, spread, unknown * unseen / max(len(runs), 1)


class _Sample:
    """A past run: its values, and the residual of its log cost, which no factor explains yet."""

    def __init__(self, params: Mapping[str, Any], seconds: float) -> None:
        self.values = _values(params)
        self.rest = math.log(max(seconds, _LEAST_S))


def _values(params: Mapping[str, Any]) -> dict[str, str]:
    return {name: text(value) for name, value in params.items()}


def _fit(name: str, factors: dict[str, float], samples: Sequence[_Sample]) -> None:
    """Fit the factors of one hyperparameter to the residuals from the other hyperparameters."""
    sums: dict[str, list[float]] = defaultdict(list)
    samples = [sample for sample in samples if name in sample.values]
    for sample in samples:
        sample.rest += factors[sample.values[name]]
        sums[sample.values[name]].append(sample.rest)
    for value, rests in sums.items():
        factors[value] = sum(rests) / (len(rests) + _PRIOR)
    for sample in samples:
        sample.rest -= factors[sample.values[name]]


def about(estimate: Estimate) -> str:
    """Return an estimated time and its range as text, rounded to their precision.

    >>> about(Estimate(12 * 60, 10 * 60, 15 * 60)), about(Estimate(100, 70, 180))
    ('12 min left (10 to 15 min)', '1 min 40 s left (1 to 3 min)')
    """
    return ranged(estimate, " left", (*_FINE, *_COARSE))


def ranged(estimate: Estimate, what: str = "", steps: Sequence[tuple[float, int]] = _COARSE) -> str:
    """Return an estimated time and its range as text, the range in the precision of an estimate."""
    least, most = rounded(estimate.least), rounded(estimate.most)
    middle = rounded(estimate.seconds, steps)
    if least == most:
        return f"{middle}{what}"
    (number, unit, *more), of_most = least.split(), most.split()
    return f"{middle}{what} ({least if more or of_most[1:] != [unit] else number} to {most})"


def rounded(seconds: float, steps: Sequence[tuple[float, int]] = _COARSE) -> str:
    """Return a time as text, rounded to the precision of an estimate.

    >>> rounded(78 * 60), rounded(0)
    ('1 h 20 min', '1 s')
    """
    step = next(step for most, step in steps if seconds < most)
    return duration(max(round(seconds / step), 1) * step, 0)

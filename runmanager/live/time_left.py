"""How long a grid still takes, from the durations of similar runs."""

import heapq
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from runmanager.hyperparameters import text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Cost = tuple[Mapping[str, Any], float]
"""The hyperparameters of a run, and the seconds it took."""

_MOST = 200  # costs that an estimate uses, the latest
_NOISE = 0.2  # variance of one run, as a part of the variance that one hyperparameter makes
_LEAST_S = 1e-3
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_STEPS = (  # (seconds, step): a time below these seconds is rounded to this step
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
    total: float | None = None  # estimated from its own epochs, None before the first one has ended
    part: float = 1.0  # of its epochs, that this attempt executes; an earlier attempt executed the others


def time_left(
    waiting: Sequence[Mapping[str, Any]], running: Sequence[Underway], past: Sequence[Cost], lanes: int
) -> float | None:
    """Estimate the seconds until all runs have ended, None before any cost is known.

    The runs that are waiting start in their order. At most `lanes` runs are executed at the same time.
    """
    if not waiting and not running:
        return 0.0
    past = [*past, *((run.params, run.total / run.part) for run in running if run.total is not None)]
    if not past:
        return None
    estimated = costs([*(run.params for run in running), *waiting], past)
    busy = [
        max((cost * run.part if run.total is None else run.total) - run.elapsed, 0.0)
        for run, cost in zip(running, estimated, strict=False)
    ]
    return scheduled(estimated[len(running) :], [*busy, *[0.0] * (lanes - len(busy))])


def scheduled(seconds: Sequence[float], free_in: Sequence[float]) -> float:
    """Return the seconds until all runs have ended; the lane that is free first takes the next run.

    >>> scheduled([3, 2, 2], [0, 0])
    4
    """
    ends = list(free_in)
    heapq.heapify(ends)
    for duration in seconds:
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)


def costs(runs: Sequence[Mapping[str, Any]], past: Sequence[Cost]) -> list[float]:
    """Estimate the seconds that each run takes, from the cost of at least one other run.

    This is kernel ridge regression on the logarithm of the cost; the kernel is the number of hyperparameter
    values that two runs share. So every value gets a factor: near 1 for a learning rate, 1 while it is new.
    No estimate is below the least or above the greatest past cost.

    >>> past = [({"lr": 0.1, "device": "cpu"}, 90.0), ({"lr": 0.2, "device": "cuda"}, 10.0)]
    >>> [round(cost) for cost in costs([{"lr": 0.3, "device": "cpu"}, {"lr": 0.3, "device": "mps"}], past)]
    [49, 30]
    """
    import numpy as np

    seconds = np.maximum([cost for _, cost in past[-_MOST:]], _LEAST_S)
    samples = [params for params, _ in past[-_MOST:]]
    alike, shared = _shared_values(samples, samples), _shared_values(runs, samples)
    logarithms = np.log(seconds)
    mean = logarithms.mean()
    weights = np.linalg.solve(alike + _NOISE * np.eye(len(samples)), logarithms - mean)
    estimated = np.exp(np.clip(mean + shared @ weights, logarithms.min(), logarithms.max()))
    return [float(cost) for cost in estimated]


def _shared_values(
    runs: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> "NDArray[np.float64]":
    """Count, for each pair of runs, the hyperparameters that have the same value in both."""
    import numpy as np

    shared = np.zeros((len(runs), len(others)))
    for name in dict.fromkeys(name for params in others for name in params):
        numbers: dict[str, int] = {}
        codes = [
            [
                numbers.setdefault(text(params[name]), len(numbers)) if name in params else absent
                for params in grid
            ]
            for grid, absent in ((runs, -1), (others, -2))
        ]
        shared += np.equal.outer(*(np.array(code, dtype=int) for code in codes))
    return shared


def about(seconds: float) -> str:
    """Write an estimated time, rounded as its precision allows.

    >>> about(12 * 60), about(80 * 60), about(50 * 3600), about(20)
    ('about 12 min', 'about 1 h 20 min', 'about 2 days', 'less than a minute')
    """
    if seconds < _MINUTE:
        return "less than a minute"
    step = next(step for most, step in _STEPS if seconds < most)
    rounded = max(round(seconds / step), 1) * step
    days, rest = (rounded // _DAY, 0) if rounded >= 2 * _DAY else (0, rounded)
    parts = ((days, "days"), (rest // _HOUR, "h"), (rest % _HOUR // _MINUTE, "min"))
    return " ".join(["about", *(f"{number} {unit}" for number, unit in parts if number)])

"""The estimated remaining time of a grid, from the median duration of a setting, a device, or all runs."""

import heapq
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runmanager.core.values import text
from runmanager.tables.cells import duration

Cost = tuple[Mapping[str, Any], float]
"""The hyperparameters of a run, and its duration in seconds."""

_STEPS = (  # (seconds, step): a time below these seconds is rounded to this step
    (10, 1),
    (60, 5),
    (300, 10),
    (1200, 60),
    (3600, 300),
    (36000, 600),
    (172800, 3600),
    (float("inf"), 86400),
)


def costs(
    runs: Sequence[Mapping[str, Any]], past: Sequence[Cost], repeats: Collection[str] = ()
) -> list[float]:
    """Estimate the seconds that each run takes, from the cost of at least one other run.

    >>> past = [({"lr": 1, "device": "cpu"}, 90.0), ({"lr": 2, "device": "cuda"}, 10.0)]
    >>> costs([{"lr": 1, "device": "cpu"}, {"lr": 3, "device": "cuda"}, {"lr": 3, "device": "mps"}], past)
    [90.0, 10.0, 50.0]
    """
    by_key: dict[object, list[float]] = defaultdict(list)
    for params, seconds in past:
        for key in _keys(params, repeats):
            by_key[key].append(seconds)
    medians = {key: statistics.median(durations) for key, durations in by_key.items()}
    return [next(medians[key] for key in _keys(params, repeats) if key in medians) for params in runs]


def _keys(params: Mapping[str, Any], repeats: Collection[str]) -> list[object]:
    """Return what a run has in common with other runs: the setting, the device, nothing."""
    setting = tuple((name, text(value)) for name, value in params.items() if name not in repeats)
    return [setting, text(params.get("device")), None]


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


def rounded(seconds: float) -> str:
    """Return a time as text, rounded to the precision of an estimate.

    >>> rounded(78 * 60), rounded(0)
    ('1 h 20 min', '1 s')
    """
    step = next(step for most, step in _STEPS if seconds < most)
    return duration(max(round(seconds / step), 1) * step, 0)

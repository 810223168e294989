"""The estimated time of runs, from the mean duration of a setting, a device, or all runs."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runmanager.tables.cells import duration

Cost = tuple[Mapping[str, Any], float]  # the hyperparameters of a run, and its duration in seconds

_STEPS = (86400, 3600, 600, 300, 60, 10, 5)  # seconds to which a time is rounded
_PRECISION = 3  # a time has at least this number of steps


def costs(
    runs: Sequence[Mapping[str, Any]], past: Sequence[Cost], repeats: Collection[str] = ()
) -> list[float]:
    """Estimate the seconds that each run takes, from the cost of at least one other run."""
    by_key: dict[object, list[float]] = defaultdict(list)
    for params, seconds in past:
        for key in _keys(params, repeats):
            by_key[key].append(seconds)
    means = {key: statistics.fmean(durations) for key, durations in by_key.items()}
    return [next(means[key] for key in _keys(params, repeats) if key in means) for params in runs]


def _keys(params: Mapping[str, Any], repeats: Collection[str]) -> list[object]:
    """Return what a run has in common with other runs: the setting, the device, nothing."""
    setting = {name: value for name, value in params.items() if name not in repeats}
    return [repr(setting), params.get("device"), None]


def scheduled(seconds: Sequence[float], num_lanes: int) -> float:
    """Return the seconds that runs take in lanes: at least as long as the longest run."""
    return max(sum(seconds) / num_lanes, max(seconds, default=0.0))


def rounded(seconds: float) -> str:
    """Return a time as text, rounded to the precision of an estimate."""
    step = next((step for step in _STEPS if seconds >= _PRECISION * step), 1)
    return duration(max(round(seconds / step), 1) * step, 0)

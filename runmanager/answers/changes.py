"""Changes of the goal with one hyperparameter alone."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr

from runmanager.answers.ranking import Ranking, axes_of, numbered, settings_without

_ENOUGH = 5  # minimum number of distinct values for a meaningful rank correlation
_CHANCE = 0.05


def changes(runs: pd.DataFrame, ranking: Ranking) -> pd.DataFrame:
    """Compare the values of each hyperparameter within otherwise equal settings; the largest change is first.

    Args:
        runs: The table of runs.
        ranking: The ranking of this table; its settings have the goal's mean over the repeats.

    Returns:
        A row per hyperparameter that varies: `axis`; the `mean` absolute difference of two settings that differ
        in this axis alone, NaN without such settings; Spearman's `correlation` of the values with the goal over
        all settings, NaN if not meaningful; and whether this correlation `is_chance`.
    """
    table = runs.iloc[[setting.rows[0] for setting in ranking.settings]]
    means = pd.Series([setting.mean for setting in ranking.settings], dtype=float)
    listed = []
    for axis in axes_of(runs):
        codes, values = numbered(table[axis])
        if axis not in ranking.repeats and len(values) > 1:
            group, _ = settings_without(table, [axis, *ranking.repeats])
            size = _mean_difference(means.groupby([group, codes]).mean())
            listed.append((axis, size, *_correlation(table[axis].tolist(), means)))
    names = ["axis", "mean", "correlation", "is_chance"]
    return pd.DataFrame(listed, columns=names).sort_values("mean", ascending=False, kind="stable")


def _mean_difference(cells: "pd.Series[float]") -> float:
    """Return the mean absolute difference of two values of a group; NaN without such values."""
    groups: dict[int, list[float]] = {}
    for (group, _), mean in zip(cells.index.tolist(), cells.tolist(), strict=True):
        groups.setdefault(group, []).append(mean)
    total, number = 0.0, 0
    for values in groups.values():
        n = len(values)
        total += math.fsum((2 * index - n + 1) * value for index, value in enumerate(sorted(values)))
        number += n * (n - 1) // 2
    return total / number if number else math.nan


def _correlation(values: Sequence[Any], means: "pd.Series[float]") -> tuple[float, bool]:
    """Return Spearman's correlation of numbers and means, and whether it may be chance."""
    are_numbers = all(type(value) in (int, float) and value == value for value in values)  # noqa: PLR0124 - no NaN
    order = {value: index for index, value in enumerate(sorted({*values}))} if are_numbers else {}
    if len(order) < _ENOUGH or means.min() == means.max():
        return math.nan, True
    ranks = pd.Series([order[value] for value in values]).rank(), means.rank()
    rho = float(np.corrcoef(*ranks)[0, 1])
    freedom = len(values) - 2
    t = abs(rho) * math.sqrt(freedom / max(1 - rho * rho, 1e-300))
    return rho, bool(2 * stdtr(freedom, -t) >= _CHANCE)


def repeats_differ(ranking: Ranking) -> float:
    """Estimate the mean absolute difference between two repeats of a setting; NaN without repeats."""
    variance, _ = pooled((setting.number, setting.statistics[0]["std"]) for setting in ranking.settings)
    return 2 / math.sqrt(math.pi) * math.sqrt(variance)


def pooled(parts: Iterable[tuple[int, float]]) -> tuple[float, int]:
    """Return the variance within parts, given by number and standard deviation, and its degrees of freedom."""
    several = [(number - 1, std) for number, std in parts if number > 1]
    freedom = sum(number for number, _ in several)
    total = math.fsum(number * std * std for number, std in several)
    return total / freedom if freedom else math.nan, freedom

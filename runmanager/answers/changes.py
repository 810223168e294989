"""Changes of the goal with one hyperparameter alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr

from runmanager.answers.ranking import Ranking, axes_of, numbered

_ENOUGH = 5  # minimum number of distinct values for a meaningful rank correlation
_CHANCE = 0.05

Block = dict[int, float]  # code of an axis's value -> goal, in settings that differ in this axis alone


@dataclass(frozen=True)
class Change:
    """The effect of changing one hyperparameter, measured between settings that differ in it alone."""

    axis: str
    # mean absolute difference of two settings that differ in this axis alone; NaN without such settings
    mean: float
    # Spearman's correlation of the values with the goal over all settings; NaN if not meaningful
    correlation: float
    is_chance: bool  # whether the correlation may be chance
    num_settings: int


def changes(runs: pd.DataFrame, ranking: Ranking) -> list[Change]:
    """Compare the values of each hyperparameter within otherwise equal settings; the largest change is first.

    Args:
        runs: The table of runs.
        ranking: The ranking of this table; its settings have the goal's mean over the repeats.
    """
    table, values = _codes(runs, ranking)
    listed = [_change(axis, table, values[axis]) for axis in values]
    return sorted(listed, key=lambda change: -change.mean if math.isfinite(change.mean) else 1)


def repeats_differ(ranking: Ranking) -> float:
    """Estimate the mean absolute difference between two repeats of a setting; NaN without repeats."""
    repeated = [setting for setting in ranking.settings if setting.number > 1]
    freedom = sum(setting.number - 1 for setting in repeated)
    if not freedom:
        return math.nan
    variance = (
        math.fsum((setting.number - 1) * setting.statistics[0]["std"] ** 2 for setting in repeated) / freedom
    )
    return 2 / math.sqrt(math.pi) * math.sqrt(variance)


def _codes(runs: pd.DataFrame, ranking: Ranking) -> tuple[pd.DataFrame, dict[str, list[Any]]]:
    """Return a table with a row per ranked setting, and the values of each axis."""
    rows = [setting.rows[0] for setting in ranking.settings]
    columns: dict[str, Any] = {}
    values: dict[str, list[Any]] = {}
    for axis in axes_of(runs) if rows else []:
        codes, all_values = numbered(runs[axis])
        if axis not in ranking.repeats and len(set(codes[rows].tolist())) > 1:
            columns[axis], values[axis] = codes[rows], all_values
    return pd.DataFrame({**columns, "\0mean": [setting.mean for setting in ranking.settings]}), values


def _change(axis: str, table: pd.DataFrame, values: Sequence[Any]) -> Change:
    pairs = [_differences(list(block.values())) for block in _blocks(table, axis)]
    number = sum(count for _, count in pairs)
    size = sum(total for total, _ in pairs) / number if number else math.nan
    rho, is_chance = _correlation([values[code] for code in table[axis]], table["\0mean"])
    return Change(axis, size, rho, is_chance, len(table))


def _blocks(table: pd.DataFrame, axis: str) -> list[Block]:
    """Group the settings that differ in an axis alone; leave out groups with a single value."""
    others = [name for name in table if name not in (axis, "\0mean")]
    group = table.groupby(others, sort=False, observed=True).ngroup() if others else pd.Series(0, table.index)
    cells = table["\0mean"].groupby([group, table[axis]], sort=False, observed=True).mean()
    blocks: dict[int, Block] = {}
    numbers, codes = (cells.index.get_level_values(level).tolist() for level in (0, 1))
    for number, code, mean in zip(numbers, codes, cells.tolist(), strict=True):
        blocks.setdefault(number, {})[code] = mean
    return [block for block in blocks.values() if len(block) > 1]


def _differences(values: Sequence[float]) -> tuple[float, int]:
    """Return the sum of the absolute differences of all pairs, and the number of pairs."""
    n = len(values)
    total = math.fsum((2 * index - n + 1) * value for index, value in enumerate(sorted(values)))
    return total, n * (n - 1) // 2


def _correlation(values: Sequence[Any], means: "pd.Series[float]") -> tuple[float, bool]:
    """Return Spearman's correlation of numbers and means, and whether it may be chance."""
    if not all(type(value) in (int, float) for value in values) or len(set(values)) < _ENOUGH:
        return math.nan, True
    try:
        numbers = pd.Series(values, dtype="float64")
    except OverflowError:
        return math.nan, True
    ranks = numbers.rank().to_numpy(), means.rank().to_numpy()
    if np.isnan(ranks).any() or not all(np.ptp(each) for each in ranks):
        return math.nan, True
    rho = float(np.corrcoef(*ranks)[0, 1])
    freedom = len(values) - 2
    t = abs(rho) * math.sqrt(freedom / max(1 - rho * rho, 1e-300))
    return rho, bool(2 * stdtr(freedom, -t) >= _CHANCE)

"""Changes of the goal with one hyperparameter alone, and the strongest interaction of two hyperparameters."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import fdtrc, stdtr

from runmanager.answers.findings import Findings
from runmanager.tables.columns import Numbers
from runmanager.tables.ranking import axes_of, numbered

_MOST_VALUES = 24  # maximum number of values of each axis of an interaction
_MOST_PATTERNS = 60  # maximum number of sets of values that are tried
_ENOUGH = 5  # minimum number of distinct values for a meaningful rank correlation
_CHANCE = 0.05
_SAME = 1e-9  # fraction of the largest mean; smaller differences count as rounding
_ADDITIVE = 0.1  # fraction of the effect of the rows; smaller deviations from additive effects do not matter

Block = dict[int, float]  # code of an axis's value -> goal, in settings that differ in this axis alone


@dataclass(frozen=True)
class Change:
    """The effect of changing one hyperparameter, measured between settings that differ in it alone."""

    axis: str
    # mean absolute difference of two settings that differ in this axis alone; NaN without such settings
    mean: float
    means: Sequence[tuple[Any, float]]  # each value and its mean over the same groups; best mean first
    num: int  # number of groups; the settings of a group differ in this axis alone
    num_best: int  # number of groups in which the first value is best, ties included
    left_out: Sequence[Any]  # values with a mean of the goal, but not in `means`
    # Spearman's correlation of the values with the goal over all settings; NaN if not meaningful
    correlation: float
    is_chance: bool  # whether the correlation may be chance
    num_settings: int


@dataclass(frozen=True)
class Interaction:
    """Two hyperparameters whose effects are far from additive."""

    rows: str
    columns: str
    row_values: Sequence[Any]
    column_values: Sequence[Any]
    means: Numbers  # means of the goal, rows x columns; NaN in a cell without a number
    num: int  # number of settings averaged in each cell; the other hyperparameters are the same in all cells
    p: float  # p value of the additive model, corrected for the number of pairs; NaN without an error estimate

    def best_rows(self, sign: int) -> list[list[int]]:
        """Return the rows with the best mean for each column."""
        best = []
        for column in (sign * self.means).T:
            top = -math.inf if np.isnan(column).all() else np.nanmax(column)
            best.append(np.flatnonzero(np.isclose(column, top, rtol=1e-12, atol=0)).tolist())
        return best

    def complete(self) -> "Interaction | None":
        """Return the largest part of the table that has a number in every cell.

        None if this part is smaller than 2 x 2.

        The best rows of two columns are comparable only if both columns have numbers in the same rows.
        """
        there = ~np.isnan(self.means)
        patterns = {tuple(row) for row in there.tolist()}
        shared = {tuple(map(bool, np.logical_and(a, b))) for a in patterns for b in patterns}
        best: tuple[int, Numbers, Numbers] | None = None
        for pattern in sorted(shared, reverse=True):
            columns = np.flatnonzero(pattern)
            rows = np.flatnonzero(there[:, columns].all(axis=1))
            if min(len(rows), len(columns)) > 1 and (best is None or len(rows) * len(columns) > best[0]):
                best = len(rows) * len(columns), rows, columns
        if best is None:
            return None
        _, rows, columns = best
        values = [self.row_values[int(row)] for row in rows], [self.column_values[int(n)] for n in columns]
        return replace(
            self, row_values=values[0], column_values=values[1], means=self.means[np.ix_(rows, columns)]
        )

    @property
    def adds_up(self) -> bool:
        """Whether the effects are nearly additive: a row changes all columns by nearly the same amount.

        Each cell deviates from the sum of both effects by at most a tenth of the effect of the rows, the range
        of their means. Every cell must have a number.
        """
        rest = self.means - self.means.mean(axis=0) - self.means.mean(axis=1, keepdims=True) + self.means.mean()
        limit = max(_ADDITIVE * np.ptp(self.means.mean(axis=1)), _SAME * np.abs(self.means).max())
        return bool(np.abs(rest).max() <= limit)


def changes(runs: pd.DataFrame, findings: Findings) -> list[Change]:
    """Compare the values of each hyperparameter within otherwise equal settings; the largest change is first.

    Args:
        runs: The table of runs.
        findings: The findings of `find` on this table; its settings have the goal's mean over the repeats.
    """
    table, values = _codes(runs, findings)
    listed = [_change(axis, table, values[axis], findings.goal.sign) for axis in values]
    return sorted(listed, key=lambda change: -change.mean if math.isfinite(change.mean) else 1)


def repeats_differ(findings: Findings) -> float:
    """Estimate the mean absolute difference between two repeats of a setting; NaN without repeats.

    For a normal distribution, this difference is 2 / sqrt(pi) times the standard deviation.
    """
    variance, freedom = _pooled(findings)
    return 2 / math.sqrt(math.pi) * math.sqrt(variance) if freedom else math.nan


def interaction(runs: pd.DataFrame, findings: Findings) -> Interaction | None:
    """Return the strongest interaction of two axes; each cell is a mean over the same other hyperparameters."""
    table, values = _codes(runs, findings)
    axes = [axis for axis in values if len(values[axis]) <= _MOST_VALUES]
    listed: list[tuple[float, Interaction]] = []
    for index, first in enumerate(axes):
        for second in axes[index + 1 :]:
            each = _together(table, (first, second), values, findings)
            listed += [each] if each else []
    if not listed:
        return None
    _, strongest = max(listed, key=lambda pair: pair[0])
    p = min(1.0, strongest.p * len(listed)) if math.isfinite(strongest.p) else math.nan
    return replace(_oriented(strongest, findings.goal.sign), p=p)


def _codes(runs: pd.DataFrame, findings: Findings) -> tuple[pd.DataFrame, dict[str, list[Any]]]:
    """Return a table with a row per ranked setting, and the values of each axis.

    The columns are the code of each axis's value, and the setting's mean.
    """
    rows = [setting.rows[0] for setting in findings.settings]
    columns: dict[str, Any] = {}
    values: dict[str, list[Any]] = {}
    for axis in axes_of(runs) if rows else []:
        codes, all_values = numbered(runs[axis])
        if axis not in findings.repeats and len(set(codes[rows].tolist())) > 1:
            columns[axis], values[axis] = codes[rows], all_values
    return pd.DataFrame({**columns, "\0mean": [setting.mean for setting in findings.settings]}), values


def _change(axis: str, table: pd.DataFrame, values: Sequence[Any], sign: int) -> Change:
    means = table["\0mean"]
    blocks = _blocks(table, axis)
    pairs = [_differences(list(block.values())) for block in blocks]
    number = sum(count for _, count in pairs)
    size = sum(total for total, _ in pairs) / number if number else math.nan
    common, due = _balanced(blocks)
    ordered: list[tuple[int, float]] = []
    if common:
        each = [(code, math.fsum(block[code] for block in due) / len(due)) for code in sorted(common)]
        ordered = sorted(each, key=lambda pair: -sign * pair[1])
    num_best = 0
    for block in due:
        top = max(sign * block[code] for code in common)
        num_best += math.isclose(sign * block[ordered[0][0]], top, rel_tol=1e-12)
    present = [code for code in dict.fromkeys(table[axis].tolist()) if code not in common]
    rho, is_chance = _correlation([values[code] for code in table[axis]], means)
    return Change(
        axis, size, [(values[code], mean) for code, mean in ordered], len(due), num_best,
        [values[code] for code in present], rho, is_chance, len(table),
    )  # fmt: skip


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


def _balanced(blocks: Sequence[Block], least: int = 1) -> tuple[frozenset[int], list[Block]]:
    """Choose a large set of values that many groups contain.

    Return the set, and the groups with all its values.
    """
    patterns = Counter(frozenset(block) for block in blocks).most_common(_MOST_PATTERNS)
    best: tuple[int, int, frozenset[int]] = 0, 0, frozenset()
    for pattern, _ in patterns:
        number = sum(count for other, count in patterns if pattern <= other)
        size = number * (len(pattern) - least) ** 2  # the number of values has the larger weight
        best = max(best, (size, len(pattern), pattern), key=lambda each: each[:2])
    return best[2], [block for block in blocks if best[2] and best[2] <= block.keys()]


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


def _together(
    table: pd.DataFrame, axes: tuple[str, str], values: dict[str, list[Any]], findings: Findings
) -> tuple[float, Interaction] | None:
    """Return the strength of the interaction of two axes, and the interaction; None if not computable."""
    first, second = axes
    width = len(values[second])
    rest = table.drop(columns=[first, second]).assign(**{"\0cell": table[first] * width + table[second]})
    blocks = [block for block in _blocks(rest, "\0cell") if len(block) > 3]  # noqa: PLR2004 - 2 x 2
    cells, due = _balanced(blocks, least=2)
    if not cells:
        return None
    order = sorted(cells)
    rows, columns = (sorted({code // width for code in order}), sorted({code % width for code in order}))
    model = np.array(
        [
            [code // width == row for row in rows] + [code % width == column for column in columns]
            for code in order
        ],
        dtype=float,
    )
    freedom = len(order) - int(np.linalg.matrix_rank(model))
    if freedom < 1 or len(rows) < 2 or len(columns) < 2:  # noqa: PLR2004
        return None
    scores = np.array([[block[code] for code in order] for block in due])
    means = scores.mean(axis=0)
    fitted = model @ np.linalg.lstsq(model, means, rcond=None)[0]
    strength = len(due) * float(((means - fitted) ** 2).sum()) / freedom
    error, error_freedom = _pooled(findings, of_means=True)
    if len(due) > 1:
        rest_of = scores - means - scores.mean(axis=1, keepdims=True) + means.mean()
        error_freedom = (len(due) - 1) * (len(order) - 1)
        error = float((rest_of**2).sum()) / error_freedom
    p = float(fdtrc(freedom, error_freedom, strength / error)) if error_freedom and error else math.nan
    matrix = np.full((len(rows), len(columns)), math.nan)
    for code, mean in zip(order, means, strict=True):
        matrix[rows.index(code // width), columns.index(code % width)] = mean
    named = [values[first][code] for code in rows], [values[second][code] for code in columns]
    return strength, Interaction(first, second, *named, matrix, len(due), p)


def _oriented(each: Interaction, sign: int) -> Interaction:
    """Choose rows and columns of the pair; if possible, the best row depends on the column."""
    turned = Interaction(
        each.columns, each.rows, each.column_values, each.row_values, each.means.T, each.num, each.p
    )

    def depends(pair: Interaction) -> tuple[bool, int]:
        part = pair.complete()
        best = [set(rows) for rows in part.best_rows(sign)] if part else []
        return bool(best) and not set.intersection(*best), -len(pair.column_values)

    return max(each, turned, key=depends)


def _pooled(findings: Findings, *, of_means: bool = False) -> tuple[float, int]:
    """Return the pooled variance between repeats, or of the settings' means, and its degrees of freedom."""
    repeated = [setting for setting in findings.settings if setting.number > 1]
    freedom = sum(setting.number - 1 for setting in repeated)
    if not freedom:
        return math.nan, 0
    variance = math.fsum((setting.number - 1) * setting.statistics.std**2 for setting in repeated) / freedom
    if of_means:
        variance *= math.fsum(1 / setting.number for setting in findings.settings) / len(findings.settings)
    return variance, freedom

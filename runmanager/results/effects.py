"""What hyperparameters do to a result: pair by pair, and as a share of its variation.

The functions take what `load_runs` returned, or rows of it. Only completed runs count, as in `over_seeds`.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from runmanager.hyperparameters import text
from runmanager.results.ranking import (
    axes_of,
    check_comparable,
    completed,
    default_metric,
    describe,
    numbered,
    settings_without,
)
from runmanager.results.tables import check_table

OVERALL = "overall"
"""The key in the `attrs` of what `compare` returns that holds the mean ratios."""


def compare(runs: pd.DataFrame, axis: str = "device", value: str = "epoch duration") -> pd.DataFrame:
    """Pair runs that differ in one hyperparameter only.

    Args:
        runs: What `load_runs` returned, or rows of it.
        axis: The hyperparameter.
        value: The column to compare.

    Returns:
        One row per setting, that is per combination of the other hyperparameters: those that vary, a column per
        value of `axis`, and for each value but the first its ratio to the first. ``cpu / cuda`` is how many
        times as long the cpu takes. Runs with the same hyperparameters are averaged. A value of `axis` without
        any number, such as a missing device, is left out if two others have some. A setting is left out unless
        each remaining value has a number.

        ``attrs["overall"]`` has a dict per ratio: its name as `ratio`, the number of pairs `n`, their geometric
        `mean`, and its 95 % interval from `low` to `high`, by Student's t of the logarithms. One pair has no
        interval. If a ratio is not above 0, there is no mean either.

    Raises:
        InvalidArgumentError: `axis` is not a hyperparameter of these runs, or `value` not a column of numbers.

    Example:
        >>> runs = pd.DataFrame(
        ...     {"lr": [0.1, 0.1], "device": ["cuda", "cpu"], "epoch duration": [2.0, 5.0]}
        ... )
        >>> runs.attrs["hyperparameters"] = ["lr", "device"]  # load_runs() sets them
        >>> compare(runs)
           cuda  cpu  cpu / cuda
        0   2.0  5.0         2.5
    """
    check_table(runs)
    check_comparable(runs, [axis], [value])
    group, table = settings_without(runs, axis)
    codes, values = numbered(runs[axis])
    # half a surrogate pair is no name of a column
    names = [text(value).encode("utf-8", "backslashreplace").decode() for value in values]
    if len({*names, *table}) < len(names) + len(table.columns):  # text() shortens
        names = [repr(value) for value in values]
    means = completed(runs, value).groupby([group, codes]).mean().unstack()  # noqa: PD010 - of a Series
    measured = [name for code, name in enumerate(names) if means[code].notna().any()]
    sides = pd.DataFrame({name: means[code] for code, name in enumerate(names)}, index=table.index)
    names = measured if len(measured) > 1 else names
    pairs = pd.concat([table, sides[names]], axis="columns").dropna(subset=names).reset_index(drop=True)
    ratios = {f"{name} / {names[0]}": pairs[name] / pairs[names[0]] for name in names[1:]}
    pairs = pairs.assign(**ratios)
    pairs.attrs[OVERALL] = [_overall(name, ratio) for name, ratio in ratios.items()]
    return pairs


def effects(runs: pd.DataFrame, value: str | None = None) -> pd.DataFrame:
    """Return how much each hyperparameter matters for a result, and the mean of each of its values.

    Args:
        runs: What `load_runs` returned, or rows of it.
        value: The column of the result; by default the one that `best` sorts by.

    Returns:
        One row per value of each hyperparameter that varies, the one that explains most first: `axis`, `value`,
        how many runs have it (`n`), their `mean`, their standard deviation `std` (divided by n - 1), and
        `explained`, the share of the variation of the result that the axis explains. This is eta squared, the
        sum of squares between its values divided by the total (Fisher, Statistical Methods for Research
        Workers, 1925, as the squared correlation ratio). It is from 0 to 1, and NaN if nothing varies.

        In a grid with all its combinations the shares add up to at most 1; the rest is chance, or two axes
        together. Where combinations are missing, axes that vary together share what they explain, and the sum
        can exceed 1. The more values an axis has, the more it explains, also by chance.

    Raises:
        InvalidArgumentError: `value` is not a column of numbers, or it is not given and no run has an accuracy
            or a loss.

    Example:
        >>> runs = pd.DataFrame({"lr": [0.1, 0.1, 0.01, 0.01], "accuracy": [0.75, 0.75, 0.5, 0.5]})
        >>> runs.attrs["hyperparameters"] = ["lr"]  # load_runs() sets them
        >>> effects(runs)
          axis value  n  mean  std  explained
        0   lr   0.1  2  0.75  0.0        1.0
        1   lr  0.01  2  0.50  0.0        1.0
    """
    check_table(runs)
    value = default_metric(runs, "value='f1'") if value is None else value
    check_comparable(runs, [], [value])
    numbers = completed(runs, value)
    total = ((numbers - numbers.mean()) ** 2).sum()
    varies = total and numbers.min() < numbers.max()  # 0.1 + 0.1 + 0.1 is more than 3 * 0.1
    tables = []
    for axis in axes_of(runs):
        codes, values = numbered(runs[axis])
        if len(values) > 1:
            table = describe(numbers, codes)[["n", "mean", "std"]]
            between = (table["n"] * (table["mean"] - numbers.mean()) ** 2).sum()
            table["explained"] = between / total if varies else math.nan
            labels = pd.Series(values, table.index, dtype="object")
            tables.append(table.assign(axis=axis, value=labels))
    columns = ["axis", "value", "n", "mean", "std", "explained"]
    if not tables:
        return pd.DataFrame(columns=columns)
    tables.sort(key=lambda table: -table["explained"].iloc[0])
    return pd.concat(tables, ignore_index=True)[columns]


def _overall(name: str, ratios: "pd.Series[float]") -> dict[str, Any]:
    """Describe ratios by their geometric mean, as a ratio and its inverse count the same."""
    logarithms = ratios.where((ratios > 0) & np.isfinite(ratios)).map(np.log)
    statistics = describe(logarithms, np.zeros(len(ratios))).reindex([0]).iloc[0]
    if logarithms.isna().any():
        statistics *= math.nan
    means = {key: float(np.exp(statistics[key])) for key in ("mean", "low", "high")}
    return {"ratio": name, "n": len(ratios), **means}

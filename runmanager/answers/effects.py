"""The effects of hyperparameters on a result of completed runs: what each explains, and changes alone."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from runmanager.answers.finding import Finding, with_sentence
from runmanager.answers.ranking import (
    Ranking,
    axes_of,
    check_comparable,
    completed,
    describe,
    goals_of,
    mean_of,
    numbered,
    repeats_of,
    settings_without,
    t_quantile,
)
from runmanager.answers.sampled import in_parts, is_sampled
from runmanager.answers.usual_goals import assumption
from runmanager.tables.columns import check_table


@np.errstate(all="ignore")  # the mean of huge numbers may overflow
def effects(
    runs: pd.DataFrame, goal: str | None = None, *, repeats: str | Sequence[str] | None = None
) -> Finding:
    """Return the influence of each hyperparameter on a result, and the mean of each of its values.

    Args:
        runs: The table of `load_runs`, or rows of it.
        goal: The column of the result; by default the metric that decides, as in `best`.
        repeats: The axes that only repeat a setting, as in `best`.

    Returns:
        One row per value of each hyperparameter that varies; the hyperparameter that explains the largest
        fraction comes first. The columns are `axis`, `value`, the number of runs with this value (`n`), their
        `mean`, their standard deviation `std` (divided by n - 1), and `explained`. `explained` is the fraction
        of the variation of the result that the axis explains, from 0 to 1; the fraction is NaN if all results
        are equal. This fraction is eta squared: the sum of squares between the axis's values, divided by the
        total sum of squares. Source: Fisher (1925), Statistical Methods for Research Workers, as the squared
        correlation ratio.

        In a complete grid the fractions add up to at most 1; the rest is chance, or interactions of axes. If
        combinations are missing, or some have more runs than others, axes can be correlated and explain the
        same variation, so the sum can exceed 1. An axis with more values explains more, also by chance.

        An axis of a sample or a search, in which hardly any value occurs twice, is cut into five ranges with
        equally many settings; a value in many settings leaves fewer ranges. It has a row per range;
        `value` has both ends of the range.

        Repeat axes have no rows. With repeat axes, each setting counts once, by its mean over the repeats; `n`
        is the number of settings with the value; the variation includes that between repeats. `low` and `high`
        are the 95 % interval of the mean of these settings, by the standard deviation between repeats, pooled
        over these settings. `sentence` names the result, and says if the fractions may overlap.

    Raises:
        InvalidArgumentError: `goal` names no column of numbers, `repeats` names no hyperparameter, or `goal`
            is not given and no run has an accuracy or a loss.

    Example:
        >>> runs = pd.DataFrame({"lr": [0.1, 0.1, 0.01, 0.01], "accuracy": [0.75, 0.75, 0.5, 0.5]})
        >>> runs.attrs["hyperparameters"] = ["lr"]  # load_runs() sets them
        >>> effects(runs)
          axis value  n  mean  std  explained
        0   lr   0.1  2  0.75  0.0        1.0
        1   lr  0.01  2  0.50  0.0        1.0
    """
    check_table(runs, needs_axes=True)
    value = goals_of(runs, f"max:{goal}" if goal in runs else goal)[0].metric  # the direction does not matter
    averaged, is_assumed = repeats_of(runs, repeats)
    check_comparable(runs, averaged)
    numbers, axes, within = completed(runs, value), axes_of(runs), None
    if averaged:
        group, runs = settings_without(runs, averaged)
        within = describe(numbers, group)
        numbers, axes = within["mean"], [*map(str, runs)]
    total = ((numbers - numbers.mean()) ** 2).sum()
    if within is not None:
        total += (within["std"] ** 2 * (1 - 1 / within["n"])).sum()  # what the repeats of a setting differ by
    varies = numbers.min() < numbers.max()  # `total` of equal numbers may exceed 0 by rounding
    tables, parts = [], []
    for axis in axes:
        is_cut = is_sampled(runs[axis].tolist())  # into ranges
        codes, values = in_parts(runs[axis]) if is_cut else numbered(runs[axis])
        if len(values) < 2:  # noqa: PLR2004 - it does not vary
            continue
        parts.append(codes[numbers.notna().to_numpy()])
        table = describe(numbers, codes)
        between = (table["n"] * (table["mean"] - numbers.mean()) ** 2).sum()
        table["explained"] = between / total if varies else math.nan
        if within is not None:
            half = within.groupby(codes).apply(_half_interval)
            table = table.assign(low=table["mean"] - half, high=table["mean"] + half)
        tables.append(table.assign(axis=axis, value=pd.Series(values, table.index, dtype="object")))
    interval = ["low", "high"] if averaged else []
    columns = ["axis", "value", "n", "mean", "std", *interval, "explained"]
    tables.sort(key=lambda table: -table["explained"].iloc[0])
    counts = pd.Series(zip(*parts, strict=True), dtype="object").value_counts()
    is_complete = len(counts) == math.prod(len(np.unique(codes)) for codes in parts)
    are_unequal = len(parts) > 1 and not (is_complete and counts.nunique() < 2)  # noqa: PLR2004
    return with_sentence(
        pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns),
        f"explained: each axis's share of the variation of {value} between all runs",
        "combinations are missing or unequal in number, so the shares overlap and may add up to more than 1"
        if are_unequal
        else "",
        "" if tables else "no hyperparameter varies",
        assumption(averaged) if is_assumed else "",
    )


def _half_interval(settings: pd.DataFrame) -> float:
    """Return half the width of the interval of settings' mean, from the variance between repeats."""
    counted = settings[settings["n"] > 0]
    variance, freedom = _pooled(zip(counted["n"].tolist(), counted["std"].tolist(), strict=True))
    error = math.sqrt(variance * (1 / counted["n"]).sum()) / len(counted) if freedom else math.nan
    return float(t_quantile(freedom) * error)


def changes(runs: pd.DataFrame, ranking: Ranking) -> dict[str, float]:
    """Return the mean absolute change of the goal with each hyperparameter that varies, the largest first."""
    table = runs.iloc[[setting.rows[0] for setting in ranking.settings]]
    means = pd.Series([setting.mean for setting in ranking.settings], dtype=float)
    sizes = {}
    for axis in axes_of(runs, ranking.repeats):
        codes, values = numbered(table[axis])
        if len(values) > 1:
            group, _ = settings_without(table, [axis, *ranking.repeats])
            cells = means.groupby([group, codes]).mean().sort_values()
            rank, size = cells.groupby(level=0).cumcount(), cells.groupby(level=0).transform("size")
            num_pairs = (size - 1).sum() / 2
            total = math.fsum((2 * rank - size + 1) * cells)  # in sorted order, the sum over all pairs
            sizes[axis] = total / num_pairs if num_pairs else math.nan
    return dict(sorted(sizes.items(), key=lambda item: math.inf if math.isnan(item[1]) else -item[1]))


def by_chance(ranking: Ranking) -> float:
    """Estimate the mean absolute difference between the means of equal settings; NaN without repeats."""
    variance, _ = _pooled((setting.number, setting.statistics[0]["std"]) for setting in ranking.settings)
    return 2 * math.sqrt(variance * mean_of([1 / setting.number for setting in ranking.settings]) / math.pi)


def _pooled(parts: Iterable[tuple[int, float]]) -> tuple[float, int]:
    """Return the variance within parts, given by number and standard deviation, and its degrees of freedom."""
    several = [(number - 1, std) for number, std in parts if number > 1]
    freedom = sum(number for number, _ in several)
    return math.fsum(number * std * std for number, std in several) / (freedom or math.nan), freedom

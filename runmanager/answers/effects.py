"""The effects of hyperparameters on a result: by pairs of runs, and as a fraction of the variation.

The functions take the table of `load_runs`, or rows of it. Only completed runs count, as in `best`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from runmanager.answers.evidence import difference
from runmanager.answers.ranking import (
    ASSUMED,
    axes_of,
    check_comparable,
    completed,
    default_metric,
    describe,
    numbered,
    own_goals,
    repeats_of,
    settings_without,
    t_quantile,
)
from runmanager.answers.sampled import in_parts, is_sampled
from runmanager.answers.usual_goals import assumption
from runmanager.core.values import text
from runmanager.core.wording import printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables.columns import HYPERPARAMETERS, Numbers, beside, check_table

OVERALL, DIFFERENCES, LEFT_OUT, COMPARED, AXIS = "overall", "differences", "left out", "compared", "axis"
"""The keys in the `attrs` of a table of `compare`: ratios, differences, missing pairs, column, axis."""

EXPLAINED = "explained"
"""The key in the `attrs` of a table of `effects`: the column whose variation is explained."""

OVERLAP = "overlap"
"""The key in the `attrs` of a table of `effects`: a sentence if the fractions of the axes overlap, else ""."""

NO_RUN = "no such run"
"""The reason why a pair is left out if the table has only one of its two runs."""

_OVERLAP = (
    "combinations are missing, so the shares overlap and may add up to more than 100 %; the report compares "
    "settings that differ in one axis alone"
)
_FOR_SPEED = ("device", "num_workers", "persistent_workers", "pin_memory", "prefetch_factor")


def compare(runs: pd.DataFrame, axis: str = "device", value: str | None = None) -> pd.DataFrame:
    """Pair runs that differ in one hyperparameter only.

    Source of the mean of ratios: Fleming and Wallace (1986), How Not to Lie with Statistics. The interval of
    the differences is the interval of `verdict`.

    Args:
        runs: The table of `load_runs`, or rows of it.
        axis: The hyperparameter, or "experiment" for the runs of `load_runs([a, b])`. For "experiment", a
            hyperparameter with a single value in each experiment is not part of the setting.
        value: The column to compare. By default, `compare` uses the epoch duration if `axis` is a device or a
            setting of the data loader, else the metric that decides, as in `best`.

    Returns:
        One row per setting: the other hyperparameters that vary, then a column per value of `axis`. Repeat axes
        are among the other hyperparameters, so runs are paired repeat by repeat. Runs with the same
        hyperparameters are averaged. The value that has results in the largest number of settings comes first,
        of several such values the first in the table; `verdict` compares the best value with the others.
        Each other value has its difference from the first and its ratio to the first: ``cpu vs cuda`` is how
        much more the cpu takes, ``cpu / cuda`` how many times as much. A value of `axis` without any result,
        such as a missing device, is left out if two other values have results.

        ``attrs["overall"]`` has a dict per ratio: its name `ratio`, the number of pairs `n`, and their
        geometric `mean`. `low` and `high` are its 95 % interval, by Student's t of the logarithms. One pair has
        no interval. If a ratio is 0 or negative, there is no geometric mean either. ``attrs["differences"]``
        has a dict per `difference`, with the arithmetic mean. The interval of the differences stays valid if
        repeats are added, and exists from six pairs on. ``attrs["left out"]`` counts the pairs left out by
        reason, ``attrs["compared"]`` is the column, ``attrs["axis"]`` the axis. `show` writes all of these
        attributes as sentences.

    Raises:
        InvalidArgumentError: `axis` names no hyperparameter of these runs, `value` names no column of numbers,
            or no two runs differ in `axis` alone, as in a sample or a search of ranges.

    Example:
        >>> runs = pd.DataFrame(
        ...     {"lr": [0.1, 0.1], "device": ["cuda", "cpu"], "epoch duration": [2.0, 5.0]}
        ... )
        >>> runs.attrs["hyperparameters"] = ["lr", "device"]  # load_runs() sets them
        >>> compare(runs)
           cuda  cpu  cpu vs cuda  cpu / cuda
        0   2.0  5.0          3.0         2.5
    """
    pairs = paired(runs, axis, value)
    if pairs.empty and axis != "experiment" and any(is_sampled(runs[name].tolist()) for name in axes_of(runs)):
        fact = f"no two completed runs differ in {printable(axis)} alone"
        raise InvalidArgumentError([f"{fact}: importances() says what matters in a sample or a search"])
    return pairs


@np.errstate(over="ignore", invalid="ignore")  # the mean of huge numbers may overflow to infinity or NaN
def paired(runs: pd.DataFrame, axis: str, value: str | None) -> pd.DataFrame:
    """Pair runs as `compare` does; without pairs, return a table without rows."""
    check_table(runs, needs_axes=True)
    if value is None:
        goals = [] if axis in _FOR_SPEED else own_goals(runs)
        value = goals[0].metric if goals else "epoch duration"
    check_comparable(runs, [axis], [value])
    codes, values = numbered(runs[axis])
    group, table = settings_without(runs, [axis, *(told_apart(runs, codes) if axis == "experiment" else [])])
    # a lone surrogate is not valid in the name of a column
    names = [text(value).encode("utf-8", "backslashreplace").decode() for value in values]
    if _is_ambiguous(names) or not {*names}.isdisjoint(table):
        names = [repr(value) for value in values]
    means = completed(runs, value).groupby([group, codes]).mean().unstack()  # noqa: PD010 - of a Series
    sides = pd.DataFrame({name: means[code] for code, name in enumerate(names)}, index=table.index)
    counts = sides.notna().sum()
    measured = [name for name in names if counts[name]]
    listed = measured if len(measured) > 1 else names
    first = max(listed, key=lambda name: counts[name], default="")
    others = [name for name in listed if name != first]
    pairs = sides[[first, *others] if listed else []]
    is_paired = (
        sides[first].notna() & sides[others].notna().any(axis="columns") if others else [False] * len(sides)
    )
    pairs, table = (part[is_paired].reset_index(drop=True) for part in (pairs, table))
    differences = {f"{name} vs {first}": pairs[name] - pairs[first] for name in others}
    ratios = {f"{name} / {first}": pairs[name] / pairs[first] for name in others}
    pairs = beside(table, beside(pairs, pd.DataFrame({**differences, **ratios}, index=pairs.index)))
    pairs.attrs = {}
    pairs.attrs[OVERALL] = [_overall(name, ratio.dropna()) for name, ratio in ratios.items()]
    pairs.attrs[DIFFERENCES] = [
        {"difference": name, "n": lead.n, "mean": lead.mean, "low": lead.low, "high": lead.high}
        for name, column in differences.items()
        for lead in [difference(column.dropna(), num_pairs=len(others))]
    ]
    pairs.attrs[LEFT_OUT] = _left_out(runs, group, codes, sides, names.index(first)) if others else {}
    pairs.attrs |= {COMPARED: value, AXIS: axis, HYPERPARAMETERS: list(table)}
    return pairs


def _is_ambiguous(names: Sequence[str]) -> bool:
    """Whether two values have the same name, or a value is named like a difference or ratio of others."""
    distinct = set(names)
    parts = ((name.split(sign), sign) for name in names for sign in (" vs ", " / "))
    return len(distinct) < len(names) or any(
        sign.join(split[:end]) in distinct and sign.join(split[end:]) in distinct
        for split, sign in parts
        for end in range(1, len(split))
    )


def told_apart(runs: pd.DataFrame, experiments: Numbers) -> list[str]:
    """Return the hyperparameters that have a single value in each experiment."""
    names = [name for name in axes_of(runs) if name != "experiment"]
    return [n for n in names if pd.Series(numbered(runs[n])[0]).groupby(experiments).nunique().max() == 1]


def _left_out(
    runs: pd.DataFrame, group: Numbers, codes: Numbers, sides: pd.DataFrame, first: int
) -> dict[str, int]:
    """Count the pairs that have a run but lack a result, separately for each reason."""
    statuses = runs["status"].astype(str) if "status" in runs else ["completed"] * len(runs)
    reasons: dict[tuple[int, int], str] = {}
    for setting, code, status in zip(group, codes, statuses, strict=True):
        reasons[setting, code] = "no number" if status == "completed" else status
    left_out: Counter[str] = Counter()
    for setting, is_there in enumerate(sides.notna().to_numpy()):
        for code in range(len(sides.columns)):
            cells = [(setting, code), (setting, first)]
            if code == first or not any(cell in reasons for cell in cells) or all(is_there[[code, first]]):
                continue
            lacking = [cell for cell in cells if not is_there[cell[1]]]
            left_out[min((reasons.get(cell, NO_RUN) for cell in lacking), key=lambda why: why == NO_RUN)] += 1
    return dict(left_out.most_common())


@np.errstate(over="ignore", invalid="ignore")  # the mean of huge numbers may overflow
def effects(
    runs: pd.DataFrame, value: str | None = None, *, repeats: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Return the influence of each hyperparameter on a result, and the mean of each of its values.

    Args:
        runs: The table of `load_runs`, or rows of it.
        value: The column of the result; by default the metric that decides, as in `best`.
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
        combinations are missing, axes can be correlated and explain the same variation, so the sum can exceed
        1. An axis with more values explains more, also by chance.

        An axis of a sample or a search, in which hardly any value occurs twice, is cut into five ranges with
        equally many settings; a value in many settings leaves fewer ranges. It has a row per range;
        `value` has both ends of the range.

        Repeat axes have no rows. With repeat axes, each setting counts once, by its mean over the repeats; `n`
        is the number of settings with the value. `low` and `high` are the 95 % interval of the mean of these
        settings, by the standard deviation between repeats, pooled over these settings.

    Raises:
        InvalidArgumentError: `value` names no column of numbers, `repeats` names no hyperparameter, or `value`
            is not given and no run has an accuracy or a loss.

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
    check_table(runs, needs_axes=True)
    averaged, is_assumed = repeats_of(runs, repeats)
    check_comparable(runs, averaged, [])
    numbers = completed(runs, value)
    within = None
    if averaged:
        group, settings = settings_without(runs, averaged, all_of_them=True)
        within = describe(numbers, group)
        settings.attrs[HYPERPARAMETERS] = [name for name in axes_of(runs) if name in settings]
        runs, numbers = settings, within["mean"]
    total = ((numbers - numbers.mean()) ** 2).sum()
    varies = total and numbers.min() < numbers.max()  # `total` of equal numbers may exceed 0 by rounding
    tables, parts = [], []
    for axis in axes_of(runs):
        codes, values = _parts(runs[axis])
        if len(values) > 1:
            parts.append(codes[numbers.notna().to_numpy()])
            table = describe(numbers, codes)[["n", "mean", "std"]]
            between = (table["n"] * (table["mean"] - numbers.mean()) ** 2).sum()
            table["explained"] = between / total if varies else math.nan
            if within is not None:
                half = within.groupby(codes).apply(_half_interval)
                table = table.assign(low=table["mean"] - half, high=table["mean"] + half)
            labels = pd.Series(values, table.index, dtype="object")
            tables.append(table.assign(axis=axis, value=labels))
    interval = ["low", "high"] if averaged else []
    columns = ["axis", "value", "n", "mean", "std", *interval, "explained"]
    tables.sort(key=lambda table: -table["explained"].iloc[0])
    effects = pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)
    effects.attrs = {EXPLAINED: value, ASSUMED: assumption(averaged) if is_assumed else ""}
    effects.attrs[OVERLAP] = "" if len(parts) < 2 or _is_complete(parts) else _OVERLAP  # noqa: PLR2004
    return effects


def _is_complete(parts: Sequence[Numbers]) -> bool:
    """Whether each combination of the values of the axes has the same number of results."""
    counts = Counter(zip(*(codes.tolist() for codes in parts), strict=True))
    return len(counts) == math.prod(len(set(codes.tolist())) for codes in parts) and len({*counts.values()}) < 2  # noqa: PLR2004


def _parts(column: "pd.Series[Any]") -> tuple[Numbers, list[Any]]:
    """Number the values of an axis; cut a sampled axis into ranges, and number the ranges."""
    return in_parts(column) if is_sampled(column.tolist()) else numbered(column)


def _half_interval(settings: pd.DataFrame) -> float:
    """Return half the width of the interval of settings' mean, from the variance between repeats."""
    counted = settings[settings["n"] > 0]
    freedom = (counted["n"] - 1).sum()
    if not freedom:
        return math.nan
    variance = ((counted["n"] - 1) * counted["std"].fillna(0.0) ** 2).sum() / freedom
    return float(t_quantile(freedom) * math.sqrt(variance * (1 / counted["n"]).sum()) / len(counted))


def _overall(name: str, ratios: "pd.Series[float]") -> dict[str, Any]:
    """Describe ratios by their geometric mean, which treats a ratio and its inverse alike."""
    logarithms = ratios.where((ratios > 0) & np.isfinite(ratios)).map(np.log)
    statistics = describe(logarithms, np.zeros(len(ratios))).reindex([0]).iloc[0]
    if logarithms.isna().any():
        statistics *= math.nan
    means = {key: float(np.exp(statistics[key])) for key in ("mean", "low", "high")}
    return {"ratio": name, "n": len(ratios), **means}

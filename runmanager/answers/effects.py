"""What hyperparameters do to a result: pair by pair, and as a share of its variation.

The functions take what `load_runs` returned, or rows of it. Only completed runs count, as in `best`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from runmanager.answers.evidence import difference
from runmanager.answers.sampled import in_parts, is_sampled
from runmanager.errors import InvalidArgumentError
from runmanager.hyperparameters import text
from runmanager.storage.design import assumption
from runmanager.tables.columns import HYPERPARAMETERS, Numbers, beside, check_table
from runmanager.tables.ranking import (
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
from runmanager.wording import printable

OVERALL, DIFFERENCES, LEFT_OUT, COMPARED, AXIS = "overall", "differences", "left out", "compared", "axis"
"""The keys in the `attrs` of what `compare` returns: ratios, differences, missing pairs, column, axis."""

EXPLAINED = "explained"
"""The key in the `attrs` of what `effects` returns: the column whose variation is explained."""

NO_RUN = "no such run"
"""Why a pair is left out of which the grid has one side only."""

_FOR_SPEED = ("device", "num_workers", "persistent_workers", "pin_memory", "prefetch_factor")


def compare(runs: pd.DataFrame, axis: str = "device", value: str | None = None) -> pd.DataFrame:
    """Pair runs that differ in one hyperparameter only.

    Source of the mean of ratios: Fleming and Wallace (1986), How Not to Lie with Statistics. The interval of
    differences is that of `verdict`.

    Args:
        runs: What `load_runs` returned, or rows of it.
        axis: The hyperparameter, or "experiment" for the runs of `load_runs([a, b])`: hyperparameters of which
            each experiment has one value belong to it, not to the setting.
        value: The column to compare; by default the epoch duration between devices and numbers of workers, and
            between all others the metric that decides, as in `best`.

    Returns:
        One row per setting, that is per combination of the other hyperparameters, repeat axes included, so that
        runs are paired repeat by repeat: those that vary, and a column per value of `axis`. Each value but the
        first has its difference from the first, and its ratio to it. ``cpu / cuda`` is how many times as long
        the cpu takes. Runs with the same hyperparameters are averaged. The first is the value that most
        settings have a number of. A value of `axis` without any number, such as a missing device, is left out
        if two others have some.

        ``attrs["overall"]`` has a dict per ratio: its name `ratio`, the number of pairs `n`, and their
        geometric `mean`. `low` and `high` are its 95 % interval, by Student's t of the logarithms. One pair has
        no interval. If a ratio is not above 0, there is no mean either. ``attrs["differences"]`` has the same
        per `difference`, with the arithmetic mean and an interval that holds however many repeats are added,
        from six pairs on. ``attrs["left out"]`` has why pairs were left out -> how many, ``attrs["compared"]``
        the column, ``attrs["axis"]`` the axis. `show` writes them as sentences.

    Raises:
        InvalidArgumentError: `axis` is not a hyperparameter of these runs, or `value` not a column of numbers;
            or no two runs differ in `axis` alone, as in a sample or a search of ranges.

    Example:
        >>> runs = pd.DataFrame(
        ...     {"lr": [0.1, 0.1], "device": ["cuda", "cpu"], "epoch duration": [2.0, 5.0]}
        ... )
        >>> runs.attrs["hyperparameters"] = ["lr", "device"]  # load_runs() sets them
        >>> compare(runs)
           cuda  cpu  cpu - cuda  cpu / cuda
        0   2.0  5.0         3.0         2.5
    """
    pairs = paired(runs, axis, value)
    if pairs.empty and axis != "experiment" and any(is_sampled(runs[name].tolist()) for name in axes_of(runs)):
        fact = f"no two completed runs differ in {printable(axis)} alone"
        raise InvalidArgumentError([f"{fact}: importances() says what matters in a sample or a search"])
    return pairs


@np.errstate(over="ignore", invalid="ignore")  # what is too large has no mean
def paired(runs: pd.DataFrame, axis: str, value: str | None) -> pd.DataFrame:
    """Pair runs as `compare` does; return a table without rows where there are no pairs."""
    check_table(runs)
    if value is None:
        goals = [] if axis in _FOR_SPEED else own_goals(runs)
        value = goals[0].metric if goals else "epoch duration"
    check_comparable(runs, [axis], [value])
    codes, values = numbered(runs[axis])
    group, table = settings_without(runs, [axis, *(told_apart(runs, codes) if axis == "experiment" else [])])
    # half a surrogate pair is no name of a column
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
    differences = {f"{name} - {first}": pairs[name] - pairs[first] for name in others}
    ratios = {f"{name} / {first}": pairs[name] / pairs[first] for name in others}
    pairs = beside(table, beside(pairs, pd.DataFrame({**differences, **ratios}, index=pairs.index)))
    pairs.attrs = {}
    pairs.attrs[OVERALL] = [_overall(name, ratio.dropna()) for name, ratio in ratios.items()]
    pairs.attrs[DIFFERENCES] = [
        {"difference": name, **difference(column.dropna(), num_pairs=len(others))._asdict()}
        for name, column in differences.items()
    ]
    pairs.attrs[LEFT_OUT] = _left_out(runs, group, codes, sides, names.index(first)) if others else {}
    pairs.attrs |= {COMPARED: value, AXIS: axis, HYPERPARAMETERS: list(table)}
    return pairs


def _is_ambiguous(names: Sequence[str]) -> bool:
    """Whether a value is written as another one, which `text` may shorten, or as what two others make."""
    distinct = set(names)
    parts = ((name.split(sign), sign) for name in names for sign in (" - ", " / "))
    return len(distinct) < len(names) or any(
        sign.join(split[:end]) in distinct and sign.join(split[end:]) in distinct
        for split, sign in parts
        for end in range(1, len(split))
    )


def told_apart(runs: pd.DataFrame, experiments: Numbers) -> list[str]:
    """Return the hyperparameters that only tell experiments apart: each has one value of them."""
    names = [name for name in axes_of(runs) if name != "experiment"]
    return [n for n in names if pd.Series(numbered(runs[n])[0]).groupby(experiments).nunique().max() == 1]


def _left_out(
    runs: pd.DataFrame, group: Numbers, codes: Numbers, sides: pd.DataFrame, first: int
) -> dict[str, int]:
    """Count the pairs with a run on either side that lack a number, by why they do."""
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


def speeds(pairs: pd.DataFrame) -> list[str]:
    """Say which device is faster by how much, a sentence for each pair of devices that `compare` has set."""
    sentences = []
    for overall in pairs.attrs[OVERALL]:
        other, _, first = printable(str(overall["ratio"])).partition(" / ")
        ratio, low, high = overall["mean"], overall["low"], overall["high"]
        if not math.isfinite(ratio) or ratio <= 0:
            continue
        faster, slower = (first, other) if ratio > 1 else (other, first)
        if ratio < 1:
            ratio, low, high = 1 / ratio, 1 / high, 1 / low
        number = "one pair" if overall["n"] == 1 else f"{overall['n']} pairs"
        interval = f", 95 % interval {low:.2f} to {high:.2f}" if math.isfinite(low) else ""
        sentences.append(
            f"An epoch on {faster} is {ratio:.2f} times as fast as on {slower} ({number}{interval})."
        )
    return sentences


@np.errstate(over="ignore", invalid="ignore")  # as above
def effects(
    runs: pd.DataFrame, value: str | None = None, *, repeats: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Return how much each hyperparameter matters for a result, and the mean of each of its values.

    Args:
        runs: What `load_runs` returned, or rows of it.
        value: The column of the result; by default the metric that decides, as in `best`.
        repeats: The axes that only repeat a setting, as in `best`.

    Returns:
        One row per value of each hyperparameter that varies, the one that explains most first: `axis`, `value`,
        how many runs have it (`n`), their `mean`, and their standard deviation `std` (divided by n - 1).
        `explained` is the share of the variation of the result that the axis explains, from 0 to 1; it is NaN
        if nothing varies. This is eta squared: the sum of squares between its values, divided by the total.
        Source: Fisher (1925), Statistical Methods for Research Workers, as the squared correlation ratio.

        In a grid with all its combinations the shares add up to at most 1; the rest is chance, or two axes
        together. Where combinations are missing, axes that vary together share what they explain, and the sum
        can exceed 1. The more values an axis has, the more it explains, also by chance.

        An axis of a sample or a search, of which hardly any value occurs twice, has a row for each of five
        ranges of as many settings each; `value` says from where to where.

        With repeat axes, which are no axes here, the mean of each setting over its repeats counts once. `n` is
        how many settings have the value. `low` and `high` are the 95 % interval of their mean, by the spread
        between repeats, pooled over these settings.

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
    averaged, is_assumed = repeats_of(runs, repeats)
    check_comparable(runs, averaged, [value])
    numbers = completed(runs, value)
    within = None
    if averaged:
        group, settings = settings_without(runs, averaged, all_of_them=True)
        within = describe(numbers, group)
        settings.attrs[HYPERPARAMETERS] = [name for name in axes_of(runs) if name in settings]
        runs, numbers = settings, within["mean"]
    total = ((numbers - numbers.mean()) ** 2).sum()
    varies = total and numbers.min() < numbers.max()  # 0.1 + 0.1 + 0.1 is more than 3 * 0.1
    tables = []
    for axis in axes_of(runs):
        codes, values = _parts(runs[axis])
        if len(values) > 1:
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
    return effects


def _parts(column: "pd.Series[Any]") -> tuple[Numbers, list[Any]]:
    """Number the values of an axis, of a range its parts."""
    return in_parts(column) if is_sampled(column.tolist()) else numbered(column)


def _half_interval(settings: pd.DataFrame) -> float:
    """Return half the interval of the mean of settings, from the spread between the repeats of each."""
    counted = settings[settings["n"] > 0]
    freedom = (counted["n"] - 1).sum()
    if not freedom:
        return math.nan
    variance = ((counted["n"] - 1) * counted["std"].fillna(0.0) ** 2).sum() / freedom
    return float(t_quantile(freedom) * math.sqrt(variance * (1 / counted["n"]).sum()) / len(counted))


def _overall(name: str, ratios: "pd.Series[float]") -> dict[str, Any]:
    """Describe ratios by their geometric mean, as a ratio and its inverse count the same."""
    logarithms = ratios.where((ratios > 0) & np.isfinite(ratios)).map(np.log)
    statistics = describe(logarithms, np.zeros(len(ratios))).reindex([0]).iloc[0]
    if logarithms.isna().any():
        statistics *= math.nan
    means = {key: float(np.exp(statistics[key])) for key in ("mean", "low", "high")}
    return {"ratio": name, "n": len(ratios), **means}

"""Which runs are best: one by one, and on average over repeat axes.

The functions take what `load_runs` returned, or rows of it. Means count completed runs only: a run that was
stopped early has numbers too, but of fewer epochs. In a table without the column `status`, all runs count.
"""

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from scipy.special import stdtrit

from runmanager.errors import InvalidArgumentError, Problems
from runmanager.goal import Goal, default_goal, is_larger_better, parse_goal
from runmanager.outcome import Status
from runmanager.results.decisive import goal_of, metrics_of, repeats_of
from runmanager.results.tables import KEPT, Numbers, beside, check_table, hyperparameters_of
from runmanager.storage.identity import canonical
from runmanager.wording import did_you_mean

REPEATED = "all repeats"
"""The column with how many runs a setting has."""

FAILED_REPEATS = "failed repeats"
"""The column with how many runs of a setting have no result and never will."""

AVERAGED, RANKED = "averaged", "ranked"
"""The keys in the `attrs` of what `over_repeats` and `best` return: the columns; what is best, as a `Goal`."""

_CONFIDENCE = 0.95
_SEED = "seed"


def best(
    runs: pd.DataFrame,
    by: str | None = None,
    n: int | None = None,
    *,
    largest: bool | None = None,
    repeats: str | Sequence[str] | None = None,
) -> pd.DataFrame:
    """Sort runs, the best first; where settings are repeated, sort settings by their mean.

    Args:
        runs: What `load_runs` returned, or rows of it, or of `load_results`.
        by: The column, or "max:<column>", "min:<column>". By default the goal of ``run_grid(goal=...)``, else
            the metric of ``keep=``. Without both, it is the first accuracy of validation, test and training,
            else the first loss. Where the best weights are kept, a goal counts at their epoch: the column `kept
            accuracy`. ``"best accuracy"`` is the accuracy of the best epoch.
        n: How many rows to return; all by default.
        largest: Whether large values are good. By default it follows from the name; where that does not tell,
            say it.
        repeats: The axes that only repeat a setting; by default those of ``run_grid(repeats=...)``. With ``()``
            runs are sorted one by one.

    Returns:
        The rows, those without a finite number last; of equal ones the first in `runs` is first. With repeat
        axes, one row per setting: the other hyperparameters, and for the column, such as `accuracy`, what
        `over_repeats` returns, over completed runs; `all repeats` is how many runs the setting has. Settings
        with a single completed run come after all that have more, as it may be luck.

    Raises:
        InvalidArgumentError: There is no such column, it does not hold numbers, or `largest` has to be given.

    Example:
        >>> runs = pd.DataFrame({"run": [1, 2, 3], "accuracy": [0.81, 0.86, 0.79]})
        >>> best(runs, n=2)
           run  accuracy
        1    2      0.86
        0    1      0.81
    """
    goal = deciding(runs, by, largest=largest, n=n)
    axes = repeats_of(runs, repeats)
    if axes and not are_epochs(runs):
        check_comparable(runs, axes, [goal.metric])
        group, settings = settings_without(runs, axes, all_of_them=True)
        sizes = pd.Series(np.bincount(group), name=REPEATED)
        statistics = pd.concat([_statistics(runs, group, [goal.metric]), sizes], axis="columns")
        table = beside(settings, statistics)
        table.attrs[AVERAGED] = [goal.metric]
        numbers, counts = table[f"{goal.metric} mean"], table[f"{goal.metric} n"]
        is_single = (counts < 2) & (counts.max() > 1)  # noqa: PLR2004 - repeats
    else:
        table, numbers = runs, _finite(runs[goal.metric]).reset_index(drop=True)
        is_single = numbers.isna()
    keys = pd.DataFrame({"single": is_single, "number": -goal.sign * numbers})
    order = keys.sort_values(["single", "number"], kind="stable").index
    ranked = table.iloc[order[:n]]
    ranked.attrs = {**table.attrs, RANKED: tuple(goal)}
    return ranked


def over_repeats(
    runs: pd.DataFrame,
    axes: str | Sequence[str] | None = None,
    values: str | Sequence[str] | None = None,
) -> pd.DataFrame:
    """Average the runs of each setting over its repeats.

    Source of the interval: Student (1908), The Probable Error of a Mean, Biometrika 6.

    Args:
        runs: What `load_runs` returned, or rows of it.
        axes: The repeat axes: the hyperparameters that only repeat a setting. By default those of
            ``run_grid(repeats=...)``, else `seed`.
        values: The columns to average; by default the one that `best` sorts by.

    Returns:
        One row per setting, with the other hyperparameters that vary. Each value, such as `accuracy`, has five
        columns. `accuracy n` is how many completed runs have it, `accuracy mean` their mean. `accuracy std` is
        the standard deviation of the runs, divided by n - 1. `accuracy low` and `accuracy high` are the 95 %
        interval of the mean, by Student's t. A single run has neither spread nor interval. Where runs failed,
        `failed repeats` has how many runs of the setting failed, diverged, hung or were killed.

    Raises:
        InvalidArgumentError: One of `axes` is not a hyperparameter of these runs, or one of `values` is not a
            column of numbers; without `values`, no run has a metric that decides.

    Example:
        >>> runs = pd.DataFrame({"lr": [0.1, 0.1, 0.01], "seed": [0, 1, 0], "accuracy": [0.7, 0.9, 0.6]})
        >>> runs.attrs["hyperparameters"] = ["lr", "seed"]  # load_runs() sets them
        >>> over_repeats(runs, axes=["seed"])[["lr", "accuracy n", "accuracy mean"]]
             lr  accuracy n  accuracy mean
        0  0.10           2            0.8
        1  0.01           1            0.6
    """
    check_table(runs)
    repeats = repeats_of(runs, axes) or [_SEED]
    if values is None:
        values = default_metric(runs, "values=['f1']")
    names = [values] if isinstance(values, str) else list(values)
    check_comparable(runs, repeats, names)
    group, table = settings_without(runs, repeats)
    averages = beside(table, _statistics(runs, group, names))
    averages.attrs = {AVERAGED: names}
    return averages


def over_seeds(
    runs: pd.DataFrame, axis: str = _SEED, values: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Average the runs of each setting over their seeds: `over_repeats` with one axis.

    Args:
        runs: What `load_runs` returned, or rows of it.
        axis: The hyperparameter that only repeats a setting.
        values: The columns to average; by default the one that `best` sorts by.

    Returns:
        What `over_repeats` returns: one row per setting.

    Raises:
        InvalidArgumentError: As `over_repeats`.

    Example:
        >>> runs = pd.DataFrame({"lr": [0.1, 0.1, 0.01], "seed": [0, 1, 0], "accuracy": [0.7, 0.9, 0.6]})
        >>> runs.attrs["hyperparameters"] = ["lr", "seed"]  # load_runs() sets them
        >>> over_seeds(runs)["accuracy mean"].tolist()
        [0.8, 0.6]
    """
    return over_repeats(runs, [axis], values)


def deciding(
    runs: pd.DataFrame, by: str | None = None, *, largest: bool | None = None, n: int | None = None
) -> Goal:
    """Return the column that decides and its direction, as `best` takes them.

    Raises:
        InvalidArgumentError: They cannot be used; with all problems, those of `n` too.
    """
    check_table(runs)
    if by is None:
        goal = _default(runs, "by='f1' (--by f1)")
    else:
        which, _, name = by.partition(":")
        goal = parse_goal(by) if which in ("max", "min") and name and by not in runs else Goal(by, 0)
    problems = Problems(_without_numbers(runs, [goal.metric]))
    is_larger: bool | None = goal.is_larger_better
    if not goal.sign:
        is_larger = is_larger_better(goal.metric)
        own = _of_column(runs, goal.metric)
        is_larger = own.is_larger_better if own and is_larger is None else is_larger
    is_larger = is_larger if largest is None else largest
    if is_larger is None and not problems:
        rule = f"whether large values of {goal.metric!r} are good is not known"
        problems.append(f"{rule}: give largest=True or largest=False (--largest or --smallest)")
    if n is not None:
        problems.check_count("n", n, 0)
    problems.raise_if_any(InvalidArgumentError)
    return Goal(goal.metric, 1 if is_larger else -1)


def main_metric(runs: pd.DataFrame) -> str | None:
    """Return the column that `best` sorts by unless asked otherwise, None if no such column has a number."""
    goal = goal_of(runs)
    return goal.metric if goal else None


def default_metric(runs: pd.DataFrame, example: str) -> str:
    """Return the column that `best` sorts by.

    Raises:
        InvalidArgumentError: No run has a metric that decides; the message shows how to name a column.
    """
    return _default(runs, example).metric


def _default(runs: pd.DataFrame, example: str) -> Goal:
    goal = goal_of(runs)
    if goal is None:
        raise InvalidArgumentError([f"no run has an accuracy or a loss: name the column, as {example}"])
    return goal


def _of_column(runs: pd.DataFrame, column: str) -> Goal | None:
    """Return the goal if its metric is in this column."""
    with contextlib.suppress(InvalidArgumentError):
        goal = goal_of(runs)
        if goal and column.removeprefix("best ").removeprefix(KEPT) == goal.metric.removeprefix(KEPT):
            return goal
    return None


def numbered(column: "pd.Series[Any]") -> tuple[Numbers, list[Any]]:
    """Number the values of a hyperparameter as they appear; values with the same `canonical` form are one."""
    is_object = column.dtype == object
    keys = [json.dumps(canonical(value)) for value in column] if is_object else column.to_numpy()
    codes, _ = pd.factorize(np.asarray(keys), use_na_sentinel=False)
    firsts = np.unique(codes, return_index=True)[1]
    return codes, column.iloc[firsts].tolist()


def axes_of(runs: pd.DataFrame) -> list[str]:
    """Return the hyperparameters of runs, and `experiment` if there are several."""
    return [name for name in ("experiment", *hyperparameters_of(runs)) if name in runs]


def check_comparable(runs: pd.DataFrame, axes: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse runs that cannot be compared by these hyperparameters and columns.

    Raises:
        InvalidArgumentError: An axis is missing, a column does not hold numbers, or the rows are epochs.
    """
    params = axes_of(runs)
    problems = Problems(
        f"these runs have no hyperparameter {axis!r}; {did_you_mean(axis, params)}"
        for axis in axes
        if axis not in params
    )
    problems += _without_numbers(runs, columns)
    if are_epochs(runs):
        problems.append(
            "these rows are epochs, not runs: give what load_runs() returns, or the last epoch of each run, "
            "results.groupby('run').tail(1)"
        )
    problems.raise_if_any(InvalidArgumentError)


def completed(runs: pd.DataFrame, name: str) -> "pd.Series[float]":
    """Return a column, NaN where it is not finite or the run is not completed; rows count from 0."""
    numbers = _finite(runs[name])
    if "status" in runs:
        numbers = numbers.where(runs["status"] == Status.COMPLETED)
    return numbers.reset_index(drop=True)


def settings_without(
    runs: pd.DataFrame, axes: str | Sequence[str], *, all_of_them: bool = False
) -> tuple[Numbers, pd.DataFrame]:
    """Number the settings of runs, all hyperparameters but `axes`.

    Returns:
        The number of each run's setting, and a table of the settings with the hyperparameters that vary, or
        with `all_of_them`.
    """
    axes = [axes] if isinstance(axes, str) else axes
    coded = {name: numbered(runs[name]) for name in axes_of(runs) if name not in axes}
    codes = pd.DataFrame({name: numbers for name, (numbers, _) in coded.items()})
    group = codes.groupby(list(codes), sort=False).ngroup().to_numpy() if coded else np.zeros(len(runs), int)
    firsts = np.unique(group, return_index=True)[1]
    names = [name for name, (_, values) in coded.items() if all_of_them or len(values) > 1]
    table = runs[names].take(firsts).reset_index(drop=True)
    table.attrs = {}
    return group, table


def lost(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Return which runs failed, diverged, hung or were killed; rows count from 0."""
    if "status" not in runs:
        return pd.Series(False, range(len(runs)))
    faults = [status for status in Status if status.is_fault or status is Status.KILLED]
    return runs["status"].isin(faults).reset_index(drop=True)


def _statistics(runs: pd.DataFrame, group: Numbers, names: Sequence[str]) -> pd.DataFrame:
    """Describe columns over the runs of each setting, and how many of these failed, if any did."""
    parts = [describe(completed(runs, name), group).add_prefix(f"{name} ") for name in names]
    failed = lost(runs)
    if failed.any():
        parts.append(failed.groupby(group).sum().rename(FAILED_REPEATS).to_frame())
    return pd.concat(parts, axis="columns")


def are_epochs(runs: pd.DataFrame) -> bool:
    """Whether the rows are epochs, several of a run."""
    names = [name for name in ("experiment", "run") if name in runs]
    return "epoch" in runs and bool(runs.duplicated(names).any())


@np.errstate(over="ignore", invalid="ignore")  # what is too large has no mean
def describe(numbers: "pd.Series[float]", group: Numbers) -> pd.DataFrame:
    """Describe the numbers of each group: n, mean, std, and the 95 % interval of the mean."""
    table = numbers.groupby(group).agg(["count", "mean", "std"]).rename(columns={"count": "n"})
    half = t_quantile(table["n"] - 1) * table["std"] / np.sqrt(table["n"])
    return table.assign(low=table["mean"] - half, high=table["mean"] + half)


def t_quantile(freedom: Any) -> Any:
    """Return how many standard errors the 95 % interval is from its middle, by Student's t."""
    return stdtrit(freedom, (1 + _CONFIDENCE) / 2)


def _without_numbers(runs: pd.DataFrame, names: Sequence[str]) -> list[str]:
    problems = []
    for name in names:
        if name not in runs:
            problems.append(f"these runs have no column {name!r}; {did_you_mean(name, runs)}")
        elif not is_numeric_dtype(runs[name]) or is_bool_dtype(runs[name]):
            own = default_goal(metrics_of(runs))
            metric = own.metric if own else "loss"
            problems.append(f"column {name!r} does not hold numbers: give a metric, as {metric!r}")
    return problems


def _finite(column: "pd.Series[Any]") -> "pd.Series[float]":
    numbers = column.astype("float64")
    return numbers.where(np.isfinite(numbers))

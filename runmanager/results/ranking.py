"""Which runs are best: one by one, and on average over a repeat axis.

The functions take what `load_runs` returned, or rows of it. Means count completed runs only: a run that was
stopped early has numbers too, but of fewer epochs. In a table without the column `status`, all runs count.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from scipy.special import stdtrit

from runmanager.console import printable
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.goal import is_larger_better
from runmanager.outcome import Status
from runmanager.results.tables import Numbers, check_table, hyperparameters_of
from runmanager.storage.identity import canonical

_CONFIDENCE = 0.95
_EVALUATED = ("validation", "val", "test")


def best(
    runs: pd.DataFrame, by: str | None = None, n: int | None = None, *, largest: bool | None = None
) -> pd.DataFrame:
    """Sort runs, the best first; runs with equal values keep their order.

    Args:
        runs: What `load_runs` returned, or rows of it, or of `load_results`.
        by: The column; by default the validation accuracy, else that of the test set, else that of training; if
            there is none, the loss in the same order. ``"best accuracy"`` is the accuracy of the best epoch.
        n: How many runs to return; all by default.
        largest: Whether large values are good. By default they are if the column's name ends in accuracy, and
            they are not if it ends in loss, duration or memory; for any other column, say it.

    Returns:
        The rows, those without a finite number last.

    Raises:
        InvalidArgumentError: There is no such column, it does not hold numbers, or `largest` has to be given.

    Example:
        >>> runs = pd.DataFrame({"run": [1, 2, 3], "accuracy": [0.81, 0.86, 0.79]})
        >>> best(runs, n=2)
           run  accuracy
        1    2      0.86
        0    1      0.81
    """
    check_table(runs)
    by = default_metric(runs, "by='f1' (--by f1)") if by is None else by
    problems = Problems(_without_numbers(runs, [by]))
    if largest is None:
        largest = is_larger_better(by)
        if largest is None and not problems:
            rule = f"whether large values of {by!r} are good is not known"
            problems.append(f"{rule}: give largest=True or largest=False (--largest or --smallest)")
    if n is not None:
        problems.check_count("n", n, 0)
    problems.raise_if_any(InvalidArgumentError)
    order = _finite(runs[by]).reset_index(drop=True).sort_values(ascending=not largest, kind="stable").index
    return runs.iloc[order[:n]]


def over_seeds(
    runs: pd.DataFrame, axis: str = "seed", values: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Average the runs of each setting over their seeds.

    Args:
        runs: What `load_runs` returned, or rows of it.
        axis: The repeat axis: the hyperparameter that only repeats.
        values: The columns to average; by default the one that `best` sorts by.

    Returns:
        One row per setting: the other hyperparameters that vary, and for each value, such as `accuracy`, the
        columns `accuracy n` (how many runs have it), `accuracy mean`, `accuracy std` (of the runs, not of their
        mean; divided by n - 1) and `accuracy low`, `accuracy high`: the 95 % interval of the mean by Student's
        t. A single run has neither spread nor interval.

    Raises:
        InvalidArgumentError: `axis` is not a hyperparameter of these runs, one of `values` is not a column of
            numbers, or no run has an accuracy or a loss and `values` is not given.

    Example:
        >>> runs = pd.DataFrame({"lr": [0.1, 0.1, 0.01], "seed": [0, 1, 0], "accuracy": [0.7, 0.9, 0.6]})
        >>> runs.attrs["hyperparameters"] = ["lr", "seed"]  # load_runs() sets them
        >>> over_seeds(runs)[["lr", "accuracy n", "accuracy mean"]]
             lr  accuracy n  accuracy mean
        0  0.10           2            0.8
        1  0.01           1            0.6
    """
    check_table(runs)
    if values is None:
        values = default_metric(runs, "values=['f1']")
    names = [values] if isinstance(values, str) else list(values)
    check_comparable(runs, [axis], names)
    group, table = settings_without(runs, axis)
    statistics = [describe(completed(runs, name), group).add_prefix(f"{name} ") for name in names]
    return pd.concat([table, *statistics], axis="columns")


def main_metric(runs: pd.DataFrame) -> str | None:
    """Return the column that `best` sorts by unless told otherwise, None if no such column has a number."""
    params = hyperparameters_of(runs)
    names = [str(name) for name in runs if name not in params and not str(name).startswith("best ")]
    filled = [name for name in names if runs.empty or not runs[name].isna().all()]
    for kind in ("accuracy", "loss"):
        evaluated = [f"{data}_{kind}" for data in _EVALUATED]
        others = [name for name in filled if name.endswith(f"_{kind}")]
        for name in (*evaluated, *others, kind):
            if name in filled:
                return name
    return None


def default_metric(runs: pd.DataFrame, example: str) -> str:
    """Return the column that `best` sorts by.

    Raises:
        InvalidArgumentError: No run has an accuracy or a loss; the message shows how to name a column.
    """
    metric = main_metric(runs)
    if metric is None:
        raise InvalidArgumentError([f"no run has an accuracy or a loss: name the column, as {example}"])
    return metric


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
    params = [name for name in axes_of(runs) if name != "experiment"]
    problems = Problems(
        f"these runs have no hyperparameter {axis!r}; they have: {printable(', '.join(params)) or 'none'}"
        for axis in axes
        if axis not in params
    )
    problems += _without_numbers(runs, columns)
    if "epoch" in runs and runs.duplicated([name for name in ("experiment", "run") if name in runs]).any():
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


def settings_without(runs: pd.DataFrame, axis: str) -> tuple[Numbers, pd.DataFrame]:
    """Number the settings of runs, all hyperparameters but `axis`.

    Returns:
        The number of each run's setting, and a table of the settings with the hyperparameters that vary.
    """
    coded = {name: numbered(runs[name]) for name in axes_of(runs) if name != axis}
    codes = pd.DataFrame({name: numbers for name, (numbers, _) in coded.items()})
    group = codes.groupby(list(codes), sort=False).ngroup().to_numpy() if coded else np.zeros(len(runs), int)
    firsts = np.unique(group, return_index=True)[1]
    varying = [name for name, (_, values) in coded.items() if len(values) > 1]
    table = runs[varying].take(firsts).reset_index(drop=True)
    table.attrs = {}
    return group, table


def describe(numbers: "pd.Series[float]", group: Numbers) -> pd.DataFrame:
    """Describe the numbers of each group: n, mean, std, and the 95 % interval of the mean."""
    table = numbers.groupby(group).agg(["count", "mean", "std"]).rename(columns={"count": "n"})
    quantile = stdtrit(table["n"] - 1, (1 + _CONFIDENCE) / 2)  # of Student's t
    half = quantile * table["std"] / np.sqrt(table["n"])
    return table.assign(low=table["mean"] - half, high=table["mean"] + half)


def _without_numbers(runs: pd.DataFrame, names: Sequence[str]) -> list[str]:
    problems = []
    for name in names:
        if name not in runs:
            have = printable(", ".join(map(str, runs)) or "none")
            problems.append(f"these runs have no column {name!r}; they have: {have}")
        elif not is_numeric_dtype(runs[name]) or is_bool_dtype(runs[name]):
            metric = main_metric(runs) or "loss"
            problems.append(f"column {name!r} does not hold numbers: give a metric, as {metric!r}")
    return problems


def _finite(column: "pd.Series[Any]") -> "pd.Series[float]":
    numbers = column.astype("float64")
    return numbers.where(np.isfinite(numbers))

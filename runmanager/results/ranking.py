"""Comparisons of runs: tables of runs in, plain tables out.

All of them take what `load_runs` gave, or rows of it. Means, ratios and effects count completed runs only: one
that was stopped early has numbers too, but of fewer epochs. Without the column `status`, all do.
"""

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from runmanager.errors import GridError
from runmanager.goal import is_larger_better
from runmanager.hyperparameters import canonical, text
from runmanager.outcome import Status
from runmanager.results.tables import HYPERPARAMETERS, Numbers, check_table

if TYPE_CHECKING:
    import pandas as pd

OVERALL = "overall"
"""The key in the `attrs` of what `compare` gives under which the mean ratios are."""

_CONFIDENCE = 0.95
_EVALUATED = ("validation", "val", "test")


def best(
    runs: "pd.DataFrame", by: str | None = None, n: int | None = None, *, largest: bool | None = None
) -> "pd.DataFrame":
    """Sort runs, the best first; equal ones stay in their order.

    Args:
        runs: What `load_runs` gave, or rows of it, or of `load_results`.
        by: The column; by default the accuracy that most is known from: of a validation or test set if there
            is one, else that of training, else a loss. ``"best accuracy"`` is that of the best epoch.
        n: How many of them; all by default.
        largest: Whether large values are the good ones. By default those of a column whose name ends in
            accuracy are, and those of a loss, a duration or memory are not; others need to be told.

    Returns:
        The rows, those without a finite number last.

    Raises:
        GridError: There is no such column, it holds no numbers, or it cannot be told which are good.
    """
    check_table(runs)
    by = _metric(runs, "by='f1' (--by f1)") if by is None else by
    problems = _no_numbers(runs, [by])
    if largest is None:
        largest = is_larger_better(by)
        if largest is None and not problems:
            rule = f"whether large values of {by!r} are good is not known"
            problems += [f"{rule}: give largest=True or largest=False (--largest or --smallest)"]
    if n is not None and (type(n) is not int or n < 0):
        problems += [f"n must be a number of runs, got {n!r}"]
    if problems:
        raise GridError(problems)
    order = _finite(runs[by]).reset_index(drop=True).sort_values(ascending=not largest, kind="stable").index
    return runs.iloc[order[:n]]


def compare(runs: "pd.DataFrame", axis: str = "device", value: str = "epoch duration") -> "pd.DataFrame":
    """Pair runs that differ in one hyperparameter only.

    Args:
        runs: What `load_runs` gave, or rows of it.
        axis: The hyperparameter.
        value: The column to compare.

    Returns:
        One row per combination of the other hyperparameters: those of them that vary, a column per value of
        `axis`, and for each value but the first its ratio to the first, so that ``cpu / cuda`` is how many
        times as long the cpu takes. Of runs with the same hyperparameters it is the mean. Values of `axis`
        without any number, as a device that is not there, are left out if two others have some; so are
        combinations without a number for every other value. ``attrs["overall"]`` has a dict per ratio: its
        name as `ratio`, the number of pairs `n`, their geometric `mean`, and its 95 % interval from `low` to
        `high`, by Student's t of the logarithms (one pair has none; nor has a mean, if a ratio is not above 0).

    Raises:
        GridError: `axis` is no hyperparameter of these runs, or `value` is no column of numbers.
    """
    import pandas as pd

    check_table(runs)
    _refuse(runs, [axis], [value])
    group, table = _combinations(runs, axis)
    codes, values = numbered(runs[axis])
    columns = [text(value) for value in values]
    if len({*columns, *table}) < len(columns) + len(table.columns):  # text() shortens
        columns = [repr(value) for value in values]
    means = _numbers(runs, value).groupby([group, codes]).mean().unstack()  # noqa: PD010 - of a Series
    known = [column for code, column in enumerate(columns) if means[code].notna().any()]
    sides = pd.DataFrame({column: means[code] for code, column in enumerate(columns)}, index=table.index)
    columns = known if len(known) > 1 else columns
    sides = sides[columns]
    pairs = pd.concat([table, sides], axis="columns").dropna(subset=columns).reset_index(drop=True)
    ratios = {f"{column} / {columns[0]}": pairs[column] / pairs[columns[0]] for column in columns[1:]}
    pairs = pairs.assign(**ratios)
    pairs.attrs[OVERALL] = [_overall(name, ratio) for name, ratio in ratios.items()]
    return pairs


def over_seeds(
    runs: "pd.DataFrame", axis: str = "seed", values: str | Sequence[str] | None = None
) -> "pd.DataFrame":
    """Average runs that differ in their seed only.

    Args:
        runs: What `load_runs` gave, or rows of it.
        axis: The hyperparameter that is the seed.
        values: The columns to average; by default the one that `best` sorts by.

    Returns:
        One row per combination of the other hyperparameters: those of them that vary, and for each value, as
        `accuracy`, the columns `accuracy n` (how many runs have it), `accuracy mean`, `accuracy std` (of the
        runs, not of their mean; divided by n - 1) and `accuracy low`, `accuracy high`: the 95 % interval of the
        mean by Student's t. One run has neither spread nor interval.

    Raises:
        GridError: `axis` is no hyperparameter of these runs, one of `values` is no column of numbers, or no run
            has an accuracy or a loss and none is given.
    """
    import pandas as pd

    check_table(runs)
    names = (
        [_metric(runs, "values=['f1']")]
        if values is None
        else [values]
        if isinstance(values, str)
        else list(values)
    )
    _refuse(runs, [axis], names)
    group, table = _combinations(runs, axis)
    found = [_statistics(_numbers(runs, name), group).add_prefix(f"{name} ") for name in names]
    return pd.concat([table, *found], axis="columns")


def effects(runs: "pd.DataFrame", value: str | None = None) -> "pd.DataFrame":
    """Tell what each hyperparameter does to a result.

    Args:
        runs: What `load_runs` gave, or rows of it.
        value: The column of the result; by default the one that `best` sorts by.

    Returns:
        One row per value of each hyperparameter that varies, the one that explains most first: `axis`, `value`,
        how many runs have it (`n`), their `mean`, their standard deviation `std` (divided by n - 1), and
        `explained`, which share of the variation of the result the axis explains: eta squared, the sum of
        squares between its values by the total (Fisher, Statistical Methods for Research Workers, 1925, as
        the squared correlation ratio). It is from 0 to 1, and NaN if nothing varies. In a grid with all its
        combinations the shares of the axes add up to at most 1, and what is missing is chance or two axes
        together. Where combinations are missing, an axis gets a share of what the axes that it goes with
        explain too, and the sum can be larger. Each value more explains more, also by chance.

    Raises:
        GridError: `value` is no column of numbers, or none is given and no run has an accuracy or a loss.
    """
    import pandas as pd

    check_table(runs)
    value = _metric(runs, "value='f1'") if value is None else value
    _refuse(runs, [], [value])
    numbers = _numbers(runs, value)
    tables = []
    for name in _axes(runs):
        codes, values = numbered(runs[name])
        if len(values) > 1:
            found = _statistics(numbers, codes)[["n", "mean", "std"]]
            labels = pd.Series(values, found.index, dtype="object")
            between = (found["n"] * (found["mean"] - numbers.mean()) ** 2).sum()
            total = ((numbers - numbers.mean()) ** 2).sum()
            varies = total and numbers.min() < numbers.max()  # 0.1 + 0.1 + 0.1 is more than 3 * 0.1
            found["explained"] = between / total if varies else math.nan
            tables.append(found.assign(axis=name, value=labels))
    columns = ["axis", "value", "n", "mean", "std", "explained"]
    if not tables:
        return pd.DataFrame(columns=columns)
    tables.sort(key=lambda table: -table["explained"].iloc[0])
    return pd.concat(tables, ignore_index=True)[columns]


def main_metric(runs: "pd.DataFrame") -> str | None:
    """Return the column that tells most of how good runs are; `best` says which. None if none has a number."""
    params = runs.attrs.get(HYPERPARAMETERS, ())
    names = [str(name) for name in runs if name not in params and not str(name).startswith("best ")]
    numbers = [name for name in names if runs.empty or not runs[name].isna().all()]
    for kind in ("accuracy", "loss"):
        known = [f"{data}_{kind}" for data in _EVALUATED]
        others = [name for name in numbers if name.endswith(f"_{kind}")]
        found = [name for name in (*known, *others, kind) if name in numbers]
        if found:
            return found[0]
    return None


def numbered(column: "pd.Series[Any]") -> tuple[Numbers, list[Any]]:
    """Number the values of a hyperparameter as they appear; equal ones, as `canonical` has it, are one."""
    import numpy as np
    import pandas as pd

    keys = [_key(value) for value in column] if column.dtype == object else column.to_numpy()
    codes, _ = pd.factorize(np.asarray(keys), use_na_sentinel=False)
    firsts = np.unique(codes, return_index=True)[1]
    return codes, column.iloc[firsts].tolist()


def _metric(runs: "pd.DataFrame", example: str) -> str:
    found = main_metric(runs)
    if found is None:
        raise GridError([f"no run has an accuracy or a loss: say which column counts, as {example}"])
    return found


def _axes(runs: "pd.DataFrame") -> list[str]:
    return [name for name in ("experiment", *runs.attrs.get(HYPERPARAMETERS, ())) if name in runs]


def _refuse(runs: "pd.DataFrame", axes: Sequence[str], values: Sequence[str]) -> None:
    known = [name for name in _axes(runs) if name != "experiment"]
    problems = [
        f"{axis!r} is no hyperparameter of these runs; they have: {', '.join(known) or 'none'}"
        for axis in axes
        if axis not in known
    ]
    problems += _no_numbers(runs, values)
    if "epoch" in runs and runs.duplicated([name for name in ("experiment", "run") if name in runs]).any():
        problems.append(
            "these are epochs, and runs are compared: give what load_runs() loads, or the last epoch of each "
            "run, results.groupby('run').tail(1)"
        )
    if problems:
        raise GridError(problems)


def _no_numbers(runs: "pd.DataFrame", names: Iterable[str]) -> list[str]:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    problems = []
    for name in names:
        if name not in runs:
            known = ", ".join(map(str, runs)) or "none"
            problems.append(f"{name!r} is no column of these runs; they have: {known}")
        elif not is_numeric_dtype(runs[name]) or is_bool_dtype(runs[name]):
            known = main_metric(runs) or "loss"
            problems.append(f"{name!r} is no column of numbers: give a metric, as {known!r}")
    return problems


def _numbers(runs: "pd.DataFrame", name: str) -> "pd.Series[float]":
    """Return a column, NaN where it is not finite or the run is not completed; rows count from 0."""
    numbers = _finite(runs[name])
    if "status" in runs:
        numbers = numbers.where(runs["status"] == Status.COMPLETED)
    return numbers.reset_index(drop=True)


def _finite(column: "pd.Series[Any]") -> "pd.Series[float]":
    import numpy as np

    numbers = column.astype("float64")
    return numbers.where(np.isfinite(numbers))


def _combinations(runs: "pd.DataFrame", axis: str) -> tuple[Numbers, "pd.DataFrame"]:
    """Number the combinations of the other hyperparameters: of each run, and a table of those that vary."""
    import numpy as np
    import pandas as pd

    coded = {name: numbered(runs[name]) for name in _axes(runs) if name != axis}
    codes = pd.DataFrame({name: found for name, (found, _) in coded.items()})
    group = codes.groupby(list(codes), sort=False).ngroup().to_numpy() if coded else np.zeros(len(runs), int)
    firsts = np.unique(group, return_index=True)[1]
    shown = [name for name, (_, values) in coded.items() if len(values) > 1]
    table = runs[shown].take(firsts).reset_index(drop=True)
    table.attrs = {}
    return group, table


def _statistics(numbers: "pd.Series[float]", group: Numbers) -> "pd.DataFrame":
    """Describe the numbers of each group: n, mean, std, and the 95 % interval of the mean."""
    import numpy as np
    from scipy.special import stdtrit

    found = numbers.groupby(group).agg(["count", "mean", "std"]).rename(columns={"count": "n"})
    quantile = stdtrit(found["n"] - 1, (1 + _CONFIDENCE) / 2)  # of Student's t
    half = quantile * found["std"] / np.sqrt(found["n"])
    return found.assign(low=found["mean"] - half, high=found["mean"] + half)


def _overall(name: str, ratios: "pd.Series[float]") -> dict[str, Any]:
    """Describe ratios by their geometric mean, as a ratio and its inverse count the same."""
    import numpy as np

    logarithms = ratios.where((ratios > 0) & np.isfinite(ratios)).map(np.log)
    found = _statistics(logarithms, np.zeros(len(ratios))).reindex([0]).iloc[0]
    if logarithms.isna().any():
        found *= math.nan
    return {
        "ratio": name,
        "n": len(ratios),
        **{key: float(np.exp(found[key])) for key in ("mean", "low", "high")},
    }


def _key(value: Any) -> str:
    return json.dumps(canonical(value))

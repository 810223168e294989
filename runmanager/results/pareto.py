"""The Pareto front of several goals: the runs that no other beats in all of them."""

import contextlib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from runmanager.console import printable
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.goal import Goal, is_larger_better, parse_goal
from runmanager.results.decisive import all_goals_of, repeats_of
from runmanager.results.ranking import RANKED, check_comparable, completed, deciding, over_repeats
from runmanager.results.tables import HYPERPARAMETERS, Numbers, check_table

PARETO = "pareto"
"""The key in the `attrs` of what `pareto` returns: its goals, as "max:accuracy"."""

_FEWEST = 2  # goals: of one, the best run is the front


def pareto(
    runs: pd.DataFrame, goals: Sequence[str] | None = None, *, repeats: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Return the runs that no other run beats: none is as good in all goals, and better in one.

    Args:
        runs: What `load_runs` returned, or rows of it. Completed runs with a number for each goal count.
        goals: Two columns or more, each as `by` of `best`: ``["test_accuracy", "min:run duration"]``. By
            default those of a search with several.
        repeats: The axes that only repeat a setting, as in `best`: then settings are compared by their means.

    Returns:
        The rows, or with repeat axes those of `over_repeats`, the best of the first goal first. Runs that are
        equal in all goals are all in it.

    Raises:
        InvalidArgumentError: There are fewer than two goals, one twice, or one that `best` refuses.

    Example:
        >>> runs = pd.DataFrame({"run": [1, 2, 3], "accuracy": [0.9, 0.8, 0.7], "loss": [0.9, 0.2, 0.5]})
        >>> pareto(runs, ["accuracy", "loss"])
           run  accuracy  loss
        0    1       0.9   0.9
        1    2       0.8   0.2
    """
    check_table(runs)
    columns = goals_of(runs, all_goals_of(runs) if goals is None else goals)
    axes = repeats_of(runs, repeats)
    check_comparable(runs, axes, [goal.metric for goal in columns])
    if axes:
        table = over_repeats(runs, axes, [goal.metric for goal in columns])
        numbers = [table[f"{goal.metric} mean"] for goal in columns]
    else:
        table = runs
        numbers = [completed(runs, goal.metric) for goal in columns]
    scores = np.column_stack([
        goal.sign * column.to_numpy(dtype=float) for goal, column in zip(columns, numbers, strict=True)
    ])  # fmt: skip
    front = table.iloc[front_of(scores)]
    first = columns[0]
    front.attrs = {**table.attrs, PARETO: [str(goal) for goal in columns], RANKED: (first.metric, first.sign)}
    front.attrs.setdefault(HYPERPARAMETERS, runs.attrs.get(HYPERPARAMETERS, []))
    return front


def goals_of(runs: pd.DataFrame, goals: Sequence[str]) -> list[Goal]:
    """Return several goals by the columns that decide.

    Raises:
        InvalidArgumentError: As `pareto`.
    """
    problems = Problems()
    columns: list[Goal] = []
    if isinstance(goals, str) or len(goals) < _FEWEST:
        problems.append(f"a Pareto front has two goals or more, got {goals!r}: write ['accuracy', 'min:loss']")
    else:
        for goal in goals:
            with problems.collecting():
                is_known = goal not in runs or is_larger_better(goal) is not None
                columns.append(deciding(runs, goal if is_known else str(parse_goal(goal))))
    metrics = [goal.metric for goal in columns]
    problems += [
        f"{name!r} is a goal twice: keep one" for name in dict.fromkeys(metrics) if metrics.count(name) > 1
    ]
    problems.raise_if_any(InvalidArgumentError)
    return columns


def columns_of_goals(runs: pd.DataFrame) -> list[str]:
    """Return the columns of the goals of what `pareto` returned, or of experiments with several; else none."""
    goals = runs.attrs.get(PARETO) or all_goals_of(runs)
    with contextlib.suppress(InvalidArgumentError):
        return [goal.metric for goal in goals_of(runs, goals)] if goals else []
    return []


def first_of_goals(metric: str, goals: Sequence[str]) -> str:
    """Say by which of several goals runs are ranked, "" if there is one."""
    return f"{printable(metric)} is the first of {len(goals)} goals" if len(goals) > 1 else ""


def front_of(scores: Numbers) -> list[int]:
    """Return the rows that no other beats, larger being better; rows with NaN do not compete.

    The best of the first column is first.

    >>> front_of(np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 0.5], [1.0, 1.0]]))
    [1, 0, 3]
    """
    rows = np.flatnonzero(np.isfinite(scores).all(axis=1))
    order = rows[np.lexsort(-scores[rows].T[::-1])]  # who comes later beats nobody before
    front: list[int] = []
    for row in order.tolist():
        before = scores[front]
        is_beaten = (before >= scores[row]).all(axis=1) & (before > scores[row]).any(axis=1)
        if not is_beaten.any():
            front.append(row)
    return front

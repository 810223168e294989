"""The Pareto front of several goals."""

import contextlib
from collections.abc import Sequence

import pandas as pd

from runmanager.answers.ranking import ASSUMED, RANKED, goals_of, own_goals, ranking_of, rows_of
from runmanager.errors import InvalidArgumentError
from runmanager.tables.columns import check_table

PARETO = "pareto"
"""The key in the `attrs` of a table of `pareto`: its goals, such as "max:accuracy"."""

_FEWEST = 2  # minimum number of goals: with one goal, the front is the best run


def pareto(
    runs: pd.DataFrame, goal: Sequence[str] | None = None, *, repeats: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Return the Pareto-optimal runs: no other run is as good in all goals and better in one.

    Args:
        runs: The table of `load_runs`, or rows of it. Only completed runs with a value of each goal count.
        goal: Two goals or more, each as in `best`: ``["test_accuracy", "min:run duration"]``. By default, the
            goals of a search that has several goals.
        repeats: The axes that only repeat a setting, as in `best`; settings are then compared by their means.

    Returns:
        The rows, sorted by the first goal, the best first; with repeat axes, rows as from `best`. Runs that are
        equal in all goals are all included.

    Raises:
        InvalidArgumentError: There are fewer than two goals, a metric is a goal twice, or `best` refuses the
            arguments.

    Example:
        >>> runs = pd.DataFrame({"run": [1, 2, 3], "accuracy": [0.9, 0.8, 0.7], "loss": [0.9, 0.2, 0.5]})
        >>> pareto(runs, ["accuracy", "loss"])
           run  accuracy  loss
        0    1       0.9   0.9
        1    2       0.8   0.2
    """
    check_table(runs)
    goals = list(map(str, own_goals(runs))) if goal is None else goal
    if isinstance(goals, str) or len(goals) < _FEWEST:
        rule = "a Pareto front has two goals or more"
        raise InvalidArgumentError([f"{rule}, got {goals!r}: write goal=['accuracy', 'min:loss']"])
    ranking = ranking_of(runs, goals, repeats)
    front = rows_of(runs, ranking, ranking.front)
    front.attrs |= {PARETO: [str(each) for each in ranking.goals], RANKED: tuple(ranking.goal)}
    front.attrs[ASSUMED] = ranking.assumption
    return front


def columns_of_goals(runs: pd.DataFrame) -> list[str]:
    """Return the goals' columns of a table of `pareto` or of experiments with several goals; else []."""
    with contextlib.suppress(InvalidArgumentError):
        goals = goals_of(runs, runs.attrs.get(PARETO))
        return [goal.metric for goal in goals] if len(goals) >= _FEWEST else []
    return []

"""The Pareto front of several goals: the runs that no other beats in all of them."""

import contextlib
from collections.abc import Sequence

import pandas as pd

from runmanager.errors import InvalidArgumentError
from runmanager.tables.columns import check_table
from runmanager.tables.ranking import ASSUMED, RANKED, goals_of, own_goals, ranking_of, rows_of

PARETO = "pareto"
"""The key in the `attrs` of what `pareto` returns: its goals, as "max:accuracy"."""

_FEWEST = 2  # goals: of one, the best run is the front


def pareto(
    runs: pd.DataFrame, goal: Sequence[str] | None = None, *, repeats: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Return the runs that no other run beats: none is as good in all goals, and better in one.

    Args:
        runs: What `load_runs` returned, or rows of it. Completed runs with a number for each goal count.
        goal: Two goals or more, each as in `best`: ``["test_accuracy", "min:run duration"]``. By default those
            of a search with several.
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
    """Return the columns of the goals of what `pareto` returned, or of experiments with several; else none."""
    with contextlib.suppress(InvalidArgumentError):
        goals = goals_of(runs, runs.attrs.get(PARETO))
        return [goal.metric for goal in goals] if len(goals) >= _FEWEST else []
    return []

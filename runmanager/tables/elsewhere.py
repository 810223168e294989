"""Tell the hyperparameters in a table of another tool, if they are certain."""

from collections.abc import Sequence

import pandas as pd

from runmanager.core.goal import is_larger_better, parse_goal
from runmanager.tables.where import check_columns

# columns that W&B and MLflow write about a run, beside its names and times, which differ in each row
_ABOUT_RUNS = ("created", "duration", "hostname", "runtime", "state", "status", "tags")


def certain_hyperparameters(table: pd.DataFrame, goals: Sequence[str], repeats: Sequence[str]) -> list[str]:
    """Return the columns that vary, if all settings have the same repeats: a metric would tear one apart."""
    check_columns(repeats, table)
    metrics = [parse_goal(goal).metric for goal in goals]
    names = [
        name
        for name in map(str, table)
        if name not in (*repeats, *metrics)
        and name.lower() not in _ABOUT_RUNS
        and is_larger_better(name) is None
        and 1 < table[name].nunique() < len(table)  # a value of each row is no setting's
    ]
    if not names:
        return []
    repeated = {
        frozenset(map(tuple, rows[list(repeats)].to_numpy())) for _, rows in table.groupby(names, dropna=False)
    }
    return names if len(repeated) == 1 else []

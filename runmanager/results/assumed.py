"""Which axes only repeat a setting by their names, where nobody has said so."""

import pandas as pd

from runmanager.results.ranking import axes_of, numbered
from runmanager.results.tables import REPEATS
from runmanager.storage.design import SEEDS


def with_repeats(runs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return runs whose repeat axes are known, and those that were taken by their names alone.

    An axis is taken by its name if it varies in every experiment, and no experiment has its own repeats.
    """
    if runs.attrs.get(REPEATS):
        return runs, []
    parts = [runs]
    if "experiment" in runs:
        parts = [part for _, part in runs.groupby("experiment", observed=True)]
    axes = [name for name in SEEDS if name in axes_of(runs)]
    axes = [name for name in axes if all(len(numbered(part[name])[1]) > 1 for part in parts)]
    runs = runs.copy(deep=False)
    experiments = [str(part["experiment"].iloc[0]) if "experiment" in part else "" for part in parts]
    runs.attrs[REPEATS] = dict.fromkeys(experiments, axes)
    return runs, axes


def assumption(axes: list[str]) -> str:
    """Say which axes were taken by their names, "" if none was.

    >>> assumption(["seed"])
    'By its name, seed only repeats a setting; run_grid(repeats=()) ranks the runs one by one.'
    """
    if not axes:
        return ""
    verb = "repeats" if len(axes) == 1 else "repeat"
    rule = "run_grid(repeats=()) ranks the runs one by one"
    return f"By its name, {' and '.join(axes)} only {verb} a setting; {rule}."

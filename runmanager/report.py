"""Comparisons of runs."""

import json
from typing import TYPE_CHECKING, Any

from runmanager.errors import GridError
from runmanager.storage.tables import HYPERPARAMETERS
from runmanager.values import canonical, text

if TYPE_CHECKING:
    import pandas as pd


def compare(runs: "pd.DataFrame", axis: str = "device", value: str = "epoch duration") -> "pd.DataFrame":
    """Pair runs that differ in one hyperparameter only.

    Args:
        runs: What `load_runs` gave, or rows of it.
        axis: The hyperparameter.
        value: The column to compare.

    Returns:
        One row per combination of the other hyperparameters: those of them that vary, a column per value of
        `axis`, and for each value but the first its ratio to the first, so that ``cpu / cuda`` is how many
        times as long the cpu takes. Combinations without a number for every value of `axis` are left out.

    Raises:
        GridError: `axis` is no hyperparameter of these runs, or `value` is no column.
    """
    import pandas as pd

    names = [name for name in runs.attrs.get(HYPERPARAMETERS, ()) if name in runs]
    problems = [
        f"{wanted!r} is no {kind} of these runs; they have: {', '.join(map(str, known)) or 'none'}"
        for wanted, kind, known in ((axis, "hyperparameter", names), (value, "column", list(runs)))
        if wanted not in known
    ]
    if problems:
        raise GridError(problems)
    others = [name for name in ("experiment", *names) if name in runs and name != axis]
    shown = [name for name in others if len(set(runs[name].map(_key))) > 1]
    labels = {_key(value): text(value) for value in runs[axis]}
    if len({*labels.values(), *shown}) < len(labels) + len(shown):  # text() shortens
        labels = {_key(value): repr(value) for value in runs[axis]}
    columns = list(labels.values())
    groups: dict[str, dict[str, Any]] = {}
    for row in runs.to_dict(orient="records"):
        group = groups.setdefault(_key([row[name] for name in others]), {name: row[name] for name in shown})
        group[labels[_key(row[axis])]] = row[value]
    pairs = pd.DataFrame(list(groups.values()), columns=[*shown, *columns])
    pairs = pairs.dropna(subset=columns).reset_index(drop=True)
    for column in columns[1:]:
        pairs[f"{column} / {columns[0]}"] = pairs[column] / pairs[columns[0]]
    return pairs


def _key(value: Any) -> str:
    return json.dumps(canonical(value))

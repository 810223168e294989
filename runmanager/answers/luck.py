"""How far the choice of the evaluated items moves the difference between two rivals."""

import math
from pathlib import Path

import pandas as pd

from runmanager.answers.ranking import completed
from runmanager.core import files
from runmanager.core.goal import KEPT
from runmanager.core.journal import read_attempt
from runmanager.tables.columns import Numbers

_SIDE = 1.96  # half the width of a 95 % interval, in standard errors


def luck_of(runs: pd.DataFrame, metric: str, rivals: Numbers, best: int, other: int) -> str:
    """Say how far the choice of the evaluated items moves a difference in accuracy; "" if this is unknown."""
    column, numbers = metric.removeprefix(KEPT), completed(runs, metric)
    both = [numbers[rivals == rival].dropna() for rival in (best, other)]
    if "folder" not in runs or not all(map(len, both)):
        return ""
    n, other_n = (_num_items(Path(str(runs["folder"].iloc[part.index[0]])), column) for part in both)
    first, second = (float(part.mean()) for part in both)
    most_that_differ = min(first + second, 2 - first - second)
    half = _SIDE * math.sqrt(max(0.0, most_that_differ - (first - second) ** 2) / max(n, 1))  # at most
    if not (half and n == other_n > 0):  # without a difference in any item, half is 0
        return ""
    of_items = f"the choice of the {n:,} {column.removesuffix('_accuracy')} items"
    return f"{of_items} moves the difference by about ± {half:.2g}"


def _num_items(folder: Path, column: str) -> int:
    """Return the number of items of an evaluation, 0 if it is unknown."""
    try:
        journal = [*files.journals_by_attempt(folder).values()][-1]
        return int(read_attempt(Path(journal)).end.get("items", {}).get(column, 0))
    except (OSError, IndexError):  # the table is of another machine
        return 0

"""How far the choice of the evaluated items moves the difference between two rivals."""

import math
from pathlib import Path

import numpy as np
import pandas as pd

from runmanager.outcome import Status
from runmanager.storage.items import read_items
from runmanager.storage.run_numbers import KEPT
from runmanager.tables.columns import Numbers

_SIDE = 1.96  # half the width of a 95 % interval, in standard errors


def luck_of(runs: pd.DataFrame, metric: str, rivals: Numbers, cells: Numbers, best: int, other: int) -> str:
    """Say how far the choice of the evaluated items moves a difference in accuracy; "" if this is unknown.

    The difference of each item is its mean over the runs of both rivals with the same repeat. It is known if
    all these runs were evaluated on the same items in the same order.

    Args:
        runs: The table.
        metric: The column of the accuracy.
        rivals: (runs,) The rival of each run.
        cells: (runs, 2) The repeat of each run, and its part.
        best: A rival.
        other: Another rival.
    """
    if not {metric, "folder", "status"} <= {*runs}:
        return ""
    name = f"{metric.removeprefix(KEPT).removesuffix('_accuracy')} items"  # of an evaluation, as "test items"
    by_cell: dict[tuple[int, ...], dict[int, list[int]]] = {}
    is_usable = (runs["status"] == Status.COMPLETED) & runs[metric].notna() & np.isin(rivals, [best, other])
    for row in np.flatnonzero(is_usable):
        by_cell.setdefault(tuple(cells[row]), {}).setdefault(int(rivals[row]), []).append(int(row))
    sums: dict[str, list[Numbers]] = {}  # digest of the items -> differences of the cells
    for of_rivals in by_cell.values():
        if len(of_rivals) == 1:
            continue
        try:
            each = {rival: [_items_of(runs, row, metric) for row in rows] for rival, rows in of_rivals.items()}
        except ValueError as error:
            return f"the share of the {name} is unknown, as {error}"
        digests = {items[0] if items else None for of_rival in each.values() for items in of_rival}
        if len(digests) > 1 or None in digests:
            return ""
        first, second = (
            np.mean([items[1] for items in each[rival] if items], axis=0) for rival in (best, other)
        )
        sums.setdefault(str(digests.pop()), []).append(first - second)
    if not sums:
        return ""
    items = np.concatenate([np.mean(differences, axis=0) for differences in sums.values()])
    half = half_width(items)
    if not half > 0:  # without a difference in any item, or with a single item
        return ""
    return f"the choice of the {len(items):,} {name} moves the difference by ± {half:.2g}"


def half_width(items: Numbers) -> float:
    """Return half the width of the 95 % interval of a difference, from the difference of each item."""
    return _SIDE * float(items.std(ddof=1)) / math.sqrt(len(items)) if len(items) > 1 else math.nan


def _items_of(runs: pd.DataFrame, row: int, metric: str) -> tuple[str, Numbers] | None:
    """Return the digest of a run's items, and which are correct; ValueError names a damaged file."""
    folder = Path(str(runs["folder"].iloc[row]))
    try:
        accuracy, is_kept = abs(float(runs[metric].iloc[row])), metric.startswith(KEPT)
        return read_items(folder, metric.removeprefix(KEPT), accuracy, first=is_kept)
    except ValueError as error:
        raise ValueError(f"{error} in run {runs['run'].iloc[row]}") from None

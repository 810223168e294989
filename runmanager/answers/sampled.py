"""Recognise axes that were sampled or searched from a range, and cut their values into parts."""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from runmanager.tables.cells import cell
from runmanager.tables.columns import Numbers

_FEWEST = 10  # minimum number of distinct numbers of a sampled axis
_MANY = 30  # minimum number of distinct numbers of a sampled axis on which numbers repeat
_PARTS = 5  # number of ranges into which the values of a sampled axis are cut
_NARROW = 10  # minimum ratio of the largest to the smallest number for a logarithmic scale


def is_sampled(values: Sequence[Any]) -> bool:
    """Whether the values of an axis look sampled: many finite numbers, unlike the values of a grid."""
    there = [value for value in values if not is_missing(value)]
    if not all(isinstance(value, (int, float, np.number)) and not isinstance(value, bool) for value in there):
        return False
    counts = Counter(there)
    is_uneven = len(counts) >= _MANY and len(set(counts.values())) > 1
    is_many = len(counts) >= _FEWEST and (2 * len(counts) > len(there) or is_uneven)
    return is_many and all(abs(value) <= sys.float_info.max for value in there)  # not inf, nor of 309 digits


def is_missing(value: Any) -> bool:
    """Whether a value of an axis is missing."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def is_in_magnitudes(values: Sequence[float]) -> bool:
    """Whether numbers are spread more evenly over orders of magnitude than over their range."""
    numbers = np.sort(np.asarray(values, dtype=float))
    if numbers[0] <= 0 or numbers[-1] < _NARROW * numbers[0]:
        return False
    unevenness = []  # the largest deviation from even spacing, as a fraction of the range
    for each in (np.log(numbers), numbers):
        shares = (each - each[0]) / (each[-1] - each[0])
        unevenness.append(np.abs(shares - np.linspace(0, 1, len(numbers))).max())
    return bool(unevenness[0] < unevenness[1])


def in_parts(column: "pd.Series[Any]") -> tuple[Numbers, list[str]]:
    """Cut the numbers of an axis into ranges with equally many settings."""
    rows = column.reset_index(drop=True)
    is_there = ~rows.map(is_missing).astype(bool)
    there = rows[is_there]
    # a frequent value may fill several ranges, or leave a range between two values empty
    ranges = pd.qcut(there.astype("float64").rank(method="dense"), _PARTS, labels=False, duplicates="drop")
    codes = ranges.rank(method="dense") - 1
    labels = [f"{cell(part.min())} to {cell(part.max())}" for _, part in there.groupby(codes)]
    parts = codes.reindex(rows.index, fill_value=len(labels)).to_numpy(dtype=int)
    return parts, labels if is_there.all() else [*labels, "none"]

"""The means of two hyperparameters' values, as a table whose cells are colored by how good they are."""

import math
from typing import NamedTuple

from runmanager.report.model import ReportData
from runmanager.results.changes import Interaction
from runmanager.wording import aligned

_DEEPEST = 55  # per cent of the color, on which text is still read well


class Cell(NamedTuple):
    """A cell of a heatmap."""

    text: str
    share: float  # of the color, in per cent: the better the more
    is_best: bool  # of its column


class Heatmap(NamedTuple):
    """A table of means."""

    rows: str  # the hyperparameter whose values are rows
    columns: str
    labels: list[str]  # of the columns
    cells: list[tuple[str, list[Cell]]]  # of each row: its value, and its means


def heatmap(data: ReportData, pair: Interaction) -> Heatmap:
    """Color the means of two hyperparameters."""
    sign = 1 if data.is_larger_better else -1
    rows, columns = data.axis(pair.rows), data.axis(pair.columns)
    row_labels, labels = map(rows.label, pair.row_values), list(map(columns.label, pair.column_values))
    down = sorted(zip(row_labels, range(len(pair.row_values)), strict=True), key=lambda row: rows.rank(row[0]))
    across = sorted(range(len(labels)), key=lambda column: columns.rank(labels[column]))
    flat = [float(pair.means[row, column]) for _, row in down for column in across]
    numbers = sorted(sign * number for number in flat if math.isfinite(number))
    texts, best = iter(aligned(flat)), pair.best_rows(sign)
    cells = []
    for label, row in down:
        line = []
        for column in across:
            share = _DEEPEST * (sign * pair.means[row, column] - numbers[0]) / ((numbers[-1] - numbers[0]) or 1)
            is_best = row in best[column]
            line.append(Cell(next(texts), round(float(share), 1) if math.isfinite(share) else 0.0, is_best))
        cells.append((label, line))
    return Heatmap(rows.name, columns.name, [labels[column] for column in across], cells)

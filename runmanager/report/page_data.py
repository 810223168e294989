"""The JSON that the script of a page reads: columns and curves of all runs, details of the best runs."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from runmanager.core import files
from runmanager.core.goal import x_column, x_of
from runmanager.core.values import text
from runmanager.core.wording import printable
from runmanager.report.curves import Curve, drawn_of, lines_of, metrics_of_curves, points_of
from runmanager.report.model import ReportData
from runmanager.report.sections import LAST_LINES

_MOST_VIEWS = 300  # maximum number of runs with all details in the page
_MOST_WIDE = 2000  # of more runs, columns of mostly distinct values are left out, and numbers are rounded
_FACTS = ("command", "commit", "host", "device", "device_name")  # keys of the first line of a journal
_DIGITS = 5
_MOST_EPOCHS = 40  # maximum number of epochs per curve in the view of a run


def page_data(data: ReportData, heads: Sequence[tuple[str, str]]) -> str:
    """Return the data of the script as JSON that is safe inside HTML."""
    lines = {metric: lines_of(data, metric) for metric in metrics_of_curves(data)}
    curves = {
        metric: {str(index): _written(curves[index]) for index in drawn_of(data, curves)}
        for metric, curves in lines.items()
    }
    homes = [str(run.folder.path.parent) for run in data.results]
    content = {
        "x": x_column(data.x_axis),
        "metric": data.goal.metric, "larger": data.goal.is_larger_better,
        "colored": data.colored.name if data.colored else None,
        "names": data.names if "experiment" in data.runs else [run.folder.number for run in data.results],
        "order": data.order, "scores": [_rounded(score) for score in data.scores],
        "axes": [
            {"name": axis.name, "labels": axis.labels, "codes": axis.codes, "colors": axis.colors}
            for axis in data.axes
        ],
        "columns": _columns(data, {name for name, _ in heads}),
        "heads": [{"name": name, "kind": kind} for name, kind in heads],
        "curves": curves,
        "views": {str(index): _view(data, index, curves) for index in data.ranked[:_MOST_VIEWS]},
        "homes": None if data.is_foreign else _distinct(homes),
    }  # fmt: skip
    written = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c")  # escape "<", so that no value closes the <script> element


def _columns(data: ReportData, heads: set[str]) -> dict[str, Any]:
    """Return the columns that the reader can filter by, encoded as in `_distinct`."""
    columns = {}
    is_long = len(data.runs) > _MOST_WIDE
    for name in map(str, data.runs):
        column = data.runs[name]
        is_kept = name in heads or name in ("run", "status", "error")
        if not is_long or is_kept or column.nunique(dropna=False) <= len(column) / 2:
            columns[name] = _distinct([_value(value, 6 if is_long else 17) for value in column.tolist()])
    return columns


def _distinct(values: Sequence[Any]) -> dict[str, Any]:
    """Return the distinct values, and the code of each run; if no two values are equal, only the values."""
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(json.dumps(value, ensure_ascii=True), len(numbers)) for value in values]
    distinct = [json.loads(value) for value in numbers]
    if len(distinct) == len(codes):
        return {"all": distinct}
    return {"values": distinct, "codes": codes if len(distinct) > 1 else []}


def _value(value: Any, digits: int) -> Any:
    """Return a value in the form that the script compares: JSON has no NaN, no infinity and no tuples."""
    if value is pd.NA or value is pd.NaT:
        return {"number": "nan"}
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else {"number": str(value)}
    if isinstance(value, str):
        return printable(value)
    return value if value is None or isinstance(value, (bool, int)) else {"text": text(value)}


def _written(points: Curve) -> list[Any]:
    """Return the values of a curve and its epochs, which are left out if they are 1, 2, 3, ..."""
    epochs = [epoch for epoch, _ in points]
    values = [_rounded(value) for _, value in points]
    return [values] if epochs == list(range(1, len(epochs) + 1)) else [values, epochs]


def _view(data: ReportData, index: int, drawn: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the details that the page shows only in the view of a run, with the curves of no figure."""
    run = data.results[index]
    versions = run.start.get("versions")
    facts = {key: run.start[key] for key in _FACTS if run.start.get(key)}
    facts |= {"built on": "; ".join(run.loaded)} if run.loaded else {}
    facts |= versions if isinstance(versions, Mapping) else {}
    curves = {}
    for name in run.epochs[-1].metrics if run.epochs else ():
        points = points_of(run, name, data.x_axis, _MOST_EPOCHS)
        if len(points) > 1 and str(index) not in drawn.get(name, {}):
            curves[name] = _written(points)
    return {
        "facts": {name: printable(str(value)) for name, value in facts.items()},
        "resumed": [x_of(record, data.x_axis) for record in run.epochs if record.cold and record.epoch > 1],
        "next": ""
        if data.is_foreign
        else run.outcome.next_step(files.for_people(run.folder.path / files.ERROR_LOG)),
        "log": "\n".join(map(printable, run.error_log_tail(LAST_LINES))),
        "curves": curves,
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None

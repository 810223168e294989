"""The JSON that the script of a page reads: columns and curves of all runs, details of the best runs."""

import base64
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from runmanager.core.goal import x_column, x_of
from runmanager.core.state import RunResult
from runmanager.core.values import text
from runmanager.core.wording import printable
from runmanager.report.curves import drawn_of, lines_of, points_of
from runmanager.report.model import MISSING, PageAxis, ReportData
from runmanager.report.run_colors import color_of

MOST_VIEWS = 300  # maximum number of runs with all details in the page
# if there are more runs, columns of mostly distinct values are left out, and numbers are rounded
_MOST_WIDE = 2000
_FACTS = ("command", "commit", "host", "device", "device_name")  # keys of the first line of a journal
_LAST_LINES = 15  # number of lines from an error.log
_DIGITS = 5
_MOST_PICTURES = 1_000_000  # maximum number of bytes for the pictures of all runs together
_MOST_EPOCHS = 40  # maximum number of epochs per curve in the view of a run


def page_data(
    data: ReportData, table: Mapping[str, Any], metrics: Sequence[str], colored: PageAxis | None
) -> str:
    """Return the data of the script as JSON that is safe inside HTML."""
    viewed = data.ranked[:MOST_VIEWS]
    content = {
        "x": x_column(data.x_axis),
        "metric": data.goal.metric, "larger": data.goal.is_larger_better,
        "colored": colored.name if colored else None,
        "names": list(data.names) if _are_odd(data) else [run.folder.number for run in data.results],
        "order": list(data.order), "scores": [_rounded(score) for score in data.scores],
        "axes": [_axis(axis) for axis in data.axes],
        "columns": _columns(data, [name for name, _ in table["columns"]]),
        "heads": [{"name": name, "kind": kind} for name, kind in table["columns"]],
        "curves": {metric: _curves(data, metric) for metric in metrics},
        "views": _views(data, viewed),
        "homes": None if data.is_foreign else _distinct([str(r.folder.path.parent) for r in data.results]),
    }  # fmt: skip
    written = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c")  # escape "<", so that no value closes the <script> element


def _are_odd(data: ReportData) -> bool:
    return any(name != f"run {run.folder.number}" for name, run in zip(data.names, data.results, strict=True))


def _axis(axis: PageAxis) -> dict[str, Any]:
    colors = [color_of(axis, code) for code in range(len(axis.labels))]
    return {"name": axis.name, "labels": list(axis.labels), "codes": list(axis.codes), "colors": colors}


def _columns(data: ReportData, heads: Collection[str]) -> dict[str, Any]:
    """Return the columns that the reader can filter by, encoded as in `_distinct`."""
    columns = {}
    leading = {"run", "status", "error", *heads}
    is_long = len(data.runs) > _MOST_WIDE
    for position, name in enumerate(map(str, data.runs)):
        column = data.runs.iloc[:, position]
        if is_long and name not in leading and column.nunique(dropna=False) > len(column) / 2:
            continue
        columns[name] = _distinct([_value(value, 6 if is_long else 17) for value in column.tolist()])
    return columns


def _distinct(values: Sequence[Any]) -> dict[str, Any]:
    """Return the distinct values, and the code of each run; if no two values are equal, only the values."""
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(json.dumps(value, ensure_ascii=True), len(numbers)) for value in values]
    distinct = [json.loads(each) for each in numbers]
    if len(distinct) == len(codes):
        return {"all": distinct}
    return {"values": distinct, "codes": codes if len(distinct) > 1 else []}


def _value(value: Any, digits: int) -> Any:
    """Return a value in the form that the script compares: JSON has no NaN, no infinity and no tuples."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if value is pd.NA or value is pd.NaT:
        return {"number": "nan"}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    return value if isinstance(value, int) else {"text": text(value)}


def _curves(data: ReportData, metric: str) -> dict[str, Any]:
    """Return the values of each run by epoch; the epochs are left out if they are 1, 2, 3, ..."""
    curves = {}
    lines = lines_of(data, metric)
    for index in sorted(drawn_of(data, lines)):
        curves[str(index)] = _written(lines[index])
    return curves


def _written(points: Sequence[tuple[int, float]]) -> list[Any]:
    epochs = [epoch for epoch, _ in points]
    values = [_rounded(value) for _, value in points]
    return [values] if epochs == list(range(1, len(epochs) + 1)) else [values, epochs]


def _views(data: ReportData, viewed: Sequence[int]) -> dict[str, Any]:
    """Return the views of runs, with their pictures until the pictures reach the size limit."""
    views: dict[str, Any] = {}
    room = _MOST_PICTURES
    for index in viewed:
        views[str(index)] = _view(data.results[index], data.x_axis, is_foreign=data.is_foreign)
        if room > 0:
            pictures = confusion_matrices(data.results[index].folder.path)
            room -= sum(map(len, pictures.values()))
            if pictures and room > 0:
                views[str(index)]["pictures"] = {printable(name): each for name, each in pictures.items()}
    return views


def _view(run: RunResult, x_axis: str | None, *, is_foreign: bool) -> dict[str, Any]:
    """Return the details that the page shows only in the view of a run."""
    versions = run.start.get("versions")
    facts = {key: printable(str(run.start[key])) for key in _FACTS if run.start.get(key)}
    facts |= {"built on": printable("; ".join(run.loaded))} if run.loaded else {}
    names = dict.fromkeys(name for record in run.epochs[-1:] for name in record.metrics)
    curves = {}
    for name in names:
        points = points_of(run, name, x_axis)
        step = math.ceil(len(points) / _MOST_EPOCHS)
        if len(points) > 1:
            curves[printable(name)] = _written([*points[:-1:step], points[-1]])
    return {
        "folder": printable(run.folder.path.name),
        "params": {printable(name): _label(value) for name, value in run.folder.params.items()},
        "facts": facts,
        "versions": _texts(versions) if isinstance(versions, Mapping) else {},
        "resumed": [x_of(record, x_axis) for record in run.epochs if record.cold and record.epoch > 1],
        "attempts": run.attempts,
        "epochs": len(run.epochs),
        "error": printable(run.error),
        "next": "" if is_foreign else printable(run.next_step),
        "log": "\n".join(map(printable, run.error_log_tail(_LAST_LINES))),
        "curves": curves,
    }


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {printable(name): printable(str(value)) for name, value in values.items()}


def _label(value: Any) -> str:
    return MISSING if value is None else printable(text(value))


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


_TAG = b"visuals/confusion_"


def confusion_matrices(folder: Path) -> dict[str, str]:
    """Return the last confusion matrix of each evaluation of a run, as data URLs of PNG images."""
    if next(folder.glob("events.out.tfevents.*"), None) is None:
        return {}
    from runmanager.tensorboard import event_file  # this import is slow

    pictures: dict[str, str] = {}
    for path in event_file.event_files(folder):
        try:
            with event_file.mapped(path) as contents:
                # files without the tag are frequent, and parsing all events is slow
                if contents.find(_TAG) < 0:
                    continue
            for event in event_file.read_events(path):
                for value in event.summary.value:
                    if value.tag.encode().startswith(_TAG) and value.image.encoded_image_string:
                        written = base64.b64encode(value.image.encoded_image_string).decode()
                        pictures[value.tag[len(_TAG) :]] = f"data:image/png;base64,{written}"
        except (OSError, ValueError):
            continue
    return pictures

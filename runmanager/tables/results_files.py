"""The files results.csv and results.json of an experiment: one row per epoch, written without pandas."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runmanager.core import files
from runmanager.core.outcome import LEADING
from runmanager.core.state import RunResult
from runmanager.core.values import column, text

COLD = "cold start"
"""The column that marks the first epoch of each process."""

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\0")
"""The first characters of text that a spreadsheet would execute; such text gets a ``'`` in front.

Source: OWASP ASVS 5, 1.2.10.
"""


def write_results(runs: Sequence[RunResult], experiment: Path) -> None:
    """Write the epochs of an experiment's runs to its tables; each file appears by rename, complete."""
    begun = [run for run in runs if run.epochs]
    labels = {name: column(name) for run in runs for name in run.folder.params}
    metrics = dict.fromkeys(name for run in begun for record in run.epochs for name in record.metrics)
    columns = [*dict.fromkeys(["run", "epoch", *LEADING, *labels.values(), *metrics])]
    if any(run.jobs > 1 for run in begun):
        columns.append("jobs")
    if has_cold_starts(begun):
        columns.append(COLD)
    lines, objects = [], []
    for run in begun:
        of_run = {labels[name]: value for name, value in run.folder.params.items()}
        of_run |= {"run": run.folder.number, "jobs": run.jobs}
        for record in run.epochs:
            row = {**record.metrics, **of_run, "epoch": record.epoch, COLD: record.cold}
            values = [row.get(name) for name in columns]
            lines.append(map(readable, values))
            objects.append(dict(zip(columns, map(json_value, values), strict=True)))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(readable, columns))
    writer.writerows(lines)
    content = file.getvalue().encode("utf-8", "backslashreplace")
    files.write_file(experiment / files.RESULTS_CSV, content)
    files.write_file(experiment / files.RESULTS_JSON, files.strict_json(objects))


def has_cold_starts(runs: Sequence[RunResult]) -> bool:
    """Whether a run used an accelerator, whose first epoch in each process is slower."""
    return any(str(run.start.get("device", "cpu")) not in ("cpu", "meta") for run in runs)


def readable(value: Any) -> Any:
    """Return the cell of a value in a CSV for people, with text as `values.text` writes it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, (bool, int, float)):
        return value
    content = text(value)
    safe = f"'{content}" if content.startswith(FORMULA) else content
    return safe.replace("\r\n", "\n").replace("\r", "\n")  # csv quotes \n; \r only since Python 3.13


def json_value(value: Any) -> Any:
    """Convert a value to strict JSON for people and scripts: NaN becomes null, other objects text."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, Mapping):
        return {text(key): json_value(item) for key, item in value.items()}
    return text(value)

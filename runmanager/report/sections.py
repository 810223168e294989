"""What the parts of a report list: settings, changes, causes of failures, and how the runs were executed."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from runmanager.hyperparameters import counted
from runmanager.outcome import Status
from runmanager.report import text
from runmanager.report.model import ReportData
from runmanager.report.search_text import percent
from runmanager.results.changes import Interaction, repeats_differ
from runmanager.storage import paths
from runmanager.wording import aligned, cell, duration, join, printable

_DEEPEST = 55  # per cent of the color, on which text is still read well
_MOST_NAMED = 12  # runs of a cause
_MOST_SETTINGS = 10  # in their table
_LAST_LINES = 15  # of an error.log
_FACTS = {"command": "command", "commit": "commit", "machine": "host"}  # name -> key in a run's first line


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


def cards(data: ReportData) -> list[tuple[str, str]]:
    """Return what there is to know about the runs at first sight."""
    results = data.results
    seconds = sum(run.epochs[-1].metrics.get("run duration", 0.0) for run in results if run.epochs)
    completed = sum(run.status is Status.COMPLETED for run in results)
    of = f" of {len(results):,}" if completed < len(results) else ""
    cards = [("completed" if of else "runs", f"{completed:,}{of}")]
    cards += [("epochs", f"{sum(len(run.epochs) for run in results):,}"), ("training", duration(seconds))]
    if data.findings.verdict or not data.order:  # whose number is said above
        return cards
    best = "best mean" if data.findings.repeats else "best"
    return [*cards, (f"{best} {data.metric}", cell(data.findings.settings[0].mean))]


def settings(data: ReportData) -> dict[str, Any] | None:
    """Return the columns and rows of the table of the best settings, None without repeats."""
    findings = data.findings
    if not findings.repeats or len(findings.settings) < 2:  # noqa: PLR2004 - a choice is between two
        return None
    axes = [axis for axis in data.axes if axis.name not in findings.repeats]
    columns = [(axis.name, "number" if axis.is_ordered else "text") for axis in axes]
    metric = f"mean {data.metric}"
    columns += [(metric, "number"), ("95 % interval", "text"), ("repeats", "text"), ("behind the best", "text")]
    best = findings.settings[: _MOST_SETTINGS if len(findings.settings) > _MOST_SETTINGS + 1 else None]
    means = aligned([setting.mean for setting in best])
    rows = []
    for index, (setting, mean) in enumerate(zip(best, means, strict=True)):
        cells = [axis.labels[axis.codes[setting.rows[0]]] for axis in axes]
        behind = text.behind(data, index)
        rows.append([*cells, mean, findings.interval(setting), setting.counts, behind])
    return {"columns": columns, "rows": rows, "number": len(findings.settings)}


def together(data: ReportData) -> tuple[str, Heatmap] | None:
    """Return the sentence and the table of the two hyperparameters that act together most."""
    return (
        (text.together_sentence(data, data.together), heatmap(data, data.together)) if data.together else None
    )


def bars(data: ReportData) -> list[tuple[str, str, float]]:
    """Return how much each hyperparameter changes, all others equal, as text and in per cent of the most.

    Of a sample or a search, these are the importances.
    """
    if data.importances:
        most = max(data.importances.values())
        shares = [(name, share) for name, share in data.importances.items() if math.isfinite(share)]
        return [(name, percent(share), round(100 * share / (most or 1), 1)) for name, share in shares]
    sizes = [(axis.name, data.changes[axis.name].mean) for axis in data.compared if axis.name in data.changes]
    spread = repeats_differ(data.findings)
    sizes = [(name, size) for name, size in sizes if math.isfinite(size)]
    if sizes and math.isfinite(spread):
        sizes.append((f"repeats ({', '.join(data.findings.repeats)})", spread))
    most = max((size for _, size in sizes), default=0.0)
    return [(name, f"{size:.2g}", round(100 * size / most, 1)) for name, size in sizes] if most else []


def causes(data: ReportData) -> list[dict[str, Any]]:
    """Return why runs have no result: what they have in common, the next step, the end of a log."""
    causes = []
    for failure in data.failures:
        first = data.results[failure.rows[0]]
        named = ", ".join(data.names[index] for index in failure.rows[:_MOST_NAMED])
        more = f" and {len(failure.rows) - _MOST_NAMED} more" if len(failure.rows) > _MOST_NAMED else ""
        run = f"{paths.for_people(first.folder.path.parent)}/{first.folder.number}"
        causes.append(
            {
                "status": failure.status,
                "error": failure.cause or "no cause is recorded",
                "which": failure.runs,
                "runs": named + more if len(failure.rows) > 1 else "",
                "next": failure.next_step(printable(f"runmanager show {shlex.quote(run)}")),
                "log": "\n".join(map(printable, first.error_log_tail(_LAST_LINES))),
            }
        )
    return causes


def facts(data: ReportData) -> dict[str, list[str]]:
    """Return what the runs were executed with; where they differ, how many each."""
    starts = [run.start for run in data.results if run.start]
    counters: dict[str, Counter[str]] = {}
    for start in starts:
        versions = start.get("versions")
        facts = {name: start.get(key) for name, key in _FACTS.items()}
        facts |= {"device": join(dict.fromkeys(str(start.get(n) or "") for n in ("device", "device_name")))}
        facts |= versions if isinstance(versions, Mapping) else {}
        for name, value in facts.items():
            if value not in (None, ""):
                counters.setdefault(name, Counter())[printable(str(value))] += 1
    listed: dict[str, list[str]] = {}
    for name, counts in counters.items():
        values = counts.most_common(6)
        listed[name] = [v if len(counts) == 1 else f"{v} ({counted(number, 'run')})" for v, number in values]
    walls = [start["t_wall"] for start in starts if isinstance(start.get("t_wall"), (int, float))]
    if walls:
        first, last = (datetime.fromtimestamp(wall, tz=UTC) for wall in (min(walls), max(walls)))
        listed["begun"] = [f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"]
    varying = {axis.name for axis in data.axes}
    params = data.results[0].folder.params.items()
    same = [f"{name} {cell(value)}" for name, value in params if name not in varying]
    return {**listed, "the same in all runs": same} if same else listed


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

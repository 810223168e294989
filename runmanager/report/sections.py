"""What the parts of a report list: settings, changes, causes of failures, and how the runs were executed."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from runmanager.console import cell, duration, join, printable
from runmanager.hyperparameters import counted
from runmanager.outcome import Status
from runmanager.report import text
from runmanager.report.heatmap import Heatmap, heatmap
from runmanager.report.model import ReportData
from runmanager.report.sampled import percent
from runmanager.results.changes import repeats_differ
from runmanager.storage import paths
from runmanager.wording import aligned

_MOST_NAMED = 12  # runs of a cause
_MOST_SETTINGS = 10  # in their table
_LAST_LINES = 15  # of an error.log
_FACTS = {"command": "command", "commit": "commit", "machine": "host"}  # name -> key in a run's first line


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
    return (text.together(data, data.together), heatmap(data, data.together)) if data.together else None


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

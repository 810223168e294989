"""The HTML file of a report, from runs to the last byte."""

import base64
import hashlib
import math
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from runmanager.console import cell, duration, join, printable
from runmanager.errors import InvalidArgumentError, NoRunsError
from runmanager.hyperparameters import counted
from runmanager.outcome import Status
from runmanager.report import charts, text
from runmanager.report.heatmap import Heatmap, heatmap
from runmanager.report.link import WrittenReport
from runmanager.report.model import Axis, ReportData, report_data
from runmanager.results.changes import repeats_differ
from runmanager.results.effects import OVERALL, compare, speeds
from runmanager.results.loading import read_results
from runmanager.storage import durable, paths
from runmanager.storage.folders import no_runs
from runmanager.wording import aligned

_MOST_AXES = 8  # of the parallel coordinates, and panels of effects
_MOST_NAMED = 12  # runs of a cause
_MOST_SETTINGS = 10  # in their table
_LAST_LINES = 15  # of an error.log
_FACTS = {"command": "command", "commit": "commit", "machine": "host"}  # name -> key in a run's first line
_ASSETS = Path(__file__).parent / "assets"


def write_report(
    path: str | os.PathLike[str] = "runs",
    target: str | os.PathLike[str] = "report.html",
    by: str | None = None,
    *,
    largest: bool | None = None,
) -> WrittenReport:
    """Write one HTML file that shows which run is best, and why.

    The file needs no network: figures, style and script are inside. All text that comes from runs is escaped.

    Args:
        path: The root of all experiments, or one experiment.
        target: The file; it appears complete.
        by: The metric that runs are ranked by; by default the one that `best` sorts by.
        largest: Whether its large values are good; by default as its name says.

    Returns:
        The file, as a path; a notebook shows a link to it.

    Raises:
        NoRunsError: There is no such path, or there are no runs.
        InvalidArgumentError: There is no metric `by`, `largest` has to be given, or experiments have different
            goals.
        StorageError: The file could not be written; an earlier one is kept.

    Example::

        write_report("runs/fashion_grid", "report.html", by="test_accuracy")
    """
    results, damaged = read_results(path)
    experiments = dict(results)
    if not any(experiments.values()):
        raise NoRunsError(no_runs(path))
    title = next(iter(experiments)) if len(experiments) == 1 else Path(path).resolve().name
    page = render(report_data(printable(title), experiments, by, largest=largest), damaged)
    durable.write_file(Path(target), page.encode("utf-8", "backslashreplace"))
    return WrittenReport(target)


def render(data: ReportData, damaged: Sequence[str] = ()) -> str:
    """Return the page of a report as HTML; it names some of the files that are damaged."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_ASSETS)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_written,
    )  # fmt: skip
    colored = next((axis for axis in data.axes if len(axis.labels) <= charts.NUM_COLORS), None)
    script = (_ASSETS / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        data=data,
        text=text,
        is_many=len(data.results) > charts.MANY,
        style=(_ASSETS / "page.css").read_text(encoding="utf-8"),
        script=script,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        cards=_cards(data),
        settings=_settings(data),
        bars=_bars(data),
        together=_heatmap(data),
        table=_table(data),
        legend=[(v, charts.color_of(colored, i)) for i, v in enumerate(colored.labels)] if colored else [],
        legend_name=colored.name if colored else "",
        curves=_curves(data, colored),
        parallel=_parallel(data),
        effects=_effects(data),
        devices=_devices(data),
        causes=_causes(data),
        failed=text.failures(data.results),
        differences=data.differences,
        facts=_facts(data),
        written=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        damaged=[printable(problem) for problem in damaged],
    )


def _written(value: Any) -> Any:
    """Escape what would change how a page is drawn, in whatever text the template writes."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "\n".join(map(printable, value.split("\n")))


def _cards(data: ReportData) -> list[tuple[str, str]]:
    results = data.results
    seconds = sum(run.epochs[-1].metrics.get("run duration", 0.0) for run in results if run.epochs)
    completed = sum(run.status is Status.COMPLETED for run in results)
    of = f" of {len(results):,}" if completed < len(results) else ""
    cards = [("completed" if of else "runs", f"{completed:,}{of}")]
    cards += [("epochs", f"{sum(len(run.epochs) for run in results):,}"), ("training", duration(seconds))]
    best = "best mean" if data.findings.repeats else "best"
    return [*cards, (f"{best} {data.metric}", cell(data.findings.settings[0].mean))] if data.order else cards


def _settings(data: ReportData) -> dict[str, Any] | None:
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


def _heatmap(data: ReportData) -> tuple[str, Heatmap] | None:
    """Return the sentence and the table of the two hyperparameters that act together most."""
    return (text.together(data, data.together), heatmap(data, data.together)) if data.together else None


def _bars(data: ReportData) -> list[tuple[str, str, float]]:
    """Return how much each hyperparameter changes, all others equal, as text and in per cent of the most."""
    sizes = [(axis.name, data.changes[axis.name].mean) for axis in data.compared if axis.name in data.changes]
    spread = repeats_differ(data.findings)
    sizes = [(name, size) for name, size in sizes if math.isfinite(size)]
    if sizes and math.isfinite(spread):
        sizes.append((f"repeats ({', '.join(data.findings.repeats)})", spread))
    most = max((size for _, size in sizes), default=0.0)
    return [(name, f"{size:.2g}", round(100 * size / most, 1)) for name, size in sizes] if most else []


def _table(data: ReportData) -> dict[str, Any]:
    """Return the columns and rows of the table: hyperparameters that vary and results, the best run first."""
    runs = data.runs
    others = _metrics(data)[1:]
    names = ["status"] if len(set(runs["status"])) > 1 else []
    numbers = ["epochs"] if len(set(runs["epochs"])) > 1 else []
    times = [name for name in ("epoch duration", "run duration") if not runs[name].isna().all()]
    numbers, times = ([name for name in names if name != data.metric] for names in (numbers, times))
    columns = [("run", "text"), (data.metric, "number")]
    columns += [(axis.name, "number" if axis.is_ordered else "text") for axis in data.axes]
    columns += [(name, "number") for name in (*others, *numbers, *times)] + [(name, "text") for name in names]
    ranked = [*data.order, *sorted({*range(len(data.results))} - {*data.order})]
    shares = _shares(data)
    rows = []
    for index in ranked:
        cells: list[tuple[str, str, float | None]] = [(data.names[index], str(index), None)]
        cells.append((*_number(runs[data.findings.goal.metric].iloc[index]), shares.get(index)))
        cells += [(axis.labels[axis.codes[index]], str(axis.codes[index]), None) for axis in data.axes]
        cells += [(*_number(runs[name].iloc[index]), None) for name in (*others, *numbers, *times)]
        cells += [(str(runs[name].iloc[index]), str(runs[name].iloc[index]), None) for name in names]
        rows.append({"index": index, "cells": cells})
    return {"columns": columns, "rows": rows}


def _shares(data: ReportData) -> dict[int, float]:
    """Return how far each score is from the worst to the best, in per cent."""
    if not data.order:
        return {}
    scores = sorted((data.scores[i] for i in data.order), reverse=data.is_larger_better)
    best, worst = scores[0], scores[-1]
    return {i: 100 * abs(data.scores[i] - worst) / (abs(best - worst) or 1) for i in data.order}


def _metrics(data: ReportData) -> list[str]:
    """Return the metric and those that go with it: its loss, and both of the training data."""
    evaluated, _, kind = data.metric.rpartition("_")
    names = [data.metric]
    if kind in ("accuracy", "loss"):
        other = "loss" if kind == "accuracy" else "accuracy"
        names += [f"{evaluated}_{other}", "accuracy", "loss"] if evaluated else [other]
    else:
        names += [f"{evaluated}_loss", "loss"]
    runs = data.runs
    return [name for name in dict.fromkeys(names) if name in runs and not runs[name].isna().all()]


def _curves(data: ReportData, colored: Axis | None) -> list[dict[str, str]]:
    """Return the figures of the metric and its loss over the epochs, colored by an axis, with sentences."""
    if max(len(run.epochs) for run in data.results) < 2:  # noqa: PLR2004 - a curve needs two
        return []
    curves = []
    for number, metric in enumerate(_metrics(data)[:2]):
        partner = metric.rpartition("_")[2] if "_" in metric else None
        words = text.curves(data, metric, partner)
        records = (record for run in data.results for record in run.epochs)
        if any(math.isfinite(record.metrics.get(metric, math.nan)) for record in records):
            figure = charts.curves(data, metric, colored, words, f"curves-{number}")
            curves.append({"name": metric, "figure": figure, "words": words})
    return curves


def _parallel(data: ReportData) -> tuple[str, str, int] | None:
    """Return the parallel coordinates, their sentence, and how many runs are colored as the best."""
    if not data.compared:
        return None
    number = len(data.order)
    top = data.order[: max(1, min(3, number // 3), number // 10)]
    words = text.parallel(data, top)
    return charts.parallel(data, data.compared[:_MOST_AXES], top, words), words, len(top)


def _effects(data: ReportData) -> list[dict[str, Any]]:
    effects = []
    for number, axis in enumerate(data.compared[:_MOST_AXES]):
        words = text.effect(data, axis)
        figure = charts.effect(data, axis, words, f"effect-{number}")
        effects.append({"name": axis.name, "figure": figure, "words": words})
    return effects


def _devices(data: ReportData) -> dict[str, Any] | None:
    pairs: pd.DataFrame | None = None
    if "device" in data.runs and any(axis.name == "device" for axis in data.axes):
        try:
            pairs = compare(data.runs, "device", "epoch duration")
        except InvalidArgumentError:
            pairs = None
    if pairs is None or pairs.empty:
        return None
    words = " ".join(speeds(pairs))
    ratios = len(pairs.attrs[OVERALL])  # come last, after the differences and a column for each device
    columns = list(map(str, pairs))[-3 * ratios - 1 : len(pairs.columns) - 2 * ratios]
    rows = [row for row in pairs[columns].to_numpy().tolist() if all(map(math.isfinite, row))]
    if not rows or not words:
        return None
    return {"words": words, "figure": charts.pairs(columns, rows, "epoch duration (s)", words)}


def _causes(data: ReportData) -> list[dict[str, Any]]:
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


def _facts(data: ReportData) -> dict[str, list[str]]:
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


def _number(value: float) -> tuple[str, str]:
    """Return a number as text, and the text to sort it by; both are empty if it is missing."""
    return (cell(float(value)), repr(float(value))) if math.isfinite(value) else ("", "")

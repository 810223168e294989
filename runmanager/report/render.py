"""From runs to the file of a page."""

import base64
import hashlib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.console import cell, duration, join, printable
from runmanager.errors import GridError
from runmanager.hyperparameters import counted
from runmanager.outcome import Status
from runmanager.report import charts, text
from runmanager.report.model import Axis, Gathered, gather
from runmanager.results.loading import read_results
from runmanager.results.ranking import compare
from runmanager.storage import durable, paths
from runmanager.storage.durable import read_file
from runmanager.storage.run_state import RunResult

if TYPE_CHECKING:
    import pandas as pd

_MOST_AXES = 8  # of the parallel coordinates, and panels of effects
_MOST_NAMED = 12  # runs of a cause
_LAST_LINES = 15  # of a traceback
_ASSETS = Path(__file__).parent / "assets"


def write_report(
    path: str | os.PathLike[str] = "runs",
    target: str | os.PathLike[str] = "report.html",
    by: str | None = None,
    *,
    largest: bool | None = None,
) -> Path:
    """Write one HTML file that shows which run is best, and why.

    It needs no network: figures, style and script are inside. All that comes from runs is escaped.

    Args:
        path: The root of all experiments, or one experiment.
        target: The file; it appears complete.
        by: The metric that runs are judged by; by default the one that `best` sorts by.
        largest: Whether its large values are good; by default as its name says.

    Returns:
        The file.

    Raises:
        FileNotFoundError: There is no such path, or there are no runs.
        GridError: There is no metric `by`, or it is not known whether its large values are good.
        StorageError: The file could not be written; one that was there is as it was.
    """
    damaged: list[str] = []
    found = dict(read_results(path, damaged))
    if not any(found.values()):
        raise FileNotFoundError(f"no runs under {os.fspath(path)}: start a grid first, or give its folder")
    title = next(iter(found)) if len(found) == 1 else Path(path).resolve().name
    page = render(gather(printable(title), found, by, largest=largest), damaged)
    durable.write_file(Path(target), page.encode("utf-8", "backslashreplace"))
    return Path(target)


def render(gathered: Gathered, damaged: Sequence[str] = ()) -> str:
    """Make the page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_ASSETS)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    legend_name, legend = _legend(gathered)
    script = (_ASSETS / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        gathered=gathered,
        sentences=text,
        is_many=len(gathered.results) > charts.MANY,
        style=(_ASSETS / "page.css").read_text(encoding="utf-8"),
        script=script,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        cards=_cards(gathered),
        table=_table(gathered),
        legend=legend,
        legend_name=legend_name,
        curves=_curves(gathered),
        parallel=_parallel(gathered),
        effects=_effects(gathered),
        devices=_devices(gathered),
        causes=_causes(gathered),
        facts=_facts(gathered),
        written=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        damaged=[printable(problem) for problem in damaged],
    )


def _cards(gathered: Gathered) -> list[tuple[str, str]]:
    results = gathered.results
    seconds = sum(run.epochs[-1].metrics.get("run duration", 0.0) for run in results if run.epochs)
    completed = sum(run.status is Status.COMPLETED for run in results)
    cards = [("runs", f"{len(results):,}"), ("completed", f"{completed:,}")]
    cards += [("epochs", f"{sum(len(run.epochs) for run in results):,}"), ("training", duration(seconds))]
    return (
        [*cards, (f"best {gathered.metric}", cell(gathered.scores[gathered.order[0]]))]
        if gathered.order
        else cards
    )


def _table(gathered: Gathered) -> dict[str, Any]:
    """Return the columns and rows of the table: what varied, what came of it, the best first."""
    runs = gathered.runs
    others = _metrics(gathered)[1:]
    names = ["status"] if len(set(runs["status"])) > 1 else []
    numbers = ["epochs"] if len(set(runs["epochs"])) > 1 else []
    times = [name for name in ("epoch duration", "run duration") if not runs[name].isna().all()]
    numbers, times = ([name for name in names if name != gathered.metric] for names in (numbers, times))
    columns = [("run", "text"), (gathered.metric, "number")]
    columns += [(axis.name, "number" if axis.is_ordered else "text") for axis in gathered.axes]
    columns += [(name, "number") for name in (*others, *numbers, *times)] + [(name, "text") for name in names]
    ranked = [*gathered.order, *sorted({*range(len(gathered.results))} - {*gathered.order})]
    shares = _shares(gathered)
    rows = []
    for position in ranked:
        cells: list[tuple[str, str, float | None]] = [(gathered.names[position], str(position), None)]
        cells.append((*_number(runs[gathered.metric].iloc[position]), shares.get(position)))
        cells += [(a.labels[a.place[position]], str(a.place[position]), None) for a in gathered.axes]
        cells += [(*_number(runs[name].iloc[position]), None) for name in (*others, *numbers, *times)]
        cells += [(str(runs[name].iloc[position]), str(runs[name].iloc[position]), None) for name in names]
        rows.append({"position": position, "cells": cells})
    return {"columns": columns, "rows": rows}


def _shares(gathered: Gathered) -> dict[int, float]:
    """Return how far each score is from the worst to the best, in per cent."""
    if not gathered.order:
        return {}
    best, worst = (gathered.scores[gathered.order[place]] for place in (0, -1))
    return {p: 100 * abs(gathered.scores[p] - worst) / (abs(best - worst) or 1) for p in gathered.order}


def _metrics(gathered: Gathered) -> list[str]:
    """Return the metric and those that go with it: its loss, and both of the training data."""
    data, _, kind = gathered.metric.rpartition("_")
    wanted = [gathered.metric]
    if kind in ("accuracy", "loss"):
        other = "loss" if kind == "accuracy" else "accuracy"
        wanted += [f"{data}_{other}" if data else other]
        wanted += ["accuracy", "loss"] if data else []
    runs = gathered.runs
    return [name for name in dict.fromkeys(wanted) if name in runs and not runs[name].isna().all()]


def _legend(gathered: Gathered) -> tuple[str, list[tuple[str, int]]]:
    """Return the hyperparameter that curves are colored by, and the color of each of its values."""
    axis = _colored(gathered)
    if axis is None:
        return "", []
    return axis.name, [(label, charts.color_of(axis, place)) for place, label in enumerate(axis.labels)]


def _colored(gathered: Gathered) -> Axis | None:
    return next((axis for axis in gathered.axes if len(axis.labels) <= charts.NUM_COLORS), None)


def _curves(gathered: Gathered) -> list[dict[str, str]]:
    """Return the figures of the metric and its loss over the epochs, with their sentences."""
    if max(len(run.epochs) for run in gathered.results) < 2:  # noqa: PLR2004 - a curve needs two
        return []
    found = []
    for number, metric in enumerate(_metrics(gathered)[:2]):
        partner = metric.rpartition("_")[2] if "_" in metric else None
        words = text.curves(gathered, metric, partner)
        records = (record for run in gathered.results for record in run.epochs)
        if any(math.isfinite(record.metrics.get(metric, math.nan)) for record in records):
            figure = charts.curves(gathered, metric, _colored(gathered), words, f"curves-{number}")
            found.append({"name": metric, "figure": figure, "words": words})
    return found


def _parallel(gathered: Gathered) -> tuple[str, str, int] | None:
    """Return the parallel coordinates, their sentence, and how many runs are colored as the best."""
    if not gathered.compared:
        return None
    number = len(gathered.order)
    top = gathered.order[: max(1, min(3, number // 3), number // 10)]
    words = text.parallel(gathered, top)
    return charts.parallel(gathered, gathered.compared[:_MOST_AXES], top, words), words, len(top)


def _effects(gathered: Gathered) -> list[dict[str, Any]]:
    found = []
    for number, axis in enumerate(gathered.compared[:_MOST_AXES]):
        words = text.effect(gathered, axis)
        figure = charts.effect(gathered, axis, words, f"effect-{number}")
        share = gathered.explained.get(axis.name, math.nan)
        found.append(
            {
                "name": axis.name,
                "figure": figure,
                "words": words,
                "share": 100 * share if math.isfinite(share) else None,
            }
        )
    return found


def _devices(gathered: Gathered) -> dict[str, Any]:
    pairs: pd.DataFrame | None = None
    if "device" in gathered.runs and any(axis.name == "device" for axis in gathered.axes):
        try:
            pairs = compare(gathered.runs, "device", "epoch duration")
        except GridError:
            pairs = None
    words = text.devices(gathered, pairs)
    if pairs is None or pairs.empty:
        return {"words": words, "figure": None}
    axis = next(axis for axis in gathered.axes if axis.name == "device")
    columns = [label for label in axis.labels if label in pairs]
    rows = pairs[columns].to_numpy().tolist()
    return {"words": words, "figure": charts.pairs(columns, rows, "epoch duration (s)", words)}


def _causes(gathered: Gathered) -> list[dict[str, Any]]:
    """Group the runs without a result by what happened to them."""
    grouped: dict[tuple[str, str], list[int]] = {}
    for position, run in enumerate(gathered.results):
        if run.status is not Status.COMPLETED:
            grouped.setdefault((str(run.status), run.error), []).append(position)
    causes = []
    for (status, error), positions in sorted(grouped.items(), key=lambda item: -len(item[1])):
        first = gathered.results[positions[0]]
        named = ", ".join(gathered.names[position] for position in positions[:_MOST_NAMED])
        more = f" and {len(positions) - _MOST_NAMED} more" if len(positions) > _MOST_NAMED else ""
        causes.append(
            {
                "status": status,
                "error": printable(error) or "no cause is recorded",
                "runs": named + more,
                "next": printable(first.next_step),
                "log": _log(first),
            }
        )
    return causes


def _log(run: RunResult) -> str:
    if not run.error:
        return ""
    try:
        content = read_file(run.folder.path / paths.ERROR_LOG, 1 << 20)[0]
    except OSError:
        return ""
    lines = content.decode("utf-8", "replace").rstrip().split("\n")[-_LAST_LINES:]
    return "\n".join(map(printable, lines))


def _facts(gathered: Gathered) -> dict[str, list[str]]:
    """Return what the runs were executed with; where they differ, how many each."""
    starts = [run.start for run in gathered.results if run.start]
    found: dict[str, Counter[str]] = {}
    for start in starts:
        versions = start.get("versions")
        known: Mapping[str, Any] = versions if isinstance(versions, Mapping) else {}
        facts: dict[str, Any] = {
            "command": start.get("command"),
            "commit": start.get("commit"),
            "machine": start.get("host"),
        }
        facts |= {"device": join(dict.fromkeys(str(start.get(n) or "") for n in ("device", "device_name")))}
        for name, value in {**facts, **known}.items():
            if value not in (None, ""):
                found.setdefault(name, Counter())[printable(str(value))] += 1
    listed = {
        name: [
            v if len(counts) == 1 else f"{v} ({counted(number, 'run')})" for v, number in counts.most_common(6)
        ]
        for name, counts in found.items()
    }
    walls = [start["t_wall"] for start in starts if isinstance(start.get("t_wall"), (int, float))]
    if walls:
        first, last = (datetime.fromtimestamp(wall, tz=UTC) for wall in (min(walls), max(walls)))
        listed["begun"] = [f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"]
    same = {
        name: value
        for name, value in gathered.results[0].folder.params.items()
        if all(axis.name != name for axis in gathered.axes)
    }
    if same:
        listed["the same in all runs"] = [f"{name} {cell(value)}" for name, value in same.items()]
    return listed


def _number(value: float) -> tuple[str, str]:
    """Return a number as it is shown and as it is sorted by, both empty if it is missing."""
    return (cell(float(value)), repr(float(value))) if math.isfinite(value) else ("", "")

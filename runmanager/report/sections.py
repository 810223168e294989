"""The lists and tables of a report: key numbers, settings, failures, environment."""

import shlex
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from runmanager.answers.answers import INTERVAL, REPEATS, columns_of_numbers
from runmanager.answers.failures import failures
from runmanager.core import files
from runmanager.core.outcome import Status
from runmanager.core.wording import counted, printable
from runmanager.report import text
from runmanager.report.model import ReportData
from runmanager.tables.cells import aligned, cell, duration, join

_MOST_NAMED = 12  # maximum number of runs named per cause
_MOST_SETTINGS = 10  # maximum number of rows in the table of settings
_LAST_LINES = 15  # number of lines from an error.log
_FACTS = {"command": "command", "commit": "commit", "machine": "host"}  # name -> key in a run's first line


def cards(data: ReportData) -> list[tuple[str, str]]:
    """Return the key numbers of the report as (name, value) pairs."""
    counts, number = data.answers.counts, len(data.results)
    completed = counts.get(Status.COMPLETED, 0)
    cards = [("run" if number == 1 else "runs", f"{number:,}")]
    if completed < number:
        cards = [("completed", f"{completed:,} of {number:,}")]
        cards += [(word, f"{count:,}") for word, count in counts.items() if word != Status.COMPLETED]
    if not (epochs := data.num_epochs):
        return cards
    time = ("run time", duration(float(data.runs["run duration"].sum())))
    return [*cards, ("epoch" if epochs == 1 else "epochs", f"{epochs:,}"), time]


def settings(data: ReportData) -> dict[str, Any] | None:
    """Return the table of repeated settings, or of the Pareto front, the best first; else None."""
    ranking, has_front = data.ranking, len(data.ranking.goals) > 1
    if not (ranking.repeats or has_front):
        return None
    listed = ranking.settings if ranking.repeats else ranking.first
    if len(listed) < 2:  # noqa: PLR2004 - a comparison needs two
        return None
    best = listed[: _MOST_SETTINGS if len(listed) > _MOST_SETTINGS + 1 else None]
    names = [axis.name for axis in data.axes if axis.name in best[0].params]
    numbers = columns_of_numbers(ranking, best)
    mean = "mean " if ranking.repeats else ""
    goals = {each.metric: f"{mean}{each.metric}" for each in ranking.goals}
    texts = [] if ranking.repeats else [("run", [data.names[setting.rows[0]] for setting in best])]
    texts += [(name, [data.axis(name).label(setting.params[name]) for setting in best]) for name in names]
    texts += [(title, aligned(numbers[name])) for name, title in goals.items()]
    if ranking.repeats:
        behind = [text.behind(data, rank) for rank in range(len(best))]
        texts += [("behind the first", behind), *((name, numbers[name]) for name in (INTERVAL, REPEATS))]
    if ranking.repeats and has_front:
        front = [setting.rows for setting in ranking.front]
        texts.append(("Pareto front", ["yes" if setting.rows in front else "" for setting in best]))
    right = [*(name for name in names if data.axis(name).is_ordered), *goals.values()]
    which = "The Pareto front"
    if ranking.repeats:
        which = f"{'The' if len(best) == len(listed) else f'The first {len(best)}'} settings by their mean"
    some = ""
    if len(best) < len(listed) and not ranking.repeats:
        some = f"{len(best)} of {counted(len(listed), ranking.noun)}"
    return {
        "caption": "; ".join(filter(None, [which, some, ranking.count, data.answers.scope])),
        "columns": [(name, "number" if name in right else "text") for name, _ in texts],
        "rows": list(zip(*(cells for _, cells in texts), strict=True)),
    }


def causes(data: ReportData) -> list[dict[str, Any]]:
    """Return the causes of missing results, each with its runs, the next step and the end of a log."""
    causes = []
    for failure in failures(data.runs, repeats=data.ranking.repeats):
        first = data.results[failure.rows[0]]
        named = ", ".join(data.names[index] for index in failure.rows[:_MOST_NAMED])
        more = f" and {len(failure.rows) - _MOST_NAMED} more" if len(failure.rows) > _MOST_NAMED else ""
        run = f"{files.for_people(first.folder.path.parent)}/{first.folder.number}"
        show = f"runmanager show {shlex.quote(run)}"
        causes.append(
            {
                "status": failure.status,
                "error": failure.cause or "no cause is recorded",
                "which": failure.runs,
                "runs": named + more if len(failure.rows) > 1 else "",
                "next": "" if data.is_foreign else failure.next_step(printable(show)),
                "log": "\n".join(map(printable, first.error_log_tail(_LAST_LINES))),
            }
        )
    return causes


def facts(data: ReportData) -> dict[str, list[str]]:
    """Return the environment of the runs; if runs differ in a fact, each value has its number of runs."""
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
        moments = (datetime.fromtimestamp(wall, tz=UTC) for wall in (min(walls), max(walls)))
        minutes = dict.fromkeys(f"{moment:%Y-%m-%d %H:%M}" for moment in moments)
        listed["begun"] = [f"{' to '.join(minutes)} UTC"]
    varying = {axis.name for axis in data.axes}
    params = data.results[0].folder.params.items()
    same = [f"{name} {cell(value)}" for name, value in params if name not in varying]
    return {**listed, "the same in all runs": same} if same else listed

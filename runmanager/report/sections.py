"""The sentences, lists and tables of a report; the template of the page places them."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from runmanager.answers.answers import INTERVAL, REPEATS, columns_of_numbers
from runmanager.answers.conclusion import cli_command
from runmanager.answers.contest import BETTER, EQUAL, UNDECIDED
from runmanager.answers.failures import failures
from runmanager.answers.ranking import is_same, mean_of
from runmanager.answers.sentences import capital, left_to_execute
from runmanager.answers.verdict_sentence import two_digits
from runmanager.answers.view import TIMES
from runmanager.core import files
from runmanager.core.goal import KEPT
from runmanager.core.outcome import BY_TRAIN, Status
from runmanager.core.wording import counted, listed
from runmanager.report.curves import metrics
from runmanager.report.model import ReportData
from runmanager.tables.cells import aligned, cell, duration, durations, join

_MOST_NAMED = 12  # maximum number of runs named per cause
_MOST_SETTINGS = 10  # maximum number of rows in a table of settings
_MOST_ROWS = 1000  # maximum number of table rows in the file; the script adds further rows on demand
LAST_LINES = 15  # number of lines from an error.log
_FACTS = {"command": "command", "commit": "commit", "machine": "host"}  # name -> key in a run's first line


def basis(data: ReportData) -> str:
    """Say which value of a run counts, which direction is better, and how often the verdict is wrong."""
    answers, text = data.answers, ""
    if len(answers.settings) < 2:  # noqa: PLR2004 - a comparison needs two
        return ""
    for goal in data.ranking.goals:
        which = goal.metric if goal.metric.startswith((KEPT, "best ")) else f"last {goal.metric}"
        text += f"The {which} of each run counts, {'higher' if goal.is_larger_better else 'lower'} is better. "
    if answers.has_verdict:
        text += f"A verdict is wrong in at most {100 * answers.decision.error:g} of 100 experiments. "
        lead = answers.decision.closest
        if answers.decision.outcome in (BETTER, UNDECIDED):
            text += f"A decision needs evidence {lead.least:g}; the lead has {lead.evidence:.2g}."
    return text.rstrip()


def left(data: ReportData, *, is_over: bool) -> str:
    """Say how many runs may still get a result, and where they resume; "" if there is no such run."""
    number = sum(run.status.is_open for run in data.results)
    if not number:
        return ""
    text = left_to_execute(number, len(data.results))
    if is_over and not any(run.status.is_in_progress for run in data.results):
        text += "; start the same command again"
        names = [
            f"{name} resumes {run.inside or f'after epoch {len(run.epochs)}'}"
            for name, run in zip(data.names, data.results, strict=True)
            if run.status is Status.INTERRUPTED
            and (run.inside or (run.folder.path / files.CHECKPOINT).exists())
        ]
        text += f": {listed(names)}" if names else ""
    return text


def cards(data: ReportData) -> dict[str, str]:
    """Return the key numbers of the report: the runs by status, their epochs and their time."""
    counts, number = data.answers.counts, len(data.results)
    completed = counts.get(Status.COMPLETED, 0)
    cards = {"run" if number == 1 else "runs": f"{number:,}"}
    if completed < number:
        cards = {Status.COMPLETED: f"{completed:,} of {number:,}"}
        cards |= {word: f"{count:,}" for word, count in counts.items() if word != Status.COMPLETED}
    if epochs := [len(run.epochs) for run in data.results if run.epochs]:
        each = " to ".join(dict.fromkeys(map(str, (min(epochs), max(epochs)))))
        word = "epoch" if sum(epochs) == 1 else "epochs"
        cards[f"{word}, {each} per run" if len(epochs) > 1 else word] = f"{sum(epochs):,}"
        cards["run time"] = duration(float(data.runs["run duration"].sum()))
    return cards


def settings(data: ReportData) -> dict[str, Any] | None:
    """Return the table of repeated settings, or of the Pareto front, the best first; else None."""
    ranking, has_front = data.ranking, len(data.ranking.goals) > 1
    which = ranking.settings if ranking.repeats else ranking.first
    if not (ranking.repeats or has_front) or len(which) < 2:  # noqa: PLR2004 - a comparison needs two
        return None
    best = which[: _MOST_SETTINGS if len(which) > _MOST_SETTINGS + 1 else None]
    numbers = columns_of_numbers(ranking, best)
    columns: dict[str, tuple[str, Sequence[Any]]] = {}  # heading -> kind, cells
    if not ranking.repeats:
        columns["run"] = ("text", [data.names[setting.rows[0]] for setting in best])
    for axis in data.axes:
        if axis.name in best[0].params:
            labels = [axis.labels[axis.codes[setting.rows[0]]] for setting in best]
            columns[axis.name] = ("number" if axis.is_ordered else "text", labels)
    for goal in ranking.goals:
        title = f"mean {goal.metric}" if ranking.repeats else goal.metric
        columns[title] = ("number", aligned(numbers[goal.metric]))
    caption = [f"The best {len(best)} of {counted(len(which), ranking.noun)}" if len(best) < len(which) else ""]
    if ranking.repeats:
        columns |= {name: ("text", numbers[name]) for name in (INTERVAL, REPEATS)}
        columns["behind the first"] = ("text", [_behind(data, rank) for rank in range(len(best))])
        if has_front:
            front = [setting.rows for setting in ranking.front]
            columns["Pareto front"] = ("text", ["yes" if setting.rows in front else "" for setting in best])
    else:
        caption.append("The Pareto front")
    caption.append(data.answers.scope)
    return {
        "caption": capital("; ".join(filter(None, caption))),
        "columns": [(name, kind) for name, (kind, _) in columns.items()],
        "rows": list(zip(*(cells for _, cells in columns.values()), strict=True)),
    }


def together(data: ReportData) -> tuple[Any, ...] | None:
    """Return the hyperparameters of the two largest effects, the settings per pair of values, and its mean."""
    axes = [axis for axis in data.compared if axis.name in data.answers.matters.changes][:2]
    axes.sort(key=lambda axis: -len(axis.labels))
    if data.is_searched or len(axes) < 2 or len(axes[0].labels) > _MOST_SETTINGS:  # noqa: PLR2004 - two
        return None
    cells: dict[tuple[int, ...], list[float]] = {}
    for setting in data.ranking.settings:
        cells.setdefault(tuple(axis.codes[setting.rows[0]] for axis in axes), []).append(setting.mean)
    means, sizes = [mean_of(each) for each in cells.values()], {*map(len, cells.values())}
    worst, best = sorted((min(means), max(means)), reverse=not data.goal.is_larger_better)
    if len(sizes) > 1 or worst == best:
        return None
    shares = [(mean - worst) / (best - worst) for mean in means]
    shaded = dict(zip(cells, zip(aligned(means), shares, strict=True), strict=True))
    return axes, max(sizes), shaded


def _behind(data: ReportData, rank: int) -> str:
    """Return the distance of a setting to the leading setting, and whether this distance may be chance."""
    ranking = data.ranking
    best, setting = ranking.settings[0], ranking.settings[rank]
    if not rank:
        return ""
    if why_below := ranking.why_below(setting):
        return f"{why_below}: ranks below"
    if is_same(best.mean, setting.mean):
        return "the same mean"
    verdict = data.answers.verdict_on(None)
    state = verdict.states.get(rank, UNDECIDED)
    chance = {UNDECIDED: ", may be chance", EQUAL: f", equal within {cell(verdict.margin)}"}.get(state, "")
    return f"{two_digits(best.mean - setting.mean)}{chance}"


def order(data: ReportData) -> str:
    """Return a sentence on the order of the table of runs; "" if there is no order."""
    ranking = data.ranking
    if not data.order or len(ranking.all_settings) == 1:
        return ""
    count = f"{counted(len(data.results), 'run')}; {ranking.count}" if ranking.repeats else ranking.count
    first = "those of the leading setting first" if ranking.repeats else f"the best first by {data.goal.metric}"
    then = ", then pruned runs by their last epoch" if Status.PRUNED in data.answers.counts else ""
    if any(run.pruned_by not in ("", BY_TRAIN) for run in data.results):
        then += "; the same grid without prune= resumes them"
    return f"{capital(count)}, {first}{then}."


def table_of_runs(data: ReportData) -> dict[str, Any]:
    """Return the table of runs: columns of varying hyperparameters and results, rows from best to worst."""
    runs, metric, rows = data.runs, data.goal.metric, data.ranked[:_MOST_ROWS]
    results = runs[[not run.status.is_fault for run in data.results]].reindex(runs.index)  # others have none
    columns = [("run", "text", [data.names[index] for index in rows], "")]
    if not runs[metric].isna().all():
        columns.append((metric, "number", _numbers(results, metric, rows), ""))
    varying = [name for name in ("epochs", "status") if len(set(runs[name])) > 1]
    if "status" in varying:
        columns.append(("status", "text", [str(runs["status"].iloc[index]) for index in rows], ""))
    for number, axis in enumerate(data.axes, len(columns)):
        hidden = "" if number < 4 else "phone" if number < 8 else "everywhere"  # noqa: PLR2004 - as many fit
        labels = [axis.labels[axis.codes[index]] for index in rows]
        columns.append((axis.name, "number" if axis.is_ordered else "text", labels, hidden))
    goals = [goal.metric for goal in data.ranking.goals[1:]]
    others = list(dict.fromkeys([*goals, *metrics(data)[1:]]))
    times = [name for name in ("epoch duration", "run duration") if not runs[name].isna().all()]
    essential = [*others[: len(goals) or 1], *times[-1:]]
    if Status.PRUNED in data.answers.counts:
        essential.append("epochs")  # the scores are of different epochs
    for name in dict.fromkeys([*others, *varying, *times]):
        if name not in (metric, "status"):
            hidden = "" if name in goals else "phone" if name in essential else "everywhere"
            columns.append((name, "number", _numbers(results if name in others else runs, name, rows), hidden))
    scores = {index: data.goal.sign * data.scores[index] for index in data.order}
    worst, best = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    shares = {index: 100 * (score - worst) / (best - worst or 1) for index, score in scores.items()}
    cells = zip(*(cells for _, _, cells, _ in columns), strict=True)
    entries = [(index, shares.get(index), row) for index, row in zip(rows, cells, strict=True)]
    return {"columns": columns, "rows": entries}


def _numbers(runs: pd.DataFrame, name: str, rows: list[int]) -> list[str]:
    values = [float(value) for value in runs[name].iloc[rows]]
    write = durations if name in TIMES else aligned
    return write([value if math.isfinite(value) else math.nan for value in values])


def legend(data: ReportData) -> list[tuple[str, str]]:
    """Return the values of each color and the color, of the runs that have epochs or a score."""
    axis, ranges = data.colored, dict[str, list[str]]()
    if axis is None:
        return []
    drawn = {*data.order, *(index for index, run in enumerate(data.results) if run.epochs)}
    for code in sorted({axis.codes[index] for index in drawn}):
        ranges.setdefault(axis.colors[code], []).append(axis.labels[code])
    return [(" to ".join(dict.fromkeys([labels[0], labels[-1]])), color) for color, labels in ranges.items()]


def causes(data: ReportData) -> list[dict[str, str]]:
    """Return the causes of missing results, each with its runs, the next step and the end of a log."""
    causes = []
    for failure in failures(data.runs, repeats=data.ranking.repeats):
        first = data.results[failure.rows[0]]
        show = cli_command("show", f"{files.for_people(first.folder.path.parent)}/{first.folder.number}")
        names = [data.names[index] for index in failure.rows]
        causes.append(
            {
                "status": failure.status,
                "error": failure.cause or "no cause is recorded",
                "which": failure.runs,
                "runs": listed(names, _MOST_NAMED) if len(names) > 1 else "",
                "next": "" if data.is_foreign else failure.next_step(show),
                "log": "\n".join(first.error_log_tail(LAST_LINES)),
            }
        )
    return causes


def facts(data: ReportData) -> dict[str, str]:
    """Return the environment of the runs; if runs differ in a fact, each value has its number of runs."""
    starts = [run.start for run in data.results if run.start]
    counters: dict[str, Counter[str]] = {}
    for start in starts:
        versions = start.get("versions")
        device = join(dict.fromkeys(str(start.get(key) or "") for key in ("device", "device_name")))
        facts = {**{name: start.get(key) for name, key in _FACTS.items()}, "device": device}
        facts |= versions if isinstance(versions, Mapping) else {}
        for name, value in facts.items():
            if value not in (None, ""):
                counters.setdefault(name, Counter())[str(value)] += 1
    texts = {
        name: ", ".join(
            value if len(counts) == 1 else f"{value} ({counted(number, 'run')})"
            for value, number in counts.most_common(6)
        )
        for name, counts in counters.items()
    }
    varying = {axis.name for axis in data.axes}
    same = [(name, cell(value)) for name, value in data.results[0].folder.params.items() if name not in varying]
    if same:
        texts["the same in all runs"] = ", ".join(f"{name} {value}" for name, value in same)
    return texts

"""The differences between two experiments or runs: notes, parameters, versions, commit, code, data, metrics."""

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from runmanager.answers.compare import LEFT_OUT, compare
from runmanager.answers.evidence import difference
from runmanager.answers.ranking import own_goals, ranking_of
from runmanager.checks.changed import changes_between
from runmanager.checks.kept_source import changed_lines, read_source
from runmanager.core.experiment import Experiment
from runmanager.core.goal import Goal
from runmanager.core.state import RunResult
from runmanager.core.values import text
from runmanager.core.wording import counted, printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables import columns as tables
from runmanager.tables.cells import cell, join
from runmanager.tables.loading import read_results, warn_of

_FACTS = ("commit", "command", "host", "device", "device_name", "parameters", "jobs", "keep")
_MOST_VALUES = 6  # maximum number of listed values of a hyperparameter

Row = dict[str, Any]


def diff(first: Path, second: Path) -> list[Row]:
    """Return the differences between two experiments or two runs."""
    damaged: list[str] = []
    named = [_side(first, damaged), _side(second, damaged)]
    warn_of(list(dict.fromkeys(damaged)), [first, second])
    return diff_of(*named)


def diff_of(first: tuple[str, Sequence[RunResult]], second: tuple[str, Sequence[RunResult]]) -> list[Row]:
    """Return the differences between two experiments or two runs."""
    named = [first, second]
    sides = [runs for _, runs in named]
    rows = [
        *_notes(sides),
        *_params(sides),
        *_versions(sides),
        *_facts(sides),
        *_fingerprints(sides),
        *_sources(sides),
        *_statuses(sides),
    ]
    if all(len(runs) == 1 for runs in sides):
        return [*rows, *_metrics(*(runs[0] for runs in sides))]
    return [*rows, *_goal(named)]


def _side(path: Path, damaged: list[str]) -> tuple[str, Sequence[RunResult]]:
    read, problems = read_results(path)
    damaged += problems
    experiments = [(name, runs) for name, runs in read if runs]
    if not experiments:
        raise InvalidArgumentError(f"no runs under {path}: give an experiment or a run")
    if len(experiments) > 1:
        names = printable(", ".join(name for name, _ in experiments))
        raise InvalidArgumentError([f"{path} has several experiments: give one of them, {names}"])
    return experiments[0]


def _params(sides: Sequence[Sequence[RunResult]]) -> list[Row]:
    return _rows("parameter", [[run.folder.params for run in runs] for runs in sides])


def _versions(sides: Sequence[Sequence[RunResult]]) -> list[Row]:
    return _rows("version", [[_mapping(run.start.get("versions")) for run in runs] for runs in sides])


def _facts(sides: Sequence[Sequence[RunResult]]) -> list[Row]:
    starts = [
        [{name: run.start[name] for name in _FACTS if run.start.get(name)} for run in runs] for runs in sides
    ]
    return _rows("fact", starts)


def _notes(sides: Sequence[Sequence[RunResult]]) -> list[Row]:
    """Compare the notes of two experiments; if each side is a single run, compare the runs' notes too."""
    designs = [Experiment(runs[0].folder.path.parent).design for runs in sides]
    pairs = {"experiment": [design.note or "" for design in designs]}
    if all(len(runs) == 1 for runs in sides):
        both = zip(designs, sides, strict=True)
        pairs["run"] = [(design.notes or {}).get(runs[0].folder.id, "") for design, runs in both]
    # a table has one line for each
    lines = {name: [printable(" ".join(note.split())) for note in notes] for name, notes in pairs.items()}
    return [_row("note", name, *notes) for name, notes in lines.items() if len({*notes}) > 1]


def _fingerprints(sides: Sequence[Sequence[RunResult]]) -> list[Row]:
    """Return the code, values and data that differ between the last begun run of each side."""
    before, now = (
        next((f for run in reversed(runs) if (f := _mapping(run.start.get("fingerprint")))), {})
        for runs in sides
    )
    # versions have separate rows
    texts = {"code": "code", "statements": "code", "values": "value", "data": "data"}
    return [
        _row(texts[kind], name, *((one, other) if kind == "values" else ("", "changed")))
        for kind, name, one, other in changes_between(before, now) if kind in texts
    ]  # fmt: skip


def _sources(sides: Sequence[Sequence[RunResult]]) -> list[Row]:
    """Return the changed lines of the kept sources of each side's last run that has one."""
    texts = [next(filter(None, map(read_source, reversed(runs))), "") for runs in sides]
    rows, name = [], ""
    for line in changed_lines(*texts):
        if line[0] in "+-":
            rows.append(_row("line", name, *((line[1:], "") if line[0] == "-" else ("", line[1:]))))
        else:
            name = line.removesuffix(":")
    return rows


def _statuses(sides: Sequence[Sequence[RunResult]]) -> list[Row]:
    counts = [Counter(str(run.status) for run in runs) for runs in sides]
    texts = [", ".join(f"{number} {status}" for status, number in count.items()) for count in counts]
    return [_row("status", "runs", *texts)] if texts[0] != texts[1] else []


def _metrics(first: RunResult, second: RunResult) -> list[Row]:
    last = [dict(run.epochs[-1].metrics) if run.epochs else {} for run in (first, second)]
    values = {name: [float(side.get(name, math.nan)) for side in last] for name in [*last[0], *last[1]]}
    counts = [str(len(run.epochs)) for run in (first, second)]
    rows = [_row("status", "epochs", *counts)] if counts[0] != counts[1] else []
    return rows + [_row("metric", name, *sides) for name, sides in values.items() if sides[0] != sides[1]]


def _goal(sides: Sequence[tuple[str, Sequence[RunResult]]]) -> list[Row]:
    """Compare two experiments by the goal: their leading settings, and the settings that both have."""
    each = [tables.runs_table({name: runs}) for name, runs in sides]
    goals = [_goal_of(runs) for runs in each]
    goal = goals[1] or goals[0]
    texts = [_said(runs) or str(own or "") for runs, own in zip(each, goals, strict=True)]
    rows = [_row("goal", "goal", *texts)] if texts[0] != texts[1] else []
    # in a file of another tool, the goal may name a column of text
    if goal is None or any(goal.metric not in runs or runs[goal.metric].dtype != "float64" for runs in each):
        return rows
    own = [None if mine == goal else str(goal) for mine in goals]  # None selects all goals of the experiment
    best = [ranking_of(runs, given).settings[:1] for runs, given in zip(each, own, strict=True)]
    means = [settings[0].mean if settings else math.nan for settings in best]
    if means[0] != means[1]:
        rows.append(_row("metric", f"{goal.metric}, leading setting", *means))
    folders = [runs[0].folder.path.parent for _, runs in sides]
    if folders[0] == folders[1]:
        return rows
    both = tables.runs_table(dict(zip(("first", "second"), (runs for _, runs in sides), strict=True)))
    pairs = compare(both, "experiment", str(goal))
    if pairs.empty:
        return rows
    base, other = list(map(str, pairs))[-4:-2]  # compare() may return either side first
    before, after = (pairs[name] for name in ((base, other) if "first" in base else (other, base)))
    lead = difference(after - before)
    row = _row(
        "metric", f"{goal.metric}, mean of {counted(lead.n, 'pair')}", float(before.mean()), float(after.mean())
    )
    left_out = sum(pairs.attrs[LEFT_OUT].values())
    interval = f"95 % interval {cell(lead.low)} to {cell(lead.high)}" if cell(lead.low) else ""
    note = join([interval, f"{counted(left_out, 'pair')} left out" if left_out else ""])
    return [*rows, {**row, "note": note} if note else row]


def _goal_of(runs: pd.DataFrame) -> Goal | None:
    with contextlib.suppress(InvalidArgumentError):  # the goal's metric may be missing in all runs
        return next(iter(own_goals(runs)), None)
    return None


def _said(runs: pd.DataFrame) -> str:
    """Return the goal of the grid, "" without a goal."""
    return printable(next(iter(runs.attrs[tables.GOALS].values()), [""])[0])


def _rows(what: str, sides: Sequence[Sequence[Mapping[str, Any]]]) -> list[Row]:
    """Return a row for each name whose values differ between the sides."""
    rows = []
    for name in dict.fromkeys(name for side in sides for content in side for name in content):
        first, second = (_values(content[name] for content in side if name in content) for side in sides)
        if first != second:
            rows.append(_row(what, str(name), first, second))
    return rows


def _row(what: str, name: str, first: Any, second: Any) -> Row:
    row = {"what": what, "name": printable(name), "first": first, "second": second}
    return {**row, "difference": second - first} if isinstance(first, float) else row


def _values(values: Iterable[Any]) -> str:
    by_text = {text(value): value for value in values}
    listed = list(by_text)
    numbers = [
        float(value)
        for value in by_text.values()
        if type(value) in (int, float) and abs(value) <= sys.float_info.max
    ]
    if len(numbers) == len(listed) > _MOST_VALUES:
        return f"{cell(min(numbers))} to {cell(max(numbers))} ({len(numbers)} values)"
    more = f" and {len(listed) - _MOST_VALUES} more" if len(listed) > _MOST_VALUES else ""
    return printable(", ".join(listed[:_MOST_VALUES]) + more)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

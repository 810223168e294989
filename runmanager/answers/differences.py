"""The differences between two experiments or runs: notes, parameters, versions, commit, code, data, metrics."""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from runmanager.answers.compare import paired
from runmanager.answers.ranking import own_goals, ranking_of
from runmanager.answers.sampled import is_finite
from runmanager.answers.sentences import counts_of
from runmanager.checks.changed import changes_between
from runmanager.checks.kept_source import changed_lines, read_source
from runmanager.core.experiment import Experiment
from runmanager.core.goal import Goal
from runmanager.core.state import RunResult
from runmanager.core.values import text
from runmanager.core.wording import counted, printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables.cells import cell, join
from runmanager.tables.columns import GOALS, runs_table
from runmanager.tables.loading import read_results, warn_of

_FACTS = ("commit", "command", "host", "device", "device_name", "parameters", "jobs", "keep")
_MOST_VALUES = 6  # maximum number of listed values of a hyperparameter

Row = dict[str, Any]
Side = Sequence[RunResult]


def diff(first: Path, second: Path) -> list[Row]:
    """Return the differences between two experiments or two runs."""
    damaged: list[str] = []
    sides = [_side(path, damaged) for path in (first, second)]
    warn_of(list(dict.fromkeys(damaged)), [first, second])
    return diff_of(*sides)


def _side(path: Path, damaged: list[str]) -> tuple[str, Side]:
    read, problems = read_results(path)
    damaged += problems
    experiments = [(name, runs) for name, runs in read if runs]
    if len(experiments) != 1:
        names = printable(", ".join(name for name, _ in experiments))
        rule = f"{path} has several experiments: give one of them, {names}"
        rule = rule if experiments else f"no runs under {path}: give an experiment or a run"
        raise InvalidArgumentError([rule])
    return experiments[0]


def diff_of(first: tuple[str, Side], second: tuple[str, Side]) -> list[Row]:
    """Return the differences between two experiments or two runs."""
    sides = [first[1], second[1]]
    starts = [[run.start for run in runs] for runs in sides]
    facts = [[{name: start[name] for name in _FACTS if start.get(name)} for start in side] for side in starts]
    counts = [counts_of(run.status for run in runs) for runs in sides]
    statuses = [", ".join(f"{number} {status}" for status, number in each.items()) for each in counts]
    rows = [
        *_notes(sides),
        *_rows("parameter", [[run.folder.params for run in runs] for runs in sides]),
        *_rows("version", [[_mapping(start.get("versions")) for start in side] for side in starts]),
        *_rows("fact", facts),
        *_fingerprints(sides),
        *_sources(sides),
        *_if_changed("status", "runs", *statuses),
    ]
    if any(len(runs) > 1 for runs in sides):
        return [*rows, *_goal([first, second])]
    epochs = [runs[0].epochs for runs in sides]
    rows += _if_changed("status", "epochs", *(str(len(records)) for records in epochs))
    last = [records[-1].metrics if records else {} for records in epochs]
    for name in dict.fromkeys([*last[0], *last[1]]):
        rows += _if_changed("metric", name, *(float(side.get(name, math.nan)) for side in last))
    return rows


def _notes(sides: Sequence[Side]) -> list[Row]:
    """Compare the notes of two experiments; if each side is a single run, compare the runs' notes too."""
    designs = [Experiment(runs[0].folder.path.parent).design for runs in sides]
    notes = {"experiment": [design.note or "" for design in designs]}
    if all(len(runs) == 1 for runs in sides):
        both = zip(designs, sides, strict=True)
        notes["run"] = [(design.notes or {}).get(runs[0].folder.id, "") for design, runs in both]
    rows = []
    for name, texts in notes.items():  # a table has one line for each
        rows += _if_changed("note", name, *(printable(" ".join(note.split())) for note in texts))
    return rows


def _fingerprints(sides: Sequence[Side]) -> list[Row]:
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


def _sources(sides: Sequence[Side]) -> list[Row]:
    """Return the changed lines of the kept sources of each side's last run that has one."""
    texts = [next(filter(None, map(read_source, reversed(runs))), "") for runs in sides]
    rows, name = [], ""
    for line in changed_lines(*texts):
        if line[0] in "+-":
            rows.append(_row("line", name, *((line[1:], "") if line[0] == "-" else ("", line[1:]))))
        else:
            name = line.removesuffix(":")
    return rows


def _goal(named: Sequence[tuple[str, Side]]) -> list[Row]:
    """Compare two experiments by the goal: their leading settings, and the settings that both have."""
    each = [runs_table({name: runs}) for name, runs in named]
    goals = [_goal_of(runs) for runs in each]
    goal = goals[1] or goals[0]
    pairs = zip(each, goals, strict=True)
    texts = [next(iter(runs.attrs[GOALS].values()), [own or ""])[0] for runs, own in pairs]
    rows = _if_changed("goal", "goal", *(printable(str(words)) for words in texts))
    # in a file of another tool, the goal may name a column of text
    if goal is None or any(goal.metric not in runs or runs[goal.metric].dtype != "float64" for runs in each):
        return rows
    own = [None if mine == goal else str(goal) for mine in goals]  # None selects all goals of the experiment
    best = [ranking_of(runs, given).settings[:1] for runs, given in zip(each, own, strict=True)]
    means = [settings[0].mean if settings else math.nan for settings in best]
    rows += _if_changed("metric", f"{goal.metric}, leading setting", *means)
    sides = [runs for _, runs in named]
    if sides[0][0].folder.path.parent == sides[1][0].folder.path.parent:
        return rows
    both = runs_table(dict(zip(("first", "second"), sides, strict=True)))
    pairs, summary = paired(both, "experiment", ranking_of(both, str(goal)))
    if pairs.empty:
        return rows
    base, other = list(map(str, pairs))[-4:-2]  # either side may be first
    before, after = (float(pairs[name].mean()) for name in sorted((base, other)))
    row = _row("metric", f"{goal.metric}, mean of {counted(len(pairs), 'pair')}", before, after)
    return [*rows, {**row, "note": join(summary)}]


def _goal_of(runs: pd.DataFrame) -> Goal | None:
    with contextlib.suppress(InvalidArgumentError):  # the goal's metric may be missing in all runs
        return next(iter(own_goals(runs)), None)
    return None


def _rows(what: str, sides: Sequence[Sequence[Mapping[str, Any]]]) -> list[Row]:
    """Return a row for each name whose values differ between the sides."""
    rows = []
    for name in dict.fromkeys(name for side in sides for content in side for name in content):
        texts = (_values(content[name] for content in side if name in content) for side in sides)
        rows += _if_changed(what, str(name), *texts)
    return rows


def _if_changed(what: str, name: str, first: Any, second: Any) -> list[Row]:
    return [_row(what, name, first, second)] if first != second else []


def _row(what: str, name: str, first: Any, second: Any) -> Row:
    row = {"what": what, "name": printable(name), "first": first, "second": second}
    return {**row, "difference": second - first} if isinstance(first, float) else row


def _values(values: Iterable[Any]) -> str:
    by_text = {text(value): value for value in values}
    listed = list(by_text)
    numbers = [value for value in by_text.values() if type(value) in (int, float) and is_finite(value)]
    if len(numbers) == len(listed) > _MOST_VALUES:
        return f"{cell(float(min(numbers)))} to {cell(float(max(numbers)))} ({len(numbers)} values)"
    more = f" and {len(listed) - _MOST_VALUES} more" if len(listed) > _MOST_VALUES else ""
    return printable(", ".join(listed[:_MOST_VALUES]) + more)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

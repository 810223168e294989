"""The differences between two experiments or runs: notes, parameters, versions, commit, code, data, metrics."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from runmanager.answers.sentences import statuses_in_words
from runmanager.checks.changed import changes_between
from runmanager.checks.kept_source import changed_lines, read_source
from runmanager.core.experiment import Experiment
from runmanager.core.state import RunResult
from runmanager.core.values import text
from runmanager.core.wording import listed, printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables.loading import read_results, warn_of

_FACTS = ("commit", "command", "host", "device", "device_name", "parameters", "jobs", "keep")
_MOST_VALUES = 6  # maximum number of listed values of a hyperparameter

Row = dict[str, Any]
Side = Sequence[RunResult]


def diff(first: Path, second: Path) -> list[Row]:
    """Return the differences between two experiments or two runs."""
    damaged: list[str] = []
    sides: list[Side] = []
    for path in (first, second):
        read, problems = read_results(path)
        damaged += problems
        experiments = {name: runs for name, runs in read if runs}
        if len(experiments) != 1:
            raise InvalidArgumentError(
                f"give an experiment or a run; experiments under {path}: {listed(experiments)}"
            )
        sides += experiments.values()
    warn_of(list(dict.fromkeys(damaged)), [first, second])
    return diff_of(*sides)


def diff_of(*sides: Side) -> list[Row]:
    """Return the differences between two experiments or two runs."""
    are_runs = all(len(runs) == 1 for runs in sides)
    one, other = (_described(runs, is_run=are_runs) for runs in sides)
    rows = []
    for key in one | other:
        missing = math.nan if key[0] == "metric" else ""
        before, now = one.get(key, missing), other.get(key, missing)
        if before != now:
            rows.append(_row(*key, _listed(before), _listed(now)))
    return rows + _code(sides)


def _described(runs: Side, *, is_run: bool) -> dict[tuple[str, str], Any]:
    """Return what an experiment or a run was: kind and name -> text, or a number."""
    design = Experiment(runs[0].folder.path.parent).design
    contents: dict[str, list[Mapping[str, Any]]] = {
        "parameter": [run.folder.params for run in runs],
        "version": [_mapping(run.start.get("versions")) for run in runs],
        "fact": [{name: run.start[name] for name in _FACTS if run.start.get(name)} for run in runs],
    }
    described: dict[tuple[str, str], Any] = {
        ("note", "experiment"): _one_line(design.note),
        ("goal", "goal"): printable(", ".join(map(str, design.all_goals))),
    }
    for what, each in contents.items():
        for name in dict.fromkeys(chain(*each)):
            values = (content[name] for content in each if name in content)
            described[what, str(name)] = tuple(dict.fromkeys(map(text, values)))
    described["status", "runs"] = statuses_in_words(run.status for run in runs)
    if is_run:
        (run,) = runs
        described["note", "run"] = _one_line((design.notes or {}).get(run.folder.id))
        described["status", "epochs"] = str(len(run.epochs))
        for record in run.epochs[-1:]:
            described |= {("metric", name): float(number) for name, number in record.metrics.items()}
    return described


def _code(sides: Sequence[Side]) -> list[Row]:
    """Return the code, values and data that differ between the last begun runs, and the changed lines."""
    before, now = (
        next(filter(None, (_mapping(run.start.get("fingerprint")) for run in reversed(runs))), {})
        for runs in sides
    )
    # versions have separate rows
    texts = {"code": "code", "statements": "code", "values": "value", "data": "data"}
    rows = [
        _row(texts[kind], name, *((one, other) if kind == "values" else ("", "changed")))
        for kind, name, one, other in changes_between(before, now) if kind in texts
    ]  # fmt: skip
    sources = [next(filter(None, map(read_source, reversed(runs))), "") for runs in sides]
    name = ""
    for line in changed_lines(*sources):
        if line[0] in "+-":
            rows.append(_row("line", name, *((line[1:], "") if line[0] == "-" else ("", line[1:]))))
        else:
            name = line.removesuffix(":")
    return rows


def _listed(value: Any) -> Any:
    return listed(value, _MOST_VALUES) if isinstance(value, tuple) else value


def _row(what: str, name: str, first: Any, second: Any) -> Row:
    row = {"what": what, "name": printable(name), "first": first, "second": second}
    return {**row, "difference": second - first} if isinstance(first, float) else row


def _one_line(note: str | None) -> str:
    return printable(" ".join((note or "").split()))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

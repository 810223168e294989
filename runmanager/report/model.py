"""The data of a report: the runs, the best settings, and the effects of the hyperparameters."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from runmanager.answers.answers import CHANGE, Answers, answers_of
from runmanager.answers.changes import Interaction, interaction
from runmanager.answers.differences import Row
from runmanager.answers.findings import Findings, find
from runmanager.answers.sampled import is_missing, is_sampled
from runmanager.goal import Goal
from runmanager.hyperparameters import text
from runmanager.outcome import Status
from runmanager.storage.folder_names import varying
from runmanager.storage.folders import Experiment
from runmanager.storage.identity import canonical
from runmanager.storage.run_state import RunResult
from runmanager.storage.x_axis import EPOCH, x_value
from runmanager.tables import columns as tables
from runmanager.tables.ranking import own_goals
from runmanager.wording import brief, printable

MISSING = "none"


@dataclass(frozen=True)
class PageAxis:
    """A hyperparameter that varies."""

    name: str
    labels: Sequence[str]  # the values: numbers in ascending order, then the others in order of first use
    codes: Sequence[int]  # for each run, the index of its value in `labels`
    is_ordered: bool  # whether all values are numbers
    keys: Sequence[str] = ()  # the canonical form of each value
    numbers: Sequence[float] = ()  # of a sample or a search: the values in the order of `labels`

    @property
    def is_sampled(self) -> bool:
        """Whether the values come from a sample or a search, so that hardly any value occurs twice."""
        return bool(self.numbers)

    def number(self, index: int) -> float:
        """Return the value of a run as a number."""
        return self.numbers[self.codes[index]]

    def label(self, value: Any) -> str:
        """Return the label of a value, as the whole page writes it."""
        key = json.dumps(canonical(None if value is pd.NA else value))
        if key not in self.keys and isinstance(value, float) and math.isnan(value):
            key = json.dumps(canonical(None))  # a column of numbers holds NaN for None
        return self.labels[self.keys.index(key)] if key in self.keys else brief(value)

    def rank(self, label: str) -> int:
        """Return the position of a value among the labels; unknown values come last."""
        return self.labels.index(label) if label in self.labels else len(self.labels)


@dataclass(frozen=True)
class ReportData:
    """The data of a report; a run is given by its index in `results`."""

    title: str  # of the page
    results: Sequence[RunResult]
    names: Sequence[str]  # of the runs, such as "run 7"
    runs: pd.DataFrame  # the table of `load_runs`, one row per run in `results`
    answers: Answers
    findings: Findings  # from the answers; by the loss if no run has a score
    metric: str  # the metric that ranks the runs
    is_larger_better: bool  # whether larger values of the metric are better
    scores: Sequence[float]  # the metric of each run, NaN if the run is not completed
    order: Sequence[int]  # the runs with a score, the best setting first
    axes: Sequence[PageAxis]  # the hyperparameters that vary, the largest effect on the metric first
    together: Interaction | None  # the two hyperparameters with the strongest interaction
    note: str  # the note of the experiment
    x_axis: str | None = None  # the x-axis of the curves, None for epochs
    differences: Sequence[
        tuple[str, str, Sequence[Row]]
    ] = ()  # of experiments side by side: both names, and the rows that differ

    @property
    def is_searched(self) -> bool:
        """Whether the runs are a sample or a search, with too few pairs of settings to measure effects."""
        return self.answers.matters.measure != CHANGE

    @property
    def goals(self) -> Sequence[Goal]:
        """The goals, if there are several; else empty."""
        return self.findings.goals if len(self.findings.goals) > 1 else ()

    @property
    def compared(self) -> list[PageAxis]:
        """The hyperparameters with scores at two or more values, without the repeat axes."""
        axes = [axis for axis in self.axes if axis.name not in self.findings.repeats]
        return [axis for axis in axes if len({axis.codes[index] for index in self.order}) > 1]

    @property
    def ranked(self) -> list[int]:
        """All runs: those with a score first, the best setting first, then pruned ones, then the others."""
        numbers = (self.runs[self.findings.goal.metric] * -self.findings.goal.sign).fillna(math.inf).tolist()

        def order(row: int) -> tuple[float, int]:
            return (numbers[row] if self.results[row].status is Status.PRUNED else math.inf, row)

        return [*self.order, *sorted({*range(len(self.results))} - {*self.order}, key=order)]

    def axis(self, name: str) -> PageAxis:
        """Return the varying hyperparameter with this name or column."""
        return next(axis for axis in self.axes if name in (axis.name, f"{axis.name} (hyperparameter)"))


def report_data(
    title: str,
    experiments: Mapping[str, Sequence[RunResult]],
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
) -> ReportData:
    """Rank the runs of the experiments, and measure the effects of their hyperparameters.

    Experiments without runs are left out. `goal` and `repeats` mean the same as in `write_report`.

    Raises:
        InvalidArgumentError: The metric or axis does not exist, the direction of a metric is unknown, or the
            experiments have different goals.
    """
    experiments = {name: runs for name, runs in experiments.items() if runs}
    pairs = [(name, run) for name, runs in experiments.items() for run in runs]
    results = [run for _, run in pairs]
    table = tables.concat([(name, tables.runs_table(name, runs)) for name, runs in experiments.items()])
    table = table.reset_index(drop=True)
    if goal is None:
        own_goals(table)  # raises if the experiments have different goals
    answers = answers_of(table, goal, repeats)
    findings = answers.findings or find(table, "loss", repeats)
    answers = replace(answers, findings=findings)
    column = findings.goal.metric
    completed = [run.status is Status.COMPLETED for run in results]
    scores = [float(v) if ok else math.nan for v, ok in zip(table[column], completed, strict=True)]
    params = [dict(run.folder.params) for run in results]
    names = [f"run {run.folder.number}" for run in results]
    if len(experiments) > 1:
        params = [{"experiment": name, **run.folder.params} for name, run in pairs]
        names = [f"{printable(name)} run {run.folder.number}" for name, run in pairs]
    firsts = [setting.rows[0] for setting in (*findings.settings, *findings.others)]
    ranges = [name for name in varying(params) if name not in findings.repeats]
    axes = [_axis(name, params, firsts if name in ranges else ()) for name in varying(params)]
    matters = answers.matters
    ranks = {
        name: rank for rank, name in enumerate(matters.sizes if matters.measure != CHANGE else matters.changes)
    }
    axes.sort(key=lambda axis: ranks.get(axis.name, len(ranks)))
    is_larger = findings.goal.is_larger_better
    order = [
        row
        for setting in findings.settings
        for row in sorted(setting.rows, key=lambda row: -findings.goal.sign * scores[row])
        if math.isfinite(scores[row])
    ]
    notes = table.attrs.get(tables.NOTES) or {}
    return ReportData(
        title, results, names, table, answers, findings, findings.metric, is_larger, scores, order, axes,
        interaction(table, findings),
        "; ".join(f"{name}: {note}" if len(experiments) > 1 else note for name, note in notes.items()),
        _x_axis(results),
    )  # fmt: skip


def _x_axis(results: Sequence[RunResult]) -> str | None:
    """Return the x-axis that all experiments share, if all epochs have a value on it; else None."""
    axes = {Experiment(path).design.x_axis for path in {run.folder.path.parent for run in results}}
    axis = axes.pop() if len(axes) == 1 else None
    records = (record for run in results for record in run.epochs)
    return axis if axis != EPOCH and all(x_value(record, axis) is not None for record in records) else None


def _axis(name: str, params: Sequence[Mapping[str, Any]], settings: Sequence[int]) -> PageAxis:
    """Return a hyperparameter with its labels and codes.

    Args:
        name: The hyperparameter.
        params: The hyperparameters of each run.
        settings: One run of each setting, to decide whether the values are sampled; empty for a repeat axis.
    """
    keys = [json.dumps(canonical(values.get(name))) for values in params]
    column = [params[row].get(name) for row in settings]
    by_key: dict[str, Any] = {key: values.get(name) for key, values in zip(keys, params, strict=True)}
    numbers = {key: value for key, value in by_key.items() if type(value) in (int, float)}
    # x != x: math.isnan() fails for huge integers
    in_order = sorted(numbers, key=lambda key: (numbers[key] != numbers[key], numbers[key]))
    distinct = [*in_order, *(key for key in by_key if key not in numbers)]
    codes = {key: code for code, key in enumerate(distinct)}
    labels = [MISSING if by_key[key] is None else printable(text(by_key[key])) for key in distinct]
    number_of = Counter(labels)  # text() shortens, so two labels may be equal
    labels = [
        label if number_of[label] == 1 else printable(repr(by_key[key]))
        for label, key in zip(labels, distinct, strict=True)
    ]
    values = [by_key[key] for key in distinct]
    floats = [math.nan if is_missing(value) else float(value) for value in values] if is_sampled(column) else []
    return PageAxis(name, labels, [codes[key] for key in keys], len(numbers) == len(by_key), distinct, floats)

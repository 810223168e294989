"""The data of a report: the runs, the best settings, and the effects of the hyperparameters."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from runmanager.answers.answers import Answers, answers_of
from runmanager.answers.differences import Row
from runmanager.answers.ranking import Ranking, own_goals, ranking_of
from runmanager.answers.sampled import is_missing, is_sampled
from runmanager.core.experiment import Design, Experiment, RunFolder, varying
from runmanager.core.goal import EPOCH, KEPT, Goal, is_larger_better, x_value
from runmanager.core.outcome import Status
from runmanager.core.state import RunResult
from runmanager.core.values import RESERVED, key_of, text
from runmanager.core.wording import printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables import columns as tables
from runmanager.tables.cells import brief, concise
from runmanager.tables.notes import first_line_of_note

MISSING = "none"
NUM_COLORS = 6


@dataclass(frozen=True)
class PageAxis:
    """A hyperparameter that varies."""

    name: str
    labels: Sequence[str]  # the values: numbers in ascending order, then other values in the order of first use
    codes: Sequence[int]  # for each run, the index of its value in `labels`
    is_ordered: bool  # whether all values are numbers
    keys: Sequence[str] = ()  # the canonical form of each value
    numbers: Sequence[float] = ()  # for a sample or a search, the values as numbers in the order of `labels`

    @property
    def is_sampled(self) -> bool:
        """Whether the values come from a sample or a search, so that hardly any value occurs twice."""
        return bool(self.numbers)

    @cached_property
    def colors(self) -> list[str]:
        """The CSS class of the color of each value; numbers are spread over a color ramp."""
        codes, last = range(len(self.labels)), max(1, len(self.labels) - 1)
        if self.is_ordered:
            return [f"o{code * (NUM_COLORS - 1) // last}" for code in codes]
        return [f"c{code % NUM_COLORS}" for code in codes]

    def label(self, value: Any) -> str:
        """Return the label of a value, which is the same on the whole page."""
        key = key_of(None if value is pd.NA else value)
        if key not in self.keys and isinstance(value, float) and math.isnan(value):
            key = key_of(None)  # a column of numbers has NaN in place of None
        return self.labels[self.keys.index(key)] if key in self.keys else brief(value)


@dataclass(frozen=True)
class ReportData:
    """The data of a report; a run is given by its index in `results`."""

    title: str  # the title of the page
    results: Sequence[RunResult]
    names: Sequence[str]  # the names of the runs, such as "run 7"
    runs: pd.DataFrame  # the table of `load_runs`, one row per run in `results`
    answers: Answers
    ranking: Ranking  # the ranking of the answers; if no column decides, the loss ranks the runs
    scores: Sequence[float]  # the metric of the goal of each completed or pruned run, NaN for other runs
    order: Sequence[int]  # the runs with a score, the best setting first
    axes: Sequence[PageAxis]  # the varying axes, the largest effect first
    note: str  # the note of the experiment; of several experiments, their first lines
    x_axis: str | None = None  # the x-axis of the curves, None for epochs
    differences: Sequence[tuple[str, str, Sequence[Row]]] = ()  # of experiments side by side: names, rows
    against: str = ""  # the comparison of all settings with a base, as HTML

    @property
    def is_foreign(self) -> bool:
        """Whether the runs come from a table, and not from folders of runs."""
        return "folder" not in self.runs

    @property
    def goal(self) -> Goal:
        """The goal that ranks the runs."""
        return self.ranking.goal

    @property
    def is_searched(self) -> bool:
        """Whether the runs are a sample or a search, with too few pairs of settings to measure effects."""
        return self.answers.matters.is_searched

    @cached_property
    def ranked(self) -> list[int]:
        """All runs: the runs in `order`, then the pruned runs by score, then the others."""
        rest = sorted({*range(len(self.results))} - {*self.order})
        keys = {index: -self.goal.sign * self.scores[index] for index in rest}
        rest.sort(key=lambda index: keys[index] if math.isfinite(keys[index]) else math.inf)
        return [*self.order, *rest]

    def prefers_larger(self, metric: str) -> bool:
        """Whether larger values of a metric are better: as its goal says, else as its name implies."""
        directions = {goal.metric.removeprefix(KEPT): goal.is_larger_better for goal in self.ranking.goals}
        return directions.get(metric, bool(is_larger_better(metric)))

    @cached_property
    def compared(self) -> list[PageAxis]:
        """The hyperparameters of completed runs with two or more values, without the repeat axes."""
        axes = [axis for axis in self.axes if axis.name not in self.ranking.repeats]
        return [axis for axis in axes if len({axis.codes[index] for index in self.order}) > 1]

    @cached_property
    def colored(self) -> PageAxis | None:
        """The hyperparameter that colors the runs in all figures: the first with numbers or few values."""
        return next((axis for axis in self.axes if axis.is_ordered or len(axis.labels) <= NUM_COLORS), None)

    def color(self, index: int) -> str:
        """Return the CSS class of a run's color."""
        return self.colored.colors[self.colored.codes[index]] if self.colored else "c1"


def report_data(
    title: str,
    experiments: Mapping[str, Sequence[RunResult]],
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
    *,
    attrs: Mapping[Any, Any] | None = None,
) -> ReportData:
    """Rank the runs of the experiments, or those of a table with these `attrs`, and measure effects."""
    experiments = {name: runs for name, runs in experiments.items() if runs}
    pairs = [(name, run) for name, runs in experiments.items() for run in runs]
    results = [run for _, run in pairs]
    table = tables.runs_table(experiments, None if attrs is None else Design())
    if attrs is not None:
        del table["folder"]
        table.attrs |= {key: attrs.get(key) for key in (tables.GOALS, tables.REPEATS, tables.RULES)}
    if goal is None:
        own_goals(table)  # raises an error if the experiments have different goals
    answers = answers_of(table, goal, repeats)
    if answers.ranking is None:
        answers = replace(answers, ranking=ranking_of(table, "loss", repeats), question=answers.headline)
    ranking = answers.ranking
    assert ranking
    ended = [run.status.is_success for run in results]
    scores = [float(v) if ok else math.nan for v, ok in zip(table[ranking.goal.metric], ended, strict=True)]
    params = [dict(run.folder.params) for run in results]
    names = [f"run {run.folder.number}" for run in results]
    if len(experiments) > 1:
        params = [{"experiment": name, **run.folder.params} for name, run in pairs]
        names = [f"{printable(name)} run {run.folder.number}" for name, run in pairs]
    firsts = [setting.rows[0] for setting in (*ranking.settings, *ranking.others)]
    ranges = [name for name in varying(params) if name not in ranking.repeats]
    axes = [_axis(name, params, firsts if name in ranges else ()) for name in varying(params)]
    matters = answers.matters
    names_in_order = [name for name, *_ in matters.bars] if matters.is_searched else matters.changes
    ranks = {name: rank for rank, name in enumerate(names_in_order)}
    order = [
        row
        for setting in ranking.settings
        for row in sorted(setting.rows, key=lambda row: -ranking.goal.sign * scores[row])
        if math.isfinite(scores[row]) and results[row].status is Status.COMPLETED
    ]
    axes.sort(key=lambda axis: ranks.get(axis.name, len(ranks)))
    designs = {name: Experiment(runs[0].folder.path.parent).design for name, runs in experiments.items()}
    notes = {name: design.note for name, design in designs.items() if design.note}
    if len(experiments) > 1:
        notes = {name: f"- {name}: {first_line_of_note(note)}" for name, note in notes.items()}
    return ReportData(
        title, results, names, table, answers, ranking, scores, order, axes,
        "\n".join(notes.values()),
        _x_axis(results, designs.values()),
    )  # fmt: skip


def runs_of_table(table: pd.DataFrame) -> dict[str, list[RunResult]]:
    """Return the rows of a table, one per run, as runs of its experiments, without epochs and folders."""
    tables.check_table(table)
    if "epoch" in table or table.empty:
        got = "no row" if table.empty else "a row per epoch"
        raise InvalidArgumentError(f"a page needs a table with one row per run, got {got}")
    params, hidden = tables.hyperparameters_of(table), RESERVED - {"loss", "accuracy"}
    numbers = [name for name in map(str, table.select_dtypes("number")) if name not in (*params, *hidden)]
    experiments: dict[str, list[RunResult]] = {}
    for row in table.to_dict(orient="records"):
        results = experiments.setdefault(str(row.get("experiment", "")), [])
        values = {name: row[name] for name in params if not is_missing(row[name])}
        metrics = {name: float(row[name]) for name in numbers if not is_missing(row[name])}
        number = row["run"] if isinstance(row.get("run"), int) else len(results) + 1
        folder = RunFolder(Path(os.devnull, str(number)), number, str(number), values)
        error = row["error"] if isinstance(row.get("error"), str) else ""
        status = Status(row.get("status", Status.COMPLETED))
        results.append(RunResult(folder, status, [], 1, error, {}, summary=metrics))
    return experiments


def _x_axis(results: Sequence[RunResult], designs: Iterable[Design]) -> str | None:
    """Return the x-axis that all experiments share, if all epochs have a value on it; else None."""
    axes = {design.x_axis for design in designs}
    axis = axes.pop() if len(axes) == 1 else None
    records = (record for run in results for record in run.epochs)
    return axis if axis != EPOCH and all(x_value(record, axis) is not None for record in records) else None


def _axis(name: str, params: Sequence[Mapping[str, Any]], settings: Sequence[int]) -> PageAxis:
    """Return a hyperparameter with its labels and codes."""
    keys = [key_of(values.get(name)) for values in params]
    column = [params[row].get(name) for row in settings]
    by_key: dict[str, Any] = {key: values.get(name) for key, values in zip(keys, params, strict=True)}
    numbers = {key: value for key, value in by_key.items() if type(value) in (int, float)}
    # x != x detects NaN, as math.isnan() fails for huge integers
    in_order = sorted(numbers, key=lambda key: (numbers[key] != numbers[key], numbers[key]))
    distinct = [*in_order, *(key for key in by_key if key not in numbers)]
    codes = {key: code for code, key in enumerate(distinct)}
    values = [by_key[key] for key in distinct]
    labels = [
        MISSING if value is None else concise(value) if isinstance(value, float) else printable(text(value))
        for value in values
    ]
    number_of = Counter(labels)  # two labels can be equal, as the values are shortened
    labels = [
        label if number_of[label] == 1 else printable(repr(by_key[key]))
        for label, key in zip(labels, distinct, strict=True)
    ]
    floats = [math.nan if is_missing(value) else float(value) for value in values] if is_sampled(column) else []
    return PageAxis(name, labels, [codes[key] for key in keys], len(numbers) == len(by_key), distinct, floats)

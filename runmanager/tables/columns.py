"""Build DataFrames from runs and from epochs."""

import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from runmanager.core import files
from runmanager.core.experiment import Design, Experiment
from runmanager.core.goal import KEPT, Goal, default_goal, goal_of_kept, is_larger_better
from runmanager.core.outcome import LEADING, Status
from runmanager.core.state import RunResult
from runmanager.core.values import COLUMNS, RESERVED, column
from runmanager.core.wording import did_you_mean, printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables.notes import first_line_of_note
from runmanager.tables.results_files import COLD
from runmanager.tables.run_numbers import lacking, ranked_numbers

HYPERPARAMETERS = "hyperparameters"
"""The key in a table's `attrs` that holds the names of its hyperparameters."""

GOALS, KEPT_BY, REPEATS, RULES, NOTES = "goals", "kept by", "repeats", "rules", "notes"
ALL_GOALS = "all goals"
"""The keys in `attrs` for goals, repeat axes, rules and notes: each holds experiment -> value."""
EARLY = "stopped early"
"""The column with the reason why a loop over epochs ended before its last epoch."""
INSIDE = "continues at"
"""The column with the batch inside an epoch after which an interrupted run resumes."""
LACKING = "not in the last epoch"
"""The column with the metrics whose value is of an earlier epoch, as the last epoch lacks them."""

_OF_RUNS = {"run", "status", "attempts", "folder"}  # columns that only load_runs has

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Epochs:
    """All epochs of an experiment, by column."""

    numbers: list[int]  # the numbers of the runs that have epochs
    counts: list[int]  # the number of epochs of each run
    params: dict[str, list[Any]]  # hyperparameter -> its value in each run
    jobs: list[int]  # for each run, the number of runs that shared the machine, including this run
    epochs: Numbers  # the number of each epoch, sorted by run
    metrics: dict[str, Numbers]  # column -> the value in each epoch, NaN if the epoch has no value
    cold: Numbers  # whether each epoch is the first epoch of its process; empty if no run used an accelerator


def by_column(runs: Sequence[RunResult]) -> Epochs:
    """Arrange the epochs of runs by column."""
    begun = [run for run in runs if run.epochs]
    params = dict.fromkeys(name for run in runs for name in run.folder.params)
    records = [record for run in begun for record in run.epochs]
    names = list(dict.fromkeys((*LEADING, *itertools.chain.from_iterable(r.metrics for r in records))))
    on_accelerator = any(str(run.start.get("device", "cpu")) not in ("cpu", "meta") for run in begun)
    return Epochs(
        [run.folder.number for run in begun],
        [len(run.epochs) for run in begun],
        {name: [run.folder.params.get(name, pd.NA) for run in begun] for name in params},
        [run.jobs for run in begun],
        np.array([record.epoch for record in records], dtype=np.int64),
        dict(zip(names, _by_name([record.metrics for record in records], names), strict=True)),
        np.array([record.cold for record in records if on_accelerator], dtype=np.bool_),
    )


def _by_name(metrics: Sequence[Mapping[str, float]], names: Sequence[str]) -> Numbers:
    """Return an array with one row per name and one column per dict; a missing value is NaN."""
    try:
        values = map(operator.itemgetter(*names), metrics)
        flat = np.fromiter(itertools.chain.from_iterable(values), np.float64, len(metrics) * len(names))
    except KeyError:
        flat = np.array([row.get(name, math.nan) for row in metrics for name in names], dtype=np.float64)
    return np.ascontiguousarray(flat.reshape(-1, len(names)).T)


def epochs_table(epochs: Epochs) -> pd.DataFrame:
    """Build the table of `load_results` for one experiment."""
    rows = np.repeat(np.arange(len(epochs.numbers)), epochs.counts)
    names = _param_columns(epochs.params)
    params = {names[name]: _repeated(values, rows) for name, values in epochs.params.items()}
    for name, label in names.items():
        if label in epochs.metrics:
            params[label] = _filled([epochs.params[name][row] for row in rows], epochs.metrics[label])
    numbers = np.array(epochs.numbers, dtype=np.int64)[rows]
    columns: dict[str, Any] = {"run": numbers, "epoch": epochs.epochs, **dict.fromkeys(LEADING, math.nan)}
    columns |= params | epochs.metrics | params
    if any(jobs > 1 for jobs in epochs.jobs):
        columns["jobs"] = _repeated(epochs.jobs, rows)
    if len(epochs.cold):
        columns[COLD] = epochs.cold
    return _table(columns, params)


def runs_table(name: str, runs: Sequence[RunResult], design: Design | None = None) -> pd.DataFrame:
    """Build the table of `load_runs` for one experiment; the design in its folder is the default design."""
    if design is None:
        design = Experiment(runs[0].folder.path.parent).design if runs else Design()
    goal = design.goal or goal_of_kept(run.start for run in runs)
    goals = design.all_goals or (() if goal is None else (goal,))
    return with_design(_of_runs(runs, goals), name, design, goal)


def with_design(table: pd.DataFrame, name: str, design: Design, goal: Goal | None = None) -> pd.DataFrame:
    """Store an experiment's design in the `attrs` of its table; `goal` is the goal of ``keep=``."""
    facts = {
        GOALS: design.goal and str(design.goal),
        ALL_GOALS: [*map(str, design.goals or ())] or None,
        KEPT_BY: goal and str(goal),
        REPEATS: None if design.repeats is None else list(design.repeats),  # [] says that no axis repeats
        RULES: design.decide and design.decide.as_json(),
        NOTES: design.note or None,
    }
    table.attrs |= {key: {} if fact is None else {name: fact} for key, fact in facts.items()}
    return table


def of_experiments(runs: pd.DataFrame, key: str) -> Mapping[str, Any]:
    """Return the entry of `attrs` under a key, for the experiments that have rows in the table."""
    content = runs.attrs.get(key) or {}
    if "experiment" not in runs:
        return content
    present = set(map(str, runs["experiment"].unique()))
    return {name: value for name, value in content.items() if name in present}


def notes_of(runs: pd.DataFrame) -> list[str]:
    """Return a sentence for each experiment that has a note, with its first line."""
    notes = {name: printable(first_line_of_note(note)) for name, note in of_experiments(runs, NOTES).items()}
    is_one = "experiment" not in runs or len(set(map(str, runs["experiment"]))) == 1
    return [f"note{'' if is_one else f' of {printable(name)}'}: {note}" for name, note in notes.items()]


def _of_runs(runs: Sequence[RunResult], goals: Sequence[Goal] = ()) -> pd.DataFrame:
    """Build the table of runs; a run that keeps its best weights also has its metrics at their epoch."""
    summaries = ranked_numbers(runs, goals)
    not_last = [lacking(run) for run in runs]
    metrics = dict.fromkeys((*LEADING, *itertools.chain.from_iterable(summaries)))
    bests = sorted(name for name in metrics if name.startswith(("best ", KEPT)))
    order = dict.fromkeys((*LEADING[:2], *bests, *LEADING[2:], *metrics))
    peaks = [math.nan if run.peak_memory is None else run.peak_memory / 2**20 for run in runs]
    sizes = [run.start.get("parameters", pd.NA) for run in runs]
    inside = [str(run.inside or "") if run.status.can_go_on else "" for run in runs]
    values = {name: _column([summary.get(name, math.nan) for summary in summaries]) for name in order}
    names = _param_columns(dict.fromkeys(name for run in runs for name in run.folder.params))
    params = {
        label: _filled([run.folder.params.get(name, pd.NA) for run in runs], values.get(label))
        for name, label in names.items()
    }
    leading = {name: values.pop(name) for name in (*LEADING[:2], *bests, *LEADING[2:])}
    columns = {
        "run": _column([run.folder.number for run in runs]),
        "status": _column([str(run.status) for run in runs]),
        "epochs": _column([len(run.epochs) for run in runs]),
        **leading,
        **params,
        **{name: series for name, series in values.items() if name not in params},
        **({"jobs": _column([run.jobs for run in runs])} if any(run.jobs > 1 for run in runs) else {}),
        **(
            {"threads": _column([run.threads or pd.NA for run in runs])} if any(r.threads for r in runs) else {}
        ),
        **({} if all(map(math.isnan, peaks)) else {"peak memory": _column(peaks)}),
        **({EARLY: _column([run.stopped_early for run in runs])} if any(r.stopped_early for r in runs) else {}),
        **({INSIDE: _column(inside)} if any(inside) else {}),
        **({LACKING: _column(not_last)} if any(not_last) else {}),
        **({} if all(size is pd.NA for size in sizes) else {"parameters": _column(sizes)}),
        "attempts": _column([run.attempts for run in runs]),
        "mixed": _column([run.mixed for run in runs]),
        "folder": _column([str(files.for_people(run.folder.path)) for run in runs]),
        "error": _column([run.error for run in runs]),
    }
    return _table(columns, params)


def _param_columns(params: Iterable[str]) -> dict[str, str]:
    """Name the column of each hyperparameter."""
    return _unique({name: column(name) for name in params}, set())


def _unique(labels: Mapping[str, str], taken: set[str]) -> dict[str, str]:
    """Return the label of each hyperparameter, or another name if the label is taken; add it to `taken`."""
    names: dict[str, str] = {}
    for name, label in labels.items():
        further = (f"{name} (hyperparameter {number})" for number in itertools.count(2))
        candidates = itertools.chain((label, f"{name} (hyperparameter)"), further)
        names[name] = next(candidate for candidate in candidates if candidate not in taken)
        taken.add(names[name])
    return names


def beside(params: pd.DataFrame, computed: pd.DataFrame) -> pd.DataFrame:
    """Join computed columns to the hyperparameters; rename a hyperparameter that collides."""
    names = _unique({str(name): str(name) for name in params}, set(map(str, computed)))
    table = pd.concat([params.rename(columns=names), computed], axis="columns")
    table.attrs = {HYPERPARAMETERS: [name for name in names.values() if name != "experiment"]}
    return table


def _filled(values: list[Any], metric: Iterable[Any] | None) -> pd.Series:
    """Make the column of a hyperparameter; fill missing values from a metric of the same name."""
    if metric is None:
        return _values(values)
    return _values([m if v is pd.NA else v for v, m in zip(values, metric, strict=True)])


def from_columns(columns: Mapping[str, list[Any]], params: Iterable[str]) -> pd.DataFrame:
    """Build a table from plain values; columns get the same types as in `load_runs`."""
    return _table({name: _column(values) for name, values in columns.items()}, params)


def check_table(table: object, *, needs_axes: bool = False) -> None:
    """Refuse a table that is not a DataFrame, or does not name its hyperparameters."""
    if not isinstance(table, pd.DataFrame):
        raise InvalidArgumentError([f"expected a table of runs, as load_runs('runs') gives, got {table!r:.60}"])
    params = table.attrs.get(HYPERPARAMETERS)
    if params is None and ((needs_axes and not table.empty) or set(table) >= _OF_RUNS):
        rule = "this table does not name its hyperparameters, as after a merge or a concat in pandas"
        raise InvalidArgumentError([f"{rule}: name them, as {naming(table)}"])
    inside = [name for name in table.index.names if name in (params or ()) and name not in table]
    if inside:
        raise InvalidArgumentError([f"hyperparameter {inside[0]!r} is in the index: give runs.reset_index()"])


def naming(table: pd.DataFrame, axes: Iterable[str] = ()) -> str:
    """Return the code that names a table's hyperparameters."""
    names = [*hyperparameters_of(table), *axes]
    for name in () if names else table:
        number = table[name].astype(str).nunique()
        is_result = str(name).startswith(("best ", KEPT)) or is_larger_better(str(name)) is not None
        is_result = is_result or name in COLUMNS
        names += [str(name)] if 1 < number <= len(table) / 2 and not is_result else []
    return f"load_table(runs, hyperparameters={list(dict.fromkeys(names)) or ['lr', 'seed']})"


def hyperparameters_of(table: pd.DataFrame) -> list[str]:
    """Return the columns of a table that are hyperparameters."""
    return [name for name in table.attrs.get(HYPERPARAMETERS, ()) if name in table]


def metrics_of(runs: pd.DataFrame) -> list[str]:
    """Return the columns of a table that may be metrics."""
    others = {*hyperparameters_of(runs), *RESERVED - {"loss", "accuracy"}, EARLY, INSIDE, LACKING}
    return [str(name) for name in runs if name not in others and not str(name).startswith(("best ", KEPT))]


def without_numbers(runs: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """Return a problem for each column that is missing or does not hold numbers."""
    problems = []
    for name in names:
        if name not in runs:
            problems.append(f"these runs have no column {name!r}; {did_you_mean(name, runs)}")
        elif not is_numeric_dtype(runs[name]) or is_bool_dtype(runs[name]):
            own = default_goal(metric for metric in metrics_of(runs) if metric != name)
            metric = own.metric if own else "loss"
            problems.append(f"column {name!r} does not hold numbers: give a metric, as {metric!r}")
    return problems


def concat(tables: Sequence[tuple[str, pd.DataFrame]], last: Sequence[str] = ()) -> pd.DataFrame:
    """Concatenate the tables of several experiments; `experiment` is the first column, `last` the last columns.

    A single table is returned unchanged.
    """
    tables = [pair for pair in tables if len(pair[1])] or list(tables)
    if len(tables) == 1:
        return tables[0][1]
    last = [name for name in last if any(name in table for _, table in tables)]
    params = list(dict.fromkeys(name for _, table in tables for name in table.attrs[HYPERPARAMETERS]))
    first = [name for name in tables[0][1] if name not in params and name not in last] if tables else []
    leading = first[: first.index("run duration") + 1] if "run duration" in first else first
    others = (name for _, table in tables for name in table if name not in last)
    rows = np.repeat(np.arange(len(tables)), [len(table) for _, table in tables])
    experiments = pd.Index([name for name, _ in tables])
    columns: dict[str, Any] = {"experiment": pd.Categorical.from_codes(rows, experiments)}
    for name in dict.fromkeys((*leading, *params, *others, *last)):
        columns[name] = _concat([_part(table, name) for _, table in tables])
    table = _table(columns, params)
    for key in (GOALS, ALL_GOALS, KEPT_BY, REPEATS, RULES, NOTES):
        table.attrs[key] = {n: value for _, part in tables for n, value in part.attrs.get(key, {}).items()}
    return table


def _table(columns: Mapping[str, Any], params: Iterable[str]) -> pd.DataFrame:
    kinds = {name: _category(columns[name]) for name in ("experiment", "status") if name in columns}
    table = pd.DataFrame({**columns, **kinds})
    table.attrs[HYPERPARAMETERS] = list(params)
    return table


def _category(values: pd.Series | pd.Categorical) -> pd.Series | pd.Categorical:
    """Make a categorical column of text; statuses keep the order of `Status`."""
    if isinstance(values, pd.Categorical):
        return values
    texts = [value for value in values.tolist() if value is not pd.NA]
    if not all(isinstance(value, str) for value in texts):
        return values  # the column comes from another tool
    words = dict.fromkeys(texts)
    order = {str(status): index for index, status in enumerate(Status)}
    return pd.Categorical(values, sorted(words, key=lambda word: order.get(word, len(order))))


def _concat(parts: Sequence[pd.Series]) -> pd.Series:
    if len({part.dtype for part in parts}) == 1:
        return pd.concat(parts, ignore_index=True)
    return _column([value for part in parts for value in part.tolist()])


def _part(table: pd.DataFrame, name: str) -> pd.Series:
    """Return a column of one experiment."""
    values = table.get(name.removeprefix(KEPT), None) if name not in table else table[name]
    return _missing(name, len(table)) if values is None else values


def _missing(name: str, length: int) -> pd.Series:
    if name == "jobs":
        return pd.Series([1] * length, dtype="int64")  # the column is left out if no run shared the machine
    if name == COLD:
        return pd.Series([False] * length, dtype="bool")  # the column is left out if no run used an accelerator
    return pd.Series([pd.NA] * length, dtype="object")


def _values(values: list[Any]) -> pd.Series:
    """Make the column of a hyperparameter; the value NaN stays distinct from a missing value."""
    is_nan = any(isinstance(value, float) and math.isnan(value) for value in values)
    return pd.Series(values, dtype="object") if is_nan else _column(values)


def _column(values: list[Any]) -> pd.Series:
    kinds = {type(value) for value in values}
    missing = type(pd.NA)
    if kinds <= {float, missing}:
        return pd.Series([v if isinstance(v, float) else math.nan for v in values], dtype="float64")
    if len(kinds) == 1 and kinds <= {int, bool, str}:
        try:
            return pd.Series(values)
        # the first error is from NumPy, the second from pyarrow if pandas stores text with pyarrow
        except (OverflowError, UnicodeEncodeError):
            pass
    return pd.Series(values, dtype="object")


def _repeated(values: list[Any], rows: Numbers) -> pd.Series:
    series = _values(values)
    # without dtype, pandas guesses the type
    return pd.Series(series.array.take(rows), dtype=series.dtype, copy=False)

"""The tables of epochs and of runs: their columns, in order and with types, and what their `attrs` note."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from runmanager.core import files
from runmanager.core.experiment import Design, Experiment, RunFolder
from runmanager.core.goal import KEPT, default_goal, goal_of_kept, is_larger_better
from runmanager.core.outcome import LEADING, Status
from runmanager.core.state import RunResult
from runmanager.core.values import COLUMNS, RESERVED, column
from runmanager.core.wording import did_you_mean, printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables.notes import first_line_of_note
from runmanager.tables.results_files import COLD, has_cold_starts
from runmanager.tables.run_numbers import lacking, ranked_numbers

HYPERPARAMETERS = "hyperparameters"
"""The key in a table's `attrs` that holds the names of its hyperparameters."""

GOALS, KEPT_BY, REPEATS, RULES, NOTES = "goals", "kept by", "repeats", "rules", "notes"
ALL_GOALS = "all goals"
"""The keys in `attrs` for goals, repeat axes, rules and notes: each holds experiment -> value."""
EARLY = "stopped early"
"""The column with the reason why a loop over epochs ended before its last epoch."""
LACKING = "not in the last epoch"
"""The column with the metrics whose value is of an earlier epoch, as the last epoch lacks them."""
INSIDE = "continues at"
"""The column with the batch inside an epoch after which an interrupted run resumes."""

_OF_RUNS = {"run", "status", "attempts", "folder"}  # columns that only load_runs has
_USUAL: Mapping[str, Any] = {
    "jobs": 1,
    EARLY: "",
    LACKING: "",
    INSIDE: "",
}  # a column of these values alone is left out

Numbers = np.ndarray[Any, np.dtype[Any]]
Experiments = Mapping[str, Sequence[RunResult]]
"""The name of each experiment -> its runs."""


def results_table(experiments: Experiments, design: Design | None = None) -> pd.DataFrame:
    """Build the table of `load_results`; the design in an experiment's folder is the default design."""
    begun = {name: [run for run in runs if run.epochs] for name, runs in experiments.items()}
    runs = [run for of_experiment in begun.values() for run in of_experiment]
    counts = [len(run.epochs) for run in runs]
    records = [record for run in runs for record in run.epochs]
    of_runs = {**experiment_column(begun), "run": np.array([run.folder.number for run in runs], np.int64)}
    of_epochs: dict[str, Any] = {"epoch": np.array([record.epoch for record in records], np.int64)}
    for name in dict.fromkeys(name for record in records for name in record.metrics):
        of_epochs[name] = np.array([record.metrics.get(name, math.nan) for record in records], np.float64)
    if any(run.jobs > 1 for run in runs):
        of_epochs["jobs"] = np.repeat([run.jobs for run in runs], counts)
    if has_cold_starts(runs):
        of_epochs[COLD] = np.array([record.cold for record in records], np.bool_)
    names = params_of_folders([run.folder for of_experiment in experiments.values() for run in of_experiment])
    params = {name: [run.folder.params.get(name, pd.NA) for run in runs] for name in names}
    table = epochs_table(counts, of_runs, params, of_epochs)
    return _with_facts(table, {name: _design(runs, design) for name, runs in experiments.items()}, {})


def epochs_table(
    counts: Sequence[int],
    of_runs: Mapping[str, Any],
    params: Mapping[str, list[Any]],
    of_epochs: Mapping[str, Numbers],
    first: Sequence[str] = ("epoch", *LEADING),
) -> pd.DataFrame:
    """Build a table of epochs; the `first` of their columns stand before the hyperparameters."""
    rows = np.repeat(np.arange(len(counts)), counts)
    columns: dict[str, Any] = {name: _taken(values, rows) for name, values in of_runs.items()}
    missing = np.full(len(rows), math.nan)
    columns |= {name: of_epochs.get(name, missing) for name in first}
    labels = _labels(params, first)
    for name, values in params.items():
        if (label := labels[name]) in of_epochs:
            columns[label] = _filled([values[row] for row in rows], of_epochs[label])
        else:
            columns[label] = _taken(_values(values), rows)
    columns |= {name: of_epochs[name] for name in of_epochs if name not in columns}
    return _table(columns, labels.values())


def runs_table(experiments: Experiments, design: Design | None = None) -> pd.DataFrame:
    """Build the table of `load_runs`; the design in an experiment's folder is the default design.

    A run that keeps its best weights also has its metrics at their epoch. Hyperparameters and goals are first,
    as a notebook hides columns in the middle.
    """
    runs = [run for of_experiment in experiments.values() for run in of_experiment]
    designs = {name: _design(of_experiment, design) for name, of_experiment in experiments.items()}
    summaries: list[dict[str, float]] = []
    kept_by: dict[str, str] = {}
    deciding: list[str] = []
    for name, of_experiment in experiments.items():
        goal = designs[name].goal or goal_of_kept(run.start for run in of_experiment)
        goals = designs[name].all_goals or ([goal] if goal else [])
        summaries += ranked_numbers(of_experiment, goals)
        deciding += [column for each in goals for column in (f"{KEPT}{each.metric}", each.metric)]
        if goal:
            kept_by[name] = str(goal)
    names = dict.fromkeys(name for summary in summaries for name in summary)
    usual = default_goal(name for name in names if " " not in name)
    deciding = deciding or ([usual.metric] if usual else [])
    bests = sorted(name for name in names if name.startswith(("best ", KEPT)))
    numbers: dict[str, list[Any]] = {}
    for name in dict.fromkeys(
        (*(name for name in deciding if name in names), *LEADING[:2], *bests, *LEADING[2:], *names)
    ):
        last = name.removeprefix(KEPT)  # for a run of an experiment that keeps no best weights
        numbers[name] = [summary.get(name, summary.get(last, math.nan)) for summary in summaries]
    params = params_of_folders([run.folder for run in runs])
    labels = _labels(params)
    of_params = {labels[name]: _filled(values, numbers.get(labels[name])) for name, values in params.items()}
    further: dict[str, list[Any]] = {
        "jobs": [run.jobs for run in runs],
        "threads": [run.threads or pd.NA for run in runs],
        "peak memory": [pd.NA if run.peak_memory is None else run.peak_memory / 2**20 for run in runs],
        EARLY: [run.stopped_early for run in runs],
        LACKING: [lacking(run) for run in runs],
        INSIDE: [str(run.inside or "") if run.status.can_go_on else "" for run in runs],
        "parameters": [run.start.get("parameters", pd.NA) for run in runs],
    }
    for name, values in list(further.items()):
        if all(value is pd.NA or value == _USUAL.get(name) for value in values):
            del further[name]
    columns: dict[str, Any] = {
        "run": [run.folder.number for run in runs],
        "status": [str(run.status) for run in runs],
        **of_params,
        **{name: numbers.pop(name) for name in dict.fromkeys(deciding) if name in numbers.keys() - of_params},
        "epochs": [len(run.epochs) for run in runs],
        **{name: values for name, values in numbers.items() if name not in of_params},
        **further,
        "attempts": [run.attempts for run in runs],
        "mixed": [run.mixed for run in runs],
        "folder": [str(files.for_people(run.folder.path)) for run in runs],
        "error": [run.error for run in runs],
    }
    series = {name: _column(values) if isinstance(values, list) else values for name, values in columns.items()}
    table = _table({**experiment_column(experiments), **series}, of_params)
    return _with_facts(table, designs, kept_by)


def _design(runs: Sequence[RunResult], design: Design | None) -> Design:
    """Return the design, by default that in the folder of an experiment."""
    if design is None and runs:
        return Experiment(runs[0].folder.path.parent).design
    return design or Design()


def _with_facts(table: pd.DataFrame, designs: Mapping[str, Design], kept_by: Mapping[str, str]) -> pd.DataFrame:
    """Store the designs of the experiments in the `attrs` of their table."""
    for name, design in designs.items():
        facts = {
            GOALS: design.goal and str(design.goal),
            ALL_GOALS: [*map(str, design.goals or ())] or None,
            KEPT_BY: kept_by.get(name),
            REPEATS: None if design.repeats is None else list(design.repeats),  # [] says that no axis repeats
            RULES: design.decide and design.decide.as_json(),
            NOTES: design.note or None,
        }
        for key, fact in facts.items():
            table.attrs.setdefault(key, {})
            if fact is not None:
                table.attrs[key][name] = fact
    return table


def experiment_column(experiments: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the column of experiments, if several have rows."""
    counts = {name: len(runs) for name, runs in experiments.items() if runs}
    if len(counts) < 2:  # noqa: PLR2004
        return {}
    codes = np.repeat(np.arange(len(counts)), list(counts.values()))
    return {"experiment": pd.Categorical.from_codes(codes, pd.Index(list(counts)))}


def params_of_folders(runs: Sequence[RunFolder]) -> dict[str, list[Any]]:
    """Return the values of each hyperparameter, in the order of the runs."""
    names = dict.fromkeys(name for run in runs for name in run.params)
    return {name: [run.params.get(name, pd.NA) for run in runs] for name in names}


def _labels(params: Iterable[str], first: Iterable[str] = ()) -> dict[str, str]:
    """Name the column of each hyperparameter; the `first` columns are ours in this table alone."""
    ours = {*COLUMNS, INSIDE, LACKING, *first}
    labels = _unique({name: column(name) for name in params}, {*ours})
    assert not ours & {*labels.values()}, "a column of ours would hide a hyperparameter"
    return labels


def _unique(labels: Mapping[str, str], taken: set[str]) -> dict[str, str]:
    """Return the label of each hyperparameter, longer if it is one of `taken` or of another hyperparameter."""
    names: dict[str, str] = {}
    for name, label in labels.items():
        names[name] = label
        while names[name] in taken:
            names[name] += " (hyperparameter)"
        taken.add(names[name])
    return names


def beside(params: pd.DataFrame, computed: pd.DataFrame) -> pd.DataFrame:
    """Join computed columns to the hyperparameters; rename a hyperparameter that collides."""
    names = _unique({str(name): str(name) for name in params}, set(map(str, computed)))
    table = pd.concat([params.rename(columns=names), computed], axis="columns")
    table.attrs = {HYPERPARAMETERS: [name for name in names.values() if name != "experiment"]}
    return table


def _filled(values: list[Any], metric: Iterable[Any] | None) -> pd.Series:
    """Make the column of a hyperparameter; a run without it may have a metric of this name."""
    if metric is None:
        return _values(values)
    pairs = zip(values, metric, strict=True)
    return _values([number if value is pd.NA and number == number else value for value, number in pairs])  # noqa: PLR0124 - NaN


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


def _table(columns: Mapping[str, Any], params: Iterable[str]) -> pd.DataFrame:
    kinds = {name: _category(columns[name]) for name in ("experiment", "status") if name in columns}
    table = pd.DataFrame({**columns, **kinds})
    table.attrs[HYPERPARAMETERS] = list(params)
    return table


def _category(values: Any) -> Any:
    """Make a categorical column of text; statuses keep the order of `Status`."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return values
    texts = [value for value in values.tolist() if value is not pd.NA]
    if not all(isinstance(value, str) for value in texts):
        return values  # the column comes from another tool
    words = dict.fromkeys(texts)
    order = {str(status): index for index, status in enumerate(Status)}
    return pd.Categorical(values, sorted(words, key=lambda word: order.get(word, len(order))))


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


def _taken(values: pd.Series | pd.Categorical, rows: Numbers) -> pd.Series:
    series = pd.Series(values)
    # without dtype, pandas guesses the type
    return pd.Series(series.array.take(rows), dtype=series.dtype, copy=False)

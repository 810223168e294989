"""The tables of epochs and of runs: their columns, in order and with types, and what their `attrs` note."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from runmanager.core import files
from runmanager.core.experiment import Design, Experiment, RunFolder
from runmanager.core.goal import KEPT, Goal, default_goal, goal_of_kept
from runmanager.core.outcome import LEADING, Status
from runmanager.core.state import RunResult
from runmanager.core.values import RESERVED, column
from runmanager.core.wording import did_you_mean, printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables.notes import first_line_of_note
from runmanager.tables.results_files import COLD, has_cold_starts
from runmanager.tables.run_numbers import lacking, ranked_numbers, tracked

HYPERPARAMETERS = "hyperparameters"
"""The key in a table's `attrs` that holds the names of its hyperparameters."""

GOALS, REPEATS, RULES = "goals", "repeats", "rules"
"""The keys in `attrs` for goals, repeat axes and rules of ``decide=``: each holds experiment -> value.

A goal that follows from ``keep=`` alone is the goal of its column, such as "max:kept accuracy".
"""
EARLY = "stopped early"
"""The column with the reason why a loop over epochs ended before its last epoch."""
LACKING = "not in the last epoch"
"""The column with the metrics whose value is of an earlier epoch, as the last epoch lacks them."""
INSIDE = "continues at"
"""The column with the batch inside an epoch after which an interrupted run resumes."""

_OF_RUNS = {"run", "status", "attempts", "folder"}  # columns that only load_runs has

Numbers = np.ndarray[Any, np.dtype[Any]]
Experiments = Mapping[str, Sequence[RunResult]]
"""The name of each experiment -> its runs."""


def results_table(experiments: Experiments, design: Design | None = None) -> pd.DataFrame:
    """Build the table of `load_results`; the design in an experiment's folder is the default design."""
    begun = {name: [run for run in runs if run.epochs] for name, runs in experiments.items()}
    runs = [*chain(*begun.values())]
    counts = [len(run.epochs) for run in runs]
    records = [record for run in runs for record in run.epochs]
    of_epochs: dict[str, Any] = {"epoch": np.array([record.epoch for record in records], np.int64)}
    for name in tracked(runs):
        of_epochs[name] = np.array([record.metrics.get(name, math.nan) for record in records], np.float64)
    if any(run.jobs > 1 for run in runs):
        of_epochs["jobs"] = np.repeat([run.jobs for run in runs], counts)
    if has_cold_starts(runs):
        of_epochs[COLD] = np.array([record.cold for record in records], np.bool_)
    of_runs, params = of_folders(begun, [run.folder for run in runs])
    names = dict.fromkeys(chain(*(run.folder.params for run in chain(*experiments.values()))))
    params = {name: params.get(name, [pd.NA] * len(runs)) for name in names}
    table = epochs_table(counts, of_runs, params, pd.DataFrame(of_epochs))
    return _noted(table, _designs(experiments, design), {})


def of_folders(
    experiments: Mapping[str, Sequence[object]], runs: Sequence[RunFolder]
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the columns that name the runs of experiments, and the values of each hyperparameter."""
    of_runs: dict[str, Any] = {"run": np.array([run.number for run in runs], np.int64)}
    names = [name for name, of_experiment in experiments.items() for _ in of_experiment]
    if len({*names}) > 1:
        of_runs = {"experiment": pd.Categorical(names, [*dict.fromkeys(names)]), **of_runs}
    params = dict.fromkeys(chain(*(run.params for run in runs)))
    return of_runs, {name: [run.params.get(name, pd.NA) for run in runs] for name in params}


def epochs_table(
    counts: Iterable[int],
    of_runs: Mapping[str, Any],
    params: Mapping[str, list[Any]],
    of_epochs: pd.DataFrame,
    first: Sequence[str] = ("epoch", *LEADING),
) -> pd.DataFrame:
    """Build a table of epochs; the `first` of their columns stand before the hyperparameters."""
    of_params = _labelled(params, {*first, *of_epochs})
    rows = [row for row, count in enumerate(counts) for _ in range(count)]
    repeated = from_columns({**of_runs, **of_params}, ()).iloc[rows].reset_index(drop=True)
    table = pd.concat([repeated, of_epochs], axis="columns")
    table = table.reindex(columns=[*dict.fromkeys([*of_runs, *first, *of_params, *of_epochs])])
    table.attrs = {HYPERPARAMETERS: [*of_params]}
    return table


def runs_table(experiments: Experiments, design: Design | None = None) -> pd.DataFrame:
    """Build the table of `load_runs`; the design in an experiment's folder is the default design."""
    runs = [*chain(*experiments.values())]
    designs = _designs(experiments, design)
    kept: dict[str, Goal] = {}
    summaries: list[dict[str, float]] = []
    deciding: list[str] = []
    for name, own in designs.items():
        goals, keep = own.all_goals, goal_of_kept(run.start for run in experiments[name])
        if keep and not goals:
            goals, kept[name] = (keep,), Goal(f"{KEPT}{keep.metric}", keep.sign)
        summaries += ranked_numbers(experiments[name], goals)
        for goal in goals:
            deciding += [f"{KEPT}{goal.metric}", goal.metric]
    names = dict.fromkeys(chain(*summaries))
    usual = default_goal(name for name in names if " " not in name)
    deciding = deciding or ([usual.metric] if usual else [])
    first = [name for name in deciding if name in names or name in LEADING]
    bests = sorted(name for name in names if name.startswith(("best ", KEPT)))
    numbers: dict[str, list[Any]] = {}
    for name in dict.fromkeys([*first, *LEADING[:2], *bests, *LEADING[2:], *names]):
        last = name.removeprefix(KEPT)  # for a run of an experiment that keeps no best weights
        numbers[name] = [summary.get(name, summary.get(last, math.nan)) for summary in summaries]
    further: dict[str, list[Any]] = {
        "jobs": [run.jobs for run in runs] if any(run.jobs > 1 for run in runs) else [],
        "threads": [run.threads for run in runs],
        "peak memory": [None if run.peak_memory is None else run.peak_memory / 2**20 for run in runs],
        EARLY: [run.stopped_early for run in runs],
        LACKING: [lacking(run) for run in runs],
        INSIDE: [str(run.inside or "") if run.status.can_go_on else "" for run in runs],
        "parameters": [run.start.get("parameters") for run in runs],
    }
    of_runs, params = of_folders(experiments, [run.folder for run in runs])
    of_params = _labelled(params, {*numbers, *further})
    for name, values in further.items():
        if any(value not in (None, "") for value in values):
            numbers[name] = [pd.NA if value is None else value for value in values]
    columns = {
        **of_runs,
        "status": [str(run.status) for run in runs],
        **of_params,
        **{name: numbers[name] for name in first},
        "epochs": [len(run.epochs) for run in runs],
        **numbers,
        "attempts": [run.attempts for run in runs],
        "mixed": [run.mixed for run in runs],
        "folder": [str(files.for_people(run.folder.path)) for run in runs],
        "error": [run.error for run in runs],
    }
    return _noted(from_columns(columns, of_params), designs, kept)


def _designs(experiments: Experiments, design: Design | None) -> dict[str, Design]:
    """Return the design of each experiment that has runs, by default from its folder."""
    folders = {name: runs[0].folder.path.parent for name, runs in experiments.items() if runs}
    return {name: design or Experiment(folder).design for name, folder in folders.items()}


def _noted(table: pd.DataFrame, designs: Mapping[str, Design], kept: Mapping[str, Goal]) -> pd.DataFrame:
    """Note the goals, the repeat axes and the rules of the experiments in the `attrs` of their table."""
    table.attrs |= {GOALS: {}, REPEATS: {}, RULES: {}}
    for name, design in designs.items():
        if goals := design.all_goals or ([kept[name]] if name in kept else ()):
            table.attrs[GOALS][name] = [*map(str, goals)]
        if design.repeats is not None:  # [] says that no axis repeats
            table.attrs[REPEATS][name] = [*design.repeats]
        if design.decide:
            table.attrs[RULES][name] = design.decide.as_json()
    return table


def _labelled(params: Mapping[str, list[Any]], columns: Collection[str]) -> dict[str, list[Any]]:
    """Return the column of each hyperparameter; its name is that of no other column."""
    return {
        f"{name} (hyperparameter)" if name in columns else column(name): values
        for name, values in params.items()
    }


def beside(params: pd.DataFrame, computed: pd.DataFrame) -> pd.DataFrame:
    """Join computed columns to the hyperparameters; rename a hyperparameter that collides."""
    params = params.rename(columns={name: f"{name} (hyperparameter)" for name in computed})
    table = pd.concat([params, computed], axis="columns")
    table.attrs = {HYPERPARAMETERS: [name for name in params if name != "experiment"]}
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
    folders = [Path(str(folder)) for folder in runs.get("folder", ())]
    # the column `folder` of another tool may have anything
    paths = dict.fromkeys(path.parent for path in folders if files.run_number(path.name) is not None)
    sentences = []
    for path in paths:
        if note := Experiment(path).design.note:
            of_experiment = f" of {printable(path.name)}" if len(paths) > 1 else ""
            sentences.append(f"note{of_experiment}: {printable(first_line_of_note(note))}")
    return sentences


def from_columns(columns: Mapping[str, Any], params: Iterable[str]) -> pd.DataFrame:
    """Build a table from lists of plain values; columns get the same types as in `load_runs`."""
    typed: dict[str, Any] = {}
    for name, values in columns.items():
        if not isinstance(values, list):
            typed[name] = values
        else:
            # a column of another tool may have anything
            is_ours = name in ("experiment", "status") and all(isinstance(value, str) for value in values)
            typed[name] = category(values) if is_ours else _column(values)
    table = pd.DataFrame(typed)
    table.attrs[HYPERPARAMETERS] = list(params)
    return table


def check_table(table: object, *, needs_axes: bool = False) -> None:
    """Refuse a table that is not a DataFrame, or does not name its hyperparameters."""
    if not isinstance(table, pd.DataFrame):
        raise InvalidArgumentError(f"expected a table of runs, as load_runs('runs') gives, got {table!r:.60}")
    params = table.attrs.get(HYPERPARAMETERS)
    if params is None and ((needs_axes and not table.empty) or set(table) >= _OF_RUNS):
        raise InvalidArgumentError(
            "this table does not name its hyperparameters, as after a merge or a concat in pandas: "
            "name them, as load_table(runs, hyperparameters=['lr', 'seed'])"
        )
    inside = [name for name in table.index.names if name in (params or ()) and name not in table]
    if inside:
        raise InvalidArgumentError(f"hyperparameter {inside[0]!r} is in the index: give runs.reset_index()")


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
            problems.append(f"column {name!r} does not hold numbers: give a metric, as 'loss'")
    return problems


def category(texts: list[str]) -> Any:
    """Make a categorical column of texts; statuses keep the order of `Status`."""
    statuses = [str(status) for status in Status if status in texts]
    return pd.Categorical(texts, [*dict.fromkeys([*statuses, *texts])])


def _column(values: list[Any]) -> pd.Series:
    kinds = {type(value) for value in values}
    missing = type(pd.NA)
    # beside a missing value, the value NaN stays distinct
    is_nan = missing in kinds and any(isinstance(value, float) and math.isnan(value) for value in values)
    if kinds <= {float, missing} and not is_nan:
        return pd.Series([math.nan if value is pd.NA else value for value in values], dtype="float64")
    if len(kinds) == 1 and kinds <= {int, bool, str}:
        try:
            return pd.Series(values)
        # the first error is from NumPy, the second from pyarrow if pandas stores text with pyarrow
        except (OverflowError, UnicodeEncodeError):
            pass
    return pd.Series(values, dtype="object")

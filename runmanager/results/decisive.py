"""What decides between the runs of a table: its goal and its repeat axes, as their experiments say."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from runmanager.console import printable
from runmanager.errors import InvalidArgumentError
from runmanager.goal import Goal, default_goal, parse_goal
from runmanager.hyperparameters import RESERVED
from runmanager.results import tables
from runmanager.results.tables import (
    ALL_GOALS,
    EARLY,
    GOALS,
    INSIDE,
    KEPT,
    KEPT_BY,
    NOTES,
    REPEATS,
    RULES,
    hyperparameters_of,
)
from runmanager.storage.design import Design, Rule
from runmanager.storage.folders import Experiment
from runmanager.storage.run_state import RunResult
from runmanager.wording import did_you_mean


def runs_table(name: str, runs: Sequence[RunResult]) -> pd.DataFrame:
    """Build the table of `load_runs` for one experiment, with what decides in it."""
    design = Experiment(runs[0].folder.path.parent).design if runs else Design()
    goal = design.decisive(run.start for run in runs)
    return with_design(tables.runs_table(runs, goal), name, design, goal)


def with_design(table: pd.DataFrame, name: str, design: Design, goal: Goal | None = None) -> pd.DataFrame:
    """Note in the `attrs` of an experiment's table what decides in it, and its note; `goal` is `keep=`'s."""
    table.attrs[GOALS] = {} if design.goal is None else {name: str(design.goal)}
    table.attrs[ALL_GOALS] = {name: list(map(str, design.goals))} if design.goals else {}
    table.attrs[KEPT_BY] = {} if goal is None else {name: str(goal)}
    table.attrs[REPEATS] = {} if design.repeats is None else {name: list(design.repeats)}
    table.attrs[RULES] = {} if design.rule is None else {name: design.rule.as_json()}
    table.attrs[NOTES] = {} if not design.note else {name: design.note}
    return table


def goal_of(runs: pd.DataFrame) -> Goal | None:
    """Return the column that decides and its direction, None if no run has a metric that could.

    Raises:
        InvalidArgumentError: Several experiments have different goals, or no run has the metric of the goal.
    """
    goals = _of_experiments(runs, GOALS)
    if len(set(goals.values())) > 1:
        named = printable(", ".join(f"{name} has {goal}" for name, goal in goals.items()))
        rule = f"these experiments have different goals ({named})"
        raise InvalidArgumentError([f"{rule}: give one of them, or name the column, as by='loss' (--by loss)"])
    kept_by = set(_of_experiments(runs, KEPT_BY).values())
    names = [name for name in metrics_of(runs) if runs.empty or not runs[name].isna().all()]
    if goals:
        goal = parse_goal(next(iter(goals.values())))
        if names and goal.metric not in runs:
            hint = did_you_mean(goal.metric, names)
            again = "to correct it, start the grid with another goal=, which executes nothing again"
            raise InvalidArgumentError(
                [f"the goal is {str(goal)!r}, but no run has that metric; {hint} ({again})"]
            )
        return _column(runs, goal) if goal.metric in runs else None
    kept = parse_goal(kept_by.pop()) if len(kept_by) == 1 else None
    decisive = kept if kept and kept.metric in names else default_goal(names)
    return _column(runs, decisive) if decisive else None


def all_goals_of(runs: pd.DataFrame) -> list[str]:
    """Return the goals of experiments that have several, if they are the same in all; else none."""
    goals = list(_of_experiments(runs, ALL_GOALS).values())
    is_one = bool(goals) and all(each == goals[0] for each in goals)
    return goals[0] if is_one and len(goals) == len(_of_experiments(runs, GOALS)) else []


def metrics_of(runs: pd.DataFrame) -> list[str]:
    """Return the columns of a table that may be metrics."""
    others = {*hyperparameters_of(runs), *RESERVED - {"loss", "accuracy"}, "folder", EARLY, INSIDE}
    return [str(name) for name in runs if name not in others and not str(name).startswith(("best ", KEPT))]


def repeats_of(runs: pd.DataFrame, given: str | Collection[str] | None = None) -> list[str]:
    """Return the repeat axes of runs: those given, else those of their experiments."""
    if given is not None:
        return [given] if isinstance(given, str) else list(given)
    names = dict.fromkeys(name for axes in _of_experiments(runs, REPEATS).values() for name in axes)
    params = hyperparameters_of(runs)
    return [name for name in names if name in params]


def rule_of(runs: pd.DataFrame, metric: str, repeats: Collection[str] = ()) -> Rule:
    """Return what the experiments of runs decide, as ``run_grid(decide=...)`` has it; if they differ, nothing.

    Args:
        runs: The table.
        metric: The column that decides. A margin is in units of the goal's metric, so others have none.
        repeats: The axes that only repeat, whose values are not compared.
    """
    rules = [Rule.from_json(content) for content in _of_experiments(runs, RULES).values()]
    if not rules or rules[0] is None or any(rule != rules[0] for rule in rules):
        return Rule()
    rule, goal = rules[0], None
    with contextlib.suppress(InvalidArgumentError):
        goal = goal_of(runs)
    if goal is None or goal.metric.removeprefix(KEPT) != metric.removeprefix(KEPT):
        rule = replace(rule, margin=None)
    is_axis = rule.axis in hyperparameters_of(runs) and rule.axis not in repeats
    return rule if is_axis else replace(rule, axis=None)


def notes_of(runs: pd.DataFrame) -> list[str]:
    """Return a sentence with the note of each experiment of runs that has one."""
    notes = {name: printable(note) for name, note in _of_experiments(runs, NOTES).items()}
    is_one = "experiment" not in runs or len(set(map(str, runs["experiment"]))) == 1
    return [f"note{'' if is_one else f' of {printable(name)}'}: {note}" for name, note in notes.items()]


def _column(runs: pd.DataFrame, goal: Goal) -> Goal:
    """Return the goal by the column that has its value where the weights are kept, if there is one."""
    kept = f"{KEPT}{goal.metric}"
    return Goal(kept, goal.sign) if kept in runs else goal


def _of_experiments(runs: pd.DataFrame, key: str) -> Mapping[str, Any]:
    """Return what `attrs` hold of the experiments that have rows."""
    content = runs.attrs.get(key) or {}
    if "experiment" not in runs:
        return content
    present = set(map(str, runs["experiment"].unique()))
    return {name: value for name, value in content.items() if name in present}

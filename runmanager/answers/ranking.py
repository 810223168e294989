"""The ranking of settings, the best first; every function, command, panel and page uses this ranking.

The functions take the table of `load_runs`, or rows of it. Only completed runs count: a pruned or interrupted
run has numbers too, but of fewer epochs. In a table without the column `status`, all rows count.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, cmp_to_key
from itertools import chain
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_integer_dtype
from scipy.special import stdtrit

from runmanager.answers.usual_goals import assumption
from runmanager.core.experiment import SEEDS, Design, varying
from runmanager.core.goal import KEPT, Goal, default_goal, parse_goal
from runmanager.core.outcome import Status
from runmanager.core.values import COLUMNS, key_of
from runmanager.core.wording import counted, did_you_mean, printable
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.tables.cells import aligned, all_of, cell, labels
from runmanager.tables.columns import (
    ALL_GOALS,
    GOALS,
    KEPT_BY,
    REPEATS,
    Numbers,
    beside,
    check_table,
    hyperparameters_of,
    metrics_of,
    naming,
    of_experiments,
    without_numbers,
)

ALL_REPEATS, FAILED_REPEATS = "all repeats", "failed repeats"
"""The columns with the number of a setting's runs, and the number of runs that failed."""

LOST = frozenset(str(status) for status in Status if status.is_lost)
"""The statuses of runs that failed, diverged, hung or were killed."""

RUNS = "runs"
"""The column with the runs of a setting, each as an argument of `load_run`."""

AVERAGED, RANKED, ASSUMED = "averaged", "ranked", "assumed"
"""The keys in the `attrs` of the returned tables: the averaged columns, the goal, the assumed repeat axes."""

_DEVICE = "device"
_CONFIDENCE = 0.95
_ROUNDING = 1e-12  # relative difference of two means that the order of summation can cause


@dataclass(frozen=True)
class Setting:
    """A combination of values of all hyperparameters except the repeat axes; without repeat axes, a run."""

    params: Mapping[str, Any]  # the hyperparameters that vary between settings
    rows: Sequence[int]  # the positions of its runs in the table
    numbers: Sequence[Sequence[float]] = ((),)  # for each goal, the values in the completed runs
    lost: Mapping[str, int] = field(default_factory=dict)  # status -> number of failed runs
    num_earlier: int = 0  # the number of rows that are earlier attempts
    run: int | str | None = None  # the run's number, or its name elsewhere, if the setting is a single run

    @cached_property
    def means(self) -> list[float]:
        """The mean of each goal, the deciding goal first; NaN if no run has a value."""
        return [statistics_of(numbers).mean for numbers in self.numbers]

    @cached_property
    def statistics(self) -> "Statistics":
        """The statistics of the goal over the setting's runs: count, mean, standard deviation and interval."""
        return statistics_of(self.numbers[0])

    @property
    def number(self) -> int:
        """The number of completed runs that have a value of the goal."""
        return self.statistics.n

    @property
    def mean(self) -> float:
        """The mean of the goal, NaN if no run has a value."""
        return self.statistics.mean

    @property
    def total(self) -> int:
        """The number of the setting's runs; several attempts at a repeat are one run."""
        return len(self.rows) - self.num_earlier

    @property
    def counts(self) -> str:
        """Return text with the number of the setting's runs that count, and how failed runs ended.

        >>> Setting({}, [0, 1, 2], [[0.4, 0.6]], lost={"diverged": 1}).counts
        '2 of 3, 1 diverged'
        """
        number = f"{self.number} of {self.total}" if self.number < self.total else str(self.number)
        return ", ".join([number, *(f"{count} {status}" for status, count in self.lost.items())])


@dataclass(frozen=True)
class Ranking:
    """The settings of a table of runs, the best first.

    A setting that lacks one of several goals ranks below all settings that have every goal. A setting with one
    repeat ranks below the others if another has three, or if it has lost its other repeats and another has two:
    its result may be luck. Means that differ only by rounding are a tie: the next goal breaks the tie, then the
    order of the table.
    """

    # the goals, whose metrics are columns; the first goal decides, the others break its ties
    goals: Sequence[Goal]
    repeats: Sequence[str]  # the repeat axes
    is_assumed: bool  # whether the repeat axes were recognised only by their names
    settings: Sequence[Setting]  # the settings that have a value of the goal, the best first
    others: Sequence[Setting]  # the settings without a value of the goal

    @property
    def goal(self) -> Goal:
        """The goal that decides; its metric is a column of the table."""
        return self.goals[0]

    @property
    def metric(self) -> str:
        """The metric that decides, by the name under which runs track it."""
        return self.goal.metric.removeprefix(KEPT)

    @property
    def all_settings(self) -> list[Setting]:
        """The settings that have a value of the goal, the best first, then the other settings."""
        return [*self.settings, *self.others]

    @cached_property
    def leaders(self) -> Sequence[Setting]:
        """The settings that compete for the first rank: the settings in the tier of the best setting."""
        tiers = _tiers(self.settings)
        return [setting for setting, tier in zip(self.settings, tiers, strict=True) if tier == tiers[0]]

    @property
    def front(self) -> list[Setting]:
        """The Pareto-optimal settings among the leaders, the best first."""
        leaders = self.leaders
        scores = np.array([_scores(self.goals, setting) for setting in leaders])
        return [leaders[row] for row in front_of(scores)] if len(scores) else []

    @property
    def count(self) -> str:
        """Say how many of all settings are ranked: the settings that have a value of the goal."""
        number, what = len(self.settings), f"{self.noun}s"
        if not self.others:
            return f"{all_of(number, what)} are ranked" if number > 1 else f"1 {self.noun} is ranked"
        are = "is" if number == 1 else "are"
        return f"{number:,} of {counted(len(self.all_settings), self.noun)} {are} ranked"

    @property
    def noun(self) -> str:
        """The word for a ranked item: "setting" or "run"."""
        return "setting" if self.repeats else "run"

    @property
    def first(self) -> Sequence[Setting]:
        """The settings for a table of the best settings: with several goals, the Pareto front."""
        return self.front if len(self.goals) > 1 else self.settings

    @property
    def num_ties(self) -> int:
        """The number of other settings that equal the best setting in every goal."""
        leaders = self.leaders
        pairs = (zip(other.means, leaders[0].means, strict=True) for other in leaders[1:])
        return sum(all(is_same(*pair) for pair in means) for means in pairs)

    def why_below(self, setting: Setting) -> str:
        """Return the reason why a setting does not compete: the setting has one repeat, or lacks a goal."""
        if any(setting is leader for leader in self.leaders):
            return ""
        missing = [
            goal.metric for goal, mean in zip(self.goals, setting.means, strict=True) if math.isnan(mean)
        ]
        if missing and not any(map(math.isnan, self.settings[0].means)):
            return f"no {printable(' and no '.join(missing))}"
        return f"one {printable(' and '.join(self.repeats))}"

    @property
    def assumption(self) -> str:
        """Return a sentence with the axes that count as repeat axes by their names; "" without such axes."""
        return assumption(self.repeats) if self.is_assumed else ""

    @property
    def codes(self) -> Numbers:
        """The position of each run's setting in `all_settings`."""
        codes = np.empty(sum(len(setting.rows) for setting in self.all_settings), int)
        for position, setting in enumerate(self.all_settings):
            codes[list(setting.rows)] = position
        return codes

    @property
    def varying(self) -> list[str]:
        """The hyperparameters that vary between all settings, even if not between settings with a value."""
        ended = varying([setting.params for setting in self.all_settings if setting.number or setting.lost])
        names = [name for setting in self.all_settings[:1] for name in setting.params]
        ranked = self.settings or self.all_settings
        return [
            name for name in names
            if (name != _DEVICE or name in ended) and not all(_is_missing(each.params[name]) for each in ranked)
        ]  # fmt: skip

    def name(self, setting: Setting) -> str:
        """Return the name of a setting: its hyperparameters that vary; for a run, also its number."""
        names = [name for name in self.varying if setting.run is None or name != "run"]
        params = {name: setting.params[name] for name in names}
        if "experiment" in params:  # an experiment may lack hyperparameters of another experiment
            params = {name: value for name, value in params.items() if value is not None and value is not pd.NA}
        others = [each.params for each in self.all_settings if each is not setting]
        named, *_ = labels([params, *({name: each.get(name) for name in params} for each in others)])
        if setting.run is None:
            return named or "the only setting"
        return f"run {setting.run}" + (f" ({named})" if named else "")

    def repeats_of(self, setting: Setting) -> str:
        """Return text with the number of repeats in a mean: ", of one seed", ", the mean of 3 seeds"."""
        axes = printable(" and ".join(self.repeats))
        is_counted = len(self.repeats) == 1 and axes in SEEDS
        one, many = (axes, f"{setting.number} {axes}s")
        if not is_counted:
            one, many = (f"repeat ({axes})", f"{setting.number} repeats ({axes})")
        return f", of one {one}" if setting.number == 1 else f", the mean of {many}"

    def interval(self, setting: Setting) -> str:
        """Return the 95 % interval of a mean as text, "" without a spread."""
        (ends,) = intervals(self.metric, [setting.statistics.low], [setting.statistics.high])
        return ends


def _is_missing(value: Any) -> bool:
    """Whether a run lacks a hyperparameter, which is NaN in a column of numbers."""
    return value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _tiers(settings: Sequence[Setting]) -> list[tuple[bool, bool]]:
    """Return the tier of each setting: whether it lacks a goal, and whether it has too few repeats."""
    few = are_few([s.number for s in settings], [bool(s.lost) for s in settings])
    return [(any(map(math.isnan, s.means)), is_few) for s, is_few in zip(settings, few, strict=True)]


def are_few(numbers: Sequence[int], have_lost: Sequence[bool]) -> list[bool]:
    """Whether each number of repeats is too small to compete: one, where another setting has several.

    >>> are_few([1, 2], [False, False]), are_few([1, 2], [True, False]), are_few([1, 3], [False, False])
    ([False, False], [True, False], [True, False])
    """
    most = max(numbers, default=0)
    return [
        number == 1 and most > (1 if has_lost else 2)
        for number, has_lost in zip(numbers, have_lost, strict=True)
    ]


def _scores(goals: Sequence[Goal], setting: Setting) -> list[float]:
    return [goal.sign * mean for goal, mean in zip(goals, setting.means, strict=True)]


def in_rank(tiers: Sequence[tuple[bool, ...]], scores: Sequence[Sequence[float]]) -> list[int]:
    """Sort positions by tier, the lowest first, then by score, the largest first; the next score breaks ties.

    >>> in_rank([(False,), (True,), (False,), (False,)], [[0.5, 1.0], [0.9, 1.0], [0.7, 1.0], [0.7, 2.0]])
    [3, 2, 0, 1]
    """

    def compare(one: int, other: int) -> int:
        if tiers[one] != tiers[other]:
            return -1 if tiers[one] < tiers[other] else 1
        for first, second in zip(scores[one], scores[other], strict=True):
            if not is_same(first, second):  # a missing score comes last
                return -1 if math.isnan(second) or first > second else 1
        return 0

    return sorted(range(len(tiers)), key=cmp_to_key(compare))


def is_same(one: float, other: float) -> bool:
    """Whether two means are equal up to rounding, or both missing.

    >>> is_same((0.1 + 0.2 + 0.3) / 3, (0.3 + 0.2 + 0.1) / 3), is_same(0.5, 0.5000001)
    (True, False)
    """
    return math.isclose(one, other, rel_tol=_ROUNDING) or (math.isnan(one) and math.isnan(other))


def front_of(scores: Numbers) -> list[int]:
    """Return the Pareto-optimal rows in their order; larger is better, and rows with NaN do not compete.

    >>> front_of(np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 0.5], [1.0, 1.0]]))
    [0, 1, 3]
    """
    rows = np.flatnonzero(np.isfinite(scores).all(axis=1))
    order = rows[np.lexsort(-scores[rows].T[::-1])]  # sorted so that a later row never dominates an earlier one
    front: list[int] = []
    for row in order.tolist():
        before = scores[front]
        is_equal = np.isclose(before, scores[row], rtol=_ROUNDING, atol=0.0)
        is_better = (before > scores[row]) & ~is_equal
        if not ((is_better | is_equal).all(axis=1) & is_better.any(axis=1)).any():
            front.append(row)
    return sorted(front)


def intervals(metric: str, lows: Iterable[float], highs: Iterable[float]) -> list[str]:
    """Write intervals as text, "" for an interval without information.

    >>> intervals("accuracy", [0.71, 0.98, -0.4], [0.73, 0.98, 1.5])
    ['0.71 to 0.73', '', '']
    """
    ends, whole = ([*lows], [*highs]), (-math.inf, math.inf)
    if metric.endswith(("accuracy", "acc")) and not any(
        low > 1 or high < 0 for low, high in zip(*ends, strict=True)
    ):
        ends = [max(low, 0.0) for low in ends[0]], [min(high, 1.0) for high in ends[1]]
        whole = (0.0, 1.0)
    texts = aligned([*ends[0], *ends[1]])
    pairs = zip(*ends, texts[: len(texts) // 2], texts[len(texts) // 2 :], strict=True)
    return [f"{a} to {b}" if a != b and (low, high) != whole else "" for low, high, a, b in pairs]


def scores_of(runs: pd.DataFrame, ranking: Ranking) -> "pd.Series[float]":
    """Return the score of each run; NaN if the run has no value, or its setting lacks one of several goals."""
    scores = ranking.goal.sign * completed(runs, ranking.goal.metric)
    for setting in ranking.settings:
        if any(map(math.isnan, setting.means)) and not any(map(math.isnan, ranking.settings[0].means)):
            scores.iloc[list(setting.rows)] = math.nan
    return scores


def ranking_of(
    runs: pd.DataFrame,
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
) -> Ranking:
    """Rank settings by their mean over the repeats; without repeat axes, rank the runs."""
    check_table(runs)
    axes, is_assumed = ([], False) if are_epochs(runs) else repeats_of(runs, repeats)
    problems = Problems()
    goals: list[Goal] = []
    with problems.collecting():
        goals = goals_of(runs, goal)
    with problems.collecting():
        check_comparable(runs, axes, [], are_runs=bool(axes))
    problems.raise_if_any(InvalidArgumentError)
    group, table = settings_without(runs, axes)
    if not axes:  # each run is ranked, even if two have the same hyperparameters
        table, group = table.take(group).reset_index(drop=True), np.arange(len(runs))
    numbers = [completed(runs, each.metric).to_numpy() for each in goals]
    statuses = statuses_of(runs, axes)
    rows: dict[int, list[int]] = {}
    for row, code in enumerate(group.tolist()):
        rows.setdefault(code, []).append(row)
    names, columns = list(map(str, table)), [column.tolist() for _, column in table.items()]
    of_runs = [None] * len(runs) if axes else names_of_runs(runs)
    settings = []
    for code, positions in rows.items():
        settings.append(
            Setting(
                {name: column[code] for name, column in zip(names, columns, strict=True)},
                positions,
                [[number for number in each[positions].tolist() if math.isfinite(number)] for each in numbers],
                Counter(statuses[row] for row in positions if statuses[row] in LOST),
                sum(not statuses[row] for row in positions),
                of_runs[positions[0]],
            )
        )
    is_pruned = np.array(statuses) == Status.PRUNED
    costs = np.where(is_pruned, -goals[0].sign * _finite(runs[goals[0].metric]), math.nan)
    costs[np.isnan(costs)] = math.inf
    rated = [setting for setting in settings if not math.isnan(setting.mean)]
    others = [setting for setting in settings if math.isnan(setting.mean)]
    others.sort(key=lambda setting: costs[list(setting.rows)].min())
    order = in_rank(_tiers(rated), [_scores(goals, setting) for setting in rated])
    return Ranking(goals, axes, is_assumed, [rated[index] for index in order], others)


def goals_of(runs: pd.DataFrame, goal: str | Sequence[str] | None = None) -> list[Goal]:
    """Return the goals by which runs are ranked: the goals in `goal`, else the goals of their experiments."""
    if goal is None:
        default_metric(runs, "goal='max:f1' (--goal max:f1)")
        own = own_goals(runs)
        Problems(without_numbers(runs, [each.metric for each in own])).raise_if_any(InvalidArgumentError)
        return own
    given = list(goal) if isinstance(goal, list | tuple) and not isinstance(goal, Goal) else [goal]
    problems = Problems()
    goals: list[Goal] = []
    for each in given:
        with problems.collecting():
            goals.append(_by_column(runs, each))
    if not given:
        problems.append(f"a goal is a metric, as 'max:f1', got {goal!r}")
    metrics = Counter(each.metric for each in goals)
    problems += without_numbers(runs, metrics)
    problems += [f"{name!r} is a goal twice: keep one" for name, number in metrics.items() if number > 1]
    problems.raise_if_any(InvalidArgumentError)
    return goals


def _by_column(runs: pd.DataFrame, given: object) -> Goal:
    """Return a goal whose metric is a column: if there is one, the column at the epoch of the saved weights."""
    if isinstance(given, str) and given in runs:
        goal = next((own for own in _known_goals(runs) if own.metric == given), None) or parse_goal(given)
    elif isinstance(given, str) and ":" not in given:
        raise InvalidArgumentError(without_numbers(runs, [given]))
    else:
        goal = parse_goal(given)
    kept = f"{KEPT}{goal.metric}"
    return Goal(kept, goal.sign) if kept in runs else goal


def _known_goals(runs: pd.DataFrame) -> list[Goal]:
    """Return the goals of the experiments and of their ``keep=``, each for all columns of its metric."""
    texts = [*of_experiments(runs, GOALS).values(), *of_experiments(runs, KEPT_BY).values()]
    goals = [parse_goal(text) for text in (*texts, *chain(*of_experiments(runs, ALL_GOALS).values()))]
    return [Goal(f"{mark}{goal.metric}", goal.sign) for goal in goals for mark in ("", KEPT, "best ")]


def own_goals(runs: pd.DataFrame) -> list[Goal]:
    """Return the goals of the experiments, else the metric of ``keep=``, else a metric chosen by its name."""
    goals = of_experiments(runs, GOALS)
    is_done = runs["status"] == Status.COMPLETED if "status" in runs else pd.Series(True, runs.index)
    counted = runs[is_done] if is_done.any() else runs
    names = [name for name in metrics_of(runs) if runs.empty or not counted[name].isna().all()]
    if not goals:
        kept_by = set(of_experiments(runs, KEPT_BY).values())
        kept = parse_goal(kept_by.pop()) if len(kept_by) == 1 else None
        decisive = kept if kept and kept.metric in names else default_goal(names)
        return [_by_column(runs, decisive)] if decisive else []
    if len(set(goals.values())) > 1:
        named = printable(", ".join(f"{name} has {goal}" for name, goal in goals.items()))
        rule = f"these experiments have different goals ({named})"
        raise InvalidArgumentError([f"{rule}: give one of them, as goal='min:loss' (--goal min:loss)"])
    goal = parse_goal(next(iter(goals.values())))
    if names and goal.metric not in runs:
        hint = did_you_mean(goal.metric, names)
        again = "to correct it, start the grid with another goal=, which executes nothing again"
        raise InvalidArgumentError([f"the goal is {str(goal)!r}, but no run has that metric; {hint} ({again})"])
    several = list(of_experiments(runs, ALL_GOALS).values())
    is_one = len(several) == len(goals) and all(each == several[0] for each in several)
    further = [parse_goal(text) for text in several[0][1:]] if is_one else []
    there = [goal] if goal.metric in runs else []
    return [_by_column(runs, each) for each in (*there, *(each for each in further if each.metric in names))]


def default_metric(runs: pd.DataFrame, example: str) -> str:
    """Return the column that decides by default."""
    goals = own_goals(runs)
    if not goals:
        raise InvalidArgumentError([f"no run has an accuracy or a loss: name the metric, as {example}"])
    return goals[0].metric


def repeats_of(runs: pd.DataFrame, repeats: str | Sequence[str] | None = None) -> tuple[list[str], bool]:
    """Return the repeat axes of runs, and whether they were recognised only by their names."""
    if repeats is not None:
        return list(dict.fromkeys([repeats] if isinstance(repeats, str) else repeats)), False
    names = [name for name in axes_of(runs) if name != "experiment"]
    given = of_experiments(runs, REPEATS)
    design = Design(repeats=tuple(dict.fromkeys(chain(*given.values()))) if given else None)
    axes = design.repeating(_varying(runs, names))
    return [name for name in axes if name in names], bool(axes) and not given


def _varying(runs: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the hyperparameters that vary within each experiment, not only between experiments."""
    parts = [runs]
    if "experiment" in runs:
        parts = [part for _, part in runs.groupby("experiment", observed=True)]
    return [name for name in names if all(len(numbered(part[name])[1]) > 1 for part in parts)]


def best(
    runs: pd.DataFrame,
    goal: str | Sequence[str] | None = None,
    n: int | None = None,
    *,
    repeats: str | Sequence[str] | None = None,
) -> pd.DataFrame:
    """Sort runs, the best first; with repeat axes, sort settings by their mean.

    Args:
        runs: The table of `load_runs` or `load_results`, or rows of it.
        goal: The goal that decides: "max:<metric>", "min:<metric>", or a metric with a known direction. If
            several goals are given, the first goal decides, and the others break its ties. The default is the
            goal of ``run_grid(goal=...)``, else the metric of ``keep=``, else the first accuracy of validation,
            test and training, else the first loss. If the best weights are kept, the goal's value at their
            epoch counts, from the column `kept accuracy`. ``"best accuracy"`` is the accuracy of the best
            epoch.
        n: The number of rows to return; all by default.
        repeats: The axes that only repeat a setting. The default is ``run_grid(repeats=...)``, else the axes
            that vary and are named seed, fold, split, trial or repeat; `show` names these axes. With ``()``
            runs are sorted one by one.

    Returns:
        The rows, the best first; ties keep the order of `runs`. Runs that did not complete, or have no finite
        value, come last: first the pruned runs, sorted by their metric, then the other runs in their order.

        With repeat axes, one row per setting: the other hyperparameters, and five columns for each
        goal. `accuracy n` is the number of completed runs with a value, `accuracy mean` their mean, `accuracy
        std` their standard deviation, with the divisor n - 1. `accuracy low` and `accuracy high` are the 95 %
        interval of the mean, by Student's t (1908). `failed repeats` counts the runs that failed, diverged,
        hung or were killed. `all repeats` is the number of the setting's runs; `runs` lists them as arguments
        of `load_run`. A setting with a single completed run comes last if another has three, or if its other
        runs failed and another has two, as its result may be luck. ``attrs["assumed"]`` lists the axes that
        count as repeat axes because of their names.

    Raises:
        InvalidArgumentError: `goal` names no column, a column without numbers, or a metric without a known
            direction; or `repeats` names no hyperparameter; or `n` is not a valid number of rows.

    Example:
        >>> runs = pd.DataFrame({"run": [1, 2, 3], "accuracy": [0.81, 0.86, 0.79]})
        >>> best(runs, n=2)
           run  accuracy
        1    2      0.86
        0    1      0.81
    """
    problems = Problems()
    if n is not None:
        problems.check_count("n", n, 0)
    with problems.collecting():
        ranking = ranking_of(runs, goal, repeats)
    problems.raise_if_any(InvalidArgumentError)
    table = rows_of(runs, ranking, ranking.all_settings[:n])
    table.attrs |= {RANKED: tuple(ranking.goal), ASSUMED: ranking.assumption}
    return table


def rows_of(runs: pd.DataFrame, ranking: Ranking, settings: Sequence[Setting]) -> pd.DataFrame:
    """Return one row per setting."""
    if not ranking.repeats:
        table = runs.iloc[[setting.rows[0] for setting in settings]]
        table.attrs = dict(runs.attrs)
        return table
    metrics = [goal.metric for goal in ranking.goals]
    names = [name for name in axes_of(runs) if name not in ranking.repeats]
    table = _averages(runs, settings, names, metrics, ranking.repeats)
    table[ALL_REPEATS] = [setting.total for setting in settings]
    return table


def _averages(
    runs: pd.DataFrame,
    settings: Sequence[Setting],
    names: Sequence[str],
    columns: Sequence[str],
    repeats: Sequence[str],
) -> pd.DataFrame:
    """Return a row per setting: hyperparameters, `Statistics` of each column, failed repeats and runs."""
    group = np.full(len(runs), -1)  # -1 marks rows of other settings
    for code, setting in enumerate(settings):
        group[list(setting.rows)] = code
    parts = [
        describe(completed(runs, name), group).reindex(range(len(settings))).add_prefix(f"{name} ")
        for name in columns
    ]
    failed = pd.Series(statuses_of(runs, repeats)).isin(LOST)
    if failed.any():
        counts = failed.groupby(group).sum().reindex(range(len(settings)), fill_value=0)
        parts.append(counts.rename(FAILED_REPEATS).to_frame())
    params = runs[list(names)].take([setting.rows[0] for setting in settings]).reset_index(drop=True)
    params.attrs = {}
    if addresses := addresses_of(runs):
        of_settings = [tuple(addresses[row] for row in setting.rows) for setting in settings]
        parts.append(pd.Series(of_settings, name=RUNS, dtype=object).to_frame())
    table = beside(params, pd.concat(parts, axis="columns"))
    table.attrs[AVERAGED] = list(columns)
    return table


def names_of_runs(runs: pd.DataFrame) -> list[int | str | None]:
    """Return the number of each run, or its name in a table from elsewhere; None for a run without a name.

    >>> names_of_runs(pd.DataFrame({"run": [7, "lr0.1_s0", math.nan]}))
    [7, 'lr0.1_s0', None]
    """
    if "run" not in runs:
        return [None] * len(runs)
    names = runs["run"].astype(object).where(runs["run"].notna(), math.nan)
    return [name if isinstance(name, int) else cell(name) or None for name in names]


def addresses_of(runs: pd.DataFrame) -> list[str]:
    """Return each run as an argument of `load_run` and of commands; empty if the table does not name folders.

    >>> addresses_of(pd.DataFrame({"run": [7], "folder": ["runs/circle/007-lr=0.1"]}))
    ['runs/circle/7']
    """
    if not {"run", "folder"} <= {*runs} or not is_integer_dtype(runs["run"]):
        return []
    pairs = zip(runs["folder"], runs["run"], strict=True)
    return [f"{PurePath(str(folder)).parent.as_posix()}/{number}" for folder, number in pairs]


def numbered(column: "pd.Series[Any]") -> tuple[Numbers, list[Any]]:
    """Number the values of a hyperparameter in order of appearance; return a code per row, and the values."""
    is_object = column.dtype == object
    keys = [key_of(value) for value in column] if is_object else column.to_numpy()
    codes, _ = pd.factorize(np.asarray(keys), use_na_sentinel=False)
    firsts = np.unique(codes, return_index=True)[1]
    return codes, column.iloc[firsts].tolist()


def axes_of(runs: pd.DataFrame) -> list[str]:
    """Return the columns that may be axes: `experiment`, if the table has it, and the hyperparameters."""
    return [name for name in dict.fromkeys(("experiment", *hyperparameters_of(runs))) if name in runs]


def check_comparable(
    runs: pd.DataFrame, axes: Sequence[str], columns: Sequence[str], *, are_runs: bool = True
) -> None:
    """Refuse rows that cannot be compared by the given hyperparameters and columns."""
    params = axes_of(runs)
    problems = Problems(
        f"these runs have no hyperparameter {axis!r}; {did_you_mean(axis, params)}"
        f"{f'; the column becomes one by {naming(runs, [axis])}' if axis in {*runs} - COLUMNS else ''}"
        for axis in axes
        if axis not in params
    )
    problems += without_numbers(runs, columns)
    if are_runs and are_epochs(runs):
        problems.append(
            "these rows are epochs, not runs: give what load_runs() returns, or the last epoch of each run, "
            "results.groupby('run').tail(1)"
        )
    problems.raise_if_any(InvalidArgumentError)


def completed(runs: pd.DataFrame, name: str) -> "pd.Series[float]":
    """Return a column as floats with the index 0, 1, ...; NaN if not finite or the run did not complete."""
    numbers = _finite(runs[name])
    if "status" in runs:
        numbers = numbers.where(runs["status"] == Status.COMPLETED)
    return numbers.reset_index(drop=True)


def settings_without(
    runs: pd.DataFrame, axes: str | Sequence[str], *, all_of_them: bool = False
) -> tuple[Numbers, pd.DataFrame]:
    """Number the settings of runs; a setting is a combination of all hyperparameters except `axes`."""
    axes = [axes] if isinstance(axes, str) else axes
    coded = {name: numbered(runs[name]) for name in axes_of(runs) if name not in axes}
    numbers: dict[tuple[int, ...], int] = {}
    codes = zip(*(column.tolist() for column, _ in coded.values()), strict=True) if coded else [()] * len(runs)
    group = np.array([numbers.setdefault(each, len(numbers)) for each in codes], dtype=int)
    firsts = np.unique(group, return_index=True)[1]
    names = [name for name, (_, values) in coded.items() if all_of_them or len(values) > 1]
    table = runs[names].take(firsts).reset_index(drop=True)
    table.attrs = {}
    return group, table


def statuses_of(runs: pd.DataFrame, repeats: Sequence[str]) -> list[str]:
    """Return the status of each run; "" for an earlier attempt at a repeat.

    >>> runs = pd.DataFrame({"seed": [0, 1, 1], "status": ["completed", "failed", "completed"]})
    >>> runs.attrs["hyperparameters"] = ["seed"]
    >>> statuses_of(runs, ["seed"]), statuses_of(runs, [])
    (['completed', '', 'completed'], ['completed', 'failed', 'completed'])
    """
    if "status" not in runs:
        return [str(Status.COMPLETED)] * len(runs)
    words = runs["status"].astype(str).tolist()
    if not repeats or all(word == Status.COMPLETED for word in words):
        return words
    codes = settings_without(runs, [])[0].tolist()
    done = Counter(code for code, word in zip(codes, words, strict=True) if word == Status.COMPLETED)
    if max(done.values(), default=0) > 1:
        return words
    order = {str(status): index for index, status in enumerate(Status)}  # runs in progress are last
    rows = sorted(range(len(words)), key=lambda row: order.get(words[row], 0))
    last = {codes[row]: row for row in rows}
    return [
        word if word == Status.COMPLETED or (code not in done and row == last[code]) else ""
        for row, (code, word) in enumerate(zip(codes, words, strict=True))
    ]


def are_epochs(runs: pd.DataFrame) -> bool:
    """Whether the rows are epochs, with several rows per run.

    >>> table = pd.DataFrame({"run": "wide", "epoch": [9, 9], "seed": [0, 1]})  # `run` is a setting's name here
    >>> table.attrs["hyperparameters"] = ["seed"]
    >>> are_epochs(table), are_epochs(table.drop(columns="seed"))
    (False, True)
    """
    names = [name for name in ("experiment", "run") if name in runs]
    if "epoch" not in runs or not names or not runs.duplicated(names).any():
        return False
    return bool(runs[names].assign(setting=settings_without(runs, [])[0]).duplicated().any())


class Statistics(NamedTuple):
    """Statistics of a list of numbers; NaN if there are too few numbers, or if they are too large."""

    n: int
    mean: float
    std: float  # standard deviation, with the divisor n - 1
    low: float  # the 95 % interval of the mean, by Student's t
    high: float


def statistics_of(numbers: Sequence[float]) -> Statistics:
    """Describe finite numbers.

    >>> statistics_of([1.0, 2.0, 3.0]).mean, statistics_of([1.0, 2.0, 3.0]).std, statistics_of([]).n
    (2.0, 1.0, 0)
    """
    n, mean, std = len(numbers), mean_of(numbers), math.nan
    with contextlib.suppress(OverflowError):
        std = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / (n - 1)) if n > 1 else math.nan
    half = float(t_quantile(n - 1)) * std / math.sqrt(n) if n > 1 else math.nan
    return Statistics(n, mean, std, mean - half, mean + half)


def mean_of(numbers: Sequence[float]) -> float:
    """Return the mean of finite numbers, exact in any order; NaN if it cannot be computed.

    >>> mean_of([0.838, 0.725, 0.801, 0.845]), mean_of([])
    (0.80225, nan)
    """
    try:
        mean = math.fsum(numbers) / len(numbers)
    except (OverflowError, ZeroDivisionError):
        return math.nan
    # a mean that is only rounding, such as the mean of 0.1, 0.2 and -0.3
    return 0.0 if abs(mean) < _ROUNDING * max(map(abs, numbers)) else mean


def describe(numbers: "pd.Series[float]", group: Numbers) -> pd.DataFrame:
    """Return a row of `Statistics` for each group; NaN values are ignored."""
    each = {code: statistics_of(part.dropna().tolist()) for code, part in numbers.groupby(group)}
    table = pd.DataFrame(each.values(), index=pd.Index(each), columns=Statistics._fields)
    return table.astype({"n": "int64"})


def t_quantile(freedom: Any) -> Any:
    """Return the half-width of the 95 % interval in standard errors, by Student's t."""
    return stdtrit(freedom, (1 + _CONFIDENCE) / 2)


def _finite(column: "pd.Series[Any]") -> "pd.Series[float]":
    numbers = column.astype("float64")
    return numbers.where(np.isfinite(numbers))

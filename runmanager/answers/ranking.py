"""The ranking of settings, the best first; every function, command, panel and page uses this ranking.

The functions take the table of `load_runs`, or rows of it. Only completed runs count: a pruned or interrupted
run has numbers too, but of fewer epochs. In a table without the column `status`, all rows count.
"""

import contextlib
import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_integer_dtype

from runmanager.answers.finding import Finding, with_sentence
from runmanager.answers.sampled import is_missing
from runmanager.answers.usual_goals import assumption
from runmanager.core.experiment import SEEDS, varying
from runmanager.core.goal import KEPT, Goal, default_goal, parse_goal
from runmanager.core.outcome import Status
from runmanager.core.values import COLUMNS, key_of
from runmanager.core.wording import counted, did_you_mean, listed, printable
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.tables.cells import aligned, cell, labels
from runmanager.tables.columns import (
    GOALS,
    LACKING,
    REPEATS,
    Numbers,
    beside,
    check_table,
    hyperparameters_of,
    metrics_of,
    of_experiments,
    without_numbers,
)

ALL_REPEATS, FAILED_REPEATS, RUNS = "all repeats", "failed repeats", "runs"
"""The columns with a setting's number of repeats, its number of failed runs, and its runs for `load_run`."""

LOST = frozenset(str(status) for status in Status if status.is_lost)
"""The statuses of runs that failed, diverged, hung or were killed."""

OPEN = frozenset(str(status) for status in Status if status.is_open)
"""The statuses of runs that may still get a result."""

_STATUSES = [*map(str, Status)]
_PARTS = ("n", "mean", "std", "low", "high")
_DIGITS = 12  # means that differ only behind are equal, as another order of summation has this effect
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Setting:
    """A combination of values of all hyperparameters except the repeat axes; without repeat axes, a run."""

    params: Mapping[str, Any]  # the hyperparameters that vary between settings
    rows: Sequence[int]  # the positions of its runs in the table
    statistics: Sequence[
        Mapping[str, float]
    ]  # of the completed repeats, for each goal, as from `statistics_of`
    statuses: Counter[str]  # status -> number of repeats; several attempts at a repeat count once
    run: int | str | None = None  # the run's number, or its name elsewhere, if the setting is a single run

    @property
    def means(self) -> list[float]:
        """The mean of each goal, the deciding goal first; NaN if no run has a value."""
        return [statistics["mean"] for statistics in self.statistics]

    @property
    def mean(self) -> float:
        """The mean of the deciding goal, NaN if no run has a value."""
        return self.means[0]

    @property
    def number(self) -> int:
        """The number of completed repeats that have a value of the deciding goal."""
        return int(self.statistics[0]["n"])

    @property
    def total(self) -> int:
        """The number of repeats."""
        return self.statuses.total()

    @property
    def lost(self) -> dict[str, int]:
        """The number of failed repeats, by their status."""
        return {status: number for status, number in self.statuses.items() if status in LOST}

    @property
    def lacks_goal(self) -> bool:
        """Whether no run has a value of one of the goals."""
        return any(map(math.isnan, self.means))

    @property
    def counts(self) -> str:
        """Return text with the number of the setting's repeats that count, and how failed runs ended."""
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
    assumption: str  # a sentence on the repeat axes if they were recognised only by their names
    settings: Sequence[Setting]  # the settings that have a value of the goal, the best first
    others: Sequence[Setting]  # the settings without a value of the goal
    leaders: Sequence[Setting]  # the settings in the tier of the best setting, which compete for the first rank
    notes: Sequence[str]  # sentences on values that count although they are no last value of a run of its own

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
    def front(self) -> list[Setting]:
        """The Pareto-optimal settings among the leaders that have every goal, the best first."""
        front: dict[int, list[float]] = {}
        for index, setting in enumerate(self.leaders):  # an earlier one is never dominated by a later one
            scores = list(map(_rounded, scores_of(self.goals, setting.means)))
            is_beaten = any(each != scores and all(map(operator.ge, each, scores)) for each in front.values())
            if not (is_beaten or setting.lacks_goal):
                front[index] = scores
        return [self.leaders[index] for index in front]

    @property
    def first(self) -> Sequence[Setting]:
        """The settings for a table of the best settings: with several goals, the Pareto front."""
        return self.front if len(self.goals) > 1 else self.settings

    @property
    def is_choice(self) -> bool:
        """Whether several goals leave a choice: more than one setting on the Pareto front."""
        return len(self.goals) > 1 and len(self.front) > 1

    @property
    def noun(self) -> str:
        """The word for a ranked item: "setting" or "run"."""
        return "setting" if self.repeats else "run"

    @property
    def unit(self) -> str:
        """The word for a repeat, such as "seed"."""
        return self.repeats[0] if len(self.repeats) == 1 and self.repeats[0] in SEEDS else "repeat"

    @property
    def order_in_words(self) -> str:
        """Say by which metric, and over which repeats, the best is first."""
        mean = f" over {' and '.join(self.repeats)}" if self.repeats else ""
        return f"best {'mean ' if mean else ''}{self.goal.metric}{mean} first" if self.settings else ""

    @property
    def count(self) -> str:
        """Say how many of all settings are ranked: the settings that have a value of the goal."""
        number, total = len(self.settings), counted(len(self.all_settings), self.noun)
        return f"{f'{number:,} of' if self.others else 'all'} {total} {'is' if number == 1 else 'are'} ranked"

    @property
    def num_ties(self) -> int:
        """The number of other settings that equal the best setting in every goal."""
        first, *others = self.leaders
        return sum(all(map(is_same, first.means, other.means)) for other in others)

    def why_below(self, setting: Setting) -> str:
        """Return the reason why a setting does not compete: the setting has one repeat, or lacks a goal."""
        if setting in self.leaders:
            return ""
        if setting.lacks_goal and not self.settings[0].lacks_goal:
            pairs = zip(self.goals, setting.means, strict=True)
            return f"no {printable(' and no '.join(goal.metric for goal, mean in pairs if math.isnan(mean)))}"
        return f"one {self.unit}"

    @cached_property
    def varying(self) -> list[str]:
        """The hyperparameters that vary between settings, and that settings with a value have."""
        ranked = [setting.params for setting in self.settings or self.others]
        names = [*ranked[0]] if ranked else []
        ended = [setting.params for setting in self.all_settings if setting.number or setting.lost]
        if "device" in names and "device" not in varying(ended):  # the other devices are not on this machine
            names.remove("device")
        return [n for n in names if any(each[n] is None or not is_missing(each[n]) for each in ranked)]

    @cached_property
    def labels(self) -> list[str]:
        """The hyperparameters that vary as text, for each of `all_settings`; "" if none varies."""
        texts = []
        for setting in self.all_settings:
            params = setting.params
            if setting.number:
                params = {name: params[name] for name in self.varying if setting.run is None or name != "run"}
            if "experiment" in params:  # an experiment may lack hyperparameters of another experiment
                params = {name: value for name, value in params.items() if not is_missing(value)}
            texts.append(params)
        return labels(texts)

    def name(self, setting: Setting) -> str:
        """Return the name of a setting: its hyperparameters that vary; for a run, also its number."""
        label = self.labels[self.all_settings.index(setting)]
        if setting.run is None:
            return label or "the only setting"
        return f"run {setting.run}" + (f" ({label})" if label else "")

    def written(self, setting: Setting) -> str:
        """Write a setting's mean, with the digits of its column in a table."""
        return aligned([each.mean for each in self.settings])[self.settings.index(setting)]

    def intervals(self, settings: Sequence[Setting]) -> list[str]:
        """Return the 95 % interval of each setting's mean as text, "" without a spread."""
        texts = aligned(each.statistics[0][part] for each in settings for part in ("low", "high"))
        ends = zip(texts[::2], texts[1::2], strict=True)
        return [f"{low} to {high}" if low != high else "" for low, high in ends]


def scores_of(goals: Sequence[Goal], means: Sequence[float]) -> list[float]:
    """Return the mean of each goal so that larger is better."""
    return [goal.sign * mean for goal, mean in zip(goals, means, strict=True)]


def in_rank(rivals: Sequence[tuple[Sequence[float], int, bool]]) -> tuple[list[int], int]:
    """Sort the positions of rivals, the best first; return also how many compete.

    A rival is its scores, of which the next breaks ties, its number of repeats, and whether it has lost some.
    A rival that lacks a score is below all others. A rival with one repeat is below, if another has three, or
    if it has lost repeats and another has two.

    >>> in_rank([([0.5, 1.0], 1, False), ([0.9, math.nan], 1, False), ([0.7, 1.0], 2, False)])
    ([2, 0, 1], 2)
    """
    most = max((number for _, number, _ in rivals), default=0)
    tiers = [
        (any(map(math.isnan, scores)), number == 1 and most > (1 if has_lost else 2))
        for scores, number, has_lost in rivals
    ]
    keys = [[math.inf if math.isnan(score) else -_rounded(score) for score in each] for each, *_ in rivals]
    order = sorted(range(len(tiers)), key=lambda index: (tiers[index], keys[index]))
    return order, sum(tiers[index] == tiers[order[0]] for index in order)


def _rounded(number: float) -> float:
    """Round a mean to the digits that do not depend on the order of summation."""
    return float(f"{number:.{_DIGITS - 1}e}")


def is_same(one: float, other: float) -> bool:
    """Whether two means are equal up to rounding, or both missing."""
    return _rounded(one) == _rounded(other) or (math.isnan(one) and math.isnan(other))


def ranking_of(
    runs: pd.DataFrame,
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
    axis: str | None = None,
) -> Ranking:
    """Rank settings by their mean over the repeats, without them runs; a compared axis is no repeat axis."""
    check_table(runs)
    axes, is_assumed = ([], False) if are_epochs(runs) else repeats_of(runs, repeats)
    axes = [name for name in axes if name != axis]
    goals = goals_of(runs, goal)
    if axes:
        check_comparable(runs, axes)
    group, table = settings_without(runs, axes)
    # without repeat axes, two runs with the same hyperparameters stay two
    repeats_in = settings_without(runs, [])[0].tolist() if axes else range(len(runs))
    params = {str(name): runs[name].tolist() for name in table}
    numbers = [completed(runs, each.metric).tolist() for each in goals]
    limits = [_limits(*each) for each in zip(goals, numbers, strict=True)]
    words = statuses_of(runs)
    names = names_of_runs(runs)
    settings = []
    for rows in _parts(range(len(runs)), group.tolist() if axes else repeats_in):
        attempts = _parts(rows, repeats_in)
        settings.append(
            Setting(
                {name: column[rows[0]] for name, column in params.items()},
                rows,
                [
                    statistics_of(_by_repeat(column, attempts), *ends)
                    for column, ends in zip(numbers, limits, strict=True)
                ],
                Counter(max((words[row] for row in each), key=_precedence) for each in attempts),
                None if axes else names[rows[0]],
            )
        )
    ranked = [setting for setting in settings if setting.number]
    order, num_leaders = in_rank([(scores_of(goals, s.means), s.number, bool(s.lost)) for s in ranked])
    ranked = [ranked[index] for index in order]
    others = [setting for setting in settings if not setting.number]
    if "status" in runs:
        pruned = _finite(runs[goals[0].metric]).where(runs["status"] == Status.PRUNED)
        costs = (-goals[0].sign * pruned).fillna(math.inf).tolist()
        others.sort(key=lambda setting: min(costs[row] for row in setting.rows))
    return Ranking(
        goals,
        axes,
        assumption(axes) if is_assumed else "",
        ranked,
        others,
        ranked[:num_leaders],
        _notes(runs, goals, numbers, repeats_in),
    )


def statuses_of(runs: pd.DataFrame) -> list[str]:
    """Return the status of each run."""
    return runs["status"].astype(str).tolist() if "status" in runs else [str(Status.COMPLETED)] * len(runs)


def _precedence(status: str) -> float:
    """Return which status of several attempts at a repeat counts: completed, else the last of `Status`."""
    return math.inf if status == Status.COMPLETED else _STATUSES.index(status) if status in _STATUSES else -1


def _parts(rows: Iterable[int], codes: Sequence[int]) -> list[list[int]]:
    """Divide rows by their codes, in the order of first use."""
    parts: dict[int, list[int]] = {}
    for row in rows:
        parts.setdefault(codes[row], []).append(row)
    return [*parts.values()]


def _limits(goal: Goal, numbers: Sequence[float]) -> tuple[float, ...]:
    """Return the ends of a goal's range, if it has any: 0 and 1 for an accuracy that is no percentage."""
    is_share = goal.metric.endswith(("accuracy", "acc")) and not any(each < 0 or each > 1 for each in numbers)
    return (0.0, 1.0) if is_share else ()


def _by_repeat(numbers: Sequence[float], attempts: Sequence[Sequence[int]]) -> list[float]:
    """Return a value per repeat; a repeat that the table has several times counts once, by its mean."""
    values = ([numbers[row] for row in rows if math.isfinite(numbers[row])] for rows in attempts)
    return [mean_of(each) for each in values if each]


def _notes(
    runs: pd.DataFrame, goals: Sequence[Goal], numbers: Sequence[Sequence[float]], repeats: Sequence[int]
) -> list[str]:
    """Say which runs count by the mean of several rows, and which by a value before their last epoch."""
    notes = []
    has_number = np.isfinite(numbers)
    if number := pd.Series(repeats)[has_number[0]].duplicated(keep=False).sum():
        notes.append(f"{number:,} runs repeat others: each repeat counts once, by its mean.")
    for goal, have in zip(goals, has_number, strict=True) if LACKING in runs else ():
        lacks = np.array([goal.metric in str(names).split(", ") for names in runs[LACKING]], bool)
        if names := names_of_runs(runs[have & lacks]):
            which = f"run{'s' * (len(names) > 1)} {listed(names)}"
            notes.append(f"{printable(goal.metric)} of {which} is from an epoch before the last.")
    return notes


def goals_of(runs: pd.DataFrame, goal: str | Sequence[str] | None = None) -> list[Goal]:
    """Return the goals by which runs are ranked: the goals in `goal`, else the goals of their experiments."""
    problems = Problems()
    goals: list[Goal] = []
    if goal is None:
        goals = own_goals(runs)
        if not goals:
            rule = "no run has an accuracy or a loss"
            raise InvalidArgumentError(f"{rule}: name the metric, as goal='max:f1' (--goal max:f1)")
    else:
        for each in goal if isinstance(goal, list | tuple) else [goal]:
            with problems.collecting():
                goals.append(_parsed(runs, each))
        if not (goals or problems):
            problems.append(f"a goal is a metric, as 'max:f1', got {goal!r}")
    metrics = Counter(each.metric for each in goals)
    problems += without_numbers(runs, metrics)
    problems += [f"{name!r} is a goal twice: keep one" for name, number in metrics.items() if number > 1]
    problems.raise_if_any(InvalidArgumentError)
    return goals


def _parsed(runs: pd.DataFrame, text: object) -> Goal:
    """Parse a goal; a metric alone has the direction that the goals of the experiments give it, or its name."""
    if isinstance(text, str) and not (text in runs or ":" in text):
        raise InvalidArgumentError(without_numbers(runs, [text]))
    noted = map(parse_goal, chain(*of_experiments(runs, GOALS).values()))
    signs = {goal.metric.removeprefix(KEPT): goal.sign for goal in noted}
    sign = signs.get(str(text).removeprefix(KEPT).removeprefix("best "))
    return _kept(runs, Goal(str(text), sign) if sign else parse_goal(text))


def _kept(runs: pd.DataFrame, goal: Goal) -> Goal:
    """Read a goal at the epoch of the saved weights, if the table has its value there."""
    return Goal(f"{KEPT}{goal.metric}", goal.sign) if f"{KEPT}{goal.metric}" in runs else goal


def own_goals(runs: pd.DataFrame) -> list[Goal]:
    """Return the goals of the experiments, else the metric of ``keep=``, else a metric chosen by its name."""
    noted = {name: [*map(parse_goal, each)] for name, each in of_experiments(runs, GOALS).items() if each}
    goals = {name: each for name, each in noted.items() if each[1:] or not each[0].metric.startswith(KEPT)}
    done = runs[runs["status"] == Status.COMPLETED] if "status" in runs else runs
    rows = runs if done.empty else done
    names = [name for name in metrics_of(runs) if runs.empty or not rows[name].isna().all()]
    if not goals:
        kept = {Goal(each[0].metric.removeprefix(KEPT), each[0].sign) for each in noted.values()}
        usual = kept.pop() if len(kept) == 1 else None
        there = [*names, *rows.filter(like=KEPT).dropna(axis="columns", how="all")]
        if not usual or {usual.metric, f"{KEPT}{usual.metric}"}.isdisjoint(there):
            usual = default_goal(names)
        return [_kept(runs, usual)] if usual else []
    if len({each[0] for each in goals.values()}) > 1:
        texts = printable(", ".join(f"{name} has {each[0]}" for name, each in goals.items()))
        rule = f"these experiments have different goals ({texts})"
        raise InvalidArgumentError(f"{rule}: give one of them, as goal='min:loss' (--goal min:loss)")
    goal, *further = next(iter(goals.values()))
    if goal.metric not in runs:
        if not names:
            return []
        hint = did_you_mean(goal.metric, names)
        again = "to correct it, start the grid with another goal=, which executes nothing again"
        raise InvalidArgumentError(f"the goal is {str(goal)!r}, but no run has that metric; {hint} ({again})")
    if any(each[1:] != further for each in goals.values()):
        further = []
    return [_kept(runs, each) for each in (goal, *(each for each in further if each.metric in names))]


def goal_named(runs: pd.DataFrame) -> Goal | None:
    """Return the goal that decides; None if there is none, or the experiments have different goals."""
    with contextlib.suppress(InvalidArgumentError):
        return next(iter(own_goals(runs)), None)
    return None


def repeats_of(runs: pd.DataFrame, repeats: str | Sequence[str] | None = None) -> tuple[list[str], bool]:
    """Return the repeat axes of runs, and whether they were recognised only by their names."""
    if repeats is not None:
        return list(dict.fromkeys([repeats] if isinstance(repeats, str) else repeats)), False
    names = axes_of(runs, ["experiment"])
    if of_grid := of_experiments(runs, REPEATS):
        return [name for name in dict.fromkeys(chain(*of_grid.values())) if name in names], False
    experiments = runs["experiment"].astype(str).to_numpy() if "experiment" in runs else np.zeros(len(runs))
    axes = [name for name in names if name in SEEDS and num_values(runs[name], experiments).min() > 1]
    return axes, bool(axes)


def num_values(column: "pd.Series[Any]", group: Numbers) -> "pd.Series[int]":
    """Count the different values of a hyperparameter in each group of rows."""
    return pd.Series(numbered(column)[0]).groupby(group).nunique()


def best(
    runs: pd.DataFrame,
    goal: str | Sequence[str] | None = None,
    n: int | None = None,
    *,
    repeats: str | Sequence[str] | None = None,
) -> Finding:
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

        With repeat axes, one row per setting: the other hyperparameters, and five columns for each goal.
        `accuracy n` is the number of completed runs with a value, `accuracy mean` their mean, `accuracy std`
        their standard deviation, with the divisor n - 1. `accuracy low` and `accuracy high` are the 95 %
        interval of the mean, by Student's t (1908); of an accuracy, it ends at 0 and 1. `failed repeats` counts
        the runs that failed, diverged, hung or were killed. `all repeats` is the number of the setting's runs;
        `runs` lists them as arguments of `load_run`. A setting with a single completed run comes last if
        another has three, or if its other runs failed and another has two, as its result may be luck.
        `sentence` names the axes that count as repeat axes because of their names.

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
    ranking = ranking_of(runs, goal, repeats)
    problems = Problems()
    problems.check_count("n", 0 if n is None else n, 0)
    problems.raise_if_any(InvalidArgumentError)
    rows, which = rows_of(runs, ranking, ranking.all_settings[:n]), which_value(runs, ranking.goal.metric)
    return with_sentence(rows, ranking.order_in_words, which, ranking.assumption)


def pareto(
    runs: pd.DataFrame, goal: Sequence[str] | None = None, *, repeats: str | Sequence[str] | None = None
) -> Finding:
    """Return the Pareto-optimal runs: no other run is as good in all goals and better in one.

    Args:
        runs: The table of `load_runs`, or rows of it. Only completed runs with a value of each goal count.
        goal: Two goals or more, each as in `best`: ``["test_accuracy", "min:run duration"]``. By default, the
            goals of a search that has several goals.
        repeats: The axes that only repeat a setting, as in `best`; settings are then compared by their means.

    Returns:
        The rows, sorted by the first goal, the best first; with repeat axes, rows as from `best`. Runs that are
        equal in all goals are all included.

    Raises:
        InvalidArgumentError: There are fewer than two goals, a metric is a goal twice, or `best` refuses the
            arguments.

    Example:
        >>> runs = pd.DataFrame({"run": [1, 2, 3], "accuracy": [0.9, 0.8, 0.7], "loss": [0.9, 0.2, 0.5]})
        >>> pareto(runs, ["accuracy", "loss"])
           run  accuracy  loss
        0    1       0.9   0.9
        1    2       0.8   0.2
    """
    check_table(runs)
    goals = list(map(str, own_goals(runs))) if goal is None else goal
    if isinstance(goals, str) or len(goals) < 2:  # noqa: PLR2004
        rule = "a Pareto front has two goals or more"
        raise InvalidArgumentError(f"{rule}, got {goals!r}: write goal=['accuracy', 'min:loss']")
    ranking = ranking_of(runs, goals, repeats)
    text = f"no other is better in all of {', '.join(map(str, ranking.goals))}"
    return with_sentence(rows_of(runs, ranking, ranking.front), text, ranking.assumption)


def rows_of(runs: pd.DataFrame, ranking: Ranking, settings: Sequence[Setting]) -> pd.DataFrame:
    """Return one row per setting: a run, or the hyperparameters and statistics of a repeated setting."""
    if not ranking.repeats:
        return runs.iloc[[setting.rows[0] for setting in settings]]
    parts = [
        pd.DataFrame([each.statistics[index] for each in settings], columns=_PARTS).add_prefix(
            f"{goal.metric} "
        )
        for index, goal in enumerate(ranking.goals)
    ]
    columns = pd.concat(parts, axis="columns")
    if any(setting.lost for setting in ranking.all_settings):
        columns[FAILED_REPEATS] = [sum(setting.lost.values()) for setting in settings]
    if addresses := addresses_of(runs):
        columns[RUNS] = [tuple(addresses[row] for row in setting.rows) for setting in settings]
    columns[ALL_REPEATS] = [setting.total for setting in settings]
    return beside_settings(runs, ranking, settings, columns)


def beside_settings(
    runs: pd.DataFrame, ranking: Ranking, settings: Sequence[Setting], columns: pd.DataFrame
) -> pd.DataFrame:
    """Join columns to the hyperparameters of settings."""
    params = runs[axes_of(runs, ranking.repeats)].take([setting.rows[0] for setting in settings])
    return beside(params.reset_index(drop=True), columns)


def names_of_runs(runs: pd.DataFrame) -> list[int | str | None]:
    """Return the number of each run, or its name in a table from elsewhere; None for a run without a name."""
    names = runs["run"].tolist() if "run" in runs else [None] * len(runs)
    return [None if is_missing(name) else name if isinstance(name, int) else cell(name) for name in names]


def which_value(runs: pd.DataFrame, metric: str) -> str:
    """Say that the last value of a metric counts, if runs have several."""
    has_several = "epochs" in runs and (runs["epochs"] > 1).any()
    return "the last value of each run counts" if has_several and not metric.startswith((KEPT, "best ")) else ""


def addresses_of(runs: pd.DataFrame) -> list[str]:
    """Return each run as an argument of `load_run` and commands; empty for a table without folders."""
    if not {"run", "folder"} <= {*runs} or not is_integer_dtype(runs["run"]):
        return []
    pairs = zip(runs["folder"], runs["run"], strict=True)
    return [f"{PurePath(str(folder)).parent.as_posix()}/{number}" for folder, number in pairs]


def numbered(column: "pd.Series[Any]") -> tuple[Numbers, list[Any]]:
    """Number the values of a hyperparameter in order of appearance; return a code per row, and the values."""
    keys = [key_of(value) for value in column] if column.dtype == object else column.to_numpy()
    codes, _ = pd.factorize(np.asarray(keys), use_na_sentinel=False)
    firsts = np.unique(codes, return_index=True)[1]
    return codes, column.iloc[firsts].tolist()


def axes_of(runs: pd.DataFrame, without: Collection[str] = ()) -> list[str]:
    """Return the columns that may be axes: `experiment`, if the table has it, and the hyperparameters."""
    names = dict.fromkeys(("experiment", *hyperparameters_of(runs)))
    return [name for name in names if name in runs and name not in without]


def check_comparable(runs: pd.DataFrame, axes: Sequence[str] = ()) -> None:
    """Refuse axes that are no hyperparameters, and rows that are epochs."""
    params, problems = axes_of(runs), Problems()
    for axis in axes:
        if axis not in params:
            call = f"load_table(runs, hyperparameters={[*hyperparameters_of(runs), axis]})"
            hint = f"; the column becomes one by {call}" if axis in {*runs} - COLUMNS else ""
            problems.append(f"these runs have no hyperparameter {axis!r}; {did_you_mean(axis, params)}{hint}")
    if are_epochs(runs):
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


def settings_without(runs: pd.DataFrame, axes: Sequence[str]) -> tuple[Numbers, pd.DataFrame]:
    """Number the settings of runs; a setting is a combination of all hyperparameters except `axes`."""
    codes = {name: numbered(runs[name])[0] for name in axes_of(runs, axes)}
    group = np.zeros(len(runs), int)
    if codes:
        group = pd.DataFrame(codes).groupby([*codes], sort=False).ngroup().to_numpy()
    names = [name for name in codes if codes[name].any()]
    table = runs[names].take(np.unique(group, return_index=True)[1]).reset_index(drop=True)
    table.attrs = {}
    return group, table


def are_epochs(runs: pd.DataFrame) -> bool:
    """Whether the rows are epochs, with several rows per run."""
    if not {"run", "epoch"} <= {*runs}:
        return False
    names = [name for name in ("experiment", "run") if name in runs]
    return bool(runs[names].assign(setting=settings_without(runs, [])[0]).duplicated().any())


def statistics_of(
    numbers: Sequence[float], least: float = -math.inf, most: float = math.inf
) -> dict[str, float]:
    """Describe finite numbers from `least` to `most`; NaN if they are too few or too large.

    The standard deviation has the divisor n - 1, and the 95 % interval of the mean is by Student's t.
    """
    n, mean, std, half = len(numbers), mean_of(numbers), math.nan, math.nan
    if n > 1:
        with contextlib.suppress(OverflowError):
            std = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / (n - 1))
        half = float(t_quantile(n - 1)) * std / math.sqrt(n)
    low, high = max(mean - half, least), min(mean + half, most)  # max() and min() keep NaN
    return dict(zip(_PARTS, (n, mean, std, low, high), strict=True))


def mean_of(numbers: Sequence[float]) -> float:
    """Return the mean of finite numbers, exact in any order; NaN if it cannot be computed."""
    try:
        mean = math.fsum(numbers) / len(numbers)
    except (OverflowError, ZeroDivisionError):
        return math.nan
    mean = min(max(mean, min(numbers)), max(numbers))  # the quotient of equal numbers may be another number
    # a mean that is only rounding, such as the mean of 0.1, 0.2 and -0.3
    return 0.0 if abs(mean) < _ROUNDING * max(map(abs, numbers)) else mean


def describe(numbers: "pd.Series[float]", group: Numbers) -> pd.DataFrame:
    """Return a row of statistics for each group; NaN values are ignored."""
    each = {code: statistics_of(part.dropna().tolist()) for code, part in numbers.groupby(group)}
    return pd.DataFrame([*each.values()], [*each], _PARTS)


def t_quantile(freedom: Any) -> Any:
    """Return the half-width of the 95 % interval in standard errors, by Student's t."""
    from scipy.special import stdtrit

    return stdtrit(freedom, 0.975)


def _finite(column: "pd.Series[Any]") -> "pd.Series[float]":
    numbers = column.astype("float64")
    return numbers.where(np.isfinite(numbers))

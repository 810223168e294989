"""The model of findings that every surface shows: settings ranked by the goal, and what may be chance."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from runmanager.goal import Goal
from runmanager.hyperparameters import counted
from runmanager.results.decisive import repeats_of
from runmanager.results.ranking import (
    axes_of,
    check_comparable,
    completed,
    deciding,
    describe,
    lost,
    numbered,
    settings_without,
)
from runmanager.results.tables import KEPT
from runmanager.results.verdict import Difference, difference

_LEAST = 4  # repeats before which no lead is decided


@dataclass(frozen=True)
class Setting:
    """A combination of all hyperparameters but the repeat axes; without repeat axes, a run."""

    params: Mapping[str, Any]  # the hyperparameters that vary between settings
    rows: Sequence[int]  # the positions of its runs in the table
    number: int  # completed runs with a number
    mean: float  # NaN if no run has a number
    std: float  # NaN below two runs, as the interval
    low: float
    high: float
    lost: Mapping[str, int]  # status -> how many of its runs failed, diverged, hung or were killed

    @property
    def counts(self) -> str:
        """How many of its runs count, and how the failed ones ended.

        >>> Setting({}, [0, 1, 2], 2, 0.5, 0.1, 0.4, 0.6, {"diverged": 1}).counts
        '2 of 3, 1 diverged'
        """
        number = f"{self.number} of {len(self.rows)}" if self.number < len(self.rows) else str(self.number)
        return ", ".join([number, *(f"{count} {status}" for status, count in self.lost.items())])


@dataclass(frozen=True)
class Findings:
    """What the runs of a table show."""

    goal: Goal  # its metric is a column of the table, by which settings are ranked
    repeats: Sequence[str]  # the repeat axes
    settings: Sequence[Setting]  # that have a number, the best first
    others: Sequence[Setting]  # that have none
    leads: Sequence[Difference]  # how much better the best setting is than each other, paired by repeat

    @property
    def metric(self) -> str:
        """The metric that decides, as runs track it."""
        return self.goal.metric.removeprefix(KEPT)

    @property
    def num_undecided(self) -> int:
        """How many settings may be as good as the best one: its lead over them may be chance."""
        return sum(not lead.is_decided for lead in self.leads)

    @property
    def verdict(self) -> str:
        """Say whether the lead of the best setting may be chance, "" without repeats or rivals."""
        if not self.repeats or not self.leads:
            return ""
        if not self.num_undecided:
            return f"Its lead over {counted(len(self.leads), 'other setting')} is more than chance."
        few = max(lead.n for lead in self.leads) < _LEAST
        why = f": fewer than {_LEAST} repeats decide nothing" if few else ""
        return f"Its lead over {counted(self.num_undecided, 'other setting')} may be chance{why}."


def find(
    runs: pd.DataFrame,
    by: str | None = None,
    *,
    largest: bool | None = None,
    repeats: str | Sequence[str] | None = None,
) -> Findings:
    """Rank the settings of runs by their mean over the repeats, without repeat axes the runs.

    Args:
        runs: What `load_runs` returned, or rows of it.
        by: The column, as in `best`.
        largest: As in `best`.
        repeats: As in `best`.

    Raises:
        InvalidArgumentError: As `best` does.
    """
    goal = deciding(runs, by, largest=largest)
    axes = repeats_of(runs, repeats)
    check_comparable(runs, axes, [goal.metric])
    group, table = settings_without(runs, axes)
    if not axes:  # runs that happen to have the same hyperparameters are not averaged
        table, group = table.take(group).reset_index(drop=True), np.arange(len(runs))
    numbers = completed(runs, goal.metric)
    failed, statuses = lost(runs), runs.get("status", pd.Series("", runs.index)).astype(str).tolist()
    rows: dict[int, list[int]] = {}
    for row, code in enumerate(group.tolist()):
        rows.setdefault(code, []).append(row)
    settings = []
    for code, (n, mean, std, low, high) in enumerate(
        describe(numbers, group).itertuples(index=False, name=None)
    ):
        params = {str(name): values.iloc[code] for name, values in table.items()}
        counts = Counter(statuses[row] for row in rows[code] if failed[row])
        settings.append(Setting(params, rows[code], int(n), mean, std, low, high, counts))
    ranked = sorted(filter(lambda s: s.number, settings), key=lambda setting: -goal.sign * setting.mean)
    others = [setting for setting in settings if not setting.number]
    leads = _leads(runs, ranked, numbers, axes, goal)
    return Findings(goal, axes, ranked, others, leads)


def failures(runs: pd.DataFrame) -> list[tuple[str, Sequence[int], Mapping[str, Any]]]:
    """Group the runs that failed by their status.

    Returns:
        For each status, the most frequent first: the positions of its runs in the table, and the
        hyperparameters that vary in the table and that all of them share.
    """
    failed = lost(runs)
    statuses = runs["status"].astype(str).tolist() if "status" in runs else []
    rows: dict[str, list[int]] = {}
    for row, status in enumerate(statuses):
        if failed[row]:
            rows.setdefault(status, []).append(row)
    codes = {name: numbered(runs[name]) for name in axes_of(runs)}
    groups: list[tuple[str, Sequence[int], Mapping[str, Any]]] = []
    for status, group in sorted(rows.items(), key=lambda item: -len(item[1])):
        shared = {
            name: values[numbers[group[0]]]
            for name, (numbers, values) in codes.items()
            if len(values) > 1 and len(set(numbers[group].tolist())) == 1
        }
        groups.append((status, group, shared))
    return groups


def _leads(
    runs: pd.DataFrame,
    ranked: Sequence[Setting],
    numbers: "pd.Series[float]",
    axes: Sequence[str],
    goal: Goal,
) -> list[Difference]:
    """Compare the best setting with each other at the same repeats."""
    if not ranked:
        return []
    codes = list(zip(*(numbered(runs[name])[0].tolist() for name in axes), strict=True)) if axes else []
    scores = goal.sign * numbers
    repeated = [
        {codes[row] if axes else (): scores[row] for row in s.rows if math.isfinite(scores[row])}
        for s in ranked
    ]
    best = repeated[0]
    num_pairs = len(ranked) * (len(ranked) - 1) // 2
    return [
        difference((best[key] - value for key, value in other.items() if key in best), num_pairs=num_pairs)
        for other in repeated[1:]
    ]

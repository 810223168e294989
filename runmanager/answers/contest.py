"""The rivals of a verdict, settings or values of an axis: their scores in each repeat, and who leads."""

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from runmanager.answers.evidence import ERROR, Lead, leads
from runmanager.answers.power import level
from runmanager.answers.ranking import (
    LOST,
    OPEN,
    Ranking,
    axes_of,
    completed,
    goal_named,
    in_rank,
    mean_of,
    num_values,
    numbered,
    settings_without,
)
from runmanager.core.experiment import Rule
from runmanager.core.goal import KEPT
from runmanager.core.wording import printable
from runmanager.tables.cells import brief, labels
from runmanager.tables.columns import RULES, Numbers, beside, from_columns, hyperparameters_of, of_experiments

BETTER, EQUAL, IDENTICAL, UNDECIDED, WORSE = "better", "equal", "identical", "undecided", "worse"
"""The possible outcomes of a verdict, and of the comparison with a rival."""

NO_LEAD = Lead(0, math.nan, math.nan, math.nan, math.nan, math.nan, math.inf)
"""The lead if there is no rival to compare with."""


class Contest:
    """The best of several rivals, and its leads over the others."""

    def __init__(
        self,
        runs: pd.DataFrame,
        ranking: Ranking,
        axis: str | None = None,
        margin: float | None = None,
        error: float = ERROR,
        base: int | None = None,
    ) -> None:
        """Compare the best rival, or a base, with the others; smaller differences than `margin` are equal."""
        self.runs, self.ranking, self.axis = runs, ranking, axis
        self.margin, self.error, self.base = margin, error, base
        settings, numbers = ranking.all_settings, ranking.goal.sign * completed(runs, self.metric).to_numpy()
        of_settings = np.empty(len(runs), int)
        for position, setting in enumerate(settings):
            of_settings[list(setting.rows)] = position
            if setting.lacks_goal and not settings[0].lacks_goal:  # it does not compete
                numbers[list(setting.rows)] = math.nan
        # the rivals' names in sentences, and the value of the axis or the hyperparameters of each
        self.names: Sequence[str] = [text or "the only setting" for text in ranking.labels]
        self.levels: Sequence[Any] = [setting.params for setting in settings]
        self.params: Sequence[Mapping[str, Any]] = self.levels
        self.rivals: Numbers = of_settings  # the rival of each run, as a position in `names`
        parts = np.zeros(len(runs), int)
        if axis is not None:
            self.rivals, self.levels = numbered(runs[axis])
            self.params = [{axis: level} for level in self.levels]
            self.names = [
                brief(level) if isinstance(level, str) else text
                for level, text in zip(self.levels, labels(self.params), strict=True)
            ]
            without = [axis, *ranking.repeats, *told_apart(runs, axis, self.rivals)]
            parts, _ = settings_without(runs, without)
        scores = _arranged(self.rivals, _order_of(runs, ranking.repeats), parts, numbers, len(self.names))
        self.unit = ranking.unit  # the word for a repeat
        if scores.shape[1] == 1 and scores.shape[2] > 1:
            scores, self.unit = scores.transpose(0, 2, 1), "comparison"
        self.scores: Numbers = scores  # (rivals, repeats, parts), larger is better; a missing score is NaN
        # status -> number of repeats, for each rival
        self.statuses: Sequence[Counter[str]] = [Counter() for _ in self.names]
        for setting in settings:
            self.statuses[self.rivals[setting.rows[0]]].update(setting.statuses)
        # all rivals, the best first; rivals without a score are last
        self.order: Sequence[int] = range(len(self.names))
        counts = self.has_score.sum(axis=1).tolist()
        if axis is not None:
            have_lost = [not LOST.isdisjoint(each) for each in self.statuses]
            means = [[mean] for mean in means_of(self.scores)]
            self.order, _ = in_rank([*zip(means, counts, have_lost, strict=True)])
        # the rivals that have numbers, but none in a setting of another rival, in their order
        with_number = {*self.rivals[~np.isnan(numbers)].tolist()}
        self.alone = [rival for rival in self.order if rival in with_number and not counts[rival]]
        # the base first, else the best, then the others in their order
        self.rows: Sequence[int] = sorted(self.order, key=lambda rival: rival != base)
        every = leads(scores, self.rows[0], error, is_fixed=base is not None) if self.rows else {}
        compared = [i for i in self.rows[1:] if counts[i] or not OPEN.isdisjoint(self.statuses[i])]
        compared.sort(key=lambda i: math.inf if math.isnan(every[i].mean) else every[i].mean)
        # the leads of the best rival, or the base, over the compared rivals, the closest first
        self.leads: Mapping[int, Lead] = {rival: every[rival] for rival in compared}

    @functools.cached_property
    def states(self) -> dict[int, str]:
        """The decision about each compared rival: worse, equal, identical or undecided."""
        states = {}
        for rival, lead in self.leads.items():
            states[rival] = WORSE if lead.is_decided and lead.mean > 0 else UNDECIDED
            if lead.is_decided and lead.mean < 0 and self.base is not None:
                states[rival] = BETTER
            if self.margin is not None and -self.margin < lead.low and lead.high < self.margin:
                states[rival] = EQUAL
            if lead.is_identical:
                states[rival] = IDENTICAL
        return states

    def in_state(self, state: str) -> list[int]:
        """Return the rivals in a state, the closest first."""
        return [rival for rival, word in self.states.items() if word == state]

    @property
    def outcome(self) -> str:
        """The decision about all rivals together."""
        states = {*self.states.values()}
        if not states or UNDECIDED in states:
            return UNDECIDED
        return {WORSE: BETTER}.get(*states, *states) if len(states) == 1 else EQUAL

    @property
    def positions(self) -> list[int]:
        """The positions of the best rival and of the compared rivals, the closest first."""
        return [*self.order[:1], *self.leads]

    def table(self, side: int = 1) -> pd.DataFrame:
        """Return a row per rival, the best or the base first, with the first one's leads times `side`."""
        every = [self.leads.get(rival, NO_LEAD) for rival in self.rows[1:]]
        ends = ("low", "high") if side > 0 else ("high", "low")
        mean, low, high = (
            [math.nan, *(0.0 + side * getattr(lead, part) for lead in every)] for part in ("mean", *ends)
        )
        computed: dict[str, list[Any]] = {
            self.metric: [self.ranking.goal.sign * mean for mean in plain_means(self.scores[self.rows])],
            f"{self.unit}s": [*self.has_score.sum(axis=1)[self.rows[:1]].tolist(), *(lead.n for lead in every)],
            "difference": mean,
            "low": low,
            "high": high,
            "evidence": [math.nan, *(lead.evidence for lead in every)],
            "verdict": [
                "" if self.base is None else "base",
                *(self.states.get(rival, "not compared") for rival in self.rows[1:]),
            ],
        }
        rows = [self.params[rival] for rival in self.rows]
        params = {name: [row[name] for row in rows] for name in next(iter(rows), ())}
        return beside(from_columns(params, params), from_columns(computed, ()))

    @property
    def closest(self) -> Lead:
        """The lead over the closest rival."""
        return next(iter(self.leads.values()), NO_LEAD)

    @property
    def metric(self) -> str:
        """The metric that decides."""
        return self.ranking.goal.metric

    @property
    def level(self) -> float:
        """The evidence against each other rival that decides for the leader, see `evidence.closed`."""
        return level(len(self.names), self.error)

    @property
    def noun(self) -> str:
        """The word for the rivals, in the plural."""
        if self.axis is None:
            return "settings"
        return "experiments" if self.axis == "experiment" else f"values of {printable(self.axis)}"

    @functools.cached_property
    def means(self) -> list[float]:
        """The mean of each rival in units of the metric, by which the rivals are ordered."""
        return [self.ranking.goal.sign * mean for mean in means_of(self.scores)]

    @functools.cached_property
    def has_score(self) -> Numbers:
        """Whether each rival has a score in each repeat."""
        return np.asarray((~np.isnan(self.scores)).any(axis=2))

    @property
    def is_constant(self) -> bool:
        """Whether each rival has several scores in each setting, which do not differ."""
        lows, highs = np.fmin.reduce(self.scores, axis=1), np.fmax.reduce(self.scores, axis=1)
        return bool(self.has_score.sum(axis=1).min() > 1 and not (lows < highs).any())


def plain_means(scores: Iterable[Numbers]) -> list[float]:
    """Return the mean of the finite scores of each rival."""
    return [mean_of(each[np.isfinite(each)].tolist()) for each in scores]


def rule_of(runs: pd.DataFrame, metric: str, repeats: Collection[str]) -> Rule:
    """Return the rule of ``run_grid(decide=...)``, without a margin for another metric."""
    rules = set(msgspec.convert([*of_experiments(runs, RULES).values()], list[Rule]))
    rule, goal = rules.pop() if len(rules) == 1 else Rule(), goal_named(runs)
    if goal is None or goal.metric.removeprefix(KEPT) != metric.removeprefix(KEPT):
        rule = replace(rule, margin=None)
    is_axis = rule.axis in hyperparameters_of(runs) and rule.axis not in repeats
    return rule if is_axis else replace(rule, axis=None)


def told_apart(runs: pd.DataFrame, axis: str, experiments: Numbers) -> list[str]:
    """Return the hyperparameters that have a single value in each experiment."""
    if axis != "experiment":
        return []
    return [name for name in axes_of(runs, [axis]) if num_values(runs[name], experiments).max() == 1]


def means_of(scores: Numbers) -> list[float]:
    """Return the mean of each rival; if rivals lack different scores, compare them where several have one.

    A value must not lead because it failed in the settings whose scores are low, nor because others did. Then
    the means are the effects of the rivals beside those of the settings, by least squares.
    """
    means, there = plain_means(scores), np.isfinite(scores)
    if len({each.tobytes() for each in there if each.any()}) < 2:  # noqa: PLR2004 - all have the same
        return means
    there = there.reshape(len(scores), -1)
    middle = mean_of([mean for mean in means if math.isfinite(mean)])
    numbers, sizes = np.where(there, scores.reshape(there.shape), 0.0), np.maximum(there.sum(axis=0), 1)
    with np.errstate(over="ignore", invalid="ignore"):  # of huge numbers
        gaps = np.where(there, numbers - numbers.sum(axis=0) / sizes, 0.0).sum(axis=1)
        effects = np.linalg.pinv(np.diag(there.sum(axis=1)) - (there / sizes) @ there.T) @ gaps
    return [
        middle + effect if any(each) else math.nan for each, effect in zip(there, effects.tolist(), strict=True)
    ]


def _order_of(runs: pd.DataFrame, axes: Sequence[str]) -> Numbers:
    """Number the repeats of runs in an order that does not depend on results."""
    columns = [np.zeros(len(runs), int)]
    for name in axes:
        codes, values = numbered(runs[name])
        if all(isinstance(value, (int, float)) for value in values):
            codes = np.argsort(np.argsort(np.array(values, float), kind="stable"))[codes]
        columns.append(codes)
    return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)


def _arranged(rivals: Numbers, repeats: Numbers, parts: Numbers, numbers: Numbers, k: int) -> Numbers:
    """Arrange the results of runs as scores for `leads`; average the runs of the same cell, ignoring NaN."""
    table = pd.DataFrame({"rival": rivals, "repeat": repeats, "part": parts, "number": numbers})
    if parts.any():  # of several parts, those of a single rival are not compared
        table = table[table.groupby("part")["rival"].transform("nunique") > 1]
    codes, kept = pd.factorize(table["part"], sort=True)
    scores = np.full((k, int(repeats.max(initial=0)) + 1, len(kept)), math.nan)
    means = table["number"].groupby([table["rival"], table["repeat"], codes]).mean()
    scores[tuple(means.index.get_level_values(level) for level in range(3))] = means
    return scores

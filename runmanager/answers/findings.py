"""The findings from a table of runs: the best settings, and whether their lead may be chance."""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from runmanager.answers.contest import Contest, contest, of_values, rule_of
from runmanager.answers.ranking import Ranking, Setting, check_comparable, is_same, ranking_of, scores_of
from runmanager.answers.sentences import capital
from runmanager.answers.verdict_sentence import BETTER, IDENTICAL, UNDECIDED, Race
from runmanager.core.experiment import Rule
from runmanager.core.goal import KEPT
from runmanager.core.outcome import Status
from runmanager.core.wording import counted, printable
from runmanager.tables.cells import aligned, all_of, cell, labels

ON_FRONT = "none is better in one goal without being worse in another"
"""The property that defines the settings on a Pareto front."""


@dataclass(frozen=True, kw_only=True)
class Findings(Ranking):
    """The ranking of a table of runs, and the verdict of their repeats."""

    contest: Contest  # the contest between the settings of `all_settings`
    rule: Rule  # the experiment's rule for a decision
    values: Contest | None = None  # the contest between the values of the rule's axis
    ends: frozenset[str] = frozenset()  # statuses of the runs of the settings without a number

    def headline(self, *, is_over: bool = True) -> str:
        """Say what the repeats have decided; without repeats, which setting is best."""
        return self.race.headline if self.has_verdict else self.result(is_over=is_over)

    def details(self, *, is_over: bool = True) -> list[str]:
        """Complete the headline: best value, open decision, lead, and a better setting that is not ranked."""
        if not self.settings:
            return []
        if not self.has_verdict:
            return [*filter(None, [self._lead(is_over=is_over), self.better_but_below])]
        open_ = f"{self.race.details}." if self.race.details else ""
        return [*filter(None, [f"{self.result(is_over=is_over)}.", open_, self.better_but_below])]

    def result(self, *, is_over: bool = True) -> str:
        """Say which setting has the best value of the goal, with this value; "" if no setting has a value."""
        if not self.settings:
            return ""
        best, metric = self.settings[0], printable(self.metric)
        kept = " at the epoch whose weights are kept" if self.goal.metric.startswith(KEPT) else ""
        ties = sum(is_same(other.mean, best.mean) for other in self.leaders[1:])
        value = f"{self.written(best)}{kept}"
        number = f"{value}{self.mean_of(best)}"
        name, so_far = capital(self.name(best)), "" if is_over else " so far"
        outcome = self.setting_race.outcome if self.has_verdict else BETTER
        if len(self.settings) == 1:
            return f"{name} has {metric} {number}"
        if outcome == IDENTICAL:
            return f"Each has {metric} {number}"
        if outcome != BETTER:
            number = value if ties else number  # an interval is of one setting
            extreme = "highest" if self.goal.is_larger_better else "lowest"
            has = f"{'have' if ties else 'has'} the {extreme} {metric}{so_far}:"
            if self.better_but_below:
                has = f"{'lead' if ties else 'leads'}{so_far}, with {metric}"
            return f"{name}{self._tied(ties)} {has} {number}"
        if self._is_best_in_all:
            each = enumerate(self.goals)
            numbers = ", ".join(f"{printable(goal.metric)} {self.written(best, index)}" for index, goal in each)
            return f"{name} is best{so_far} in {all_of(len(self.goals), 'goals')}: {numbers}"
        ties = self.num_ties
        return f"{name}{self._tied(ties)} {'are' if ties else 'is'} best{so_far}: {metric} {number}"

    def _tied(self, ties: int) -> str:
        """Name the leader after the best setting if it alone equals it, else their number."""
        return f" and {self.name(self.leaders[1]) if ties == 1 else f'{ties} others'}" if ties else ""

    def _lead(self, *, is_over: bool) -> str:
        """Say by how much the best run leads, and that the lead may be chance."""
        best, *others = self.leaders
        if len(self.settings) == 1 and self.others:
            number = counted(len(self.others), self.noun).removeprefix("1 ")
            if self.ends == {Status.PRUNED}:
                return f"The other {number} {'was' if len(self.others) == 1 else 'were'} pruned."
            what = "completed" if self.ends and Status.COMPLETED not in self.ends else "a result"
            return f"No other {self.noun} has {what}{'' if is_over else ' yet'}."
        if not others or self.repeats or self.num_ties:
            return ""
        if is_same(best.mean, others[0].mean):
            pairs = zip(self.goals, best.means, others[0].means, strict=True)
            decisive = next(goal.metric for goal, one, other in pairs if not is_same(one, other))
            which = capital(self.name(others[0]))
            return f"{which} has the same {printable(self.metric)}; {printable(decisive)} decides between them."
        *_, gap = aligned([best.mean, others[0].mean, abs(best.mean - others[0].mean)])
        side = "above" if self.goal.is_larger_better else "below"
        that = "That" if len(self.goals) == 1 else f"In {printable(self.metric)}, that"
        return f"{that} is {gap} {side} the next; each setting ran once, so it may be chance."

    @property
    def better_but_below(self) -> str:
        """Name a setting that has a better value than the best setting, but does not compete, and say why."""
        sign, best = self.goal.sign, self.settings[0]
        below = self.settings[len(self.leaders) :]  # the settings are in the order of their tiers
        first = max(below, key=lambda setting: sign * setting.mean, default=best)
        if sign * first.mean <= sign * best.mean or is_same(first.mean, best.mean):
            return ""
        if any(map(math.isnan, first.means)):
            return f"{self.name(first)} has {self.written(first)}, but {self.why_below(first)}: it ranks below."
        return f"{self.name(first)} has {self.written(first)}{self.repeats_of(first)}: too few to be ranked."

    def pruned(self, runs: pd.DataFrame) -> tuple[str, str] | None:
        """Say which pruned run has the best value of the goal at its last epoch, and that no run has completed.

        Return None if no pruned run has a value.
        """
        values = self.goal.sign * runs[self.goal.metric].where(runs["status"] == Status.PRUNED)
        if values.isna().all():
            return None
        row, number = int(np.nanargmax(values)), int((runs["status"] == Status.PRUNED).sum())
        name = self.name(next(setting for setting in self.others if row in setting.rows))
        best = (
            f"{capital(name)} is best so far: {printable(self.metric)} {cell(runs[self.goal.metric].iloc[row])}"
        )
        which = "the pruned run" if number == 1 else f"each of the {number:,} pruned runs"
        return best, f"No run has completed; the last epoch of {which} counts."

    def written(self, setting: Setting, index: int = 0) -> str:
        """Write a setting's mean of the goal with this index, with the digits of its column in a table."""
        position = next(row for row, each in enumerate(self.settings) if each is setting)
        return aligned([each.means[index] for each in self.settings])[position]

    def mean_of(self, setting: Setting) -> str:
        """Say how many repeats are in a mean, with the interval and the failed repeats."""
        if not self.repeats:
            return ""
        interval = f", 95 % interval {self.interval(setting)}" if self.interval(setting) else ""
        lost = "".join(f"; {number} {status}" for status, number in setting.lost.items())
        return f"{self.repeats_of(setting)}{interval}{lost}"

    @functools.cached_property
    def race(self) -> Race:
        """The comparison of the best rival (a value of the rule's axis, or a setting) with the others."""
        if self.values is None:
            return self.setting_race
        return self.values.race(self.rule.margin, self.rule.error)

    @functools.cached_property
    def setting_race(self) -> Race:
        """The comparison of the best setting with the others, repeat by repeat."""
        return self.contest.race(self.rule.margin, self.rule.error)

    def scope(self, intervals: Iterable[str]) -> str:
        """Name what the intervals of a table and the verdict belong to, "" if either is missing."""
        number = math.comb(len(self.all_settings), 2)
        pairs = f"all {number:,} pairs" if number > 1 else "the pair"
        has_both = self.has_verdict and any(intervals)
        return f"intervals are per setting, the verdict compares {pairs}" if has_both else ""

    @property
    def basis(self) -> str:
        """Say which value of a run counts, which direction is better, and how often the verdict is wrong."""
        if len(self.settings) < 2:  # noqa: PLR2004 - a comparison needs two
            return ""
        which = f"the last {printable(self.metric)} of each run"
        if self.metric.startswith("best "):
            which = f"the {printable(self.metric)} of each run"
        elif self.goal.metric.startswith(KEPT):
            which = f"{printable(self.metric)} at the epoch whose weights are kept"
        side = "higher" if self.goal.is_larger_better else "lower"
        basis = f"{capital(which)} counts, {side} is better."
        if self.has_verdict:
            basis += f" In at most {100 * self.rule.error:g} of 100 experiments is the verdict wrong."
        return basis

    @property
    def has_verdict(self) -> bool:
        """Whether a verdict is possible: there are repeat axes, and several settings with results."""
        return bool(self.repeats) and len(self.settings) > 1

    @property
    def is_certain(self) -> bool:
        """Whether the headline is final: the repeats have decided, or there are no repeats to decide."""
        return bool(self.settings) and not (self.has_verdict and self.race.outcome == UNDECIDED)

    @property
    def _is_best_in_all(self) -> bool:
        """Whether a single run is on the Pareto front of several goals; the headline then has all of them."""
        has_goals = len(self.goals) > 1 and len(self.settings) > 1
        return has_goals and not self.repeats and len(self.front) == 1

    @property
    def front_sentence(self) -> str:
        """Say how many settings are on the Pareto front; "" with a single goal."""
        number, first = (
            len(self.front),
            f"{printable(self.goal.metric)} is the first of {len(self.goals)} goals",
        )
        if len(self.goals) < 2 or not number or self._is_best_in_all:  # noqa: PLR2004 - a front needs two goals
            return ""
        if number == 1:
            return f"{first}; no other {self.noun} is better in any of them."
        return f"{first}; {counted(number, self.noun)} are on the Pareto front: {ON_FRONT}."


def find(
    runs: pd.DataFrame,
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
) -> Findings:
    """Rank the settings of runs, and compare them repeat by repeat."""
    ranking = ranking_of(runs, goal, repeats)
    check_comparable(runs, [], [])
    scores, axes = scores_of(runs, ranking), ranking.repeats
    rule = rule_of(runs, ranking.goal.metric, axes)
    rows = [row for setting in ranking.others for row in setting.rows]
    varying = ranking.varying  # it reads all settings: once, not once per setting
    each = [{name: setting.params[name] for name in varying} for setting in ranking.all_settings]
    names = [name or "the only setting" for name in labels(each)]
    return Findings(
        **vars(ranking),
        contest=contest(runs, scores, names, ranking.codes, axes),
        rule=rule,
        ends=frozenset(runs["status"].iloc[rows]) if "status" in runs else frozenset(),
        values=of_values(runs, scores, axes, rule.axis)[2] if axes and rule.axis else None,
    )

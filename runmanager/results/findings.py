"""What the runs of a table show, for every surface: which settings are best, and what may be chance."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from runmanager.results.contest import Contest, contest, of_values, rule_of
from runmanager.results.ranking import Ranking, Setting, check_comparable, is_same, ranking_of, scores_of
from runmanager.results.tables import KEPT
from runmanager.results.verdict_sentence import BETTER, IDENTICAL, UNDECIDED, Race
from runmanager.storage.design import Rule
from runmanager.storage.naming import varying
from runmanager.wording import cell, label, printable

_WORDS = ("undecided", "all ", "the best ")  # that a sentence may begin with; names keep their case


@dataclass(frozen=True, kw_only=True)
class Findings(Ranking):
    """The ranking of some runs, and what their repeats have decided."""

    contest: Contest  # of `all_settings`
    rule: Rule  # what the experiment decides
    values: Contest | None = None  # of the axis that it decides about

    def headline(self, *, is_over: bool = True) -> str:
        """Say which setting is best and its number, "" if none has one; `is_over` if no run is missing."""
        if not self.settings:
            return ""
        best = self.settings[0]
        outcome = self.setting_race.outcome if self.verdict else BETTER
        what = "Best" if outcome == BETTER else "Highest" if self.goal.is_larger_better else "Lowest"
        what += "" if is_over else " so far"
        if len(self.settings) == 1:
            what = "Result" if not self.others else "The only one with a result"
        kept = " at the epoch whose weights are kept" if self.goal.metric.startswith(KEPT) else ""
        who = "Each has" if outcome == IDENTICAL else f"{what}: {self.name(best)},"
        return f"{who} {printable(self.metric)} {cell(best.mean)}{kept}{self.mean_of(best)}"

    @property
    def lead(self) -> str:
        """Say how far the best setting leads, and whether that may be chance, "" without rivals."""
        return " ".join(filter(None, [self.verdict or self._lead(), self.better_but_below]))

    def _lead(self) -> str:
        best, *others = self.leaders[:1] and self.leaders
        if not others or self.repeats:
            return ""
        ties, what = self.num_ties, f"the same {printable(self.metric)}"
        if ties == len(self.settings) - 1:
            return f"All {len(self.settings)} have {what}."
        if ties:
            which = f"{ties} others have" if ties > 1 else f"{self.name(others[0])} has"
            return f"{which[:1].upper()}{which[1:]} {what}."
        if is_same(best.mean, others[0].mean):
            pairs = zip(self.goals, best.means, others[0].means, strict=True)
            decisive = next(goal.metric for goal, one, other in pairs if not is_same(one, other))
            which = self.name(others[0])
            return f"{which[:1].upper()}{which[1:]} has {what}; {printable(decisive)} decides between them."
        gap = f"{abs(best.mean - others[0].mean):.2g}"
        side = "above" if self.goal.is_larger_better else "below"
        return f"That is {gap} {side} the next; each setting ran once, so it may be chance."

    @property
    def better_but_below(self) -> str:
        """Name the setting that has a better number than the best one and does not compete, and say why."""
        sign, best = self.goal.sign, self.settings[0]
        below = [setting for setting in self.settings if self.why_below(setting)]
        first = max(below, key=lambda setting: sign * setting.mean, default=best)
        if sign * first.mean <= sign * best.mean or is_same(first.mean, best.mean):
            return ""
        if any(map(math.isnan, first.means)):
            return f"{self.name(first)} has {cell(first.mean)}, but {self.why_below(first)}: it ranks below."
        return f"{self.name(first)} has {cell(first.mean)}{self.repeats_of(first)}: too few to be ranked."

    def mean_of(self, setting: Setting) -> str:
        """Say how many repeats a mean is of, with its interval; a failed one is never left out."""
        if not self.repeats:
            return ""
        interval = f", 95 % interval {self.interval(setting)}" if self.interval(setting) else ""
        lost = "".join(f"; {number} {status}" for status, number in setting.lost.items())
        return f"{self.repeats_of(setting)}{interval}{lost}"

    @functools.cached_property
    def race(self) -> Race:
        """The best one against the others, repeat by repeat: of the axis that is decided, or of settings."""
        if self.values is None:
            return self.setting_race
        return self.values.race(self.values.order, self.rule.margin, self.rule.error)

    @functools.cached_property
    def setting_race(self) -> Race:
        """The best setting against the others, repeat by repeat."""
        order = range(len(self.contest.names))
        return self.contest.race(order, self.rule.margin, self.rule.error)

    @property
    def verdict(self) -> str:
        """Say what the repeats have decided, "" without repeats or rivals."""
        if not self.repeats or len(self.settings) + len(self.others) < 2 or not self.settings:  # noqa: PLR2004
            return ""
        sentence = self.race.sentence
        return f"{sentence[0].upper() if sentence.startswith(_WORDS) else sentence[0]}{sentence[1:]}."

    @property
    def is_decided(self) -> bool:
        """Whether the repeats have decided which setting is best, or that the best ones are identical."""
        return bool(self.verdict) and self.race.outcome != UNDECIDED


def find(
    runs: pd.DataFrame,
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
) -> Findings:
    """Rank the settings of runs, and compare them repeat by repeat.

    Args:
        runs: What `load_runs` returned, or rows of it.
        goal: As in `best`.
        repeats: As in `best`.

    Raises:
        InvalidArgumentError: As `best` does, or the rows are epochs.
    """
    ranking = ranking_of(runs, goal, repeats)
    check_comparable(runs, [], [])
    scores, axes = scores_of(runs, ranking), ranking.repeats
    rule = rule_of(runs, ranking.goal.metric, axes)
    return Findings(
        **vars(ranking),
        contest=contest(runs, scores, _names(ranking), ranking.codes, axes),
        rule=rule,
        values=of_values(runs, scores, axes, rule.axis)[2] if axes and rule.axis else None,
    )


def _names(ranking: Ranking) -> list[str]:
    """Name settings with a number by what varies between these, others by what varies between all."""
    names = [varying([s.params for s in group]) for group in (ranking.settings, ranking.all_settings)]
    each = [*((s, names[0]) for s in ranking.settings), *((s, names[1]) for s in ranking.others)]
    return [label({name: s.params[name] for name in varied}) or "the only setting" for s, varied in each]

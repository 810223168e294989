"""What the runs of a table show, for every surface: which settings are best, and what may be chance."""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from runmanager.console import cell, printable
from runmanager.goal import Goal
from runmanager.results.contest import Contest, contest, label, of_values
from runmanager.results.decisive import repeats_of, rule_of
from runmanager.results.ranking import (
    check_comparable,
    completed,
    deciding,
    describe,
    lost,
    settings_without,
)
from runmanager.results.rivals import Lead
from runmanager.results.tables import KEPT
from runmanager.results.verdict_sentence import BETTER, IDENTICAL, UNDECIDED, Race
from runmanager.storage.design import SEEDS, Rule
from runmanager.storage.naming import varying
from runmanager.wording import aligned

_WORDS = ("undecided", "all ", "the best ")  # that a sentence may begin with; names keep their case


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
    run: int | None = None  # the number of the run, if the setting is one

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
    settings: Sequence[Setting]  # that have a number, the best first; those of one repeat after all of several
    others: Sequence[Setting]  # that have none
    leads: Sequence[Lead]  # how much better the best setting is than each other of `settings`, paired by repeat
    contest: Contest  # of `settings`, then `others`
    rule: Rule  # what the experiment decides
    values: Contest | None = None  # of the axis that it decides about

    @property
    def metric(self) -> str:
        """The metric that decides, as runs track it."""
        return self.goal.metric.removeprefix(KEPT)

    @property
    def ranked(self) -> Sequence[Setting]:
        """The settings that compete: of at least two repeats, if any setting has two."""
        repeated = [setting for setting in self.settings if setting.number > 1]
        return repeated if self.repeats and repeated else self.settings

    @property
    def num_undecided(self) -> int:
        """How many settings may be as good as the best one: its lead over them may be chance."""
        return sum(not lead.is_decided for lead in self.leads[: len(self.ranked) - 1])

    @property
    def varying(self) -> list[str]:
        """The hyperparameters that tell the settings with a number apart; if there is one, all of its own."""
        params = [setting.params for setting in self.settings]
        return varying(params) if len(params) > 1 else [name for each in params for name in each]

    def name(self, setting: Setting) -> str:
        """Name a setting by what varies, and by its number if it is a run."""
        params = label({name: setting.params[name] for name in self.varying})
        if setting.run is None:
            return params or "the only setting"
        return f"run {setting.run}" + (f" ({params})" if params else "")

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
        return f"{who} {printable(self.metric)} {cell(best.mean)}{kept}{self._of(best)}"

    @property
    def lead(self) -> str:
        """Say how far the best setting leads, and whether that may be chance, "" without rivals."""
        return " ".join(filter(None, [self.verdict or self._lead(), self.better_by_one_repeat]))

    def _lead(self) -> str:
        if len(self.settings) < 2 or self.repeats:  # noqa: PLR2004 - a lead is over another one
            return ""
        best, *others = self.settings
        ties, what = self.num_ties, f"the same {printable(self.metric)}"
        if ties == len(others):
            return f"All {len(self.settings)} have {what}."
        if ties:
            which = f"{ties} others have" if ties > 1 else f"{self.name(others[0])} has"
            return f"{which[:1].upper()}{which[1:]} {what}."
        gap = f"{abs(best.mean - others[0].mean):.2g}"
        side = "above" if self.goal.is_larger_better else "below"
        return f"That is {gap} {side} the next; each setting ran once, so it may be chance."

    @property
    def num_ties(self) -> int:
        """How many others have the same number as the best setting."""
        return sum(is_same(other.mean, self.ranked[0].mean) for other in self.ranked[1:])

    @property
    def better_by_one_repeat(self) -> str:
        """Name the setting of one repeat that has a better number than the best mean of several."""
        sign, best = self.goal.sign, self.settings[0]
        single = max(self.settings[len(self.ranked) :], key=lambda s: sign * s.mean, default=best)
        if sign * single.mean <= sign * best.mean or is_same(single.mean, best.mean):
            return ""
        return f"{self.name(single)} has {cell(single.mean)}{self.of(single)}: too few to be ranked."

    def _of(self, setting: Setting) -> str:
        """Say how many repeats a mean is of, with its interval; a failed one is never left out."""
        if not self.repeats:
            return ""
        interval = f", 95 % interval {self.interval(setting)}" if self.interval(setting) else ""
        lost = "".join(f"; {number} {status}" for status, number in setting.lost.items())
        return f"{self.of(setting)}{interval}{lost}"

    def of(self, setting: Setting) -> str:
        """Say how many repeats a mean is of: ", of one seed", ", the mean of 3 seeds"."""
        axes = printable(" and ".join(self.repeats))
        is_counted = len(self.repeats) == 1 and axes in SEEDS
        one, many = (axes, f"{setting.number} {axes}s")
        if not is_counted:
            one, many = (f"repeat ({axes})", f"{setting.number} repeats ({axes})")
        return f", of one {one}" if setting.number == 1 else f", the mean of {many}"

    def interval(self, setting: Setting) -> str:
        """Write the 95 % interval of a mean, "" without a spread; no accuracy is outside of 0 to 1."""
        (ends,) = intervals(self.metric, [setting.low], [setting.high])
        return ends if setting.std > 0 else ""

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
        run = int(runs["run"].iloc[rows[code][0]]) if "run" in runs and not axes else None
        settings.append(Setting(params, rows[code], int(n), mean, std, low, high, counts, run))
    ranked = [setting for setting in settings if setting.number]
    least = 2 if axes and any(setting.number > 1 for setting in ranked) else 1  # a single repeat may be luck
    ranked.sort(key=lambda setting: (setting.number < least, -goal.sign * setting.mean))
    others = [setting for setting in settings if not setting.number]
    rivals = np.empty(len(runs), int)
    for position, setting in enumerate([*ranked, *others]):
        rivals[list(setting.rows)] = position
    between = contest(runs, goal.sign * numbers, _names(ranked, others), rivals, axes)
    rule = rule_of(runs, goal.metric, axes)
    leads = list(between.leads(0, rule.error).values())[: len(ranked) - 1] if ranked else []
    values = of_values(runs, goal.sign * numbers, axes, rule.axis)[2] if axes and rule.axis else None
    return Findings(goal, axes, ranked, others, leads, between, rule, values)


def _names(settings: Sequence[Setting], others: Sequence[Setting]) -> list[str]:
    """Name settings with a number by what varies between these, others by what varies between all."""
    names = [varying([s.params for s in group]) for group in (settings, [*settings, *others])]
    each = [*((s, names[0]) for s in settings), *((s, names[1]) for s in others)]
    return [label({name: s.params[name] for name in varied}) or "the only setting" for s, varied in each]


def is_same(one: float, other: float) -> bool:
    """Whether two means differ in nothing but the rounding of their sums.

    >>> is_same((0.1 + 0.2 + 0.3) / 3, (0.3 + 0.2 + 0.1) / 3), is_same(0.5, 0.5000001)
    (True, False)
    """
    return math.isclose(one, other, rel_tol=1e-12)


def intervals(metric: str, lows: Iterable[float], highs: Iterable[float]) -> list[str]:
    """Write intervals; the mean of an accuracy is never outside of 0 to 1."""
    ends = [*lows], [*highs]
    if metric.endswith(("accuracy", "acc")) and not any(
        low > 1 or high < 0 for low, high in zip(*ends, strict=True)
    ):
        ends = [max(low, 0.0) for low in ends[0]], [min(high, 1.0) for high in ends[1]]
    texts = aligned([*ends[0], *ends[1]])
    pairs = zip(texts[: len(texts) // 2], texts[len(texts) // 2 :], strict=True)
    return [f"{low} to {high}" if low else "" for low, high in pairs]

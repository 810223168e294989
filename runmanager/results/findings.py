"""What the runs of a table show, for every surface: which settings are best, and what may be chance."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from runmanager.console import cell, printable
from runmanager.goal import Goal
from runmanager.hyperparameters import text
from runmanager.results.decisive import repeats_of
from runmanager.results.ranking import (
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
from runmanager.storage.design import SEEDS
from runmanager.storage.naming import varying
from runmanager.wording import aligned

_LONGEST_VALUE = 20  # characters of a hyperparameter in a sentence
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
    leads: Sequence[Difference]  # how much better the best setting is than each other, paired by repeat

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
        what = "Best" if is_over else "Best so far"
        if len(self.settings) == 1:
            what = "Result" if not self.others else "The only one with a result"
        kept = " at the epoch whose weights are kept" if self.goal.metric.startswith(KEPT) else ""
        return f"{what}: {self.name(best)}, {printable(self.metric)} {cell(best.mean)}{kept}{self._of(best)}"

    @property
    def lead(self) -> str:
        """Say how far the best setting leads, and whether that may be chance, "" without rivals."""
        return " ".join(filter(None, [self._lead(), self._better_by_one_repeat()]))

    def _lead(self) -> str:
        if len(self.ranked) < 2:  # noqa: PLR2004 - a lead is over another one
            return ""
        best, *others = self.ranked
        ties = self.num_ties
        what = f"the same {'mean' if self.repeats else printable(self.metric)}"
        if ties == len(others):
            return f"All {len(self.ranked)} have {what}."
        if ties:
            which = f"{ties} others have" if ties > 1 else f"{self.name(others[0])} has"
            tie = f"{which} {what}." if self.repeats else f"{which[:1].upper()}{which[1:]} {what}."
            return f"{tie} {self.verdict}".strip()
        if self.repeats:
            return self.verdict
        gap = f"{abs(best.mean - others[0].mean):.2g}"
        side = "above" if self.goal.is_larger_better else "below"
        return f"That is {gap} {side} the next; each setting ran once, so it may be chance."

    @property
    def num_ties(self) -> int:
        """How many others have the same number as the best setting."""
        return sum(is_same(other.mean, self.ranked[0].mean) for other in self.ranked[1:])

    def _better_by_one_repeat(self) -> str:
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

    @property
    def verdict(self) -> str:
        """Say whether the lead of the best setting may be chance, "" without repeats or rivals."""
        if not self.repeats or len(self.ranked) < 2:  # noqa: PLR2004 - as above
            return ""
        leads = self.leads[: len(self.ranked) - 1]
        number, all_of_them = self.num_undecided, len(leads)
        others = f"the other {all_of_them} settings" if all_of_them > 1 else "the other setting"
        if not number:
            return f"Its lead over {others} is more than chance."
        if max(lead.n for lead in leads) < _LEAST:
            why = f": fewer than {_LEAST} repeats decide nothing"
        elif not self.settings[0].std:
            why = ": its repeats are all equal"
        else:
            are_too_few = all(math.isnan(lead.low) or not lead.mean for lead in leads)
            settings = f"{len(self.ranked)} settings"
            why = f": {self.settings[0].number} repeats cannot tell {settings} apart" if are_too_few else ""
        if number < all_of_them:
            are_next = not any(lead.is_decided for lead in leads[:number])
            following = f"the next {number} settings" if number > 1 else "the next setting"
            others = following if are_next else f"{number} of the other {all_of_them} settings"
        return f"Its lead over {others} is within chance{why}."


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
    leads = _leads(runs, ranked, numbers, axes, goal)
    return Findings(goal, axes, ranked, others, leads)


def is_same(one: float, other: float) -> bool:
    """Whether two means differ in nothing but the rounding of their sums.

    >>> is_same((0.1 + 0.2 + 0.3) / 3, (0.3 + 0.2 + 0.1) / 3), is_same(0.5, 0.5000001)
    (True, False)
    """
    return math.isclose(one, other, rel_tol=1e-12)


def label(params: Mapping[str, Any]) -> str:
    """Name a setting by its hyperparameters.

    >>> label({"lr": 0.010, "device": "cpu"})
    'lr=0.01 device=cpu'
    """
    return " ".join(f"{printable(name)}={brief(value)}" for name, value in params.items())


def brief(value: Any) -> str:
    """Write the value of a hyperparameter in a sentence; a long one is cut."""
    content = "none" if value is pd.NA else printable(text(value))
    return content if len(content) <= _LONGEST_VALUE else f"{content[: _LONGEST_VALUE - 1]}…"


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

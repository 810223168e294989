"""The runs of a table as a contest: rivals (settings, or values of an axis) with scores in each repeat."""

import contextlib
import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from runmanager.answers.effects import told_apart
from runmanager.answers.evidence import ERROR
from runmanager.answers.leads import Lead, arranged, differences, leads
from runmanager.answers.luck import luck_of
from runmanager.answers.power import chance
from runmanager.answers.ranking import (
    are_few,
    in_rank,
    mean_of,
    numbered,
    own_goals,
    settings_without,
    statuses_of,
)
from runmanager.answers.verdict_sentence import Race
from runmanager.core.experiment import SEEDS, Rule
from runmanager.core.goal import KEPT
from runmanager.core.outcome import Status
from runmanager.core.wording import counted, listed, printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables.cells import all_of, brief, labels
from runmanager.tables.columns import RULES, Numbers, hyperparameters_of, of_experiments

_MOST_NAMED = 2  # maximum number of rivals with lost repeats that are named


@dataclass(frozen=True)
class Contest:
    """Rivals and their scores in each repeat.

    Attributes:
        names: The rivals' names in sentences.
        scores: (rivals, repeats, parts), larger is better; a missing score is NaN.
        statuses: Status -> number of runs, for each rival.
        unit: The word for a repeat.
        rivals: The word for the rivals, in the plural.
        alone: The rivals that have scores, but no score in a setting of another rival.
        is_ranked: Whether the rivals are in the order of a `Ranking`.
        luck: Returns a sentence on the share of the evaluated items in a difference of two rivals, "" for none.
    """

    names: Sequence[str]
    scores: Numbers
    statuses: Sequence[Mapping[str, int]]
    unit: str
    rivals: str
    alone: Collection[int] = ()
    is_ranked: bool = True
    luck: Callable[[int, int], str] | None = None

    @functools.cached_property
    def means(self) -> Numbers:
        """The mean of each rival's scores, NaN without a score."""
        return np.array([mean_of(scores[np.isfinite(scores)].tolist()) for scores in self.scores])

    @functools.cached_property
    def num_repeats(self) -> Numbers:
        """The number of repeats in which each rival has a score."""
        return np.asarray(self._has_score.sum(axis=1))

    @functools.cached_property
    def _has_score(self) -> Numbers:
        """Whether each rival has a score in each repeat."""
        return np.asarray((~np.isnan(self.scores)).any(axis=2))

    @property
    def is_constant(self) -> bool:
        """Whether each rival has several scores in each setting, which do not differ."""
        lows, highs = (np.where(np.isnan(self.scores), end, self.scores) for end in (math.inf, -math.inf))
        return bool(self.num_repeats.min() > 1 and (lows.min(axis=1) >= highs.max(axis=1)).all())

    @functools.cached_property
    def order(self) -> list[int]:
        """The positions of the rivals, best first, as in a `Ranking`; rivals without a score are last."""
        if self.is_ranked:
            return list(range(len(self.names)))
        counts, means = self.num_repeats.tolist(), self.means.tolist()
        few = are_few(counts, [bool(self._lost(rival)) for rival in range(len(counts))])
        return in_rank([*zip(map(operator.not_, counts), few, strict=True)], [[mean] for mean in means])

    def race(self, margin: float | None = None, error: float = ERROR) -> Race:
        """Compare the best rival with the others; a note names rivals that lost all repeats."""
        order = self.order
        if not order:
            return Race([], [], self.unit, self.rivals)
        best, others = order[0], [i for i in order[1:] if self.num_repeats[i] or self._is_open(i)]
        each = self.leads(best, error)
        others.sort(key=lambda i: math.inf if math.isnan(each[i].mean) else each[i].mean)
        names = [self.names[i] for i in (best, *others)]
        return Race(
            names,
            [each[i] for i in others],
            self.unit,
            self.rivals,
            len(self.names),
            margin,
            partial(self._notes, order, best, others[:1]),
            [best, *others],
        )

    def _notes(self, order: Sequence[int], best: int, others: Sequence[int]) -> list[str]:
        """Return the sentences about evaluated items, and about lost and left-out repeats; this reads files."""
        luck = self.luck(best, others[0]) if self.luck and others else ""
        return [*filter(None, [luck]), *self._losses(order), *self._left_out(best, others)]

    def leads(self, best: int, error: float = ERROR) -> dict[int, Lead]:
        """Return the lead of the rival `best` over each other rival, by position."""
        others = [i for i in range(len(self.names)) if i != best]
        return dict(zip(others, leads(self.scores, best, error), strict=True))

    def chance(self, best: int, other: int, n: int, rule: Rule) -> float:
        """Return the probability that `n` repeats decide between two rivals."""
        row = differences(self.scores, best)[other]
        return chance(row[~np.isnan(row)], n, len(self.names), rule.error, rule.margin)

    def _is_open(self, rival: int) -> bool:
        """Whether a run of a rival is still in progress or pending."""
        return any(Status(word).is_open for word in self.statuses[rival])

    def _losses(self, order: Sequence[int]) -> list[str]:
        """Say which rivals lost repeats, and why; one sentence covers all rivals without a result."""
        without = [i for i in order if not self.num_repeats[i] and not self._is_open(i) and i not in self.alone]
        each = [i for i in order if self._lost(i) and (i not in without or len(without) == 1)]
        texts = [self._loss(i) for i in each[:_MOST_NAMED]]
        if more := each[_MOST_NAMED:]:
            texts.append(f"{len(more)} other {self.rivals} lost some too")
        if without and not (len(without) == 1 and self._lost(without[0])):
            counts = sum((self._lost(i) for i in without), Counter[str]())
            which = self.names[without[0]] if len(without) == 1 else f"{len(without)} {self.rivals}"
            texts.append(f"{which} {'has' if len(without) == 1 else 'have'} no result{_reasons(counts)}")
        if self.alone:
            which = listed([self.names[i] for i in order if i in self.alone])
            are = "is" if len(self.alone) == 1 else "are"
            texts.append(
                f"{which} {are} not compared: no run of another value has the same other hyperparameters"
            )
        return texts

    def _loss(self, rival: int) -> str:
        counts = self._lost(rival)
        number = counts.total()
        total = sum(n for word, n in self.statuses[rival].items() if not Status(word).is_open)
        what = "run" if self.scores.shape[2] > 1 else self.unit
        which = (
            all_of(total, f"{what}s")
            if number == total > 1 and not self._is_open(rival)
            else f"{number} of {counted(total, what)}"
        )
        why = f" ({next(iter(counts))})" if len(counts) == 1 else _reasons(counts)
        return f"{self.names[rival]} lost {which}{why}"

    def _lost(self, rival: int) -> Counter[str]:
        """Count the runs of a rival that failed, diverged, hung or were killed, by status."""
        return Counter({word: n for word, n in self.statuses[rival].items() if Status(word).is_lost})

    def _left_out(self, best: int, others: Sequence[int]) -> list[str]:
        """Say how many repeats only one of the first two rivals has; lost repeats are not counted."""
        if not others:
            return []
        has_score = self._has_score
        number = int((has_score[best] != has_score[others[0]]).sum())
        number -= self._lost(best).total() + self._lost(others[0]).total()
        both = f"{self.names[best]} and {self.names[others[0]]}"
        return [f"left out: {counted(number, self.unit)} that only one of {both} has"] if number > 0 else []


def _reasons(counts: Counter[str]) -> str:
    return f" ({', '.join(f'{count} {word}' for word, count in counts.items())})" if counts else ""


def rule_of(runs: pd.DataFrame, metric: str, repeats: Collection[str] = ()) -> Rule:
    """Return the rule of ``run_grid(decide=...)``; if the experiments have different rules, the default rule.

    Args:
        runs: The table.
        metric: The column that decides. The margin is in units of the goal's metric; the rule for another
            column has no margin.
        repeats: The repeat axes; a rule does not compare the values of repeat axes.
    """
    rules = [*of_experiments(runs, RULES).values()]
    rule, goal = Rule(), None
    if rules and all(other == rules[0] for other in rules):
        with contextlib.suppress(msgspec.ValidationError):
            rule = msgspec.convert(rules[0], Rule)
    with contextlib.suppress(InvalidArgumentError):
        goal = next(iter(own_goals(runs)), None)
    if goal is None or goal.metric.removeprefix(KEPT) != metric.removeprefix(KEPT):
        rule = replace(rule, margin=None)
    is_axis = rule.axis in hyperparameters_of(runs) and rule.axis not in repeats
    return rule if is_axis else replace(rule, axis=None)


def contest(
    runs: pd.DataFrame,
    scores: "pd.Series[float]",
    names: Sequence[str],
    rivals: Numbers,
    axes: Sequence[str],
    parts: Numbers | None = None,
    what: str = "settings",
) -> Contest:
    """Arrange runs as a contest."""
    repeats = _order_of(runs, axes)
    is_ranked = parts is None
    parts = np.zeros(len(runs), int) if parts is None else parts
    numbers = scores.to_numpy(float)
    table = arranged(rivals, repeats, parts, numbers, len(names))
    unit = unit_of(axes)
    if table.shape[1] == 1 and table.shape[2] > 1:
        table, unit = table.transpose(0, 2, 1), "setting"
    statuses: list[Counter[str]] = [Counter() for _ in names]
    for rival, status in zip(rivals.tolist(), statuses_of(runs, axes), strict=True):
        if status in Status._value2member_map_:
            statuses[rival][status] += 1
    has_number = set(rivals[~np.isnan(numbers)].tolist())
    alone = [i for i in sorted(has_number) if np.isnan(table[i]).all()]
    sentence = partial(luck_of, runs, str(scores.name), rivals)
    return Contest(names, table, statuses, unit, what, alone, is_ranked, sentence)


def of_values(
    runs: pd.DataFrame, scores: "pd.Series[float]", axes: Sequence[str], axis: str
) -> tuple[Numbers, list[Any], Contest]:
    """Return the code of each run's value, the values, and the contest of the values in otherwise equal runs.

    Args:
        runs: The table.
        scores: The score of each run, larger is better, NaN without a score; the index is 0, 1, ...
        axes: The repeat axes.
        axis: The axis whose values are the rivals.
    """
    rivals, values = numbered(runs[axis])
    names = labels([{axis: value} for value in values])
    names = [brief(v) if isinstance(v, str) else name for v, name in zip(values, names, strict=True)]
    apart = told_apart(runs, rivals) if axis == "experiment" else []
    parts, _ = settings_without(runs, [axis, *axes, *apart])
    what = "experiments" if axis == "experiment" else f"values of {printable(axis)}"
    return rivals, values, contest(runs, scores, names, rivals, axes, parts, what)


def unit_of(axes: Sequence[str]) -> str:
    """Return the word for a repeat over these axes."""
    return printable(axes[0]) if len(axes) == 1 and axes[0] in SEEDS else "repeat"


def _order_of(runs: pd.DataFrame, axes: Sequence[str]) -> Numbers:
    """Number the repeats of runs in an order that does not depend on results."""
    if not axes:
        return np.zeros(len(runs), int)
    columns = []
    for name in axes:
        codes, values = numbered(runs[name])
        if all(isinstance(value, (int, float)) and value == value for value in values):  # noqa: PLR0124 - no NaN
            codes = np.argsort(np.argsort(np.array(values, float), kind="stable"))[codes]
        columns.append(codes)
    return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)

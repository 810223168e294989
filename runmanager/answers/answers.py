"""The answers from a table of runs; the panel, the page, notebooks and commands show some of the answers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import pandas as pd

from runmanager.answers.contest import BETTER, IDENTICAL, UNDECIDED, Contest, rule_of
from runmanager.answers.effects import by_chance, changes
from runmanager.answers.importance import importances
from runmanager.answers.ranking import (
    Ranking,
    Setting,
    check_comparable,
    is_same,
    own_goals,
    ranking_of,
    statuses_of,
)
from runmanager.answers.sampled import is_sampled
from runmanager.answers.sentences import capital, counts_of, percents
from runmanager.answers.verdict_sentence import clauses, two_digits
from runmanager.core.experiment import Rule
from runmanager.core.outcome import LEADING, Status
from runmanager.core.wording import counted, printable
from runmanager.errors import InvalidArgumentError, MissingExtraError
from runmanager.tables.cells import cell
from runmanager.tables.columns import metrics_of

INTERVAL, REPEATS = "95 % interval", "repeats"
"""Columns of a table of repeated settings."""

_MOST_FURTHER = 4  # maximum number of hyperparameters that a sentence names after the first one
_FEWEST = 10  # minimum number of settings from which importances can exceed chance


class Matters(NamedTuple):
    """How much each hyperparameter matters."""

    sentence: str
    bars: Sequence[tuple[str, str, float]]  # name, size as text, length in percent; the largest first
    changes: Mapping[str, tuple[str, float]]  # hyperparameter -> its column, and its mean absolute change
    is_searched: bool = False  # whether the bars are importances in a sample or search, not changes in a grid


@dataclass(frozen=True)
class Answers:
    """The answers from a table of runs."""

    runs: pd.DataFrame = field(repr=False)
    ranking: Ranking | None  # None if no column decides
    counts: Mapping[str, int]  # status -> number of runs, in the order of `Status`
    is_over: bool  # whether no run is missing
    question: str = ""  # the reason why there is no ranking, or a ranking that is only for display

    @cached_property
    def rule(self) -> Rule:
        """The experiment's rule for a decision; needs a ranking."""
        assert self.ranking
        return rule_of(self.runs, self.ranking.goal.metric, self.ranking.repeats)

    @cached_property
    def verdict_on(self) -> Callable[[str | None], Contest]:
        """Compare the settings (None), or the values of an axis in otherwise equal settings."""
        ranking = self.ranking
        assert ranking
        return cache(lambda axis: Contest(self.runs, ranking, axis, self.rule.margin, self.rule.error))

    @property
    def decision(self) -> Contest:
        """The comparison by the rule's axis, or of the settings; needs a ranking."""
        return self.verdict_on(self.rule.axis)

    @property
    def settings(self) -> Sequence[Setting]:
        """The ranked settings; empty if no setting is ranked."""
        return self.ranking.settings if self.ranking and not self.question else ()

    @property
    def has_verdict(self) -> bool:
        """Whether a verdict is possible: there are repeat axes, and several settings with results."""
        return bool(self.ranking and self.ranking.repeats) and len(self.settings) > 1

    @property
    def is_decided(self) -> bool:
        """Whether the repeats have decided, and no run is missing."""
        return self.is_over and self.has_verdict and self.decision.outcome != UNDECIDED

    @property
    def headline(self) -> str:
        """The decision, the best setting, or the reason why no setting is best."""
        if self.has_verdict:
            return self._begun(self._clauses[:1])
        if Status.COMPLETED not in self.counts:
            if number := self.counts.get(Status.CHANGED):
                return f"Results of {counted(number, 'run')} wait, as the code changed"
            return "No run has completed"
        return self.result or self.question or _question(self.runs, self.ranking)

    @cached_property
    def details(self) -> list[str]:
        """Sentences that complete the headline."""
        ranking = self.ranking
        if ranking is None or not self.settings:
            return []
        best, *others = ranking.leaders
        texts = [self.result, self.open] if self.has_verdict else []
        if others and not texts:
            why = ""
            if not is_same(best.mean, others[0].mean):
                why = f"Its lead is {two_digits(best.mean - others[0].mean)}; "
            elif not ranking.num_ties:
                tied, second, *_ = ranking.goals
                why = printable(f"{tied.metric} is tied, so {second.metric} counts; ")
            why += 'each setting ran once, so that may be chance: an axis "seed" repeats them'
            texts.append(capital(why))
        first = max(ranking.settings, key=lambda setting: ranking.goal.sign * setting.mean)
        if why := ranking.why_below(first):
            texts.append(
                f"{capital(ranking.name(first))} has {ranking.written(first)}, but {why}: it ranks below"
            )
        if self.has_verdict and ranking.unit == "seed" and self.is_over and not self.is_decided:
            texts.append("To continue, start the grid with more seeds (or max_repeats)")
        return [*(f"{text}." for text in (*texts, self.front_sentence) if text), *ranking.notes]

    @property
    def open(self) -> str:
        """What the repeats have not decided, and which runs were lost; "" if there is nothing to say."""
        return self._begun(self._clauses[1:])

    @cached_property
    def _clauses(self) -> list[str]:
        return clauses(self.decision)

    def _begun(self, texts: Sequence[str]) -> str:
        text = "; ".join(texts)
        return text if text.startswith((*self.decision.names,)) else capital(text)

    @cached_property
    def result(self) -> str:
        """The setting with the best value of the goal, with this value; "" if no setting has a value."""
        ranking = self.ranking
        if ranking is None or not self.settings:
            return ""
        best, metric, ties = ranking.settings[0], printable(ranking.goal.metric), ranking.num_ties
        name, value = capital(ranking.name(best)), ranking.written(best)
        outcome = self.has_verdict and self.verdict_on(None).outcome
        if outcome == IDENTICAL:
            name, ties = "Each", 0
        if ranking.repeats and not ties:  # an interval is of one setting
            (ends,) = ranking.intervals([best])
            value += f", the mean of {counted(best.number, ranking.unit)}"
            value += f", 95 % interval {ends}" if ends else ""
        if outcome == IDENTICAL or len(ranking.settings) == 1:
            return f"{name} has {metric} {value}"
        for goal, mean in zip(ranking.goals[1:], best.means[1:], strict=True):
            value += f", {printable(goal.metric)} {cell(mean)}"
        if ties:
            other = ranking.name(ranking.leaders[1]) if ties == 1 else f"{ties} others"
            name += f" ties with {other} for the lead"
        elif self.has_verdict and self._clauses[0].startswith(name):
            return f"{metric} {value}"  # the headline has the name
        else:
            name += " is best" if not ranking.is_choice and outcome in (False, BETTER) else " leads"
        return f"{name}{'' if self.is_over else ' so far'}: {metric} {value}"

    @property
    def scope(self) -> str:
        """Name what the intervals of a table and the verdict belong to, "" if either is missing."""
        if not (self.ranking and self.has_verdict and len({*self.ranking.intervals(self.settings)}) > 1):
            return ""
        return "intervals are per setting, the verdict compares all pairs"

    @property
    def front_sentence(self) -> str:
        """Say how many settings are on the Pareto front; "" with a single goal."""
        ranking = self.ranking
        if not (ranking and ranking.front and ranking.goals[1:]):
            return ""
        return (
            f"The Pareto front has {counted(len(ranking.front), ranking.noun)}: "
            f"no other {ranking.noun} is as good in every goal and better in one"
        )

    @cached_property
    def all_matters(self) -> list[Matters]:
        """The influence of each hyperparameter on each goal, the deciding goal first; needs a ranking."""
        assert self.ranking
        others = (ranking_of(self.runs, str(goal), self.ranking.repeats) for goal in self.ranking.goals[1:])
        return [_matters(self.runs, ranking) for ranking in (self.ranking, *others)]

    @property
    def matters(self) -> Matters:
        """The influence of each hyperparameter on the deciding goal; needs a ranking."""
        return self.all_matters[0]

    @property
    def matters_sentences(self) -> list[str]:
        """Say which hyperparameters matter for each goal; [] if fewer than two vary between settings."""
        if self.ranking is None or min(len(self.ranking.settings), len(self.matters.changes)) < 2:  # noqa: PLR2004
            return []
        return [matters.sentence for matters in self.all_matters]


def answers_of(
    runs: pd.DataFrame,
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
    *,
    is_over: bool | None = None,
) -> Answers:
    """Answer the questions about a table of runs."""
    ranking, question = None, ""
    try:
        if goal is not None or own_goals(runs):
            check_comparable(runs)
            ranking = ranking_of(runs, goal, repeats)
    except InvalidArgumentError as error:
        if goal is not None or repeats is not None:
            raise
        question = f"{error}"
    counts = counts_of(statuses_of(runs))
    if is_over is None:
        is_over = not any(Status(word).is_open for word in counts)
    return Answers(runs, ranking, counts, is_over, question)


def columns_of_numbers(ranking: Ranking, settings: Sequence[Setting]) -> dict[str, list[Any]]:
    """Return the means of each goal, their intervals and repeats, for a table with one row per setting."""
    columns: dict[str, list[Any]] = {
        goal.metric: [setting.means[index] for setting in settings] for index, goal in enumerate(ranking.goals)
    }
    if ranking.repeats:
        columns[f"{ranking.goal.metric} std"] = [setting.statistics[0]["std"] for setting in settings]
        columns |= {INTERVAL: ranking.intervals(settings), REPEATS: [setting.counts for setting in settings]}
    return columns


def _question(runs: pd.DataFrame, ranking: Ranking | None) -> str:
    """Say why no completed run is best, and suggest a goal."""
    if ranking:
        return f"No completed run has a number for {printable(ranking.metric)}"
    names = [name for name in metrics_of(runs) if name not in LEADING[2:] and not runs[name].isna().all()]
    if not names:
        return "No run has a number to rank by: write manager.track_loss(loss, labels) or track(f1=0.5)"
    return printable(
        f'Which run is best? No metric is the default: give goal="max:{names[0]}" or goal="min:{names[0]}", or '
        "of another metric; nothing is executed again"
    )


def _matters(runs: pd.DataFrame, ranking: Ranking) -> Matters:
    """Measure how much each hyperparameter matters: by importance in a sample or search, else by changes."""
    changed = {
        axis.removesuffix(" (hyperparameter)"): (axis, size) for axis, size in changes(runs, ranking).items()
    }
    settings, metric = ranking.all_settings, ranking.goal.metric
    if len(ranking.settings) >= _FEWEST and any(
        is_sampled([setting.params[name] for setting in settings]) for name in settings[0].params
    ):
        try:
            shares = importances(runs, str(ranking.goal), repeats=list(ranking.repeats))
        except MissingExtraError as error:
            return Matters(str(error), [], changed, is_searched=True)
        axes = [str(name).removesuffix(" (hyperparameter)") for name in shares["axis"]]
        sizes = dict(zip(axes, shares["importance"].tolist(), strict=True))
        bars = [] if shares["importance"].isna().any() else _bars(sizes, percents([*sizes.values()]))
        return Matters(f"{shares.sentence}.", bars, changed, is_searched=True)
    if Status.PRUNED in statuses_of(runs):
        # the survivors are a selection: their differences are too small
        return Matters("Runs were pruned, so what one hyperparameter alone changes cannot be said.", [], {})
    sizes = {name: size for name, (_, size) in changed.items() if math.isfinite(size)}
    if not sizes:
        sentence = "No two settings differ in one hyperparameter alone."
        return Matters(sentence, [], changed)
    (first, size), *further = sizes.items()
    sentence = f"Changing {first} alone changes {metric} by {size:.2g} on average"
    sentence += "".join(f", {name} by {size:.2g}" for name, size in further[:_MOST_FURTHER])
    if not size:
        sentence = f"Changing {' or '.join(sizes)} alone does not change {metric}"
    if math.isfinite(size := by_chance(ranking)):
        sentence += f"; chance alone changes these means by {size:.2g}"
        sizes["chance alone"] = size
    return Matters(f"{sentence}.", _bars(sizes, [f"{size:.2g}" for size in sizes.values()]), changed)


def _bars(sizes: Mapping[str, float], texts: Sequence[str]) -> list[tuple[str, str, float]]:
    """Return name, size as text, and bar length in percent of the largest size, for each hyperparameter."""
    most = max(sizes.values(), default=0.0)
    pairs = zip(sizes.items(), texts, strict=True)
    return [(name, text, round(100 * size / most, 1)) for (name, size), text in pairs] if most else []

"""The answers from a table of runs; the panel, the page, notebooks and commands show some of the answers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from runmanager.answers.changes import Change, changes, repeats_differ
from runmanager.answers.contest import BETTER, IDENTICAL, Contest, rule_of
from runmanager.answers.effects import effects
from runmanager.answers.failures import Failure, failures
from runmanager.answers.importance import importances
from runmanager.answers.ranking import (
    Ranking,
    Setting,
    check_comparable,
    completed,
    is_same,
    mean_of,
    own_goals,
    ranking_of,
)
from runmanager.answers.sampled import is_sampled
from runmanager.answers.sentences import capital, counts_of, percents
from runmanager.answers.usual_goals import companion
from runmanager.answers.verdict_sentence import clauses
from runmanager.core.experiment import Rule
from runmanager.core.goal import KEPT
from runmanager.core.outcome import LEADING, Status
from runmanager.core.values import COLUMNS
from runmanager.core.wording import counted, printable
from runmanager.errors import InvalidArgumentError, MissingExtraError
from runmanager.tables.cells import aligned, all_of, cell
from runmanager.tables.columns import metrics_of

CHANGE, IMPORTANCE, EXPLAINED = "change", "importance", "explained"
"""The measures of importance: mean change between settings, Optuna's PED-ANOVA, and share of the variation."""

INTERVAL, REPEATS = "95 % interval", "repeats"
"""Columns of a table of repeated settings."""

_MOST_NAMED = 5  # maximum number of metrics, or of hyperparameters, that a sentence names
_FEWEST = 10  # minimum number of settings from which importances can exceed chance


@dataclass(frozen=True)
class Matters:
    """How much each hyperparameter matters."""

    measure: str  # CHANGE in a grid, else IMPORTANCE or EXPLAINED
    sizes: Mapping[str, float]  # hyperparameter -> size, the largest first; CHANGE is in units of the metric
    sentence: str
    changes: Mapping[str, Change]  # hyperparameter -> the effect of changing only this hyperparameter
    spread: float  # mean difference between repeats of a setting, NaN without repeats

    @property
    def bars(self) -> list[tuple[str, str, float]]:
        """Name, size as text, and bar length in percent of the largest size, for each hyperparameter."""
        sizes = {name: size for name, size in self.sizes.items() if math.isfinite(size)}
        if self.measure == CHANGE and sizes and math.isfinite(self.spread):
            sizes["repeats"] = self.spread
        most, numbers = max(sizes.values(), default=0.0), list(sizes.values())
        texts = list(map("{:.2g}".format, numbers)) if self.measure == CHANGE else percents(numbers)
        bars = zip(sizes, texts, numbers, strict=True)
        return [(name, text, round(100 * size / most, 1)) for name, text, size in bars] if most else []


@dataclass(frozen=True)
class Answers:
    """The answers from a table of runs; the sentences have no period if they are headlines."""

    runs: pd.DataFrame = field(repr=False)
    ranking: Ranking | None  # None if no column decides
    counts: Mapping[str, int]  # status -> number of runs, in the order of `Status`
    is_over: bool  # whether no run is missing
    question: str = ""  # the reason why there is no ranking, or a ranking that is only for display

    @property
    def run_seconds(self) -> float:
        """The total duration of all runs (s)."""
        return float(self.runs["run duration"].sum()) if "run duration" in self.runs else 0.0

    @property
    def rule(self) -> Rule:
        """The experiment's rule for a decision."""
        assert self.ranking
        return rule_of(self.runs, self.ranking.goal.metric, self.ranking.repeats)

    @cached_property
    def verdict(self) -> Contest:
        """The comparison of the best setting with the others; needs a ranking."""
        return self.verdict_on(None)

    @cached_property
    def decision(self) -> Contest:
        """The comparison by the rule's axis, or of the settings; needs a ranking."""
        return self.verdict_on(self.rule.axis) if self.rule.axis else self.verdict

    def verdict_on(self, axis: str | None) -> Contest:
        """Compare the values of an axis in otherwise equal settings, as `verdict` does; needs a ranking."""
        assert self.ranking
        return Contest.of(self.runs, self.ranking, axis, self.rule.margin, self.rule.error)

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
        return self.is_over and self.has_verdict and self.decision.decided

    @property
    def headline(self) -> str:
        """The decision, the best setting, or the reason why no setting is best."""
        if self.has_verdict:
            return self._begun(self._clauses[:1])
        if self.settings:
            return self.result
        if Status.COMPLETED not in self.counts:
            return self.result or (
                "No run could start" if [*self.counts] == [Status.UNAVAILABLE] else "No run has completed"
            )
        return self.question or _question(self.runs, self.ranking)

    @cached_property
    def details(self) -> list[str]:
        """Sentences that complete the headline."""
        if not self.settings:
            number = self.counts.get(Status.PRUNED, 0)
            which = "the pruned run" if number == 1 else f"each of the {number:,} pruned runs"
            return [f"No run has completed; the last epoch of {which} counts."] if self.result else []
        assert self.ranking
        details = [self._lead]
        if self.has_verdict:
            details = [f"{self.result}.", f"{self.open}." if self.open else ""]
        return [*filter(None, [*details, self._better_but_below, self.front_sentence]), *self.ranking.notes]

    @property
    def sentences(self) -> list[str]:
        """The headline and the details, without periods, to be joined into a line of text."""
        return [self.headline, *(detail.removesuffix(".") for detail in self.details)]

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
            return self._pruned if ranking and Status.COMPLETED not in self.counts and not self.question else ""
        best, metric = ranking.settings[0], printable(ranking.metric)
        kept = " at the epoch whose weights are kept" if self._is_kept(best) else ""
        value = f"{ranking.written(best)}{kept}"
        number, name = f"{value}{self._mean_of(best)}", capital(ranking.name(best))
        if len(ranking.settings) == 1:
            return f"{name} has {metric} {number}"
        outcome, so_far = (
            self.verdict.outcome if self.has_verdict else BETTER,
            "" if self.is_over else " so far",
        )
        if outcome == IDENTICAL:
            return f"Each has {metric} {number}"
        is_choice = len(ranking.goals) > 1 and len(ranking.front) > 1
        if outcome == BETTER and not is_choice:
            if self._is_best_in_all:
                each = enumerate(ranking.goals)
                numbers = ", ".join(
                    f"{printable(goal.metric)} {ranking.written(best, index)}" for index, goal in each
                )
                return f"{name} is best{so_far} in {all_of(len(ranking.goals), 'goals')}: {numbers}"
            ties = ranking.num_ties
            return f"{name}{self._tied(ties)} {'are' if ties else 'is'} best{so_far}: {metric} {number}"
        ties = sum(is_same(other.mean, best.mean) for other in ranking.leaders[1:])
        extreme = "highest" if ranking.goal.is_larger_better else "lowest"
        has = f"{'have' if ties else 'has'} the {extreme} {metric}{so_far}:"
        if self._better_but_below:
            has = f"{'lead' if ties else 'leads'}{so_far}, with {metric}"
        return f"{name}{self._tied(ties)} {has} {value if ties else number}"  # an interval is of one setting

    def _is_kept(self, setting: Setting) -> bool:
        """Whether values count at the epoch whose weights are kept; not each experiment keeps any."""
        assert self.ranking
        metric, rows = self.ranking.goal.metric, self.runs.iloc[[*setting.rows]]
        is_other = "experiment" not in rows or not rows[metric].equals(
            rows.get(self.ranking.metric, rows[metric])
        )
        return metric.startswith(KEPT) and is_other

    def _tied(self, ties: int) -> str:
        """Name the leader after the best setting if it alone equals it, else their number."""
        assert self.ranking
        return (
            f" and {self.ranking.name(self.ranking.leaders[1]) if ties == 1 else f'{ties} others'}"
            if ties
            else ""
        )

    @property
    def _pruned(self) -> str:
        """Say which pruned run has the best value of the goal at its last epoch; "" if none has a value."""
        assert self.ranking
        goal = self.ranking.goal
        values = goal.sign * self.runs[goal.metric].where(self.runs["status"] == Status.PRUNED)
        if values.isna().all():
            return ""
        row = int(np.nanargmax(values))
        name = capital(
            self.ranking.name(next(setting for setting in self.ranking.others if row in setting.rows))
        )
        return (
            f"{name} is best so far: {printable(self.ranking.metric)} {cell(self.runs[goal.metric].iloc[row])}"
        )

    @property
    def _lead(self) -> str:
        """Say by how much the best run leads, and that the lead may be chance."""
        ranking = self.ranking
        assert ranking
        best, *others = ranking.leaders
        if len(ranking.settings) == 1 and ranking.others:
            rows = [row for setting in ranking.others for row in setting.rows]
            ends = {*self.runs["status"].iloc[rows]} if "status" in self.runs else {""}
            what = "a result" if Status.COMPLETED in ends or ends == {""} else "completed"
            return f"No other {ranking.noun} has {what}{'' if self.is_over else ' yet'}."
        if not others or ranking.repeats or ranking.num_ties:
            return ""
        metric = printable(ranking.metric)
        if is_same(best.mean, others[0].mean):
            pairs = zip(ranking.goals, best.means, others[0].means, strict=True)
            decisive = next(goal.metric for goal, one, other in pairs if not is_same(one, other))
            which = capital(ranking.name(others[0]))
            return f"{which} has the same {metric}; {printable(decisive)} decides between them."
        *_, gap = aligned([best.mean, others[0].mean, abs(best.mean - others[0].mean)])
        that = "That" if len(ranking.goals) == 1 else f"In {metric}, that"
        side = "above" if ranking.goal.is_larger_better else "below"
        return f"{that} is {gap} {side} the next; each setting ran once, so it may be chance."

    @property
    def _better_but_below(self) -> str:
        """Name a setting that has a better value than the best setting, but does not compete, and say why."""
        ranking = self.ranking
        assert ranking
        sign, best = ranking.goal.sign, ranking.settings[0]
        below = ranking.settings[len(ranking.leaders) :]  # the settings are in the order of their tiers
        first = max(below, key=lambda setting: sign * setting.mean, default=best)
        if sign * first.mean <= sign * best.mean or is_same(first.mean, best.mean):
            return ""
        text = f"{ranking.name(first)} has {ranking.written(first)}"
        if first.lacks_goal:
            return f"{text}, but {ranking.why_below(first)}: it ranks below."
        return f"{text}{ranking.repeats_of(first)}: too few to be ranked."

    def _mean_of(self, setting: Setting) -> str:
        """Say how many repeats are in a mean, with the interval and the failed repeats."""
        assert self.ranking
        if not self.ranking.repeats:
            return ""
        (ends,) = self.ranking.intervals([setting])
        lost = "".join(f"; {number} {status}" for status, number in setting.lost.items())
        return f"{self.ranking.repeats_of(setting)}{f', 95 % interval {ends}' if ends else ''}{lost}"

    def scope(self, intervals: Iterable[str]) -> str:
        """Name what the intervals of a table and the verdict belong to, "" if either is missing."""
        number = math.comb(len(self.ranking.all_settings), 2) if self.ranking else 0
        pairs = f"all {number:,} pairs" if number > 1 else "the pair"
        has_both = self.has_verdict and any(intervals)
        return f"intervals are per setting, the verdict compares {pairs}" if has_both else ""

    @property
    def basis(self) -> str:
        """Say which value of a run counts, which direction is better, and how often the verdict is wrong."""
        ranking = self.ranking
        if ranking is None or len(ranking.settings) < 2:  # noqa: PLR2004 - a comparison needs two
            return ""
        metric = printable(ranking.metric)
        which = f"the {'' if metric.startswith('best ') else 'last '}{metric} of each run"
        if ranking.goal.metric.startswith(KEPT):
            which = f"{metric} at the epoch whose weights are kept"
        side = "higher" if ranking.goal.is_larger_better else "lower"
        wrong = f" In at most {100 * self.rule.error:g} of 100 experiments is the verdict wrong."
        return f"{capital(which)} counts, {side} is better.{wrong if self.has_verdict else ''}"

    @property
    def _is_best_in_all(self) -> bool:
        """Whether a single run is on the Pareto front of several goals; the headline then has all of them."""
        ranking = self.ranking
        has_goals = ranking is not None and len(ranking.goals) > 1 and len(ranking.settings) > 1
        return has_goals and ranking is not None and not ranking.repeats and len(ranking.front) == 1

    @property
    def front_sentence(self) -> str:
        """Say how many settings are on the Pareto front; "" with a single goal."""
        ranking = self.ranking
        if ranking is None or len(ranking.goals) < 2 or not ranking.front or self._is_best_in_all:  # noqa: PLR2004
            return ""
        first = f"{printable(ranking.goal.metric)} is the first of {len(ranking.goals)} goals"
        if len(ranking.front) == 1:
            return f"{first}; no other {ranking.noun} is better in any of them."
        on_front = "none is better in one goal without being worse in another"
        return f"{first}; {counted(len(ranking.front), ranking.noun)} are on the Pareto front: {on_front}."

    @cached_property
    def failures(self) -> list[Failure]:
        """The reasons why runs have no result."""
        return failures(self.runs, repeats=self.ranking.repeats if self.ranking else None)

    @cached_property
    def matters(self) -> Matters:
        """The influence of each hyperparameter; needs a ranking."""
        assert self.ranking
        return _matters(self.runs, self.ranking)

    @cached_property
    def all_matters(self) -> list[Matters]:
        """The influence of each hyperparameter on each goal, the deciding goal first; needs a ranking."""
        assert self.ranking
        others = (ranking_of(self.runs, str(goal), self.ranking.repeats) for goal in self.ranking.goals[1:])
        return [self.matters, *(_matters(self.runs, ranking) for ranking in others)]

    @property
    def matters_sentences(self) -> list[str]:
        """Say which hyperparameters matter for each goal; [] if fewer than two vary between settings."""
        if self.ranking is None or min(len(self.ranking.settings), len(self.matters.changes)) < 2:  # noqa: PLR2004
            return []
        return list(dict.fromkeys(matters.sentence for matters in self.all_matters))


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
            ranking = ranking_of(runs, goal, repeats)
            check_comparable(runs, [], [])
    except InvalidArgumentError as error:
        if goal is not None or repeats is not None:
            raise
        ranking, question = None, f"{error}"
    counts = counts_of(runs["status"] if "status" in runs else [Status.COMPLETED] * len(runs))
    if is_over is None:
        is_over = not any(Status(word).is_open for word in counts)
    return Answers(runs, ranking, counts, is_over, question)


def columns_of_numbers(
    ranking: Ranking, runs: pd.DataFrame, settings: Sequence[Setting]
) -> dict[str, list[Any]]:
    """Return the columns of numbers for a table with one row for each of `settings`."""
    columns: dict[str, list[Any]] = {
        goal.metric: [setting.means[index] for setting in settings] for index, goal in enumerate(ranking.goals)
    }
    if ranking.repeats:
        columns |= {INTERVAL: ranking.intervals(settings), REPEATS: [setting.counts for setting in settings]}
    names = metrics_of(runs)
    logged = [name for name in names if name not in COLUMNS]
    for name in (ranking.metric, companion(ranking.metric, names), "run duration", *logged):
        if name in runs and name not in columns and is_numeric_dtype(runs[name]):
            numbers = completed(runs, name)
            columns[name] = [
                mean_of(numbers.iloc[list(setting.rows)].dropna().tolist()) for setting in settings
            ]
    return columns


def _question(runs: pd.DataFrame, ranking: Ranking | None) -> str:
    """Say why no completed run is best, and suggest a goal."""
    if ranking:
        return f"No completed run has a number for {printable(ranking.metric)}"
    names = [name for name in metrics_of(runs) if name not in LEADING[2:] and not runs[name].isna().all()]
    if not names:
        return "No run has a number to be ranked by: write manager.track_loss(loss, labels) or track(f1=0.5)"
    first, *others = names
    further = f" (or of {', '.join(others[:_MOST_NAMED])})" if others else ""
    return printable(
        f'Which run is best? No metric is the default: give goal="max:{first}" or goal="min:{first}"'
        f"{further}; nothing is executed again"
    )


def _matters(runs: pd.DataFrame, ranking: Ranking) -> Matters:
    """Measure how much each hyperparameter matters: by importance in a sample or search, else by changes."""
    changed = {change.axis.removesuffix(" (hyperparameter)"): change for change in changes(runs, ranking)}
    spread, settings = repeats_differ(ranking), ranking.all_settings
    names = list(settings[0].params) if settings else []
    if len(ranking.settings) >= _FEWEST and any(is_sampled([s.params[n] for s in settings]) for n in names):
        return _of_ranges(runs, ranking, changed, spread)
    ends = [runs["status"].iloc[row] for setting in ranking.others for row in setting.rows if "status" in runs]
    if Status.PRUNED in ends:  # the survivors are a selection: their differences are too small
        sentence = "Some settings were pruned, so what one hyperparameter alone changes cannot be said."
        return Matters(CHANGE, {}, sentence, {}, spread)
    sizes = {name: change.mean for name, change in changed.items() if math.isfinite(change.mean)}
    return Matters(CHANGE, sizes, _changing(ranking, sizes, spread), changed, spread)


def _of_ranges(runs: pd.DataFrame, ranking: Ranking, changed: Mapping[str, Change], spread: float) -> Matters:
    """Return the importances; without Optuna, the fraction of the variation that each axis explains."""
    metric, repeats = ranking.goal.metric, list(ranking.repeats)
    try:
        shares = importances(runs, str(ranking.goal), repeats=repeats)
        measure, sentence = IMPORTANCE, f"{shares.sentence}."
    except MissingExtraError:
        shares = effects(runs, metric, repeats=repeats).drop_duplicates("axis")
        shares, measure = shares.rename(columns={"explained": "importance"}), EXPLAINED
        name, share = shares["axis"].iloc[0], shares["importance"].iloc[0]
        sentence = f"{name} explains {100 * share:.0f} % of the variation of {metric}, by ranges of its values."
        sentence = f"All runs have the same {metric}." if math.isnan(share) else sentence
    pairs = zip(shares["axis"], shares["importance"], strict=True)
    sizes = {str(name).removesuffix(" (hyperparameter)"): float(share) for name, share in pairs}
    return Matters(measure, sizes, sentence, changed, spread)


def _changing(ranking: Ranking, sizes: Mapping[str, float], spread: float) -> str:
    """Say how much changing each hyperparameter alone changes the metric."""
    metric = ranking.goal.metric
    if len(ranking.settings) < 2:  # noqa: PLR2004 - a difference needs two
        return "Too few completed runs differ to show what matters."
    if not sizes:
        return (
            "No two settings differ in one hyperparameter alone, so none can be compared with all others equal."
        )
    (first, size), *others = sizes.items()
    if not size:
        return f"Changing one hyperparameter alone does not change {metric}."
    parts = [f"Changing {first} alone changes {metric} by {size:.2g} on average"]
    parts += [f"{name} by {size:.2g}" for name, size in others[: _MOST_NAMED - 1]]
    baseline = f"; repeats of a setting differ by {spread:.2g}" if math.isfinite(spread) else ""
    return f"{', '.join(parts)}{baseline}."

"""The answers from a table of runs; the panel, the page, notebooks and commands show some of the answers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from runmanager.answers.changes import Change, changes, repeats_differ
from runmanager.answers.contest import of_values
from runmanager.answers.effects import effects
from runmanager.answers.failures import Failure, failures
from runmanager.answers.findings import Findings, find
from runmanager.answers.importance import importances, what_matters
from runmanager.answers.ranking import Setting, completed, intervals, mean_of, own_goals, scores_of
from runmanager.answers.sampled import is_sampled
from runmanager.answers.sentences import counts_of, percents
from runmanager.answers.usual_goals import companion
from runmanager.answers.verdict_sentence import Race
from runmanager.core.outcome import LEADING, Status
from runmanager.core.values import COLUMNS
from runmanager.core.wording import printable
from runmanager.errors import InvalidArgumentError, MissingExtraError
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
        most = max(sizes.values(), default=0.0)
        if self.measure == CHANGE and sizes and math.isfinite(self.spread):
            sizes["repeats"] = self.spread
            most = max(most, self.spread)
        numbers = list(sizes.values())
        texts = list(map("{:.2g}".format, numbers)) if self.measure == CHANGE else percents(numbers)
        bars = zip(sizes, texts, numbers, strict=True)
        return [(name, text, round(100 * size / most, 1)) for name, text, size in bars] if most else []


@dataclass(frozen=True)
class Answers:
    """The answers from a table of runs.

    Attributes:
        runs: The table.
        findings: The ranking of the runs, and the verdict of their repeats; None if no column decides.
        headline: The best setting, the undecided comparison, or the reason why no setting is best; without a
            period.
        details: Sentences that complete the headline.
        result: A sentence on the setting with the best value; without repeats, this sentence is the headline.
        is_certain: Whether there is a result that the repeats have decided, and no run is missing.
        counts: Status -> number of runs, in the order of `Status`.
        run_seconds: The total duration of all runs (s).
    """

    runs: pd.DataFrame = field(repr=False)
    findings: Findings | None
    headline: str
    details: Sequence[str]
    result: str
    is_certain: bool
    counts: Mapping[str, int]
    run_seconds: float

    @property
    def sentences(self) -> list[str]:
        """The headline and the details, without periods, to be joined into a line of text."""
        return [self.headline, *(detail.removesuffix(".") for detail in self.details)]

    @cached_property
    def failures(self) -> list[Failure]:
        """The reasons why runs have no result."""
        return failures(self.runs, repeats=self.findings.repeats if self.findings else None)

    @cached_property
    def matters(self) -> Matters:
        """The influence of each hyperparameter; needs findings."""
        assert self.findings
        return _matters(self.runs, self.findings)

    def race(self, axis: str) -> Race:
        """Compare the values of an axis in otherwise equal settings, as the verdict does; needs findings."""
        assert self.findings
        findings, rule = self.findings, self.findings.rule
        values = of_values(self.runs, scores_of(self.runs, findings), findings.repeats, axis)[2]
        return values.race(rule.margin, rule.error)

    @cached_property
    def all_matters(self) -> list[Matters]:
        """The influence of each hyperparameter on each goal, the deciding goal first; needs findings."""
        assert self.findings
        others = (find(self.runs, str(goal), self.findings.repeats) for goal in self.findings.goals[1:])
        return [self.matters, *(_matters(self.runs, each) for each in others)]

    @property
    def matters_sentences(self) -> list[str]:
        """Say which hyperparameters matter for each goal; [] if fewer than two vary between settings."""
        is_choice = self.findings is not None and len(self.findings.settings) > 1
        if not is_choice or len(self.matters.changes) < 2:  # noqa: PLR2004 - nothing to compare
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
    counts = counts_of(runs["status"])
    is_over = not any(Status(word).is_open for word in counts) if is_over is None else is_over
    findings: Findings | None = None
    headline, result, details = "", "", list[str]()
    try:
        if goal is not None or own_goals(runs):
            findings = find(runs, goal, repeats)
    except InvalidArgumentError as error:
        if goal is not None or repeats is not None:
            raise
        headline = f"{error}"
    if findings and findings.settings:
        headline, result = findings.headline(is_over=is_over), findings.result(is_over=is_over)
        details = [*findings.details(is_over=is_over), *filter(None, [findings.front_sentence])]
    elif findings and Status.COMPLETED not in counts and (pruned := findings.pruned(runs)):
        headline = result = pruned[0]
        details = [pruned[1]]
    elif Status.COMPLETED not in counts:
        headline = "No run could start" if list(counts) == [Status.UNAVAILABLE] else "No run has completed"
    else:
        headline = headline or _question(runs, findings)
    seconds = float(runs["run duration"].sum()) if "run duration" in runs else 0.0
    is_certain = is_over and findings is not None and findings.is_certain
    return Answers(runs, findings, headline, details, result, is_certain, counts, seconds)


def columns_of_numbers(
    findings: Findings, runs: pd.DataFrame, settings: Sequence[Setting]
) -> dict[str, list[Any]]:
    """Return the columns of numbers for a table with one row for each of `settings`."""
    metric = findings.goal.metric
    columns: dict[str, list[Any]] = {
        goal.metric: [setting.means[index] for setting in settings] for index, goal in enumerate(findings.goals)
    }
    if findings.repeats:
        ends = zip(*((s.statistics.low, s.statistics.high) for s in settings), strict=True)
        columns |= {INTERVAL: intervals(metric, *ends), REPEATS: [setting.counts for setting in settings]}
    names = metrics_of(runs)
    logged = [name for name in names if name not in COLUMNS]
    for name in (findings.metric, companion(findings.metric, names), "run duration", *logged):
        if name in runs and name not in columns and is_numeric_dtype(runs[name]):
            numbers = completed(runs, name)
            columns[name] = [
                mean_of(numbers.iloc[list(setting.rows)].dropna().tolist()) for setting in settings
            ]
    return columns


def _question(runs: pd.DataFrame, findings: Findings | None) -> str:
    """Say why no completed run is best, and suggest a goal."""
    if findings:
        return f"No completed run has a number for {printable(findings.metric)}"
    names = [name for name in metrics_of(runs) if name not in LEADING[2:] and not runs[name].isna().all()]
    if not names:
        return "No run has a number to be ranked by: write manager.track_loss(loss, labels) or track(f1=0.5)"
    first, *others = names
    further = f" (or of {', '.join(others[:_MOST_NAMED])})" if others else ""
    return printable(
        f'Which run is best? No metric is the default: give goal="max:{first}" or goal="min:{first}"'
        f"{further}; nothing is executed again"
    )


def _matters(runs: pd.DataFrame, findings: Findings) -> Matters:
    """Measure how much each hyperparameter matters: by importance in a sample or search, else by changes."""
    changed = {change.axis.removesuffix(" (hyperparameter)"): change for change in changes(runs, findings)}
    spread, settings = repeats_differ(findings), findings.all_settings
    names = list(settings[0].params) if settings else []
    if len(findings.settings) >= _FEWEST and any(is_sampled([s.params[n] for s in settings]) for n in names):
        return _of_ranges(runs, findings, changed, spread)
    sizes = {name: change.mean for name, change in changed.items() if math.isfinite(change.mean)}
    return Matters(CHANGE, sizes, _changing(findings, sizes, spread), changed, spread)


def _of_ranges(runs: pd.DataFrame, findings: Findings, changed: Mapping[str, Change], spread: float) -> Matters:
    """Return the importances; without Optuna, the fraction of the variation that each axis explains."""
    repeats = list(findings.repeats)
    try:
        shares = importances(runs, str(findings.goal), repeats=repeats)
        measure, sentence = IMPORTANCE, what_matters(shares)
    except MissingExtraError:
        shares = effects(runs, findings.goal.metric, repeats=repeats).drop_duplicates("axis")
        shares, measure = shares.rename(columns={"explained": "importance"}), EXPLAINED
        name, share = next(zip(shares["axis"], shares["importance"], strict=True))
        of_all = f"{100 * share:.0f} % of the variation of {findings.goal.metric}"
        sentence = (
            f"All runs have the same {findings.goal.metric}."
            if math.isnan(share)
            else f"{name} explains {of_all}, by ranges of its values."
        )
    pairs = zip(shares["axis"], shares["importance"], strict=True)
    sizes = {str(name).removesuffix(" (hyperparameter)"): float(share) for name, share in pairs}
    return Matters(measure, sizes, sentence, changed, spread)


def _changing(findings: Findings, sizes: Mapping[str, float], spread: float) -> str:
    """Say how much changing each hyperparameter alone changes the metric."""
    if len(findings.settings) < 2:  # noqa: PLR2004 - a difference needs two
        return "Too few completed runs differ to show what matters."
    if not sizes:
        return (
            "No two settings differ in one hyperparameter alone, so none can be compared with all others equal."
        )
    (first, size), *others = sizes.items()
    if not size:
        return f"Changing one hyperparameter alone does not change {findings.goal.metric}."
    parts = [f"Changing {first} alone changes {findings.goal.metric} by {size:.2g} on average"]
    parts += [f"{name} by {size:.2g}" for name, size in others[: _MOST_NAMED - 1]]
    baseline = f"; repeats of a setting differ by {spread:.2g}" if math.isfinite(spread) else ""
    return f"{', '.join(parts)}{baseline}."

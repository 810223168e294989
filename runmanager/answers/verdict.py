"""What repeats have decided: which setting is best, or which value of an axis is better."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

import pandas as pd

from runmanager.answers.contest import Contest, contest, of_values, rule_of
from runmanager.answers.evidence import ERROR, fewest
from runmanager.answers.rivals import Lead
from runmanager.answers.verdict_sentence import UNDECIDED, Race
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.goal import Goal
from runmanager.storage.design import Rule, assumption
from runmanager.table import Table
from runmanager.tables.columns import HYPERPARAMETERS, KEPT, Numbers, from_columns
from runmanager.tables.ranking import (
    axes_of,
    check_comparable,
    completed,
    goals_of,
    ranking_of,
    repeats_of,
    scores_of,
)
from runmanager.wording import label, printable

_SETTING = "setting"  # instead of an axis


@dataclass(frozen=True, eq=False)
class Verdict:
    """What repeats have decided; `print` writes its sentence.

    Attributes:
        sentence: What is decided or what would decide it, and which repeats were lost.
        outcome: "better", "equal" (within the margin), "identical" or "undecided".
        better: The value of the axis that is better, or the hyperparameters of the best setting as a dict;
            undecided, the one that is ahead; None if there is none.
        worse: The same of the closest other one.
        difference: How much better it is than the closest other one: the mean over the repeats that both have,
            positive whatever the direction of the metric; NaN if there is none.
        low: The lower end of the interval of `difference` that holds at every look; NaN before there is one.
        high: Its upper end.
        repeats: How many repeats both have.
        evidence: How strong the evidence of a difference is; it is decided at 1 / error.
        metric: The metric that decides.
        assumptions: What the verdict assumes, in a line.
        table: A row per setting or value, the best first: its mean, the difference of the best one from it with
            its interval, the evidence, and what is decided about it.

    Example:
        >>> runs = pd.DataFrame({"width": [8, 64] * 6, "seed": [n // 2 for n in range(12)]})
        >>> runs["accuracy"] = [0.81, 0.84, 0.80, 0.85, 0.82, 0.85, 0.80, 0.83, 0.81, 0.85, 0.82, 0.86]
        >>> runs.attrs["hyperparameters"] = ["width", "seed"]  # load_runs() sets them
        >>> decision = verdict(runs)
        >>> decision.decided, decision.better == {"width": 64}, round(decision.difference, 3)
        (True, True, 0.037)
    """

    sentence: str
    outcome: str
    better: Any
    worse: Any
    difference: float
    low: float
    high: float
    repeats: int
    evidence: float
    metric: str
    assumptions: str
    table: pd.DataFrame = field(repr=False)

    @property
    def decided(self) -> bool:
        """Whether it is decided that one is better than all others, or that the best ones are equal."""
        return self.outcome != UNDECIDED

    def __str__(self) -> str:
        return self.sentence

    def drawn(self) -> Table:
        """Lay out the table as it is shown.

        Returns:
            The table, whose lines are as wide as is asked for.

        Example:
            >>> runs = pd.DataFrame({"width": [8, 64] * 2, "seed": [0, 0, 1, 1]})
            >>> runs["accuracy"] = [0.7, 0.8, 0.6, 0.8]
            >>> runs.attrs["hyperparameters"] = ["width", "seed"]
            >>> print(*verdict(runs).drawn().lines(), sep=chr(10))
            width  accuracy  seeds  difference  evidence  verdict
               64      0.80      2
                8      0.65      2        0.15     1.711  undecided
        """
        columns = [name for name in self.table if not self.table[name].isna().all()]
        measured = [self.metric, "difference", "low", "high"]
        first = [self.metric, "verdict", *self.table.attrs[HYPERPARAMETERS]]
        return Table.of(self.table[columns], even=measured, first=first)

    def _repr_html_(self) -> str:
        lines = [f"<p><b>{escape(self.sentence)}</b></p>", self.drawn().to_html()]
        return "\n".join([*lines, f"<p><small>{escape(self.assumptions)}</small></p>"])


def verdict(
    runs: pd.DataFrame,
    axis: str | None = None,
    *,
    goal: str | None = None,
    repeats: str | Sequence[str] | None = None,
    margin: float | None = None,
    error: float | None = None,
) -> Verdict:
    """Say which setting is best, or which value of an axis is better, or that it is not decided yet.

    Settings are compared repeat by repeat. The verdict may be looked at after every repeat, and repeats may be
    added until it is decided: the probability that it is ever wrong is at most `error`, of all looks and all
    pairs of settings together. Two settings take six repeats at least; more settings take more.

    Args:
        runs: What `load_runs` returned, or rows of it. All settings in it count as compared: give those that
            were planned, not those that turned out to be good.
        axis: The hyperparameter whose values are compared where all others are equal, or "experiment" for the
            runs of ``load_runs([a, b])``, or "setting" to compare settings. By default the axis of
            ``run_grid(decide=Decide(axis=...))``, else settings.
        goal: The metric that decides, as in `best`.
        repeats: The axes that only repeat a setting, as in `best`. Without any, each of the settings that
            differ in `axis` alone counts as a repeat.
        margin: The difference that does not matter, in units of the metric: smaller ones count as equal. By
            default that of `Decide`, if the metric is its own.
        error: The probability that the verdict is wrong, between 0 and 1; by default that of `Decide`, else
            0.05.

    Returns:
        The verdict. Repeats that only one of two has are left out of their difference. Failed and diverged
        repeats have no number; the sentence counts them.

    Raises:
        InvalidArgumentError: There is no such axis or column, the direction of the metric is not known, or
            `margin` or `error` cannot be used.

    Example:
        >>> adam, sgd = [0.81, 0.84, 0.83, 0.82, 0.85, 0.83, 0.84], [0.79, 0.82, 0.80, 0.81, 0.82, 0.81, 0.82]
        >>> runs = pd.DataFrame({"optimizer": ["adam"] * 7 + ["sgd"] * 7, "seed": [*range(7)] * 2})
        >>> runs["accuracy"] = adam + sgd
        >>> runs.attrs["hyperparameters"] = ["optimizer", "seed"]  # load_runs() sets them
        >>> print(verdict(runs, axis="optimizer"))
        adam is better than sgd by 0.021 (0.011 to 0.032), decided after 7 seeds
    """
    goals = goals_of(runs, goal)
    rule = rule_of(runs, goals[0].metric, repeats_of(runs, repeats)[0])
    if axis is None or (axis == _SETTING and axis not in axes_of(runs)):
        axis = rule.axis if axis is None else None
    margin, error = rule.margin if margin is None else margin, rule.error if error is None else error
    comparison = compared(runs, axis, goal, repeats, margin=margin, error=error)
    decisive, axes, _, values, order, between = comparison
    race = between.race(order, margin, error) if order else Race([], [], between.unit, between.rivals)
    lead = race.leads[0] if race.leads else _NONE
    ran_once = axis is None and not axes and bool(race.leads)
    sentence = _ran_once(error, repeats_of(runs)[0]) if ran_once else race.sentence
    if (
        not race.leads
        and axis not in (None, "experiment")
        and _num_scored(runs, decisive, comparison.rivals) > 1
    ):
        rest = "; importances() says what matters in a sample or a search"
        sentence = f"undecided: no two settings differ in {printable(str(axis))} alone{rest}"
    better, worse = [*(values[rival] for rival in race.positions[:2]), None, None][:2]
    return Verdict(
        sentence=sentence,
        outcome=UNDECIDED if ran_once else race.outcome,
        better=better,
        worse=worse,
        difference=lead.mean,
        low=lead.low,
        high=lead.high,
        repeats=lead.n,
        evidence=lead.evidence,
        metric=decisive.metric.removeprefix(KEPT),
        assumptions=_assumptions(between, axes, error, is_assumed=bool(axes) and repeats_of(runs, repeats)[1]),
        table=_table(between, order, race, decisive, values, axis),
    )


class Comparison(NamedTuple):
    """Which run of a table counts for which rival, and the contest between them."""

    goal: Goal
    axes: Sequence[str]  # that only repeat
    rivals: Numbers  # (runs,) a position in `names`
    names: Sequence[Any]  # values of the axis, or hyperparameters of each setting
    order: Sequence[int]  # of the rivals, the best first
    contest: Contest


def compared(
    runs: pd.DataFrame,
    axis: str | None = None,
    goal: str | None = None,
    repeats: str | Sequence[str] | None = None,
    *,
    margin: float | None = None,
    error: float = ERROR,
) -> Comparison:
    """Find out what `verdict` compares; the arguments are its own, but for their defaults.

    Raises:
        InvalidArgumentError: As `verdict`.
    """
    axes = [name for name in repeats_of(runs, repeats)[0] if name != axis]
    problems = Problems()
    with problems.collecting():
        check_comparable(runs, [] if axis is None else [axis], [])
    with problems.collecting():
        ranking = ranking_of(runs, goal, axes)
    problems += Rule(None, margin, error).problems()
    problems.raise_if_any(InvalidArgumentError)
    decisive = ranking.goal
    scores = scores_of(runs, ranking)
    if axis is None:
        values = [setting.params for setting in ranking.all_settings]
        names = [label(value) or "the only setting" for value in values]
        between = contest(runs, scores, names, ranking.codes, axes)
        return Comparison(decisive, axes, ranking.codes, values, range(len(values)), between)
    rivals, named, between = of_values(runs, scores, axes, axis)
    return Comparison(decisive, axes, rivals, named, between.order, between)


_NONE = Lead(0, math.nan, math.nan, math.nan, math.nan, 1.0, math.inf)


def _num_scored(runs: pd.DataFrame, goal: Goal, rivals: Numbers) -> int:
    """Count the rivals that have a number, compared or not."""
    return len(set(rivals[completed(runs, goal.metric).notna().to_numpy()].tolist()))


def _ran_once(error: float, axes: Sequence[str]) -> str:
    """Say that nothing repeats a setting; the runs may have an axis that could, by its name."""
    step = f'repeat them, as with the axis "seed": range({fewest(1 / error)}) and repeats="seed"'
    if axes:
        step = f"repeats={axes[0]!r} takes the runs of a setting as its repeats"
    return f"undecided: each setting ran once, so any lead may be chance; {step}"


def _assumptions(between: Contest, axes: Sequence[str], error: float, *, is_assumed: bool) -> str:
    """Say in a line what a verdict assumes, and what it is about."""
    num_parts, unit = between.scores.shape[2], between.unit
    pairs = len(between.names) * (len(between.names) - 1) // 2
    of_all = f" for all {pairs} pairs together" if pairs > 1 else ""
    facts = [
        f"assumes that swapping two equal {between.rivals} in any {unit} would change nothing",
        f"wrong with a probability of at most {error:g}{of_all}, however often one looks",
    ]
    if unit == "setting":
        facts.append("each of the settings that differ in nothing else counts as a repeat")
    elif num_parts > 1:
        facts.append(f"a {unit} counts once, by its mean over {num_parts} settings that differ in nothing else")
    if "fold" in axes:
        facts.append("over these folds, whose training data overlap")
    elif axes:
        facts.append("repeats of the training, on these data and this test set")
    if is_assumed:
        facts.append(assumption(axes))
    return "; ".join(facts)


def _table(
    between: Contest, order: Sequence[int], race: Race, goal: Goal, values: Sequence[Any], axis: str | None
) -> pd.DataFrame:
    """Return a row per rival, the best first."""
    leads: dict[int, Lead] = dict(zip(race.positions[1:], race.leads, strict=True))
    states = dict(zip(race.positions[1:], race.states, strict=True))
    rows = [*race.positions, *(rival for rival in order if rival not in race.positions)]
    if axis is None:
        params = {name: [values[rival][name] for rival in rows] for name in (values[0] if values else ())}
    else:
        params = {axis: [values[rival] for rival in rows]}
    numbers, means = between.num_repeats, goal.sign * between.means
    each = [leads.get(rival, _NONE) for rival in rows]
    computed: dict[str, list[Any]] = {
        goal.metric.removeprefix(KEPT): [float(means[rival]) for rival in rows],
        f"{between.unit}s": [int(numbers[rival]) for rival in rows],
        "difference": [lead.mean for lead in each],
        "low": [lead.low for lead in each],
        "high": [lead.high for lead in each],
        "evidence": [leads[rival].evidence if rival in leads else math.nan for rival in rows],
        "verdict": [states.get(rival, "" if rival in race.positions else "no result") for rival in rows],
    }
    names = {name: name if name not in computed else f"{name} (hyperparameter)" for name in params}
    table = from_columns(
        {**{names[name]: column for name, column in params.items()}, **computed}, names.values()
    )
    table.attrs[HYPERPARAMETERS] = list(names.values())
    return table

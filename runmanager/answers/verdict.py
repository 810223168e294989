"""The verdict of repeats: the best setting, or the better value of an axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

import pandas as pd

from runmanager.answers.contest import Contest, contest, of_values, rule_of
from runmanager.answers.evidence import ERROR, fewest
from runmanager.answers.leads import Lead
from runmanager.answers.ranking import (
    axes_of,
    check_comparable,
    completed,
    goals_of,
    ranking_of,
    repeats_of,
    scores_of,
)
from runmanager.answers.usual_goals import assumption
from runmanager.answers.verdict_sentence import UNDECIDED, Race
from runmanager.core.goal import Goal
from runmanager.core.wording import printable
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.table import Table
from runmanager.tables.cells import labels
from runmanager.tables.columns import HYPERPARAMETERS, Numbers, check_table, from_columns

_SETTING = "setting"  # the value of `axis` that compares settings


@dataclass(frozen=True, eq=False)
class Verdict:
    """The verdict of repeats; `print` writes its sentence.

    Attributes:
        sentence: The decision, or the number of repeats that would decide; also the lost repeats.
        outcome: "better", "equal" (within the margin), "identical" or "undecided".
        better: The better value of the axis, or the hyperparameters of the best setting as a dict. Before a
            decision, the rival that is ahead; None if no rival is ahead.
        worse: The closest other value or setting, in the same form.
        difference: The lead of `better` over `worse`: the mean over the repeats that both have. The lead is
            positive if `better` is ahead, whatever the direction of the metric; NaN without such repeats.
        low: The lower end of the interval of `difference`, valid at every look; NaN without an interval.
        high: The upper end of this interval.
        repeats: The number of repeats that `better` and `worse` both have.
        evidence: The strength of the evidence for a difference; at 1 / error the difference is decided.
        metric: The metric that decides.
        assumptions: The assumptions of the verdict, in one line.
        table: A row per setting or value, the best first: its mean, the lead of the best row over this row with
            the interval, the evidence, and the decision.

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
        """Whether repeats have decided that one rival is better than all others, or that the best are equal."""
        return self.outcome != UNDECIDED

    def __str__(self) -> str:
        return self.sentence

    def drawn(self) -> Table:
        """Lay out the table for display.

        Returns:
            The table; its `lines` are plain text.

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
    """Decide which setting is best, or which value of an axis is better, if the repeats suffice.

    Settings are compared repeat by repeat. You may look at the verdict after every repeat, and add repeats
    until the verdict is decided: the probability that the verdict is ever wrong is at most `error`, over all
    looks and all pairs of settings together. Two settings need six repeats or more; more settings need more
    repeats.

    Args:
        runs: The table of `load_runs`, or rows of it. The error covers all settings in the table: give all
            planned settings, not only the settings that turned out to be good.
        axis: The hyperparameter whose values are compared in otherwise equal settings; "experiment" for the
            runs of ``load_runs([a, b])``; or "setting" to compare settings. The default is the axis of
            ``run_grid(decide=Decide(axis=...))``, else "setting".
        goal: The metric that decides, as in `best`.
        repeats: The axes that only repeat a setting, as in `best`. Without repeat axes, the settings that
            differ in `axis` alone count as repeats.
        margin: The smallest difference that matters, in units of the metric; smaller differences count as
            equal. By default the margin of `Decide`, if `goal` is the grid's goal.
        error: The maximum probability that the verdict is wrong, between 0 and 1; by default the error of
            `Decide`, else 0.05.

    Returns:
        The verdict. A difference uses only the repeats that both rivals have. Failed and diverged repeats have
        no value; the sentence counts such repeats.

    Raises:
        InvalidArgumentError: `axis` or `repeats` names no hyperparameter, `goal` names no column of numbers or
            a metric without a known direction, or `margin` or `error` is out of range.

    Example:
        >>> adam, sgd = [0.81, 0.84, 0.83, 0.82, 0.85, 0.83, 0.84], [0.79, 0.82, 0.80, 0.81, 0.82, 0.81, 0.82]
        >>> runs = pd.DataFrame({"optimizer": ["adam"] * 7 + ["sgd"] * 7, "seed": [*range(7)] * 2})
        >>> runs["accuracy"] = adam + sgd
        >>> runs.attrs["hyperparameters"] = ["optimizer", "seed"]  # load_runs() sets them
        >>> print(verdict(runs, axis="optimizer"))
        adam is better than sgd by 0.021 (0.011 to 0.032), decided after 7 seeds
    """
    goals = goals_of(runs, goal)
    check_table(runs, needs_axes=True)
    rule = rule_of(runs, goals[0].metric, repeats_of(runs, repeats)[0])
    if axis is None or (axis == _SETTING and axis not in axes_of(runs)):
        axis = rule.axis if axis is None else None
    margin, error = rule.margin if margin is None else margin, rule.error if error is None else error
    comparison = compared(runs, axis, goal, repeats, margin=margin, error=error)
    decisive, axes, _, values, between = comparison
    race = between.race(margin, error)
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
        metric=decisive.metric,
        assumptions=_assumptions(between, axes, error, is_assumed=bool(axes) and repeats_of(runs, repeats)[1]),
        table=_table(between, race, decisive, values, axis),
    )


class Comparison(NamedTuple):
    """The rivals of a verdict: the rival of each run, and the contest between the rivals."""

    goal: Goal
    axes: Sequence[str]  # the repeat axes
    rivals: Numbers  # (runs,) the rival of each run, as a position in `names`
    names: Sequence[Any]  # values of the axis, or hyperparameters of each setting
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
    """Return the comparison of `verdict`; the arguments have the same meaning, but other defaults."""
    axes = [name for name in repeats_of(runs, repeats)[0] if name != axis]
    problems = Problems()
    with problems.collecting():
        check_comparable(runs, [] if axis is None else [axis], [])
    with problems.collecting():
        ranking = ranking_of(runs, goal, axes)
    problems.check_margin(margin, error)
    problems.raise_if_any(InvalidArgumentError)
    decisive = ranking.goal
    scores = scores_of(runs, ranking)
    if axis is None:
        values = [setting.params for setting in ranking.all_settings]
        names = [name or "the only setting" for name in labels(values)]
        between = contest(runs, scores, names, ranking.codes, axes)
        return Comparison(decisive, axes, ranking.codes, values, between)
    rivals, named, between = of_values(runs, scores, axes, axis)
    return Comparison(decisive, axes, rivals, named, between)


_NONE = Lead(0, math.nan, math.nan, math.nan, math.nan, 1.0, math.inf)


def _num_scored(runs: pd.DataFrame, goal: Goal, rivals: Numbers) -> int:
    """Return the number of rivals that have a score, even if they are not compared."""
    return len(set(rivals[completed(runs, goal.metric).notna().to_numpy()].tolist()))


def _ran_once(error: float, axes: Sequence[str]) -> str:
    """Say that each setting ran once, and suggest a repeat axis: the first of `axes`, else a seed."""
    step = f'repeat them, as with the axis "seed": range({fewest(1 / error)}) and repeats="seed"'
    if axes:
        step = f"repeats={axes[0]!r} takes the runs of a setting as its repeats"
    return f"undecided: each setting ran once, so any lead may be chance; {step}"


def _assumptions(between: Contest, axes: Sequence[str], error: float, *, is_assumed: bool) -> str:
    """Write the assumptions and the scope of a verdict in one line."""
    num_parts, unit = between.scores.shape[2], between.unit
    pairs = len(between.names) * (len(between.names) - 1) // 2
    of_all = f" over all {pairs} pairs" if pairs > 1 else ""
    facts = [
        f"an error of at most {100 * error:g} %{of_all}, however often one looks",
        f"assumes that equal {between.rivals} could be swapped in any {unit}",
    ]
    if unit == "setting":
        facts.append("each of the settings that differ in nothing else counts as a repeat")
    elif num_parts > 1:
        facts.append(f"a {unit} counts once, by its mean over {num_parts} settings that differ in nothing else")
    if "fold" in axes:
        facts.append("over these folds, whose training data overlap")
    elif axes:
        facts.append("repeats of the training, on these data")
    if is_assumed:
        facts.append(assumption(axes))
    return "; ".join(facts)


def _table(between: Contest, race: Race, goal: Goal, values: Sequence[Any], axis: str | None) -> pd.DataFrame:
    """Return a row per rival, the best first."""
    leads: dict[int, Lead] = dict(zip(race.positions[1:], race.leads, strict=True))
    states = dict(zip(race.positions[1:], race.states, strict=True))
    rows = [*race.positions, *(rival for rival in between.order if rival not in race.positions)]
    if axis is None:
        params = {name: [values[rival][name] for rival in rows] for name in (values[0] if values else ())}
    else:
        params = {axis: [values[rival] for rival in rows]}
    numbers, means = between.num_repeats, goal.sign * between.means
    each = [leads.get(rival, _NONE) for rival in rows]
    without = {rival: "not compared" if rival in between.alone else "no result" for rival in rows}
    without |= dict.fromkeys(race.positions, "")
    computed: dict[str, list[Any]] = {
        goal.metric: [float(means[rival]) for rival in rows],
        f"{between.unit}s": [int(numbers[rival]) for rival in rows],
        "difference": [lead.mean for lead in each],
        "low": [lead.low for lead in each],
        "high": [lead.high for lead in each],
        "evidence": [leads[rival].evidence if rival in leads else math.nan for rival in rows],
        "verdict": [states.get(rival, without.get(rival, "")) for rival in rows],
    }
    names = {name: name if name not in computed else f"{name} (hyperparameter)" for name in params}
    table = from_columns(
        {**{names[name]: column for name, column in params.items()}, **computed}, names.values()
    )
    table.attrs[HYPERPARAMETERS] = list(names.values())
    return table

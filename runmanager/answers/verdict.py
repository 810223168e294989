"""The verdict of repeats: the best setting, or the better value of an axis."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import pandas as pd

from runmanager.answers.contest import UNDECIDED, Contest, rule_of
from runmanager.answers.ranking import (
    axes_of,
    check_comparable,
    goals_of,
    ranking_of,
    repeats_of,
)
from runmanager.answers.verdict_sentence import sentence_of
from runmanager.drawing.table import Table
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.tables.columns import check_table


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
        evidence: The strength of the evidence for a difference.
        decisive: The evidence at which the difference is decided, 1 / error.
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
    decisive: float
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
            width  accuracy  seeds  difference  evidence (20 decides)  verdict
               64      0.80      2
                8      0.65      2        0.15                  1.711  undecided
        """
        columns = [name for name in self.table if not self.table[name].isna().all()]
        params = columns[: columns.index(self.metric)] if self.metric in columns else []
        measured = [self.metric, "difference", "low", "high"]
        table = self.table[columns].rename(columns={"evidence": f"evidence ({self.decisive:g} decides)"})
        return Table.of(table, even=measured, first=[self.metric, "verdict", *params])

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
    check_table(runs, needs_axes=True)
    rule = rule_of(runs, goals_of(runs, goal)[0].metric, repeats_of(runs, repeats)[0])
    if axis is None:
        axis = rule.axis
    elif axis == "setting" and axis not in axes_of(runs):
        axis = None
    margin, error = rule.margin if margin is None else margin, rule.error if error is None else error
    problems = Problems()
    with problems.collecting():
        check_comparable(runs, [] if axis is None else [axis])
        ranking = ranking_of(runs, goal, repeats, axis)
    problems.check_margin(margin, error)
    problems.raise_if_any(InvalidArgumentError)
    contest = Contest(runs, ranking, axis, margin, error)
    lead = contest.closest
    better, worse, *_ = [*(contest.levels[rival] for rival in contest.positions), None, None]
    assumptions = [
        f"an error of at most {100 * error:g} % over all pairs, however often one looks",
        f"assumes that equal {contest.noun} could be swapped in any {contest.unit}",
        "over these folds, whose training data overlap"
        if "fold" in contest.ranking.repeats
        else "on these data",
        contest.ranking.assumption,
    ]
    return Verdict(
        sentence=sentence_of(contest),
        outcome=contest.outcome,
        better=better,
        worse=worse,
        difference=lead.mean,
        low=lead.low,
        high=lead.high,
        repeats=lead.n,
        evidence=lead.evidence,
        decisive=1 / error,
        metric=contest.metric,
        assumptions="; ".join(filter(None, assumptions)),
        table=contest.table(),
    )

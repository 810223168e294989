"""What the repeats of a planned grid can decide, from the spread between its repeats so far."""

import contextlib
import math
from collections.abc import Sequence

from runmanager.answers.contest import NO_LEAD, Contest
from runmanager.answers.evidence import Lead, fewest
from runmanager.answers.power import ENOUGH, PROMISED, level, smallest
from runmanager.answers.ranking import ranking_of
from runmanager.core.experiment import Design, Rule, varying
from runmanager.core.state import RunResult
from runmanager.core.values import identity
from runmanager.errors import InvalidArgumentError
from runmanager.tables.columns import runs_table


def foresight(lead: Lead, unit: str, num_rivals: int, num_repeats: int, rule: Rule | None) -> str:
    """Say which difference the planned repeats decide, or why this is unknown; "" if none varies.

    Args:
        lead: A difference of two rivals, with its standard deviation between repeats; NaN if it is unknown.
        unit: The word for a repeat.
        num_rivals: The number of compared settings or values.
        num_repeats: The planned number of repeats.
        rule: The rule that ends repeats at a decision; None if all repeats are executed.
    """
    units, error = f"{unit}s", (rule or Rule()).error
    if num_repeats < (least := fewest(level(num_rivals, error))):
        return f"! {num_repeats} {units} cannot decide: a verdict needs at least {least} {units}"
    if math.isnan(lead.std):
        return f"{ENOUGH} {units} tell which difference {num_repeats} {units} can decide"
    if not lead.std:
        return ""
    size = smallest(num_repeats, num_rivals, error, known_by=lead.n - 1, anytime=rule is not None) * lead.std
    text = f"With {num_repeats} {units}, a difference of {size:.2g} is decided in {10 * PROMISED:g} of 10 cases"
    return f"{text} (by the spread of {lead.n} {units})"


def foresee(name: str, design: Design, results: Sequence[RunResult]) -> str:
    """Say what the repeats of a planned grid can decide; "" if its runs are no repeats of several rivals."""
    runs = [result.folder.params for result in results]
    names = varying(runs)
    axes, axis = design.repeating(names), design.decide.axis if design.decide else None
    of_rival = [name for name in names if name not in axes] if axis is None else [axis]
    num_rivals, num_repeats = (
        len({identity({name: params[name] for name in names if name in params}) for params in runs})
        for names in (of_rival, axes)
    )
    if not axes or min(num_rivals, num_repeats) < 2:  # noqa: PLR2004 - there is nothing to compare
        return ""
    leads: list[Lead] = []
    table = runs_table({name: results}, design)
    with contextlib.suppress(InvalidArgumentError):  # no run has the goal's metric, or there is no such axis
        contest = Contest(table, ranking_of(table, repeats=axes, axis=axis), axis)
        leads = [lead for lead in contest.leads.values() if lead.n >= ENOUGH]
    leads.sort(key=lambda lead: lead.std)
    lead = leads[len(leads) // 2] if leads else NO_LEAD
    return foresight(lead, axes[0] if len(axes) == 1 else "repeat", num_rivals, num_repeats, design.decide)

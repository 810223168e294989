"""What the repeats of a planned grid can decide, from the spread between its repeats so far."""

import contextlib
import math
from collections.abc import Sequence

from runmanager.answers.contest import Contest
from runmanager.answers.evidence import Lead, fewest
from runmanager.answers.power import ENOUGH, PROMISED, level, smallest
from runmanager.answers.ranking import ranking_of
from runmanager.core.experiment import Design, Rule, varying
from runmanager.core.state import RunResult
from runmanager.core.values import identity
from runmanager.errors import InvalidArgumentError
from runmanager.tables.columns import runs_table


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
    units, error = f"{axes[0] if len(axes) == 1 else 'repeat'}s", (design.decide or Rule()).error
    if num_repeats < (least := fewest(level(num_rivals, error))):
        return f"! {num_repeats} {units} cannot decide: a verdict needs at least {least} {units}"
    leads: list[Lead] = []
    table = runs_table({name: results}, design)
    with contextlib.suppress(InvalidArgumentError):  # no run has the goal's metric, or there is no such axis
        contest = Contest(table, ranking_of(table, repeats=axes, axis=axis), axis)
        leads = [lead for lead in contest.leads.values() if lead.n >= ENOUGH and math.isfinite(lead.std)]
    if not leads:
        return f"{ENOUGH} {units} tell which difference {num_repeats} {units} can decide"
    lead = sorted(leads, key=lambda lead: lead.std)[len(leads) // 2]
    anytime = design.decide is not None  # a look after each repeat, or after the last one
    size = smallest(num_repeats, num_rivals, error, known_by=lead.n - 1, anytime=anytime) * lead.std
    text = f"With {num_repeats} {units}, a difference of {size:.2g} is decided in {10 * PROMISED:g} of 10 cases"
    return f"{text} (by the spread of {lead.n} {units})" if size else ""

"""What the repeats of a planned grid can decide, from the spread between repeats in journals."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from runmanager.answers.contest import NO_LEAD, Contest
from runmanager.answers.evidence import Lead, fewest
from runmanager.answers.power import ENOUGH, PROMISED, level, most_repeats, repeats_for, smallest
from runmanager.answers.ranking import ranking_of
from runmanager.core import files
from runmanager.core.experiment import Design, Experiment, Rule, varying
from runmanager.core.state import RunResult, read_run
from runmanager.core.values import identity
from runmanager.core.wording import printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables.columns import runs_table

_FURTHER = 3  # the second difference in the sentence is smaller by this factor


def foresight(
    lead: Lead,
    unit: str,
    num_rivals: int,
    num_repeats: int,
    rule: Rule | None,
    time_of: Callable[[float], str],
    *,
    source: str = "",
    is_leading: bool = False,
) -> str:
    """Say which difference the planned repeats decide, or why this is unknown; "" if none varies.

    Args:
        lead: The difference of two rivals so far, with its standard deviation between repeats.
        unit: The word for a repeat.
        num_rivals: The number of compared settings or values.
        num_repeats: The planned number of repeats.
        rule: The rule that ends repeats at a decision; None if all repeats are executed.
        time_of: Returns the time that a number of repeats takes, "" if it is unknown.
        source: The other experiment in which the lead was measured.
        is_leading: Whether the sentence says how many repeats this lead takes.
    """
    units, error = f"{unit}s", (rule or Rule()).error
    if num_repeats < (least := fewest(level(num_rivals, error))):
        return f"! {num_repeats} {units} cannot decide: a verdict needs at least {least} {units}"
    if math.isnan(lead.std):
        return f"{ENOUGH} {units} tell which difference {num_repeats} {units} can decide"
    if not lead.std:
        return ""
    known_by, anytime = lead.n - 1, rule is not None
    size = smallest(num_repeats, num_rivals, error, known_by=known_by, anytime=anytime) * lead.std
    further = abs(lead.mean) if is_leading else size / _FURTHER
    n = repeats_for(further / lead.std, num_rivals, error, known_by=known_by, anytime=anytime)
    takes = f"more than {most_repeats(num_rivals):,} {units}"
    if math.isfinite(n):
        time = time_of(n)
        takes = f"about {float(f'{n:.2g}'):g} {units}{time and f', {time}'}"
    time = f" ({time})" if anytime and (time := time_of(num_repeats)) else ""
    text = f"With {num_repeats} {units}{time}, a difference of {size:.2g} is decided"
    text += f" in {10 * PROMISED:g} of 10 cases; {'the lead of ' * is_leading}{further:.2g} takes {takes}"
    return f"{text} (by the spread of {lead.n} {units}{source and f' in {source}'})"


def foresee(
    experiment: Path, design: Design, results: Sequence[RunResult], time_of: Callable[[int], str]
) -> str:
    """Say what the repeats of a planned grid can decide; "" if its runs are no repeats of several rivals."""
    runs = [result.folder.params for result in results]
    axes = design.repeating(varying(runs))
    axis = design.decide.axis if design.decide else None
    of_rival = [name for name in varying(runs) if name not in axes] if axis is None else [axis]
    num_rivals, num_repeats = (
        len({identity({name: params[name] for name in names if name in params}) for params in runs})
        for names in (of_rival, axes)
    )
    if not axes or min(num_rivals, num_repeats) < 2:  # noqa: PLR2004 - there is nothing to compare
        return ""
    lead, unit, source = (
        _measured(experiment.name, design, results),
        axes[0] if len(axes) == 1 else "repeat",
        "",
    )
    if math.isnan(lead.std):
        lead, source = next(_elsewhere(experiment, design), (lead, ""))

    def time_of_repeats(number: float) -> str:
        return time_of(round(number * len(runs) / num_repeats))

    return foresight(lead, unit, num_rivals, num_repeats, design.decide, time_of_repeats, source=source)


def _measured(name: str, design: Design, results: Sequence[RunResult]) -> Lead:
    """Return the lead of an experiment whose spread is the median over the rivals of the best one."""
    axes = design.repeating(varying([result.folder.params for result in results]))
    if not any(result.epochs for result in results):
        return NO_LEAD
    try:
        axis = design.decide.axis if design.decide else None
        runs = runs_table({name: results}, design)
        contest = Contest.of(runs, ranking_of(runs, repeats=axes, axis=axis), axis)
    except InvalidArgumentError:  # no run has the goal's metric, or there is no such axis
        return NO_LEAD
    leads = sorted((lead for lead in contest.leads.values() if lead.n >= ENOUGH), key=lambda lead: lead.std)
    return leads[len(leads) // 2] if leads else NO_LEAD


def _elsewhere(experiment: Path, design: Design) -> Iterator[tuple[Lead, str]]:
    """Yield the leads in other experiments of the root with the same goal, the latest first."""
    grids = [path for path in experiment.parent.glob(f"*/{files.GRID}") if path.parent != experiment]
    for path in sorted(grids, key=lambda path: path.stat().st_mtime, reverse=True) if design.goal else ():
        other = Experiment(path.parent)
        if other.design.goal == design.goal:
            results = list(map(read_run, other.runs.values()))
            lead = _measured(path.parent.name, other.design, results)
            if not math.isnan(lead.std):
                yield lead, printable(path.parent.name)

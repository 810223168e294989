"""What the repeats of a planned grid can decide, from the spread between repeats in journals."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from runmanager.answers.contest import Contest
from runmanager.answers.evidence import fewest
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


class Spread(NamedTuple):
    """The standard deviation of the difference between two rivals from repeat to repeat."""

    std: float  # NaN if there are too few repeats
    n: int  # number of repeats
    unit: str  # the word for a repeat
    source: str = ""  # the other experiment that has these repeats


def foresight(
    spread: Spread,
    num_rivals: int,
    num_repeats: int,
    num_runs: int,
    error: float,
    time_of: Callable[[int], str],
    *,
    anytime: bool,
    lead: float = math.nan,
) -> str:
    """Say which difference the planned repeats decide, or why this is unknown; "" if none varies.

    Args:
        spread: The spread between repeats so far.
        num_rivals: The number of compared settings or values.
        num_repeats: The planned number of repeats.
        num_runs: The number of runs of all repeats.
        error: The probability that the verdict is wrong.
        time_of: Returns the time that a number of runs takes, "" if it is unknown.
        anytime: Whether repeats end at a decision.
        lead: The lead so far, if the sentence says how many repeats it takes.
    """
    units = f"{spread.unit}s"
    if num_repeats < (least := fewest(level(num_rivals, error))):
        return f"! {num_repeats} {units} cannot decide: a verdict needs at least {least} {units}"
    if math.isnan(spread.std):
        return f"{ENOUGH} {units} tell which difference {num_repeats} {units} can decide"
    if not spread.std:
        return ""
    known_by = spread.n - 1
    size = smallest(num_repeats, num_rivals, error, known_by=known_by, anytime=anytime) * spread.std
    further, what = size / _FURTHER, ""
    if not math.isnan(lead):
        further, what = abs(lead), "the lead of "
    n = repeats_for(further / spread.std, num_rivals, error, known_by=known_by, anytime=anytime)
    takes = f"more than {most_repeats(num_rivals):,} {units}"
    if math.isfinite(n):
        time = time_of(round(n * num_runs / num_repeats))
        takes = f"about {float(f'{n:.2g}'):g} {units}{time and f', {time}'}"
    time = f" ({time})" if anytime and (time := time_of(num_runs)) else ""
    text = f"With {num_repeats} {units}{time}, a difference of {size:.2g} is decided"
    text += f" in {10 * PROMISED:g} of 10 cases"
    basis = f"by the spread of {spread.n} {units}{spread.source and f' in {spread.source}'}"
    return f"{text}; {what}{further:.2g} takes {takes} ({basis})"


def foresee(
    experiment: Path,
    design: Design,
    results: Sequence[RunResult],
    time_of: Callable[[int], str],
    *,
    anytime: bool,
) -> str:
    """Say what the repeats of a planned grid can decide; "" if its runs are no repeats of several rivals."""
    runs = [result.folder.params for result in results]
    axes = design.repeating(varying(runs))
    rule = design.decide or Rule()
    of_rival = [name for name in varying(runs) if name not in axes] if rule.axis is None else [rule.axis]
    rivals, repeats = (
        {identity({name: params[name] for name in names if name in params}) for params in runs}
        for names in (of_rival, axes)
    )
    if not axes or min(len(rivals), len(repeats)) < 2:  # noqa: PLR2004 - there is nothing to compare
        return ""
    spread = spread_of(experiment.name, design, results)
    if math.isnan(spread.std):
        spread = next(_elsewhere(experiment, design), spread)
    return foresight(spread, len(rivals), len(repeats), len(runs), rule.error, time_of, anytime=anytime)


def spread_of(name: str, design: Design, results: Sequence[RunResult]) -> Spread:
    """Return the spread of an experiment: the median over the rivals of the best one."""
    axes = design.repeating(varying([result.folder.params for result in results]))
    nothing = Spread(math.nan, 0, axes[0] if len(axes) == 1 else "repeat")
    if not any(result.epochs for result in results):
        return nothing
    try:
        axis = None if design.decide is None else design.decide.axis
        runs = runs_table({name: results}, design)
        contest = Contest.of(runs, ranking_of(runs, repeats=axes, axis=axis), axis)
    except InvalidArgumentError:  # no run has the goal's metric, or there is no such axis
        return nothing
    spreads = sorted((lead.std, lead.n) for lead in contest.leads.values() if lead.n >= ENOUGH)
    return Spread(*spreads[len(spreads) // 2], contest.unit) if spreads else nothing


def _elsewhere(experiment: Path, design: Design) -> Iterator[Spread]:
    """Yield the spreads in other experiments of the root with the same goal, the latest first."""
    grids = [path for path in experiment.parent.glob(f"*/{files.GRID}") if path.parent != experiment]
    for path in sorted(grids, key=lambda path: path.stat().st_mtime, reverse=True) if design.goal else ():
        other = Experiment(path.parent)
        if other.design.goal == design.goal:
            results = list(map(read_run, other.runs.values()))
            spread = spread_of(path.parent.name, other.design, results)
            if not math.isnan(spread.std):
                yield spread._replace(source=printable(path.parent.name))

"""What the repeats of a planned grid can decide, from the spread between repeats in journals."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runmanager.answers.contest import Contest
from runmanager.answers.evidence import differences, fewest
from runmanager.answers.power import ENOUGH, PROMISED, level, most_repeats, repeats_for, smallest
from runmanager.answers.ranking import ranking_of
from runmanager.core import files
from runmanager.core.experiment import Design, Experiment, Rule, varying
from runmanager.core.state import RunResult, read_run
from runmanager.core.values import identity
from runmanager.core.wording import printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables.columns import runs_table

_OFTEN = f"{round(10 * PROMISED)} of 10 cases"
_FURTHER = 3  # the second difference in the sentence is smaller by this factor


@dataclass(frozen=True)
class Spread:
    """The standard deviation of the difference between two rivals from repeat to repeat."""

    std: float  # NaN if there are too few repeats
    n: int  # number of repeats
    unit: str = "seed"  # the word for a repeat
    source: str = ""  # the other experiment that has these repeats


@dataclass(frozen=True)
class Foresight:
    """The repeats of a planned grid, and the spread between repeats so far."""

    num_rivals: int
    num_repeats: int
    num_runs: int  # number of runs of all repeats
    spread: Spread
    error: float
    anytime: bool  # whether repeats end at a decision
    lead: float = math.nan  # the lead so far, if the sentence says how many repeats it takes

    def sentence(self, time_of: Callable[[int], str]) -> str:
        """Say which difference the repeats decide, or why this is unknown; "" if repeats change nothing."""
        n, spread = self.num_repeats, self.spread
        units = f"{spread.unit}s"
        if n < (least := fewest(level(self.num_rivals, self.error))):
            return f"! {n} {units} cannot decide: a verdict needs at least {least} {units}"
        if math.isnan(spread.std):
            more = ENOUGH - spread.n
            tell = f"{more} more {spread.unit} tells" if more == 1 else f"{more} more {units} tell"
            return f"{tell} which difference {n} {units} can decide"
        if not spread.std:
            return ""
        effect = smallest(n, self.num_rivals, self.error, known_by=spread.n - 1, anytime=self.anytime)
        size = effect * spread.std
        time = f" ({time})" if self.anytime and (time := time_of(self.num_runs)) else ""
        text = f"With {n} {units}{time}, a difference of {size:.2g} is decided in {_OFTEN}"
        basis = f"by the spread of {spread.n} {units}{spread.source and f' in {spread.source}'}"
        further = size / _FURTHER if math.isnan(self.lead) else abs(self.lead)
        named = f"{further:.2g}" if math.isnan(self.lead) else f"the lead of {further:.2g}"
        return f"{text}; {named} takes {self._further(further / spread.std, time_of)} ({basis})"

    def _further(self, effect: float, time_of: Callable[[int], str]) -> str:
        """Say how many repeats decide a difference, in standard deviations, and the time."""
        known_by = self.spread.n - 1
        n = repeats_for(effect, self.num_rivals, self.error, known_by=known_by, anytime=self.anytime)
        if math.isinf(n):
            return f"more than {most_repeats(self.num_rivals):,} {self.spread.unit}s"
        time = time_of(round(n * self.num_runs / self.num_repeats))
        return f"about {float(f'{n:.2g}'):g} {self.spread.unit}s{time and f', {time}'}"


def foresee(
    experiment: Path, design: Design, results: Sequence[RunResult], *, anytime: bool
) -> Foresight | None:
    """Return what is known before a grid is executed; None if its runs are no repeats of several rivals."""
    runs = [result.folder.params for result in results]
    axes = design.repeating(varying(runs))
    rule = design.decide or Rule()
    of_rival = [name for name in varying(runs) if name not in axes] if rule.axis is None else [rule.axis]
    rivals, repeats = (
        {identity({name: params[name] for name in names if name in params}) for params in runs}
        for names in (of_rival, axes)
    )
    if not axes or min(len(rivals), len(repeats)) < 2:  # noqa: PLR2004 - there is nothing to compare
        return None
    spread = spread_of(experiment.name, design, results)
    if math.isnan(spread.std):
        spread = next(_elsewhere(experiment, design), spread)
    return Foresight(len(rivals), len(repeats), len(runs), spread, rule.error, anytime)


def spread_of(name: str, design: Design, results: Sequence[RunResult]) -> Spread:
    """Return the spread of an experiment: the median over the rivals of the best one."""
    axes = design.repeating(varying([result.folder.params for result in results]))
    nothing = Spread(math.nan, 0, axes[0] if len(axes) == 1 else "repeat")
    if not any(result.epochs for result in results):
        return nothing
    try:
        axis = None if design.decide is None else design.decide.axis
        runs = runs_table({name: results}, design)
        contest = Contest.of(runs, ranking_of(runs, repeats=[n for n in axes if n != axis]), axis)
    except InvalidArgumentError:  # no run has the goal's metric, or there is no such axis
        return nothing
    best = contest.order[0]
    rows = np.delete(differences(contest.scores, best), best, axis=0)
    each = [row[np.isfinite(row)] for row in rows]
    stds = sorted((float(row.std(ddof=1)), len(row)) for row in each if len(row) >= ENOUGH)
    std, n = stds[len(stds) // 2] if stds else (math.nan, max(map(len, each), default=0))
    return Spread(std, n, contest.unit)


def _elsewhere(experiment: Path, design: Design) -> Iterator[Spread]:
    """Yield the spreads in other experiments of the root with the same goal, the latest first."""
    grids = [path for path in experiment.parent.glob(f"*/{files.GRID}") if path.parent != experiment]
    for path in sorted(grids, key=lambda path: path.stat().st_mtime, reverse=True) if design.goal else ():
        other = Experiment(path.parent)
        if other.design.goal == design.goal:
            results = list(map(read_run, other.runs.values()))
            spread = spread_of(path.parent.name, other.design, results)
            if not math.isnan(spread.std):
                yield Spread(spread.std, spread.n, spread.unit, printable(path.parent.name))

"""Write a verdict as a sentence."""

import math
from collections.abc import Sequence

import numpy as np

from runmanager.answers.contest import IDENTICAL, UNDECIDED, WORSE, Contest
from runmanager.answers.evidence import MOST, Lead, differences, fewest, needed
from runmanager.answers.luck import luck_of
from runmanager.answers.power import ENOUGH
from runmanager.answers.ranking import LOST
from runmanager.core.wording import counted, listed, printable
from runmanager.tables.cells import cell

_SHARE = 3  # the rounding step of a number is at most a third of half its interval
_MOST_NAMED = 2  # maximum number of rivals with lost repeats that are named
_SPLITS = ("fold", "split")  # repeats of which there are no more than the split has


def sentence_of(contest: Contest) -> str:
    """Write the decision, or the number of repeats that would decide; also the lost repeats."""
    if contest.leads and contest.axis is None and not contest.ranking.repeats:
        number = fewest(contest.level)
        step = f'repeat them, as with the axis "seed": range({number}) and repeats="seed"'
        return f"undecided: each setting ran once, so any lead may be chance; {step}"
    return "; ".join(clauses(contest))


def clauses(contest: Contest) -> list[str]:
    """Write the decision, what is open, and what was lost; this reads the journals of the first two rivals."""
    if not contest.leads:
        return [f"undecided: there are no two {contest.noun} to compare", *losses(contest)]
    best, following, *_ = contest.positions
    name, worse = contest.names[best], contest.in_state(WORSE)
    if contest.outcome == UNDECIDED:
        texts = standing(contest)
    elif same := [rival for rival in contest.leads if rival not in worse]:
        what = (
            f"identical in {printable(contest.metric)} in each of"
            if all(contest.states[rival] == IDENTICAL for rival in same)
            else f"equal within {cell(contest.margin)}, decided after"
        )
        texts = [f"{name} and {_others(contest, same)} are {what} {_count(contest, same[0])}"]
    else:
        what = f"better than {contest.names[following]}"
        if len(worse) > 1:
            what = f"the best of {len(contest.positions)} {contest.noun}, ahead of {contest.names[following]}"
        gap, worse = gap_of(contest.closest), []
        texts = [f"{name} is {what} by {gap}, decided after {_count(contest, following)}"]
    if worse:
        texts.append(f"{name} is better than {_others(contest, worse)}")
    luck = luck_of(contest.runs, contest.metric, contest.rivals, best, following)
    return [*texts, *filter(None, [luck]), *losses(contest)]


def standing(contest: Contest) -> list[str]:
    """Say who leads, how far the closest undecided rival is behind, and how many repeats would decide."""
    rivals, unit = contest.in_state(UNDECIDED), contest.unit
    best, rival = (contest.names[position] for position in (contest.order[0], rivals[0]))
    lead, count = contest.leads[rivals[0]], _count(contest, rivals[0])
    text, step = f"undecided after {count}" if lead.n > 1 else "undecided", f"level with {best}"
    if math.isnan(lead.mean):
        return [text, f"{rival} has no comparable {unit}"]
    if lead.mean > 0:
        text = f"{best} leads {_others(contest, rivals)}, but "
        text += f"{count} do not decide it" if lead.n > 1 else "one run each decides nothing"
        step = f"{two_digits(lead.mean)} behind"
    elif lead.mean < 0:
        step = f"{two_digits(lead.mean)} ahead where both have a result"
    step = f"{rival} is {step}" if len(rivals) == 1 else f"the closest, {rival}, is {step}"
    first, total = fewest(contest.level), math.inf
    if lead.is_constant and contest.is_constant and contest.ranking.repeats:
        return [text, f"{step}; the {unit} seems to change nothing: check that train() uses it"]
    if unit in _SPLITS:
        return [text, f"{step}; once all {unit}s are executed, repeat the split with a seed axis"]
    if lead.n >= ENOUGH and not lead.is_constant:  # equal differences never decide
        row = differences(contest.scores, contest.order[0])[rivals[0]]
        total = needed(row[~np.isnan(row)], contest.level)
    if lead.n < first:
        step += f"; a verdict needs at least {first} {unit}s"
    if total < math.inf:
        step += f"; half of such leads are decided after about {total:.0f} {unit}s ({total - lead.n:.0f} more)"
    elif lead.n >= first and not lead.is_constant:
        step += f"; it takes over {MOST} more {unit}s"
    return [text, step]


def _count(contest: Contest, rival: int) -> str:
    return counted(contest.leads[rival].n, contest.unit)


def _others(contest: Contest, rivals: Sequence[int]) -> str:
    """Describe rivals: a single rival by its name, several rivals by their number."""
    return contest.names[rivals[0]] if len(rivals) == 1 else f"{len(rivals)} others"


def losses(contest: Contest) -> list[str]:
    """Say which rivals lost repeats, and why, and which rivals cannot be compared."""
    unit, texts = "run" if contest.scores.shape[2] > 1 else contest.unit, []
    for rival in contest.order:
        statuses = contest.statuses[rival]
        total = statuses.total()
        lost = {word: number for word, number in statuses.items() if word in LOST}
        if lost:
            what = f"lost {sum(lost.values())} of {counted(total, unit)}" if total > 1 else "is not compared"
            texts.append(f"{contest.names[rival]} {what} ({' and '.join(lost)})")
    if more := texts[_MOST_NAMED:]:
        texts[_MOST_NAMED:] = [f"and {len(more)} more"]
    if contest.alone:
        names = listed([contest.names[rival] for rival in contest.alone], _MOST_NAMED)
        texts.append(f"not compared: {names}, as no run of another value has the same other hyperparameters")
    return texts


def gap_of(lead: Lead) -> str:
    """Write a difference with its interval, rounded by the width of the interval."""
    if not math.isfinite(lead.high - lead.low):
        return two_digits(lead.mean)
    decimals = max(math.ceil(-math.log10((lead.high - lead.low) / 2 / _SHARE)), 0)
    mean, low, high = (_rounded(number, decimals) for number in (lead.mean, lead.low, lead.high))
    if lead.low == 0 and lead.is_decided:  # the decision excludes 0, although the wider interval reaches it
        return f"{mean} (above 0, at most {high})"
    return f"{mean} ({low} to {high})"


def two_digits(number: float) -> str:
    """Write the size of a difference with two significant digits, and all digits of a larger whole part."""
    size = abs(number)
    return f"{size:.0f}" if 10 <= size < 1e6 else f"{size:.2g}"  # noqa: PLR2004 - two digits


def _rounded(number: float, decimals: int) -> str:
    """Round a number, but never to 0."""
    text = f"{number:.{decimals}f}"
    return text if float(text) else f"{number:.1g}"

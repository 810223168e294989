"""Write a verdict as a sentence."""

import math
from collections.abc import Sequence

from runmanager.answers.contest import IDENTICAL, UNDECIDED, WORSE, Contest
from runmanager.answers.evidence import Lead, fewest, needed
from runmanager.answers.luck import luck_of
from runmanager.answers.ranking import LOST, OPEN
from runmanager.core.wording import counted, listed
from runmanager.tables.cells import all_of, cell

_SHARE = 3  # the rounding step of a number is at most a third of half its interval
_ENOUGH = 3  # minimum number of repeats for an estimate of further repeats
_WORTH_SAYING = 100  # largest number of further repeats that is named
_MOST_NAMED = 2  # maximum number of rivals with lost repeats that are named
_MOST_DECIMALS, _LARGEST = 6, 1e6  # limits beyond which a number is written with two digits
_SPLITS = ("fold", "split")  # repeats of which there are no more than the split has


def sentence_of(contest: Contest) -> str:
    """Write the decision, or the number of repeats that would decide; also the lost repeats."""
    if contest.leads and contest.axis is None and not contest.ranking.repeats:
        number = fewest(contest.level)
        step = f'repeat them, as with the axis "seed": range({number}) and repeats="seed"'
        return f"undecided: each setting ran once, so any lead may be chance; {step}"
    texts = clauses(contest)
    if contest.outcome == UNDECIDED and contest.leads:
        texts[:2] = [": ".join(texts[:2])]
    return "; ".join(texts)


def clauses(contest: Contest) -> list[str]:
    """Write the decision, what is open, and what was lost; this reads the journals of the first two rivals."""
    if not contest.leads:
        return [f"undecided: there are no two {contest.noun} to compare", *_losses(contest)]
    best, following, *_ = contest.positions
    undecided, worse = contest.in_state(UNDECIDED), contest.in_state(WORSE)
    if undecided:
        texts = [_undecided(contest, undecided), _next_step(contest, undecided)]
    elif len(worse) < len(contest.leads):
        texts = [_equal(contest, worse)]
    else:
        texts, worse = [_better(contest)], []
    if worse:
        texts.append(f"{contest.names[best]} is better than {_others(contest, worse)}")
    luck = luck_of(contest.runs, contest.metric, contest.rivals, best, following)
    return [*texts, *filter(None, [luck]), *_losses(contest)]


def standing(contest: Contest) -> str:
    """Say how far the best rival is ahead of the closest undecided rival."""
    rival = contest.in_state(UNDECIDED)[0]
    lead, best = contest.leads[rival], contest.names[contest.order[0]]
    ahead = f"{best} is ahead of {contest.names[rival]} by {two_digits(lead.mean)}"
    evidence = f"evidence {lead.evidence:.2g} of {lead.least:g}"
    text = f"{ahead} after {counted(lead.n, contest.unit)}, {evidence}"
    more = _total(contest, lead) - lead.n
    return f"{text}, about {counted(int(more), f'more {contest.unit}')}" if more <= _WORTH_SAYING else text


def _undecided(contest: Contest, rivals: Sequence[int]) -> str:
    lead, best = contest.leads[rivals[0]], contest.names[contest.order[0]]
    count = counted(lead.n, contest.unit)
    if not lead.mean > 0:  # NaN without a repeat that both have
        return f"undecided after {count}"
    return (
        f"{best} leads {_others(contest, rivals)}, but {count} {'does' if lead.n == 1 else 'do'} not decide it"
    )


def _next_step(contest: Contest, rivals: Sequence[int]) -> str:
    """Say how far the closest undecided rival is behind, and how many repeats would decide."""
    name, lead, unit = contest.names[rivals[0]], contest.leads[rivals[0]], contest.unit
    if len(rivals) > 1:
        name = f"the closest, {name},"
    if math.isnan(lead.mean):
        return f"{name} has no {unit} that can be compared"
    side = "behind" if lead.mean > 0 else "ahead where both have a result"
    text = f"{name} is {two_digits(lead.mean)} {side}"
    if not lead.mean:
        text = f"{contest.names[contest.order[0]]} has the same mean as {contest.names[rivals[0]]}"
    if lead.is_constant and contest.is_constant and contest.ranking.repeats:
        return f"{text}; the {unit} seems to change nothing: check that train() uses it"
    if unit in _SPLITS:
        words = [*contest.statuses[contest.order[0]], *contest.statuses[rivals[0]]]
        if not OPEN.isdisjoint(words):
            return f"{text}; their other {unit}s are still to be executed"
        return f"{text}; a split has no more than its {unit}s: repeat the split with a seed axis"
    first, more = fewest(contest.level), _total(contest, lead) - lead.n
    if lead.n < first:
        text += f"; a verdict needs at least {first} {unit}s"
    if more <= _WORTH_SAYING:
        text += f"; such a lead takes about {lead.n + more:.0f} in half of the cases ({more:.0f} more)"
    elif lead.n >= first and not lead.is_constant:  # equal differences never decide
        text += f"; more than {_WORTH_SAYING} more {unit}s are needed"
    return text


def _total(contest: Contest, lead: Lead) -> float:
    """Estimate how many repeats decide the measured difference; infinity if this is unknown."""
    if lead.n < _ENOUGH or lead.is_constant:
        return math.inf
    return max(needed(abs(lead.mean) / lead.std, contest.level), lead.n + 1)


def _better(contest: Contest) -> str:
    best, following, *_ = (contest.names[rival] for rival in contest.positions)
    what = f"better than {following}"
    if len(contest.leads) > 1:
        what = f"the best of {len(contest.positions)} {contest.noun}, ahead of {following}"
    count = counted(contest.closest.n, contest.unit)
    return f"{best} is {what} by {gap_of(contest.closest)}, decided after {count}"


def _equal(contest: Contest, worse: Sequence[int]) -> str:
    same = [rival for rival in contest.leads if rival not in worse]
    are_identical = all(contest.states[rival] == IDENTICAL for rival in same)
    what = IDENTICAL if are_identical else f"equal within {cell(contest.margin)}"
    who = f"{contest.names[contest.order[0]]} and {_others(contest, same)}"
    return f"{who} are {what}, decided after {counted(contest.leads[same[0]].n, contest.unit)}"


def _others(contest: Contest, rivals: Sequence[int]) -> str:
    """Describe rivals: a single rival by its name, several rivals by their number."""
    return contest.names[rivals[0]] if len(rivals) == 1 else f"{len(rivals)} others"


def _losses(contest: Contest) -> list[str]:
    """Say which rivals lost repeats, and why, and which rivals cannot be compared."""
    unit, texts = "run" if contest.scores.shape[2] > 1 else contest.unit, []
    for rival in contest.order:
        statuses = contest.statuses[rival]
        reasons = [word for word in statuses if word in LOST]
        number, total = sum(statuses[word] for word in reasons), statuses.total()
        which = all_of(total, f"{unit}s") if number == total > 1 else f"{number} of {counted(total, unit)}"
        if number:
            texts.append(f"{contest.names[rival]} lost {which} ({' and '.join(reasons)})")
    if more := texts[_MOST_NAMED:]:
        texts[_MOST_NAMED:] = [f"{len(more)} other {contest.noun} lost some too"]
    if contest.alone:
        names = listed([contest.names[rival] for rival in contest.alone], _MOST_NAMED)
        texts.append(f"not compared: {names}, as no run of another value has the same other hyperparameters")
    return texts


def gap_of(lead: Lead) -> str:
    """Write a difference with its interval, rounded by the width of the interval.

    >>> gap_of(Lead(7, 0.01103, 0.004, 0.00617, 0.01589, 30.0, 20.0))
    '0.011 (0.006 to 0.016)'
    >>> gap_of(Lead(8, 0.137, 0.1, 0.003, 0.27, 30.0, 20.0))
    '0.14 (0.003 to 0.27)'
    >>> gap_of(Lead(8, 0.14, 0.1, 0.0, 0.3, 30.0, 20.0))
    '0.14 (above 0, at most 0.30)'
    """
    if not math.isfinite(lead.high - lead.low):
        return two_digits(lead.mean)
    half = (lead.high - lead.low) / 2
    decimals = max(math.ceil(-math.log10(half / _SHARE)), 0) if half > 0 else 4
    mean, low, high = (_rounded(number, decimals) for number in (lead.mean, lead.low, lead.high))
    if lead.low == 0 and lead.is_decided:  # the decision excludes 0, although the wider interval reaches it
        return f"{mean} (above 0, at most {high})"
    return f"{mean} ({low} to {high})"


def two_digits(number: float) -> str:
    """Write the size of a difference with two significant digits, and all digits of a larger whole part.

    >>> two_digits(-0.0193), two_digits(123.4)
    ('0.019', '123')
    """
    size = abs(number)
    return f"{size:.0f}" if 10 <= size < _LARGEST else f"{size:.2g}"  # noqa: PLR2004 - two digits


def _rounded(number: float, decimals: int) -> str:
    """Round a number, but never to 0."""
    if not number:
        return "0"
    while not float(text := f"{number:.{decimals}f}"):
        decimals += 1
    return text if decimals <= _MOST_DECIMALS else f"{number:.2g}"

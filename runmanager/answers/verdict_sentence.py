"""Write a verdict as a sentence."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from runmanager.answers.contest import BETTER, EQUAL, IDENTICAL, UNDECIDED, WORSE, Contest
from runmanager.answers.evidence import Lead, fewest, needed
from runmanager.answers.luck import luck_of
from runmanager.core.outcome import Status
from runmanager.core.wording import counted, listed, printable
from runmanager.tables.cells import all_of, cell

_SHARE = 3  # the rounding step of a number is at most a third of half its interval
_ENOUGH = 3  # minimum number of repeats for an estimate of further repeats
_WORTH_SAYING = 100  # largest number of further repeats that is named
_MOST_NAMED = 2  # maximum number of rivals with lost repeats that are named
_MOST_DECIMALS, _LARGEST = 6, 1e6  # limits beyond which a number is written with two digits
_TWO = 2
_SPLITS = ("fold", "split")  # repeats of which there are no more than the split has


def sentence_of(contest: Contest) -> str:
    """Write the decision, or the number of repeats that would decide; also the lost repeats."""
    if contest.leads and contest.axis is None and not contest.ranking.repeats:
        return f"undecided: each setting ran once, so any lead may be chance; {_to_repeat(contest)}"
    if not contest.leads and len(contest.alone) > 1 and contest.axis != "experiment":
        rest = "; importances() says what matters in a sample or a search"
        return f"undecided: no two settings differ in {printable(str(contest.axis))} alone{rest}"
    first, *others = clauses(contest)
    if contest.outcome == UNDECIDED and contest.leads:
        first += f": {others.pop(0)}"
    return "; ".join([first, *others])


def clauses(contest: Contest) -> list[str]:
    """Write the decision, what is open, and what was lost; this reads the journals of the first two rivals."""
    write = {BETTER: _better, UNDECIDED: _undecided}.get(contest.outcome, _equal)
    luck = (
        luck_of(contest.runs, contest.metric, contest.rivals, *contest.positions[:_TWO])
        if contest.leads
        else ""
    )
    return [*write(contest), *filter(None, [luck]), *_losses(contest), *_left_out(contest)]


def standing(contest: Contest) -> str:
    """Say how far the best rival is ahead of the closest undecided rival."""
    rival = _in_state(contest, UNDECIDED)[0]
    lead, best = contest.leads[rival], contest.names[contest.order[0]]
    text = (
        f"{best} is ahead of {contest.names[rival]} by {two_digits(lead.mean)} after {_count(contest, [rival])}"
    )
    text += f", evidence {min(lead.evidence, lead.least):.2g} of {lead.least:g}"
    more = max(int(total) - lead.n, 1) if math.isfinite(total := _needed(contest, lead)) else math.inf
    return f"{text}, about {counted(int(more), f'more {contest.unit}')}" if more <= _WORTH_SAYING else text


def _to_repeat(contest: Contest) -> str:
    """Suggest a repeat axis: an axis that seems to be one, else a seed with enough values to decide."""
    from runmanager.answers.ranking import repeats_of

    axes, _ = repeats_of(contest.runs)
    if axes:
        return f"repeats={axes[0]!r} takes the runs of a setting as its repeats"
    number = fewest(len(contest.names) / 2 / contest.error)
    return f'repeat them, as with the axis "seed": range({number}) and repeats="seed"'


def _better(contest: Contest) -> list[str]:
    best, following = (contest.names[rival] for rival in contest.positions[:_TWO])
    lead = contest.closest
    gap = f"by {gap_of(lead)}"
    if lead.n < lead.fewest:
        gap += f" (an interval needs {lead.fewest} {contest.unit}s)"
    text = f"{best} is better than {following} {gap}"
    if len(contest.leads) > 1:
        text = f"{best} is the best of {len(contest.positions)} {contest.noun}, ahead of {following} {gap}"
    return [f"{text}, decided after {_most(contest, contest.leads)}"]


def _equal(contest: Contest) -> list[str]:
    worse = _in_state(contest, WORSE)
    same = [rival for rival in contest.leads if rival not in worse]
    names = [contest.names[rival] for rival in (contest.order[0], *same)]
    who = " and ".join(names) if len(names) == _TWO else f"the best {len(names)} {contest.noun}"
    who = f"all {len(names)} {contest.noun}" if not worse and len(names) > _TWO else who
    if all(contest.states[rival] == IDENTICAL for rival in same):
        text = f"{who} are identical in {_count(contest, same)}"
    else:
        ends = f" ({gap_of(contest.leads[same[0]]).partition(' (')[2]}" if len(same) == 1 else ""
        text = f"{who} are equal within {cell(contest.margin)}{ends}, decided after {_most(contest, same)}"
    return [text, f"{names[0]} is better than {_others(contest, worse)}"] if worse else [text]


def _undecided(contest: Contest) -> list[str]:
    if not contest.leads:
        return [f"undecided: there are no two {contest.noun} to compare"]
    rivals = _in_state(contest, UNDECIDED)
    best, others, count = contest.names[contest.order[0]], _others(contest, rivals), _count(contest, rivals)
    text = f"undecided{f' between {best} and {others}' if len(contest.leads) > 1 else ''} after {count}"
    if contest.leads[rivals[0]].mean > 0:  # the comparison is false for NaN
        do = "does" if count == f"1 {contest.unit}" else "do"
        text = f"{best} leads {others}, but {count} {do} not decide it"
    words = {WORSE: "worse", EQUAL: f"equal within {cell(contest.margin)}", IDENTICAL: IDENTICAL}
    decided = []
    for state, word in words.items():
        if decided_rivals := _in_state(contest, state):
            are = "is" if len(decided_rivals) == 1 else "are"
            decided.append(f"{_others(contest, decided_rivals)} {are} {word}")
    return [text, _next_step(contest, rivals), *decided]


def _next_step(contest: Contest, rivals: Sequence[int]) -> str:
    """Say how far the best rival is ahead of the closest undecided rival, and how many repeats would decide."""
    best, rival = contest.names[contest.order[0]], contest.names[rivals[0]]
    lead, unit = contest.leads[rivals[0]], contest.unit
    if not lead.n:
        return f"{best} and {rival} have no {unit} in common"
    if math.isnan(lead.mean):
        return "their numbers are too large to be compared"
    ahead = (
        f"{best} is ahead by {two_digits(lead.mean)}"
        if len(rivals) == 1
        else f"the closest, {rival}, is {two_digits(lead.mean)} behind"
    )
    if not lead.mean:
        ahead = f"{best} and {rival} have the same mean"
    elif lead.mean < 0:
        ahead = f"{rival} is ahead of {best} by {two_digits(lead.mean)} where both have a result"
    elif lead.is_constant and contest.is_constant and contest.ranking.repeats:
        return f"{ahead} in each {unit}; the {unit} seems to change nothing: check that train() uses it"
    elif lead.is_constant:
        return f"{ahead} in each {unit} alike; more {unit}s are needed"
    if unit in _SPLITS:
        return f"{ahead}; {_of_a_split(contest, rivals[0])}"
    first, total = fewest(lead.least * len(contest.names) / 2), _needed(contest, lead)
    total = max(total, first, lead.n + 1)
    step = f"; a verdict needs at least {first} {unit}s" if lead.n < first else ""
    if total - lead.n <= _WORTH_SAYING:
        step += f"; such a lead takes about {total:.0f} in half of the cases ({total - lead.n:.0f} more)"
    elif not step:
        step = (
            f"; more than {_WORTH_SAYING} more {unit}s are needed" if lead.std else f"; more {unit}s are needed"
        )
    return f"{ahead}{step}"


def _of_a_split(contest: Contest, rival: int) -> str:
    """Say what decides between the best rival and another, if a split has no further repeats."""
    if any(_is_open(contest, each) for each in (contest.order[0], rival)):
        return f"their other {contest.unit}s are still to be executed"
    return f"a split has no more than its {contest.unit}s: repeat the split with a seed axis"


def _needed(contest: Contest, lead: Lead) -> float:
    """Estimate how many repeats decide the measured difference; infinity if this is unknown."""
    if lead.n < _ENOUGH or not (lead.mean and lead.std):
        return math.inf
    return needed(abs(lead.mean) / lead.std, lead.least * len(contest.names) / 2)


def _in_state(contest: Contest, state: str) -> list[int]:
    return [rival for rival, word in contest.states.items() if word == state]


def _others(contest: Contest, rivals: Sequence[int]) -> str:
    """Describe rivals: a single rival by its name, several rivals by their number."""
    if len(rivals) == 1:
        return contest.names[rivals[0]]
    return (
        f"the other {len(rivals)} {contest.noun}"
        if len(rivals) == len(contest.leads)
        else f"{len(rivals)} others"
    )


def _most(contest: Contest, rivals: Iterable[int]) -> str:
    """Write the number of repeats of the rival with the largest number."""
    return _count(contest, [max(rivals, key=lambda rival: contest.leads[rival].n)])


def _count(contest: Contest, rivals: Iterable[int]) -> str:
    """Write the number of repeats, or its range over the rivals."""
    numbers = sorted({contest.leads[rival].n for rival in rivals} - {0}) or [0]
    text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{text} {contest.unit}{'' if numbers[-1] == 1 else 's'}"


def _losses(contest: Contest) -> list[str]:
    """Say which rivals lost repeats, and why; one sentence covers all rivals without a result."""
    lost = {rival: _lost(contest, rival) for rival in contest.order}
    ends = [
        rival for rival in contest.order if not contest.has_score[rival].any() and not _is_open(contest, rival)
    ]
    without = [rival for rival in ends if rival not in contest.alone]
    if len(without) == 1 and lost[without[0]]:
        without = []  # the single rival is named like the rivals that lost some repeats
    each = [rival for rival in contest.order if lost[rival] and rival not in without]
    texts = [_loss(contest, rival) for rival in each[:_MOST_NAMED]]
    if more := each[_MOST_NAMED:]:
        texts.append(f"{len(more)} other {contest.noun} lost some too")
    if without:
        which = (
            f"{len(without)} {contest.noun} have" if len(without) > 1 else f"{contest.names[without[0]]} has"
        )
        texts.append(f"{which} no result{_reasons(sum((lost[rival] for rival in without), Counter()))}")
    if alone := contest.alone:
        which = f"{listed([contest.names[rival] for rival in alone])} {'is' if len(alone) == 1 else 'are'}"
        texts.append(f"{which} not compared: no run of another value has the same other hyperparameters")
    return texts


def _loss(contest: Contest, rival: int) -> str:
    counts = _lost(contest, rival)
    number = counts.total()
    total = sum(n for word, n in contest.statuses[rival].items() if not Status(word).is_open)
    unit = "run" if contest.scores.shape[2] > 1 else contest.unit
    which = f"{number} of {counted(total, unit)}"
    if number == total > 1 and not _is_open(contest, rival):
        which = all_of(total, f"{unit}s")
    why = _reasons(counts) if len(counts) > 1 else f" ({next(iter(counts))})"
    return f"{contest.names[rival]} lost {which}{why}"


def _reasons(counts: Counter[str]) -> str:
    return f" ({', '.join(f'{count} {word}' for word, count in counts.items())})" if counts else ""


def _lost(contest: Contest, rival: int) -> Counter[str]:
    """Count the runs of a rival that failed, diverged, hung or were killed, by status."""
    return Counter({word: n for word, n in contest.statuses[rival].items() if Status(word).is_lost})


def _is_open(contest: Contest, rival: int) -> bool:
    """Whether a run of a rival is still in progress or pending."""
    return any(Status(word).is_open for word in contest.statuses[rival])


def _left_out(contest: Contest) -> list[str]:
    """Say how many repeats only one of the first two rivals has; lost repeats are not counted."""
    if not contest.leads:
        return []
    best, other = contest.positions[:_TWO]
    number = int((contest.has_score[best] != contest.has_score[other]).sum())
    number -= _lost(contest, best).total() + _lost(contest, other).total()
    both = f"{contest.names[best]} and {contest.names[other]}"
    return [f"left out: {counted(number, contest.unit)} that only one of {both} has"] if number > 0 else []


def gap_of(lead: Lead) -> str:
    """Write a difference with its interval, rounded by the width of the interval.

    >>> gap_of(Lead(7, 0.01103, 0.004, 0.00617, 0.01589, 30.0, 20.0, 6))
    '0.011 (0.006 to 0.016)'
    >>> gap_of(Lead(8, 0.137, 0.1, 0.003, 0.27, 30.0, 20.0, 8))
    '0.14 (0.003 to 0.27)'
    >>> gap_of(Lead(8, 0.14, 0.1, 0.0, 0.3, 30.0, 20.0, 8))
    '0.14 (above 0, at most 0.30)'
    """
    if not math.isfinite(lead.high - lead.low):
        return two_digits(lead.mean)
    decimals = _decimals((lead.high - lead.low) / 2)
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


def _decimals(half: float) -> int:
    return max(math.ceil(-math.log10(half / _SHARE)), 0) if half > 0 else 4


def _rounded(number: float, decimals: int) -> str:
    """Round a number, but never to 0."""
    if not number:
        return "0"
    while not float(text := f"{number:.{decimals}f}"):
        decimals += 1
    return text if decimals <= _MOST_DECIMALS and abs(number) < _LARGEST else f"{number:.2g}"

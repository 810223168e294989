"""Write a verdict as a sentence."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runmanager.answers.evidence import fewest, needed, visible
from runmanager.answers.leads import Lead
from runmanager.answers.sentences import capital
from runmanager.tables.cells import cell

BETTER, EQUAL, IDENTICAL, UNDECIDED = "better", "equal", "identical", "undecided"
"""The possible outcomes of a verdict."""

_WORSE = "worse"
_SHARE = 3  # the rounding step of a number is at most a third of half its interval
_ENOUGH = 3  # minimum number of repeats for an estimate of further repeats
_WORTH_SAYING = 100  # largest number of further repeats that is named
_MOST_DECIMALS, _LARGEST = 6, 1e6  # limits beyond which a number is written with two digits
_TWO = 2


@dataclass(frozen=True)
class Race:
    """The best of several rivals, and its lead over each other rival, the closest rival first."""

    names: Sequence[str]  # the name of the best rival, then the names of the others
    leads: Sequence[Lead]  # the best rival's leads over the others
    unit: str = "seed"  # the word for a repeat
    rivals: str = "settings"  # the word for the rivals
    num_rivals: int = 2  # number of all rivals, even if they lost all repeats
    margin: float | None = None  # smaller differences count as equal
    notes: Callable[[], Sequence[str]] = tuple  # returns sentences on lost and left-out repeats, and on items
    positions: Sequence[int] = ()  # positions of the best rival and the others in their contest

    @property
    def states(self) -> list[str]:
        """The decision about each other rival: worse, equal, identical or undecided."""
        return [self._state(lead) for lead in self.leads]

    def _state(self, lead: Lead) -> str:
        if lead.is_identical:
            return IDENTICAL
        if self.margin is not None and lead.is_within(self.margin):
            return EQUAL
        return _WORSE if lead.is_decided else UNDECIDED

    @property
    def outcome(self) -> str:
        """The decision about all rivals together."""
        states = set(self.states)
        if not states or UNDECIDED in states:
            return UNDECIDED
        if len(states) == 1:
            return BETTER if _WORSE in states else states.pop()
        return EQUAL

    @property
    def sentence(self) -> str:
        """Write the decision, or the number of repeats that would decide; also the lost repeats."""
        first, *others = self._clauses
        if self.outcome == UNDECIDED and self.leads:
            first += f": {others.pop(0)}"
        return "; ".join([first, *others])

    @property
    def headline(self) -> str:
        """Write the decision, or which rival leads; the text begins with a capital letter or a name."""
        return self._begun(self._clauses[0])

    @property
    def details(self) -> str:
        """Write the clauses after the headline, "" if there are none."""
        return self._begun("; ".join(self._clauses[1:]))

    def _begun(self, text: str) -> str:
        return text if text.startswith((*self.names,)) else capital(text)

    @functools.cached_property
    def _clauses(self) -> list[str]:
        said = {BETTER: self._better, EQUAL: self._equal, IDENTICAL: self._equal, UNDECIDED: self._undecided}
        return [*said[self.outcome](), *self.notes()]

    @property
    def _open(self) -> list[int]:
        """The indices in `leads` of the undecided rivals."""
        return [index for index, state in enumerate(self.states) if state == UNDECIDED]

    @property
    def standing(self) -> str:
        """Say how far the best rival is ahead of the closest undecided rival."""
        index = self._open[0]
        lead, rival = self.leads[index], self.names[index + 1]
        text = f"{self.names[0]} is ahead of {rival} by {self._short(lead)} after {self._count([lead])}"
        text += f", evidence {min(lead.evidence, lead.least):.2g} of {lead.least:g}"
        least = lead.least * self.num_rivals / 2
        total = needed(abs(lead.mean) / lead.std, least) if lead.mean and lead.std else math.inf
        if total - lead.n <= _WORTH_SAYING:
            text += f", about {self._more(max(int(total) - lead.n, 1))}"
        return text

    def _better(self) -> list[str]:
        best, following = self.names[:_TWO]
        lead = self.leads[0]
        gap = f"by {gap_of(lead)}"
        if lead.n < lead.fewest:
            gap += f" (an interval needs {lead.fewest} {self.unit}s)"
        text = f"{best} is better than {following} {gap}"
        if len(self.leads) > 1:
            text = f"{best} is the best of {len(self.names)} {self.rivals}, ahead of {following} {gap}"
        return [f"{text}, decided after {self._most(self.leads)}"]

    def _equal(self) -> list[str]:
        states = self.states
        same = [index for index, state in enumerate(states) if state != _WORSE]
        names = [self.names[0], *(self.names[index + 1] for index in same)]
        who = " and ".join(names) if len(names) == _TWO else f"the best {len(names)} {self.rivals}"
        who = f"all {len(names)} {self.rivals}" if _TWO < len(names) == len(self.names) else who
        leads = [self.leads[index] for index in same]
        if all(states[index] == IDENTICAL for index in same):
            text = f"{who} are identical in {self._count(leads)}"
        else:
            ends = f" ({gap_of(leads[0]).partition(' (')[2]}" if len(leads) == 1 else ""
            text = f"{who} are equal within {cell(self.margin)}{ends}, decided after {self._most(leads)}"
        if others := len(states) - len(same):
            return [text, f"{self.names[0]} is better than {self._others(others, _WORSE)}"]
        return [text]

    def _undecided(self) -> list[str]:
        if not self.leads:
            return [f"undecided: there are no two {self.rivals} to compare"]
        states, first = self.states, self._open[0]
        others = self._others(len(self._open), UNDECIDED)
        rivals = f" between {self.names[0]} and {others}"
        count = self._count([self.leads[index] for index in self._open])
        decided = [
            f"{self._others(states.count(state), state)} {'is' if states.count(state) == 1 else 'are'} {word}"
            for state, word in (
                (_WORSE, "worse"),
                (EQUAL, f"equal within {cell(self.margin)}"),
                (IDENTICAL, IDENTICAL),
            )
            if state in states
        ]
        text = f"undecided{rivals if len(self.leads) > 1 else ''} after {count}"
        if self.leads[first].mean > 0:  # the comparison is false for NaN
            do = "does" if count == f"1 {self.unit}" else "do"
            text = f"{self.names[0]} leads {others}, but {count} {do} not decide it"
        return [text, self._next_step(self.leads[first], self.names[first + 1]), *decided]

    def _others(self, number: int, state: str) -> str:
        """Describe the rivals in a state: a single rival by its name, several rivals by their number."""
        if number == 1:
            return self.names[1 + self.states.index(state)]
        return f"the other {number} {self.rivals}" if number == len(self.leads) else f"{number} others"

    def _next_step(self, lead: Lead, rival: str) -> str:
        """Say how far the best rival is ahead, and how many repeats would decide."""
        least = lead.least * self.num_rivals / 2
        first = fewest(least)
        if not lead.n:
            return f"{self.names[0]} and {rival} have no {self.unit} in common"
        if math.isnan(lead.mean):
            return "their numbers are too large to be compared"
        ahead = self._ahead(lead, rival)
        if lead.is_constant and lead.mean:
            return (
                f"{ahead} in each, to the last digit; one more {self.unit} is needed, which changes the results"
            )
        if lead.n < first:
            about = self._projected(lead, least, first) if lead.n >= _ENOUGH and lead.std else ""
            return f"{ahead}; a verdict needs at least {first} {self.unit}s{about}"
        size = visible(lead.n, least) * lead.std
        if not lead.std or not math.isfinite(size):
            return f"{ahead}; more {self.unit}s are needed"
        unseen = f"{lead.n} {self.unit}s cannot show a difference below {size:.1g}"
        return f"{ahead}; {unseen}{self._projected(lead, least, lead.n + 1)}"

    def _ahead(self, lead: Lead, rival: str) -> str:
        """Say how far the best rival is ahead of another one in the repeats that both have."""
        best, size = self.names[0], self._short(lead)
        if not lead.mean:
            return f"{best} and {rival} have the same mean"
        if lead.mean < 0:
            return f"{rival} is ahead of {best} by {size} where both have a result"
        is_named = self.states.count(UNDECIDED) == 1  # whether the closest rival has a name in the sentence
        return f"{best} is ahead by {size}" if is_named else f"the closest, {rival}, is {size} behind"

    def _projected(self, lead: Lead, least: float, at_least: int) -> str:
        """Estimate how many repeats decide the measured difference, or else what twice as many can show."""
        if lead.n < _ENOUGH or not lead.std:
            number = at_least - lead.n
            return f"; at least {self._more(number)} {'is' if number == 1 else 'are'} needed"
        total = needed(abs(lead.mean) / lead.std, least) if lead.mean else math.inf
        if total - lead.n <= _WORTH_SAYING:
            number = max(int(total), at_least)
            return f"; such a lead takes about {number} in half of the cases ({number - lead.n} more)"
        number = 2 * max(lead.n, fewest(least))
        return f"; {number} can show a difference of {visible(number, least) * lead.std:.1g}"

    def _more(self, number: int) -> str:
        return f"{number} more {self.unit}{'' if number == 1 else 's'}"

    def _short(self, lead: Lead) -> str:
        """Write a difference with as many digits as its standard error justifies."""
        # half the width of an interval of two standard errors, 0 if unknown
        half = 2 * lead.std / math.sqrt(lead.n) if lead.n > 1 and lead.std else 0.0
        if not half:
            return f"{abs(lead.mean):.2g}"
        # number of decimals for two significant digits
        least = 1 - math.floor(math.log10(abs(lead.mean))) if lead.mean else 0
        text = _rounded(abs(lead.mean), max(_decimals(half), least, 0))
        return text.rstrip("0").rstrip(".") if "." in text else text

    def _most(self, leads: Sequence[Lead]) -> str:
        """Write the number of repeats of the rival with the largest number."""
        return self._count([max(leads, key=lambda lead: lead.n)])

    def _count(self, leads: Sequence[Lead]) -> str:
        """Write the number of repeats, or its range over the rivals."""
        numbers = sorted({lead.n for lead in leads if lead.n}) or [0]
        text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        return f"{text} {self.unit}{'' if numbers[-1] == 1 else 's'}"


def gap_of(lead: Lead) -> str:
    """Write a difference with its interval, rounded by the width of the interval.

    >>> gap_of(Lead(7, 0.01103, 0.004, 0.00617, 0.01589, 30.0, 20.0))
    '0.011 (0.006 to 0.016)'
    """
    if not math.isfinite(lead.high - lead.low):
        return f"{lead.mean:.2g}"
    decimals = _decimals((lead.high - lead.low) / 2)
    low, high = (
        _rounded(number, decimals) if round(number, decimals) else "0" for number in (lead.low, lead.high)
    )
    return f"{_rounded(lead.mean, decimals)} ({low} to {high})"


def _decimals(half: float) -> int:
    return max(math.ceil(-math.log10(half / _SHARE)), 0) if half > 0 else 4


def _rounded(number: float, decimals: int) -> str:
    """Round a number, but never to 0."""
    if not number:
        return "0"
    while not float(text := f"{number:.{decimals}f}"):
        decimals += 1
    return text if decimals <= _MOST_DECIMALS and abs(number) < _LARGEST else f"{number:.2g}"

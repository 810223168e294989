"""Parts of the sentences about a table: counts, shares and capital letters."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from runmanager.core.outcome import Status
from runmanager.core.wording import counted

# parts in which equal errors of several runs may differ; a line of a file, such as x.py:7, is not such a part
VARIABLE = re.compile(
    r"(?<!\w)0x[0-9a-fA-F]+|(?<!\w)\d+(?:x\d+)+(?!\w)|(?<![\w.:])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\w)|(?<!\w)-?(?:nan|inf)\b"
    r"|'[^']*'|\"[^\"]*\""
)


def counts_of(statuses: Iterable[str]) -> dict[str, int]:
    """Count how often each status occurs, in the order of `Status`."""
    counts = Counter(map(str, statuses))
    return {str(status): counts[status] for status in Status if counts[status]}


def statuses_in_words(statuses: Iterable[str]) -> str:
    """Return the number of runs of each status, as "2 completed, 1 failed"."""
    return ", ".join(f"{number:,} {status}" for status, number in counts_of(statuses).items())


def percents(shares: Sequence[float]) -> list[str]:
    """Write fractions in whole percent, smaller ones with one digit."""
    numbers = [100 * share for share in shares]
    return [f"{number:.0f} %" if round(number) or not number else f"{number:.1g} %" for number in numbers]


def capital(text: str) -> str:
    """Capitalize the first letter of a sentence, unless it begins with a name."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if first.rstrip(":,;").isalpha() else text


def left_to_execute(number: int, total: int) -> str:
    """Say how many runs may still get a result."""
    return f"{number:,} of {counted(total, 'run')} {'is' if number == 1 else 'are'} left to execute"

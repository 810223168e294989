"""Parts of the sentences about a table: counts, shares and capital letters."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from runmanager.core.outcome import Status
from runmanager.core.wording import counted

VARIABLE = re.compile(
    r"(?<!\w)0x[0-9a-fA-F]+|(?<!\w)\d+(?:x\d+)+(?!\w)|(?<![\w.:])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\w)|(?<!\w)-?(?:nan|inf)\b"
    r"|'[^']*'|\"[^\"]*\""
)
"""Parts in which equal errors of several runs may differ.

A line of a file, such as x.py:7, is not such a part.
"""


def counts_of(statuses: Iterable[str]) -> dict[str, int]:
    """Count how often each status occurs, in the order of `Status`."""
    counts = Counter(map(str, statuses))
    return {str(status): counts[status] for status in Status if counts[status]}


def statuses_in_words(statuses: Iterable[str]) -> str:
    """Return the number of runs of each status, as "2 completed, 1 failed"."""
    return ", ".join(f"{number:,} {status}" for status, number in counts_of(statuses).items())


def percents(shares: Sequence[float]) -> list[str]:
    """Write fractions in whole percent with the same sum as the fractions."""
    whole = [math.floor(100 * share) for share in shares]
    seen = [index for index, number in enumerate(whole) if number]
    missing = round(100 * math.fsum(shares[index] for index in seen)) - sum(whole)
    for index in sorted(seen, key=lambda index: whole[index] - 100 * shares[index])[:missing]:
        whole[index] += 1
    return [
        f"{number} %" if number or not share else f"{100 * share:.1g} %"
        for number, share in zip(whole, shares, strict=True)
    ]


def capital(text: str) -> str:
    """Capitalize the first letter of a sentence, unless it begins with a name."""
    first = text.split(" ", 1)[0]
    return text if "=" in first or "_" in first else text[:1].upper() + text[1:]


def left_to_execute(number: int, total: int) -> str:
    """Say how many runs may still get a result."""
    return f"{number:,} of {counted(total, 'run')} {'is' if number == 1 else 'are'} left to execute"

"""Suggestions for misspelled names."""

import difflib
from collections.abc import Iterable

# minimum similarity of names, and of short names, in which one letter has a larger weight
_CUTOFF, _CUTOFF_OF_SHORT = 0.6, 0.5
_SHORT = 3  # maximum number of letters of a short name


def closest(name: str, names: Iterable[str]) -> str:
    """Return the most similar name, ignoring case; "" if no name is similar.

    >>> closest("widht", ["lr", "width"]), closest("LT", ["lr", "seed"]), closest("x", ["lr"])
    ('width', 'lr', '')
    """
    by_case = {original.lower(): original for original in names}
    cutoff = _CUTOFF if len(name) > _SHORT else _CUTOFF_OF_SHORT
    close = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=cutoff)
    return by_case[close[0]] if close else ""

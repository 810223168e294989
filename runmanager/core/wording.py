"""The names and numbers of things in messages."""

from collections.abc import Iterable
from typing import Any

from runmanager.core.values import closest

_MOST_NAMES = 24  # the maximum number of names in a message


def counted(number: int, noun: str) -> str:
    """Format a number with a noun."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def printable(content: str) -> str:
    """Escape the control characters of a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in content)


def last_state(line: str) -> str:
    """Return what a terminal shows of a line, such as the last state of a progress bar."""
    return line.rstrip("\r").rpartition("\r")[2]


def listed(names: Iterable[Any], most: int = _MOST_NAMES) -> str:
    """Join at most `most` names, and add the number of further names."""
    texts = [printable(str(name)) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return (", ".join(texts[:most]) + more) or "none"


def did_you_mean(name: str, names: Iterable[Any], have: str = "they have") -> str:
    """Suggest a similar name, or list all names."""
    texts = list(dict.fromkeys(map(str, names)))
    close = closest(name, texts)
    return f"did you mean {printable(close)!r}?" if close else f"{have}: {listed(texts)}"

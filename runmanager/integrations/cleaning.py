"""Names and texts as another tool takes them, with one warning that says what was changed."""

import itertools
import warnings
from collections.abc import Callable, Iterable

from runmanager.errors import RunsWarning
from runmanager.wording import printable

_MOST_NAMED = 5  # changes in a warning


class Cleaning:
    """Cleans what one export writes."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._changes: dict[str, None] = {}  # a sentence each, once

    def names(
        self, kind: str, names: Iterable[str], clean: Callable[[str], str], longest: int | None = None
    ) -> dict[str, str]:
        """Give every name one that the tool takes, no two the same; what it takes already stays.

        Args:
            kind: What is named, for the warning.
            names: The names, each may come several times.
            clean: Replaces what the tool does not take in a name.
            longest: How many characters it takes.
        """
        cleaned = {name: clean(name)[:longest] for name in names}
        taken = {name for name, new in cleaned.items() if name == new}
        for name, new in cleaned.items():
            if name != new:
                further = (_numbered(new, number, longest) for number in itertools.count(2))
                cleaned[name] = next(each for each in itertools.chain((new,), further) if each not in taken)
                taken.add(cleaned[name])
                self.note(f"{kind} {_short(name)} is {_short(cleaned[name])}")
        return cleaned

    def text(self, name: str, content: str, longest: int | None = None) -> str:
        """Return a text that every database takes; `name` says what it is."""
        clean = content.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
        if longest is not None and len(clean) > longest:
            self.note(f"{name} is cut to {longest:,} characters")
        return clean[:longest]

    def note(self, change: str) -> None:
        """Note a change for the warning."""
        self._changes[change] = None

    def warn(self) -> None:
        """Say what was changed, attributed to the caller's caller."""
        if self._changes:
            more = len(self._changes) - _MOST_NAMED
            named = "; ".join([*self._changes][:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
            text = f"changed for {self._tool}: {named}"
            warnings.warn(printable(text), RunsWarning, stacklevel=3)


def _numbered(name: str, number: int, longest: int | None) -> str:
    suffix = f"_{number}"
    return name[: None if longest is None else longest - len(suffix)] + suffix


def _short(name: str) -> str:
    return repr(name if len(name) <= 40 else f"{name[:20]}...{name[-12:]}")  # noqa: PLR2004 - for people

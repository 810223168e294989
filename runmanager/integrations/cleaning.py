"""Valid names and texts for another tool, with one warning about all changes."""

import itertools
import warnings
from collections.abc import Callable, Iterable

from runmanager.errors import RunsWarning
from runmanager.user_frames import user_level
from runmanager.wording import printable

_MOST_NAMED = 5  # maximum number of changes in a warning


class Cleaning:
    """Cleans the names and texts of one export."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._changes: dict[str, None] = {}  # sentences on the changes, without duplicates

    def names(
        self, kind: str, names: Iterable[str], clean: Callable[[str], str], longest: int | None = None
    ) -> dict[str, str]:
        """Map every name to a unique valid name; valid names stay unchanged.

        Args:
            kind: The kind of names, for the warning.
            names: The names; a name may occur twice.
            clean: Replaces invalid characters of a name.
            longest: The maximum number of characters of a name.
        """
        cleaned = {name: clean(name)[:longest] for name in names}
        taken = {name for name, new in cleaned.items() if name == new}
        for name, new in cleaned.items():
            if name != new:
                further = (_numbered(new, number, longest) for number in itertools.count(2))
                cleaned[name] = next(
                    candidate for candidate in itertools.chain((new,), further) if candidate not in taken
                )
                taken.add(cleaned[name])
                self.note(f"{kind} {_short(name)} is {_short(cleaned[name])}")
        return cleaned

    def text(self, name: str, content: str, longest: int | None = None) -> str:
        """Return a text that is valid in every database; `name` describes it for the warning."""
        clean = content.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
        if longest is not None and len(clean) > longest:
            self.note(f"{name} is cut to {longest:,} characters")
        return clean[:longest]

    def note(self, change: str) -> None:
        """Record a change for the warning."""
        self._changes[change] = None

    def warn(self) -> None:
        """Warn about all changes; the warning points to the caller's caller."""
        if self._changes:
            more = len(self._changes) - _MOST_NAMED
            named = "; ".join([*self._changes][:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
            text = f"changed for {self._tool}: {named}"
            warnings.warn(printable(text), RunsWarning, stacklevel=user_level())


def _numbered(name: str, number: int, longest: int | None) -> str:
    suffix = f"_{number}"
    return name[: None if longest is None else longest - len(suffix)] + suffix


def _short(name: str) -> str:
    return repr(name if len(name) <= 40 else f"{name[:20]}...{name[-12:]}")  # noqa: PLR2004 - for people

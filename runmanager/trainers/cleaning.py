"""Valid names and texts for another tool, with one warning about all changes."""

from collections.abc import Callable, Iterable

from runmanager.core.wording import listed
from runmanager.errors import warn

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
            if name == new:
                continue
            candidate, number = new, 1
            while candidate in taken:
                number += 1
                suffix = f"_{number}"
                candidate = new[: longest and longest - len(suffix)] + suffix
            cleaned[name] = candidate
            taken.add(candidate)
            self.note(f"{kind} {name!r:.40} is {candidate!r:.40}")
        return cleaned

    def text(self, name: str, content: str, longest: int | None = None) -> str:
        """Return a text that is valid in every database; `name` describes it for the warning."""
        clean = content.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
        if longest and len(clean) > longest:
            self.note(f"{name} is cut to {longest:,} characters")
        return clean[:longest]

    def note(self, change: str) -> None:
        """Record a change for the warning."""
        self._changes[change] = None

    def warn(self) -> None:
        """Warn about all changes; the warning points to the caller's caller."""
        if self._changes:
            warn(f"changed for {self._tool}: {listed(self._changes, _MOST_NAMED)}")

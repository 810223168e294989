"""Valid names and texts for another tool, with one warning about all changes."""

import hashlib
import re

from runmanager.core.wording import listed
from runmanager.errors import warn

_MOST_NAMED = 5  # maximum number of changes in a warning


class Cleaning:
    """Cleans the names and texts of one export for a tool.

    Attributes:
        changes: Sentences on the changes, as keys.
    """

    def __init__(self, tool: str) -> None:
        self._tool, self.changes = tool, dict[str, None]()

    def name(self, name: str, refused: str, longest: int = 250) -> str:
        """Replace what a pattern refuses, and cut a long name; a digest then keeps the name unique."""
        clean = re.sub(refused, "_", name)
        if clean == name and len(name) <= longest:
            return name
        digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
        clean = f"{clean[: longest - 9]}_{digest}"
        self.changes[f"{name!r:.40} is {clean!r:.40}"] = None
        return clean

    def text(self, name: str, content: str, longest: int | None = None) -> str:
        """Return a text that is valid in every database; `name` describes it for the warning."""
        clean = content.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
        if longest and len(clean) > longest:
            self.changes[f"{name} is cut to {longest:,} characters"] = None
        return clean[:longest]

    def warn(self) -> None:
        """Warn about all changes; the warning points to the caller's caller."""
        if self.changes:
            warn(f"changed for {self._tool}: {listed(self.changes, _MOST_NAMED)}")

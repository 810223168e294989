"""The path of a report, which a notebook shows as a link."""

import html
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    _Path = Path
else:
    _Path = type(Path())  # before Python 3.12, Path itself has no subclasses that work


class WrittenReport(_Path):
    """The file of a report: a path like any other."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.as_posix()!r})"

    def _repr_html_(self) -> str:
        """Return a link that a notebook opens: relative to its folder, as its server serves no other."""
        try:
            relative = os.path.relpath(self)
        except (OSError, ValueError):  # on another drive; or there is no working directory
            relative = os.fspath(self)
        address = quote(relative.replace(os.sep, "/").encode("utf-8", "surrogateescape"))
        name = html.escape(relative.encode("utf-8", "replace").decode())
        return f'<a href="{address}" target="_blank" rel="noopener">{name}</a>'

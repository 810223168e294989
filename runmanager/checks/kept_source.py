"""The source that `train` reaches, kept with its experiment once per version, for reading only."""

import difflib
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from runmanager.checks.changed import short_hash
from runmanager.core import files
from runmanager.core.state import RunResult

_LARGEST = 1 << 24  # maximum number of bytes of a source
_HEADING = "# %% "  # a line before each function or class; editors show the parts as cells


def keep_source(experiment: Path, source: str) -> None:
    """Write a source unless it is kept already."""
    path = experiment / f"source-{short_hash(source)}.py.gz"
    if not path.exists():
        files.write_file(path, gzip.compress(source.encode("utf-8", "replace"), mtime=0))


def read_source(run: RunResult) -> str:
    """Return the source with which the last attempt at a run began, "" if it is not kept."""
    match run.start:
        case {"fingerprint": {"source": {"hash": str(name)}}}:
            with suppress(OSError, ValueError, zlib.error):
                content, _ = files.read_file(run.folder.path.parent / f"source-{name}.py.gz", _LARGEST)
                return zlib.decompressobj(31).decompress(content, _LARGEST).decode("utf-8", "replace")
    return ""


def changed_lines(before: str, now: str) -> Iterator[str]:
    """Yield the removed and added lines of each function and class that two sources have."""
    old, new = _parts(before), _parts(now)
    for name, text in old.items():
        if text != new.get(name, text):
            yield f"{name}:"
            lines = [*difflib.unified_diff(text.splitlines(), new[name].splitlines(), n=0)]
            yield from (line for line in lines[2:] if line[0] in "+-")


def _parts(source: str) -> dict[str, str]:
    parts = (part.partition("\n") for part in re.split(f"^{_HEADING}", source, flags=re.MULTILINE)[1:])
    return {name: text.rstrip() for name, _, text in parts}

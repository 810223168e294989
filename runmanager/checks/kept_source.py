"""The source that `train` reached, as kept with its experiment, and its changed lines."""

import difflib
import re
import zlib
from contextlib import suppress

from runmanager.core import files
from runmanager.core.state import RunResult

_LARGEST = 1 << 24  # maximum number of bytes of a source


def read_source(run: RunResult) -> str:
    """Return the source with which the last attempt at a run began, "" if it is not kept."""
    match run.start:
        case {"fingerprint": {"source": {"hash": str(name)}}}:
            with suppress(OSError, ValueError, zlib.error):
                content = files.read_file(run.folder.path.parent / files.SOURCE.format(name), _LARGEST)
                return zlib.decompressobj(31).decompress(content, _LARGEST).decode("utf-8", "replace")
    return ""


def changed_lines(before: str, now: str) -> list[str]:
    """Return the removed and added lines of each function and class that two sources have."""
    lines: list[str] = []
    new = _parts(now)
    for name, text in _parts(before).items():
        if text != new.get(name, text):
            differences = [*difflib.unified_diff(text.splitlines(), new[name].splitlines(), n=0)]
            lines += [f"{name}:", *(line for line in differences[2:] if line[0] in "+-")]
    return lines


def _parts(source: str) -> dict[str, str]:
    # a heading comes before each function or class; editors show such parts as cells
    return dict(re.findall(r"^# %% (.*)\n(?s:(.*?))\s*(?=^# %% |\Z)", source, re.MULTILINE))

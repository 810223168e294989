"""Ways in which what a run left behind may be damaged."""

import json
from pathlib import Path

from runmanager.core.journal import to_line

NO_PROCESS = 2**22 + 1
"""A number above the largest of a process."""


def journals(folder: Path) -> list[Path]:
    """Find the journals of a run, the first first."""
    return sorted(folder.glob("attempt-*[0-9].jsonl"), key=lambda path: int(path.stem.partition("-")[2]))


def as_if_killed(folder: Path, num_lost: int = 0) -> None:
    """Make the newest journal of a run one whose process was killed, `num_lost` lines before."""
    path = journals(folder)[-1]
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    lines = [line for line in lines if line["type"] != "end"]
    lines = lines[: len(lines) - num_lost]
    for line in lines:
        del line["crc"]
    lines[0]["pid"] = NO_PROCESS
    path.write_bytes(b"".join(map(to_line, lines)))


def flip(path: Path, place: float = 0.5) -> None:
    """Flip a bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)

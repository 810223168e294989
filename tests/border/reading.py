"""Read the files of an experiment as docs/architecture.md describes them, without the package.

A journal has a JSON object per line, which ends with the CRC-32 of the line without it. Attempts of a run are
numbered; a later one supersedes the epochs after the one that it began after.
"""

import json
import zlib
from pathlib import Path
from typing import Any

NO_PROCESS = 2**22 + 1
"""A number above the largest of a process."""


def run_folders(experiment: Path | str) -> list[Path]:
    """Return the folders of runs, by their numbers."""
    return sorted(path for path in Path(experiment).iterdir() if (path / "run.json").is_file())


def run_folder(experiment: Path | str, number: int = 1) -> Path:
    """Return the folder of one run."""
    (folder,) = Path(experiment).glob(f"{number:03}*")
    return folder


def journals(folder: Path) -> list[Path]:
    """Return the journals of a run, the first attempt first."""
    return sorted(folder.glob("attempt-*[0-9].jsonl"), key=lambda path: int(path.stem.partition("-")[2]))


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a journal, whose checksums and strict JSON are asserted."""
    return [_checked(line) for line in path.read_bytes().split(b"\n")[:-1]]


def _checked(line: bytes) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    content: dict[str, Any] = json.loads(line, parse_constant=refuse)
    assert to_line(content) == line + b"\n"
    return content


def to_line(content: dict[str, Any]) -> bytes:
    """Write a line of a journal, with its checksum in place of an earlier one."""
    content = {name: value for name, value in content.items() if name != "crc"}
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return body[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(body)


def epochs(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the metrics of a run's epochs that count."""
    result: dict[int, dict[str, Any]] = {}
    for path in journals(folder):
        start, *rest = lines(path)
        records = {line["epoch"]: line["metrics"] for line in rest if line["type"] == "epoch"}
        if records:  # an attempt without an epoch supersedes none
            result = {epoch: each for epoch, each in result.items() if epoch <= start["after"]} | records
    return result


def as_killed(folder: Path, num_lost: int = 0) -> None:
    """Make the newest journal of a run one whose process was killed, `num_lost` lines before."""
    path = journals(folder)[-1]
    left = [line for line in lines(path) if line["type"] != "end"]
    left = left[: len(left) - num_lost]
    left[0]["pid"] = NO_PROCESS
    write(path, left)


def write(path: Path, content: list[dict[str, Any]]) -> None:
    """Write the lines of a journal, with their checksums."""
    path.write_bytes(b"".join(map(to_line, content)))


def flip(path: Path, position: float = 0.5) -> None:
    """Flip a bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1
    path.write_bytes(content)

"""One JSON line per epoch: what an attempt appends, and how it is read back.

A line is a strict JSON object that ends with ``"crc"``, the CRC-32 of the line without it. The first line of
a journal has the type ``start``, then one ``epoch`` each, then ``end``; a killed attempt has no ``end``.
"""

import errno
import itertools
import json
import math
import os
import re
import stat
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from runmanager.storage import paths, processes
from runmanager.storage.durable import AppendFile

LEADING = ("loss", "accuracy", "epoch duration", "run duration")
"""The metrics that stand before the hyperparameters, as in the tutorial's table."""

VERSION = 1
_CRC = ',"crc":"'
_CRC_BYTES = _CRC.encode()
_CRC_LENGTH = len(_CRC) + 8 + len('"}')
_PLAIN = re.compile(rb'\{"v":1,"type":"epoch","attempt":\d+,"epoch":(\d{1,15}),"metrics":(\{[^{}]*\}),')
"""An epoch's line whose metrics are all finite, as `Journal` writes it: its number and its metrics."""

_LARGEST = 256 * 2**20  # bytes of a journal that are read


class Status(StrEnum):
    """How a run stands: ended in one of the first four ways, or not."""

    COMPLETED = "completed"
    FAILED = "failed"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"
    UNAVAILABLE = "unavailable"
    PENDING = "pending"
    RUNNING = "running"
    STALE = "stale"


class EpochRecord(NamedTuple):
    """One finished epoch of a run.

    Attributes:
        epoch: Its number, from 1.
        metrics: Columns of the table -> values; durations in seconds.
        times: What is outside of the epoch's duration, and its parts, in seconds.
    """

    epoch: int
    metrics: Mapping[str, float]
    times: Mapping[str, float] = {}


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        status: Completed, failed, diverged, interrupted or unavailable.
        error: The cause in one line, empty if completed.
        epochs: How many epochs are committed.
    """

    status: Status
    error: str = ""
    epochs: int = 0


@dataclass
class Attempt:
    """What a journal holds: as much of it as is whole.

    Attributes:
        start: The start line, empty if it is damaged.
        epochs: Epoch number -> record.
        outcome: How it ended, None if it did not say.
        damaged: Numbers of the lines, from 1, that could not be read.
    """

    start: Mapping[str, Any] = field(default_factory=dict)
    epochs: dict[int, EpochRecord] = field(default_factory=dict)
    outcome: Outcome | None = None
    damaged: list[int] = field(default_factory=list)


class Journal:
    """The journal of one attempt, open for appending; each method returns when its line is on disk.

    Raises:
        StorageError: A line could not be written; those before it are whole.
    """

    def __init__(self, folder: Path, attempt: int, details: Mapping[str, Any]) -> None:
        self.attempt = attempt
        start = self._line("start", {**processes.this_process(), **details})
        self._file = AppendFile(folder / paths.journal(attempt), start)

    def epoch(self, record: EpochRecord) -> None:
        """Commit a finished epoch."""
        metrics = {name: _finite(value) for name, value in record.metrics.items()}
        nonfinite = {name: str(v) for name, v in record.metrics.items() if not math.isfinite(v)}
        extra = {"nonfinite": nonfinite} if nonfinite else {}
        times = {name: round(value, 6) for name, value in record.times.items()}
        self._append("epoch", {"epoch": record.epoch, **extra, "metrics": metrics, "times": times})

    def end(self, outcome: Outcome) -> None:
        """Commit how the attempt ended, and close the file."""
        content = {"status": outcome.status, "error": outcome.error, "epochs": outcome.epochs}
        self._append("end", content)
        self.close()

    def close(self) -> None:
        """Close the file without saying how the attempt ended."""
        self._file.close()

    def _append(self, kind: str, content: Mapping[str, Any]) -> None:
        self._file.append(self._line(kind, content))

    def _line(self, kind: str, content: Mapping[str, Any]) -> bytes:
        clocks = {"t_wall": round(time.time(), 3), "t_mono": round(time.monotonic(), 3)}
        return to_line({"v": VERSION, "type": kind, "attempt": self.attempt, **content, **clocks})


def to_line(content: Mapping[str, Any]) -> bytes:
    """Write a JSON object as a line with its checksum."""
    body = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return f'{body[:-1]}{_CRC}{zlib.crc32(body.encode()):08x}"}}\n'.encode()


def read_attempt(path: Path, *, times: bool = True) -> Attempt:
    """Read a journal, complete or still growing; never raises for what it holds.

    A last line without its end is being written, or was when its writer died: it is left out silently.

    Args:
        path: The journal.
        times: False leaves the times of the epochs out, which halves the time it takes.

    Raises:
        OSError: The file cannot be read at all.
    """
    content = read_file(path, _LARGEST)
    attempt = Attempt()
    plain: list[re.Match[bytes]] = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].split(b"\n")[:-1], 1):
        match = None if times else _PLAIN.match(line)
        try:
            _check(line)
            if match:
                plain.append(match)
            else:
                _take(attempt, json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            attempt.damaged.append(number)
    if plain and not _take_plain(attempt, plain):
        return read_attempt(path)
    return attempt


def _take_plain(attempt: Attempt, matches: Sequence["re.Match[bytes]"]) -> bool:
    """Take epochs of which only the metrics are wanted, in one call of the parser; False if they are odd."""
    try:
        parsed = json.loads(b"[" + b",".join([match[2] for match in matches]) + b"]")
    except (ValueError, RecursionError):
        return False
    kinds = set(map(type, itertools.chain.from_iterable(map(dict.values, parsed))))
    if len(parsed) != len(matches) or not kinds <= {float}:
        return False
    numbers = [int(match[1]) for match in matches]
    attempt.epochs.update(zip(numbers, map(EpochRecord, numbers, parsed), strict=True))
    return True


def _check(line: bytes) -> None:
    if line[-_CRC_LENGTH:] != b'%b%08x"}' % (_CRC_BYTES, zlib.crc32(b"}", zlib.crc32(line[:-_CRC_LENGTH]))):
        raise ValueError("checksum differs")


def _take(attempt: Attempt, line: Mapping[str, Any]) -> None:
    match line["type"]:
        case "start":
            attempt.start = line
        case "epoch":
            record = _record(line)
            attempt.epochs[record.epoch] = record
        case "end":
            attempt.outcome = Outcome(Status(line["status"]), str(line["error"]), int(line["epochs"]))


def _record(line: Mapping[str, Any]) -> EpochRecord:
    nonfinite = line.get("nonfinite", {})
    metrics = {
        name: float(nonfinite[name]) if value is None else float(value)
        for name, value in line["metrics"].items()
    }
    return EpochRecord(int(line["epoch"]), metrics, line["times"])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def read_file(path: Path, most: int) -> bytes:
    """Read up to `most` bytes of a file.

    Raises:
        OSError: It cannot be read, or is no file.
    """
    # without waiting, as opening a pipe would for its writer
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a file", str(path))
        parts: list[bytes] = []
        left = most
        while left > 0 and (part := os.read(descriptor, min(left, found.st_size + 1 or 1))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def strict_json(content: Any) -> bytes:
    """Write a whole JSON document for people and tools alike: indented, UTF-8, no NaN."""
    document = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    # half a surrogate pair, as in a file name that is no UTF-8, becomes its JSON escape
    return f"{document}\n".encode("utf-8", "backslashreplace")

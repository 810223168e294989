"""One JSON line per epoch: what an attempt appends, and how it is read back.

A line is a strict JSON object that ends with ``"crc"``, the CRC-32 of the line without it. The first line of
a journal has the type ``start``, then one ``epoch`` each, then ``end``; a killed attempt has no ``end``. An
``end`` has the CRC-32 of all bytes before it too, as ``"whole"``: a finished journal is checked at once.
"""

import json
import math
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.storage import durable, paths, processes
from runmanager.storage.durable import AppendFile, read_file, version

VERSION = 1
_CRC = b',"crc":"%08x"}'
_CRC_LENGTH = len(_CRC % 0)
_LARGEST = 256 * 2**20  # bytes of a journal that are read

_EPOCHS = msgspec.json.Decoder(EpochRecord)
_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass
class Attempt:
    """The content of a journal: of its lines, those that are whole."""

    start: Mapping[str, Any] = field(default_factory=dict)  # its first line, empty if that is damaged
    epochs: dict[int, EpochRecord] = field(default_factory=dict)  # by number
    outcome: Outcome | None = None  # None without an end line
    end: Mapping[str, Any] = field(default_factory=dict)  # its last line, empty if there is no end
    damaged: list[int] = field(default_factory=list)  # numbers of lines, from 1
    version: tuple[int, int, int] = (0, 0, 0)  # of the file before it was read, see `durable.version`


class Journal:
    """The journal of one attempt, open for appending; each method returns when its line is on disk.

    Raises:
        StorageError: A line could not be written; those before it are whole.
    """

    def __init__(self, folder: Path, attempt: int, details: Mapping[str, Any]) -> None:
        self.attempt = attempt
        start = _line(attempt, "start", {**processes.this_process(), **details})
        self._file = AppendFile(folder / paths.journal(attempt), start)
        self._crc = zlib.crc32(start)

    def epoch(self, record: EpochRecord) -> None:
        """Commit a finished epoch."""
        nonfinite = {name: str(v) for name, v in record.metrics.items() if not math.isfinite(v)}
        metrics = {name: None if name in nonfinite else value for name, value in record.metrics.items()}
        extra: dict[str, Any] = {"nonfinite": nonfinite} if nonfinite else {}
        extra |= {"cold": True} if record.cold else {}
        times = {name: round(value, 6) for name, value in record.times.items()}
        self._append("epoch", {"epoch": record.epoch, **extra, "metrics": metrics, "times": times})

    def end(self, outcome: Outcome, **facts: Any) -> None:
        """Commit how the attempt ended, with further facts of it, and close the file."""
        self._append("end", {**facts, **_end(outcome, self._crc)})
        self.close()

    def close(self) -> None:
        """Close the file without an end line."""
        self._file.close()

    def _append(self, kind: str, content: Mapping[str, Any]) -> None:
        line = _line(self.attempt, kind, content)
        self._file.append(line)
        self._crc = zlib.crc32(line, self._crc)


class NoJournal(Journal):
    """The journal of a process for which another one writes."""

    def __init__(self) -> None:
        self.attempt = 0

    def epoch(self, record: EpochRecord) -> None:
        """Do nothing."""

    def end(self, outcome: Outcome, **facts: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _line(attempt: int, kind: str, content: Mapping[str, Any]) -> bytes:
    clocks = {"t_wall": round(time.time(), 3), "t_mono": round(time.monotonic(), 3)}
    return to_line({"v": VERSION, "type": kind, "attempt": attempt, **content, **clocks})


def _end(outcome: Outcome, crc: int) -> dict[str, Any]:
    ended = {"status": outcome.status, "error": outcome.error, "epochs": outcome.epochs}
    return {**ended, "whole": f"{crc:08x}"}


def end_abandoned(folder: Path, outcome: Outcome, details: Mapping[str, Any]) -> None:
    """Commit how the last attempt at a run ended whose process is gone, in a new journal if it began none.

    `details` are facts for the first line of a new journal.

    Raises:
        StorageError: It could not be committed.
    """
    number, path = max(paths.attempts(folder).items(), default=(0, ""))
    with durable.explained(folder):
        content = read_file(path, _LARGEST)[0] if number else b""
    lines = content[: content.rfind(b"\n") + 1]
    if not number or _read_lines(lines).outcome:
        Journal(folder, number + 1, {"after": outcome.epochs, **details}).end(outcome)
        return
    with AppendFile.reopen(Path(path), len(lines)) as file:
        file.append(_line(number, "end", _end(outcome, zlib.crc32(lines))))


def to_line(content: Mapping[str, Any]) -> bytes:
    """Write a JSON object as a line with its checksum."""
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return body[:-1] + _CRC % zlib.crc32(body) + b"\n"


def read_attempt(path: str | Path) -> Attempt:
    """Read a journal, complete or still growing; never raises for its content.

    A last line without its end is being written, or was when its writer died: it is skipped silently.

    Raises:
        OSError: The file cannot be read at all.
    """
    content, state = read_file(path, _LARGEST)
    lines = content[: content.rfind(b"\n") + 1]
    attempt = _read_whole(lines) or _read_lines(lines)
    attempt.version = version(state)
    return attempt


def _read_whole(lines: bytes) -> Attempt | None:
    """Read a finished journal at once; None if it is not finished, damaged, or not all numbers are finite."""
    first, last = lines.find(b"\n") + 1, lines.rfind(b"\n", 0, -1) + 1
    try:
        _check(lines[last:-1])
        end = msgspec.json.decode(lines[last:-1])
        if end["whole"] != f"{zlib.crc32(lines[:last]):08x}":
            return None
        records = _EPOCHS.decode_lines(lines[first:last])
        epochs = {record.epoch: record for record in records}
        return Attempt(msgspec.json.decode(lines[:first]), epochs, _outcome(end), end)
    except (msgspec.DecodeError, *_DAMAGED):
        return None


def _read_lines(lines: bytes) -> Attempt:
    attempt = Attempt()
    for number, line in enumerate(lines.split(b"\n")[:-1], 1):
        try:
            _check(line)
            _take(attempt, json.loads(line))
        except _DAMAGED:
            attempt.damaged.append(number)
    return attempt


def _check(line: bytes) -> None:
    if line[-_CRC_LENGTH:] != _CRC % zlib.crc32(b"}", zlib.crc32(line[:-_CRC_LENGTH])):
        raise ValueError("checksum differs")


def _take(attempt: Attempt, line: Mapping[str, Any]) -> None:
    match line["type"]:
        case "start":
            attempt.start = line
        case "epoch":
            nonfinite, values = line.get("nonfinite", {}), line["metrics"].items()
            metrics = {name: float(nonfinite[name] if value is None else value) for name, value in values}
            number = int(line["epoch"])
            attempt.epochs[number] = EpochRecord(number, metrics, line["times"], line.get("cold") is True)
        case "end":
            attempt.outcome, attempt.end = _outcome(line), line


def _outcome(line: Mapping[str, Any]) -> Outcome:
    return Outcome(Status(line["status"]), str(line["error"]), int(line["epochs"]))

"""Journals of attempts: one JSON line per epoch, appended and read back.

A line is a strict JSON object that ends with ``"crc"``, the CRC-32 of the line without this field. The first
line of a journal has the type ``start``. Then follow one line ``epoch`` per epoch and a line ``end``; a killed
attempt has no ``end``. Lines of type ``inside`` record checkpoints inside an epoch. Lines of other types are
skipped, as later versions may write such lines. An ``end`` also has the CRC-32 of all earlier bytes, as
``"whole"``, so that a finished journal is checked in one step.

A checksum does not tell who wrote a line, so types are checked here too, and users of an `Attempt` need no
checks. A fact of a wrong type is omitted; a line that lacks a required fact is damaged.
"""

import json
import math
import re
import time
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypedDict, get_type_hints

import msgspec

from runmanager.core import files, processes
from runmanager.core.files import AppendFile, version
from runmanager.core.outcome import LARGEST, LEADING, EpochRecord, Inside, Outcome, Status
from runmanager.core.values import COLUMNS

VERSION = 1
_CRC = b',"crc":"%08x"}'
_CRC_LENGTH = len(_CRC % 0)
PIECE = 64 * 2**20
"""The maximum number of bytes per read; no line of a journal is longer."""
_MOST_NAMED = 10  # maximum number of damaged lines in a message
_INSIDE = re.compile(rb'^\{"v":1,"type":"inside",[^\n]*\n', re.MULTILINE)

_EPOCHS = msgspec.json.Decoder(EpochRecord)
DAMAGED = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, msgspec.MsgspecError
)  # fmt: skip
"""The exceptions raised by a line that is not a record."""
_TAKEN = COLUMNS - {*LEADING}
"""Names that a metric cannot have: columns of the tables."""
_ENDS = {status for status in Status if not (status.is_in_progress or status is Status.PENDING)}

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
# seconds since 1970, within the range of Python's dates
Seconds = Annotated[float, msgspec.Meta(ge=0, le=2.5e11)]


class _Facts(TypedDict, total=False):
    """The facts of first and last lines that the code uses; lines may have further facts."""

    after: Count
    attempt: Count
    boot: str
    command: str
    commit: str
    device: str
    device_name: str
    fingerprint: dict[str, dict[str, str]]
    host: str
    inside: Inside
    items: dict[str, Count]
    jobs: Count
    loaded: dict[str, str]
    mixed: bool
    parameters: Count
    peak_memory: Count
    pid: int
    pid_start: str
    pruned_by: str
    ranks: Count
    restored: Count
    settings: dict[str, str]
    stopped_early: str
    summary: dict[str, float | Literal["nan", "inf", "-inf"]]
    t_wall: Seconds
    threads: Count
    versions: dict[str, str]


class _End(TypedDict):
    """The required facts of a last line."""

    status: str
    error: str
    epochs: Count


_KINDS = get_type_hints(_Facts, include_extras=True)


@dataclass
class Attempt:
    """The content of a journal: its intact lines."""

    number: int = 0  # number of the attempt, from the file's name
    start: Mapping[str, Any] = field(default_factory=dict)  # the first line, empty if it is damaged
    epochs: dict[int, EpochRecord] = field(default_factory=dict)  # the epochs by number
    inside: Inside | None = None  # the last checkpoint inside the epoch after `epochs`
    outcome: Outcome | None = None  # the outcome; None without an end line
    end: Mapping[str, Any] = field(default_factory=dict)  # the last line, empty without an end
    loaded: dict[str, str] = field(default_factory=dict)  # path of another run -> digest of its files
    damaged: list[int] = field(default_factory=list)  # line numbers of the damaged lines, from 1
    num_lines: int = 0
    size: int = 0  # size of the lines in bytes
    crc: int = 0  # CRC-32 of the lines
    is_read: bool = True  # whether the file was read to its end; a line that is too long stops the reader
    version: tuple[int, int, int] = (0, 0, 0)  # version of the file before it was read, see `files.version`

    @property
    def damage(self) -> str:
        """The damaged lines as text, "" if there are none."""
        named, others = self.damaged[:_MOST_NAMED], len(self.damaged[_MOST_NAMED:])
        more = f" and {others} more" if others else ""
        return f"line {', '.join(map(str, named))}{more}" if named else ""


class Journal:
    """The journal of one attempt, open for appending; each method returns when its line is on disk.

    Raises:
        StorageError: A line could not be written; earlier lines are intact.
    """

    def __init__(self, folder: Path, attempt: int, details: Mapping[str, Any]) -> None:
        self.attempt = attempt
        start = _line(attempt, "start", {**processes.this_process(), **details})
        path = folder / files.journal(attempt)
        files.write_file(path, start, is_new=True)
        self._file = AppendFile(path, len(start))
        self._crc = zlib.crc32(start)

    def epoch(self, record: EpochRecord, **facts: Any) -> None:
        """Commit a finished epoch, with further facts."""
        nonfinite = {name: str(v) for name, v in record.metrics.items() if not math.isfinite(v)}
        metrics = {name: None if name in nonfinite else value for name, value in record.metrics.items()}
        extra: dict[str, Any] = {"nonfinite": nonfinite} if nonfinite else {}
        extra |= {"cold": True} if record.cold else {}
        extra |= {"steps": record.steps} if record.steps else {}
        times = {name: round(value, 6) for name, value in record.times.items()}
        self._append("epoch", {"epoch": record.epoch, **extra, **facts, "metrics": metrics, "times": times})

    def inside(self, inside: Inside, **facts: Any) -> None:
        """Record a checkpoint inside an epoch, with further facts."""
        self._append("inside", {**msgspec.to_builtins(inside), **facts})

    def end(self, outcome: Outcome, summary: Mapping[str, float] | None = None, **facts: Any) -> None:
        """Commit the outcome with the summary of the run and further facts; close the file."""
        values = {
            name: value if math.isfinite(value) else str(value) for name, value in (summary or {}).items()
        }
        facts |= {"summary": values} if values else {}
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
    """The journal of a process that does not write, such as a rank above 0."""

    def __init__(self) -> None:
        self.attempt = 0

    def epoch(self, record: EpochRecord, **facts: Any) -> None:
        """Do nothing."""

    def inside(self, inside: Inside, **facts: Any) -> None:
        """Do nothing."""

    def end(self, outcome: Outcome, summary: Mapping[str, float] | None = None, **facts: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _line(attempt: int, kind: str, content: Mapping[str, Any]) -> bytes:
    clocks = {"t_wall": round(time.time(), 3), "t_mono": round(time.monotonic(), 3)}
    return to_line({"v": VERSION, "type": kind, "attempt": attempt, **content, **clocks})


def _end(outcome: Outcome, crc: int) -> dict[str, Any]:
    ended = {"status": outcome.status, "error": outcome.error, "epochs": outcome.epochs}
    ended |= {"pruned_by": outcome.pruned_by} if outcome.pruned_by else {}
    return {**ended, "whole": f"{crc:08x}"}


def end_abandoned_attempt(folder: Path, outcome: Outcome, details: Mapping[str, Any]) -> None:
    """Commit the outcome of an attempt whose process has ended, in a new journal if the attempt has no journal.

    `details` are facts for the first line of a new journal.

    Raises:
        StorageError: The outcome could not be committed.
    """
    number, path = max(files.journals_by_attempt(folder).items(), default=(0, ""))
    with files.explained(folder):
        last = read_attempt(path) if number else Attempt()
    if not number or last.outcome or not last.is_read:
        Journal(folder, number + 1, {"after": outcome.epochs, **details}).end(outcome)
        return
    with closing(AppendFile(Path(path), last.size, last.version[1])) as file:
        file.append(_line(number, "end", _end(outcome, last.crc)))


def to_line(content: Mapping[str, Any]) -> bytes:
    """Write a JSON object as a line with its checksum."""
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return body[:-1] + _CRC % zlib.crc32(body) + b"\n"


def read_attempt(path: str | Path) -> Attempt:
    """Read a journal, complete or still growing; its content never raises an error."""
    attempt = Attempt()
    rest = b""
    with files.opened(path) as (descriptor, state):
        attempt.version = version(state)
        most = min(PIECE, state.st_size + 1)
        while piece := files.read_at_most(descriptor, most):
            content = rest + piece
            lines = content[: content.rfind(b"\n") + 1]
            rest = content[len(lines) :]
            if attempt.size or len(piece) == most or not _read_whole(lines, attempt):
                _read_lines(lines, attempt)
            attempt.size += len(lines)
            attempt.crc = zlib.crc32(lines, attempt.crc)
            if len(rest) >= PIECE:
                attempt.damaged.append(attempt.num_lines + 1)
                attempt.is_read = False
                break
    return attempt


def _read_whole(lines: bytes, attempt: Attempt) -> bool:
    """Read a finished journal in one step; False if it is unfinished or damaged, or has NaN or infinity."""
    first, last = lines.find(b"\n") + 1, lines.rfind(b"\n", 0, -1) + 1
    try:
        check_line(lines[last:-1])
        end = msgspec.json.decode(lines[last:-1])
        if end["whole"] != f"{zlib.crc32(lines[:last]):08x}":
            return False
        start, outcome = msgspec.json.decode(lines[:first]), _outcome(end)
        for line in (start, end):
            msgspec.convert(line, _Facts)
        inside = _INSIDE.findall(lines, first, last)
        records = _EPOCHS.decode_lines(_INSIDE.sub(b"", lines[first:last]))
        if not all(_TAKEN.isdisjoint(record.metrics) for record in records):
            return False
    except DAMAGED:
        return False
    attempt.start, attempt.outcome, attempt.end = start, outcome, end
    attempt.loaded = {**start.get("loaded", {}), **end.get("loaded", {})}
    attempt.epochs = {record.epoch: record for record in records}
    if inside and lines.endswith(inside[-1], first, last):
        attempt.inside = msgspec.json.decode(inside[-1], type=Inside)
    return True


def _read_lines(lines: bytes, attempt: Attempt) -> None:
    for line in lines.split(b"\n")[:-1]:
        attempt.num_lines += 1
        if len(line) < _CRC_LENGTH:
            attempt.damaged.append(attempt.num_lines)
            continue
        try:
            check_line(line)
            _take(attempt, json.loads(line, parse_constant=_refuse))
        except DAMAGED:
            attempt.damaged.append(attempt.num_lines)


def check_line(line: bytes) -> None:
    """Compare a line, without newline, with its checksum."""
    if line[-_CRC_LENGTH:] != _CRC % zlib.crc32(b"}", zlib.crc32(line[:-_CRC_LENGTH])):
        raise ValueError("checksum differs")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _take(attempt: Attempt, line: Mapping[str, Any]) -> None:
    if "loaded" in line:
        attempt.loaded |= _fitting(line).get("loaded", {})
    match line["type"]:
        case "start":
            attempt.start = _fitting(line)
            _check_numbers(line)
        case "epoch":
            nonfinite, values = line.get("nonfinite", {}), line["metrics"].items()
            metrics = {name: float(nonfinite[name]) if value is None else value for name, value in values}
            record = msgspec.convert({**line, "metrics": metrics}, EpochRecord)
            if not _TAKEN.isdisjoint(metrics):
                raise ValueError("a metric is called like another column")
            "".join(metrics).encode()  # half a surrogate pair cannot be in the name of a column
            attempt.epochs[record.epoch], attempt.inside = record, None
        case "inside":
            attempt.inside = msgspec.convert(line, Inside)
        case "end":
            attempt.outcome, attempt.end = _outcome(line), _fitting(line)
            _check_numbers(line)


def _fitting(line: Mapping[str, Any]) -> dict[str, Any]:
    """Omit the facts of a line that have a wrong type."""
    return {name: value for name, value in line.items() if _fits(value, _KINDS.get(name, Any))}


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _check_numbers(line: Mapping[str, Any]) -> None:
    if any(isinstance(value, int) and abs(value) > LARGEST for value in line.values()):
        raise ValueError("a number is too large")


def _outcome(line: Mapping[str, Any]) -> Outcome:
    end = msgspec.convert(line, _End)
    status = Status(end["status"])
    if status not in _ENDS:
        raise ValueError(f"no end is {status}")
    return Outcome(status, end["error"], end["epochs"])

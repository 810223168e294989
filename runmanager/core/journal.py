"""Journals of attempts: one JSON line per epoch, appended and read back.

A line is a strict JSON object that ends with ``"crc"``, the CRC-32 of the line without this field. The first
line of a journal has the type ``start``. Then follow one line ``epoch`` per epoch and a line ``end``; a killed
attempt has no ``end``. Lines of type ``inside`` record checkpoints inside an epoch. Lines of other types are
skipped, as later versions may write such lines.

A checksum does not tell who wrote a line, so types are checked here too, and users of an `Attempt` need no
checks. A fact of a wrong type is omitted; a line that lacks a required fact is damaged.
"""

import errno
import json
import math
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from runmanager.core import files, lock, provenance
from runmanager.core.files import AppendFile
from runmanager.core.outcome import LARGEST, LEADING, EpochRecord, Inside, Outcome, Status
from runmanager.core.values import COLUMNS
from runmanager.core.wording import listed
from runmanager.errors import StorageError

VERSION = 1
_CRC = b',"crc":"%08x"}\n'
_CRC_LENGTH = len(_CRC % 0)
PIECE = 64 * 2**20
"""The maximum number of bytes per read; no line of a journal is longer."""
_HEAD = 100  # number of bytes of a line in which the facts of an epoch begin
_MOST_NAMED = 10  # maximum number of damaged lines in a message

DAMAGED = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, msgspec.MsgspecError
)  # fmt: skip
"""The exceptions raised by a line that is not a record."""
_TAKEN = COLUMNS - {*LEADING}  # names that a metric cannot have: columns of the tables
_ENDS = {s for s in Status if not (s.is_in_progress or s in (Status.PENDING, Status.CHANGED))}

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
# seconds since 1970, within the range of Python's dates
Seconds = Annotated[float, msgspec.Meta(ge=0, le=2.5e11)]


class _Facts(TypedDict, total=False):
    """The facts of lines that the code uses; lines may have further facts."""

    after: Count
    attempt: Count
    boot: str
    command: str
    commit: str
    device: str
    device_name: str
    epochs: Count
    error: str
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
    status: Status
    stopped_early: str
    summary: dict[str, float | Literal["nan", "inf", "-inf"]]
    t_wall: Seconds
    threads: Count
    type: str
    versions: dict[str, str]


_EPOCH = b'{"v":1,"type":"epoch",'
_EPOCHS = msgspec.json.Decoder(EpochRecord)
# msgspec crashes if two threads meet a class that it has not seen
msgspec.json.Decoder(_Facts)


@dataclass
class Attempt:
    """The content of a journal: its intact lines."""

    path: str = ""
    number: int = 0  # number of the attempt, from the file's name
    start: Mapping[str, Any] = field(default_factory=dict)  # the first line, empty if it is damaged
    epochs: dict[int, EpochRecord] = field(default_factory=dict)  # the epochs by number
    inside: Inside | None = None  # the last checkpoint inside the epoch after `epochs`
    outcome: Outcome | None = None  # the outcome; None without an end line
    end: Mapping[str, Any] = field(default_factory=dict)  # the last line, empty without an end
    loaded: dict[str, str] = field(default_factory=dict)  # path of another run -> digest of its files
    damaged: list[int] = field(default_factory=list)  # line numbers of the damaged lines, from 1
    size: int = 0  # size of the lines in bytes
    is_read: bool = True  # whether the file was read to its end; a line that is too long stops the reader
    version: tuple[int, int, int] = (0, 0, 0)  # version of the file before it was read, see `files.version_of`

    @property
    def damage(self) -> str:
        """The damaged lines as text, "" if there are none."""
        return f"line {listed(self.damaged, _MOST_NAMED)} damaged" if self.damaged else ""


class Journal(AppendFile):
    """The journal of one attempt, open for appending; each method returns when its line is on disk."""

    def __init__(self, folder: Path, attempt: int, details: Mapping[str, Any]) -> None:
        self._noted: dict[str, str] = {}  # what the last lines say of loaded runs
        if attempt > 1:
            files.remove_leftovers(folder)
        self.facts = {
            **lock.this_process(),
            "versions": provenance.versions(),
            "commit": provenance.git_commit(),
            "command": provenance.command(tuple(sys.argv)),
            **details,
        }
        while True:
            path = folder / f"attempt-{attempt}.jsonl"
            start = _line(folder, attempt, "start", self.facts, self._noted)
            try:
                # complete: its first line names the process that writes it
                files.write_file(path, start, is_new=True)
                break
            except StorageError as error:
                if error.errno != errno.EEXIST:
                    raise
                attempt += 1  # another process has just begun an attempt
        self.attempt = attempt
        super().__init__(path, len(start))

    def epoch(self, record: EpochRecord) -> None:
        """Commit a finished epoch."""
        content: dict[str, Any] = {"epoch": record.epoch}
        if nonfinite := {
            name: str(value) for name, value in record.metrics.items() if not math.isfinite(value)
        }:
            content["nonfinite"] = nonfinite
        if record.cold:
            content["cold"] = True
        if record.steps:
            content["steps"] = record.steps
        content["metrics"] = {**record.metrics, **dict.fromkeys(nonfinite)}
        content["times"] = {name: round(value, 6) for name, value in record.times.items()}
        self.append(_line(self.path.parent, self.attempt, "epoch", content, self._noted))

    def inside(self, inside: Inside) -> None:
        """Record a checkpoint inside an epoch."""
        content = msgspec.to_builtins(inside)
        self.append(_line(self.path.parent, self.attempt, "inside", content, self._noted))

    def end(self, outcome: Outcome, summary: Mapping[str, float] | None = None, **facts: Any) -> None:
        """Commit the outcome with the summary and further facts that are not empty; close the file."""
        pairs = (summary or {}).items()
        facts["summary"] = {name: value if math.isfinite(value) else str(value) for name, value in pairs}
        facts["pruned_by"] = outcome.pruned_by
        facts = {name: fact for name, fact in facts.items() if fact not in (None, "", {})}
        facts |= {"status": outcome.status, "error": outcome.error, "epochs": outcome.epochs}
        self.append(_line(self.path.parent, self.attempt, "end", facts, self._noted))
        self.close()


class NoJournal(Journal):
    """The journal of a process that does not write, such as a rank above 0."""

    def __init__(self) -> None:
        self.path, self.attempt, self.facts, self._noted = Path(), 0, {}, {}

    def append(self, record: bytes) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _line(run: Path, attempt: int, kind: str, content: Mapping[str, Any], noted: dict[str, str]) -> bytes:
    """Return a line; `noted` gets the facts of loaded runs, which only a line with new ones has."""
    facts: dict[str, Any] = {"v": VERSION, "type": kind, "attempt": attempt}
    if provenance.loaded_now and (loaded := provenance.loaded_by(run)) != noted:
        facts["loaded"] = loaded
        noted |= loaded
    clocks = {"t_wall": round(time.time(), 3), "t_mono": round(time.monotonic(), 3)}
    return to_line({**facts, **content, **clocks})


def to_line(content: Mapping[str, Any]) -> bytes:
    """Write a JSON object as a line with its checksum."""
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return body[:-1] + _CRC % zlib.crc32(body)


def end_abandoned_attempt(folder: Path, outcome: Outcome, details: Mapping[str, Any]) -> None:
    """Commit the outcome of an attempt whose process has ended, in a new journal if it has none."""
    number, path = max(files.journals_by_attempt(folder).items(), default=(0, ""))
    with files.explained(folder):
        last = read_attempt(path) if number else Attempt()
    if not number or last.outcome or not last.is_read:
        Journal(folder, number + 1, {"after": outcome.epochs, **details}).end(outcome)
        return
    facts = {"status": outcome.status, "error": outcome.error, "epochs": outcome.epochs}
    with closing(AppendFile(Path(path), last.size, last.version[1])) as file:
        file.append(_line(folder, number, "end", facts, {}))


def read_attempt(path: str | Path, take: Callable[[Attempt, bytes], None] | None = None) -> Attempt:
    """Read a journal, complete or still growing; its content never raises an error."""
    attempt = Attempt(str(path))
    with files.opened(path) as (file, state):
        attempt.version = state.st_ino, state.st_size, state.st_mtime_ns
        for number, line in enumerate(iter(partial(file.readline, PIECE), b""), 1):
            if line[-1:] != b"\n":  # the writer has not ended it
                if len(line) == PIECE:
                    attempt.damaged.append(number)
                    attempt.is_read = False
                break
            attempt.size += len(line)
            try:
                if line[-_CRC_LENGTH:] != _CRC % zlib.crc32(b"}", zlib.crc32(line[:-_CRC_LENGTH])):
                    raise ValueError("its checksum differs")
                (take or _take)(attempt, line)
            except DAMAGED:
                attempt.damaged.append(number)
    return attempt


def _take(attempt: Attempt, line: bytes) -> None:
    """Add an intact line to what a journal contains."""
    content: dict[str, Any] = {"type": "epoch"}
    if not line.startswith(_EPOCH) or b'"loaded":' in line[:_HEAD]:
        content = {}
        # msgspec refuses the lone surrogates of file names that are not UTF-8
        for name, value in json.loads(line).items():
            with suppress(msgspec.ValidationError):
                msgspec.convert({name: value}, _Facts)
                content[name] = value
        attempt.loaded |= content.get("loaded", {})
    match content["type"]:
        case "start":
            attempt.start = content
        case "epoch":
            try:
                record = _EPOCHS.decode(line)
            except msgspec.MsgspecError:  # NaN and infinity are null
                content = json.loads(line)
                nonfinite = content.get("nonfinite", {})
                content["metrics"] |= {name: float(value) for name, value in nonfinite.items()}
                record = msgspec.convert(content, EpochRecord)
                "".join(record.metrics).encode()  # a lone surrogate cannot be in the name of a column
            if not _TAKEN.isdisjoint(record.metrics):
                raise ValueError("a metric is called like another column")
            attempt.epochs[record.epoch], attempt.inside = record, None
        case "inside":
            attempt.inside = msgspec.convert(content, Inside)
        case "end":
            status = Status(content["status"])
            if status not in _ENDS:
                raise ValueError(f"no end is {status}")
            summary = content.get("summary", {}).items()
            content["summary"] = {
                name: float(value) for name, value in summary if name.isidentifier() and name not in COLUMNS
            }
            attempt.outcome, attempt.end = Outcome(status, content["error"], content["epochs"]), content

"""What a search has asked for and what became of it, in order: a file that only grows."""

import itertools
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from runmanager.errors import StorageError
from runmanager.outcome import LARGEST
from runmanager.storage import durable, paths
from runmanager.storage.durable import AppendFile
from runmanager.storage.journal import DAMAGED, check_line, to_line

VERSION = 1
NUM_KEYS = 624
"""Of a Mersenne Twister."""
SYNC_S = 1.0
"""How long a power failure may undo: quick runs do not wait for the disk with each suggestion."""

_LARGEST = 2**30  # bytes that are read

State = Literal["complete", "pruned", "fail"]
_Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]


class Begin(msgspec.Struct, frozen=True, tag_field="type", tag="begin"):
    """A sampler begins: it is given the trials above, and repeats what is below."""

    facts: Mapping[str, Any]  # the axes and the goals
    trials: Sequence[_Count]  # that it is given, in this order
    skip: _Count = 0  # suggestions: with the same random numbers, they would be those of before


class Ask(msgspec.Struct, frozen=True, tag_field="type", tag="ask"):
    """A suggestion, written before any of its runs begins."""

    trial: _Count
    point: Mapping[str, Any]
    runs: Sequence[str]  # their identities
    given: bool = False  # nobody suggested it: the experiment had the run


class Tell(msgspec.Struct, frozen=True, tag_field="type", tag="tell"):
    """What became of a suggestion."""

    trial: _Count
    state: State
    values: Sequence[float] = ()  # of the goals
    epochs: _Count = 0  # after which it was pruned


class Generator(msgspec.Struct, frozen=True):
    """Where a generator of random numbers is, as NumPy's Mersenne Twister says it."""

    keys: str  # as little-endian 32-bit integers, in base64
    index: Annotated[int, msgspec.Meta(ge=0, le=NUM_KEYS)]
    has_gauss: Annotated[int, msgspec.Meta(ge=0, le=1)]
    gauss: float


class Kernel(msgspec.Struct, frozen=True):
    """The kernel that a Gaussian process has fitted."""

    inverse_squared_lengthscales: Sequence[float]
    scale: float
    noise: float


class Saved(msgspec.Struct, frozen=True, tag_field="type", tag="saved"):
    """What the sampler had in memory, beside the trials above: they need not be suggested again."""

    sampler: str  # which one, of which version, seed and options
    generators: Sequence[Generator]
    kernels: Sequence[Kernel] = ()  # of a Gaussian process, one for each goal

    @property
    def numbers(self) -> list[float]:
        """All of its numbers that have to be finite."""
        of_kernels = [[*each.inverse_squared_lengthscales, each.scale, each.noise] for each in self.kernels]
        return [each.gauss for each in self.generators] + list(itertools.chain.from_iterable(of_kernels))


Event = Begin | Ask | Tell | Saved
_CONVERT: Any = Event


@dataclass
class Trial:
    """A suggestion and what became of it."""

    number: int
    point: Mapping[str, Any]
    runs: Sequence[str]
    given: bool
    told: Tell | None = None


@dataclass
class Record:
    """What the file of an experiment says.

    Attributes:
        trials: By number, those that count.
        begin: The last time that a sampler began, None before the first.
        since: What came after that, in order.
        saved: What the sampler had in memory meanwhile, each with how many events of `since` come before it.
        is_damaged: Whether lines before the last one cannot be read.
        num_suggested: How many suggestions there were, also those that do not count any more.
    """

    path: Path
    trials: dict[int, Trial] = field(default_factory=dict)
    begin: Begin | None = None
    since: list[Ask | Tell] = field(default_factory=list)
    saved: list[tuple[int, Saved]] = field(default_factory=list)
    is_damaged: bool = False
    num_suggested: int = 0
    _length: int = 0  # of its whole lines, when it was read
    _size: int | None = None  # of the file then, None if it was not there
    _file: AppendFile | None = None
    _lines: list[bytes] = field(default_factory=list)  # that are not written yet
    _synced: float = -math.inf  # when it was, on the monotonic clock
    _is_synced: bool = True

    @classmethod
    def read(cls, experiment: Path) -> "Record":
        """Read it; an experiment without the file has an empty one.

        Raises:
            StorageError: It cannot be read.
        """
        record = cls(experiment / paths.SEARCH)
        content, record._size = _whole_lines(record.path)
        record._length = len(content)
        for line in content.split(b"\n")[:-1]:
            try:
                check_line(line)
                event = msgspec.convert(json.loads(line), _CONVERT)
                record._take(event)
            except DAMAGED:
                record.is_damaged = True
        return record

    @property
    def next_number(self) -> int:
        """The number of the next trial."""
        return max(self.trials, default=-1) + 1

    def add(self, event: Event) -> None:
        """Note an event; `write` puts it on disk."""
        self._take(event)
        content = msgspec.to_builtins(event)
        self._lines.append(to_line({"v": VERSION, **content}))

    def write(self) -> None:
        """Write what was added, together: a kill does not undo it, and a power failure at most a second of it.

        Raises:
            StorageError: It is not there; what was before it is.
        """
        if not self._lines:
            return
        self._file = self._file or self._opened()
        now = time.monotonic()
        is_due = now - self._synced >= SYNC_S
        self._file.append(b"".join(self._lines), sync=is_due)
        self._lines.clear()
        self._synced, self._is_synced = now if is_due else self._synced, is_due

    def sync(self) -> None:
        """Write what was added, and put all of it on disk.

        Raises:
            StorageError: It is not there.
        """
        self.write()
        if self._file and not self._is_synced:
            self._file.sync()
            self._is_synced = True

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()
            self._file = None

    def _opened(self) -> AppendFile:
        if self._size is None:
            return AppendFile(self.path)
        return AppendFile.reopen(self.path, self._length, self._size)

    def _take(self, event: Event) -> None:
        match event:
            case Begin():
                if event.skip > self.num_suggested and not self.is_damaged:
                    raise ValueError(event)
                self.trials = {number: self.trials[number] for number in event.trials}
                self.begin, self.since, self.saved = event, [], []
            case Ask():
                if event.trial in self.trials:
                    raise ValueError(event)
                self.trials[event.trial] = Trial(event.trial, event.point, event.runs, event.given)
                self.since.append(event)
                self.num_suggested += not event.given
            case Tell():
                if not all(map(math.isfinite, event.values)):
                    raise ValueError(event)
                self.trials[event.trial].told = event
                self.since.append(event)
            case Saved():
                if not all(map(math.isfinite, event.numbers)):
                    raise ValueError(event)
                self.saved.append((len(self.since), event))


def _whole_lines(path: Path) -> tuple[bytes, int | None]:
    """Return the lines of a file without one that was not written to its end, and its size, None without it."""
    try:
        content, _ = durable.read_file(path, _LARGEST)
    except FileNotFoundError:
        return b"", None
    except OSError as error:
        reason = f"cannot read what the search did ({error.strerror})"
        raise StorageError(error.errno, reason, str(path)) from error
    return content[: content.rfind(b"\n") + 1], len(content)

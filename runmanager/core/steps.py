"""The step file of an attempt: its logged steps, in one line per block, beside the journal.

Steps are not in the journal: every read of a status reads the whole journal. A line has the type ``steps`` and
a checksum, as in the journal. The line has an epoch, and for each name the steps and values: ``{"step_loss":
[[50, 100], [0.7, 0.5]]}``. The blocks of an epoch are on disk before the epoch is committed.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from runmanager.core import files, journal
from runmanager.core.experiment import RunFolder
from runmanager.core.files import AppendFile
from runmanager.core.journal import Attempt
from runmanager.core.outcome import LARGEST
from runmanager.core.state import attempts_that_count, inside_of, read_attempts
from runmanager.core.values import COLUMNS

STEP = "step"
"""The third column, beside `run` and `epoch`; a logged value cannot have this name."""

Block = Mapping[str, tuple[Sequence[int], Sequence[float]]]
"""Name -> the steps of the run, in order, and the values."""


class StepFile:
    """The step file of one attempt, open for appending; the first block creates the file."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self._path = folder / files.steps(attempt)
        self._attempt = attempt
        self._file: AppendFile | None = None

    def append(self, epoch: int, block: Block) -> None:
        """Append a block; when the method returns, the block is on disk."""
        metrics = {
            name: [list(steps), [value if math.isfinite(value) else str(value) for value in values]]
            for name, (steps, values) in block.items()
        }
        content = {"v": journal.VERSION, "type": "steps", "attempt": self._attempt, "epoch": epoch}
        line = journal.to_line({**content, "metrics": metrics, "t_wall": round(time.time(), 3)})
        if self._file is None:
            with files.explained(self._path):
                self._path.unlink(missing_ok=True)  # the file of an attempt whose journal is lost
                files.write_file(self._path, line, is_new=True)
            self._file = AppendFile(self._path, len(line))
        else:
            self._file.append(line)

    def close(self) -> None:
        """Close the file; a repeated call does nothing."""
        if self._file is not None:
            self._file.close()


class Points(NamedTuple):
    """The values of one name, sorted by epoch and step: arrays ``(N,)``."""

    epochs: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float64]


class _Block(msgspec.Struct):
    """A line of the file."""

    type: Literal["steps"]
    epoch: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
    metrics: dict[
        str,
        tuple[
            list[Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]], list[float | Literal["nan", "inf", "-inf"]]
        ],
    ]


_BLOCKS = msgspec.json.Decoder(_Block)
_Blocks = dict[str, list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]]
"""Name -> the steps and the values of each block."""
_Parts = dict[int, _Blocks]
"""Epoch -> its blocks."""


def read_steps(folder: RunFolder, damaged: list[str]) -> dict[str, Points]:
    """Read the steps of a run by name, without duplicates; append the paths of unreadable files to `damaged`.

    A resumed attempt supersedes all later steps. Steps of an uncommitted epoch are included until the epoch is
    executed again.
    """
    if not any(folder.path.glob("attempt-*.steps.jsonl")):
        return {}
    _, attempts = read_attempts(folder, [])
    starts = {attempt.number: attempt.start for attempt in attempts}
    valid = {attempt.number: attempt.start for attempt in attempts_that_count(attempts)}
    parts: _Parts = {}
    latest: _Parts = {}  # the latest values of all attempts, even of attempts killed before the first commit
    for number in files.journals_by_attempt(folder.path):
        path = folder.path / files.steps(number)
        of_attempt: _Parts = {}
        try:
            lines = _read(path, of_attempt)
        except FileNotFoundError:
            lines = Attempt()
        except OSError as error:
            damaged.append(f"{path} ({error.strerror})")
            continue
        if lines.damaged:
            damaged.append(f"{path} ({lines.damage})")
        if inside := inside_of(starts.get(number, {})):
            begun = _until(latest.get(inside.epoch, {}), inside.step)
            for name, blocks in of_attempt.get(inside.epoch, {}).items():
                begun[name] = [*begun.get(name, []), *blocks]
            of_attempt = {**of_attempt, inside.epoch: begun}
        if (start := valid.get(number)) is not None:
            # the default is for a damaged first line
            after = start.get("after", min(of_attempt, default=LARGEST) - 1)
            restored = start.get("restored", after)  # the last epoch may be only in the checkpoint
            parts = {epoch: blocks for epoch, blocks in parts.items() if epoch <= after}
            parts |= {epoch: blocks for epoch, blocks in latest.items() if after < epoch <= restored}
            parts |= of_attempt
        latest |= of_attempt
    return {
        name: _points(name, parts)
        for name in dict.fromkeys(name for blocks in parts.values() for name in blocks)
    }


def _until(names: _Blocks, last: int) -> _Blocks:
    """Remove all steps after `last`."""
    cut = {name: [(steps[steps <= last], values[steps <= last]) for steps, values in blocks]
           for name, blocks in names.items()}  # fmt: skip
    return {
        name: rest for name, blocks in cut.items() if (rest := [block for block in blocks if len(block[0])])
    }


def _points(name: str, parts: _Parts) -> Points:
    """Concatenate the blocks of a name; the last value of a duplicate step wins."""
    blocks = [(epoch, *block) for epoch, names in sorted(parts.items()) for block in names.get(name, ())]
    steps = np.concatenate([steps for _, steps, _ in blocks])
    values = np.concatenate([values for _, _, values in blocks])
    epochs = np.repeat([epoch for epoch, _, _ in blocks], [len(steps) for _, steps, _ in blocks])
    is_later = (np.diff(epochs) > 0) | (np.diff(steps) > 0)
    if not is_later.all():  # for example if a line was copied by hand
        order = np.lexsort((np.arange(len(steps)), steps, epochs))
        epochs, steps, values = epochs[order], steps[order], values[order]
        is_last = np.append((np.diff(epochs) > 0) | (np.diff(steps) > 0), [True])
        epochs, steps, values = epochs[is_last], steps[is_last], values[is_last]
    return Points(epochs, steps, values)


def _read(path: Path, parts: _Parts) -> Attempt:
    """Read the blocks of a file, complete or still growing, into `parts`; return its damaged lines."""
    lines = Attempt()
    for number, line in enumerate(_lines(path), 1):
        try:
            journal.check_line(line)
            block = _BLOCKS.decode(line)
            arrays = {name: _arrays(name, *columns) for name, columns in block.metrics.items()}
        except journal.DAMAGED:
            lines.damaged.append(number)
            continue
        names = parts.setdefault(block.epoch, {})
        for name, array in arrays.items():
            names.setdefault(name, []).append(array)
    return lines


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file without newlines; a line that is too long is cut, and ends the reading."""
    rest = b""
    with files.opened(path) as (descriptor, state):
        most = min(journal.PIECE, state.st_size + 1)
        while piece := files.read_at_most(descriptor, most):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
            if len(rest) >= journal.PIECE:
                yield rest[:1]
                return


def _arrays(
    name: str, steps: list[int], values: list[float | Literal["nan", "inf", "-inf"]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    if not name.isidentifier() or name in COLUMNS or name == STEP:
        raise ValueError("a value is called like a column")
    if len(steps) != len(values) or not steps:
        raise ValueError("not one value for each step")
    in_order = np.array(steps, np.int64)
    if not (np.diff(in_order) > 0).all():
        raise ValueError("its steps are not in order")
    return in_order, np.array(values, np.float64)

"""The step files of a run, read: the blocks of core/step_log."""

from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from runmanager.core import files, journal
from runmanager.core.experiment import RunFolder
from runmanager.core.journal import Attempt
from runmanager.core.outcome import LARGEST
from runmanager.core.state import inside_of, read_attempts
from runmanager.core.values import COLUMNS, STEP


class Points(NamedTuple):
    """The values of one name, sorted by epoch and step: arrays ``(N,)``."""

    epochs: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float64]


_Step = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
_Number = float | Literal["nan", "inf", "-inf"]


class _Line(msgspec.Struct):
    type: Literal["steps"]
    epoch: _Step
    metrics: dict[str, tuple[list[_Step], list[_Number]]]


_LINES = msgspec.json.Decoder(_Line)
_Blocks = list[tuple[int, str, npt.NDArray[np.int64], npt.NDArray[np.float64]]]
"""The epoch, name, steps and values of each block."""


def read_steps(folder: RunFolder, damaged: list[str]) -> dict[str, Points]:
    """Read the steps of a run by name, without duplicates; append the paths of unreadable files to `damaged`.

    A resumed attempt supersedes all later steps. Steps of an uncommitted epoch are included until the epoch is
    executed again.
    """
    if not any(folder.path.glob("attempt-*.steps.jsonl")):
        return {}
    attempts, that_count, _ = read_attempts(folder, [])
    starts = {attempt.number: attempt.start for attempt in attempts}
    counting = {attempt.number for attempt in that_count}
    kept: _Blocks = []
    latest: _Blocks = []  # the latest values of all attempts, even of attempts killed before the first commit
    for number in files.journals_by_attempt(folder.path):
        path, start = folder.path / f"attempt-{number}.steps.jsonl", starts.get(number, {})
        blocks: _Blocks = []
        try:
            lines = journal.read_attempt(path, partial(_take, blocks))
        except FileNotFoundError:
            lines = Attempt()
        except OSError as error:
            damaged.append(f"{path} ({error.strerror})")
            continue
        if lines.damaged:
            damaged.append(f"{path} ({lines.damage})")
        if inside := inside_of(start):
            begun = [block for block in latest if block[0] == inside.epoch]
            for epoch, name, steps, values in reversed(begun):
                is_before = steps <= inside.step
                blocks.insert(0, (epoch, name, steps[is_before], values[is_before]))
        epochs = {block[0] for block in blocks}
        if number in counting:
            # the default is for a damaged first line
            after = start.get("after", min(epochs, default=LARGEST) - 1)
            restored = start.get("restored", after)  # the last epoch may be only in the checkpoint
            kept = [block for block in kept if block[0] <= after]
            kept += [block for block in latest if after < block[0] <= restored] + blocks
        latest = [block for block in latest if block[0] not in epochs] + blocks
    columns: dict[str, list[tuple[npt.NDArray[Any], ...]]] = {}
    for epoch, name, steps, values in kept:
        columns.setdefault(name, []).append((np.full(len(steps), epoch), steps, values))
    points = {name: _points(arrays) for name, arrays in columns.items()}
    return {name: points[name] for name in points if len(points[name].steps)}


def _points(blocks: list[tuple[npt.NDArray[Any], ...]]) -> Points:
    """Concatenate the epochs, steps and values of a name; the last value of a duplicate step wins."""
    epochs, steps, values = map(np.concatenate, zip(*blocks, strict=True))
    order = np.lexsort((steps, epochs))  # a stable sort
    epochs, steps, values = epochs[order], steps[order], values[order]
    is_last = np.append((np.diff(epochs) > 0) | (np.diff(steps) > 0), [True] * (len(steps) > 0))
    return Points(epochs[is_last], steps[is_last], values[is_last])


def _take(blocks: _Blocks, _: Attempt, line: bytes) -> None:
    """Add the block of a line."""
    content = _LINES.decode(line)
    of_line: _Blocks = []
    for name, (steps, values) in content.metrics.items():
        if not name.isidentifier() or name in COLUMNS or name == STEP:
            raise ValueError("a value is called like a column")
        if len(steps) != len(values) or not steps or not (np.diff(steps) > 0).all():
            raise ValueError("not one value for each step, in order")
        of_line.append((content.epoch, name, np.array(steps, np.int64), np.array(values, np.float64)))
    blocks += of_line

"""The values of `manager.log`: collected on their device, and written in blocks; images go to the listeners.

Steps are not in the journal: every read of a status reads the whole journal. A line has the type ``steps`` and
a checksum, as in the journal. The line has an epoch, and for each name the steps and values: ``{"step_loss":
[[50, 100], [0.7, 0.5]]}``. The blocks of an epoch are on disk before the epoch is committed.
"""

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from runmanager.core import files, journal
from runmanager.core.contracts import Block, RunListener
from runmanager.core.metrics import check_column, claim_column, column_of, read_values, single
from runmanager.core.values import STEP
from runmanager.devices import ranks
from runmanager.errors import InvalidArgumentError, is_count

BLOCK = 4096
"""The maximum number of values that are read and written at once."""
LATEST_S = 10.0
"""The maximum time (s) until an incomplete block is written, so that curves grow during long epochs."""

_CHANNELS = (1, 3)  # numbers of channels of gray and color images


class StepLog:
    """The logged values of single steps of a run, and their file, which the first block creates."""

    def __init__(
        self, folder: Path, attempt: int, params: Mapping[str, Any], listeners: Iterable[RunListener]
    ) -> None:
        self._folder, self._attempt, self._params, self._listeners = folder, attempt, params, listeners
        self._is_writer = ranks.is_main()
        self._file: files.AppendFile | None = None
        self._epoch = 0
        self._step = 0  # the last logged step of the epoch, from 1; 0 before the first
        self._last: dict[str, int] = {}  # column -> the last step of the epoch with a value
        self._images: set[str] = set()  # columns of the images of the epoch
        self._sources: dict[str, str] = {}  # column -> the name that fills it
        # column -> steps and values that are not written yet
        self._pending: dict[str, tuple[list[int], list[torch.Tensor | float]]] = {}
        self._num_pending = 0  # number of values that are not written yet
        self._since = 0.0  # time of the first of them

    def add(self, values: Mapping[str, Any], every: int, *, epoch: int, batch: int, before: int) -> float:
        """Add values of the current step; return the time (s) of drawing images and of writing."""
        if not is_count(every, 1):
            rule = "every must be a whole number, 1 or more"
            raise InvalidArgumentError(f"{rule}, got {every!r}; a value of that name: log({{'every': ...}})")
        if epoch != self._epoch:
            self._epoch, self._step, self._last, self._images = epoch, 0, {}, set()
        numbers, seconds = self._numbers(values)
        last = self._last
        self._step = max(batch, self._step + any(last.get(column, 0) == self._step for column in numbers))
        step = before + self._step
        for column, value in numbers.items():
            if step // every > (before + last.get(column, 0)) // every:
                number = single(column, value)
                if self._is_writer:
                    self._since = self._since if self._num_pending else perf_counter()
                    self._num_pending += 1
                    steps, pending = self._pending.setdefault(column, ([], []))
                    steps.append(step)
                    pending.append(number)
            last[column] = self._step
        if self._num_pending >= BLOCK or (self._num_pending and perf_counter() - self._since > LATEST_S):
            seconds += self.write()
        return seconds

    def _numbers(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        """Return the values that are no images by column, and the time (s) of drawing the first images."""
        numbers: dict[str, Any] = {}
        seconds = 0.0
        for name, value in values.items():
            column = column_of(name)
            check_column(column, ())
            if column in (STEP, *self._params):  # columns of load_steps already
                column += "_logged"
            claim_column(self._sources, column, name)
            image = None
            if may_be_image(value):
                if column in self._images:
                    continue
                image = image_of(value)
            if image is None:
                numbers[column] = value
                continue
            self._images.add(column)
            before = perf_counter()
            for listener in self._listeners:
                listener.image_logged(column, image)
            seconds += perf_counter() - before
        return numbers, seconds

    def write(self) -> float:
        """Read pending values from their device and write them; return the duration of writing (s)."""
        # drop the values even after a failure, as there is no retry
        pending, self._pending, self._num_pending = self._pending, {}, 0
        if not pending:
            return 0.0
        numbers = iter(read_values([value for _, values in pending.values() for value in values]))
        before = perf_counter()
        block = {column: (steps, [next(numbers) for _ in steps]) for column, (steps, _) in pending.items()}
        line = block_line(self._attempt, self._epoch, block)
        if self._file is None:
            path = self._folder / f"attempt-{self._attempt}.steps.jsonl"
            with files.explained(path):
                path.unlink(missing_ok=True)  # the file of an attempt whose journal is lost
                files.write_file(path, line, is_new=True)
            self._file = files.AppendFile(path, len(line))
        else:
            self._file.append(line)
        for listener in self._listeners:
            listener.steps_logged(block)
        return perf_counter() - before

    def position(self, epoch: int) -> tuple[int, dict[str, int]]:
        """Return the last logged step of an epoch, and column -> the last step with a value."""
        return (self._step, dict(self._last)) if epoch == self._epoch else (0, {})

    def resume(self, epoch: int, position: tuple[int, Mapping[str, int]]) -> None:
        """Restore a position in an epoch; values that were logged again before it are dropped."""
        self._epoch, (self._step, last) = epoch, position
        self._last, self._pending, self._num_pending = dict(last), {}, 0

    def close(self) -> None:
        """Write pending values of an unfinished epoch if possible; close the file."""
        with suppress(RuntimeError, OSError):  # the outcome already names the failure of a device or disk
            self.write()
        if self._file is not None:
            self._file.close()


def may_be_image(value: Any) -> bool:
    """Whether a value is a figure, or has the dimensions of an image or a batch of images."""
    dimensions = getattr(value, "ndim", None)
    if dimensions is None:
        return hasattr(value, "savefig")
    return dimensions in range(2, 5) and math.prod(value.shape) > 1


def image_of(value: Any) -> Any:
    """Return a figure unchanged, an image as uint8 ``(C, H, W)`` on the CPU, None for other values.

    An image is an array or tensor ``(H, W)``, ``(C, H, W)`` or ``(H, W, C)`` of uint8, bool, or floats from 0
    to 1; reading it waits for the device. A batch, or an image of other floats, becomes ``(N, C, H, W)``.
    """
    if not hasattr(value, "ndim"):
        return value
    try:
        image = (value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))).cpu()
    except (TypeError, NotImplementedError):  # the errors of objects, and of a tensor without data
        return None
    if image.ndim == 2:  # noqa: PLR2004 - (H, W)
        image = image[None]
    elif image.shape[-3] not in _CHANNELS:
        image = image.movedim(-1, -3)
    if image.shape[-3] not in _CHANNELS:
        return None
    scale = {torch.uint8: 1, torch.bool: 255}.get(image.dtype)
    if is_float := image.is_floating_point():
        scale = 255 if image.min() >= 0 and image.max() <= 1 else None
    if value.ndim == 4 or (scale is None and value.ndim == 3 and is_float):  # noqa: PLR2004 - above
        return image.reshape(-1, *image.shape[-3:])
    return None if scale is None else (image.float() * scale).round().to(torch.uint8)


def block_line(attempt: int, epoch: int, block: Block) -> bytes:
    """Return the line of a block."""
    metrics = {
        name: [list(steps), [value if math.isfinite(value) else str(value) for value in values]]
        for name, (steps, values) in block.items()
    }
    content = {"v": journal.VERSION, "type": "steps", "attempt": attempt, "epoch": epoch}
    return journal.to_line({**content, "metrics": metrics, "t_wall": round(time.time(), 3)})

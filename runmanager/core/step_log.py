"""The values of `manager.log`: collected on their device, and written in blocks."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from runmanager.core import metrics
from runmanager.core.listeners import RunListener
from runmanager.core.logged_image import image_of, may_be_image
from runmanager.core.metrics import read_values
from runmanager.core.outcome import EpochRecord
from runmanager.core.steps import STEP, StepFile
from runmanager.core.x_axis import samples_of, seen
from runmanager.devices import ranks
from runmanager.errors import InvalidArgumentError, is_count

BLOCK = 4096
"""The maximum number of values that are read and written at once."""
LATEST_S = 10.0
"""The maximum time (s) until an incomplete block is written, so that curves grow during long epochs."""


class StepLog:
    """The logged values of single steps of a run.

    A step is a batch, counted by `batches` or else by `track_loss`. If a name is logged twice in a batch, the
    second value begins another step. Only rank 0 writes its values; other ranks only validate their values.
    """

    def __init__(
        self,
        folder: Path,
        attempt: int,
        params: Mapping[str, Any],
        listeners: Iterable[RunListener] = (),
        x_axis: str | None = None,
    ) -> None:
        self.before = 0  # number of steps of ended epochs
        self._samples = 0.0  # number of samples of ended epochs
        self._x_axis = x_axis
        self._file = StepFile(folder, attempt)
        self._params = params
        self._listeners = listeners
        self._columns: dict[str, str] = {}  # name -> column, after validation
        self._epoch = 0
        self._step = 0  # the current step of the epoch, from 1
        self._last: dict[str, int] = {}  # column -> the last step of the epoch with a value
        self._steps: dict[str, list[int]] = {}
        self._values: dict[str, list[torch.Tensor | float]] = {}
        self._num_values = 0  # number of values that are not written yet
        self._since = 0.0  # time of the first value that is not written yet
        self._images: set[str] = set()  # columns of the images of the epoch

    def resume(self, records: Sequence[EpochRecord]) -> None:
        """Continue counting after earlier epochs."""
        self.before, self._samples = sum(record.steps for record in records), samples_of(records)

    def begin_attempt(self, folder: Path, attempt: int) -> None:
        """Write to the file of another attempt, before the first value."""
        self._file = StepFile(folder, attempt)

    def seen(self, num_samples: int) -> dict[str, float]:
        """Return the column of the x-axis at the end of an epoch, if the x-axis is steps or samples."""
        self._samples += num_samples
        return seen(self._x_axis, self.before, self._samples)

    @property
    def step(self) -> int:
        """The number of the last logged step of the epoch, 0 before the first step."""
        return self._step

    def state(self) -> tuple[int, dict[str, int]]:
        """Return the position in the epoch to save; all values must have been written before."""
        return self._step, dict(self._last)

    def load(self, state: tuple[int, Mapping[str, int]]) -> None:
        """Restore a position in an epoch."""
        self._step, self._last = state[0], dict(state[1])
        self._steps, self._values, self._num_values = {}, {}, 0

    def end_epoch(self, num_batches: int) -> int:
        """Write pending values; return the epoch's number of steps."""
        self.write()
        num_steps = max(num_batches, self._step)
        self.before += num_steps
        self._step, self._last = 0, {}
        self._images.clear()
        return num_steps

    def draw(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        """Report the epoch's first image of each name; return the other values and the time of drawing (s)."""
        others: dict[str, Any] = {}
        seconds = 0.0
        for name, value in values.items():
            if not may_be_image(value):
                others[name] = value
                continue
            column = self._column_of(name)
            if column in self._images:
                continue
            image = image_of(column, value)
            if image is None:
                others[name] = value
                continue
            self._images.add(column)
            before = perf_counter()
            for listener in self._listeners:
                listener.image_logged(column, image)
            seconds += perf_counter() - before
        return others, seconds

    def add(
        self, values: Mapping[str, torch.Tensor | float], every: int, *, epoch: int = 1, batch: int = 0
    ) -> bool:
        """Add values of the current step; return whether a block is due."""
        if not is_count(every, 1):
            rule = "every must be a whole number, 1 or more"
            raise InvalidArgumentError(f"{rule}, got {every!r}; a value of that name: log({{'every': ...}})")
        by_column = {self._column_of(name): value for name, value in values.items()}
        self._epoch = epoch
        last, step = self._last, self._step
        step = self._step = max(batch, step + any(last.get(column, 0) == step for column in by_column))
        for column, value in by_column.items():
            is_logged = (self.before + step) // every > (self.before + last.get(column, 0)) // every
            if not is_logged and isinstance(value, torch.Tensor) and value.numel() == 1:
                last[column] = step
                continue
            number = metrics.single(column, value)
            last[column] = step
            if is_logged and ranks.is_main():
                self._since = self._since if self._num_values else perf_counter()
                self._num_values += 1
                self._steps.setdefault(column, []).append(self.before + step)
                self._values.setdefault(column, []).append(number)
        return self._num_values >= BLOCK or (self._num_values > 0 and perf_counter() - self._since > LATEST_S)

    def write(self) -> float:
        """Read pending values from their device and write them; return the duration of writing (s)."""
        steps, values = self._steps, self._values
        # drop the values even after a failure, as there is no retry
        self._steps, self._values, self._num_values = {}, {}, 0
        if not values:
            return 0.0
        numbers = iter(read_values([value for of_column in values.values() for value in of_column]))
        before = perf_counter()
        block = {column: (of_column, [next(numbers) for _ in of_column]) for column, of_column in steps.items()}
        self._file.append(self._epoch, block)
        for listener in self._listeners:
            listener.steps_logged(block)
        return perf_counter() - before

    def close(self) -> None:
        """Write pending values of an unfinished epoch if possible; close the file."""
        try:
            self.write()
        except (RuntimeError, OSError):  # the outcome of the run already names the failure of a device or disk
            return
        finally:
            self._file.close()

    def _column_of(self, name: str) -> str:
        column = self._columns.get(name)
        if column is None:
            column = metrics.column_of(name)
            if column == STEP:
                raise InvalidArgumentError(
                    "'step' is a column of load_steps() already: give the value another name"
                )
            metrics.check_column(column, self._params)
            self._columns[name] = column
        return column

"""What `manager.log` is given: kept on its device, and written in blocks."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from runmanager.devices import ranks
from runmanager.errors import MetricError, is_count
from runmanager.outcome import EpochRecord
from runmanager.storage.steps import STEP, StepFile
from runmanager.storage.x_axis import samples_of, seen
from runmanager.training import metrics
from runmanager.training.listeners import RunListener
from runmanager.training.weighted_sum import read_values

BLOCK = 4096
"""Values that are read and written at once, at most."""
LATEST_S = 10.0
"""After that time, a block is written that is not full: a curve grows while an epoch takes hours."""


class StepLog:
    """The values of single steps of a run.

    A step is a batch: of `batches`, or else of `track_loss`. A name that is logged again in the same batch
    begins a further step. Of several ranks the first one writes its values; the others check theirs.
    """

    def __init__(
        self,
        folder: Path,
        attempt: int,
        params: Mapping[str, Any],
        listeners: Iterable[RunListener] = (),
        x_axis: str | None = None,
    ) -> None:
        self.before = 0  # steps of the epochs that have ended
        self._samples = 0.0  # that they have seen
        self._x_axis = x_axis
        self._file = StepFile(folder, attempt)
        self._params = params
        self._listeners = listeners
        self._columns: dict[str, str] = {}  # name -> column, once it is checked
        self._epoch = 0
        self._step = 0  # in the epoch, from 1
        self._last: dict[str, int] = {}  # column -> its last step in the epoch
        self._steps: dict[str, list[int]] = {}
        self._values: dict[str, list[torch.Tensor | float]] = {}
        self._num_values = 0  # that wait to be written
        self._since = 0.0  # when the first of them came

    def resume(self, records: Sequence[EpochRecord]) -> None:
        """Count on after epochs that need not be executed again."""
        self.before, self._samples = sum(record.steps for record in records), samples_of(records)

    def seen(self, num_samples: int) -> dict[str, float]:
        """Return the column of the x-axis at the end of an epoch with some samples, if it is counted."""
        self._samples += num_samples
        return seen(self._x_axis, self.before, self._samples)

    @property
    def step(self) -> int:
        """The number of the last step that was logged in the epoch, 0 before the first."""
        return self._step

    def state(self) -> tuple[int, dict[str, int]]:
        """Return where the epoch is, once everything is written."""
        return self._step, dict(self._last)

    def load(self, state: tuple[int, Mapping[str, int]]) -> None:
        """Continue where an epoch was; what was logged since and waits is dropped: it was written before."""
        self._step, self._last = state[0], dict(state[1])
        self._steps, self._values, self._num_values = {}, {}, 0

    def end_epoch(self, num_batches: int) -> int:
        """Write what waits, and return how many steps the epoch had.

        Raises:
            StorageError: It could not be written.
        """
        self.write()
        num_steps = max(num_batches, self._step)
        self.before += num_steps
        self._step, self._last = 0, {}
        return num_steps

    def add(
        self, values: Mapping[str, torch.Tensor | float], every: int, *, epoch: int = 1, batch: int = 0
    ) -> bool:
        """Add values of the current step; return whether it is time to write.

        Args:
            values: Name -> value.
            every: Steps from one value that is kept to the next.
            epoch: The number of the epoch.
            batch: The number of the batch in it, 0 if nobody counts.

        Raises:
            MetricError: A value is not a single number, a name is taken, or `every` is no count.
        """
        if not is_count(every, 1):
            rule = "every must be a whole number, 1 or more"
            raise MetricError(f"{rule}, got {every!r}; a value of that name: log({{'every': ...}})")
        by_column = {self._column_of(name): value for name, value in values.items()}
        self._epoch = epoch
        last, step = self._last, self._step
        step = self._step = max(batch, step + any(last.get(column, 0) == step for column in by_column))
        for column, value in by_column.items():
            is_kept = (self.before + step) // every > (self.before + last.get(column, 0)) // every
            if not is_kept and isinstance(value, torch.Tensor) and value.numel() == 1:
                last[column] = step
                continue
            number = metrics.single(column, value)
            last[column] = step
            if is_kept and ranks.is_main():
                self._since = self._since if self._num_values else perf_counter()
                self._num_values += 1
                self._steps.setdefault(column, []).append(self.before + step)
                self._values.setdefault(column, []).append(number)
        return self._num_values >= BLOCK or (self._num_values > 0 and perf_counter() - self._since > LATEST_S)

    def write(self) -> float:
        """Read what waits from its device and write it; return how long the writing took (s).

        Raises:
            StorageError: It could not be written.
        """
        steps, values = self._steps, self._values
        self._steps, self._values, self._num_values = {}, {}, 0  # also if it fails: once is enough
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
        """Write what waits of an epoch that did not end, if it can be read and written; close the file."""
        try:
            self.write()
        except (RuntimeError, OSError):  # how the run ended says what is wrong with the device or the disk
            return
        finally:
            self._file.close()

    def _column_of(self, name: str) -> str:
        column = self._columns.get(name)
        if column is None:
            column = metrics.column_of(name)
            if column == STEP:
                raise MetricError("'step' is a column of load_steps() already: give the value another name")
            metrics.check_column(column, self._params)
            self._columns[name] = column
        return column

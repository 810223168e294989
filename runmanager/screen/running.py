"""The progress of one running run, from the messages that it sends."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runmanager.core.outcome import BatchProgress, EpochRecord
from runmanager.core.wording import printable
from runmanager.screen.run_rows import DURATION, Row
from runmanager.tables.cells import duration, join

_SILENT_S = 30  # time without a message after which the row reports the silence
_LEAST_PROGRESS = 0.01  # fraction of a run after which its speed is used for an estimate


@dataclass(frozen=True)
class Running:
    """The progress of a run that is being executed; all times are on the same clock."""

    number: int
    params: Mapping[str, Any]
    lane: int  # number of the lane, from 0
    device: str
    started: float  # time when this attempt began
    heard: float  # time of the last message
    epoch: int = 0  # epoch in the last message, 0 before the first message
    step: int = 0  # batch in the last message, 0 after an epoch
    num_epochs: int | None = None  # number of epochs of the run, None if unknown
    first: int = 0  # the first epoch of this attempt, 0 before that epoch begins
    committed: int = 0  # the last committed epoch
    num_steps: int = 0  # number of batches per epoch: from the loader, else the largest batch number so far
    is_measured: bool = False  # whether `num_steps` comes from the loader
    # metrics of the last committed epoch; the loss may be newer
    metrics: Mapping[str, float] = field(default_factory=dict)
    first_done: tuple[float, float] | None = None  # time of the first message, fraction done by then
    zero: float | None = None  # time at which the run duration was 0, None before an epoch is committed

    def after(self, news: EpochRecord | BatchProgress, now: float) -> "Running":
        """Return the progress after a message."""
        first = self.first or news.epoch
        if isinstance(news, EpochRecord):
            seconds = news.metrics.get(DURATION)
            progress = replace(
                self, epoch=news.epoch, step=0, committed=news.epoch, metrics=news.metrics,
                zero=self.zero if seconds is None else now - seconds,
            )  # fmt: skip
        else:
            progress = replace(
                self, epoch=news.epoch, step=news.batch, num_epochs=news.num_epochs or self.num_epochs,
                num_steps=max(news.num_batches or self.num_steps, news.batch),
                is_measured=self.is_measured or bool(news.num_batches),
                metrics=self.metrics if news.loss is None else {**self.metrics, "loss": news.loss},
            )  # fmt: skip
        progress = replace(progress, first=first, heard=now)
        return replace(progress, first_done=self.first_done or (now, progress.done))

    @property
    def part(self) -> float:
        """The fraction of the run's epochs that this attempt executes: 1 unless it resumes."""
        return max(self._num_to_execute / self.num_epochs, 0.0) or 1.0 if self.num_epochs else 1.0

    @property
    def done(self) -> float:
        """The fraction of this attempt that is done; 0 in its first epoch if the epoch's length is unknown."""
        if not self.num_epochs or not self.first or (self.committed < self.first and not self.is_measured):
            return 0.0
        in_epoch = self.step / self.num_steps if self.num_steps and self.epoch > self.committed else 0.0
        num_done = max(self.committed - self.first + 1, 0) + in_epoch
        return min(num_done / max(self._num_to_execute, 1), 1.0)

    @property
    def total(self) -> float | None:
        """The estimated duration of this attempt (s); None before there is enough progress."""
        if not self.done or self.first_done is None:
            return None
        begin, done = self.first_done
        if self.done - done < _LEAST_PROGRESS:
            return None
        return begin - self.started + (self.heard - begin) * (1 - done) / (self.done - done)

    @property
    def epochs(self) -> str:
        """The current epoch, and the number of epochs if known."""
        if not self.epoch:
            return ""
        return (
            f"{self.epoch}"
            if self.num_epochs is None
            else f"{self.epoch:>{len(str(self.num_epochs))}}/{self.num_epochs}"
        )

    @property
    def beginning(self) -> str:
        """The first epoch of this attempt in words, "" for epoch 1."""
        return f"from epoch {self.first}" if self.first > 1 else ""

    def row(self, now: float) -> Row:
        """Return the row of the run, with the current step at its end."""
        silent, step = now - self.heard, ""
        if self.step:
            step = f"step {self.step}/{self.num_steps}" if self.is_measured else f"step {self.step}"
        is_silent, zero = silent > _SILENT_S, self.started if self.zero is None else self.zero
        notes = [f"no news for {silent:.0f} s"] if is_silent else [join([step, self.beginning]), step, ""]
        return Row(
            "!" if is_silent else "…", str(self.number), self.params, printable(self.device), self.epochs,
            duration(int(now - zero), 0), {} if is_silent else self.metrics, notes,
        )  # fmt: skip

    @property
    def _num_to_execute(self) -> int:
        return (self.num_epochs or 0) - max(self.first, 1) + 1

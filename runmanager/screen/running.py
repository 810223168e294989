"""The progress of one run, from the messages that it sends, and its row."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from runmanager.core.experiment import RunFolder
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome, Status
from runmanager.core.wording import printable
from runmanager.screen.run_rows import COUNT, DEVICE, DURATION, EPOCH, RUN, Row
from runmanager.tables.cells import duration, durations, join

_SILENT_S = 30  # time without a message after which the row reports the silence
_LEAST_PROGRESS = 0.01  # fraction of a run after which its speed is used for an estimate


@dataclass(eq=False)
class Running:
    """The progress of a run that is being executed; all times are on the same clock."""

    folder: RunFolder
    lane: int  # number of the lane, from 0
    device: str
    started: float  # time when this attempt began
    heard: float  # time of the last message
    epoch: int = 0  # epoch in the last message, 0 before the first message
    step: int = 0  # batch in the last message, 0 after an epoch
    num_epochs: int | None = None  # number of epochs of the run, None if unknown
    num_steps: int | None = None  # number of batches per epoch, None if the loader has no length
    first: int = 0  # the first epoch of this attempt, 0 before that epoch begins
    committed: int = 0  # the last committed epoch
    # metrics of the last committed epoch; the loss may be newer
    metrics: Mapping[str, float] = field(default_factory=dict)
    zero: float | None = None  # time at which the run duration was 0, None before an epoch is committed

    def hear(self, news: EpochRecord | BatchProgress, now: float) -> None:
        """Update the progress by a message."""
        self.epoch, self.heard, self.first = news.epoch, now, self.first or news.epoch
        if isinstance(news, EpochRecord):
            self.step, self.committed, self.metrics = 0, news.epoch, news.metrics
            if DURATION in news.metrics:
                self.zero = now - news.metrics[DURATION]
            return
        self.step = news.batch
        self.num_epochs, self.num_steps = news.num_epochs or self.num_epochs, news.num_batches or self.num_steps
        if news.loss is not None:
            self.metrics = {**self.metrics, "loss": news.loss}

    @property
    def done(self) -> float:
        """The fraction of this attempt that is done; 0 if the number of epochs is unknown."""
        if not self.num_epochs or not self.first:
            return 0.0
        in_epoch = self.step / self.num_steps if self.num_steps else 0.0
        before = self.first - 1
        return min((max(self.committed - before, 0) + in_epoch) / max(self.num_epochs - before, 1), 1.0)

    @property
    def total(self) -> float | None:
        """The estimated duration of this attempt (s); None before there is enough progress."""
        return (self.heard - self.started) / self.done if self.done > _LEAST_PROGRESS else None

    def row(self, now: float) -> Row:
        """Return the row of the run, with the current step at its end."""
        silent, zero = now - self.heard, self.started if self.zero is None else self.zero
        cells = self._cells("…", self.epoch, duration(int(now - zero), 0))
        if silent > _SILENT_S:
            return Row(self.folder.params, cells | {COUNT: "!"}, {}, [f"no news for {silent:.0f} s"])
        of = f"/{self.num_steps}" if self.num_steps else ""
        step = f"step {self.step}{of}" if self.step else ""
        return Row(self.folder.params, cells, self.metrics, [join([step, self._beginning]), step, ""])

    def ended(self, count: str, outcome: Outcome, metrics: Mapping[str, float], next_step: str) -> Row:
        """Return the row of the ended run; without a result, the row has the cause."""
        status, cause = outcome.status, printable(outcome.error)
        sign, notes = "✗", [join([status, cause, self._beginning]), join([status, cause]), status]
        if status is Status.COMPLETED:
            sign, notes = "✓", [self._beginning, ""]
        elif status is Status.PRUNED:
            sign, notes, cause = "–", [f"{status} {cause.removeprefix('after ')}".rstrip(), status, ""], ""  # noqa: RUF001 - a dash
        if status.is_exception or status is Status.DIVERGED:
            metrics = {}  # the cause says more
        # committed epochs, as in the tables: a message from inside an epoch may or may not have arrived
        (seconds,) = durations([self.metrics.get(DURATION, math.nan)])
        cells = self._cells(f"{sign} {count}", outcome.epochs if self.epoch else 0, seconds)
        return Row(self.folder.params, cells, metrics, notes, [cause, next_step])

    def _cells(self, count: str, epoch: int, time: str) -> dict[str, str]:
        size = len(str(self.num_epochs))
        epochs = str(epoch) if self.num_epochs is None else f"{epoch:>{size}}/{self.num_epochs}"
        return {
            COUNT: count,
            RUN: str(self.folder.number),
            DEVICE: printable(self.device),
            EPOCH: epochs if self.epoch else "",
            DURATION: time,
        }

    @property
    def _beginning(self) -> str:
        return f"from epoch {self.first}" if self.first > 1 else ""

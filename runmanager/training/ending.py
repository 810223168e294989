"""How an open run will end, and whether its loop goes on."""

import math
from collections.abc import Mapping

from runmanager.devices import ranks
from runmanager.outcome import BY_TRAIN, EpochRecord, Outcome, Question, Status
from runmanager.training.early_stop import EarlyStop
from runmanager.training.grid_context import GridContext
from runmanager.training.listeners import WorkerListeners


class Ending:
    """Completed, unless something happens: the run diverges, fails, is interrupted, or stopped by its grid."""

    def __init__(self, grid: GridContext, listeners: WorkerListeners) -> None:
        self._grid, self._listeners = grid, listeners
        self.status, self.cause = Status.COMPLETED, ""
        self.early_stop = EarlyStop()  # of the loop
        self.stopped_early = ""  # why the loop ended before its last epoch
        self._last: int | None = None  # the epoch after which the loop ends, None if there is none
        self._num_epochs: int | None = None  # that the loop was asked for
        self._is_of_trainer = False  # whether the loop is another's than that over `epochs`
        self._epoch = 0  # the last one that was committed
        self._resumed: EpochRecord | None = None  # the last one of earlier attempts
        self._pruned_by = ""  # see `Outcome`

    def begin_loop(self, num_epochs: int | None, num_resumed: int) -> int | None:
        """Return the last epoch of a loop: the one that was asked for, or that of the next rung before it.

        `num_epochs` is None if only the loop itself has that number.
        """
        rule = self._grid.prune
        lasts = [] if num_epochs is None else [num_epochs]
        lasts += [rule.next_rung(num_resumed)] if rule else []
        self._last, self._num_epochs = min(lasts, default=None), num_epochs
        return self._last

    def begin_trainer_loop(self, num_epochs: int | None) -> int | None:
        """Return the last epoch of a loop whose epochs begin and end one by one, see `begin_loop`."""
        self._is_of_trainer = True
        return self.begin_loop(num_epochs, self._epoch)

    def resume(self, *records: EpochRecord) -> None:
        """Take the epochs of earlier attempts."""
        self.early_stop.add(*records)
        self._resumed = records[-1] if records else None
        self._epoch = records[-1].epoch if records else 0

    def add(self, record: EpochRecord) -> None:
        """Take an epoch of this attempt."""
        self.early_stop.add(record)
        self._epoch = record.epoch

    def ask_again(self) -> None:
        """Ask the grid about the last epoch before the run was resumed: it may not have come to an answer."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None and self._may_be_stopped:
            why = self._listeners.epoch_ended(resumed, is_new=False)
            self._take(why or (self._grid.ask and self._grid.ask(Question(resumed, is_new=False))))

    def report(self, record: EpochRecord, *, is_left: bool) -> None:
        """Report an epoch that was committed, and ask whether the run goes on, unless its loop was left."""
        why: str | None = self._listeners.epoch_ended(record)
        if self._grid.ask is not None:
            why = self._grid.ask(Question(record)) or why
        elif self._grid.on_epoch is not None:
            self._grid.on_epoch(record)
        if self._may_be_stopped:
            self._take(why, is_left=is_left)

    @property
    def _may_be_stopped(self) -> bool:
        return self._grid.ask is not None or bool(self._grid.listeners)

    def _take(self, answer: str | None, *, is_left: bool = False) -> None:
        """Stop the run if the answer, that of rank 0, says so, and it would not end here anyway."""
        why = ranks.broadcast(answer)
        is_last = self._num_epochs is not None and self._epoch >= self._num_epochs
        if why and not (is_left or is_last or self.should_stop):
            of = "" if self._num_epochs is None else f" of {self._num_epochs}"
            self.set(Status.PRUNED, f"after epoch {self._epoch}{of}: {why}")
            self._pruned_by = self._grid.rule

    def go_on(self) -> None:
        """Let a further epoch begin: a loop that is not over `epochs` need not stop when it is told to."""
        if self._pruned_by:
            self.set(Status.COMPLETED, "")

    def prune(self, cause: str) -> None:
        """Let the run end as pruned because `train` says so, unless its grid has said that before."""
        if not self._pruned_by:
            self.set(Status.PRUNED, cause)
            self._pruned_by = BY_TRAIN

    @property
    def should_stop(self) -> bool:
        """Whether no further epoch is to begin, however many were asked for."""
        is_there = self._is_at_rung and self._last is not None and self._epoch >= self._last
        return self.status is not Status.COMPLETED or bool(self.early_stop.reason) or is_there

    @property
    def _is_at_rung(self) -> bool:
        """Whether the loop ends before the last epoch that was asked for."""
        return self._last is not None and self._last < self._most

    @property
    def _most(self) -> float:
        return math.inf if self._num_epochs is None else self._num_epochs

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        """End the loop of a trainer after its last epoch, which has been committed, see `end_loop`."""
        if self._is_of_trainer:
            self.end_loop(metrics)

    def end_loop(self, metrics: Mapping[str, float]) -> None:
        """Decide what the end of the loop means for the run; `metrics` are those of its last epoch.

        Raises:
            PruneError: It ends at a rung, where it cannot be compared.
        """
        if self.status is not Status.COMPLETED or self._last is None or self._epoch >= self._most:
            return
        self.stopped_early = self.early_stop.reason
        if self._grid.prune and self._epoch == self._last and not self.stopped_early:
            self._grid.prune.check(metrics)
            of = "" if self._num_epochs is None else f" of {self._num_epochs}"
            self.set(Status.PRUNED, f"after epoch {self._epoch}{of}")

    def set(self, status: Status, cause: str) -> None:
        """Let the run end so, whatever happened before."""
        self.status, self.cause, self._pruned_by = status, cause, ""

    def outcome(self, num_committed: int) -> Outcome:
        """Return how the run ends if it ends now."""
        return Outcome(self.status, self.cause, num_committed, pruned_by=self._pruned_by)

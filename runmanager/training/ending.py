"""How an open run will end, and whether its loop goes on."""

from runmanager.devices import ranks
from runmanager.outcome import BY_TRAIN, EpochRecord, Outcome, Question, Status
from runmanager.training.early_stop import EarlyStop
from runmanager.training.epoch_options import EpochOptions
from runmanager.training.grid_context import GridContext
from runmanager.training.listeners import WorkerListeners


class LeaveTrain(BaseException):
    """Leaves `train` where its loop cannot be stopped; no Exception, as a loop may catch those."""


class Ending:
    """Completed, unless something happens: the run diverges, fails, is interrupted, or is to stop early.

    After each epoch, all that may stop the run is asked: its loop's own rule, the next rung, the listeners. The
    first reason counts.
    """

    def __init__(self, grid: GridContext, listeners: WorkerListeners) -> None:
        self._grid, self._listeners = grid, listeners
        self.status, self.cause = Status.COMPLETED, ""
        self.early_stop = EarlyStop(EpochOptions())  # of the loop
        self.stopped_early = ""  # why the loop ended before its last epoch
        self._num_epochs: int | None = None  # that the loop was asked for
        self._rung: int | None = None  # the epoch after which the run waits for the others
        self._epoch = 0  # the last one that was committed
        self._resumed: EpochRecord | None = None  # the last one of earlier attempts
        self._pruned_by = ""  # see `Outcome`

    def begin_loop(self, num_epochs: int | None, num_resumed: int | None = None) -> int | None:
        """Return the last epoch of a loop: the one that was asked for, or that of the next rung before it.

        Args:
            num_epochs: None if only the loop itself has that number.
            num_resumed: How many epochs were committed before it; by default all that were.
        """
        rule = self._grid.prune
        self._rung = rule.next_rung(self._epoch if num_resumed is None else num_resumed) if rule else None
        self._num_epochs, self.stopped_early = num_epochs, ""
        return min((last for last in (num_epochs, self._rung) if last is not None), default=None)

    def resume(self, *records: EpochRecord) -> None:
        """Take the epochs of earlier attempts."""
        for self._resumed in records:
            self.early_stop.epoch_ended(self._resumed, None)
            self._epoch = self._resumed.epoch

    def ask_again(self) -> None:
        """Ask about the last epoch before the run was resumed: there may have been no answer."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._decide(resumed, self.early_stop.reason, self._asked(resumed, is_new=False))

    def epoch_ended(self, record: EpochRecord, *, is_left: bool) -> None:
        """Tell of an epoch that was committed; stop the run if an answer says so, unless its loop was left.

        Raises:
            CheckpointError: The epoch lacks the metric of the loop's own rule.
            PruneError: The run is at a rung, where it cannot be compared.
        """
        self._epoch = record.epoch
        own, asked = self.early_stop.epoch_ended(record, None), self._asked(record)
        if not is_left:
            self._decide(record, own, asked)

    def _asked(self, record: EpochRecord, *, is_new: bool = True) -> str:
        """Tell the listeners of an epoch, and return the answer of rank 0, "" if they cannot stop the run."""
        ask = self._grid.ask
        may_stop = ask is not None or bool(self._grid.listeners)
        if not (is_new or may_stop):
            return ""
        why: str | None = self._listeners.epoch_ended(record, is_new=is_new)
        if ask is not None:
            why = ask(Question(record, is_new)) or why
        elif is_new and self._grid.on_epoch is not None:
            self._grid.on_epoch(record)
        return (ranks.broadcast(why) if may_stop else None) or ""

    def _decide(self, record: EpochRecord, own: str, asked: str) -> None:
        """Stop the run by the first reason, if it would not end here anyway."""
        last = self._num_epochs
        if self.status is not Status.COMPLETED or (last is not None and record.epoch >= last):
            return
        where = f"after epoch {record.epoch}" + ("" if last is None else f" of {last}")
        if own:
            self.stopped_early = own
        elif self._grid.prune and record.epoch == self._rung:
            self._grid.prune.check(record.metrics)
            self.set(Status.PRUNED, where)
        elif asked:
            self.set(Status.PRUNED, f"{where}: {asked}")
            self._pruned_by = self._grid.rule

    def go_on(self) -> None:
        """Let a further epoch begin: a loop that is not over `epochs` need not stop when it is told to."""
        if self._pruned_by:
            self.set(Status.COMPLETED, "")

    def prune(self, cause: str) -> None:
        """Let the run end as pruned because `train` says so, unless its grid has said that before."""
        if not self._pruned_by:
            self.set(Status.PRUNED, cause)
            self._pruned_by, self.stopped_early = BY_TRAIN, ""

    @property
    def should_stop(self) -> bool:
        """Whether no further epoch is to begin, however many were asked for."""
        return self.status is not Status.COMPLETED or bool(self.stopped_early)

    def set(self, status: Status, cause: str) -> None:
        """Let the run end so, whatever happened before."""
        self.status, self.cause, self._pruned_by = status, cause, ""

    def outcome(self, num_committed: int) -> Outcome:
        """Return how the run ends if it ends now."""
        return Outcome(self.status, self.cause, num_committed, pruned_by=self._pruned_by)

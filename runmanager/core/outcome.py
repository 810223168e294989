"""The status of a run, and the outcome of an attempt with its cause and the next step."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

LEADING = ("loss", "accuracy", "epoch duration", "run duration")
"""The metrics in front of the hyperparameters, as in the tutorial's table."""

LARGEST = 2**53
"""The largest count in a file, as larger numbers in JSON are not exact."""

BY_TRAIN = "train"
"""The rule of a run that raised optuna.TrialPruned."""


class Status(StrEnum):
    """The status of a run: pending, in progress, ended in one of nine ways, or changed and not executed again.

    Attributes:
        is_success: Whether the run ended as planned: completed, or pruned.
        is_exception: Whether the training function raised an exception.
        is_fault: Whether the run would end in the same way again; such a run is executed again only on request.
        is_lost: Whether the run needs another execution to get a result.
        is_stopped: Whether the run was stopped from outside; the same command then resumes the run.
        is_due: Whether the same command executes the run on this machine.
        is_in_progress: Whether a process executes the run, or executed the run at the last sign of life.
        is_open: Whether the run may still get a result without a further request.
        can_go_on: Whether the run has ended but may be resumed, so that its end is not final for TensorBoard.
        is_worth_a_retry: Whether the process was killed or hung, so that a retry may end differently.
        has_error_log: Whether error.log explains the end.
        exit_code: The exit code of a grid whose runs all have this status: 0, or 1 if the runs are not done.
        sign: The symbol in front of the status, as colors alone are not accessible.

    Example:
        >>> Status.KILLED.can_go_on, Status.KILLED.is_fault, Status.KILLED.exit_code
        (True, False, 1)
        >>> Status.KILLED.is_lost, Status.DIVERGED.is_lost, Status.INTERRUPTED.is_lost
        (True, True, False)
        >>> Status.PRUNED.is_success, Status.FAILED.is_exception, Status.INTERRUPTED.is_stopped
        (True, True, True)
        >>> Status.PENDING.is_due, Status.PENDING.is_open, Status.STALE.is_in_progress
        (True, True, True)
        >>> Status.HUNG.is_worth_a_retry, Status.HUNG.has_error_log, Status.HUNG.sign
        (True, True, '✗')
    """

    COMPLETED = "completed"
    FAILED = "failed"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out of memory"
    HUNG = "hung"
    KILLED = "killed"
    INTERRUPTED = "interrupted"
    PRUNED = "pruned"
    UNAVAILABLE = "unavailable"
    PENDING = "pending"
    RUNNING = "running"
    STALE = "stale"
    CHANGED = "changed"

    def __init__(self, text: str) -> None:
        self.is_success: bool = text in ("completed", "pruned")
        self.is_exception: bool = text in ("failed", "out of memory")
        self.is_fault: bool = self.is_exception or text in ("diverged", "hung")
        self.is_lost: bool = self.is_fault or text in ("killed", "changed")
        self.is_stopped: bool = text in ("interrupted", "killed")
        self.is_due: bool = self.is_stopped or text == "pending"
        self.is_in_progress: bool = text in ("running", "stale")
        self.is_open: bool = self.is_in_progress or text in ("pending", "interrupted")
        self.can_go_on: bool = self.is_stopped or text == "pruned"
        self.is_worth_a_retry: bool = text in ("killed", "hung")
        self.has_error_log: bool = self.is_exception or text == "hung"
        self.exit_code: int = 0 if self.is_success or text == "unavailable" else 1
        self.sign: str = {"completed": "✓", "running": "…", "stale": "!", "changed": "!"}.get(text, "·")
        if self.is_fault or self.is_stopped:
            self.sign = "✗" if self.is_fault else "!"


# whether `main` reads the command line of the program that is advised; None if this is not known
_are_there: bool | None = False  # global, as advice is written in many functions and threads


@contextmanager
def from_command_line(are_there: bool | None = True) -> Iterator[None]:
    """Name flags in the advice that is written during the block; with None, arguments and flags."""
    global _are_there  # noqa: PLW0603 - there is one command line
    before, _are_there = _are_there, are_there
    try:
        yield
    finally:
        _are_there = before


def argument(code: str, flag: str) -> str:
    """Return the code of an argument, or its flag if `main` reads the command line."""
    if _are_there is None:
        return f"{code} or {flag}"
    return flag if _are_there else code


def retry_failed(effect: str) -> str:
    """Return advice with the option that executes failed runs again."""
    return f"{argument('retry_failed=True', '--retry-failed')} {effect}"


def advice(status: str, evidence: str, *, same: str = "the same command", them: str = "them") -> str:
    """Return the next step for runs of a status, "" without a next step."""
    again = retry_failed(f"executes {them} again")
    rerun, keep = argument("changed='rerun'", "--changed rerun"), argument("changed='keep'", "--changed keep")
    steps = {
        Status.FAILED: f"see {evidence}; fix the code, and {same} executes {them} again; "
        f"to try the same code again, add {argument('retry_failed=True', '--retry-failed')}",
        Status.OUT_OF_MEMORY: f"let {them} take less memory, as with a smaller batch; {again}",
        Status.DIVERGED: "not repeated, as it would diverge again: lower lr or clip gradients",
        Status.HUNG: f"see {evidence}; fix it, or raise {argument('timeout=', '--timeout')}; {again}",
        Status.KILLED: f"see {evidence}; {same} continues {them}",
        Status.UNAVAILABLE: f"on a machine that has it, {same} executes {them}",
        Status.CHANGED: f"{rerun} executes {them} again, {keep} keeps {them}",
    }
    return steps.get(Status(status), "")


class EpochRecord(msgspec.Struct, frozen=True, gc=False):
    """A finished epoch of a run.

    Attributes:
        epoch: The number of the epoch, from 1.
        metrics: Columns of the table -> values; durations in seconds.
        times: Parts of the epoch's duration and further times, in seconds; also the number of images per
            second.
        cold: Whether the epoch is the first epoch of its process on its device.
        steps: The number of the epoch's steps: batches, or steps of `log`.

    Example:
        >>> record = EpochRecord(1, {"loss": 0.5, "epoch duration": 2.0})
        >>> record.epoch, record.metrics["loss"]
        (1, 0.5)
    """

    epoch: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
    metrics: Mapping[str, float]
    times: Mapping[str, float] = {}
    cold: bool = False
    steps: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)] = 0

    def copy(self) -> "EpochRecord":
        """Copy the record.

        Returns:
            An equal record with separate mappings, for code that may modify them.

        Example:
            >>> record = EpochRecord(1, {"loss": 0.5})
            >>> record.copy() == record, record.copy().metrics is record.metrics
            (True, False)
        """
        return msgspec.structs.replace(self, metrics=dict(self.metrics), times=dict(self.times))


class Inside(msgspec.Struct, frozen=True):
    """A position inside an epoch, where a checkpoint was saved."""

    epoch: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
    batch: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
    step: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)] = 0  # the last step of the run before this position
    num_batches: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)] | None = None

    def __str__(self) -> str:
        of = "" if self.num_batches is None else f" of {self.num_batches:,}"
        return f"inside epoch {self.epoch}, after batch {self.batch:,}{of}"


class BatchProgress(NamedTuple):
    """The progress of a run within an epoch."""

    epoch: int
    batch: int  # from 1; 0 before the first batch
    num_epochs: int | None = None  # None if unknown
    num_batches: int | None = None  # of the epoch, None if unknown
    loss: float | None = None  # the mean of the epoch so far, None if reading it would wait for a device


class Question(NamedTuple):
    """A question of a run to its grid: whether the run continues after its last committed epoch."""

    record: EpochRecord
    is_new: bool = True  # False if the run was resumed after this epoch


News = EpochRecord | BatchProgress | Question
"""A report of a run in progress; the answer to a question is the reason why the run should stop, or ""."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of an attempt.

    Attributes:
        status: A status of an ended run.
        error: The cause in one line, empty if completed.
        epochs: The number of committed epochs.
        log: Further evidence of the cause, such as the last output of a dead process; not in the journal.
        is_committed: Whether the outcome is in the journal; a dead process could not write it.
        pruned_by: The rule that pruned the run, `BY_TRAIN` if `train` pruned it; "" if it is not pruned.

    Example:
        >>> outcome = Outcome(Status.FAILED, "ValueError: no data", epochs=2)
        >>> outcome.status.exit_code, outcome.error
        (1, 'ValueError: no data')
    """

    status: Status
    error: str = ""
    epochs: int = 0
    log: str = ""
    is_committed: bool = True
    pruned_by: str = ""

    def next_step(self, error_log: Path) -> str:
        """Return a sentence on the epochs that remain, and on the next step.

        Args:
            error_log: The file with the traceback, named in the sentence.

        Returns:
            One line, "" if there is nothing to do.

        Example:
            >>> Outcome(Status.DIVERGED, epochs=2).next_step(Path("error.log"))
            '2 epochs are kept; not repeated, as it would diverge again: lower lr or clip gradients'
        """
        kept = "1 epoch is kept" if self.epochs == 1 else f"{self.epochs} epochs are kept"
        step = advice(self.status, str(error_log), them="it")
        # after an exception, the user's fix may change all epochs
        return f"{kept}; {step}" if step and self.epochs and not self.status.is_exception else step

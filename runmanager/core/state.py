"""The state of a run, read from its journals: status, epochs and outcome."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from runmanager.core import files, lock
from runmanager.core.experiment import RunFolder, read_runs
from runmanager.core.journal import Attempt, end_abandoned_attempt, read_attempt
from runmanager.core.outcome import EpochRecord, Inside, Outcome, Status
from runmanager.errors import StorageError

_MOST_LOG = 1 << 20  # the maximum number of bytes read of an error.log
_FEW_EPOCHS = 1000
_MOST_CELLS, _SPARSE = 10**7, 100  # limits of a table: number of cells, and number of cells per value


@dataclass(frozen=True)
class RunResult:
    """The state of a run, as recorded in its journals."""

    folder: RunFolder
    status: Status  # the status from the journals and, without an end line, from the process
    epochs: Sequence[EpochRecord]  # the committed epochs, each once, in order
    attempts: int
    error: str  # the cause of a failure, in one line; of a completed run, of a later attempt without an epoch
    start: Mapping[str, Any]  # the first line of the last attempt
    mixed: bool = False  # whether the epochs come from different code, data, versions, threads or settings
    jobs: int = 1  # the maximum number of runs that shared the machine during its epochs
    peak_memory: int | None = None  # peak memory of tensors on the accelerator (bytes), None if unknown
    threads: int | None = None  # torch's number of threads in the first attempt, None if unknown
    journals: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  # path -> `files.version_of`
    stopped_early: str = ""  # the reason why the loop ended before the last epoch, or ""
    summary: Mapping[str, float] = field(default_factory=dict)  # results of the whole run, by column
    inside: Inside | None = None  # position where the next epoch resumes, None for its first batch
    pruned_by: str = ""  # the rule that pruned the run, see `Outcome`
    loaded: Mapping[str, str] = field(default_factory=dict)  # path of another run -> digest of its files

    @property
    def outcome(self) -> Outcome:
        """The state of the run, as an outcome."""
        return Outcome(self.status, self.error, len(self.epochs), pruned_by=self.pruned_by)

    @property
    def seconds(self) -> float:
        """The duration of the run (s)."""
        return self.epochs[-1].metrics.get("run duration", 0.0) if self.epochs else 0.0

    def error_log_tail(self, num_lines: int) -> list[str]:
        """Return the last lines of error.log; empty without an error, or if the file cannot be read."""
        with suppress(OSError):
            if self.error:
                content = files.read_file(self.folder.path / files.ERROR_LOG, _MOST_LOG)
                return content.decode("utf-8", "replace").rstrip().split("\n")[-num_lines:]
        return []


def read_output(folder: Path) -> str:
    """Return what a run has printed."""
    with suppress(OSError):
        return files.read_file(folder / files.OUTPUT_LOG, 1 << 24).decode("utf-8", "replace")
    return ""


def read_experiment(path: Path, damaged: list[str] | None = None) -> list[RunResult]:
    """Read all runs of one experiment; append unreadable files to `damaged`."""
    return [read_run(folder, damaged) for folder in read_runs(path, damaged)]


def read_run(folder: RunFolder, damaged: list[str] | None = None) -> RunResult:
    """Read the journals of one run, after attempt `folder.since`; append unreadable files to `damaged`."""
    damaged = [] if damaged is None else damaged
    attempts, counting, num_attempts = read_attempts(folder, damaged)
    if not attempts:
        status = Status.UNAVAILABLE if folder.unavailable else Status.PENDING
        status = Status.CHANGED if folder.is_changed else status
        return RunResult(folder, status, [], num_attempts, folder.unavailable, {})
    epochs: dict[int, EpochRecord] = {}
    current: list[Attempt] = []  # the attempts since the last one that began with the first epoch
    for attempt in counting:
        if attempt.epochs:  # the attempt supersedes all epochs after this one; its first line may be damaged
            after = attempt.start.get("after", min(attempt.epochs) - 1)
            epochs = {epoch: record for epoch, record in epochs.items() if epoch <= after} | attempt.epochs
        if attempt.start.get("after") == 0 and "inside" not in attempt.start:
            current.clear()
        current.append(attempt)
    records = [record for _, record in sorted(epochs.items())]
    metrics = [record.metrics for record in records]
    num_values = sum(map(len, metrics))
    if len(records) >= _FEW_EPOCHS and is_sparse(len(records), len(set().union(*metrics)), num_values):
        damaged.append(f"{folder.path} (no table has room for the metrics of its {len(records)} epochs)")
        records = []
    last = counting[-1]
    # a later one without an epoch may have begun with other code than the epochs
    of_epochs = next((attempt for attempt in reversed(counting) if attempt.epochs), last)
    error = last.outcome.error if last.outcome else folder.unavailable
    status = last.outcome.status if last.outcome else _status_of_process(folder, last)
    for attempt in attempts:  # a later attempt may have failed without changing the state
        ended = attempt.outcome or Outcome(Status.INTERRUPTED)
        is_unfit = ended.error.startswith("CheckpointError")  # its checkpoint stays
        if attempt.number > last.number and (ended.status.is_fault or is_unfit):
            error = f"attempt {attempt.number} {ended.status}: {ended.error}"
    has_inside = (folder.path / files.INSIDE_CHECKPOINT).exists()
    loaded: dict[str, str] = {}
    for attempt in current:
        loaded |= attempt.loaded
    return RunResult(
        folder, Status.CHANGED if folder.is_changed else status, records, num_attempts, error, of_epochs.start,
        mixed=any(attempt.start.get("mixed") or attempt.end.get("mixed") for attempt in counting),
        jobs=max([1, *(attempt.start.get("jobs", 1) for attempt in current)]),
        peak_memory=max((a.end["peak_memory"] for a in current if "peak_memory" in a.end), default=None),
        threads=next((attempt.start["threads"] for attempt in current if "threads" in attempt.start), None),
        journals={attempt.path: attempt.version for attempt in attempts},
        stopped_early=last.end.get("stopped_early", ""),
        summary=last.end.get("summary", {}),
        inside=_next_position(attempts, len(records)) if has_inside else None,
        pruned_by=last.end.get("pruned_by", ""),
        loaded=loaded,
    )  # fmt: skip


def read_attempts(folder: RunFolder, damaged: list[str]) -> tuple[list[Attempt], list[Attempt], int]:
    """Return the readable journals after `folder.since`, those that count, and the number of all."""
    try:
        journals = files.journals_by_attempt(folder.path)
    except OSError:
        return [], [], 0
    attempts: list[Attempt] = []
    for number, path in journals.items():
        if number > folder.since:
            try:
                attempt = read_attempt(path)
            except OSError as error:
                damaged.append(f"{path} ({error.strerror})")
                continue
            if attempt.damaged:
                damaged.append(f"{path} ({attempt.damage})")
            attempt.number = number
            attempts.append(attempt)
    counting: list[Attempt] = []
    for attempt in attempts:
        before = counting[-1] if counting else Attempt()
        if attempt.outcome is None:
            is_counted = attempt is attempts[-1] and lock.lives(attempt.start) is not False
        elif attempt.outcome.status.is_fault and before.outcome and before.outcome.status is Status.COMPLETED:
            # a completed run fails if `train` raises after the end of the run, but not by changed code
            is_counted = attempt.start.get("fingerprint") == before.start.get("fingerprint")
        else:
            is_counted = not attempt.outcome.status.is_stopped
        if is_counted or attempt.epochs:
            counting.append(attempt)
    return attempts, counting or attempts[-1:], len(journals)


def _status_of_process(folder: RunFolder, last: Attempt) -> Status:
    """Derive the status of a run without an end: from its process, else from the lock or the journal's age."""
    alive = lock.lives(last.start)
    if alive is None:  # on another machine
        holder = lock.holder(folder.path.parent)
        if holder and holder[0].get("host") == last.start.get("host"):
            return Status.RUNNING if lock.is_holding(*holder) else Status.STALE
        alive = time.time() - last.version[2] / 1e9 < lock.GONE_AFTER_S
    return Status.RUNNING if alive else Status.INTERRUPTED


def _next_position(attempts: Sequence[Attempt], num_epochs: int) -> Inside | None:
    """Return the position of the last checkpoint inside an epoch, if the next epoch resumes there."""
    for attempt in reversed(attempts):
        inside = attempt.inside or inside_of(attempt.start)
        if inside or attempt.epochs:
            return inside if inside and inside.epoch == num_epochs + 1 else None
    return None


def inside_of(start: Mapping[str, Any]) -> Inside | None:
    """Return the position in an epoch at which an attempt began, None for the first batch."""
    return msgspec.convert(start["inside"], Inside) if "inside" in start else None


def is_sparse(num_rows: int, num_columns: int, num_values: int) -> bool:
    """Whether a table is so large and empty that only a hostile file can have caused it."""
    return num_rows * num_columns > max(_MOST_CELLS, _SPARSE * num_values)


def end_if_running(folder: RunFolder, attempt: int, cause: str) -> None:
    """Commit "interrupted" for an attempt of this process whose journal has no end."""
    # without the end line, readers derive the same status after this process has ended
    with suppress(StorageError):
        result = read_run(folder)
        ours = {**lock.this_process(), "attempt": attempt}
        if result.status is Status.RUNNING and ours.items() <= result.start.items():
            outcome = Outcome(Status.INTERRUPTED, cause, len(result.epochs))
            end_abandoned_attempt(folder.path, outcome, {})

"""The state of a run, read from its journals: status, epochs and outcome."""

import contextlib
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from runmanager.core import files, lock, processes
from runmanager.core.files import read_end
from runmanager.core.folders import RunFolder, read_runs
from runmanager.core.journal import Attempt, end_abandoned_attempt, read_attempt
from runmanager.core.outcome import EpochRecord, Inside, Outcome, Status
from runmanager.core.values import COLUMNS
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
    journals: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  # path -> `files.version`
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
    def next_step(self) -> str:
        """Advice on the next step, or ""."""
        return self.outcome.next_step(self.folder.path / files.ERROR_LOG)

    def error_log_tail(self, num_lines: int) -> list[str]:
        """Return the last lines of error.log; empty without an error, or if the file cannot be read."""
        if not self.error:
            return []
        try:
            content = read_end(self.folder.path / files.ERROR_LOG, _MOST_LOG)
        except OSError:
            return []
        return content.decode("utf-8", "replace").rstrip().split("\n")[-num_lines:]


def read_experiment(path: Path, damaged: list[str] | None = None) -> list[RunResult]:
    """Read all runs of one experiment; append unreadable files to `damaged`."""
    return [read_run(folder, damaged) for folder in read_runs(path, damaged)]


def read_run(folder: RunFolder, damaged: list[str] | None = None) -> RunResult:
    """Read the journals of one run, after attempt `folder.since`; append unreadable files to `damaged`."""
    damaged = [] if damaged is None else damaged
    journals, attempts = _read_attempts(folder, damaged)
    valid = _valid(attempts)
    epochs = _merged(valid)
    if len(epochs) >= _FEW_EPOCHS:
        names = set().union(*(record.metrics for record in epochs))
        if is_sparse(len(epochs), len(names), sum(len(record.metrics) for record in epochs)):
            damaged.append(f"{folder.path} (no table has room for the metrics of its {len(epochs)} epochs)")
            epochs = []
    firsts = [index for index, attempt in enumerate(valid) if _starts_over(attempt)]
    # the attempts since the last attempt that began with the first epoch
    current = valid[firsts[-1] :] if firsts else valid
    last = valid[-1] if valid else Attempt()
    error = last.outcome.error if last.outcome else folder.unavailable
    for attempt in attempts:  # a later attempt may have failed without changing the state
        if attempt.number > last.number and attempt.outcome and attempt.outcome.status.is_fault:
            error = f"attempt {attempt.number} {attempt.outcome.status}: {attempt.outcome.error}"
    summary = last.end.get("summary", {}).items()
    return RunResult(
        folder,
        _status(folder, valid, list(journals.values())[-1] if journals else None),
        epochs,
        len(journals),
        error,
        last.start,
        any(attempt.start.get("mixed") is True for attempt in valid),
        max([1, *_counts("jobs", [attempt.start for attempt in current])]),
        max(_counts("peak_memory", [attempt.end for attempt in current]), default=None),
        next(iter(_counts("threads", [attempt.start for attempt in current])), None),
        {journals[attempt.number]: attempt.version for attempt in attempts},
        last.end.get("stopped_early", ""),
        {name: float(value) for name, value in summary if name.isidentifier() and name not in COLUMNS},
        _inside(folder, attempts, len(epochs)),
        last.end.get("pruned_by", ""),
        dict(itertools.chain.from_iterable(attempt.loaded.items() for attempt in current)),
    )


def read_attempts(folder: RunFolder) -> tuple[Sequence[Attempt], Sequence[Attempt]]:
    """Return the readable attempts at a run, in order, and the valid attempts among them."""
    attempts = _read_attempts(folder, [])[1]
    return attempts, _valid(attempts)


def _read_attempts(folder: RunFolder, damaged: list[str]) -> tuple[dict[int, str], list[Attempt]]:
    """Return a run's journals, attempt -> path, and the content of the readable journals that count."""
    journals: dict[int, str] = {}
    attempts: list[Attempt] = []
    with contextlib.suppress(OSError):
        journals = files.journals_by_attempt(folder.path)
    for number, path in journals.items():
        if number <= folder.since:
            continue
        try:
            attempt = read_attempt(path)
        except OSError as error:
            damaged.append(f"{path} ({error.strerror})")
            continue
        if attempt.damaged:
            damaged.append(f"{path} ({attempt.damage})")
        attempt.number = number
        attempts.append(attempt)
    return journals, attempts


def is_sparse(num_rows: int, num_columns: int, num_values: int) -> bool:
    """Whether a table is so large and empty that only a hostile file can have caused it."""
    return num_rows * num_columns > max(_MOST_CELLS, _SPARSE * num_values)


def end_if_running(folder: RunFolder, attempt: int, cause: str) -> None:
    """Commit "interrupted" for an attempt of this process whose journal has no end."""
    # without the end line, readers derive the same status after this process has ended
    with contextlib.suppress(StorageError):
        result = read_run(folder)
        ours = {**processes.this_process(), "attempt": attempt}
        if result.status is Status.RUNNING and ours.items() <= result.start.items():
            outcome = Outcome(Status.INTERRUPTED, cause, len(result.epochs))
            end_abandoned_attempt(folder.path, outcome, {})


def _status(folder: RunFolder, attempts: Sequence[Attempt], journal: str | None) -> Status:
    if not attempts or journal is None:
        return Status.UNAVAILABLE if folder.unavailable else Status.PENDING
    last = attempts[-1]
    if last.outcome:
        return last.outcome.status
    alive = processes.lives(last.start)
    if alive is None:
        return _status_elsewhere(last.start, folder.path.parent, journal)
    return Status.RUNNING if alive else Status.INTERRUPTED


def _status_elsewhere(start: Mapping[str, Any], experiment: Path, journal: str) -> Status:
    """Derive the status of an attempt on another machine from the lock, else from its journal's age."""
    holder = lock.holder(experiment)
    if holder and holder[0].get("host") == start.get("host"):
        return Status.RUNNING if lock.is_holding(*holder) else Status.STALE
    with contextlib.suppress(OSError):
        if time.time() - Path(journal).stat().st_mtime < lock.GONE_AFTER_S:
            return Status.RUNNING
    return Status.INTERRUPTED


def _valid(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """Leave out attempts that ended before their first epoch, as such attempts do not change the state."""
    if not attempts:
        return attempts
    *earlier, last = attempts
    begun: list[Attempt] = []
    for attempt in earlier:
        if attempt.epochs or _has_ended(attempt, begun):
            begun.append(attempt)
    is_alive = not (last.outcome and _is_completed(begun)) and processes.lives(last.start) is not False
    outcome = begun[-1].outcome if begun else None
    is_resumed = outcome and outcome.status is Status.PRUNED and last.start.get("after")
    is_begun = last.epochs or _has_ended(last, begun) or is_alive or is_resumed
    return [*begun, last] if is_begun or not begun else begun


def _counts(name: str, lines: Iterable[Mapping[str, Any]]) -> list[int]:
    return [line[name] for line in lines if type(line.get(name)) is int]


def _starts_over(attempt: Attempt) -> bool:
    return attempt.start.get("after") == 0 and "inside" not in attempt.start


def _inside(folder: RunFolder, attempts: Sequence[Attempt], num_epochs: int) -> Inside | None:
    """Return the position at which the next epoch resumes, if the checkpoint file for this position exists."""
    for attempt in reversed(attempts):
        inside = attempt.inside or inside_of(attempt.start)
        if inside or attempt.epochs:
            is_next = inside is not None and inside.epoch == num_epochs + 1
            return inside if is_next and (folder.path / files.INSIDE_CHECKPOINT).exists() else None
    return None


def inside_of(start: Mapping[str, Any]) -> Inside | None:
    """Return the position in an epoch at which an attempt began, None for the first batch."""
    return msgspec.convert(start["inside"], Inside) if "inside" in start else None


def _has_ended(attempt: Attempt, earlier: Sequence[Attempt]) -> bool:
    """Whether the end of an attempt without epochs changes the state that earlier attempts have left."""
    if attempt.outcome is None:
        return False
    status = attempt.outcome.status
    # a completed run fails if `train` raises after the end of the run, but not by changed code
    if _is_completed(earlier) and attempt.start.get("fingerprint") != earlier[-1].start.get("fingerprint"):
        return status.is_success
    return not status.is_stopped


def _is_completed(attempts: Sequence[Attempt]) -> bool:
    outcome = attempts[-1].outcome if attempts else None
    return outcome is not None and outcome.status is Status.COMPLETED


def _merged(attempts: Iterable[Attempt]) -> list[EpochRecord]:
    merged: dict[int, EpochRecord] = {}
    for attempt in attempts:
        # an attempt resumes after this epoch, and supersedes later ones
        after = attempt.start.get("after")
        if attempt.epochs:
            after = after if isinstance(after, int) else min(attempt.epochs) - 1  # the first line is damaged
            merged = {epoch: record for epoch, record in merged.items() if epoch <= after}
        merged |= attempt.epochs
    return [record for _, record in sorted(merged.items())]

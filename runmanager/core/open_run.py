"""An open run: its folder, journal, state, clock, listeners and outcome."""

import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from runmanager.core import checkpoint, failure
from runmanager.core.checkpoint import Interval, ResumeState, TrainerState
from runmanager.core.contracts import RunListener, Slot
from runmanager.core.epoch import OpenEpoch, num_batches
from runmanager.core.experiment import RunFolder
from runmanager.core.grid_context import GridContext
from runmanager.core.inside_epoch import InsideEpoch
from runmanager.core.journal import Journal, NoJournal
from runmanager.core.metrics import EpochSums, check_column, claim_column, column_of, single
from runmanager.core.outcome import BY_TRAIN, BatchProgress, EpochRecord, Question, Status
from runmanager.core.state import read_run
from runmanager.core.step_log import StepLog
from runmanager.devices import ranks, torch_devices
from runmanager.devices.torch_devices import as_many_threads, settings_of_numbers
from runmanager.errors import InvalidArgumentError, LifecycleError, is_pruned, warn

EVERY_S = 0.5
"""The minimum time (s) between two reports of steps."""


class OpenRun:
    """An attempt at a run, between `begin_run` and `end_run`; its files are created with its first epoch."""

    def __init__(
        self,
        folder: RunFolder,
        device: torch.device,
        context: GridContext,
        network: nn.Module | None = None,
        loader: Any = None,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.device, self.network, self.loader = folder, device, network, loader
        self.context = context
        self.attempt = folder.last_attempt + 1 if ranks.is_main() else 0
        self.journal: Journal | None = None  # None until the attempt begins
        self.state: ResumeState | TrainerState | None = None  # what is saved with each epoch
        self.inside: InsideEpoch | None = None  # the checkpoints inside epochs
        self.epoch: OpenEpoch | None = None  # the open epoch; None between epochs
        self.number = 0  # the last epoch begun or resumed; 0 before the first epoch and after the end
        self.records: list[EpochRecord] = []  # the committed epochs, those of earlier attempts too
        self.resume_epoch: int | None = None  # the epoch after which the attempt resumes, None if unset
        self.num_epochs: int | None = None  # the number of epochs of the loop, None without a loop
        # the loop over `epochs`, a weak reference, so that break in a for loop ends the generator
        self.loop: weakref.ref[Generator[int]] | None = None
        self.is_trained = False  # whether the loop has finished
        self.stopped_early = ""  # the reason why the loop ends before its last epoch
        self.start, self.start_time = 0.0, 0.0  # of the run's clock: perf_counter (s), and wall time (s)
        self.sums: EpochSums | None = None  # the sums of the current or last epoch
        self.num_steps = 0  # number of steps of ended epochs
        self.steps: StepLog | None = None  # the logged values of single steps; the first value creates it
        self.peak: int | None = None  # peak memory of tensors on its accelerator (bytes)
        self.replaced = 0  # the earlier attempt whose weights must not be overwritten
        self.status, self.cause, self.pruned_by = Status.COMPLETED, "", ""  # of its outcome if it ends now
        self.summary: dict[str, float] = {}  # column -> result of the whole run
        self._sources: dict[str, str] = {}  # column -> what fills it
        self.evaluations: list[list[Any]] = []  # after the loop, see `OpenEpoch.evaluations`
        self.num_items: dict[str, int] = {}  # column of an accuracy -> number of evaluated samples
        self.threads = ExitStack()  # restores torch's number of threads
        self._next = 0.0  # time of the next report of a step
        self._waited = 0.0  # time of waiting for the process that started the grid, and for rank 0 (s)
        parameters = [] if network is None else list(network.parameters())
        is_built = parameters and not any(map(is_lazy, parameters))
        details = {
            "device": str(device),
            "device_name": torch_devices.device_name(device),
            **({"parameters": sum(parameter.numel() for parameter in parameters)} if is_built else {}),
        }
        shared = {name: n for name, n in (("jobs", context.jobs), ("ranks", ranks.num_ranks())) if n > 1}
        # of the journal's first line
        self._details: dict[str, Any] = {**details, "fingerprint": context.fingerprint, **shared}
        self.writer: Any = None  # the SummaryWriter of `RunManager.tb`
        self.board: RunListener | None = None
        if context.boards is not None and ranks.is_main():
            self.board = context.boards.follow(folder, self.attempt, context.goal, context.x_axis, kinds)
        self.listeners = [*filter(None, [self.board]), *context.listeners]
        for listener in self.listeners:
            # a loop of a user may have a mapping as its run
            listener.run = context.run or folder.params  # type: ignore[assignment]
            listener.slot = Slot(folder.id, device=str(device))

    @property
    def outside(self) -> float:
        """The time (s) spent in the listeners so far that is part of no duration."""
        return self._waited + sum(listener.seconds for listener in self.listeners)

    @property
    def seconds(self) -> float:
        """The run's time so far (s)."""
        return perf_counter() - self.start - self.outside

    @property
    def has_begun(self) -> bool:
        """Whether this attempt has begun or resumed an epoch."""
        return self.journal is not None

    def resume(self, state: ResumeState | TrainerState | None, interval: Interval) -> list[EpochRecord]:
        """Resume the run after its last saved epoch, or inside the next epoch; from now on, save the state."""
        if self.has_begun:
            rule = "epochs() with checkpoint= or keep= resumes the run, which has had an epoch"
            raise LifecycleError(f"{rule}: call it once, before the first")
        state = state or TrainerState(last=partial(min, self.resume_epoch or 0))
        self.state = state
        problems: list[str] = []
        committed: Sequence[EpochRecord] = []
        is_mixed, earlier = False, None
        if ranks.is_main():
            earlier = read_run(self.folder, problems)
            continued, is_mixed = self.context.continued(earlier), self.context.is_changed(earlier)
            committed = continued or ()
            if continued is None:
                checkpoint.supersede(self.folder.path, earlier.attempts)
        records = state.restore(committed, problems)
        state.was_left &= not is_mixed
        if isinstance(state, ResumeState) and state.is_saved and self.context.epoch_type.most_steps is None:
            self.inside = InsideEpoch(self, state, interval, records, problems)
        if records or (self.inside and self.inside.position):
            number = ranks.from_main(lambda: earlier.threads if earlier else None)
            of_threads = self.threads.enter_context(as_many_threads(number))
            before = earlier.start.get("settings", {}) if earlier else {}
            now = settings_of_numbers()
            names = ", ".join(name for name, value in before.items() if value != now.get(name))
            of_settings = f"it began with other values of {names}" if names else ""
            for why in filter(None, [of_threads, of_settings, state.inexact]):
                is_mixed = True
                problems.append(f"{self.folder.path} is marked as mixed: {why}")
        # the last epoch may be only in the checkpoint
        num_committed = ranks.from_main(lambda: min(len(records), len(committed)))
        self.begin_attempt(records, num_committed=num_committed, is_mixed=is_mixed)
        self.number = self.resume_epoch = records[-1].epoch if records else 0
        if problems:
            warn("; ".join(problems))
        return records

    def begin_attempt(
        self, records: Sequence[EpochRecord] = (), *, num_committed: int = 0, is_mixed: bool = False
    ) -> None:
        """Create the journal and the event file, once."""
        if self.journal is not None:
            return
        inside = self.inside.position if self.inside else None
        if ranks.is_main():
            if self.attempt > 1 and not (records or inside):
                self.replaced = checkpoint.attempt_to_keep(self.folder, self.context)
            facts: dict[str, Any] = {"after": num_committed, "threads": torch.get_num_threads()}
            facts |= {"restored": len(records)} if len(records) > num_committed else {}
            facts |= {"mixed": True} if is_mixed and (records or inside) else {}
            facts |= {"inside": msgspec.to_builtins(inside)} if inside else {}
            facts |= {"keep": self.state.keep} if self.state and self.state.keep else {}
            facts |= self._details
            if self.device.type not in ("cpu", "meta"):
                facts["settings"] = settings_of_numbers()
            self.journal = Journal(self.folder.path, self.attempt, facts)
            self.attempt = self.journal.attempt  # another one, if another process began an attempt at this run
        else:
            self.journal = NoJournal()
        for record in records[num_committed:]:
            self.journal.epoch(record)
        self.num_steps = sum(record.steps for record in records)
        for listener in self.listeners:
            listener.attempt_began(records, self.journal.facts, inside.step if inside else self.num_steps)
        if records:
            self.records = [*records]
            # the clock continues from the duration of the earlier attempts
            self.start -= records[-1].metrics["run duration"]

    def last_continued(self) -> int:
        """Return the last epoch of earlier attempts after which the run may resume."""
        return ranks.from_main(lambda: len(self.context.continued(read_run(self.folder)) or ()))

    def epochs(self, num_epochs: int, begin: Callable[[], None], end: Callable[[], None]) -> Generator[int]:
        """Yield the numbers of the epochs; the hooks `begin` and `end` are the manager's."""
        if not (self.state and self.state.was_left):
            if self.records and self.number == self.resume_epoch:  # the answer after this epoch may be lost
                self.ask(self.records[-1], is_new=False)
            while self.number < num_epochs and not self.should_stop:
                begin()
                try:
                    yield self.number
                except GeneratorExit:
                    if self.epoch is not None:
                        # break or an exception, which the outcome of the run depends on
                        self.epoch.is_left = True
                        self.epoch.stop_clock()
                    raise
                end()
        self.is_trained = True

    def leave_loop(self) -> None:
        """Leave the loop over `epochs`, if it still waits in an epoch."""
        if self.loop and (loop := self.loop()):
            loop.close()

    def ask(self, record: EpochRecord, *, is_new: bool = True, is_left: bool = False) -> None:
        """Report a committed epoch; the first answer on rank 0 stops the run."""
        answers = [
            (
                listener.epoch_ended(record, self.network) if is_new else listener.asked_again(record),
                listener.rule,
            )
            for listener in self.listeners
        ]
        before, report = perf_counter(), self.context.report
        # the process that started the grid comes last, as it may stop the grid
        if report and self.context.asks:
            answers.append((report(Question(record, is_new)) or None, self.context.rule))
        elif report and is_new:
            report(record)
        # broadcast after TensorBoard has drawn, so that no other rank waits for rank 0 in the next epoch
        reason = ranks.from_main(lambda: next(((why, rule) for why, rule in answers if why is not None), None))
        self._waited += perf_counter() - before
        last = self.num_epochs
        if is_left or self.status is not Status.COMPLETED or (last is not None and record.epoch >= last):
            return
        why, rule = reason or ("", None)
        if rule is None:
            self.stopped_early = why
        else:
            where = f"after epoch {record.epoch}" + ("" if last is None else f" of {last}")
            self.set(Status.PRUNED, f"{where}: {why}", rule)

    def set(self, status: Status, cause: str, pruned_by: str = "") -> None:
        """Set the outcome, overriding earlier outcomes."""
        self.status, self.cause, self.pruned_by = status, cause, pruned_by

    @property
    def should_stop(self) -> bool:
        """Whether the loop should stop before its last epoch."""
        return self.status is not Status.COMPLETED or bool(self.stopped_early)

    def report_step(self) -> None:
        """Report a batch of the epoch or of an evaluation at intervals, without waiting for the device."""
        now, epoch = perf_counter(), self.epoch
        if now < self._next:
            return
        self._next, before = now + EVERY_S, self.outside
        progress = BatchProgress(self.number, 0, self.num_epochs)
        if epoch is not None:
            loss = epoch.sums.loss
            # the loss on an accelerator is not read
            mean = loss.of_numbers / loss.weight if loss.weight and loss.chunk is None else None
            progress = BatchProgress(self.number, epoch.step, self.num_epochs, num_batches(self.loader), mean)
        for listener in self.context.listeners:  # TensorBoard's draws no steps
            listener.step_ended(progress)
        if self.context.report:
            self.context.report(progress)  # its time is part of the epoch's duration, but is short
        if epoch is not None and self.outside > before:
            epoch.add_seconds("phase_log_s", self.outside - before)

    def step_log(self) -> StepLog:
        """Return the log of single steps; the first call creates it."""
        if self.steps is None:
            self.steps = StepLog(self.folder.path, self.attempt, self.folder.params, self.listeners)
        return self.steps

    def add_evaluation(self, values: Mapping[str, float], seconds: float, source: str = "") -> None:
        """Add the columns of an evaluation to the epoch, to the run's summary, or only to TensorBoard."""
        if self.epoch is not None:
            for column in values if source else ():
                claim_column(self.epoch.sums.sources, column, source)
            self.epoch.add_evaluation(values, seconds)
        elif self.is_trained:
            self.add_summary(values, source)
        else:
            for listener in self.listeners:
                listener.evaluated(values)

    def add_summary(self, values: Mapping[str, torch.Tensor | float], source: str = "") -> None:
        """Add results of the whole run, see `RunManager.summary`."""
        summary: dict[str, float] = {}
        for name, value in values.items():
            column = column_of(name)
            if self.records and column in self.records[-1].metrics:
                raise InvalidArgumentError(
                    f"{column!r} is a column of the epochs: give it another name, as final_f1"
                )
            check_column(column, self.folder.params)
            claim_column(self._sources, column, source or name)
            summary[column] = float(single(column, value))
        self.summary |= summary

    def fail(self, error: BaseException, device: torch.device) -> None:
        """Set the outcome to failed or out of memory, with the traceback in error.log; or to pruned."""
        if is_pruned(error):
            if not self.pruned_by:  # a pruner of the grid comes first
                self.set(Status.PRUNED, failure.failure_of(error, device)[1], BY_TRAIN)
                self.stopped_early = ""
            return
        if getattr(error, "is_unfit", False):
            self.set(Status.INTERRUPTED, failure.failure_of(error, device)[1])
            return
        failure.explain_devices(error, self.device, self.network)
        if ranks.is_main():
            failure.write_traceback(error, self.folder.path)
        # the number of an epoch that is open or being committed, else 0
        is_open = not self.records or self.number > self.records[-1].epoch
        number = self.number if is_open else 0
        step = self.epoch.step if self.epoch and self.epoch.counts_batches else 0
        self.set(*failure.failure_of(error, device, number, step))

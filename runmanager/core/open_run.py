"""An open run: its files, its clock, its loop and its outcome."""

import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

import msgspec
import torch
from torch import nn

from runmanager.core import causes, checkpoints, files, provenance, resuming
from runmanager.core.batch_size import Measure
from runmanager.core.batch_step import BatchStep, Loss
from runmanager.core.ending import Ending
from runmanager.core.epoch_options import EpochOptions, Interval
from runmanager.core.evaluation import Evaluation, Metric, OpenEvaluation, evaluate, undisturbed
from runmanager.core.folders import RunFolder
from runmanager.core.grid_context import GridContext
from runmanager.core.inside_epoch import InsideEpoch
from runmanager.core.journal import Journal, NoJournal
from runmanager.core.listener import Slot
from runmanager.core.listeners import Counts, Listeners, RunListener
from runmanager.core.metrics import EpochSums, check_column, column_of, single
from runmanager.core.open_epoch import OpenEpoch
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome, Status
from runmanager.core.resuming import ResumeState
from runmanager.core.state import end_if_running, loading_facts, read_run
from runmanager.core.step_log import StepLog
from runmanager.core.threads import Threads
from runmanager.core.trainer_state import TrainerState
from runmanager.devices import ranks, torch_devices
from runmanager.devices.settings import settings_of_numbers
from runmanager.errors import InvalidArgumentError, LifecycleError


class Boards(Protocol):
    """Creates the TensorBoard listeners of runs."""

    def follow(
        self, folder: RunFolder, attempt: int, grid: GridContext, details: Mapping[str, Any], kinds: Any
    ) -> RunListener:
        """Return the listener of an attempt at a run."""

    def counts(self) -> Counts:
        """Return the object that counts predictions per class; all ranks get such an object."""


class OpenRun:
    """An attempt at a run, between `begin_run` and `end_run`; its files are created with its first epoch.

    Its methods must be called in order, which `Hooks` validates.

    Args:
        boards: The factory of TensorBoard listeners, None for no TensorBoard.
        kinds: The types of the grid's hyperparameters for TensorBoard; None if unknown.
        types: The classes of an open epoch and an open evaluation.
    """

    def __init__(
        self,
        folder: RunFolder,
        device: torch.device,
        network: nn.Module | None = None,
        loader: Any = None,
        *,
        boards: Boards | None = None,
        kinds: Mapping[str, str] | None = None,
        measure: Measure | None = None,
        grid: GridContext,
        types: tuple[type[OpenEpoch], type[OpenEvaluation]] = (OpenEpoch, OpenEvaluation),
    ) -> None:
        self.folder, self.device, self.network, self.loader = folder, device, network, loader
        self.epoch: OpenEpoch | None = None  # the open epoch; None between epochs
        self.evaluation: OpenEvaluation | None = None  # the open evaluation; None if no evaluation is open
        self.number = 0  # the last epoch begun or resumed; 0 before the first epoch and after the end
        self.resume_epoch: int | None = None  # the epoch after which the attempt resumes, None if unset
        self.num_epochs: int | None = None  # number of epochs of the loop, None without a loop
        self.is_trained = False  # whether the loop has finished
        self._summary: dict[str, float] = {}  # column -> result of the whole run
        # start of the run's clock (perf_counter, s), and its wall time (s)
        self.start, self.start_time = 0.0, 0.0
        self._grid = grid
        self.epoch_type, self.evaluation_type = types
        self.measure = measure  # the user's function that counts the samples of a batch, None by default
        self.attempt = max(files.journals_by_attempt(folder.path), default=0) + 1 if ranks.is_main() else 0
        self.journal: Journal | None = None  # the journal; None until the attempt begins
        self._committed = 0  # the last committed epoch
        self._loaded: dict[str, Any] = {}  # facts in the journal about files of other runs
        self.resume_state: ResumeState | TrainerState | None = None
        self._inside: InsideEpoch | None = None
        self._replaced = 0  # the earlier attempt whose weights must not be overwritten
        self._threads = Threads()
        # a weak reference, so that break in a for loop ends the generator
        self._loop: weakref.ref[Generator[int]] | None = None
        self._peak: int | None = None  # peak memory of tensors on its accelerator (bytes)
        self._sums: EpochSums | None = None  # the sums of the current or last epoch
        self._last_metrics: Mapping[str, float] = {}
        self._boards = boards  # the factory is the same on all ranks; only rank 0 has the listener
        self.board: RunListener | None = None
        details = _circumstances(device, network)
        self._details = {**details, **grid.facts()}
        if boards is not None and ranks.is_main():
            self.board = boards.follow(folder, self.attempt, grid, details, kinds)
        listeners = [*filter(None, [self.board]), *grid.listeners]
        self.listeners = Listeners(listeners, grid.run or folder.params, Slot(folder.id, device=str(device)))
        self.ending = Ending(self.listeners)
        self._num_items: dict[str, int] = {}  # column of an accuracy -> number of evaluated samples
        self.steps = StepLog(folder.path, self.attempt, folder.params, self.listeners, grid.x_axis)

    def start_clock(self) -> None:
        """Start the run's clock, after all earlier work of the device."""
        torch_devices.wait_for(self.device)
        self.start, self.start_time = perf_counter() - self.listeners.seconds, time.time()

    @property
    def seconds(self) -> float:
        """The run's time so far (s)."""
        return perf_counter() - self.start - self.listeners.seconds

    def resume(self, options: EpochOptions) -> tuple[list[EpochRecord], list[str]]:
        """Resume the run after its last committed epoch, or inside the next epoch; from now on, save the parts.

        Returns the records of earlier epochs, and a sentence for each unused file.
        """
        keep = options.keep
        self._details |= {} if keep is None else {"keep": keep}
        state = ResumeState(self.folder, self.device, options.checkpoint, self.loader, keep)
        is_checked = self.epoch_type.commit_every is not None and options.checkpoint_every is not None
        interval = (self.epoch_type.commit_every, None) if is_checked else options.interval
        return self.resume_with(state, interval)

    def resume_with(
        self, state: ResumeState | TrainerState, interval: Interval = (None, None)
    ) -> tuple[list[EpochRecord], list[str]]:
        """Resume the run after its last saved epoch, see `resume`."""
        self.resume_state = state
        problems: list[str] = []
        committed: Sequence[EpochRecord] = []
        is_mixed, earlier = False, None
        if ranks.is_main():
            committed, is_mixed, earlier = resuming.earlier_of(self.folder, self._grid, problems)
        records, unusable = state.restore(committed)
        state.was_left &= not is_mixed
        if isinstance(state, ResumeState) and state.is_saved and self.epoch_type.most_steps is None:
            self._inside = InsideEpoch(self, state, interval, records, unusable)
        is_resumed = bool(records or (self._inside and self._inside.position))
        if is_resumed:
            of_threads = self._threads.keep(ranks.broadcast(earlier.threads if earlier else None))
            before = earlier.start.get("settings", {}) if earlier else {}
            now = settings_of_numbers()
            names = ", ".join(name for name, value in before.items() if value != now.get(name))
            of_settings = f"it began with other values of {names}" if names else ""
            for why in filter(None, [of_threads, of_settings]):
                is_mixed = True
                problems.append(f"{self.folder.path}: {why}, so that it is marked as mixed")
        # the last epoch may be only in the checkpoint
        num_committed = ranks.broadcast(min(len(records), len(committed)))
        self._begin_attempt(records, num_committed=num_committed, is_mixed=is_mixed)
        self.number = self.resume_epoch = self._committed
        self.ending.resume(*records)
        return records, problems + unusable

    @property
    def has_loop(self) -> bool:
        """Whether a loop over `epochs` begins and ends its epochs."""
        return self._loop is not None

    @property
    def has_begun(self) -> bool:
        """Whether this attempt has begun or resumed an epoch."""
        return self.journal is not None

    def epochs(self, n: int, begin: Callable[[], None], end: Callable[[], None]) -> Generator[int]:
        """Return the loop over the epochs up to epoch `n`, or up to the last epoch of a listener."""
        last = self.ending.begin_loop(n) or 0
        loop = self._loop_to(last, begin, end)
        self._loop, self.num_epochs = weakref.ref(loop), last
        return loop

    def _loop_to(self, last: int, begin: Callable[[], None], end: Callable[[], None]) -> Generator[int]:
        if self.resume_state and self.resume_state.was_left:
            self.is_trained = True
            return
        self.ending.ask_again()
        while self.number < last and not self.ending.should_stop:
            begin()
            try:
                yield self.number
            except GeneratorExit:
                if self.epoch is not None:
                    # the loop was left by break or by an exception, which the outcome of the run depends on
                    self.epoch.leave()
                raise
            end()
        self.is_trained = True

    def close_loop(self) -> None:
        """Close the loop over `epochs`: after a break, the user may still hold a reference to it."""
        if self._loop and (loop := self._loop()):
            loop.close()

    def begin_epoch(self) -> None:
        """Zero the sums and start the epoch's clock."""
        state = self.resume_state
        learning_rate = state.learning_rate() if self.board and state else None
        for listener in self.listeners:
            listener.epoch_began(is_saved=state is not None and state.is_saved, learning_rate=learning_rate)
        self.ending.go_on()
        self._begin_attempt()
        self.number += 1
        arguments = (self.number, self.device, self.loader, self.folder.params, self.num_epochs)
        on_step = self.listeners.step_ended if self.listeners.hear_steps else None
        self.epoch = self.epoch_type(*arguments, on_step, self.measure)
        self._sums, self.epoch.inside = self.epoch.sums, self._inside

    def end_epoch(self, *, is_left: bool) -> EpochRecord:
        """Stop the clock, read the sums of all ranks and commit the epoch, in which the loop may be left."""
        assert self.epoch is not None
        assert self.journal is not None
        epoch = self.epoch
        record = epoch.record(self.start + self.listeners.seconds, self.steps)
        self.epoch = None
        cause = epoch.divergence(record.metrics.get("loss", 0.0), self._last_metrics.get("loss"))
        if cause and self.ending.status is Status.COMPLETED:
            self.ending.set(Status.DIVERGED, cause)
        self._last_metrics = record.metrics
        if isinstance(self.resume_state, ResumeState) and self.ending.status is Status.COMPLETED:
            self.resume_state.score(record)  # if its metric is missing, no weights are renamed
        if self._replaced and record.epoch == 1:
            checkpoints.set_weights_aside(self.folder.path, self._replaced)
        if self.resume_state and self.ending.status is Status.COMPLETED:
            # save before the journal is written, as the record in the checkpoint repairs a journal without the
            # record
            self.resume_state.save(record, self.network, is_left=is_left)
        self.journal.epoch(record, **self.newly_loaded())
        self._committed = record.epoch
        return ranks.broadcast(record)  # other ranks continue only after the commit

    def epoch_ended(self, record: EpochRecord, *, is_left: bool) -> None:
        """Report an epoch to the listeners; the run stops if a listener returns a reason."""
        # read the peak now, as TensorBoard's listener allocates memory too
        self._peak = torch_devices.peak_memory(self.device, self._peak)
        self.ending.epoch_ended(record, is_left=is_left)
        torch_devices.reset_peak(self.device)

    def log(self, values: Mapping[str, Any], every: int) -> None:
        """Log values of the current step, see `RunManager.log`."""
        if self.evaluation is not None:
            raise LifecycleError("log() in an evaluation, which has no steps: track() adds to its columns")
        assert self.epoch is not None
        numbers, seconds = self.steps.draw(values)
        if self.steps.add(numbers, every, epoch=self.number, batch=self.epoch.step):
            seconds += self.steps.write()
        if seconds:
            self.epoch.add_seconds("phase_log_s", seconds)

    def evaluate(
        self,
        loader: Iterable[Any],
        name: str,
        loss: Loss,
        step: BatchStep | None,
        metrics: Mapping[str, Metric] | None,
    ) -> Evaluation:
        """Evaluate the network, see `RunManager.evaluate`."""
        assert self.network is not None
        counts = self._boards.counts() if self._boards else None
        with self.evaluating(loader, name) as evaluation:
            evaluate(self.network, evaluation, loss, step, metrics, counts)
            if self.journal is not None and (self.epoch is not None or self.is_trained):
                self._num_items |= {evaluation.column("accuracy"): n} if (n := evaluation.num_items) else {}
        if counts:
            for listener in self.listeners:
                listener.classes_counted(name, counts, loader)
        return evaluation.result

    @contextmanager
    def evaluating(self, loader: Iterable[Any], name: Any) -> Iterator[OpenEvaluation]:
        """Collect values that are tracked in the block in the columns of an evaluation."""
        if self.evaluation is not None:
            raise LifecycleError(f"an evaluation within another one, of {name!r}: end the first one before")
        if not isinstance(name, str):
            raise InvalidArgumentError(
                "evaluate() takes a loader, then the name of its columns: write evaluate(loader, 'validation')"
            )
        torch_devices.wait_for(self.device)
        before = self.seconds
        self.evaluation = self.evaluation_type(
            name, loader, self.device, self.report_step, self.measure, self.folder.params
        )
        try:
            with causes.explained_evaluation(name), undisturbed(self.network, loader, self.device):
                yield self.evaluation
                self.evaluation.result, values = self.evaluation.read()
        finally:
            self.evaluation = None
        torch_devices.wait_for(self.device)
        self.add_evaluation(values, self.seconds - before)

    def add_evaluation(self, values: Mapping[str, float], seconds: float) -> None:
        """Add the columns of an evaluation to the epoch, to the run's summary, or only to TensorBoard."""
        if self.epoch is not None:
            self.epoch.add_evaluation(values, seconds)
        elif self.is_trained:
            self.add_summary(values)
        else:
            for listener in self.listeners:
                listener.evaluated(values)

    def add_summary(self, values: Mapping[str, torch.Tensor | float]) -> None:
        """Add results of the whole run, see `RunManager.summary`."""
        summary: dict[str, float] = {}
        for name, value in values.items():
            column = column_of(name)
            if column in self._last_metrics:
                raise InvalidArgumentError(
                    f"{column!r} is a column of the epochs: give it another name, as final_f1"
                )
            check_column(column, self.folder.params)
            summary[column] = float(single(column, value))
        self._summary |= summary

    def report_step(self) -> None:
        """Report that the run makes progress."""
        if self.epoch is not None:
            self.epoch.report_step()
        else:
            self.listeners.step_ended(lambda: BatchProgress(self.number, 0, self.num_epochs))

    def interrupt(self, cause: str) -> None:
        """Set the outcome to interrupted."""
        self.ending.set(Status.INTERRUPTED, cause)

    def fail(self, error: BaseException, device: torch.device) -> None:
        """Set the outcome to failed or out of memory, with the traceback in error.log; or to pruned."""
        if causes.is_pruned(error):
            self.ending.prune(causes.cause_of(error, device))
            return
        if ranks.is_main():
            causes.write_traceback(error, self.folder.path / files.ERROR_LOG)
        # the number of an epoch that is open or being committed, else 0
        number = self.number if self.number > self._committed else 0
        step = self.epoch.step if self.epoch and self.epoch.counts_batches else 0
        self.ending.set(causes.status_of(error), causes.cause_of(error, device, number, step))

    @property
    def outcome(self) -> Outcome:
        """The outcome if the run ends now: completed, diverged, failed, pruned or interrupted."""
        return self.ending.outcome(self._committed)

    def end(self) -> None:
        """Commit the outcome and close the files."""
        self.epoch, self.number = None, 0
        self._begin_attempt()
        assert self.journal is not None
        outcome = self.outcome
        self._peak = torch_devices.peak_memory(self.device, self._peak)
        facts: dict[str, Any] = {} if self._peak is None else {"peak_memory": self._peak}
        facts |= {"stopped_early": self.ending.stopped_early} if self.ending.stopped_early else {}
        facts |= {"items": self._num_items} if self._num_items else {}
        facts |= loading_facts(self.folder.path)
        self.steps.close()
        try:
            self.journal.end(outcome, self._summary, **facts)
            if self.resume_state and outcome.status is Status.COMPLETED:
                self.resume_state.forget()
        except BaseException:
            if self.board:
                self.board.run_ended(outcome)  # this call closes the event file
            raise
        finally:
            self._threads.give_back()
            self.journal.close()
        for listener in self.listeners:
            listener.run_ended(outcome)

    def commit_lost_end(self) -> None:
        """Commit "interrupted" if the journal has no end line, which a signal may have prevented."""
        if ranks.is_main():
            end_if_running(self.folder, self.attempt, "interrupted")

    def total(self, name: str) -> float:
        """Read a sum of the current or last epoch, which waits for the device; 0 if nothing was added."""
        return self._sums.total(name) if self._sums else 0

    def newly_loaded(self) -> dict[str, Any]:
        """Return facts for the journal about files of other runs, if the run has loaded further files."""
        before, self._loaded = self._loaded, loading_facts(self.folder.path)
        return self._loaded if self._loaded != before else {}

    def keep_committed(self) -> None:
        """Begin an attempt after which the epochs of earlier attempts stay valid."""
        self._begin_attempt(num_committed=len(read_run(self.folder).epochs))

    def _begin_attempt(
        self, records: Sequence[EpochRecord] = (), *, num_committed: int = 0, is_mixed: bool = False
    ) -> None:
        """Create the journal and the event file, once.

        Args:
            records: The records of epochs that are not executed again.
            num_committed: The number of epochs in earlier journals; further records are committed here.
            is_mixed: Whether the records come from other code, data, versions, threads or settings.
        """
        if self.journal is not None:
            return
        inside = self._inside.position if self._inside else None
        if ranks.is_main():
            files.remove_leftovers(self.folder.path)
            self._replaced = 0 if records or inside else resuming.attempt_to_keep(self.folder, self._grid)
            facts: dict[str, Any] = {"after": num_committed, "threads": torch.get_num_threads()}
            facts |= {"restored": len(records)} if len(records) > num_committed else {}
            facts |= {"mixed": True} if is_mixed and (records or inside) else {}
            facts |= {"inside": msgspec.to_builtins(inside)} if inside else {}
            facts |= self._details | self.newly_loaded()
            if self.device.type not in ("cpu", "meta"):
                facts["settings"] = settings_of_numbers()
            self.journal = Journal(self.folder.path, self.attempt, facts)
        else:
            self.journal = NoJournal()
        for record in records[num_committed:]:
            self.journal.epoch(record)
        keep = self._details.get("keep")
        last_step = inside.step if inside else sum(record.steps for record in records)
        for listener in self.listeners:
            listener.attempt_began(records, keep=keep, last_step=last_step)
        self._committed = records[-1].epoch if records else num_committed
        if records:
            self._last_metrics = records[-1].metrics
            # the clock continues from the duration of the earlier attempts
            self.start -= records[-1].metrics["run duration"]
            self.steps.resume(records)


def _circumstances(device: torch.device, network: nn.Module | None) -> dict[str, Any]:
    """Describe the device, the size of the network, the versions, the commit and the command."""
    parameters = [] if network is None else list(network.parameters())
    is_built = parameters and not any(isinstance(p, nn.UninitializedParameter) for p in parameters)
    return {
        "device": str(device),
        "device_name": torch_devices.device_name(device),
        **({"parameters": sum(p.numel() for p in parameters)} if is_built else {}),
        "versions": provenance.versions(),
        "commit": provenance.git_commit(),
        "command": provenance.command(),
    }

"""A run while it is open: its files, its sums and its clocks."""

import math
import time
import weakref
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from runmanager.devices import ranks, torch_devices
from runmanager.outcome import LEADING, EpochRecord, Outcome, Status
from runmanager.storage import durable, fingerprint, paths
from runmanager.storage.folders import RunFolder
from runmanager.storage.journal import Journal, NoJournal
from runmanager.training import loaders
from runmanager.training.metrics import EpochSums

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from runmanager.board.run_log import RunLog
    from runmanager.training.resuming import Continuation


@dataclass
class OpenRun:
    """What is open between `begin_run` and `end_run`.

    Attributes:
        folder: Where the run lives.
        device: Where it is executed.
        attempt: Which attempt at it this is.
        details: What the attempt is executed with.
        board: Its event file, None if TensorBoard is off.
        journal: Its record, None until the attempt begins.
        committed: The number of the last epoch that is committed.
        continuation: What is saved with every epoch, None if nothing is.
        loop: The loop over its epochs, None if there is none.
        num_epochs: How many epochs that loop is for, None if there is none.
        lr: The learning rate that the current epoch began with, None if it is not known.
        last_metrics: Those of the last epoch, empty before the first.
        verdict: How it will end: completed, unless a loss was not finite.
        cause: Why it will not be completed.
        start: When its clock was started (perf_counter, s).
        sums: Those of the current epoch.
        evaluated: What was evaluated in the current epoch.
        times: Parts of the current epoch (s).
        epoch_start: When the current epoch's clock was started, None between epochs.
        left_at: When a loop over `epochs` left the current epoch by break, None if it did not.
        step: The number of the current batch in the epoch, from 1; 0 before the first.
        counts_batches: Whether steps are counted by `batches`, else by the losses.
        epoch_seconds: How long the current epoch took until it was left, without evaluations.
    """

    folder: RunFolder
    device: torch.device
    attempt: int
    details: Mapping[str, Any]
    board: "RunLog | None"
    journal: Journal | None = None
    committed: int = 0
    continuation: "Continuation | None" = None
    loop: "weakref.ref[Generator[int]] | None" = None  # weak, so that it ends with a plain for loop's break
    num_epochs: int | None = None
    lr: float | None = None
    last_metrics: Mapping[str, float] = field(default_factory=dict)
    verdict: Status = Status.COMPLETED
    cause: str = ""
    start: float = 0.0
    sums: EpochSums = field(default_factory=EpochSums)
    evaluated: dict[str, float] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    epoch_start: float | None = None
    left_at: float | None = None
    step: int = 0
    counts_batches: bool = False
    epoch_seconds: float = 0.0

    def start_clock(self) -> None:
        """Start the run's clock, after everything that was asked of the device so far."""
        torch_devices.wait_for(self.device)
        self.start = time.perf_counter()

    def begin_attempt(
        self, records: Sequence[EpochRecord] = (), *, num_committed: int = 0, mixed: bool = False
    ) -> None:
        """Begin the journal and the event file, once; they go on after the records given.

        Args:
            records: Those of the epochs that stand; none if the run begins anew.
            num_committed: How many epochs earlier journals have; the rest of the records is committed here.
            mixed: Whether the records come from other code, data or versions than what follows.

        Raises:
            StorageError: The journal could not be begun.
        """
        if self.journal is not None:
            return
        if ranks.is_main():
            durable.remove_leftovers(self.folder.path)
            begun = {"after": num_committed, **({"mixed": True} if mixed and records else {}), **self.details}
            self.journal = Journal(self.folder.path, self.attempt, begun)
        else:
            self.journal = NoJournal()
        for record in records[num_committed:]:
            self.journal.epoch(record)
        if self.board:
            self.board.open(records, healed=len(records) > num_committed)
        self.committed = num_committed
        if records:
            self.committed = records[-1].epoch
            self.last_metrics = records[-1].metrics
            self.start -= records[-1].metrics["run duration"]  # goes on where it was

    def begin_epoch(self) -> None:
        """Zero the sums and start the epoch's clock."""
        self.begin_attempt()
        self.sums, self.evaluated, self.times = EpochSums(), {}, {}
        self.left_at, self.step, self.counts_batches = None, 0, False
        self.lr = self.continuation.learning_rate() if self.board and self.continuation else None
        torch_devices.wait_for(self.device)
        self.epoch_start = time.perf_counter()

    def leave_epoch(self) -> None:
        """Stop the epoch's clock without committing the epoch."""
        assert self.epoch_start is not None
        torch_devices.wait_for(self.device)
        self.left_at = time.perf_counter()
        # an evaluation after a break is outside anyway
        self.epoch_seconds = self.left_at - self.epoch_start - self.times.get("phase_eval_s", 0.0)

    def close_loop(self) -> None:
        """Close the loop over `epochs`, which somebody may hold who left it by break."""
        loop = self.loop() if self.loop else None
        if loop:
            loop.close()

    def commit_epoch(self, number: int, loader: Any, network: nn.Module | None) -> EpochRecord:
        """Stop the clock, read the sums of all ranks, commit the epoch, show it.

        Raises:
            RankError: Another rank is gone.
            MetricError: The losses cannot be weighed.
            StorageError: The epoch could not be committed.
        """
        if self.left_at is None:
            self.leave_epoch()
        self.sums.settle(lambda batch: loaders.size_of_batch(loader, batch))
        record = self._record(number)
        self.epoch_start = None
        loss = record.metrics.get("loss")
        if loss is not None and not math.isfinite(loss) and self.verdict is Status.COMPLETED:
            self.verdict, self.cause = Status.DIVERGED, self._divergence(number, loss)
        self.last_metrics = record.metrics
        assert self.journal is not None
        if self.continuation and self.verdict is Status.COMPLETED:
            self.continuation.save(record, network)  # first, so that its row heals a journal that lacks it
        self.journal.epoch(record)
        self.committed = number
        if self.board:
            self.board.epoch(record, network, self.lr)
        return ranks.broadcast(record)  # when it is committed

    def end(self, outcome: Outcome) -> None:
        """Commit how the run ended and close its files.

        Raises:
            StorageError: It could not be committed; the files are closed.
        """
        self.begin_attempt()
        assert self.journal is not None
        try:
            self.journal.end(outcome, **_facts(self.device))
            if self.continuation and outcome.status is Status.COMPLETED:
                self.continuation.forget()
        finally:
            self.journal.close()
            if self.board:
                self.board.end(outcome)

    def writer(self) -> "SummaryWriter":
        """Return a SummaryWriter into the event file, or into nothing if TensorBoard is off."""
        if self.board:
            return self.board.writer
        from runmanager.board.summary_writer import RunWriter

        return RunWriter(self.folder.path, lambda _: None)

    def _divergence(self, number: int, mean: float) -> str:
        """Say which loss of the epoch was the first that is not finite, and what the one before it was."""
        step, loss, before = self.sums.first_not_finite() or (0, mean, None)
        before = self.last_metrics.get("loss") if step == 1 else before
        where = f"epoch {number}" + (f", step {step}" if step else "")
        known = f" (last finite {before:.4g})" if before is not None and math.isfinite(before) else ""
        return f"loss became {loss} in {where}{known}"

    def _record(self, number: int) -> EpochRecord:
        assert self.left_at is not None
        means = self.sums.means()
        if "phase_data_s" in self.times:
            self.times["phase_train_s"] = self.epoch_seconds - self.times["phase_data_s"]
        metrics: dict[str, float] = {}
        metrics |= {name: means.pop(name) for name in LEADING if name in means}
        own = (self.epoch_seconds, self.left_at - self.start, self.sums.num_samples)
        epoch_seconds, run_seconds, num_samples = zip(*ranks.gather(own), strict=True)
        metrics |= {"epoch duration": max(epoch_seconds), "run duration": max(run_seconds)}
        if any(num_samples):
            self.times["throughput_images_per_s"] = sum(num_samples) / max(epoch_seconds)
        return EpochRecord(number, {**metrics, **self.evaluated, **means}, self.times)


def open_run(
    experiment: str,
    folder: RunFolder,
    device: torch.device,
    network: nn.Module | None,
    *,
    histogram_every: int | None,
    kinds: Mapping[str, str] | None = None,
    **details: Any,
) -> OpenRun:
    """Open the next attempt at a run; its files begin with its first epoch.

    Args:
        experiment: Its name.
        folder: Where the run lives.
        device: Where it is executed.
        network: What is trained.
        histogram_every: Epochs from one set of histograms to the next; None for no event file at all.
        kinds: Name -> the kind of each hyperparameter in the run's grid; None if that is not known.
        **details: Further facts for the first line of its journal.
    """
    is_main = ranks.is_main()
    attempt = max(paths.attempts(folder.path), default=0) + 1 if is_main else 0
    shown: Mapping[str, Any] = {
        "device": str(device),
        "device_name": torch_devices.device_name(device),
        "parameters": _num_parameters(network),
        "versions": fingerprint.versions(),
        "commit": fingerprint.commit(),
        "command": fingerprint.command(),
    }
    board = None
    if histogram_every is not None and is_main:
        from runmanager.board.run_log import RunLog

        board = RunLog(experiment, folder, attempt, shown, histogram_every, kinds)
        if network is not None:
            board.watch(network)
    return OpenRun(folder, device, attempt, {**shown, **details}, board)


def _facts(device: torch.device) -> dict[str, int]:
    peak = None
    with suppress(RuntimeError):  # a device that failed tells nothing
        peak = torch_devices.peak_memory(device)
    return {} if peak is None else {"peak_memory": peak}


def _num_parameters(network: nn.Module | None) -> int:
    parameters = () if network is None else network.parameters()
    return sum(p.numel() for p in parameters if not isinstance(p, nn.UninitializedParameter))

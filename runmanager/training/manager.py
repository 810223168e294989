"""RunManager: the bracket round a training loop."""

import itertools
import json
import math
import traceback
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from runmanager.board.confusion import Confusion
from runmanager.console import choose_screen
from runmanager.devices import ranks, torch_devices
from runmanager.errors import LifecycleError, MetricError, PruneError, RunsWarning, StorageError
from runmanager.grid import kinds_of, params_of
from runmanager.hyperparameters import RESERVED, identity
from runmanager.outcome import LEADING, EpochRecord, Outcome, Status, in_order
from runmanager.results.loading import load_results
from runmanager.search.halving import SuccessiveHalving
from runmanager.storage import durable, paths, processes
from runmanager.storage.fingerprint import Fingerprint, changes
from runmanager.storage.folders import Experiment, RunFolder
from runmanager.storage.journal import end_abandoned
from runmanager.storage.lock import check_free
from runmanager.storage.run_state import read_run
from runmanager.training import failures, loaders, metrics
from runmanager.training.evaluation import Evaluation, Loss, evaluate
from runmanager.training.open_run import OpenRun, open_run
from runmanager.training.resuming import Continuation

if TYPE_CHECKING:
    import pandas as pd
    from torch.utils.tensorboard import SummaryWriter


_TRAINED: "weakref.WeakKeyDictionary[nn.Module, str]" = weakref.WeakKeyDictionary()
"""Network -> the run that trained it, in this process: `run_grid` has a manager for every run."""


class RunManager:
    """Log runs: hooks round a training loop, one row per epoch, one event file per run.

    Everything written is under ``root/experiment``. Training gives the same numbers with and without it.

    Under torchrun every rank has a manager and calls the same of its methods; rank 0 writes what all of them
    saw, and all get the same rows. The device `cuda` is then the GPU with the rank's number on its machine.

    Args:
        experiment: The folder of these runs under `root`; None names it by date and time. An experiment that
            exists is added to; one that is given as `Experiment` has its root in it.
        root: The folder that TensorBoard is started on.
        tensorboard: Whether event files are written.
        histogram_every: Epochs from one set of histograms to the next, 0 for none; the last epoch has one.
        display: Whether the table is shown: at the end of each run in a terminal, in place in a notebook.
            None decides by where it runs.
        on_epoch: Called with the record of each epoch that was committed.
        on_step: Called at each batch that `batches` yields, or at each loss in a loop without it, with the
            numbers of the epoch and of the batch, from 1, and with how many epochs are wanted, None if that is
            not known; while evaluating, at each batch with the numbers of before.
        jobs: How many runs share the machine, at most; a column of the tables if they are several.
        tables: Whether results.csv and results.json are written after each run; where several processes write
            runs of one experiment, only their parent may.
        fingerprint: The code, data and versions that results depend on; a run that was begun with others begins
            anew.
        resume_anyway: Continue such a run nevertheless; it is marked as mixed.
        only: The one run that may be begun, as a grid gives every run a manager; None allows all.
        prune: Ends runs as pruned at the next of its rungs, for `run_grid` to decide which of them go on.

    Attributes:
        run_params: The current run.
        run_count: How many runs this manager has begun.
        run_data: One row per finished epoch of this manager's runs.
        network: That of the current run.
        loader: That of the current run.
        epoch_count: The number of the current epoch, 0 between runs.
        outcome: How the last run ended, None before and while one is open.

    Raises:
        GridError: `experiment` cannot be a folder's name.
    """

    def __init__(
        self,
        experiment: str | Experiment | None = None,
        root: str | PathLike[str] = "runs",
        *,
        tensorboard: bool = True,
        histogram_every: int = 1,
        display: bool | None = None,
        on_epoch: Callable[[EpochRecord], None] | None = None,
        on_step: Callable[[int, int, int | None], None] | None = None,
        jobs: int = 1,
        tables: bool = True,
        fingerprint: Fingerprint | None = None,
        resume_anyway: bool = False,
        only: Any = None,
        prune: SuccessiveHalving | None = None,
    ) -> None:
        self.run_params: Any = None
        self.run_count = 0
        self.run_data: list[OrderedDict[str, Any]] = []
        self.network: nn.Module | None = None
        self.loader: Any = None
        self.epoch_count = 0
        self.outcome: Outcome | None = None
        self._root = Path(root)
        self._experiment = experiment if isinstance(experiment, Experiment) else None
        name = experiment.path.name if isinstance(experiment, Experiment) else experiment
        self._name = None if name is None else paths.check_experiment(name)
        self._histogram_every = histogram_every if tensorboard else None
        self._screen = choose_screen(show=display is not False)
        self._on_epoch = on_epoch
        self._on_step = on_step
        self._jobs = jobs
        self._tables = tables
        self._fingerprint = fingerprint or {}
        self._resume_anyway = resume_anyway
        self._only = only
        self._prune = prune
        self._current: OpenRun | None = None  # stays after end_run(), for the attributes below
        self._begun: dict[str, int] = {}
        self._writer: SummaryWriter | None = None

    def begin_run(self, run: Any, network: nn.Module | None = None, loader: Any = None) -> None:
        """Begin a run: send the network to the run's device, warm the device, open the files, start the clock.

        Args:
            run: A namedtuple or mapping of hyperparameters; `device` among them, or the cpu is meant.
            network: Moved to the device, unless its parameters are on several.
            loader: What `batches` yields from.

        Raises:
            LifecycleError: Another run is open, or this manager is for another one.
            DeviceError: The run's device is not there.
            GridError: A hyperparameter has the name of a column.
            StorageError: The run's folder could not be written.
        """
        if self.is_open:
            number = self._open("begin_run()").folder.number
            raise LifecycleError(f"begin_run() while run {number} is open: call end_run() first")
        params = params_of(run)
        if self._only is not None and identity(params) != identity(params_of(self._only)):
            raise LifecycleError(
                f"train() was given {self._only!r} and began {run!r}: give manager.run() the run"
            )
        device = torch_devices.require(ranks.own_device(params.get("device", "cpu")))
        if device.type == "cuda" and ranks.num_ranks() > 1:
            torch.cuda.set_device(device)
        if network is not None and len(torch_devices.places(network)) <= 1:
            network.to(device)
        torch_devices.warm(device)
        torch_devices.reset_peak(device)
        opened = self._start(self._common_place(params), device, network, kinds=kinds_of(run))
        self.run_count += 1
        self.run_params, self.network, self.loader = run, network, loader
        if network is not None:
            self._warn_if_trained(network, opened.folder.number)
            _TRAINED[network] = str(opened.folder.number)
        opened.start_clock()

    def end_run(self) -> None:
        """End the run: commit how it ended, close its files, write the tables, show the results.

        Raises:
            LifecycleError: No run is open, or an epoch is; then the run is ended as interrupted, without it.
        """
        opened = self._open("end_run()")
        if opened.epoch_start is not None:
            if opened.left_at is None:
                number = self.epoch_count
                self._close(Status.INTERRUPTED, "ended inside an epoch")
                raise LifecycleError(
                    f"end_run() inside epoch {number}: call end_epoch() first; run "
                    f"{opened.folder.number} is recorded as interrupted, without that epoch"
                )
            self._commit(opened)
        self._close(opened.verdict, opened.cause)
        ranks.broadcast(None)  # when everything is written

    def begin_epoch(self) -> None:
        """Begin an epoch: zero the sums, start the clock.

        Raises:
            LifecycleError: No run is open, or the last epoch has not ended.
            PruneError: The run is to be stopped at a rung, and saves no checkpoint.
        """
        opened = self._open("begin_epoch()")
        if opened.epoch_start is not None:
            raise LifecycleError(f"begin_epoch() inside epoch {self.epoch_count}: call end_epoch() first")
        if self._prune and not (opened.continuation and opened.continuation.is_saved):
            raise PruneError(
                "prune= stops runs at a rung and continues the best of them, and this one saves nothing to "
                "continue with: write `for epoch in manager.epochs(n, checkpoint={...})`"
            )
        self.epoch_count += 1
        opened.begin_epoch()

    def end_epoch(self) -> None:
        """End the epoch: stop the clock, read the sums, commit the row, log it.

        Raises:
            LifecycleError: No epoch is open.
            MetricError: Losses were tracked without their batches, and the loader does not tell their sizes.
            StorageError: The row could not be committed.
        """
        self._commit(self._open_epoch("end_epoch()"))

    def track_loss(self, loss: torch.Tensor | float, batch: Any = None) -> None:
        """Add a batch's loss to the epoch's mean. Does not wait for the device.

        Args:
            loss: The mean loss over the batch.
            batch: The batch, or its number of samples. Without it, the number comes from
                `track_num_correct` or from the loader.

        Raises:
            LifecycleError: No epoch is open.
            MetricError: The loss is not a single value, or the batch has no tensor to count.
        """
        opened = self._open_epoch("track_loss()")
        opened.sums.add_loss(loss, batch)
        if not opened.counts_batches:
            self._step(opened)

    def track_num_correct(self, preds: torch.Tensor, labels: torch.Tensor) -> None:
        """Count where the largest score is the label's. Does not wait for the device.

        Args:
            preds: Scores ``(N, C)`` or ``(N, C, ...)``.
            labels: Class numbers ``(N,)`` or ``(N, ...)``.

        Raises:
            LifecycleError: No epoch is open.
            MetricError: The shapes do not fit.
        """
        self._open_epoch("track_num_correct()").sums.add_correct(preds, labels)

    def track(self, **values: torch.Tensor | float) -> None:
        """Add means over the current batch to further columns. Does not wait for the device.

        The current batch is the last one from `batches`, `track_loss(loss, batch)` or `track_num_correct`;
        without one, all calls weigh the same.

        Args:
            **values: Column -> the mean over the batch.

        Raises:
            LifecycleError: No epoch is open.
            MetricError: A value is not a single number, or the name is taken.
        """
        opened = self._open_epoch("track()")
        for name, value in values.items():
            self._check_column(name, opened)
            opened.sums.add_mean(name, value, opened.sums.last_size or 1)

    def get_num_correct(self, preds: torch.Tensor, labels: torch.Tensor) -> int:
        """Return in how many samples the largest score is the label's; waits for the device."""
        return int(metrics.num_correct(preds, labels).item())

    _get_num_correct = get_num_correct

    def save(self, fileName: str | PathLike[str]) -> None:  # noqa: N803 - the tutorial's name
        """Write the rows of this manager's runs to ``fileName.csv`` and ``fileName.json``.

        As the tutorial does: the CSV has the index as its first, unnamed column; the JSON is a list of objects.

        Raises:
            StorageError: A file could not be written; the one before is still there.
        """
        from runmanager.results.files import to_csv, to_rows

        if not ranks.is_main():
            return
        path = Path(fileName)
        table = self._own_table()
        rows = json.dumps(to_rows(table), ensure_ascii=False, indent=4, allow_nan=False)
        durable.make_folder(path.absolute().parent)
        for suffix, content in (("csv", to_csv(table, index=True)), ("json", rows)):
            encoded = content.encode("utf-8", "backslashreplace")  # as strict_json does
            durable.write_file(path.with_name(f"{path.name}.{suffix}"), encoded)

    @contextmanager
    def run(self, run: Any, network: nn.Module | None = None, loader: Any = None) -> Iterator["RunManager"]:
        """Bracket a run: `begin_run`, and its end however the block ends.

        The run is recorded as completed, diverged (a loss was NaN or infinite), failed or out of memory (an
        exception, that of sys.exit() too, which goes on; its traceback is in error.log) or interrupted (Ctrl-C,
        or a disk that failed).

        Raises:
            Exception: As `begin_run`.
        """
        try:
            self.begin_run(run, network, loader)
            try:
                yield self
            except (StorageError, PruneError, KeyboardInterrupt, GeneratorExit):
                self.end_interrupted()  # what failed was not the run: it can be continued
                raise
            except BaseException as error:
                self._explain_devices(error)
                self.end_failed(error, run)
                raise
            if self.is_open:
                self._open("end_run()").close_loop()
                self.end_run()
        except KeyboardInterrupt:
            self.end_interrupted()  # its beginning or its end was torn
            raise

    def epochs(
        self, n: int, *, checkpoint: Mapping[str, Any] | None = None, keep: str | None = None
    ) -> Iterator[int]:
        """Yield the numbers of `n` epochs, beginning and ending each.

        Stops early when the loss is no longer finite. An epoch that the loop leaves with ``break`` counts.
        With a checkpoint, a run that was interrupted goes on after its last committed epoch exactly as if it
        had not been: random states and the loader's generators are saved too.

        Args:
            n: The number of epochs, those of earlier attempts included.
            checkpoint: Name -> network, optimizer, scheduler, ...: whatever has state_dict() and
                load_state_dict(), or is a torch.Generator. None saves nothing.
            keep: "last", "best:<metric>" of a loss or an accuracy, "min:<metric>" or "max:<metric>" leaves
                those weights in the run's folder as weights.pt.

        Raises:
            LifecycleError: No run is open, or an epoch has begun already.
            CheckpointError: A part has no state, or the saved one does not fit.
            StorageError: Something could not be committed.
        """
        opened = self._open("epochs()")
        wanted: object = n
        if not isinstance(wanted, int) or wanted < 0:
            raise LifecycleError(f"epochs() takes how many epochs are wanted, got {n!r}: write epochs(10)")
        told = self._continue(opened, checkpoint, keep) if checkpoint is not None or keep is not None else 0
        last = min(self._prune.next_rung(told), n) if self._prune else n
        loop = self._loop(opened, last, n)
        opened.loop, opened.num_epochs = weakref.ref(loop), last
        return loop

    def _loop(self, opened: OpenRun, last: int, n: int) -> Generator[int]:
        """Yield the numbers of the epochs up to the `last` one of this attempt, of `n` that are wanted."""
        while self.epoch_count < last and opened.verdict is Status.COMPLETED:
            self.begin_epoch()
            try:
                yield self.epoch_count
            except GeneratorExit:
                if opened.epoch_start is not None:
                    opened.leave_epoch()  # by break or by an exception: how the run ends will tell
                raise
            self.end_epoch()
        if self._prune and self.epoch_count == last < n and opened.verdict is Status.COMPLETED:
            self._prune.check(opened.last_metrics)
            opened.verdict, opened.cause = Status.PRUNED, f"after epoch {last} of {n}"

    def batches(self) -> Iterator[Any]:
        """Yield the loader's batches on the run's device.

        Raises:
            LifecycleError: No epoch is open, or the run has no loader.
        """
        opened = self._open_epoch("batches()")
        if self.loader is None:
            raise LifecycleError("batches() without a loader: pass it to begin_run(run, network, loader)")
        iterator, times = loaders.batches(self.loader, opened.device), opened.times
        opened.counts_batches = True
        times.setdefault("phase_data_s", 0.0)
        while True:
            before = perf_counter()
            batch = next(iterator, opened)
            times["phase_data_s"] += perf_counter() - before
            if batch is opened:
                return
            opened.sums.last_size = metrics.batch_size(batch)
            self._step(opened)
            yield batch

    def evaluate(
        self,
        loader: Iterable[Any],
        name: str = "test",
        *,
        loss: Loss = functional.cross_entropy,
    ) -> Evaluation:
        """Compute loss and accuracy in eval mode without gradients: the columns `test_loss`, `test_accuracy`.

        Outside of the epoch's duration, and without a trace in training: modes and random states are given
        back. Before the first epoch, the values are shown in TensorBoard as step 0 and are no row. Which class
        was taken for which in the last evaluation is shown there when the run is completed. Of several ranks,
        each evaluates its part of the samples; all have to call it.

        Args:
            loader: Yields (inputs, labels).
            name: What the columns begin with.
            loss: The mean over a batch, of the network's output and the labels.

        Raises:
            LifecycleError: No run is open, it has no network, or the epoch has ended already.
            MetricError: A column's name is taken.
        """
        opened = self._open("evaluate()")
        if self.network is None:
            raise LifecycleError("evaluate() without a network: pass it to begin_run(run, network, loader)")
        if self.epoch_count and opened.epoch_start is None:
            raise LifecycleError(
                f"evaluate() after epoch {self.epoch_count} has ended: call it before end_epoch()"
            )
        for column in (f"{name}_loss", f"{name}_accuracy"):
            self._check_column(column, opened)
        torch_devices.wait_for(opened.device)
        before = perf_counter()
        counted = Confusion() if self._histogram_every is not None else None  # the same on all ranks
        result = evaluate(self.network, loader, opened.device, loss, lambda: self._tell_step(opened), counted)
        seconds = perf_counter() - before
        if counted and opened.board:
            opened.board.confusion(name, counted, loader)
        values = {
            f"{name}_{kind}": v for kind, v in result._asdict().items() if not math.isnan(v) or kind == "loss"
        }
        if opened.epoch_start is not None:
            opened.evaluated.update(values)
            opened.times["phase_eval_s"] = opened.times.get("phase_eval_s", 0.0) + seconds
        elif opened.board:
            opened.board.evaluation(values)
        return result

    def _continue(self, opened: OpenRun, parts: Mapping[str, Any] | None, keep: str | None) -> int:
        """Go on where the run was committed last; return how many of its epochs the journals told before."""
        if opened.journal is not None:
            raise LifecycleError(
                "epochs(checkpoint=...) after an epoch of this run: call it once, before the first"
            )
        opened.continuation = Continuation(opened.folder, opened.device, parts, self.loader, keep)
        problems: list[str] = []
        committed: Sequence[EpochRecord] = []
        mixed = False
        if ranks.is_main():
            earlier = read_run(opened.folder, problems)
            mixed = bool(changes(earlier.start.get("fingerprint", {}), self._fingerprint))
            if earlier.status is Status.COMPLETED or (mixed and not self._resume_anyway):
                opened.continuation.set_aside(earlier.attempts)
            committed = earlier.epochs
        records = opened.continuation.restore(committed, problems)
        num_committed = min(len(records), len(committed))  # the last one may be in the checkpoint alone
        opened.begin_attempt(records, num_committed=num_committed, mixed=mixed)
        self.epoch_count = opened.committed
        self.run_data += [_row(opened.folder, record) for record in records]
        if problems:
            warnings.warn("; ".join(problems), RunsWarning, stacklevel=4)
        return ranks.broadcast(num_committed)

    def remaining(self, runs: Iterable[Any]) -> Iterator[Any]:
        """Yield those of the runs that this experiment has not completed yet.

        Raises:
            LifecycleError: The experiment has no name, so nothing of it can have been done before.
            ExperimentLockedError: `run_grid` is running this experiment in another process or thread.
        """
        if self._name is None:
            raise LifecycleError("remaining() of an experiment without a name: write RunManager('name')")
        if ranks.is_main():
            check_free(self._folder.path)
        for run in runs:
            if ranks.broadcast(ranks.is_main() and not self._is_completed(run)):
                yield run

    def _is_completed(self, run: Any) -> bool:
        known = self._folder.runs.get(identity(params_of(run)))
        return known is not None and read_run(known).status is Status.COMPLETED

    def end_failed(self, error: BaseException, run: Any) -> Outcome:
        """End the open run as failed or out of memory, its traceback in error.log.

        Opens `run` for that if none is open.

        Raises:
            StorageError: It could not be recorded.
        """
        if not self.is_open and not ranks.is_main():
            self.outcome = Outcome(failures.status_of(error), failures.cause_of(error, torch.device("cpu")))
            return self.outcome
        if not self.is_open:
            again = self.outcome is not None  # the run that has just ended, not another with its parameters
            folder = self._place(params_of(run), again=again)
            opened = self._start(folder, torch.device("cpu"), None, board=False)
            opened.begin_attempt(num_committed=len(read_run(opened.folder).epochs))
        opened = self._open("end_failed()")
        if ranks.is_main():
            log = "".join(traceback.format_exception(error)).encode("utf-8", "replace")
            durable.write_file(opened.folder.path / paths.ERROR_LOG, log)
        epoch = self.epoch_count if opened.epoch_start is not None else 0
        step = opened.step if opened.counts_batches else 0  # a loss tells of a batch when it is over
        return self._close(failures.status_of(error), failures.cause_of(error, opened.device, epoch, step))

    def end_interrupted(self) -> Outcome | None:
        """End the run as interrupted unless it has ended; what was committed is kept.

        Returns:
            How the run that was open ended, None if none was.
        """
        opened, was_open = self._current, self.is_open
        if opened is None:
            return None
        with suppress(StorageError):  # a journal without an end says the same
            if was_open:
                self._close(Status.INTERRUPTED, "interrupted")
        with suppress(StorageError):  # but only once this process is gone: the signal may have torn its end
            found = read_run(opened.folder) if ranks.is_main() else None
            own = {**processes.this_process(), "attempt": opened.attempt}.items()
            if found and found.status is Status.RUNNING and own <= found.start.items():
                outcome = Outcome(Status.INTERRUPTED, "interrupted", len(found.epochs))
                end_abandoned(opened.folder.path, outcome, {})
        return self.outcome if was_open else None

    @property
    def is_open(self) -> bool:
        """Whether a run is open."""
        return self._current is not None and self.outcome is None

    @property
    def results(self) -> "pd.DataFrame":
        """One row per finished epoch of this experiment so far, as `load_results` gives it."""
        known = self._experiment is not None and (ranks.is_main() or self._folder.path.exists())
        return load_results(self._folder.path) if known else self._own_table()

    @property
    def tb(self) -> "SummaryWriter | None":
        """A SummaryWriter into the run's event file; None before the first run."""
        if self._writer is None and self._current:
            self._writer = self._current.writer()
        return self._writer

    @property
    def epoch_loss(self) -> float:
        """The sum of the losses of the epoch's samples so far; waits for the device."""
        return self._current.sums.total("loss") if self._current else 0

    @property
    def epoch_num_correct(self) -> int:
        """The number of correct predictions in the epoch so far; waits for the device."""
        return int(self._current.sums.total("accuracy")) if self._current else 0

    @property
    def epoch_start_time(self) -> float | None:
        """When the epoch's clock was started (perf_counter, s), None between epochs."""
        return self._current.epoch_start if self._current else None

    @property
    def run_start_time(self) -> float | None:
        """When the run's clock was started (perf_counter, s), None before the first."""
        return self._current.start if self._current else None

    @property
    def _folder(self) -> Experiment:
        if self._experiment is None:
            self._experiment = Experiment(self._root / self._name if self._name else _dated(self._root))
        return self._experiment

    def _open(self, call: str) -> OpenRun:
        if self._current is None or not self.is_open:
            raise LifecycleError(f"{call} outside a run: call begin_run(run, network, loader) first")
        return self._current

    def _open_epoch(self, call: str) -> OpenRun:
        opened = self._current
        if opened is None or self.outcome is not None or opened.epoch_start is None:
            self._open(call)
            raise LifecycleError(f"{call} outside an epoch: call begin_epoch() first")
        return opened

    def _common_place(self, params: Mapping[str, Any]) -> RunFolder:
        """Find the folder of a run, or make one: rank 0 does so for all."""
        placed = (self._place(params), self._folder.path) if ranks.is_main() else None
        placed = ranks.broadcast(placed)
        assert placed is not None
        self._experiment = self._experiment or Experiment(placed[1])
        return placed[0]

    def _place(self, params: Mapping[str, Any], *, again: bool = False) -> RunFolder:
        id_ = identity(params)
        repeat = self._begun.get(id_, 0) + (not again)
        folder = self._folder.open(params, repeat)
        self._begun[id_] = repeat
        return folder

    def _start(
        self,
        folder: RunFolder,
        device: torch.device,
        network: nn.Module | None,
        *,
        board: bool = True,
        kinds: Mapping[str, str] | None = None,
    ) -> OpenRun:
        every = self._histogram_every if board else None
        shared = {"jobs": self._jobs, "ranks": ranks.num_ranks()}
        details = {"fingerprint": self._fingerprint, **{name: n for name, n in shared.items() if n > 1}}
        self._current = open_run(
            self._folder.path.name, folder, device, network, histogram_every=every, kinds=kinds, **details
        )
        self._writer = None
        self.outcome = None
        self.epoch_count = 0
        return self._current

    def _step(self, opened: OpenRun) -> None:
        opened.step += 1
        self._tell_step(opened)

    def _tell_step(self, opened: OpenRun) -> None:
        if self._on_step is not None:
            self._on_step(self.epoch_count, opened.step, opened.num_epochs)

    def _commit(self, opened: OpenRun) -> None:
        record = opened.commit_epoch(self.epoch_count, self.loader, self.network)
        self.run_data.append(_row(opened.folder, record))
        if self._on_epoch:
            self._on_epoch(record)
        if self._screen.wants_epochs and ranks.is_main():
            self._screen.epoch_ended(self._own_table())

    def _close(self, status: Status, cause: str) -> Outcome:
        opened = self._open("end_run()")
        self.epoch_count = 0
        opened.epoch_start = None
        self.outcome = Outcome(status, cause, opened.committed)
        opened.end(self.outcome)
        if not ranks.is_main():
            return self.outcome
        if self._tables:
            from runmanager.results.files import write_results

            write_results(self.results, self._folder.path)
        if self._screen.is_shown:
            self._screen.run_ended(self._own_table())
        return self.outcome

    def _own_table(self) -> "pd.DataFrame":
        import pandas as pd

        from runmanager.results.tables import from_columns

        names = dict.fromkeys(name for row in self.run_data for name in row) or ("run", "epoch", *LEADING)
        return from_columns({name: [row.get(name, pd.NA) for row in self.run_data] for name in names}, ())

    def _check_column(self, name: str, opened: OpenRun) -> None:
        if name in RESERVED or name in opened.folder.params or not name.isidentifier():
            taken = "is a hyperparameter" if name in opened.folder.params else "is a column already"
            if filler := {"loss": "track_loss", "accuracy": "track_num_correct"}.get(name):
                taken = f"is a column already, which {filler} fills"
            problem = taken if name.isidentifier() else "is no name"
            raise MetricError(f"{name!r} {problem}: give the metric another name, as in track(f1=...)")

    def _warn_if_trained(self, network: nn.Module, number: int) -> None:
        earlier = _TRAINED.get(network)
        if earlier is not None:
            warnings.warn(
                f"the network of run {number} was trained by run {earlier} already and begins "
                "with its weights: make a new network for every run",
                RunsWarning,
                stacklevel=3,
            )

    def _explain_devices(self, error: BaseException) -> None:
        if self._current is None or self.network is None or not isinstance(error, RuntimeError):
            return
        if "device" in str(error):
            where = ", ".join(sorted(map(str, torch_devices.places(self.network))))
            device = str(self._current.device)
            error.add_note(
                f"the run's device is {device}, its network is on {where}: take the batches from "
                f"manager.batches(), or send them with .to({device!r})"
            )


def _row(folder: RunFolder, record: EpochRecord) -> OrderedDict[str, Any]:
    return OrderedDict(in_order(folder.number, record.epoch, folder.params, record.metrics))


def _dated(root: Path) -> Path:
    """Make a folder named by the time, another one than whoever does so in the same second."""
    name = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    durable.make_folder(root)
    for number in itertools.count(1):
        folder = root / (name if number == 1 else f"{name}_{number}")
        with durable.explained(folder), suppress(FileExistsError):
            folder.mkdir()
            durable.sync_folder(root)
            break
    return folder

"""The manager of runs: the hooks of a training loop, which check their order and lead a run to its record."""

import bdb
import math
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import torch
from torch import nn
from torch.nn import functional

from runmanager.core import metrics
from runmanager.core.files import WEIGHTS
from runmanager.core.loop_options import EarlyStop, LoopOptions
from runmanager.core.outcome import Outcome, Status
from runmanager.core.run import id_of, identified, params_of
from runmanager.core.state import end_if_running, read_run
from runmanager.devices import ranks, torch_devices
from runmanager.errors import (
    DeviceError,
    InvalidArgumentError,
    LifecycleError,
    StorageError,
    ends_grid,
    first_line,
    is_count,
    is_pruned,
    warn,
)

if TYPE_CHECKING:
    from runmanager.core.checkpoint import Interval, Keep, ResumeState, TrainerState
    from runmanager.core.epoch import OpenEpoch
    from runmanager.core.evaluate import BatchStep, Evaluation, Loss, Metric, OpenEvaluation
    from runmanager.core.experiment import Design, Experiment
    from runmanager.core.grid_context import GridContext
    from runmanager.core.open_run import OpenRun

# network -> the run that trained it in this process; for all managers, as `run_grid` has one manager per run
_TRAINED: "weakref.WeakKeyDictionary[nn.Module, int]" = weakref.WeakKeyDictionary()


class LeaveTrain(BaseException):
    """Leaves a `train` whose loop cannot be stopped; the loop may catch Exception."""


# exceptions that interrupt a run but are not its fault, so that the run can be resumed
_NOT_OF_THE_RUN = (KeyboardInterrupt, GeneratorExit, bdb.BdbQuit, LeaveTrain)

LEFT_OPEN = "the program ended without end_run()"
"""The cause for a run that was never ended."""

T = TypeVar("T")


class settable(Generic[T]):  # noqa: N801 - used like property
    """A property that a subclass or user code may set: a plain attribute of the same name takes precedence."""

    def __init__(self, get: Callable[[Any], T]) -> None:
        self._get = get
        self.__doc__ = get.__doc__

    def __get__(self, manager: Any, _: Any = None) -> T:
        return self if manager is None else self._get(manager)  # type: ignore[return-value]

    if TYPE_CHECKING:  # at run time there is no __set__, so that plain attributes take precedence

        def __set__(self, manager: Any, value: Any) -> None: ...


class Manager:
    """Leads runs to their records, one after the other; `RunManager` adds what a loop of a user sees.

    Args:
        experiment: The experiment of the runs.
        context: The settings of the grid, or of the user.
        design: The goal and the x-axis to store with the experiment, None for those of the grid.
    """

    def __init__(
        self, experiment: "Experiment", context: "GridContext", design: "Design | None" = None
    ) -> None:
        from runmanager.core.open_run import OpenRun  # not later: a run that fails may have used up all files

        self.run_params: Any = None
        self.run_count: int = 0
        self.run_data: list[OrderedDict[str, Any]] = []
        self.outcome: Outcome | None = None
        # private names, as the classes of users have their own attributes
        self._experiment, self._context = experiment, context
        self._num_begun: Counter[str] = Counter()  # identity of a run -> number of times that it has begun
        self._run_type = OpenRun
        self._current: OpenRun | None = None  # the open or the last run
        self._is_open = False  # whether it is open
        self._evaluation: OpenEvaluation | None = None  # the open evaluation
        self._scope = ExitStack()  # restores the current device, and other settings, when the run ends
        self._design = design  # the design to store; None after it was written
        self._has_warned_of_open_run = False

    @classmethod
    def of_grid(cls, experiment: "Experiment", context: "GridContext") -> Self:
        """Return the manager of a run of a grid, which writes the tables and shows the lines itself."""
        manager = cls.__new__(cls)  # the arguments of subclasses are those of users
        Manager.__init__(manager, experiment, context)
        return manager

    def begin_run(self, run: Any, network: nn.Module | None = None, loader: Any = None) -> None:
        """Begin a run: move the network to the run's device, warm the device, open files, start the clock.

        Args:
            run: A namedtuple or mapping of hyperparameters; without `device`, the run is executed on the
                network's device.
            network: The network; it is moved to the device, unless its parameters are on several devices.
            loader: The loader for `batches`.

        Raises:
            LifecycleError: Another run is open, or this manager belongs to another run.
            DeviceError: The run's device is missing.
            GridError: A hyperparameter has the name of a column.
            StorageError: The run's folder could not be written.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> manager.begin_run({"lr": 0.1, "device": "cpu"})
            >>> for epoch in range(2):
            ...     manager.begin_epoch()
            ...     manager.track_loss(0.5, 8)
            ...     manager.end_epoch()
            ...     if manager.should_stop:  # as its loss diverged
            ...         break
            >>> manager.end_run()
            >>> manager.results["loss"].tolist()
            [0.5, 0.5]
        """
        if self._is_open:
            self._end_open_run()
        named: Any = self._context.run  # train() may have changed its copy
        if named is None:
            named = identified(run)
        elif id_of(run) != id_of(named):
            raise LifecycleError(f"train() was given {named!r}, but began {run!r}: write manager.run(run)")
        device = self._device_of(params_of(named), network)
        with ExitStack() as scope:
            if device.type not in ("cpu", "meta"):
                # the current accelerator has the pinned memory and the streams
                scope.enter_context(torch.accelerator.device_index(device.index))
                metrics.warm_sums(device)
            torch_devices.warm(device)
            torch_devices.take_peak(device)
            experiment = self._experiment
            # a run of a grid that begins again, as after a caught error, is at its next attempt
            repeat = 1 if self._context.run is not None else self._num_begun[id_of(named)] + 1
            folder = ranks.from_main(lambda: experiment.open(named, repeat))
            self._num_begun[id_of(named)] = repeat
            experiment.path, experiment.is_unnamed = folder.path.parent, False
            if self._design is not None and ranks.is_main():
                for sentence in experiment.decide(self._design):
                    warn(sentence)
                design = experiment.design
                self._context = replace(self._context, goal=design.goal, x_axis=design.x_axis)
            self._design = None
            opened = self._run_type(
                folder, device, self._context, network, loader, getattr(run, "_kinds", None)
            )
            self._scope = scope.pop_all()
        self._current, self.outcome, self._is_open = opened, None, True
        self.run_count += 1
        self.run_params = run
        if network is not None:
            if earlier := _TRAINED.get(network):
                warn(
                    f"the network of run {folder.number} was trained by run {earlier} already and begins "
                    "with its weights: make a new network for every run"
                )
            _TRAINED[network] = folder.number
        for listener in opened.listeners:
            listener.run_began(listener.run, network, loader)
        torch_devices.wait_for(device)
        opened.start, opened.start_time = perf_counter() - opened.outside, time.time()

    def end_run(self) -> None:
        """End the run: commit its outcome, close its files, write the tables, show the results.

        Raises:
            LifecycleError: No run is open; or an epoch is open: then the run ends as interrupted, without this
                epoch.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> manager.begin_run({"lr": 0.1})
            >>> manager.end_run()
            >>> manager.outcome.status
            <Status.COMPLETED: 'completed'>
        """
        run = self._open_run("end_run()")
        if run.epoch is not None:
            if not run.epoch.is_left:
                number = run.number
                run.set(Status.INTERRUPTED, "ended inside an epoch")
                self._close()
                raise LifecycleError(
                    f"end_run() inside epoch {number}: call end_epoch() first; run "
                    f"{run.folder.number} is recorded as interrupted, without that epoch"
                )
            Manager.end_epoch(self)
        self._close()
        ranks.gather(None)  # all ranks wait until everything is written

    def begin_epoch(self) -> None:
        """Begin an epoch: zero the sums, start the clock.

        Raises:
            LifecycleError: No run is open, or the last epoch has not ended.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> manager.begin_run({"lr": 0.1})
            >>> manager.begin_epoch()
            >>> manager.epoch_count
            1
            >>> manager.end_epoch()
            >>> manager.end_run()
        """
        run = self._open_run("begin_epoch()")
        if run.epoch is not None:
            raise LifecycleError(
                f"begin_epoch() inside epoch {run.number}: call end_epoch() first; "
                "a loop over manager.epochs() calls both"
            )
        if run.resume_epoch is not None and not run.has_begun:
            self._resume_from()
        if run.board and run.state:
            run.board.learning_rate = run.state.learning_rate()
        if run.pruned_by:  # a loop that does not use `epochs` may go on
            run.set(Status.COMPLETED, "")
        run.begin_attempt()
        run.number += 1
        run.epoch = run.context.epoch_type(
            run.number, run.device, run.loader, run.folder.params, run.report_step, self._context.measure
        )
        run.sums = run.epoch.sums
        if run.inside:
            run.inside.begin_epoch(run.epoch)

    def end_epoch(self) -> None:
        """End the epoch: stop the clock, read the sums, commit and log the row.

        Raises:
            LifecycleError: No epoch is open.
            InvalidArgumentError: Losses were tracked without batches, and the batch sizes are unknown.
            StorageError: The row could not be committed.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> manager.begin_run({"lr": 0.1})
            >>> manager.begin_epoch()
            >>> manager.track_loss(0.5, 8)
            >>> manager.end_epoch()
            >>> manager.run_data[0]["loss"]
            0.5
            >>> manager.end_run()
        """
        run = self._open_run("end_epoch()")
        epoch = self._open_epoch("end_epoch()")
        assert run.journal is not None
        epoch.stop_clock()
        num_logged = 0
        if run.steps:
            run.steps.write()
            num_logged, _ = run.steps.position(run.number)
        # one read per device
        record = epoch.record(run.start + run.outside, run.records, num_logged, self._context.x_axis)
        run.epoch = None
        if run.status is Status.COMPLETED and not math.isfinite(record.metrics.get("loss", 0.0)):
            run.set(Status.DIVERGED, epoch.divergence(record, run.records))
        state = run.state if run.status is Status.COMPLETED else None
        if state:
            state.score(record)  # if its metric is missing, no weights are renamed
        if run.replaced and record.epoch == 1:
            from runmanager.core.checkpoint import set_aside

            set_aside(run.folder.path, run.replaced, WEIGHTS)
        if state:  # before the record, as the record in the checkpoint repairs a journal without it
            state.save(record, run.network, is_left=epoch.is_left)
        # on disk: from here on the epoch counts
        run.journal.epoch(record)
        record = ranks.from_main(lambda: record)  # other ranks continue only after the commit
        run.records.append(record)
        run.num_steps += record.steps
        self.run_data.append(run.folder.row(record))
        # read the peak now, as TensorBoard's listener allocates memory too
        run.peak = torch_devices.take_peak(run.device, run.peak)
        run.ask(record, is_left=epoch.is_left)
        torch_devices.take_peak(run.device)

    @contextmanager
    def run(self, run: Any, network: nn.Module | None = None, loader: Any = None) -> Iterator[Self]:
        """Begin a run, as `begin_run` does, and end it with the block, also after an exception.

        The run is recorded as completed, diverged (a loss was NaN or infinite), pruned, or interrupted (Ctrl-C,
        or a disk failure). After another exception, or sys.exit(), the run is recorded as failed or out of
        memory; the traceback is in error.log. After optuna.TrialPruned, the run is recorded as pruned; the
        current epoch counts if all its batches were trained. All these exceptions are raised again.

        Args:
            run: The hyperparameters, as in `begin_run`.
            network: The network; it is moved to the run's device, as in `begin_run`.
            loader: The loader for `batches`.

        Yields:
            This manager.

        Raises:
            LifecycleError: Another run is open, this manager belongs to another run, or an epoch is still open.
            DeviceError: The run's device is missing.
            GridError: A hyperparameter has the name of a column.
            StorageError: The run's folder could not be written.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1, "device": "cpu"}):
            ...     for epoch in manager.epochs(2):
            ...         manager.track_loss(float("nan"), 8)
            >>> manager.outcome.status, manager.outcome.epochs
            (<Status.DIVERGED: 'diverged'>, 1)
        """
        try:
            self.begin_run(run, network, loader)
            try:
                yield self
            except BaseException as error:
                self._end_by(error, run)
                raise
            if self._current and self._is_open:
                if self._current.epoch:
                    self._current.leave_loop()  # after a break, the user may still hold it
                self.end_run()
        except KeyboardInterrupt:
            self._end_interrupted()  # the run is still open if the interrupt came while the run began or ended
            raise

    def epochs(
        self,
        n: int,
        *,
        checkpoint: Mapping[str, Any] | None = None,
        keep: "Keep | None" = None,
        patience: int | None = None,
        min_delta: float = 0.0,
        max_seconds: float | None = None,
        checkpoint_every: int | str | None = None,
    ) -> Iterator[int]:
        """Yield the numbers of `n` epochs; begin and end each epoch.

        The loop ends before the n-th epoch if the loss is not finite, or because of `patience` or
        `max_seconds`; the column `stopped early` of `load_runs` has the reason. An epoch that the loop leaves
        with ``break`` counts. With a checkpoint, an interrupted run resumes after its last committed epoch and
        gives the same numbers as a run without interruption: random states and the loader's generators are
        saved too.

        Args:
            n: The number of epochs, including the epochs of earlier attempts.
            checkpoint: The parts to save, by name: a network, an optimizer, a scheduler, or another object with
                state_dict() and load_state_dict(); a torch.Generator; or a dict or a list of JSON values, such
                as ``{"best": 0.5, "bad_epochs": 0}`` for early stopping. A dict or list is restored in place:
                the same object gets the saved values. With None, no checkpoint is saved.
            keep: The epoch whose weights are saved in the run's folder as weights.pt: "last", or
                "best:<metric>" for a metric with a known direction, such as a loss. For other metrics,
                "min:<metric>" or "max:<metric>". Without a goal, this metric also ranks the runs. A pair, as
                ``("max:val_accuracy", average)``, saves this module in place of the network; checkpoints have
                its state too. Weights of an earlier attempt that completed, or whose code has changed since,
                are renamed to attempt-1.weights.pt.
            patience: The number of epochs without an improvement after which the loop ends. The metric of
                `keep` is compared, else the metric of the goal. Only committed epochs count, so a resumed run
                ends after the same epoch.
            min_delta: The smallest improvement that counts for `patience`.
            max_seconds: Begin no epoch after this run duration (s), including earlier attempts.
            checkpoint_every: The interval of checkpoints inside epochs: a number of batches, such as 500, or a
                duration, such as "30s", "10min" or "2h". A run that was killed inside an epoch then resumes at
                its next batch of `batches`, with the same numbers as a run that was not killed. The loader must
                have state_dict() and load_state_dict(), as `TensorLoader` and torchdata's StatefulDataLoader.
                With other loaders, the epoch starts over, and a warning says so. A batch counts as done only if
                you track a value of this batch.

        Returns:
            The numbers of the remaining epochs, from 1 for a new run.

        Raises:
            LifecycleError: No run is open, the run has had a loop, or an epoch has begun already.
            InvalidArgumentError: `patience`, `min_delta`, `max_seconds` or `checkpoint_every` is invalid, or
                `patience` has no metric to watch.
            CheckpointError: A part has no state, or has values that are not JSON, here or at the end of an
                epoch; or the saved checkpoint does not fit the parts.
            StorageError: The epoch, or its checkpoint, could not be written.

        Example:
            >>> network, state = nn.Linear(4, 3), {"best": 9.0}
            >>> parts = {"network": network, "state": state}
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, network):
            ...     for epoch in manager.epochs(9, checkpoint=parts, keep="best:loss", patience=2):
            ...         manager.track_loss(abs(epoch - 2), 1)
            >>> manager.results["epoch"].tolist()  # epoch 2 was the best
            [1, 2, 3, 4]
        """
        run = self._open_run("epochs()")
        if not is_count(n):
            raise LifecycleError(f"epochs() takes a whole number, 0 or more, got {n!r}: write epochs(10)")
        if run.loop is not None:
            raise LifecycleError("epochs() again: a run has one loop; switch inside it, as by `if epoch == 3:`")
        options = LoopOptions(checkpoint, keep, patience, min_delta, max_seconds, checkpoint_every)
        if options != LoopOptions():
            options.problems().raise_if_any(InvalidArgumentError)
        if patience is not None or max_seconds is not None:
            run.listeners.insert(0, self._early_stop(options))
        if checkpoint is not None or keep is not None:
            from runmanager.core.checkpoint import ResumeState

            state = ResumeState(run.folder, run.device, checkpoint, run.loader, keep, self._watch)
            every = options.interval
            self._resume_from(state, every and (run.context.epoch_type.commit_every or every))
        elif run.resume_epoch is not None and not run.has_begun:
            self._resume_from()
        loop = run.epochs(n, self.begin_epoch, self.end_epoch)
        run.num_epochs, run.loop = n, weakref.ref(loop)
        return loop

    def batches(self) -> Iterator[Any]:
        """Iterate over the loader's batches on the run's device.

        If the run resumes inside the epoch, only the remaining batches are yielded; see `resume_batch`.

        Returns:
            An iterator over the loader's batches, with tensors on the device.

        Raises:
            LifecycleError: No epoch is open, or the run has no loader.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"device": "cpu"}, None, [(torch.ones(8, 4), torch.zeros(8))] * 3):
            ...     for epoch in manager.epochs(1):
            ...         for inputs, labels in manager.batches():
            ...             manager.track_loss(inputs.mean(), inputs)
            >>> manager.results["loss"].tolist()
            [1.0]
        """
        epoch = self._open_epoch("batches()")
        if self.loader is None:
            raise LifecycleError("batches() without a loader: write manager.run(run, network, loader)")
        return epoch.batches()

    def track_loss(self, loss: torch.Tensor | float, batch: Any = None) -> None:
        """Add a batch's loss to the epoch's mean, without waiting for the device.

        Args:
            loss: The mean loss over the batch.
            batch: The batch, or its number of samples. Without `batch`, the number comes from
                `track_num_correct` or from the loader.

        Raises:
            LifecycleError: No epoch is open.
            InvalidArgumentError: The loss is not a single value, or the batch has no tensor to count.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     for epoch in manager.epochs(1):
            ...         manager.track_loss(torch.tensor(0.5), torch.ones(30, 4))  # 30 samples
            ...         manager.track_loss(1.0, 10)  # 10 samples
            >>> manager.results["loss"].tolist()
            [0.625]
        """
        (self._evaluation or self._open_epoch("track_loss()")).add_loss(loss, batch)

    def track_num_correct(self, preds: torch.Tensor, labels: torch.Tensor) -> None:
        """Count the samples whose label has the largest score, without waiting for the device.

        If a subclass overrides `get_num_correct` or `_get_num_correct`, its method returns the number of
        correct samples out of ``len(labels)``.

        Args:
            preds: Scores ``(N, C)`` or ``(N, C, ...)``.
            labels: Class numbers ``(N,)`` or ``(N, ...)``.

        Raises:
            LifecycleError: No epoch is open.
            InvalidArgumentError: The shapes of `preds` and `labels` do not match.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     for epoch in manager.epochs(1):
            ...         scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])  # (4, 2)
            ...         manager.track_num_correct(scores, torch.tensor([0, 1, 0, 1]))
            >>> manager.results["accuracy"].tolist()
            [0.75]
        """
        sums = (self._evaluation or self._open_epoch("track_num_correct()")).sums
        for name in ("_get_num_correct", "get_num_correct"):
            if getattr(type(self), name) is not getattr(Manager, name):
                sums.add_count(getattr(self, name)(preds, labels), len(labels), len(labels))
                return
        sums.add_correct(preds, labels)

    def track(
        self,
        values: Mapping[str, torch.Tensor | float] | None = None,
        /,
        *,
        how: metrics.How = "mean",
        **named: torch.Tensor | float,
    ) -> None:
        """Add values of the current batch to further columns, without waiting for the device.

        A mean is weighted by the samples of the current batch: the batch from `batches`, or its part that was
        given to `track_loss(loss, batch)` or `track_num_correct`, before or after the call of `track`. If no
        number of samples is known, all calls have the same weight, and a warning says so.

        Args:
            values: Metrics by name, for names that are not identifiers: ``track({"val/f1": f1})`` becomes the
                column `val_f1`.
            how: How the column aggregates the values: "mean" (each value is a mean over its batch), "sum",
                "last", "min" or "max".
            **named: Metrics as keyword arguments, as in ``track(f1=f1)``.

        Raises:
            LifecycleError: No epoch is open.
            InvalidArgumentError: A value is not a single number, a name is taken, another source fills the
                column in this epoch, or `how` differs from an earlier call.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, None, [torch.ones(8), torch.ones(8)]):
            ...     for epoch in manager.epochs(1):
            ...         for batch, f1 in zip(manager.batches(), (0.25, 0.75)):
            ...             manager.track(f1=f1)
            ...             manager.track({"norm/largest": 2 * f1}, how="max")
            >>> manager.results[["f1", "norm_largest"]].values.tolist()
            [[0.5, 1.5]]
        """
        (self._evaluation or self._open_epoch("track()")).track({**(values or {}), **named}, how)

    def log(self, values: Mapping[str, Any] | None = None, /, *, every: int = 1, **named: Any) -> None:
        """Log values of the current step, for curves within an epoch, without waiting for the device.

        TensorBoard shows the values under ``steps/``, over the step of the run; `load_steps` loads them. A step
        is a batch of `batches`, else a batch of `track_loss`; a second value for a name in the same batch
        begins another step. Values stay on their device, and are read and written in blocks: when 4,096 values
        are waiting, when the first value has waited for 10 seconds, and at the end of the epoch. If an epoch is
        executed again, its values are replaced. Under torchrun, the values of rank 0 are logged.

        A figure of matplotlib, an image, or a batch of images is written only to TensorBoard, under
        ``images/``: the first one of each name in each epoch, whatever `every` is. An image is an array or
        tensor ``(H, W)``, ``(C, H, W)`` or ``(H, W, C)`` with one or three channels, of uint8, bool or floats;
        a batch ``(N, C, H, W)`` becomes a sheet, eight in a row. Reading it waits for the device.

        A value named `step` is logged as ``step_logged``, and a scheduled hyperparameter `lr` as ``lr_logged``.

        Args:
            values: Name -> value, for names that are not identifiers: ``log({"train/loss": loss})`` becomes the
                column `train_loss`.
            every: The interval of logged values in steps: ``every=50`` logs the values of the steps 50, 100,
                ... of the run, as Lightning's `log_every_n_steps` does. Other values are not read.
            **named: Values as keyword arguments, as in ``log(step_loss=loss, every=50)``.

        Raises:
            LifecycleError: No epoch is open, or an evaluation is open.
            InvalidArgumentError: A value is neither a number nor an image, a name is taken, or `every` is not a
                positive integer.
            StorageError: A block could not be written.

        Example:
            >>> from runmanager import load_steps
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     for epoch in manager.epochs(1):
            ...         for loss in (0.9, 0.8):
            ...             manager.track_loss(loss, 8)
            ...             manager.log(step_loss=loss)
            >>> load_steps("runs/example")["step_loss"].tolist()
            [0.9, 0.8]
        """
        run = self._open_run("log()")
        if self._evaluation is not None:
            raise LifecycleError("log() in an evaluation, which has no steps: track() adds to its columns")
        epoch = self._open_epoch("log()")
        values = {**(values or {}), **named}
        if seconds := run.step_log().add(
            values, every, epoch=run.number, batch=epoch.step, before=run.num_steps
        ):
            epoch.add_seconds("phase_log_s", seconds)

    def summary(
        self, values: Mapping[str, torch.Tensor | float] | None = None, /, **named: torch.Tensor | float
    ) -> None:
        """Add results of the whole run; each result becomes a column of `load_runs`, with one value per run.

        The results are committed at the end of the run. After the loop over `epochs`, the metrics of `evaluate`
        and `evaluating` are results of the whole run too.

        Args:
            values: Name -> value, for names that are not identifiers.
            **named: Results as keyword arguments, as in ``summary(final_f1=0.9)``.

        Raises:
            LifecycleError: No run is open.
            InvalidArgumentError: A value is not a single number, or a name is taken.

        Example:
            >>> from runmanager import load_runs
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     manager.summary(num_parameters=9)
            >>> load_runs("runs/example")["num_parameters"].tolist()
            [9.0]
        """
        self._open_run("summary()").add_summary({**(values or {}), **named})

    def load_weights(self, network: nn.Module | None = None) -> None:
        """Load the weights that ``epochs(keep=...)`` has saved so far, for example for a final test.

        Args:
            network: The network that gets the weights; by default the run's network.

        Raises:
            LifecycleError: No run is open, or the run has no network.
            CheckpointError: The run has saved no weights, or the weights do not fit the network.

        Example:
            >>> network, loader = nn.Linear(4, 3), [(torch.ones(8, 4), torch.arange(8) % 3)]
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, network):
            ...     for epoch in manager.epochs(3, keep="best:loss"):
            ...         manager.track_loss(abs(epoch - 2), 1)
            ...     manager.load_weights()  # those of epoch 2
            ...     final = manager.evaluate(loader, "final")  # the column final_loss
        """
        from runmanager.core.checkpoint import load_weights

        run = self._open_run("load_weights()")
        network = network or run.network
        if network is None:
            raise LifecycleError("load_weights() without a network: write manager.run(run, network, loader)")
        ranks.gather(None)  # wait until rank 0 has written the weights
        load_weights(run.folder.path, network)

    def evaluate(
        self,
        loader: Iterable[Any],
        name: str = "test",
        *,
        loss: "Loss" = functional.cross_entropy,
        step: "BatchStep | None" = None,
        metrics: "Mapping[str, Metric] | None" = None,
    ) -> "Evaluation":
        """Compute loss and accuracy in eval mode without gradients: the columns `test_loss`, `test_accuracy`.

        An evaluation does not count towards the epoch's duration and does not change training: modes and random
        states are restored. For an evaluation before the first epoch, TensorBoard shows the values at step 0,
        and the table has no row. When the run is completed, TensorBoard shows the confusion matrix of the last
        evaluation. Under torchrun all ranks call `evaluate`, each with its part of the samples.

        Args:
            loader: Yields (inputs, labels); with `step`, batches of any form.
            name: The prefix of the columns.
            loss: Called with the network's output and the labels, returns the mean over the batch.
            step: Called with the network and a batch on its device, returns (loss, outputs, targets), or only
                the loss. Use `step` for batches that are a mapping, or have other parts than (inputs, labels).
            metrics: Metrics by name, with update(outputs, targets), compute() and reset(), as in torchmetrics.
                A metric becomes the column `test_<name>`; a metric that computes several values becomes one
                column `test_<name>_<key>` per value. Metrics are first moved to the device and reset.

        Returns:
            The means over the samples, as `.loss` and `.accuracy`, and the values of the metrics by name, as
            `.metrics`.

        Raises:
            LifecycleError: No run is open, the run has no network, or the epoch has ended already.
            InvalidArgumentError: A column's name is taken, another evaluation or `track` fills it in this
                epoch, a batch is not (inputs, labels), or a metric is not a number.

        Example:
            >>> network, loader = nn.Linear(4, 3), [(torch.ones(8, 4), torch.arange(8) % 3)]
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, network):
            ...     for epoch in manager.epochs(1):
            ...         means = manager.evaluate(loader, "validation")
            >>> manager.results["validation_loss"].item() == means.loss, 0 <= means.accuracy <= 1
            (True, True)
        """
        run = self._open_run("evaluate()")
        if run.network is None:
            raise LifecycleError("evaluate() without a network: write manager.run(run, network, loader)")
        counts = run.context.boards.counts() if run.context.boards else None
        with self._open_evaluation("evaluate()", loader, name, step, loss) as evaluation:
            evaluation.apply(run.network, loss, step, metrics, counts)
            num_items = evaluation.num_items()
            if num_items and (run.epoch is not None or run.is_trained):
                run.num_items[evaluation.column("accuracy")] = num_items
        if counts:
            for listener in run.listeners:
                listener.classes_counted(name, counts, loader)
        return evaluation.result

    @contextmanager
    def evaluating(self, loader: Iterable[Any], name: str = "validation") -> Iterator[Iterator[Any]]:
        """Evaluate in your own loop: the block gets the loader's batches on the device.

        In the block, the network is in eval mode, no gradients are computed, and the epoch's clock is paused.
        The values of `track_loss`, `track_num_correct` and `track` in the block become the columns
        `validation_loss`, `validation_accuracy`, ... Modes and random states are restored, as in `evaluate`.

        Args:
            loader: Yields batches of any form.
            name: The prefix of the columns.

        Yields:
            An iterator over the loader's batches, with tensors on the device.

        Raises:
            LifecycleError: No run is open, the epoch has ended already, or another evaluation is open.
            InvalidArgumentError: A column's name is taken.

        Example:
            >>> network, loader = nn.Linear(4, 1), [{"x": torch.ones(8, 4), "y": torch.ones(8)}]
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, network):
            ...     for epoch in manager.epochs(1):
            ...         with manager.evaluating(loader) as batches:
            ...             for batch in batches:
            ...                 error = network(batch["x"])[:, 0] - batch["y"]
            ...                 manager.track(mae=error.abs().mean())
            >>> [name for name in manager.results if name.startswith("validation")]
            ['validation_mae']
        """
        with self._open_evaluation("evaluating()", loader, name) as evaluation:
            yield evaluation.batches()

    def get_num_correct(self, preds: torch.Tensor, labels: torch.Tensor) -> int:
        """Count the samples whose label has the largest score; waits for the device.

        Args:
            preds: Scores ``(N, C)`` or ``(N, C, ...)``.
            labels: Class numbers ``(N,)`` or ``(N, ...)``.

        Returns:
            The number of these samples. A subclass may override this method.

        Example:
            >>> class TopTwo(RunManager):
            ...     def get_num_correct(self, preds, labels):
            ...         return (preds.topk(2).indices == labels[:, None]).sum().item()
            >>> preds, labels = torch.tensor([[0.1, 0.3, 0.6]]), torch.tensor([1])
            >>> RunManager().get_num_correct(preds, labels), TopTwo().get_num_correct(preds, labels)
            (0, 1)
        """
        return int(metrics.are_correct(preds, labels).count_nonzero())

    _get_num_correct = get_num_correct

    @property
    def folder(self) -> Path | None:
        """The folder of the current or the last run, to which you may add files.

        None before the first run; in `run_grid`, the folder of the run from the beginning of `train` on.
        """
        return self._current.folder.path if self._current else self._context.folder

    @property
    def should_stop(self) -> bool:
        """Whether the run should stop after the last finished epoch; for loops that do not use `epochs`.

        True after an epoch whose loss was not finite, or if `patience` or `max_seconds` of `epochs`, or the
        grid's pruner, stops the run. A loop over `epochs` ends by itself; another loop checks this property and
        leaves with ``break``. False while no run is open.
        """
        return self._current is not None and self._is_open and self._current.should_stop

    @settable
    def network(self) -> nn.Module | None:
        """The network of the current or the last run."""
        return self._current.network if self._current else None

    @settable
    def loader(self) -> Any:
        """The loader of the current or the last run."""
        return self._current.loader if self._current else None

    @settable
    def epoch_count(self) -> int:
        """The number of the current epoch, 0 between runs."""
        return self._current.number if self._current else 0

    @property
    def resume_epoch(self) -> int:
        """The last committed epoch, after which a loop that saves its own state resumes; 0 for a new run.

        If the property is read before the first epoch, the run resumes at the following epoch. Save your state
        before `end_epoch`, so that each committed epoch has its state. If your last state is older, set
        `resume_epoch` to the epoch of that state; without any state, set `resume_epoch` to 0. Within
        ``epochs(checkpoint=...)``, the property is the restored epoch.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     for epoch in range(manager.resume_epoch + 1, 4):  # from 1: the run is new
            ...         manager.begin_epoch()
            ...         manager.track_loss(0.5, 8)
            ...         manager.end_epoch()
            >>> manager.results["epoch"].tolist()
            [1, 2, 3]
        """
        run = self._open_run("resume_epoch")
        if run.resume_epoch is None:
            run.resume_epoch = 0 if run.has_begun else run.last_continued()
        return run.resume_epoch

    @resume_epoch.setter
    def resume_epoch(self, epoch: int) -> None:
        run = self._open_run("resume_epoch")
        if run.has_begun:
            raise LifecycleError("resume_epoch is set after an epoch of this run: set it before the first")
        last = run.last_continued()
        if not is_count(epoch) or epoch > last:
            raise LifecycleError(f"resume_epoch must be a whole number from 0 to {last}, got {epoch!r}")
        run.resume_epoch = epoch

    @property
    def resume_batch(self) -> int:
        """The last batch that an earlier attempt saved in this epoch, after which `batches` resumes.

        0 without such a batch.

        Start a counter of `batches` at this number.

        Raises:
            LifecycleError: No epoch is open.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, None, [torch.ones(8, 4)] * 3):
            ...     for epoch in manager.epochs(1):
            ...         for number, batch in enumerate(manager.batches(), manager.resume_batch):
            ...             print(number)
            0
            1
            2
        """
        return self._open_epoch("resume_batch").resume_batch

    @settable
    def epoch_loss(self) -> float:
        """The sum of the losses of the epoch's samples so far; waits for the device."""
        return float(self._current.sums.loss.total()) if self._current and self._current.sums else 0

    @settable
    def epoch_num_correct(self) -> int:
        """The number of correct predictions in the epoch so far; waits for the device."""
        return int(self._current.sums.accuracy.total()) if self._current and self._current.sums else 0

    @settable
    def epoch_start_time(self) -> float | None:
        """The start of the epoch, as a timestamp of `time.time()` (s), None between epochs."""
        return self._current.epoch.start_time if self._current and self._current.epoch else None

    @settable
    def run_start_time(self) -> float | None:
        """The start of the current or the last run, as a timestamp of `time.time()` (s), None before a run."""
        return self._current.start_time if self._current else None

    @staticmethod
    def _watch(loader: Any, saved: Iterable[Any]) -> Any:
        """Return what notices in a first epoch what changes and the checkpoint does not save, or None."""

    def _open_run(self, call: str) -> "OpenRun":
        """Return the open run, for adapters of trainers; `call` is the call that needs it."""
        if self._current is None or not self._is_open:
            raise LifecycleError(
                f"{call} outside a run: write `with manager.run(run, network, loader):` around it, or call "
                "begin_run() first"
            )
        return self._current

    def _open_epoch(self, call: str) -> "OpenEpoch":
        """Return the open epoch; `call` is the call that needs it."""
        if self._current is not None and self._current.epoch is not None:
            return self._current.epoch
        if self._open_run(call).is_trained:
            raise LifecycleError(
                f"{call} after the last epoch: put it into the loop, or write manager.summary(final_f1=0.5)"
            )
        raise LifecycleError(
            f"{call} outside an epoch: call begin_epoch() first, unless a loop "
            "`for epoch in manager.epochs(n):` calls the hooks"
        )

    @contextmanager
    def _open_evaluation(
        self, call: str, loader: Iterable[Any], name: Any, *how: Any
    ) -> "Iterator[OpenEvaluation]":
        """Collect values that are tracked in the block in the columns of an evaluation."""
        run = self._open_run(call)
        if run.number and run.epoch is None and not run.is_trained:
            raise LifecycleError(f"{call} after epoch {run.number} has ended: call it before end_epoch()")
        if not isinstance(name, str):
            raise InvalidArgumentError(
                "evaluate() takes a loader, then the name of its columns: write evaluate(loader, 'validation')"
            )
        if self._evaluation is not None:
            raise LifecycleError(f"an evaluation within another one, of {name!r}: end the first one before")
        torch_devices.wait_for(run.device)
        before = run.seconds
        evaluation = self._evaluation = run.context.evaluation_type(
            name, loader, run.device, run.report_step, self._context.measure, run.folder.params
        )
        try:
            with evaluation.undisturbing(run.network):
                yield evaluation
                evaluation.result, values = evaluation.read()
        finally:
            self._evaluation = None
        torch_devices.wait_for(run.device)
        # an evaluation repeated within an epoch is one source of its columns, other loaders or steps are not
        # the id comes first, so that == compares no loaders
        source, sources = [id(loader), loader, call, *how], (run.epoch or run).evaluations
        if source not in sources:
            sources.append(source)
        run.add_evaluation(values, run.seconds - before, f"evaluation {sources.index(source) + 1}")

    def _device_of(self, params: Mapping[str, Any], network: nn.Module | None) -> torch.device:
        """Move a network to the run's device, and return it; without a device, it is the network's."""
        if network is not None and not callable(getattr(network, "parameters", None)):
            rule = f"network must be a torch.nn.Module, got {type(network).__name__}"
            raise InvalidArgumentError(f"{rule}: write manager.run(run, network, loader)")
        devices = torch_devices.devices_of(network)
        of_network = next(iter(devices)) if len(devices) == 1 else "cpu"
        device = ranks.device_of_rank(params.get("device", of_network))
        if rule := torch_devices.missing(device):
            step = "; run_grid marks its runs as unavailable" if self._context.run is None else ""
            raise DeviceError(rule + step)
        if network is not None and len(devices) <= 1:
            network.to(device)
        return device

    def _early_stop(self, options: LoopOptions) -> EarlyStop:
        """Return early stopping by the goal of `keep`, else by the goal of the experiment."""
        from runmanager.core.checkpoint import goal_of

        patience, goal = options.patience, goal_of(options.keep) or self._context.goal
        if patience is not None and goal is None and not self._experiment.is_unnamed:
            goal = self._experiment.design.goal
        if patience is not None and goal is None:
            example = "keep='best:validation_loss', or give the experiment a goal: goal='min:validation_loss'"
            raise InvalidArgumentError(f"patience={patience} without a metric to watch: write {example}")
        return EarlyStop(options, goal)

    @contextmanager
    def _counting(self, measure: Callable[[Any], int] | None) -> Iterator[None]:
        """Count the samples of batches by `measure` during the block."""
        before, self._context = self._context, replace(self._context, measure=measure)
        try:
            yield
        finally:
            self._context = replace(self._context, measure=before.measure)

    def _resume_from(
        self, state: "ResumeState | TrainerState | None" = None, interval: "Interval" = None
    ) -> None:
        """Resume the open run after the last epoch of a state to save, by default after `resume_epoch`."""
        run = self._open_run("resume")
        self.run_data += [run.folder.row(record) for record in run.resume(state, interval)]

    def _end_by(self, error: BaseException, run: Any) -> None:
        """End the run with the outcome for an exception that left the loop."""
        if isinstance(error, _NOT_OF_THE_RUN) or ends_grid(error):
            self._end_interrupted()
            return
        current = self._current
        if current and self._is_open and is_pruned(error):
            current.leave_loop()
            epoch = current.epoch
            if epoch is not None and epoch.is_left and epoch.is_whole:
                epoch.is_left = False  # a resumed run continues after this epoch
                Manager.end_epoch(self)
        self._end_failed(error, run)

    def _end_failed(self, error: BaseException, run: Any) -> Outcome:
        """End the open run as failed or out of memory; if no run is open, open `run` first."""
        if self._current and self._is_open:
            device = self._current.device
        else:
            device = cpu = torch.device("cpu")
            with suppress(RuntimeError, TypeError):  # the device that the run asks for may be missing
                device = torch.device(params_of(run).get("device", cpu))
            if not ranks.is_main():
                self.outcome = Outcome(Status.FAILED, f"{type(error).__name__}: {first_line(error)}")
                return self.outcome
            # `run` is the run that has just ended, not another run with the same hyperparameters
            named = identified(run) if self._context.run is None else run
            folder = self._experiment.open(named, self._num_begun[id_of(named)] or 1)
            self._current = self._run_type(folder, cpu, replace(self._context, boards=None))
            self._is_open = True
            # the epochs of earlier attempts stay valid
            committed = read_run(folder).epochs
            self._current.begin_attempt(committed, num_committed=len(committed))
        self._current.fail(error, device)
        return self._close()

    def _end_interrupted(self) -> None:
        """End the run as interrupted unless it has ended; committed epochs stay."""
        run = self._current
        if run is None:
            return
        if self._is_open:
            run.set(Status.INTERRUPTED, "interrupted")
            with suppress(StorageError):  # a journal without an end line counts as interrupted too
                self._close()
        if ranks.is_main():
            end_if_running(run.folder, run.attempt, "interrupted")  # a signal may have prevented the end line

    def _end_left_open(self) -> None:
        """End the open run at the exit of the program, where it is not certain that the run is complete."""
        run = self._open_run("end_run()")
        if run.status is Status.COMPLETED:
            run.set(Status.INTERRUPTED, LEFT_OPEN)
        self._close()

    def _end_open_run(self) -> None:
        """End the open run when the next run begins, as the tutorial's class did."""
        run = self._open_run("begin_run()")
        number = run.folder.number
        if self._context.run is not None:
            raise LifecycleError(f"begin_run() while run {number} is open: call end_run() first")
        with suppress(LifecycleError):  # inside an epoch
            self.end_run()
        assert self.outcome is not None
        if not self._has_warned_of_open_run:
            self._has_warned_of_open_run = True
            warn(
                f"begin_run() while run {number} was open: it is recorded as {self.outcome.status}; "
                "call end_run() after its last epoch"
            )

    def _close(self) -> Outcome:
        """Commit the outcome of the open run, and close its files."""
        run = self._open_run("end_run()")
        if run.resume_epoch is not None and not run.has_begun:  # all its epochs were committed before
            self._resume_from()
        num_epochs = run.records[-1].epoch if run.records else 0
        self.outcome = outcome = Outcome(run.status, run.cause, num_epochs, pruned_by=run.pruned_by)
        self._is_open = False
        run.epoch, run.number = None, 0
        try:
            run.begin_attempt()
            assert run.journal is not None
            run.peak = torch_devices.take_peak(run.device, run.peak)
            if run.steps:
                run.steps.close()
            try:
                run.journal.end(
                    outcome,
                    run.summary,
                    peak_memory=run.peak,
                    stopped_early=run.stopped_early,
                    items=run.num_items,
                    mixed=True if run.resume_epoch and run.state and run.state.inexact else None,
                )
                if run.state and outcome.status is Status.COMPLETED:
                    run.state.forget()
            except BaseException:
                if run.board:
                    run.board.run_ended(outcome)  # this call closes the event file
                raise
            finally:
                run.journal.close()
            for listener in run.listeners:
                listener.run_ended(outcome)
        finally:
            run.threads.close()
            if ranks.num_ranks() == 1:  # several ranks communicate through the device
                self._scope.close()
        return outcome

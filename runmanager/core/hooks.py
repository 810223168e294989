"""The hooks of a training loop, which validate the order of calls and pass them to the open run."""

import bdb
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn

from runmanager.core import causes, metrics, resuming
from runmanager.core.batch_size import Measure
from runmanager.core.design import Design
from runmanager.core.ending import EarlyStop, LeaveTrain
from runmanager.core.epoch_options import EpochOptions
from runmanager.core.evaluation import OpenEvaluation
from runmanager.core.folders import RunFolder, RunFolders
from runmanager.core.goal import Goal
from runmanager.core.grid_context import GridContext
from runmanager.core.missing_goal import missing_goal
from runmanager.core.open_epoch import OpenEpoch
from runmanager.core.open_run import Boards, OpenRun
from runmanager.core.outcome import EpochRecord, Outcome, Status, in_order
from runmanager.core.run import check_run, id_of, kinds_of, params_of
from runmanager.core.state import read_run
from runmanager.core.trainer_state import TrainerState, continued
from runmanager.core.values import column
from runmanager.devices import ranks, torch_devices
from runmanager.devices.settings import Leftovers
from runmanager.errors import (
    DeviceError,
    InvalidArgumentError,
    LifecycleError,
    RunsWarning,
    StorageError,
    ends_grid,
    is_count,
)
from runmanager.user_frames import user_level

_TRAINED: "weakref.WeakKeyDictionary[nn.Module, int]" = weakref.WeakKeyDictionary()
"""Network -> the run that trained it in this process.

All managers share this mapping, as `run_grid` has one manager per run.
"""

_NOT_OF_THE_RUN = (KeyboardInterrupt, GeneratorExit, bdb.BdbQuit, LeaveTrain)
"""Exceptions that interrupt a run but are not its fault, so that the run can be resumed."""

_BLOCK, _LOOP = "with manager.run(run, network, loader):", "for epoch in manager.epochs(n):"

_OF_THE_TUTORIAL = ("begin_epoch()", "end_epoch()", "end_run()")
"""Hooks that a loop over `epochs` in a block of `run` calls itself."""

LEFT_OPEN = "the program ended without end_run()"
"""The cause for a run that was never ended."""


class Output(Protocol):
    """The display and tables of a loop without a grid."""

    def run_began(self, hooks: "Hooks", opened: OpenRun) -> None:
        """Called when a run is open."""

    def epoch_ended(self, hooks: "Hooks", opened: OpenRun, record: EpochRecord) -> None:
        """Called when an epoch is committed."""

    def run_ends(self, hooks: "Hooks") -> None:
        """Called before a run is closed."""

    def run_ended(self, hooks: "Hooks") -> None:
        """Called when a run is closed."""


class Hooks:
    """The hooks of a loop, which executes runs one after the other.

    Args:
        folders: The run folders.
        measure: The user's function that counts the samples of a batch, None by default.
        design: The goal and the x-axis to store with the experiment.
        grid: The settings of the grid, None for a loop without a grid.
        boards: The factory of TensorBoard listeners, None for no TensorBoard.
        output: The display and tables of a loop without a grid.
        epoch_type: The class of an open epoch, by default `OpenEpoch`.
        evaluation_type: The class of an open evaluation, by default `OpenEvaluation`.

    Attributes:
        run_params: The current run.
        run_count: The number of runs that have begun.
        rows: One row per finished epoch.
        outcome: The outcome of the last run, None before the first run and while a run is open.
        scope: The stack that restores the current device, and other settings, when the run ends.
    """

    def __init__(
        self,
        folders: RunFolders,
        *,
        measure: Measure | None = None,
        design: Design | None = None,
        grid: GridContext | None = None,
        boards: Boards | None = None,
        output: Output | None = None,
        epoch_type: type[OpenEpoch] | None = None,
        evaluation_type: type[OpenEvaluation] | None = None,
    ) -> None:
        self.run_params: Any = None
        self.run_count = 0
        self.rows: list[OrderedDict[str, Any]] = []
        self.outcome: Outcome | None = None
        self.scope = ExitStack()
        self.folders, self.measure = folders, measure
        self.is_of_grid = grid is not None
        self.grid = grid or GridContext()
        self.goal: Goal | None = design.goal if design else None
        self.current: OpenRun | None = None  # the current or the last run
        self._design = design  # the design to store; None after it was written
        self._boards, self._output = boards, output
        self._types = epoch_type or OpenEpoch, evaluation_type or OpenEvaluation
        self._has_warned_of_open_run = False
        self._leftovers = Leftovers()

    @property
    def is_open(self) -> bool:
        """Whether a run is open."""
        return self.current is not None and self.outcome is None

    def open_run(self, call: str) -> OpenRun:
        """Return the open run."""
        if self.current is None or self.outcome is not None:
            around = "" if call in _OF_THE_TUTORIAL else f"write `{_BLOCK}` around it, or "
            raise LifecycleError(f"{call} outside a run: {around}call begin_run(run, network, loader) first")
        return self.current

    def open_epoch(self, call: str) -> OpenEpoch:
        """Return the open epoch."""
        epoch = None if self.current is None else self.current.epoch
        if epoch is None:
            opened = self.open_run(call)
            if opened.is_trained:
                raise LifecycleError(
                    f"{call} after the last epoch: put it into the loop, or write "
                    "manager.summary(final_f1=0.5) for a result of the run"
                )
            around = "" if call in _OF_THE_TUTORIAL else f"write `{_LOOP}` around it, or "
            raise LifecycleError(f"{call} outside an epoch: {around}call begin_epoch() first")
        return epoch

    def tracking(self, call: str) -> OpenEpoch | OpenEvaluation:
        """Return the target of tracked values: the open evaluation, else the open epoch."""
        evaluation = None if self.current is None else self.current.evaluation
        return self.open_epoch(call) if evaluation is None else evaluation

    def logging(self) -> OpenRun:
        """Return the open run."""
        opened = self.open_run("log()")
        if opened.evaluation is None:
            self.open_epoch("log()")
        return opened

    def open_for_evaluation(self, call: str) -> OpenRun:
        """Return the open run."""
        opened = self.open_run(call)
        if opened.number and opened.epoch is None and not opened.is_trained:
            raise LifecycleError(f"{call} after epoch {opened.number} has ended: call it before end_epoch()")
        return opened

    def begin_run(self, run: Any, network: nn.Module | None, loader: Any, end: Callable[[], None]) -> None:
        """Begin a run, see `RunManager.begin_run`; `end` is the manager's hook that ends an open run."""
        if self.is_open:
            self._end_open_run(end)
        if network is not None and not callable(getattr(network, "parameters", None)):
            rule = f"network must be a torch.nn.Module, got {type(network).__name__}"
            raise InvalidArgumentError([f"{rule}: write manager.run(run, network, loader)"])
        check_run(run)
        grid_run = run if self.grid.run is None else self.grid.run
        if id_of(run) != id_of(grid_run):
            raise LifecycleError(f"train() was given {grid_run!r}, but began {run!r}: write manager.run(run)")
        device = self.device_of(params_of(grid_run), network)
        with ExitStack() as scope:
            scope.enter_context(torch_devices.as_current(device))
            if network is not None and len(torch_devices.devices_of(network)) <= 1:
                network.to(device)
            torch_devices.warm(device)
            metrics.warm_sums(device)
            torch_devices.reset_peak(device)
            folder = self.folders.open_on_all_ranks(grid_run)
            self._write_design()
            opened = self._open(folder, device, network, loader, kinds=kinds_of(grid_run))
            self.scope = scope.pop_all()
        self.run_count += 1
        self.run_params = run
        self._warn_of_trained(network, opened.folder.number)
        if self._output:
            self._output.run_began(self, opened)
        if sentence := self._leftovers.run_begins(f"run {opened.folder.number}"):
            warnings.warn(sentence, RunsWarning, stacklevel=user_level())
        opened.listeners.run_began(network, loader)
        opened.start_clock()

    def end_run(self) -> None:
        """End the run, see `RunManager.end_run`."""
        opened = self.open_run("end_run()")
        if opened.epoch is not None:
            if not opened.epoch.is_left:
                number = opened.number
                opened.interrupt("ended inside an epoch")
                self._close()
                raise LifecycleError(
                    f"end_run() inside epoch {number}: call end_epoch() first; run "
                    f"{opened.folder.number} is recorded as interrupted, without that epoch"
                )
            self._commit_epoch()
        outcome = self._close()
        ranks.broadcast(None)  # all ranks wait until everything is written
        is_first = self.run_count == 1 and not self.is_of_grid and outcome.status is Status.COMPLETED
        if is_first and self.goal and (sentence := missing_goal([self.goal], opened.folder)):
            warnings.warn(sentence, RunsWarning, stacklevel=user_level())

    def begin_epoch(self) -> None:
        """Begin an epoch, see `RunManager.begin_epoch`."""
        opened = self.open_run("begin_epoch()")
        if opened.epoch is not None:
            if opened.has_loop:
                raise LifecycleError(
                    "begin_epoch() in a loop over manager.epochs(), which calls it: leave it out"
                )
            raise LifecycleError(f"begin_epoch() inside epoch {opened.number}: call end_epoch() first")
        if self._resume_by_trainer():
            opened.num_epochs = opened.ending.begin_loop(None)
        opened.begin_epoch()

    def end_epoch(self) -> None:
        """End the epoch, see `RunManager.end_epoch`."""
        opened = self.open_run("end_epoch()")
        if opened.epoch is None and opened.has_loop and not opened.is_trained:
            raise LifecycleError("end_epoch() in a loop over manager.epochs(), which calls it: leave it out")
        self.open_epoch("end_epoch()")
        self._commit_epoch()

    @contextmanager
    def run(self, run: Any, begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
        """Begin a run and end it with the block, by hooks that a user may have overridden."""
        try:
            begin()
            try:
                yield
            except BaseException as error:
                self.end_by(error, run)
                raise
            if self.is_open:
                self.open_run("end_run()").close_loop()
                end()
        except KeyboardInterrupt:
            self.end_interrupted()  # the run is still open if the interrupt came while the run began or ended
            raise

    def epochs(
        self,
        n: int,
        options: EpochOptions,
        begin: Callable[[], None],
        end: Callable[[], None],
    ) -> Iterator[int]:
        """Return the loop over `n` epochs, see `RunManager.epochs`; the loop calls the manager's hooks."""
        opened = self.open_run("epochs()")
        if not is_count(n):
            raise LifecycleError(f"epochs() takes a whole number, 0 or more, got {n!r}: write epochs(10)")
        options.problems().raise_if_any(InvalidArgumentError)
        opened.ending.early_stop = EarlyStop(options, self.watched(options))
        if options.checkpoint is not None or options.keep is not None:
            if opened.has_begun:
                raise LifecycleError(
                    "epochs(checkpoint=...) after an epoch of this run: call it once, before the first"
                )
            records, problems = opened.resume(options)
            self.add_rows(records)
            if problems:
                warnings.warn("; ".join(problems), RunsWarning, stacklevel=user_level())
        self._resume_by_trainer()
        return opened.epochs(n, begin, end)

    @property
    def should_stop(self) -> bool:
        """Whether the run should end after the last finished epoch."""
        return self.current is not None and self.is_open and self.current.ending.should_stop

    @property
    def resume_epoch(self) -> int:
        """The last committed epoch, after which a loop that saves its own state resumes."""
        opened = self.open_run("resume_epoch")
        if opened.resume_epoch is None:
            opened.resume_epoch = 0 if opened.has_begun else self._last_continued()
        return opened.resume_epoch

    @resume_epoch.setter
    def resume_epoch(self, epoch: int) -> None:
        opened = self.open_run("resume_epoch")
        if opened.has_begun:
            raise LifecycleError("resume_epoch is set after an epoch of this run: set it before the first")
        last = self._last_continued()
        if not is_count(epoch) or epoch > last:
            raise LifecycleError(f"resume_epoch must be a whole number from 0 to {last}, got {epoch!r}")
        opened.resume_epoch = epoch

    def end_by(self, error: BaseException, run: Any) -> None:
        """End the run with the outcome for an exception that left the loop."""
        if isinstance(error, _NOT_OF_THE_RUN) or ends_grid(error):
            self.end_interrupted()
            return
        if self.current:
            causes.explain_devices(error, self.current.device, self.current.network)
        if causes.is_pruned(error) and self.is_open:
            opened = self.open_run("end_run()")
            opened.close_loop()
            if opened.epoch is not None and opened.epoch.is_left and opened.epoch.is_whole:
                self._commit_epoch(is_left=False)  # a resumed run continues after this epoch
        self.end_failed(error, run)

    def end_at_exit(self, error: BaseException | None) -> Outcome:
        """End the open run at the end of the program, with or without an exception."""
        opened = self.open_run("end_run()")
        if error is not None:
            self.end_by(error, self.run_params)
        else:
            # without a call of end_run(), it is not certain that the run has completed
            if opened.outcome.status is Status.COMPLETED:
                opened.interrupt(LEFT_OPEN)
            self._close()
        return self.outcome or opened.outcome

    def end_failed(self, error: BaseException, run: Any) -> Outcome:
        """End the open run as failed or out of memory; if no run is open, open `run` first."""
        device = torch.device("cpu")
        if self.is_open and self.current:
            device = self.current.device
        else:
            with suppress(
                RuntimeError, TypeError
            ):  # the device that the run asks for, whether it is there or not
                device = torch.device(params_of(run).get("device", "cpu"))
        if not self.is_open and not ranks.is_main():
            self.outcome = Outcome(causes.status_of(error), causes.cause_of(error, device))
            return self.outcome
        if not self.is_open:
            # `run` is the run that has just ended, not another run with the same hyperparameters
            again = self.outcome is not None
            folder = self.folders.open(run, again=again)
            self._open(folder, torch.device("cpu"), has_board=False).keep_committed()
        self.open_run("end_run()").fail(error, device)
        return self._close()

    def end_interrupted(self) -> None:
        """End the run as interrupted unless it has ended; committed epochs stay."""
        if self.current is None:
            return
        if self.is_open:
            self.current.interrupt("interrupted")
            with suppress(StorageError):  # a journal without an end line counts as interrupted too
                self._close()
        self.current.commit_lost_end()

    def watched(self, options: EpochOptions) -> Goal | None:
        """Return the goal that `patience` watches: the goal of `keep`, else the goal of the experiment."""
        patience = options.patience
        goal = resuming.goal_of(options.keep) or self.goal
        if patience is not None and goal is None and (self.folders.name or self.folders.opened):
            goal = self.folders.experiment.design.goal
        if patience is not None and goal is None:
            example = "keep='best:validation_loss', or give the experiment a goal: goal='min:validation_loss'"
            raise InvalidArgumentError([f"patience={patience} without a metric to watch: write {example}"])
        return goal

    @contextmanager
    def counting(self, measure: Measure | None) -> Iterator[None]:
        """Count the samples of batches by `measure` during the block."""
        before, self.measure = self.measure, measure
        if self.current:
            self.current.measure = measure
        try:
            yield
        finally:
            self.measure = before
            if self.current:
                self.current.measure = before

    def device_of(self, params: Mapping[str, Any], network: nn.Module | None) -> torch.device:
        """Return the device of a run; a run without a device has the device of its network."""
        device = params.get("device", torch_devices.network_device(network))
        try:
            return torch_devices.require(ranks.device_of_rank(device))
        except DeviceError as error:
            if self.is_of_grid:
                raise
            advice = "leave it out of the axis 'device', or use run_grid, which marks its runs as unavailable"
            raise DeviceError(f"{error}; {advice}") from None

    def add_rows(self, records: Iterable[EpochRecord]) -> None:
        """Add the rows of epochs of the open run."""
        folder = self.open_run("end_epoch()").folder
        for record in records:
            params = {column(name): value for name, value in folder.params.items()}
            row = in_order(folder.number, record.epoch, params, record.metrics)
            self.rows.append(OrderedDict(row))

    def _warn_of_trained(self, network: nn.Module | None, number: int) -> None:
        if network is None:
            return
        if network in _TRAINED:
            warnings.warn(
                f"the network of run {number} was trained by run {_TRAINED[network]} already and begins "
                "with its weights: make a new network for every run",
                RunsWarning,
                stacklevel=user_level(),
            )
        _TRAINED[network] = number

    def _write_design(self) -> None:
        """Store the goal and the x-axis with the experiment, once; print changes."""
        design, self._design = self._design, None
        if design is None or not ranks.is_main():
            return
        for sentence in self.folders.experiment.decide(design) if design != Design() else ():
            warnings.warn(sentence, RunsWarning, stacklevel=user_level())
        if not self.is_of_grid:
            design = self.folders.experiment.design
            self.grid = replace(self.grid, goal=design.goal, x_axis=design.x_axis)

    def _end_open_run(self, end: Callable[[], None]) -> None:
        """End the open run when the next run begins, as the tutorial's class did."""
        opened = self.open_run("begin_run()")
        number = opened.folder.number
        if self.grid.run is not None:
            raise LifecycleError(f"begin_run() while run {number} is open: call end_run() first")
        if opened.epoch is not None and not opened.epoch.is_left:
            opened.interrupt(f"run {self.run_count + 1} began inside an epoch")
            self._close()
        else:
            end()
        assert self.outcome is not None
        if not self._has_warned_of_open_run:
            self._has_warned_of_open_run = True
            warnings.warn(
                f"begin_run() while run {number} was open: it is recorded as {self.outcome.status}; "
                "call end_run() after its last epoch",
                RunsWarning,
                stacklevel=user_level(),
            )

    def _open(
        self,
        folder: RunFolder,
        device: torch.device,
        network: nn.Module | None = None,
        loader: Any = None,
        *,
        kinds: Mapping[str, str] | None = None,
        has_board: bool = True,
    ) -> OpenRun:
        self.current = OpenRun(
            folder, device, network, loader, boards=self._boards if has_board else None, kinds=kinds,
            measure=self.measure, grid=self.grid, types=self._types,
        )  # fmt: skip
        self.outcome = None
        return self.current

    def _commit_epoch(self, *, is_left: bool | None = None) -> None:
        opened = self.open_run("end_epoch()")
        if is_left is None:
            is_left = opened.epoch is not None and opened.epoch.is_left
        record = opened.end_epoch(is_left=is_left)
        self.add_rows([record])
        opened.epoch_ended(record, is_left=is_left)
        if self._output:
            self._output.epoch_ended(self, opened, record)

    def _close(self) -> Outcome:
        self._resume_by_trainer()
        opened = self.open_run("end_run()")
        self.outcome = opened.outcome
        if self._output:
            self._output.run_ends(self)
        try:
            opened.end()
            self._leftovers.run_ended()
        finally:
            if ranks.num_ranks() == 1:  # several ranks communicate through the device
                self.scope.close()
        if self._output:
            self._output.run_ended(self)
        return self.outcome

    def _last_continued(self) -> int:
        """Return the last epoch of earlier attempts after which the open run may resume."""
        folder = self.open_run("resume_epoch").folder
        return ranks.from_main(lambda: len(continued(read_run(folder), self.grid)))

    def _resume_by_trainer(self) -> bool:
        """Resume after `resume_epoch` if it is set; return whether it is set."""
        opened = self.open_run("resume_epoch")
        after = opened.resume_epoch
        if after is None or opened.has_begun:
            return False
        records, problems = opened.resume_with(TrainerState(last=lambda committed: min(after, committed)))
        self.add_rows(records)
        if problems:
            warnings.warn("; ".join(problems), RunsWarning, stacklevel=user_level())
        return True

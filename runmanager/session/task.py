"""The task that executes one run of a grid in any process."""

import bdb
import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runmanager.core import files
from runmanager.core.folders import Experiment
from runmanager.core.goal import Goal
from runmanager.core.listener import Listener
from runmanager.core.outcome import Outcome, Status
from runmanager.core.run import Run, copy_of
from runmanager.core.state import Fingerprint, noting_files, read_run
from runmanager.errors import LifecycleError, StorageError, ends_grid
from runmanager.executors import Report
from runmanager.executors.signals import is_stopped
from runmanager.session.train_call import call
from runmanager.tensorboard.options import TensorBoard, run_logs

if TYPE_CHECKING:
    from runmanager.core.epoch import OpenEpoch
    from runmanager.core.evaluate import OpenEvaluation
    from runmanager.core.grid_context import GridContext
    from runmanager.core.manager import Manager

Train = Callable[[Run, Any], object]  # a function that is called with a run and its manager

# the variable that names the debugger of breakpoint(); a network debugger works in workers too
_DEBUGGER = "PYTHONBREAKPOINT"
_SPARE = 16  # number of file descriptors reserved for the commit at the end of a run
_OF_THE_RUN = (errno.EMFILE, errno.EFBIG)
"""Error numbers of writes that fail because a run has opened too many files, or limited the size of files."""


@dataclass(frozen=True)
class RunTask:
    """Executes one run in the calling process, by the options of `run_grid`; workers receive a pickled copy."""

    train: Train
    manager_of: "Callable[[Experiment, GridContext], Manager]"  # -> the manager for `train`
    experiment: Experiment
    tensorboard: bool | TensorBoard
    fingerprint: Fingerprint
    keep_changed: bool
    jobs: int  # the maximum number of runs of the grid that share the machine
    rule: str = ""  # the rule to record if a listener stops a run
    asks: bool = False  # whether the run asks listeners in the parent
    listeners: Sequence[Listener] = ()  # listeners in the process of the run
    goal: Goal | None = None
    x_axis: str | None = None
    epoch_type: "type[OpenEpoch] | None" = None  # the class of shortened epochs
    evaluation_type: "type[OpenEvaluation] | None" = None
    raises: bool = False  # whether to raise the exception of `train` after recording it, for a debugger
    process: int = field(default_factory=os.getpid)  # the process with the user's keyboard

    def __call__(self, run: Run, report: Report) -> Outcome:
        """Execute a run; commit and return its outcome."""
        from runmanager.core.epoch import OpenEpoch
        from runmanager.core.evaluate import OpenEvaluation
        from runmanager.core.grid_context import GridContext
        from runmanager.core.listeners import RunListener, UserListeners
        from runmanager.devices import ranks
        from runmanager.devices.settings import as_many_threads
        from runmanager.session.run_listeners import Messenger

        listeners = [listener for listener in self.listeners if isinstance(listener, RunListener)]
        users = [listener for listener in self.listeners if not isinstance(listener, RunListener)]
        if users and ranks.is_main():
            listeners.append(UserListeners(users, copy_of(run), self.rule))
        context = GridContext(
            run=run,
            jobs=self.jobs,
            fingerprint=self.fingerprint,
            keep_changed=self.keep_changed,
            goal=self.goal,
            x_axis=self.x_axis,
            # the messenger comes last, as it may stop the grid
            listeners=[*listeners, Messenger(report, self.rule, asks=self.asks)],
            boards=run_logs(self.tensorboard),
            epoch_type=self.epoch_type or OpenEpoch,
            evaluation_type=self.evaluation_type or OpenEvaluation,
        )
        manager = self.manager_of(self.experiment, context)
        # set the threads before train() computes its first sum
        num_threads = ranks.from_main(lambda: self._threads_of(run, context))
        threads = as_many_threads(num_threads) if num_threads else nullcontext()
        try:
            with threads, noting_files():
                return self._execute(run, manager)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or ends_grid(error):
                manager.end_interrupted()
            raise
        finally:
            _forget_compiled()

    def _threads_of(self, run: Run, context: "GridContext") -> int | None:
        """Return the number of threads of a resumed run, None for a new run."""
        folder = self.experiment.find(run)
        checkpoints = (files.CHECKPOINT, files.PREVIOUS_CHECKPOINT, files.INSIDE_CHECKPOINT)
        if folder is None or not any((folder.path / name).exists() for name in checkpoints):
            return None
        earlier = read_run(folder)
        return None if context.starts_over(earlier) else earlier.threads

    def _execute(self, run: Run, manager: "Manager") -> Outcome:
        from runmanager.devices.settings import as_before, process_state

        process, before = os.getpid(), process_state()
        try:
            with _spare_descriptors(), self._without_debugger(run):
                call(self.train, copy_of(run), manager)
            if manager.is_open:
                with as_before(before):
                    manager.end_run()
            if manager.outcome is None:
                raise LifecycleError(  # noqa: TRY301 - recorded like an exception of train()
                    "train() began no run: write `with manager.run(run, network, loader):` in it"
                )
        except BaseException as error:  # an exception of a run becomes an outcome
            if os.getpid() != process:  # a process forked by the run must record nothing
                os._exit(1)
            is_here = process == self.process
            with as_before(before):
                if is_here and isinstance(error, bdb.BdbQuit):  # a user who quits the debugger stops the grid
                    manager.end_interrupted()
                    if not self.raises:
                        raise KeyboardInterrupt from error
                else:
                    outcome = _outcome_of(error if is_here else self._explained(error, run), run, manager)
            if self.raises:
                raise
            return outcome
        return manager.outcome

    @contextmanager
    def _without_debugger(self, run: Run) -> Iterator[None]:
        """Let `breakpoint()` in a worker raise an error with advice, unless the user has set a debugger."""
        before = sys.breakpointhook
        if os.getpid() != self.process and before is sys.__breakpointhook__ and not os.environ.get(_DEBUGGER):

            def refuse(*_: object, **__: object) -> None:
                raise self._no_debugger(run)

            sys.breakpointhook = refuse
        try:
            yield
        finally:
            sys.breakpointhook = before

    def _explained(self, error: BaseException, run: Run) -> BaseException:
        """Add advice to an error if a debugger ended because a worker has no input."""
        if isinstance(error, bdb.BdbQuit):
            explained = self._no_debugger(run)
            explained.__cause__ = error
            return explained.with_traceback(error.__traceback__)
        return error

    def _no_debugger(self, run: Run) -> LifecycleError:
        folder = self.experiment.find(run)
        number = folder.number if folder else "NUMBER"
        step = f"only={number} executes this run alone, in the process that starts the grid"
        return LifecycleError(f"a debugger has no keyboard in a worker process: {step}")


@contextmanager
def _spare_descriptors() -> Iterator[None]:
    """Reserve some file descriptors for the code after the block."""
    spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE)]
    try:
        yield
    finally:
        for descriptor in spare:
            with suppress(OSError):  # the error if the block has closed the descriptor already
                os.close(descriptor)


def _outcome_of(error: BaseException, run: Run, manager: "Manager") -> Outcome:
    """Commit the outcome of a run that raised an exception; raise the exception again if it ends the grid."""
    from runmanager.devices import ranks

    is_of_the_run = isinstance(error, StorageError) and error.errno in _OF_THE_RUN
    if is_of_the_run:
        refused = error.__cause__  # the cause is the first exception of the run, if there is one
        error = (refused and refused.__context__) or error
    is_of_the_grid = ends_grid(error) and not is_of_the_run
    if is_stopped(error) or is_of_the_grid:
        raise error
    outcome = manager.outcome
    endings = (Status.KILLED, Status.PRUNED)
    if outcome is None or not (outcome.status.is_exception or outcome.status in endings):
        outcome = _failed(manager, error, run)
    if outcome.status is Status.PRUNED:
        return outcome
    if ranks.num_ranks() > 1:
        raise error
    return outcome


def _failed(manager: "Manager", error: BaseException, run: Run) -> Outcome:
    try:
        return manager.end_failed(error, run)
    except StorageError:
        raise
    except Exception:  # noqa: BLE001 - whatever the code of its class does
        name = type(error).__name__
        return manager.end_failed(RuntimeError(f"{name}, which cannot be written as text"), run)


def _forget_compiled() -> None:
    """Reset torch.compile(), so that the next run compiles in the same way as the first run.

    torch.compile() compiles a function for at most 8 shapes per process, then falls back to eager execution.
    """
    if "torch._dynamo" in sys.modules:  # do not import the module here, which takes seconds
        import torch

        torch.compiler.reset()

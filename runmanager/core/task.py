"""The task that executes one run of a grid in any process."""

import bdb
import errno
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.core import files, provenance
from runmanager.core.contracts import Listener, Report
from runmanager.core.experiment import Experiment
from runmanager.core.outcome import Outcome, Status
from runmanager.core.run import Run, copy_of, id_of
from runmanager.core.state import read_run
from runmanager.core.values import key_of
from runmanager.errors import LifecycleError, StorageError, ends_grid

if TYPE_CHECKING:
    from runmanager.core.grid_context import GridContext
    from runmanager.core.manager import Manager

Fingerprint = Mapping[str, Mapping[str, str]]
"""Kind (code, statements, values, hyperparameters, files, source, named, versions, data) -> name -> text."""

_SPARE = 16  # number of file descriptors reserved for the commit at the end of a run
_OF_THE_RUN = (errno.EMFILE, errno.EFBIG)
"""Error numbers of writes that fail because a run has opened too many files, or limited the size of files."""


def arguments_of(train: Callable[..., object], run: Run) -> dict[str, Any]:
    """Return the run's values of further parameters that are hyperparameters, or have some, as `opt`."""
    try:
        further = list(inspect.signature(train).parameters.values())[2:]
    except (TypeError, ValueError):  # a builtin has no signature
        return {}
    fields = {field.partition(".")[0] for field in run._fields}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [parameter.name for parameter in further if parameter.kind in kinds]
    return {name: getattr(run, name) for name in names if name in fields}


@dataclass(frozen=True)
class RunTask:
    """Executes one run in the calling process, by the options of `run_grid`; workers receive a pickled copy."""

    train: Callable[..., object]
    manager_of: "Callable[[Experiment, GridContext], Manager]"  # -> the manager for `train`
    experiment: Experiment
    context: "GridContext"  # the settings of all runs
    users: Sequence[Listener] = ()  # the user's listeners in the process of the run
    # appends what a run prints to a file of its folder, unless a debugger needs the terminal
    kept_output: "Callable[[Path], AbstractContextManager[None]] | None" = None
    raises: bool = False  # whether to raise the exception of `train` after recording it, for a debugger
    process: int = field(default_factory=os.getpid)  # the process with the user's keyboard

    def __call__(self, run: Run, report: Report) -> Outcome:
        """Execute a run; commit and return its outcome."""
        from runmanager.core.listeners import UserListeners
        from runmanager.devices import ranks
        from runmanager.devices.torch_devices import as_before, as_many_threads, process_state

        __tracebackhide__ = True  # IPython and pytest leave this frame out of tracebacks
        listeners = [*self.context.listeners]
        if self.users and ranks.is_main():
            listeners.append(UserListeners(self.users, copy_of(run), self.context.rule))
        of_grid = self.context.fingerprint
        parts = of_grid.get("hyperparameters", {})
        keys = map(key_of, run if parts else ())  # the hyperparameters of other runs do not count
        fingerprint = {**of_grid, "hyperparameters": {key: parts[key] for key in keys if key in parts}}
        folder, num_threads = ranks.from_main(lambda: self._open(run))
        context = replace(
            self.context, run=run, folder=folder, report=report, listeners=listeners, fingerprint=fingerprint
        )
        manager = self.manager_of(self.experiment, context)
        threads = as_many_threads(num_threads) if num_threads else nullcontext()
        output = self.kept_output(folder) if self.kept_output and ranks.is_main() else nullcontext()
        process, before = os.getpid(), process_state()
        provenance.loaded_now = {}  # the files that `train` loads
        try:
            with threads, output:  # the threads before train() computes its first sum
                copy = copy_of(run)  # `train` may modify its values
                with _reserving():
                    self.train(copy, manager, **arguments_of(self.train, copy))
                if manager._is_open:
                    with as_before(before):
                        manager.end_run()
                if manager.outcome is None:
                    raise LifecycleError(  # noqa: TRY301 - recorded like an exception of train()
                        "train() began no run: write `with manager.run(run, network, loader):` in it"
                    )
                return manager.outcome
        except BaseException as error:  # an exception of a run becomes an outcome
            if os.getpid() != process:  # a process forked by the run must record nothing
                os._exit(1)
            try:
                with as_before(before):
                    outcome = self._outcome_of(error, run, manager)
            except BaseException as left:
                if isinstance(left, KeyboardInterrupt) or ends_grid(left):
                    manager._end_interrupted()
                raise
            if self.raises:
                raise
            return outcome
        finally:
            provenance.loaded_now = None
            dynamo = sys.modules.get("torch._dynamo.convert_frame")  # its import takes seconds
            # the number of compiled frames; with none, the reset would import cudagraphs, which takes a second
            if getattr(dynamo, "FRAME_COUNTER", dynamo):
                import torch

                # torch.compile() compiles a function for at most 8 shapes per process, then falls back to eager
                torch.compiler.reset()

    def _open(self, run: Run) -> tuple[Path, int | None]:
        """Return the folder of a run, and the number of threads of a resumed run, None for a new run."""
        folder = self.experiment.open(run)
        checkpoints = (files.CHECKPOINT, files.PREVIOUS_CHECKPOINT, files.INSIDE_CHECKPOINT)
        num_threads = None
        if any((folder.path / name).exists() for name in checkpoints):
            earlier = read_run(folder)
            num_threads = None if self.context.starts_over(earlier) else earlier.threads
        return folder.path, num_threads

    def _outcome_of(self, error: BaseException, run: Run, manager: "Manager") -> Outcome:
        """Commit the outcome of a run that raised an exception; raise an exception that ends the grid."""
        from runmanager.devices import ranks

        if isinstance(error, bdb.BdbQuit):
            if os.getpid() == self.process:  # a user who quits the debugger stops the grid
                manager._end_interrupted()
                if self.raises:
                    raise error
                raise KeyboardInterrupt from error
            number = self.experiment.runs[id_of(run)].number
            step = f"only={number} executes this run alone, in the process that starts the grid"
            advice = LifecycleError(f"a debugger has no keyboard in a worker process: {step}")
            advice.__cause__ = error
            error = advice.with_traceback(error.__traceback__)
        is_of_the_run = isinstance(error, StorageError) and error.errno in _OF_THE_RUN
        if isinstance(error, StorageError) and error.errno == errno.ENOENT and self.experiment.path.is_dir():
            error = LifecycleError("the folder of the run was removed while it trained")
        if is_of_the_run:
            refused = error.__cause__  # the cause is the first exception of the run, if there is one
            error = (refused and refused.__context__) or error
        # if the signal is ignored, as after nohup, the user's code has raised KeyboardInterrupt
        is_own = type(error) is KeyboardInterrupt and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        is_stopped = isinstance(error, KeyboardInterrupt) and not is_own
        if is_stopped or (ends_grid(error) and not is_of_the_run):
            raise error
        outcome = manager.outcome
        is_ended = getattr(error, "is_unfit", False) or (
            outcome and (outcome.status.is_exception or outcome.status in (Status.KILLED, Status.PRUNED))
        )
        if outcome is None or not is_ended:
            outcome = _failed(manager, error, run)
        if outcome.status is not Status.PRUNED and ranks.num_ranks() > 1:
            raise error
        return outcome


@contextmanager
def _reserving() -> Iterator[None]:
    """Reserve file descriptors for the end of the run, which follows the block."""
    spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE)]
    try:
        yield
    finally:
        for descriptor in spare:
            with suppress(OSError):  # the error if the block has closed the descriptor already
                os.close(descriptor)


def _failed(manager: "Manager", error: BaseException, run: Run) -> Outcome:
    try:
        return manager._end_failed(error, run)
    except StorageError:
        raise
    except Exception:  # noqa: BLE001 - whatever the code of its class does
        name = type(error).__name__
        return manager._end_failed(RuntimeError(f"{name}, which cannot be written as text"), run)

"""The end of runs that are still open when the program exits, in a loop without a `with` block."""

import atexit
import os
import sys
import warnings
import weakref
from contextlib import suppress
from typing import NamedTuple

from runmanager.core import files
from runmanager.core.experiment import RunFolder
from runmanager.core.manager import LEFT_OPEN, Manager
from runmanager.core.state import end_if_running, read_experiment, read_run
from runmanager.core.wording import counted
from runmanager.devices import ranks
from runmanager.errors import RunsWarning, StorageError
from runmanager.tables.results_files import write_results
from runmanager.user_code import caller


class _Watched(NamedTuple):
    """An open run.

    Its manager is a weak reference, so that its network may be garbage-collected before the exit.
    """

    manager: "weakref.ref[Manager]"
    folder: RunFolder
    attempt: int
    begun_at: tuple[str, int]  # file and line at which the run began
    process: int
    is_first: bool  # whether no uncaught exception came before; a failed test leaves one


_watched: list[_Watched] = []  # a single list for all managers, as the program exits only once


def watch(manager: Manager) -> None:
    """Make the program end the open run of a manager at its exit, unless `forget` is called before."""
    run = manager._open_run("begin_run()")
    if not _watched:
        atexit.unregister(_end_open_runs)
        atexit.register(_end_open_runs)  # the handler is registered last, so that it is called first
    is_first = _uncaught() is None
    _watched.append(_Watched(weakref.ref(manager), run.folder, run.attempt, caller(), os.getpid(), is_first))


def forget(manager: Manager) -> None:
    """Stop watching the ended run of a manager."""
    _watched[:] = [watched for watched in _watched if watched.manager() is not manager]


def _end_open_runs() -> None:
    problems: list[tuple[str, str, int]] = []
    runs = _watched.copy()
    _watched.clear()
    ipython = sys.modules.get("IPython")
    # at a prompt, an exception ends a line or a cell, not the program
    is_prompt = hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)
    for manager_of, folder, attempt, begun_at, process, is_first in runs:
        manager, experiment = manager_of(), folder.path.parent
        has_ended = manager is not None and not manager._is_open  # the disk was full
        is_ours = process == os.getpid() and ranks.is_main()
        if has_ended or not is_ours or not folder.path.exists():  # a temporary folder may be removed
            continue
        error = _uncaught() if is_first and not is_prompt else None
        with suppress(StorageError):
            if manager and error:
                manager._end_by(error, manager.run_params)
                continue
            if manager:
                manager._end_left_open()
            else:  # it was garbage-collected
                end_if_running(folder, attempt, LEFT_OPEN)
                write_results(read_experiment(experiment), experiment)
            state = read_run(folder)
            problem = (
                f"run {folder.number} was not ended: it is recorded as {state.status}, with "
                f"{counted(len(state.epochs), 'epoch')} in {files.for_people(experiment / files.RESULTS_CSV)}; "
                "call end_run() after its last epoch"
            )
            problems.append((problem, *begun_at))
    for message, file, line in problems:  # warn last, as a filter may turn warnings into exceptions
        warnings.warn_explicit(message, RunsWarning, file, line)


def _uncaught() -> BaseException | None:
    """Return the uncaught exception that ends the program, None without one."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)

"""How runs end that are open when the program ends: in a loop without `with`, nothing else ends them."""

import atexit
import os
import sys
import warnings
import weakref
from contextlib import suppress
from dataclasses import dataclass

from runmanager.devices import ranks
from runmanager.errors import RunsWarning, StorageError
from runmanager.hyperparameters import counted
from runmanager.outcome import Outcome, Status
from runmanager.storage import paths
from runmanager.storage.folders import RunFolder
from runmanager.storage.run_state import end_if_running, read_run
from runmanager.storage.user_code import caller
from runmanager.training.hooks import LEFT_OPEN, Hooks


@dataclass(frozen=True)
class _Watched:
    """A run that is open. Its hooks, and so its network, may be gone before the program ends."""

    hooks: "weakref.ref[Hooks]"
    folder: RunFolder
    attempt: int
    begun_at: tuple[str, int]  # file and line
    process: int
    is_first: bool  # whether an uncaught exception would be the first; a failed test has one too


_watched: list[_Watched] = []  # the program ends once, for the runs of all managers


def watch(hooks: "Hooks", folder: RunFolder, attempt: int) -> None:
    """End this run when the program ends, unless `forget` is called before."""
    if not _watched:
        atexit.unregister(_end_open_runs)
        atexit.register(_end_open_runs)  # again: what was registered last is called first
    is_first = _uncaught() is None
    _watched.append(_Watched(weakref.ref(hooks), folder, attempt, caller(), os.getpid(), is_first))


def forget(hooks: "Hooks") -> None:
    """Do nothing when the program ends: there is no open run."""
    _watched[:] = [watched for watched in _watched if watched.hooks() is not hooks]


def _end_open_runs() -> None:
    problems: list[tuple[str, str, int]] = []
    runs = _watched.copy()
    _watched.clear()
    for watched in runs:
        is_ours = watched.process == os.getpid() and ranks.is_main()
        if not is_ours or not watched.folder.path.exists():  # a temporary one may be gone
            continue
        error = _uncaught() if watched.is_first and not _is_prompt() else None
        with suppress(StorageError):
            hooks = watched.hooks()
            outcome = hooks.end_at_exit(error) if hooks else _end_without(watched)
            if hooks is None or error is None:
                problems.append((_problem(watched, outcome), *watched.begun_at))
    if isinstance(_uncaught(), KeyboardInterrupt):
        # Python forgets it when it executes text, as the import of pandas does, and would exit with 1
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 - text, as that is what counts
    for message, file, line in problems:  # last: a filter may make exceptions of them
        warnings.warn_explicit(message, RunsWarning, file, line)


def _end_without(watched: _Watched) -> Outcome:
    """End a run whose manager is gone."""
    from runmanager.tables.files import write_results  # pandas
    from runmanager.tables.loading import load_results

    end_if_running(watched.folder, watched.attempt, LEFT_OPEN)
    experiment = watched.folder.path.parent
    write_results(load_results(experiment), experiment)
    return Outcome(Status.INTERRUPTED, LEFT_OPEN, len(read_run(watched.folder).epochs))


def _problem(watched: _Watched, outcome: Outcome) -> str:
    results = paths.for_people(watched.folder.path.parent / paths.RESULTS_CSV)
    return (
        f"run {watched.folder.number} was not ended: it is recorded as {outcome.status}, with "
        f"{counted(outcome.epochs, 'epoch')} in {results}; call end_run() after its last epoch"
    )


def _uncaught() -> BaseException | None:
    """Return the exception that ends the program, None if none does."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _is_prompt() -> bool:
    """Whether exceptions end a line or a notebook's cell, and not the program."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)

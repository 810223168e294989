"""Load what runs have left behind, as tables."""

import contextlib
import gc
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runmanager.errors import RunsWarning
from runmanager.storage import paths
from runmanager.storage.folders import experiments, is_experiment, read_runs
from runmanager.storage.run_state import RunResult, read_experiment, read_run

if TYPE_CHECKING:
    import pandas as pd

    from runmanager.results.tables import Epochs

_NAMED = 5  # damaged files in a warning


def load_results(path: str | os.PathLike[str] = "runs") -> "pd.DataFrame":
    """Load one row per finished epoch of every run.

    Columns: `run, epoch, loss, accuracy, epoch duration, run duration` (durations in seconds), the
    hyperparameters in axis order, then further metrics; `experiment` in front if there are several,
    and at the end `jobs` if runs shared the machine: how many of its grid, at most.
    Hyperparameters have the types they went in with. Files that are damaged are named in one `RunsWarning`.

    Args:
        path: The root of all experiments, an experiment's folder, or a run's folder.

    Raises:
        FileNotFoundError: There is no such path.
    """
    from runmanager.results import tables

    damaged: list[str] = []
    with _without_collection():
        found = [
            (e.name, tables.epochs_table(_epochs(e, Path(path), damaged))) for e in _experiments(Path(path))
        ]
        table = tables.join(found or [("", tables.epochs_table(tables.by_column([])))], last=("jobs",))
    warn_of(damaged, path)
    return table


def load_runs(path: str | os.PathLike[str] = "runs") -> "pd.DataFrame":
    """Load one row per run, those that were not executed included.

    Columns: `run, status, epochs`, the last value of every metric, the best ones (`best accuracy`),
    `epoch duration` (median, s), `run duration` (s), the hyperparameters, `jobs` (how many runs of the grid
    shared the machine, at most; only if some did), `peak memory` (of its tensors on an accelerator, MiB; only
    if some had one), `parameters` (of the network), `attempts`, `mixed` (whether code, data or versions changed
    in between), `error`; `experiment` in front if there are several. How runs stand, and their experiments, are
    categories. `best` sorts the table, and `show` shows the best of it.

    Args:
        path: As for `load_results`.

    Raises:
        FileNotFoundError: There is no such path.
    """
    from runmanager.results import tables

    damaged: list[str] = []
    with _without_collection():
        found = [(name, tables.runs_table(runs)) for name, runs in _by_experiment(Path(path), damaged)]
        last = ("jobs", "peak memory", "parameters", "attempts", "mixed", "error")
        table = tables.join(found or [("", tables.runs_table([]))], last)
    warn_of(damaged, path)
    return table


def read_results(
    path: str | os.PathLike[str], damaged: list[str] | None = None
) -> list[tuple[str, list[RunResult]]]:
    """Read the runs of each experiment under a path, those that were not executed included.

    Args:
        path: As for `load_results`.
        damaged: Whatever cannot be read goes here; without, it is named in a `RunsWarning`.

    Raises:
        FileNotFoundError: There is no such path.
    """
    problems: list[str] = []
    with _without_collection():
        found = list(_by_experiment(Path(path), problems))
    if damaged is None:
        warn_of(problems, path)
    else:
        damaged += problems
    return found


def _by_experiment(path: Path, damaged: list[str]) -> Iterator[tuple[str, list[RunResult]]]:
    for experiment in _experiments(path):
        yield experiment.name, _runs(experiment, path, damaged)


def _experiments(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(
            f"no results at {str(path)!r}: give the folder that RunManager or run_grid wrote, as 'runs'"
        )
    if not path.is_dir():
        raise NotADirectoryError(
            f"results are loaded from a folder, got the file {str(path)!r}: give its folder, "
            "or load the file with load_table()"
        )
    path = path.resolve()  # the experiment of the run folder '.' is not '.'
    return [path.parent] if _is_run(path) else experiments(path)


def _is_run(path: Path) -> bool:
    return (path / paths.RUN).is_file() or (
        paths.run_number(path.name) is not None and is_experiment(path.parent)
    )


def _runs(experiment: Path, path: Path, damaged: list[str]) -> list[RunResult]:
    """Read the runs of an experiment, or the one whose folder `path` is."""
    path = path.resolve()
    if path.parent != experiment or not _is_run(path):
        return read_experiment(experiment, damaged)
    return [read_run(folder, damaged) for folder in read_runs(experiment, damaged) if folder.path == path]


def _epochs(experiment: Path, path: Path, damaged: list[str]) -> "Epochs":
    """Read the epochs of an experiment or of one run, from the cache while it is true."""
    from runmanager.results import cache, tables

    if path.resolve() != experiment and path.resolve().parent == experiment:
        return tables.by_column(_runs(experiment, path, damaged))
    stored = cache.load(experiment)
    if stored:
        return stored
    before = cache.snapshot(experiment)
    problems: list[str] = []
    runs = _runs(experiment, path, problems)
    epochs = tables.by_column(runs)
    damaged += problems
    if before and not problems:
        journals = {path: version for run in runs for path, version in run.journals.items()}
        cache.store(experiment, epochs, journals, before)
    return epochs


def warn_of(damaged: list[str], path: str | os.PathLike[str]) -> None:
    """Name what could not be read in one warning, to whom called the caller."""
    if damaged:
        more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
        named = "; ".join(damaged[:_NAMED]) + more
        text = f"{len(damaged)} damaged under {os.fspath(path)}, the rest is complete: {named}"
        warnings.warn(text, RunsWarning, stacklevel=3)


_SWITCHING = threading.Lock()
_reading: dict[object, bool] = {}  # each block that is under way -> whether the collector was on before all


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Switch the garbage collector off: looking through a million new dicts takes as long as reading them."""
    block = object()
    try:
        with _SWITCHING:
            _reading[block] = next(iter(_reading.values()), gc.isenabled())
            gc.disable()
        yield
    finally:
        with _SWITCHING:
            if _reading.pop(block, False) and not _reading:
                gc.enable()

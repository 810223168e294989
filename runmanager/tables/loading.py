"""Load the results of runs as tables.

The journals are the truth. An experiment of many runs also keeps a cached copy of its numbers, as this copy
loads fast. The copy is used only if no journal has changed since. The copy consists of NumPy arrays and JSON,
without pickles, and may be deleted.
"""

import contextlib
import gc
import io
import itertools
import json
import os
import threading
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runmanager.calls import advised
from runmanager.errors import InvalidArgumentError, RunsWarning, StorageError, is_count
from runmanager.hyperparameters import decode, encode
from runmanager.outcome import LARGEST
from runmanager.storage import durable, paths
from runmanager.storage.durable import version
from runmanager.storage.folders import Experiment, experiments, is_experiment, read_runs
from runmanager.storage.run_state import RunResult, read_experiment, read_run
from runmanager.user_frames import user_level
from runmanager.wording import printable

if TYPE_CHECKING:
    import pandas as pd

    from runmanager.tables.columns import Epochs, Numbers

LAST = ("jobs", "threads", "peak memory", "stopped early", "continues at", "parameters", "attempts", "mixed",
        "folder", "error")  # fmt: skip
COPY_VERSION = 1
_WORTH_A_COPY = 200  # minimum number of runs for a copy
_MOST_NAMED = 5  # maximum number of damaged files in a warning

Version = tuple[int, int, int]
Snapshot = tuple[list[str], "Numbers"]
OnePath = str | os.PathLike[str]
Paths = OnePath | Sequence[OnePath]


@advised("write load_results('runs')")
def load_results(path: Paths = "runs") -> "pd.DataFrame":
    """Load one row per finished epoch of every run. One `RunsWarning` names damaged files.

    Args:
        path: The root of all experiments, an experiment's folder, a run's folder, or a list of such folders.
            Experiments of the same name in different roots get their paths as names.

    Returns:
        The columns `run, epoch, loss, accuracy, epoch duration, run duration` (s), the hyperparameters in axis
        order with their types, then further metrics. With several experiments, `experiment` comes first.

        If runs shared the machine, `jobs` comes last: the maximum number of concurrent runs of the grid. If a
        run used an accelerator, `cold start` marks the first epoch of each process. This epoch is slower, as
        libraries and kernels are loaded at their first use.

    Raises:
        InvalidArgumentError: The path does not exist.

    Example:
        >>> load_results("runs/circle").groupby("run")["accuracy"].max().to_dict()
        {1: 0.9352, 2: 0.9624, 3: 0.7388, 4: 0.9632}
    """
    from runmanager.tables import columns as tables

    damaged: list[str] = []
    with _without_collection():
        parts = [(name, _epochs_table(name, f, runs, damaged)) for name, f, runs in find_all(path)]
        table = tables.concat(
            parts or [("", tables.epochs_table(tables.by_column([])))], last=("jobs", tables.COLD)
        )
    warn_of(damaged, path)
    return table


@advised("write load_runs('runs')")
def load_runs(path: Paths = "runs") -> "pd.DataFrame":
    """Load one row per run; a run that was not executed has a row too.

    Args:
        path: As in `load_results`; ``compare(load_runs([a, b]), "experiment")`` compares two experiments.

    Returns:
        The columns `run, status, epochs`, the last value of every metric, the best value of losses and
        accuracies (`best accuracy`), `epoch duration` (median, s), `run duration` (s), and the hyperparameters
        in axis order. If a run keeps its best weights, `kept accuracy` is the goal at their epoch. If there are
        several experiments, `experiment` comes first.

        Further columns tell how a run was executed: `threads` (of torch), `parameters` (of the network),
        `attempts`, `mixed` (whether code, data, versions, threads or settings changed between epochs), `error`
        (of a completed run, the error of a later attempt that failed before its first epoch).
        Some columns exist only if a run has a value: `jobs` (the maximum number of the grid's runs that shared
        the machine), `peak memory` (of tensors on an accelerator, MiB), `stopped early` (why the loop ended
        early), `continues at` (the position inside an epoch at which the run resumes).

    Raises:
        InvalidArgumentError: The path does not exist.

    Example:
        >>> load_runs("runs/circle")[["run", "lr", "width", "accuracy"]].values.tolist()[0]
        [1.0, 0.1, 8.0, 0.9352]
    """
    from runmanager.tables import columns as tables

    damaged: list[str] = []
    with _without_collection():
        parts = [(name, tables.runs_table(name, runs)) for name, runs in _read(path, damaged)]
        table = tables.concat(parts or [("", tables.runs_table("", []))], LAST)
    warn_of(damaged, path)
    return table


def read_results(path: Paths) -> tuple[list[tuple[str, list[RunResult]]], list[str]]:
    """Return the runs of each experiment under a path, even runs without a journal, and the damaged files.

    Raises:
        InvalidArgumentError: The path does not exist.
    """
    damaged: list[str] = []
    with _without_collection():
        return _read(path, damaged), damaged


def warn_of(damaged: Sequence[str], path: Paths) -> None:
    """Warn once about damaged files; the warning points at the caller's caller."""
    if damaged:
        more = f" and {len(damaged) - _MOST_NAMED} more" if len(damaged) > _MOST_NAMED else ""
        named = "; ".join(damaged[:_MOST_NAMED]) + more
        text = f"{len(damaged)} damaged under {_text(path)}, the rest is complete: {named}"
        warnings.warn(printable(text), RunsWarning, stacklevel=user_level())


def _text(path: Paths) -> str:
    return ", ".join(str(Path(one)) for one in ([path] if isinstance(path, str | os.PathLike) else path))


def _find(path: Path) -> tuple[list[Path], Path | None]:
    """Return the folders of the experiments under a path, and the run's folder if the path is a run."""
    if not path.exists():
        hint = paths.nearest(path) or "give the folder that RunManager or run_grid wrote, as 'runs'"
        raise InvalidArgumentError(f"no results at {str(path)!r}: {hint}")
    if not path.is_dir():
        raise InvalidArgumentError(
            f"results are loaded from a folder, got the file {str(path)!r}: give its folder, "
            "or load the file with load_table()"
        )
    path = path.resolve()  # the parent of the run folder '.' would be '.'
    is_run = paths.run_number(path.name) is not None and is_experiment(path.parent)
    if is_run or (path / paths.RUN).is_file():
        return [path.parent], path
    return experiments(path), None


def find_all(path: Paths) -> list[tuple[str, Path, list[Path] | None]]:
    """Return the experiments under paths: name, folder, and the folders of the selected runs (None: all)."""
    folders: dict[Path, list[Path] | None] = {}
    for one in [path] if isinstance(path, str | os.PathLike) else path:
        experiments, run = _find(Path(one))
        for folder in experiments:
            runs = folders.get(folder, [])
            folders[folder] = None if run is None or runs is None else [*runs, run]
    counts = Counter(folder.name for folder in folders)
    return [
        (name_of(folder.name if counts[folder.name] == 1 else str(paths.for_people(folder))), folder, runs)
        for folder, runs in folders.items()
    ]


def name_of(experiment: str) -> str:
    """Return the name of an experiment as valid UTF-8, which every table can hold."""
    return experiment.encode("utf-8", "backslashreplace").decode()


def _read(path: Paths, damaged: list[str]) -> list[tuple[str, list[RunResult]]]:
    return [(name, _read_runs(folder, runs, damaged)) for name, folder, runs in find_all(path)]


def _read_runs(experiment: Path, runs: Collection[Path] | None, damaged: list[str]) -> list[RunResult]:
    if runs is None:
        return read_experiment(experiment, damaged)
    return [read_run(folder, damaged) for folder in read_runs(experiment, damaged) if folder.path in runs]


def _epochs_table(
    name: str, experiment: Path, runs: Collection[Path] | None, damaged: list[str]
) -> "pd.DataFrame":
    from runmanager.tables import columns as tables

    table = tables.epochs_table(_read_epochs(experiment, runs, damaged))
    return tables.with_design(table, name, Experiment(experiment).design)


def _read_epochs(experiment: Path, runs: Collection[Path] | None, damaged: list[str]) -> "Epochs":
    """Read the epochs of an experiment, from its copy if the copy is up to date; or the epochs of some runs."""
    from runmanager.tables import columns as tables

    if runs is not None:
        return tables.by_column(_read_runs(experiment, runs, damaged))
    if copied := load_copy(experiment):
        return copied
    before = _snapshot(experiment)
    problems: list[str] = []
    results = read_experiment(experiment, problems)
    epochs = tables.by_column(results)
    damaged += problems
    if before and not problems:
        journals = {path: version for run in results for path, version in run.journals.items()}
        with contextlib.suppress(StorageError):  # the folder may be read-only
            _store_copy(experiment, epochs, journals, before)
    return epochs


_SWITCHING = threading.Lock()
_reading: dict[object, bool] = {}  # each active block -> whether the collector was on before the first block


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Switch the garbage collector off: scanning a million new dicts takes as long as reading these dicts."""
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


def load_copy(experiment: Path) -> "Epochs | None":
    """Load the copy of an experiment's numbers, None without a copy or if a journal has changed since."""
    from runmanager.tables.columns import Epochs

    try:
        if _copy(experiment).parent.is_symlink():
            return None
        with (
            durable.opened(_copy(experiment)) as (descriptor, _),
            os.fdopen(descriptor, "rb", closefd=False) as file,
            zipfile.ZipFile(file) as archive,
        ):
            stored = {member.filename: _array_of(archive, member) for member in archive.infolist()}
            document = json.loads(stored["document.npy"].tobytes())
            if document["v"] != COPY_VERSION or not _is_true(experiment, document, stored["versions.npy"]):
                return None
            params = {name: [decode(value) for value in values] for name, values in document["params"].items()}
            metrics = {name: stored[f"metric {number}.npy"] for number, name in enumerate(document["metrics"])}
            numbers, counts, jobs = (document[name] for name in ("numbers", "counts", "jobs"))
            epochs = Epochs(numbers, counts, params, jobs, stored["epochs.npy"], metrics, stored["cold.npy"])
            return epochs if _is_whole(epochs) else None
    except Exception:  # noqa: BLE001 - a damaged copy is ignored: the journals are complete
        return None


def _array_of(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> "Numbers":
    """Read an array of a copy; np.load would allocate the size that the file's header claims."""
    if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
        raise ValueError("it is compressed, as ours are not")
    content = io.BytesIO(archive.read(member))
    np.lib.format.read_magic(content)
    shape, _, kind = np.lib.format.read_array_header_1_0(content)
    return np.frombuffer(content.getbuffer()[content.tell() :], kind).reshape(shape)


def _is_whole(epochs: "Epochs") -> bool:
    """Whether the parts of a copy have consistent lengths and types."""
    runs = {len(epochs.numbers), len(epochs.counts), len(epochs.jobs), *map(len, epochs.params.values())}
    counts = itertools.chain(epochs.numbers, epochs.counts, epochs.jobs)
    columns = [
        (epochs.epochs, np.int64),
        *((values, np.float64) for values in epochs.metrics.values()),
    ]
    return (
        len(runs) == 1
        and all(is_count(count) and count <= LARGEST for count in counts)
        and all(v.dtype == kind and v.shape == (sum(epochs.counts),) for v, kind in columns)
        and epochs.cold.dtype == np.bool_
        and epochs.cold.shape in ((0,), (sum(epochs.counts),))
        and bool("".join(("names", *epochs.params, *epochs.metrics)).encode())
    )


def _store_copy(experiment: Path, epochs: "Epochs", journals: Mapping[str, Version], before: Snapshot) -> None:
    """Store a copy, with the versions of folders and journals from before the journals were read."""
    folders, versions = before
    document = {
        "v": COPY_VERSION,
        "folders": folders,
        "journals": [path[len(os.fspath(experiment)) + 1 :] for path in journals],
        "numbers": epochs.numbers,
        "counts": epochs.counts,
        "jobs": epochs.jobs,
        "params": {name: [encode(value) for value in values] for name, values in epochs.params.items()},
        "metrics": list(epochs.metrics),
    }
    arrays = {f"metric {number}": values for number, values in enumerate(epochs.metrics.values())}
    arrays["versions"] = np.concatenate([versions, _array(list(journals.values()))])
    content = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, document=content, epochs=epochs.epochs, cold=epochs.cold, **arrays)
    if _copy(experiment).parent.is_symlink():
        return  # write no copy, as a link may lead out of the experiment
    durable.make_folder(_copy(experiment).parent)
    durable.write_file(_copy(experiment), file.getvalue())


def _snapshot(experiment: Path) -> Snapshot | None:
    """Return the names of an experiment's run folders, and the versions of grid.json and of these folders.

    A run's folder changes its version when a journal is created in it. None means that there are too few runs
    for a copy.
    """
    root = os.fspath(experiment)
    names = _run_folders(root)
    return (names, _versions(root, [paths.GRID, *names])) if len(names) >= _WORTH_A_COPY else None


def _is_true(experiment: Path, document: Mapping[str, list[str]], versions: "Numbers") -> bool:
    root = os.fspath(experiment)
    folders = document["folders"]
    names = [paths.GRID, *folders, *document["journals"]]
    return _run_folders(root) == folders and np.array_equal(_versions(root, names), versions)


def _run_folders(root: str) -> list[str]:
    """List the names that may be run folders: they begin with a digit."""
    return sorted(name for name in os.listdir(root) if name[:1].isdigit())  # noqa: PTH208 - no Path each


def _versions(root: str, names: list[str]) -> "Numbers":
    versions: list[Version] = []
    for name in names:
        try:
            versions.append(version(os.stat(f"{root}/{name}")))  # noqa: PTH116 - half the time of Path.stat
        except OSError:
            versions.append((0, 0, 0))
    return _array(versions)


def _array(versions: Sequence[Version]) -> "Numbers":
    return np.array(versions, dtype=np.int64).reshape(-1, 3)


def _copy(experiment: Path) -> Path:
    return experiment / paths.CACHE / "results.npz"

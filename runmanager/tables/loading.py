"""Load the results of runs as tables."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runmanager.core import files, provenance
from runmanager.core.experiment import RunFolder, read_runs
from runmanager.core.state import RunResult, read_run
from runmanager.core.wording import listed
from runmanager.errors import InvalidArgumentError, warn
from runmanager.tables.roots import experiments, is_experiment, nearest

if TYPE_CHECKING:
    import pandas as pd


_MOST_NAMED = 5  # maximum number of damaged files in a warning

OnePath = str | os.PathLike[str]
Paths = OnePath | Sequence[OnePath]


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
    from runmanager.tables.columns import results_table

    return _load(path, results_table)


def load_runs(path: Paths = "runs") -> "pd.DataFrame":
    """Load one row per run; a run that was not executed has a row too.

    Args:
        path: As in `load_results`; ``compare(load_runs([a, b]), "experiment")`` compares two experiments.

    Returns:
        The columns `run, status`, the hyperparameters in axis order, the goal, `epochs`, the last value of each
        metric, the best value of losses and accuracies (`best accuracy`), `epoch duration` (median, s), and
        `run duration` (s). If a run keeps its best weights, `kept accuracy` is the accuracy at their epoch. If
        there are several experiments, `experiment` comes first.

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
    from runmanager.tables.columns import runs_table

    return _load(path, runs_table)


def _load(path: Paths, build: Callable[[dict[str, list[RunResult]]], "pd.DataFrame"]) -> "pd.DataFrame":
    experiments, damaged = read_results(path)
    table = build(dict(experiments))
    warn_of(damaged, path)
    return table


def read_results(path: Paths) -> tuple[list[tuple[str, list[RunResult]]], list[str]]:
    """Return the runs of each experiment under a path, even runs without a journal, and the damaged files."""
    damaged: list[str] = []
    experiments: list[tuple[str, list[RunResult]]] = []
    by_root: dict[Path, list[str]] = {}
    for name, folder, runs, is_whole in find_all(path, damaged):
        results = [read_run(run, damaged) for run in runs]
        experiments.append((name, results))
        by_root.setdefault(folder.parent, []).append(folder.name)
        parts = {folder: results} if is_whole else {run.folder.path: [run] for run in results}
        for noted, of_part in parts.items():
            note_results(noted, texts_of(of_part))
    for root in by_root.keys() & {path.resolve() for path in _paths(path)}:
        note_results(root, sorted(by_root[root]))
    return experiments, damaged


def note_results(folder: Path, texts: Iterable[str]) -> None:
    """Record what was read from a folder, if a run is being executed: it depends on these texts."""
    if provenance.loaded_now is not None:
        files_of_run = provenance.loaded_now.get(folder, "").partition(" ")[2]
        provenance.loaded_now[folder] = f"{provenance.joined_digest([*texts])} {files_of_run}"


def results_digest(path: Path) -> str:
    """Return a digest of the results of a run or an experiment without durations, or of the names in a root."""
    if not path.is_dir():
        return ""
    folders, run = _find(path)
    if path not in (*folders, run):
        return provenance.joined_digest(sorted(folder.name for folder in folders))
    _, _, runs, _ = find_all(path, [])[0]
    return provenance.joined_digest([*texts_of(map(read_run, runs))])


def texts_of(runs: Iterable[RunResult]) -> Iterator[str]:
    """Yield a text with the results of each run, without durations."""
    for run in runs:
        rows = [{**record.metrics, "epoch duration": 0, "run duration": 0} for record in run.epochs]
        yield repr((run.folder.id, run.folder.number, run.status, rows, run.summary))


def warn_of(damaged: Sequence[str], path: Paths) -> None:
    """Warn once about damaged files; the warning points at the caller's caller."""
    if damaged:
        under = listed(map(str, _paths(path)))
        warn(f"{len(damaged)} damaged under {under}, the rest is complete: {listed(damaged, _MOST_NAMED)}")


def _paths(path: Paths) -> list[Path]:
    return [Path(path)] if isinstance(path, str | os.PathLike) else [*map(Path, path)]


def _find(path: Path) -> tuple[list[Path], Path | None]:
    """Return the folders of the experiments under a path, and the run's folder if the path is a run."""
    if not path.exists():
        hint = nearest(path) or "give the folder that RunManager or run_grid wrote, such as 'runs'"
        raise InvalidArgumentError(f"no results at {str(path)!r}: {hint}")
    if not path.is_dir():
        raise InvalidArgumentError(
            f"{str(path)!r} is a file: give its folder, or load the file with load_table()"
        )
    path = path.resolve()  # the parent of the run folder '.' would be '.'
    is_run = files.run_number(path.name) is not None and is_experiment(path.parent)
    if is_run or (path / files.RUN).is_file():
        return [path.parent], path
    return experiments(path), None


def find_all(path: Paths, damaged: list[str]) -> list[tuple[str, Path, list[RunFolder], bool]]:
    """Return the experiments under paths: name, folder, the selected runs, and whether these are all."""
    selected: dict[Path, list[Path]] = {}
    for each in _paths(path):
        folders, run = _find(each)
        for folder in folders:
            selected.setdefault(folder, []).append(run or folder)
    counts = Counter(folder.name for folder in selected)
    experiments = []
    for folder, paths in selected.items():
        name = folder.name if counts[folder.name] == 1 else str(files.for_people(folder))
        runs = [run for run in read_runs(folder, damaged) if folder in paths or run.path in paths]
        name = name.encode("utf-8", "backslashreplace").decode()  # every table can hold it
        experiments.append((name, folder, runs, folder in paths))
    return experiments

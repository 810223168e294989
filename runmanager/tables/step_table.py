"""Load the logged steps of runs as a table."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runmanager.core.experiment import RunFolder, read_runs
from runmanager.core.state import is_sparse
from runmanager.core.values import STEP
from runmanager.errors import InvalidArgumentError
from runmanager.tables.loading import find_all, warn_of
from runmanager.tables.one_run import find_run, path_of
from runmanager.tables.steps import Points, read_steps

if TYPE_CHECKING:
    import pandas as pd

    from runmanager.tables.columns import Numbers


def load_steps(runs: Any = "runs") -> "pd.DataFrame":
    """Load the values of `manager.log`: one row per step at which a run logged a value.

    The columns are `run, epoch, step`, and one column per logged name; a missing value is NaN. `step` counts
    from the run's first epoch. If there are several experiments, `experiment` comes first. Steps of an
    uncommitted epoch are included until that epoch is executed again. One `RunsWarning` names the damaged
    files.

    Args:
        runs: The root of all experiments, an experiment's folder, a run such as "runs/circle/8", or a list of
            such paths; or a table of `load_runs`, rows of such a table, for example ``best(runs).head(3)``, one
            row, or a `LoadedRun`.

    Returns:
        The table, in the order of runs and steps.

    Raises:
        InvalidArgumentError: The path does not exist.
        InvalidArgumentError: `runs` is neither a path nor rows of `load_runs`.

    Example:
        >>> from runmanager import RunManager
        >>> manager = RunManager("example", display=False)
        >>> with manager.run({"lr": 0.1}):
        ...     for epoch in manager.epochs(1):
        ...         for loss in (0.9, 0.8, 0.7, 0.6):
        ...             manager.track_loss(loss, 8)
        ...             manager.log(step_loss=loss, every=2)
        >>> load_steps("runs/example")
           run  epoch  step  step_loss
        0    1      1     2        0.8
        1    1      1     4        0.6
    """
    from runmanager.tables import columns as tables

    folders, damaged = _folders_of(runs), list[str]()
    parts = []
    for name, experiment, chosen in find_all(folders):
        present = read_runs(experiment, damaged)
        in_table = [run for run in present if chosen is None or run.path in chosen]
        parts.append((name, _table_of(in_table, damaged)))
    table = tables.concat(parts or [("", _table_of([], damaged))])
    warn_of(damaged, folders)
    return table


def _folders_of(runs: Any) -> list[Path]:
    """Return the folders that `runs` names."""
    if hasattr(runs, "columns"):
        if "folder" not in runs:
            raise InvalidArgumentError(["a table of runs has the column 'folder', as that of load_runs()"])
        return [Path(str(folder)) for folder in runs["folder"]]
    several = isinstance(runs, list) or (isinstance(runs, tuple) and not hasattr(runs, "folder"))
    return [_folder_of(path_of(run)) for run in (runs if several else [runs])]


def _folder_of(path: Path) -> Path:
    """Return the run's folder if the path ends in a run's number; return any other path unchanged."""
    if not path.exists() and path.name.isdecimal():
        with suppress(InvalidArgumentError):
            return find_run(path)[1].path
    return path


def _table_of(runs: Sequence[RunFolder], damaged: list[str]) -> "pd.DataFrame":
    """Concatenate the steps of the runs of one experiment."""
    import pandas as pd

    from runmanager.tables.columns import HYPERPARAMETERS

    parts: list[tuple[int, dict[str, Numbers]]] = []
    num_rows = num_values = 0
    names: dict[str, None] = {}
    for run in runs:
        points = read_steps(run, damaged)
        columns = _columns_of(points)
        with_more = {**names, **dict.fromkeys(points)}
        rows, values = len(columns[STEP]), sum(len(each.numbers) for each in points.values())
        if is_sparse(num_rows + rows, len(with_more), num_values + values):
            damaged.append(f"{run.path} (no table has room for the names of its steps)")
            continue
        num_rows, num_values, names = num_rows + rows, num_values + values, with_more
        parts.append((run.number, columns))

    def joined(name: str) -> "Numbers":
        return np.concatenate([
            columns[name] if name in columns else np.full(len(columns[STEP]), np.nan) for _, columns in parts
        ])  # fmt: skip

    counts = [len(columns[STEP]) for _, columns in parts]
    table = pd.DataFrame({
        "run": np.repeat(np.array([number for number, _ in parts], np.int64), np.array(counts, np.int64)),
        **{name: joined(name) if parts else np.array([], np.int64) for name in ("epoch", STEP, *names)},
    })  # fmt: skip
    table.attrs[HYPERPARAMETERS] = []
    return table


def _columns_of(points: Mapping[str, Points]) -> "dict[str, Numbers]":
    """Join the logged values of a run into columns, with one row per epoch and step."""
    each = list(points.values())
    if all(np.array_equal(other.steps, each[0].steps) and np.array_equal(other.epochs, each[0].epochs)
           for other in each[1:]):  # fmt: skip
        none = np.array([], np.int64)
        epochs, steps = (each[0].epochs, each[0].steps) if each else (none, none)
        return {"epoch": epochs, STEP: steps, **{name: one.numbers for name, one in points.items()}}
    epochs, steps = np.concatenate([one.epochs for one in each]), np.concatenate([one.steps for one in each])
    order = np.lexsort((steps, epochs))
    epochs, steps = epochs[order], steps[order]
    is_new = np.append([True], (np.diff(epochs) > 0) | (np.diff(steps) > 0))
    rows = np.empty(len(order), np.int64)
    rows[order] = np.cumsum(is_new) - 1
    columns = {"epoch": epochs[is_new], STEP: steps[is_new]}
    start = 0
    for name, one in points.items():
        columns[name] = np.full(len(columns[STEP]), np.nan)
        columns[name][rows[start : start + len(one.numbers)]] = one.numbers
        start += len(one.numbers)
    return columns

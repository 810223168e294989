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

    tables = [pd.DataFrame({name: np.array([], np.int64) for name in ("run", "epoch", STEP)})]
    num_rows = num_values = 0
    names: set[str] = set()
    for run in runs:
        points = read_steps(run, damaged)
        if not points:
            continue
        table = _joined(points)
        rows, values = len(table), sum(len(one.numbers) for one in points.values())
        if is_sparse(num_rows + rows, len(names | points.keys()), num_values + values):
            damaged.append(f"{run.path} (no table has room for the names of its steps)")
            continue
        num_rows, num_values, names = num_rows + rows, num_values + values, names | points.keys()
        table.insert(0, "run", run.number)
        tables.append(table)
    table = pd.concat(tables, ignore_index=True)
    table.attrs[HYPERPARAMETERS] = []
    return table


def _joined(points: Mapping[str, Points]) -> "pd.DataFrame":
    """Join the logged values of a run, with one row per epoch and step."""
    import pandas as pd

    first = next(iter(points.values()))
    if all(np.array_equal(one[:2], first[:2]) for one in points.values()):  # the usual case, without sorting
        numbers = {name: one.numbers for name, one in points.items()}
        return pd.DataFrame({"epoch": first.epochs, STEP: first.steps, **numbers})
    epochs = np.concatenate([one.epochs for one in points.values()])
    steps = np.concatenate([one.steps for one in points.values()])
    order = np.lexsort((steps, epochs))
    epochs, steps = epochs[order], steps[order]
    is_new = np.append([True], (np.diff(epochs) > 0) | (np.diff(steps) > 0))
    rows = np.empty(len(order), np.int64)
    rows[order] = np.cumsum(is_new) - 1
    columns = {"epoch": epochs[is_new], STEP: steps[is_new]}
    for name, one in points.items():
        of_name, rows = np.split(rows, [len(one.numbers)])
        columns[name] = np.full(is_new.sum(), np.nan)
        columns[name][of_name] = one.numbers
    return pd.DataFrame(columns)

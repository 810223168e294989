"""Load the logged steps of runs as a table: the blocks of core/step_log."""

from bisect import bisect
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec

from runmanager.core import files, journal
from runmanager.core.experiment import RunFolder
from runmanager.core.journal import Attempt
from runmanager.core.outcome import LARGEST
from runmanager.core.state import inside_of, is_sparse, read_attempts
from runmanager.core.values import COLUMNS, STEP
from runmanager.tables.loading import find_all, warn_of
from runmanager.tables.one_run import find_run, path_of
from runmanager.tables.where import check_columns

if TYPE_CHECKING:
    import pandas as pd

_Step = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
_Number = float | Literal["nan", "inf", "-inf"]


class _Line(TypedDict):
    type: Literal["steps"]
    epoch: _Step
    metrics: dict[str, tuple[list[_Step], list[_Number]]]


_LINES = msgspec.json.Decoder(_Line)

Block = tuple[str, list[int], list[_Number]]
"""Some values of one name in one epoch: the name, its steps in ascending order, and its values."""


def load_steps(runs: Any = "runs") -> "pd.DataFrame":
    """Load the values of `manager.log`: one row per step at which a run logged a value.

    The columns are `run, epoch, step`, the hyperparameters, and one column per logged name; a missing value is
    NaN. `step` counts from the run's first epoch. If there are several experiments, `experiment` comes first.
    Steps of an uncommitted epoch are included until that epoch is executed again. One `RunsWarning` names the
    damaged files.

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
           run  epoch  step   lr  step_loss
        0    1      1     2  0.1        0.8
        1    1      1     4  0.1        0.6
    """
    import pandas as pd

    from runmanager.tables.columns import epochs_table, of_folders

    folders, damaged = _folders_of(runs), list[str]()
    logged: dict[str, list[RunFolder]] = {}
    rows: list[tuple[Any, ...]] = []
    for title, _, selected, _ in find_all(folders, damaged):
        logged[title] = []
        for run in selected:
            epochs = read_steps(run, damaged)
            blocks = [(epoch, *block) for epoch in sorted(epochs) for block in epochs[epoch]]
            steps_of_run = {(epoch, step) for epoch, _, steps, _ in blocks for step in steps}
            num_values = sum(len(steps) for _, _, steps, _ in blocks)
            if is_sparse(len(steps_of_run), len({name for _, name, *_ in blocks}), num_values):
                damaged.append(f"{run.path} (no table has room for the names of its steps)")
            elif blocks:
                rows += [(sum(map(len, logged.values())), *block) for block in blocks]
                logged[title].append(run)
    points = pd.DataFrame(rows, columns=["run", "epoch", "name", STEP, "value"]).explode([STEP, "value"])
    points = points.astype({"run": "int64", "epoch": "int64", STEP: "int64", "value": "float64"})
    points = points.drop_duplicates(["run", "epoch", "name", STEP], keep="last")
    table = points.pivot(index=["run", "epoch", STEP], columns="name", values="value")  # noqa: PD010 - exact
    table = table[points["name"].unique()].reset_index()
    counts = table.pop("run").value_counts(sort=False)
    of_runs, params = of_folders(logged, [*chain(*logged.values())])
    table = epochs_table(counts, of_runs, params, table, ("epoch", STEP))
    warn_of(damaged, folders)
    return table


def _folders_of(runs: Any) -> list[Path]:
    """Return the folders that `runs` names."""
    if hasattr(runs, "columns"):
        check_columns(["folder"], runs)
        return [Path(str(folder)) for folder in runs["folder"]]
    several = isinstance(runs, list | tuple) and not hasattr(runs, "folder")  # a row may be a tuple
    paths = [path_of(run) for run in (runs if several else [runs])]
    return [find_run(path)[1].path if path.name.isdecimal() and not path.exists() else path for path in paths]


def read_steps(folder: RunFolder, damaged: list[str]) -> dict[int, list[Block]]:
    """Read the steps of a run: epoch -> blocks; append the paths of unreadable files to `damaged`."""
    if not any(folder.path.glob("attempt-*.steps.jsonl")):
        return {}
    attempts, that_count, _ = read_attempts(folder, [])
    starts = {attempt.number: attempt.start for attempt in attempts}
    counting = {attempt.number for attempt in that_count}
    kept: dict[int, list[Block]] = {}
    latest: dict[int, list[Block]] = {}  # of all attempts, even of those killed before the first commit
    for number in files.journals_by_attempt(folder.path):
        path, start = folder.path / f"attempt-{number}.steps.jsonl", starts.get(number, {})
        epochs: dict[int, list[Block]] = {}
        try:
            lines = journal.read_attempt(path, partial(_take, epochs))
            if lines.damaged:
                damaged.append(f"{path} ({lines.damage})")
        except FileNotFoundError:
            pass
        except OSError as error:
            damaged.append(f"{path} ({error.strerror})")
            continue
        if inside := inside_of(start):
            begun: list[Block] = []
            for name, steps, values in latest.get(inside.epoch, ()):
                if count := bisect(steps, inside.step):
                    begun.append((name, steps[:count], values[:count]))
            epochs[inside.epoch] = begun + epochs.get(inside.epoch, [])
        if number in counting:
            # the default is for a damaged first line
            after = start.get("after", min(epochs, default=LARGEST) - 1)
            restored = start.get("restored", after)  # the last epoch may be only in the checkpoint
            kept = {epoch: blocks for epoch, blocks in kept.items() if epoch <= after}
            kept |= {epoch: blocks for epoch, blocks in latest.items() if after < epoch <= restored}
            kept |= {epoch: kept.get(epoch, []) + blocks for epoch, blocks in epochs.items()}
        latest |= epochs
    return kept


def _take(epochs: dict[int, list[Block]], _: Attempt, line: bytes) -> None:
    """Add the blocks of a line."""
    content = _LINES.decode(line)
    blocks: list[Block] = []
    for name, (steps, values) in content["metrics"].items():
        if not name.isidentifier() or name in COLUMNS or name == STEP:
            raise ValueError("a value is called like a column")
        if len(steps) != len(values) or not steps:
            raise ValueError("not one value for each step")
        blocks.append((name, steps, values))
    epochs.setdefault(content["epoch"], []).extend(blocks)

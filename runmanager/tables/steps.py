"""Load the logged steps of runs as a table: the blocks of core/step_log."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from runmanager.core import files, journal
from runmanager.core.experiment import RunFolder
from runmanager.core.goal import KEPT, Goal
from runmanager.core.journal import Attempt
from runmanager.core.outcome import LARGEST
from runmanager.core.state import inside_of, is_sparse, read_attempts, read_run
from runmanager.core.values import COLUMNS, STEP, closest
from runmanager.errors import InvalidArgumentError
from runmanager.tables.loading import find_all, warn_of
from runmanager.tables.one_run import find_run, path_of
from runmanager.tables.run_numbers import tracked

if TYPE_CHECKING:
    import pandas as pd

_Step = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
_Number = float | Literal["nan", "inf", "-inf"]


class _Line(msgspec.Struct):
    type: Literal["steps"]
    epoch: _Step
    metrics: dict[str, tuple[list[_Step], list[_Number]]]


_LINES = msgspec.json.Decoder(_Line)

Block = tuple[str, npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Some values of one name in one epoch: the name, its steps in ascending order, and its values ``(N,)``."""
Part = tuple[int, npt.NDArray[np.int64], list[Block]]
"""An epoch, all its steps in ascending order, and its blocks."""


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

    from runmanager.tables import columns as tables

    folders, damaged = _folders_of(runs), list[str]()
    logged: dict[str, list[RunFolder]] = {}
    counts: list[int] = []  # the number of rows of each run
    parts: list[Part] = []
    names: dict[str, None] = {}
    num_values = 0
    for title, _, selected, _ in find_all(folders, damaged):
        logged[title] = []
        for run in selected:
            of_run = [
                (epoch, np.unique(np.concatenate([steps for _, steps, _ in blocks])), blocks)
                for epoch, blocks in sorted(read_steps(run, damaged).items())
            ]
            blocks = [block for *_, of_epoch in of_run for block in of_epoch]
            count = sum(len(steps) for _, steps, _ in of_run)
            all_values = num_values + sum(len(steps) for _, steps, _ in blocks)
            all_names = names | dict.fromkeys(name for name, *_ in blocks)
            if is_sparse(sum(counts) + count, len(all_names), all_values):
                damaged.append(f"{run.path} (no table has room for the names of its steps)")
            elif count:
                names, num_values = all_names, all_values
                logged[title].append(run)
                counts.append(count)
                parts += of_run
    of_runs, params = tables.of_folders(logged)
    of_steps = pd.DataFrame(_in_columns(parts, names))
    table = tables.epochs_table(counts, of_runs, params, of_steps, ("epoch", STEP))
    warn_of(damaged, folders)
    return table


def _in_columns(parts: Sequence[Part], names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Put the blocks of epochs into columns with one row per step; a missing value is NaN."""
    counts = [len(steps) for _, steps, _ in parts]
    columns: dict[str, npt.NDArray[Any]] = {
        "epoch": np.repeat(np.array([epoch for epoch, *_ in parts], np.int64), counts),
        STEP: np.concatenate([np.array([], np.int64), *(steps for _, steps, _ in parts)]),
        **{name: np.full(sum(counts), np.nan) for name in names},
    }
    first = 0
    for _, steps, blocks in parts:
        for name, steps_of_block, values in blocks:  # of duplicate steps the last counts
            columns[name][first + np.searchsorted(steps, steps_of_block)] = values
        first += len(steps)
    return columns


def _folders_of(runs: Any) -> list[Path]:
    """Return the folders that `runs` names."""
    if hasattr(runs, "columns"):
        if "folder" not in runs:
            raise InvalidArgumentError(["a table of runs has the column 'folder', as that of load_runs()"])
        return [Path(str(folder)) for folder in runs["folder"]]
    several = isinstance(runs, list) or (isinstance(runs, tuple) and not hasattr(runs, "folder"))
    folders = []
    for run in runs if several else [runs]:
        path = path_of(run)
        if path.name.isdecimal() and not path.exists():
            with suppress(InvalidArgumentError):
                path = find_run(path)[1].path
        folders.append(path)
    return folders


def read_steps(folder: RunFolder, damaged: list[str]) -> dict[int, list[Block]]:
    """Read the steps of a run: epoch -> blocks; append the paths of unreadable files to `damaged`.

    A resumed attempt supersedes all later steps. Steps of an uncommitted epoch are included until the epoch is
    executed again.
    """
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
        except FileNotFoundError:
            lines = Attempt()
        except OSError as error:
            damaged.append(f"{path} ({error.strerror})")
            continue
        if lines.damaged:
            damaged.append(f"{path} ({lines.damage})")
        if inside := inside_of(start):
            begun = [
                (name, steps[steps <= inside.step], values[steps <= inside.step])
                for name, steps, values in latest.get(inside.epoch, ())
                if steps[0] <= inside.step
            ]
            if begun:
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


def missing_goal(goals: Iterable[Goal], folder: RunFolder) -> str:
    """Return a sentence if a completed run lacks a goal, but logged it or has a similar metric; else ""."""
    run = read_run(folder)
    metrics = {*run.summary, *tracked([run])}
    names = sorted(name for name in metrics if not name.endswith("duration"))
    for goal in goals:
        if goal.metric.removeprefix("best ").removeprefix(KEPT) in names:  # columns of the table
            continue
        fact = f"the goal is {str(goal)!r}, but run {folder.number} has no such metric"
        if any(block[0] == goal.metric for block in chain(*read_steps(folder, []).values())):
            return f"{fact}: log() writes single steps, without a column; write track() in place of log()"
        if close := closest(goal.metric, names):
            return f"{fact}; did you mean {close!r}? Another goal= executes nothing again"
    return ""


def _take(epochs: dict[int, list[Block]], _: Attempt, line: bytes) -> None:
    """Add the blocks of a line."""
    content = _LINES.decode(line)
    blocks: list[Block] = []
    for name, (steps, values) in content.metrics.items():
        if not name.isidentifier() or name in COLUMNS or name == STEP:
            raise ValueError("a value is called like a column")
        if len(steps) != len(values) or not steps or not (np.diff(steps) > 0).all():
            raise ValueError("not one value for each step, in order")
        blocks.append((name, np.array(steps, np.int64), np.array(values, np.float64)))
    if blocks:
        epochs.setdefault(content.epoch, []).extend(blocks)

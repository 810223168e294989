"""Load the logged steps of runs as a table: the blocks of core/step_log."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from runmanager.core import files, journal
from runmanager.core.experiment import RunFolder, read_runs
from runmanager.core.goal import KEPT, Goal
from runmanager.core.journal import Attempt
from runmanager.core.outcome import LARGEST
from runmanager.core.state import inside_of, is_sparse, read_attempts, read_run
from runmanager.core.values import COLUMNS, STEP, closest
from runmanager.errors import InvalidArgumentError
from runmanager.tables.loading import find_all, warn_of
from runmanager.tables.one_run import find_run, path_of

if TYPE_CHECKING:
    import pandas as pd

_Step = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
_Number = float | Literal["nan", "inf", "-inf"]


class _Line(msgspec.Struct):
    type: Literal["steps"]
    epoch: _Step
    metrics: dict[str, tuple[list[_Step], list[_Number]]]


_LINES = msgspec.json.Decoder(_Line)


class Block(NamedTuple):
    """Some values of one name in one epoch, sorted by step: arrays ``(N,)``."""

    epoch: int
    name: str
    steps: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float64]


class Steps(NamedTuple):
    """The logged steps of a run, sorted by epoch and step; a missing value is NaN: arrays ``(N,)``."""

    epochs: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    by_name: dict[str, npt.NDArray[np.float64]]


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
    folders, damaged = _folders_of(runs), list[str]()
    num_rows = num_values = 0
    names: set[str] = set()
    experiments: dict[str, list[tuple[RunFolder, Steps]]] = {}
    for name, experiment, chosen in find_all(folders):
        experiments[name] = []
        for run in read_runs(experiment, damaged):
            if chosen is not None and run.path not in chosen:
                continue
            blocks = read_steps(run, damaged)
            steps = joined(blocks)
            rows, values = len(steps.steps), sum(len(block.steps) for block in blocks)
            names_with = names | steps.by_name.keys()
            if is_sparse(num_rows + rows, len(names_with), num_values + values):
                damaged.append(f"{run.path} (no table has room for the names of its steps)")
            elif rows:
                num_rows, num_values, names = num_rows + rows, num_values + values, names_with
                experiments[name].append((run, steps))
    table = _table(experiments)
    warn_of(damaged, folders)
    return table


def _table(experiments: Mapping[str, Sequence[tuple[RunFolder, Steps]]]) -> "pd.DataFrame":
    """Put the steps of runs into one table."""
    from runmanager.tables import columns as tables

    logged = [each for of_experiment in experiments.values() for each in of_experiment]
    runs, parts = [run for run, _ in logged], [steps for _, steps in logged]
    counts = [len(steps.steps) for steps in parts]
    no_numbers = np.array([], np.int64)
    of_steps: dict[str, npt.NDArray[Any]] = {
        "epoch": np.concatenate([no_numbers, *(steps.epochs for steps in parts)]),
        STEP: np.concatenate([no_numbers, *(steps.steps for steps in parts)]),
    }
    for name in dict.fromkeys(name for steps in parts for name in steps.by_name):
        missing = [np.full(count, np.nan) for count in counts]
        values = [steps.by_name.get(name, nans) for steps, nans in zip(parts, missing, strict=True)]
        of_steps[name] = np.concatenate(values)
    of_runs = {**tables.experiment_column(experiments), "run": np.array([run.number for run in runs], np.int64)}
    return tables.epochs_table(counts, of_runs, tables.params_of_folders(runs), of_steps, ("epoch", STEP))


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


def read_steps(folder: RunFolder, damaged: list[str]) -> list[Block]:
    """Read the steps of a run; append the paths of unreadable files to `damaged`.

    A resumed attempt supersedes all later steps. Steps of an uncommitted epoch are included until the epoch is
    executed again.
    """
    if not any(folder.path.glob("attempt-*.steps.jsonl")):
        return []
    attempts, that_count, _ = read_attempts(folder, [])
    starts = {attempt.number: attempt.start for attempt in attempts}
    counting = {attempt.number for attempt in that_count}
    kept: list[Block] = []
    latest: list[
        Block
    ] = []  # the latest values of all attempts, even of attempts killed before the first commit
    for number in files.journals_by_attempt(folder.path):
        path, start = folder.path / f"attempt-{number}.steps.jsonl", starts.get(number, {})
        blocks: list[Block] = []
        try:
            lines = journal.read_attempt(path, partial(_take, blocks))
        except FileNotFoundError:
            lines = Attempt()
        except OSError as error:
            damaged.append(f"{path} ({error.strerror})")
            continue
        if lines.damaged:
            damaged.append(f"{path} ({lines.damage})")
        if inside := inside_of(start):
            begun = [block for block in latest if block.epoch == inside.epoch]
            for epoch, name, steps, values in reversed(begun):
                is_before = steps <= inside.step
                blocks.insert(0, Block(epoch, name, steps[is_before], values[is_before]))
        epochs = {block.epoch for block in blocks}
        if number in counting:
            # the default is for a damaged first line
            after = start.get("after", min(epochs, default=LARGEST) - 1)
            restored = start.get("restored", after)  # the last epoch may be only in the checkpoint
            kept = [block for block in kept if block.epoch <= after]
            kept += [block for block in latest if after < block.epoch <= restored] + blocks
        latest = [block for block in latest if block.epoch not in epochs] + blocks
    return kept


def joined(blocks: Sequence[Block]) -> Steps:
    """Join the values of all names, with one row per epoch and step; of duplicate steps the last counts."""
    blocks = [block for block in blocks if len(block.steps)]
    if not blocks:
        return Steps(np.array([], np.int64), np.array([], np.int64), {})
    counts = [len(block.steps) for block in blocks]
    epochs = np.repeat([block.epoch for block in blocks], counts)
    steps = np.concatenate([block.steps for block in blocks])
    order = np.lexsort((steps, epochs))
    is_new = np.append([True], (np.diff(epochs[order]) > 0) | (np.diff(steps[order]) > 0))
    rows = np.empty(len(order), np.int64)
    rows[order] = np.cumsum(is_new) - 1
    values = {block.name: np.full(is_new.sum(), np.nan) for block in blocks}
    for block, of_block in zip(blocks, np.split(rows, np.cumsum(counts)[:-1]), strict=True):
        values[block.name][of_block] = block.numbers
    return Steps(epochs[order][is_new], steps[order][is_new], values)


def missing_goal(goals: Iterable[Goal], folder: RunFolder) -> str:
    """Return a sentence if a completed run lacks a goal, but logged it or has a similar metric; else ""."""
    run = read_run(folder)
    metrics = {*run.summary, *(name for record in run.epochs for name in record.metrics)}
    names = sorted(name for name in metrics if not name.endswith("duration"))
    for goal in goals:
        if goal.metric.removeprefix("best ").removeprefix(KEPT) in names:  # columns of the table
            continue
        fact = f"the goal is {str(goal)!r}, but run {folder.number} has no such metric"
        if any(block.name == goal.metric for block in read_steps(folder, [])):
            return f"{fact}: log() writes single steps, without a column; write track() in place of log()"
        if close := closest(goal.metric, names):
            return f"{fact}; did you mean {close!r}? Another goal= executes nothing again"
    return ""


def _take(blocks: list[Block], _: Attempt, line: bytes) -> None:
    """Add the block of a line."""
    content = _LINES.decode(line)
    of_line: list[Block] = []
    for name, (steps, values) in content.metrics.items():
        if not name.isidentifier() or name in COLUMNS or name == STEP:
            raise ValueError("a value is called like a column")
        if len(steps) != len(values) or not steps or not (np.diff(steps) > 0).all():
            raise ValueError("not one value for each step, in order")
        of_line.append(Block(content.epoch, name, np.array(steps, np.int64), np.array(values, np.float64)))
    blocks += of_line

"""One run, read back: its parameters, its epochs, how it ended and its weights."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runmanager.errors import InvalidArgumentError, NoRunsError
from runmanager.hyperparameters import counted
from runmanager.results.loading import load_results, warn_of
from runmanager.storage import artifacts, paths
from runmanager.storage.folders import RunFolder, is_experiment, read_runs
from runmanager.storage.run_state import RunResult, read_run
from runmanager.wording import listed

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """A run under the root, as its files record it.

    Attributes:
        number: As the column `run` has it.
        params: Hyperparameter -> value.
        status: How it ended, as the column `status` has it.
        epochs: How many epochs are committed.
        summary: The results of the whole run, by column.
        error: Why it failed, in one line, "" if it did not.
        folder: Where its files are.

    Example:
        >>> run = load_run("runs/circle/4")
        >>> run.params["lr"], run.status, run.results["accuracy"].tail(1).tolist()
        (0.01, 'completed', [0.9632])
        >>> run.artifacts
        {}
    """

    number: int
    params: Mapping[str, Any]
    status: str
    epochs: int
    summary: Mapping[str, float]
    error: str
    folder: Path

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return f"<run {self.number} ({settings}): {self.status}, {counted(self.epochs, 'epoch')}>"

    @property
    def results(self) -> "pd.DataFrame":
        """One row per epoch, as `load_results` gives it."""
        return load_results(self.folder)

    @property
    def artifacts(self) -> dict[str, Path]:
        """The files and folders that `manager.artifact` has kept: name -> path."""
        return {name: self.folder / paths.ARTIFACTS / name for name in artifacts.names(self.folder)}

    def load_weights(self, network: "nn.Module") -> None:
        """Load the weights that ``epochs(keep=...)`` has kept into a network; no code in the file is executed.

        Args:
            network: A network like the one that was trained; its weights are replaced.

        Raises:
            CheckpointError: The run has kept none, or they do not fit.

        Example:
            >>> from torch import nn
            >>> from runmanager import RunManager
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, nn.Linear(4, 3)):
            ...     for epoch in manager.epochs(1, keep="last"):
            ...         manager.track_loss(0.5, 8)
            >>> load_run("runs/example/1").load_weights(nn.Linear(4, 3))
        """
        from runmanager.storage import checkpoints, loaded_weights

        loaded_weights.note_weights(self.folder)
        checkpoints.load_weights(self.folder, network)


def load_run(run: Any) -> LoadedRun:
    """Load one run.

    Args:
        run: Its number behind its experiment's folder, as "runs/circle/8", its own folder, or a row of
            `load_runs`: ``load_run(best(runs).iloc[0])``.

    Returns:
        The run, without its weights.

    Raises:
        NoRunsError: There is no such run; the message says which there are.
        InvalidArgumentError: It is neither a path nor such a row.

    Example:
        >>> from runmanager import best, load_runs
        >>> load_run("runs/circle/4")
        <run 4 (lr=0.01, width=64, device='cpu'): completed, 5 epochs>
        >>> load_run(best(load_runs("runs/circle")).iloc[0]).number
        4
    """
    damaged: list[str] = []
    path = path_of(run)
    result = _find(path, damaged)
    warn_of(damaged, path)
    return LoadedRun(
        result.folder.number, result.folder.params, str(result.status), len(result.epochs), result.summary,
        result.error, paths.for_people(result.folder.path),
    )  # fmt: skip


def path_of(run: Any) -> Path:
    """Return the path of what is a path, or a row of `load_runs`.

    Raises:
        InvalidArgumentError: It is neither.
    """
    if isinstance(run, str | os.PathLike):
        return Path(run)
    folder = getattr(run, "folder", None)  # of a Series, a named tuple or a LoadedRun
    if folder is None and hasattr(run, "get"):
        folder = run.get("folder")
    if isinstance(folder, str | os.PathLike):
        return Path(folder)
    numbers = run.get("runs") if hasattr(run, "get") else None
    if isinstance(numbers, tuple):  # a setting of `best`
        which = f"this setting has {counted(len(numbers), 'run')}, {listed(numbers)}"
        raise InvalidArgumentError([f"{which}: load one of them, as load_run({numbers[0]!r})"])
    rule = "a run is a path as 'runs/circle/8', or a row of load_runs()"
    raise InvalidArgumentError([f"{rule}, got {run!r:.200}"])


def _find(path: Path, damaged: list[str]) -> RunResult:
    searched = search(path, damaged)
    if searched.run is not None:
        return read_run(searched.run, damaged)
    if searched.experiment is not None:
        raise NoRunsError(f"{path.parent} has no run {path.name!r}; {searched.numbers}")
    if is_experiment(paths.absolute(path)):
        raise NoRunsError(f"{path} is an experiment: name a run, as {str(path / '1')!r}")
    raise NoRunsError(f"{path} is no run: name its experiment and its number, as 'runs/circle/8'")


class Searched(NamedTuple):
    """What there is where a run was searched for."""

    experiment: Path | None  # None if the folder above the run is none
    runs: Sequence[RunFolder]  # of the experiment
    run: RunFolder | None  # None if there is no such run
    is_numbered: bool  # whether the path names the run by its number

    @property
    def numbers(self) -> str:
        """Which runs the experiment has."""
        return f"its runs are {self.runs[0].number} to {self.runs[-1].number}" if self.runs else "it has none"


def search(path: Path, damaged: list[str] | None = None) -> Searched:
    """Search for a run by its folder, which is not followed if it is a link, or by its number."""
    path = paths.absolute(path)
    experiment = path.parent.resolve()
    number = int(path.name) if path.name.isdecimal() and not path.exists() else None
    if not experiment.is_dir() or not is_experiment(experiment):
        return Searched(None, [], None, number is not None)
    runs = read_runs(experiment, damaged)
    run = next((run for run in runs if run.number == number or run.path.name == path.name), None)
    return Searched(experiment, runs, run, number is not None)

"""Load one run: its parameters, epochs, status and weights."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.core import files
from runmanager.core.experiment import RunFolder, read_runs
from runmanager.core.provenance import note_run
from runmanager.core.state import read_run
from runmanager.core.wording import counted, listed
from runmanager.errors import CheckpointError, InvalidArgumentError
from runmanager.tables.loading import load_results, note_results, texts_of, warn_of
from runmanager.tables.roots import absolute_path, is_experiment, nearest, no_experiment

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """A run under the root, as recorded in its files.

    Attributes:
        number: The run's number, as in the column `run`.
        params: Hyperparameter -> value.
        status: The run's status, as in the column `status`.
        epochs: The number of committed epochs.
        summary: Column -> a result of the whole run.
        error: The reason why the run failed, in one line; "" if it did not fail.
        folder: The run's folder.

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
        """The table of `load_results` for this run, one row per epoch."""
        return load_results(self.folder)

    @property
    def artifacts(self) -> Mapping[str, Path]:
        """The artifacts of `manager.artifact`: name -> path of a file or folder."""
        top = self.folder / files.ARTIFACTS
        paths = [] if top.is_symlink() else [path for path in top.rglob("*") if not path.is_symlink()]
        if paths:
            note_run(self.folder)  # if another run reads them, that run depends on this one
        return {path.relative_to(top).as_posix(): path for path in sorted(paths)}

    def load_weights(self, network: "nn.Module") -> None:
        """Load the weights of ``epochs(keep=...)`` into a network; no code in the file is executed.

        Args:
            network: A network like the trained network; its weights are replaced.

        Raises:
            CheckpointError: The run has saved no weights, or its weights do not fit the network.

        Example:
            >>> from torch import nn
            >>> from runmanager import RunManager
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, nn.Linear(4, 3)):
            ...     for epoch in manager.epochs(1, keep="last"):
            ...         manager.track_loss(0.5, 8)
            >>> load_run("runs/example/1").load_weights(nn.Linear(4, 3))
        """
        from runmanager.core import checkpoint

        note_run(self.folder)
        if not self.epochs and not (self.folder / files.WEIGHTS).exists():
            error = f" ({self.error})" if self.error else ""
            raise CheckpointError(
                f"{self.folder} has kept no weights: it is {self.status}, without an epoch{error}"
            )
        # of the attempt that the table shows: a later one may have ended before its first record
        attempt = read_run(find_run(self.folder)[1]).start.get("attempt", 0)
        checkpoint.load_weights(self.folder, network, attempt)


def load_run(run: Any) -> LoadedRun:
    """Load one run.

    Args:
        run: A path with the run's number behind its experiment's folder, such as "runs/circle/8"; the run's
            folder; or a row of `load_runs`, as in ``load_run(best(runs).iloc[0])``.

    Returns:
        The run, without its weights.

    Raises:
        InvalidArgumentError: The run does not exist; the message names the existing runs.
        InvalidArgumentError: `run` is neither a path nor a row of `load_runs`.

    Example:
        >>> from runmanager import best, load_runs
        >>> load_run("runs/circle/4")
        <run 4 (lr=0.01, width=64, device='cpu'): completed, 5 epochs>
        >>> load_run(best(load_runs("runs/circle")).iloc[0]).number
        4
    """
    damaged: list[str] = []
    path = path_of(run)
    result = read_run(find_run(path, damaged)[1], damaged)
    warn_of(damaged, path)
    note_results(result.folder.path, texts_of([result]))
    return LoadedRun(
        result.folder.number, result.folder.params, str(result.status), len(result.epochs), result.summary,
        result.error, files.for_people(result.folder.path),
    )  # fmt: skip


def path_of(run: Any) -> Path:
    """Return the path of a run that is given as a path or as a row of `load_runs`."""
    if isinstance(run, str | os.PathLike):
        return Path(run)
    get = getattr(run, "get", partial(getattr, run))  # a row of pandas and a dict have `get`
    folder = get("folder", None)
    if isinstance(folder, str | os.PathLike):
        return Path(folder)
    numbers = get("runs", None)
    if isinstance(numbers, tuple):  # the row is from `best`, and its setting has several runs
        raise InvalidArgumentError(
            f"this setting has several runs, {listed(numbers)}: load one of them, as load_run({numbers[0]!r})"
        )
    raise InvalidArgumentError(f"a run is a path as 'runs/circle/8', or a row of load_runs(), got {run!r:.200}")


def find_run(path: Path, damaged: list[str] | None = None) -> tuple[Path, RunFolder]:
    """Find a run by its folder, or by its number in an experiment; a link to a folder is not followed."""
    absolute = absolute_path(path)
    experiment = absolute.parent.resolve()
    if not is_experiment(experiment):
        if is_experiment(absolute):
            raise InvalidArgumentError(
                f"{path} is an experiment: name a run, as '{path}/1', or use runmanager list {path}"
            )
        raise InvalidArgumentError(f"{path} is no run, {no_experiment(path.parent, path)}")
    runs = read_runs(experiment, damaged)
    is_number = path.name.isdecimal() and not absolute.exists()
    for run in runs:
        if run.path.name == absolute.name or (is_number and run.number == int(path.name)):
            return experiment, run
    numbers = f"its runs are {runs[0].number} to {runs[-1].number}" if runs else "it has none"
    raise InvalidArgumentError(f"{path.parent} has no run {path.name!r}; {nearest(path) or numbers}")

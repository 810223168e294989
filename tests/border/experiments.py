"""Experiments to ask about, written by `run_grid` as a user's program does."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runmanager import GridOutcome, RunManager, run_grid

QUIET: dict[str, Any] = {"executor": "inline", "tensorboard": False, "display": False}
Scores = Callable[[Any], Mapping[str, Any]]


class Scored:
    """A training function: in each epoch it tracks what `scores(run)` returns.

    Args:
        scores: Run -> its metrics, in the last of all epochs; may raise.
        epochs: Number of epochs.
    """

    def __init__(self, scores: Scores, epochs: int = 1) -> None:
        self.scores, self.epochs = scores, epochs
        self.executed: list[Any] = []

    def __call__(self, run: Any, manager: Any) -> None:
        with manager.run(run):
            self.executed.append(run)
            for epoch in manager.epochs(self.epochs, checkpoint={}):
                metrics = dict(self.scores(run))
                if "loss" in metrics:
                    manager.track_loss(metrics.pop("loss"), 1)
                manager.track({name: value * epoch / self.epochs for name, value in metrics.items()})


def complete(run: Any, manager: RunManager, losses: Sequence[float] = (0.5,)) -> None:
    """Train a run: track a loss in each epoch."""
    with manager.run(run):
        for epoch in manager.epochs(len(losses)):
            manager.track_loss(losses[epoch - 1], 1)


def execute(
    root: Path, params: Any, train: Callable[..., Any], name: str = "e", *, epochs: int = 1, **options: Any
) -> GridOutcome:
    """Execute a grid in this process, without a display, with the same data whenever it is called.

    Args:
        root: Its root.
        params: Its axes.
        train: A training function, or what `Scored` takes.
        name: The experiment.
        epochs: How many epochs a run has whose metrics are given.
        options: Those of `run_grid`.
    """
    if "manager" not in inspect.signature(train).parameters:
        train = Scored(train, epochs)
    return run_grid(params, train, experiment=name, root=root, **{**QUIET, "data": "same", **options})


def manager_in(root: Path | str, experiment: str = "exp", **options: Any) -> RunManager:
    """Return the manager of a loop of one's own, without a display or event files."""
    return RunManager(experiment, root, **{"display": False, "tensorboard": False, **options})

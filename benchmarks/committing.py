"""What a commit costs, after an epoch and inside one: checkpoint and journal, for the tutorial's network.

Each is synced to disk. Target: at most 5 ms per epoch at the median on a local disk.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.measuring import quiet_manager, spread
from experiments.fashion_grid import make_network
from runmanager.core.checkpoint import ResumeState
from runmanager.core.inside_epoch import InsideEpoch
from runmanager.core.journal import Journal
from runmanager.core.loaders import ImageTensors, TensorLoader

EPOCHS = 200
BATCHES = 200  # of one epoch, with a commit after each


def main() -> None:
    """Print the cost of each part per epoch, and per commit inside an epoch."""
    checkpoint: list[float] = []
    journal: list[float] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        save, epoch = timed(ResumeState.save, checkpoint), timed(Journal.epoch, journal)
        with mock.patch.object(ResumeState, "save", save), mock.patch.object(Journal, "epoch", epoch):
            train(root, EPOCHS)
    show("after an epoch", checkpoint, journal)
    print("target          5 ms together, at the median")

    whole: list[float] = []
    checkpoint, journal = [], []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        save, inside = timed(ResumeState.save_inside, checkpoint), timed(Journal.inside, journal)
        commit = timed(InsideEpoch._commit, whole)  # noqa: SLF001 - all of it
        with (
            mock.patch.object(ResumeState, "save_inside", save),
            mock.patch.object(Journal, "inside", inside),
            mock.patch.object(InsideEpoch, "_commit", commit),
        ):
            train(root, 1, BATCHES, every=1)
    show("inside an epoch", checkpoint, journal)
    print(f"  all of it     {spread(whole[1:], 'ms', 1e3)} per commit")


def show(where: str, checkpoint: list[float], journal: list[float]) -> None:
    """Print the seconds of the two parts, and of both."""
    both = [sum(pair) for pair in zip(checkpoint, journal, strict=True)]
    print(where)
    for name, values in {"checkpoint": checkpoint, "journal": journal, "together": both}.items():
        print(f"  {name:<14}{spread(values[1:], 'ms', 1e3)}")


def train(root: str, num_epochs: int, num_batches: int = 1, every: int | str | None = None) -> None:
    """Take a step per batch, so that there is something to save."""
    network = make_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    data = ImageTensors(torch.rand(8 * num_batches, 1, 28, 28), torch.zeros(8 * num_batches, dtype=torch.int64))
    loader = TensorLoader(data, 8)
    manager = quiet_manager("commit", root, tensorboard=False)
    parts = {"network": network, "optimizer": optimizer}
    with manager.run({"lr": 0.01}, network, loader):
        for _ in manager.epochs(num_epochs, checkpoint=parts, checkpoint_every=every):
            for batch, _ in manager.batches():
                loss = network(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, 8)


def timed(method: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    """Wrap a method so that the seconds of each call are noted."""

    def wrapped(*arguments: Any, **options: Any) -> Any:
        before = time.perf_counter()
        result = method(*arguments, **options)
        taken.append(time.perf_counter() - before)
        return result

    return wrapped

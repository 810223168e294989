"""What committing an epoch costs: checkpoint and journal, synced to disk, for the tutorial's network.

Target: at most 5 ms per epoch at the median on a local disk.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.measuring import spread
from experiments.fashion_grid import make_network
from runmanager import RunManager
from runmanager.storage.journal import Journal
from runmanager.training.grid_context import GridContext
from runmanager.training.resuming import ResumeState

EPOCHS = 200


def main() -> None:
    """Print the cost of each part per epoch."""
    checkpoint: list[float] = []
    journal: list[float] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        save, epoch = timed(ResumeState.save, checkpoint), timed(Journal.epoch, journal)
        with mock.patch.object(ResumeState, "save", save), mock.patch.object(Journal, "epoch", epoch):
            train(root)
    both = [sum(pair) for pair in zip(checkpoint, journal, strict=True)]
    for name, values in {"checkpoint": checkpoint, "journal": journal, "together": both}.items():
        print(f"{name:<11}{spread(values[1:], 'ms', 1e3)} per epoch")
    print("target     5 ms together, at the median")


def train(root: str) -> None:
    """Take one step per epoch, so that there is something to save."""
    network = make_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    manager = RunManager("commit", root, tensorboard=False, display=False, _grid=GridContext())
    with manager.run({"lr": 0.01}, network):
        for _ in manager.epochs(EPOCHS, checkpoint={"network": network, "optimizer": optimizer}):
            loss = network(torch.rand(8, 1, 28, 28)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            manager.track_loss(loss, 8)


def timed(method: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    """Wrap a method so that the seconds of each call are noted."""

    def wrapped(*arguments: Any) -> Any:
        before = time.perf_counter()
        result = method(*arguments)
        taken.append(time.perf_counter() - before)
        return result

    return wrapped

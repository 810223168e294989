"""What the manager adds to a loop: per batch, per epoch and per run, for the tutorial's network on the cpu.

Target: at most 15 us per batch, 0.3 ms per epoch without histograms and 5 ms with them, 60 ms per `begin_run`
after the first. Each is the difference of an epoch with and without the manager, in turn. Committing an epoch
to the disk is left out here: `committing` measures it. One thread, and small batches, so that differences of
microseconds are seen; processor time stands beside the time that passed, which other processes disturb.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from benchmarks.measuring import quiet_manager, spread
from experiments.fashion_grid import make_network
from runmanager.core.journal import Journal

Cost = list[tuple[float, float]]
"""Seconds that passed and seconds of this thread's processor time, of each pair."""

PAIRS, BATCHES, SMALL = 51, 200, 8
TARGETS = {
    "batch": "; target 15 us",
    "epoch, no histograms": "; target 0.3 ms",
    "epoch, 20 histograms": "; target 5 ms",
    "begin_run after the first": "; target 60 ms",
}


def main() -> None:
    """Print what is added, with its spread over the pairs."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        costs = (
            ("batch", Epochs(root, BATCHES, histogram_every=0).added(), 1e6 / BATCHES, "us"),
            ("epoch, no TensorBoard", Epochs(root, 1, tensorboard=False).added(), 1e3, "ms"),
            ("epoch, no histograms", Epochs(root, 1, histogram_every=0).added(), 1e3, "ms"),
            ("epoch, 20 histograms", Epochs(root, 1).added(), 1e3, "ms"),
            ("begin_run after the first", begun(root), 1e3, "ms"),
        )
    torch.set_num_threads(threads)
    for name, cost, scale, unit in costs:
        passed, own = zip(*cost, strict=True)
        print(f"{name:<26}{spread(passed, unit, scale)}")
        print(f"{'':<26}{spread(own, unit, scale)} of processor time{TARGETS.get(name, '')}")


class Epochs:
    """An epoch of the tutorial's network, with the manager and without.

    Args:
        root: Where the run is written.
        num_batches: Of the epoch.
        **options: Of the manager.
    """

    def __init__(self, root: str, num_batches: int, **options: Any) -> None:
        self.batches = [(torch.rand(SMALL, 1, 28, 28), torch.arange(SMALL)) for _ in range(num_batches)]
        self.network = make_network()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.01, fused=True)
        self.manager = quiet_manager("overhead", root, **options)

    def added(self) -> Cost:
        """Return what the manager adds to an epoch that is not the first."""
        found = []
        with (
            mock.patch.object(Journal, "epoch"),
            self.manager.run({"batches": len(self.batches)}, self.network, self.batches),
        ):
            self.managed()  # imports, warms, draws samples and the graph
            for _ in range(PAIRS):
                bare, managed = timed(self.bare), timed(self.managed)
                found.append((managed[0] - bare[0], managed[1] - bare[1]))
        return found

    def bare(self) -> None:
        """Train for an epoch."""
        for images, labels in self.batches:
            kept = self.step(images, labels)  # until the next one, as a loop does
        del kept

    def managed(self) -> None:
        """Train for an epoch with every hook."""
        self.manager.begin_epoch()
        for images, labels in self.manager.batches():
            preds, loss = self.step(images, labels)
            self.manager.track_loss(loss, images)
            self.manager.track_num_correct(preds, labels)
        self.manager.end_epoch()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a step."""
        preds = self.network(images)
        loss = functional.cross_entropy(preds, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return preds, loss


def begun(root: str) -> Cost:
    """Return what it takes to begin a run; sending the network and warming the device are in it."""
    found = []
    manager = quiet_manager("begun", root)
    for number in range(PAIRS):
        network = make_network()
        found.append(timed(partial(manager.begin_run, {"lr": number + 1}, network)))
        manager.begin_epoch()
        manager.end_epoch()
        manager.end_run()
    return found[1:]


def timed(call: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds that a call takes: those that pass, and those of this thread's processor."""
    before, own = time.perf_counter(), time.thread_time()
    call()
    return time.perf_counter() - before, time.thread_time() - own

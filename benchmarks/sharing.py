"""Eight equal runs on the cpu, one at a time and two at a time: lanes share the cores.

Target: two at a time take no longer than one at a time.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.measuring import spread
from experiments.fashion_grid import make_network
from runmanager import run_grid
from runmanager.core.loaders import ImageTensors, TensorLoader

RUNS, IMAGES, PAIRS = 8, 60_000, 3


def main() -> None:
    """Print both, and their ratio."""
    taken: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        for pair in range(PAIRS):
            for jobs, seconds in taken.items():
                seconds.append(grid(f"{root}/{pair}-{jobs}", jobs))
    for jobs, seconds in taken.items():
        print(f"{RUNS} runs, jobs={jobs}   {spread(seconds)}")
    ratios = [two / one for one, two in zip(taken[1], taken[2], strict=True)]
    print(f"ratio            {spread(ratios, '')}; target at most 1")


def grid(root: str, jobs: int) -> float:
    """Return the seconds that a grid takes, all of it."""
    params = {"lr": [0.01], "seed": list(range(RUNS))}
    before = time.perf_counter()
    outcome = run_grid(params, train, experiment="sharing", root=root, jobs=jobs, display=False)
    assert outcome.exit_code == 0
    return time.perf_counter() - before


def train(run: Any, manager: Any) -> None:
    """Train the tutorial's network for an epoch."""
    torch.manual_seed(run.seed)
    network = make_network()
    images = torch.randint(0, 256, (IMAGES, 1, 28, 28), dtype=torch.uint8)
    data = ImageTensors(images, torch.arange(IMAGES) % 10, tuple("0123456789"))
    loader = TensorLoader(data, 1000, device="cpu", seed=run.seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=run.lr, fused=True)
    with manager.run(run, network, loader):
        for _ in manager.epochs(1):
            for batch, labels in manager.batches():
                loss = functional.cross_entropy(network(batch), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, batch)

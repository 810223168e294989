"""`from_tensorboard` of runs that torch's SummaryWriter wrote, against EventAccumulator, in turn.

Each run has 8 scalars and 20 histograms in each of 10 epochs, and one image. Target: at least 10x less time.
Beside it runs with scalars only, for which there is no target.
"""

import math
import shutil
import tempfile
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from benchmarks.measuring import seconds, spread
from runmanager import from_tensorboard

PAIRS, EPOCHS, SCALARS, HISTOGRAMS = 5, 10, 8, 20


def main() -> None:
    """Print both sides and their ratio, with and without histograms and images."""
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder) / "all", runs=20, histograms=HISTOGRAMS, target="; target 10")
        compare(Path(folder) / "scalars", runs=200, histograms=0, target="")


def compare(root: Path, runs: int, histograms: int, target: str) -> None:
    """Time both sides in turn, which have to find the same numbers."""
    make(root, runs, histograms)
    size = sum(path.stat().st_size for path in root.rglob("*tfevents*"))
    what = f"{histograms} histograms an epoch and an image" if histograms else "scalars only"
    print(f"{runs} runs x {EPOCHS} epochs, {SCALARS} scalars, {what}: {size / 2**20:.1f} MiB")
    assert math.isclose(by_us(root), by_accumulator(root))  # and all files are in memory
    ours, theirs = [], []
    for _ in range(PAIRS):
        ours += seconds(lambda: by_us(root), 1)
        theirs += seconds(lambda: by_accumulator(root), 1)
    print(f"from_tensorboard  {spread(ours, 'ms', 1e3)}")
    print(f"EventAccumulator  {spread(theirs, 'ms', 1e3)}")
    ratios = [slow / fast for fast, slow in zip(ours, theirs, strict=True)]
    print(f"ratio             {spread(ratios, 'x')}{target}")


def make(root: Path, runs: int, histograms: int) -> None:
    """Let torch write one run, and copy it."""
    torch.manual_seed(0)
    with SummaryWriter(str(root / "run-0")) as writer:
        for epoch in range(EPOCHS):
            for number in range(SCALARS):
                writer.add_scalar(f"scalar-{number}", torch.rand(()), epoch)
            for number in range(histograms):
                writer.add_histogram(f"histogram-{number}", torch.randn(2000), epoch)
        if histograms:
            writer.add_image("image", torch.rand(3, 242, 242))
    for number in range(1, runs):
        shutil.copytree(root / "run-0", root / f"run-{number}")


def by_us(root: Path) -> float:
    """Load the table; return the sum of its numbers."""
    table = from_tensorboard(root)
    return float(table.drop(columns=["run", "epoch"]).to_numpy().sum())


def by_accumulator(root: Path) -> float:
    """Read every scalar of every run with TensorBoard's reader; return the sum."""
    total = 0.0
    for folder in sorted(root.iterdir()):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        values = [[point.value for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]]
        total += sum(map(sum, values))
    return total

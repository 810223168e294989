"""One epoch of 60,000 images on the cpu: the tutorial's loop, the bare loop over resident tensors, and fit().

Target: the tutorial's loop takes at least 3x as long as a run of fit() with everything logged, which takes at
most 1.03x as long as the bare loop. Each side has a process of its own, and they take turns. fit() and the bare
loop have channels_last, fused Adam and a C library that keeps the memory it was given back.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.measuring import spread
from benchmarks.tutorial import train_epoch
from experiments.fashion_grid import make_network
from runmanager import RunManager, fit
from runmanager.core.loaders import TensorLoader, to_unit
from runmanager.datasets import fashion_mnist

BATCH_SIZES, ROUNDS, LR = (1000, 10_000), 5, 0.01
FLOOR = 0.19  # s: 73.3 GFLOP on two AVX-512 cores
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2000000000"}  # glibc; read when a process starts

Times = dict[str, list[tuple[float, float]]]


def main() -> None:
    """Print all sides, their ratios, and the fraction of the floor, for each batch size."""
    for batch_size in BATCH_SIZES:
        print(f"batch {batch_size}")
        show(measure(batch_size))


def show(times: Times) -> None:
    """Print the times of a batch size."""
    epochs = {name: [epoch for epoch, _ in pairs] for name, pairs in times.items()}
    runs = {f"{name}, whole run": [run for _, run in pairs] for name, pairs in times.items() if name in OURS}
    for name, values in (epochs | runs).items():
        of_floor = f"{FLOOR / statistics.median(values):.0%} of the floor"
        print(f"  {name:<32}{spread(values)}, {of_floor}")
    tutorial = min((epochs[name] for name in TUTORIAL), key=statistics.median)
    run = runs["fit, whole run"]
    ratio("tutorial / fit, whole run", tutorial, run, "at least 3")
    ratio("fit / bare", epochs["fit"], epochs["bare"], "at most 1.03")
    ratio("fit, whole run / bare", run, epochs["bare"], "at most 1.03")
    for name, target in zip(OURS[1:], ("at least 3", "at least 5"), strict=True):
        ratio(f"tutorial / {name}, whole run", tutorial, runs[f"{name}, whole run"], target)


def ratio(name: str, ones: list[float], others: list[float], target: str) -> None:
    """Print the ratio of times that were measured in turns."""
    values = [one / other for one, other in zip(ones, others, strict=True)]
    print(f"  {name:<44}{spread(values, '')}; target {target}")


def measure(batch_size: int) -> Times:
    """Return the seconds of an epoch and of all around it, of each side and round, after a round for warmth."""
    times: Times = {name: [] for name in SIDES}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(worker(name, batch_size)) for name in SIDES}
        for number in range(1 + ROUNDS):
            for name, epoch in workers.items():
                pair = epoch()
                if number:
                    times[name].append(pair)
    return times


@contextmanager
def worker(side: str, batch_size: int) -> Iterator[Callable[[], tuple[float, float]]]:
    """Start the process of a side; yield what executes an epoch there."""
    environment = os.environ | ({} if side in TUTORIAL else KEPT)
    command = [sys.executable, "-m", "benchmarks.training", side, str(batch_size)]
    process = subprocess.Popen(  # noqa: S603 - this file
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    write, read = process.stdin, process.stdout

    def epoch() -> tuple[float, float]:
        print("go", file=write, flush=True)
        first, second = read.readline().split()
        return float(first), float(second)

    try:
        yield epoch
    finally:
        write.close()  # ends its loop
        process.wait()
        read.close()


def work(side: str, batch_size: int) -> None:
    """Execute an epoch for every line that comes in; print its seconds, and those of everything around it."""
    epoch = SIDES[side](batch_size)
    for _ in sys.stdin:
        torch.manual_seed(0)
        before = time.perf_counter()
        epoch_seconds = epoch()
        seconds = time.perf_counter() - before
        print(epoch_seconds or seconds, seconds, flush=True)


def tutorial(batch_size: int, num_workers: int) -> Callable[[], None]:
    """Prepare the tutorial's loop over torchvision's images; it waits for two numbers in every batch."""
    from torchvision import datasets, transforms

    data = datasets.FashionMNIST("data", download=True, transform=transforms.ToTensor())  # unpacks it

    def epoch() -> None:
        network = make_network()
        loader = DataLoader(data, batch_size=batch_size, num_workers=num_workers)
        optimizer = torch.optim.Adam(network.parameters(), lr=LR)
        train_epoch(network, loader, optimizer, batch_size)

    return epoch


def bare(batch_size: int) -> Callable[[], None]:
    """Prepare the bare loop over tensors in memory, in a new order every epoch."""
    data = fashion_mnist("data")

    def epoch() -> None:
        network = make_network().to(memory_format=torch.channels_last)
        optimizer = torch.optim.Adam(network.parameters(), lr=LR, fused=True)
        for index in torch.randperm(len(data)).split(batch_size):
            images, labels = to_unit(data.images[index]), data.labels[index]
            loss = functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


def ours(batch_size: int, **options: Any) -> Callable[[], float]:
    """Prepare fit() with everything logged: images, graph, histograms, checkpoint, journal, tables."""
    data = fashion_mnist("data")
    adam = partial(torch.optim.Adam, lr=LR, fused=True)

    def epoch() -> float:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
            manager = RunManager("training", root, display=False)
            fit(
                {"batch_size": batch_size}, make_network().to(memory_format=torch.channels_last),
                TensorLoader(data, batch_size), manager,
                optimizer=adam, epochs=1, **options,
            )  # fmt: skip
        return float(manager.run_data[-1]["epoch duration"])

    return epoch


SIDES: dict[str, Callable[[int], Callable[[], float | None]]] = {
    "tutorial, num_workers=0": partial(tutorial, num_workers=0),
    "tutorial, num_workers=1": partial(tutorial, num_workers=1),
    "bare": bare,
    "fit": ours,
    "fit, micro_batch=500": partial(ours, micro_batch=500),
    "fit, bf16": partial(ours, precision="bf16"),
}
TUTORIAL, OURS = list(SIDES)[:2], list(SIDES)[3:]


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))

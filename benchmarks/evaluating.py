"""`manager.evaluate` with three torchmetrics against the plain loop with the same three, on the cpu.

Target: at most 1.05x. Both have the same network and batches, and take turns within one process. What only ours
does is in it: random states and modes given back, the confusion matrix, the columns of the epoch. Needs
torchmetrics: ``pip install -e '.[test]'``.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.measuring import quiet_manager, spread
from experiments.fashion_grid import make_network

PAIRS, NUM_IMAGES, NUM_CLASSES = 15, 10_000, 10
BATCH_SIZES = (100, 1000)


def main() -> None:
    """Print the seconds of both, and their ratio, for each batch size."""
    if not find_spec("torchmetrics"):
        print("torchmetrics is not there: pip install -e '.[test]'")
        return
    torch.manual_seed(0)
    images, labels = torch.rand(NUM_IMAGES, 1, 28, 28), torch.arange(NUM_IMAGES) % NUM_CLASSES
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for batch_size in BATCH_SIZES:
        batches = list(zip(images.split(batch_size), labels.split(batch_size), strict=True))
        show(batch_size, *measure(batches))
    torch.set_num_threads(threads)


Times = list[tuple[float, float]]
"""Seconds that passed, and those of this thread's processor, of each pass."""


def measure(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[Times, Times]:
    """Evaluate by the loop and by the manager, in turn."""
    network = make_network()
    of_loop, of_manager = three_metrics(), three_metrics()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        manager = quiet_manager("evaluating", root)
        with manager.run({"batches": len(batches)}, network):
            manager.begin_epoch()
            loops, managed = [], []
            for number in range(1 + PAIRS):
                loops.append(timed(partial(bare, network, batches, of_loop)))
                evaluate = partial(manager.evaluate, batches, f"pass_{number}", metrics=of_manager)
                managed.append(timed(evaluate))
            manager.end_epoch()
    return loops[1:], managed[1:]


def bare(network: torch.nn.Module, batches: list[tuple[Any, Any]], metrics: dict[str, Any]) -> dict[str, float]:
    """Evaluate as one writes it by hand: loss, accuracy, and the same metrics."""
    network.eval()
    for metric in metrics.values():
        metric.reset()
    loss_sum, num_correct, num_samples = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in batches:
            preds = network(images)
            loss_sum += functional.cross_entropy(preds, labels).item() * len(labels)
            num_correct += int((preds.argmax(dim=1) == labels).sum().item())
            num_samples += len(labels)
            for metric in metrics.values():
                metric.update(preds, labels)
    network.train()
    values = {name: float(metric.compute()) for name, metric in metrics.items()}
    return {"loss": loss_sum / num_samples, "accuracy": num_correct / num_samples, **values}


def three_metrics() -> dict[str, Any]:
    """Make the metrics of one side."""
    from torchmetrics.classification import MulticlassCohenKappa, MulticlassF1Score, MulticlassRecall

    kinds = {"f1": MulticlassF1Score, "recall": MulticlassRecall, "kappa": MulticlassCohenKappa}
    return {name: kind(num_classes=NUM_CLASSES) for name, kind in kinds.items()}


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that a call takes: those that pass, and those of this thread's processor."""
    before, own = time.perf_counter(), time.thread_time()
    call()
    return time.perf_counter() - before, time.thread_time() - own


def show(batch_size: int, loops: Times, managed: Times) -> None:
    """Print both sides of a batch size."""
    print(f"batches of {batch_size}")
    for column, of_what in enumerate(("", " of processor time")):
        ours, bare_loop = ([pair[column] for pair in side] for side in (managed, loops))
        ratios = [mine / theirs for mine, theirs in zip(ours, bare_loop, strict=True)]
        best = min(ours) / min(bare_loop)
        print(f"  plain loop  {spread(bare_loop, 'ms', 1e3)}{of_what}")
        print(f"  evaluate    {spread(ours, 'ms', 1e3)}{of_what}")
        print(f"  ratio       {spread(ratios, 'x')}{of_what}; of the fastest {best:.3f}x; target at most 1.05x")

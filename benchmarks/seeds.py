"""Accuracy of fit() in its fast forms against the plain loop, over 10 seeds.

Target: in fp32 the same weights bit for bit; with micro-batches and in bf16 the same accuracy within noise.
"""

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.measuring import quiet_manager
from experiments.fashion_grid import make_network
from runmanager import fit
from runmanager.core.loaders import ImageTensors, TensorLoader
from runmanager.datasets import fashion_mnist

SEEDS, IMAGES, BATCH_SIZE, EPOCHS, LR = 10, 10_000, 100, 2, 0.002

Result = tuple[float, list[torch.Tensor]]


def main() -> None:
    """Print the accuracy of each form, and by how much it differs from the plain loop's with the same seed."""
    data, test = fashion_mnist("data", size=IMAGES), TensorLoader(fashion_mnist("data", train=False), 1000)
    forms: dict[str, dict[str, Any]] = {
        "fit, fp32": {},
        "fit, micro_batch=32": {"micro_batch": 32},
        "fit, bf16": {"precision": "bf16"},
    }
    plain = [by_plain_loop(data, test, seed) for seed in range(SEEDS)]
    print(f"{IMAGES:,} images, batch {BATCH_SIZE}, {EPOCHS} epochs, {SEEDS} seeds: test accuracy, mean (s.d.)")
    show("plain loop", plain, plain)
    for name, options in forms.items():
        show(name, [by_fit(data, test, seed, options) for seed in range(SEEDS)], plain)


def show(name: str, results: list[Result], plain: list[Result]) -> None:
    """Print a form's accuracy, its difference from the plain loop's, and how many seeds have equal weights."""
    pairs = list(zip(results, plain, strict=True))
    accuracies = [accuracy for accuracy, _ in results]
    differences = [one[0] - other[0] for one, other in pairs]
    equal = sum(all(map(torch.equal, one[1], other[1])) for one, other in pairs)
    print(
        f"{name:<20}{statistics.mean(accuracies):.4f} ({statistics.stdev(accuracies):.4f}); difference "
        f"{statistics.mean(differences):+.4f} ({statistics.stdev(differences):.4f}); "
        f"bit-equal weights {equal} of {len(pairs)}"
    )


def by_plain_loop(data: ImageTensors, test: TensorLoader, seed: int) -> Result:
    """Train without runmanager; return the accuracy and the weights."""
    torch.manual_seed(seed)
    network = make_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, fused=True)
    loader = TensorLoader(data, BATCH_SIZE, seed=seed)
    for _ in range(EPOCHS):
        for images, labels in loader:
            loss = functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        correct = sum(int((network(images).argmax(1) == labels).sum()) for images, labels in test)
    return correct / len(test.dataset), [parameter.detach() for parameter in network.parameters()]  # type: ignore[arg-type] # ImageTensors has a length


def by_fit(data: ImageTensors, test: TensorLoader, seed: int, options: dict[str, Any]) -> Result:
    """Train with fit(); return the same."""
    torch.manual_seed(seed)
    network = make_network()
    adam = partial(torch.optim.Adam, lr=LR, fused=True)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        manager = quiet_manager("seeds", root, tensorboard=False)
        loader = TensorLoader(data, BATCH_SIZE, seed=seed)
        fit(
            {"seed": seed}, network, loader, manager, optimizer=adam, epochs=EPOCHS, test_loader=test, **options
        )  # fmt: skip
    parameters = [parameter.detach().contiguous() for parameter in network.parameters()]
    return float(manager.run_data[-1]["test_accuracy"]), parameters

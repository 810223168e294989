"""How often the range of a verdict over test items has the difference on all items.

Target: 93 to 97 % of test sets of 2,000 images, drawn with replacement from 30,000 images that are not
trained on. Networks are trained on the other 30,000 images of Fashion-MNIST, with three seeds per setting.
"""

import itertools

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from runmanager.answers.luck import half_width
from runmanager.datasets import fashion_mnist
from runmanager.tables.columns import Numbers
from runmanager.training.correct import are_correct
from runmanager.training.loaders import to_unit

IMAGES, SETS, SIZE, SEEDS, BATCH = 30_000, 10_000, 2000, 3, 100
SETTINGS = ((0, 0.1), (64, 0.1), (64, 0.02))  # width of the hidden layer, 0 for none; lr


def main() -> None:
    """Print the difference of each two settings, its range, and the fraction of ranges that have it."""
    data = fashion_mnist("data")
    images, labels = to_unit(data.images).flatten(1), data.labels
    correct = [
        np.mean([_correct(images, labels, *setting, seed) for seed in range(SEEDS)], 0) for setting in SETTINGS
    ]
    random = np.random.default_rng(0)
    print(f"{SETS:,} test sets of {SIZE:,} of {IMAGES:,} images, {SEEDS} seeds")
    for one, other in itertools.combinations(range(len(SETTINGS)), 2):
        items = correct[one] - correct[other]
        sets = [items[random.integers(IMAGES, size=SIZE)] for _ in range(SETS)]
        widths = [half_width(each) for each in sets]
        share = np.mean(
            [abs(each.mean() - items.mean()) <= half for each, half in zip(sets, widths, strict=True)]
        )
        print(
            f"{SETTINGS[one]} - {SETTINGS[other]}: {items.mean():+.4f} ± {np.mean(widths):.4f} (mean range); "
            f"the range has the difference on all images in {share:.1%}, target 93 to 97 %"
        )


def _correct(images: torch.Tensor, labels: torch.Tensor, width: int, lr: float, seed: int) -> Numbers:
    torch.manual_seed(seed)
    layers = [nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10)] if width else [nn.Linear(784, 10)]
    network = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(network.parameters(), lr)
    for index in torch.randperm(IMAGES).split(BATCH):
        optimizer.zero_grad()
        functional.cross_entropy(network(images[index]), labels[index]).backward()
        optimizer.step()
    with torch.no_grad():
        return are_correct(network(images[IMAGES:]), labels[IMAGES:]).numpy()

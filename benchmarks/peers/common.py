"""What all sides share: the grid, the images, how they are fetched."""

import itertools
import sys
from functools import cache
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

from experiments.fashion_grid import make_network

__all__ = [
    "GRID",
    "LR",
    "asked",
    "image_by_image",
    "in_memory",
    "make_loader",
    "make_network",
    "train_epoch",
    "whole_batches",
]
LR = 0.01
GRID = list(itertools.product((1000, 10000, 20000), (0, 1)))
"""Batch sizes and numbers of workers."""


def asked() -> tuple[str, bool]:
    """Read the command line: where to write, and whether in the tuned form."""
    return sys.argv[1], sys.argv[2:] == ["tuned"]


def image_by_image() -> FashionMNIST:
    """Return torchvision's data set, which makes a tensor of an image each time it is fetched."""
    return FashionMNIST("data", train=True, download=True, transform=ToTensor())


@cache
def in_memory() -> TensorDataset:
    """Return all images as floats, and the labels."""
    images = FashionMNIST("data", train=True, download=True)
    return TensorDataset(images.data.unsqueeze(1).float() / 255, images.targets)


def whole_batches(dataset: Any, batch_size: int, num_workers: int = 0, **_: Any) -> DataLoader[Any]:
    """Return a loader that fetches a batch by one indexing."""
    sampler = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
    return DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=num_workers)


def make_loader(batch_size: int, num_workers: int, *, tuned: bool) -> DataLoader[Any]:
    """Return the loader of a form."""
    if tuned:
        return whole_batches(in_memory(), batch_size, num_workers)
    return DataLoader(image_by_image(), batch_size=batch_size, num_workers=num_workers, shuffle=True)


def train_epoch(batch_size: int, num_workers: int, *, tuned: bool) -> tuple[float, float]:
    """Train a plain loop for an epoch; return loss and accuracy."""
    torch.manual_seed(0)
    network = make_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, fused=tuned)
    total, correct, seen = 0.0, 0, 0
    for images, labels in make_loader(batch_size, num_workers, tuned=tuned):
        preds = network(images)
        loss = torch.nn.functional.cross_entropy(preds, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        correct += int((preds.argmax(1) == labels).sum().item())
        seen += len(labels)
    return total / seen, correct / seen

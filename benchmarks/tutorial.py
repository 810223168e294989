"""The tutorial's loop over an epoch, as its copies have it."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional


def train_epoch(
    network: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    optimizer: torch.optim.Optimizer,
    batch_size: int,
) -> tuple[float, int]:
    """Train over all batches; return the sum of losses and the correct answers, as the tutorial counts them.

    It waits for two numbers in every batch, and takes each batch for a whole one.
    """
    total_loss, total_correct = 0.0, 0
    for images, labels in batches:
        preds = network(images)
        loss = functional.cross_entropy(preds, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total_loss += loss.item() * batch_size
        total_correct += int(preds.argmax(dim=1).eq(labels).sum().item())
    return total_loss, total_correct

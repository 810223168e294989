"""What the runs in root/ were trained with. A change of what is executed here is a change of their code."""

from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from runmanager import RunBuilder, RunManager

GRID: OrderedDict[Any, list[Any]] = OrderedDict(
    {
        # completed, diverged, unavailable, interrupted
        ("lr", "device"): [(0.5, "cpu"), (1e38, "cpu"), (0.5, "cuda:0"), (0.25, "cpu")],
        "batch_size": [2],
        "seed": [0],
    }
)
NUM_EPOCHS = 4
LOOP = OrderedDict(
    lr=[0.5], bias=[True, False], betas=[(0.9, 0.99)], warmup=[None], device=[torch.device("cpu")]
)

_POINTS = torch.tensor([[0.0, 1], [1, 0], [2, 1], [1, 2], [3, 0], [0, 3], [2, 3], [3, 2]])  # (8, 2)
_LABELS = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])  # (8,): is x larger than y?


def train(run: Any, manager: RunManager) -> None:
    """Train a run of the grid; the shuffled batches depend on the random state, which continuing restores."""
    torch.manual_seed(run.seed)
    network = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr, momentum=0.9)
    loader = DataLoader(TensorDataset(_POINTS, _LABELS), run.batch_size, shuffle=True)
    with manager.run(run, network, loader):
        for _ in manager.epochs(NUM_EPOCHS, checkpoint={"network": network, "optimizer": optimizer}):
            for points, labels in manager.batches():
                preds = network(points)
                loss = functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, points)
                manager.track_num_correct(preds, labels)


def loop(manager: RunManager, params: Any = LOOP) -> None:
    """Train the runs of a bare loop, as the tutorial does."""
    for run in RunBuilder.get_runs(params):
        torch.manual_seed(0)
        network = nn.Linear(2, 2, bias=run.bias)
        optimizer = torch.optim.Adam(network.parameters(), lr=run.lr, betas=run.betas)
        manager.begin_run(run, network, [(_POINTS, _LABELS)])
        for _ in range(2):
            manager.begin_epoch()
            preds = network(_POINTS)
            loss = functional.cross_entropy(preds, _LABELS)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            manager.track_loss(loss, _POINTS)
            manager.track_num_correct(preds, _LABELS)
            manager.end_epoch()
        manager.end_run()

"""Training gives the same numbers, bit for bit, whoever looks on."""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runmanager import RunManager
from tests.border.work import learn

DATA = TensorDataset(torch.randn(24, 1, 4, 4, generator=torch.Generator().manual_seed(7)), torch.arange(24) % 3)


class Nobody:
    """Look away: what is left is the plain loop."""

    def run(self, _run, _network, loader):
        self.batches = lambda: iter(loader)
        return nullcontext()

    def epochs(self, n):
        return range(n)

    def __getattr__(self, name):
        return lambda *_, **__: None


class Noisy(nn.Sequential):
    """Draws numbers where it is called, also to be drawn itself."""

    def forward(self, x):
        return super().forward(x + torch.rand(1).item() + float(np.random.rand()))  # noqa: NPY002


def trained(manager, seed, num_workers):
    """Train with every source of random numbers; return the losses, the weights and the random states."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global state is the one that could be disturbed
    torch.manual_seed(seed)
    network = Noisy(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, 3)
    )
    loader = DataLoader(DATA, batch_size=10, shuffle=True, num_workers=num_workers)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    losses = []
    with manager.run({"seed": seed, "num_workers": num_workers}, network, loader):
        for _ in manager.epochs(2):
            for images, labels in manager.batches():
                noise = random.random() + np.random.rand()  # noqa: NPY002, S311
                inputs = images + noise * torch.rand_like(images)
                preds, loss = learn(network, optimizer, inputs, labels)
                manager.track_loss(loss, images)
                manager.track_num_correct(preds, labels)
                manager.track(noise=noise)
                manager.log(noise=noise)
                losses.append(loss.item())
            manager.evaluate(DataLoader(DATA, batch_size=8, shuffle=True))
    weights = {name: value.numpy().tobytes() for name, value in network.state_dict().items()}
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    states = (random.getstate(), repr(numpy_state), torch.get_rng_state().numpy().tobytes())
    return losses, weights, states


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_logging_leaves_losses_weights_and_random_states_alone(tmp_path, num_workers):
    plain = trained(Nobody(), 0, num_workers)

    off = trained(RunManager("off", tmp_path, tensorboard=False, display=False), 0, num_workers)
    on = trained(RunManager("on", tmp_path, display=False), 0, num_workers)

    assert off == on == plain
    other = trained(Nobody(), 1, num_workers)
    assert all(one != another for one, another in zip(plain, other, strict=True))

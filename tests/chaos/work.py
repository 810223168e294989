"""What the processes of the chaos tests train: small, and random in every way that a run can be."""

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from runmanager import (
    Decide,
    ImageTensors,
    OptunaSearch,
    RayExecutor,
    RunBuilder,
    RunManager,
    SuccessiveHalving,
    TensorBoard,
    TensorLoader,
    Uniform,
    run_grid,
)
from tests.border.work import learn

EXPERIMENT = "grid"
SAMPLES = torch.linspace(-1, 1, 64 * 8).reshape(64, 8).sin()
LABELS = (SAMPLES.sum(dim=1) > 0).long()


class Network(nn.Module):
    """Two layers with dropout, and as many further parameters as a checkpoint is to be large."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
        self.padding = nn.Parameter(torch.linspace(-1, 1, padding))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Score samples (N, 8) by class (N, 2)."""
        scores: torch.Tensor = self.layers(samples)
        return scores + self.padding.square().mean()


def train(run: Any, manager: RunManager) -> None:
    """Train a run of `grid`; dropout draws from the global random state, the loader from its own."""
    torch.manual_seed(1)
    network = Network(run.padding)
    generator = torch.Generator().manual_seed(2)
    loader = DataLoader(TensorDataset(SAMPLES, LABELS), batch_size=16, shuffle=True, generator=generator)
    optimizer = torch.optim.Adam(network.parameters(), lr=run.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    state = {"network": network, "optimizer": optimizer, "scheduler": scheduler}
    with manager.run(run, network, loader):
        for _ in manager.epochs(run.num_epochs, checkpoint=state, keep="last"):
            for samples, labels in manager.batches():
                preds, loss = learn(network, optimizer, samples, labels)
                manager.track_loss(loss, samples)
                manager.track_num_correct(preds, labels)
                manager.log({"step_loss": loss, "step_sum": preds.sum()}, every=1 + (run.lr > 0.015))
            scheduler.step()
            wait_for(run.wait_for)


def train_inside(run: Any, manager: RunManager) -> None:
    """Train a run with checkpoints inside epochs, in steps of two batches; each batch takes its time."""
    torch.manual_seed(1)
    random.seed(1)
    network = Network(run.padding)
    loader = TensorLoader(ImageTensors(SAMPLES, LABELS), 4, seed=2)
    optimizer = torch.optim.Adam(network.parameters(), lr=run.lr)
    counts = {"batches": 0}
    state = {"network": network, "optimizer": optimizer, "counts": counts}
    with manager.run(run, network, loader):
        for _ in manager.epochs(run.num_epochs, checkpoint=state, keep="last", checkpoint_every=run.every):
            for samples, labels in manager.batches():
                preds = network(samples)
                loss = functional.cross_entropy(preds, labels)
                loss.backward()
                counts["batches"] += 1
                if counts["batches"] % 2 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                manager.track_loss(loss, samples)
                manager.track_num_correct(preds, labels)
                manager.log({"step_loss": loss}, every=2)
                time.sleep(0.005)
            manager.evaluate([(SAMPLES, LABELS)], "validation")


def train_rival(run: Any, manager: RunManager) -> None:
    """Track a score that is better for some rivals, and noise that follows from the seed."""
    noise = torch.randn((), generator=torch.Generator().manual_seed(101 * run.seed + len(run.rival))).item()
    with manager.run(run):
        for epoch in manager.epochs(2, checkpoint={}):
            manager.track(score=len(run.rival) / 100 + 0.008 * noise + epoch)


def train_climber(run: Any, manager: RunManager) -> None:
    """Track a score, the least of which is the best; the weights remember all random numbers."""
    torch.manual_seed(run.climber)
    network = nn.Linear(4, 1)
    with manager.run(run, network):
        for epoch in manager.epochs(9, checkpoint={"network": network}):
            with torch.no_grad():
                network.weight.add_(torch.rand(1, 4))
            manager.track(score=run.climber + 1 / epoch, total=network.weight.sum())


def train_searched(run: Any, manager: RunManager) -> None:
    """Track a score that follows from the values that a search has suggested."""
    with manager.run(run):
        for epoch in manager.epochs(2, checkpoint={}):
            manager.track(score=(run.height - 0.3) ** 2 + len(run.shape) / 10 - epoch)


SEARCHED_AXES: dict[str, Any] = {"height": Uniform(-1, 1), "shape": ["a", "bb", "ccc"], "device": ["cpu"]}


def wait_for(path: str) -> None:
    """Wait until a file is there, for a minute at most; no name, no waiting."""
    for _ in range(60_000):
        if not path or Path(path).exists():
            return
        time.sleep(0.001)


def axes(lrs: list[float], num_epochs: int, padding: int, wait_for: str = "") -> dict[str, list[Any]]:
    return {"lr": lrs, "num_epochs": [num_epochs], "padding": [padding], "wait_for": [wait_for]}


def inside_axes(lrs: list[float], every: int | str) -> dict[str, list[Any]]:
    return {"lr": lrs, "num_epochs": [2], "padding": [10], "every": [every]}


def execute(
    root: str,
    how: str,
    params: Mapping[str, Any],
    *,
    jobs: int = 2,
    retries: int = 1000,
    tensorboard: bool = False,
) -> int:
    """Start or continue the experiment, by an executor or a loop over a bare manager; return the exit code."""
    of_axis = {
        "rival": train_rival, "searched": train_searched, "every": train_inside,
        "climber": train_climber,
    }  # fmt: skip
    function = next((function for axis, function in of_axis.items() if axis in params), train)
    board = tensorboard and TensorBoard(histogram_every=0)
    if how != "bare":
        options: dict[str, Any] = {"tensorboard": board, "executor": how}
        if "rival" in params:
            options |= {"repeats": "seed", "goal": "max:score", "decide": Decide(max_repeats=40)}
        if "climber" in params:
            options["prune"] = SuccessiveHalving("min:score", factor=3)
        if "searched" in params:
            options |= {"search": OptunaSearch(*params["searched"]), "goal": "min:score"}
            params = SEARCHED_AXES
        if how == "lanes":
            options |= {"jobs": jobs, "retries": retries}
        if how.startswith("ray"):
            options["executor"] = RayExecutor(address=how.partition(" ")[2], jobs=2)
        return run_grid(params, function, experiment=EXPERIMENT, root=root, **options).exit_code
    manager = RunManager(EXPERIMENT, root, tensorboard=board, display=False)
    for run in manager.remaining(RunBuilder.get_runs(params)):
        function(run, manager)
    return 0

"""Runs to look at, and TensorBoard's own readers to look at them with."""

from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from torch import nn
from torch.nn import functional

from runmanager import RunManager

IMAGES = torch.linspace(0, 1, 8 * 16).reshape(8, 1, 4, 4)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
LOADER = [(IMAGES[:5], LABELS[:5]), (IMAGES[5:], LABELS[5:])]


def make_network() -> nn.Module:
    """Build a network of two layers: images (N, 1, 4, 4) in, scores (N, 3) out."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def train(manager: RunManager, run: Any, num_epochs: int = 1, at_end: Any = str) -> None:
    """Train a run as the README does, and call `at_end` at the end of each epoch."""
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with manager.run(run, network, LOADER):
        for epoch in manager.epochs(num_epochs, checkpoint={"network": network, "optimizer": optimizer}):
            for images, labels in manager.batches():
                preds = network(images)
                loss = functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, images)
                manager.track_num_correct(preds, labels)
            manager.evaluate(LOADER)
            at_end(epoch)


def events_of(folder: Path) -> EventAccumulator:
    """Read all event files of a run as TensorBoard does, without leaving points out."""
    (run,) = {path.parent for path in folder.rglob("*tfevents*")}
    sizes = {"scalars": 0, "tensors": 0, "images": 0, "histograms": 0}
    return EventAccumulator(str(run), size_guidance=sizes).Reload()


def scalars_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the points (step, value) of each scalar."""
    events = events_of(folder)
    return {tag: [(p.step, p.value) for p in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def hparams_of(folder: Path) -> dict[str, Any]:
    """Read what HParams shows of a run: its values by name."""
    summary = events_of(folder).SummaryMetadata(metadata.SESSION_START_INFO_TAG)
    start = metadata.parse_session_start_info_plugin_data(summary.plugin_data.content)
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}

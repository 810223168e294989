"""Runs to look at, and TensorBoard's own readers to look at them with."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
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


def train(
    manager: RunManager,
    run: Any,
    num_epochs: int = 1,
    network: nn.Module | None = None,
    at_end: Callable[[int], object] = str,
    *,
    checkpoint: bool = False,
) -> None:
    """Train a run as the README does, and call `at_end` at the end of each epoch."""
    network = network or make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    parts = {"network": network, "optimizer": optimizer} if checkpoint else None
    with manager.run(run, network, LOADER):
        for epoch in manager.epochs(num_epochs, checkpoint=parts):
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


def event_files(folder: Path) -> list[Path]:
    """Find all that TensorBoard takes for an event file."""
    return sorted(folder.rglob("*tfevents*"))


def events_in(folder: Path) -> list[Any]:
    """Read the events of the folder's one event file; the reader checks their checksums."""
    (path,) = event_files(folder)
    return list(LegacyEventFileLoader(str(path)).Load())


def values_in(folder: Path) -> Iterator[tuple[int, Any]]:
    """Read the step and the content of everything that was logged."""
    for event in events_in(folder):
        for value in event.summary.value:
            yield event.step, value


def accumulated(folder: Path) -> EventAccumulator:
    """Read the folder's one event file the way TensorBoard's scripts do, without leaving points out."""
    (path,) = event_files(folder)
    return EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the points (step, value) of each scalar."""
    events = accumulated(folder)
    return {tag: [(p.step, p.value) for p in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def texts_in(folder: Path) -> dict[str, str]:
    """Read the texts by tag."""
    return {
        value.tag: value.tensor.string_val[0].decode()
        for _, value in values_in(folder)
        if value.metadata.plugin_data.plugin_name == "text"
    }


def sessions_in(folder: Path) -> list[Any]:
    """Read what was said about the HParams session, in order."""
    return [
        metadata.parse_session_start_info_plugin_data(content)
        if value.tag == metadata.SESSION_START_INFO_TAG
        else metadata.parse_session_end_info_plugin_data(content)
        for _, value in values_in(folder)
        if value.metadata.plugin_data.plugin_name == "hparams"
        for content in [value.metadata.plugin_data.content]
    ]


def folder_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the points (step, value) of each scalar in all event files of a run, as TensorBoard does."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    return {tag: [(p.step, p.value) for p in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

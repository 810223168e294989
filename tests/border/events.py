"""Runs to look at, and TensorBoard's own readers to look at them with."""

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.hparams import metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import nn

from runmanager import RunManager
from tests.border.work import learn

IMAGES = torch.linspace(0, 1, 8 * 16).reshape(8, 1, 4, 4)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
LOADER = [(IMAGES[:5], LABELS[:5]), (IMAGES[5:], LABELS[5:])]


def manager_in(folder: Path, **options: Any) -> Any:
    """Return the manager of a loop of one's own that writes event files."""
    return RunManager("e", folder, display=False, **options)


def make_network() -> nn.Module:
    """Build a network of two layers: images (N, 1, 4, 4) in, scores (N, 3) out."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def train(
    manager: RunManager,
    run: Any,
    num_epochs: int = 1,
    at_end: Callable[[int], object] = str,
    network: nn.Module | None = None,
    *,
    checkpoint: bool = True,
) -> None:
    """Train a run as the README does, and call `at_end` at the end of each epoch."""
    network = network or make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    parts = {"network": network, "optimizer": optimizer} if checkpoint else None
    with manager.run(run, network, LOADER):
        for epoch in manager.epochs(num_epochs, checkpoint=parts):
            for images, labels in manager.batches():
                preds, loss = learn(network, optimizer, images, labels)
                manager.track_loss(loss, images)
                manager.track_num_correct(preds, labels)
            manager.evaluate(LOADER)
            at_end(epoch)


def event_files(folder: Path) -> list[Path]:
    """Find all that TensorBoard takes for an event file."""
    return sorted(folder.rglob("*tfevents*"))


def event_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of an event file: 12 bytes are before each, of which 8 are its length, and 4 after."""
    position = 0
    while position < len(content):
        (length,) = struct.unpack_from("<Q", content, position)
        yield content[position + 12 : position + 12 + length]
        position += length + 16


def framed(record: bytes) -> bytes:
    """Return a record with its length and its checksums."""
    file = io.BytesIO()
    RecordWriter(file).write(record)
    return file.getvalue()


def values_of(folder: Path) -> list[tuple[int, Any]]:
    """Read the step and the content of all that was logged, in order; the reader checks the checksums."""
    return [
        (event.step, value)
        for path in event_files(folder)
        for event in LegacyEventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def events_of(folder: Path) -> EventAccumulator:
    """Read all event files of a run as TensorBoard does, without leaving points out."""
    (run,) = {path.parent for path in event_files(folder)}
    sizes = {"scalars": 0, "tensors": 0, "images": 0, "histograms": 0}
    return EventAccumulator(str(run), size_guidance=sizes).Reload()


def scalars_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the points (step, value) of each scalar."""
    events = events_of(folder)
    return {tag: [(p.step, p.value) for p in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def texts_of(folder: Path) -> dict[str, str]:
    """Read the texts by tag."""
    values = [value for _, value in values_of(folder) if value.metadata.plugin_data.plugin_name == "text"]
    return {value.tag: value.tensor.string_val[0].decode() for value in values}


def sessions_of(folder: Path) -> list[Any]:
    """Read what was said about the HParams session of a run, in order: its start, and its end."""
    return [
        metadata.parse_session_start_info_plugin_data(content)
        if value.tag == metadata.SESSION_START_INFO_TAG
        else metadata.parse_session_end_info_plugin_data(content)
        for _, value in values_of(folder)
        if value.metadata.plugin_data.plugin_name == "hparams"
        for content in [value.metadata.plugin_data.content]
    ]


def hparams_of(folder: Path) -> dict[str, Any]:
    """Read what HParams shows of a run: its values by name."""
    start = sessions_of(folder)[0]
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}


def pixels_of(image: Any) -> np.ndarray:
    """Decode an image, whose sizes are asserted to be those that its event names."""
    content = image.encoded_image_string
    picture = Image.open(io.BytesIO(content), formats=["PNG"])
    assert picture.size == (image.width, image.height)
    return np.asarray(picture)

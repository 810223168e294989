"""What TensorBoard gets from a run of 10 epochs, written by us and by torch's SummaryWriter.

The same scalars, 20 histograms an epoch, 64 images, the graph and a confusion matrix of 10 classes, which both
sides draw in the same way. Target: at least 10x less time.
"""

import gc
import io
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.tensorboard import SummaryWriter
from torchvision.utils import make_grid

from benchmarks.measuring import spread
from experiments.fashion_grid import make_network
from runmanager.core.experiment import Experiment
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.run import Run
from runmanager.tensorboard.hparams import tag
from runmanager.tensorboard.pictures import Confusion, draw
from runmanager.tensorboard.run_log import RunLog

PAIRS, EPOCHS = 21, 10
METRICS = {"loss": 1.0, "accuracy": 0.5, "epoch duration": 2.0, "run duration": 3.0, "test_loss": 1.0}
TIMES = {"phase_data_s": 0.5, "phase_train_s": 1.5, "throughput_images_per_s": 30_000.0}
PARAMS = {"lr": 0.01, "batch_size": 64, "device": "cpu"}


def main() -> None:
    """Print both, their ratio and the bytes."""
    torch.manual_seed(0)
    images = torch.rand(64, 1, 28, 28)
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        for pair in range(PAIRS + 1):
            folder, other = Path(root) / f"ours-{pair}", Path(root) / f"theirs-{pair}"
            gc.collect()  # so that nobody clears away what the other has left
            ours.append(by_us(folder, make_network(), images))
            gc.collect()
            theirs.append(by_torch(other, make_network(), images))
        sizes = [sum(path.stat().st_size for path in place.rglob("events.*")) for place in (folder, other)]
    print(f"ours           {spread(ours[1:], 'ms', 1e3)}, {sizes[0]:,} bytes; first {ours[0]:.2f} s")
    print(f"SummaryWriter  {spread(theirs[1:], 'ms', 1e3)}, {sizes[1]:,} bytes; first {theirs[0]:.2f} s")
    ratios = [slow / fast for fast, slow in zip(ours[1:], theirs[1:], strict=True)]
    print(
        f"ratio          {spread(ratios, 'x')}; target 10; at the least of each {min(theirs) / min(ours):.1f}"
    )


def backward(network: nn.Module, images: torch.Tensor) -> None:
    """Give the network gradients to show."""
    functional.cross_entropy(network(images), torch.arange(len(images)) % 10).backward()


def confused() -> Confusion:
    """Count 10,000 predictions of 10 classes, of which 7 in 10 are right."""
    labels = torch.arange(10_000) % 10
    predicted = torch.where(torch.rand(10_000) < 0.7, labels, torch.randint(10, (10_000,)))  # noqa: PLR2004
    counted = Confusion()
    counted.add(functional.one_hot(predicted, 10).float(), labels)
    return counted


def by_us(folder: Path, network: nn.Module, images: torch.Tensor) -> float:
    """Return the seconds that our board takes."""
    run = Experiment(folder).open(PARAMS, 0)
    board = RunLog(run, 1)
    board.run_began(Run(), network, None)
    backward(network, images)
    counted = confused()
    before = time.perf_counter()
    board.attempt_began()
    board.classes_counted("test", counted, None)
    for epoch in range(1, EPOCHS + 1):
        board.learning_rate = 0.01
        board.epoch_ended(EpochRecord(epoch, METRICS, TIMES), network)
    board.run_ended(Outcome(Status.COMPLETED, "", EPOCHS))
    return time.perf_counter() - before


def by_torch(folder: Path, network: nn.Module, images: torch.Tensor) -> float:
    """Return the seconds that a SummaryWriter takes for the same tags."""
    backward(network, images)
    counted = confused()
    before = time.perf_counter()
    writer = SummaryWriter(str(folder))
    writer.add_image("visuals/samples", make_grid(images))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer.add_graph(network, images)
    for epoch in range(1, EPOCHS + 1):
        for name, value in METRICS.items():
            writer.add_scalar(tag(name), value, epoch)
        for name, value in {**TIMES, "best_accuracy_train": 0.5, "train/lr": 0.01}.items():
            writer.add_scalar(name, value, epoch)
        norm = nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None])
        writer.add_scalar("train/grad_norm", norm, epoch)
        for name, parameter in network.named_parameters():
            writer.add_histogram(f"weights/{name}", parameter, epoch)
            assert parameter.grad is not None
            writer.add_histogram(f"weights_grad/{name}", parameter.grad, epoch)
    png = draw(counted.table(), [str(number) for number in range(10)]).encoded_image_string
    picture = np.asarray(Image.open(io.BytesIO(png)))
    writer.add_image("visuals/confusion_test", picture, EPOCHS, dataformats="HW")
    writer.close()
    return time.perf_counter() - before

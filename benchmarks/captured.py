"""A training step as one CUDA graph: the step, its cost, and an epoch by it beside the other loops.

The step is no option of `fit`: what it is worth can only be measured on a GPU. On an H100 the capture failed;
its cure, gradients that are freed before, was not tried there.
Targets at batch 1000 and 100: 100x and 25x the tutorial's loop, 2.5x and 3.5x the loop over resident tensors.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.measuring import spread
from runmanager import ImageTensors, RunManager, TensorLoader, fit
from runmanager.core.loaders import to_unit
from runmanager.devices.torch_devices import undisturbed_random, wait_for

WARM_STEPS = 3  # torch asks for some before a capture

Replay = Callable[[], object]
Record = Callable[[Replay], Replay]
"""Record a step; return what repeats it."""


def graph(step: Replay) -> Replay:
    """Record a step as a CUDA graph, which launches all kernels of the step at once."""
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        step()
    return recorded.replay


class CapturedStep:
    """Steps of a network on batches of data on the device, recorded once for one size of batches.

    A batch of another size is computed eagerly. So are all batches where the step cannot be recorded; `reason`
    then says why, and is "" else. Losses and correct answers add up on the device.

    Args:
        network: The network, on the device of the data.
        optimizer: Adam with fused=True and capturable=True; its learning rate is fixed, or a tensor.
        data: All samples, on the device.
        batch_size: The size of the recorded batches.
        record: How a step is recorded; as a CUDA graph unless a test replaces it.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Adam,
        data: ImageTensors,
        batch_size: int,
        record: Record = graph,
    ) -> None:
        self._network, self._optimizer, self._data = network, optimizer, data
        device = data.images.device
        self.index = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.num_correct = torch.zeros((), dtype=torch.int64, device=device)
        self.reason = "" if record is not graph or device.type == "cuda" else f"the device is {device.type}"
        if not self.reason:
            self._replay = self._recorded(record, device)

    def __call__(self, index: torch.Tensor) -> None:
        """Make one step on the samples with these numbers, a tensor on the device."""
        if self.reason or len(index) != len(self.index):
            self._step(index)
        else:
            self.index.copy_(index)
            self._replay()

    def _recorded(self, record: Record, device: torch.device) -> Replay:
        before = [tensor.clone() for tensor in self._tensors()]
        num_before = len(before)
        try:
            with undisturbed_random(device):
                self._warm(device)
                self._optimizer.zero_grad()  # their memory is of another stream than that of the capture
                return record(partial(self._step, self.index))
        except RuntimeError as error:
            self.reason = f"the step cannot be recorded: {str(error).splitlines()[0]}"
            return partial(self._step, self.index)
        finally:
            self._optimizer.zero_grad()
            tensors = self._tensors()
            with torch.no_grad():
                for tensor, value in zip(tensors, before, strict=False):
                    tensor.copy_(value)
                for tensor in tensors[num_before:]:  # the state of Adam begins with zeros
                    tensor.zero_()

    def _warm(self, device: torch.device) -> None:
        """Make steps on a side stream, whose memory a capture may not share."""
        if device.type != "cuda":
            self._steps()
            return
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._steps()
        torch.cuda.current_stream(device).wait_stream(stream)

    def _steps(self) -> None:
        for _ in range(WARM_STEPS):
            self._step(self.index)

    def _step(self, index: torch.Tensor) -> None:
        images = to_unit(self._data.images.index_select(0, index))
        labels = self._data.labels.index_select(0, index)
        preds = self._network(images)
        loss = functional.cross_entropy(preds, labels)
        self._optimizer.zero_grad()  # gradients that are recorded belong to the graph
        loss.backward()
        self._optimizer.step()
        self.loss_sum += loss.detach() * len(index)
        self.num_correct += preds.detach().argmax(1).eq(labels).sum()

    def _tensors(self) -> list[torch.Tensor]:
        """Return all that steps change: sums, parameters, buffers, and last the optimizer's state."""
        states = [state for state in self._optimizer.state.values() if state]
        of_optimizer = [
            value for state in states for value in state.values() if isinstance(value, torch.Tensor)
        ]
        network = [*self._network.parameters(), *self._network.buffers()]
        return [self.loss_sum, self.num_correct, *network, *of_optimizer]


Epoch = Callable[[], float]
"""Train an epoch and return its mean loss."""


def sides(device: torch.device, batch_size: int, size: int, workers: int) -> dict[str, Epoch]:
    """Prepare all loops over the first images of Fashion-MNIST, each with a network of its own."""
    from torch.utils.data import DataLoader, Subset
    from torchvision import datasets, transforms

    from benchmarks.tutorial import train_epoch
    from experiments.fashion_grid import make_network
    from runmanager.datasets import fashion_mnist

    resident = fashion_mnist("data", size=size).to(device)
    fashion_mnist("data", train=False)  # unpacks its files, all of which torchvision wants to see
    files = Subset(datasets.FashionMNIST("data", transform=transforms.ToTensor()), range(size))

    def made(**options: Any) -> tuple[nn.Module, torch.optim.Adam]:
        torch.manual_seed(0)
        network = make_network().to(device)
        return network, torch.optim.Adam(network.parameters(), lr=0.01, **options)

    def tutorial(num_workers: int) -> Epoch:
        network, optimizer = made()
        loader = DataLoader(files, batch_size, num_workers=num_workers)
        batches = lambda: ((images.to(device), labels.to(device)) for images, labels in loader)  # noqa: E731
        return lambda: train_epoch(network, batches(), optimizer, batch_size)[0] / size

    def fitted() -> float:
        with tempfile.TemporaryDirectory() as root:
            manager = RunManager("captured", root, display=False)
            fit(
                {"device": str(device)}, made()[0], TensorLoader(resident, batch_size, device=device), manager,
                optimizer=partial(torch.optim.Adam, lr=0.01, fused=True), epochs=1,
            )  # fmt: skip
        return float(manager.run_data[-1]["loss"])

    def steps(step: CapturedStep) -> float:
        step.loss_sum.zero_()
        for index in torch.randperm(size, device=device).split(batch_size):
            step(index)
        return float(step.loss_sum) / size

    fused = {"fused": True, "capturable": True}
    eager = CapturedStep(*made(fused=True), resident, batch_size, refuse)
    before = time.perf_counter()
    captured = CapturedStep(*made(**fused), resident, batch_size)
    wait_for(device)
    print(
        f"capture: {time.perf_counter() - before:.3f} s{captured.reason and ', not used: ' + captured.reason}"
    )
    return {
        "tutorial, num_workers=0": tutorial(0),
        f"tutorial, num_workers={workers}": tutorial(workers),
        "fit, whole run": fitted,
        "resident, eager": partial(steps, eager),
        "resident, captured": partial(steps, captured),
    }


def refuse(_: Replay) -> Replay:
    """Record nothing, so that every step is eager."""
    raise RuntimeError("eager")


def measure(device: torch.device, batch_size: int, size: int, rounds: int) -> dict[str, float]:
    """Print the seconds of an epoch of all loops, in turn after a round for warmth; return their medians."""
    epochs = sides(device, batch_size, size, workers=4)
    taken: dict[str, list[float]] = {name: [] for name in epochs}
    for number in range(1 + rounds):
        for name, epoch in epochs.items():
            wait_for(device)
            before = time.perf_counter()
            loss = epoch()
            if number:
                taken[name].append(time.perf_counter() - before)
            print(f"batch {batch_size}, round {number}, {name}: loss {loss:.4f}", flush=True)
    for name, values in taken.items():
        print(f"batch {batch_size}, {name:<28}{spread(values)}")
    return {name: statistics.median(values) for name, values in taken.items()}


def first_losses(make: Callable[[], nn.Module], data: ImageTensors, record: Record) -> tuple[list[float], str]:
    """Train the first ten batches of 100 samples; return the loss of each, and why it was not recorded."""
    network = make().to(data.images.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, fused=True, capturable=True)
    step, losses = CapturedStep(network, optimizer, data, 100, record), []
    for index in torch.arange(1000, device=data.images.device).split(100):
        step.loss_sum.zero_()
        step(index)
        losses.append(float(step.loss_sum) / 100)
    return losses, step.reason

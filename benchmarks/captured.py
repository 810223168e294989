"""A training step as a CUDA graph, in four ways: what holds, and what a step then costs beside an eager one.

- ``gradients kept``: all of the step, while the warm steps' gradients are still there.
- ``whole step``: the same with gradients freed before, as torch documents it; Adam is capturable.
- ``passes``: forward and backward pass alone; the optimizer's step stays eager, so that any optimizer will do.
- ``passes, side stream``: the same, with the warm steps on a stream of their own.
"""

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from runmanager import ImageTensors
from runmanager.core.loaders import to_unit

WARM_STEPS = 3  # before a capture: cuDNN and cuBLAS allocate then
WAYS = ("eager", "gradients kept", "whole step", "passes", "passes, side stream")


class Trainer:
    """Steps of a network on samples of data on the device; warm steps are steps, and a capture makes none."""

    def __init__(self, way: str, network: nn.Module, data: ImageTensors, batch_size: int, lr: float) -> None:
        self._way, self._network, self._data = way, network, data
        is_whole = way in WAYS[1:3]
        options: dict[str, Any] = {"fused": True, "capturable": True} if is_whole else {"fused": True}
        self._optimizer = torch.optim.Adam(network.parameters(), lr=lr, **options)
        device = data.images.device
        self._index = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._num_steps = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._loss = torch.zeros((), device=device)
        self.error = ""

    def __call__(self, index: torch.Tensor) -> torch.Tensor:
        """Make one step on the samples with these numbers, a tensor on the device; return the loss."""
        is_eager = self._way == "eager" or self._side is None or self.error or len(index) != len(self._index)
        self._num_steps += 1
        if is_eager or self._num_steps <= WARM_STEPS:
            side = None if is_eager or self._way == "passes" else self._side
            with on_stream(side):
                self._passes(index)
                self._optimizer.step()
            return self._loss.clone()
        self._index.copy_(index)
        if self._graph is None:
            self._record()
            if self._graph is None:
                return self(index)
        self._graph.replay()
        if self._way not in WAYS[1:3]:
            self._optimizer.step()
        return self._loss.clone()

    def _record(self) -> None:
        if self._way != "gradients kept":
            self._optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._passes(self._index, keeps=self._way == "gradients kept")
                if self._way in WAYS[1:3]:
                    self._optimizer.step()
        except RuntimeError:
            self.error = traceback.format_exc()
            return
        self._graph = graph

    def _passes(self, index: torch.Tensor, *, keeps: bool = False) -> None:
        images = to_unit(self._data.images.index_select(0, index))
        loss = functional.cross_entropy(self._network(images), self._data.labels.index_select(0, index))
        self._optimizer.zero_grad(set_to_none=not keeps)
        loss.backward()
        self._loss = loss.detach()


@contextlib.contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Execute a block on another stream, in the order of the current one."""
    if stream is None:
        yield
        return
    before = torch.cuda.current_stream(stream.device)
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)


def first_losses(make: Callable[[], nn.Module], data: ImageTensors, way: str) -> tuple[list[float], str]:
    """Train ten batches of 100 samples; return the loss of each, and the error of the capture, "" if none."""
    trainer = Trainer(way, make().to(data.images.device), data, 100, 0.01)
    losses = [float(trainer(index)) for index in torch.arange(1000, device=data.images.device).split(100)]
    return losses, trainer.error


def epochs_of(trainer: Trainer, size: int, batch_size: int, device: torch.device) -> Callable[[], float]:
    """Return a function that trains an epoch in a new order, and returns the mean of its losses."""

    def epoch() -> float:
        losses = [trainer(index) for index in torch.randperm(size, device=device).split(batch_size)]
        return float(torch.stack(losses).mean())

    return epoch


def trainers(
    data: ImageTensors, batch_size: int, ways: tuple[str, ...] = WAYS
) -> dict[str, Callable[[], float]]:
    """Prepare epochs of each way, with networks of their own."""
    from experiments.fashion_grid import make_network

    device, made = data.images.device, {}
    for way in ways:
        torch.manual_seed(0)
        network = make_network().to(device).to(memory_format=torch.channels_last)
        made[way] = epochs_of(Trainer(way, network, data, batch_size, 0.01), len(data), batch_size, device)
    return made

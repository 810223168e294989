"""Forward and backward pass as a CUDA graph: else the steps of a small network wait for Python on a GPU."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.optim import Optimizer

from runmanager.core.evaluate import Computed

EAGER_BATCHES = 10
"""Batches of one shape before a recording, which takes as long as some eager steps."""
_OF_TORCH = ("torch.nn.modules.", "torch.nn.functional", "torchvision.models.", "torchvision.ops.")
Backward = Callable[[Any], Computed]
"""Computes a batch, and adds to the gradients."""
_TENSORS, _PLAIN = {torch.Tensor, nn.Parameter}, {bool, int, float, str, tuple}


class RecordedPasses:
    """The passes of batches (inputs, labels) of one shape, recorded once and then replayed.

    A replay executes no Python. So passes are recorded only if all modules are those of torch or torchvision,
    and replayed only while no module, mode, setting or tensor's memory has changed. The optimizer stays eager.
    """

    def __init__(self, network: nn.Module, loss: Any, optimizer: Optimizer) -> None:
        self._network, self._loss, self._optimizer = network, loss, optimizer
        self._graph: torch.cuda.CUDAGraph | None = None
        self._shapes: list[Any] = []
        self._num_alike = 0
        self._is_off = False

    def __call__(self, batch: Any, backward: Backward) -> Computed | None:
        """Compute the gradients of a batch; return None if the batch is to be computed eagerly."""
        if self._is_off or not all(isinstance(part, torch.Tensor) and part.is_cuda for part in batch):
            return None
        shapes = [(part.shape, part.dtype, part.device) for part in batch]
        if self._graph is None:
            self._num_alike = self._num_alike + 1 if shapes == self._shapes else 1
            self._shapes = shapes
            if self._num_alike < EAGER_BATCHES:
                return None
            if self._num_alike == EAGER_BATCHES:
                return self._watch(batch, backward)
            self._graph = self._record(batch, backward)
        elif self._state() != self._recorded_state:
            self._graph = None
        self._is_off = self._graph is None
        if self._graph is None or shapes != self._shapes:
            return None
        for recorded, part in zip(self._batch, batch, strict=True):
            recorded.copy_(part, non_blocking=True)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        self._graph.replay()
        loss, scores, _ = self._computed
        return loss.clone(), None if scores is None else scores.clone(), batch[1]

    def _watch(self, batch: Any, backward: Backward) -> Computed | None:
        """Compute a batch eagerly, and see whether it waits for the device, which cannot be recorded."""
        self._modules = _modules(self._network, self._loss)
        # a graph keeps its memory, which an evaluation may need
        free, _ = torch.cuda.mem_get_info(batch[0].device)
        is_large = torch.cuda.max_memory_allocated(batch[0].device) > free / 3
        has_hook: bool = _has_any_global_hook()  # type: ignore[no-untyped-call]
        self._is_off = is_large or has_hook or not is_recordable(self._network, self._loss)
        if self._is_off:
            return None
        self._optimizer.zero_grad()
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True, action="always") as caught:
            torch.cuda.set_sync_debug_mode("warn")
            try:
                computed = backward(batch)
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        self._is_off = any("called a synchronizing" in str(warning.message) for warning in caught)
        return computed

    def _record(self, batch: Any, backward: Backward) -> "torch.cuda.CUDAGraph | None":
        """Record the passes of a batch; return None if they cannot be recorded."""
        generator = torch.cuda.default_generators[batch[0].device.index]
        before, random_state = generator.clone_state(), torch.get_rng_state()
        stream = torch.cuda.current_stream()
        self._batch = [part.clone() for part in batch]
        self._network.zero_grad()
        self._optimizer.zero_grad()  # the gradients of eager steps are not the graph's
        graph = torch.cuda.CUDAGraph()
        try:
            # the thread of a loader may go on; nothing is computed yet
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._computed = backward(tuple(self._batch))
        except RuntimeError:  # torch leaves its generator and its stream as in the recording
            generator.graphsafe_set_state(before)
            torch.cuda.set_stream(stream)
            return None
        if not torch.equal(torch.get_rng_state(), random_state):  # a random number of the cpu would be kept
            torch.set_rng_state(random_state)
            return None
        groups = [group["params"] for group in self._optimizer.param_groups]
        parameters = dict.fromkeys(sum(groups, [*self._network.parameters()]))
        self._gradients = [(parameter, parameter.grad) for parameter in parameters]
        self._recorded_state = self._state()
        return graph

    def _state(self) -> list[Any]:
        """Return what a replay does not see: modes, settings, hooks, layers, and where tensors are."""
        state: list[Any] = []
        for module in self._modules:
            for value in _values(module):
                kind = type(value)  # quicker than isinstance: this is called before each replay
                if kind in _TENSORS:
                    state.append((value.data_ptr(), value.requires_grad))
                elif kind in _PLAIN:
                    state.append(value)
            state.append((len(module._forward_hooks), *map(id, module._modules.values())))  # noqa: SLF001
        return state


def is_recordable(network: nn.Module, loss: Any) -> bool:
    """Whether the passes are the same operations each time: all modules are those of torch, without hooks."""
    modules, function = _modules(network, loss), loss.func if isinstance(loss, partial) else loss
    names = [str(getattr(part, "__module__", "")) for part in (*modules, function)]
    return all(name.startswith(_OF_TORCH) for name in names) and not any(map(_is_altered, modules))


def _modules(network: nn.Module, loss: Any) -> list[nn.Module]:
    return [*network.modules(), *(loss.modules() if isinstance(loss, nn.Module) else ())]


def _values(module: nn.Module) -> list[Any]:
    """Return the attributes of a module, its parameters and its buffers."""
    return [*vars(module).values(), *module._parameters.values(), *module._buffers.values()]  # noqa: SLF001


def _is_altered(module: nn.Module) -> bool:
    """Whether a module has hooks or a forward pass of its own, or is compiled."""
    attributes = vars(module)
    hooks = [value for name, value in attributes.items() if name.endswith("_hooks")]
    # there is no other way to ask
    hooks += [value._backward_hooks for value in _values(module) if isinstance(value, torch.Tensor)]  # noqa: SLF001
    return any(hooks) or "forward" in attributes or attributes.get("_compiled_call_impl") is not None

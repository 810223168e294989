"""Forward and backward pass as a CUDA graph: else the steps of a small network wait for Python on a GPU."""

import ast
import inspect
import warnings
from collections.abc import Callable
from functools import partial
from textwrap import dedent
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.optim import Optimizer

from runmanager.core.evaluate import Computed

EAGER_BATCHES = 10
"""Batches of one shape before a recording, which takes as long as some eager steps."""
_OF_TORCH = ("torch.nn.modules.", "torch.nn.functional", "torchvision.models.", "torchvision.ops.")
_IN_A_ROW = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.keyword, ast.expr_context, ast.operator,
    ast.unaryop, ast.Assign, ast.Return, ast.Expr, ast.Call, ast.Attribute, ast.Name, ast.Constant, ast.Tuple,
    ast.List, ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp,
)  # fmt: skip
Backward = Callable[[Any], Computed]
"""Computes a batch, and adds to the gradients."""
_TENSORS, _PLAIN = {torch.Tensor, nn.Parameter}, {bool, int, float, str, tuple}


class RecordedPasses:
    """The passes of batches (inputs, labels) of one shape, recorded once and then replayed.

    A replay executes no Python. So passes are recorded only if, by its source, the network computes the same
    operations each time, and replayed only while no module, mode, setting or tensor's memory has changed.

    Args:
        network: The network.
        loss: The loss.
        optimizer: The optimizer, whose step stays eager.
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
            if self._num_alike == EAGER_BATCHES:
                return self._watch(batch, backward)
            if self._num_alike < EAGER_BATCHES or not self._record(batch, backward):
                return None
        if self._graph is None or shapes != self._shapes:
            return None
        if self._state() != self._recorded_state:
            self._graph, self._is_off = None, True
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
        self._is_off = _has_any_global_hook() or not is_recordable(self._network, self._loss)  # type: ignore[no-untyped-call]
        # a graph keeps its memory, which an evaluation may need
        free, _ = torch.cuda.mem_get_info(batch[0].device)
        if self._is_off or torch.cuda.max_memory_allocated(batch[0].device) > free / 3:
            self._is_off = True
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

    def _record(self, batch: Any, backward: Backward) -> bool:
        self._is_off = True
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
            return False
        if not torch.equal(torch.get_rng_state(), random_state):  # a random number of the cpu would be kept
            torch.set_rng_state(random_state)
            return False
        groups = [group["params"] for group in self._optimizer.param_groups]
        parameters = dict.fromkeys(sum(groups, [*self._network.parameters()]))
        self._gradients = [(parameter, parameter.grad) for parameter in parameters]
        self._recorded_state = self._state()
        self._graph, self._is_off = graph, False
        return True

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
    """Whether the passes are the same operations each time, by the source of the network and of the loss."""
    function = loss.func if isinstance(loss, partial) else loss
    is_plain = isinstance(loss, nn.Module) or _is_of_torch(function)
    return is_plain and all(map(_computes_in_a_row, _modules(network, loss)))


def _modules(network: nn.Module, loss: Any) -> list[nn.Module]:
    return [*network.modules(), *(loss.modules() if isinstance(loss, nn.Module) else ())]


def _values(module: nn.Module) -> list[Any]:
    """Return the attributes of a module, its parameters and its buffers."""
    return [*vars(module).values(), *module._parameters.values(), *module._buffers.values()]  # noqa: SLF001


def _is_of_torch(thing: Any) -> bool:
    if isinstance(thing, ModuleType):
        return thing.__name__.startswith("torch")
    return str(getattr(thing, "__module__", "")).startswith(_OF_TORCH)


def _computes_in_a_row(module: nn.Module) -> bool:
    """Whether forward() has no hook, and calls only modules, functions of torch and methods, in a row."""
    attributes = vars(module)
    tensors = [value for value in _values(module) if isinstance(value, torch.Tensor)]
    hooks = [value for name, value in attributes.items() if name.endswith("_hooks")]
    hooks += [tensor._backward_hooks for tensor in tensors]  # noqa: SLF001 - no other way to ask
    if any(hooks) or "forward" in attributes or attributes.get("_compiled_call_impl") is not None:
        return False
    if _is_of_torch(type(module)):
        return True
    function = type(module).forward
    try:
        nodes = list(ast.walk(ast.parse(dedent(inspect.getsource(function)))))
    except (OSError, TypeError, SyntaxError):
        return False
    names = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)}
    names -= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names -= {node.arg for node in nodes if isinstance(node, ast.arg)}
    used = [function.__globals__.get(name) for name in names]
    read = [node for node in nodes if isinstance(node, ast.Attribute)]
    own = [node.attr for node in read if isinstance(node.value, ast.Name) and node.value.id == "self"]
    return (
        all(isinstance(node, _IN_A_ROW) for node in nodes)
        and not any(isinstance(node.ctx, ast.Store) for node in read)  # a state of its own
        and all(_is_of_torch(value) for value in used)
        and all(_is_watched(module, name) for name in own)
    )


def _is_watched(module: nn.Module, name: str) -> bool:
    """Whether an attribute is a module, or of the values that are compared before each replay."""
    value = getattr(module, name, None)
    is_own = type(value) in _TENSORS | _PLAIN and any(value is other for other in _values(module))
    return is_own or isinstance(value, nn.Module)

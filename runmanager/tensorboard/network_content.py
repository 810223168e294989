"""What TensorBoard shows of a network: its graph, and histograms of its parameters and gradients.

The graph is traced without computation. Histograms are computed on their device and read in one transfer.
"""

import copy
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.versions_pb2 import VersionDef
from torch import fx, nn

from runmanager.devices.torch_devices import quiet, undisturbed_random

BINS = 30
"""The number of buckets in a histogram, TensorBoard's default."""

_LEAST = 32  # minimum number of values of a histogram; with fewer values, it has mostly gaps
_AT_ONCE = 1 << 22  # number of values per pass, as a pass makes several copies
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@quiet()  # `quiet` admits one thread at a time, as torch.fx patches module calls for the whole process
@undisturbed_random(torch.device("cpu"))  # inside `quiet`, so that only the lock's holder draws numbers
def graph(network: nn.Module) -> bytes:
    """Trace a network symbolically and return the bytes of its GraphDef.

    The trace uses a copy whose parameters have shapes but no values. So the network, its buffers and its device
    do not change, and its hooks are not called. Other threads may compute meanwhile.

    Raises:
        Exception: Any exception of torch.fx, for example because of data-dependent control flow.
    """
    original = getattr(network, "_orig_mod", network)  # torch.compile wraps modules
    copies: dict[int, Any] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        for parameter in original.parameters()
    }
    copies |= {id(buffer): torch.empty_like(buffer, device="meta") for buffer in original.buffers()}
    hollow = copy.deepcopy(original, copies)
    tracer = _Tracer()
    tracer.thread = threading.get_ident()
    try:
        traced = tracer.trace(hollow)
    finally:
        tracer.thread = 0  # torch.compile in another thread may restore the patch that called this tracer
    modules = dict(hollow.named_modules())
    names: dict[fx.Node, str] = {}
    taken: set[str] = set()
    nodes: list[NodeDef] = []
    for node in traced.nodes:
        target, attributes = str(node.target), {}
        name, op = node.name, node.op
        if op in ("call_module", "get_attr"):
            name = target.replace(".", "/")
        elif stack := list((node.meta.get("nn_module_stack") or {}).values()):
            name = f"{stack[-1][0].replace('.', '/')}/{name}"
        if op == "call_module":
            attributes["settings"] = AttrValue(s=modules[target].extra_repr().encode())
            op = type(modules[target]).__name__
        elif op == "call_function":
            function = getattr(node.target, "__name__", target)
            op = "getitem" if node.target is operator.getitem else function
        elif op == "call_method":
            op = target
        first, number = name, 1
        while name in taken:
            number += 1
            name = f"{first}_call{number}"
        taken.add(name)
        names[node] = name
        inputs = [names[source] for source in node.all_input_nodes]
        nodes.append(NodeDef(name=name, op=op, input=inputs, attr=attributes))
    content: bytes = GraphDef(node=nodes, versions=VersionDef(producer=22)).SerializeToString()
    return content


class _Tracer(fx.Tracer):
    """Traces the modules of its thread; modules in other threads compute as usual."""

    thread = 0  # the thread that traces

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        is_tracing = threading.get_ident() == self.thread
        # call m.forward, as the argument `forward` would call the hooks of the module
        return super().call_module(m, m.forward, args, kwargs) if is_tracing else forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        is_tracing = threading.get_ident() == self.thread
        return super().getattr(attr, attr_val, parameter_proxy_cache) if is_tracing else attr_val


def tensors(network: nn.Module) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Return the weights and gradients of a network with enough values to draw, by tag; and all gradients."""
    drawn: dict[str, torch.Tensor] = {}
    gradients: list[torch.Tensor] = []
    for name, parameter in network.named_parameters():
        kind = ":bias" if name.rpartition(".")[2].startswith("bias") else ""
        for group, tensor in (("weights", parameter), ("weights:grad", parameter.grad)):
            if (
                tensor is not None
                and not isinstance(tensor, nn.UninitializedParameter)
                and tensor.layout == torch.strided
                and tensor.dtype in _DTYPES
                and tensor.numel() > 0
                and tensor.device.type != "meta"
            ):
                gradients += [tensor.detach()] if group != "weights" else []
                if tensor.numel() >= _LEAST:
                    drawn[f"{group}{kind}/{name}"] = tensor.detach()
    return drawn, gradients


def statistics(values: Mapping[str, torch.Tensor]) -> dict[str, list[float]]:
    """Return min, max, sum, sum of squares and counts of 30 buckets of each tensor's finite values."""
    rows: dict[str, list[float]] = {}
    with torch.no_grad():
        for device in dict.fromkeys(tensor.device for tensor in values.values()):
            names = [name for name, tensor in values.items() if tensor.device == device]
            pieces = {name: torch.split(values[name].reshape(-1), _AT_ONCE) for name in names}
            read = torch.stack([_row(pieces[name]) for name in names]).tolist()
            for name, row in zip(names, read, strict=True):
                rows[name] = row
                if not (isfinite(row[0]) and isfinite(row[1])):
                    finite = [numbers for piece in pieces[name] if len(numbers := piece[piece.isfinite()])]
                    rows[name] = _row(finite).tolist() if finite else []
    return {name: rows[name] for name in values if rows[name]}


def _row(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Compute the statistics ``(4 + BINS,)`` of a tensor in pieces, on its device."""
    double = torch.float32 if pieces[0].device.type == "mps" else torch.float64
    exact = double if pieces[0].dtype == torch.float64 else torch.float32
    ends = torch.stack([torch.stack(torch.aminmax(piece)) for piece in pieces]).to(exact)
    low, high = ends[:, 0].min(), ends[:, 1].max()
    width = (high / BINS - low / BINS).clamp_min(torch.finfo(exact).tiny)
    sums, counts = [], []
    for piece in pieces:
        numbers = piece.to(double)
        sums.append(torch.stack([numbers.sum(), numbers.square().sum()]))
        positions = ((piece.to(exact) - low) / width).nan_to_num_(0).clamp_(0, BINS - 1)
        counts.append(torch.bincount(positions.to(torch.uint8), minlength=BINS))
    total, count = torch.stack(sums).sum(dim=0), torch.stack(counts).sum(dim=0)
    return torch.cat([torch.stack([low, high]), total, count])

"""The graph of a network for TensorBoard, traced without computation."""

import copy
import operator
import threading
from collections.abc import Callable
from typing import Any

import torch
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.versions_pb2 import VersionDef
from torch import fx, nn

from runmanager.devices.torch_devices import quiet, undisturbed_random


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
    hollow = _without_values(original)
    traced = fx.GraphModule(hollow, _Tracer().trace(hollow))
    names = _names(traced)
    modules = dict(traced.named_modules())
    nodes = [_node(node, names, modules) for node in traced.graph.nodes]
    definition = GraphDef(node=nodes, versions=VersionDef(producer=22))
    content: bytes = definition.SerializeToString()
    return content


def _without_values(network: nn.Module) -> nn.Module:
    copies: dict[int, Any] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        for parameter in network.parameters()
    }
    copies |= {id(buffer): torch.empty_like(buffer, device="meta") for buffer in network.buffers()}
    return copy.deepcopy(network, copies)


class _Tracer(fx.Tracer):
    """Traces the modules of its thread; modules in other threads compute as usual."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        try:
            return super().trace(root, concrete_args)
        finally:
            self._thread = 0  # torch.compile in another thread may restore the patch that called this tracer

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        is_tracing = threading.get_ident() == self._thread
        # call m.forward, as the argument `forward` would call the hooks of the module
        return super().call_module(m, m.forward, args, kwargs) if is_tracing else forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        is_tracing = threading.get_ident() == self._thread
        return super().getattr(attr, attr_val, parameter_proxy_cache) if is_tracing else attr_val


def _names(traced: fx.GraphModule) -> dict[fx.Node, str]:
    names: dict[str, fx.Node] = {}
    for node in traced.graph.nodes:
        first = name = _name(node)
        number = 1
        while name in names:
            number += 1
            name = f"{first}_call{number}"
        names[name] = node
    return {node: name for name, node in names.items()}


def _name(node: fx.Node) -> str:
    if node.op in ("call_module", "get_attr"):
        return str(node.target).replace(".", "/")
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return f"{stack[-1][0].replace('.', '/')}/{node.name}" if stack else node.name


def _node(node: fx.Node, names: dict[fx.Node, str], modules: dict[str, nn.Module]) -> NodeDef:
    attributes = {}
    if node.op == "call_module":
        attributes["settings"] = AttrValue(s=modules[str(node.target)].extra_repr().encode())
    inputs = [names[source] for source in node.all_input_nodes]
    return NodeDef(name=names[node], op=_op(node, modules), input=inputs, attr=attributes)


def _op(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    if node.op == "call_module":
        return type(modules[str(node.target)]).__name__
    if node.op == "call_function":
        name = getattr(node.target, "__name__", str(node.target))
        return "getitem" if node.target is operator.getitem else name
    return str(node.target) if node.op == "call_method" else node.op

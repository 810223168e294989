"""A network's graph for TensorBoard, traced without computing anything."""

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.versions_pb2 import VersionDef
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp


def graph(network: nn.Module, shape: Sequence[int] | None, dtype: torch.dtype | None) -> bytes:
    """Trace a network symbolically and return the bytes of its GraphDef.

    The trace runs on a copy whose parameters have shapes but no values, so the network, its buffers and its
    device are left alone.

    Args:
        network: The network, compiled or not.
        shape: The shape of its input, to show the shapes of all outputs; None if it is not known.
        dtype: The type of its input.

    Raises:
        Exception: Whatever torch.fx raises where control flow depends on data.
    """
    original = getattr(network, "_orig_mod", network)  # torch.compile wraps
    hollow = _without_values(original)
    traced = fx.symbolic_trace(hollow)
    if shape is not None:
        ShapeProp(traced).propagate(torch.empty(tuple(shape), dtype=dtype, device="meta"))
    names = _names(traced)
    modules = dict(traced.named_modules())
    nodes = [_node(node, names, modules) for node in traced.graph.nodes]
    definition = GraphDef(node=nodes, versions=VersionDef(producer=22))
    content: bytes = definition.SerializeToString()
    return content


def _without_values(network: nn.Module) -> nn.Module:
    known: dict[int, Any] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        for parameter in network.parameters()
    }
    known |= {id(buffer): torch.empty_like(buffer, device="meta") for buffer in network.buffers()}
    return copy.deepcopy(network, known)


def _names(traced: fx.GraphModule) -> dict[fx.Node, str]:
    names: dict[fx.Node, str] = {}
    for node in traced.graph.nodes:
        if node.op in ("call_module", "get_attr"):
            name = str(node.target).replace(".", "/")
        else:
            stack = node.meta.get("nn_module_stack") or {}
            scope = next(reversed(stack), "").replace(".", "/")
            name = f"{scope}/{node.name}" if scope else node.name
        taken = sum(other == name or other.startswith(f"{name}_call") for other in names.values())
        names[node] = f"{name}_call{taken + 1}" if taken else name
    return names


def _node(node: fx.Node, names: dict[fx.Node, str], modules: dict[str, nn.Module]) -> NodeDef:
    meta = node.meta.get("tensor_meta")
    shape = getattr(meta, "shape", None)
    attributes = {}
    if shape is not None:
        dims = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in shape])
        attributes["_output_shapes"] = AttrValue(list=AttrValue.ListValue(shape=[dims]))
    if node.op == "call_module":
        details = modules[str(node.target)].extra_repr()
        attributes["settings"] = AttrValue(s=details.encode())
    inputs = [names[source] for source in node.all_input_nodes]
    return NodeDef(name=names[node], op=_op(node, modules), input=inputs, attr=attributes)


def _op(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    if node.op == "call_module":
        return type(modules[str(node.target)]).__name__
    if node.op == "call_function":
        name = getattr(node.target, "__name__", str(node.target))
        return "getitem" if node.target is operator.getitem else name
    return str(node.target) if node.op == "call_method" else node.op

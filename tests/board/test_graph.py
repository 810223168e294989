import copy
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from torch import nn
from torch.nn import functional

from experiments.fashion_grid import make_network
from runmanager import RunManager
from runmanager.tensorboard.run_log import graph
from tests.board.reading import events_in, train


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return functional.relu(self.norm(self.fc(x))) * self.scale + x


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        scores = self.fc(x.flatten(1))
        return scores if scores.sum() > 0 else -scores


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x, y):
        return self.fc(x) + y


class DictOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.dropout = nn.Dropout()

    def forward(self, x):
        scores = self.fc(x)
        return {"scores": self.dropout(scores), "best": torch.max(scores, 1)[1]}


class Awaited(nn.Module):
    """Says that it is called, and goes on when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.called, self.may_go_on = threading.Event(), threading.Event()

    def __deepcopy__(self, memo):
        hollow = Awaited()
        hollow.called, hollow.may_go_on = self.called, self.may_go_on
        return hollow

    def forward(self, x):
        self.called.set()
        assert self.may_go_on.wait(30)
        return self.fc(x)


def nodes_of(network: nn.Module) -> list[NodeDef]:
    return list(GraphDef.FromString(graph(network)).node)


def test_the_tutorials_network_is_drawn_layer_by_layer():
    nodes = nodes_of(make_network())

    assert [(node.name, node.op) for node in nodes[1:]] == [
        ("conv1", "Conv2d"),
        ("pool1", "MaxPool2d"),
        ("relu1", "ReLU"),
        ("conv2", "Conv2d"),
        ("pool2", "MaxPool2d"),
        ("relu2", "ReLU"),
        ("flatten", "Flatten"),
        ("fc1", "Linear"),
        ("relu3", "ReLU"),
        ("fc2", "Linear"),
        ("relu4", "ReLU"),
        ("out", "Linear"),
        ("output", "output"),
    ]
    assert nodes[0].op == "placeholder"
    assert [list(node.input) for node in nodes] == [[], *([node.name] for node in nodes[:-1])]
    assert nodes[1].attr["settings"].s == b"1, 6, kernel_size=(5, 5), stride=(1, 1)"


def test_nested_modules_are_scopes():
    nodes = nodes_of(nn.Sequential(Block(), nn.Sequential(Block())))

    scopes = {node.name.rpartition("/")[0] for node in nodes if node.op not in ("placeholder", "output")}
    assert scopes == {"0", "1/0"}
    ops = [node.op for node in nodes if node.name.startswith("1/0/")]
    assert ops == ["Linear", "BatchNorm1d", "relu", "get_attr", "mul", "add"]


@pytest.mark.parametrize("times", [2, 3, 12])
def test_a_module_called_again_has_another_name_in_the_same_scope(times):
    nodes = nodes_of(nn.Sequential(*[Block()] * times))

    names = [node.name for node in nodes]
    assert len(set(names)) == len(names) == 5 * times + 3
    linear = [node.name for node in nodes if node.op == "Linear"]
    assert len(linear) == times
    assert all(re.fullmatch(r"0/fc(_\d+)?", name) for name in linear)
    assert {name.partition("/")[0] for name in names[1:-1]} == {"0"}


def test_every_input_of_a_node_is_a_node():
    nodes = nodes_of(nn.Sequential(Block(), DictOutput()))

    names = {node.name for node in nodes}
    assert {source for node in nodes for source in node.input} < names


def test_a_dict_of_outputs_is_drawn():
    nodes = nodes_of(DictOutput())

    assert [node.op for node in nodes] == [
        "placeholder",
        "Linear",
        "Dropout",
        "max",
        "getitem",
        "output",
    ]
    assert list(nodes[-1].input) == ["dropout", "getitem"]


def test_a_network_of_two_inputs_is_drawn_in_silence(capfd):
    nodes = nodes_of(TwoInputs())

    assert [node.op for node in nodes] == ["placeholder", "placeholder", "Linear", "add", "output"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_compiled_network_is_drawn_as_what_was_compiled():
    network = make_network()
    compiled: Any = torch.compile(network)

    assert nodes_of(compiled) == nodes_of(network)


def test_tracing_leaves_the_network_as_it_was():
    network = nn.Sequential(Block(), DictOutput())
    calls: list[torch.Tensor] = []
    network[0].fc.register_forward_hook(lambda _, __, output: calls.append(output))  # type: ignore[union-attr]
    network[1].register_forward_pre_hook(lambda _, inputs: calls.append(inputs))
    network[1].eval()
    before = copy.deepcopy(network.state_dict())
    tensors = [*network.parameters(), *network.buffers()]
    modes = [module.training for module in network.modules()]

    nodes_of(network)

    assert calls == []
    assert modes == [module.training for module in network.modules()]
    assert [id(tensor) for tensor in (*network.parameters(), *network.buffers())] == [*map(id, tensors)]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    for name, values in network.state_dict().items():
        assert torch.equal(values, before[name])
    network(torch.ones(4, 3))
    assert len(calls) == 2  # the hooks are still there


def test_other_threads_compute_while_a_network_is_traced():
    traced, other, inputs = Awaited(), Block().eval(), torch.ones(4, 3)
    expected = other(inputs)
    nodes: list[NodeDef] = []
    tracing = threading.Thread(target=lambda: nodes.extend(nodes_of(traced)))

    tracing.start()
    assert traced.called.wait(30)
    try:
        computed = other(inputs)
    finally:
        traced.may_go_on.set()
        tracing.join()

    assert torch.equal(computed, expected)
    assert [node.op for node in nodes] == ["placeholder", "Linear", "output"]


def test_what_called_a_tracer_computes_once_its_trace_is_done():
    # torch.compile in another thread may take fx's patches away and put them back when the trace has ended
    kept: list[Any] = []

    class Keeping(Block):
        def forward(self, x):
            kept.extend([nn.Module.__call__, nn.Module.__getattr__])
            return super().forward(x)

    network, inputs = Block().eval(), torch.ones(4, 3)
    nodes_of(Keeping())

    call, get = kept
    assert torch.equal(call(network, inputs), network(inputs))
    assert get(network, "scale") is network.scale


@pytest.mark.slow
def test_networks_of_several_threads_are_traced_one_after_the_other():
    first, second = Awaited(), Awaited()
    called, warn = nn.Module.__call__, list(warnings.filters)
    threads = [threading.Thread(target=nodes_of, args=(network,)) for network in (first, second)]

    for thread, network in zip(threads, (first, second), strict=True):
        thread.start()
        network.called.wait(1)
    first.may_go_on.set()
    threads[0].join(1)
    second.may_go_on.set()
    for thread in threads:
        thread.join()

    assert second.called.is_set()
    assert nn.Module.__call__ is called
    assert list(warnings.filters) == warn
    assert torch.equal(nn.Identity()(torch.ones(3)), torch.ones(3))


def test_tracing_draws_no_random_numbers(tmp_path):
    class Noisy(nn.Sequential):
        def forward(self, x):
            noise = functional.dropout(x, training=True) + torch.rand(1).item()
            return super().forward(noise.flatten(1))

    states = []
    for tensorboard in (True, False):
        manager = RunManager("e", tmp_path / str(tensorboard), tensorboard=tensorboard, display=False)
        network = Noisy(nn.Linear(16, 3))
        torch.manual_seed(0)
        train(manager, {"lr": 0.1}, network=network)
        states.append(torch.get_rng_state())

    assert torch.equal(*states)
    assert graphs_in(tmp_path / "True")


def test_control_flow_that_depends_on_data_gives_no_graph_and_no_warning(tmp_path, capfd):
    manager = RunManager("e", tmp_path, display=False)

    train(manager, {"lr": 0.1}, network=Branching())

    assert graphs_in(tmp_path) == []
    assert len(events_in(tmp_path)) > 5
    assert capfd.readouterr() == ("", "")


def test_the_graph_is_written_once_for_a_run(tmp_path):
    manager = RunManager("e", tmp_path, display=False)

    train(manager, {"lr": 0.1}, num_epochs=3)

    (content,) = graphs_in(tmp_path)
    drawn = [node.op for node in GraphDef.FromString(content).node]
    assert drawn == [
        "placeholder",
        "Flatten",
        "Linear",
        "output",
    ]


def graphs_in(folder: Path) -> list[bytes]:
    return [event.graph_def for event in events_in(folder) if event.HasField("graph_def")]

"""Nodes of a Ray cluster are killed while a grid is executed on it."""

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn

from runmanager import RayExecutor, run_grid
from tests.border import reading
from tests.chaos.conftest import add_node, ray_cluster

NUM_KILLS = 12
NUM_EPOCHS = 90
PARAMS = {"number": [*range(9)], "device": ["cpu"]}
SLOT = {"cpu": {"slot": 1}}  # stands in for a GPU


def train(run, manager, pause, gate):
    """Let weights walk at random; the last epoch begins when a file is there."""
    torch.manual_seed(run.number)
    network = nn.Linear(4, 1)
    with manager.run(run, network):
        for epoch in manager.epochs(NUM_EPOCHS, checkpoint={"network": network}):
            while epoch == NUM_EPOCHS and gate is not None and not gate.exists():
                time.sleep(0.05)
            with torch.no_grad():
                network.weight.add_(torch.rand(1, 4))
            manager.track(total=network.weight.sum())
            time.sleep(pause)


def kill_nodes(cluster, root, gate, killed):
    """Kill a node whenever some epochs have been committed, add another one for it; then let the runs end."""

    def size():
        return sum(path.stat().st_size for path in root.rglob("attempt-*[0-9].jsonl"))

    dice = random.Random(1)  # noqa: S311 - when nodes are killed
    try:
        while len(killed) < NUM_KILLS:
            before, until = size(), time.monotonic() + 10
            while size() < before + 2000 and time.monotonic() < until:  # bytes, about ten epochs
                time.sleep(0.1)
            time.sleep(dice.uniform(0, 2))
            killed.append(dice.choice(sorted(cluster.worker_nodes, key=lambda node: node.node_id)))
            cluster.remove_node(killed[-1], allow_graceful=False)
            with suppress(Exception):  # on a busy machine it comes later; Ray says so in two ways
                cluster.add_node(num_cpus=1, num_gpus=0, resources={"slot": 1})
    finally:
        gate.touch()


def grid(root, executor, train):
    return run_grid(PARAMS, train, experiment="grid", root=root, executor=executor, tensorboard=False)


def without_times(table):
    return table.drop(columns=["epoch duration", "run duration", "jobs"], errors="ignore")


@pytest.fixture
def ray_nodes():
    """Start a Ray whose head executes nothing, and three nodes with one CPU and one slot each."""
    with ray_cluster(num_cpus=0) as cluster:
        for _ in range(3):
            add_node(cluster, num_cpus=1, resources={"slot": 1})
        yield cluster


@pytest.mark.nightly
@pytest.mark.slow(minutes=3)
def test_no_epoch_is_lost_or_doubled_when_nodes_are_killed(ray_nodes, tmp_path):
    gate, killed = tmp_path / "gate", list[object]()
    executor = RayExecutor(address=ray_nodes.address, jobs="auto", resources=SLOT)
    killer = threading.Thread(target=kill_nodes, args=(ray_nodes, tmp_path, gate, killed))

    killer.start()
    outcome = grid(tmp_path / "ray", executor, partial(train, pause=0.08, gate=gate))
    killer.join()

    inline = grid(tmp_path / "inline", "inline", partial(train, pause=0, gate=None))
    journals = sorted(outcome.folder.glob("*/attempt-*[0-9].jsonl"))
    epochs = Counter(
        (path.parent, line["epoch"])
        for path in journals
        for line in reading.lines(path)
        if line["type"] == "epoch"
    )
    assert len(killed) == NUM_KILLS
    assert len(journals) > 9
    assert set(epochs.values()) == {1}
    assert outcome.exit_code == 0
    assert outcome.runs["status"].tolist() == ["completed"] * 9
    assert without_times(outcome.results).equals(without_times(inline.results))

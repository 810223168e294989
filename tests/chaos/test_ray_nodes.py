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
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from runmanager import RayExecutor, run_grid
from tests.border import reading
from tests.chaos.conftest import add_node, ray_cluster

NUM_KILLS = 12
NUM_EPOCHS = 90
PARAMS = {"lr": [0.1, 0.2, 0.3], "batch_size": [8, 16, 32], "device": ["cpu"]}
SLOT = {"cpu": {"slot": 1}}  # stands in for a GPU
SAMPLES = torch.linspace(-1, 1, 64 * 8).reshape(64, 8).sin()
LABELS = (SAMPLES.sum(dim=1) > 0).long()


def train(run, manager, pause, gate):
    """Train a small network; the last epoch begins when a file is there."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
    generator = torch.Generator().manual_seed(2)
    data = TensorDataset(SAMPLES, LABELS)
    loader = DataLoader(data, batch_size=run.batch_size, shuffle=True, generator=generator)
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr, momentum=0.9)
    with manager.run(run, network, loader):
        for epoch in manager.epochs(NUM_EPOCHS, checkpoint={"network": network, "optimizer": optimizer}):
            while epoch == NUM_EPOCHS and gate is not None and not gate.exists():
                time.sleep(0.05)
            for samples, labels in manager.batches():
                preds = network(samples)
                loss = functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, samples)
                manager.track_num_correct(preds, labels)
            time.sleep(pause)


class Killer(threading.Thread):
    """Kills a node now and then, and adds another one for it."""

    def __init__(self, cluster, root, gate):
        super().__init__()
        self.num_killed = 0
        self._cluster = cluster
        self._root = root
        self._gate = gate
        self._random = random.Random(1)  # noqa: S311 - when nodes are killed
        self._cancelled = threading.Event()

    def run(self):
        """Kill all that are to be killed, then let the runs end."""
        try:
            while self.num_killed < NUM_KILLS and not self._cancelled.is_set():
                self._wait_for_epochs()
                self._cancelled.wait(self._random.uniform(0, 2))
                node = self._random.choice(sorted(self._cluster.worker_nodes, key=lambda node: node.node_id))
                self._cluster.remove_node(node, allow_graceful=False)
                self.num_killed += 1
                with suppress(Exception):  # on a busy machine it comes later; Ray says so in two ways
                    self._cluster.add_node(num_cpus=1, num_gpus=0, resources={"slot": 1})
        finally:
            self._gate.touch()

    def _wait_for_epochs(self):
        """Wait until some have been committed, so that nodes are killed that do something."""
        before, until = self._size(), time.monotonic() + 10
        while self._size() < before + 2000 and time.monotonic() < until:  # bytes, about ten epochs
            self._cancelled.wait(0.1)

    def _size(self):
        return sum(path.stat().st_size for path in self._root.rglob("attempt-*[0-9].jsonl"))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._cancelled.set()
        self.join()


def grid(root, executor, train):
    return run_grid(PARAMS, train, experiment="grid", root=root, executor=executor, tensorboard=False)


def epochs_of(path):
    return [line["epoch"] for line in reading.lines(path) if line["type"] == "epoch"]


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
def test_no_epoch_is_lost_or_doubled_when_nodes_are_killed(ray_nodes, tmp_path, capsys):
    gate = tmp_path / "gate"
    executor = RayExecutor(address=ray_nodes.address, jobs="auto", resources=SLOT)
    before = time.monotonic()

    with Killer(ray_nodes, tmp_path, gate) as killer:
        outcome = grid(tmp_path / "ray", executor, partial(train, pause=0.08, gate=gate))
    seconds = time.monotonic() - before

    inline = grid(tmp_path / "inline", "inline", partial(train, pause=0, gate=None))
    journals = sorted(outcome.folder.glob("*/attempt-*[0-9].jsonl"))
    epochs = Counter((path.parent, epoch) for path in journals for epoch in epochs_of(path))
    num_repeated = sum(number > 1 for number in epochs.values())
    lost = len(inline.results) - len(outcome.results.drop_duplicates(["run", "epoch"]))
    doubled = int(outcome.results.duplicated(["run", "epoch"]).sum())
    figures = (
        f"{killer.num_killed} nodes killed, {len(journals)} attempts at 9 runs, {seconds:.0f} s",
        f"{lost} lost epochs, {doubled} doubled rows, {num_repeated} committed epochs repeated",
    )
    with capsys.disabled():
        print("", *figures, sep="\n")  # noqa: T201
    assert killer.num_killed == NUM_KILLS
    assert (lost, doubled, num_repeated) == (0, 0, 0)
    assert outcome.exit_code == 0
    assert outcome.runs["status"].tolist() == ["completed"] * 9
    assert len(journals) > 9
    assert without_times(outcome.results).equals(without_times(inline.results))

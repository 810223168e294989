import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from runmanager import load_results, load_runs
from runmanager.training import listeners
from runmanager.training.grid_context import GridContext
from runmanager.training.listeners import RunListener
from tests.of_grid import manager_of_grid

INPUTS = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10) % 3
RUN = {"lr": 0.1}


def batches_of(size=4, **options):
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=size, **options)


def train_epoch(manager, network, loss=functional.cross_entropy):
    for inputs, labels in manager.batches():
        value = loss(network(inputs), labels)
        if value.requires_grad:
            value.backward()
        manager.track_loss(value, inputs)


class Steps(RunListener):
    def __init__(self):
        self.steps = []

    def step_ended(self, progress):
        self.steps.append(progress[:3])


@pytest.fixture(autouse=True)
def every_step(monkeypatch):
    monkeypatch.setattr(listeners, "EVERY_S", 0.0)


def steps_of(tmp_path, train, **options):
    heard = Steps()
    manager = manager_of_grid("exp", tmp_path, GridContext(listeners=[heard], **options))
    with manager.run(RUN, nn.Linear(4, 3), batches_of()):
        train(manager)
    return heard.steps


def test_each_batch_is_told_once_with_the_number_of_epochs(tmp_path):
    def train(manager):
        for _ in manager.epochs(2):
            train_epoch(manager, manager.network)
            manager.track_loss(0.5, 1)  # a second loss is no second batch

    assert steps_of(tmp_path, train) == [(1, 1, 2), (1, 2, 2), (1, 3, 2), (2, 1, 2), (2, 2, 2), (2, 3, 2)]


def test_a_loop_over_the_loader_tells_its_batches_by_their_losses(tmp_path):
    def train(manager):
        manager.begin_epoch()
        for inputs, labels in manager.loader:
            manager.track_loss(functional.cross_entropy(manager.network(inputs), labels))
            manager.track_num_correct(manager.network(inputs), labels)
        manager.end_epoch()

    assert steps_of(tmp_path, train) == [(1, 1, None), (1, 2, None), (1, 3, None)]


def test_an_evaluation_tells_at_each_batch_that_it_gets_on(tmp_path):
    def train(manager):
        for _ in manager.epochs(1):
            train_epoch(manager, manager.network)
            manager.evaluate(batches_of())

    assert steps_of(tmp_path, train)[3:] == [(1, 3, 1)] * len(batches_of())


@pytest.mark.parametrize(("jobs", "columns"), [(1, []), (2, ["jobs"])])
def test_a_run_that_shared_the_machine_says_so(tmp_path, jobs, columns):
    steps_of(tmp_path, lambda m: [train_epoch(m, m.network) for _ in m.epochs(1)], jobs=jobs)

    for table in (load_results(tmp_path), load_runs(tmp_path)):
        assert [name for name in table if name == "jobs"] == columns
        assert table.get("jobs", [1])[0] == jobs


def test_tables_belong_to_the_parent_where_it_says_so(tmp_path):
    with manager_of_grid("exp", tmp_path).run(RUN):
        pass

    assert [path.name for path in (tmp_path / "exp").iterdir()] == ["001-lr=0.1"]


def test_each_epoch_is_reported_once_it_is_committed(tmp_path):
    seen = []

    class Epochs(RunListener):
        def epoch_ended(self, record, network):
            seen.append((record.epoch, load_results(tmp_path)["epoch"].tolist()))

    manager = manager_of_grid("exp", tmp_path, GridContext(listeners=[Epochs()]))
    with manager.run(RUN):
        for _ in manager.epochs(2):
            pass

    assert seen == [(1, [1]), (2, [1, 2])]

"""The tutorial's loop, in the forms in which people have copied it, unmodified."""

import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from runmanager import RunBuilder, RunManager
from tests.border.work import learn

TRAIN_SET = TensorDataset(
    torch.randn(50, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 10
)
PARAMS: OrderedDict[str, list[Any]] = OrderedDict(
    lr=[0.01, 0.001], batch_size=[20], shuffle=[True, False], num_epochs=[2], device=["cpu"], num_workers=[0]
)
COLUMNS = ["run", "epoch", "loss", "accuracy", "epoch duration", "run duration", *PARAMS]


pytestmark = pytest.mark.usefixtures("own_folder")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels=1, out_channels=2, kernel_size=3)
        self.out = nn.Linear(in_features=8, out_features=10)

    def forward(self, t):
        t = functional.max_pool2d(functional.relu(self.conv1(t)), kernel_size=2, stride=2)
        return self.out(t.reshape(-1, 8))


def begin(run, train_set=TRAIN_SET):
    torch.manual_seed(1)
    network = Network().to(torch.device(run.device))
    loader = DataLoader(train_set, batch_size=run.batch_size, num_workers=run.num_workers, shuffle=run.shuffle)
    return network, loader, optim.Adam(network.parameters(), lr=run.lr)


def latest_form(m, run):
    device = torch.device(run.device)
    network, loader, optimizer = begin(run)
    m.begin_run(run, network, loader)
    for _epoch in range(run.num_epochs):
        m.begin_epoch()
        for batch in loader:
            images = batch[0].to(device)
            labels = batch[1].to(device)
            preds, loss = learn(network, optimizer, images, labels)
            m.track_loss(loss, batch)
            m.track_num_correct(preds, labels)
        m.end_epoch()
    m.end_run()


def form_with_the_managers_own(m, run):
    network, loader, optimizer = begin(run)
    m.begin_run(run, network, loader)
    for _epoch in range(2):
        m.begin_epoch()
        for images, labels in m.loader:
            preds, loss = learn(m.network, optimizer, images, labels)
            m.track_num_correct(preds, labels)
            m.track_loss(loss)
        m.end_epoch()
    m.end_run()


def form_of_this_package(m, run):
    network, loader, optimizer = begin(run)
    with m.run(run, network, loader):
        for _epoch in m.epochs(run.num_epochs):
            for images, labels in m.batches():
                preds, loss = learn(network, optimizer, images, labels)
                m.track_loss(loss, images)
                m.track_num_correct(preds, labels)


def plain_torch(run):
    """Train without a manager; return the loss and accuracy of each epoch."""
    network, loader, optimizer = begin(run)
    rows = []
    for _epoch in range(run.num_epochs):
        total_loss, total_correct = 0.0, 0
        for images, labels in loader:
            preds, loss = learn(network, optimizer, images, labels)
            total_loss += loss.item() * len(images)
            total_correct += preds.argmax(dim=1).eq(labels).sum().item()
        rows.append((total_loss / 50, total_correct / 50))
    return rows


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("form", [latest_form, form_with_the_managers_own, form_of_this_package])
def test_every_form_of_the_loop_gives_the_numbers_of_plain_torch(form):
    m = RunManager()
    for run in RunBuilder.get_runs(PARAMS):
        form(m, run)

    expected = [values for run in RunBuilder.get_runs(PARAMS) for values in plain_torch(run)]
    assert [(row["loss"], row["accuracy"]) for row in m.run_data] == expected
    assert [(row["run"], row["epoch"]) for row in m.run_data] == [(r, e) for r in (1, 2, 3, 4) for e in (1, 2)]
    assert [list(row) for row in m.run_data] == [COLUMNS] * 8
    assert [row["lr"] for row in m.run_data] == [0.01] * 4 + [0.001] * 4
    assert all(0 < row["epoch duration"] <= row["run duration"] for row in m.run_data)


def test_attributes_begin_as_in_the_tutorial():
    m = RunManager()

    assert (m.epoch_count, m.epoch_loss, m.epoch_num_correct, m.run_count) == (0, 0, 0, 0)
    assert (m.epoch_start_time, m.run_start_time, m.run_params) == (None, None, None)
    assert (m.network, m.loader, m.tb, m.run_data) == (None, None, None, [])


def test_attributes_follow_the_loop():
    (run,) = RunBuilder.get_runs({"lr": [0.1]})
    network, loader = nn.Linear(3, 2), [torch.ones(4, 3)]
    preds, labels = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([1, 0, 1])
    m = RunManager()

    m.begin_run(run, network, loader)
    begun = (m.run_count, m.epoch_count, m.run_params, m.network, m.loader)
    inside = []
    for _ in range(2):
        m.begin_epoch()
        m.track_loss(torch.tensor(0.5), labels)
        m.track_num_correct(preds, labels)
        m.track_loss(torch.tensor(0.25), loader)
        inside.append((m.run_count, m.epoch_count, m.epoch_loss, m.epoch_num_correct))
        started = m.epoch_start_time
        m.end_epoch()
    m.end_run()

    assert begun == (1, 0, run, network, loader)
    assert inside == [(1, epoch, 0.5 * 3 + 0.25 * 4, 2) for epoch in (1, 2)]
    assert started is not None
    assert m.run_start_time is not None
    assert m.run_start_time <= started
    assert (m.run_count, m.epoch_count, m.epoch_start_time) == (1, 0, None)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batched", [False, True], ids=["track_loss(loss)", "track_loss(loss, batch)"])
def test_a_regression_needs_no_number_of_correct_predictions(drop_last, batched):
    (run,) = RunBuilder.get_runs(OrderedDict(lr=[0.1], batch_size=[20]))
    data = TensorDataset(torch.arange(50.0), torch.zeros(50))
    loader = DataLoader(data, batch_size=run.batch_size, drop_last=drop_last)
    m = RunManager()

    m.begin_run(run, nn.Linear(1, 1), loader)
    m.begin_epoch()
    for batch in loader:
        loss = functional.mse_loss(*batch)
        m.track_loss(loss, batch) if batched else m.track_loss(loss)
    m.end_epoch()
    m.end_run()
    m.save("results")

    seen = torch.arange(40.0 if drop_last else 50.0, dtype=torch.float64)
    assert m.run_data[0]["loss"] == pytest.approx(seen.square().mean().item())
    assert math.isnan(m.run_data[0]["accuracy"])
    assert json.loads(Path("results.json").read_text())[0]["accuracy"] is None


@pytest.mark.filterwarnings("ignore:Passing a list to DataFrame.from_dict is deprecated")
def test_the_rows_make_a_sorted_table_are_saved_and_shown_after_each_run(capsys):
    m = RunManager()
    for run in RunBuilder.get_runs(PARAMS):
        latest_form(m, run)
    m.save("new/results.v1")

    rows: Any = m.run_data
    by_accuracy = pd.DataFrame.from_dict(rows).sort_values("accuracy", ascending=False)
    by_duration = pd.DataFrame.from_dict(rows, orient="columns").sort_values("epoch duration")
    assert list(by_accuracy) == list(by_duration) == COLUMNS
    assert by_accuracy["accuracy"].is_monotonic_decreasing
    assert by_duration["epoch duration"].is_monotonic_increasing
    table = pd.read_csv("new/results.v1.csv", index_col=0)
    pd.testing.assert_frame_equal(table, pd.DataFrame(m.run_data), check_dtype=False)
    assert Path("new/results.v1.csv").read_text().startswith(",run,epoch,loss,accuracy,epoch duration,")
    content = Path("new/results.v1.json").read_text(encoding="utf-8")
    assert content == json.dumps(m.run_data, ensure_ascii=False, indent=4)
    lines = capsys.readouterr().out.splitlines()
    assert sum("accuracy" in line for line in lines) == 4
    assert len(lines) >= 2 + 4 + 6 + 8

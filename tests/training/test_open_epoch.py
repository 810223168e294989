from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from runmanager import RunManager, load_results
from runmanager.storage.journal import read_attempt

INPUTS = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10) % 3
RUN = {"lr": 0.1}


@pytest.fixture
def plain(tmp_path):
    return RunManager("exp", tmp_path, display=False, tensorboard=False)


def batches_of(size=4, **options):
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=size, **options)


def train_epoch(manager, network, loss=functional.cross_entropy):
    for inputs, labels in manager.batches():
        value = loss(network(inputs), labels)
        if value.requires_grad:
            value.backward()
        manager.track_loss(value, inputs)


def times(tmp_path, epoch=1):
    (folder,) = (tmp_path / "exp").glob("001*")
    return read_attempt(folder / "attempt-1.jsonl").epochs[epoch].times


@pytest.fixture
def clock(monkeypatch):
    """Stand in for every clock that durations are read from; it is moved by hand."""
    now = SimpleNamespace(seconds=0.0)
    read = lambda: now.seconds  # noqa: E731
    monkeypatch.setattr("runmanager.training.open_epoch.perf_counter", read)
    monkeypatch.setattr("runmanager.training.open_run.perf_counter", read)
    return now


def slowly(clock, seconds, values):
    for value in values:
        clock.seconds += seconds
        yield value


class SlowLoader:
    def __init__(self, clock, seconds, loader):
        self.parts = clock, seconds, loader

    def __iter__(self):
        return slowly(*self.parts)


@pytest.mark.parametrize("leave", [False, True], ids=["to the end", "by break"])
def test_evaluation_does_not_count_into_the_epochs_duration(plain, tmp_path, clock, leave):
    slow = SlowLoader(clock, 100, batches_of(5))
    with plain.run(RUN, nn.Linear(4, 3), batches_of(5)):
        clock.seconds += 1000
        for _ in plain.epochs(1):
            for _ in slowly(clock, 1, plain.batches()):
                pass
            plain.evaluate(slow)
            if leave:
                break
        if leave:
            plain.evaluate(slow, "later")

    (row,) = load_results(tmp_path).to_dict(orient="records")
    assert (row["epoch duration"], row["run duration"]) == (2, 1202)
    assert times(tmp_path)["phase_eval_s"] == (400 if leave else 200)


@pytest.mark.parametrize("leave", [False, True], ids=["to the end", "by break"])
def test_an_epochs_duration_is_waiting_for_data_and_computing(plain, tmp_path, clock, leave):
    with plain.run(RUN, None, SlowLoader(clock, 10, batches_of(5))):
        for _ in plain.epochs(1):
            for number, _ in enumerate(slowly(clock, 1, plain.batches()), 1):
                if leave and number == 2:
                    break

    (row,) = load_results(tmp_path).to_dict(orient="records")
    assert row["epoch duration"] == 22
    assert times(tmp_path) == {"phase_data_s": 20, "phase_train_s": 2}

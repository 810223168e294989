"""The share of the test items in the difference of a verdict."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from runmanager import load_results, load_runs, run_grid, verdict
from runmanager.storage.items import ItemFile, Items, read_items
from runmanager.training.evaluation import OpenEvaluation
from tests.damaging import as_if_killed

N = 400
LABELS = torch.arange(N) % 2
COLUMN = "test_accuracy"


class Fixed(nn.Module):
    """Classify the items of which the input is true correctly."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, batch):
        correct, labels = batch[:, 0], batch[:, 1].long()
        right = nn.functional.one_hot(labels, 2).float()
        return right * correct[:, None] + (1 - right) * (1 - correct[:, None])


class Stream(IterableDataset[Any]):
    """Yield the samples of a data set."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


def correct_of(run, epoch=2):
    """Draw the correct items of a run."""
    random = np.random.default_rng([run.seed, int(10 * run.lr), epoch])
    return random.random(N) < (0.9 if run.lr == 0.1 else 0.7) - 0.05 * (epoch == 1)


def data_of(run, epoch):
    correct = torch.tensor(correct_of(run, epoch)).float()
    return TensorDataset(torch.stack([correct, LABELS.float()], dim=1), LABELS)


def in_order(data):
    return DataLoader(data, batch_size=64)


class Train:
    """Evaluate once per epoch, by a loader of the test set."""

    def __init__(self, loader_of=in_order, keep=None, data="test"):
        self.loader_of, self.keep, self.data = loader_of, keep, data

    def __call__(self, run, manager):
        network = Fixed()
        with manager.run(run, network):
            parts = {"network": network}
            for epoch in manager.epochs(3, checkpoint=parts, keep=self.keep):
                manager.evaluate(self.loader_of(data_of(run, epoch)), self.data)


@pytest.fixture
def start(tmp_path):
    """Execute a grid under tmp_path; return its runs."""

    def run(train, seeds=7, **options):
        usual: dict[str, Any] = {"executor": "inline", "tensorboard": False, "display": False}
        usual |= {"repeats": "seed", "goal": f"max:{COLUMN}", "root": tmp_path, "experiment": "exp"}
        outcome = run_grid({"lr": [0.1, 0.2], "seed": range(seeds)}, train, **usual | options)
        return outcome.runs

    return run


def width_in(sentence):
    (width,) = re.findall(r"the choice of the 400 test items moves the difference by ± ([\d.]+)", sentence)
    return float(width)


@pytest.mark.slow(everywhere=True)
def test_a_verdict_says_how_far_the_choice_of_the_test_items_moves_it(start):
    runs = start(Train())

    differences = np.mean(
        [
            correct_of(best, 3).astype(float) - correct_of(other, 3)
            for best, other in zip(
                runs[runs.lr == 0.1].itertuples(), runs[runs.lr == 0.2].itertuples(), strict=True
            )
        ],
        axis=0,
    )
    expected = 1.96 * differences.std(ddof=1) / N**0.5
    sentence = str(verdict(runs))
    assert width_in(sentence) == pytest.approx(expected, rel=0.06)
    assert "decided after 7 seeds; the choice of" in sentence


@pytest.mark.slow(everywhere=True)
def test_the_items_are_those_of_the_epoch_whose_weights_are_kept(start):
    runs = start(Train(keep=f"best:{COLUMN}"), seeds=2)

    for run in runs.itertuples():
        history = [correct_of(run, epoch).mean() for epoch in (1, 2, 3)]
        items = read_items(Path(str(run.folder)), COLUMN, max(history), first=True)
        assert items
        assert items[1].tolist() == correct_of(run, 1 + int(np.argmax(history))).tolist()
    assert "400 test items" in str(verdict(runs))


@pytest.mark.slow(everywhere=True)
def test_items_are_called_by_the_name_of_their_data(start):
    decision = verdict(start(Train(data="val"), seeds=2, goal="max:val_accuracy"))

    assert "the choice of the 400 val items moves the difference" in str(decision)
    assert "test" not in f"{decision} {decision.assumptions}"


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    "loader_of",
    [
        lambda data: DataLoader(data, batch_size=64, shuffle=True),
        lambda data: DataLoader(Stream(data), batch_size=64),
        lambda data: iter([data[:]]),
    ],
    ids=["shuffled", "iterable", "iterator"],
)
def test_items_without_an_order_are_not_noted(start, tmp_path, loader_of):
    runs = start(Train(loader_of))

    assert "test items" not in str(verdict(runs))
    assert list(tmp_path.rglob("*.items.json")) == []


@pytest.mark.slow(everywhere=True)
def test_runs_with_other_test_data_are_not_paired(start):
    runs = start(Train(lambda data: in_order(data) if data.tensors[0][:, 0].mean() > 0.8 else [data[:-9]]))

    assert "test items" not in str(verdict(runs))


@pytest.mark.slow(everywhere=True)
def test_a_damaged_file_is_named_where_a_verdict_needs_it(start, tmp_path):
    runs = start(Train())
    path = min(tmp_path.rglob("*.items.json"))
    path.write_bytes(path.read_bytes()[:-40])

    expected = "the share of the test items is unknown, as attempt-1.items.json is damaged in run 1"
    assert str(verdict(runs)).endswith(expected)


@pytest.mark.parametrize("content", ["[]", "{}", '{"columns": []}', '{"columns": {"test_accuracy": [3]}}', ""])
def test_a_file_with_other_content_is_damaged(tmp_path, content):
    (tmp_path / "attempt-1.items.json").write_text(content)

    with pytest.raises(ValueError, match=r"attempt-1\.items\.json is damaged"):
        read_items(tmp_path, COLUMN, 0.5, first=False)


@pytest.mark.slow(everywhere=True)
def test_flipped_bits_are_noticed(start, tmp_path):
    runs = start(Train())
    path = min(tmp_path.rglob("*.items.json"))
    content = json.loads(path.read_bytes())
    for items in content["columns"][COLUMN]:
        items["bits"] = items["bits"].swapcase()
    path.write_text(json.dumps(content))

    assert "attempt-1.items.json is damaged" in str(verdict(runs))


@pytest.mark.slow(everywhere=True)
def test_a_killed_run_is_paired_by_the_items_of_its_last_epoch(start, tmp_path):
    undisturbed = str(verdict(start(Train())))
    for folder in sorted((tmp_path / "exp").glob("0*"))[3:9]:
        as_if_killed(folder, num_lost=1)

    assert str(verdict(start(Train()))) == undisturbed
    assert len(list(tmp_path.rglob("attempt-2.items.json"))) == 6


def test_the_items_of_an_epoch_that_was_lost_do_not_count(start, tmp_path):
    start(Train(), seeds=1)
    folder = next((tmp_path / "exp").glob("001*"))
    as_if_killed(folder, num_lost=1)
    run = load_runs(tmp_path / "exp").iloc[0]

    items = read_items(folder, COLUMN, float(run[COLUMN]), first=False)

    assert run["epochs"] == 2
    assert items
    assert items[1].tolist() == correct_of(run, 2).tolist()


@pytest.mark.slow(everywhere=True)
def test_the_tables_are_those_without_items(start, tmp_path):
    start(Train())
    start(Train(lambda data: iter([data[:]])), experiment="without")

    tables = [load_results(tmp_path / name)[["lr", "seed", "epoch", COLUMN]] for name in ("exp", "without")]
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize("batch_size", [N, 8])
def test_the_items_are_copied_once_per_evaluation(batch_size, monkeypatch):
    copies: list[torch.Tensor] = []
    copy = torch.Tensor.cpu

    def counted(tensor):
        copies.append(tensor)
        return copy(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    loader = DataLoader(TensorDataset(torch.rand(N, 2), LABELS), batch_size)
    evaluation = OpenEvaluation("test", loader, torch.device("cpu"))
    for _, labels in evaluation.batches():
        evaluation.add_correct(nn.functional.one_hot(labels, 2), labels)

    before = len(copies)
    items = evaluation.items(1)

    assert items
    assert items.unpacked().all()
    assert (before, len(copies)) == (0, 2)  # which are correct, and the labels


def test_several_labels_per_sample_are_no_items():
    tokens = torch.arange(N * 5).reshape(N, 5) % 2
    evaluation = OpenEvaluation("test", DataLoader(TensorDataset(tokens), 50), torch.device("cpu"))

    for (labels,) in evaluation.batches():
        evaluation.add_correct(nn.functional.one_hot(labels.flatten(), 2), labels.flatten())

    assert evaluation.items(1) is None


def test_labels_that_are_a_part_of_the_batch_do_not_keep_it():
    wide = torch.rand(N, 100).round().long()
    evaluation = OpenEvaluation("test", [wide], torch.device("cpu"))

    for batch in evaluation.batches():
        evaluation.add_correct(nn.functional.one_hot(batch[:, -1], 2), batch[:, -1])

    assert evaluation.items(1)
    assert evaluation._items is not None
    assert [labels.untyped_storage().nbytes() for _, labels in evaluation._items] == [8 * N]


def test_items_are_one_bit_each():
    items = Items.of(3, "digest", np.arange(10_000) % 3 == 0)

    assert len(items.bits) < 1700  # in base64; 1,250 bytes
    assert items.unpacked().sum() == 3334


def test_a_run_has_the_items_of_two_last_and_two_best_epochs(tmp_path):
    file = ItemFile(tmp_path, 1)
    for epoch, score in enumerate([0.1, 0.5, 0.3, 0.9, 0.2, 0.4, 0.6], 1):
        file.add("a", Items.of(epoch, "d", np.arange(100) < 10 * epoch))
        file.epoch_ended(score)

    content = json.loads((tmp_path / "attempt-1.items.json").read_bytes())
    assert [items["epoch"] for items in content["columns"]["a"]] == [2, 4, 6, 7]

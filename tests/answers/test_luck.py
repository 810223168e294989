"""The share of the test items in the difference of a verdict."""

import re
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runmanager import run_grid, verdict
from runmanager.answers.luck import half_width
from runmanager.core.evaluate import OpenEvaluation

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


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("keep", [None, f"best:{COLUMN}"])
def test_a_verdict_says_how_far_the_choice_of_the_test_items_moves_it(start, keep):
    runs = start(Train(keep=keep))

    sentence = str(verdict(runs))
    best, other = (runs[runs.lr == lr][f"kept {COLUMN}" if keep else COLUMN].mean() for lr in (0.1, 0.2))
    (width,) = re.findall(
        r"the choice of the 400 test items moves the difference by about ± ([\d.]+)", sentence
    )
    assert float(width) == pytest.approx(half_width(best, other, N), rel=0.06)
    differences = correct_of(Point(0.1, 0), 3).astype(float) - correct_of(Point(0.2, 0), 3)
    assert 1.96 * differences.std(ddof=1) / N**0.5 < float(width)


class Point(NamedTuple):
    lr: float
    seed: int


@pytest.mark.slow(everywhere=True)
def test_items_are_called_by_the_name_of_their_data(start):
    decision = verdict(start(Train(data="val"), seeds=2, goal="max:val_accuracy"))

    assert "the choice of the 400 val items moves the difference" in str(decision)
    assert "test" not in f"{decision} {decision.assumptions}"


@pytest.mark.slow(everywhere=True)
def test_nothing_is_said_of_different_numbers_of_items(start):
    runs = start(Train(lambda data: in_order(data) if data.tensors[0][:, 0].mean() > 0.8 else [data[:-9]]))

    assert "test items" not in str(verdict(runs))


def test_several_labels_per_sample_are_no_items():
    tokens = torch.arange(N * 5).reshape(N, 5) % 2
    evaluation = OpenEvaluation("test", DataLoader(TensorDataset(tokens), 50), torch.device("cpu"))

    for (labels,) in evaluation.batches():
        evaluation.sums.add_correct(nn.functional.one_hot(labels.flatten(), 2), labels.flatten())

    assert evaluation.num_items() == 0

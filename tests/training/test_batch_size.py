import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from runmanager import RunManager
from runmanager.core.loaders import batch_size
from runmanager.core.metrics import EpochSums
from runmanager.errors import InvalidArgumentError

IMAGES: Any = [torch.zeros(3, 8, 8)] * 5


@dataclass
class Batch:
    inputs: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (7, 7),
        (torch.zeros(7, 3), 7),
        (np.zeros((4, 3)), 4),
        ((torch.zeros(7, 3), torch.zeros(7)), 7),
        ([torch.zeros(7, 3), torch.zeros(7)], 7),
        ({"text": torch.zeros(7, 3), "labels": torch.zeros(7), "epoch": 3, "name": "train"}, 7),
        (([torch.zeros(7, 3), torch.zeros(7, 5)], torch.zeros(7)), 7),
        ((IMAGES, [{}] * 5), 5),
        ((IMAGES, torch.zeros(5)), 5),
        ((["one", "two", "three"], torch.zeros(3)), 3),
        (pack_sequence([torch.zeros(4), torch.zeros(2)]), 2),
        ((pack_sequence([torch.zeros(4), torch.zeros(2)]), torch.zeros(2)), 2),
        ((torch.zeros(3, 2), None, torch.tensor(0.5)), 3),
        (({"a": torch.zeros(4, 2)}, {"b": torch.zeros(4)}), 4),
        ([torch.zeros(5)], 5),
        ((3, {"x": (torch.tensor(1.0), torch.zeros(6))}), 6),
    ],
)
def test_the_samples_of_a_batch_are_counted_where_that_is_certain(batch, size):
    assert batch_size(batch) == size


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (
            {"text": torch.zeros(10), "labels": torch.zeros(3)},
            "the batch has 3 samples or 10 samples, depending",
        ),
        (IMAGES, "the batch has 3 samples or 5 samples, depending on which part is counted"),
        ((torch.zeros(1, 5), torch.zeros(2)), "the batch has 1 sample or 2 samples"),
        (torch.tensor(1.0), "cannot count the samples of a Tensor"),
        ("text", "cannot count the samples of a str"),
        (Batch(torch.zeros(3)), "cannot count the samples of a Batch"),
        (True, "cannot count the samples of a bool"),
        ({}, "cannot count the samples of a dict"),
    ],
)
def test_where_it_is_not_certain_the_number_is_asked_for(batch, problem):
    with pytest.raises(
        InvalidArgumentError, match=f"^{re.escape(problem)}.*track_loss.loss, len.labels.*batch_size=lambda"
    ):
        batch_size(batch)


@pytest.mark.parametrize(
    ("batch", "expected", "size"),
    [
        ({"text": torch.zeros(10), "labels": torch.zeros(3)}, 3, 3),
        (IMAGES, 5, 5),
        ([torch.zeros(3, 4, 2), torch.zeros(3, 4, 2)], 3, 3),
    ],
)
def test_what_the_loader_is_known_to_yield_decides_between_several_sizes(batch, expected, size):
    assert batch_size(batch, loader=DataLoader(IMAGES, batch_size=expected, collate_fn=list)) == size


def test_a_loader_that_yields_something_else_decides_nothing():
    with pytest.raises(InvalidArgumentError, match="2 samples or 8 samples"):
        batch_size({"text": torch.zeros(8), "labels": torch.zeros(2)}, loader=DataLoader(IMAGES, batch_size=3))


def test_the_batches_of_a_plain_loader_are_certain():
    loader = DataLoader(TensorDataset(torch.zeros(10, 1), torch.zeros(10, 1)), batch_size=4)

    assert [batch_size(batch, loader=loader, number=9) for batch in loader] == [4, 4, 2]


def test_each_place_that_counts_asks_the_function_that_was_given(tmp_path):
    def num_labels(batch):
        return len(batch["labels"])

    batches = [
        {"text": torch.zeros(10), "labels": torch.zeros(3)},
        {"text": torch.zeros(40), "labels": torch.zeros(1)},
    ]
    manager = RunManager("exp", tmp_path, tensorboard=False, display=False, batch_size=num_labels)
    with manager.run({"lr": 0.1}, loader=batches):
        for epoch in manager.epochs(2):
            for batch, value in zip(manager.batches(), (1.0, 5.0), strict=False):
                if epoch == 1:
                    manager.track(mine=value)
                manager.track_loss(value, batch if epoch == 1 else None)

    assert manager.results["loss"].tolist() == [2.0, 2.0]
    assert manager.results["mine"].tolist()[:1] == [2.0]


def test_metrics_of_a_batch_of_uncertain_size_are_not_weighed_by_a_guess(tmp_path):
    batches = [{"text": torch.zeros(10), "labels": torch.zeros(3)}]
    manager = RunManager("exp", tmp_path, tensorboard=False, display=False)

    def train():
        with manager.run({"lr": 0.1}, loader=batches):
            for _ in manager.epochs(1):
                for _ in manager.batches():
                    manager.track(mine=1.0)

    with pytest.raises(InvalidArgumentError, match="3 samples or 10 samples"):
        train()


@pytest.mark.parametrize("size", [0, True, 1.5, None])
def test_a_function_that_counts_wrongly_is_named(size):
    with pytest.raises(
        InvalidArgumentError, match=f"batch_size must return a whole number, 1 or more, got {size}"
    ):
        EpochSums(lambda _: size).add_loss(1.0, torch.zeros(3))

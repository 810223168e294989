"""Means are over samples: which size a value gets, where the batch leaves a choice."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from runmanager import RunManager, RunsWarning

VALUES: Any = torch.arange(10.0)
IMAGES = TensorDataset(VALUES.reshape(10, 1, 1, 1).expand(10, 3, 8, 8).contiguous(), torch.zeros(10).long())
ARRAYS: Any = [np.zeros(7)] * 10  # as a data set
ROWS: Any = [torch.full((7,), float(number)) for number in range(9)]


def a_list_of_one_row(manager):
    for rows in manager.batches():
        manager.track_loss(torch.stack(rows).mean(), rows)


def a_list_of_images(manager):
    for images, _ in manager.batches():
        manager.track_loss(images.mean(), list(images))


def dicts_of_the_images(manager):
    for images, _ in manager.batches():
        manager.track_loss(images.mean(), [{"x": torch.zeros(2)} for _ in images])


def batches_as_they_are(manager):
    for number, batch in enumerate(manager.batches()):
        manager.track_loss((3.0, 4.0, 8.0)[number], batch)


def fields(samples):
    return tuple(zip(*samples, strict=True))


class Endless(torch.utils.data.Sampler[int]):
    def __iter__(self):
        return iter(range(10))

    def __len__(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("loop", "loader", "mean"),
    [
        (batches_as_they_are, DataLoader(IMAGES, batch_size=4, collate_fn=tuple), 4.4),
        (batches_as_they_are, DataLoader(IMAGES, batch_size=4, collate_fn=fields), 4.4),
        (batches_as_they_are, DataLoader(ARRAYS, batch_size=4, collate_fn=list), 4.4),
        (batches_as_they_are, DataLoader(IMAGES, batch_size=4, sampler=Endless()), 4.4),
        (batches_as_they_are, [(VALUES[:num], VALUES[:num], (224, 224)) for num in (4, 4, 2)], 4.4),
        (batches_as_they_are, [{"x": VALUES[:num], "size": (224, 224)} for num in (4, 4, 2)], 4.4),
        (a_list_of_one_row, DataLoader(ROWS, batch_size=4, collate_fn=list), 4.0),
        (a_list_of_images, DataLoader(IMAGES, batch_size=4), 4.5),
        (dicts_of_the_images, DataLoader(IMAGES, batch_size=4), 4.5),
    ],
)
def test_a_mean_weighs_each_batch_by_its_samples(tmp_path, loop, loader, mean):
    manager = RunManager("means", tmp_path, display=False, tensorboard=False)

    with manager.run({"lr": 0.1}, None, loader):
        for _ in manager.epochs(1):
            loop(manager)

    assert manager.run_data[0]["loss"] == pytest.approx(mean)


def test_a_second_loss_of_a_batch_does_not_weigh_its_other_values_twice(tmp_path):
    manager = RunManager("means", tmp_path, display=False, tensorboard=False)

    with manager.run({"lr": 0.1}, None, DataLoader(VALUES, batch_size=4)):
        for _ in manager.epochs(1):
            for number, values in enumerate(manager.batches()):
                manager.track_loss(1.0, values)
                if number % 2 == 0:
                    manager.track_loss(2.0, values)
                manager.track(mean=values.mean())

    assert manager.run_data[0]["mean"] == pytest.approx(4.5)


def by_batches(manager):
    yield from manager.batches()


def by_loader(manager):
    yield from DataLoader(VALUES, batch_size=4)


@pytest.mark.parametrize("batches", [by_batches, by_loader])
@pytest.mark.parametrize("num_values", [1, 2])
def test_values_of_a_loop_over_other_batches_are_not_weighed_silently(tmp_path, batches, num_values):
    manager = RunManager("means", tmp_path, display=False, tensorboard=False)

    def execute():
        with manager.run({"lr": 0.1}, None, DataLoader(VALUES, batch_size=4)):
            for _ in manager.epochs(1):
                for values in batches(manager):
                    manager.track_loss(1.0, values)
                    for _ in range(num_values):  # as for two networks
                        manager.track(mean=values.mean())
                for values in VALUES.split(4):
                    manager.track(val_mean=values.mean())

    with pytest.warns(RunsWarning, match="'val_mean' count the same") as said:
        execute()

    assert (len(said), manager.run_data[0]["mean"]) == (1, pytest.approx(4.5))


def test_the_loss_so_far_has_the_current_batch(tmp_path):
    manager, so_far = RunManager("means", tmp_path, display=False, tensorboard=False), []

    with manager.run({"lr": 0.1}, None, DataLoader(IMAGES, batch_size=5)):
        for _ in manager.epochs(1):
            for images, labels in manager.batches():
                manager.track_loss(images.mean())
                manager.track_num_correct(torch.zeros(len(labels), 2), labels)
                so_far.append(manager.epoch_loss)

    assert so_far == [5 * 2.0, 5 * 2.0 + 5 * 7.0]

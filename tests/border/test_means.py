"""Means are over samples: which size a value gets, where the batch leaves a choice."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from runmanager import ImageTensors, InvalidArgumentError, RunsWarning, TensorLoader
from tests.border.experiments import manager_in

VALUES: Any = torch.arange(10.0)
IMAGES = TensorDataset(VALUES.reshape(10, 1, 1, 1).expand(10, 3, 8, 8).contiguous(), torch.zeros(10).long())
ARRAYS: Any = [np.zeros(7)] * 10  # as a data set
ROWS: Any = [torch.full((7,), float(number)) for number in range(9)]
NUMBERS = torch.arange(210.0)
PARTS = NUMBERS.split([10, 100, 100])


def one_epoch(manager, loader=None):
    """Yield in an epoch of a run."""
    with manager.run({"lr": 0.1}, None, loader):
        yield from manager.epochs(1)


def mean_of(manager, *losses, loader=None):
    """Track losses, each with its batch; return their mean."""
    for _ in one_epoch(manager, loader):
        for loss, batch in losses:
            manager.track_loss(loss, batch)
    return manager.run_data[0]["loss"]


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 6), st.floats(0, 100)), min_size=1, max_size=8))
def test_a_mean_is_the_sum_over_samples_divided_by_the_samples(tmp_path_factory, sizes):
    manager = manager_in(tmp_path_factory.mktemp("means"))
    for _ in one_epoch(manager):
        for number, (size, loss) in enumerate(sizes):
            manager.track_loss(torch.tensor(loss, dtype=torch.float64) if number % 2 else loss, size)
            manager.track_num_correct(torch.eye(3)[torch.zeros(size).long()], torch.arange(size) % 2)

    total = sum(size for size, _ in sizes)
    (row,) = manager.run_data
    assert row["loss"] == pytest.approx(sum(size * loss for size, loss in sizes) / total)
    assert row["accuracy"] == pytest.approx(sum((size + 1) // 2 for size, _ in sizes) / total)


@pytest.mark.parametrize("shape", [(4,), (3, 2)])
def test_predictions_that_do_not_fit_their_labels_are_refused(manager, shape):
    with pytest.raises(InvalidArgumentError, match=r"preds must have the shape \(N, number of classes\)"):
        manager.get_num_correct(torch.ones(shape), torch.zeros(4))


def a_list_of_one_row(manager):
    for rows in manager.batches():
        manager.track_loss(torch.stack(rows).mean(), rows)


def lists_of_the_images(manager):
    for number, (images, _) in enumerate(manager.batches()):
        manager.track_loss(images.mean(), [{"x": zeros(2)} for _ in images] if number else list(images))


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
        (lists_of_the_images, DataLoader(IMAGES, batch_size=4), 4.5),
    ],
)
def test_a_mean_weighs_each_batch_by_its_samples(manager, loop, loader, mean):
    for _ in one_epoch(manager, loader):
        loop(manager)

    assert manager.run_data[0]["loss"] == pytest.approx(mean)


def in_own_loop(_):
    yield from zip(PARTS, PARTS, strict=True)


def in_micro_batches(manager):
    for (batch,) in manager.batches():
        for part in batch.split(30):
            yield part, part


def in_a_loop_over_two_loaders(manager):
    for _, part in zip(manager.batches(), PARTS, strict=True):
        yield part, part


def without_sizes(_):
    for (batch,) in DataLoader(TensorDataset(NUMBERS), 100):
        yield batch, None


@pytest.mark.parametrize(
    ("loop", "size"),
    [(in_own_loop, 70), (in_micro_batches, 100), (in_a_loop_over_two_loaders, 70), (without_sizes, 100)],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_tracked_value_is_weighted_by_its_own_batch(manager, loop, size, is_first):
    for _ in one_epoch(manager, DataLoader(TensorDataset(NUMBERS), size)):
        for part, batch in loop(manager):
            if not is_first and batch is not None:
                manager.track_loss(1.0, batch)
            manager.track(mean=part.mean())
            if is_first and batch is not None:
                manager.track_loss(1.0, batch)

    assert manager.run_data[0]["mean"] == pytest.approx(NUMBERS.mean().item())


@pytest.mark.parametrize("is_first", [True, False])
def test_two_losses_of_a_batch_and_losses_of_its_parts_do_not_weigh_its_other_values_twice(manager, is_first):
    for _ in one_epoch(manager, DataLoader(VALUES, batch_size=4)):
        for number, values in enumerate(manager.batches()):
            if is_first:
                manager.track(mean=values.mean())
            for part in [values] * 2 if number == 0 else values.split(3):
                manager.track_loss(1.0, part)
            if not is_first:
                manager.track(mean=values.mean())

    assert manager.run_data[0]["mean"] == pytest.approx(4.5)


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("num_values", [1, 2])
def test_values_of_a_loop_over_other_batches_count_the_same_with_a_warning(manager, is_own, num_values):
    def execute():
        loader = DataLoader(VALUES, batch_size=4)
        for _ in one_epoch(manager, loader):
            for values in loader if is_own else manager.batches():
                manager.track_loss(1.0, values)
                for _ in range(num_values):  # as for two networks
                    manager.track(mean=values.mean())
            for values in VALUES.split(4):
                manager.track(val_mean=values.mean())

    with pytest.warns(RunsWarning, match=r"'val_mean' count the same, .* manager.batches\(\)") as said:
        execute()

    assert len(said) == 1
    assert [manager.run_data[0][name] for name in ("mean", "val_mean")] == pytest.approx([4.5, 15.5 / 3])


def first_and_in_a_batch_that_is_left_out(manager):
    manager.track(norm=1.0)
    manager.track_loss(1.0, 10)
    manager.track(norm=2.0)
    manager.track(norm=3.0)
    manager.track_loss(1.0, 10)


def before_the_first_batch(manager):
    manager.track(norm=1.0)
    for values in manager.batches():
        manager.track_loss(1.0, values)
        manager.track(norm=2.0)


@pytest.mark.parametrize("loop", [first_and_in_a_batch_that_is_left_out, before_the_first_batch])
def test_values_without_a_loss_of_their_batch_are_not_weighted_silently(manager, loop):
    def execute():
        for _ in one_epoch(manager, DataLoader(VALUES, batch_size=4)):
            loop(manager)

    with pytest.warns(RunsWarning, match="'norm' count the same"):
        execute()


def test_two_tensors_of_one_shape_are_parts_if_torch_has_collated_them(manager):
    sample = zeros(6)
    for stream, collate in (([sample, sample], None), (sample, list)):
        with suppress(InvalidArgumentError):
            for _ in one_epoch(manager, DataLoader(Stream([stream] * 5), 2, collate_fn=collate)):
                for number, batch in enumerate(manager.batches()):
                    manager.track_loss(float(number), batch)

    assert manager.results["loss"].tolist() == [(2 * 0 + 2 * 1 + 1 * 2) / 5]


def test_the_loss_so_far_has_the_current_batch(manager):
    so_far = []
    for _ in one_epoch(manager, DataLoader(IMAGES, batch_size=5)):
        for images, labels in manager.batches():
            manager.track_loss(images.mean())
            manager.track_num_correct(zeros(len(labels), 2), labels)
            so_far.append(manager.epoch_loss)

    assert so_far == [5 * 2.0, 5 * 2.0 + 5 * 7.0]


def zeros(*shape):
    return torch.zeros(*shape)


@dataclass
class Inputs:
    inputs: torch.Tensor


PICTURES: Any = [zeros(3, 8, 8)] * 5
PACKED: Any = pack_sequence([zeros(4), zeros(2)])
GRAPH: Any = {"text": zeros(10), "labels": zeros(3)}


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (7, 7), (zeros(7, 3), 7), (np.zeros((4, 3)), 4), ((zeros(7, 3), zeros(7)), 7),
        ([zeros(7, 3), zeros(7)], 7),
        ({"text": zeros(7, 3), "labels": zeros(7), "epoch": 3, "name": "train"}, 7),
        (([zeros(7, 3), zeros(7, 5)], zeros(7)), 7), ((PICTURES, [{}] * 5), 5), ((PICTURES, zeros(5)), 5),
        ((["one", "two", "three"], zeros(3)), 3), (PACKED, 2), ((PACKED, zeros(2)), 2),
        ((zeros(3, 2), None, torch.tensor(0.5)), 3), (({"a": zeros(4, 2)}, {"b": zeros(4)}), 4),
        ([zeros(5)], 5), ((3, {"x": (torch.tensor(1.0), zeros(6))}), 6),
    ],
)  # fmt: skip
def test_the_samples_of_a_batch_are_counted_where_that_is_certain(manager, batch, size):
    assert mean_of(manager, (1.0, batch), (0.0, 1)) == size / (size + 1)


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (GRAPH, "3 samples or 10 samples"), (PICTURES, "3 samples or 5 samples"),
        ((zeros(1, 5), zeros(2)), "1 sample or 2 samples"), (torch.tensor(1.0), "a Tensor"),
        ("text", "a str"), (["a", "b"], "a list"), (Inputs(zeros(3)), "an? Inputs"), (True, "a bool"),
        ({}, "a dict"),
    ],
)  # fmt: skip
def test_where_it_is_not_certain_the_number_is_asked_for(manager, batch, problem):
    with pytest.raises(
        InvalidArgumentError, match=f"{problem}.*track_loss.loss, len.labels.*batch_size=lambda"
    ):
        mean_of(manager, (1.0, batch))


@pytest.mark.parametrize(
    ("batch", "size", "is_decided"),
    [(GRAPH, 3, True), (PICTURES, 5, True), ([zeros(3, 4)] * 2, 3, True), ((zeros(8), zeros(2)), 3, False)],
)
def test_what_the_loader_is_known_to_yield_decides_between_several_sizes(manager, batch, size, is_decided):
    loader = DataLoader(PICTURES * 2, batch_size=size, collate_fn=list)
    if is_decided:
        assert mean_of(manager, (1.0, batch), (0.0, 1), loader=loader) == size / (size + 1)
        return
    with pytest.raises(InvalidArgumentError, match="2 samples or 8 samples"):
        mean_of(manager, (1.0, batch), loader=loader)


BATCHES: Any = [GRAPH, {"text": zeros(40), "labels": zeros(1)}]


@pytest.mark.parametrize("is_given", [True, False])
def test_each_place_that_counts_asks_the_function_that_was_given(tmp_path, is_given):
    manager = manager_in(tmp_path, batch_size=lambda batch: len(batch["labels"]))
    for _ in one_epoch(manager, BATCHES):
        for batch, value in zip(manager.batches(), (1.0, 5.0), strict=False):
            manager.track(mine=value)
            manager.track_loss(value, batch if is_given else None)

    assert [manager.run_data[0][name] for name in ("loss", "mine")] == [2.0, 2.0]


def test_metrics_of_a_batch_of_uncertain_size_are_not_weighed_by_a_guess(manager):
    def track():
        for _ in one_epoch(manager, BATCHES):
            for _ in manager.batches():
                manager.track(mine=1.0)

    with pytest.raises(InvalidArgumentError, match="3 samples or 10 samples"):
        track()


@pytest.mark.parametrize("size", [0, True, 1.5, None])
def test_a_function_that_counts_wrongly_is_named(tmp_path, size):
    with pytest.raises(InvalidArgumentError, match=f"batch_size must return a whole number.* got {size}"):
        mean_of(manager_in(tmp_path, batch_size=lambda _: size), (1.0, zeros(3)))


class Stream(IterableDataset[Any]):
    def __init__(self, samples=VALUES):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


TEN, OF_IMAGES = (TensorDataset(VALUES), ImageTensors(VALUES.reshape(10, 1, 1, 1), torch.arange(10)))
SIZED = {
    "short last": DataLoader(TEN, 4), "even": DataLoader(TEN, 5), "one short": DataLoader(TEN, 20),
    "drop_last": DataLoader(TEN, 4, drop_last=True), "shuffled": DataLoader(TEN, 4, shuffle=True),
    "a sampler": DataLoader(TEN, 4, sampler=SubsetRandomSampler(range(3, 9))),
    "a list as sampler": DataLoader(TEN, batch_size=3, sampler=[2, 4, 6, 8]),
    "ours": TensorLoader(OF_IMAGES, 4), "ours, even": TensorLoader(OF_IMAGES.first(8), 4),
}  # fmt: skip
UNSIZED: dict[str, Any] = {
    "a stream": DataLoader(Stream(), batch_size=4),
    "single samples": DataLoader(VALUES, batch_size=None),
    "a batch sampler": DataLoader(TEN, batch_sampler=BatchSampler(SequentialSampler(TEN), 4, drop_last=False)),
    "a list": [zeros(4), zeros(2)],
    "nothing": None,
}


@pytest.mark.parametrize("name", SIZED)
def test_losses_without_a_batch_are_weighed_by_the_loader(manager, name):
    seen: list[float] = []
    for _ in one_epoch(manager, SIZED[name]):
        for batch in SIZED[name]:
            manager.track_loss(batch[0].mean())
            seen += batch[0].flatten().tolist()

    assert manager.run_data[0]["loss"] == pytest.approx(np.mean(seen), abs=1e-6)


@pytest.mark.parametrize("name", UNSIZED)
def test_a_size_that_cannot_be_known_is_not_guessed(manager, name):
    with pytest.raises(InvalidArgumentError, match=r"call track_loss\(loss, batch\)"):
        mean_of(manager, (1.0, None), loader=UNSIZED[name])


def test_a_batch_after_the_last_of_the_loader_has_no_size(manager):
    losses, loader = [(1.0, None)] * 3, SIZED["even"]

    assert mean_of(manager, *losses[:2], loader=loader) == 1.0
    with pytest.raises(InvalidArgumentError, match=r"call track_loss\(loss, batch\)"):
        mean_of(manager, *losses, loader=loader)


@pytest.mark.parametrize("order", ["loss", "correct"])
def test_a_loss_without_a_batch_is_weighed_by_the_labels_of_its_batch(manager, order):
    for _ in one_epoch(manager):
        manager.track_loss(1.0, zeros(6))
        manager.track_num_correct(zeros(6, 3), zeros(6))
        for size, loss in ((2, 5.0), (4, 3.0)):
            if order == "loss":
                manager.track_loss(loss)
            manager.track_num_correct(zeros(size, 3), zeros(size))
            if order == "correct":
                manager.track_loss(loss)

    assert [manager.run_data[0][name] for name in ("loss", "accuracy")] == [28 / 12, 1.0]


@pytest.mark.parametrize(
    ("preds", "labels"),
    [((8, 3), (8, 1)), ((8, 3), (7,)), ((8,), (7,)), ((8, 1), (7, 1)), ((2, 3, 4, 4), (2, 4)),
     ((2, 3, 4, 4), (2, 1, 4, 4)), ((), ())],
)  # fmt: skip
def test_shapes_that_would_compare_every_sample_with_every_other_are_refused(manager, preds, labels):
    for _ in one_epoch(manager):
        with pytest.raises(InvalidArgumentError) as caught:
            manager.track_num_correct(zeros(preds), zeros(labels))

    assert f"got {preds} and {labels}" in str(caught.value)
    assert "accuracy" not in manager.results or manager.results["accuracy"].isna().all()


@pytest.mark.parametrize(("preds", "labels"), [((8,), (8,)), ((8, 1), (8, 1)), ((8, 1), (8,))])
def test_where_there_are_no_classes_accuracy_is_left_empty_with_a_warning(manager, preds, labels):
    for _ in one_epoch(manager):
        manager.track_loss(0.5)
        with pytest.warns(RunsWarning, match=r"leave track_num_correct\(\) out, override"):
            manager.track_num_correct(zeros(preds), zeros(labels))

    assert manager.run_data[0]["loss"] == 0.5
    assert np.isnan(manager.results["accuracy"]).all()


def test_one_hot_labels_are_counted_and_segmentation_counts_pixels(manager):
    labels = torch.randint(0, 3, (2, 4, 5), generator=torch.Generator().manual_seed(0))
    scores = one_hot(labels, 3).movedim(3, 1).float()  # (2, 3, 4, 5)
    labels[0, 0] = 3  # five pixels are wrong
    cases: Any = [(one_hot(torch.tensor([0, 2, 2]), 3).float(), one_hot(torch.tensor([0, 2, 1]), 3), 2 / 3),
                  (scores, labels, 35 / 40)]  # fmt: skip

    for preds, targets, expected in cases:
        for _ in one_epoch(manager):
            manager.track_loss(7.0)
            manager.track_num_correct(preds, targets)
        assert manager.run_data[-1]["accuracy"] == pytest.approx(expected)
        assert manager.run_data[-1]["loss"] == 7.0


@pytest.mark.parametrize(
    ("loss", "named"), [("low", "'low'"), (None, "None"), (zeros(4), r"shape \(4,\).*\.mean\(\)")]
)
def test_a_loss_that_cannot_be_averaged_is_refused(manager, loss, named):
    with pytest.raises(InvalidArgumentError, match=f"loss must be a .*{named}"):
        mean_of(manager, (loss, 4))


@pytest.mark.parametrize(
    ("how", "named"),
    [("median", "'mean', 'sum', 'last', 'min', 'max', got 'median'"), (0.5, r"track\(\{'how'"),
     ("max", "two sources.* how='sum' .* how='max'"), ("mean", "two sources.* how='sum'")],
)  # fmt: skip
def test_another_way_to_reduce_a_metric_is_refused(manager, how, named):
    for _ in one_epoch(manager):
        manager.track(reward=1, how="sum")
        with pytest.raises(InvalidArgumentError, match=named):
            manager.track(reward=1, how=how)

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import one_hot
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from runmanager.core import metrics
from runmanager.core.metrics import EpochSums, are_correct, single
from runmanager.errors import InvalidArgumentError, RunsWarning

LOSSES = st.floats(-1e6, 1e6)
NUMBER = "pass their number, as in track_loss(loss, len(labels)), or give batch_size=lambda batch: ..."
SAMPLES = TensorDataset(torch.arange(10.0))


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self):
        return iter(torch.arange(10.0))


@pytest.fixture(scope="module", autouse=True, params=[True, False], ids=["on the cpu", "as on a device"])
def reads_at_once(request):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(metrics, "IS_CPU_READ", request.param)
        yield request.param


@given(st.lists(st.lists(LOSSES, min_size=1, max_size=7), min_size=1, max_size=6))
def test_the_mean_of_ragged_batches_is_the_mean_over_all_samples(batches):
    sums = EpochSums()

    for batch in batches:
        losses = torch.tensor(batch, dtype=torch.float64)
        sums.add_loss(losses.mean(), losses)

    samples = np.concatenate(batches)
    (name, mean), *others = sums.means().items()
    assert (name, others) == ("loss", [])
    assert mean == pytest.approx(samples.mean(), rel=1e-9, abs=1e-9 * np.abs(samples).max())
    tolerance = 1e-9 * np.abs(samples).max()
    assert samples.min() - tolerance <= mean <= samples.max() + tolerance


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 2**31))
def test_accuracy_is_the_share_of_samples_whose_largest_score_is_the_labels(sizes, seed):
    generator = np.random.default_rng(seed)
    batches = [(generator.normal(size=(size, 4)), generator.integers(0, 4, size)) for size in sizes]
    sums = EpochSums()

    for scores, labels in batches:
        sums.add_correct(torch.from_numpy(scores), torch.from_numpy(labels))

    hits = np.concatenate([scores.argmax(axis=1) == labels for scores, labels in batches])
    assert sums.means() == {"accuracy": hits.mean()}
    assert sums.accuracy.total() == hits.sum()


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(SAMPLES, batch_size=4),
        DataLoader(SAMPLES, batch_size=4, drop_last=True),
        DataLoader(SAMPLES, batch_size=4, shuffle=True),
        DataLoader(SAMPLES, batch_size=4, sampler=SubsetRandomSampler(range(3, 9))),
        DataLoader(SAMPLES, batch_size=20),
    ],
    ids=["short last batch", "drop_last", "shuffle", "sampler", "one batch"],
)
def test_losses_without_a_batch_are_weighed_by_the_loader(loader):
    sums, seen = EpochSums(loader=loader), []

    for (values,) in loader:
        sums.add_loss(values.mean(), None)
        seen += values.tolist()

    assert sums.means() == {"loss": pytest.approx(np.mean(seen), abs=1e-6)}


def test_losses_of_an_iterable_dataset_need_their_batch():
    loader = DataLoader(Stream(), batch_size=4)
    with_batch, without = EpochSums(), EpochSums(loader=loader)

    for values in loader:
        with_batch.add_loss(values.mean(), values)
        without.add_loss(values.mean(), None)
    with pytest.raises(InvalidArgumentError) as caught:
        without.means()

    assert with_batch.means() == {"loss": pytest.approx(4.5)}
    assert str(caught.value) == (
        "the loader does not show how many samples a batch has: call track_loss(loss, batch)"
    )


@pytest.mark.parametrize("loss_first", [True, False])
def test_a_loss_without_a_batch_is_weighed_by_the_correct_ones_of_its_batch(loss_first):
    sums = EpochSums()

    for size, loss in ((6, 1.0), (2, 5.0)):
        if loss_first:
            sums.add_loss(loss, None)
        sums.add_correct(torch.zeros(size, 3), torch.zeros(size))
        if not loss_first:
            sums.add_loss(loss, None)

    assert sums.means() == {"loss": 2.0, "accuracy": 1.0}


def test_losses_with_and_without_a_batch_can_be_mixed():
    sums = EpochSums()

    sums.add_loss(1.0, torch.zeros(6))
    sums.add_correct(torch.zeros(6, 3), torch.zeros(6))
    sums.add_loss(5.0, None)
    sums.add_correct(torch.zeros(2, 3), torch.zeros(2))

    assert sums.means()["loss"] == 2.0


def test_a_loss_counts_with_the_value_it_had_when_it_was_added():
    sums = EpochSums(loader=DataLoader(SAMPLES, batch_size=4))
    loss = torch.tensor(4.0, dtype=torch.float64)

    sums.add_loss(loss, None)
    loss /= 4

    assert sums.means() == {"loss": 4.0}


@pytest.mark.parametrize("first", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("second", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_adding_works_in_every_mode(first, second):
    sums = EpochSums()

    for mode, loss in ((first, 1.0), (second, 3.0)):
        with mode():
            sums.add_loss(torch.tensor(loss), torch.zeros(2))
            sums.add_correct(torch.eye(2), torch.zeros(2))

    assert sums.means() == {"loss": 2.0, "accuracy": 0.5}


def test_adding_a_loss_keeps_its_gradients_and_no_graph():
    weight = torch.ones(3, requires_grad=True)
    loss = (2 * weight).mean()
    sums = EpochSums()

    sums.add_loss(loss, weight)
    loss.backward()

    assert weight.grad is not None
    assert weight.grad.tolist() == pytest.approx([2 / 3] * 3)
    assert not torch.as_tensor(sums._sums["loss"].total()).requires_grad


def test_sums_of_many_small_values_are_exact():
    sums = EpochSums()

    for _ in range(3000):
        sums.add_loss(torch.tensor(0.1), 100_000)

    assert sums.means()["loss"] == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)


def test_further_means_are_weighed_as_told():
    sums = EpochSums()

    for value, size in ((torch.tensor(0.5), 3), (1, 1), (np.float64(0.5), 4)):
        sums.add_loss(1.0, size)
        sums.track("f1", value, "mean")

    assert sums.means() == {"loss": 1.0, "f1": 0.5625}


def test_nothing_added_is_no_mean_and_a_total_of_zero():
    assert EpochSums().means() == {}
    assert EpochSums().loss.total() == 0


def test_a_loss_that_is_not_finite_shows_in_the_mean():
    sums = EpochSums()

    sums.add_loss(torch.tensor(math.nan), 2)
    sums.add_loss(torch.tensor(1.0), 2)

    assert math.isnan(sums.means()["loss"])


@pytest.mark.parametrize(
    ("loss", "batch", "message"),
    [
        ("low", 4, "loss must be a number or a tensor of one, got 'low'"),
        (None, 4, "loss must be a number or a tensor of one, got None"),
        (
            1.0,
            ["a", "b"],
            f"cannot count the samples of a list: {NUMBER}",
        ),
        (
            1.0,
            torch.tensor(3.0),
            f"cannot count the samples of a Tensor: {NUMBER}",
        ),
    ],
)  # fmt: skip
def test_a_loss_that_cannot_be_averaged_is_refused(loss, batch, message):
    with pytest.raises(InvalidArgumentError) as caught:
        EpochSums().add_loss(loss, batch)

    assert str(caught.value) == message


def test_a_loss_per_sample_is_refused():
    with pytest.raises(InvalidArgumentError) as caught:
        EpochSums().add_loss(torch.zeros(4), torch.zeros(4))

    assert str(caught.value) == (
        "loss must be a single value, the mean over the batch, got a tensor of shape (4,): call .mean() on it"
    )


@pytest.mark.parametrize(
    ("preds", "labels"),
    [
        ((8, 3), (8, 1)),
        ((8, 3), (7,)),
        ((8,), (7,)),
        ((8, 1), (7, 1)),
        ((2, 3, 4, 4), (2, 4)),
        ((2, 3, 4, 4), (2, 1, 4, 4)),
        ((), ()),
    ],
)
def test_shapes_that_would_compare_every_sample_with_every_other_are_refused(preds, labels):
    sums = EpochSums()

    with pytest.raises(InvalidArgumentError) as caught:
        sums.add_correct(torch.zeros(preds), torch.zeros(labels))

    assert str(caught.value) == (
        f"preds must have the shape (N, number of classes) and labels (N,), got {preds} and {labels}"
    )
    assert sums.means() == {}


def test_one_hot_labels_are_counted():
    labels = torch.tensor([0, 2, 1])
    sums = EpochSums()

    sums.add_correct(one_hot(torch.tensor([0, 2, 2]), 3).float(), one_hot(labels, 3))

    assert sums.means() == {"accuracy": pytest.approx(2 / 3)}


@pytest.mark.parametrize(("preds", "labels"), [((8,), (8,)), ((8, 1), (8, 1)), ((8, 1), (8,))])
def test_where_there_are_no_classes_accuracy_is_left_empty_with_a_warning(preds, labels):
    sums = EpochSums()
    sums.add_loss(0.5, None)

    with pytest.warns(RunsWarning, match=r"predictions of shape .* leave track_num_correct\(\) out, override"):
        sums.add_correct(torch.zeros(preds), torch.zeros(labels))

    assert sums.means() == {"loss": 0.5}


def test_segmentation_counts_pixels():
    labels = torch.randint(0, 3, (2, 4, 5), generator=torch.Generator().manual_seed(0))
    preds = one_hot(labels, 3).movedim(3, 1).float()  # (2, 3, 4, 5)
    labels[0, 0] = 3  # five pixels are wrong
    sums = EpochSums()

    sums.add_loss(7.0, None)
    sums.add_correct(preds, labels)

    assert are_correct(preds, labels).count_nonzero() == 35
    assert sums.means() == {"loss": 7.0, "accuracy": 35 / 40}


@pytest.mark.parametrize("value", [2, 2.0, np.float64(2), torch.tensor(2), torch.tensor([[2.0]])])
def test_a_single_number_may_come_in_any_form(value):
    assert float(single("loss", value)) == 2.0


@given(
    st.lists(st.sampled_from([0.5, 2.0, math.nan, math.inf, -math.inf]), max_size=40),
    st.booleans(),
    st.sets(st.integers(0, 40)),
)
def test_the_first_loss_that_is_not_finite_is_found(losses, as_tensors, looked_at):
    sums = EpochSums()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "CHUNK", 8)
        for number, loss in enumerate(losses):
            sums.add_loss(torch.tensor(loss) if as_tensors else loss, 2)
            if number in looked_at:
                sums.loss.total()
        found = sums.first_not_finite()

    bad = [number for number, loss in enumerate(losses) if not math.isfinite(loss)]
    if not bad:
        assert found is None
    else:
        assert found is not None
        assert found[0] == bad[0] + 1
        assert repr(found[1]) == repr(losses[bad[0]])
        assert bad[0] == 0 or found[2] == losses[bad[0] - 1]


def test_a_million_losses_take_no_more_memory_than_a_thousand():
    sums = EpochSums()

    for _ in range(3 * metrics.CHUNK):
        sums.add_loss(torch.tensor(0.5), 1)

    assert not sums.loss.chunk
    assert all(
        value.numel() <= metrics.CHUNK + 2
        for value in vars(sums.loss).values()
        if isinstance(value, torch.Tensor)
    )


def test_losses_may_be_floats_and_tensors_under_any_mode():
    sums = EpochSums()
    losses: list[torch.Tensor | float] = [
        0.5,
        torch.tensor(1.5),
        torch.tensor(2.5, dtype=torch.float64),
        torch.tensor([[3]]),
    ]
    modes = [torch.inference_mode, torch.no_grad, torch.enable_grad]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "CHUNK", 2)
        for _ in range(3):
            for mode in modes:
                with mode():
                    for loss in losses:
                        sums.add_loss(loss, 1)
        means, first = sums.means(), sums.first_not_finite()

    assert (means, first) == ({"loss": 1.875}, None)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_sums_are_kept_on_the_device_until_they_are_read():
    device, sums = torch.device("cuda:0"), EpochSums()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss, labels = torch.ones((), device=device), torch.zeros(4, device=device)
        for _ in range(3000):
            sums.add_loss(loss, labels)
            sums.add_correct(torch.zeros(4, 2, device=device), labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert sums.means() == {"loss": 1.0, "accuracy": 1.0}

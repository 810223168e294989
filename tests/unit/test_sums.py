"""The sums of an epoch: numbers are added at once, tensors of a device in blocks, and both give the same."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runmanager.core import metrics
from runmanager.core.metrics import EpochSums

CPU = torch.device("cpu")
MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]


@pytest.fixture(scope="module", autouse=True, params=[True, False], ids=["numbers", "as on a device"])
def _is_read_at_once(request):
    """Treat tensors of the cpu as numbers, or as those of a device, in short blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "IS_CPU_READ", request.param)
        patch.setattr(metrics, "CHUNK", 8)
        yield


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=7), min_size=1, max_size=20))
def test_the_mean_of_ragged_batches_is_the_mean_over_all_samples(batches):
    sums = EpochSums()

    for batch in batches:
        losses = torch.tensor(batch, dtype=torch.float64)
        sums.add_loss(losses.mean(), losses)

    samples = np.concatenate(batches)
    assert list(sums.means()) == ["loss"]
    assert sums.means()["loss"] == pytest.approx(samples.mean(), rel=1e-9, abs=1e-9 * np.abs(samples).max())


@given(
    st.lists(st.sampled_from([0.5, 2.0, math.nan, math.inf, -math.inf]), max_size=40),
    st.booleans(),
    st.sets(st.integers(0, 40)),
)
def test_the_first_loss_that_is_not_finite_is_found_with_the_one_before_it(losses, as_tensors, looked_at):
    sums = EpochSums()
    for number, loss in enumerate(losses):
        sums.add_loss(torch.tensor(loss) if as_tensors else loss, 2)
        if number in looked_at:
            sums.loss.total()

    bad = [number for number, loss in enumerate(losses) if not math.isfinite(loss)][:1]
    before = [losses[number - 1] if number else 0.0 for number in bad]
    expected = [(number + 1, losses[number], last) for number, last in zip(bad, before, strict=True)]
    assert repr(sums.first_not_finite()) == repr(expected[0] if expected else None)


def test_sums_are_exact_and_take_no_more_memory_the_longer_an_epoch_is():
    sums = EpochSums()

    for _ in range(3000):
        sums.add_loss(torch.tensor(0.1), 100_000)

    assert sums.means()["loss"] == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)
    assert not sums.loss.chunk
    assert all(value.numel() <= 3 for value in vars(sums.loss).values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_values_of_any_kind_are_added_in_every_mode(first, second):
    sums = EpochSums()
    losses: list[torch.Tensor | float] = [
        0.5,
        torch.tensor(1.5),
        torch.tensor(2.5, dtype=torch.float64),
        torch.tensor([[3]]),
    ]

    for mode in (first, second) * 3:
        with mode():
            for loss in losses:
                sums.add_loss(loss, 1)
            sums.add_correct(torch.eye(2), torch.zeros(2))

    assert sums.means() == {"loss": 1.875, "accuracy": 0.5}
    assert sums.first_not_finite() is None


@pytest.mark.parametrize(
    ("how", "expected"), [("mean", 4.5), ("sum", 9.0), ("last", 5.0), ("min", 4.0), ("max", 5.0)]
)
@pytest.mark.parametrize("is_loss_known", [True, False])
def test_a_value_counts_as_it_was_when_it_was_added_and_has_no_graph(how, expected, is_loss_known):
    sums, value = EpochSums(), torch.tensor(4.0, dtype=torch.float64)
    weight = torch.ones(3, requires_grad=True)

    for _ in range(2):
        sums.add_loss(value, 1 if is_loss_known else None)
        sums.track("value", value, how)
        sums.add_correct(torch.eye(1, 3), torch.zeros(1))
        value += 1
    loss = (2 * weight).mean()
    sums.add_loss(loss, 2)
    loss.backward()

    assert sums.means()["value"] == expected
    assert sums.means()["loss"] == (4 + 5 + 2 * 2) / 4
    assert weight.grad is not None
    assert weight.grad.tolist() == pytest.approx([2 / 3] * 3)
    assert not torch.as_tensor(sums.loss.total()).requires_grad


@pytest.mark.parametrize("how", ["min", "max"])
@pytest.mark.parametrize("values", [(1.0, math.nan, 2.0), (math.nan, 1.0), (torch.tensor(1.0), math.nan)])
def test_a_nan_is_not_hidden_by_a_smallest_or_largest_value(how, values):
    sums = EpochSums()

    for value in values:
        sums.track("reward", value, how)

    assert math.isnan(sums.means()["reward"])


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 5)), min_size=1, max_size=30), st.integers(0, 30))
def test_sums_that_are_saved_and_restored_after_any_batch_end_with_the_same_bits(batches, saved_after):
    def add(sums, values):
        for value, size in values:
            sums.begin_batch(torch.zeros(size))
            sums.add_loss(torch.tensor(value), None)
            sums.track("mean", torch.tensor(value), "mean")
            sums.track("least", value, "min")
            sums.add_correct(torch.eye(size, 5), torch.zeros(size))
        return sums

    whole = add(EpochSums(), batches)
    state = add(EpochSums(), batches[:saved_after]).state()
    resumed = add(EpochSums(), [(9.0, 1)])  # which a restored state replaces
    resumed.load(state, CPU)

    assert add(resumed, batches[saved_after:]).means() == whole.means()


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

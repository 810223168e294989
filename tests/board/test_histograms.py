import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray
from torch import nn

from runmanager.tensorboard import event_file, histograms, run_log
from runmanager.tensorboard.histograms import BINS, statistics
from tests.board.reading import make_network

FLOATS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


def tensors(network: nn.Module) -> dict[str, torch.Tensor]:
    return run_log.tensors(network)[0]


def stats_of(tensor: torch.Tensor) -> list[float]:
    return statistics({"x": tensor})["x"]


def with_gradients(network: nn.Module) -> nn.Module:
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    return network


@given(st.lists(FLOATS, min_size=2, max_size=200))
def test_counts_are_those_of_numpy(values):
    low, high = min(values), max(values)
    assume(high - low > 1e-30)
    places = [(value - low) / (high - low) * BINS for value in values]
    # of a value on the border of two buckets, rounding decides
    inside = [v for v, p in zip(values, places, strict=True) if abs(p - round(p)) > 1e-3 or v in (low, high)]

    counts = stats_of(torch.tensor(inside))[4:]

    assert counts == np.histogram(inside, BINS, (low, high))[0].tolist()


@given(st.lists(st.floats(width=32), min_size=1, max_size=200))
def test_every_finite_value_is_counted_once(values):
    finite = [value for value in values if math.isfinite(value)]

    found = statistics({"x": torch.tensor(values)})

    assert sum(found.get("x", [])[4:]) == len(finite)
    assert [stats[:2] for stats in found.values()] == ([[min(finite), max(finite)]] if finite else [])


def test_sums_are_taken_in_double_precision():
    values = torch.tensor([1e8, 1.0, 1.0, -1e8])

    _, _, total, squares, *_ = stats_of(values)

    assert (total, squares) == (2.0, 2e16 + 2)


def test_the_buckets_are_equally_wide_from_the_smallest_to_the_largest_value():
    histogram = histograms.histograms({"x": torch.tensor([-1.0, 0.25, 29.0])})["x"]

    assert (histogram.min, histogram.max, histogram.num) == (-1, 29, 3)
    assert list(histogram.bucket_limit) == list(range(30))
    filled = {limit: n for limit, n in zip(histogram.bucket_limit, histogram.bucket, strict=True) if n}
    assert filled == {0: 1, 1: 1, 29: 1}


def test_tensorboard_reads_the_same_buckets(tmp_path):
    values = {"many": torch.arange(0, 31.0), "one": torch.ones(4)}
    written = event_file.event(1, histograms.histograms(values))
    with event_file.begin_file(tmp_path) as file:
        event_file.write(file, written)

    *_, event = EventFileLoader(str(file.name)).Load()

    many, one = (make_ndarray(value.tensor) for value in event.summary.value)
    assert many.tolist() == [[n, n + 1, 1] for n in range(29)] + [[29, 30, 2]]
    assert one.tolist() == [[0.5, 1.5, 4]]


def test_equal_values_are_one_bucket_round_them():
    histogram = histograms.histograms({"x": torch.full((7,), 0.25)})["x"]

    assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (-0.25, 0.75, 7, 1.75)
    assert (list(histogram.bucket_limit), list(histogram.bucket)) == ([0.75], [7])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_type_is_counted(dtype):
    values = torch.arange(31, dtype=dtype)

    low, high, total, squares, *counts = stats_of(values)

    assert (low, high, total, squares) == (0, 30, 465, 9455)
    assert counts == [1] * 29 + [2]  # the last bucket has its upper border too


def test_large_values_of_half_precision_do_not_overflow():
    low, high, total, *counts = stats_of(torch.tensor([-6e4, 6e4, 6e4], dtype=torch.float16))

    assert (low, high, total) == (-60_000, 60_000, 60_000)
    assert (counts[1], counts[-1]) == (1, 2)


def test_huge_values_are_in_their_buckets():
    _, _, _, squares, *counts = stats_of(torch.tensor([-1e30, 1e30, 0.5e30]))

    assert squares == pytest.approx(2.25e60)
    assert {place: count for place, count in enumerate(counts) if count} == {0: 1, 22: 1, 29: 1}


def test_what_is_not_finite_is_left_out():
    values = torch.tensor([math.nan, 1.0, math.inf, 3.0, -math.inf])

    low, high, total, squares, *counts = stats_of(values)

    assert (low, high, total, squares) == (1, 3, 4, 10)
    assert sum(counts) == 2


def test_a_tensor_without_finite_values_has_no_histogram():
    values = {"lost": torch.full((3,), math.nan), "kept": torch.ones(2), "far": torch.tensor([math.inf])}

    assert list(statistics(values)) == ["kept"]


def test_nothing_to_draw_has_no_statistics():
    assert statistics({}) == {}


def test_every_tensor_has_one_row_of_statistics():
    network = with_gradients(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 3)))

    found = statistics(tensors(network))

    numels = {name: p.numel() for name, p in network.named_parameters() if p.ndim > 1}
    expected = {f"{kind}/{name}": n for name, n in numels.items() for kind in ("weights", "weights:grad")}
    assert {name: sum(stats[4:]) for name, stats in found.items()} == expected
    assert {len(stats) for stats in found.values()} == {4 + BINS}


def test_a_tensor_of_any_layout_in_memory_is_counted():
    values = torch.arange(12.0).reshape(3, 4).t()[::2]

    assert sum(stats_of(values)[4:]) == 6


def test_frozen_parameters_have_no_gradient():
    network = make_network()
    network[1].weight.requires_grad_(requires_grad=False)  # type: ignore[index]

    found = tensors(with_gradients(network))

    assert list(found) == ["weights/1.weight"]


def test_a_network_that_has_not_been_trained_has_weights_only():
    assert list(tensors(make_network())) == ["weights/1.weight"]


@pytest.mark.parametrize("layer", ["conv", "layers", "a_layer"])
@pytest.mark.parametrize("separators", ["", "/_"])
def test_biases_and_gradients_come_after_the_weights_as_each_page_sorts(layer, separators):
    network = nn.ModuleDict({layer: nn.LayerNorm(32)})

    # Histograms and Distributions take '_' for '/', Time Series does not
    def key(tag):
        return "".join("\0" if character in separators else character for character in tag)

    tags = sorted(tensors(with_gradients(network)), key=key)

    assert [tag.partition("/")[0] for tag in tags] == [
        "weights", "weights:bias", "weights:grad", "weights:grad:bias",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "parameter",
    [
        nn.Parameter(torch.empty(0)),
        nn.UninitializedParameter(),
        nn.Parameter(torch.ones(99, device="meta")),
        nn.Parameter(torch.ones(99, dtype=torch.complex64)),
        nn.Parameter(torch.ones(99, dtype=torch.int64), requires_grad=False),
    ],
    ids=["empty", "lazy", "meta", "complex", "integer"],
)
def test_a_parameter_that_cannot_be_drawn_is_left_out(parameter):
    network = make_network()
    network.register_parameter("odd", parameter)

    assert list(tensors(network)) == ["weights/1.weight"]


def test_sparse_gradients_are_left_out():
    network = nn.Embedding(4, 8, sparse=True)
    network(torch.tensor([1])).sum().backward()

    assert list(tensors(network)) == ["weights/weight"]


def test_statistics_change_neither_values_nor_gradients():
    network = with_gradients(make_network())
    before = [(p.clone(), p.grad) for p in network.parameters()]

    statistics(tensors(network))

    for parameter, (values, gradient) in zip(network.parameters(), before, strict=True):
        assert torch.equal(parameter, values)
        assert parameter.grad is gradient


def test_what_does_not_fit_beside_each_other_gives_the_same(monkeypatch):
    values = {
        str(size): torch.randn(size, generator=torch.Generator().manual_seed(size)) for size in (9, 3, 40, 2)
    }
    together = statistics(values)

    monkeypatch.setattr(histograms, "_AT_ONCE", 12)

    assert statistics(values) == together

import copy
import functools
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import pack_sequence

from runmanager.errors import InvalidArgumentError
from runmanager.front.optimizer_step import (
    OptimizerStep,
    computation,
    num_samples,
    piece_of,
    usable_precisions,
)

CPU = torch.device("cpu")


def make_network(dtype=torch.float32):
    torch.manual_seed(3)
    network = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh()), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    return network.to(dtype)


def make_batch(size, dtype=torch.float32):
    generator = torch.Generator().manual_seed(size)
    images = torch.randn(size, 1, 6, 6, generator=generator, dtype=torch.float64).to(dtype)
    return images, torch.arange(size) % 3


@functools.cache
def reference(size):
    """Compute a step's mean loss, scores and gradients in float64, sample by sample."""
    network = make_network(torch.float64)
    images, labels = make_batch(size, torch.float64)
    scores = torch.cat([network(image[None]) for image in images])
    losses = [cross_entropy(score[None], label[None]) for score, label in zip(scores, labels, strict=True)]
    loss = torch.stack(losses).mean()
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return loss.detach(), scores.detach(), gradients


def step_of(network, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(network.parameters(), lr=0.1)
    compute = computation(network, options.pop("loss", cross_entropy))
    return OptimizerStep(network, optimizer, CPU, compute, **options)


def relative(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


SIZES = [*((24, size) for size in range(1, 26)), *((23, size) for size in (1, 2, 5, 8, 11, 12, 22, 23, 24))]


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("batch_size", "size"), SIZES)
def test_pieces_of_any_size_give_the_gradients_of_the_whole_batch(batch_size, size, dtype, within):
    network = make_network(dtype)
    loss, scores, gradients = reference(batch_size)

    value, preds, _ = step_of(network, micro_batch=size)(make_batch(batch_size, dtype))

    assert relative(value, loss) < within
    assert relative(preds, scores) < within
    for parameter, expected in zip(network.parameters(), gradients, strict=True):
        assert relative(parameter.grad, expected) < within


@pytest.mark.parametrize("options", [{}, {"micro_batch": 5}, {"precision": "fp16"}], ids=str)
def test_gradients_are_clipped_by_the_norm_of_the_whole_batch(options):
    network = make_network()
    _, _, gradients = reference(24)
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()

    step_of(network, clip_grad_norm=0.01, **options)(make_batch(24))

    within = 0.02 if "precision" in options else 1e-4
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        assert relative(parameter.grad, 0.01 * gradient / norm) < within


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision_computes_reduced_and_keeps_whole_weights(precision):
    network = make_network()
    loss, _, _ = reference(24)

    value, preds, _ = step_of(network, precision=precision)(make_batch(24))

    assert preds.dtype in (torch.bfloat16, torch.float16)
    assert value.dtype == torch.float32
    assert relative(value, loss) < 0.01
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


def test_fp16_scales_the_loss_and_steps_with_unscaled_gradients():
    whole, scaled = make_network(), make_network()
    step = step_of(scaled, precision="fp16")

    step_of(whole)(make_batch(24))
    step(make_batch(24))

    assert step.parts()["scaler"].get_scale() > 1
    for parameter, expected in zip(scaled.parameters(), whole.parameters(), strict=True):
        assert relative(parameter.detach(), expected.detach().double()) < 1e-3


def test_fp16_leaves_out_a_step_whose_gradients_overflow():
    network = make_network()
    before = copy.deepcopy(network.state_dict())
    step = step_of(network, precision="fp16", loss=lambda preds, labels: 1e38 * cross_entropy(preds, labels))

    step(make_batch(24))

    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert step.parts()["scaler"].get_scale() == 2.0**15


def test_a_regression_has_no_scores():
    network = nn.Linear(2, 1)

    value, preds, _ = step_of(network, loss=mse_loss, micro_batch=2)((torch.ones(5, 2), torch.ones(5, 1)))

    assert value.ndim == 0
    assert preds is None


def test_the_precisions_of_a_device_are_found_by_trying():
    assert usable_precisions(CPU) == ["fp32", "bf16", "fp16"]
    assert usable_precisions(torch.device("meta")) == ["fp32"]


Named = namedtuple("Named", "x y")  # noqa: PYI024 - as users write it
FOUR = torch.arange(4)
IMAGES = [torch.full((3, 2, 2), float(number)) for number in range(3)]


@pytest.mark.parametrize(
    ("batch", "piece"),
    [
        ((FOUR, [FOUR, FOUR]), (FOUR[1:3], [FOUR[1:3], FOUR[1:3]])),
        ({"x": FOUR, "text": "abcd", "none": None, "scalar": torch.tensor(7), "flag": True},
         {"x": FOUR[1:3], "text": "abcd", "none": None, "scalar": torch.tensor(7), "flag": True}),
        (Named(FOUR, "abcd"), Named(FOUR[1:3], "abcd")),
        ([np.arange(4), FOUR], [np.arange(1, 3), FOUR[1:3]]),
        ([FOUR[:2], FOUR[:2]], [FOUR[1:2], FOUR[1:2]]),  # two parts of two samples
    ],
)  # fmt: skip
def test_a_piece_has_its_samples_of_every_part(batch, piece):
    assert repr(piece_of(batch, num_samples(batch), slice(1, 3))) == repr(piece)


@pytest.mark.parametrize(
    "batch",
    [
        {"tokens": torch.arange(9), "offsets": torch.arange(3)},
        {"nothing": "to count"},
        (pack_sequence([FOUR, FOUR[:2]]), None),
        (torch.ones(4, 9), torch.ones(9)),
        (IMAGES, FOUR[:3]),  # three images of three channels
        {"boxes": [torch.ones(number, 4) for number in range(4)], "y": FOUR},
        (FOUR, ["a", "b", "c", "d"]),
        [{"x": FOUR}] * 4,
    ],
)
def test_a_batch_that_cannot_be_cut_is_refused(batch):
    with pytest.raises(InvalidArgumentError, match="micro_batch cannot cut a"):
        piece_of(batch, num_samples(batch), slice(1, 3))

"""The steps of fit: gradients of pieces and in reduced precision, batches of any form, and what is refused."""

import functools
import itertools
import math
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import pack_sequence
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

from runmanager import InvalidArgumentError, fit
from tests.border.experiments import manager_in

INPUTS = torch.linspace(-2, 2, 48 * 4).reshape(48, 4).sin()
LABELS = (INPUTS.sum(dim=1) > 0).long()
RUN = {"lr": 0.1}
SGD_ = functools.partial(SGD, lr=0.1, momentum=0.9)
NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


class Named(NamedTuple):
    """A batch whose parts have names."""

    x: torch.Tensor
    y: Any


def make_network(norm=nn.Identity, dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), norm(8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)


def batches_of(form=lambda x, y: (x, y), size=10):
    return [form(INPUTS[i : i + size], LABELS[i : i + size]) for i in range(0, 48, size)]


def by_fit(manager, network=None, loader=None, *, run=RUN, **options):
    """Train through fit(); return the rows without their times, and the weights."""
    network = network or make_network()
    fit(run, network, loader or batches_of(), manager, **{"optimizer": SGD_, "epochs": 1, **options})
    rows = [{name: value for name, value in row.items() if "duration" not in name} for row in manager.run_data]
    return rows, {name: value.tolist() for name, value in network.state_dict().items()}


class Recording(SGD):
    """Remembers the gradients of its last step."""

    def step(self, closure=None):
        self.gradients = torch.cat([parameter.grad.flatten() for parameter in self.param_groups[0]["params"]])
        super().step(closure)


def step_of(manager, size, dtype=torch.float32, **options):
    """Make one step of one batch; return its row and its gradients."""
    made: list[Recording] = []

    def make_optimizer(parameters):
        made.append(Recording(parameters, lr=0.1))
        return made[0]

    batch = INPUTS[:size].to(dtype), LABELS[:size]
    rows, _ = by_fit(manager, make_network(dtype=dtype), [batch], optimizer=make_optimizer, **options)
    return rows[0], made[0].gradients.double()


@functools.cache
def reference(size):
    """Compute a step's mean loss, accuracy and gradients in float64, sample by sample."""
    network = make_network(dtype=torch.float64)
    scores = torch.cat([network(inputs[None]) for inputs in INPUTS[:size].double()])
    losses = [
        cross_entropy(score[None], label[None]) for score, label in zip(scores, LABELS[:size], strict=True)
    ]
    loss = torch.stack(losses).mean()
    gradients = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(network.parameters()))])
    return loss.item(), (scores.argmax(1) == LABELS[:size]).double().mean().item(), gradients


def is_near(actual, expected, within):
    return ((actual - expected).norm() / expected.norm()).item() < within


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    ("size", "piece"),
    [*((24, n) for n in (1, 5, 8, 23, 24, 25)), *((23, n) for n in (1, 5, 11, 12, 22, 23, 24))],
)
def test_pieces_of_any_size_give_the_gradients_of_the_whole_batch(manager, size, piece, dtype, within):
    loss, accuracy, expected = reference(size)

    row, gradients = step_of(manager, size, dtype, micro_batch=piece)

    assert row["loss"] == pytest.approx(loss, rel=within)
    assert row["accuracy"] == pytest.approx(accuracy)
    assert is_near(gradients, expected, within)


@pytest.mark.parametrize(
    ("options", "within"),
    [({}, 1e-4), ({"micro_batch": 5}, 1e-4), ({"precision": "bf16"}, 0.05), ({"precision": "fp16"}, 0.02),
     ({"precision": "fp16", "micro_batch": 5}, 0.02)],
)  # fmt: skip
@pytest.mark.parametrize("norm", [None, 0.01])
def test_gradients_are_unscaled_and_clipped_by_the_norm_of_the_whole_batch(manager, options, within, norm):
    loss, _, expected = reference(24)
    network = make_network()

    row, gradients = step_of(manager, 24, clip_grad_norm=norm, **options)

    assert is_near(gradients, expected if norm is None else norm * expected / expected.norm(), within)
    assert row["loss"] == pytest.approx(loss, rel=0.01)
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


STEP_SCHEDULERS = {
    "warm-up": lambda optimizer: LambdaLR(optimizer, lambda step: min(1, (step + 1) / 7)),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.5, total_steps=15),
}


def test_fp16_leaves_out_a_step_whose_gradients_overflow_and_its_scheduler_does_not_warn(manager):
    rows, weights = by_fit(
        manager, precision="fp16", loss=lambda preds, labels: 1e38 * cross_entropy(preds, labels),
        loader=batches_of(size=48), scheduler=STEP_SCHEDULERS["warm-up"], scheduler_every="step",
    )  # fmt: skip

    assert math.isfinite(rows[0]["loss"])
    assert weights == {name: value.tolist() for name, value in make_network().state_dict().items()}


@pytest.mark.parametrize("scheduler", STEP_SCHEDULERS.values(), ids=STEP_SCHEDULERS)
def test_a_scheduler_per_step_equals_the_plain_loop_bit_for_bit(manager, scheduler):
    network = make_network()
    optimizer = SGD_(network.parameters())
    steps = scheduler(optimizer)
    for inputs, labels in batches_of() * 3:
        optimizer.zero_grad()
        cross_entropy(network(inputs), labels).backward()
        optimizer.step()
        steps.step()

    _, weights = by_fit(manager, epochs=3, scheduler=scheduler, scheduler_every="step")

    assert weights == {name: value.tolist() for name, value in network.state_dict().items()}


FOUR = torch.arange(4)


@pytest.mark.parametrize(
    ("batch", "piece"),
    [
        ((FOUR, [FOUR, FOUR]), (FOUR[2:], [FOUR[2:], FOUR[2:]])),
        ({"x": FOUR, "text": "abcd", "none": None, "scalar": torch.tensor(7), "flag": True},
         {"x": FOUR[2:], "text": "abcd", "none": None, "scalar": torch.tensor(7), "flag": True}),
        (Named(FOUR, "abcd"), Named(FOUR[2:], "abcd")),
        ([np.arange(4), FOUR], [np.arange(2, 4), FOUR[2:]]),
    ],
)  # fmt: skip
def test_a_piece_has_its_samples_of_every_part(manager, batch, piece):
    pieces = []

    def step(network, batch):
        pieces.append(repr(batch))
        return network(torch.ones(2, 4)).mean()

    by_fit(manager, loader=[batch], step=step, micro_batch=2)

    assert pieces[1:] == [repr(piece)]


@pytest.mark.parametrize(
    "batch",
    [
        {"tokens": torch.arange(9), "offsets": torch.arange(3)}, {"nothing": "to count"},
        (pack_sequence([FOUR, FOUR[:2]]), None), (torch.ones(4, 9), torch.ones(9)),
        ([torch.ones(3, 2, 2)] * 3, FOUR[:3]),  # three images of three channels
        {"boxes": [torch.ones(number, 4) for number in range(4)], "y": FOUR},
        (FOUR, ["a", "b", "c", "d"]), [{"x": FOUR}] * 4,
    ],
)  # fmt: skip
def test_a_batch_that_cannot_be_cut_is_refused(manager, batch):
    with pytest.raises(InvalidArgumentError, match="micro_batch cannot cut a"):
        by_fit(manager, loader=[batch], step=lambda network, _: network(torch.ones(2, 4)).mean(), micro_batch=1)


def of_mapping(network, batch):
    preds = network(batch["x"])
    return cross_entropy(preds, batch["y"]), preds, batch["y"]


def of_dict(x, y):
    return {"x": x, "y": y, "scale": 2, "mask": None}


@pytest.mark.parametrize("micro_batch", [3, "auto"])
def test_batches_of_any_form_are_cut_into_pieces(tmp_path, micro_batch):
    def scarce(network, batch):
        loss, outputs, targets = of_mapping(network, batch)
        if micro_batch == "auto" and torch.is_grad_enabled() and len(targets) > 5:
            raise NO_MEMORY
        return loss, outputs, targets

    options: dict[str, Any] = {"epochs": 2, "test_loader": batches_of(size=7)}
    whole, _ = by_fit(manager_in(tmp_path, "whole"), **options)
    options |= {"test_loader": batches_of(of_dict, size=7), "step": scarce, "micro_batch": micro_batch}
    pieces, _ = by_fit(manager_in(tmp_path, "pieces"), loader=batches_of(of_dict), **options)

    assert [row.pop("micro_batch", 3) for row in pieces] == [5 if micro_batch == "auto" else 3] * 2
    assert pieces == [pytest.approx(row, rel=1e-4) for row in whole]


def test_memory_that_runs_out_in_the_middle_of_a_batch_counts_nothing_twice(tmp_path):
    calls = itertools.count(1)

    def loss(preds, labels):
        if next(calls) in (4, 6):  # the fourth batch; the second half of it
            raise NO_MEMORY
        return cross_entropy(preds, labels)

    whole, _ = by_fit(manager_in(tmp_path, "whole"))
    rows, _ = by_fit(manager_in(tmp_path), micro_batch="auto", loss=loss)

    assert rows[0].pop("micro_batch") == 3
    assert rows == [pytest.approx(whole[0], rel=1e-5)]


@pytest.mark.parametrize(
    ("micro_batch", "error"),
    [(None, RuntimeError("no such operation")), (5, RuntimeError("no such operation")),
     ("auto", RuntimeError("no such operation")), (5, NO_MEMORY), (None, NO_MEMORY)],
)  # fmt: skip
def test_an_error_that_smaller_pieces_would_not_cure_is_raised_at_once(manager, micro_batch, error):
    asked = []

    def loss(preds, labels):
        asked.append(len(labels))
        raise error

    with pytest.raises(type(error)):
        by_fit(manager, micro_batch=micro_batch, loss=loss)

    assert len(asked) == 1


@pytest.mark.parametrize("micro_batch", [5, "auto"])
def test_pieces_of_a_network_with_batch_statistics_are_to_be_accepted_and_see_each_piece_once(
    tmp_path, micro_batch
):
    def loss(preds, labels):
        if len(labels) > 5:
            raise NO_MEMORY
        return cross_entropy(preds, labels)

    trained, still = make_network(nn.BatchNorm1d), make_network(nn.BatchNorm1d)
    still[1].eval()
    with pytest.raises(InvalidArgumentError, match="accept it with batch_norm_per_piece=True"):
        by_fit(manager_in(tmp_path, "refused"), trained, micro_batch=micro_batch)
    by_fit(manager_in(tmp_path, "still"), still, micro_batch=micro_batch)
    by_fit(manager_in(tmp_path), trained, micro_batch=micro_batch, batch_norm_per_piece=True, loss=loss)

    assert trained[1].num_batches_tracked == 10  # of five batches in two pieces each
    assert still[1].num_batches_tracked == 0


def test_an_optimizer_and_a_scheduler_may_be_made_before(tmp_path):
    network = make_network()
    optimizer = SGD(network.parameters(), lr=0.1)

    made = by_fit(
        manager_in(tmp_path, "made"), optimizer=functools.partial(SGD, lr=0.1),
        scheduler=lambda of: ExponentialLR(of, 0.5), epochs=3,
    )  # fmt: skip
    scheduler = ExponentialLR(optimizer, 0.5)

    assert by_fit(manager_in(tmp_path), network, optimizer=optimizer, scheduler=scheduler, epochs=3) == made


def test_parameters_have_no_old_gradients(manager):
    seen: list[Any] = []
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    network.register_forward_pre_hook(lambda *_: seen.extend(p.grad for p in network.parameters()))
    images = [(torch.ones(2, 2, 4, 4), torch.zeros(2).long())] * 3
    by_fit(manager, network, images)

    assert seen == [None] * 12


def test_a_run_that_is_open_is_trained_and_left_open_unless_it_has_another_network(manager):
    network, loader = make_network(), batches_of()

    with manager.run(RUN, network, loader):
        with pytest.raises(InvalidArgumentError, match="another network or loader"):
            by_fit(manager)
        by_fit(manager, network, loader, epochs=2)
        manager.begin_epoch()
        manager.end_epoch()

    assert manager.outcome.epochs == 3


def test_patience_may_watch_the_goal_and_metrics_of_the_test_loader_are_columns(tmp_path):
    class Error:
        def reset(self):
            self.values = []

        def update(self, outputs, targets):
            self.values += (outputs - targets).abs().tolist()

        def compute(self):
            return sum(self.values) / len(self.values)

    def step(network, batch):
        outputs = network(batch["x"])[:, 0]
        return mse_loss(outputs, batch["y"].float()), outputs, batch["y"].float()

    manager = manager_in(tmp_path, goal="min:test_mae")
    rows, _ = by_fit(
        manager, loader=batches_of(of_dict), step=step, test_loader=batches_of(of_dict), epochs=9,
        metrics={"mae": Error()}, patience=1, min_delta=100,
    )  # fmt: skip

    assert len(rows) == 2
    assert rows[0].keys() == {"run", "epoch", "loss", "accuracy", "lr", "test_loss", "test_mae"}


@pytest.mark.parametrize(
    ("batch", "described"),
    [([INPUTS], "a list"), ({"x": INPUTS, "y": LABELS}, "a dict"), (INPUTS[:2], "a Tensor"),
     ((INPUTS, LABELS, LABELS), "a tuple")],
    ids=["list", "dict", "tensor", "tuple"],
)  # fmt: skip
def test_a_batch_that_is_no_pair_is_named_in_the_first_step(tmp_path, batch, described):
    for number, loaders in enumerate(({"loader": [batch]}, {"test_loader": [batch]})):
        manager = manager_in(tmp_path, f"e{number}")
        call = ("fit", "evaluate")[number]
        with pytest.raises(
            InvalidArgumentError, match=rf"{call}\(\) takes .*got {described}: write step=lambda"
        ):
            by_fit(manager, epochs=9, **loaders)
        assert manager.run_data == []  # no epoch was paid that has no row


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss, outputs, _: (loss, outputs), r"\(loss, outputs, targets\) or the loss, got a tuple"),
        (lambda loss, *_: {"loss": loss}, r"\(loss, outputs, targets\) or the loss, got a dict"),
        (lambda loss, *_: loss.item(), "one loss with a gradient, got a float"),
        (lambda loss, *_: loss.detach() * 0 + 0.5, "one loss with a gradient, got a Tensor"),
        (lambda loss, *_: loss.repeat(3), "one loss with a gradient, got a Tensor"),
        (lambda *_: None, "one loss with a gradient, got a NoneType"),
    ],
)
def test_a_step_that_returns_something_else_is_named(manager, returned, message):
    with pytest.raises(InvalidArgumentError, match=f"step= must return {message}"):
        by_fit(manager, loader=batches_of(of_dict), step=lambda *given: returned(*of_mapping(*given)))


def other_optimizer(_):
    return ExponentialLR(SGD(make_network().parameters()), 0.5)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"network": [nn.Linear(1, 1)]}, ["network must be a torch.nn.Module", "for several"]),
        ({"optimizer": [1, 2]}, ["one optimizer of torch.optim, got [1, 2]"]),
        ({"optimizer": lambda _: None}, ["one optimizer of torch.optim, got None"]),
        ({"scheduler": [1]}, ["scheduler", "got [1]"]),
        ({"scheduler": ReduceLROnPlateau}, ["needs a metric"]),
        ({"scheduler": ReduceLROnPlateau(SGD(make_network().parameters()))}, ["needs a metric"]),
        ({"scheduler": other_optimizer}, ["has another optimizer"]),
        (
            {"step": 3, "loss": mse_loss, "patience": 0, "keep": "best"},
            ["patience", "got 0", "step must be a function", "'best:<metric>'", "loss= is not used with step="],
        ),
        (
            {"patience": 3, "scheduler_every": "batch"},
            ["'step', 'epoch', got 'batch'", "patience=3 without a metric", "goal='min:validation_loss'"],
        ),
        ({"run": {"device": "meta"}, "precision": "bf16"}, ["precision on meta", "'fp32', got 'bf16'"]),
        ({"network": nn.Linear(1, 1, device="meta"), "precision": "bf16"}, ["precision on meta"]),
    ],
)  # fmt: skip
def test_what_fit_does_not_do_is_refused_before_anything_is_written(manager, tmp_path, given, named):
    with pytest.raises(InvalidArgumentError) as raised:
        by_fit(manager, **given)

    assert [part for part in named if part not in str(raised.value)] == []
    assert list(tmp_path.iterdir()) == []


def weighed(batch):
    """Count the samples of class 0 twice: neither the inputs nor the labels have this length."""
    return len(batch[1]) + int((batch[1] == 0).sum())


def mean_over(preds, labels):
    """Return the mean over the samples that `weighed` counts."""
    losses = cross_entropy(preds, labels, reduction="none")
    return (losses * (1 + (labels == 0))).sum() / weighed((None, labels))


@pytest.mark.parametrize("given_to", ["fit", "manager", "fit of an open run"])
def test_samples_are_counted_as_asked_for_in_rows_and_in_evaluations(tmp_path, given_to):
    counted = []

    def measure(batch):
        counted.append(batch)
        return weighed(batch)

    given = measure if given_to == "manager" else None
    manager, network, loader = manager_in(tmp_path, batch_size=given), make_network(), batches_of()
    options: Any = {"batch_size": None if given else measure, "test_loader": batches_of(size=16)}
    options |= {"loss": mean_over, "optimizer": functools.partial(SGD, lr=0.0)}
    with manager.run(RUN, network, loader) if "open" in given_to else nullcontext():
        (row, *_), _ = by_fit(manager, network, loader, **options)
        if "open" in given_to:
            manager.begin_epoch()
            for inputs, labels in manager.batches():
                manager.track_loss(mean_over(network(inputs), labels), labels)
            manager.end_epoch()

    expected = mean_over(network(INPUTS), LABELS).item()
    assert [row["loss"], row["test_loss"]] == pytest.approx([expected] * 2, rel=1e-5)
    assert len(counted) == 5 + 3  # the manager counts its further epochs as before


def test_pieces_have_their_share_of_the_samples_that_were_asked_for(tmp_path):
    options: Any = {"loss": mean_over, "batch_size": weighed}
    whole, _ = by_fit(manager_in(tmp_path, "whole"), **options)
    pieces, _ = by_fit(manager_in(tmp_path), micro_batch=3, **options)

    assert pieces[0]["loss"] == pytest.approx(whole[0]["loss"], rel=1e-5)

"""fit(): the numbers of a plain loop, in pieces and in reduced precision, from batches of any form."""

import functools
import itertools
import math
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import pack_sequence
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from runmanager import (
    DeviceError,
    ImageTensors,
    InvalidArgumentError,
    TensorLoader,
    fit,
    load_results,
    load_runs,
)
from tests.border import reading
from tests.border.experiments import manager_in
from tests.border.work import announce, meet, start, trained

INPUTS = torch.linspace(-2, 2, 48 * 4).reshape(48, 4).sin()
LABELS = (INPUTS.sum(dim=1) > 0).long()
RUN = {"lr": 0.1}
SGD_ = functools.partial(SGD, lr=0.1, momentum=0.9)
NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


class Named(NamedTuple):
    x: torch.Tensor
    y: Any


def make_network(norm=nn.Identity, dtype=torch.float32, dropout=0.0):
    torch.manual_seed(1)
    layers = nn.Linear(4, 8), norm(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2)
    return nn.Sequential(*layers).to(dtype)


def batches_of(form=lambda x, y: (x, y), size=10):
    return [form(INPUTS[i : i + size], LABELS[i : i + size]) for i in range(0, 48, size)]


def shuffled():
    return TensorLoader(ImageTensors(INPUTS, LABELS), 10, seed=2)


def left(manager, network):
    """Return the rows without their times, and the weights."""
    rows = [{name: value for name, value in row.items() if "duration" not in name} for row in manager.run_data]
    return rows, {name: value.tolist() for name, value in network.state_dict().items()}


def by_fit(manager, network=None, loader=None, *, run=RUN, **options):
    network = network or make_network()
    fit(run, network, loader or batches_of(), manager, **{"optimizer": SGD_, "epochs": 1, **options})
    return left(manager, network)


def scarce(most):
    """Return a loss that needs more memory than there is for a batch of more samples than this."""

    def loss(preds, labels):
        if torch.is_grad_enabled() and len(labels) > most:
            raise NO_MEMORY
        return cross_entropy(preds, labels)

    return loss


# A plain loop


@pytest.mark.parametrize(
    "make_optimizer", [functools.partial(SGD_, nesterov=True), functools.partial(Adam, lr=0.01)]
)
def test_rows_weights_and_random_state_are_those_of_a_plain_loop_bit_for_bit(tmp_path, make_optimizer):
    make = functools.partial(make_network, nn.BatchNorm1d, dropout=0.3)
    test = TensorLoader(ImageTensors(INPUTS[:10], LABELS[:10]), 4)
    manager, network, loader = manager_in(tmp_path, "plain"), make(), shuffled()
    optimizer = make_optimizer(network.parameters())
    scheduler = ExponentialLR(optimizer, gamma=0.5)
    with manager.run(RUN, network, loader):
        for _ in manager.epochs(3):
            for inputs, labels in manager.batches():
                preds = network(inputs)
                loss = cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 0.1)
                optimizer.step()
                manager.track_loss(loss, inputs)
                manager.track_num_correct(preds, labels)
            scheduler.step()
            manager.evaluate(test, "test")
    plain = *left(manager, network), torch.get_rng_state().tolist()

    fitted = by_fit(
        manager_in(tmp_path, "fitted"), make(), shuffled(), epochs=3, optimizer=make_optimizer,
        test_loader=test, scheduler=functools.partial(ExponentialLR, gamma=0.5), clip_grad_norm=0.1,
    )  # fmt: skip

    assert (*fitted, torch.get_rng_state().tolist()) == plain
    assert fitted[0][-1].keys() > {"loss", "accuracy", "test_loss", "test_accuracy"}


STEP_SCHEDULERS = {
    "own": lambda of: Mock(["step", "state_dict", "load_state_dict"], wraps=ExponentialLR(of, 0.5)),
    "warm-up": lambda optimizer: LambdaLR(optimizer, lambda step: min(1, (step + 1) / 7)),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.5, total_steps=15),
}


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


def test_an_optimizer_and_a_scheduler_may_be_made_before(tmp_path):
    network = make_network()
    optimizer = SGD_(network.parameters())

    made = by_fit(manager_in(tmp_path, "made"), scheduler=lambda of: ExponentialLR(of, 0.5), epochs=3)
    scheduler = ExponentialLR(optimizer, 0.5)

    assert by_fit(manager_in(tmp_path), network, optimizer=optimizer, scheduler=scheduler, epochs=3) == made


def test_a_run_that_is_open_is_trained_and_left_open_unless_it_has_another_network(manager):
    network, loader = make_network(), batches_of()

    with manager.run(RUN, network, loader):
        with pytest.raises(InvalidArgumentError, match="another network or loader"):
            by_fit(manager)
        by_fit(manager, network, loader, epochs=2)
        manager.begin_epoch()
        manager.end_epoch()

    assert manager.outcome.epochs == 3


def test_any_batch_is_trained_by_a_step_of_ones_own_with_patience(tmp_path):
    images = torch.rand(60, 8, generator=torch.Generator().manual_seed(0))
    network = nn.Linear(8, 8)

    by_fit(
        manager_in(tmp_path), network, DataLoader(TensorDataset(images[:40]), batch_size=20),
        optimizer=functools.partial(SGD, lr=0.0), epochs=50,
        step=lambda network, batch: mse_loss(network(batch[0]), batch[0]),
        test_loader={"validation": DataLoader(TensorDataset(images[40:]), batch_size=10)},
        scheduler=lambda optimizer: ExponentialLR(optimizer, 0.9), scheduler_every="step",
        keep="best:validation_loss", patience=2,
    )  # fmt: skip

    table = load_results(tmp_path)
    assert table["epoch"].tolist() == [1, 2, 3]
    expected = mse_loss(network(images[40:]), images[40:]).item()
    assert table["validation_loss"].tolist() == pytest.approx([expected] * 3)
    assert table["accuracy"].isna().all()


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

    network = make_network()
    rows, _ = by_fit(
        manager_in(tmp_path, goal="min:test_mae"), network, loader=batches_of(of_dict), step=step, epochs=9,
        test_loader=batches_of(of_dict), metrics={"mae": Error()}, patience=1, min_delta=100,
    )  # fmt: skip

    assert len(rows) == 2
    assert rows[0].keys() == {"run", "epoch", "loss", "accuracy", "lr", "test_loss", "test_mae"}
    errors = (network(INPUTS)[:, 0] - LABELS).abs()
    assert rows[1]["test_mae"] == pytest.approx(errors.mean().item())


ALL: dict[str, dict[str, Any]] = {
    "fp32": {"clip_grad_norm": 0.5, "scheduler_every": "step"},
    "fp16": {"precision": "fp16", "micro_batch": 4},
    "auto": {"micro_batch": "auto"},
}


def killed(run, manager):
    network = make_network(dropout=0.3)
    network.register_forward_pre_hook(lambda *_: meet(run, manager.epoch_count))
    fit(
        run, network, shuffled(), manager, optimizer=functools.partial(Adam, lr=0.01), epochs=4,
        loss=scarce(6 if run.how == "auto" else 99), scheduler=lambda optimizer: ExponentialLR(optimizer, 0.9),
        keep="best:test_loss", test_loader=batches_of(), **ALL[run.how],
    )  # fmt: skip


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize(
    "how", ["fp32", *(pytest.param(n, marks=pytest.mark.slow(everywhere=True)) for n in ("fp16", "auto"))]
)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(how):
    grid = {"lr": [0.1], "how": [how]}
    for root in ("whole", "runs"):
        if root == "runs":
            announce("stop", 0.1, 3)
            start(grid, killed)
            trained()
            saved = torch.load(reading.run_folder("runs/exp") / "checkpoint.pt")
            assert ("scaler" in saved["states"]) == (how == "fp16")
        start(grid, killed, root=root)

    assert {epoch for _, epoch in trained()} == {3, 4}
    whole, resumed = (
        load_results(root).drop(columns=["epoch duration", "run duration"]) for root in ("whole", "runs")
    )
    assert whole.equals(resumed)
    contents = [torch.load(reading.run_folder(f"{root}/exp") / "weights.pt") for root in ("whole", "runs")]
    assert all(torch.equal(contents[0][name], contents[1][name]) for name in contents[0])


def test_fits_of_two_threads_leave_the_warnings_of_the_process_as_they_were(tmp_path, monkeypatch):
    by_fit(manager_in(tmp_path, "before"))  # what it imports may add filters
    before, autocast = list(warnings.filters), torch.autocast
    first, second = threading.Event(), threading.Event()

    def slow(*args):
        if not first.is_set():
            first.set()
            second.wait(0.3)
        elif not second.is_set():
            second.set()
            time.sleep(0.1)  # the first thread goes on meanwhile
        return autocast(*args)

    monkeypatch.setattr(torch, "autocast", slow)
    with ThreadPoolExecutor(2) as pool:
        fits = [pool.submit(by_fit, manager_in(tmp_path, "first"))]
        assert first.wait(30)
        fits.append(pool.submit(by_fit, manager_in(tmp_path, "second")))
        for fit_of_thread in fits:
            fit_of_thread.result()

    assert second.is_set()
    assert warnings.filters == before


# Pieces and precision


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
@pytest.mark.parametrize(("size", "piece"), [(24, 1), (24, 8), (24, 24), (23, 5), (23, 22), (23, 24)])
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

    row, gradients = step_of(manager, 24, clip_grad_norm=norm, **options)

    assert is_near(gradients, expected if norm is None else norm * expected / expected.norm(), within)
    assert row["loss"] == pytest.approx(loss, rel=0.01)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_reduced_precision_trains_and_evaluates_in_it(manager, precision):
    kinds = []
    network = make_network()
    network.register_forward_hook(lambda _, __, output: kinds.append(output.dtype))

    rows, _ = by_fit(manager, network, precision=precision, test_loader=batches_of())

    assert set(kinds) == {{"bf16": torch.bfloat16, "fp16": torch.float16}[precision]}
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert math.isfinite(rows[0]["test_loss"])


def test_fp16_leaves_out_a_step_whose_gradients_overflow_and_its_scheduler_does_not_warn(manager):
    rows, weights = by_fit(
        manager, precision="fp16", loss=lambda preds, labels: 1e38 * cross_entropy(preds, labels),
        loader=batches_of(size=48), scheduler=STEP_SCHEDULERS["warm-up"], scheduler_every="step",
    )  # fmt: skip

    assert math.isfinite(rows[0]["loss"])
    assert weights == {name: value.tolist() for name, value in make_network().state_dict().items()}


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


def of_dict(x, y):
    return {"x": x, "y": y, "scale": 2, "mask": None}


def of_mapping(network, batch, loss=cross_entropy):
    preds = network(batch["x"])
    return loss(preds, batch["y"]), preds, batch["y"]


def test_a_batch_that_memory_does_not_suffice_for_is_repeated_in_halves(tmp_path):
    asked: list[int] = []

    def loss(preds, labels):
        asked.append(len(labels))
        return scarce(4)(preds, labels)

    rows, weights = by_fit(manager_in(tmp_path, "auto"), micro_batch="auto", loss=loss)

    assert asked[:7] == [10, 5, 3, 3, 3, 1, 3]
    assert weights == by_fit(manager_in(tmp_path, "pieces"), micro_batch=3)[1]
    assert rows[0]["micro_batch_used"] == 3


def test_memory_that_runs_out_in_the_middle_of_a_batch_counts_nothing_twice(tmp_path):
    calls = itertools.count(1)

    def loss(preds, labels):
        return scarce(0 if next(calls) in (4, 6) else 99)(preds, labels)  # the fourth batch; its second half

    whole, _ = by_fit(manager_in(tmp_path, "whole"))
    rows, _ = by_fit(manager_in(tmp_path), micro_batch="auto", loss=loss)

    assert rows[0].pop("micro_batch_used") == 3
    assert rows == [pytest.approx(whole[0], rel=1e-5)]


@pytest.mark.parametrize(
    ("micro_batch", "error", "sizes"),
    [(None, ValueError("no"), [10]), (5, ValueError("no"), [5]), ("auto", ValueError("no"), [10]),
     (5, NO_MEMORY, [5]), (None, NO_MEMORY, [10]), ("auto", NO_MEMORY, [10, 5, 3, 2, 1])],
)  # fmt: skip
def test_an_error_that_smaller_pieces_would_not_cure_is_raised_at_once(tmp_path, micro_batch, error, sizes):
    asked = []

    def loss(preds, labels):
        asked.append(len(labels))
        raise error

    with pytest.raises(type(error)):
        by_fit(manager_in(tmp_path), micro_batch=micro_batch, loss=loss)

    assert asked == sizes
    status = "out of memory" if error is NO_MEMORY else "failed"
    assert load_runs(tmp_path)["status"].tolist() == [status]


@pytest.mark.parametrize("micro_batch", [5, "auto"])
def test_pieces_of_a_network_with_batch_statistics_are_to_be_accepted_and_see_each_piece_once(
    tmp_path, micro_batch
):
    trained, still = make_network(nn.BatchNorm1d), make_network(nn.BatchNorm1d)
    still[1].eval()
    with pytest.raises(InvalidArgumentError, match="accept it with batch_norm_per_piece=True"):
        by_fit(manager_in(tmp_path, "refused"), trained, micro_batch=micro_batch)
    by_fit(manager_in(tmp_path, "still"), still, micro_batch=micro_batch)
    options = {"micro_batch": micro_batch, "batch_norm_per_piece": True, "loss": scarce(5)}
    by_fit(manager_in(tmp_path), trained, **options)

    assert trained[1].num_batches_tracked == 10  # of five batches in two pieces each
    assert still[1].num_batches_tracked == 0


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
    with pytest.raises(ValueError, match="counts 8 samples in a batch, but 32 in its micro-batches"):
        by_fit(manager_in(tmp_path, "wrong"), micro_batch=3, batch_size=lambda *_: 8)


# What is refused


@pytest.mark.parametrize(
    ("batch", "described"),
    [([INPUTS], "a list"), ({"x": INPUTS, "y": LABELS}, "a dict"), (INPUTS[:2], "a Tensor"),
     ((INPUTS, LABELS, LABELS), "a tuple")],
    ids=["list", "dict", "tensor", "tuple"],
)  # fmt: skip
@pytest.mark.parametrize(("loader", "call"), [("loader", "fit"), ("test_loader", "evaluate")])
def test_a_batch_that_is_no_pair_is_named_in_the_first_step(manager, batch, described, loader, call):
    with pytest.raises(InvalidArgumentError, match=rf"{call}\(\) .*got {described}: write step="):
        by_fit(manager, epochs=9, **{loader: [batch]})

    assert manager.run_data == []  # no epoch was paid that has no row


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (lambda loss, outputs, _: (loss, outputs), "a tuple"), (lambda loss, *_: {"loss": loss}, "a dict"),
        (lambda loss, *_: loss.item(), "a float"), (lambda loss, *_: loss.detach() * 0 + 0.5, "a Tensor"),
        (lambda loss, *_: loss.repeat(3), "a Tensor"), (lambda *_: None, "a NoneType"),
    ],
)  # fmt: skip
def test_a_step_that_returns_something_else_is_named(manager, returned, named):
    with pytest.raises(InvalidArgumentError, match=f"step= must return .*got {named}"):
        by_fit(manager, loader=batches_of(of_dict), step=lambda *given: returned(*of_mapping(*given)))


def other_optimizer(_):
    return ExponentialLR(SGD(make_network().parameters()), 0.5)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"network": [nn.Linear(1, 1)]}, ["network must be a torch.nn.Module", "for several"]),
        ({"optimizer": [1, 2]}, ["one optimizer of torch.optim, got [1, 2]"]),
        ({"optimizer": lambda _: None}, ["one optimizer of torch.optim, got None"]),
        ({"optimizer": "adam"}, ["torch.optim"]),
        ({"optimizer": SGD(make_network().parameters())}, ["network.parameters()"]),
        ({"scheduler": [1]}, ["scheduler", "got [1]"]),
        ({"scheduler": ReduceLROnPlateau}, ["needs a metric"]),
        ({"scheduler": ReduceLROnPlateau(SGD(make_network().parameters()))}, ["needs a metric"]),
        ({"scheduler": other_optimizer}, ["has another optimizer"]),
        (
            {"step": 3, "loss": mse_loss, "patience": 0, "keep": "best"},
            ["patience", "got 0", "step must be a function", "'best:<metric>'", "loss= is not used with step="],
        ),
        (
            {"patience": 3, "scheduler_every": "batch", "epochs": -1, "clip_grad_norm": 0, "batch_size": 10},
            ["'step', 'epoch', got 'batch'", "patience=3 without a metric", "goal='min:validation_loss'",
             "epochs", "clip_grad_norm", "batch_size"],
        ),
        ({"micro_batch": 0, "metrics": {"mae": None}}, ["micro_batch", "test_loader="]),
        ({"precision": "fp64"}, ["'bf16'"]),
        ({"run": {"device": "meta"}, "precision": "bf16"}, ["precision on meta", "'fp32', got 'bf16'"]),
        ({"run": {"device": "xpu:99"}}, ["xpu:99"]),
        ({"network": nn.Linear(1, 1, device="meta"), "precision": "bf16"}, ["precision on meta"]),
    ],
)  # fmt: skip
def test_what_fit_does_not_do_is_refused_before_anything_is_written(manager, tmp_path, given, named):
    with pytest.raises((InvalidArgumentError, DeviceError)) as raised:
        by_fit(manager, **given)

    assert [part for part in named if part not in str(raised.value)] == []
    assert list(tmp_path.iterdir()) == []

"""fit() of other tasks than classification: batches of any form, a step of one's own, schedulers per step."""

import functools
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from runmanager import fit
from runmanager.errors import InvalidArgumentError
from tests.of_grid import manager_of_grid

INPUTS = torch.linspace(-2, 2, 48 * 4).reshape(48, 4).sin()
LABELS = (INPUTS.sum(dim=1) > 0).long()
RUN = {"lr": 0.1}
SGD_ = functools.partial(SGD, lr=0.1, momentum=0.9)


class Named(NamedTuple):
    """A batch whose parts have names."""

    x: torch.Tensor
    y: torch.Tensor


class MeanAbsoluteError:
    """A metric as torchmetrics has them."""

    def reset(self):
        self.sum, self.count = 0.0, 0

    def update(self, outputs, targets):
        self.sum += (outputs - targets).abs().sum().item()
        self.count += targets.numel()

    def compute(self):
        return self.sum / self.count


def make_manager(root, **options):
    return manager_of_grid("exp", root, **options)


def make_network(outputs=2, dropout=0.0):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, outputs))


def batches_of(form, size=10):
    return [form(INPUTS[start : start + size], LABELS[start : start + size]) for start in range(0, 48, size)]


def rows(manager):
    return [{name: value for name, value in row.items() if "duration" not in name} for row in manager.run_data]


def weights(network):
    return {name: value.numpy().tobytes() for name, value in network.state_dict().items()}


def trained(root, form=lambda x, y: (x, y), **options):
    """Train through fit(); return the rows and the weights."""
    manager, network = make_manager(root), make_network()
    options = {"optimizer": SGD_, "epochs": 2, "test_loader": batches_of(form, 7), **options}
    fit(RUN, network, batches_of(form), manager, **options)
    return rows(manager), weights(network)


def of_mapping(network, batch):
    preds = network(batch["x"])
    return cross_entropy(preds, batch["y"]), preds, batch["y"]


FORMS: dict[str, tuple[Any, Any]] = {
    "a mapping": (lambda x, y: {"x": x, "y": y, "scale": 2, "mask": None}, of_mapping),
    "three parts": (
        lambda x, y: (x, "text", y),
        lambda network, batch: of_mapping(network, {"x": batch[0], "y": batch[2]}),
    ),
    "names": (Named, lambda network, batch: of_mapping(network, batch._asdict())),
    "nested": (
        lambda x, y: ({"x": x, "id": "a"}, [y, y]),
        lambda network, batch: of_mapping(network, {"x": batch[0]["x"], "y": batch[1][0]}),
    ),
    "a list of samples": (
        lambda x, y: [{"x": one, "y": label} for one, label in zip(x, y, strict=True)],
        lambda network, batch: of_mapping(
            network, {name: torch.stack([sample[name] for sample in batch]) for name in "xy"}
        ),
    ),
}
COUNT = {"a list of samples": {"batch_size": len}}


@pytest.mark.parametrize("name", sorted(FORMS.keys() - COUNT.keys()))
@pytest.mark.parametrize("micro_batch", [3, "auto"])
def test_batches_of_any_form_are_cut_into_pieces(tmp_path, name, micro_batch):
    form, step = FORMS[name]

    def scarce(network, batch):
        loss, outputs, targets = step(network, batch)
        if torch.is_grad_enabled() and len(targets) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loss, outputs, targets

    whole, _ = trained(tmp_path / "whole")
    options = {"step": scarce if micro_batch == "auto" else step, "micro_batch": micro_batch}
    pieces, _ = trained(tmp_path / "pieces", form, **options)

    assert [row.pop("micro_batch", 3) for row in pieces] == [5, 5] if micro_batch == "auto" else [3, 3]
    assert pieces == [pytest.approx(row, rel=1e-4) for row in whole]


def test_metrics_of_the_test_loader_are_handed_on(tmp_path):
    def step(network, batch):
        outputs = network(batch["x"])[:, 0]
        return mse_loss(outputs, batch["y"].float()), outputs, batch["y"].float()

    options = {"step": step, "metrics": {"mae": MeanAbsoluteError()}, "keep": "min:test_mae"}
    ((first, second), _) = trained(tmp_path, FORMS["a mapping"][0], **options)

    assert first.keys() == second.keys() == {"run", "epoch", "loss", "accuracy", "lr", "test_loss", "test_mae"}


@pytest.mark.parametrize(
    ("batch", "described"),
    [
        ([INPUTS], "a list"),
        ({"x": INPUTS, "y": LABELS}, "a dict"),
        (INPUTS[:2], "a Tensor"),
        ((INPUTS, LABELS, LABELS), "a tuple"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_batch_that_is_no_pair_is_named_in_the_first_step(tmp_path, batch, described):
    manager = make_manager(tmp_path)
    message = f"takes batches of (inputs, labels), got {described}: write step=lambda network, batch: (loss, "
    options: dict[str, Any] = {"optimizer": SGD_, "epochs": 9}

    with pytest.raises(InvalidArgumentError) as of_training:
        fit(RUN, make_network(), [batch], manager, **options)
    with pytest.raises(InvalidArgumentError) as of_test:
        fit(RUN, make_network(), batches_of(lambda x, y: (x, y)), manager, test_loader=[batch], **options)

    assert f"fit() {message}outputs, targets)" in str(of_training.value)
    assert f"evaluate() {message}outputs, targets)" in str(of_test.value)
    assert manager.run_data == []  # no epoch was paid that has no row


STEP_SCHEDULERS = {
    "warm-up": lambda optimizer: LambdaLR(optimizer, lambda step: min(1, (step + 1) / 7)),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.5, total_steps=15),
}


@pytest.mark.parametrize("scheduler", STEP_SCHEDULERS.values(), ids=STEP_SCHEDULERS)
def test_a_scheduler_per_step_equals_the_plain_loop_bit_for_bit(tmp_path, scheduler):
    network = make_network()
    optimizer = SGD_(network.parameters())
    steps = scheduler(optimizer)
    for inputs, labels in [*batches_of(lambda x, y: (x, y))] * 3:
        optimizer.zero_grad()
        cross_entropy(network(inputs), labels).backward()
        optimizer.step()
        steps.step()

    fitted = trained(tmp_path, epochs=3, scheduler=scheduler, scheduler_every="step", test_loader=None)

    assert fitted[1] == weights(network)


def test_a_scheduler_per_step_does_not_warn_where_fp16_skips_its_first_step(tmp_path):
    def step(network, batch):
        loss, outputs, targets = of_mapping(network, batch)
        return loss * (1e38 if network.training else 1), outputs, targets  # its gradients overflow

    rows, _ = trained(
        tmp_path, FORMS["a mapping"][0], step=step, precision="fp16", epochs=1,
        scheduler=STEP_SCHEDULERS["warm-up"], scheduler_every="step",
    )  # fmt: skip

    assert rows[0]["test_loss"] > 0


def test_patience_may_watch_the_goal(tmp_path):
    manager = make_manager(tmp_path, goal="min:test_loss")
    loader = batches_of(lambda x, y: (x, y))

    fit(RUN, make_network(), loader, manager, optimizer=SGD_, epochs=9, test_loader=loader, patience=1,
        min_delta=100)  # fmt: skip

    assert len(manager.run_data) == 2


LOOP = "write the loop, as docs/training-function.md shows"
JOIN = "join several with ChainedScheduler or SequentialLR of torch.optim.lr_scheduler"
WATCH = "write keep='best:validation_loss', or give the experiment a goal: goal='min:validation_loss'"
KEEP = (
    "keep must be 'last', 'best:<metric>' of a metric whose direction is known, as 'best:test_accuracy', or "
    "'min:<metric>' or 'max:<metric>' of any other, or a pair of one of these and the module to save"
)


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        (
            {"network": [nn.Linear(1, 1)]},
            [f"network must be a torch.nn.Module, got {[nn.Linear(1, 1)]!r:.60}; for several, {LOOP}"],
        ),
        (
            {"optimizer": [1, 2]},
            [f"fit() makes one step of one optimizer of torch.optim, got [1, 2]: else {LOOP}"],
        ),
        (
            {"optimizer": lambda _: None},
            [f"fit() makes one step of one optimizer of torch.optim, got None: else {LOOP}"],
        ),
        ({"scheduler": [1]}, ["scheduler must be one of torch.optim.lr_scheduler, got [1]"]),
        (
            {
                "step": 3,
                "loss": mse_loss,
                "metrics": {},
                "patience": 0,
                "keep": "best",
            },
            [
                "patience must be a whole number, 1 or more, got 0",
                "step must be a function of the network and a batch, got 3",
                f"{KEEP}, got 'best'",
                "loss= is not used with step=, which returns the loss: leave out loss= or step=",
                "metrics= needs test_loader=: give a loader, or leave metrics= out",
            ],
        ),
        (
            {"patience": 3, "scheduler_every": "batch"},
            [
                "scheduler_every must be one of 'step', 'epoch', got 'batch'",
                f"patience=3 without a metric to watch: {WATCH}",
            ],
        ),
    ],
    ids=["networks", "optimizers", "no optimizer", "schedulers", "step", "patience"],
)
def test_what_fit_does_not_do_is_refused_before_anything_is_written(tmp_path, given, problems):
    options: dict[str, Any] = {
        "network": make_network(), "loader": batches_of(lambda x, y: (x, y)), "optimizer": SGD_, "epochs": 1,
        **given,
    }  # fmt: skip

    with pytest.raises(InvalidArgumentError) as raised:
        fit(RUN, manager=make_manager(tmp_path), **options)

    assert str(raised.value) == "; ".join(problems)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss, outputs, _: (loss, outputs), "(loss, outputs, targets) or the loss, got a tuple"),
        (lambda loss, *_: {"loss": loss}, "(loss, outputs, targets) or the loss, got a dict"),
        (lambda loss, *_: loss.item(), "one loss with a gradient, got a float"),
        (lambda loss, *_: loss.detach() * 0 + 0.5, "one loss with a gradient, got a Tensor"),
        (lambda loss, *_: loss.repeat(3), "one loss with a gradient, got a Tensor"),
        (lambda *_: None, "one loss with a gradient, got a NoneType"),
    ],
)
def test_a_step_that_returns_something_else_is_named(tmp_path, returned, message):
    def step(network, batch):
        return returned(*of_mapping(network, batch))

    with pytest.raises(InvalidArgumentError) as raised:
        trained(tmp_path, FORMS["a mapping"][0], step=step)

    assert "step= must return " in str(raised.value)
    assert message in str(raised.value)

"""Evaluations: means over a loader, with any batch and metric, of which the training notices nothing."""

import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from runmanager import (
    ImageTensors,
    InvalidArgumentError,
    LifecycleError,
    RunManager,
    TensorLoader,
    load_results,
    load_runs,
)

INPUTS = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10) % 3
TARGETS = INPUTS.sum(1)
DICTS = [{"x": INPUTS[:7], "y": TARGETS[:7]}, {"x": INPUTS[7:], "y": TARGETS[7:]}]
TRIPLES = [(INPUTS, INPUTS, LABELS)]
RUN = {"lr": 0.1}


def batches_of(**options):
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=4, **options)


DATA = batches_of()


def states(*generators):
    """Return the random states of this process, and those of generators."""
    numpy = repr(np.random.get_state())  # noqa: NPY002 - the users' state
    of_generators = [generator.get_state().tolist() for generator in generators]
    return random.getstate(), numpy, torch.get_rng_state().tolist(), *of_generators


def epochs(manager, network, num=1):
    """Yield the epochs of a run."""
    with manager.run(RUN, network):
        yield from manager.epochs(num)


def regression(network, batch):
    outputs = network(batch["x"])[:, 0]
    return functional.mse_loss(outputs, batch["y"]), outputs, batch["y"]


def constant(value):
    """Return a metric as torchmetrics has them, with the same value for whatever it gets."""
    return SimpleNamespace(update=lambda *_: None, compute=lambda: value, reset=lambda: None)


def of_other(network, batch):
    return network(batch[0]).mean()


def test_evaluate_computes_means_over_samples_and_gives_modes_and_random_states_back(manager, tmp_path):
    def loader():
        random.random()  # noqa: S311
        np.random.rand(3)  # noqa: NPY002
        yield from batches_of(shuffle=True)

    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.BatchNorm1d(3))
    network[2].eval()
    before = states(), [value.clone() for value in network.state_dict().values()]

    with manager.run(RUN, network):
        for _ in manager.epochs(1):
            result = manager.evaluate(loader(), "validation")

    assert states() == before[0]
    assert all(torch.equal(*pair) for pair in zip(network.state_dict().values(), before[1], strict=True))
    assert [module.training for module in network.modules()] == [True, True, True, False]
    preds = network.eval()(INPUTS)
    (row,) = load_results(tmp_path).to_dict(orient="records")
    assert (row["validation_loss"], row["validation_accuracy"]) == tuple(result)
    assert result.loss == pytest.approx(functional.cross_entropy(preds, LABELS).item(), rel=1e-5)
    assert result.accuracy == (preds.argmax(1) == LABELS).double().mean().item()


@pytest.mark.parametrize(
    "call", [RunManager.evaluate, lambda *args: RunManager.evaluating(*args).__enter__()], ids=["own", "loop"]
)
def test_an_evaluation_of_a_network_instead_of_a_loader_is_refused_without_its_data(manager, tmp_path, call):
    batches, network = [(INPUTS, LABELS)], nn.Linear(4, 3)

    def execute():
        with manager.run(RUN, network):
            for _ in manager.epochs(1):
                call(manager, network, batches)

    with pytest.raises(InvalidArgumentError, match="takes a loader, then the name"):
        execute()

    assert len(load_runs(tmp_path / "exp")["error"][0]) < 300


def track_in_evaluation(manager, *names):
    with manager.evaluating([INPUTS], "val") as batches:
        for _ in batches:
            for name in names:
                manager.track({name: 1.0})
            manager.track_loss(1.0, len(INPUTS))


@pytest.mark.parametrize(
    ("column", "fill"),
    [
        ("test_loss", lambda m: [m.evaluate(batches_of(), "test") for _ in range(2)]),
        ("test_loss", lambda m: [m.evaluate(DATA, "test", step=step) for step in (None, of_other)]),
        ("val_x", lambda m: [m.track({"val/x": 1}), m.track(val_x=3)]),
        ("val_x", lambda m: [m.track({"val/x": 1, "val_x": 3}, how="last")]),
        ("test_loss", lambda m: [m.track(test_loss=1.0), m.evaluate(DATA, "test")]),
        ("test_loss", lambda m: [m.evaluate(DATA, "test"), m.track({"test/loss": 1.0})]),
        ("val_loss", lambda m: [m.evaluate(DATA, "val"), track_in_evaluation(m)]),
        ("x", lambda m: track_in_evaluation(m, "x/y", "x_y")),
        ("loss", lambda m: track_in_evaluation(m, "loss")),
        ("mae", lambda m: m.evaluate(DATA, metrics=dict.fromkeys(("x/mae", "x_mae"), constant(0.5)))),
        ("loss", lambda m: m.evaluate(DATA, metrics={"loss": constant(0.5)})),
        ("a_b", lambda m: m.log({"a/b": 1, "a_b": 2})),
        ("a_b", lambda m: [m.log({"a/b": 1}), m.log(a_b=2)]),
    ],
)
def test_a_column_with_two_sources_in_an_epoch_is_refused(manager, tmp_path, column, fill):
    def execute():
        with manager.run(RUN, nn.Linear(4, 3)):
            for _ in manager.epochs(1):
                fill(manager)

    with pytest.raises(InvalidArgumentError, match=f"{column}.* has two sources"):
        execute()

    assert load_runs(tmp_path)[["status", "epochs"]].to_numpy().tolist() == [["failed", 0]]


@pytest.mark.parametrize(
    "fill",
    [
        lambda m: [m.evaluate(batches_of(), "final"), m.evaluate(batches_of(), "final")],
        lambda m: [m.summary(final_loss=1.0), m.evaluate(DATA, "final")],
        lambda m: [m.summary({"final/loss": 1.0}), m.summary(final_loss=2.0)],
    ],
)
def test_a_result_of_the_run_with_two_sources_is_refused(manager, fill):
    def execute():
        with manager.run(RUN, nn.Linear(4, 3)):
            for _ in manager.epochs(1):
                manager.track_loss(1.0, 1)
            fill(manager)

    with pytest.raises(InvalidArgumentError, match="'final_loss' has two sources"):
        execute()


class Study:
    def loss(self, outputs, targets):
        return functional.cross_entropy(outputs, targets)


def test_a_source_that_is_repeated_fills_its_column(manager, tmp_path):
    study, recalls = Study(), constant({"a": 0.5, "b": 1.0})
    with manager.run(RUN, nn.Linear(4, 3)):
        for epoch in manager.epochs(2):
            for value in (1.0, 3.0):
                means = manager.evaluate(
                    DATA, "val", loss=study.loss, metrics={"re/call": recalls}
                )  # as within a long epoch
                manager.track({"val/x": value}, how="last")
            manager.summary(best=epoch)

    table = load_results(tmp_path)
    assert table["val_x"].tolist() == [3.0, 3.0]
    assert table[["val_re_call_a", "val_re_call_b"]].to_numpy().tolist() == [[0.5, 1.0]] * 2
    assert table["val_loss"][1] == means.loss
    assert load_runs(tmp_path)["best"].tolist() == [2.0]


@pytest.mark.slow  # importing torchmetrics takes seconds; test_fit.py evaluates a metric of one's own
def test_metrics_of_torchmetrics_are_those_of_one_pass_over_all_samples(manager, tmp_path):
    import torchmetrics

    network = nn.Linear(4, 3)
    recalls = torchmetrics.Recall("multiclass", num_classes=3, average=None)
    metrics = {"r2": torchmetrics.R2Score(), "mae": torchmetrics.MeanAbsoluteError()}
    for _ in epochs(manager, network, 2):
        result = manager.evaluate(DICTS, "validation", step=regression, metrics=metrics)
        f1 = torchmetrics.MetricCollection({"f1": torchmetrics.F1Score("multiclass", num_classes=3)})
        manager.evaluate(DATA, metrics=f1)
        manager.evaluate(DATA, "again", metrics={"re/call": torchmetrics.wrappers.ClasswiseWrapper(recalls)})

    rows = load_results(tmp_path)
    expected = torchmetrics.functional.r2_score(network(INPUTS)[:, 0].detach(), TARGETS).item()
    assert result.metrics["r2"] == pytest.approx(expected, abs=1e-5)
    for name in metrics:  # nothing is left of the first pass
        assert rows[f"validation_{name}"].tolist() == [result.metrics[name]] * 2
    assert {"test_loss", "test_accuracy", "test_f1"} <= {*rows}
    assert [name for name in map(str, rows) if name.startswith("again_re_call_")] == [
        f"again_re_call_multiclassrecall_{number}" for number in range(3)
    ]


STEPS: dict[str, Any] = {
    "the loss alone": lambda network, batch: regression(network, batch)[0],
    "targets of any kind": lambda network, batch: (*regression(network, batch)[:2], [{"boxes": 1}]),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_without_classes_has_a_loss_and_no_accuracy(manager, step):
    network = nn.Linear(4, 1)
    for _ in epochs(manager, network):
        result = manager.evaluate(DICTS, step=step)

    expected = functional.mse_loss(network(INPUTS)[:, 0], TARGETS).item()
    assert (result.loss, math.isnan(result.accuracy)) == (pytest.approx(expected, rel=1e-5), True)


def test_a_loss_of_ones_own_gets_all_outputs(manager):
    network = nn.LSTM(4, 3)  # returns a tensor and a pair of them
    for _ in epochs(manager, network):
        result = manager.evaluate(DATA, loss=lambda outputs, labels: outputs[0].sum() / len(labels))

    expected = sum(network(inputs)[0].sum().item() for inputs, _ in DATA) / 10
    assert (result.loss, math.isnan(result.accuracy)) == (pytest.approx(expected, rel=1e-5), True)


@pytest.mark.parametrize(
    ("loader", "options", "message"),
    [
        (DICTS, {}, "got a dict: write step=lambda network, batch: (loss, outputs, targets)"),
        (TRIPLES, {}, "got a tuple: write step="),
        ([INPUTS[:2]], {}, "got a Tensor: write step="),
        (DICTS, {"step": lambda *_: (1.0, 2.0)}, "(loss, outputs, targets) or the loss, got a tuple"),
        (DICTS, {"step": lambda *_: {"loss": 1}}, "or the loss, got a dict"),
        (DICTS, {"step": lambda *_: 1.0, "metrics": {"r2": constant(0.5)}}, "for metrics=, got the loss alone"),
        (DICTS, {"metrics": {"r 2": constant(0.5)}}, "'test_r 2' is not an identifier"),
        (DATA, {"metrics": {"table": constant(torch.zeros(3, 3))}}, "table is a Tensor, not a number: give"),
        ([(INPUTS[:, :3], LABELS)], {}, "shapes cannot be multiplied"),
    ],
)
def test_what_cannot_be_evaluated_is_named_and_the_network_trains_on(manager, loader, options, message):
    network = nn.Linear(4, 3)
    for _ in epochs(manager, network):
        with pytest.raises((InvalidArgumentError, RuntimeError)) as raised:
            manager.evaluate(loader, **options)
        assert network.training

    assert message in str(raised.value)


def test_an_evaluation_does_not_write_over_a_hyperparameter(manager):
    refused = pytest.raises(InvalidArgumentError, match="'test_loss' is a hyperparameter: give")
    with manager.run({"test_loss": 1}, nn.Linear(4, 3)), refused:
        manager.evaluate(DATA)


def test_a_loop_of_ones_own_that_evaluates_is_not_noticed_by_the_training(manager):
    images = torch.rand(20, 1, 2, 2, generator=torch.Generator())
    loader = TensorLoader(ImageTensors(images, torch.zeros(20).long()), 5, seed=1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout())
    for _ in epochs(manager, network):
        before = states(loader.generator)
        manager.evaluate(loader, "val")
        with manager.evaluating(loader) as batches:
            for inputs, _labels in batches:
                assert not network.training
                assert not network(inputs).requires_grad
                torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002, S311
        assert (network.training, torch.is_grad_enabled()) == (True, True)
        assert states(loader.generator) == before


def test_everything_is_given_back_after_an_error_and_after_a_break(manager, tmp_path):
    network = nn.Linear(4, 1)
    for _ in epochs(manager, network):
        with pytest.raises(ValueError, match="no"), manager.evaluating(DICTS):
            raise ValueError("no")
        with manager.evaluating(DICTS, "some") as batches:
            for batch in batches:
                manager.track(mean=batch["y"].mean())
                break
        assert network.training
        manager.track(after=1)

    (row,) = load_results(tmp_path).to_dict("records")
    assert row["some_mean"] == pytest.approx(TARGETS[:7].mean().item(), abs=1e-6)
    assert row["after"] == 1


def test_it_is_for_an_open_epoch_and_not_within_another(manager):
    with pytest.raises(LifecycleError, match=r"evaluating\(\) outside a run"), manager.evaluating(DICTS):
        pass
    for _ in epochs(manager, nn.Linear(4, 1)):
        with (
            manager.evaluating(DICTS),
            pytest.raises(LifecycleError, match="an evaluation within another one, of 'validation'"),
        ):
            manager.evaluate(DICTS, "validation", step=regression)

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from runmanager import RunManager, load_results
from runmanager.core.evaluate import Evaluation, OpenEvaluation
from runmanager.core.loaders import ImageTensors, TensorLoader, undisturbed
from runmanager.core.metrics import EpochSums
from runmanager.devices.torch_devices import undisturbed_random
from runmanager.errors import InvalidArgumentError, LifecycleError
from tests.board.reading import folder_scalars

CPU = torch.device("cpu")


def evaluate(network, loader, device, loss, **options):
    opened = OpenEvaluation("test", loader, device)
    with undisturbed(network, loader, device), torch.no_grad():
        network.eval()
        opened.apply(network, loss, **options)
        return opened.read()[0]


class Recurrent(nn.Module):
    """Returns two tensors, as nn.LSTM does."""

    def forward(self, inputs):
        return inputs, inputs.sum()


def make_network():
    """Everything that behaves differently in training."""
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 2))


def test_modes_are_given_back_after_an_error_too():
    network = make_network()

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        evaluate(network, [(torch.ones(4, 7), torch.zeros(4))], CPU, cross_entropy)

    assert all(module.training for module in network.modules())


def test_a_network_with_several_outputs_has_a_loss_and_no_accuracy():
    def loss(outputs, labels):
        return outputs[1] / len(labels)

    result = evaluate(Recurrent(), LOADER, CPU, loss)

    assert result.loss == 3.0
    assert math.isnan(result.accuracy)


def test_segmentation_is_accurate_by_the_pixel():
    labels = torch.zeros(2, 4, 4, dtype=torch.long)
    labels[0, 0, 0] = 1
    scores = torch.zeros(2, 3, 4, 4)  # class 0 everywhere

    result = evaluate(nn.Identity(), [(scores, labels)], CPU, cross_entropy)

    assert result == Evaluation(loss=pytest.approx(math.log(3)), accuracy=31 / 32)  # type: ignore[arg-type]


def test_the_generator_of_the_loader_is_given_back(tmp_path):
    images, labels = torch.rand(20, 1, 2, 2), torch.zeros(20, dtype=torch.long)
    loader = TensorLoader(ImageTensors(images, labels), 5, seed=1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    before = loader.generator.get_state()

    evaluate(network, loader, torch.device("cpu"), cross_entropy)

    assert torch.equal(loader.generator.get_state(), before)


LOADER = [(torch.ones(4, 3), torch.zeros(4, dtype=torch.long))] * 2
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(10, 4, generator=GENERATOR)
TARGETS = torch.randn(10, generator=GENERATOR)
CLASSES = torch.arange(10) % 3
DICTS = [{"x": INPUTS[:7], "y": TARGETS[:7]}, {"x": INPUTS[7:], "y": TARGETS[7:]}]
PAIRS = [(INPUTS, CLASSES)]
TRIPLES = [(INPUTS[:7], INPUTS[:7], CLASSES[:7]), (INPUTS[7:], INPUTS[7:], CLASSES[7:])]


def constant(value):
    """Return a metric as torchmetrics has them, with the same value for whatever it gets."""
    return SimpleNamespace(update=lambda *_: None, compute=lambda: value, reset=lambda: None)


R2, TABLE = constant(torch.tensor(0.5)), constant(torch.zeros(3, 3))


@pytest.fixture(scope="module")
def torchmetrics():
    """Import it where a test needs it: that takes seconds, and only one process of tests comes here."""
    import torchmetrics

    return torchmetrics


@pytest.fixture
def manager(tmp_path):
    return RunManager("exp", tmp_path, tensorboard=False, display=False)


def regression(network, batch):
    outputs = network(batch["x"])[:, 0]
    return functional.mse_loss(outputs, batch["y"]), outputs, batch["y"]


def epochs(manager, network, n=1):
    with manager.run({"lr": 0.1}, network):
        yield from manager.epochs(n)


def drawn():
    """Return what NumPy would draw next."""
    with undisturbed_random(torch.device("cpu")):
        return np.random.rand()  # noqa: NPY002 - the users' state


class TestEvaluate:
    def test_a_step_may_return_the_loss_alone(self, manager):
        for _ in epochs(manager, nn.Linear(4, 1)):
            result = manager.evaluate(DICTS, step=lambda *args: regression(*args)[0])

        assert result.loss > 0
        assert math.isnan(result.accuracy)

    def test_targets_may_be_anything_and_are_read_once(self, manager, monkeypatch):
        reads, read = [], EpochSums.means

        def means(sums):
            reads.append(sums)
            return read(sums)

        def step(network, batch):
            return 0.5, network(batch["x"]), [{"boxes": 1}]

        monkeypatch.setattr(EpochSums, "means", means)
        for _ in epochs(manager, nn.Linear(4, 3)):
            result = manager.evaluate(DICTS, step=step)
            assert len(reads) == 1

        assert result.loss == 0.5
        assert math.isnan(result.accuracy)

    def test_metrics_are_those_of_one_pass_over_all_samples(self, manager, tmp_path, torchmetrics):
        network = nn.Linear(4, 1)
        metrics = {"r2": torchmetrics.R2Score(), "mae": torchmetrics.MeanAbsoluteError()}
        for _ in epochs(manager, network, 2):
            result = manager.evaluate(DICTS, "validation", step=regression, metrics=metrics)

        outputs = network(INPUTS)[:, 0].detach()
        expected = torchmetrics.functional.r2_score(outputs, TARGETS).item()
        assert result.metrics["r2"] == pytest.approx(expected, abs=1e-5)
        rows = load_results(tmp_path)
        assert rows["validation_r2"].tolist() == [result.metrics["r2"]] * 2  # nothing is left of the first pass
        assert rows["validation_mae"].tolist() == [result.metrics["mae"]] * 2

    def test_several_values_are_several_columns(self, manager, tmp_path, torchmetrics):
        recalls = torchmetrics.Recall("multiclass", num_classes=3, average=None)
        each = torchmetrics.wrappers.ClasswiseWrapper(recalls)
        collection = torchmetrics.MetricCollection({"f1": torchmetrics.F1Score("multiclass", num_classes=3)})
        for _ in epochs(manager, nn.Linear(4, 3)):
            manager.evaluate(PAIRS, metrics=collection)
            manager.evaluate(PAIRS, "again", metrics={"re/call": each})

        columns = [str(name) for name in load_results(tmp_path)]
        assert {"test_loss", "test_accuracy", "test_f1"} <= {*columns}
        assert [name for name in columns if name.startswith("again_re_call_")] == [
            f"again_re_call_multiclassrecall_{number}" for number in range(3)
        ]

    def test_before_the_first_epoch_the_values_are_in_tensorboard(self, tmp_path, torchmetrics):
        manager = RunManager("exp", tmp_path, display=False)
        with manager.run({"lr": 0.1}, nn.Linear(4, 1)):
            manager.evaluate(
                DICTS, "validation", step=regression, metrics={"mae": torchmetrics.MeanAbsoluteError()}
            )
            for _ in manager.epochs(1):
                manager.track_loss(1.0, 1)

        assert [
            number for number, _ in folder_scalars(next((tmp_path / "exp").glob("001*")))["loss/validation"]
        ] == [0]

    @pytest.mark.parametrize(
        ("loader", "options", "message"),
        [
            (
                DICTS,
                {},
                "got a dict: write step=lambda network, batch: (loss, outputs, targets)",
            ),
            (TRIPLES, {}, "takes batches of (inputs, labels), got a tuple: write step="),
            ([INPUTS[:2]], {}, "takes batches of (inputs, labels), got a Tensor: write step="),
            (DICTS, {"step": lambda *_: (1.0, 2.0)}, "(loss, outputs, targets) or the loss, got a tuple"),
            (DICTS, {"step": lambda *_: {"loss": 1}}, "or the loss, got a dict"),
            (DICTS, {"step": lambda *_: 1.0, "metrics": {"r2": R2}}, "for metrics=, got the loss alone"),
            (DICTS, {"metrics": {"r 2": R2}}, "'test_r 2' is not an identifier"),
            (PAIRS, {"metrics": {"table": TABLE}}, "table is a Tensor, not a number: give"),
        ],
    )
    def test_what_cannot_be_evaluated_is_named(self, manager, loader, options, message):
        network = nn.Linear(4, 3)
        for _ in epochs(manager, network):
            with pytest.raises(InvalidArgumentError) as raised:
                manager.evaluate(loader, **options)

        assert message in str(raised.value)
        assert network.training


class TestEvaluating:
    def test_training_does_not_notice_it(self, manager):
        network = nn.Sequential(nn.Linear(4, 3), nn.Dropout())
        for _ in epochs(manager, network):
            before = random.getstate(), drawn(), torch.get_rng_state()
            with manager.evaluating(DICTS, "test") as batches:
                for batch in batches:
                    assert not network.training
                    assert not network(batch["x"]).requires_grad
                    torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002, S311
            assert network.training
            assert torch.is_grad_enabled()
            assert random.getstate() == before[0]
            assert drawn() == before[1]
            assert torch.equal(torch.get_rng_state(), before[2])

    def test_everything_is_given_back_after_an_error_and_after_a_break(self, manager, tmp_path):
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

    def test_it_is_for_an_open_epoch_and_not_within_another(self, manager):
        with pytest.raises(LifecycleError, match=r"evaluating\(\) outside a run"), manager.evaluating(DICTS):
            pass
        for _ in epochs(manager, nn.Linear(4, 1)):
            with (
                manager.evaluating(DICTS),
                pytest.raises(LifecycleError, match="an evaluation within another one, of 'validation'"),
            ):
                manager.evaluate(DICTS, "validation", step=regression)


class TestHow:
    @pytest.mark.parametrize("how", ["min", "max"])
    def test_a_nan_is_not_hidden(self, manager, tmp_path, how):
        for _ in epochs(manager, None):
            for value in (1.0, math.nan, 2.0):
                manager.track(reward=value, how=how)

        assert math.isnan(load_results(tmp_path)["reward"][0])

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ("median", "how must be one of 'mean', 'sum', 'last', 'min', 'max', got 'median'"),
            (0.5, "got 0.5; a metric of that name: track({'how': ...})"),
            ("max", "'reward' has two sources, reward with how='sum' and reward with how='max': "),
            ("mean", "'reward' has two sources, reward with how='sum' and reward: "),
        ],
    )
    def test_another_how_is_refused(self, manager, how, message):
        for _ in epochs(manager, None):
            manager.track(reward=1, how="sum")
            with pytest.raises(InvalidArgumentError) as raised:
                manager.track(reward=1, how=how)

        assert message in str(raised.value)

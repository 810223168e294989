import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from runmanager.training import evaluation
from runmanager.training.evaluation import Evaluation, OpenEvaluation
from runmanager.training.loaders import ImageTensors, TensorLoader

CPU = torch.device("cpu")
LOADER = [(torch.ones(4, 3), torch.zeros(4, dtype=torch.long))] * 2


def evaluate(network, loader, device, loss, **options):
    opened = OpenEvaluation("test", loader, device)
    with evaluation.undisturbed(network, loader, device):
        evaluation.evaluate(network, opened, loss, **options)
        return opened.read()[0]


class Recurrent(nn.Module):
    """Returns two tensors, as nn.LSTM does."""

    def forward(self, inputs):
        return inputs, inputs.sum()


def make_network():
    """Everything that behaves differently in training."""
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 2))


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 99))
def test_loss_and_accuracy_are_means_over_the_samples(batch_size, count, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (count,), generator=generator)
    loader = DataLoader(TensorDataset(scores, labels), batch_size)

    result = evaluate(nn.Identity(), loader, CPU, cross_entropy)

    assert result.loss == pytest.approx(cross_entropy(scores, labels).item())
    assert result.accuracy == np.mean(scores.numpy().argmax(axis=1) == labels.numpy())


def test_a_network_is_evaluated_in_eval_mode_and_left_as_it_was():
    network = make_network()
    network[1].eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}

    first, second = (evaluate(network, LOADER, CPU, cross_entropy) for _ in range(2))

    assert first == second  # no dropout
    assert [module.training for module in network] == [True, False, True, True]
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_gradients_are_switched_off_and_on_again():
    seen = []

    def loss(preds, labels):
        seen.append(preds.requires_grad)
        return cross_entropy(preds, labels)

    evaluate(make_network(), LOADER, CPU, loss)

    assert seen == [False, False]
    assert torch.is_grad_enabled()


def test_random_states_are_given_back_though_the_loader_uses_them():
    loader = DataLoader(TensorDataset(torch.ones(8, 3), torch.zeros(8, dtype=torch.long)), 2, shuffle=True)
    network = make_network()
    before = torch.get_rng_state(), random.getstate()

    evaluate(network, loader, CPU, cross_entropy)

    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_modes_are_given_back_after_an_error_too():
    network = make_network()

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        evaluate(network, [(torch.ones(4, 7), torch.zeros(4))], CPU, cross_entropy)

    assert all(module.training for module in network.modules())


def test_regression_has_a_loss_and_no_accuracy():
    loader = [(torch.ones(3, 1), torch.zeros(3, 1)), (torch.ones(1, 1), torch.full((1, 1), 3.0))]

    result = evaluate(nn.Identity(), loader, CPU, mse_loss)

    assert result.loss == 7 / 4
    assert math.isnan(result.accuracy)


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


def test_a_loader_without_batches_has_no_means():
    result = evaluate(make_network(), [], CPU, cross_entropy)

    assert math.isnan(result.loss)
    assert math.isnan(result.accuracy)


def test_the_generator_of_the_loader_is_given_back(tmp_path):
    images, labels = torch.rand(20, 1, 2, 2), torch.zeros(20, dtype=torch.long)
    loader = TensorLoader(ImageTensors(images, labels), 5, seed=1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    before = loader.generator.get_state()

    evaluate(network, loader, torch.device("cpu"), cross_entropy)

    assert torch.equal(loader.generator.get_state(), before)

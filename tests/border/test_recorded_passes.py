"""On CUDA, fit() replays recorded passes: what they may not change."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from runmanager import RunManager, fit

NUM_BATCHES = 25
pytestmark = [
    pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]  # fmt: skip


def make_network():
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))


class OfAUser(nn.Sequential):
    def forward(self, t):
        CALLS.append(len(t))
        return super().forward(t)


def make_own():
    return OfAUser(*make_network())


def make_hooked():
    network = make_network()
    network[1].register_forward_hook(lambda _, __, output: CALLS.append(len(output)))
    return network


CALLS: list[int] = []


def losses_of(root, make, *, is_eager, prepare=None, **options):
    torch.manual_seed(0)
    inputs, labels = torch.randn(8 * NUM_BATCHES - 3, 6), torch.arange(8 * NUM_BATCHES - 3) % 3
    loader = list(zip(inputs.split(8), labels.split(8), strict=True))
    network = make()
    if prepare is not None:
        options["scheduler"] = prepare(network)
    if is_eager:
        options["step"] = lambda network, batch: functional.cross_entropy(network(batch[0]), batch[1])
    manager = RunManager("eager" if is_eager else "recorded", root, display=False, tensorboard=False)
    torch.manual_seed(0)
    fit(
        {"device": "cuda"}, network, loader, manager, epochs=3,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01), **options,
    )  # fmt: skip
    return manager.results["loss"].tolist()


@pytest.mark.parametrize("options", [{}, {"precision": "bf16"}, {"precision": "fp16"}, {"clip_grad_norm": 0.1}])
def test_recorded_passes_give_the_losses_of_eager_ones(tmp_path, options):
    recorded = losses_of(tmp_path, make_network, is_eager=False, **options)

    assert recorded == pytest.approx(losses_of(tmp_path, make_network, is_eager=True, **options), rel=1e-4)


def counted_loss(outputs, labels):
    CALLS.append(len(labels))
    return functional.cross_entropy(outputs, labels)


@pytest.mark.parametrize(
    ("make", "options"), [(make_own, {}), (make_hooked, {}), (make_network, {"loss": counted_loss})]
)
def test_a_forward_pass_a_hook_and_a_loss_of_the_users_own_are_called_for_every_batch(tmp_path, make, options):
    CALLS.clear()

    losses_of(tmp_path, make, is_eager=False, **options)

    assert len(CALLS) == 3 * NUM_BATCHES


def shrink(network):
    weight = network[0].weight
    weight.data = weight.data * 0.1


CHANGES = {
    "rate": lambda network: setattr(network[2], "p", 0.0),
    "mode": lambda network: network[2].eval(),
    "memory": shrink,
    "layer": lambda network: network.__setitem__(1, nn.Tanh()),
    "hook": lambda network: network[1].register_forward_hook(lambda *passed: passed[2] * 0.1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_in_a_network_between_epochs_counts(tmp_path, change):
    def prepare(network):
        class Changing(torch.optim.lr_scheduler.LambdaLR):
            def step(self, *arguments):
                super().step(*arguments)
                if self.last_epoch == 1:
                    change(network)

        return lambda optimizer: Changing(optimizer, lambda _: 1.0)

    recorded = losses_of(tmp_path, make_network, is_eager=False, prepare=prepare)

    assert recorded == pytest.approx(
        losses_of(tmp_path, make_network, is_eager=True, prepare=prepare), rel=1e-4
    )

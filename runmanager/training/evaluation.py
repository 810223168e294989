"""Loss and accuracy of a network, without changing its training."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from runmanager.devices.torch_devices import undisturbed_random
from runmanager.training import loaders
from runmanager.training.batch_size import Measure
from runmanager.training.metrics import EpochSums

if TYPE_CHECKING:
    from runmanager.board.confusion import Confusion

Loss = Callable[[Any, Any], torch.Tensor]


class Evaluation(NamedTuple):
    """The means over the samples of a loader; accuracy is NaN if the labels are not classes."""

    loss: float
    accuracy: float


def evaluate(
    network: nn.Module,
    loader: Iterable[Any],
    device: torch.device,
    loss: Loss,
    on_batch: Callable[[], None] = lambda: None,
    confusion: "Confusion | None" = None,
    measure: Measure | None = None,
) -> Evaluation:
    """Compute the mean loss and accuracy in eval mode without gradients; waits for the device.

    Modes and random states are restored, those of the loader's generators too.

    `on_batch` is called at each batch. If labels are classes, `confusion` counts the predictions of each.
    The other arguments are those of `RunManager.evaluate`.
    """
    sums = EpochSums(measure)
    with undisturbed_random(device), _undisturbed(loader), _eval_mode(network), torch.no_grad():
        for inputs, labels in loaders.batches(loader, device):
            on_batch()
            preds = network(inputs)
            has_size = measure is None and isinstance(labels, torch.Tensor)
            sums.add_loss(loss(preds, labels), len(labels) if has_size else (inputs, labels))
            if isinstance(preds, torch.Tensor) and preds.ndim > 1 and not labels.is_floating_point():
                sums.add_correct(preds, labels)
                if confusion:
                    confusion.add(preds, labels)
    means = sums.means()
    if confusion:
        confusion.add_ranks()
    return Evaluation(means.get("loss", torch.nan), means.get("accuracy", torch.nan))


@contextmanager
def _undisturbed(loader: Iterable[Any]) -> Iterator[None]:
    states = [(generator, generator.get_state()) for _, generator in loaders.generators(loader)]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


@contextmanager
def _eval_mode(network: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        # one by one: a part may have been in eval mode while the rest was training
        for module, training in modes:
            module.training = training

"""skorch's NeuralNet in a loop over the grid, with its TensorBoard callback."""

import json
from pathlib import Path
from typing import Any

import torch
from skorch import NeuralNet
from skorch.callbacks import PassthroughScoring, TensorBoard
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from benchmarks.peers.common import GRID, LR, asked, image_by_image, in_memory, make_network, whole_batches


class Network(nn.Module):
    """The tutorial's network, in a class of its own as skorch wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = make_network()

    def forward(self, images: torch.Tensor) -> Any:
        """Return the scores."""
        return self.network(images)


class Net(NeuralNet):  # type: ignore[misc,unused-ignore]
    """A net that tells its training accuracy."""

    def train_step_single(self, batch: Any, **fit_params: Any) -> Any:
        """Note the accuracy of a batch."""
        step = super().train_step_single(batch, **fit_params)
        correct = (step["y_pred"].argmax(1) == batch[1]).float().mean().item()
        self.history.record_batch("train_accuracy", correct)
        return step


def main() -> None:
    """Fit each run of the grid."""
    root, tuned = asked()
    form: dict[str, Any] = {"iterator_train__shuffle": True}
    if tuned:
        form = {"iterator_train": whole_batches, "optimizer__fused": True, "callbacks__print_log": None}
    accuracies = []
    for batch_size, num_workers in GRID:
        torch.manual_seed(0)
        writer = SummaryWriter(str(Path(root) / f"{batch_size}-{num_workers}"))
        scoring = PassthroughScoring("train_accuracy", lower_is_better=False, on_train=True)
        net = Net(
            Network, criterion=nn.CrossEntropyLoss, optimizer=torch.optim.Adam, lr=LR, max_epochs=1,
            batch_size=batch_size, train_split=None, iterator_train__num_workers=num_workers,
            callbacks=[("accuracy", scoring), ("board", TensorBoard(writer))], **form,
        )  # fmt: skip
        net.fit(in_memory() if tuned else image_by_image(), y=None)
        accuracies.append(float(net.history[-1, "train_accuracy"]))
    print(json.dumps(accuracies))


if __name__ == "__main__":
    main()

"""The tutorial's grid on Fashion-MNIST: which batch size, how many workers, cuda or cpu?

    python experiments/fashion_grid.py

One epoch of 60,000 images for each of lr x batch_size x num_workers x device, then the 10,000 test images.
Expected: a test accuracy of 0.76 at batch size 1000 and of 0.30 at 20000, whose three steps are too few.
Runs whose device is not there are listed as unavailable. Started again, the command executes what is missing.
"""

import sys
from collections import OrderedDict
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from runmanager import Run, main

if TYPE_CHECKING:
    from torch import nn

    from runmanager import ImageTensors, RunManager

GRID: OrderedDict[str, list[Any]] = OrderedDict(
    lr=[0.01],
    batch_size=[1000, 10000, 20000],
    num_workers=[0, 1],
    device=["cuda", "cpu"],
)


def make_network() -> "nn.Module":
    """Build the tutorial's network, 32,998 parameters: images (N, 1, 28, 28) in, scores (N, 10) out.

    Pooling before ReLU gives the same bits from a quarter of the values.
    """
    from torch import nn

    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 6, 5), pool1=nn.MaxPool2d(2), relu1=nn.ReLU(),  # (N, 6, 12, 12)
            conv2=nn.Conv2d(6, 12, 5), pool2=nn.MaxPool2d(2), relu2=nn.ReLU(),  # (N, 12, 4, 4)
            flatten=nn.Flatten(),
            fc1=nn.Linear(192, 120), relu3=nn.ReLU(),
            fc2=nn.Linear(120, 60), relu4=nn.ReLU(),
            out=nn.Linear(60, 10),
        )
    )  # fmt: skip


@cache
def load_images(data_dir: str, size: int | None = None, *, train: bool = True) -> "ImageTensors":
    """Load the first images of the training set or the test set, once per process."""
    from runmanager import fashion_mnist

    return fashion_mnist(data_dir, size=size, train=train)


def train(
    run: Run,
    manager: "RunManager",
    num_epochs: int = 1,
    train_size: int = 60_000,
    precision: str = "fp32",
    seed: int = 0,
    data_dir: str = "data",
) -> None:
    """Train the tutorial's network on Fashion-MNIST."""
    import torch

    from runmanager import TensorLoader, fit

    torch.manual_seed(seed)  # the same first weights and order in every run, so that runs can be compared
    train_set = load_images(data_dir, train_size)
    fit(
        run,
        make_network().to(memory_format=torch.channels_last),
        TensorLoader(train_set, run.batch_size, device=run.device, seed=seed, num_workers=run.num_workers),
        manager,
        optimizer=partial(torch.optim.Adam, lr=run.lr, fused=True),
        epochs=num_epochs,
        test_loader=TensorLoader(load_images(data_dir, train=False), 1000, device=run.device, shuffle=False),
        precision=precision,
        # the same step in pieces that the caches of a cpu hold
        micro_batch=1000 if run.device == "cpu" else None,
    )


HELP = {
    "lr": "learning rate of Adam",
    "batch_size": "images per step",
    "num_workers": "processes that load images",
    "device": "cpu, cuda, cuda:1 or mps",
    "num_epochs": "number of epochs",
    "train_size": "number of training images",
    "precision": "fp32, bf16 or fp16",
    "seed": "random seed of first weights and order",
    "data_dir": "folder that holds FashionMNIST/raw",
}

if __name__ == "__main__":
    sys.exit(main(GRID, train, help=HELP, constants=["data_dir"], data=load_images, repeats="seed"))

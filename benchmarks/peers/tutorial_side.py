"""The tutorial's own loop and manager, as its copies have them."""

import json
import time
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter
from torchvision.utils import make_grid

from benchmarks.peers.common import GRID, LR, asked, image_by_image, make_network
from benchmarks.tutorial import train_epoch


def main() -> None:
    """Train the grid and write what the tutorial writes."""
    root, _ = asked()
    train_set = image_by_image()
    accuracies = []
    for batch_size, num_workers in GRID:
        torch.manual_seed(0)
        network = make_network()
        loader = torch.utils.data.DataLoader(
            train_set, batch_size=batch_size, num_workers=num_workers, shuffle=True
        )
        optimizer = torch.optim.Adam(network.parameters(), lr=LR)
        writer = SummaryWriter(str(Path(root) / f"{batch_size}-{num_workers}"))
        images, _ = next(iter(loader))
        writer.add_image("images", make_grid(images))
        writer.add_graph(network, images)
        start = time.time()
        total, correct = train_epoch(network, loader, optimizer, batch_size)
        accuracies.append(correct / len(train_set))
        writer.add_scalar("Loss", total / len(train_set), 1)
        writer.add_scalar("Accuracy", accuracies[-1], 1)
        writer.add_scalar("Duration", time.time() - start, 1)
        for name, parameter in network.named_parameters():
            writer.add_histogram(name, parameter, 1)
            assert parameter.grad is not None
            writer.add_histogram(f"{name}.grad", parameter.grad, 1)
        writer.close()
    print(json.dumps(accuracies))


if __name__ == "__main__":
    main()

"""Lightning's Trainer with its TensorBoardLogger."""

import json
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch.nn import functional

from benchmarks.peers.common import GRID, LR, asked, make_loader, make_network


class Module(lightning.LightningModule):  # type: ignore[misc,unused-ignore]
    """The tutorial's network with its step."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.network = make_network()
        self.fused = fused

    def training_step(self, batch: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        preds = self.network(images)
        loss = functional.cross_entropy(preds, labels)
        accuracy = (preds.argmax(1) == labels).float().mean()
        self.log_dict(
            {"loss": loss, "accuracy": accuracy}, on_step=False, on_epoch=True, batch_size=len(labels)
        )
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=LR, fused=self.fused)


def main() -> None:
    """Fit each run of the grid."""
    root, tuned = asked()
    quiet = dict.fromkeys(("enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    accuracies = []
    for batch_size, num_workers in GRID:
        torch.manual_seed(0)
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=TensorBoardLogger(root), **(quiet if tuned else {})
        )
        trainer.fit(Module(fused=tuned), make_loader(batch_size, num_workers, tuned=tuned))
        accuracies.append(float(trainer.callback_metrics["accuracy"]))
    print(json.dumps(accuracies))


if __name__ == "__main__":
    main()

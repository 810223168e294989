"""A module of Lightning, and what trains it: imported by tests, and by processes that are killed."""

import csv

import lightning as L  # noqa: N812 - as everybody does
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runmanager.trainers.lightning import checkpoint_path, trainer_options

NUM_EPOCHS = 4
METRIC, KILLED_IN = "val_loss", ["1", "3"]


class Classifier(L.LightningModule):  # type: ignore[misc]  # mypy does not follow lightning
    def __init__(self, lr, *, plateau=False, stop=None):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))
        self.lr, self.plateau, self.stop = lr, plateau, stop

    def training_step(self, batch, _):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), labels)
        self.log("train/loss", loss, on_step=True, on_epoch=True)
        self.log("last", loss)
        return loss

    def validation_step(self, batch, _, dataloader_idx=0):
        scores = self.layers(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(scores, batch[1]))
        self.log("accuracy", (scores.argmax(1) == batch[1]).float().mean())

    test_step = validation_step

    def on_train_epoch_end(self):
        if self.stop is not None:
            self.stop(self.current_epoch + 1)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        schedulers = torch.optim.lr_scheduler
        scheduler = (
            schedulers.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            if self.plateau
            else schedulers.ExponentialLR(optimizer, 0.9)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "train/loss"}}


def loader(num_samples=70, **options):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(num_samples, 4, generator=generator)
    return DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=16, **options)


def csv_logger(manager):
    """Return Lightning's own logger, with a file for each attempt."""
    return CSVLogger(manager.folder, name="csv", version=f"{len([*manager.folder.glob('attempt-*')]):02}")


def train(run, manager, *, stop=None, plateau=False, validation=None, is_async=False, **options):
    torch.manual_seed(run.seed)
    module = Classifier(run.lr, plateau=plateau, stop=stop)
    arguments = {"max_epochs": NUM_EPOCHS, "plugins": [AsyncCheckpointIO()] if is_async else None, **options}
    with manager.run(run):
        trainer = L.Trainer(**trainer_options(manager, logger=csv_logger(manager), **arguments))
        path = checkpoint_path(manager)
        trainer.fit(module, loader(shuffle=True), validation or loader(), ckpt_path=path)


def reported(folder):
    """Read what Lightning's CSVLogger has written of each epoch, in all attempts."""
    epochs: dict[int, dict[str, float]] = {}
    for path in sorted(folder.glob("csv/*/metrics.csv")):
        for row in csv.DictReader(path.open()):
            values = {
                name: float(value) for name, value in row.items() if value and name not in ("epoch", "step")
            }
            epochs.setdefault(int(row["epoch"]) + 1, {}).update(values)
    return epochs

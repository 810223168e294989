"""A tiny model of transformers, and what trains it: imported by tests, and by processes that are killed."""

import json

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback
from transformers.modeling_outputs import SequenceClassifierOutput

from runmanager.trainers.huggingface import RunManagerCallback, checkpoint_path, training_arguments

NUM_EPOCHS = 4
METRIC, KILLED_IN = "eval_loss", ["3", "11"]


class TinyConfig(PretrainedConfig):
    model_type = "tiny"


class Tiny(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding, self.dropout, self.head = nn.Embedding(20, 8), nn.Dropout(0.2), nn.Linear(8, 2)
        self.post_init()

    def forward(self, input_ids, labels=None):
        logits = self.head(self.dropout(self.embedding(input_ids).mean(1)))
        return SequenceClassifierOutput(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def rows(num_samples=60):
    """Random tokens, and whether their sum is odd."""
    tokens = torch.randint(0, 20, (num_samples, 6), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": int(row.sum() % 2)} for row in tokens]


class Stop(TrainerCallback):
    """Calls a function with the number of a step that has ended."""

    def __init__(self, call):
        self.call = call

    def on_step_end(self, args, state, control, **kwargs):
        self.call(state.global_step)


def accuracy(predicted):
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def train(run, manager, *, stop=lambda _: None, callback=RunManagerCallback, callbacks=(), **options):
    """Train, and keep what the trainer reports beside the run's own files: 4 steps an epoch."""
    torch.manual_seed(run.seed)
    model = Tiny(TinyConfig())
    with manager.run(run):
        settings = {
            "num_train_epochs": NUM_EPOCHS, "learning_rate": run.lr, "eval_strategy": "epoch",
            "per_device_train_batch_size": 16, **options,
        }  # fmt: skip
        trainer = Trainer(
            model,
            training_arguments(manager, **settings),
            train_dataset=rows(),
            eval_dataset=rows(20),
            compute_metrics=accuracy,
            callbacks=[Stop(stop), *callbacks, callback(manager)],
        )
        trainer.train(resume_from_checkpoint=checkpoint_path(manager))
        (manager.folder / "log_history.json").write_text(json.dumps(trainer.state.log_history))


def reported(folder):
    """Read what the trainer has logged at the end of each epoch."""
    epochs: dict[int, dict[str, float]] = {}
    for log in json.loads((folder / "log_history.json").read_text()):
        if log["epoch"] == int(log["epoch"]) and "train_runtime" not in log:
            epochs.setdefault(int(log["epoch"]), {}).update(log)
    return epochs

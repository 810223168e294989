"""Programs for the check of resuming, as data: one right program, and variants by what they insert."""

BASE = """\
import collections
import copy
import itertools
import random
import time
import types

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from runmanager import ImageTensors, TensorLoader

DATA = TensorDataset(torch.linspace(-1, 1, 640).reshape(80, 8).sin(), torch.arange(80) % 2)
# top


def train(run, manager):
    torch.manual_seed(run.seed)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(DATA, batch_size=10, shuffle=True)  # loader
    checkpoint = {"network": network, "optimizer": optimizer}  # checkpoint
    # setup
    with manager.run(run, network, loader):
        for epoch in manager.epochs(3, checkpoint=checkpoint):  # epochs
            # begin
            for inputs, labels in manager.batches():  # batches
                # batch
                loss = cross_entropy(network(inputs), labels)
                # loss
                optimizer.zero_grad()  # zero
                loss.backward()  # backward
                optimizer.step()  # update
                # step
                manager.track_loss(loss, labels)
            # end
"""
"""Each comment is the name of a marker."""


def variant(**inserted: str) -> str:
    """Return the source of a variant of `BASE`."""
    lines = []
    for line in BASE.splitlines():
        code, _, marker = line.partition("# ")
        indent = code[: len(code) - len(code.lstrip())]
        new = inserted.pop(marker, None) if marker else None
        lines += (
            [line] if new is None else [indent + part if part else "" for part in new.strip("\n").splitlines()]
        )
    assert not inserted, inserted
    return "\n".join(lines) + "\n"


AVERAGE = """
with torch.no_grad():
    for mean, parameter in zip(average.parameters(), network.parameters()):
        mean.lerp_(parameter, 0.1)
"""
SHUFFLED = """
class Shuffled(Sampler):
    def __init__(self):
        self.rng = random.Random(3)

    def __iter__(self):
        order = list(range(80))
        self.rng.shuffle(order)
        return iter(order)

    def __len__(self):
        return 80

    def state_dict(self):
        version, words, gauss = self.rng.getstate()
        return {"version": version, "words": list(words), "gauss": gauss}

    def load_state_dict(self, state):
        self.rng.setstate((state["version"], tuple(state["words"]), state["gauss"]))
"""
BY_PASSES = """
class ByPasses(Sampler):
    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter(torch.randperm(80, generator=torch.Generator().manual_seed(self.passes)).tolist())

    def __len__(self):
        return 80
"""
ACCURACY = """
class Accuracy:
    def __init__(self):
        self.reset()

    def reset(self):
        self.right = self.all = 0

    def update(self, outputs, labels):
        self.right += int((outputs.argmax(1) == labels).sum())
        self.all += len(labels)
"""
INSIDE = {
    "loader": "images = (DATA.tensors[0] * 100 + 100).to(torch.uint8).reshape(80, 1, 2, 4)\n"
    "loader = TensorLoader(ImageTensors(images, DATA.tensors[1]), 10)",
    "epochs": "for epoch in manager.epochs(2, checkpoint=checkpoint, checkpoint_every='10min'):",
    "batch": "inputs = inputs.flatten(1)",
}
"""A loader that resumes inside an epoch."""
SCALED = {"backward": "scaler.scale(loss).backward()", "update": "scaler.step(optimizer)\nscaler.update()"}

OMISSIONS = {
    "a scheduler by step": (
        "warm_up",
        variant(
            setup="warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 30)", step="warm_up.step()"
        ),
    ),
    "an average of the weights": ("average", variant(setup="average = copy.deepcopy(network)", step=AVERAGE)),
    "a scaler of gradients": (
        "scaler",
        variant(setup="scaler = torch.amp.GradScaler('cpu', init_scale=8.0, growth_interval=2)", **SCALED),
    ),
    "a global step": (
        "step",
        variant(setup="step = 0", batch="step += 1\noptimizer.param_groups[0]['lr'] = 0.1 / (1 + step)"),
    ),
    "a counter of the module": (
        "STEPS",
        variant(top="STEPS = [0]", batch="STEPS[0] += 1", loss="loss = loss / STEPS[0]"),
    ),
    "a generator of numpy": (
        "rng",
        variant(setup="rng = np.random.default_rng(0)", batch="inputs = inputs * float(rng.normal(1, 0.1))"),
    ),
    "an order by the passes of a sampler": (
        "sampler.passes",
        variant(
            top=BY_PASSES,
            loader="sampler = ByPasses()\nloader = DataLoader(DATA, batch_size=10, sampler=sampler)",
        ),
    ),
    "the optimizer": ("optimizer", variant(checkpoint="checkpoint = {'network': network}")),
    "a sum inside an epoch": (
        "total",
        variant(
            **INSIDE,
            begin="total = 0.0",
            step="total += float(loss)",
            end="manager.track({'total': total}, how='last')",
        ),
    ),
    "an iterator": (
        "numbers",
        variant(
            top="import itertools", setup="numbers = itertools.count(1)", loss="loss = loss / next(numbers)"
        ),
    ),
}
"""What is omitted -> the variable that the check names, and the program."""

ALL_PARTS = """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
average = copy.deepcopy(network)
scaler = torch.amp.GradScaler('cpu', init_scale=8.0, growth_interval=2)
drops = torch.Generator().manual_seed(1)
state = {'step': 0, 'best': 1e9}
checkpoint |= {'scheduler': scheduler, 'average': average, 'scaler': scaler, 'drops': drops, 'state': state}
"""
HARMLESS = """
began = time.time()
history, seen, loss, best_epoch = [], 0, None, 0
accuracy = Accuracy()
"""
OWN_LOADER = "for inputs, labels in loader:"
CROPS = """
class Crops(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        inputs, label = DATA[index]
        return inputs * torch.rand(8) * np.random.rand() * random.random(), label
"""
LIGHTNING = """
import torch
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

from runmanager.trainers.lightning import checkpoint_path, trainer_options

DATA = TensorDataset(torch.linspace(-1, 1, 640).reshape(80, 8).sin(), torch.arange(80) % 2)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))

    def training_step(self, batch, batch_index):
        loss = torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def train(run, manager):
    torch.manual_seed(run.seed)
    with manager.run(run):
        trainer = L.Trainer(**trainer_options(manager, max_epochs=3))
        loader = DataLoader(DATA, batch_size=10, shuffle=True)
        trainer.fit(Classifier(), loader, ckpt_path=checkpoint_path(manager))
"""
TRANSFORMERS = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer

from runmanager.trainers.huggingface import RunManagerCallback, checkpoint_path, training_arguments

TOKENS = torch.arange(320).reshape(40, 8) % 50
ROWS = [{"input_ids": each, "labels": int(each.sum() % 2)} for each in TOKENS]
CONFIG = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)


def train(run, manager):
    torch.manual_seed(run.seed)
    model = BertForSequenceClassification(CONFIG)
    with manager.run(run):
        arguments = training_arguments(manager, num_train_epochs=3, learning_rate=0.01)
        trainer = Trainer(model, arguments, train_dataset=ROWS, callbacks=[RunManagerCallback(manager)])
        trainer.train(resume_from_checkpoint=checkpoint_path(manager))
"""
OWN_FILES = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

DATA = TensorDataset(torch.linspace(-1, 1, 640).reshape(80, 8).sin(), torch.arange(80) % 2)


def train(run, manager):
    torch.manual_seed(run.seed)
    network = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    parts = {"network": network, "optimizer": optimizer}
    with manager.run(run, network):
        if manager.resume_epoch:
            for name, state in torch.load(manager.folder / f"state-{manager.resume_epoch}.pt").items():
                parts[name].load_state_dict(state)
        for epoch in range(manager.resume_epoch + 1, 4):
            manager.begin_epoch()
            for inputs, labels in DataLoader(DATA, batch_size=10):
                loss = cross_entropy(network(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, labels)
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save(states, manager.folder / f"state-{epoch}.pt")
            manager.end_epoch()
            if manager.should_stop:
                break
"""
FITTED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runmanager import fit

DATA = TensorDataset(torch.linspace(-1, 1, 640).reshape(80, 8).sin(), torch.arange(80) % 2)


def train(run, manager):
    torch.manual_seed(run.seed)
    network = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 2))
    loader = DataLoader(DATA, batch_size=10, shuffle=True)
    fit(run, network, loader, manager, optimizer=torch.optim.SGD, epochs=3, test_loader=loader)
"""

RIGHT = {
    "parts of all kinds": variant(
        setup=ALL_PARTS,
        batch="state['step'] += 1\ninputs = inputs * torch.rand(8, generator=drops)",
        step=AVERAGE + "state['best'] = min(state['best'], float(loss))",
        end="scheduler.step()",
        **SCALED,
    ),
    "a loader that resumes inside an epoch": variant(**INSIDE),
    "a single epoch": variant(**INSIDE | {"epochs": INSIDE["epochs"].replace("epochs(2", "epochs(1")}),
    "state without effect": variant(
        top=ACCURACY,
        setup=HARMLESS,
        begin="accuracy.reset()\nwarm = time.perf_counter()",
        step="seen += len(labels)\naccuracy.update(network(inputs), labels)",
        end="history.append(float(loss))\nprint(epoch, seen, time.time() - began, best_epoch)",
    ),
    "the loop's own loader": variant(batches=OWN_LOADER),
    "workers that draw": variant(
        top=CROPS, loader="loader = DataLoader(Crops(), batch_size=10, shuffle=True, num_workers=2)"
    ),
    "a sampler with a state": variant(
        top=SHUFFLED,
        loader="sampler = Shuffled()\nloader = DataLoader(DATA, batch_size=10, sampler=sampler)",
        setup="checkpoint['sampler'] = sampler",
    ),
    "an evaluation and the best weights": variant(
        epochs="for epoch in manager.epochs(3, checkpoint=checkpoint, keep='best:test_loss', patience=2):",
        end="manager.evaluate(DataLoader(DATA, batch_size=20), 'test')",
    ),
    "its own files": OWN_FILES,
    "fit": FITTED,
    "lightning": LIGHTNING,
    "transformers": TRANSFORMERS,
}
"""What the program has -> its source; it resumes."""

BAD = {
    "no epochs": (
        variant(epochs="for epoch in [1]:", batches="for inputs, labels in []:"),
        "no epoch ends after a few batches",
    ),
    "no checkpoint": (variant(epochs="for epoch in manager.epochs(3):"), "it saves no checkpoint"),
    "a fixed number of calls of next()": (
        variant(
            begin="source = manager.batches()",
            batches="for _ in range(8):",
            batch="inputs, labels = next(source)",
        ),
        "no epoch ends after a few batches",
    ),
    "an epoch without an end": (
        variant(batches="for inputs, labels in itertools.cycle(loader):"),
        "no epoch ends after a few batches",
    ),
    "an error": (variant(setup="nn.Linear(8, 8)(torch.zeros(3))"), "shapes cannot be multiplied"),
}
"""What is wrong -> the program, and a part of the sentence about it."""

"""Programs for the check of resuming, as data: one right program, and variants by what they insert."""

from typing import NamedTuple

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
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset

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
        for epoch in manager.epochs(3, checkpoint=checkpoint, checkpoint_every="10min"):  # epochs
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


class Program(NamedTuple):
    """A variant of `BASE`.

    Attributes:
        cause: The path that the check names; "" for a right program.
        line: The beginning of the line that the check names.
        source: The program.
    """

    cause: str
    line: str
    source: str


def omission(cause: str, line: str, **inserted: str) -> Program:
    """Return a program whose checkpoint= lacks something: marker -> code in place of the marker's line."""
    return Program(cause, line, variant(**inserted))


def right(**inserted: str) -> Program:
    """Return a program that resumes."""
    return Program("", "", variant(**inserted))


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
NOISY = """
class Noisy(Dataset):
    def __init__(self, rng=None):
        self.rng = np.random.default_rng(5)

    def __len__(self):
        return 80

    def __getitem__(self, index):
        inputs, label = DATA[index]
        return inputs + float(self.rng.normal()) / 10, label
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
TEMPERATURE = """
class Temperature:
    def __init__(self):
        self.value, self.calls = 1.0, 0

    def __call__(self, loss):
        self.calls += 1
        self.value = 1.0 / (1 + self.calls)
        return loss * self.value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]
"""
RATES = """
def rates():
    rate = 0.1
    while True:
        yield rate
        rate *= 0.9
"""
COUNTED = """
count = 0

def counted(loss):
    nonlocal count
    count += 1
    return loss / count
"""
SUBSET = "loader = DataLoader(Subset(DATA, part), batch_size=10, shuffle=True)"
SCALED = {"backward": "scaler.scale(loss).backward()", "update": "scaler.step(optimizer)\nscaler.update()"}

OMISSIONS = {
    "numbers drawn before the seed": Program(
        "target",
        "target =",
        variant(batch="inputs = inputs + target").replace(
            "    torch.manual_seed(run.seed)\n",
            "    target = torch.randn(8)\n    torch.manual_seed(run.seed)\n",
        ),
    ),
    "a scheduler by epoch": omission(
        "scheduler",
        "scheduler =",
        setup="scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)",
        end="scheduler.step()",
    ),
    "a scheduler by step": omission(
        "warm_up",
        "warm_up =",
        setup="warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 30)",
        step="warm_up.step()",
    ),
    "an average of the weights": omission(
        "average", "average =", setup="average = copy.deepcopy(network)", step=AVERAGE
    ),
    "the average of torch": omission(
        "average",
        "average =",
        setup="average = torch.optim.swa_utils.AveragedModel(network)",
        end="average.update_parameters(network)",
    ),
    "an average in plain tensors": omission(
        "shadow",
        "shadow =",
        setup="shadow = [parameter.detach().clone() for parameter in network.parameters()]",
        step="for mean, parameter in zip(shadow, network.parameters()):\n    mean.lerp_(parameter.data, 0.1)",
        end="manager.track({'size': sum(float(mean.abs().sum()) for mean in shadow)}, how='last')",
    ),
    "a scaler of gradients": omission(
        "scaler",
        "scaler =",
        setup="scaler = torch.amp.GradScaler('cpu', init_scale=8.0, growth_interval=2)",
        **SCALED,
    ),
    "a global step": omission(
        "step",
        "step = 0",
        setup="step = 0",
        batch="step += 1\noptimizer.param_groups[0]['lr'] = 0.1 / (1 + step)",
    ),
    "a counter of epochs": omission(
        "num_epochs",
        "num_epochs = 0",
        setup="num_epochs = 0",
        begin="num_epochs += 1",
        loss="loss = loss * (1 + num_epochs)",
    ),
    "a counter of an object": omission(
        "state.step",
        "state =",
        setup="state = types.SimpleNamespace(step=0)",
        batch="state.step += 1",
        loss="loss = loss / state.step",
    ),
    "a counter of the module": omission(
        "STEPS", "STEPS =", top="STEPS = [0]", batch="STEPS[0] += 1", loss="loss = loss / STEPS[0]"
    ),
    "a counter of a class": omission(
        "Noisy.calls",
        "class Noisy",
        top=NOISY,
        setup="Noisy.calls = 0",
        batch="Noisy.calls += 1",
        loss="loss = loss / Noisy.calls",
    ),
    "a counter in a closure": omission("count", "count = 0", setup=COUNTED, loss="loss = counted(loss)"),
    "a generator of numpy": omission(
        "rng",
        "rng =",
        setup="rng = np.random.default_rng(0)",
        batch="inputs = inputs * float(rng.normal(1, 0.1))",
    ),
    "a generator of random": omission(
        "noise", "noise =", setup="noise = random.Random(0)", batch="inputs = inputs * noise.uniform(0.9, 1.1)"
    ),
    "a generator of torch": omission(
        "drops",
        "drops =",
        setup="drops = torch.Generator().manual_seed(1)",
        batch="inputs = inputs * torch.rand(8, generator=drops)",
    ),
    "a generator of the data set": omission(
        "loader.dataset.rng",
        "loader =",
        top=NOISY,
        loader="loader = DataLoader(Noisy(), batch_size=10, shuffle=True)",
    ),
    "generators of persistent workers": omission(
        "loader",
        "loader =",
        top=NOISY,
        loader="loader = DataLoader(Noisy(), batch_size=10, num_workers=1, persistent_workers=True)",
    ),
    "an order by a generator of a sampler": omission(
        "sampler",
        "sampler =",
        top=SHUFFLED,
        loader="sampler = Shuffled()\nloader = DataLoader(DATA, batch_size=10, sampler=sampler)",
    ),
    "an order by the passes of a sampler": omission(
        "sampler.passes",
        "sampler =",
        top=BY_PASSES,
        loader="sampler = ByPasses()\nloader = DataLoader(DATA, batch_size=10, sampler=sampler)",
    ),
    "a metric over all epochs": omission(
        "accuracy.right",
        "accuracy =",
        top=ACCURACY,
        setup="accuracy = Accuracy()",
        step="accuracy.update(network(inputs), labels)",
        end="manager.track({'right': accuracy.right / accuracy.all}, how='last')",
    ),
    "a second optimizer": omission(
        "second",
        "second =",
        setup="bias = nn.ParameterList([torch.zeros(2)])\nsecond = torch.optim.Adam(bias, 0.01)\n"
        "checkpoint['bias'] = bias",
        loss="loss = loss + (bias[0] - 1).square().sum()",
        step="second.step()\nsecond.zero_grad()",
    ),
    "a second network": omission(
        "teacher",
        "teacher =",
        setup="teacher = nn.Linear(8, 8)\noptimizer.add_param_group({'params': teacher.parameters()})",
        batch="inputs = teacher(inputs)",
    ),
    "the optimizer": omission("optimizer", "optimizer =", checkpoint="checkpoint = {'network': network}"),
    "an attribute that a part does not save": omission(
        "temperature.calls",
        "temperature =",
        top=TEMPERATURE,
        setup="temperature = Temperature()\ncheckpoint['temperature'] = temperature",
        loss="loss = temperature(loss)",
    ),
    "a buffer that is not persistent": omission(
        "network.calls",
        "network =",
        setup="network.register_buffer('calls', torch.zeros(()), persistent=False)",
        batch="network.calls += 1",
        loss="loss = loss / network.calls",
    ),
    "a split without a seed": omission(
        "part", "part =", loader="part = np.random.permutation(80)[:70].tolist()\n" + SUBSET
    ),
    "the best value so far": omission(
        "best",
        "best = 1e9",
        setup="best = 1e9",
        loss="best = min(best, float(loss))",
        end="manager.track({'best': best}, how='last')",
    ),
    "a memory of batches": omission(
        "memory",
        "memory =",
        setup="memory = collections.deque(maxlen=3)",
        batch="memory.append(inputs)\ninputs = torch.stack(list(memory)).mean(0)",
    ),
    "an endless iterator": omission(
        "others",
        "others =",
        setup="others = iter(itertools.cycle(DataLoader(DATA, batch_size=10)))",
        batch="inputs = inputs + next(others)[0]",
    ),
    "a generator function": omission(
        "schedule",
        "schedule =",
        top=RATES,
        setup="schedule = rates()",
        batch="optimizer.param_groups[0]['lr'] = next(schedule)",
    ),
    "gradients across epochs": omission(
        "the gradients of network",
        "network =",
        zero="pass",
        update="if epoch % 2 == 0 and labels[0] >= 0:\n    optimizer.step()\n    optimizer.zero_grad()",
    ),
    "a sum inside an epoch": omission(
        "total",
        "total = 0.0",
        begin="total = 0.0",
        step="total += float(loss)",
        end="manager.track({'total': total}, how='last')",
    ),
}
"""What is omitted -> the program."""

ALL_PARTS = """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
average = copy.deepcopy(network)
scaler = torch.amp.GradScaler('cpu', init_scale=8.0, growth_interval=2)
drops = torch.Generator().manual_seed(1)
state = {'step': 0, 'best': 1e9}
checkpoint |= {'scheduler': scheduler, 'average': average, 'scaler': scaler, 'drops': drops, 'state': state}
"""
ADVERSARIES = """
critic = nn.Linear(8, 1)
of_critic = torch.optim.Adam(critic.parameters(), 0.01)
checkpoint |= {'critic': critic, 'of_critic': of_critic}
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
BY_EPOCH = """
class ByEpoch(Sampler):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(80, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def __len__(self):
        return 80
"""
LIGHTNING = """
import torch
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

from runmanager.integrations.lightning import checkpoint_path, trainer_options

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

from runmanager.integrations.huggingface import RunManagerCallback, checkpoint_path, training_arguments

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
    "the base": right(),
    "parts of all kinds": right(
        setup=ALL_PARTS,
        batch="state['step'] += 1\ninputs = inputs * torch.rand(8, generator=drops)",
        step=AVERAGE + "state['best'] = min(state['best'], float(loss))",
        end="scheduler.step()",
        **SCALED,
    ),
    "no checkpoint inside epochs": right(epochs="for epoch in manager.epochs(3, checkpoint=checkpoint):"),
    "a single epoch": right(
        epochs="for epoch in manager.epochs(1, checkpoint=checkpoint, checkpoint_every=2):"
    ),
    "state without effect": right(
        top=ACCURACY,
        setup=HARMLESS,
        begin="accuracy.reset()\nwarm = time.perf_counter()",
        step="seen += len(labels)\naccuracy.update(network(inputs), labels)",
        end="history.append(float(loss))\nprint(epoch, seen, time.time() - began, best_epoch)",
    ),
    "the loop's own loader": right(batches=OWN_LOADER),
    "a loader with workers": right(
        loader="loader = DataLoader(DATA, batch_size=10, shuffle=True, num_workers=2)"
    ),
    "workers that draw": right(
        top=CROPS, loader="loader = DataLoader(Crops(), batch_size=10, shuffle=True, num_workers=2)"
    ),
    "persistent workers without generators": right(
        loader="loader = DataLoader(DATA, batch_size=10, num_workers=1, persistent_workers=True)"
    ),
    "the generators of the process": right(
        top=CROPS, loader="loader = DataLoader(Crops(), batch_size=10, shuffle=True)"
    ),
    "a generator of the loader": right(
        loader="loader = DataLoader(DATA, 10, shuffle=True, generator=torch.Generator().manual_seed(5))"
    ),
    "a sampler with a state": right(
        top=SHUFFLED,
        loader="sampler = Shuffled()\nloader = DataLoader(DATA, batch_size=10, sampler=sampler)",
        setup="checkpoint['sampler'] = sampler",
    ),
    "a sampler by epoch": right(
        top=BY_EPOCH,
        loader="sampler = ByEpoch()\nloader = DataLoader(DATA, batch_size=10, sampler=sampler)",
        begin="sampler.set_epoch(epoch)",
    ),
    "a list of batches": right(loader="loader = [DATA[start : start + 10] for start in range(0, 80, 10)]"),
    "a split with a seed": right(
        loader="part = np.random.default_rng(1).permutation(80)[:70].tolist()\n" + SUBSET
    ),
    "two networks": right(
        setup=ADVERSARIES,
        step="of_critic.zero_grad()\ncritic(inputs).square().mean().backward()\nof_critic.step()",
    ),
    "accumulated gradients": right(
        zero="pass", update="if float(inputs.sum()) < 1e9:\n    optimizer.step()\n    optimizer.zero_grad()"
    ),
    "an evaluation and the best weights": right(
        epochs="for epoch in manager.epochs(3, checkpoint=checkpoint, keep='best:test_loss', patience=2):",
        end="manager.evaluate(DataLoader(DATA, batch_size=20), 'test')",
    ),
    "a frozen network": right(
        setup="teacher = nn.Linear(8, 8).eval().requires_grad_(False)", batch="inputs = teacher(inputs)"
    ),
    "a loss that is not finite": right(loss="loss = loss * float('nan') if epoch == 2 else loss"),
    "its own files": Program("", "", OWN_FILES),
    "fit": Program("", "", FITTED),
    "lightning": Program("", "", LIGHTNING),
    "transformers": Program("", "", TRANSFORMERS),
}
"""What the program has -> a program that resumes."""

BAD = {
    "no epochs": (variant(epochs="for epoch in [1]:", batches="for inputs, labels in []:"), "it has no epoch"),
    "no checkpoint": (variant(epochs="for epoch in manager.epochs(3):"), "it saves no checkpoint"),
    "a random number of batches": (
        variant(batches="for inputs, labels in itertools.islice(loader, 1 + time.time_ns() // 1000 % 7):"),
        "two executions have different numbers of batches",
    ),
    "a fixed number of calls of next()": (
        variant(
            begin="source = manager.batches()",
            batches="for _ in range(8):",
            batch="inputs, labels = next(source)",
        ),
        "it cannot be shortened",
    ),
    "an epoch without an end": (
        variant(batches="for inputs, labels in itertools.cycle(loader):"),
        "it cannot be stopped",
    ),
    "an error": (variant(setup="nn.Linear(8, 8)(torch.zeros(3))"), "shapes cannot be multiplied"),
}
"""What is wrong -> the program, and a part of the sentence about it."""

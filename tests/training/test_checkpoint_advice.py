"""Whoever follows the advice for a refused checkpoint= resumes with the losses of an undisturbed run."""

import collections
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from runmanager import load_results, load_runs, run_grid
from runmanager.errors import CheckpointError

INPUTS = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
TENSOR = "give the object that has it, as checkpoint={'network': network}, not its state_dict()"
COPY = "is a copy that state_dict() returns, which restores no object: give the object itself"
LIST = "a list or a dict in its place"
HOLDER = "give checkpoint= an object with state_dict() and load_state_dict() that has it"
NETWORK = "add the network, as checkpoint={'network': network, 'optimizer': optimizer}"


class Numbers:
    """What the user writes who is told to give an object with a state."""

    def __init__(self):
        self.random = np.random.default_rng(0)
        self.recent = collections.deque([0.0], maxlen=2)

    def state_dict(self):
        state = self.random.bit_generator.state["state"]
        return {"state": {name: str(number) for name, number in state.items()}, "recent": list(self.recent)}

    def load_state_dict(self, state):
        numbers = {name: int(number) for name, number in state["state"].items()}
        self.random.bit_generator.state = {**self.random.bit_generator.state, "state": numbers}
        self.recent.extend(state["recent"])


class Parts:
    """A training step by hand, with everything that has a state."""

    def __init__(self):
        torch.manual_seed(1)
        self.network = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.5, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.shift: Any = torch.zeros(1, requires_grad=True)  # a tensor of its own
        self.holder = nn.Module()
        self.holder.register_buffer("shift", self.shift)
        self.numbers = Numbers()
        self.state: dict[str, Any] = {"seen": [0], "factor": 1.0}

    def step(self):
        self.optimizer.zero_grad()
        self.state["factor"] *= 0.9
        self.state["seen"].append(len(self.state["seen"]))
        self.numbers.recent.append(self.numbers.random.random())
        extra = sum(self.numbers.recent) + sum(self.state["seen"])
        loss = (self.network(INPUTS) + self.shift - 3).pow(2).mean() * self.state["factor"] + extra
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        with torch.no_grad():
            self.shift -= 0.1 * self.shift.grad
            self.shift.grad = None
        return loss

    def right(self):
        """Name everything as the advices say."""
        parts = {"network": self.network, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {**parts, "holder": self.holder, "numbers": self.numbers, "state": self.state}


def of(parts, name, value):
    return {**parts.right(), name: value}


REFUSED = {
    "weights": (lambda p: of(p, "network", p.network.state_dict()), TENSOR),
    "own tensor": (lambda p: of(p, "holder", {"shift": p.shift}), "register_buffer() takes other tensors"),
    "optimizer's state": (lambda p: of(p, "optimizer", p.optimizer.state_dict()), COPY),
    "the optimizer's state alone": (lambda p: p.optimizer.state_dict(), NETWORK),
    "no network": (lambda p: {"optimizer": p.optimizer, "state": p.state}, NETWORK),
    "set": (lambda p: of(p, "state", {"seen": {0}, "factor": 1.0}), LIST),
    "deque": (lambda p: of(p, "numbers", {"recent": p.numbers.recent}), HOLDER),
}


def start(root, parts_of, fault=None):
    def train(run, manager):
        parts = Parts()
        with manager.run(run, parts.network):
            for epoch in manager.epochs(6, checkpoint=parts_of(parts)):
                if epoch == 4 and (error := next(faults, None)):
                    raise error
                manager.track_loss(parts.step(), INPUTS)

    faults = iter([fault] if fault else [])
    options: dict[str, Any] = {
        "tensorboard": False,
        "display": False,
        "executor": "inline",
        "retry_failed": True,
    }
    return run_grid({"lr": [0.5]}, train, experiment="exp", root=root, **options)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("kind", REFUSED)
def test_a_checkpoint_that_would_restore_nothing_is_refused_with_what_to_give(tmp_path, kind):
    parts_of, advice = REFUSED[kind]

    outcome = start(tmp_path, parts_of)

    (error,) = outcome.runs["error"]
    assert error.startswith(CheckpointError.__name__)
    assert advice in error
    assert outcome.runs["epochs"].tolist() == [0]


@pytest.mark.slow(everywhere=True)
def test_whoever_gives_what_the_messages_say_resumes_as_if_nothing_had_happened(tmp_path):
    start(tmp_path / "whole", Parts.right)
    start(tmp_path / "cut", Parts.right, KeyboardInterrupt())

    start(tmp_path / "cut", Parts.right)

    losses = [load_results(tmp_path / name)["loss"].tolist() for name in ("whole", "cut")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6
    assert load_runs(tmp_path / "cut")["attempts"].tolist() == [2]

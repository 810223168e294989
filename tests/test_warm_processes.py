"""What a run leaves in a process that gets further runs: nothing that holds memory of its device."""

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from runmanager import fit, run_grid
from runmanager.core.loaders import TensorLoader
from runmanager.core.outcome import Outcome, Status
from tests import accelerators
from tests.accelerators import Machine, installed
from tests.executors.test_pool import execute
from tests.test_accelerators import data, network

LEFT: dict[str, "weakref.ref[Any]"] = {}  # of the last run of this process


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "devices").mkdir()
    return Machine(tmp_path / "devices")


def leave(manager, model, optimizer, tensor):
    parts = {"network": model, "optimizer": optimizer, "tensor": tensor, "manager": manager}
    parts |= {"open run": manager._current}
    LEFT.update({name: weakref.ref(part) for name, part in parts.items()})


def plain(run, manager, loader):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    with manager.run(run, model, loader):
        for _ in manager.epochs(1, checkpoint={"network": model, "optimizer": optimizer}, keep="last"):
            for inputs, labels in manager.batches():
                loss = functional.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, labels)
                manager.log(step_loss=loss)
            manager.evaluate(loader)
            leave(manager, model, optimizer, loss)


def failing(run, manager, loader):
    plain(run, manager, loader)
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def failing_inside(run, manager, loader):
    model = network()
    with manager.run(run, model, loader):
        for _ in manager.epochs(1):
            leave(manager, model, model[0], model[0].weight)
            torch.empty(9 * 2**30, dtype=torch.uint8, device=run.device)


def fitted(run, manager, loader):
    model = network()
    fit(
        run,
        model,
        loader,
        manager,
        optimizer=torch.optim.Adam,
        epochs=1,
        test_loader=loader,
        micro_batch="auto",
    )
    leave(manager, model, model[0], model[0].weight)


def train(left, run, manager):
    """Find first what the last run of this process has left."""
    gc.collect()
    left.append([name for name, part in LEFT.items() if part() is not None])
    LEFT.clear()
    run.loop(run, manager, TensorLoader(data(60), 20, device=run.device))


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("loop", [plain, fitted, failing, failing_inside])
def test_a_run_leaves_no_network_nor_optimizer_to_the_next(machine, tmp_path, loop):
    left: list[list[str]] = []

    with installed(machine) as here:
        outcome = run_grid(
            {"number": [0, 1], "loop": [loop], "device": ["cuda:1"]}, partial(train, left),
            experiment="exp", root=tmp_path, executor="inline", display=False,
        )  # fmt: skip
        gc.collect()
        allocated = here.allocated[1]

    status = "out of memory" if "failing" in loop.__name__ else "completed"
    assert outcome.runs["status"].tolist() == [status] * 2
    assert [*left, [name for name, part in LEFT.items() if part() is not None]] == [[], [], []]
    assert allocated == 0


def given_back(_run, _report):
    assert accelerators._here
    return Outcome(Status.COMPLETED, "", len(accelerators._here.freed))


@pytest.mark.slow(everywhere=True)
def test_a_lane_gives_the_memory_of_its_device_back_after_each_run(machine):
    outcomes = execute(machine, ["cuda:0"] * 3, given_back)

    assert [outcome.epochs for outcome in outcomes] == [0, 1, 2]

"""Training functions that raise or spoil what they can: each harms its own run only."""

import asyncio
import os
import threading
import warnings
from pathlib import Path

import pytest
import torch

from runmanager import run_grid
from runmanager.core.outcome import Status
from runmanager.errors import RunsWarning


class Unwritable(Exception):  # noqa: N818 - a nasty one
    """Cannot be shown in any way."""

    def __str__(self):
        raise ValueError

    __repr__ = __str__


class OfItsOwn(BaseException):
    """No Exception."""


def raise_cycle():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def raise_group():
    raise ExceptionGroup("several", [ValueError("one"), ExceptionGroup("more", [KeyError("two")])])


def fill_descriptors():
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    while True:
        os.open(os.devnull, os.O_RDONLY)


def raising(error):
    def fail():
        raise error

    return fail


RAISED = {
    "GeneratorExit": raising(GeneratorExit()),
    "KeyboardInterrupt": raising(KeyboardInterrupt()),
    "SystemExit": raising(SystemExit(3)),
    "CancelledError": raising(asyncio.CancelledError()),
    "StopIteration": raising(StopIteration()),
    "OfItsOwn": raising(OfItsOwn()),
    "Unwritable": raising(Unwritable()),
    "cycle": raise_cycle,
    "group": raise_group,
    "fill_descriptors": fill_descriptors,
}
SPOILED = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "grad": lambda: torch.set_grad_enabled(False),
    "threads": lambda: torch.set_num_threads(7),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "folder": lambda: os.chdir("/"),
    "thread": lambda: threading.Thread(target=lambda: 1 / 0).start(),
}


def state():
    """Return what the next run would inherit."""
    return {
        "folder": str(Path.cwd()),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.ones(1).device),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


class Train:
    """Notes what a run inherits, and does something in its second epoch."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, run, manager):
        with manager.run(run):
            for epoch in manager.epochs(2):
                if epoch == 1:
                    (self.folder / run.act).write_text(str(state()))
                else:
                    ACTS[run.act]()
                manager.track_loss(0.5, 1)


ACTS = {
    **SPOILED,
    "all settings": lambda: [act() for act in SPOILED.values()],
    "nothing": lambda: None,
    **RAISED,
}
IN_LANES = ["all settings", "nothing", *RAISED]
NOT_INLINE = {  # what this process cannot get rid of
    "all settings", "fill_descriptors", "thread", "KeyboardInterrupt",
}  # fmt: skip
INLINE = [name for name in ACTS if name not in NOT_INLINE]
WORDS = {
    "group": "ExceptionGroup",
    "cycle": "ValueError: first",
    "Unwritable": "ValueError",
    "fill_descriptors": "Too many open files",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("executor", "names"),
    [pytest.param("inline", INLINE, marks=pytest.mark.slow), ("lanes", IN_LANES)],
    ids=["inline", "lanes"],
)
def test_whatever_train_raises_or_spoils_harms_its_run_only(tmp_path, executor, names):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RunsWarning)
        before = state()
        grid = run_grid(
            {"act": names},
            Train(tmp_path),
            experiment="exp",
            root=tmp_path / "runs",
            executor=executor,
            tensorboard=False,
            display=False,
        )
        after = state()

    ended = {run.act: outcome for run, outcome in grid.outcomes}
    assert grid.exit_code == 1
    assert list(ended) == names
    assert {name for name in names if ended[name].status is Status.FAILED} == {*RAISED} & {*names}
    for name in RAISED.keys() & ended.keys():
        assert WORDS.get(name, name) in ended[name].error
    assert ended["nothing"].status is Status.COMPLETED
    assert all(outcome.epochs >= 1 for outcome in ended.values())
    inherited = {name: (tmp_path / name).read_text() for name in names}
    assert {name: text for name, text in inherited.items() if text != inherited[names[0]]} == {}
    assert after == before
    assert len(caught) <= (executor == "inline"), [str(each.message) for each in caught]

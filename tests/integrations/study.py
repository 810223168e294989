"""Results to be exported."""

import math
from contextlib import suppress

from runmanager import RunManager
from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.storage.folders import Experiment
from runmanager.storage.journal import Journal


def study(root, losses=((0.5, 0.25),)):
    """Leave behind completed runs, one that failed in its first epoch and one that was not begun."""
    manager = RunManager("study", root, tensorboard=False, display=False)
    for number, values in enumerate(losses):
        with manager.run({"lr": 0.1, "size": (number, 3), "device": "cpu"}):
            for epoch in manager.epochs(len(values)):
                manager.track_loss(values[epoch - 1], 10)
    with suppress(ValueError), manager.run({"lr": 10, "size": None, "device": "cpu"}):
        raise ValueError("too large")
    done = [run.params for run in Experiment(root / "study").runs.values()]
    Experiment(root / "study").plan([*done, {"lr": 1, "size": 1, "device": "cuda"}], {})


TEXT = "t" * 7000
PARAMS = {
    "lr": 0.1,
    "a+b": 1,
    "a*b": 2,
    "a_b": 3,
    "": 4,
    " ": 5,
    "x" * 300: 6,
    "x" * 299 + "y": 7,
    "text": TEXT,
    "half": "\ud800",
    "zero": "a\0b",
    "escape": "\x1b[2J",
    "large": 10**400,
    "nan": math.nan,
    "inf": math.inf,
    "/a": 8,
    "a//b": 9,
    "../a": 10,
    ".": 11,
    "..": 12,
    "..a": 13,
    "名": 14,
    "a\nb": 15,
    "_step": 16,
    "_wandb": 17,
    "folder": 18,
    "folder/a": 19,
    "line\n": 20,
    "line ": 21,
    "zero\0": 22,
}
METRICS = {
    "loss": 0.5,
    "run duration": 1e308,
    "f1+": 1,
    "f1*": 2,
    "f1_": 3,
    "": 4,
    "m" * 300: 5,
    "m" * 299 + "n": 6,
    "nan": math.nan,
    "inf": math.inf,
    "large": 1e308,
    "/a": 7,
    "a//b": 8,
    "../a": 9,
    ".": 10,
    "_step": 11,
    "_runtime": 12,
    "_timestamp": 13,
    "own_step": 14,
    "folder/a": 15,
    "\x1b[2J": 16,
    "a\0b": 17,
    "a\\0b": 18,
    "名": 19,
    "line\n": 20,
    "$": 21,
    "f1_2": 22,
    "f1__2": 23,
}


def odd_study(root, name="study"):
    """Leave behind a failed run whose names and values hardly any other tool takes."""
    folder = Experiment(root / name).open(PARAMS)
    journal = Journal(folder.path, 1, {"after": 0})
    for epoch in (1, 2):
        journal.epoch(EpochRecord(epoch, {**METRICS, "loss": 0.5 / epoch}))
    journal.end(Outcome(Status.FAILED, f"ValueError: \ud800\0{TEXT}", 2))

"""What the tests of Lightning and of transformers share: grids, tables, and how a training is stopped."""

import importlib
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from runmanager import load_results, run_grid

GRID = {"lr": [0.1], "seed": [1], "device": ["cpu"]}
HOME = Path(__file__).parents[2]


def study_of(extra: str, name: str) -> Any:
    """Import a study, in which a trainer trains; skip the tests that need it where its extra is missing."""
    pytest.importorskip(extra, reason=f"the extra of {extra} is not installed")
    with warnings.catch_warnings(action="ignore"):
        return importlib.import_module(f"tests.border.{name}")


def execute(root: Path, train: Any, grid: Any = GRID, **options: Any) -> Any:
    options = {"experiment": "exp", "root": root, "executor": "inline", "display": False, **options}
    return run_grid(grid, train, tensorboard=False, **options)


def table(root: Path, name: str = "exp") -> Any:
    return load_results(root / name).drop(columns=["epoch duration", "run duration"])


class Stopped:
    """Stops the training in an epoch or a step, once."""

    def __init__(self, number: int) -> None:
        self.number: int | None = number

    def __call__(self, number: int) -> None:
        if number == self.number:
            self.number = None
            raise KeyboardInterrupt


def kill(number: int) -> None:
    """Kill this process in the epoch or the step that the environment names."""
    if os.environ.get("KILLED_IN") == str(number):
        os.kill(os.getpid(), signal.SIGKILL)


def kill_one_after_the_other(study: str, root: Path, numbers: list[str]) -> None:
    """Execute a study in processes that are killed in these epochs or steps, and in one that is not."""
    program = [sys.executable, "-m", f"tests.border.{study}", str(root)]
    environment = {**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    for number in (*numbers, ""):
        environment["KILLED_IN"] = number
        done = subprocess.run(program, cwd=HOME, env=environment, capture_output=True, check=False)
        assert done.returncode == (-signal.SIGKILL if number else 0), done.stderr

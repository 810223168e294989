"""What the tests of Lightning and of transformers share: grids, tables, and how a training is stopped."""

import importlib
import math
import os
import signal
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from runmanager import SuccessiveHalving, load_results, load_runs, run_grid

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


class Promises:
    """What an adapter promises of every trainer.

    A study has `train`, the `METRIC` of its evaluation, the epochs or steps that it is `KILLED_IN`, and
    `reported`, which reads what the trainer itself has written of each epoch.
    """

    def test_a_loss_that_is_not_finite_stops_the_trainer(self, tmp_path: Path, study: Any) -> None:
        execute(tmp_path, study.train, {**GRID, "lr": [1e30]})

        run = load_runs(tmp_path / "exp").iloc[0]
        assert (run["status"], run["epochs"], math.isnan(run["loss"])) == ("diverged", 1, True)
        assert [*study.reported(tmp_path / "exp" / "001")] == [1]

    def test_a_run_that_is_behind_is_pruned_at_its_rung(self, tmp_path: Path, study: Any) -> None:
        prune = SuccessiveHalving(study.METRIC, factor=2, min_epochs=2)

        execute(tmp_path, study.train, {**GRID, "lr": [0.1, 1e-9]}, prune=prune)

        runs = load_runs(tmp_path / "exp")
        assert runs[["lr", "status", "epochs"]].values.tolist() == [[0.1, "completed", 4], [1e-9, "pruned", 2]]
        assert [len(study.reported(folder)) for folder in sorted((tmp_path / "exp").glob("00*"))] == [4, 2]
        execute(tmp_path, study.train, experiment="whole")
        columns = [table(tmp_path, name)[study.METRIC].tolist() for name in ("exp", "whole")]
        assert columns[0][:4] == columns[1]

    def test_a_check_takes_two_steps_and_leaves_nothing(self, tmp_path: Path, study: Any) -> None:
        outcome = execute(tmp_path, study.train, check=True)

        assert outcome.exit_code == 0
        assert table(tmp_path)["epoch"].tolist() == [1, 2, 3, 4]

    @pytest.mark.nightly
    def test_a_killed_run_continues_as_if_nothing_had_happened(self, tmp_path: Path, study: Any) -> None:
        execute(tmp_path, study.train, experiment="whole")
        kill_one_after_the_other(study.__name__, tmp_path, study.KILLED_IN)

        assert table(tmp_path, "killed").equals(table(tmp_path, "whole"))
        assert [*study.reported(tmp_path / "killed" / "001")] == [1, 2, 3, 4]


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
    program = [sys.executable, "-m", "tests.border.trainers", study, str(root)]
    environment = {**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    for number in (*numbers, ""):
        environment["KILLED_IN"] = number
        done = subprocess.run(program, cwd=HOME, env=environment, capture_output=True, check=False)
        assert done.returncode == (-signal.SIGKILL if number else 0), done.stderr


if __name__ == "__main__":
    train = partial(importlib.import_module(sys.argv[1]).train, stop=kill)
    sys.exit(execute(Path(sys.argv[2]), train, experiment="killed").exit_code)

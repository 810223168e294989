"""SIGKILL at 50 random moments: each logged step is there once, in the table and in TensorBoard."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from runmanager import load_steps
from tests.board.reading import folder_scalars
from tests.chaos.harness import Result, Zygote, is_alive, result, seconds_until_gone, seeded, show
from tests.chaos.work import EXPERIMENT, axes

NUM_KILLS = 50
PARAMS = axes(lrs=[0.01, 0.02], num_epochs=4, padding=10)


class Killer:
    """Kills the processes of one experiment after the other, as soon as they have written steps."""

    def __init__(self, zygote: Zygote, draw: random.Random) -> None:
        self._zygote = zygote
        self._draw = draw
        self.kills = self.kills_in_epochs = self.experiments = 0

    def experiment(self, root: Path) -> tuple[Result, list[Any]]:
        """Kill an experiment until it is done; return its result and what TensorBoard shows of steps."""
        self.experiments += 1
        code = -9
        while code == -9:
            before = num_lines(root)
            pid = self._zygote.start(root, PARAMS, self._draw.choice(["inline", "bare"]), tensorboard=True)
            while num_lines(root) == before and is_alive(pid):
                time.sleep(0.001)
            code, is_killed, _ = self._zygote.wait(pid, self._draw.uniform(0, 0.15))
            seconds_until_gone(pid)
            if is_killed and code == -9:
                self.kills += 1
                self.kills_in_epochs += num_lines(root) > before
        assert code == 0
        return result(root), scalars(root)


def num_lines(root: Path) -> int:
    """Count the blocks of steps under a root."""
    return sum(path.read_bytes().count(b"\n") for path in root.glob(f"{EXPERIMENT}/*/*.steps.jsonl"))


def scalars(root: Path) -> list[Any]:
    """Return what TensorBoard shows of steps, run by run; the order in which values came is free."""
    # a process may die between making a folder and writing into it
    folders = [path.parent for path in sorted((root / EXPERIMENT).glob("0*/run.json"))]
    shown = [folder_scalars(folder) for folder in folders]
    return [{tag: sorted(run[tag]) for tag in sorted(run) if tag.startswith("steps/")} for run in shown]


@pytest.mark.slow
@pytest.mark.nightly
def test_50_kills_at_random_moments_lose_no_step_and_double_none(zygote, tmp_path):
    assert zygote.run(tmp_path / "reference", PARAMS, "bare", tensorboard=True) == 0
    reference, shown = result(tmp_path / "reference"), scalars(tmp_path / "reference")
    killer = Killer(zygote, seeded(22))

    while killer.kills < NUM_KILLS:
        root = tmp_path / str(killer.experiments)
        found, found_shown = killer.experiment(root)

        assert found.steps == reference.steps
        assert found.rows == reference.rows
        assert found_shown == shown
        shutil.rmtree(root)

    show(f"{killer.kills} kills, {killer.kills_in_epochs} after steps, {killer.experiments} experiments")
    assert killer.kills_in_epochs > NUM_KILLS // 2
    steps = load_steps(tmp_path / "reference")
    assert steps.groupby("run")["step"].agg(list).to_dict() == {1: list(range(1, 17)), 2: list(range(2, 17, 2))}

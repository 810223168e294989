"""SIGKILL at random moments of grids that stop early: they end after the same epochs, with the same weights."""

import os
import shutil
import time
from pathlib import Path

import pytest
import torch

from tests.chaos.harness import (
    MOST_LEFT_S,
    Witness,
    Zygote,
    is_alive,
    num_epochs,
    result,
    seconds_until_gone,
    seeded,
    show,
)
from tests.chaos.work import EXPERIMENT, FINAL, stopping_axes
from tests.nightly import of_night

NUM_KILLS = int(os.environ.get("RUNMANAGER_EARLY_STOP_KILLS", str(of_night(30, by_day=6))))
PARAMS = stopping_axes(lrs=[0.02, 0.05, 0.1], num_epochs=60, patience=4)
HOWS = ["inline", "inline", "bare", "lanes"]


def finals(root: Path) -> list[dict[str, torch.Tensor]]:
    """Read what the runs wrote after their last epoch, in their order."""
    return [torch.load(path, weights_only=True) for path in sorted(root.glob(f"{EXPERIMENT}/*/{FINAL}"))]


def are_equal(some: list[dict[str, torch.Tensor]], others: list[dict[str, torch.Tensor]]) -> bool:
    """Whether all tensors of all runs are equal, bit by bit."""
    return len(some) == len(others) and all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(some, others, strict=True)
    )


class Stopping:
    """Kills the process groups of grids that stop early, one grid after the other."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self._zygote = zygote
        self._folder = folder
        self._draw = seeded(24)
        self.kills = self.kills_in_training = self.grids = 0
        self.seconds: dict[str, float] = {}
        for how in ("inline", "bare", "lanes"):
            before = time.monotonic()
            assert zygote.run(folder / how, PARAMS, how, tensorboard=True) == 0
            self.seconds[how] = time.monotonic() - before
        self.expected = result(folder / "inline")
        self.expected_finals = finals(folder / "inline")

    def grid(self) -> list[str]:
        """Kill a grid and start it again until it is done; return what is wrong."""
        root, how = self._folder / f"{self.grids}", self._draw.choice(HOWS)
        self.grids += 1
        witness = Witness(root / EXPERIMENT)
        problems: list[str] = []
        code, latest = -9, self.seconds[how]
        while code == -9 and not problems:
            committed = num_epochs(root)
            aim = committed + self._draw.randrange(12)  # what begins before any epoch is hit too
            pid = self._zygote.start(root, PARAMS, how, tensorboard=True)
            while num_epochs(root) < aim and is_alive(pid):
                time.sleep(0.002)
            within = self._draw.uniform(0, latest / 10)
            code, is_killed, _ = self._zygote.wait(pid, within, is_of_group=True)
            latest *= 1.2  # so that it comes to its end
            self.kills += is_killed and code == -9
            self.kills_in_training += is_killed and num_epochs(root) > committed
            left = seconds_until_gone(pid)
            problems += [f"{root}: a process lived on for {left:.1f} s"] if left > MOST_LEFT_S else []
            problems += witness.problems()
        problems += [f"{root}: exit code {code}"] if code else []
        if not code and result(root) != self.expected:
            problems.append(f"{root}, {how}: differs from the undisturbed grid")
        if not code and not are_equal(finals(root), self.expected_finals):
            problems.append(f"{root}, {how}: ended with other weights or moments")
        if not problems:
            shutil.rmtree(root)
        return problems


@pytest.mark.slow
@pytest.mark.nightly
def test_grids_that_are_killed_stop_early_after_the_same_epochs_with_the_same_weights(zygote, tmp_path):
    stopping = Stopping(zygote, tmp_path)

    problems: list[str] = []
    while stopping.kills < NUM_KILLS:
        problems += stopping.grid()

    ends = stopping.expected.ends
    show(f"{stopping.kills} kills, {stopping.kills_in_training} after an epoch, {stopping.grids} grids", ends)
    show(stopping.seconds, *problems)
    assert problems == []
    assert all(status == "completed" and num < 60 and "not better" in why for _, status, num, why, *_ in ends)
    assert result(tmp_path / "bare") == result(tmp_path / "lanes") == stopping.expected
    assert stopping.kills_in_training > NUM_KILLS / 2

"""SIGKILL at 200 random moments: nothing that was committed is lost, and the results are the same."""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.harness import (
    MOST_LEFT_S,
    Result,
    Witness,
    Zygote,
    is_alive,
    members,
    num_epochs,
    result,
    seconds_until_gone,
    seeded,
    show,
)
from tests.chaos.work import EXPERIMENT, axes, wait_for
from tests.nightly import of_night

NUM_KILLS = of_night(200, by_day=10)
HOWS = ["inline", "inline", "bare", "bare", "lanes"]
NUM_LANE_KILLS = of_night(40, by_day=3)
PARAMS = axes(lrs=[0.01, 0.02], num_epochs=4, padding=450_000)  # checkpoints of 5.4 MB


class Killer:
    """Kills the processes of one experiment after the other, and counts."""

    def __init__(self, zygote: Zygote, folder: Path, seed: int, mutant: str = "") -> None:
        self._zygote = zygote
        self._folder = folder
        self._draw = seeded(seed)
        self._mutant = mutant
        self.kills = self.kills_in_training = self.experiments = self.epochs = self.checkpoints = 0
        self._seconds: dict[str, float] = {}
        self.references = {how: self._reference(how) for how in ("bare", "inline", "lanes")}

    def _reference(self, how: str) -> Result:
        before = time.monotonic()
        assert self._zygote.run(self._folder / how, PARAMS, how, tensorboard=True) == 0
        self._seconds[how] = time.monotonic() - before
        return result(self._folder / how)

    def experiment(self) -> list[str]:
        """Start an experiment again and again, kill it at random moments until it is done.

        Three of four kills wait until it trains: the clock alone finds a busy machine still starting.
        """
        root = self._folder / f"{self.experiments}"
        self.experiments += 1
        how = self._draw.choice(HOWS)
        witness = Witness(root / EXPERIMENT)
        problems: list[str] = []
        code, latest = -9, self._seconds[how]
        while code == -9 and not problems:
            before, is_first = time.monotonic(), not root.exists()
            committed = num_epochs(root)
            pid = self._zygote.start(root, PARAMS, how, tensorboard=True, mutant=self._mutant)
            is_aimed = self._draw.randrange(4) > 0
            while is_aimed and num_epochs(root) == committed and is_alive(pid):
                time.sleep(0.002)
            code, is_killed, _ = self._zygote.wait(pid, self._draw.uniform(0, latest))
            self.kills_in_training += is_killed and num_epochs(root) > committed
            latest *= 1.2  # so that it comes to its end on a machine that has become slow
            if is_first and not is_killed:  # one that was busy when the references were made
                self._seconds[how] = min(self._seconds[how], time.monotonic() - before)
            self.kills += is_killed and code == -9
            left = seconds_until_gone(pid)
            problems += [f"{root}: a process lived on for {left:.1f} s"] if left > MOST_LEFT_S else []
            problems += witness.problems()
        self.epochs += len(witness.committed)
        self.checkpoints += witness.num_checkpoints
        if code != 0:
            problems.append(f"{root}: exit code {code}")
        elif result(root) != self.references[how]:
            problems.append(f"{root} differs from the reference")
        if not problems:
            shutil.rmtree(root)
        return problems


@pytest.mark.slow(minutes=4)
def test_kills_at_random_moments_lose_nothing_and_change_no_result(zygote, tmp_path):
    killer = Killer(zygote, tmp_path, seed=20)

    problems: list[str] = []
    while killer.kills < NUM_KILLS:
        problems += killer.experiment()

    show(
        f"{killer.kills} kills, {killer.kills_in_training} after an epoch of their start, "
        f"{killer.experiments} experiments, {killer.epochs} epochs committed, "
        f"{killer.checkpoints} checkpoints loaded"
    )
    assert problems == []
    assert killer.references["inline"] == killer.references["bare"]
    assert len(killer.references["inline"].rows) == 8


@pytest.mark.slow(minutes=1)
def test_lanes_that_are_killed_are_replaced_and_their_runs_go_on(zygote, tmp_path):
    draw = seeded(21)
    assert zygote.run(tmp_path / "reference", PARAMS) == 0
    reference = result(tmp_path / "reference")

    kills = grids = 0
    problems: list[str] = []
    while kills < NUM_LANE_KILLS:
        root = tmp_path / f"{grids}"
        grids += 1
        witness = Witness(root / EXPERIMENT)
        ready = str(root.with_suffix(".ready"))
        pid = zygote.start(root, PARAMS, "lanes", tensorboard=True, ready=ready)
        wait_for(ready)
        left = draw.randint(1, 4)
        while left and pid in (found := members(pid)):
            lanes = [number for number, group in found.items() if group == number != pid]
            time.sleep(draw.uniform(0, 0.5) if lanes else 0.01)  # a run takes about so long
            if lanes:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(draw.choice(lanes), signal.SIGKILL)
                    kills += 1
                    left -= 1
        code, is_killed, _ = zygote.wait(pid)
        problems += witness.problems()
        problems += [f"{root}: exit code {code}"] if code or is_killed else []
        problems += [] if result(root) == reference else [f"{root} differs from the reference"]

    show(f"{kills} kills of lanes, {grids} grids", *problems)
    assert problems == []

"""SIGKILL at 200 random moments: nothing that was committed is lost, and the results are the same."""

import math
import shutil
import time
from pathlib import Path

import pytest

from tests.chaos.harness import Result, Witness, Zygote, result, seeded, show
from tests.chaos.work import EXPERIMENT, axes

NUM_KILLS = 200
PARAMS = axes(lrs=[0.01, 0.02], num_epochs=4, padding=450_000)  # checkpoints of 5.4 MB


class Killer:
    """Kills the processes of one experiment after the other, and counts."""

    def __init__(self, zygote: Zygote, folder: Path, seed: int, mutant: str = "") -> None:
        self._zygote = zygote
        self._folder = folder
        self._draw = seeded(seed)
        self._mutant = mutant
        self.kills = self.experiments = self.epochs = self.checkpoints = 0
        self._seconds = math.inf
        self.references = {how: self._reference(how) for how in ("bare", "grid")}

    def _reference(self, how: str) -> Result:
        before = time.monotonic()
        assert self._zygote.run(self._folder / how, PARAMS, how, tensorboard=True) == 0
        self._seconds = min(self._seconds, time.monotonic() - before)
        return result(self._folder / how)

    def experiment(self) -> list[str]:
        """Start an experiment again and again, kill it at random moments until it is done."""
        root = self._folder / f"{self.experiments}"
        self.experiments += 1
        how = self._draw.choice(["grid", "bare"])
        witness = Witness(root / EXPERIMENT)
        problems: list[str] = []
        code = -9
        while code == -9 and not problems:
            before, is_first = time.monotonic(), not root.exists()
            pid = self._zygote.start(root, PARAMS, how, tensorboard=True, mutant=self._mutant)
            code, is_killed, _ = self._zygote.wait(pid, self._draw.uniform(0, self._seconds))
            if is_first and not is_killed:  # a machine that was busy when the references were made
                self._seconds = min(self._seconds, time.monotonic() - before)
            self.kills += is_killed and code == -9
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


@pytest.mark.slow
def test_200_kills_at_random_moments_lose_nothing_and_change_no_result(zygote, tmp_path):
    killer = Killer(zygote, tmp_path, seed=20)

    problems: list[str] = []
    while killer.kills < NUM_KILLS:
        problems += killer.experiment()

    show(
        f"{killer.kills} kills, {killer.experiments} experiments, {killer.epochs} epochs committed, "
        f"{killer.checkpoints} checkpoints loaded"
    )
    assert problems == []
    assert killer.references["grid"] == killer.references["bare"]
    assert len(killer.references["grid"].rows) == 8

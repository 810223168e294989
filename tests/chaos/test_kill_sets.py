"""SIGKILL aimed at what trains: a grid in lanes that is continued equals the undisturbed one, bit by bit."""

import os
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.harness import (
    MOST_LEFT_S,
    Result,
    Witness,
    Zygote,
    is_alive,
    lanes_of,
    members,
    num_epochs,
    parent_of,
    result,
    seconds_until_gone,
    seeded,
    show,
)
from tests.chaos.work import EXPERIMENT, axes
from tests.nightly import of_night

NUM_SETS = int(os.environ.get("RUNMANAGER_KILL_SETS", str(of_night(12, by_day=4))))
MOST_KILLS = 3  # in a set
TARGETS = ["parent", "lane", "parent and lane", "fork server"]
NUM_EPOCHS = 4
# 450,000 parameters: their sum depends on the number of threads
PARAMS = axes(lrs=[0.01, 0.02, 0.03, 0.04], num_epochs=NUM_EPOCHS, padding=450_000)


class Marksman:
    """Kills what it aims at in one grid after the other, and counts the hits."""

    def __init__(self, zygote: Zygote, folder: Path, seed: int) -> None:
        self._zygote = zygote
        self._folder = folder
        self._draw = seeded(seed)
        self._num_sets = 0
        self.hits: Counter[str] = Counter()
        self.misses = 0

    def undisturbed(self, jobs: int) -> Result:
        """Execute the grid from its first epoch to its last."""
        root = self._folder / f"undisturbed-{jobs}"
        assert self._zygote.run(root, PARAMS, "lanes", jobs=jobs, tensorboard=True) == 0
        return result(root)

    def kill_set(self, jobs: int, target: str, expected: Result) -> list[str]:
        """Kill the target up to three times, start the grid again until it is done; return what is wrong."""
        root = self._folder / f"set-{self._num_sets}"
        self._num_sets += 1
        witness = Witness(root / EXPERIMENT, statuses=("pending", "interrupted", "completed", "killed"))
        problems: list[str] = []
        code, kills_left = -signal.SIGKILL, self._draw.randint(1, MOST_KILLS)
        retries = self._draw.choice([0, MOST_KILLS])  # with none, the same command is started again
        starts = 0
        while code and not problems and starts <= MOST_KILLS:
            starts += 1
            pid = self._zygote.start(root, PARAMS, "lanes", jobs=jobs, retries=retries, tensorboard=True)
            while kills_left and self._wait_for_epochs(root, pid):
                kills_left -= self._is_hit(target, pid, lanes_of(root, pid))
            code = self._zygote.wait(pid)[0]
            left = seconds_until_gone(pid)
            problems += [f"{root}: a process lived on for {left:.1f} s"] if left > MOST_LEFT_S else []
            problems += witness.problems()
        problems += [f"{root}: exit code {code}"] if code else []
        if not code and result(root) != expected:
            problems.append(f"{root}: {jobs} jobs, {target}: differs from the undisturbed grid")
        if not problems:
            shutil.rmtree(root)
        return problems

    def _wait_for_epochs(self, root: Path, pid: int) -> bool:
        """Wait until this start has committed some more epochs; return whether it lives then."""
        aim = num_epochs(root) + self._draw.randint(1, 2 * NUM_EPOCHS)
        while num_epochs(root) < aim:
            if not is_alive(pid):
                return False
            time.sleep(0.002)
        return is_alive(pid)

    def _is_hit(self, target: str, parent: int, lanes: list[int]) -> bool:
        """Kill the target, a lane only while it trains; return whether all of it was there."""
        lane = self._draw.choice(lanes) if lanes else None
        numbers = {"parent": parent, "lane": lane, "fork server": parent_of(lane) if lane else None}
        aims = [numbers[name] for name in target.split(" and ")] if lane else []
        living = [number for number in aims if number and number in members(parent)]
        for number in living:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(number, signal.SIGKILL)
        is_hit = bool(aims) and living == aims
        self.hits[target] += is_hit
        self.misses += not is_hit
        return is_hit


@pytest.mark.slow(minutes=2)
def test_grids_whose_processes_are_killed_in_mid_training_equal_the_undisturbed_one(
    zygote_of_all_cores, tmp_path
):
    marksman = Marksman(zygote_of_all_cores, tmp_path, seed=22)
    undisturbed = {jobs: marksman.undisturbed(jobs) for jobs in (2, 4)}
    alone = marksman.undisturbed(1)

    problems: list[str] = []
    for number in range(NUM_SETS):
        jobs = (2, 4)[number // len(TARGETS) % 2]
        problems += marksman.kill_set(jobs, TARGETS[number % len(TARGETS)], undisturbed[jobs])

    show(f"{NUM_SETS} sets, hits {dict(marksman.hits)}, {marksman.misses} misses", *problems)
    assert problems == []
    assert sorted(marksman.hits) == sorted(TARGETS[:NUM_SETS])
    if os.cpu_count() in (2, 3):
        assert alone.weights != undisturbed[2].weights, "the numbers do not depend on threads: no test"

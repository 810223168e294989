"""SIGKILL and Ctrl-C at random moments of grids that are pruned: each row is there once."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from runmanager import load_results, load_runs
from tests.chaos.harness import (
    MOST_LEFT_S,
    Witness,
    Zygote,
    is_alive,
    num_epochs,
    seconds_until_gone,
    seeded,
    show,
)
from tests.chaos.work import EXPERIMENT
from tests.nightly import of_night

NUM_STOPS = int(os.environ.get("RUNMANAGER_PRUNING_KILLS", str(of_night(12, by_day=3))))
CLIMBERS: dict[str, list[object]] = {"climber": [5, 3, 11, 1, 8, 2, 10, 0, 9, 4, 7, 6], "device": ["cpu"]}
HOWS = ["inline", "lanes", "lanes"]
ENDS = {("completed", 9), ("pruned", 1), ("pruned", 3)}


def standing(root: Path) -> dict[int, tuple[str, int, str]]:
    """Return how each run stands: status, number of epochs, why."""
    runs = load_runs(root / EXPERIMENT)
    columns = (runs[name] for name in ("run", "status", "epochs", "error"))
    return {run: (status, epochs, error) for run, status, epochs, error in zip(*columns, strict=True)}


def numbers(root: Path) -> dict[tuple[int, int], tuple[float, float]]:
    """Return what was tracked: run, epoch -> values."""
    rows = load_results(root / EXPERIMENT)
    columns = (rows[name] for name in ("run", "epoch", "score", "total"))
    return {(run, epoch): values for run, epoch, *values in zip(*columns, strict=True)}  # type: ignore[misc]


class Pruning:
    """Stops grids, one after the other, and starts each again until it is done."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self._zygote, self._folder, self._draw = zygote, folder, seeded(27)
        self.stops = self.interrupts = self.stops_in_training = self.grids = self.pruned = 0
        assert zygote.run(folder / "undisturbed", CLIMBERS) == 0
        self.expected = standing(folder / "undisturbed")
        self.whole = numbers(folder / "undisturbed")

    def grid(self) -> list[str]:
        """Stop a grid at random moments until it is done; return what is wrong."""
        root, how = self._folder / str(self.grids), HOWS[self.grids % len(HOWS)]
        self.grids += 1
        witness = Witness(root / EXPERIMENT, statuses=("pending", "interrupted", "completed", "pruned"))
        problems: list[str] = []
        before: dict[int, tuple[str, int, str]] = {}
        code = -9
        while code in (-9, 130) and not problems:
            committed = num_epochs(root)
            aim = committed + self._draw.randrange(12)
            number = self._draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT])
            pid = self._zygote.start(root, CLIMBERS, how)
            while num_epochs(root) < aim and is_alive(pid):
                time.sleep(0.002)
            within = self._draw.uniform(0, 0.05)
            code, is_sent, _ = self._zygote.wait(pid, within, number, is_of_group=True)
            is_stopped = is_sent and code in (-9, 130)
            self.stops += is_stopped
            self.interrupts += is_stopped and number == signal.SIGINT
            self.stops_in_training += is_stopped and num_epochs(root) > committed
            left = seconds_until_gone(pid)
            problems += [f"{root}: a process lived on for {left:.1f} s"] if left > MOST_LEFT_S else []
            problems += witness.problems()
            problems += self._changes(root, before)
        problems += [f"{root}: exit code {code}"] if code else []
        problems += [] if code else self._end(root, how)
        if not problems:
            shutil.rmtree(root)
        return problems

    def _changes(self, root: Path, before: dict[int, tuple[str, int, str]]) -> list[str]:
        """Return the runs that had ended and stand otherwise now."""
        now = standing(root) if (root / EXPERIMENT / "grid.json").exists() else {}
        ended = {run: how for run, how in before.items() if how[0] in ("completed", "pruned")}
        before.update(now)
        return [
            f"{root}: run {run} was {how}, is {now.get(run)}"
            for run, how in ended.items()
            if now.get(run) != how
        ]

    def _end(self, root: Path, how: str) -> list[str]:
        """Return what is wrong with a grid that is done."""
        ends, rows = standing(root), numbers(root)
        self.pruned += sum(status == "pruned" for status, *_ in ends.values())
        problems = [f"{root}: run {run} is {end}" for run, end in ends.items() if end[:2] not in ENDS]
        if how == "inline" and ends != self.expected:
            problems.append(f"{root}: stopped other runs than an undisturbed grid: {ends}")
        if len(rows) != sum(epochs for _, epochs, _ in ends.values()):
            problems.append(f"{root}: {len(rows)} rows")
        if any(self.whole.get(key, values) != values for key, values in rows.items()):
            problems.append(f"{root}: other numbers")
        best = CLIMBERS["climber"].index(0) + 1
        return (
            problems if ends[best][0] == "completed" else [*problems, f"{root}: the best run is {ends[best]}"]
        )


@pytest.mark.slow
def test_grids_that_are_stopped_anywhere_lose_no_row_and_leave_pruned_runs_as_they_are(zygote, tmp_path):
    pruning = Pruning(zygote, tmp_path)

    problems: list[str] = []
    while pruning.stops < NUM_STOPS and not problems:
        problems += pruning.grid()

    show(
        f"{pruning.stops} stops, {pruning.interrupts} by Ctrl-C, {pruning.stops_in_training} after an epoch, "
        f"{pruning.grids} grids, {pruning.pruned} runs pruned", *problems
    )  # fmt: skip
    assert problems == []
    assert pruning.pruned > pruning.grids
    assert pruning.stops_in_training > NUM_STOPS / 3

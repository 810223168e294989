"""SIGKILL inside epochs: a run goes on after its last checkpoint there, with the results of one undisturbed."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import (
    MOST_LEFT_S,
    Witness,
    Zygote,
    is_alive,
    journals,
    result,
    seconds_until_gone,
    seeded,
    show,
)
from tests.chaos.work import EXPERIMENT, LOADERS, inside_axes
from tests.nightly import of_night

NUM_KILLS = of_night(15, by_day=6)
BY_DAY = ("workers",)
PARAMS = [inside_axes(lrs=[0.01, 0.02], num_epochs=2, every=every) for every in (3, "0.03s")]
HOWS = ["inline", "inline", "bare", "lanes"]


class Killer:
    """Kills the processes of one experiment after the other, as soon as they have saved something inside."""

    def __init__(self, zygote: Zygote, draw: random.Random) -> None:
        self._zygote = zygote
        self._draw = draw
        self.kills = self.kills_inside = self.continued = self.experiments = 0

    def experiment(self, root: Path, params: dict[str, list[Any]]) -> list[str]:
        """Kill an experiment until it is done; return what is wrong."""
        self.experiments += 1
        how, witness = self._draw.choice(HOWS), Witness(root / EXPERIMENT)
        problems: list[str] = []
        code = -9
        while code == -9 and not problems:
            before = num_saved(root)
            aim = before + self._draw.randrange(1, 9)
            pid = self._zygote.start(root, params, how, tensorboard=True)
            while num_saved(root) < aim and is_alive(pid):
                time.sleep(0.001)
            code, is_killed, _ = self._zygote.wait(pid, self._draw.uniform(0, 0.05), is_of_group=True)
            left = seconds_until_gone(pid)
            problems += [f"{root}: a process lived on for {left:.1f} s"] if left > MOST_LEFT_S else []
            self.kills += is_killed and code == -9
            self.kills_inside += is_killed and num_saved(root) > before
            problems += witness.problems()
        self.continued += sum("inside" in lines[0] for lines in journals(root) if lines)
        return [*problems, *([f"{root}: exit code {code}"] if code else [])]


def num_saved(root: Path) -> int:
    """Count the states that were saved inside epochs."""
    return sum(line["type"] == "inside" for lines in journals(root) for line in lines)


def kill(zygote: Zygote, tmp_path: Path, grids: list[dict[str, list[Any]]], num_kills: int) -> None:
    killer = Killer(zygote, seeded(25))
    references = []
    for number, params in enumerate(grids):
        assert zygote.run(tmp_path / f"reference {number}", params, "bare", tensorboard=True) == 0
        references.append(result(tmp_path / f"reference {number}"))

    problems: list[str] = []
    while killer.kills < num_kills:
        number = killer.experiments % len(grids)
        root = tmp_path / f"{killer.experiments}"
        problems += killer.experiment(root, grids[number])
        if not problems:
            problems += [] if result(root) == references[number] else [f"{root} differs from the reference"]
            shutil.rmtree(root)

    show(
        f"{killer.kills} kills, {killer.kills_inside} after a checkpoint inside an epoch, "
        f"{killer.continued} attempts continued there, {killer.experiments} experiments"
    )
    assert problems == []
    assert killer.kills_inside > num_kills // 2
    assert killer.continued > num_kills // 2


@pytest.mark.slow(minutes=1)
def test_kills_inside_epochs_change_no_row_and_no_weight(zygote, tmp_path):
    kill(zygote, tmp_path, PARAMS, NUM_KILLS)


@pytest.mark.slow(minutes=4)
@pytest.mark.parametrize(
    "data", [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.nightly) for name in LOADERS]
)
def test_kills_inside_epochs_of_any_loader_change_no_row_and_no_weight(zygote, tmp_path, data):
    if data.startswith("stateful"):
        pytest.importorskip("torchdata")
    kill(zygote, tmp_path, [inside_axes([0.01, 0.02], 2, 3, data)], NUM_KILLS // 3)

"""SIGKILL at random moments of a grid that decides: the same runs are executed, with the same verdict."""

import time
from pathlib import Path

import pytest

from runmanager import load_runs, verdict
from tests.chaos.harness import Zygote, is_alive, num_epochs, result, seeded, show
from tests.chaos.work import EXPERIMENT

RIVALS: dict[str, list[object]] = {"rival": ["a", "bb", "ccc"], "device": ["cpu"]}
NUM_KILLS = 50


def answer(root: Path) -> tuple[str, str, str]:
    """Return what is decided, its table, and all that was executed, with all numbers."""
    decision = verdict(load_runs(root / EXPERIMENT))
    return decision.sentence, decision.table.to_csv(), "\n".join(map(repr, result(root).rows))


def kill_until_done(zygote: Zygote, root: Path, how: str, seed: int) -> int:
    """Kill a grid after some epochs each time, start it again until it is done; return how often it was hit."""
    draw, kills, code = seeded(seed), 0, -9
    while code == -9:
        pid = zygote.start(root, RIVALS, how)
        aim = num_epochs(root) + draw.randrange(1, 25)
        while num_epochs(root) < aim and is_alive(pid):
            time.sleep(0.002)
        code, is_killed, _ = zygote.wait(pid, draw.uniform(0, 0.02), is_of_group=True)
        kills += is_killed and code == -9
    assert code == 0
    return int(kills)


@pytest.mark.slow
def test_50_kills_change_neither_the_runs_nor_the_verdict(zygote, tmp_path):
    assert zygote.run(tmp_path / "undisturbed", RIVALS) == 0
    expected = answer(tmp_path / "undisturbed")

    kills = grids = 0
    while kills < NUM_KILLS:
        root = tmp_path / str(grids)
        kills += kill_until_done(zygote, root, ["inline", "inline", "lanes"][grids % 3], grids)
        assert answer(root) == expected
        grids += 1

    show(f"{kills} kills, {grids} grids, {len(expected[2].splitlines())} epochs", expected[0])
    assert " is the best of 3 settings" in expected[0]

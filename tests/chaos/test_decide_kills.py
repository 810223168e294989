"""SIGKILL at random moments of a grid that decides: the same runs are executed, with the same verdict."""

from pathlib import Path

import pytest

from runmanager import load_runs, verdict
from tests.chaos.harness import result, show
from tests.chaos.work import EXPERIMENT
from tests.nightly import of_night

RIVALS: dict[str, list[object]] = {"rival": ["a", "bb", "ccc"], "device": ["cpu"]}
NUM_KILLS = of_night(50, by_day=6)


def answer(root: Path) -> tuple[str, str, str]:
    """Return what is decided, its table, and all that was executed, with all numbers."""
    decision = verdict(load_runs(root / EXPERIMENT))
    return decision.sentence, decision.table.to_csv(), "\n".join(map(repr, result(root).rows))


@pytest.mark.slow
def test_kills_change_neither_the_runs_nor_the_verdict(zygote, tmp_path):
    assert zygote.run(tmp_path / "undisturbed", RIVALS) == 0
    expected = answer(tmp_path / "undisturbed")

    kills = grids = 0
    while kills < NUM_KILLS:
        root, how = tmp_path / str(grids), ["inline", "inline", "lanes"][grids % 3]
        kills += zygote.kill_until_done(root, RIVALS, how, grids, most_epochs=25, within_s=0.02)
        assert answer(root) == expected
        grids += 1

    show(f"{kills} kills, {grids} grids, {len(expected[2].splitlines())} epochs", expected[0])
    assert " is the best of 3 settings" in expected[0]

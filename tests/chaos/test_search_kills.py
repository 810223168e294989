"""SIGKILL at random moments of a search: no suggestion is lost, none is made twice, and the sampler goes on."""

from pathlib import Path
from typing import Any

import pytest

from runmanager import load_runs
from tests import searching
from tests.chaos.harness import result, show
from tests.chaos.work import EXPERIMENT
from tests.nightly import of_night

NUM_SUGGESTIONS, NUM_KILLS = 16, of_night(30, by_day=3)
SEARCHED: dict[str, list[Any]] = {"searched": [NUM_SUGGESTIONS]}
KILLS: dict[str, Any] = {"most_epochs": 12, "within_s": 0.03}


def trials(root: Path) -> list[dict[str, Any]]:
    """Return the trials that the runs keep."""
    return searching.trials(root / EXPERIMENT)


def check(root: Path) -> None:
    """Every suggestion is there once, with one run that is completed."""
    kept = trials(root)
    assert len({trial["number"] for trial in kept}) == NUM_SUGGESTIONS
    table = load_runs(root / EXPERIMENT)
    assert len(table) == len({id_ for trial in kept for id_ in trial["runs"]})
    assert set(table["status"]) == {"completed"}
    assert set(table["epochs"]) == {2}


@pytest.mark.slow(minutes=1)
def test_kills_of_a_search_lose_no_suggestion_and_make_none_twice(zygote, tmp_path):
    assert zygote.run(tmp_path / "undisturbed", SEARCHED) == 0
    expected = trials(tmp_path / "undisturbed")
    rows = list(map(repr, result(tmp_path / "undisturbed").rows))

    kills = searches = 0
    while kills < NUM_KILLS:
        root = tmp_path / str(searches)
        how = ["inline", "inline", "lanes"][searches % 3]
        kills += zygote.kill_until_done(root, SEARCHED, how, searches, **KILLS)
        check(root)
        if how == "inline":  # of several lanes, it depends on which run ends first
            assert trials(root) == expected
            assert list(map(repr, result(root).rows)) == rows
        searches += 1

    show(f"{kills} kills, {searches} searches of {NUM_SUGGESTIONS} suggestions")

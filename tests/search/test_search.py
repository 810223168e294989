"""The results that searches read, and the search that executes all runs."""

import pytest

from runmanager import run_grid
from runmanager.search.search import AllRuns, Decision
from runmanager.storage.folders import Experiment
from runmanager.storage.run_state import read_run


@pytest.fixture
def results(tmp_path):
    """What the journals say of three runs that were executed for an epoch each."""
    grid = [{"lr": lr} for lr in (1, 2, 3)]
    run_grid({"lr": [1, 2, 3]}, train_once, experiment="exp", root=tmp_path, executor="inline", display=False)
    return [read_run(folder) for folder in Experiment(tmp_path / "exp").assign(grid, {})]


def train_once(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(run.lr, 1)


def test_all_runs_are_handed_out_once_in_their_order(results):
    search = AllRuns()
    ids = [result.folder.id for result in results]
    search.begin([result.folder for result in results], {ids[2], ids[0]})

    decisions = [search.next({result.folder.id: result for result in results}, ()) for _ in range(2)]

    assert decisions == [Decision([ids[0], ids[2]]), Decision([])]
    assert (search.introduction(), search.conclusion([])) == ("", "")

"""Searches that go on from a record that somebody has changed, with valid checksums."""

import json
import random
import shutil
import warnings

import pytest

from runmanager import OptunaSearch, Uniform, run_grid
from runmanager.errors import RunsWarning
from runmanager.search import sampler
from runmanager.storage import paths
from tests.fuzz import hostile

NUM_BEFORE, NUM_AFTER = 4, 6


def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track(reward=run.hostile_lr * run.hostile_w, n=1)


def search(root, number):
    return run_grid(
        {"hostile_lr": Uniform(0, 1), "hostile_w": [1, 2]},
        train,
        experiment="e",
        root=root,
        search=OptunaSearch(n=number, seed=0),
        goal="max:reward",
        tensorboard=False,
        display=False,
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """An experiment with the runs that a search has made, with the memory of its sampler."""
    root = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "SECONDS", 0)
        search(root, NUM_BEFORE)
    assert '"type":"saved"' in (root / "e" / paths.SEARCH).read_text().replace(" ", "")
    return root


@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 100), marks=pytest.mark.slow)], ids=["a few", "many"]
)
def test_a_changed_record_costs_no_run_and_stops_no_search(template, tmp_path, seeds):
    lines = [json.loads(line) for line in (template / "e" / paths.SEARCH).read_bytes().splitlines()]
    for seed in seeds:
        root = tmp_path / str(seed)
        shutil.copytree(template, root)
        dice = random.Random(seed)  # noqa: S311 - reproducible damage
        (root / "e" / paths.SEARCH).write_bytes(hostile.journal(lines, dice))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunsWarning)
            runs = search(root, NUM_AFTER).runs

        assert runs["status"].eq("completed").all(), seed
        assert runs["run"].tolist() == list(range(1, len(runs) + 1)), seed
        assert len(runs) >= NUM_AFTER, seed
        shutil.rmtree(root)

"""Searches that go on from trials that somebody has changed."""

import json
import random
import shutil
import warnings
from contextlib import suppress

import pytest

from runmanager import OptunaSearch, RunsWarning, Uniform, run_grid
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
    """An experiment with the runs that a search has made."""
    root = tmp_path_factory.mktemp("template")
    search(root, NUM_BEFORE)
    for path in sorted((root / "e").glob("*/run.json"))[::2]:
        content = json.loads(path.read_bytes())
        content["trials"][0]["attributes"] = {"generation": 1, "cma:optimizer:0": "80", "space": {"x": [1, 2]}}
        path.write_text(json.dumps(content))
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [range(2), pytest.param(range(2, 100), marks=[pytest.mark.slow, pytest.mark.nightly])],
    ids=["a few", "many"],
)
def test_changed_trials_cost_no_run_and_stop_no_search(template, tmp_path, seeds):
    for seed in seeds:
        root = tmp_path / str(seed)
        shutil.copytree(template, root)
        dice = random.Random(seed)  # noqa: S311 - reproducible damage
        for path in (root / "e").glob("*/run.json"):
            content = json.loads(path.read_bytes())
            of_search = {"trials": content.pop("trials")} if "trials" in content else {}
            with suppress(RecursionError):  # this test's own
                path.write_text(json.dumps(content | hostile.change(of_search, dice)))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunsWarning)
            runs = search(root, NUM_AFTER).runs

        assert runs["status"].eq("completed").all(), seed
        assert runs["run"].tolist() == list(range(1, len(runs) + 1)), seed
        assert len(runs) >= NUM_AFTER, seed
        shutil.rmtree(root)

import json
import shutil

import pytest
import torch
from torch import nn

from runmanager import load_run, load_runs, run_grid
from runmanager.storage.folders import read_runs
from runmanager.storage.loaded_files import changes_since, loading_facts, note_file, noting_files
from runmanager.storage.run_state import read_run

SCALE = {"value": 1.0}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


def pretrain(run, manager):
    network = nn.Linear(2, 1)
    nn.init.constant_(network.weight, SCALE["value"])
    nn.init.zeros_(network.bias)
    with manager.run(run, network):
        for _ in manager.epochs(1, keep="last"):
            manager.track_loss(0.5, 1)


def probe_of(root, *, late=False):
    """Make a function that trains what another run has trained, loaded before its run begins or in its loop."""

    def probe(run, manager):
        network = nn.Linear(2, 1)
        if not late:
            load_run(root / "pretrain" / "1").load_weights(network)
        with manager.run(run, network):
            for _ in manager.epochs(1):
                if late:
                    load_run(root / "pretrain" / "1").load_weights(network)
                manager.track_loss(network(torch.ones(1, 2)).item(), 1)

    return probe


def start(root, experiment, train, **options):
    options = {"tensorboard": False, "display": False, "executor": "inline", **options}
    return run_grid({"lr": [0.1], "device": ["cpu"]}, train, experiment=experiment, root=root, **options)


def losses(root):
    table = load_runs(root / "probe")
    return table["loss"].tolist(), table["attempts"].tolist()


@pytest.mark.parametrize("late", [False, True])
def test_a_run_is_executed_again_when_the_weights_that_it_loaded_have_changed(root, monkeypatch, capsys, late):
    probe = probe_of(root, late=late)
    start(root, "pretrain", pretrain)
    start(root, "probe", probe)
    start(root, "probe", probe)
    assert losses(root) == ([2.0], [1])

    monkeypatch.setitem(SCALE, "value", 3.0)
    start(root, "pretrain", pretrain)
    start(root, "probe", probe, plan_only=True, display=True)
    assert losses(root) == ([2.0], [1])
    start(root, "probe", probe)

    said = "! 1 run changed and is executed again: weights of pretrain/001"
    assert capsys.readouterr().out.startswith(said)
    assert losses(root) == ([6.0], [2])


def test_results_are_kept_if_that_is_wanted(root, monkeypatch):
    start(root, "pretrain", pretrain)
    start(root, "probe", probe_of(root))
    monkeypatch.setitem(SCALE, "value", 3.0)
    start(root, "pretrain", pretrain)

    start(root, "probe", probe_of(root), changed="keep")

    assert losses(root) == ([2.0], [1])


def test_weights_that_are_gone_are_named_and_change_nothing(root, capsys):
    start(root, "pretrain", pretrain)
    start(root, "probe", probe_of(root))
    shutil.rmtree(root / "pretrain")

    start(root, "probe", probe_of(root), display=True)

    lines = capsys.readouterr().out.splitlines()
    assert "gone now: whether they changed is not known" in lines[0]
    assert losses(root) == ([2.0], [1])


def test_a_root_that_was_moved_has_the_same_weights(root, tmp_path):
    start(root, "pretrain", pretrain)
    start(root, "probe", probe_of(root))
    moved = root.rename(tmp_path / "moved")

    (folder,) = read_runs(moved / "probe")
    result = read_run(folder)

    assert list(result.loaded) == [f"pretrain/{path.name}/weights.pt" for path in (moved / "pretrain").glob("001*")]
    assert changes_since(result, {}) == []


def test_weights_that_are_loaded_outside_of_a_run_are_not_noted(root):
    start(root, "pretrain", pretrain)
    (folder,) = read_runs(root / "pretrain")

    note_file(folder.path, "weights.pt")
    assert loading_facts(root / "probe" / "001") == {}
    with noting_files():
        note_file(folder.path, "weights.pt")
        (noted,) = loading_facts(root / "probe" / "001")["loaded"]
    assert noted == f"pretrain/{folder.path.name}/weights.pt"
    assert loading_facts(root / "probe" / "001") == {}


def test_own_weights_are_not_those_of_another_run(root):
    def train(run, manager):
        network = nn.Linear(2, 1)
        with manager.run(run, network):
            for _ in manager.epochs(1, keep="last"):
                manager.track_loss(0.5, 1)
            manager.load_weights()

    start(root, "pretrain", train)

    (path,) = (root / "pretrain").glob("001*/attempt-1.jsonl")
    assert not any("loaded" in json.loads(line) for line in path.read_text().splitlines())

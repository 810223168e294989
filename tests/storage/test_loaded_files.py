import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from runmanager import load_run, load_runs, run_grid, write_report
from runmanager.checks.changed import changes_since
from runmanager.cli.app import app
from runmanager.core.experiment import read_runs
from runmanager.core.state import read_run

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


@pytest.mark.slow(everywhere=True)
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

    said = "! 1 run changed and is executed again: files of pretrain/001"
    assert capsys.readouterr().out.startswith(said)
    assert losses(root) == ([6.0], [2])


@pytest.mark.slow(everywhere=True)
def test_results_are_kept_if_that_is_wanted(root, monkeypatch):
    start(root, "pretrain", pretrain)
    start(root, "probe", probe_of(root))
    monkeypatch.setitem(SCALE, "value", 3.0)
    start(root, "pretrain", pretrain)

    start(root, "probe", probe_of(root), changed="keep")

    assert losses(root) == ([2.0], [1])


@pytest.mark.slow(everywhere=True)
def test_a_root_that_was_moved_has_the_same_weights(root, tmp_path):
    start(root, "pretrain", pretrain)
    start(root, "probe", probe_of(root))
    moved = root.rename(tmp_path / "moved")

    (folder,) = read_runs(moved / "probe")
    result = read_run(folder)

    assert list(result.loaded) == [f"pretrain/{path.name}" for path in (moved / "pretrain").glob("001*")]
    assert changes_since(result, {}, {}) == []


@pytest.mark.slow(everywhere=True)
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


@pytest.mark.slow(everywhere=True)
def test_artifacts_count_once_one_is_taken(root):
    def make(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(0.5, 1)
            for name in ("read.txt", "other.txt", "folder/inside.txt"):
                manager.artifact(f"{name} {SCALE['value']}", name)

    def use(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                files = load_run(root / "make" / "1").artifacts
                manager.track_loss(len(files), 1)
                assert (files["read.txt"].is_file(), files["folder"].is_dir()) == (True, True)

    start(root, "make", make)
    start(root, "probe", use)
    (folder,) = read_runs(root / "probe")
    assert len(read_run(folder).loaded) == 1

    for name, attempts in (("other.txt", [2]), ("read.txt", [3]), ("folder/inside.txt", [4])):
        next((root / "make").glob(f"001*/artifacts/{name}")).write_text("changed")
        start(root, "probe", use)
        assert losses(root)[1] == attempts


@pytest.mark.slow(everywhere=True)
def test_what_a_killed_run_had_loaded_in_its_loop_counts_for_its_next_attempt(root, monkeypatch):
    def probe(run, manager):
        network = nn.Linear(2, 1)
        with manager.run(run, network):
            for epoch in manager.epochs(3, checkpoint={"network": network}):
                if epoch == 1:
                    load_run(root / "pretrain" / "1").load_weights(network)
                manager.track_loss(network(torch.ones(1, 2)).item(), 1)
                if epoch == 3 and next(faults, None):
                    raise KeyboardInterrupt

    faults = iter([True])
    start(root, "pretrain", pretrain)
    start(root, "probe", probe)
    (folder,) = read_runs(root / "probe")
    (journal,) = folder.path.glob("attempt-1.jsonl")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]))  # as a kill leaves it, without its end

    assert list(read_run(folder).loaded) == [
        f"pretrain/{path.name}" for path in (root / "pretrain").glob("001*")
    ]
    start(root, "probe", probe)
    assert losses(root) == ([2.0], [2])
    monkeypatch.setitem(SCALE, "value", 3.0)
    start(root, "pretrain", pretrain)
    start(root, "probe", probe)
    assert losses(root) == ([6.0], [3])


@pytest.mark.slow(everywhere=True)
def test_a_run_built_on_another_of_its_grid_follows_it(root, monkeypatch, capsys):
    def train(run, manager):
        network = nn.Linear(2, 1)
        load_run(root / ("pretrain", "both")[run.stage - 1] / "1").load_weights(network)
        with manager.run(run, network):
            for _ in manager.epochs(1, keep="last"):
                manager.track_loss(network(torch.ones(1, 2)).item(), 1)

    def grid(**options):
        options = {"tensorboard": False, "display": False, "executor": "inline", "root": root, **options}
        return run_grid({"stage": [1, 2]}, train, experiment="both", **options)

    start(root, "pretrain", pretrain)
    grid()
    first, second = map(read_run, read_runs(root / "both"))
    assert len(first.loaded) == 1
    assert list(second.loaded) == [f"both/{first.folder.path.name}"]

    monkeypatch.setitem(SCALE, "value", 3.0)
    start(root, "pretrain", pretrain)
    grid(display=True)

    assert f"files of both/{first.folder.path.name} (executed again) (1)" in capsys.readouterr().out
    assert load_runs(root / "both")[["loss", "attempts"]].to_numpy().tolist() == [[6.0, 2], [6.0, 2]]


@pytest.mark.slow(everywhere=True)
def test_what_a_run_is_built_on_is_shown(root):
    start(root, "pretrain", pretrain)
    start(root, "probe", probe_of(root))
    (source,) = read_runs(root / "pretrain")
    built = f"pretrain/{source.path.name}"

    lines = CliRunner().invoke(app, ["show", str(root / "probe" / "1")]).stdout.splitlines()
    write_report(root / "probe", root / "page.html")

    assert ["built", "on", built] in [line.split() for line in lines]
    assert built in (root / "page.html").read_text()

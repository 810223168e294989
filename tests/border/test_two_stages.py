"""A run that is built on what another one has left: it follows when that changes, through kills too."""

from pathlib import Path

import pytest
import torch
from torch import nn

from runmanager import load_run, load_runs, run_grid, write_report
from tests.border import reading
from tests.border.screens import command
from tests.border.work import announce, meet

pytestmark = [pytest.mark.usefixtures("own_folder"), pytest.mark.slow(everywhere=True)]
SCALE = {"value": 1.0}


@pytest.fixture(autouse=True)
def _first_scale():
    SCALE["value"] = 1.0


def pretrain(run, manager):
    network = nn.Linear(2, 1)
    nn.init.constant_(network.weight, SCALE["value"])
    nn.init.zeros_(network.bias)
    with manager.run(run, network):
        for _ in manager.epochs(1, keep="last"):
            manager.track_loss(0.5, 1)


def probing(*, is_late=False):
    """Make a function that tracks twice the weight that another run has trained."""

    def probe(run, manager):
        network = nn.Linear(2, 1)
        if not is_late:
            load_run("runs/pretrain/1").load_weights(network)
        with manager.run(run, network):
            for epoch in manager.epochs(3, checkpoint={"network": network}):
                if is_late and epoch == 1:
                    load_run("runs/pretrain/1").load_weights(network)
                manager.track_loss(network(torch.ones(1, 2)).item(), 1)
                meet(run, epoch)

    return probe


def start(experiment, train, params=None, **options):
    options = {"tensorboard": False, "executor": "inline", **options}
    return run_grid({"lr": [0.1], "device": ["cpu"], **(params or {})}, train, experiment=experiment, **options)


def found(experiment="probe"):
    return load_runs(f"runs/{experiment}")[["loss", "attempts"]].to_numpy().tolist()


def test_a_run_is_executed_again_when_the_weights_that_it_loaded_have_changed(capsys):
    stage = probing()
    for function in (pretrain, pretrain, stage):
        start("pretrain" if function is pretrain else "probe", function)
    start("probe", stage)
    assert found() == [[2, 1]]

    SCALE["value"] = 3.0
    start("pretrain", pretrain)
    start("probe", stage, changed="keep")
    capsys.readouterr()
    start("probe", stage, plan_only=True)
    assert found() == [[2, 1]]
    start("probe", stage)

    assert capsys.readouterr().out.count("1 run changed and will be executed again: files of pretrain/001") == 2
    assert found() == [[6, 2]]


@pytest.mark.parametrize("is_late", [False, True])
def test_what_a_killed_run_had_loaded_counts_for_its_next_attempt(is_late):
    stage = probing(is_late=is_late)
    start("pretrain", pretrain)
    announce("stop", 0.1, 3)
    start("probe", stage)
    reading.as_killed(reading.run_folder("runs/probe"))
    start("probe", stage)
    assert found() == [[2, 2]]
    announce("stop", 0.1, 2)
    SCALE["value"] = 3.0
    start("pretrain", pretrain)
    start("probe", stage)
    assert load_runs("runs/probe")["loss"].tolist() == [6.0]  # never of both

    start("probe", stage)

    assert found() == [[6, 4]]
    assert not load_runs("runs/probe")["mixed"].any()


def test_own_weights_are_not_those_of_another_run():
    def train(run, manager):
        network = nn.Linear(2, 1)
        with manager.run(run, network):
            for _ in manager.epochs(1, keep="last"):
                manager.track_loss(0.5, 1)
            manager.load_weights()

    start("pretrain", train)

    assert not any("loaded" in line for line in reading.lines(next(Path("runs").rglob("attempt-1.jsonl"))))


def test_artifacts_count_once_one_is_taken():
    def make(run, manager):
        with manager.run(run):
            for name in ("read.txt", "other.txt", "folder/inside.txt"):
                manager.artifact(name, name)

    def use(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(len(load_run("runs/make/1").artifacts), 1)

    start("make", make)
    start("probe", use)

    for number, name in enumerate(("other.txt", "read.txt", "folder/inside.txt"), 2):
        next(Path("runs/make").glob(f"001*/artifacts/{name}")).write_text("changed")
        start("probe", use)
        start("probe", use)
        assert found() == [[4, number]]


def test_a_run_built_on_another_of_its_grid_follows_it_and_says_so(capsys):
    def train(run, manager):
        network = nn.Linear(2, 1)
        load_run(f"runs/{('pretrain', 'both')[run.stage - 1]}/1").load_weights(network)
        with manager.run(run, network):
            for _ in manager.epochs(1, keep="last"):
                manager.track_loss(network(torch.ones(1, 2)).item(), 1)

    start("pretrain", pretrain)
    start("both", train, {"stage": [1, 2]})
    SCALE["value"] = 3.0
    start("pretrain", pretrain)

    start("both", train, {"stage": [1, 2]})

    first, _ = (folder.name for folder in reading.run_folders("runs/both"))
    assert f"files of both/{first} (executed again)" in " ".join(capsys.readouterr().out.split())
    assert found("both") == [[6, 2], [6, 2]]
    assert f"built on both/{first}" in command("show", "runs/both/2").words
    write_report("runs/both", "page.html")
    assert f"both/{first}" in Path("page.html").read_text()

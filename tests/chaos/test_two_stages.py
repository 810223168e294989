"""A two-stage program, changed three ways and killed in each stage, gives the rows of an undisturbed one."""

import os
import subprocess
import sys

import pytest

from runmanager import load_runs
from tests.nightly import of_night_but

PROGRAM = """
import os, signal, sys
import torch
from torch import nn
from runmanager import load_run, run_grid

SCALE = 1.0
images = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))

def die(stage, epoch, number):
    if os.environ.get("KILL") == stage and (epoch, number) == (2, 2):
        os.kill(os.getpid(), signal.SIGKILL)

def loop(run, manager, network, parts, compute, stage, number, **options):
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.5)
    with manager.run(run, network):
        for epoch in manager.epochs(3, checkpoint={"parts": parts, "optimizer": optimizer}, **options):
            loss = compute()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            manager.track_loss(loss, images)
            die(stage, epoch, number)

def pretrain(run, manager):
    torch.manual_seed(0)
    encoder = nn.Linear(4, 2)
    network = nn.Sequential(encoder, nn.Linear(2, 4))
    compute = lambda: (network(images) - run.target * SCALE * images).pow(2).mean()  # OBJECTIVE
    loop(run, manager, encoder, network, compute, "pretrain", run.number, keep="last")

def probe(run, manager):
    torch.manual_seed(0)
    encoder, head = nn.Linear(4, 2), nn.Linear(2, 1)
    load_run(f"runs/pretrain/{run.pretrained}").load_weights(encoder)
    network = nn.Sequential(encoder, head)
    compute = lambda: (head(encoder(images).detach()) - images.sum(1, keepdim=True)).pow(2).mean()
    loop(run, manager, network, head, compute, "probe", run.pretrained)

if __name__ == "__main__":
    options = {"executor": "inline", "tensorboard": False, "plan_only": "--plan" in sys.argv}
    grid = {("target", "number"): [(1.0, 1), (2.0, 2)], "device": ["cpu"]}
    run_grid(grid, pretrain, experiment="pretrain", data=os.environ.get("DATA"), **options)
    run_grid({"pretrained": [1, 2], "device": ["cpu"]}, probe, experiment="probe", **options)
"""
CHANGES = {
    "code": (lambda text: text.replace("# OBJECTIVE", "* 3"), "source of pretrain"),
    "value": (lambda text: text.replace("SCALE = 1.0", "SCALE = 2.0"), "SCALE was 1.0, is 2.0"),
    "weights": (
        lambda text: text.replace("manual_seed(0)\n    encoder = ", "manual_seed(1)\n    encoder = "),
        "",
    ),
}


def start(folder, *arguments, **variables):
    command = [sys.executable, "program.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200", **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def rows(folder):
    return {stage: load_runs(folder / "runs" / stage)["loss"].tolist() for stage in ("pretrain", "probe")}


@pytest.mark.slow
@pytest.mark.parametrize("stage", of_night_but(["pretrain", "probe"], ["pretrain"]))
@pytest.mark.parametrize("change", of_night_but([*CHANGES], ["code"]))
def test_a_changed_first_stage_reaches_the_second_also_through_kills(tmp_path, change, stage):
    edit, cause = CHANGES[change]
    changed, undisturbed = tmp_path / "changed", tmp_path / "undisturbed"
    for folder, text in ((changed, PROGRAM), (undisturbed, edit(PROGRAM))):
        folder.mkdir()
        (folder / "program.py").write_text(text)
        assert start(folder).returncode == 0
    before = rows(changed)
    (changed / "program.py").write_text(edit(PROGRAM))

    planned = start(changed, "--plan").stdout
    assert cause in planned
    assert planned.count("start over") >= 2
    assert rows(changed) == before
    killed = start(changed, KILL=stage)
    assert killed.returncode == -9
    if stage == "pretrain":
        assert rows(changed)["probe"] == before["probe"]  # until the new attempt has an epoch
    said = start(changed).stdout
    again = start(changed).stdout

    assert ("files of pretrain/" in said) == (stage == "pretrain")
    assert rows(changed) == rows(undisturbed)
    assert rows(changed)["probe"] != before["probe"]
    assert again.count("2 runs, 0 to execute") == 2
    assert not load_runs(changed / "runs" / "probe")["mixed"].any()


@pytest.mark.slow
@pytest.mark.nightly
def test_data_given_and_changed_are_each_said(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    said = [start(tmp_path, **({"DATA": data} if data else {})).stdout for data in ("", "v1", "v1", "v2", "")]

    assert [("data= is given now" in each, "again: the data" in each) for each in said] == [
        (False, False), (True, False), (False, False), (False, True), (False, False),
    ]  # fmt: skip
    assert load_runs(tmp_path / "runs" / "pretrain")["attempts"].tolist() == [3, 3]
    assert load_runs(tmp_path / "runs" / "probe")["attempts"].tolist() == [1, 1]  # the weights are the same

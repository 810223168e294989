import os
import signal
import sys
import time
from collections import deque
from pathlib import Path

import psutil
import pytest
import torch

from runmanager import RunBuilder, load_results, load_runs, run_grid
from runmanager.executors.lanes import LanesExecutor
from runmanager.storage.journal import Outcome, Status

FAULTS = ("memory", "segfault", "exit", "hang", "raise", "nan", "nowhere")


def train(run, manager):
    """Train two epochs, and meet the run's fault in the second."""
    with manager.run(run):
        for epoch in manager.epochs(2):
            manager.track_loss(float("nan") if run.fault == "nan" and epoch == 2 else run.number, 1)
            if epoch == 2:
                meet(run.fault)


def meet(fault):
    match fault:
        case "memory":
            torch.empty(1 << 50)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "hang":
            time.sleep(1000)
        case "raise":
            raise ValueError("no")


def grid_of_20():
    faults = [*FAULTS, *[""] * 13]
    devices = ["cuda:99" if fault == "nowhere" else "cpu" for fault in faults]
    return {("number", "fault", "device"): list(zip(range(20), faults, devices, strict=True))}


@pytest.mark.parametrize("jobs", [1, 3])
def test_faults_of_seven_kinds_harm_only_their_own_runs_and_are_named(tmp_path, jobs):
    outcome = run_grid(
        grid_of_20(),
        train,
        experiment="exp",
        root=tmp_path,
        jobs=jobs,
        timeout=3,
        display=False,
        tensorboard=False,
    )

    by_fault = dict(zip(outcome.runs["fault"], outcome.runs[["status", "error"]].values.tolist(), strict=True))
    assert outcome.runs["status"].tolist()[7:] == ["completed"] * 13
    assert {fault: by_fault[fault][0] for fault in FAULTS} == {
        "memory": "out of memory", "segfault": "killed", "exit": "killed", "hang": "hung", "raise": "failed",
        "nan": "diverged", "nowhere": "unavailable",
    }  # fmt: skip
    for fault, words in {
        "memory": "DefaultCPUAllocator", "segfault": "segmentation fault", "exit": "exit code 3",
        "hang": "no progress for 3 s", "raise": "ValueError: no", "nan": "loss became nan", "nowhere": "cuda:99",
    }.items():  # fmt: skip
        assert words in by_fault[fault][1]
    logs = {path.parent.name: path.read_text() for path in tmp_path.glob("exp/*/error.log")}
    assert len(logs) == 5
    assert any("meet" in log and "no progress for" in log for log in logs.values())
    assert any("Segmentation fault" in log and "meet" in log for log in logs.values())
    assert outcome.exit_code == 1
    assert not psutil.Process().children(recursive=False) or all(
        "lane" not in " ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)
    )

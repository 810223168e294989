"""Signals at moments that Python or torch would make something else of."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from runmanager import run_grid
from tests.border.experiments import QUIET
from tests.border.work import Dropping


def start(root, function):
    return run_grid({"lr": [1, 2]}, function, experiment="e", root=root, **QUIET)


def test_a_signal_whose_exception_python_drops_ends_the_grid_nevertheless(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(3, checkpoint={}):
                manager.track_loss(1.0, 1)
                if epoch == 2:
                    Dropping()

    outcome = start(tmp_path, train)

    assert outcome.exit_code == 130
    assert outcome.runs["status"].tolist() == ["interrupted", "pending"]


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, None])
def test_once_a_signal_has_come_processes_of_loaders_may_end_and_before_they_fail_their_run(tmp_path, number):
    """As where all processes of a job get the signal."""

    def train(run, manager):
        loader = iter(DataLoader(TensorDataset(torch.ones(400, 1)), batch_size=1, num_workers=1))
        next(loader)  # its process has set its own handlers of signals
        (process,) = multiprocessing.active_children()
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(1.0, 1)
                subprocess.run(["/bin/kill", str(process.pid)], check=True)  # it would end with 0 by its parent
                if number:
                    signal.raise_signal(number)
                for _ in range(50):  # a signal that waits for the main thread is handled in between
                    time.sleep(0.02)
        del loader

    outcome = start(tmp_path, train)  # torch keeps its handler of SIGCHLD, which it sets once

    if number:
        assert outcome.exit_code == 143
        assert outcome.runs["status"].tolist() == ["interrupted", "pending"]
    else:
        assert outcome.runs["status"].tolist() == ["killed", "killed"]
        assert outcome.runs["error"].str.contains("loader was ended (SIGTERM)", regex=False).all()


@pytest.mark.slow
def test_a_signal_that_comes_twice_at_once_counts_as_one_as_timeout_sends_it(tmp_path, capsys):
    parent = os.getpid()

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                try:
                    os.kill(parent, signal.SIGTERM)
                    time.sleep(60)
                finally:  # it ends while the grid waits for it
                    os.kill(parent, signal.SIGTERM)
                    time.sleep(0.3)

    outcome = run_grid({"lr": [1]}, train, experiment="e", root=tmp_path, tensorboard=False)

    assert outcome.exit_code == 143
    assert "Forced stop" not in capsys.readouterr().out

"""Runs on the GPUs of a Ray that pretends to have two."""

import os
from collections import deque
from unittest import mock

import pytest

from runmanager import RunBuilder
from runmanager.core.outcome import Outcome, Status
from runmanager.executors.ray import RayExecutor
from tests.border.test_executors import Watcher

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def two_gpus():
    # restored as a whole: ray.init() sets PYTHONBREAKPOINT, which later tests would inherit
    with mock.patch.dict(os.environ, {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}):
        ray.init(
            "local", num_cpus=2, num_gpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False
        )
        try:
            yield
        finally:
            ray.shutdown()


class Anywhere(Watcher):
    def run_started(self, run, _, device):
        self.seen.append((run, device))


def where(_run, _report):
    return Outcome(Status.COMPLETED, os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.getpid())


def processes(device, num_runs):
    runs = deque(RunBuilder.get_runs({"number": list(range(num_runs)), "device": [device]}))
    return [(outcome.epochs, outcome.error) for _, outcome in RayExecutor().execute(runs, where, Anywhere())]


@pytest.mark.nightly
@pytest.mark.slow
def test_no_process_serves_two_runs_on_a_gpu(two_gpus):
    served = processes("cuda", 3) + processes("cuda", 3)  # CUDA keeps the GPU that a process begins with

    assert len({process for process, _ in served}) == 6
    assert {visible for _, visible in served} <= {"0", "1"}

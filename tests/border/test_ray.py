"""The executor "ray" (docs/clusters.md): on a pretended cluster, and on this machine."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from runmanager import (
    DeviceError,
    EpochRecord,
    GridError,
    InvalidArgumentError,
    Outcome,
    RayExecutor,
    RunBuilder,
    Status,
)
from tests.border.test_executors import Watcher
from tests.border.work import wait_until

RUNS = RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3]})
COMPLETED = Outcome(Status.COMPLETED)
BOX = {"Alive": True, "NodeManagerHostname": "box", "NodeID": "1234567", "Resources": {"CPU": 8.0, "GPU": 2.0}}


class Told(Watcher):
    """Notes lanes, and lines with the runs that printed them."""

    def __init__(self):
        super().__init__()
        self.lanes: list[int] = []

    def run_started(self, run, lane, device):
        self.lanes.append(lane)

    def run_printed(self, run, line):
        self.say(f"{run.lr}: {line}")


def execute(work, watch=None, runs=RUNS, **options):
    outcomes = RayExecutor(**options).execute(deque(runs), work, watch or Told())
    return {run.lr: outcome for run, outcome in outcomes}


def complete(_run, _report):
    return COMPLETED


# Without a cluster


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of one node that answers at an address; what happens at a look and at its end can be set."""
    ray = pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        cluster = SimpleNamespace(at_look=list, at_end=list, executor=partial(RayExecutor, address=address))
        for name, call in {
            "init": lambda **_: os.environ.update(PYTHONBREAKPOINT="ray.util.rpdb", RAY_AUTH_MODE="token"),
            "shutdown": lambda **_: cluster.at_end(), "nodes": lambda: cluster.at_look() or [BOX],
        }.items():  # fmt: skip
            monkeypatch.setattr(ray, name, call)
        yield cluster


@pytest.mark.parametrize(
    ("device", "resources", "reason"),
    [
        ("cpu", {}, ""),
        ("cuda", {}, ""),
        ("cuda", {"cuda": {"GPU": 2}}, ""),
        ("cuda", {"cuda": {"GPU": 3}}, "no node of the Ray cluster has GPU 3 (box (123456): CPU 8, GPU 2)"),
        ("cpu", {"cpu": {"slot": 1}}, "no node of the Ray cluster has slot 1"),
        ("mps", {}, "unknown device 'mps': map it with RayExecutor(resources={'mps': ...})"),
    ],
)
def test_a_device_is_there_if_a_node_has_its_resources(cluster, device, resources, reason):
    missing = cluster.executor(resources=resources).missing(device)

    assert (reason in missing) if reason else (missing == "")


@pytest.mark.parametrize(
    ("options", "lanes"),
    [
        ({}, 1),
        ({"jobs": 3}, 3),
        ({"jobs": "auto", "runs_per_device": 3, "resources": {"cpu": {"slot": 1}}}, 14),
    ],
)
def test_lanes_are_what_the_cluster_has_room_for(cluster, options, lanes):
    assert cluster.executor(**options).num_lanes(RUNS * 9) == lanes  # 8 CPUs for "meta", 2 GPUs for 3 runs each


@pytest.mark.parametrize(("times", "is_finished"), [(1, True), (2, False)])
def test_ctrl_c_waits_until_ray_is_shut_down_unless_it_comes_again(cluster, monkeypatch, times, is_finished):
    before, finished, variables = signal.getsignal(signal.SIGINT), [], dict(os.environ)
    monkeypatch.setattr(os, "environ", dict(os.environ))

    def shut_down():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        finished.append(True)

    cluster.at_end = shut_down

    with pytest.raises(KeyboardInterrupt):
        cluster.executor().missing("cpu")

    assert (bool(finished), signal.getsignal(signal.SIGINT)) == (is_finished, before)
    assert dict(os.environ) == variables


def test_a_second_grid_is_refused_while_a_grid_uses_ray_whose_variables_end_with_it(cluster, tmp_path):
    refused, before = [], dict(os.environ)

    def second():
        with pytest.raises(DeviceError, match="another grid of this process uses Ray: wait for its end"):
            RayExecutor().prepare(complete, tmp_path)
        refused.append(os.environ["PYTHONBREAKPOINT"])

    cluster.at_look = second
    cluster.executor().missing("cpu")
    RayExecutor().prepare(complete, tmp_path)

    assert refused == ["ray.util.rpdb"]
    assert dict(os.environ) == before


def test_devices_addresses_and_functions_that_cannot_be_used_are_refused_at_once(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{free.getsockname()[1]}"
    lock, before = threading.Lock(), time.monotonic()

    with pytest.raises(GridError, match="got 'cuda:1': write 'cuda'"):
        RayExecutor().missing("cuda:1")
    for address in ("ray://host:10001", "host", "host:port"):
        with pytest.raises(InvalidArgumentError, match=r"is 'auto' or host:port"):
            RayExecutor(address=address).missing("cpu")
    with pytest.raises(DeviceError, match=f"no Ray cluster answers at '{nowhere}': start one"):
        RayExecutor(address=nowhere).missing("cpu")
    with pytest.raises(GridError, match=r"cannot be sent to a worker process .*_thread.lock"):
        RayExecutor().prepare(lambda *_: lock, tmp_path)

    assert time.monotonic() - before < 5


# On this machine


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_runs_that_die_hang_or_find_no_room_harm_themselves_alone():
    def work(run, report):
        if run.lr == 0.2:
            report(EpochRecord(3, {"loss": 1.0}))
            time.sleep(2)  # so that both are on their way
            os.kill(os.getpid(), signal.SIGKILL)
        if run.lr == 0.3:
            time.sleep(100)
        return COMPLETED

    outcomes = execute(work, timeout=5)
    (homeless,) = execute(complete, runs=RUNS[:1], resources={"cpu": {"slot": 1}}).values()

    assert outcomes[0.1] == COMPLETED
    assert outcomes[0.2].status is Status.KILLED
    assert "its process on node " in outcomes[0.2].error
    assert outcomes[0.2].error.endswith(" died after epoch 3")
    assert (outcomes[0.3].status, outcomes[0.3].error[:19]) == (Status.HUNG, "no progress for 5 s")
    assert (homeless.status, homeless.error) == (Status.UNAVAILABLE, "no node has room for device 'cpu'")


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_runs_are_executed_side_by_side_in_processes_of_their_own_and_what_they_print_is_said(tmp_path):
    def work(run, _report):
        print("one\ntwo", run.lr)  # noqa: T201
        print("three", file=sys.stderr, end="")  # noqa: T201
        (tmp_path / f"{run.lr}").touch()
        until = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        seen, os.environ["LEFT_BEHIND"] = os.environ.get("LEFT_BEHIND", ""), "yes"
        return Outcome(Status.COMPLETED, seen, os.getpid())

    watch = Told()
    outcomes = execute(work, watch, jobs=2)

    assert {0, 1} == set(watch.lanes)
    assert {outcome.error for outcome in outcomes.values()} == {""}  # settings that a run changed end with it
    assert len({outcome.epochs for outcome in outcomes.values()}) == 3
    said = [str(event[0]) for event in watch.seen]
    for lr in (0.1, 0.2, 0.3):
        assert [line for line in said if line.startswith(f"{lr}")] == [
            f"{lr}: one", f"{lr}: two {lr}", f"{lr}: three",
        ]  # fmt: skip


GRID = """
import sys, time
from runmanager import run_grid

def train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(1000):
            manager.track_loss(run.lr, 1)
            if epoch == 2:
                print("begun", flush=True)
            time.sleep(0.1)

outcome = run_grid({"lr": [0.1, 0.2]}, train, experiment="e", executor="ray", tensorboard=False)
sys.exit(outcome.exit_code)
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_grid_and_the_ray_that_it_started(tmp_path):
    (tmp_path / "main.py").write_text(textwrap.dedent(GRID))
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "MARK": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "main.py"], cwd=tmp_path, env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        shown = ""
        while "begun" not in shown and (line := process.stdout.readline()):
            shown += line
        before = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        shown += process.stdout.read()
    seconds = time.monotonic() - before

    assert process.returncode == 130, shown
    assert seconds < 30
    assert "Traceback" not in shown
    assert "1 interrupted · 1 pending" in shown
    wait_until(lambda: not list(processes_of(tmp_path)), 30)  # Ray's processes notice one after the other


def processes_of(folder):
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MARK={folder}".encode() in path.read_bytes():
                yield path.parent.name
        except OSError:
            continue

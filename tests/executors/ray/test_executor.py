import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from runmanager import GridError, RayExecutor, RunBuilder
from runmanager.core.contracts import uncommitted
from runmanager.core.outcome import Outcome, Status
from runmanager.errors import DeviceError, InvalidArgumentError, MissingExtraError
from runmanager.executors import BatchProgress
from runmanager.executors.ray import connected

RUNS = RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3]})
COMPLETED = Outcome(Status.COMPLETED)
GPU_BOX = pytest.importorskip("runmanager.executors.ray_runs").Node(
    "box (id)", {"CPU": 8.0, "GPU": 2.0, "memory": 1e9}
)


class Watcher:
    """Notes what it is told."""

    def __init__(self):
        self.said: list[str] = []
        self.lanes: list[int] = []
        self.is_stopping = False

    def run_started(self, _run, lane, _device):
        self.lanes.append(lane)

    def run_progressed(self, run, news):
        """Forget it."""

    def stopping(self):
        self.is_stopping = True

    def run_printed(self, run, line):
        self.said.append(f"{run.lr}: {line}")

    def last_output(self, run):
        return ""

    def say(self, line):
        self.said.append(line)


def executor_on(nodes, **options):
    executor = RayExecutor(**options)
    executor._nodes = nodes
    return executor


def complete(run, report):
    return COMPLETED


def execute(work, watch=None, runs=RUNS, **options):
    outcomes = RayExecutor(**options).execute(deque(runs), work, watch or Watcher())
    return {run.lr: outcome for run, outcome in outcomes}


def test_ray_is_not_imported_before_it_is_needed():
    script = "import sys; from runmanager import RayExecutor; RayExecutor(); print('ray' in sys.modules)"

    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert shown.stdout == "False\n"


def test_a_missing_ray_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(
        MissingExtraError, match=r"RayExecutor needs ray: pip install 'torch-runmanager\[ray\]'"
    ):
        RayExecutor()


@pytest.mark.parametrize(("times", "finished"), [(1, True), (2, False)])
def test_ctrl_c_waits_until_ray_is_shut_down_unless_it_comes_again(monkeypatch, times, finished):
    ray, said = pytest.importorskip("ray"), []

    def shut_down():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        said.append("finished")

    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", shut_down)
    before = signal.getsignal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), connected(None):
        assert said == []

    assert (bool(said), signal.getsignal(signal.SIGINT)) == (finished, before)


@pytest.mark.parametrize(
    ("device", "options", "reason"),
    [
        ("cpu", {}, ""),
        ("cuda", {}, ""),
        ("cuda", {"resources": {"cuda": {"GPU": 2}}}, ""),
        (
            "cuda",
            {"resources": {"cuda": {"GPU": 3}}},
            "no node of the Ray cluster has GPU 3 (box (id): CPU 8, GPU 2)",
        ),
        ("cpu", {"resources": {"cpu": {"slot": 1}}}, "no node of the Ray cluster has slot 1"),
        ("mps", {}, "unknown device 'mps': map it with RayExecutor(resources={'mps': ...})"),
    ],
)
def test_a_device_is_there_if_a_node_has_its_resources(device, options, reason):
    missing = executor_on([GPU_BOX], **options).missing(device)

    assert (reason in missing) if reason else (missing == "")


def test_a_device_with_a_number_is_refused():
    with pytest.raises(GridError, match="Ray chooses which cuda device a run gets, got 'cuda:1': write 'cuda'"):
        RayExecutor().missing("cuda:1")


@pytest.mark.parametrize(
    ("options", "lanes"),
    [
        ({}, 1),
        ({"jobs": 3}, 3),
        ({"jobs": "auto", "runs_per_device": 3, "resources": {"cpu": {"slot": 1}}}, 14),
    ],
)
def test_lanes_are_what_the_cluster_has_room_for(options, lanes):
    executor = executor_on([GPU_BOX], **options)  # 8 CPUs for "meta", 2 GPUs for 3 runs each

    assert executor.num_lanes(RUNS * 9) == lanes


@pytest.mark.parametrize("address", ["ray://host:10001", "host", "host:port"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(InvalidArgumentError, match=r"is 'auto' or host:port"):
        RayExecutor(address=address).missing("cpu")


def test_a_cluster_that_does_not_answer_is_refused_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    before = time.monotonic()

    with pytest.raises(DeviceError, match=f"no Ray cluster answers at '127.0.0.1:{port}': start one with"):
        RayExecutor(address=f"127.0.0.1:{port}").missing("cpu")

    assert time.monotonic() - before < 5


def test_the_variables_that_ray_sets_end_with_the_grid(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(
        ray, "init", lambda **_: os.environ.update(PYTHONBREAKPOINT="ray.util.rpdb", RAY_AUTH_MODE="token")
    )
    before = dict(os.environ)

    with connected(None):
        assert os.environ["PYTHONBREAKPOINT"] == "ray.util.rpdb"

    assert dict(os.environ) == before


def test_a_function_that_cannot_be_sent_is_refused(tmp_path):
    lock = threading.Lock()

    with pytest.raises(GridError, match=r"cannot be sent to a worker process .*_thread.lock"):
        RayExecutor().prepare(lambda *_: lock, tmp_path)


def test_a_second_grid_of_the_process_is_refused_while_a_grid_uses_ray(monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    refused = []

    def second():
        with pytest.raises(DeviceError, match="another grid of this process uses Ray: wait for its end"):
            RayExecutor().prepare(complete, tmp_path)
        refused.append(True)
        raise KeyboardInterrupt  # ends the first grid

    monkeypatch.setattr("runmanager.executors.ray_runs.living_nodes", second)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(KeyboardInterrupt):
        RayExecutor(address=f"127.0.0.1:{server.getsockname()[1]}").missing("cpu")

    assert refused
    RayExecutor().prepare(complete, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
class TestOnThisMachine:
    def test_a_process_that_dies_harms_its_own_run_alone(self):
        def work(run, report):
            if run.lr == 0.2:
                report(BatchProgress(3, 4))
                time.sleep(2)  # so that both are on their way
                os.kill(os.getpid(), signal.SIGKILL)
            return COMPLETED

        outcomes = execute(work)

        killed = outcomes.pop(0.2)
        assert killed.status is Status.KILLED
        assert killed.error.startswith("its process on node ")
        assert killed.error.endswith(" died in epoch 3, step 4")
        assert outcomes == {0.1: COMPLETED, 0.3: COMPLETED}

    def test_a_run_that_hangs_is_ended(self):
        def work(run, report):
            if run.lr == 0.2:
                time.sleep(100)
            return COMPLETED

        outcomes = execute(work, timeout=3)

        hung = outcomes.pop(0.2)
        assert (hung.status, hung.error) == (Status.HUNG, "no progress for 3 s, so it was stopped")
        assert outcomes == {0.1: COMPLETED, 0.3: COMPLETED}

    def test_runs_are_executed_side_by_side_if_that_is_wanted(self, tmp_path):
        def work(run, report):
            print("begun")  # noqa: T201
            (tmp_path / f"{run.lr}").touch()
            until = time.monotonic() + 60
            while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            return COMPLETED

        watch = Watcher()
        outcomes = execute(work, watch, RUNS[:2], jobs=2)

        assert outcomes == {0.1: COMPLETED, 0.2: COMPLETED}
        assert sorted(watch.lanes) == [0, 1]
        assert {*watch.said} == {"0.1: begun", "0.2: begun"}

    def test_what_a_run_prints_is_said(self):
        def work(run, report):
            print("one\ntwo", run.lr)  # noqa: T201
            print("three", file=sys.stderr, end="")  # noqa: T201
            return COMPLETED

        watch = Watcher()
        execute(work, watch, RUNS[:1])

        assert watch.said == ["0.1: one", "0.1: two 0.1", "0.1: three"]

    def test_an_exception_that_cannot_be_sent_passes_through_as_text(self):
        def work(run, report):
            raise RuntimeError(threading.Lock())

        with pytest.raises(RuntimeError, match=r"RuntimeError: <unlocked _thread.lock"):
            execute(work)

    @pytest.mark.parametrize("lock", ["", "of another grid"])
    def test_a_node_without_the_folder_fails_its_runs(self, monkeypatch, tmp_path, lock):
        if lock:
            (tmp_path / "holder.json").write_text(lock)
        executor = RayExecutor()
        executor.prepare(complete, tmp_path)
        monkeypatch.setattr("runmanager.executors.ray_runs.lock_of", lambda _: "of this grid")  # in the driver

        ((_, outcome),) = executor.execute(deque(RUNS[:1]), complete, Watcher())

        assert outcome.status is Status.FAILED
        assert outcome.error.endswith("it must be on storage shared by all nodes")

    def test_a_run_that_no_node_has_room_for_is_unavailable(self):
        outcomes = execute(complete, runs=RUNS[:1], resources={"cpu": {"slot": 1}})

        reason = "no node has room for device 'cpu'"
        assert outcomes == {0.1: uncommitted(Status.UNAVAILABLE, reason)}

    def test_ctrl_c_lets_a_run_end_as_interrupted_at_its_next_report(self, tmp_path, monkeypatch):
        monkeypatch.setattr("runmanager.executors.ray_runs._STOP_S", 60)  # a busy machine may take longer

        def work(run, report):
            try:
                (tmp_path / "begun").touch()
                while True:
                    report(BatchProgress(1, 1))
            except KeyboardInterrupt:
                (tmp_path / "interrupted").touch()
                raise

        def interrupt():
            while not (tmp_path / "begun").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        watch = Watcher()
        thread = threading.Thread(target=interrupt, daemon=True)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            execute(work, watch)
        thread.join()

        assert watch.is_stopping
        assert (tmp_path / "interrupted").exists()


@pytest.mark.slow
def test_ctrl_c_ends_a_grid_and_the_ray_that_it_started(tmp_path):
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
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
        """)
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path.cwd()),
        "MARK": str(tmp_path),
    }
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(
        [sys.executable, "main.py"], cwd=tmp_path, env=environment, start_new_session=True, **options
    ) as process:
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
    deadline = time.monotonic() + 30
    while (left := list(processes_of(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.1)  # Ray's processes notice one after the other
    assert left == []


def processes_of(folder):
    """Find processes by the environment that they were given."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MARK={folder}".encode() in path.read_bytes():
                yield path.parent.name
        except OSError:
            continue


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_process_whose_settings_a_run_changed_gets_no_other_run():
    def work(run, _report):
        seen = os.environ.get("LEFT_BEHIND", "")
        os.environ["LEFT_BEHIND"] = "yes"
        return Outcome(Status.COMPLETED, f"{run.lr} {os.getpid()} {seen}")

    outcomes = execute(work)

    words = [outcome.error.split() for outcome in outcomes.values()]
    assert sorted(word[0] for word in words) == ["0.1", "0.2", "0.3"]
    assert len({word[1] for word in words}) == 3
    assert [word[2:] for word in words] == [[], [], []]

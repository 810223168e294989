"""The lanes of a machine whose accelerators fill, die, hang and come back."""

import multiprocessing
import os
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runmanager import GridError, RunBuilder, run_grid
from runmanager.core.outcome import Outcome, Status
from runmanager.executors import lanes
from runmanager.executors.lane import Lane
from runmanager.executors.lanes import LanesExecutor
from tests import accelerators
from tests.accelerators import DEAD, FULL, HANGS, NO_HANDLE, WELL, Machine, installed
from tests.border.test_executors import Watcher

GIB = 2**30


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "devices").mkdir()
    return Machine(tmp_path / "devices", count=2)


@pytest.fixture
def quick(monkeypatch):
    """Probe again after a fraction of a second, and look at once whether it is time."""
    monkeypatch.setattr(lanes, "_PAUSE_S", 0.2)
    monkeypatch.setattr(lanes, "_TICK_S", 0.05)


class Said(Watcher):
    def run_started(self, run, lane, device):
        self.seen.append((run, lane, device))

    @property
    def lines(self):
        return [event[0] for event in self.seen if len(event) == 1]


def execute(machine, devices, work, watch=None, **options):
    """Execute a run per device; return the outcome of each, in their order."""
    runs = deque(RunBuilder.get_runs({("number", "device"): list(enumerate(devices))}))
    with installed(machine):
        executor = LanesExecutor(**options)
        outcomes = list(executor.execute(runs, machine.on(work), watch or Said()))
    return [outcome for _, outcome in sorted(outcomes, key=lambda pair: pair[0].number)]


def named(run, _report):
    """Compute something; say in which process, and where."""
    torch.ones(3, device=run.device).sum().item()
    return Outcome(Status.COMPLETED, multiprocessing.current_process().name, os.getpid())


@pytest.mark.slow
def test_lanes_stay_warm_when_devices_alternate(machine):
    outcomes = execute(machine, ["cuda", "cpu"] * 4, named)

    assert [outcome.status for outcome in outcomes] == [Status.COMPLETED] * 8
    assert len({outcome.epochs for outcome in outcomes}) == 2


@pytest.mark.slow
def test_cuda_is_any_device_and_a_number_means_that_one(machine):
    outcomes = execute(machine, [*["cuda"] * 6, "cuda:1", "cpu"], slowly_named, jobs=3)

    devices = [outcome.error.rpartition(": ")[2] for outcome in outcomes]
    assert set(devices[:6]) == {"cuda:0", "cuda:1"}
    assert devices[6:] == ["cuda:1", "cpu"]


def slowly_named(run, report):
    time.sleep(0.1)
    return named(run, report)


@pytest.mark.slow
def test_runs_of_one_lane_say_so_whatever_their_device(machine):
    watch = Said()

    execute(machine, ["cuda:0", "cuda:1", "cpu"] * 2, named, watch)

    assert {event[1] for event in watch.seen if len(event) == 3} == {0}


@pytest.mark.slow
def test_more_lanes_of_a_device_than_one_make_room_for_others(machine):
    outcomes = execute(machine, ["cpu", "cpu", "cuda", "cuda", "cpu"], counting_lanes, jobs=2)

    assert [outcome.status for outcome in outcomes] == [Status.COMPLETED] * 5
    assert outcomes[-1].epochs == 3  # one of the cpu, and those of the last two runs on a GPU


def counting_lanes(run, _report):
    """Return the number of processes that have executed a run and are alive."""
    assert accelerators._here
    folder = accelerators._here.machine.folder
    (folder / f"lane.{os.getpid()}").touch()
    time.sleep(0.3)
    alive = [path for path in folder.glob("lane.*") if Path(f"/proc/{path.suffix[1:]}").exists()]
    return Outcome(Status.COMPLETED, "", len(alive))


def filling(run, _report):
    """Take all memory of the device until two other processes have tried to begin on it."""
    assert accelerators._here
    machine = accelerators._here.machine
    began_before = machine.folder / "began before the memory was taken"
    if run.number:
        began_before.touch()
    else:
        free, _ = torch.accelerator.get_memory_info()
        held = torch.empty(free, dtype=torch.uint8, device=run.device)
        wait_for(lambda: machine.starts(0) >= 3 or began_before.exists())  # one of them has been refused
        del held
        return named(run, _report)
    return Outcome(Status.COMPLETED, multiprocessing.current_process().name, os.getpid())


@pytest.mark.slow
def test_runs_wait_while_one_of_ours_fills_their_device(machine, quick, monkeypatch):
    monkeypatch.setattr(lanes, "_MOST_PROBES_OF_FULL", 3)  # of a device that others fill

    outcomes = execute(machine, ["cuda:0"] * 3, filling, jobs=2, runs_per_device=2)

    assert [(str(outcome.status), outcome.error.rpartition(" ")[2]) for outcome in outcomes] == [
        ("completed", "cuda:0")
    ] * 3


def wait_for(is_so):
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "why"),
    [(FULL, "CUDA out of memory. Tried to allocate "), (NO_HANDLE, NO_HANDLE)],
    ids=["no memory", "no handle"],
)
def test_runs_wait_for_a_device_that_others_fill_for_a_while(machine, quick, state, why):
    machine.set(0, state)
    made_room = []

    class Waiting(Said):
        def say(self, line):
            super().say(line)
            machine.set(0, WELL)
            made_room.append(line)

    watch = Waiting()
    outcomes = execute(machine, ["cuda:0", "cpu", "cuda:0"], named, watch)

    assert [str(outcome.status) for outcome in outcomes] == ["completed"] * 3
    assert len(made_room) == 1
    assert made_room[0].startswith(f"! cuda:0 is full ({why}")


@pytest.mark.slow
def test_a_device_that_stays_full_is_given_up_and_named(machine, quick, monkeypatch):
    monkeypatch.setattr(lanes, "_PAUSE_S", 0.05)
    monkeypatch.setattr(lanes, "_MOST_PROBES_OF_FULL", 3)
    machine.set(1, FULL)

    outcomes = execute(machine, ["cuda:1", "cpu", "cuda:1"], named)

    assert [str(outcome.status) for outcome in outcomes] == ["unavailable", "completed", "unavailable"]
    assert outcomes[0].error.startswith("cuda:1 is full (CUDA out of memory. Tried to allocate")
    assert machine.starts(1) == 3


@pytest.mark.slow
def test_a_dead_device_loses_its_runs_after_two_probes_and_a_pause(machine, quick, monkeypatch):
    machine.set(1, DEAD)
    passed = [0.0]
    monkeypatch.setattr(lanes, "_PAUSE_S", 1000.0)
    monkeypatch.setattr(lanes, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0]))
    num_probes = []

    class Passing(Said):
        def run_started(self, run, *_):
            num_probes.append(machine.starts(1))
            passed[0] = 1001.0

    watch = Passing()
    outcomes = execute(machine, ["cuda:1", "cuda", "cuda:1", "cuda"], named, watch)

    assert [str(outcome.status) for outcome in outcomes] == ["unavailable", "completed"] * 2
    assert outcomes[0].error == "cuda:1 stopped answering (CUDA error: unspecified launch failure)"
    assert [line for line in watch.lines if line.startswith("! cuda:1 stopped answering (CUDA error")] != []
    assert num_probes == [1, 2]


@pytest.mark.slow
def test_a_device_that_comes_back_is_used(machine, quick, monkeypatch):
    monkeypatch.setattr(lanes, "_PAUSE_S", 1.0)
    machine.set(0, DEAD)
    tried = []

    class Healing(Said):
        def run_started(self, run, *_):
            tried.append(run)
            machine.set(0, WELL)  # between the first probe and the second

    outcomes = execute(machine, ["cuda:0", "cpu"], named, Healing(), jobs=2)

    assert [str(outcome.status) for outcome in outcomes] == ["completed"] * 2
    assert len(tried) == 2


@pytest.mark.slow
def test_a_device_that_hangs_while_a_lane_binds_is_given_up(machine, quick, monkeypatch):
    monkeypatch.setattr(lanes, "_BIND_S", 8.0)
    machine.set(1, HANGS)

    outcomes = execute(machine, ["cuda:1", "cuda:0", "cuda:1"], named, timeout=0.5)

    assert [str(outcome.status) for outcome in outcomes] == ["unavailable", "completed", "unavailable"]
    assert outcomes[0].error == "cuda:1 stopped answering (no answer for 8 s)"


def failing(run, report):
    if run.number == 0:
        torch.ones(3, device=run.device)
        accelerators.fail_kernels()
        return Outcome(Status.FAILED, "GPU error", os.getpid())
    return named(run, report)


@pytest.mark.slow
def test_a_run_whose_device_failed_tells_its_outcome_before_its_process_ends(machine):
    outcomes = execute(machine, ["cuda:0"] * 3, failing)

    assert (str(outcomes[0].status), outcomes[0].error, outcomes[0].is_committed) == (
        "failed",
        "GPU error",
        True,
    )
    assert outcomes[0].epochs != outcomes[1].epochs == outcomes[2].epochs


def environment(run, _report):
    return Outcome(Status.COMPLETED, " ".join(os.environ.get(name, "none") for name in VARIABLES))


VARIABLES = ("CUDA_LAUNCH_BLOCKING", "OMP_WAIT_POLICY")  # conftest.py sets the second before all lanes


@pytest.mark.slow
def test_the_environment_of_a_lane_is_that_of_its_grid(machine, monkeypatch):
    before = execute(machine, ["cpu"], environment)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.delenv("OMP_WAIT_POLICY")

    after = execute(machine, ["cpu"], environment)
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING")

    assert [before[0].error, after[0].error] == ["none PASSIVE", "1 none"]
    assert execute(machine, ["cpu"], environment)[0].error == "none none"


@pytest.mark.slow
def test_a_process_that_cannot_be_ended_does_not_hold_the_grid(machine, quick, monkeypatch):
    monkeypatch.setattr(lanes, "_BIND_S", 8.0)
    monkeypatch.setattr("runmanager.executors.lane._PATIENCE_S", 0.2)
    monkeypatch.setattr(lanes, "_PATIENCE_S", 0.2)
    machine.set(1, HANGS)
    stuck: list[Any] = []

    class Undead:
        """A process that waits in the system for its device."""

        def __init__(self, process):
            self._process = process

        def kill(self):
            stuck.append(self._process)

        def __getattr__(self, name):
            return getattr(self._process, name)

    original = Lane.__init__

    def begin(lane, number, device, *arguments):
        original(lane, number, device, *arguments)
        if device == "cuda:1":
            lane.process = Undead(lane.process)
            monkeypatch.setattr("os.killpg", lambda *_: None)

    monkeypatch.setattr(Lane, "__init__", begin)
    before = time.monotonic()

    outcomes = execute(machine, ["cuda:1", "cuda:0"], named)
    took = time.monotonic() - before
    for process in stuck:
        process.kill()

    assert [str(outcome.status) for outcome in outcomes] == ["unavailable", "completed"]
    assert "cannot be ended" in outcomes[0].error
    assert took < 100
    for process in dict.fromkeys(stuck):
        process.join(10)
        assert not process.is_alive()


def width(x):
    return x * 2 + 1


def compiled_widths(run, manager):
    """Compile one function for the run's width, and say whether it was."""
    counted = torch._dynamo.utils.counters["stats"]
    function = torch.compile(width, backend="eager", dynamic=False)
    with manager.run(run):
        for _ in manager.epochs(1):
            before = counted["unique_graphs"]
            function(torch.ones(run.number + 2))
            manager.track_loss(float(counted["unique_graphs"] - before), 1)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["lanes", "inline"])
def test_every_run_of_a_warm_process_is_compiled(tmp_path, executor):
    outcome = run_grid(
        {"number": list(range(13))}, compiled_widths, experiment="exp", root=tmp_path, executor=executor,
        tensorboard=False, display=False,
    )  # fmt: skip

    assert outcome.results["loss"].tolist() == [1.0] * 13


def test_a_tensor_of_an_accelerator_is_not_sent_to_processes_of_other_devices(machine):
    with installed(machine):
        table = torch.ones(3, device="cuda:1")

        def train(run, manager):
            return table.sum()

        with pytest.raises(GridError, match=r"train cannot be sent .* \(TypeError: a tensor on cuda:1\)"):
            LanesExecutor().prepare(train, machine.folder)

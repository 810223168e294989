"""The lanes of a machine whose accelerators fill, die, hang and come back (docs/devices-and-outcomes.md)."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from functools import partial
from pathlib import Path

import pytest
import torch

from runmanager import EpochRecord, GridError, LanesExecutor, Outcome, RunBuilder, Status, run_grid
from tests import accelerators
from tests.accelerators import DEAD, FULL, HANGS, NO_HANDLE, WELL, Machine, installed
from tests.border.test_executors import Watcher

COMPLETED = ["completed"] * 3


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "devices").mkdir()
    return Machine(tmp_path / "devices", count=2)


@pytest.fixture
def quick(monkeypatch):
    """Let the clock run many times as fast, as the pauses between probes of a device take minutes."""
    begun, monotonic = time.monotonic(), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: begun + 20 * (monotonic() - begun))


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
        outcomes = list(LanesExecutor(**options).execute(runs, machine.on(work), watch or Said()))
    return [outcome for _, outcome in sorted(outcomes, key=lambda pair: pair[0].number)]


def statuses(outcomes):
    return [str(outcome.status) for outcome in outcomes]


def named(run, _report):
    """Compute something; say in which process, and where."""
    torch.ones(3, device=run.device).sum().item()
    return Outcome(Status.COMPLETED, multiprocessing.current_process().name, os.getpid())


def slowly_named(run, report):
    time.sleep(0.1)
    return named(run, report)


@pytest.mark.slow
def test_lanes_stay_warm_when_devices_alternate_and_their_runs_say_so(machine):
    watch = Said()

    outcomes = execute(machine, ["cuda:0", "cpu"] * 4, named, watch)

    assert statuses(outcomes) == ["completed"] * 8
    assert len({outcome.epochs for outcome in outcomes}) == 2
    assert {event[1] for event in watch.seen if len(event) == 3} == {0}  # one lane, whatever the device


@pytest.mark.slow
def test_cuda_is_any_device_and_a_number_means_that_one(machine):
    outcomes = execute(machine, [*["cuda"] * 6, "cuda:1", "cpu"], slowly_named, jobs=3)

    devices = [outcome.error.rpartition(": ")[2] for outcome in outcomes]
    assert set(devices[:6]) == {"cuda:0", "cuda:1"}
    assert devices[6:] == ["cuda:1", "cpu"]


def counting_lanes(run, _report):
    """Wait for the run beside, and return the number of processes that have executed a run and are alive."""
    assert accelerators._here
    folder = accelerators._here.machine.folder
    (folder / f"lane.{os.getpid()}").touch()
    (folder / f"run.{run.number}").touch()
    wait_until(lambda: run.number == 4 or (folder / f"run.{run.number ^ 1}").exists())
    alive = [path for path in folder.glob("lane.*") if Path(f"/proc/{path.suffix[1:]}").exists()]
    return Outcome(Status.COMPLETED, "", len(alive))


def wait_until(is_so):
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
def test_more_lanes_of_a_device_than_one_make_room_for_others(machine):
    outcomes = execute(machine, ["cpu", "cpu", "cuda", "cuda", "cpu"], counting_lanes, jobs=2)

    assert statuses(outcomes) == ["completed"] * 5
    assert outcomes[-1].epochs == 3  # one of the cpu, and those of the last two runs on a GPU


def filling(run, report):
    """Take all memory of the device until two other processes have tried to begin on it."""
    assert accelerators._here
    machine = accelerators._here.machine
    began_before = machine.folder / "began before the memory was taken"
    given_back = machine.folder / "memory was given back"
    if run.number:
        began_before.touch()
        wait_until(given_back.exists)
        return named(run, report)
    free, _ = torch.accelerator.get_memory_info()
    held = torch.empty(free, dtype=torch.uint8, device=run.device)
    wait_until(lambda: machine.starts(0) >= 3 or began_before.exists())  # one of them has been refused
    del held
    given_back.touch()
    return named(run, report)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_runs_wait_while_one_of_ours_fills_their_device(machine):
    outcomes = execute(machine, ["cuda:0"] * 3, filling, jobs=2, runs_per_device=2)

    assert statuses(outcomes) == COMPLETED
    assert {outcome.error.rpartition(" ")[2] for outcome in outcomes} == {"cuda:0"}


class Changing(Said):
    """Lets a device be well as soon as something is said, or a run is started."""

    def __init__(self, machine, at):
        super().__init__()
        self.machine, self.at = machine, at

    def say(self, line):
        super().say(line)
        if self.at == "line":
            self.machine.set(0, WELL)

    def run_started(self, run, lane, device):
        super().run_started(run, lane, device)
        if self.at == "start":
            self.machine.set(0, WELL)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("state", "at", "said"),
    [
        (FULL, "line", ["! cuda:0 is full (CUDA out of memory. Tried to allocate"]),
        (NO_HANDLE, "line", [f"! cuda:0 is full ({NO_HANDLE}"]),
        (DEAD, "start", []),  # between the first probe and the second
    ],
    ids=["no memory", "no handle", "dead"],
)
def test_runs_wait_for_a_device_that_others_fill_for_a_while_or_that_comes_back(machine, state, at, said):
    machine.set(0, state)
    watch = Changing(machine, at)

    outcomes = execute(machine, ["cuda:0", "cpu", "cuda:0"], named, watch, jobs=2)

    assert statuses(outcomes) == COMPLETED
    assert [line[: len(start)] for line, start in zip(watch.lines, said, strict=True)] == said


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("state", "num_probes", "why"),
    [
        (FULL, 8, "cuda:1 is full (CUDA out of memory. Tried to allocate"),
        (DEAD, 2, "cuda:1 stopped answering (CUDA error: unspecified launch failure)"),
    ],
    ids=["full", "dead"],
)
def test_a_device_that_stays_as_it_is_loses_its_runs_after_some_probes(machine, state, num_probes, why):
    machine.set(1, state)
    watch = Said()

    outcomes = execute(machine, ["cuda:1", "cuda", "cuda:1"], named, watch)

    assert statuses(outcomes) == ["unavailable", "completed", "unavailable"]
    assert outcomes[0].error.startswith(why)
    assert machine.starts(1) == num_probes
    assert [line for line in watch.lines if line.startswith(f"! {why}") and "no further run" in line]


class Jumping(Said):
    """Lets the clock jump each time that a process has begun to hang on the second device."""

    def __init__(self, machine, monkeypatch):
        super().__init__()
        self.machine, self.num_jumps, self.seen_at = machine, 0, 0.0
        self.monotonic = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: self.monotonic() + 130 * self.num_jumps)

    def run_progressed(self, run, news):
        if self.machine.starts(1) == self.num_jumps:
            self.seen_at = self.monotonic()
        elif self.monotonic() > self.seen_at + 1:  # its parent knows it too
            self.num_jumps += 1


def hanging_around(run, report, num_hanging=2):
    """Report until so many processes have hung, or for a time."""
    assert accelerators._here
    since, last = time.monotonic(), 0
    for epoch in range(1, 1000):
        if run.device != "cpu":
            break
        report(EpochRecord(epoch, {}))
        time.sleep(0.05)
        if accelerators._here.machine.starts(1) < num_hanging and time.monotonic() < since + 60:
            last = epoch
        elif epoch > last + 80:
            break
    return named(run, report)


@pytest.mark.slow
@pytest.mark.parametrize("is_reached", [True, False])
def test_a_device_that_hangs_while_a_lane_binds_is_given_up_also_if_signals_do_not_end_it(
    machine, monkeypatch, is_reached
):
    """A process that waits in the system for its device is not reached by signals."""
    machine.set(1, HANGS)
    stuck: set[int] = set()

    def reaching(send):
        def signal_to(pid, number):
            if number == signal.SIGKILL and (machine.folder / f"1.start.{pid}").exists():
                stuck.add(pid)
            else:
                send(pid, number)

        return signal_to

    kill = os.kill
    for name in () if is_reached else ("kill", "killpg"):
        monkeypatch.setattr(os, name, reaching(getattr(os, name)))
    work = partial(hanging_around, num_hanging=2 if is_reached else 1)
    outcomes = execute(machine, ["cuda:1", "cpu"], work, Jumping(machine, monkeypatch), jobs=2)
    for pid in stuck:
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)

    assert statuses(outcomes) == ["unavailable", "completed"]
    words = "cuda:1 stopped answering (no answer for 120 s)" if is_reached else "cannot be ended"
    assert words in outcomes[0].error
    assert bool(stuck) is not is_reached


def failing(run, report):
    if run.number == 0:
        torch.ones(3, device=run.device)
        accelerators.fail_kernels()
        return Outcome(Status.FAILED, "GPU error", os.getpid())
    return named(run, report)


@pytest.mark.slow
def test_a_run_whose_device_failed_tells_its_outcome_before_its_process_ends(machine):
    outcomes = execute(machine, ["cuda:0"] * 3, failing)

    assert (str(outcomes[0].status), outcomes[0].error) == ("failed", "GPU error")
    assert outcomes[0].epochs != outcomes[1].epochs == outcomes[2].epochs


def given_back(_run, _report):
    assert accelerators._here
    return Outcome(
        Status.COMPLETED, os.environ.get("CUDA_LAUNCH_BLOCKING", "none"), len(accelerators._here.freed)
    )


@pytest.mark.slow(everywhere=True)
def test_a_lane_gives_memory_back_after_each_run_and_has_the_environment_of_its_grid(machine, monkeypatch):
    outcomes = execute(machine, ["cuda:0"] * 3, given_back)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    outcomes += execute(machine, ["cpu"], given_back)
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING")
    outcomes += execute(machine, ["cpu"], given_back)

    assert [outcome.epochs for outcome in outcomes[:3]] == [0, 1, 2]
    assert [outcome.error for outcome in outcomes] == [*["none"] * 3, "1", "none"]


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

        with pytest.raises(GridError, match=r"cannot be sent .*a tensor on cuda:1"):
            run_grid({"lr": [1]}, train, experiment="e", root=machine.folder, executor="lanes", display=False)

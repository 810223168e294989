"""The executor "lanes": worker processes of this machine, and what they share with this process."""

import contextlib
import multiprocessing
import os
import signal
import sys
import textwrap
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from runmanager import EpochRecord, GridError, LanesExecutor, Outcome, RunBuilder, Status, run_grid
from tests import accelerators
from tests.accelerators import DEAD, FULL, HANGS, NO_HANDLE, WELL, installed
from tests.border.experiments import complete
from tests.border.test_executors import Watcher
from tests.border.work import line_with, wait_until
from tests.nightly import of_night_but

FAULTS = ("memory", "segfault", "exit", "hang", "raise", "nan", "nowhere")
LANES: dict[str, Any] = {"executor": "lanes", "display": False, "tensorboard": False}
COMPLETED = Outcome(Status.COMPLETED, "", 1)
IS_FORKED = sys.platform == "linux"


def execute(work, num_runs=1, watch=None, **options):
    runs = deque(RunBuilder.get_runs({"lr": list(range(num_runs))}))
    return [outcome for _, outcome in LanesExecutor(**options).execute(runs, work, watch or Watcher())]


def run_script(warm, tmp_path, script, *arguments, forks_lanes=True):
    """Execute a program as a user does; return the last line that it printed."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    done = warm.execute(path, str(tmp_path / "runs"), *arguments, forks_lanes=forks_lanes)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


# Faults


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


@pytest.mark.slow
def test_faults_of_seven_kinds_harm_only_their_own_runs_and_are_named(tmp_path):
    faults = [*FAULTS, *[""] * 5]
    devices = ["cuda:99" if fault == "nowhere" else "cpu" for fault in faults]
    grid = {("number", "fault", "device"): list(zip(range(12), faults, devices, strict=True))}

    outcome = run_grid(grid, train, experiment="exp", root=tmp_path, jobs=3, timeout=5, **LANES)

    ended = {row.fault: (row.status, str(row.error)) for row in outcome.runs.itertuples() if row.fault}
    raised, allocated = line_with('raise ValueError("no")'), line_with("torch.empty(1 << 50)")
    for fault, (status, words) in {
        "memory": ("out of memory", f"in epoch 2, {allocated}"), "segfault": ("killed", "segmentation fault"),
        "exit": ("killed", "exit code 3"), "hang": ("hung", "no progress for 5 s"),
        "raise": ("failed", f"ValueError: no (in epoch 2, {raised})"),
        "nan": ("diverged", "loss became nan"), "nowhere": ("unavailable", "cuda:99"),
    }.items():  # fmt: skip
        assert ended[fault][0] == status
        assert words in ended[fault][1]
    logs = [path.read_text() for path in tmp_path.glob("exp/*/error.log")]
    for words in ("no progress for", "segmentation fault"):
        assert any(words in log and "in meet" in log for log in logs)  # the stacks of its threads
    assert outcome.runs["status"].tolist()[7:] == ["completed"] * 5
    assert outcome.exit_code == 1


def work_of_outputs(run, _report):
    """Close the output in the first run, write without an end in the second."""
    if run.lr == 0:
        sys.stdout.close()
        os.close(2)
    elif run.lr == 1:
        sys.stdout.write("x" * 3_000_000)
        sys.stdout.flush()
    else:
        sys.stdout.write("one\r50 %\r100 %\ntwo\n")
    return COMPLETED


def test_what_a_run_does_to_its_output_harms_no_other_and_an_endless_line_is_broken():
    watch = Watcher()
    outcomes = execute(work_of_outputs, 3, watch)

    assert outcomes == [COMPLETED] * 3
    *endless, last_but_one, last = [str(event[0]) for event in watch.seen if len(event) == 1]
    assert len(endless) > 1
    assert set("".join(endless)) == {"x"}
    assert [last_but_one, last] == ["one\r50 %\r100 %", "two"]


def forking(run, manager):
    complete(run, manager)
    if os.fork() == 0 and run.lr == 1:
        raise ValueError("in the child")


def test_a_process_that_a_run_forks_has_no_say(tmp_path):
    outcome = run_grid({"lr": [1, 2]}, forking, experiment="exp", root=tmp_path, **LANES)

    assert [str(ended.status) for _, ended in outcome.outcomes] == ["completed", "completed"]
    assert outcome.results["run"].tolist() == [1, 2]


def awaited(path):
    return wait_until(lambda: path.exists() and path.read_text(), seconds=120)


def stubborn():
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(60)


def forks_and_terminates(_run, _report):
    process = multiprocessing.get_context("fork").Process(target=stubborn)
    process.start()
    process.terminate()
    process.join(10)
    process.kill()
    return Outcome(Status.COMPLETED, str(process.exitcode), 1)


@pytest.mark.skipif(os.name == "nt", reason="Windows forks no process")
def test_a_process_that_a_run_forks_and_terminates_ends_as_one_of_any_other_process():
    assert execute(forks_and_terminates) == [Outcome(Status.COMPLETED, str(-signal.SIGTERM), 1)]


@pytest.mark.slow(everywhere=True)
def test_a_daemon_that_a_run_starts_lives_on(tmp_path):
    def work(_run, _report):
        if not os.fork():
            if not os.fork():
                time.sleep(0.5)
                (tmp_path / "lived").write_text("yes")
            os._exit(0)
        os.wait()
        awaited(tmp_path / "lived")
        return COMPLETED

    assert execute(work) == [COMPLETED]


@pytest.mark.slow
@pytest.mark.skipif(not IS_FORKED, reason="lanes are children of this process")
def test_the_end_of_a_terminal_is_left_to_the_process_that_started_the_lanes():
    def work(_run, _report):
        os.kill(os.getppid(), signal.SIGHUP)  # as to all processes that the terminal has in front
        time.sleep(0.2)
        return COMPLETED

    assert execute(work, 2) == [COMPLETED, COMPLETED]


@pytest.mark.slow
def test_news_keep_a_run_from_counting_as_hung_however_long_the_parent_was_busy():
    def work(_run, report):
        for epoch in range(1, 9):
            time.sleep(0.2)
            report(EpochRecord(epoch, {}))
        return COMPLETED

    class Busy(Watcher):
        def run_progressed(self, run, news):
            if news.epoch == 2:
                time.sleep(3.5)

    assert execute(work, watch=Busy(), timeout=3) == [COMPLETED]


STOPPED = """
    import os, time
    from pathlib import Path
    from runmanager import LanesExecutor, run_grid

    def train(run, manager):
        Path("lane").write_text(str(os.getpid()))
        with manager.run(run):
            for _ in manager.epochs(30):
                time.sleep(0.1)
                manager.track_loss(1.0, 1)

    outcome = run_grid({"lr": [1]}, train, experiment="e", executor=LanesExecutor(timeout=4))
    print(outcome.runs["status"].tolist())
"""


@pytest.mark.slow
def test_processes_that_were_all_stopped_and_continue_do_not_count_as_hung(warm, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(STOPPED))
    pids = [warm.begin(script, forks_lanes=True), int(awaited(tmp_path / "lane"))]
    time.sleep(1)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(7 if number == signal.SIGSTOP else 0)

    assert warm.wait() == 0
    assert script.with_suffix(".out").read_text().splitlines()[-1] == "['completed']"


# recorded on an H100 with torch 2.11: a batch in pinned memory is freed after a kernel has failed
ABORTED = """\
/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], \
thread: [13,0,0] Assertion `t >= 0 && t < n_classes` failed.
terminate called after throwing an instance of 'c10::AcceleratorError'
  what():  CUDA error: device-side assert triggered
frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7fa042b7305d in libc10.so)
"""
NO_MEMORY = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"


def test_the_cause_of_an_abort_is_read_from_what_cpp_printed(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(2):
                manager.track_loss(1.0, 1)
                if epoch == 2:
                    os.write(2, run.words.encode())
                    os.abort()

    outcome = run_grid({"words": [ABORTED, NO_MEMORY]}, train, experiment="e", root=tmp_path, **LANES)

    assert outcome.runs["status"].tolist() == ["failed", "out of memory"]
    (kernel, memory) = outcome.runs["error"]
    assert "epoch 1" in kernel
    assert "CUDA error: device-side assert triggered: `t >= 0 && t < n_classes` is false" in kernel
    assert "std::bad_alloc" in memory


# Threads


@pytest.mark.slow(everywhere=True)
@pytest.mark.usefixtures("usual_threads")
def test_lanes_share_the_cores_and_so_does_a_run_that_is_executed_alone_later(tmp_path):
    """So the sums of a grid are the same however it goes on: test_loops.py, tests/chaos."""
    for lrs in ([1, 2], [1, 2, 3]):
        runs = run_grid({"lr": lrs}, complete, experiment="exp", root=tmp_path, jobs=2, **LANES).runs

    assert runs["threads"].tolist() == [max(1, torch.get_num_threads() // 2)] * 3


# Programs

OF_THE_MAIN_MODULE = """
    import dataclasses, functools, sys
    import torch
    from runmanager import LanesExecutor, run_grid

    FACTOR = 3

    @dataclasses.dataclass
    class Network:
        width: int

        def size(self):
            return FACTOR * self.width

    @functools.cache
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    @functools.lru_cache(maxsize=2, typed=True)
    def data():
        return []

    def flags():
        torch.backends.cudnn.enabled_here = torch.backends.mkldnn.enabled_here = 1
        return torch.backends.cudnn.enabled_here + torch.backends.mkldnn.enabled_here

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(Network(2).size() * run.lr, 1)
                manager.track(fibonacci=fibonacci(80), flags=flags())
                manager.track(same=data() is data() and data.cache_parameters()["typed"])

    platform = sys.platform
    sys.platform = sys.argv[2] or platform  # where processes are spawned
    executor = LanesExecutor(jobs=2)
    sys.platform = platform
    outcome = run_grid({"lr": [1, 2]}, train, experiment="exp", root=sys.argv[1], executor=executor)
    results = outcome.results
    print(outcome.runs["jobs"].tolist(), results[["loss", "fibonacci", "flags", "same"]].to_numpy().tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["", "darwin"], ids=["", "spawned"])
def test_functions_and_caches_of_a_script_without_a_main_guard_reach_lanes(warm, tmp_path, platform):
    values = [23416728348467685.0, 2.0, 1.0]

    printed = run_script(warm, tmp_path, OF_THE_MAIN_MODULE, platform)

    assert printed == str([2, 2]) + " " + str([[6.0, *values], [12.0, *values]])


WITH_A_LOADER = """
    import multiprocessing, sys
    import torch
    from torch.utils.data import DataLoader, Dataset
    from runmanager import run_grid

    class Points(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.tensor([float(index)])

    def collate(points):
        return torch.stack(points)

    def train(run, manager):
        context = run.context  # a process of Ray's has the default of its own Python
        loader = DataLoader(
            Points(), batch_size=2, num_workers=2, collate_fn=collate, multiprocessing_context=context
        )
        with manager.run(run, loader=loader):
            for _ in manager.epochs(1):
                for batch in manager.batches():
                    manager.track_loss(run.lr * batch.mean(), batch)

    if __name__ == "__main__":
        if sys.argv[2]:
            multiprocessing.set_start_method(sys.argv[2])
        grid = {"lr": [2], "context": [sys.argv[2] if sys.argv[3] == "ray" else None]}
        grid = run_grid(grid, train, experiment="exp", root=sys.argv[1], executor=sys.argv[3])
        print(grid.runs[["status", "loss", "error"]].to_numpy().tolist())
"""


# the default, that from Python 3.14 on, of Linux, and that of the other systems
WAYS = [
    ("", "lanes"), ("forkserver", "lanes"), ("forkserver", "inline"), ("forkserver", "ray"),
    ("spawn", "lanes"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("way", of_night_but(WAYS, WAYS[:2]), ids=" ".join)
def test_the_workers_of_a_loader_get_a_data_set_of_the_script_however_they_begin(warm, tmp_path, way):
    printed = run_script(warm, tmp_path, WITH_A_LOADER, *way, forks_lanes=not way[0])

    assert printed == "[['completed', 3.0, '']]"


LEAVING_NO_TRACE = """
    import multiprocessing, os, pickle, resource, sys, threading, time
    from runmanager import run_grid

    class Own:
        pass

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(1.0, 1)

    def pickle_until(is_done, problems):
        while not is_done.wait(0.001) and not problems:
            try:
                pickle.dumps(Own)
            except pickle.PicklingError as error:
                problems.append(error)

    def execute(number):
        grid = run_grid({"lr": [1]}, train, experiment=f"e{number}", root=sys.argv[1], display=False)
        codes.append(grid.exit_code)

    if __name__ == "__main__":
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        files = [open(os.devnull) for _ in range(1100)]
        is_done, problems, codes, main = threading.Event(), [], [], sys.modules["__main__"]
        threads = [threading.Thread(target=execute, args=(number,)) for number in range(2)]
        pickling = threading.Thread(target=pickle_until, args=(is_done, problems))
        for thread in (pickling, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        is_done.set()
        pickling.join()
        own = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(100,))
        own.start()
        own.terminate()
        own.join(30)
        print(codes, problems, sys.modules["__main__"] is main, own.exitcode)
"""


@pytest.mark.skipif(not IS_FORKED, reason="another way to start processes")
@pytest.mark.slow
def test_grids_in_lanes_leave_no_trace_in_the_process_and_its_other_threads(warm, tmp_path):
    assert run_script(warm, tmp_path, LEAVING_NO_TRACE) == "[0, 0] [] True -15"


WITH_SLOW_WORKERS = """
import os, time
from pathlib import Path
from torch.utils.data import DataLoader
from runmanager import run_grid

def write_pid(name):
    Path(f"{name}").write_text(str(os.getpid()))

def write_pid_and_be_slow(number):
    write_pid(number)
    time.sleep(3)  # a worker that sees only then whose child it is waits for orders of that one

def train(run, manager):
    write_pid("lane")
    list(DataLoader(range(4), num_workers=1, worker_init_fn=write_pid_and_be_slow))

os.setpgid(0, 0)  # as a shell does
run_grid({"lr": [1]}, train, experiment="exp", display=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kills_group", [True, False])  # as kill %1 does
def test_a_lane_dies_with_its_parent_and_so_do_new_processes_of_its_loaders(warm, tmp_path, kills_group):
    (tmp_path / "program.py").write_text(WITH_SLOW_WORKERS)
    parent = warm.begin(tmp_path / "program.py", forks_lanes=True)
    pids = [int(awaited(tmp_path / name)) for name in ("0", "lane")]
    os.killpg(parent, signal.SIGKILL) if kills_group else os.kill(parent, signal.SIGKILL)

    assert warm.wait() == -signal.SIGKILL
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), seconds=30)


# Accelerators that fill, die, hang and come back (docs/devices-and-outcomes.md)


@pytest.fixture
def quick(monkeypatch):
    """Let the clock run many times as fast, as the pauses between probes of a device take minutes."""
    begun, monotonic = time.monotonic(), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: begun + 20 * (monotonic() - begun))


class Said(Watcher):
    """Notes lanes, devices and lines, and does something at each line, or at each start of a run."""

    def __init__(self, at_line=list, at_start=list):
        super().__init__()
        self.at_line, self.at_start = at_line, at_start

    def run_started(self, run, lane, device):
        self.seen.append((run, lane, device))
        self.at_start()

    def say(self, line):
        super().say(line)
        self.at_line()

    @property
    def lines(self):
        return [event[0] for event in self.seen if len(event) == 1]


def execute_on(machine, devices, work, watch=None, **options):
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

    outcomes = execute_on(machine, ["cuda:0", "cpu"] * 4, named, watch)

    assert statuses(outcomes) == ["completed"] * 8
    assert len({outcome.epochs for outcome in outcomes}) == 2
    assert {event[1] for event in watch.seen if len(event) == 3} == {0}  # one lane, whatever the device


@pytest.mark.slow
def test_cuda_is_any_device_and_a_number_means_that_one(machine):
    outcomes = execute_on(machine, [*["cuda"] * 6, "cuda:1", "cpu"], slowly_named, jobs=3)

    devices = [outcome.error.rpartition(": ")[2] for outcome in outcomes]
    assert set(devices[:6]) == {"cuda:0", "cuda:1"}
    assert devices[6:] == ["cuda:1", "cpu"]


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
    outcomes = execute_on(machine, ["cuda:0"] * 3, filling, jobs=2, runs_per_device=2)

    assert statuses(outcomes) == ["completed"] * 3
    assert {outcome.error.rpartition(" ")[2] for outcome in outcomes} == {"cuda:0"}


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("state", "at", "said"),
    [
        (FULL, "at_line", ["! cuda:0 is full (CUDA out of memory. Tried to allocate"]),
        (NO_HANDLE, "at_line", [f"! cuda:0 is full ({NO_HANDLE}"]),
        (DEAD, "at_start", []),  # between the first probe and the second
    ],
    ids=["no memory", "no handle", "dead"],
)
def test_runs_wait_for_a_device_that_others_fill_for_a_while_or_that_comes_back(machine, state, at, said):
    machine.set(0, state)
    watch = Said(**{at: partial(machine.set, 0, WELL)})

    outcomes = execute_on(machine, ["cuda:0", "cpu", "cuda:0"], named, watch, jobs=2)

    assert statuses(outcomes) == ["completed"] * 3
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

    outcomes = execute_on(machine, ["cuda:1", "cuda", "cuda:1"], named, watch)

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
    outcomes = execute_on(machine, ["cuda:1", "cpu"], work, Jumping(machine, monkeypatch), jobs=2)
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
    outcomes = execute_on(machine, ["cuda:0"] * 3, failing)

    assert (str(outcomes[0].status), outcomes[0].error) == ("failed", "GPU error")
    assert outcomes[0].epochs != outcomes[1].epochs == outcomes[2].epochs


def given_back(_run, _report):
    assert accelerators._here
    return Outcome(
        Status.COMPLETED, os.environ.get("CUDA_LAUNCH_BLOCKING", "none"), len(accelerators._here.freed)
    )


@pytest.mark.slow(everywhere=True)
def test_a_lane_gives_memory_back_after_each_run_and_has_the_environment_of_its_grid(machine, monkeypatch):
    outcomes = execute_on(machine, ["cuda:0"] * 3, given_back)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    outcomes += execute_on(machine, ["cpu"], given_back)
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING")
    outcomes += execute_on(machine, ["cpu"], given_back)

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
def test_every_run_of_a_warm_process_is_compiled(tmp_path):
    outcome = run_grid({"number": range(10)}, compiled_widths, experiment="exp", root=tmp_path, **LANES)

    assert outcome.results["loss"].tolist() == [1.0] * 10


def test_a_tensor_of_an_accelerator_is_not_sent_to_processes_of_other_devices(machine):
    with installed(machine):
        table = torch.ones(3, device="cuda:1")

        def train(run, manager):
            return table.sum()

        with pytest.raises(GridError, match=r"cannot be sent .*a tensor on cuda:1"):
            run_grid({"lr": [1]}, train, experiment="e", root=machine.folder, **LANES)

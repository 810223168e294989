"""The executor "lanes": worker processes of this machine, and what they share with this process."""

import os
import signal
import sys
import textwrap
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from runmanager import EpochRecord, LanesExecutor, Outcome, RunBuilder, Status, load_runs, run_grid
from tests.border.test_executors import Watcher
from tests.locations import line_with
from tests.nightly import of_night

HOME = Path(__file__).parents[2]
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
    faults = [*FAULTS, *[""] * 13]
    devices = ["cuda:99" if fault == "nowhere" else "cpu" for fault in faults]
    grid = {("number", "fault", "device"): list(zip(range(20), faults, devices, strict=True))}

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
    assert outcome.runs["status"].tolist()[7:] == ["completed"] * 13
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
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(run.lr, 1)
    if os.fork() == 0 and run.lr == 1:
        raise ValueError("in the child")


def test_a_process_that_a_run_forks_has_no_say(tmp_path):
    outcome = run_grid({"lr": [1, 2]}, forking, experiment="exp", root=tmp_path, **LANES)

    assert [str(ended.status) for _, ended in outcome.outcomes] == ["completed", "completed"]
    assert outcome.results["run"].tolist() == [1, 2]


def awaited(path):
    for _ in range(12_000):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.01)
    raise AssertionError(f"{path} has not come")


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


class Wave(nn.Module):
    """One weight, whose gradient is a sum over many samples: its last bits depend on the threads."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, samples):
        return (self.weight * samples).sin()


def step(network, lr):
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    loss = network(torch.linspace(-3, 7, 300_000)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def train_wave(run, manager):
    """Train five epochs; the first run is killed in the third, once, if there is a marker."""
    network = Wave()
    with manager.run(run, network):
        for epoch in manager.epochs(5, checkpoint={"network": network}, keep="last"):
            if run.marker and run.lr == 1 and epoch == 3 and not Path(run.marker).exists():
                Path(run.marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            manager.track_loss(step(network, run.lr), 1)


def waves(root, experiment, lrs=(1, 2, 3), marker="", **options):
    grid = {"lr": list(lrs), "marker": [marker]}
    return run_grid(grid, train_wave, experiment=experiment, root=root, **{**LANES, "jobs": 2, **options})


def numbers(outcome):
    """Return what must be equal to the bit: the losses, and the weights that were kept."""
    files = sorted(outcome.folder.absolute().glob("*/weights.pt"))
    weights = [torch.load(path, weights_only=True)["weight"].item() for path in files]
    return outcome.results["loss"].tolist(), weights, outcome.runs["threads"].tolist()


@pytest.fixture
def _threads_matter(usual_threads):
    before = torch.get_num_threads()
    if before == 1:
        pytest.skip("all lanes have one thread on one core")
    weights = []
    for threads in (before, before // 2):
        torch.set_num_threads(threads)
        network = Wave()
        for _ in range(5):
            step(network, 1)
        weights.append(network.weight.item())
    torch.set_num_threads(before)
    assert weights[0] != weights[1]


@pytest.mark.slow
@pytest.mark.usefixtures("_threads_matter")
def test_runs_are_the_same_to_the_bit_when_they_go_on_or_begin_in_fewer_lanes(tmp_path):
    undisturbed = waves(tmp_path, "undisturbed")
    waves(tmp_path, "grown", lrs=(1, 2))
    grown = waves(tmp_path, "grown")
    ways: list[dict[str, Any]] = [{"jobs": 1, "executor": "inline"}, {"jobs": 1}]
    for number, how in enumerate(ways[: of_night(2, by_day=1)]):
        marker = str(tmp_path / f"marker{number}")
        killed = waves(tmp_path, f"killed{number}", marker=marker)
        continued = waves(tmp_path, f"killed{number}", marker=marker, **how)

        assert killed.runs["status"].tolist() == ["killed", "completed", "completed"]
        assert continued.runs["attempts"].tolist() == [2, 1, 1]
        assert numbers(continued) == numbers(undisturbed)
        assert not continued.runs["mixed"].any()
    assert numbers(grown) == numbers(undisturbed)


@pytest.mark.slow(everywhere=True)
@pytest.mark.usefixtures("usual_threads")
def test_lanes_share_the_cores():
    def work(_run, _report):
        return Outcome(Status.COMPLETED, str(torch.get_num_threads()))

    (alone,) = execute(work, jobs=1)
    shared = execute(work, 4, jobs=4)

    assert int(alone.error) == torch.get_num_threads()
    assert {int(outcome.error) for outcome in shared} == {max(1, torch.get_num_threads() // 4)}


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "executor"),
    # the default, that from Python 3.14 on, of Linux, and that of the other systems
    [
        ("", "lanes"),
        ("forkserver", "lanes"),
        pytest.param("forkserver", "inline", marks=pytest.mark.nightly),
        pytest.param("forkserver", "ray", marks=pytest.mark.nightly),
        pytest.param("spawn", "lanes", marks=pytest.mark.nightly),
    ],
)
def test_the_workers_of_a_loader_get_a_data_set_of_the_script_however_they_begin(
    warm, tmp_path, method, executor
):
    printed = run_script(warm, tmp_path, WITH_A_LOADER, method, executor, forks_lanes=not method)

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
    until = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.01)


CELL = """
from runmanager import run_grid
SCALE = 3

def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(SCALE * run.lr, 1)

outcome = run_grid({{"lr": [1, 2]}}, train, experiment="exp", root={root!r}, jobs=2)
assert outcome.results["loss"].tolist() == [3.0, 6.0], outcome.runs
"""


@pytest.mark.slow
def test_a_function_of_a_notebook_cell_runs_in_lanes(tmp_path):
    import nbclient
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL.format(root=str(tmp_path)))])

    nbclient.NotebookClient(notebook, timeout=180, resources={"metadata": {"path": HOME}}).execute()

    assert load_runs(tmp_path)["status"].tolist() == ["completed", "completed"]

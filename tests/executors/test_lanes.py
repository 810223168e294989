import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import deque
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runmanager import GridError, RunBuilder, load_runs, run_grid
from runmanager.core.outcome import Outcome, Status
from runmanager.executors import BatchProgress
from runmanager.executors.lanes import LanesExecutor, _start_method
from tests.border.test_executors import Watcher
from tests.locations import line_with

HOME = Path(__file__).parents[2]
FAULTS = ("memory", "segfault", "exit", "hang", "raise", "nan", "nowhere")
COMPLETED = Outcome(Status.COMPLETED, "", 1)
SAMPLES = torch.linspace(-1, 1, 320).reshape(40, 8)


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


def execute(work, num_runs=1, watch=None, **options):
    runs = deque(RunBuilder.get_runs({"lr": list(range(num_runs))}))
    return list(LanesExecutor(**options).execute(runs, work, watch or Watcher()))


@pytest.mark.slow
def test_faults_of_seven_kinds_harm_only_their_own_runs_and_are_named(tmp_path):
    options: dict[str, Any] = {"jobs": 3, "timeout": 5, "display": False, "tensorboard": False}
    outcome = run_grid(grid_of_20(), train, experiment="exp", root=tmp_path, **options)

    named = {row.fault: (row.status, row.error) for row in outcome.runs.itertuples() if row.fault}
    assert {fault: named[fault][0] for fault in FAULTS} == {
        "memory": "out of memory", "segfault": "killed", "exit": "killed", "hang": "hung", "raise": "failed",
        "nan": "diverged", "nowhere": "unavailable",
    }  # fmt: skip
    raised, allocated = line_with('raise ValueError("no")'), line_with("torch.empty(1 << 50)")
    for fault, words in {
        "memory": f"in epoch 2, {allocated}", "segfault": "segmentation fault", "exit": "exit code 3",
        "hang": "no progress for 5 s", "raise": f"ValueError: no (in epoch 2, {raised})",
        "nan": "loss became nan", "nowhere": "cuda:99",
    }.items():  # fmt: skip
        assert words in str(named[fault][1])
    logs = [path.read_text() for path in tmp_path.glob("exp/*/error.log")]
    assert any("no progress for" in log and "in meet" in log for log in logs)  # the stacks of its threads
    assert any("segmentation fault" in log and "in meet" in log for log in logs)
    assert outcome.runs["status"].tolist()[7:] == ["completed"] * 13
    assert outcome.exit_code == 1


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
    options = {"jobs": 2, "display": False, "tensorboard": False} | options
    return run_grid(grid, train_wave, experiment=experiment, root=root, **options)


def numbers(outcome):
    """Return what must be equal to the bit: the losses, and the weights that were kept."""
    files = sorted(outcome.folder.absolute().glob("*/weights.pt"))
    weights = [torch.load(path, weights_only=True)["weight"].item() for path in files]
    return outcome.results["loss"].tolist(), weights


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
@pytest.mark.parametrize(
    "how",
    [
        {},
        pytest.param({"jobs": 1}, marks=pytest.mark.slow),
        pytest.param({"jobs": 1, "executor": "inline"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_run_whose_process_was_killed_is_continued_bit_for_bit_with_fewer_lanes(tmp_path, how):
    undisturbed = waves(tmp_path, "undisturbed")

    killed = waves(tmp_path, "killed", marker=str(tmp_path / "marker"))
    continued = waves(tmp_path, "killed", marker=str(tmp_path / "marker"), **how)

    assert killed.runs["status"].tolist() == ["killed", "completed", "completed"]
    assert continued.runs["attempts"].tolist() == [2, 1, 1]
    assert numbers(continued) == numbers(undisturbed)
    assert continued.runs["threads"].tolist() == undisturbed.runs["threads"].tolist()
    assert not continued.runs["mixed"].any()


@pytest.mark.slow
@pytest.mark.usefixtures("_threads_matter")
def test_a_run_that_begins_when_few_are_left_has_the_threads_of_the_undisturbed_grid(tmp_path):
    undisturbed = waves(tmp_path, "undisturbed")

    waves(tmp_path, "continued", lrs=(1, 2))
    continued = waves(tmp_path, "continued")

    assert numbers(continued) == numbers(undisturbed)
    assert continued.runs["threads"].tolist() == undisturbed.runs["threads"].tolist()


@pytest.mark.slow
def test_a_loader_of_a_lane_may_have_processes(tmp_path):
    outcome = run_grid({"num_workers": [2]}, with_loader, experiment="exp", root=tmp_path, display=False)

    assert outcome.runs["status"].tolist() == ["completed"]


def with_loader(run, manager):
    network = nn.Linear(8, 1)
    loader = DataLoader(TensorDataset(SAMPLES), batch_size=10, num_workers=run.num_workers)
    with manager.run(run, network, loader):
        for _ in manager.epochs(1):
            for (samples,) in manager.batches():
                manager.track_loss(network(samples).square().mean(), samples)


def test_a_process_stays_warm_from_run_to_run():
    outcomes = execute(lambda _run, _report: Outcome(Status.COMPLETED, str(os.getpid())), 5)

    assert len({outcome.error for _, outcome in outcomes}) == 1


@pytest.mark.slow(everywhere=True)
@pytest.mark.usefixtures("usual_threads")
def test_lanes_share_the_cores():
    def work(_run, _report):
        return Outcome(Status.COMPLETED, str(torch.get_num_threads()))

    ((_, alone),) = execute(work, jobs=1)
    shared = execute(work, 4, jobs=4)

    assert int(alone.error) == torch.get_num_threads()
    assert {int(outcome.error) for _, outcome in shared} == {max(1, torch.get_num_threads() // 4)}


def test_what_a_run_prints_is_said_line_by_line():
    def work(_run, _report):
        sys.stdout.write("one\r50 %\r100 %\ntwo\n")
        return COMPLETED

    watch = Watcher()
    execute(work, watch=watch)

    assert [event for event in watch.seen if len(event) == 1] == [("one\r50 %\r100 %",), ("two",)]


def test_work_that_a_process_cannot_load_is_refused():
    class Unloadable:
        def __call__(self, *_):
            """Do nothing."""

        def __reduce__(self):
            return __import__, ("no_such_module",)

    with pytest.raises(GridError, match=r"train\(\) cannot be loaded by a worker process.*no_such_module"):
        execute(Unloadable())


SCRIPT = """
import functools, sys
from runmanager import run_grid

@functools.cache
def twice(value):
    return 2 * value

def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(twice(run.lr), 1)

outcome = run_grid({"lr": [1, 2]}, train, experiment="exp", root=sys.argv[1], jobs=2)
print(outcome.results["loss"].tolist())
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_runs_in_lanes_where_processes_are_spawned(tmp_path):
    patch = "import runmanager.executors.lanes as lanes\nlanes._start_method = lambda: 'spawn'\n"
    script = tmp_path / "script.py"
    script.write_text(patch + textwrap.dedent(SCRIPT))

    done = subprocess.run(
        [sys.executable, script, tmp_path / "runs"], cwd=HOME, capture_output=True, text=True, check=False,
        timeout=180, env={**os.environ, "PYTHONPATH": str(HOME)},
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("[2.0, 4.0]\n")
    assert load_runs(tmp_path / "runs")["jobs"].tolist() == [2, 2]


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
            Points(), batch_size=2, num_workers=1, collate_fn=collate, multiprocessing_context=context
        )
        with manager.run(run, loader=loader):
            for _ in manager.epochs(1):
                for batch in manager.batches():
                    manager.track_loss(run.lr * batch.mean(), batch)

    if __name__ == "__main__":
        multiprocessing.set_start_method(sys.argv[1])
        grid = {"lr": [2], "context": [sys.argv[1] if sys.argv[3] == "ray" else None]}
        grid = run_grid(grid, train, experiment="exp", root=sys.argv[2], executor=sys.argv[3])
        print(grid.runs[["status", "loss", "error"]].values.tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "executor"),
    # the default from Python 3.14 on, of Linux, and that of the other systems
    [
        ("forkserver", "lanes"),
        pytest.param("forkserver", "inline", marks=pytest.mark.nightly),
        pytest.param("forkserver", "ray", marks=pytest.mark.nightly),
        pytest.param("spawn", "lanes", marks=pytest.mark.nightly),
    ],
)
def test_a_loader_whose_workers_are_not_forked_gets_a_data_set_of_the_script(tmp_path, method, executor):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(WITH_A_LOADER))

    done = subprocess.run(
        [sys.executable, script, method, tmp_path / "runs", executor], cwd=HOME, capture_output=True, text=True,
        check=False, timeout=180, env={**os.environ, "PYTHONPATH": str(HOME)},
    )  # fmt: skip

    assert done.stdout.endswith("[['completed', 3.0, '']]\n"), done.stdout + done.stderr


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
        assert codes == [0, 0], codes
        assert problems == [], problems
        assert sys.modules["__main__"] is main
        own = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(100,))
        own.start()
        own.terminate()
        own.join(30)
        assert own.exitcode == -15, own.exitcode
        print("none")
"""


@pytest.mark.skipif(_start_method() != "forkserver", reason="another way to start processes")
@pytest.mark.slow
def test_grids_in_lanes_leave_no_trace_in_the_process_and_its_other_threads(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(LEAVING_NO_TRACE))

    done = subprocess.run(
        [sys.executable, script, tmp_path / "runs"], cwd=HOME, capture_output=True, text=True, check=False,
        timeout=180, env={**os.environ, "PYTHONPATH": str(HOME)},
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (0, "none\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("kills_group", [True, False])  # as kill %1 does
def test_a_lane_dies_with_its_parent_and_so_do_new_processes_of_its_loaders(tmp_path, kills_group):
    program = textwrap.dedent(
        """
        import os, sys, time
        from pathlib import Path
        from torch.utils.data import DataLoader
        from runmanager import run_grid

        def write_pid(name):
            Path(sys.argv[1], f"{name}").write_text(str(os.getpid()))

        def write_pid_and_be_slow(number):
            write_pid(number)
            time.sleep(3)  # a worker that sees only then whose child it is waits for orders of that one

        def train(run, manager):
            write_pid("lane")
            list(DataLoader(range(4), num_workers=1, worker_init_fn=write_pid_and_be_slow))

        run_grid({"lr": [1]}, train, experiment="exp", root=sys.argv[1], display=False)
        """
    )
    arguments = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(arguments, cwd=HOME, start_new_session=True) as parent:
        pids = [int(awaited(tmp_path / name)) for name in ("0", "lane")]
        os.killpg(parent.pid, signal.SIGKILL) if kills_group else parent.kill()

    assert all(is_gone(pid, within_s=30) for pid in pids)


@pytest.mark.slow
@pytest.mark.skipif(_start_method() != "forkserver", reason="lanes are children of this process")
def test_the_end_of_a_terminal_is_left_to_the_process_that_started_the_lanes():
    def work(_run, _report):
        os.kill(os.getppid(), signal.SIGHUP)  # as to all processes that the terminal has in front
        time.sleep(0.2)
        return COMPLETED

    outcomes = execute(work, 2)

    assert [outcome for _, outcome in outcomes] == [COMPLETED, COMPLETED]


def awaited(path):
    for _ in range(12_000):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.01)
    raise AssertionError(f"{path} has not come")


def is_gone(pid, within_s):
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


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


OWN_DATASET = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset
from runmanager import run_grid

class Squares(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.tensor([float(index * index)])

def train(run, manager):
    loader = DataLoader(Squares(), batch_size=10, num_workers=2)
    with manager.run(run, None, loader):
        for _ in manager.epochs(1):
            for batch in manager.batches():
                manager.track_loss(batch.mean(), 10)

outcome = run_grid({"lr": [1]}, train, experiment="exp", root=sys.argv[1])
print(outcome.results["loss"].tolist())
"""


@pytest.mark.slow
def test_a_data_set_of_a_script_reaches_the_processes_of_its_loader(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(OWN_DATASET)

    done = subprocess.run(
        [sys.executable, script, tmp_path / "runs"], cwd=HOME, capture_output=True, text=True, check=False,
        timeout=180, env={**os.environ, "PYTHONPATH": str(HOME)},
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("[513.5]\n")


def test_a_run_that_closes_its_output_harms_no_other():
    def work(run, _report):
        if run.lr == 0:
            sys.stdout.close()
            os.close(2)
        else:
            sys.stdout.write(f"said {run.lr}\n")
        return COMPLETED

    watch = Watcher()
    outcomes = execute(work, 3, watch)

    assert [outcome.status for _, outcome in outcomes] == [Status.COMPLETED] * 3
    assert [event for event in watch.seen if len(event) == 1] == [("said 1",), ("said 2",)]


@pytest.mark.slow(everywhere=True)
@pytest.mark.slow
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

    ((_, outcome),) = execute(work)

    assert outcome == COMPLETED


def test_a_process_that_a_run_forks_has_no_say(tmp_path):
    outcome = run_grid(
        {"lr": [1, 2]}, forking, experiment="exp", root=tmp_path, display=False, tensorboard=False
    )

    assert [str(ended.status) for _, ended in outcome.outcomes] == ["completed", "completed"]
    assert outcome.results["run"].tolist() == [1, 2]


def forking(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(run.lr, 1)
    if os.fork() == 0 and run.lr == 1:
        raise ValueError("in the child")


@pytest.mark.slow
def test_news_keep_a_run_from_counting_as_hung_however_long_the_parent_was_busy():
    def work(_run, report):
        for step in range(8):
            time.sleep(0.2)
            report(BatchProgress(1, step))
        return COMPLETED

    class Busy(Watcher):
        def run_progressed(self, run, news):
            if news.batch == 2:
                time.sleep(3.5)

    ((_, outcome),) = execute(work, watch=Busy(), timeout=3)

    assert outcome == COMPLETED


@pytest.mark.slow
def test_processes_that_were_all_stopped_and_continue_do_not_count_as_hung(monkeypatch):
    def work(_run, report):
        for step in range(6):
            time.sleep(0.2)
            report(BatchProgress(1, step))
            if step == 2:
                os.kill(os.getpid(), signal.SIGSTOP)
        return COMPLETED

    def stopped(sources, timeout=None):
        """Wait; the first time that no report comes, sleep as a stopped process does."""
        ready = wait(sources, timeout)
        if timeout == 1 and not ready and not slept and progressed:
            slept.append(7)
            time.sleep(7)
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGCONT)
        return ready

    class Counting(Watcher):
        def run_progressed(self, run, news):
            progressed.append(news)

    slept: list[int] = []
    wait, progressed = connection.wait, []
    monkeypatch.setattr("runmanager.executors.lanes.connections.wait", stopped)
    ((_, outcome),) = execute(work, watch=Counting(), timeout=4)

    assert (len(slept), outcome) == (1, COMPLETED)


def test_an_endless_line_is_broken(tmp_path):
    def work(_run, _report):
        sys.stdout.write("x" * 3_000_000)
        sys.stdout.flush()
        return COMPLETED

    watch = Watcher()
    execute(work, watch=watch)

    lines = [str(event[0]) for event in watch.seen if len(event) == 1]
    assert len(lines) > 1
    assert set("".join(lines)) == {"x"}

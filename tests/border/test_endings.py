"""How runs end that nobody ends: with the program, by signals, limits, debuggers, and whatever is raised."""

import asyncio
import multiprocessing
import os
import pty
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from runmanager import load_runs
from tests.border import reading
from tests.border.work import Dropping, start, statuses

pytestmark = pytest.mark.usefixtures("own_folder")
LRS = {"lr": [0.1, 0.2]}
START = """
import os, signal, sys
from runmanager import RunManager, StorageError, run_grid

manager = RunManager("exp", tensorboard=False)

def begin(manager, n=2, lr=0.1):
    manager.begin_run({"lr": lr})
    for epoch in range(1, n + 1):
        manager.begin_epoch()
        manager.track_loss(1 / epoch, 1)
        manager.end_epoch()
"""
LEFT = ("interrupted", 2, "the program ended without end_run()")
STOPPED = ("interrupted", 2, "interrupted")
FORKED = """\
    def main():
        mine = RunManager("exp", tensorboard=False)
        begin(mine)
        mine.begin_epoch()
    main()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
"""
IN_A_LOOP = """\
    sys.excepthook = lambda kind, error, trace: print("mine:", error, file=sys.stderr)
    manager.begin_run({'lr': 0.1})
    for epoch in manager.epochs(4):
        if epoch == 3:
            raise ValueError('no')
        manager.track_loss(1.0, 1)
"""
DIVERGED = (
    "manager.begin_run({'lr': 1})\nfor _ in manager.epochs(3):\n    manager.track_loss(float('nan'), 1)\n"
)
AT_A_PROMPT = "begin(manager)\nsys.ps1 = '> '\nsys.last_exc = sys.last_value = NameError('a typo')\n"
EARLIER = "sys.last_exc = sys.last_value = ValueError('of another cell')\n"
ELSEWHERE = EARLIER + "with manager.run({'lr': 9}):\n    pass\nbegin(manager)\nos.mkdir('x')\nos.chdir('x')\n"
ENDED = {  # program -> its exit code, how its runs have ended, and whether it is told to call end_run()
    "sys.exit": ("begin(manager)\nsys.exit(3)\n", 3, [LEFT], True),
    "a forked child, a manager that is gone": (FORKED, 0, [LEFT], True),
    "another folder, an earlier exception": (ELSEWHERE, 0, [("completed", 0, ""), LEFT], True),
    "a typo at a prompt": (AT_A_PROMPT, 0, [LEFT], True),
    "diverged": (DIVERGED, 0, [("diverged", 1, "loss became nan in epoch 1, step 1")], True),
    "an exception, another hook": (IN_A_LOOP, 1, [("failed", 2, "ValueError: no (in epoch 3, ")], False),
    "a full disk": ("begin(manager)\nraise StorageError(28, 'no')\n", 1, [STOPPED], False),
    "Ctrl-C": ("begin(manager)\nos.kill(os.getpid(), signal.SIGINT)\n", 1, [STOPPED], False),
}


@pytest.mark.parametrize("name", ENDED)
def test_a_run_that_nobody_ended_is_recorded_at_the_end_of_the_program_which_is_told_so_once(
    warm, own_folder, name
):
    program, code, ended, is_told = ENDED[name]
    path = own_folder / "train.py"
    path.write_text(START + textwrap.dedent(program))

    done = warm.execute(path)

    runs = load_runs("runs/exp")
    assert list(zip(runs["status"], runs["epochs"], strict=True)) == [end[:2] for end in ended]
    assert all(text.startswith(end[2]) for text, end in zip(runs["error"], ended, strict=True))
    assert len(Path("runs/exp/results.csv").read_text().splitlines()) - 1 == sum(end[1] for end in ended)
    told = [line for line in done.stderr.splitlines() if "RunsWarning" in line]
    named = ("train.py:", f"run {len(ended)} was not ended", ended[-1][0], "results.csv", "call end_run()")
    assert [part in line for line in told for part in named] == [True] * len(named) * is_told
    assert bool(done.returncode) == bool(code)
    if "hook" in name:
        assert done.stderr.splitlines()[-1] == "mine: no"
        assert (reading.run_folder("runs/exp") / "error.log").read_text().endswith("ValueError: no\n")


NOTHING = """\
    import tempfile

    def train(run, manager):
        begin(manager, lr=run.lr)

    if __name__ == "__main__":
        run_grid({"lr": [0.1]}, train, experiment="grid", tensorboard=False)
        run_grid({"lr": [0.2]}, train, experiment="grid", tensorboard=False, executor="inline")
        with tempfile.TemporaryDirectory() as folder:
            begin(RunManager("mine", folder, tensorboard=False))
        begin(manager)
        manager.end_run()
"""


@pytest.mark.slow
def test_nothing_is_said_where_there_is_nothing_to_do_and_a_python_of_its_own_says_the_same(warm, own_folder):
    path = own_folder / "train.py"
    path.write_text(START + textwrap.dedent(NOTHING))
    nothing = warm.execute(path)
    path.write_text(f"{START}begin(manager)\n")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)

    assert (nothing.returncode, "was not ended" in nothing.stderr) == (0, False)
    assert (done.returncode, "was not ended" in done.stderr) == (0, True)
    assert load_runs("runs/grid")["status"].tolist() == ["completed"] * 2


class Unwritable(Exception):  # noqa: N818 - a nasty one
    """Cannot be shown in any way."""

    def __str__(self):
        raise ValueError

    __repr__ = __str__


class OfItsOwn(BaseException):
    """No Exception."""


def fill_descriptors():
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    while True:
        os.open(os.devnull, os.O_RDONLY)


RAISED = {  # words of the error -> what an epoch raises; None: what this process would keep
    "GeneratorExit": GeneratorExit(), "KeyboardInterrupt": KeyboardInterrupt(), "SystemExit": SystemExit(3),
    "CancelledError": asyncio.CancelledError(), "StopIteration": StopIteration(), "OfItsOwn": OfItsOwn(),
    "ValueError": Unwritable(), "Too many open files": None,
}  # fmt: skip
INLINE = [name for name in RAISED if name not in ("KeyboardInterrupt", "Too many open files")]


def raising(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(2):
            manager.track_loss(0.5, 1)
            if epoch == 2 and run.name in RAISED:
                threading.Thread(target=print).start()
                if error := RAISED[run.name]:
                    raise error
                fill_descriptors()


@pytest.mark.slow
@pytest.mark.parametrize(("executor", "names"), [("inline", INLINE), ("lanes", [*RAISED])])
def test_whatever_train_raises_harms_its_run_only(executor, names):
    grid = start({"name": [*names, "nothing"]}, raising, executor=executor, on_error="continue")

    assert statuses(grid) == [("failed", 1)] * len(names) + [("completed", 2)]
    assert all(name in error for name, error in zip(names, grid.runs["error"], strict=False))
    assert grid.exit_code == 1


def two_epochs(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(5):
            manager.track_loss(run.lr, 1)
            if epoch == 2:
                Dropping()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_whose_exception_python_drops_ends_the_run_with_the_next_news_of_it():
    outcome = start(LRS, two_epochs)

    assert (outcome.exit_code, statuses(outcome)) == (130, [("interrupted", 2), ("pending", 0)])
    assert "jobs" not in outcome.runs  # a run that has not begun shared nothing


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, None])
def test_once_a_signal_has_come_processes_of_loaders_may_end_and_before_they_fail_their_run(number):
    """As where all processes of a job get the signal."""

    def train(run, manager):
        loader = iter(DataLoader(TensorDataset(torch.ones(400, 1)), batch_size=1, num_workers=1))
        next(loader)  # its process has set its own handlers of signals
        (process,) = multiprocessing.active_children()
        try:
            with manager.run(run):
                for _ in manager.epochs(1):
                    manager.track_loss(1.0, 1)
                    # it would end with 0 by its parent
                    subprocess.run(["/bin/kill", str(process.pid)], check=True)
                    if number:
                        signal.raise_signal(number)
                    for _ in range(50):  # a signal that waits for the main thread is handled in between
                        time.sleep(0.02)
        finally:  # else torch finds its process among those of later tests
            del loader

    outcome = start(LRS, train)  # torch keeps its handler of SIGCHLD, which it sets once

    if number:
        assert (outcome.exit_code, outcome.runs["status"].tolist()) == (143, ["interrupted", "pending"])
    else:
        assert outcome.runs["status"].tolist() == ["killed", "killed"]
        assert outcome.runs["error"].str.contains("loader was ended (SIGTERM)", regex=False).all()


@pytest.mark.slow
def test_a_signal_that_comes_twice_at_once_counts_as_one_as_timeout_sends_it(capsys):
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

    assert start({"lr": [1]}, train, executor="lanes", display=None).exit_code == 143
    assert "Forced stop" not in capsys.readouterr().out


def test_ctrl_c_while_the_data_are_loaded_ends_at_once_and_writes_nothing(own_folder):
    with pytest.raises(KeyboardInterrupt):
        start(data=lambda: signal.raise_signal(signal.SIGINT))

    assert list(own_folder.iterdir()) == []


@pytest.mark.slow
def test_a_time_limit_is_noticed_in_lanes_while_nothing_happens():
    def hang(run, manager):
        with manager.run(run):
            time.sleep(100)

    began = time.monotonic()

    assert start({"lr": [0.1]}, hang, max_seconds=5, executor="lanes").exit_code == 75

    assert time.monotonic() - began < 90
    assert load_runs("runs/exp")["status"][0] in ("interrupted", "pending")


PROGRAM = """
import sys
from runmanager import run_grid

def train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(2, checkpoint={"state": {}}):
            manager.track_loss(run.lr, 1)
            if epoch == 2 and run.lr == 0.2:
                breakpoint()

if __name__ == "__main__":
    only = {"only": 2} if "only" in sys.argv else {"executor": "inline"} if "inline" in sys.argv else {}
    run_grid({"lr": [0.1, 0.2]}, train, experiment="exp", tensorboard=False, **only)
"""


@pytest.fixture
def program(own_folder):
    """Write a program whose second run calls a debugger; return its file."""
    path = own_folder / "program.py"
    path.write_text(PROGRAM)
    return path


def in_terminal(warm, program, word, typed):
    """Execute a program in a terminal in which somebody types at each prompt; return what it shows."""
    leader, follower = pty.openpty()
    environment = {"TERM": "dumb", "PYTHON_COLORS": "0", "PYTHON_BASIC_REPL": "1"}
    process = warm.begin(program, word, terminal=follower, environment=environment, forks_lanes=True)
    os.close(follower)
    shown, lines, until = "", list(typed), time.monotonic() + 120
    while time.monotonic() < until:
        try:
            shown += os.read(leader, 4096).decode("utf-8", "replace")
        except OSError:  # it has ended
            break
        if lines and shown.endswith("(Pdb) "):
            os.write(leader, f"{lines.pop(0)}\n".encode())
    else:
        os.kill(process, signal.SIGKILL)
    code = warm.wait()
    os.close(leader)
    return shown.replace("\r\n", "\n"), code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "typed", "code", "status"),
    [
        ("only", ["p run.lr", "c"], 0, "completed"),
        ("only", ["q"], 1, "interrupted"),
        ("inline", ["q"], 0, "interrupted"),
    ],
)
def test_a_debugger_stops_in_the_run_and_who_leaves_it_interrupts_the_run(
    warm, program, word, typed, code, status
):
    shown, ended = in_terminal(warm, program, word, typed)

    assert ended == code, shown
    assert ("\n0.2\n" in shown) is (len(typed) == 2)
    assert ("BdbQuit" in shown) is (code == 1)
    assert "RunsWarning" not in shown  # about what the debugger sets
    assert load_runs("runs/exp")["status"][1] == status


@pytest.mark.slow
def test_a_debugger_in_a_worker_says_where_it_can_be_used_and_one_of_the_users_own_is_left_alone(warm, program):
    for own in (None, "0"):
        warm.begin(program, environment={"PYTHONBREAKPOINT": own}, forks_lanes=True)
        warm.wait()
        runs = load_runs("runs/exp")
        assert runs["status"].tolist() == ["completed", "completed" if own else "failed"]
        assert own or "a debugger has no keyboard in a worker process: only=2 executes" in runs["error"][1]
        shutil.rmtree("runs")


def test_several_runs_are_executed_alone_in_the_order_given():
    executed = []

    def train(run, manager):
        executed.append(run.lr)
        with manager.run(run):
            pass

    outcome = start({"lr": [0.1, 0.2, 0.3]}, train, only=[3, 1], executor="lanes", jobs=4, timeout=5, retries=2)

    assert (executed, outcome.runs["run"].tolist()) == ([0.3, 0.1], [3, 1])

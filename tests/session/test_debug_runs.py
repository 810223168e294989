import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from runmanager import load_runs, run_grid
from tests.nightly import of_night_but

LRS = {"lr": [0.1, 0.2, 0.3], "seed": [0, 1]}

PROGRAM = """
import sys
from runmanager import run_grid

def train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(2, checkpoint={"state": {}}):
            manager.track_loss(run.lr, 1)
            if epoch == 2 and run.lr == 0.2 and "debug" in sys.argv:
                DEBUG

if __name__ == "__main__":
    only = {"only": 3} if "only" in sys.argv else {"executor": "inline"} if "inline" in sys.argv else {}
    outcome = run_grid({"lr": [0.1, 0.2], "seed": [0, 1]}, train, experiment="exp", tensorboard=False, **only)
    print("exit code", outcome.exit_code)
"""


class Train:
    """Train two epochs, and raise in the second one of some learning rates."""

    def __init__(self, *failing):
        self.executed = []
        self.failing = failing

    def __call__(self, run, manager):
        self.executed.append((run.lr, run.seed))
        with manager.run(run):
            for epoch in manager.epochs(2):
                manager.track_loss(run.lr, 1)
                if epoch == 2 and run.lr in self.failing:
                    raise ZeroDivisionError("in the second epoch")


@pytest.fixture
def start(tmp_path):
    def run(train, **options):
        return run_grid(LRS, train, experiment="exp", root=tmp_path, tensorboard=False, **options)

    return run


@pytest.fixture
def program(tmp_path):
    """Write a program whose runs call a debugger; return its file."""

    def write(debug="breakpoint()"):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.replace("DEBUG", debug))
        return path

    return write


def in_terminal(warm, program, *arguments, typed):
    """Execute a program in a terminal in which somebody types at each prompt; return what it shows."""
    leader, follower = pty.openpty()
    environment = {"TERM": "dumb", "PYTHON_COLORS": "0", "PYTHON_BASIC_REPL": "1"}
    process = warm.begin(program, *arguments, terminal=follower, environment=environment)
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


@pytest.mark.slow(everywhere=True)
def test_a_completed_run_whose_broken_change_was_undone_is_not_executed(start, capsys):
    def broken(run, manager):
        raise ZeroDivisionError

    train = Train()
    for function in (train, broken):
        start(function, executor="inline", display=False)
    with pytest.raises(ZeroDivisionError):
        start(broken, only=3, display=False)
    train.executed.clear()

    outcome = start(train, only=3)

    assert (train.executed, outcome.exit_code) == ([], 0)
    assert "1 run, 0 to execute, 1 completed" in capsys.readouterr().out


def test_several_runs_are_executed_in_the_order_given(start):
    train = Train()

    outcome = start(train, only=[5, 2], display=False, executor="lanes", jobs=4, timeout=5, retries=2)

    assert train.executed == [(0.3, 0), (0.1, 1)]
    assert outcome.runs["run"].tolist() == [5, 2]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"only": "3"}, "only must be the number of a run, .* got '3': write only=7"),
        ({"only": True}, "only must be the number of a run"),
        ({"only": 1.5}, "only must be the number of a run"),
        ({"only": []}, "only must be the number of a run"),
        ({"only": [1, "2"]}, "only must be the number of a run"),
    ],
)
def test_what_cannot_be_meant_is_refused(start, tmp_path, options, problem):
    with pytest.raises(ValueError, match=problem):
        start(Train(), **options)

    assert list(tmp_path.iterdir()) == []


def test_a_plan_of_one_run_shows_it_alone(start, tmp_path, capsys):
    start(Train(), only=3, plan_only=True)

    assert capsys.readouterr().out.splitlines()[-1] == "1 run · execute 1"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_debugger_stops_in_the_run_and_can_be_left(warm, program, tmp_path):
    path = program()

    shown, code = in_terminal(warm, path, "only", "debug", typed=["p run.lr", "c"])

    assert code == 0, shown
    assert "(Pdb) p run.lr\n" in shown
    assert "\n0.2\n" in shown
    assert "RunsWarning" not in shown  # about what the debugger sets
    assert load_runs(tmp_path / "runs" / "exp")["status"].tolist()[2] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["only", "inline"])
def test_who_leaves_the_debugger_interrupts_the_run(warm, program, tmp_path, how):
    shown, code = in_terminal(warm, program(), how, "debug", typed=["q"])

    assert ("BdbQuit" in shown) == (how == "only")
    assert code == (1 if how == "only" else 0)
    row = load_runs(tmp_path / "runs" / "exp").iloc[2]
    assert (row["status"], row["epochs"]) == ("interrupted", 1)


@pytest.mark.parametrize(
    "debug", of_night_but(["breakpoint()", "import pdb; pdb.set_trace()"], ["breakpoint()"])
)
@pytest.mark.slow
def test_a_debugger_in_a_worker_says_where_it_can_be_used(program, tmp_path, debug):
    done = subprocess.run(
        [sys.executable, program(debug), "debug"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )

    runs = load_runs(tmp_path / "runs" / "exp")
    assert runs["status"].tolist() == ["completed", "completed", "failed", "failed"], done.stdout
    for number in (3, 4):
        step = f"only={number} executes this run alone, in the process that starts the grid"
        assert f"a debugger has no keyboard in a worker process: {step}" in runs["error"][number - 1]
    shown = " ".join(done.stdout.split())  # a wide line is wrapped where the environment asks for colors
    assert "a debugger has no keyboard in a worker process: only=" in shown, done.stdout


@pytest.mark.slow
def test_a_debugger_of_the_users_own_is_left_alone_in_a_worker(program, tmp_path):
    done = subprocess.run(
        [sys.executable, program(), "debug"], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=180, env={**os.environ, "PYTHONBREAKPOINT": "0"},
    )  # fmt: skip

    assert "exit code 0" in done.stdout

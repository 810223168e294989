"""What differs between the systems, under a pretended one; each program runs in a process of its own."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import of_night_but
from tests.pretended import MISSING

HOME = Path(__file__).parents[1]
SYSTEMS = ["windows", "macos"]
GRID = """
from runmanager import load_runs, run_grid, show

def train(run, manager):
    print("✓ printed")
    with manager.run(run):
        for epoch in manager.epochs(2):
            manager.track_loss(run.lr, 8)

if __name__ == "__main__":
    outcome = run_grid({"lr": [0.1, 0.2]}, train, experiment="grid", jobs=2)
    print(show(load_runs("runs")))
    print(outcome.panel)
"""
ALIVE = """
import subprocess, sys
from runmanager.storage import processes

with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
    process = {**processes.this_process(), "pid": child.pid, "pid_start": processes._started(child.pid)}
    assert process["pid_start"] not in ("", "dead"), process
    print(processes.lives(process), processes.lives({**process, "pid_start": "another"}), end=" ")
    child.communicate(b"")
print(processes.lives(process), processes.lives(processes.this_process()))
"""
STOPPED = """
import signal, threading, time
from pathlib import Path
from runmanager import load_runs, run_grid

def train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(1000):
            manager.track_loss(run.lr, 8)
            Path("begun").touch()
            time.sleep(0.1)

def stop():
    while not Path("begun").exists():
        time.sleep(0.1)
    signal.raise_signal(signal.SIGINT)

if __name__ == "__main__":
    threading.Thread(target=stop).start()
    try:
        run_grid({"lr": [0.1]}, train, experiment="grid")
    finally:
        (run,) = load_runs("runs").itertuples()
        print(run.status, run.epochs > 0, run.error)
"""
UNGUARDED = """
import torch
from runmanager import RunManager
from torch.utils.data import DataLoader, TensorDataset

manager = RunManager("grid", display=False)
with manager.run({"lr": 0.1}):
    for batch in DataLoader(TensorDataset(torch.arange(4.0)), num_workers=1):
        pass
"""


def execute(system, program, folder, **environment):
    """Execute a program under a pretended system."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "tests.pretended", system, "program.py"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(HOME), **environment}, capture_output=True,
        timeout=300, encoding=environment.get("PYTHONIOENCODING", "utf-8"), check=False,
    )  # fmt: skip


def printed(system, program, folder, **environment):
    done = execute(system, program, folder, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow(everywhere=True)
def test_lanes_execute_runs_on_windows_and_a_console_gets_symbols_that_it_has(tmp_path):
    output = printed("windows", GRID, tmp_path, PYTHONIOENCODING="cp1252")

    assert "2 completed" in output
    assert output.count("v printed") == 2


@pytest.mark.nightly
@pytest.mark.slow(everywhere=True)
def test_lanes_execute_runs_on_macos(tmp_path):
    output = printed("macos", GRID, tmp_path)

    assert "2 completed" in output
    assert output.count("✓ printed") == 2


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_process_that_ended_and_one_that_got_its_number_are_told_from_one_that_lives(system, tmp_path):
    assert printed(system, ALIVE, tmp_path) == "True False False True\n"


@pytest.mark.slow(everywhere=True)
def test_a_lane_of_windows_is_asked_to_stop_and_its_run_ends_as_interrupted(tmp_path):
    done = execute("windows", STOPPED, tmp_path)

    assert "interrupted True" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow(everywhere=True)
def test_a_script_that_a_process_of_a_loader_executes_again_learns_what_to_write(tmp_path):
    done = execute("windows", UNGUARDED, tmp_path)

    assert done.returncode == 1
    assert 'executes this script again: put what starts runs under `if __name__ == "__main__":`' in done.stderr


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("system", of_night_but(SYSTEMS, ["windows"]))
def test_files_locks_and_processes_pass_their_tests(system):
    modules = [f"tests/storage/test_{name}.py" for name in ("durable", "lock", "processes")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *modules],
        cwd=HOME, env={**os.environ, "PRETENDED": system}, capture_output=True, timeout=300, text=True,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow(everywhere=True)
def test_windows_can_collect_the_quick_tests():
    quick = [path for pattern in (HOME / ".ci" / "quick").read_text().split() for path in HOME.glob(pattern)]
    modules = {file for path in quick for file in [path, *path.rglob("*.py")] if file.is_file()}

    missing = {
        (module.name, alias.name)
        for module in {*modules, *HOME.glob("tests/*.py")}
        for statement in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.Import)
        for alias in statement.names
        if alias.name in MISSING["windows"]
    }

    assert missing == set()

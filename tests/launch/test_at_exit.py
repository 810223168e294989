import re
import subprocess
import sys
import textwrap

import pytest

from runmanager import RunManager, RunsWarning, load_runs
from runmanager.core import files
from runmanager.core.manager import LEFT_OPEN
from runmanager.errors import StorageError
from tests.locations import line_with

START = """
import os, signal, sys
from runmanager import RunBuilder, RunManager, run_grid

manager = RunManager("exp", tensorboard=False)

def epochs(manager, n):
    for epoch in range(1, n + 1):
        manager.begin_epoch()
        manager.track_loss(1 / epoch, 1)
        manager.end_epoch()
"""


@pytest.fixture
def execute(warm, tmp_path):
    """Execute a program in a warm process, or in a Python of its own; return its exit code and its errors."""

    def execute(program, *, is_warm=True):
        path = tmp_path / "train.py"
        path.write_text(START + textwrap.dedent(program))
        command = [sys.executable, path.name]
        done = warm.execute(path) if is_warm else subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False
        )  # fmt: skip
        return done.returncode, done.stderr.splitlines()

    return execute


def ended(folder):
    runs = load_runs(folder / "runs" / "exp")
    return list(zip(runs["status"].astype(str), runs["epochs"], runs["error"], strict=True))


def num_rows(folder):
    """Count the rows of the table on disk."""
    return len((folder / "runs" / "exp" / files.RESULTS_CSV).read_text().splitlines()) - 1


def message(run, num_epochs, status="interrupted"):
    epochs = "1 epoch" if num_epochs == 1 else f"{num_epochs} epochs"
    return re.compile(
        f"run {run} was not ended: it is recorded as {status}, with {epochs} in .*runs/exp/results.csv; "
        r"call end_run\(\) after its last epoch$"
    )


COLD = ("a script", "in a function")
"""Programs that have a Python of their own, whose start takes seconds."""


def names(programs):
    """Name programs for `parametrize`, the cold ones as slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in COLD else name for name in programs]


NOT_ENDED = {
    "a script": "manager.begin_run({'lr': 0.1})\nepochs(manager, 2)\n",
    "sys.exit": "manager.begin_run({'lr': 0.1})\nepochs(manager, 2)\nsys.exit(3)\n",
    "a forked child, a manager that is gone": """\
        def main():
            mine = RunManager("exp", tensorboard=False)
            mine.begin_run({"lr": 0.1})
            epochs(mine, 2)
            mine.begin_epoch()
        main()
        child = os.fork()
        if child:
            os.waitpid(child, 0)
    """,
}


@pytest.mark.parametrize("name", names(NOT_ENDED))
def test_a_program_that_ends_without_end_run_is_told_so_once(execute, tmp_path, name):
    code, errors = execute(NOT_ENDED[name], is_warm=name not in COLD)

    line = line_with("begin_run(", tmp_path / "train.py")
    told = [text.removeprefix(f"{tmp_path}/") for text in errors if "RunsWarning" in text]
    assert len(told) == 1
    assert told[0].startswith(f"{line}: RunsWarning: run 1 was not ended")
    assert message(1, 2).search(told[0])
    assert code == (3 if "exit" in name else 0)
    assert not any("Traceback" in text for text in errors)
    assert ended(tmp_path) == [("interrupted", 2, "the program ended without end_run()")]
    assert num_rows(tmp_path) == 2


FAILED = {
    "in a function": """\
        def main():
            mine = RunManager("exp", tensorboard=False)
            mine.begin_run({"lr": 0.1})
            epochs(mine, 2)
            raise ValueError('no')
        main()
    """,
    "in the loop, with another hook": """\
        sys.excepthook = lambda kind, error, trace: print("mine:", error, file=sys.stderr)
        manager.begin_run({'lr': 0.1})
        for epoch in manager.epochs(4):
            if epoch == 3:
                raise ValueError('no')
            manager.track_loss(1.0, 1)
    """,
}


@pytest.mark.parametrize("name", names(FAILED))
def test_an_exception_that_ends_the_program_ends_its_run_as_failed(execute, tmp_path, name):
    code, errors = execute(FAILED[name], is_warm=name not in COLD)

    where = "epoch 3, " * ("loop" in name) + line_with("ValueError('no')", tmp_path / "train.py")
    assert code == 1
    assert ended(tmp_path) == [("failed", 2, f"ValueError: no (in {where})")]
    assert num_rows(tmp_path) == 2
    log = (tmp_path / "runs" / "exp" / "001-lr=0.1" / files.ERROR_LOG).read_text()
    assert log.startswith("Traceback")
    assert log.endswith("ValueError: no\n")
    assert errors[-1] == ("mine: no" if "hook" in name else "ValueError: no")


@pytest.mark.slow(everywhere=True)
def test_ctrl_c_leaves_the_run_interrupted_without_a_word_on_end_run(execute, tmp_path):
    program = "manager.begin_run({'lr': 0.1})\nepochs(manager, 2)\nos.kill(os.getpid(), signal.SIGINT)\n"

    code, errors = execute(program)

    assert code != 0
    assert ended(tmp_path) == [("interrupted", 2, "interrupted")]
    assert errors[-1] == "KeyboardInterrupt"
    assert not any("RunsWarning" in text for text in errors)
    assert num_rows(tmp_path) == 2


@pytest.mark.slow
def test_nothing_is_said_where_there_is_nothing_to_do(execute, tmp_path):
    program = """\
        import tempfile

        def train(run, manager):
            manager.begin_run(run)
            epochs(manager, 2)

        if __name__ == "__main__":
            run_grid({"lr": [0.1]}, train, experiment="grid", tensorboard=False)
            run_grid({"lr": [0.2]}, train, experiment="grid", tensorboard=False, executor="inline")
            with tempfile.TemporaryDirectory() as folder:
                mine = RunManager("mine", folder, tensorboard=False)
                mine.begin_run({"lr": 0.1})
                epochs(mine, 2)
            with manager.run({"lr": 0.1}):
                epochs(manager, 2)
            manager.begin_run({"lr": 0.2})
            manager.end_run()
    """

    code, errors = execute(program)

    assert (code, errors) == (0, [])
    assert load_runs(tmp_path / "runs")["status"].tolist() == ["completed"] * 4


@pytest.fixture
def manager(tmp_path):
    return RunManager("exp", tmp_path / "runs", tensorboard=False, display=False)


def train(manager, num_epochs=1, lr=0.1):
    manager.begin_run({"lr": lr})
    for _ in range(num_epochs):
        manager.begin_epoch()
        manager.end_epoch()


def end(manager):
    """End the program."""
    manager._context.listeners[0].end_at_exit()


def uncaught(monkeypatch, error):
    """Let this be the exception that ends the program."""
    monkeypatch.setattr(sys, "last_value", error, raising=False)


@pytest.mark.parametrize("name", ["last_exc", "last_value"])  # since Python 3.12, and before
def test_an_exception_that_nothing_caught_is_the_runs(manager, tmp_path, monkeypatch, name):
    train(manager, 2)
    monkeypatch.setattr(sys, name, ValueError("no"), raising=False)

    end(manager)

    assert ended(tmp_path) == [("failed", 2, "ValueError: no")]


def test_an_exception_at_a_prompt_does_not_fail_the_run(manager, tmp_path, monkeypatch):
    train(manager)
    uncaught(monkeypatch, NameError("a typo"))
    monkeypatch.setattr(sys, "ps1", "> ", raising=False)

    with pytest.warns(RunsWarning, match=message(1, 1)):
        end(manager)

    assert ended(tmp_path) == [("interrupted", 1, LEFT_OPEN)]


def test_an_earlier_exception_that_did_not_end_the_program_is_not_the_runs(manager, tmp_path, monkeypatch):
    uncaught(monkeypatch, ValueError("of another test"))
    train(manager)

    with pytest.warns(RunsWarning, match=message(1, 1)):
        end(manager)

    assert ended(tmp_path) == [("interrupted", 1, LEFT_OPEN)]


def test_a_full_disk_interrupts_the_run(manager, tmp_path, monkeypatch):
    train(manager)
    uncaught(monkeypatch, StorageError(28, "no space"))

    end(manager)

    assert ended(tmp_path) == [("interrupted", 1, "interrupted")]


def test_the_run_that_is_open_is_named_from_another_folder(manager, tmp_path, monkeypatch):
    with manager.run({"lr": 0.3}):
        pass
    train(manager)
    manager.begin_epoch()
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")

    with pytest.warns(RunsWarning, match=message(2, 1)):
        end(manager)

    assert ended(tmp_path) == [("completed", 0, ""), ("interrupted", 1, LEFT_OPEN)]
    assert num_rows(tmp_path) == 1


def test_a_run_that_diverged_stays_so(manager, tmp_path):
    manager.begin_run({"lr": 0.1})
    for _ in manager.epochs(3):
        manager.track_loss(float("nan"), 1)

    with pytest.warns(RunsWarning, match=message(1, 1, "diverged")):
        end(manager)

    assert ended(tmp_path) == [("diverged", 1, "loss became nan in epoch 1, step 1")]

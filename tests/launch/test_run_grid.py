import errno
import importlib
import os
import signal
from typing import Any

import pytest
import torch

from runmanager import InlineExecutor, StorageError, run_grid
from runmanager.tables import results_files

LRS = {"lr": [0.1, 0.2, 0.3]}


@pytest.fixture
def start(tmp_path):
    """Start a grid in an experiment under tmp_path."""

    def run(params, train, **options):
        quiet: dict[str, Any] = {"tensorboard": False, "display": False, "executor": "inline"} | options
        return run_grid(params, train, experiment="exp", root=tmp_path, **quiet)

    return run


class Train:
    """Train two epochs; meet each run of `faults` with its fault in the second."""

    def __init__(self, faults=None):
        self.executed = []
        self.faults = faults or {}

    def __call__(self, run, manager):
        self.executed.append(run.lr)
        with manager.run(run):
            for epoch in manager.epochs(2):
                manager.track_loss(run.lr, 1)
                if epoch == 2 and run.lr in self.faults:
                    raise self.faults[run.lr]


def kept(outcome):
    return list(zip(outcome.runs["status"], outcome.runs["epochs"], strict=True))


def test_train_that_fails_before_its_run_names_the_device_of_the_run(start):
    def train(run, manager):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    outcome = start({"device": ["meta"]}, train)

    assert outcome.runs["error"][0].startswith("out of GPU memory on meta in ")


def test_where_to_look_is_told_at_the_start_and_the_command_at_the_end(start, capsys, tmp_path):
    start(LRS, Train(), tensorboard=True, display=None)

    lines = capsys.readouterr().out.splitlines()
    told = [number for number, line in enumerate(lines) if line.startswith("TensorBoard: ")]
    assert [lines[number - 1].partition(" ")[0] for number in told] == [f"{tmp_path}/exp:"]
    assert lines[told[0]] == f"TensorBoard: runmanager tensorboard {tmp_path} --experiment exp"
    assert lines[-1] == f"        runmanager tensorboard {tmp_path}/exp  # all curves"


def train_with(*, scale):
    """Make a training function of which another scale is another code."""

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(run.lr * scale, 1)

    return train


@pytest.mark.parametrize("plan_only", [True, False])
def test_runs_that_changed_are_counted_first(start, tmp_path, capsys, plan_only):
    start({"lr": [0.1]}, train_with(scale=2))
    start({"lr": [0.1, 0.2]}, train_with(scale=1), data="first", changed="keep")
    capsys.readouterr()

    start({"lr": [0.1, 0.2, 0.3]}, train_with(scale=2), data="second", plan_only=plan_only, display=True)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "! 2 runs changed and are executed again: data= is given now (1); scale was 1, is 2, the data (1)"
        "; changed='keep' keeps them"
    )


SETTINGS = {"epochs": 2}
RECORDED: list[float] = []


def note(records, value):
    records.append(value)


def train_by_settings(run, manager):
    note(RECORDED, run.lr)
    with manager.run(run):
        for _ in manager.epochs(SETTINGS["epochs"]):
            manager.track_loss(run.lr, 1)


def test_changed_settings_are_noticed_and_records_of_runs_are_not(start, monkeypatch):
    start({"lr": [0.1]}, train_by_settings)
    same = start({"lr": [0.1]}, train_by_settings)
    monkeypatch.setitem(SETTINGS, "epochs", 4)

    changed = start({"lr": [0.1]}, train_by_settings)

    assert (same.runs["epochs"].tolist(), same.runs["attempts"].tolist()) == ([2], [1])
    assert (changed.runs["epochs"].tolist(), changed.runs["attempts"].tolist()) == ([4], [2])


def test_data_that_are_given_later_count(start, capsys):
    start({"lr": [0.1]}, Train())
    later, without = Train(), Train()

    start({"lr": [0.1]}, later, data="v1", display=None)
    start({"lr": [0.1]}, without)

    assert (later.executed, without.executed) == ([0.1], [])
    assert "! 1 run changed and is executed again: data= is given now;" in capsys.readouterr().out


def test_ctrl_c_while_the_data_are_loaded_ends_at_once_and_writes_nothing(start, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        start({"lr": [0.1]}, Train(), data=lambda: signal.raise_signal(signal.SIGINT))

    assert list(tmp_path.iterdir()) == []


class Dropping:
    """Gets Ctrl-C where Python drops what is raised."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_whose_exception_python_drops_ends_the_run_with_the_next_news_of_it(start):
    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(5):
                manager.track_loss(run.lr, 1)
                if epoch == 2:
                    Dropping()

    outcome = start({"lr": [0.1, 0.2]}, train)

    assert (outcome.exit_code, kept(outcome)) == (130, [("interrupted", 2), ("pending", 0)])


def test_tables_that_cannot_be_written_at_the_end_are_a_failure_of_storage(start, monkeypatch, capsys):
    def full(*_):
        raise StorageError(f"cannot write results.csv ({os.strerror(errno.ENOSPC)})")

    monkeypatch.setattr(results_files, "write_results", full)
    monkeypatch.setattr("runmanager.front.run_grid.Tables.run_ended", lambda *_: None)

    outcome = start({"lr": [0.1]}, Train(), display=None)

    assert (outcome.exit_code, kept(outcome)) == (74, [("completed", 2)])
    assert "No space left on device" in capsys.readouterr().out


NOTING = """
SEEN = []
def note(values, value):
    values.append(value)
def train(run, manager):
    note(SEEN, run.lr)
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(run.lr, 1)
"""


@pytest.mark.parametrize(("is_in_process", "attempts"), [(True, 1), (False, 2)])
def test_what_runs_change_in_the_process_of_an_executor_that_says_so_is_no_change(
    tmp_path, monkeypatch, is_in_process, attempts
):
    class Here(InlineExecutor):
        pass

    Here.is_in_process = is_in_process
    name = f"noting_{is_in_process}"
    (tmp_path / f"{name}.py").write_text(NOTING)
    monkeypatch.syspath_prepend(tmp_path)
    train = importlib.import_module(name).train

    for _ in range(2):
        outcome = run_grid(LRS, train, experiment="exp", root=tmp_path, executor=Here(), display=False)

    assert outcome.runs["attempts"].tolist() == [attempts] * 3

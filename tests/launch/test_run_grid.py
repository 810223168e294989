import contextlib
import csv
import errno
import importlib
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from runmanager import (
    GridError,
    InlineExecutor,
    LanesExecutor,
    RunBuilder,
    RunsWarning,
    StorageError,
    load_results,
    load_runs,
    run_grid,
)
from runmanager.devices import torch_devices
from runmanager.storage.journal import Journal
from runmanager.tables import files
from tests.board.reading import sessions_in
from tests.locations import line_with
from tests.nightly import of_night_but

LRS = {"lr": [0.1, 0.2, 0.3]}
NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")


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


def csv_rows(tmp_path):
    with (tmp_path / "exp" / "results.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_run_is_executed_in_order(start, tmp_path):
    train = Train()

    outcome = start(LRS, train)

    assert train.executed == [0.1, 0.2, 0.3]
    assert outcome.exit_code == 0
    assert outcome.folder == tmp_path / "exp"
    assert [(run.lr, str(o.status), o.error, o.epochs) for run, o in outcome.outcomes] == [
        (lr, "completed", "", 2) for lr in LRS["lr"]
    ]
    assert outcome.results["loss"].tolist() == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert outcome.runs["run"].tolist() == [1, 2, 3]
    assert outcome.results.equals(load_results(tmp_path / "exp"))
    assert outcome.runs.equals(load_runs(tmp_path / "exp"))


def test_a_second_start_executes_only_what_is_missing(start):
    train, again = Train({0.2: ValueError("no")}), Train()

    codes = [start(LRS, train).exit_code, start(LRS, again).exit_code]
    left_alone = again.executed.copy()
    codes += [start(LRS, again, retry_failed=True).exit_code, start(LRS, again).exit_code]

    assert (train.executed, left_alone, again.executed) == ([0.1, 0.2, 0.3], [], [0.2])
    assert codes == [1, 1, 0, 0]


def test_a_value_added_to_an_axis_executes_only_the_new_cells(start, tmp_path):
    train = Train()
    start(LRS, train)

    outcome = start({"lr": [0.05, *LRS["lr"]]}, train)
    narrow = start({"lr": [0.3]}, train)

    assert train.executed == [0.1, 0.2, 0.3, 0.05]
    assert outcome.runs["run"].tolist() == [4, 1, 2, 3]
    assert narrow.runs["run"].tolist() == [3]
    assert len(csv_rows(tmp_path)) == 8


def test_a_failing_run_does_not_stop_the_others(start, tmp_path):
    outcome = start(LRS, Train({0.1: ValueError("no\nmore"), 0.2: ZeroDivisionError()}))

    assert kept(outcome) == [("failed", 1), ("failed", 1), ("completed", 2)]
    assert outcome.exit_code == 1
    assert [str(o.status) for _, o in outcome.outcomes] == ["failed", "failed", "completed"]
    assert outcome.runs["error"].tolist() == [
        f"ValueError: no (in epoch 2, {line_with('raise self.faults')})",
        f"ZeroDivisionError (in epoch 2, {line_with('raise self.faults')})",
        "",
    ]
    assert "ValueError: no\nmore" in (tmp_path / "exp" / "001-lr=0.1" / "error.log").read_text()


def test_a_diverged_run_does_not_stop_the_others(start):
    outcome = start({"lr": [math.nan, 0.1]}, Train())

    assert kept(outcome) == [("diverged", 1), ("completed", 2)]
    assert outcome.exit_code == 1


def test_the_first_failure_stops_a_grid_where_that_is_wanted(start):
    outcome = start(LRS, Train({0.2: ValueError("no")}), on_error="stop")

    assert kept(outcome) == [("completed", 2), ("failed", 1), ("pending", 0)]
    assert outcome.exit_code == 1


@NO_CUDA
def test_runs_whose_device_is_not_there_are_skipped(start):
    train = Train()

    outcome = start({"lr": [0.1], "device": ["cuda", "cpu", "cuda:1"]}, train)

    assert kept(outcome) == [("unavailable", 0), ("completed", 2), ("unavailable", 0)]
    assert outcome.runs["error"].str.startswith("device 'cuda:1' is not there, this machine has ").sum() == 1
    assert train.executed == [0.1]
    assert outcome.exit_code == 0


@NO_CUDA
def test_a_grid_whose_devices_are_all_missing_has_exit_code_1(start):
    assert start({"lr": [0.1], "device": ["cuda"]}, Train()).exit_code == 1


def test_ctrl_c_keeps_what_is_committed_and_the_next_start_goes_on(start, capsys):
    again = Train()

    outcome = start(LRS, Train({0.2: KeyboardInterrupt()}), display=True)
    shown = capsys.readouterr().out
    finished = start(LRS, again)

    assert outcome.exit_code == 130
    assert kept(outcome) == [("completed", 2), ("interrupted", 1), ("pending", 0)]
    assert [str(o.status) for _, o in outcome.outcomes] == ["completed", "interrupted", "pending"]
    assert "what came after its last checkpoint is dropped" in shown
    assert (again.executed, finished.exit_code) == ([0.2, 0.3], 0)


PROGRAM = """
import sys, time
from runmanager import run_grid

def train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(2):
            manager.track_loss(run.lr, 1)
            if epoch == 2:
                print("waiting", flush=True)
                time.sleep(60)

quiet = {"display": False, "executor": "inline"}
outcome = run_grid({"lr": [0.1, 0.2]}, train, experiment="exp", root=sys.argv[1], **quiet)
sys.exit(outcome.exit_code)
"""


@pytest.mark.slow
def test_sigterm_keeps_what_is_committed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    arguments = [sys.executable, str(program), str(tmp_path / "runs")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)

    assert (process.returncode, errors) == (143, "")
    assert load_runs(tmp_path / "runs")["status"].tolist() == ["interrupted", "pending"]
    assert load_results(tmp_path / "runs")["epoch"].tolist() == [1]


def test_sigterm_means_what_it_meant_before(start):
    before = signal.getsignal(signal.SIGTERM)

    start(LRS, Train())

    assert signal.getsignal(signal.SIGTERM) is before


def test_a_grid_can_be_executed_in_a_thread(start):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(start(LRS, Train()).exit_code))
    thread.start()
    thread.join()

    assert codes == [0]


def test_storage_that_fails_ends_the_grid(start, monkeypatch, capsys):
    commit = Journal.epoch

    def commit_or_fail(journal, record):
        if record.metrics["loss"] == 0.2:
            raise StorageError(28, "cannot write (No space left on device)", "attempt-1.jsonl")
        commit(journal, record)

    monkeypatch.setattr(Journal, "epoch", commit_or_fail)

    outcome = start(LRS, Train(), display=True)

    assert outcome.exit_code == 74
    assert [status for status, _ in kept(outcome)] == ["completed", "interrupted", "pending"]
    assert "✗ [Errno 28] cannot write (No space left on device): 'attempt-1.jsonl'" in capsys.readouterr().out


def test_a_run_that_ends_the_program_harms_only_itself(start):
    outcome = start(LRS, Train({0.2: SystemExit(3)}))

    assert outcome.runs["status"].tolist() == ["completed", "failed", "completed"]
    assert outcome.runs["error"].tolist() == [
        "",
        f"SystemExit: 3 (in epoch 2, {line_with('raise self.faults')})",
        "",
    ]


@pytest.mark.slow
def test_train_that_begins_no_run_is_told_to(start, tmp_path):
    outcome = start(LRS, lambda run, manager: None)  # noqa: ARG005 - what train is called with

    message = "LifecycleError: train() began no run: write `with manager.run(run, network, loader):` in it"
    assert outcome.runs["error"].tolist() == [message] * 3
    assert [str(o.status) for _, o in outcome.outcomes] == ["failed"] * 3
    assert outcome.exit_code == 1
    assert message in (tmp_path / "exp" / "003-lr=0.3" / "error.log").read_text()


def test_train_that_fails_before_its_run_is_recorded(start):
    def train(run, manager):
        raise ValueError(run.lr)

    outcome = start(LRS, train)

    line = line_with("raise ValueError(run.lr)")
    assert outcome.runs["error"].tolist() == [f"ValueError: {lr} (in {line})" for lr in LRS["lr"]]


def test_train_that_fails_before_its_run_names_the_device_of_the_run(start):
    def train(run, manager):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    outcome = start({"device": ["meta"]}, train)

    assert outcome.runs["error"][0].startswith("out of GPU memory on meta (asked for 2.00 GiB) in ")


@pytest.mark.slow
@pytest.mark.parametrize("num_epochs", [0, 2])
def test_train_that_fails_after_its_run_keeps_the_epochs(start, num_epochs):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(num_epochs):
                manager.track_loss(run.lr, 1)
        raise ValueError("late")

    outcome = start(LRS, train)

    assert kept(outcome) == [("failed", num_epochs)] * 3
    line = line_with('raise ValueError("late")')
    assert outcome.runs["error"].tolist() == [f"ValueError: late (in {line})"] * 3
    assert len(list(outcome.folder.glob("00*"))) == 3
    assert outcome.exit_code == 1


@pytest.mark.slow
def test_train_that_leaves_its_run_open_has_completed_it(start):
    def train(run, manager):
        manager.begin_run(run)
        manager.begin_epoch()
        manager.end_epoch()

    outcome = start(LRS, train)

    assert kept(outcome) == [("completed", 1)] * 3


def test_wrong_arguments_are_named_all_at_once_and_nothing_is_written(tmp_path):
    with pytest.raises(GridError) as caught:
        run_grid(
            {"lr": 0.1, "device": ["gpu"]},
            "train",  # type: ignore[arg-type]
            experiment="../exp",
            root=tmp_path,
            executor="cloud",
            on_error="ignore",
        )

    assert [problem.partition(", got ")[0] for problem in caught.value.problems] == [
        "executor must be one of 'lanes', 'inline', 'ray'",
        "on_error must be one of 'continue', 'stop'",
        "train must be a function of (run, manager)",
        "an experiment's name is a folder: up to 64 letters, digits, '.', '_' and '-', unlike a run's",
        "values of 'lr' must be a list or tuple",
        "unknown device 'gpu': did you mean 'cuda'?",
    ]
    assert list(tmp_path.iterdir()) == []


TWICE = (
    "is in this grid twice: give every value of an axis, and every run, once, as "
    "runs_a + [run for run in runs_b if run not in runs_a]"
)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        (
            [{"lr": 1}],
            (
                "a grid is a mapping of axes, or runs from RunBuilder.get_runs(), got [{'lr': 1}]: write "
                "{'lr': [0.1, 0.01]}, or RunBuilder.get_runs(a) + RunBuilder.get_runs(b) for several mappings"
            ),
        ),
        (RunBuilder.get_runs(LRS) * 2, f"Run(lr=0.1) {TWICE}"),
        (
            {"lr": list(range(10_001))},
            (
                "this grid has 10,001 runs (10001), the limit is 10,000: shorten an axis, or write "
                "RunBuilder.get_runs(params, max_runs=10001)"
            ),
        ),
        ({"lr": [0.1, 0.2, 0.1]}, f"Run(lr=0.1) {TWICE}"),
        ({"n": [1, 1.0]}, f"Run(n=1.0) {TWICE}"),
        ({"n": [math.nan, float("nan")]}, f"Run(n=nan) {TWICE}"),
        ({"at": ["cpu", torch.device("cpu")]}, f"Run(at=device(type='cpu')) {TWICE}"),
        ({("a", "b"): [(1, 2), [1, 2]]}, f"Run(a=1, b=2) {TWICE}"),
        ({"n": np.zeros(2)}, f"Run(n=0.0) {TWICE}"),
    ],
    ids=["no runs", "runs twice", "large", "twice", "equal", "nan", "device", "pair", "array"],
)
def test_a_grid_that_cannot_be_run_is_refused(start, tmp_path, params, problem):
    with pytest.raises(GridError) as caught:
        start(params, Train())

    assert str(caught.value) == problem
    assert list(tmp_path.iterdir()) == []


def test_values_that_mean_nothing_in_another_process_are_refused_all_at_once(start, tmp_path):
    axes = {"network": [lambda: 1, lambda: 2], "data": [object()], "lr": [0.1]}

    with pytest.raises(GridError) as caught:
        start(axes, Train())

    rule = "has no identity in another process: give it a name"
    assert [problem.partition(rule)[0] for problem in caught.value.problems[:2]] == [
        "'network': a value of the class function ",
        "'data': a value of the class object ",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_hyperparameter_may_have_the_name_of_a_column(start, tmp_path):
    grid = {"epochs": [1, 2], "loss": ["mse"], "status": ["new"], "jobs": [3], "lr": [0.5]}

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(run.epochs):
                manager.track_loss(run.lr, 1)

    outcome = start(grid, train)

    assert outcome.runs["epochs (hyperparameter)"].tolist() == outcome.runs["epochs"].tolist() == [1, 2]
    assert outcome.results["loss (hyperparameter)"].tolist() == ["mse"] * 3
    assert outcome.results["loss"].tolist() == [0.5] * 3
    assert outcome.runs["status (hyperparameter)"].tolist() == ["new"] * 2
    assert outcome.runs.equals(load_runs(tmp_path / "exp"))
    assert start(grid, train).runs["attempts"].tolist() == [1, 1]


@pytest.mark.slow
def test_runs_of_two_grids_with_other_axes_are_one_grid(start, tmp_path, capsys):
    by_sgd = RunBuilder.get_runs({"lr": [0.1], "momentum": [0.0, 0.9]})
    by_adam = RunBuilder.get_runs({"lr": [0.1], ("beta", "n"): [(0.99, 3)]})
    train = Train()

    start(by_sgd + by_adam, train, plan_only=True)
    outcome = start(by_sgd + by_adam, train, tensorboard=True)
    again = start(by_adam + by_sgd, train)

    assert outcome.exit_code == again.exit_code == 0
    assert [path.name for path in sorted((tmp_path / "exp").glob("0*"))] == [
        "001-momentum=0", "002-momentum=0.9", "003-beta=0.99-n=3",
    ]  # fmt: skip
    assert len(train.executed) == 3
    assert again.runs["run"].tolist() == [3, 1, 2]
    table = load_runs(tmp_path / "exp")
    assert [{name: row[name] for name in ("lr", "momentum", "beta", "n") if pd.notna(row[name])}
            for row in table.to_dict("records")] == [
        {"lr": 0.1, "momentum": 0.0}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "beta": 0.99, "n": 3},
    ]  # fmt: skip
    sessions = [sessions_in(path)[0].hparams for path in sorted((tmp_path / "exp").glob("0*"))]
    assert [(set(shown), shown["n"].string_value) for shown in sessions] == [
        ({"lr", "momentum", "beta", "n"}, n) for n in ("none", "none", "3")
    ]
    assert [row["beta"] for row in csv_rows(tmp_path)] == ["", "", "", "", "0.99", "0.99"]
    planned = capsys.readouterr().out.splitlines()
    assert [line.split() for line in planned if line.endswith("execute")] == [
        ["1", "0", "execute"], ["2", "0.9", "execute"], ["3", "0.99", "3", "execute"],
    ]  # fmt: skip


def test_chosen_runs_are_a_grid_too(start):
    train = Train()

    outcome = start(RunBuilder.get_runs(LRS, where=lambda run: run.lr > 0.1), train)

    assert train.executed == [0.2, 0.3]
    assert outcome.runs["run"].tolist() == [1, 2]


def test_the_tables_are_written_after_runs_and_at_the_end(start, tmp_path):
    rows: list[int] = []

    def train(run, manager):
        rows.append(len(csv_rows(tmp_path)) if rows else 0)
        Train()(run, manager)

    start(LRS, train)

    assert rows[:2] == [0, 2]  # later ones may wait: runs of no length would write tables most of the time
    assert [row["lr"] for row in csv_rows(tmp_path)] == ["0.1", "0.1", "0.2", "0.2", "0.3", "0.3"]


@pytest.mark.slow(everywhere=True)
def test_a_grid_says_what_it_does(start, capsys, tmp_path):
    for _ in range(2):
        start(LRS, Train({0.2: ValueError("no")}), display=None)

    panel = re.compile(r"^━━ .*?^        runmanager list.*?$", re.MULTILINE | re.DOTALL)
    output = panel.sub("(the panel)", capsys.readouterr().out)
    lines = [line.rpartition(" · ")[0].rstrip() or line for line in output.splitlines()]
    folder = tmp_path / "exp"
    log = f"{folder}/002-lr=0.2/error.log"
    failed = f"    see {log}; once the cause is fixed, retry_failed=True executes the run again"
    line = line_with("raise self.faults")
    assert lines == [
        f"{folder}: 3 runs, 3 to execute",
        "✓ 1/3 run 1 lr=0.1 · loss 0.1000",
        f"✗ 2/3 run 2 lr=0.2 · failed · ValueError: no (in epoch 2, {line})",
        failed,
        "✓ 3/3 run 3 lr=0.3 · loss 0.3000",
        "(the panel)",
        f"{folder}: 3 runs, 0 to execute, 2 done before, 1 failed before",
        "(the panel)",
    ]


@pytest.mark.slow
def test_a_network_that_another_run_of_the_grid_trained_is_named(start):
    network = nn.Linear(1, 1)

    def train(run, manager):
        with manager.run(run, network):
            for _ in manager.epochs(1):
                manager.track_loss(0.5, 1)

    with pytest.warns(RunsWarning, match="the network of run 2 was trained by run 1 already"):
        start({"lr": [0.1, 0.2]}, train)


def test_a_train_that_runs_something_else_is_no_success(start):
    def train(run, manager):
        with manager.run({**run._asdict(), "extra": 1}):
            for _ in manager.epochs(1):
                manager.track_loss(0.5, 1)

    outcome = start({"lr": [0.1]}, train)

    assert outcome.exit_code == 1


def test_runs_that_were_unavailable_keep_their_numbers(start, monkeypatch):
    grid = {"device": ["meta", "cpu"]}
    monkeypatch.setattr(torch_devices, "is_available", lambda device: str(device) != "meta")

    numbers = [start(grid, Train()).runs["run"].tolist() for _ in range(2)]

    assert numbers == [[1, 2], [1, 2]]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_the_exit_code_tells_which_signal_ended_a_grid(start, number):
    def train(run, manager):
        with manager.run(run):
            os.kill(os.getpid(), number)

    before = signal.signal(number, signal.SIG_DFL)  # under nohup, it is ignored
    try:
        assert start(LRS, train).exit_code == 128 + number
    finally:
        signal.signal(number, before)


def test_where_to_look_is_told_at_the_start_and_the_command_at_the_end(start, capsys, tmp_path):
    start(LRS, Train(), tensorboard=True, display=None)

    lines = capsys.readouterr().out.splitlines()
    told = [number for number, line in enumerate(lines) if line.startswith("TensorBoard: ")]
    assert [lines[number - 1].partition(" ")[0] for number in told] == [f"{tmp_path}/exp:"]
    assert lines[told[0]] == f"TensorBoard: runmanager tensorboard {tmp_path} --experiment exp"
    assert lines[-1] == f"        runmanager tensorboard {tmp_path}/exp  # all curves"


def test_where_to_look_is_told_once_when_nothing_is_left_to_execute(start, capsys):
    start(LRS, Train(), tensorboard=True)

    start(LRS, Train(), tensorboard=True, display=None)

    assert capsys.readouterr().out.count("tensorboard") == 1


def test_without_event_files_nothing_is_said_of_tensorboard(start, capsys):
    start(LRS, Train(), display=None)

    assert "TensorBoard" not in capsys.readouterr().out


def test_a_plan_writes_nothing_and_is_no_failure(start, tmp_path, capsys):
    outcome = start(LRS, Train(), plan_only=True)

    assert outcome.exit_code == 0
    assert outcome.runs["status"].tolist() == ["pending"] * 3
    assert "execute" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def train_with(*, scale):
    """Make a training function of which another scale is another code."""

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(run.lr * scale, 1)

    return train


@pytest.mark.parametrize(
    ("options", "losses"),
    [
        ({}, [0.5, 1.0]),
        ({"changed": "rerun"}, [0.5, 1.0]),
        ({"changed": "keep"}, [0.1, 0.2]),
    ],
)
def test_runs_that_changed_are_executed_again_or_kept(start, options, losses):
    start({"lr": [0.1, 0.2]}, train_with(scale=1))

    outcome = start({"lr": [0.1, 0.2]}, train_with(scale=5), **options)

    assert outcome.results["loss"].tolist() == losses


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"changed": "ask"}, "changed must be one of 'rerun', 'keep', got 'ask'"),
        ({"changed": True}, "changed must be one of 'rerun', 'keep', got True"),
    ],
)
def test_what_cannot_be_done_with_changed_runs_is_refused(start, tmp_path, options, problem):
    with pytest.raises(GridError) as caught:
        start({"lr": [0.1]}, train_with(scale=1), on_error="no", **options)

    assert caught.value.problems[-1] == problem
    assert len(caught.value.problems) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("plan_only", [True, False])
def test_runs_that_changed_are_counted_first(start, tmp_path, capsys, plan_only):
    start({"lr": [0.1]}, train_with(scale=2))
    start({"lr": [0.1, 0.2]}, train_with(scale=1), data="first", changed="keep")
    capsys.readouterr()

    start({"lr": [0.1, 0.2, 0.3]}, train_with(scale=2), data="second", plan_only=plan_only, display=True)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "! 2 runs changed and are executed again: data= is given now (1); scale was 1, is 2, the data (1)"
        "; old attempts are kept; changed='keep' continues them"
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


@pytest.mark.slow
def test_what_is_too_large_to_be_compared_is_named_in_one_warning(start, monkeypatch):
    monkeypatch.setattr("runmanager.storage.fingerprint.MOST_BYTES", 1 << 12)
    data, large = torch.zeros(2000), [torch.zeros(2000)]

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(data[0] + large[0][0], 1)

    with pytest.warns(RunsWarning) as caught:
        start({"lr": [0.1]}, train, data=data)

    assert [str(warning.message) for warning in caught] == [
        "train reads large, larger than 0 MiB: only its shape counts; pass it as data="
    ]


def test_data_may_be_a_function_and_changed_data_are_told(start, capsys):
    images = torch.zeros(3)
    start({"lr": [0.1]}, Train(), data=lambda: images)
    same = Train()
    start({"lr": [0.1]}, same, data=images)
    changed = Train()

    start({"lr": [0.1]}, changed, data=lambda: images + 1, display=None)

    assert (same.executed, changed.executed) == ([], [0.1])
    assert "! 1 run changed and is executed again: the data;" in capsys.readouterr().out


def test_data_that_are_given_later_count(start, capsys):
    start({"lr": [0.1]}, Train())
    later, without = Train(), Train()

    start({"lr": [0.1]}, later, data="v1", display=None)
    start({"lr": [0.1]}, without)

    assert (later.executed, without.executed) == ([0.1], [])
    assert "! 1 run changed and is executed again: data= is given now;" in capsys.readouterr().out


def test_data_are_not_loaded_for_a_grid_that_is_refused(start):
    loaded = []

    with pytest.raises(GridError):
        start({"lr": "0.1"}, Train(), data=lambda: loaded.append(1))

    assert loaded == []


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


def by_hooks(run, manager):
    manager.begin_run(run)
    for _ in range(2):
        manager.begin_epoch()
        manager.track_loss(run.lr, 1)
        manager.end_epoch()
    manager.end_run()


def failing_by_hooks(run, manager):
    manager.begin_run(run)
    manager.begin_epoch()
    raise ValueError("no")


def failing_before_it_begins(run, manager):
    raise ValueError("no")


def diverging(run, manager):
    with manager.run(run):
        for _ in manager.epochs(2):
            manager.track_loss(math.nan, 1)


FAILING = [Train({0.1: ValueError("no")}), failing_by_hooks, failing_before_it_begins, diverging]
TRAINS = [Train(), by_hooks, *FAILING]


@pytest.mark.slow
@pytest.mark.parametrize("train", of_night_but(TRAINS, TRAINS[:1]))
def test_ctrl_c_at_any_write_leaves_no_run_running_and_loses_nothing(tmp_path, monkeypatch, train):
    left = math.inf  # how many calls until the signal comes

    def tapped(call):
        def tap(*args, **options):
            nonlocal left
            result = call(*args, **options)
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
            return result

        return tap

    def start(root):
        options: dict[str, Any] = {"tensorboard": False, "display": False, "executor": "inline"}
        return run_grid({"lr": [0.1]}, train, experiment="exp", root=root, **options)

    whole = start(tmp_path / "whole")
    for name in ("open", "write", "fsync", "link", "replace", "unlink", "mkdir"):
        monkeypatch.setattr(os, name, tapped(getattr(os, name)))
    for number in itertools.count(1):
        left = number
        code = start(tmp_path / f"{number}").exit_code
        is_done, left = left > 0, math.inf

        runs = load_runs(tmp_path / f"{number}" / "exp")
        assert code == (whole.exit_code if is_done else 130)
        assert set(runs["status"]) <= {"completed", "failed", "diverged", "interrupted", "pending"}, number
        assert start(tmp_path / f"{number}").exit_code == whole.exit_code
        again = load_results(tmp_path / f"{number}" / "exp")
        assert again["loss"].equals(whole.results["loss"])
        if is_done:
            break

    assert number > 20


def test_tables_that_cannot_be_written_at_the_end_are_a_failure_of_storage(start, monkeypatch, capsys):
    def full(*_):
        raise StorageError(f"cannot write results.csv ({os.strerror(errno.ENOSPC)})")

    monkeypatch.setattr(files, "write_results", full)
    monkeypatch.setattr("runmanager.session.execute.Exports.run_ended", lambda *_: None)

    outcome = start({"lr": [0.1]}, Train(), display=None)

    assert (outcome.exit_code, kept(outcome)) == (74, [("completed", 2)])
    assert "No space left on device" in capsys.readouterr().out


def test_settings_beside_an_executor_of_its_own_are_refused(start, tmp_path):
    with pytest.raises(GridError, match=r"give them to LanesExecutor\(\)"):
        start(LRS, Train(), executor=LanesExecutor(), jobs=4)

    assert list(tmp_path.iterdir()) == []


def test_another_run_than_the_given_one_is_not_begun(start, tmp_path):
    def train(run, manager):
        with manager.run({"lr": 100}):
            pass

    outcome = start(LRS, train)

    assert outcome.runs["status"].tolist() == ["failed"] * 3
    assert all(error.startswith("LifecycleError: train() was given") for error in outcome.runs["error"])
    assert len([path for path in (tmp_path / "exp").iterdir() if path.is_dir()]) == 3


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
    (tmp_path / "noting.py").write_text(NOTING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "noting", raising=False)
    train = importlib.import_module("noting").train

    for _ in range(2):
        outcome = run_grid(LRS, train, experiment="exp", root=tmp_path, executor=Here(), display=False)

    assert outcome.runs["attempts"].tolist() == [attempts] * 3


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("executor", ["inline", "lanes"])
def test_runs_that_change_the_working_directory_send_no_files_elsewhere(tmp_path, monkeypatch, executor, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(2):
                manager.track_loss(run.lr, 1)
        os.chdir(tmp_path / "elsewhere")

    leaves = executor == "inline"  # lanes are replaced
    with pytest.warns(RunsWarning, match="the working directory") if leaves else contextlib.nullcontext():
        outcome = run_grid(LRS, train, experiment="exp", executor=executor, tensorboard=False)
    monkeypatch.chdir(tmp_path)

    assert (outcome.exit_code, kept(outcome)) == (0, [("completed", 2)] * 3)
    assert load_runs("runs/exp")["status"].tolist() == ["completed"] * 3
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert capfd.readouterr().out.startswith("runs/exp: 3 runs, 3 to execute\n")

"""run_grid: what is executed, how runs may end, what is refused, and what a repeated call does."""

import copy
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from runmanager import (
    GridError,
    GridOutcome,
    IntRange,
    LifecycleError,
    OptunaSearch,
    RunBuilder,
    RunsWarning,
    StorageError,
    expand,
    load_results,
    load_runs,
    main,
    run_grid,
)
from tests.border import reading
from tests.border.experiments import Scored
from tests.border.work import LRS, announce, start, statuses, train, trained

HOME = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("own_folder")
DONE, FAILED = ("completed", 3), ("failed", 1)


def all_of(*lrs):
    return [(lr, epoch) for lr in lrs for epoch in (1, 2, 3)]


def test_every_run_is_executed_in_order_and_the_outcome_has_the_tables(own_folder):
    outcome = start()

    assert trained() == all_of(0.1, 0.2, 0.3)
    assert isinstance(outcome, GridOutcome)
    assert (outcome.exit_code, outcome.folder.resolve()) == (0, own_folder / "runs" / "exp")
    assert [(run.lr, str(end.status), end.error, end.epochs) for run, end in outcome.outcomes] == [
        (lr, "completed", "", 3) for lr in LRS["lr"]
    ]
    assert outcome.runs["run"].tolist() == [1, 2, 3]
    assert outcome.results.equals(load_results("runs/exp"))
    assert outcome.runs.equals(load_runs("runs/exp"))


@pytest.mark.parametrize(("kind", "said"), [("more", "ValueError: no more"), ("exit", "SystemExit: 3")])
def test_a_failing_run_does_not_stop_the_others_and_says_where(kind, said):
    announce(kind, 0.1, 2)

    outcome = start()

    assert (statuses(outcome), outcome.exit_code) == ([FAILED, DONE, DONE], 1)
    assert [part in outcome.runs["error"][0] for part in (said, "epoch 2", "work.py:")] == [True] * 3
    log = (reading.run_folder("runs/exp") / "error.log").read_text()
    assert log.startswith("Traceback")
    assert said in log
    trained()
    assert statuses(start()) == [FAILED, DONE, DONE]  # until it is asked for
    assert start(retry_failed=True).runs["error"].tolist() == [""] * 3
    assert trained() == [(0.1, 2), (0.1, 3)]


@pytest.mark.parametrize(
    "raised", [ValueError("x" * 50_000), ExceptionGroup("x" * 50_000, [OSError("no data")])]
)
@pytest.mark.parametrize("display", [None, False])
def test_a_long_message_is_cut_on_the_screen_and_whole_in_error_log(display, raised, capsys):
    def fail(run, manager):
        raise raised

    outcome = start({"lr": [0.1]}, fail, display=display)

    assert 2_000 < len(outcome.runs["error"][0]) < 2_100
    output = capsys.readouterr()
    assert len(output.out + output.err) < 6_000
    assert "x" * 50_000 in (reading.run_folder("runs/exp") / "error.log").read_text()


def test_a_group_of_exceptions_names_its_causes():
    def fail(run, manager):
        inner = ExceptionGroup("later", [MemoryError("no memory")] if run.lr == 0.2 else [TypeError("no text")])
        raise ExceptionGroup("tasks", [ValueError("no data\nof 2"), inner])

    outcome = start({"lr": [0.1, 0.2]}, fail)

    assert all(
        cause in outcome.runs["error"][0] for cause in ("tasks", "ValueError: no data;", "TypeError: no text")
    )
    assert outcome.runs["status"].tolist() == ["failed", "out of memory"]


def test_the_same_call_executes_only_what_is_missing_and_a_grown_axis_its_new_runs():
    start()
    trained()

    grown = start({"lr": [0.05, *LRS["lr"]]})
    fewer = start({"lr": [0.3]})

    assert trained() == all_of(0.05)
    assert grown.runs["run"].tolist() == [4, 1, 2, 3]
    assert fewer.runs["run"].tolist() == [3]
    assert len(load_runs("runs/exp")) == 4
    assert len(load_results("runs/exp")) == 12


def test_a_diverged_run_stops_harms_no_other_and_is_never_repeated():
    diverging = Scored(lambda run: {"loss": math.nan if run.lr < 0.2 else 0.5}, epochs=3)

    outcome = start({"lr": [0.1, 0.2]}, diverging)
    again = start({"lr": [0.1, 0.2]}, diverging)

    assert statuses(outcome) == statuses(again) == [("diverged", 1), DONE]
    assert (outcome.exit_code, again.runs["attempts"].tolist()) == (1, [1, 1])
    assert "epoch 1" in outcome.runs["error"][0]


def test_the_first_failure_stops_a_grid_where_that_is_asked_for():
    announce("more", 0.2, 2)

    outcome = start(on_error="stop")

    assert (statuses(outcome), outcome.exit_code) == ([DONE, FAILED, ("pending", 0)], 1)


def test_runs_of_a_device_that_is_not_here_are_unavailable_and_the_others_run():
    grid = {"lr": [0.1], "device": ["xpu:99", "cpu", torch.device("meta")]}

    outcome = start(grid)

    assert statuses(outcome)[:2] == [("unavailable", 0), DONE]
    assert "xpu:99" in outcome.runs["error"][0]
    assert "cpu" in outcome.runs["error"][0]
    assert outcome.exit_code == 0
    assert trained() == all_of(0.1, 0.1)
    assert start(grid).runs["run"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_the_exit_code_says_which_signal_ended_a_grid_and_handlers_are_restored(number):
    def killing(run, manager):
        with manager.run(run):
            os.kill(os.getpid(), number)

    before = signal.signal(number, signal.SIG_DFL)
    try:
        assert start(LRS, killing).exit_code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


@pytest.mark.slow(everywhere=True)
def test_the_time_limit_ends_a_grid_with_a_code_of_its_own_also_in_a_thread_and_the_next_call_resumes():
    def slow(run, manager):
        with manager.run(run):
            for _ in manager.epochs(3, checkpoint={"state": {}}):
                manager.track_loss(run.lr, 1)
                time.sleep(0.02)

    grid, codes = {"lr": [number / 100 for number in range(1, 6)]}, [75]
    while codes[-1] == 75 and len(codes) < 50:
        thread = threading.Thread(
            target=lambda: codes.append(start(grid, slow, max_seconds=0.1 * len(codes)).exit_code)
        )
        thread.start()
        thread.join()

    assert len(codes) > 2
    assert codes[-1] == 0
    assert load_results("runs")["epoch"].tolist() == [1, 2, 3] * 5


def begins_none(run, manager):
    """Do nothing."""


def begins_another(run, manager):
    with manager.run({"lr": 100}):
        pass


def late(run, manager):
    train(run, manager)
    raise ValueError("late")


def early(run, manager):
    raise ValueError("early")


@pytest.mark.parametrize(
    ("function", "epochs", "said"),
    [(begins_none, 0, "train()"), (begins_another, 0, "train()"), (late, 3, "late"), (early, 0, "early")],
)
def test_train_that_begins_no_run_or_another_one_or_fails_around_it_is_recorded(function, epochs, said):
    outcome = start(LRS, function)

    assert (statuses(outcome), outcome.exit_code) == ([("failed", epochs)] * 3, 1)
    assert len(reading.run_folders(outcome.folder)) == 3
    assert outcome.runs["error"].str.contains(said, regex=False).all()


def test_a_run_left_open_by_the_tutorials_hooks_is_completed():
    def by_hooks(run, manager):
        manager.begin_run(run)
        manager.begin_epoch()
        manager.track_loss(run.lr, 1)
        manager.end_epoch()

    assert statuses(start(LRS, by_hooks)) == [("completed", 1)] * 3


def test_a_root_that_cannot_be_written_and_the_wrong_order_of_parameters_are_named(capsys):
    with pytest.raises(StorageError) as caught:
        run_grid({"lr": [1]}, train, experiment="exp", root="/proc/runs")
    with pytest.raises(GridError, match=r"train\(run, manager\): exchange"):
        run_grid({"lr": [1]}, lambda manager, run: train(run, manager), experiment="exp")

    assert str(caught.value).startswith("/proc/runs/exp cannot be written")
    assert "committed" not in str(caught.value)
    assert main({"lr": [1]}, train, experiment="exp", root="/proc/runs", arguments=[]) == 74
    assert "/proc/runs/exp cannot be written" in capsys.readouterr().err


SHADOW = """
from runmanager import run_grid

def train(run, manager):
    manager.begin_run(run)

{guard}run_grid({{"lr": [1]}}, train, experiment="exp", executor={executor!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "guard", "executor"),
    [("timeit", "", "inline"), ("main", "if __name__ == '__main__':\n    ", "lanes")],
)
def test_a_file_that_hides_a_module_of_torch_is_named(own_folder, name, guard, executor):
    (own_folder / "timeit.py").write_text("import torch\nlayer = torch.nn.Linear(1, 1)")
    (own_folder / f"{name}.py").write_text(SHADOW.format(guard=guard, executor=executor))

    command, environment = [sys.executable, f"{name}.py"], os.environ | {"PYTHONPATH": str(HOME)}
    hidden = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    sentence = "a worker could not start: your file timeit.py hides a module of torch: give it another name"
    lines = hidden.stderr.splitlines()
    assert any(line.endswith(sentence) for line in lines)
    assert len(lines) < 40  # the server of lanes may add its own traceback, of 18 lines


def test_only_executes_one_run_here_and_raises_what_train_raises():
    announce("more", 0.2, 2)

    with pytest.raises(ValueError, match="no more") as caught:
        start(only=2)

    assert caught.traceback[-1].name == "meet"
    assert load_runs("runs")["status"].tolist() == ["pending", "failed", "pending"]
    trained()
    assert start(only=2).exit_code == 0  # a failed run is executed again, from its checkpoint
    assert trained() == [(0.2, 2), (0.2, 3)]
    assert statuses(start()) == [DONE] * 3


def test_only_keeps_completed_runs_and_refuses_others_than_numbers():
    start()
    assert start(only=2).exit_code == 0

    for only, named in ((70, "only=70"), ("3", "only=.*'3'|'3'.*only"), ([], "only")):
        with pytest.raises(GridError, match=named):
            start(only=only)

    assert load_runs("runs")["attempts"].tolist() == [1, 1, 1]


def test_data_are_not_loaded_for_a_grid_that_is_refused():
    with pytest.raises(GridError):
        start({"lr": "0.1"}, data=lambda: pytest.fail("they were loaded"))


CHANGES = {
    "dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "threads": (lambda: torch.set_num_threads(3), torch.get_num_threads),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        torch.are_deterministic_algorithms_enabled,
    ),
    "folder": (lambda: os.chdir("/"), Path.cwd),
    "grad mode": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
}


def test_a_run_that_changes_its_process_changes_no_later_run():
    def looked():
        return [look() for _, look in CHANGES.values()]

    def changing(run, manager):
        seen.append(looked())
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(0.5, 1)
        change, look = CHANGES[run.what]
        change()
        changed.append(look() != expected[[*CHANGES].index(run.what)])

    seen, changed, expected = list[Any](), list[bool](), looked()
    with pytest.warns(RunsWarning):
        outcome = start({"what": [*CHANGES]}, changing)

    assert (outcome.exit_code, seen, looked()) == (0, [expected] * 5, expected)
    assert changed == [True] * 5


def test_a_run_that_was_killed_is_repeated_once_in_the_same_call_where_that_is_asked_for():
    def killed(run, manager):
        with manager.run(run):
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")

    outcome = start({"lr": [1]}, killed, retries=1)

    assert outcome.runs[["status", "attempts"]].to_numpy().tolist() == [["killed", 2]]


def grows(run, manager):
    """Change the values of the run, and track how many there are."""
    layers = (run.config if "config" in run._fields else run).layers
    layers.append(3)
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(len(layers), 1)


@dataclass
class Network:
    layers: list[int]
    width: int = 8


AXES = {"layers": [[1], [1, 2]], "seed": [0, 1]}
CONFIGS = expand(Network([1, 2]), {"width": [8, 16]})


@pytest.mark.parametrize(
    ("executor", "params", "losses"),
    [("inline", AXES, [2, 2, 3, 3]), pytest.param("lanes", CONFIGS, [3, 3], marks=pytest.mark.slow)],
)
def test_a_run_stays_the_same_run_when_train_changes_its_values(executor, params, losses):
    for outcome in [start(params, grows, executor=executor) for _ in range(2)]:
        assert statuses(outcome) == [("completed", 1)] * len(losses)
        assert outcome.runs["loss"].tolist() == losses
        assert outcome.runs["attempts"].tolist() == [1] * len(losses)
        assert [len(layers) for layers in outcome.runs["layers"]] == [n - 1 for n in losses]
    assert len(reading.run_folders(outcome.folder)) == len(losses)


def test_axes_in_another_order_have_the_same_runs_whose_names_end_with_the_device():
    values = {"device": ["cpu", "meta"], "lr": [1, 2]}
    for names in (values, reversed(values)):
        outcome = start({name: values[name] for name in names}, once)

    settings = ["lr=1-device=cpu", "lr=2-device=cpu", "lr=1-device=meta", "lr=2-device=meta"]
    assert sorted(path.name for path in reading.run_folders(outcome.folder)) == [
        f"{number:03}-{setting}" for number, setting in enumerate(settings, 1)
    ]


def test_a_closed_standard_stream_becomes_the_null_device_before_a_file_gets_its_number():
    before = os.dup(0)
    os.close(0)
    try:
        outcome = start({"lr": [1]}, once)
        device = os.fstat(0).st_rdev
    finally:
        os.dup2(before, 0)
        os.close(before)

    assert (statuses(outcome), device) == ([("completed", 0)], Path(os.devnull).stat().st_rdev)


def test_a_script_that_a_new_process_executes_again_is_refused():
    names = {"__name__": "__mp_main__", "start": start, "once": once}

    with pytest.raises(LifecycleError, match="__main__"):
        exec("start({'lr': [1]}, once)", names)  # noqa: S102 - as multiprocessing does


def once(run, manager):
    with manager.run(run):
        pass


def test_a_copy_of_a_run_is_that_run_and_a_run_changed_before_the_start_is_refused():
    (run,) = RunBuilder.get_runs({"layers": [[1, 2]]})
    copies = [copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))]

    for each in copies:
        each.layers.append(3)

    for changed in (run, *copies):
        with pytest.raises(GridError, match="_replace"):
            start([changed])
    assert statuses(start([run._replace(layers=[1, 2, 3])], grows)) == [("completed", 1)]


POOL = """
import multiprocessing

def double(x):
    return x * 2

def train(run, manager):
    with manager.run(run), multiprocessing.Pool(1) as pool:
        pool.map(double, [run.lr])
"""


def test_a_function_of_the_script_that_no_pool_can_load_is_named_with_the_way_out():
    script = {"__name__": "__main__"}
    exec(POOL, script)  # noqa: S102 - as a script is executed

    (error,) = start({"lr": [1]}, script["train"], executor="lanes").runs["error"]

    assert "double" in error
    assert "put it into a module that the script imports" in error


@pytest.mark.parametrize(
    ("error", "again"), [(MemoryError, copy.copy), (RuntimeError, copy.deepcopy), (None, lambda run: run)]
)
def test_a_run_that_begins_again_in_train_is_at_its_next_attempt(error, again):
    def train(run, manager):
        for size in (8, 4):
            with suppress(MemoryError, RuntimeError), manager.run(again(run)):
                for epoch in manager.epochs(2):
                    manager.track_loss(size, 1)
                    if size * epoch == 16 and error is not None:
                        raise error

    outcome = start(function=train)

    assert statuses(outcome) == [("completed", 2)] * 3
    assert outcome.results[["lr", "loss"]].to_numpy().tolist() == [
        [lr, 4.0] for lr in (0.1, 0.1, 0.2, 0.2, 0.3, 0.3)
    ]
    assert len(load_runs("runs/exp")) == 3


@pytest.mark.parametrize(("executor", "checkpoint"), [("inline", {"state": {}}), (None, None)])
def test_a_run_whose_folder_is_removed_fails_and_the_others_go_on(executor, checkpoint):
    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(3, checkpoint=checkpoint):
                manager.track_loss(epoch, 1)
                if run.lr == 0.2 and epoch == 2:
                    shutil.rmtree(manager.folder)

    outcome = start(LRS, train, executor=executor)

    assert (outcome.exit_code, outcome.runs["status"].tolist()) == (1, ["completed", "failed", "completed"])
    assert "folder of the run was removed" in outcome.runs["error"][1]


# Failures that are alike


def failing(run, manager):
    """Fail with a number of the run in the message, unless the file `fixed` is there or the run is said to."""
    with Path("trained.txt").open("a") as file:
        file.write(f"{run.lr} ")
    with manager.run(run):
        if not Path("fixed").exists() and run.lr not in json.loads(Path("good.txt").read_text()):
            raise ValueError(f"no data for {run.lr} at 1e-{run.lr}")
        for _ in manager.epochs(1):
            manager.track_loss(run.lr, 1)


def test_after_three_failures_alike_the_last_run_is_next_and_stops_the_grid_if_it_fails_alike(capsys):
    Path("good.txt").write_text("[1]")

    outcome = start({"lr": range(1, 10)}, failing, display=None)

    assert outcome.exit_code == 1
    assert Path("trained.txt").read_text() == "1 2 3 4 9 "
    assert [str(ended.status) for _, ended in outcome.outcomes] == [
        "completed", *["failed"] * 3, *["pending"] * 4, "failed"
    ]  # fmt: skip
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("stopped")]
    for part in ("4 runs in a row", "ValueError: no data for 9", "same command goes on", "(4)"):
        assert part in line

    Path("fixed").touch()
    outcome = start({"lr": range(1, 10)}, failing, retry_failed=True)

    assert outcome.exit_code == 0
    assert Path("trained.txt").read_text() == "1 2 3 4 9 2 3 4 5 6 7 8 9 "


@pytest.mark.parametrize("good", [[8, 9], [3, 6]])
def test_a_grid_in_which_some_runs_succeed_in_between_is_executed_whole(good):
    Path("good.txt").write_text(str(good))

    outcome = run_grid({"lr": range(1, 10)}, failing, experiment="exp", executor="inline", display=False)

    assert len(Path("trained.txt").read_text().split()) == 9
    assert outcome.runs["status"].value_counts().to_dict() == {"failed": 9 - len(good), "completed": len(good)}


def end_by(how):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                if how == "memory":
                    raise MemoryError
                if how == "other":
                    raise ValueError("abcdefghi"[run.lr])
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                manager.track_loss(math.nan, 1)

    return train


@pytest.mark.parametrize("how", ["memory", "other", "kill", "divergence"])
def test_other_ends_never_stop_a_grid(how):
    executor = "lanes" if how == "kill" else "inline"

    outcome = run_grid({"lr": range(6)}, end_by(how), experiment="exp", executor=executor, display=False)

    assert (outcome.runs["status"] != "pending").all()


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_search_whose_runs_all_fail_alike_stops_when_a_run_that_began_after_three_has_failed_too(jobs):
    pytest.importorskip("optuna")
    Path("good.txt").write_text("[]")

    outcome = run_grid(
        {"lr": IntRange(1, 50)}, failing, experiment="exp", search=OptunaSearch(n=20), goal="min:loss",
        executor="lanes" if jobs > 1 else "inline", jobs=jobs, display=False,
    )  # fmt: skip

    assert outcome.exit_code == 1
    # one lane may have executed four before the others begin, and those may just end
    assert 3 < outcome.runs["status"].tolist().count("failed") < 3 + 2 * jobs

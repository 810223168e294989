"""RunManager in a loop of one's own: hooks, their misuse, what is measured, and how a run ends."""

import copy
import json
import math
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runmanager import (
    DeviceError,
    GridError,
    LifecycleError,
    Outcome,
    RunBuilder,
    RunManager,
    RunsWarning,
    load_results,
    load_runs,
)
from tests.border import reading
from tests.border.experiments import manager_in

INPUTS = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10) % 3
RUN = {"lr": 0.1}


def batches_of(size=4, **options):
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=size, **options)


def statuses(tmp_path):
    table = load_runs(tmp_path / "exp")
    return list(zip(table["status"], table["epochs"], strict=True))


HOOKS: dict[str, Any] = {
    "begin_epoch()": lambda m: m.begin_epoch(),
    "end_epoch()": lambda m: m.end_epoch(),
    "end_run()": lambda m: m.end_run(),
    "track_loss()": lambda m: m.track_loss(0.5),
    "track_num_correct()": lambda m: m.track_num_correct(torch.zeros(2, 3), torch.zeros(2)),
    "track()": lambda m: m.track(f1=0.5),
    "log()": lambda m: m.log(f1=0.5),
    "summary()": lambda m: m.summary(f1=0.5),
    "artifact()": lambda m: m.artifact("text", "name.txt"),
    "epochs()": lambda m: list(m.epochs(1)),
    "batches()": lambda m: list(m.batches()),
    "evaluate()": lambda m: m.evaluate(batches_of()),
}


@pytest.mark.parametrize("call", HOOKS)
def test_a_hook_outside_a_run_or_an_epoch_names_the_call_to_make(tmp_path, call):
    after, inside = manager_in(tmp_path), manager_in(tmp_path)
    after.begin_run(RUN)
    after.end_run()

    for manager in (manager_in(tmp_path), after):
        with pytest.raises(LifecycleError, match=re.escape(call)) as caught:
            HOOKS[call](manager)
        assert isinstance(caught.value, RuntimeError)
        assert "begin_run(" in str(caught.value) or "manager.run(" in str(caught.value)
    if call in ("end_epoch()", "track_loss()", "track_num_correct()", "track()", "batches()"):
        with inside.run(RUN, nn.Linear(4, 3), batches_of()), pytest.raises(LifecycleError) as caught:
            HOOKS[call](inside)
        assert str(caught.value).startswith(call)
        assert "begin_epoch()" in str(caught.value)


MISPLACED: list[tuple[Any, str]] = [
    (lambda m: [m.begin_run(RUN), m.begin_epoch(), m.begin_epoch()], "end_epoch()"),
    (lambda m: [m.begin_run(RUN), m.begin_epoch(), m.end_run()], "end_run() inside epoch 1: call end_epoch()"),
    (lambda m: [m.begin_run(RUN), m.begin_epoch(), *m.batches()], "loader"),
    (lambda m: [m.begin_run(RUN), m.evaluate(batches_of())], "network"),
    (
        lambda m: [m.begin_run(RUN, nn.Linear(4, 3)), m.begin_epoch(), m.end_epoch(), m.evaluate(batches_of())],
        "end_epoch()",
    ),
    (lambda _: list(RunManager().remaining([RUN])), "RunManager("),
    (
        lambda m: [m.begin_run(RUN), m.begin_epoch(), m.end_epoch(), next(m.epochs(2, checkpoint={}))],
        "before the first",
    ),
]


@pytest.mark.parametrize(("calls", "named"), MISPLACED)
def test_a_hook_in_the_wrong_place_says_what_to_do_instead(manager, calls, named):
    with pytest.raises(LifecycleError) as caught:
        calls(manager)

    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("run", "network", "error", "named"),
    [
        (0.1, None, GridError, "0.1"),
        ({"learning rate": 1}, None, GridError, "learning rate"),
        ({"device": "gpu"}, None, GridError, "gpu"),
        (RUN, batches_of(), GridError, r"manager\.run\(run, network, loader\)"),
        ({"device": "xpu:99"}, nn.Linear(4, 3), DeviceError, r"'xpu:99'.*cpu.*run_grid"),
    ],
)
def test_a_run_that_cannot_be_recorded_is_refused_before_anything_is_written(
    manager, tmp_path, run, network, error, named
):
    with pytest.raises(error, match=named):
        manager.begin_run(run, network)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "loss", "status"),
    [
        (None, 0.5, "completed"), (None, math.nan, "diverged"), (None, math.inf, "diverged"),
        (ValueError("no\nmore"), 0.5, "failed"), (KeyboardInterrupt(), 0.5, "interrupted"),
        (SystemExit(3), 0.5, "failed"), (MemoryError(), 0.5, "out of memory"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_run_is_recorded_as_it_ended_and_its_exception_passes_on(manager, tmp_path, error, loss, status):
    def train():
        with manager.run(RUN):
            for _ in manager.epochs(1):
                manager.track_loss(loss, 1)
            if error:
                raise error

    if error:
        with pytest.raises(type(error)) as caught:
            train()
        assert caught.value is error
    else:
        train()

    assert statuses(tmp_path) == [(status, 1)]
    assert isinstance(manager.outcome, Outcome)
    assert (str(manager.outcome.status), manager.outcome.epochs) == (status, 1)
    log = reading.run_folder(tmp_path / "exp") / "error.log"
    assert log.exists() is isinstance(error, ValueError | SystemExit | MemoryError)


@pytest.mark.parametrize("make", [float, torch.tensor])
def test_a_run_that_diverges_ends_and_names_batch_and_last_loss(manager, tmp_path, make):
    with manager.run(RUN, None, batches_of()):
        for epoch in manager.epochs(5):
            for number, (inputs, _) in enumerate(manager.batches(), 1):
                manager.track_loss(make(math.nan if (epoch, number) == (2, 3) else 0.25), inputs)

    assert statuses(tmp_path) == [("diverged", 2)]
    (error,) = load_runs(tmp_path)["error"]
    assert [text in error for text in ("nan", "epoch 2", "step 3", "0.25")] == [True] * 4
    assert load_results(tmp_path)["loss"].isna().tolist() == [False, True]


def test_a_mean_that_is_too_large_for_a_number_names_no_batch_and_asks_a_loop_of_the_tutorials_to_stop(
    manager, tmp_path
):
    manager.begin_run(RUN)
    asked = []
    for loss in (0.5, 1e308):
        manager.begin_epoch()
        manager.track_loss(loss, 100)
        manager.end_epoch()
        asked.append(manager.should_stop)
    manager.end_run()

    assert asked == [False, True]
    assert load_runs(tmp_path)["error"].tolist() == ["loss became inf in epoch 2"]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_parameters_stay_on_their_devices_and_are_counted_unless_they_are_not_yet_built(manager, tmp_path):
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3, device="meta"))
    for lr, each in ((0.1, network), (0.2, nn.Sequential(nn.Linear(4, 3), nn.LazyLinear(2)))):
        with manager.run({"lr": lr}, each):
            pass

    assert [parameter.device.type for parameter in network.parameters()] == ["cpu", "cpu", "meta", "meta"]
    assert load_runs(tmp_path)["parameters"].astype("Int64").fillna(-1).tolist() == [27, -1]


@pytest.mark.parametrize("inside", [False, True])
def test_a_run_that_is_open_ends_with_a_warning_when_the_next_one_begins(manager, tmp_path, inside):
    manager.begin_run({"lr": 0.1})
    manager.begin_epoch()
    manager.track_loss(1.0, 1)
    if not inside:
        manager.end_epoch()

    with pytest.warns(RunsWarning, match=r"begin_run.*run 1"):
        manager.begin_run({"lr": 0.2})
    manager.end_run()

    assert statuses(tmp_path) == [("interrupted", 0) if inside else ("completed", 1), ("completed", 0)]


def test_a_network_that_an_earlier_run_trained_is_a_warning_that_names_both(manager):
    network = nn.Linear(4, 3)
    with manager.run({"lr": 0.1}, network):
        pass

    with pytest.warns(RunsWarning, match=r"run 2.*run 1") as caught:
        manager.begin_run({"lr": 0.2}, network)

    manager.end_run()
    assert caught[0].filename == __file__


def test_track_adds_columns_in_the_way_that_is_asked_for(manager, tmp_path):
    with manager.run(RUN, None, batches_of(4)):
        for epoch in manager.epochs(2):
            for inputs, _ in manager.batches():
                manager.track(size=len(inputs), nan=torch.tensor([math.nan]))
                for how in ("sum", "last", "min", "max"):
                    manager.track({f"val/{how}": len(inputs)}, how=how)
            if epoch == 2:
                manager.track(late=1)

    table = load_results(tmp_path)
    assert table["size"].tolist() == [(16 + 16 + 4) / 10] * 2
    assert [name for name in table if name in ("size", "nan", "val_sum")] == ["size", "nan", "val_sum"]
    columns = ["val_sum", "val_last", "val_min", "val_max"]
    assert table[columns].to_numpy().tolist() == [[10, 2, 2, 4]] * 2
    assert table["nan"].isna().all()
    assert table["late"].isna().tolist() == [True, False]
    assert statuses(tmp_path) == [("completed", 2)]


@pytest.mark.parametrize("name", ["loss", "accuracy", "epoch", "lr", "a b", "epoch duration"])
def test_a_metric_never_takes_the_place_of_another_column(manager, name):
    with manager.run(RUN):
        for _ in manager.epochs(1):
            with pytest.raises(ValueError, match=f"'{name}'"):
                manager.track(**{name: 1})


def test_batches_arrive_on_the_runs_device_and_a_run_without_one_follows_its_network(manager):
    for run, network in (({"device": "meta"}, nn.Linear(4, 3)), (RUN, nn.Linear(4, 3, device="meta"))):
        with manager.run(run, network, batches_of()):
            for _ in manager.epochs(1):
                assert {tensor.device.type for batch in manager.batches() for tensor in batch} == {"meta"}


def test_durations_are_those_of_training_without_evaluation_and_logging(manager, tmp_path):
    with manager.run(RUN, nn.Linear(4, 3), batches_of(5)):
        for _ in manager.epochs(2):
            for _inputs in manager.batches():
                time.sleep(0.01)
            with manager.evaluating(batches_of(10), "val") as batches:
                for _batch in batches:
                    time.sleep(0.15)

    table = load_results(tmp_path)
    assert table["epoch duration"].between(0.02, 0.15).all()
    assert table["run duration"][0] > 0.15
    assert table["run duration"][1] > 0.3


def test_a_network_can_be_copied_and_saved_while_it_trains(tmp_path):
    manager, network = manager_in(tmp_path, tensorboard=True), nn.Linear(2, 2)

    with manager.run(RUN, network):
        for _ in manager.epochs(1):
            copied = copy.deepcopy(network)
            torch.save(network, tmp_path / "network.pt")
            manager.track_loss(copied(torch.ones(1, 2)).sum(), 1)

    assert statuses(tmp_path) == [("completed", 1)]


def test_the_runs_that_are_not_completed_remain(manager, tmp_path):
    runs = RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3]})
    with manager.run(runs[0]):
        pass
    with pytest.raises(ValueError, match="no"), manager.run(runs[1]):
        raise ValueError("no")

    for each in (manager, manager_in(tmp_path)):
        assert list(each.remaining(runs)) == runs[1:]


@pytest.mark.parametrize("name", ["get_num_correct", "_get_num_correct"])
def test_a_subclass_counts_itself_and_may_have_names_of_the_tutorials_class_and_of_its_own(tmp_path, name):
    class Mine(RunManager):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.context = self.current = self.folders = self.is_open = self.scope = self.watched = None

        def begin_epoch(self):
            super().begin_epoch()
            self.epoch_loss = 0

        def track_loss(self, loss, batch=None):
            super().track_loss(loss, batch)
            self.epoch_loss += loss * batch

        def device_of(self):
            return "cpu"

    def count(self, preds, labels):
        return (preds.round() == labels).sum().item()

    manager = type("Binary", (Mine,), {name: count})("exp", tmp_path, tensorboard=False, display=False)
    with manager.run(RUN):
        for _ in manager.epochs(1):
            for preds in (torch.tensor([[0.9], [0.2], [0.7]]), torch.tensor([[0.1]])):
                manager.track_loss(0.5, len(preds))
                manager.track_num_correct(preds, torch.ones(len(preds), 1))
            assert manager.epoch_loss == 2.0

    assert manager.results[["loss", "accuracy"]].to_numpy().tolist() == [[0.5, 0.5]]


def test_a_name_of_somebodys_copy_is_refused(manager):
    with pytest.raises(AttributeError, match=r"track_r2"):
        manager.track_r2  # noqa: B018
    with pytest.raises(TypeError):
        manager.begin_run(RUN, val_loader=batches_of())


def test_a_run_has_one_loop_over_epochs(manager, tmp_path):
    def refuse():
        with pytest.raises(LifecycleError, match="one loop"):
            manager.epochs(2)

    with manager.run(RUN):
        loop = manager.epochs(1)
        refuse()
        for _ in loop:
            manager.track_loss(0.5, 1)
            refuse()
        refuse()

    assert statuses(tmp_path) == [("completed", 1)]


def test_the_same_values_twice_are_two_runs_in_a_loop_of_ones_own(manager, tmp_path):
    for _ in range(2):
        with manager.run(RUN):
            pass

    assert statuses(tmp_path) == [("completed", 0)] * 2


def test_a_run_whose_list_was_changed_is_the_run_of_its_new_values(manager, tmp_path):
    run, unchanged = RunBuilder.get_runs({"widths": [[8]]})[0], {"widths": [8]}
    for width in (16, 32):
        run.widths.append(width)
        with manager.run(run):
            pass

    assert load_runs(tmp_path)["widths"].tolist() == [[8, 16], [8, 16, 32]]
    assert list(manager_in(tmp_path).remaining([run, unchanged])) == [unchanged]


def test_no_run_waits_for_a_process_that_died_while_it_created_a_folder(manager, tmp_path):
    with manager.run(RUN):
        pass
    claim = tmp_path / "exp" / "claim.json"
    process = reading.lines(reading.run_folder(claim.parent) / "attempt-1.jsonl")[0]
    claim.write_text(json.dumps({**process, "pid": reading.NO_PROCESS}))

    with manager.run({"lr": 0.2}):
        pass

    assert (len(statuses(tmp_path)), claim.exists()) == (2, False)


LOOP = """
import os, random, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from runmanager import RunManager

sys.setswitchinterval(1e-6)  # threads meet in the middle of everything
random.seed(1)
RunManager()
Path("drawn").write_text(str(random.random()))

def loop(name):
    manager = RunManager("exp", display=False, tensorboard=False)
    Path(f"ready-{name}").touch()
    while not Path("go").exists():
        pass
    for number in range(6):
        with manager.run({"lr": 0.1 if number == 3 else f"{name}.{number}"}):
            for epoch in manager.epochs(2):
                manager.track_loss(epoch, 1)

processes = []
for name in "abc":
    if not (pid := os.fork()):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(loop, [f"{name}{index}" for index in range(4)]))
        os._exit(0)
    processes.append(pid)
while len(list(Path().glob("ready-*"))) < 12:
    time.sleep(0.01)
Path("go").touch()
raise SystemExit(any(os.waitpid(pid, 0)[1] for pid in processes))
"""


@pytest.mark.slow
def test_processes_and_threads_that_share_an_experiment_get_runs_of_their_own(warm, own_folder):
    (own_folder / "program.py").write_text(LOOP)

    assert warm.execute(own_folder / "program.py").returncode == 0

    runs, epochs = load_runs("runs/exp"), load_results("runs/exp")
    names = [f"{name}{thread}" for name in "abc" for thread in range(4)]
    values = ["0.1", *(f"{name}.{number}" for name in names for number in (0, 1, 2, 4, 5))]
    assert sorted(runs["run"]) == list(range(1, len(values) + 1))
    assert sorted(map(str, runs["lr"])) == sorted(values)
    assert (set(runs["status"]), set(runs["epochs"])) == ({"completed"}, {2})
    assert len(epochs) == 2 * len(values)
    assert runs.loc[runs["lr"].map(str) == "0.1", "attempts"].tolist() == [12]
    assert Path("drawn").read_text() == "0.13436424411240122"  # a first manager draws no random number


def test_unnamed_experiments_that_begin_at_once_get_folders_of_their_own(tmp_path):
    barrier = threading.Barrier(8)

    def begin(number):
        manager = RunManager(root=tmp_path, display=False, tensorboard=False)
        barrier.wait()
        with manager.run({"number": number}):
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin, range(8)))

    numbers = [load_runs(folder)["number"].tolist() for folder in tmp_path.iterdir()]
    assert sorted(numbers) == [[number] for number in range(8)]

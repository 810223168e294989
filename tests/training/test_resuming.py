import contextlib
import random
import re
import shutil
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from runmanager import RunManager, load_results, load_run, load_runs, run_grid
from runmanager.core import provenance
from runmanager.core.journal import Journal, read_attempt
from runmanager.core.loaders import ImageTensors, TensorLoader
from runmanager.core.wording import counted
from runmanager.devices import torch_devices
from runmanager.errors import CheckpointError, LifecycleError
from runmanager.tensorboard import event_file
from runmanager.tensorboard.event_file import records
from tests.board.reading import event_files, folder_scalars
from tests.damaging import as_if_killed

IMAGES = torch.randn(14, 1, 2, 2, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(14) % 3
DURATIONS = ["epoch duration", "run duration"]
NEWEST, BEFORE = "checkpoint.pt", "checkpoint.prev.pt"
ONE = {"lr": [0.1]}


class Fault(Exception):  # noqa: N818
    """What interrupts a run."""


def generator():
    return torch.Generator().manual_seed(7)


DATA = TensorDataset(IMAGES, LABELS)
LOADERS = {
    "global": lambda: DataLoader(DATA, 4, shuffle=True),
    "own generator": lambda: DataLoader(DATA, 4, shuffle=True, generator=generator()),
    "own sampler": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, generator=generator())),
    "TensorLoader": lambda: TensorLoader(ImageTensors(IMAGES, LABELS), 4),
    "global, worker": lambda: DataLoader(DATA, 4, shuffle=True, num_workers=1),
    "own generator, worker": lambda: DataLoader(DATA, 4, shuffle=True, generator=generator(), num_workers=1),
    "persistent worker": lambda: DataLoader(DATA, 4, shuffle=True, num_workers=1, persistent_workers=True),
    "TensorLoader, worker": lambda: TensorLoader(ImageTensors(IMAGES, LABELS), 4, num_workers=1),
}


class Train:
    """Train with everything that has a state, and remember the states at the end.

    Args:
        fault: What is raised, at `at`: the epoch, and the batch before which; or an epoch's end, 9.
    """

    def __init__(self, loader="global", fault=None, at=(2, 2), num_epochs=4, keep=None):
        self.loader, self.fault, self.at = loader, fault, at
        self.num_epochs, self.keep = num_epochs, keep
        self.executed = []
        self.begun = []
        self.weights = []
        self.last = None

    def __getstate__(self):
        return {}  # a fault is no change of the run

    def __call__(self, run, manager):
        self.executed.append(run.lr)
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(1)
        network = nn.Sequential(
            nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)
        )
        optimizer = torch.optim.Adam(network.parameters(), lr=run.lr)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        loader = LOADERS[self.loader]()
        parts = {"network": network, "optimizer": optimizer, "scheduler": scheduler}
        with manager.run(run, network, loader):
            for epoch in manager.epochs(self.num_epochs, checkpoint=parts, keep=self.keep):
                self.begun.append(epoch)
                for number, (images, labels) in enumerate(manager.batches()):
                    self.meet(epoch, number)
                    loss = functional.cross_entropy(network(images), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    manager.track_loss(loss, images)
                scheduler.step()
                manager.evaluate(DataLoader(DATA, 5, shuffle=True))
                manager.track(
                    python=random.random(),  # noqa: S311 - the state that users draw from
                    numpy=np.random.random(),  # noqa: NPY002
                    lr_now=optimizer.param_groups[0]["lr"],
                )
                self.weights.append({name: value.clone() for name, value in network.state_dict().items()})
                self.meet(epoch, 9)
            self.meet(self.num_epochs + 1, 0)
        states = [*network.state_dict().values(), *optimizer.state_dict()["state"][0].values()]
        self.last = [state.tolist() for state in states], torch.get_rng_state().tolist(), random.getstate()

    def meet(self, epoch, number):
        if self.fault and (epoch, number) == self.at:
            # a new one: those of the parameters would keep these frames, and the processes of their loaders
            raise type(self.fault)(*self.fault.args)


def by_grid(root, train, params=None, **options):
    quiet: dict[str, Any] = {"tensorboard": False, "display": False, "retry_failed": True} | options
    quiet.setdefault("executor", "inline")
    return run_grid(params or ONE, train, experiment="exp", root=root, **quiet)


def rows(root):
    """Return everything in the table that is no duration, as text: NaN is equal to NaN."""
    return load_results(root / "exp").drop(columns=DURATIONS).to_csv()


def run_folder(root, number=1):
    (found,) = (root / "exp").glob(f"{number:03}*")
    return found


@pytest.fixture
def undisturbed(tmp_path):
    """Train without a fault; return the table and the states at the end."""

    def train(loader="global", **options):
        whole = Train(loader, **options)
        by_grid(tmp_path / "whole", whole)
        return rows(tmp_path / "whole"), whole.last

    return train


@pytest.mark.slow(everywhere=True)
def test_a_healed_epoch_is_shown_where_the_killed_run_did_not_come_to_it(tmp_path):
    by_grid(tmp_path, Train(fault=KeyboardInterrupt(), at=(3, 1)), tensorboard=True)
    folder = run_folder(tmp_path)
    as_if_killed(folder, 1)
    (path,) = event_files(folder)
    path.write_bytes(path.read_bytes()[: path.read_bytes().index(b"time/phase_eval_s") + 200])

    by_grid(tmp_path, Train(), tensorboard=True)

    shown = folder_scalars(folder)["loss/train"]
    assert [step for step, _ in shown] == [1, 2, 3, 4]
    assert [value for _, value in shown] == load_results(tmp_path)["loss"].astype("float32").tolist()


@pytest.mark.slow(everywhere=True)
def is_epoch(event):
    return any(value.tag == "time/epoch_s" for value in event.summary.value)


@pytest.mark.parametrize("lost", [(2,), (3,), (1, 3), (1, 2, 3)])
def test_epochs_whose_scalars_are_missing_are_written_when_a_run_continues(tmp_path, lost):
    by_grid(tmp_path, Train(fault=KeyboardInterrupt(), at=(4, 1)), tensorboard=True)
    folder = run_folder(tmp_path)
    as_if_killed(folder)
    (path,) = event_files(folder)
    content = path.read_bytes()
    kept = [content[position] for position in records(content)]
    events = [event for _, event in event_file.events_in(content)]
    is_lost = [any(event.step == n and is_epoch(event) for n in lost) for event in events]
    path.write_bytes(b"".join(record for record, gone in zip(kept, is_lost, strict=True) if not gone))
    assert is_lost.count(True) == len(lost)

    by_grid(tmp_path, Train(), tensorboard=True)

    shown = folder_scalars(folder)
    assert [step for step, _ in shown["loss/train"]] == [1, 2, 3, 4]
    losses = load_results(tmp_path)["loss"].astype("float32").tolist()
    assert [value for _, value in shown["loss/train"]] == losses
    assert [step for step, _ in shown["time/epoch_s"]] == [1, 2, 3, 4]


def train_with(root, parts, network=None, fault=None, **options):
    """Train three epochs, the second of which may end in a fault; return the numbers of those begun."""
    manager = RunManager("exp", root, display=False, tensorboard=False)
    begun = []
    with contextlib.suppress(Fault), manager.run({"lr": 0.1}, network):
        for epoch in manager.epochs(3, checkpoint=parts, **options):
            begun.append(epoch)
            manager.track_loss(0.5, 1)
            if fault and epoch == 2:
                raise fault
    return begun


def test_a_checkpoint_is_asked_for_before_the_first_epoch(tmp_path):
    manager = RunManager("exp", tmp_path, display=False, tensorboard=False)
    manager.begin_run({"lr": 0.1})
    manager.begin_epoch()
    manager.end_epoch()

    with pytest.raises(LifecycleError, match="call it once, before the first"):
        next(manager.epochs(2, checkpoint={}))
    manager.end_run()


def test_a_state_that_could_not_be_loaded_safely_fails_the_run_at_its_first_epoch(tmp_path):
    class Part(nn.Module):
        def get_extra_state(self):
            return {"when": Fault("now")}

        def set_extra_state(self, state):
            raise AssertionError(state)

    with pytest.raises(CheckpointError, match="could not be loaded without executing code"):
        train_with(tmp_path, {"network": Part()})

    assert load_runs(tmp_path)[["status", "epochs"]].to_numpy().tolist() == [["failed", 0]]


class Stops:
    """Stop early by a counter, and remember the epochs; the fault comes in the epoch `at`."""

    LOSSES = (0.9, 0.5, 0.6, 0.4, 0.45, 0.41, 0.42, 0.1, 0.0, 0.2)

    def __init__(self, fault=None, at=0):
        self.fault, self.at = fault, at
        self.begun: list[int] = []
        self.state: dict[str, Any] = {}

    def __call__(self, run, manager):
        state = self.state = {"best": float("inf"), "bad_epochs": 0, "losses": []}
        losses = state["losses"]
        with manager.run(run):
            for epoch in manager.epochs(10, checkpoint={"state": state}):
                self.begun.append(epoch)
                loss = self.LOSSES[epoch - 1]
                manager.track_loss(loss, 1)
                losses.append(loss)
                state["bad_epochs"] = 0 if loss < state["best"] else state["bad_epochs"] + 1
                state["best"] = min(state["best"], loss)
                if self.fault and epoch == self.at:
                    raise self.fault
                if state["bad_epochs"] == 3:
                    break


@pytest.mark.slow(everywhere=True)
def test_a_run_that_was_killed_after_its_break_has_no_further_epoch(tmp_path, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "end", killed)
        by_grid(tmp_path, Stops())
    as_if_killed(run_folder(tmp_path), num_lost=0)

    again = Stops()
    outcome = by_grid(tmp_path, again)

    assert again.begun == []
    assert outcome.runs[["status", "epochs"]].to_numpy().tolist() == [["completed", 7]]


def weights_of(folder):
    return {path.name: torch.load(path)["weight"].item() for path in folder.glob("*weights.pt")}


def keep_weights(root, value, *, keep="last", fault=None, num_epochs=2, **options):
    """Train a grid of one run whose network has one weight, as code that follows from the value."""

    def train(run, manager):
        network = nn.Linear(1, 1)
        with manager.run(run, network):
            for epoch in manager.epochs(num_epochs, keep=keep):
                network.weight.data.fill_(value + epoch)
                if (error := next(faults, None)) and epoch == error[0]:
                    raise error[1]
                manager.track_loss(1.0 / epoch, 1)

    faults = iter([fault, fault] if fault else [])  # of which the statement counts alone
    return by_grid(root, train, **options)


def test_artifacts_stay_if_the_changed_code_fails_before_an_epoch(tmp_path):
    def train(run, manager):
        with manager.run(run):
            manager.artifact("good", "model.txt")
            for _ in manager.epochs(1):
                manager.track_loss(0.5, 1)

    def broken(run, manager):
        with manager.run(run):
            raise Fault

    for function in (train, broken, train):
        outcome = by_grid(tmp_path, function)

    assert outcome.runs["attempts"].tolist() == [2]
    assert load_run(tmp_path / "exp/1").artifacts["model.txt"].read_text() == "good"


@pytest.mark.slow(everywhere=True)
def test_weights_are_set_aside_by_an_attempt_that_keeps_none(tmp_path):
    keep_weights(tmp_path, 10.0)
    keep_weights(tmp_path, 20.0, keep=None)

    assert weights_of(run_folder(tmp_path)) == {"attempt-1.weights.pt": 12.0}


@pytest.mark.slow(everywhere=True)
def test_weights_stay_until_the_changed_code_has_an_epoch(tmp_path):
    keep_weights(tmp_path, 10.0)
    keep_weights(tmp_path, 20.0, fault=(1, KeyboardInterrupt()))
    as_if_killed(run_folder(tmp_path), num_lost=0)

    assert weights_of(run_folder(tmp_path)) == {"weights.pt": 12.0}
    keep_weights(tmp_path, 30.0)
    assert weights_of(run_folder(tmp_path)) == {"attempt-1.weights.pt": 12.0, "weights.pt": 32.0}


def test_weights_stay_if_the_changed_code_has_no_metric_to_keep_them_by(tmp_path):
    keep_weights(tmp_path, 10.0)
    outcome = keep_weights(tmp_path, 20.0, keep="max:f1")

    assert outcome.runs["status"].tolist() == ["failed"]
    assert weights_of(run_folder(tmp_path)) == {"weights.pt": 12.0}


@pytest.mark.slow(everywhere=True)
def test_weights_of_the_same_code_are_replaced(tmp_path):
    keep_weights(tmp_path, 10.0, fault=(2, KeyboardInterrupt()))
    keep_weights(tmp_path, 10.0)

    assert weights_of(run_folder(tmp_path)) == {"weights.pt": 12.0}


def trained_with(change, fault=None):
    """Make functions that differ by a sign if `change` is true."""

    executed: list[float] = []
    factor = 1.0
    faults = iter([fault] if fault else [])  # of which the statement counts alone
    if change:

        def train(run, manager):
            executed.append(run.lr)
            with manager.run(run):
                for epoch in manager.epochs(2, checkpoint={}):
                    if epoch == 2 and (error := next(faults, None)):
                        raise error
                    manager.track_loss(-factor * run.lr, 1)

    else:

        def train(run, manager):
            executed.append(run.lr)
            with manager.run(run):
                for epoch in manager.epochs(2, checkpoint={}):
                    if epoch == 2 and (error := next(faults, None)):
                        raise error
                    manager.track_loss(factor * run.lr, 1)

    return train, executed


LRS = {"lr": [0.1, 0.2]}
ANEW = "; changed='keep' keeps"


@pytest.fixture
def change(request, monkeypatch):
    """Change one of the three kinds of things that results depend on."""

    def change_code():
        return {"change": True}, {}

    def change_data():
        return {"change": False}, {"data": torch.ones(4)}

    def change_versions():
        now = {**provenance.versions(), "torch": "99.0"}
        monkeypatch.setattr("runmanager.checks.changed.versions", lambda: now)
        return {"change": False}, {}

    return {"code": change_code, "data": change_data, "versions": change_versions}[request.param]


WHAT = {
    "code": "source of trained_with.<locals>.train",
    "data": "the data",
    "versions": f"torch was {provenance.versions()['torch']}, is 99.0",
}


@pytest.mark.parametrize("change", WHAT, indirect=True)
@pytest.mark.parametrize("fault", [None, KeyboardInterrupt()], ids=["completed", "interrupted"])
def test_runs_begun_with_other_things_are_executed_anew(tmp_path, capsys, request, change, fault):
    train, _ = trained_with(change=False, fault=fault)
    by_grid(tmp_path, train, LRS, data=torch.zeros(4))
    kind = request.node.callspec.params["change"]
    old = {path: path.read_bytes() for path in tmp_path.rglob("attempt-1.jsonl")}
    code, options = change()
    capsys.readouterr()

    train, executed = trained_with(**code)
    outcome = by_grid(tmp_path, train, LRS, display=True, **{"data": torch.zeros(4), **options})

    lines = capsys.readouterr().out.splitlines()
    count = len(old)
    verb, them = ("is", "it") if fault else ("are", "them")
    said = f"! {counted(count, 'run')} changed and {verb} executed again: {WHAT[kind]}{ANEW} {them}"
    assert lines[:2] == [said, f"{tmp_path / 'exp'}: 2 runs, 2 to execute"]
    assert executed == [0.1, 0.2]
    assert {path: path.read_bytes() for path in old} == old
    sign = -1 if kind == "code" else 1
    assert outcome.results[["run", "epoch"]].to_numpy().tolist() == [[1, 1], [1, 2], [2, 1], [2, 2]]
    assert outcome.results["loss"].tolist() == [0.1 * sign, 0.1 * sign, 0.2 * sign, 0.2 * sign]
    assert outcome.runs["attempts"].tolist() == [2, 2 if fault is None else 1]


def test_runs_begun_with_other_code_go_on_where_that_is_wanted(tmp_path, capsys):
    train, _ = trained_with(change=False, fault=KeyboardInterrupt())
    by_grid(tmp_path, train, ONE)
    capsys.readouterr()

    train, _ = trained_with(change=True)
    outcome = by_grid(tmp_path, train, ONE, display=True, changed="keep")

    said = f"! 1 run changed and is kept: {WHAT['code']}; unfinished runs resume, marked as mixed"
    assert capsys.readouterr().out.splitlines()[0] == said
    assert outcome.results["loss"].tolist() == [0.1, -0.1]
    starts = [read_attempt(run_folder(tmp_path) / f"attempt-{n}.jsonl").start for n in (1, 2)]
    assert [start.get("mixed", False) for start in starts] == [False, True]


def test_a_run_that_is_killed_before_its_first_epoch_with_other_code_keeps_what_it_had(tmp_path):
    by_grid(tmp_path, trained_with(change=False)[0], ONE)
    by_grid(tmp_path, trained_with(change=True, fault=KeyboardInterrupt())[0], ONE)
    as_if_killed(run_folder(tmp_path), num_lost=1)

    outcome_before = load_results(tmp_path)["loss"].tolist()
    train, executed = trained_with(change=True)
    outcome = by_grid(tmp_path, train, ONE)

    assert outcome_before == [0.1, 0.1]
    assert executed == [0.1]
    assert outcome.results["loss"].tolist() == [-0.1, -0.1]


@pytest.mark.slow(everywhere=True)
def test_only_attempts_since_the_change_count_in_what_a_grid_shows(tmp_path):
    by_grid(tmp_path, trained_with(change=False)[0], LRS)

    stopped = by_grid(tmp_path, trained_with(change=True, fault=KeyboardInterrupt())[0], LRS)

    assert stopped.runs[["status", "epochs"]].to_numpy().tolist() == [["interrupted", 1], ["pending", 0]]
    assert stopped.results["loss"].tolist() == [-0.1]
    panel = str(stopped.panel)
    assert "! 2 of 2 runs are left to execute, 1 of them after the last checkpoint\n" in panel
    assert "– The tables keep the earlier results of 1 run until the first new epoch\n" in panel  # noqa: RUF001
    assert load_results(tmp_path)["loss"].tolist() == [-0.1, 0.2, 0.2]
    resumed = by_grid(tmp_path, trained_with(change=True)[0], LRS)
    assert resumed.results["loss"].tolist() == [-0.1, -0.1, -0.2, -0.2]
    assert "earlier results" not in str(resumed.panel)


class TestAChangeWithoutAnEpoch:
    """The runs are completed; then changed data fail before their first epoch, in each of both runs."""

    @pytest.fixture
    def start(self, tmp_path):
        def start(data, fault=None, **options):
            def train(run, manager):
                executed.append(run.lr)
                with manager.run(run):
                    for _ in manager.epochs(1):
                        if error := next(faults):
                            raise error
                        manager.track_loss(run.lr, 1)

            executed: list[float] = []
            faults = iter([fault] * 2)
            outcome = by_grid(tmp_path, train, LRS, data=data, **{"retry_failed": False, **options})
            return executed, outcome

        start("old")
        return start

    @pytest.mark.parametrize(
        ("fault", "status"),
        [(Fault("no"), "failed"), (KeyboardInterrupt(), "interrupted"), (MemoryError("full"), "out of memory")],
    )
    def test_executes_nothing_once_it_is_undone(self, start, tmp_path, fault, status):
        kept = load_results(tmp_path)

        _, lost = start("new", fault)
        after = load_runs(tmp_path)
        executed, undone = start("old")

        assert (lost.runs["status"][0], lost.exit_code > 0) == (status, True)
        assert after["status"].tolist() == ["completed", "completed"]
        is_said = status != "interrupted"
        assert after["error"].str.startswith(f"attempt 2 {status}: ").tolist() == [is_said, is_said]
        assert (executed, undone.exit_code, undone.runs["status"].tolist()) == ([], 0, ["completed"] * 2)
        assert kept.equals(load_results(tmp_path))
        assert kept.equals(undone.results)

    @pytest.mark.slow(everywhere=True)
    def test_is_not_repeated_unless_that_is_wanted(self, start, capsys):
        start("new", Fault("no"))
        capsys.readouterr()

        again, failed = start("new", display=True)
        said = capsys.readouterr().out
        retried, completed = start("new", retry_failed=True)

        assert (again, failed.exit_code, failed.runs["status"].tolist()) == ([], 1, ["failed", "failed"])
        assert "exp: 2 runs, 0 to execute, 2 failed before" in said
        assert "The tables keep the earlier results of 2 runs until the first new epoch" in said
        assert (retried, completed.runs["status"].tolist()) == ([0.1, 0.2], ["completed", "completed"])

    @pytest.mark.slow(everywhere=True)
    def test_is_followed_by_another(self, start):
        start("new", Fault("no"))

        executed, outcome = start("newer")

        assert (executed, outcome.runs["status"].tolist()) == ([0.1, 0.2], ["completed", "completed"])
        assert outcome.runs["error"].tolist() == ["", ""]

    def test_can_be_debugged(self, start):
        start("new", Fault("no"))

        executed, outcome = start("new", only=2)

        assert (executed, outcome.exit_code) == ([0.2], 0)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("at", [0, 1], ids=["before an epoch", "after an epoch"])
def test_epochs_of_earlier_attempts_take_no_time_of_this_launch(tmp_path, at):
    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(3):
                if next(faults) == epoch:
                    raise Fault("no")
                time.sleep(next(pauses))
                manager.track_loss(0.5, 1)

    pauses, faults = iter([0.2, 0.2, 0, 0]), iter([0, 0, 3, 1 + at, 2])
    by_grid(tmp_path, train)

    again = by_grid(tmp_path, train, retry_failed=True)

    assert again.runs["epochs"].tolist() == [1 if at else 2]
    (shares,) = re.findall(r"time .*?: (.*?)\nnext", str(again.panel), re.DOTALL)
    assert "between epochs" not in shares
    assert sum(map(int, re.findall(r"(\d+) % (?!waiting)", shares))) <= 101


@pytest.mark.slow(everywhere=True)
def test_a_diverged_run_goes_on_before_it_diverged(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(3, checkpoint={}):
                begun.append(epoch)
                manager.track_loss(losses.pop(0), 1)

    begun: list[int] = []
    losses = [0.1, 0.2, float("nan")]
    first = by_grid(tmp_path, train)
    losses.append(0.3)
    outcome = by_grid(tmp_path, train, changed="keep")

    assert first.runs["status"].tolist() == ["diverged"]
    assert begun == [1, 2, 3, 3]
    assert outcome.results["loss"].tolist() == [0.1, 0.2, 0.3]
    assert outcome.runs["status"].tolist() == ["completed"]


@pytest.mark.slow(everywhere=True)
def test_runs_of_a_device_that_is_there_now_are_executed(tmp_path, monkeypatch, capsys):
    def train(run, manager):
        executed.append(run.device)
        with manager.run(run):
            for _ in manager.epochs(1, checkpoint={}):
                manager.track_loss(0.5, 1)

    executed: list[str] = []
    grid = {"device": ["meta", "cpu"]}
    with monkeypatch.context() as patch:
        rule = {"meta": "device 'meta' is not there"}
        patch.setattr(torch_devices, "missing", lambda device: rule.get(str(device), ""))
        first = by_grid(tmp_path, train, grid, display=True)
    second = by_grid(tmp_path, train, grid)

    assert first.runs["status"].tolist() == ["unavailable", "completed"]
    assert "device 'meta' is not there" in capsys.readouterr().out
    assert second.runs["status"].tolist() == ["completed", "completed"]
    assert second.runs["error"].tolist() == ["", ""]
    assert executed == ["cpu", "meta"]


@pytest.mark.slow(everywhere=True)
def test_half_of_a_folder_that_was_copied_goes_on(tmp_path):
    grid = {"lr": [0.1, 0.2, 0.3]}
    by_grid(tmp_path, Train(fault=Fault(), at=(3, 0)), grid)
    (tmp_path / "copy" / "exp").mkdir(parents=True)
    for number in (1, 3):
        folder = run_folder(tmp_path, number)
        shutil.copytree(folder, tmp_path / "copy" / "exp" / folder.name)

    again = Train()
    outcome = by_grid(tmp_path / "copy", again, grid)

    assert again.begun == [3, 4, 1, 2, 3, 4, 3, 4]
    assert outcome.runs["status"].tolist() == ["completed"] * 3
    assert outcome.runs["run"].tolist() == [1, 4, 3]

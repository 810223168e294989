"""What every listener promises, wherever it is and whatever it does: no table and no bit changes by it."""

import math
import random
import threading
import time
from typing import Any, ClassVar

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runmanager import Listener, SuccessiveHalving, load_results, load_runs, run_grid
from tests.nightly import of_night_but

TIMES = ["epoch duration", "run duration", "peak memory"]
pytestmark = pytest.mark.filterwarnings("ignore:listener ")


class Observing(Listener):
    def react(self):
        """What it does when it hears of anything; a subclass says."""

    def run_began(self, run, network, loader):
        self.react()

    def step_ended(self, progress):
        self.react()

    def epoch_ended(self, record, network):
        self.spoil(record)
        return self.react()

    def run_ended(self, outcome):
        self.react()

    def spoil(self, record):
        """What it does with a record."""


class Raising(Observing):
    def react(self):
        raise KeyError("[red]\x1b[31m")


class Slow(Observing):
    def react(self):
        time.sleep(0.05)


class Drawing(Observing):
    def react(self):
        torch.rand(3)
        random.random()  # noqa: S311 - the state that a run may use


class Answering(Observing):
    def react(self):
        return 3.5  # no text; and answers of a listener that may not stop runs do not count


class Stopping(Observing):
    def react(self):
        return "enough"


class Spoiling(Observing):
    def spoil(self, record):
        record.metrics.update(loss=math.nan, test_loss=0.0)
        record.times.clear()


KINDS = (Observing, Raising, Slow, Drawing, Answering, Stopping, Spoiling)


def listener(kind, where, **attributes):
    """Make a listener, in the parent or in the workers."""
    made = kind()
    vars(made).update(where=where, **attributes)
    return made


@pytest.fixture(params=["inline", pytest.param("lanes", marks=pytest.mark.slow)])
def executor(request):
    return request.param


def train(run, manager):
    torch.manual_seed(run.seed)
    random.seed(run.seed)
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr)
    parts = {"network": network, "optimizer": optimizer}
    loader = torch.rand(6, 4).split(2)
    with manager.run(run, network, loader):
        for _ in manager.epochs(4, checkpoint=parts, keep="last"):
            for inputs in manager.batches():
                loss = network(inputs * torch.rand(4)).square().mean() + random.random() / 1e3  # noqa: S311
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, inputs)
            manager.log(last_loss=loss)


def start(root, executor, *listeners, **options):
    """Execute three runs, of which the first is the worst."""
    options = {"executor": executor, "tensorboard": True, "goal": "min:loss", **options}
    return execute(root, {"lr": [0.3, 0.1, 0.2], "seed": [0]}, train, *listeners, **options)


def execute(root, grid, function, *listeners, **options):
    how: dict[str, Any] = {"executor": "inline", "display": False, "tensorboard": False, **options}
    return run_grid(grid, function, experiment="e", root=root, listeners=list(listeners), **how)


def results_of(root):
    """Return what is left: tables, TensorBoard's scalars, weights."""
    table = load_results(root).drop(columns=TIMES, errors="ignore").dropna(axis=1).to_dict("list")
    runs = load_runs(root)[["run", "status", "epochs", "error"]].to_dict("list")
    folders = sorted(path.parent for path in (root / "e").glob("*/weights.pt"))
    events = [EventAccumulator(str(path)).Reload() for path in folders]
    logs = [log for log in events if "loss/train" in log.Tags()["scalars"]]
    scalars = [[(each.step, each.value) for each in log.Scalars("loss/train")] for log in logs]
    weights = [torch.load(path / "weights.pt", weights_only=True) for path in folders]
    tensors = [{name: value.tolist() for name, value in each.items()} for each in weights]
    return table, runs, scalars, tensors


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """Executor -> what is left of a grid that nobody listens to; executed once each."""
    left = {}

    def executed(executor, **options):
        key = (executor, *options)
        if key not in left:
            root = tmp_path_factory.mktemp("without")
            assert start(root, executor, **options).exit_code == 0
            left[key] = results_of(root)
        return left[key]

    return executed


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("where", ["parent", "worker"])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_listener_does_changes_nothing(executor, kind, where, without, tmp_path):
    if (kind, executor, where) == (Drawing, "inline", "parent"):
        return  # the one exception, as its docstring says: a thread beside the run, in its process

    start(tmp_path, executor, listener(kind, where))

    assert results_of(tmp_path) == without(executor)


@pytest.mark.slow
@pytest.mark.parametrize("where", of_night_but(["parent", "worker"], ["parent"]))
@pytest.mark.parametrize("kind", [Raising, Slow, Answering, Spoiling])
def test_one_that_may_stop_runs_and_gives_no_reason_changes_nothing(executor, kind, where, without, tmp_path):
    start(tmp_path, executor, listener(kind, where, may_stop=True))

    assert results_of(tmp_path) == without(executor)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("where", ["parent", "worker"])
def test_others_hear_and_decide_as_if_it_was_not_there(executor, where, without, tmp_path):
    """A pruner beside it is asked about the values of the journal, whatever it did with its own record."""
    prune = SuccessiveHalving("loss", factor=2)

    start(tmp_path, executor, listener(Spoiling, where), prune=prune)

    assert results_of(tmp_path) == without(executor, prune=prune)


@pytest.mark.parametrize("where", ["parent", "worker"])
@pytest.mark.parametrize(
    "name", ["inline", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lanes", "ray"))]
)
def test_one_that_may_stop_runs_stops_each_after_its_first_epoch(name, where, tmp_path, request):
    if name == "ray":
        request.getfixturevalue("local_ray")

    start(tmp_path, name, listener(Stopping, where, may_stop=True))

    runs = load_runs(tmp_path)
    assert runs["status"].tolist() == ["pruned"] * 3
    assert runs["error"].str.contains("enough").all()
    assert load_results(tmp_path)["epoch"].tolist() == [1, 1, 1]


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError("no text")


class Odd:
    def __repr__(self):
        raise ValueError("no text")


class Leaving(Observing):
    def react(self):
        raise SystemExit(3)


class RaisingUnprintable(Observing):
    def react(self):
        raise UnprintableError


class AnsweringOdd(Observing):
    def react(self):
        return Odd()


class LookingInside(Observing):
    """Looks at the network and the loader as far as it has them: that moves neither."""

    where = "worker"

    def run_began(self, run, network, loader):
        next(iter(loader))

    def react(self):
        torch.set_grad_enabled(False)

    def epoch_ended(self, record, network):
        network(torch.rand(4, 4))  # in training mode, this counts into BatchNorm's statistics
        return self.react()


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("where", ["parent", "worker"])
@pytest.mark.parametrize("kind", [Leaving, RaisingUnprintable, AnsweringOdd])
def test_what_cannot_be_said_of_a_listener_ends_no_run(kind, where, without, tmp_path):
    start(tmp_path, "inline", listener(kind, where, may_stop=True))

    assert results_of(tmp_path) == without("inline")


def normed_train(run, manager):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr)
    data = torch.rand(12, 4, generator=torch.Generator().manual_seed(0))
    loader: DataLoader[Any] = DataLoader(
        TensorDataset(data), 3, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    with manager.run(run, network, loader):
        for _ in manager.epochs(2, checkpoint={"network": network}, keep="last"):
            for (inputs,) in manager.batches():
                loss = network(inputs).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, inputs)


@pytest.mark.slow(everywhere=True)
def test_a_listener_may_look_at_network_and_loader(tmp_path):
    for root, listeners in ((tmp_path / "without", []), (tmp_path / "with", [LookingInside()])):
        assert execute(root, {"lr": [0.1]}, normed_train, *listeners).exit_code == 0

    assert results_of(tmp_path / "with")[0] == results_of(tmp_path / "without")[0]
    assert results_of(tmp_path / "with")[3] == results_of(tmp_path / "without")[3]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["parent", "worker"])
def test_the_time_that_a_run_waits_for_a_listener_is_none_of_its_own(where, tmp_path):
    class Pondering(Listener):
        may_stop = True

        def step_ended(self, progress):
            time.sleep(0.5)

        def epoch_ended(self, record, network):
            time.sleep(0.5)

    def evaluating(run, manager):
        with manager.run(run, nn.Linear(4, 2), torch.rand(6, 4).split(2)):
            for _ in manager.epochs(3):
                for inputs in manager.batches():
                    manager.track_loss(0.5, inputs)
                manager.evaluate([(torch.rand(2, 4), torch.zeros(2, dtype=torch.long))])

    Pondering.where = where
    execute(tmp_path, {"lr": [0.1]}, evaluating, Pondering())

    durations = load_results(tmp_path)[["epoch duration", "run duration"]]
    assert (durations >= 0).all(axis=None)
    assert (durations < 1.0).all(axis=None)  # 1.5 s and more with what was waited for


@pytest.mark.parametrize("where", ["parent", "worker"])
def test_a_listener_gets_hyperparameters_of_its_own(where, tmp_path):
    class Appending(Listener):
        def run_began(self, run, network, loader):
            run.sizes.append(9)

    def slowly(run, manager):
        time.sleep(0.1)
        with manager.run(run):
            assert len(run.sizes) == 1

    Appending.where = where
    outcome = execute(tmp_path, {"sizes": [[1], [2]]}, slowly, Appending())

    assert outcome.runs[["sizes", "status"]].to_numpy().tolist() == [[[1], "completed"], [[2], "completed"]]


def test_a_listener_hears_that_its_grid_was_stopped(tmp_path):
    heard = []

    class Ends(Listener):
        def run_ended(self, outcome):
            heard.append((self.run.lr, str(outcome.status)))

    def interrupted(run, manager):
        with manager.run(run):
            for _ in manager.epochs(2):
                raise KeyboardInterrupt

    outcome = execute(tmp_path, {"lr": [0.1, 0.2]}, interrupted, Ends())

    assert outcome.exit_code == 130
    assert heard == [(0.1, "interrupted")]


@pytest.mark.slow
def test_a_listener_that_is_too_slow_misses_epochs_but_no_end(tmp_path):
    is_done = threading.Event()

    class Busy(Listener):
        events: ClassVar[list[str]] = []

        def run_began(self, run, network, loader):
            is_done.wait(60)

        def epoch_ended(self, record, network):
            self.events.append("epoch")

        def run_ended(self, outcome):
            self.events.append("end")

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1_100):
                manager.track_loss(run.lr, 1)
        is_done.set()

    options: dict[str, Any] = {"executor": "inline", "tensorboard": False, "display": False}
    run_grid({"lr": [0.1]}, train, experiment="e", root=tmp_path, listeners=[Busy()], **options)

    assert Busy.events == ["epoch"] * (len(Busy.events) - 1) + ["end"]
    assert 0 < len(Busy.events) <= 1_001

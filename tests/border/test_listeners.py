"""What every listener promises, wherever it is and whatever it does: no table and no bit changes by it."""

import math
import random
import threading
import time
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from runmanager import Listener, RunsWarning, SuccessiveHalving, load_results, load_runs
from tests.border.events import scalars_of
from tests.border.experiments import complete, execute
from tests.border.work import minimize

TIMES = ["epoch duration", "run duration", "peak memory"]
pytestmark = pytest.mark.filterwarnings("ignore:listener ")


class Reacting(Listener):
    """Does something when it hears of anything."""

    def __init__(self, react, where, *, may_stop=False):
        self.react, self.where, self.may_stop = react, where, may_stop

    def run_began(self, run, network, loader):
        self.react()

    def step_ended(self, progress):
        self.react()

    def epoch_ended(self, record, network):
        return self.react()

    def run_ended(self, outcome):
        self.react()


class Spoiling(Reacting):
    def epoch_ended(self, record, network):
        record.metrics.update(loss=math.nan, test_loss=0.0)
        record.times.clear()


class LookingInside(Reacting):
    """Looks at the network and the loader: that moves neither."""

    def run_began(self, run, network, loader):
        next(iter(loader))

    def epoch_ended(self, record, network):
        torch.set_grad_enabled(False)
        network(torch.rand(4, 4))  # in training mode, this counts into BatchNorm's statistics


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError("no text")


class Odd:
    def __repr__(self):
        raise ValueError("no text")


def raising(error):
    def raise_it():
        raise error

    return raise_it


def draw():
    torch.rand(3)
    random.random()  # noqa: S311 - the state that a run may use


def stop():
    return "enough"


REACTIONS: list[Any] = [
    raising(KeyError("[red]\x1b[31m")), raising(SystemExit(3)), raising(UnprintableError()),
    partial(time.sleep, 0.05), lambda: 3.5, Odd,  # no text
]  # fmt: skip


@pytest.fixture(params=["inline", pytest.param("lanes", marks=pytest.mark.slow)])
def executor(request):
    return request.param


def train(run, manager):
    torch.manual_seed(run.seed)
    random.seed(run.seed)
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr)
    parts = {"network": network, "optimizer": optimizer}
    data: Any = torch.rand(6, 4)
    loader: Any = DataLoader(data, 2, shuffle=True, generator=torch.Generator().manual_seed(1))
    with manager.run(run, network, loader):
        for _ in manager.epochs(4, checkpoint=parts, keep="last"):
            for inputs in manager.batches():
                loss = network(inputs * torch.rand(4)).square().mean() + random.random() / 1e3  # noqa: S311
                minimize(optimizer, loss)
                manager.track_loss(loss, inputs)
            manager.log(last_loss=loss)


def start(root, executor, *listeners, **options):
    """Execute three runs, of which the first is the worst."""
    options = {"executor": executor, "tensorboard": True, "goal": "min:loss", **options}
    return execute(root, {"lr": [0.3, 0.1, 0.2], "seed": [0]}, train, listeners=[*listeners], **options)


def results_of(root):
    """Return what is left: tables, TensorBoard's scalars, weights."""
    table = load_results(root).drop(columns=TIMES, errors="ignore").dropna(axis=1).to_dict("list")
    runs = load_runs(root)[["run", "status", "epochs", "error"]].to_dict("list")
    folders = sorted(path.parent for path in (root / "e").glob("*/weights.pt"))
    scalars = [scalars_of(path).get("loss/train") for path in folders]
    weights = [torch.load(path / "weights.pt", weights_only=True) for path in folders]
    tensors = [{name: value.tolist() for name, value in each.items()} for each in weights]
    return table, runs, scalars, tensors


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """Executor -> what is left of a grid that nobody listens to; executed once each."""
    left = {}

    def executed(executor, **options):
        key = (executor, options["prune"] is None)
        if key not in left:
            root = tmp_path_factory.mktemp("without")
            assert start(root, executor, **options).exit_code == 0
            left[key] = results_of(root)
        return left[key]

    return executed


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("prune", [None, SuccessiveHalving("loss", factor=2)])
@pytest.mark.parametrize("where", ["parent", "worker"])
def test_whatever_listeners_do_changes_nothing_and_pruning_decides_as_without_them(
    executor, where, prune, without, tmp_path
):
    listeners = [Reacting(react, where, may_stop=may_stop) for react in REACTIONS for may_stop in (False, True)]
    listeners += [Reacting(stop, where), Spoiling(str, where), Spoiling(str, where, may_stop=True)]
    if where == "worker":
        listeners.append(LookingInside(str, where))
    if (executor, where) != ("inline", "parent"):
        listeners.append(Reacting(draw, where))  # there, it is a thread beside the run, in its process

    start(tmp_path, executor, *listeners, prune=prune)

    assert results_of(tmp_path) == without(executor, prune=prune)


@pytest.mark.parametrize("where", ["parent", "worker"])
def test_one_that_may_stop_runs_stops_each_after_its_first_epoch(where, tmp_path):
    start(tmp_path, "inline", Reacting(stop, where, may_stop=True))

    runs = load_runs(tmp_path)
    assert runs["status"].tolist() == ["pruned"] * 3
    assert runs["error"].str.contains("enough").all()
    assert load_results(tmp_path)["epoch"].tolist() == [1, 1, 1]


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
    execute(tmp_path, {"lr": [0.1]}, evaluating, listeners=[Pondering()])

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
    outcome = execute(tmp_path, {"sizes": [[1], [2]]}, slowly, listeners=[Appending()])

    assert outcome.runs[["sizes", "status"]].to_numpy().tolist() == [[[1], "completed"], [[2], "completed"]]


def test_a_listener_in_the_parent_hears_each_event_of_a_run_and_that_its_grid_was_stopped(tmp_path):
    heard: list[tuple[object, ...]] = []

    class All(Listener):
        def run_began(self, run, network, loader):
            heard.append(("began", run.lr))

        def step_ended(self, progress):
            heard.append(progress[:2])

        def epoch_ended(self, record, network):
            heard.append(("epoch", record.epoch))

        def run_ended(self, outcome):
            heard.append(("ended", str(outcome.status), self.slot.is_retried))

    def tested_first(run, manager):
        with manager.run(run, nn.Linear(4, 2)):
            manager.evaluate([(torch.ones(1, 4), torch.tensor([0]))], "before")  # outside an epoch
            for _ in manager.epochs(1):
                manager.track_loss(1, 1)
                if run.lr == 0.2:
                    raise KeyboardInterrupt

    outcome = execute(tmp_path, {"lr": [0.1, 0.2, 0.3]}, tested_first, listeners=[All()])

    first = [("began", 0.1), (0, 0), ("epoch", 1), ("ended", "completed", False)]
    assert heard == [*first, ("began", 0.2), (0, 0), ("ended", "interrupted", False)]
    assert outcome.exit_code == 130


def test_a_listener_that_fails_in_a_worker_is_named_once(tmp_path):
    failing = Reacting(raising(ValueError("odd")), "worker")

    with pytest.warns(RunsWarning, match=r"listener Reacting: .* raised ValueError: odd") as said:
        start(tmp_path, "inline", failing)

    assert len(said) == 1


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
        complete(run, manager, [0.5] * 1_100)
        is_done.set()

    execute(tmp_path, {"lr": [0.1]}, train, listeners=[Busy()])

    assert Busy.events == ["epoch"] * (len(Busy.events) - 1) + ["end"]
    assert 0 < len(Busy.events) <= 1_001


@pytest.mark.slow
def test_the_ends_that_a_listener_has_not_heard_in_time_are_counted(tmp_path, caplog):
    is_over = threading.Event()

    start(tmp_path, "inline", Reacting(partial(is_over.wait, 60), "parent"))

    is_over.set()
    assert "Reacting: did not finish in 20 s: 3 ends of runs are lost" in caplog.text

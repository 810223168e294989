"""What every listener promises, wherever it is and whatever it does: no table and no bit changes by it."""

import math
import random
import time

import pytest
import torch
from torch import nn

from runmanager import Listener, SuccessiveHalving, load_results, load_runs, run_grid
from tests.board.reading import folder_scalars

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
    how = {"executor": executor, "display": False, "goal": "min:loss", **options}
    grid = {"lr": [0.3, 0.1, 0.2], "seed": [0]}
    return run_grid(grid, train, experiment="e", root=root, listeners=list(listeners), **how)


def results_of(root):
    """Return what is left: tables, TensorBoard's scalars, weights."""
    table = load_results(root).drop(columns=TIMES, errors="ignore").dropna(axis=1).to_dict("list")
    runs = load_runs(root)[["run", "status", "epochs", "error"]].to_dict("list")
    folders = sorted(path.parent for path in (root / "e").glob("*/weights.pt"))
    scalars = [
        {tag: points for tag, points in folder_scalars(path).items() if tag in ("loss/train", "Goal/best")}
        for path in folders
    ]
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


@pytest.mark.parametrize("where", ["parent", "worker"])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_listener_does_changes_nothing(executor, kind, where, without, tmp_path):
    if (kind, executor, where) == (Drawing, "inline", "parent"):
        return  # the one exception, as its docstring says: a thread beside the run, in its process

    start(tmp_path, executor, listener(kind, where))

    assert results_of(tmp_path) == without(executor)


@pytest.mark.parametrize("where", ["parent", "worker"])
@pytest.mark.parametrize("kind", [Raising, Slow, Answering, Spoiling])
def test_one_that_may_stop_runs_and_gives_no_reason_changes_nothing(executor, kind, where, without, tmp_path):
    start(tmp_path, executor, listener(kind, where, may_stop=True))

    assert results_of(tmp_path) == without(executor)


@pytest.mark.parametrize("where", ["parent", "worker"])
def test_others_hear_and_decide_as_if_it_was_not_there(executor, where, without, tmp_path):
    """A pruner beside it is asked about the values of the journal, whatever it did with its own record."""
    prune = SuccessiveHalving("loss", factor=2, asynchronous=True)

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
    assert runs["error"].tolist() == ["after epoch 1 of 4: enough"] * 3
    assert load_results(tmp_path)["epoch"].tolist() == [1, 1, 1]

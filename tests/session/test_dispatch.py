import os
import random
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from runmanager import GridError, Listener, RunBuilder, RunsWarning, load_results, load_runs, run_grid
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome, Question, Status
from runmanager.executors.signals import Stop
from runmanager.session import dispatch
from runmanager.session.dispatch import Dispatcher, Guarded

GRID = {"lr": [0.1, 0.2, 0.3]}
RUN = RunBuilder.get_runs(GRID)[0]
TIMES = ["epoch duration", "run duration", "peak memory"]


def train(run, manager):
    state = {"epoch": 0}
    with manager.run(run):
        for epoch in manager.epochs(4, checkpoint={"state": state}):
            state["epoch"] = epoch
            manager.track_loss(run.lr / epoch, 1)
            if run.lr == 0.3 and epoch == 2:
                raise ValueError("no data")


def start(root, *listeners, **options):
    options = {"executor": "inline", "display": False, "tensorboard": False, **options}
    return run_grid(GRID, train, experiment="e", root=root, listeners=list(listeners), **options)


def table(root):
    return load_results(root).drop(columns=TIMES, errors="ignore")


class Notes(Listener):
    """Notes everything with the run it is of."""

    def __init__(self):
        self.events = []

    def _note(self, *event):
        self.events.append((self.run.lr, self.slot.lane, *event))

    def run_began(self, run, network, loader):
        assert run == self.run
        self._note("began", network, loader)

    def epoch_ended(self, record, network):
        self._note(record.epoch, record.metrics["loss"], network)

    def run_ended(self, outcome):
        self._note(str(outcome.status), outcome.error)


class Raising(Listener):
    def run_began(self, run, network, loader):
        raise ValueError("[red]\x1b[31m")

    def epoch_ended(self, record, network):
        raise SystemExit(3)


class Hanging(Listener):
    def __init__(self):
        self.release = threading.Event()

    def run_began(self, run, network, loader):
        self.release.wait(20)


class StopsAfterTwo(Listener):
    may_stop = True

    def __init__(self, seen=None):
        self.seen = [] if seen is None else seen

    def epoch_ended(self, record, network):
        self.seen.append((self.run.lr, record.epoch))
        return "two are enough" if record.epoch == 2 and self.run.lr == 0.1 else None


@pytest.mark.parametrize("executor", ["inline", pytest.param("lanes", marks=pytest.mark.slow)])
def test_a_listener_hears_of_all_that_happens_to_each_run_in_its_order(tmp_path, executor):
    notes = Notes()

    start(tmp_path, notes, executor=executor)

    for lr in (0.1, 0.2):
        epochs = [(lr, 0, epoch, lr / epoch, None) for epoch in (1, 2, 3, 4)]
        assert [event for event in notes.events if event[0] == lr] == [
            (lr, 0, "began", None, None), *epochs, (lr, 0, "completed", ""),
        ]  # fmt: skip
    lr, _, status, error = [event for event in notes.events if event[0] == 0.3][-1]
    assert (lr, status) == (0.3, "failed")
    assert error.startswith("ValueError: no data (in epoch 2")


@pytest.mark.slow(everywhere=True)
def test_a_listener_that_raises_changes_nothing_and_is_said_once(tmp_path, capsys):
    start(tmp_path / "without")
    capsys.readouterr()

    outcome = start(tmp_path / "with", Raising(), notes := Notes(), display=None)

    assert outcome.exit_code == 1
    assert table(tmp_path / "with").equals(table(tmp_path / "without"))
    assert len(notes.events) == 3 * 2 + 2 * 4 + 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("! listener")]
    assert lines == ["! listener Raising: run_began() raised ValueError: [red]\\x1b[31m"]


@pytest.mark.slow
def test_a_listener_that_hangs_holds_no_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dispatch, "ANSWER_S", 0.2)
    hanging = Hanging()
    start(tmp_path / "without")

    start(tmp_path / "with", hanging, display=None)
    hanging.release.set()

    assert table(tmp_path / "with").equals(table(tmp_path / "without"))
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("! listener")]
    assert len(said) == 1
    assert said[0] == "! listener Hanging: did not finish in 0.4 s: 3 ends of runs are lost"


def test_a_listener_may_stop_a_run_and_the_journal_says_why(tmp_path):
    start(tmp_path, StopsAfterTwo())

    runs = load_runs(tmp_path).set_index("lr")
    assert runs["status"].to_dict() == {0.1: "pruned", 0.2: "completed", 0.3: "failed"}
    assert runs["epochs"].to_dict() == {0.1: 2, 0.2: 4, 0.3: 1}
    assert runs["error"].iloc[0] == "after epoch 2 of 4: two are enough"


def test_a_stopped_run_stays_so_with_the_same_listener_and_goes_on_without_it(tmp_path):
    start(tmp_path, StopsAfterTwo())

    start(tmp_path, again := StopsAfterTwo())
    assert again.seen == []

    start(tmp_path)
    assert load_runs(tmp_path)["epochs"].tolist() == [4, 4, 1]


@pytest.mark.slow
def test_a_run_that_another_listener_stopped_asks_about_its_last_epoch_again(tmp_path):
    class Other(StopsAfterTwo):
        pass

    start(tmp_path, StopsAfterTwo())
    start(tmp_path, other := Other())

    assert other.seen == [(0.1, 2)]
    assert load_runs(tmp_path)["epochs"].tolist() == [2, 4, 1]


def test_answers_of_a_listener_that_may_not_stop_runs_do_not_count(tmp_path):
    class Observing(StopsAfterTwo):
        may_stop = False

    start(tmp_path, observing := Observing())

    assert (0.1, 2) in observing.seen
    assert load_runs(tmp_path)["epochs"].tolist() == [4, 4, 1]


@pytest.mark.slow
def test_without_an_answer_in_time_the_run_goes_on_and_later_answers_count(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dispatch, "ANSWER_S", 0.2)

    class Late(StopsAfterTwo):
        def epoch_ended(self, record, network):
            if (self.run.lr, record.epoch) == (0.1, 1):
                time.sleep(0.6)
            return "enough" if self.run.lr == 0.2 else None

    def slow_train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(4, checkpoint={}):
                time.sleep(0.15)
                manager.track_loss(run.lr / epoch, 1)

    how: dict[str, Any] = {"executor": "inline", "tensorboard": False}
    run_grid({"lr": [0.1, 0.2]}, slow_train, experiment="e", root=tmp_path, listeners=[Late()], **how)

    assert load_runs(tmp_path)["epochs"].tolist() == [4, 1]
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("! listener")]
    assert said == ["! listener Late: gave no answer in 0.2 s, and the run continues"]


def test_an_answer_that_is_no_text_is_said_and_does_not_count(tmp_path, capsys):
    class Yes(Listener):
        may_stop = True

        def epoch_ended(self, record, network):
            return True

    start(tmp_path, Yes(), display=None)

    assert load_runs(tmp_path)["epochs"].tolist() == [4, 4, 1]
    assert "must return why the run is to stop, or None, got True" in capsys.readouterr().out


def test_the_first_reason_counts():
    class Says(Listener):
        may_stop = True

        def __init__(self, why):
            self.why = why

        def epoch_ended(self, record, network):
            return self.why

    told = Dispatcher([Says(None), Says("first"), Says("second")], Stop(), print)
    told.run_started(RUN, 0, "cpu")

    assert told.run_progressed(RUN, Question(EpochRecord(1, {}))) == "first"


def test_steps_are_dropped_first_and_ends_never(monkeypatch):
    monkeypatch.setattr(dispatch, "_MOST_WAITING", 20)
    said: list[str] = []
    heard: list[str] = []

    class Slow(Hanging):
        def step_ended(self, progress):
            heard.append("step")

        def epoch_ended(self, record, network):
            heard.append("epoch")

        def run_ended(self, outcome):
            heard.append("end")

    hanging = Slow()
    guarded = Guarded(hanging, said.append)
    told = Dispatcher([guarded], Stop(), print)
    told.run_started(RUN, 0, "cpu")
    for number in range(15):
        told.run_progressed(RUN, EpochRecord(number + 1, {}))
        told.run_progressed(RUN, BatchProgress(1, number))
    for _ in range(30):
        told.run_ended(RUN, Outcome(Status.COMPLETED))
    hanging.release.set()
    guarded.close()

    assert heard.count("end") == 30
    assert heard.count("step") == 0
    assert len(said) == 1
    assert "is slow: 20 events wait" in said[0]


def test_listeners_that_are_none_are_refused_together_with_all_else(tmp_path):
    class Elsewhere(Listener):
        where = "moon"

    with pytest.raises(GridError) as raised:
        start(tmp_path, print, Elsewhere(), retries=-1)

    assert len(raised.value.problems) == 2
    assert not any(tmp_path.iterdir())


class Drawing(Listener):
    """Draws random numbers where the run draws its own, takes long, and leaves the network in another mode."""

    where = "worker"

    def __init__(self, path):
        self.path = path

    def run_began(self, run, network, loader):
        self._draw(network)

    def epoch_ended(self, record, network):
        self._draw(network)

    def _draw(self, network):
        torch.rand(7)
        random.random()  # noqa: S311 - the state that a run may use
        np.random.rand()  # noqa: NPY002 - as above
        network.eval()
        time.sleep(0.3)

    def run_ended(self, outcome):
        with self.path.open("a") as file:
            file.write(f"{self.run.lr} {os.getpid()} {outcome.status}\n")


class RaisingThere(Raising):
    where = "worker"

    def epoch_ended(self, record, network):
        raise ValueError("again")


def random_train(run, manager):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr)
    with manager.run(run, network):
        for _ in manager.epochs(2, checkpoint={"network": network, "optimizer": optimizer}):
            inputs = torch.rand(8, 4)
            loss = network(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            manager.track_loss(loss, inputs)


def begin(root, *listeners, executor="inline", **options):
    how = {"tensorboard": False, "executor": executor, "display": False, **options}
    return run_grid(
        {"lr": [0.1, 0.2]}, random_train, experiment="e", root=root, listeners=list(listeners), **how
    )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "lanes"])
def test_a_listener_in_the_worker_changes_no_number_and_no_duration(tmp_path, executor):
    begin(tmp_path / "without", executor=executor)
    begin(tmp_path / "with", Drawing(tmp_path / "heard.txt"), executor=executor)

    assert table(tmp_path / "with").equals(table(tmp_path / "without"))
    assert load_results(tmp_path / "with")["run duration"].max() < 0.3
    heard = [line.split() for line in (tmp_path / "heard.txt").read_text().splitlines()]
    assert [(lr, status) for lr, _, status in heard] == [("0.1", "completed"), ("0.2", "completed")]
    assert {int(process) == os.getpid() for _, process, _ in heard} == {executor == "inline"}


@pytest.mark.slow(everywhere=True)
def test_a_listener_in_the_worker_that_raises_is_said_once(tmp_path):
    begin(tmp_path / "without")

    with pytest.warns(RunsWarning) as warned:
        begin(tmp_path / "with", RaisingThere())

    assert table(tmp_path / "with").equals(table(tmp_path / "without"))
    rule = "listener RaisingThere: run_began() raised ValueError: [red]\\x1b[31m; the run goes on"
    assert [(str(each.message), each.filename) for each in warned] == [(rule, __file__)]


@pytest.mark.parametrize("executor", ["inline", "lanes"])
def test_a_listener_in_the_worker_may_stop_a_run(tmp_path, executor):
    class Stops(StopsAfterTwo):
        where = "worker"

        def epoch_ended(self, record, network):
            assert isinstance(network, nn.Module)
            return f"{self.run.lr} is enough" if record.epoch == 1 else None

    begin(tmp_path, Stops(), executor=executor)

    runs = load_runs(tmp_path)
    assert runs["status"].tolist() == ["pruned", "pruned"]
    assert runs["error"].tolist() == [f"after epoch 1 of 2: {lr} is enough" for lr in (0.1, 0.2)]


def test_a_listener_that_cannot_be_sent_is_refused_before_anything_is_written(tmp_path):
    class Holding(Listener):
        where = "worker"

        def __init__(self):
            self.lock = threading.Lock()

    with pytest.raises(GridError, match="lock"):
        begin(tmp_path, Holding(), executor="lanes")

    assert not any(tmp_path.iterdir())

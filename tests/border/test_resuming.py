"""What a repeated command does after Ctrl-C, kill -9, damage and changes: nothing is lost, no bit differs."""

import itertools
import math
import os
import pickle
import random
import shutil
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from runmanager import (
    CheckpointError,
    ExperimentLockedError,
    ImageTensors,
    RunManager,
    RunsWarning,
    TensorLoader,
    load_results,
    load_run,
    load_runs,
)
from tests.border import reading
from tests.border.work import announce, meet, start, statuses, trained

pytestmark = pytest.mark.usefixtures("own_folder")
IMAGES = torch.randn(14, 1, 2, 2, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(14) % 3
DATA = TensorDataset(IMAGES, LABELS)
DURATIONS = ["epoch duration", "run duration"]
NEWEST, BEFORE = "checkpoint.pt", "checkpoint.prev.pt"
WHOLE = [1, 2, 3, 4]


def generator():
    return torch.Generator().manual_seed(7)


LOADERS = {
    "global": lambda: DataLoader(DATA, 4, shuffle=True),
    "own generator": lambda: DataLoader(DATA, 4, shuffle=True, generator=generator()),
    "own sampler": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, generator=generator())),
    "TensorLoader": lambda: TensorLoader(ImageTensors(IMAGES, LABELS), 4),
    "persistent workers": lambda: DataLoader(
        DATA, 4, shuffle=True, generator=generator(), num_workers=1, persistent_workers=True
    ),
    "worker": lambda: DataLoader(DATA, 4, shuffle=True, num_workers=1),
}


def stateful(run, manager):
    """Train with everything that has a state; a fault comes in the middle of an epoch."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(network.parameters(), lr=run.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    parts = {"network": network, "optimizer": optimizer, "scheduler": scheduler}
    with manager.run(run, network, LOADERS[run.loader]()):
        for epoch in manager.epochs(4, checkpoint=parts, keep=run.keep):
            for number, (images, labels) in enumerate(manager.batches()):
                if number == 1:
                    meet(run, epoch)
                loss = functional.cross_entropy(network(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, images)
            scheduler.step()
            manager.evaluate(DataLoader(DATA, 5, shuffle=True))
            manager.track(
                python=random.gauss(0, 1),  # one of a pair, whose other number is a state too
                numpy=np.random.normal(),  # noqa: NPY002
                torch=torch.rand(()),
                lr_now=optimizer.param_groups[0]["lr"],
                first=network.get_parameter("1.weight")[0, 0],
            )
    meet(run, 5)


def start_stateful(root="runs", loader="global", keep="last", **options):
    params = {"lr": options.pop("lrs", [0.1]), "loader": [loader], "keep": [keep]}
    return start(params, stateful, root=root, **{"retry_failed": True, **options})


def left(root="runs"):
    """Return all that follows from the training of a run: its rows as text, and its weights."""
    table = load_results(f"{root}/exp").query("run == 1").drop(columns=DURATIONS)
    path = reading.run_folder(f"{root}/exp") / "weights.pt"
    weights = torch.load(path, weights_only=True) if path.exists() else {}
    return table.to_csv(), {name: value.tolist() for name, value in weights.items()}


@pytest.fixture
def undisturbed():
    """Train without a fault; return what is left."""

    def execute(loader="global", keep="last"):
        start_stateful("whole", loader, keep)
        trained()
        return left("whole")

    return execute


def epochs_trained():
    return [epoch for _, epoch in trained() if epoch < 5]


@pytest.mark.parametrize("kind", ["stop", "error"])
@pytest.mark.parametrize("loader", [*list(LOADERS)[:-1], pytest.param("worker", marks=pytest.mark.slow)])
def test_a_resumed_run_is_bit_identical_to_an_undisturbed_one(undisturbed, loader, kind):
    expected = undisturbed(loader)
    announce(kind, 0.1, 2)
    start_stateful(loader=loader)
    trained()

    outcome = start_stateful(loader=loader)

    assert epochs_trained() == [2, 3, 4]
    assert left() == expected
    assert outcome.runs[["status", "attempts"]].to_numpy().tolist() == [["completed", 2]]


@pytest.mark.parametrize("keep", ["best:test_loss", "max:python"])
@pytest.mark.parametrize("at", [(1,), (2, 3), (4,), (5,)])
def test_a_run_resumes_after_its_last_committed_epoch_as_often_as_it_is_stopped(undisturbed, at, keep):
    expected = undisturbed(keep=keep)
    for epoch in at:
        announce("stop", 0.1, epoch)
        start_stateful(keep=keep)
    trained()

    start_stateful(keep=keep)

    assert epochs_trained() == [epoch for epoch in WHOLE if epoch >= at[-1]]
    assert left() == expected
    durations = load_results("runs")["run duration"].tolist()
    assert durations == sorted(durations)  # the clock of a run goes on


PROGRAM = """
import os, sys
from pathlib import Path
from tests.border import test_resuming, work
Path("parent.pid").write_text(f"{os.getpid()}")
if sys.argv[1:] == ["lanes"]:
    sys.exit(work.start(executor="lanes").exit_code)
sys.exit(test_resuming.start_stateful(retry_failed=False).exit_code)
"""


@pytest.fixture
def execute(warm, own_folder):
    """Execute a grid in a process of its own; return its exit code."""
    program = own_folder / "program.py"
    program.write_text(PROGRAM)

    def run_program(*arguments):
        warm.begin(program, *arguments)
        return warm.wait()

    return run_program


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [1, 3])
def test_kill_9_loses_no_committed_epoch_and_changes_no_result(execute, undisturbed, epoch):
    expected = undisturbed()
    announce("kill", 0.1, epoch)
    code = execute()
    committed = reading.epochs(reading.run_folder("runs/exp"))
    interrupted = load_runs("runs")

    assert (code, trained()) == (-9, [(0.1, number) for number in range(1, epoch + 1)])
    assert list(committed) == list(range(1, epoch))
    assert interrupted[["status", "epochs"]].to_numpy().tolist() == [["interrupted", epoch - 1]]
    assert execute() == 0
    assert epochs_trained() == WHOLE[epoch - 1 :]
    assert left() == expected
    assert list(reading.epochs(reading.run_folder("runs/exp"))) == WHOLE


@pytest.mark.slow
def test_the_end_of_the_parent_ends_its_lanes_and_the_same_command_resumes(execute):
    announce("kill parent", 0.2, 2)
    code = execute("lanes")
    lane = int(Path("lane.pid").read_text())
    until = time.monotonic() + 20
    with suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(lane, 0)
            time.sleep(0.05)
        pytest.fail("a lane lives on")
    trained()

    assert code == -9
    assert execute("lanes") == 0
    assert trained() == [(0.2, 2), (0.2, 3), (0.3, 1), (0.3, 2), (0.3, 3)]
    assert load_results("runs")["epoch"].tolist() == [1, 2, 3] * 3


@pytest.mark.slow
def test_an_experiment_that_another_process_executes_is_refused_and_stays_as_it_is(warm, execute, own_folder):
    announce("hang", 0.1, 2)
    pid = warm.begin(own_folder / "program.py")
    until = time.monotonic() + 60
    while Path("fault-0.1-2").exists() and time.monotonic() < until:
        time.sleep(0.02)
    try:
        before = {path: path.read_bytes() for path in Path("runs").rglob("attempt-*")}
        with pytest.raises(ExperimentLockedError, match=str(pid)):
            start_stateful()
        assert load_runs("runs")["status"].tolist() == ["running"]
        assert {path: path.read_bytes() for path in Path("runs").rglob("attempt-*")} == before
    finally:
        os.kill(pid, 9)
        warm.wait()

    assert statuses(start_stateful()) == [("completed", 4)]  # a dead owner holds nothing


def interrupt(epoch, **options):
    """Stop a run in an epoch; return its folder."""
    announce("stop", 0.1, epoch)
    start_stateful(**options)
    trained()
    return reading.run_folder("runs/exp")


def test_an_epoch_that_the_checkpoint_alone_has_is_not_trained_again(undisturbed):
    expected = undisturbed()
    folder = interrupt(3)
    reading.as_killed(folder, num_lost=1)

    start_stateful()

    assert epochs_trained() == [3, 4]
    assert left() == expected
    assert list(reading.epochs(folder)) == WHOLE


@pytest.mark.parametrize(("names", "begun"), [([NEWEST], [3, 4]), ([NEWEST, BEFORE], WHOLE)])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used_or_none(undisturbed, names, begun):
    expected = undisturbed()
    folder = interrupt(4)
    for name in names:
        reading.flip(folder / name, 0.1)  # not in the padding of its zip archive

    with pytest.warns(RunsWarning, match=r"checkpoint\.pt"):
        start_stateful()

    assert epochs_trained() == begun
    assert left() == expected


def test_a_checkpoint_whose_member_became_a_folder_is_not_used(undisturbed):
    expected, path = undisturbed(), interrupt(4) / NEWEST
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02", 0, content.rindex(b"data/0"))
    content[entry + 38] ^= 0x10  # of the archive's directory, which has no checksum: torch reads nothing then
    path.write_bytes(content)

    with pytest.warns(RunsWarning, match=r"checkpoint\.pt"):
        start_stateful()

    assert left() == expected


def test_a_checkpoint_that_the_system_cannot_read_is_not_damaged(undisturbed, monkeypatch):
    expected = undisturbed()
    folder, real = interrupt(3), os.open

    def stale(path, *arguments):
        if str(path).endswith(NEWEST):
            raise OSError(116, "Stale file handle")
        return real(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", stale)
        assert start_stateful().exit_code == 74

    assert (folder / NEWEST).exists()
    start_stateful()
    assert left() == expected


def test_a_checkpoint_of_another_run_is_not_used(undisturbed):
    expected = undisturbed()
    lrs = [0.1, 0.2]
    announce("error", 0.1, 3)
    announce("error", 0.2, 4)
    start_stateful(lrs=lrs)
    first, second = reading.run_folders("runs/exp")
    shutil.copy(second / NEWEST, first / NEWEST)

    with pytest.warns(RunsWarning, match=r"checkpoint\.pt"):
        start_stateful(lrs=lrs)

    assert left() == expected


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def test_nothing_in_a_folder_of_runs_is_executed():
    folder = interrupt(3)
    content = pickle.dumps(Bomb())
    for name in (NEWEST, BEFORE):
        (folder / name).write_bytes(content)
    torch.save(Bomb(), folder / "weights.pt")

    load_runs("runs")
    with pytest.warns(RunsWarning):
        start_stateful()

    assert not Path("executed").exists()


def test_a_completed_run_has_no_checkpoints_and_an_interrupted_one_has():
    folder = interrupt(3)
    before = sorted(path.name for path in folder.glob("*.pt"))
    start_stateful()

    assert before == [BEFORE, NEWEST, "weights.pt"]
    assert [path.name for path in folder.glob("*.pt")] == ["weights.pt"]


@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_a_folder_that_was_moved_or_copied_resumes(undisturbed, move):
    expected = undisturbed()
    interrupt(3)
    move("runs", "there")

    start_stateful("there")

    assert epochs_trained() == [3, 4]
    assert left("there") == expected


def loop(parts, fault=None, network=None, **options):
    """Train three epochs, the second of which may end in a fault; return the numbers of those begun."""
    manager = RunManager("exp", display=False, tensorboard=False)
    begun = []
    with suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, network):
        for epoch in manager.epochs(3, checkpoint=parts, **options):
            begun.append(epoch)
            manager.track_loss(0.5, 1)
            if isinstance(parts, dict) and "state" in parts:
                parts["state"].setdefault("epochs", []).append(epoch)
            if fault and epoch == 2:
                raise KeyboardInterrupt
    return begun


def test_plain_state_is_restored_in_place_without_the_epoch_that_was_lost():
    loop({"state": {}}, fault=True)
    state: dict[str, Any] = {"epochs": ["other"]}

    assert loop({"state": state}) == [2, 3]
    assert state == {"epochs": [1, 2, 3]}


def test_without_a_checkpoint_a_run_starts_over():
    assert [loop(None, fault=True), loop(None)] == [[1, 2], [1, 2, 3]]


class Noisy(torch.utils.data.Dataset[Any]):
    """Draws random numbers where it is read, as augmentation does."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(4)


def augmented(run, manager):
    torch.manual_seed(1)
    network, loader = nn.Linear(4, 1), DataLoader(Noisy(), 4, num_workers=1, persistent_workers=True)
    with manager.run(run, network, loader):
        for epoch in manager.epochs(3, checkpoint={"network": network}):
            for inputs in manager.batches():
                manager.track_loss(network(inputs).mean(), inputs)
            meet(run, epoch)


def test_random_numbers_of_persistent_workers_are_said_at_the_start_and_mark_a_resumed_run():
    with pytest.warns(RunsWarning, match="persistent_workers=False"):
        whole = start({"lr": [0.1]}, augmented, root="whole")
    announce("stop", 0.1, 2)
    for _ in range(2):
        with pytest.warns(RunsWarning, match="persistent"):
            outcome = start({"lr": [0.1]}, augmented)

    assert [each.runs["mixed"].tolist() for each in (whole, outcome)] == [[False], [True]]


PYTHON = random.Random(1)  # noqa: S311


class Drawing(Noisy):
    """Draws from a generator of its module."""

    def __getitem__(self, index):
        return torch.full((4,), PYTHON.random())


class Weighted(Noisy):
    """Weighs what is read often."""

    def __init__(self):
        self.number, self.weights, self.cache = 0, np.ones(8), {}

    def __getitem__(self, index):
        self.number += 1
        self.weights[index] /= 2
        self.cache[index] = self.number
        return torch.full((4,), self.weights[index])


class Global(Noisy):
    """Keeps NumPy's generator, as sklearn.utils.check_random_state(None) returns it."""

    def __init__(self):
        self.rng = np.random.mtrand._rand

    def __getitem__(self, index):
        return torch.full((4,), 0 * self.rng.normal())


class Ordered(torch.utils.data.Sampler[int]):
    """Draws an order by the number of the epoch."""

    def __init__(self):
        self.epoch, self.order = 0, [3, 1, 4, 5]

    def __len__(self):
        return 4

    def __iter__(self):
        self.epoch += 1
        random.shuffle(self.order)
        return iter(self.order)


class Passes(Ordered):
    def __iter__(self):
        self.epoch += 1
        yield from torch.full((3, 2, 4), 1 / self.epoch)


class Told(Ordered):
    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([self.epoch, 0, 1])


def forever(loader):
    while True:
        yield from loader


# what a loop uses -> its loader, a second one, and the names that are said, "" if it is resumed exactly
UNSAVED: dict[str, Any] = {
    "NumPy's global generator": lambda: (DataLoader(Global(), 4), None, ""),
    "a generator of a module": lambda: (DataLoader(Drawing(), 4), None, "PYTHON"),
    "a generator in a function": lambda: (
        DataLoader(Noisy(), 4, collate_fn=noise(np.random.default_rng(1))), None, "collate_fn.rng",
    ),
    "a data set": lambda: (DataLoader(Weighted(), 4), None, "dataset.number, loader.dataset.weights"),
    "a sampler": lambda: (DataLoader(DATA, 4, sampler=Ordered()), None, "sampler.epoch, loader.sampler.order"),
    "a loader": lambda: (Passes(), None, "loader.epoch"),
    "a second loader": lambda: (DataLoader(DATA, 4), DataLoader(DATA, 4, generator=generator()), "second"),
    "workers": lambda: (
        DataLoader(DATA, 4), DataLoader(Noisy(), 4, num_workers=1, persistent_workers=True), "persistent",
    ),
    "an iterator": lambda: (DataLoader(DATA, 4), forever(DataLoader(DATA, 5)), "second"),
    "the global generator": lambda: (DataLoader(Noisy(), 4, True), DataLoader(DATA, 4, True), ""),
    "a sampler that is told": lambda: (DataLoader(DATA, 4, sampler=Told()), None, ""),
    "a generator that is given": lambda: (DataLoader(DATA, 4, True, generator=generator()), None, ""),
}  # fmt: skip


def noise(rng):
    return lambda samples: torch.stack(samples) * rng.normal()


def using(run, manager):
    torch.manual_seed(1)
    loader, second, _ = UNSAVED[run.what]()
    block = manager.run(run, None, loader)  # whose generator is no state of the loop
    with block:
        for epoch in manager.epochs(3, checkpoint={"state": {}}):
            if "told" in run.what:
                loader.sampler.set_epoch(epoch)
            for batch in manager.batches():
                inputs = batch[0] if isinstance(batch, list) else batch
                more = 0 if second is None else next(iter(second))[0].mean()
                manager.track_loss(inputs.mean() + more, len(inputs))
            meet(run, epoch)


@pytest.mark.parametrize(
    "what", [name if name != "workers" else pytest.param(name, marks=pytest.mark.slow) for name in UNSAVED]
)
@pytest.mark.filterwarnings("always")
def test_what_a_checkpoint_does_not_save_is_said_in_the_first_epoch_and_marks_a_resumed_run(what, recwarn):
    *_, named = UNSAVED[what]()
    said = []
    for root, fault in (("whole", 0), ("runs", 2), ("runs", 0)):
        announce("stop", 0.1, fault)
        outcome = start({"lr": [0.1], "what": [what]}, using, root=root)
        said.append([str(each.message) for each in recwarn if each.category is RunsWarning])
        recwarn.clear()

    assert [len(sentences) for sentences in said] == ([1, 1, 1] if named else [0, 0, 0])
    assert [sentence for sentences in said for sentence in sentences if named not in sentence] == []
    assert outcome.runs["mixed"].tolist() == [bool(named)]
    assert load_runs("whole")["mixed"].tolist() == [False]
    if not named:
        assert outcome.results["loss"].tolist() == load_results("whole")["loss"].tolist()


def growing(is_restored, fault=None):
    """Train four epochs, the second of which adds a group of parameters; return the losses."""
    torch.manual_seed(0)
    head, body, losses = nn.Linear(2, 1), nn.Linear(2, 2), []
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    manager = RunManager("exp" if is_restored else "whole", display=False, tensorboard=False)
    parts = {"head": head, "body": body, "optimizer": optimizer}
    with suppress(KeyboardInterrupt), manager.run({"lr": 0.1}):
        if is_restored and manager.resume_epoch >= 2:
            optimizer.add_param_group({"params": body.parameters()})
        for epoch in manager.epochs(4, checkpoint=parts):
            if epoch == 2:
                optimizer.add_param_group({"params": body.parameters()})
            if epoch == fault:
                raise KeyboardInterrupt
            loss = head(body(torch.ones(1, 2))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            manager.track_loss(loss, 1)
            losses.append(loss.item())
    return losses


def test_a_group_that_the_loop_adds_to_its_optimizer_is_added_before_it_resumes():
    whole = growing(is_restored=False)
    first = growing(is_restored=True, fault=4)

    assert first + growing(is_restored=True) == whole


def test_a_group_that_is_missing_on_resume_is_named_with_the_way_out():
    growing(is_restored=False, fault=4)

    with pytest.raises(CheckpointError, match="resume_epoch") as caught:
        growing(is_restored=False)

    assert "code has changed" not in str(caught.value)


def lazy(is_used, keep, fault=None, experiment="exp"):
    """Train two epochs with a lazy layer; return the losses."""
    torch.manual_seed(0)
    network = nn.ModuleList([nn.LazyLinear(1), nn.LazyLinear(1)])
    optimizer, losses = torch.optim.Adam(network.parameters(), lr=0.1), []
    parts = None if keep else {"network": network, "optimizer": optimizer}
    manager = RunManager(experiment, display=False, tensorboard=False)
    with suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, network):
        for epoch in manager.epochs(2, checkpoint=parts, keep=keep):
            if epoch == fault:
                raise KeyboardInterrupt
            loss = sum(layer(torch.ones(3, 2)).mean() for layer in network[: 1 + is_used])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            manager.track_loss(loss, 3)
            losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_run_with_lazy_layers_resumes():
    whole = lazy(True, None, experiment="whole")

    assert lazy(True, None, fault=2) + lazy(True, None) == whole


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("keep", [None, "last"])
def test_a_lazy_layer_that_no_batch_has_used_cannot_be_saved(keep):
    with pytest.raises(CheckpointError, match="lazy"):
        lazy(False, keep)


UNFIT: list[tuple[Any, Any, list[str]]] = [
    ({"network": nn.Linear(1, 1)}, {"model": nn.Linear(1, 1)}, ["network", "model"]),
    ({"network": nn.Linear(1, 1)}, {"network": nn.Linear(2, 1)}, ["network"]),
]


@pytest.mark.parametrize(("first", "second", "named"), UNFIT)
def test_parts_that_do_not_fit_the_checkpoint_are_refused_and_nothing_is_lost(first, second, named):
    loop(first, fault=True)

    with pytest.raises(CheckpointError) as caught:
        loop(second)

    assert isinstance(caught.value, ValueError)
    assert [text for text in ["after epoch 1", *named] if text not in str(caught.value)] == []
    assert "remove" not in str(caught.value)
    assert load_runs("runs")[["status", "epochs"]].to_numpy().tolist() == [["interrupted", 1]]
    assert "CheckpointError" in load_runs("runs")["error"][0]
    assert loop(first) == [2, 3]


class Own:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return {"state": self.state}

    def load_state_dict(self, state):
        self.state = state["state"]


ADAM = torch.optim.Adam(nn.Linear(1, 1).parameters())
CYCLE: dict[str, Any] = {}
CYCLE["itself"] = CYCLE


@pytest.mark.parametrize(
    ("parts", "keep", "named"),
    [
        ({"own": Own([CYCLE, object()])}, None, "executing code"),
        ({"network": nn.Linear(1, 1).state_dict()}, None, "'network': network"),
        ({"network": nn.Linear(1, 1), "own": {"x": torch.zeros(1)}}, None, r"register_buffer\(\)"),
        ({"network": nn.Linear(1, 1), "adam": ADAM.state_dict()}, None, "a copy that state_dict"),
        ({"optimizer": ADAM, "state": {}}, None, "add the network"),
        ({"lr": 0.1}, None, "state_dict"), ({"own": Own(object())}, None, "executing code"),
        ({"state": {"when": object()}}, None, "JSON"), ({"state": {"seen": Counter()}}, None, "Counter"),
        ({}, "best", "'best:<metric>'"), ({}, "best:f9", "'max:<metric>'"), ({}, "max:f1", "loss"),
        ({}, ("best:loss", object()), "must have state_dict"), ({}, ("loss", nn.Linear(1, 1)), "pair"),
    ],
)  # fmt: skip
def test_what_cannot_be_saved_or_kept_is_refused(parts, keep, named):
    with pytest.raises(CheckpointError, match=named):
        loop(parts, keep=keep, network=nn.Linear(1, 1))

    assert load_runs("runs")["status"].tolist() == ["failed"]


def compiled(network):
    return torch.compile(network, backend="eager")


@pytest.mark.parametrize("wrapped", [compiled, nn.DataParallel, lambda net: compiled(nn.DataParallel(net))])
def test_weights_of_a_wrapped_network_fit_the_network_itself(wrapped):
    network, other = wrapped(nn.Linear(1, 1)), nn.Linear(1, 1)
    loop({}, keep="last", network=network)
    load_run("runs/exp/1").load_weights(other)
    load_run("runs/exp/1").load_weights(network)

    assert other.weight.item() == next(network.parameters()).item()


def test_an_own_trainer_goes_on_before_the_epoch_whose_line_is_damaged():
    def train_by_hand(run, manager):
        with manager.run(run):
            begun.append(manager.resume_epoch + 1)
            for epoch in range(manager.resume_epoch + 1, 6):
                manager.begin_epoch()
                manager.track_loss(float(epoch), 1)
                manager.end_epoch()
                if epoch == 4 and len(begun) == 1:
                    raise KeyboardInterrupt

    begun: list[int] = []
    start({"lr": [0.1]}, train_by_hand)
    (journal,) = Path("runs/exp").glob("*/attempt-1.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"epoch", b"Epoch", 1)
    journal.write_bytes(b"".join(lines))
    with pytest.warns(RunsWarning, match="line 4"):
        start({"lr": [0.1]}, train_by_hand)

    with pytest.warns(RunsWarning, match="line 4"):
        rows = load_results("runs/exp")
    assert begun == [1, 3]
    assert rows["epoch"].tolist() == [1, 2, 3, 4, 5]
    assert rows["loss"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def with_its_loader(run, manager):
    torch.manual_seed(0)
    network, loader = nn.Linear(4, 3), TensorLoader(ImageTensors(IMAGES, LABELS), 4, seed=1)
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr)
    parts = {"network": network, "optimizer": optimizer, "loader": loader}
    with manager.run(run, network, loader):
        for epoch in manager.epochs(3, checkpoint=parts, keep="last"):
            for number, (images, labels) in enumerate(manager.batches()):
                if number == 3:
                    meet(run, epoch)
                loss = functional.cross_entropy(network(images.flatten(1)), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, images)


def test_a_loader_that_is_a_part_of_the_checkpoint_begins_the_next_epoch_at_its_first_batch():
    grid = {"lr": [0.1]}
    start(grid, with_its_loader, root="whole")
    announce("stop", 0.1, 2)
    start(grid, with_its_loader)

    start(grid, with_its_loader)

    assert left() == left("whole")
    assert load_results("runs/exp")["loss"].notna().all()


FORMS = {
    "as it was": ("", "", 1),
    "a comment and a docstring": ("def train", "# why\ndef train", 1),
    "an annotation": ("(run, manager):", "(run: object, manager: object) -> None:", 1),
    "a value": ("FACTOR = 1.0", "FACTOR = 2.0", 2),
    "the source": ("loss = factor()", "loss = -factor()", 2),
    "a function that it reaches": ("return FACTOR", "return FACTOR * 2", 2),
}
CHANGING = """
from runmanager import run_grid
FACTOR = 1.0
def factor():
    return FACTOR
def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            loss = factor()
            manager.track_loss(loss, 1)
if __name__ == "__main__":
    run_grid({"lr": [0.1]}, train, experiment="exp", executor="inline", tensorboard=False, display=False)
"""


@pytest.mark.slow
def test_changes_of_code_and_its_values_count_and_comments_do_not(warm, own_folder):
    for name, (old, new, attempts) in FORMS.items():
        program = own_folder / "program.py"
        for text in (CHANGING, CHANGING.replace(old, new)):
            program.write_text(text)
            assert warm.execute(program).returncode == 0
        assert load_runs("runs")["attempts"].tolist() == [attempts], name
        shutil.rmtree("runs")


def test_a_failed_write_ends_the_grid_with_a_code_of_its_own_and_keeps_what_was_committed(monkeypatch, caplog):
    real = os.write

    def full(descriptor, content):
        if b'"epoch":2' in bytes(content):
            raise OSError(28, "No space left on device")
        return real(descriptor, content)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        outcome = start({"lr": [0.1, 0.2]})
    trained()

    assert (outcome.exit_code, statuses(outcome)) == (74, [("interrupted", 1), ("pending", 0)])
    assert "No space left" in caplog.text
    assert statuses(start({"lr": [0.1, 0.2]})) == [("completed", 3)] * 2
    assert trained()[0] in [(0.1, 2), (0.1, 3)]  # the checkpoint may have it


@pytest.mark.slow
def test_ctrl_c_at_any_write_leaves_no_run_running_and_loses_nothing(monkeypatch):
    one = {"lr": [0.1]}
    left_calls = math.inf

    def tapped(call):
        def tap(*args, **options):
            nonlocal left_calls
            result = call(*args, **options)
            if threading.current_thread() is threading.main_thread():  # threads of other tests may write too
                left_calls -= 1
                if left_calls == 0:
                    signal.raise_signal(signal.SIGINT)
            return result

        return tap

    for name in ("open", "write", "fsync", "link", "replace", "unlink", "mkdir"):
        monkeypatch.setattr(os, name, tapped(getattr(os, name)))
    for number in itertools.count(1):
        left_calls = number
        try:
            code = start(one, root=f"{number}").exit_code
        except KeyboardInterrupt:  # while the root is looked at
            left_calls = math.inf
            assert not Path(f"{number}").exists()
            continue
        is_done, left_calls = left_calls > 0, math.inf

        assert code == (0 if is_done else 130)
        assert load_runs(f"{number}/exp")["status"].tolist()[0] in ("completed", "interrupted", "pending")
        assert start(one, root=f"{number}").exit_code == 0
        assert load_results(f"{number}/exp")["loss"].tolist() == [0.1, 0.05, 0.1 / 3]
        if is_done:
            break

    assert number > 20


def test_a_value_tracked_before_the_resumed_batches_is_replaced_by_the_saved_sums(own_folder):
    def execute(fault):
        torch.manual_seed(1)
        network, loader = (
            nn.Linear(1, 1),
            TensorLoader(ImageTensors(torch.ones(6, 1, 1, 1), torch.arange(6)), 2),
        )
        manager = RunManager("tracked", display=False, tensorboard=False)
        with manager.run({"lr": 0.1}, network, loader):
            for _ in manager.epochs(1, checkpoint={"network": network}, checkpoint_every=1):
                if manager.resume_batch:
                    manager.track(num_resumed=1, how="sum")
                for number, (_, labels) in enumerate(manager.batches()):
                    if fault and number == 2:
                        raise KeyboardInterrupt
                    manager.track_loss(labels.float().mean(), labels)
        return manager.run_data[0]

    with pytest.raises(KeyboardInterrupt):
        execute(fault=True)

    assert execute(fault=False)["loss"] == 2.5


@pytest.mark.filterwarnings("ignore")
def test_an_epoch_that_does_not_loop_over_its_batches_leaves_its_saved_batches_to_no_other_one(own_folder):
    def execute(fault):
        manager = RunManager("left", display=False, tensorboard=False)
        network = nn.Linear(1, 1)
        loader = TensorLoader(ImageTensors(torch.ones(6, 1, 1, 1), torch.arange(6)), 2, shuffle=False)
        with manager.run({"lr": 0.1}, network, loader):
            for epoch in manager.epochs(2, checkpoint={"network": network}, checkpoint_every=1):
                if epoch == 1 and not fault:
                    manager.track_loss(7.0, 6)
                    continue
                for number, (_, labels) in enumerate(manager.batches()):
                    if fault and number == 2:
                        raise KeyboardInterrupt
                    manager.track_loss(epoch * labels.float().mean(), labels)
        return [row["loss"] for row in manager.run_data]

    with pytest.raises(KeyboardInterrupt):
        execute(fault=True)

    assert execute(fault=False) == [7.0, 5.0]

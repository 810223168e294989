"""What a repeated command does after Ctrl-C, kill -9, damage and changes: nothing is lost, no bit differs."""

import contextlib
import enum
import functools
import itertools
import math
import os
import pickle
import random
import shutil
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from runmanager import (
    CheckpointError,
    ImageTensors,
    RunManager,
    RunsWarning,
    TensorLoader,
    load_results,
    load_run,
    load_runs,
)
from tests.border import reading
from tests.border.disk import Disk
from tests.border.work import announce, learn, left, meet, minimize, start, trained

pytestmark = pytest.mark.usefixtures("own_folder")
IMAGES = torch.randn(14, 1, 2, 2, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(14) % 3
DATA = TensorDataset(IMAGES, LABELS)
NEWEST, BEFORE = "checkpoint.pt", "checkpoint.prev.pt"
WHOLE = [1, 2, 3, 4]


def generator():
    return torch.Generator().manual_seed(7)


LOADERS = {
    "global": lambda: DataLoader(DATA, 4, shuffle=True),
    "own generator": lambda: DataLoader(DATA, 4, shuffle=True, generator=generator()),
    "own sampler": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, generator=generator())),
    "TensorLoader": lambda: TensorLoader(ImageTensors(IMAGES, LABELS), 4),
    "a part of the checkpoint": lambda: TensorLoader(ImageTensors(IMAGES, LABELS), 4, seed=1),
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
    parts, loader = {"network": network, "optimizer": optimizer, "scheduler": scheduler}, LOADERS[run.loader]()
    parts |= {"loader": loader} if "part" in run.loader else {}
    with manager.run(run, network, loader):
        for epoch in manager.epochs(4, checkpoint=parts, keep=run.keep):
            for number, (images, labels) in enumerate(manager.batches()):
                if number == 1:
                    meet(run, epoch)
                _, loss = learn(network, optimizer, images, labels)
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


def start_stateful(root="runs", keep="last", **options):
    params = {"lr": options.pop("lrs", [0.1]), "loader": ["global"], "keep": [keep]}
    return start(params, stateful, root=root, **{"retry_failed": True, **options})


@functools.cache
def undisturbed(keep="last"):
    """Train without a fault; return what is left."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        start_stateful(keep=keep)
        return left()


def epochs_trained():
    return [epoch for _, epoch in trained() if epoch < 5]


@pytest.mark.parametrize(
    "loaders", [[*LOADERS][:-1], pytest.param([*LOADERS][-1:], marks=pytest.mark.slow)], ids=["", "worker"]
)
def test_resumed_runs_are_bit_identical_to_undisturbed_ones(loaders):
    runs = [*enumerate(loaders, 1)]
    grid = {("lr", "loader"): runs, "keep": ["last"]}
    start(grid, stateful, root="whole")
    for lr, loader in runs:
        announce(f"{loader}", lr, 2)  # failures that are not alike stop no grid
    start(grid, stateful)
    trained()

    outcome = start(grid, stateful, retry_failed=True)

    assert epochs_trained() == [2, 3, 4] * len(loaders)
    assert left() == left("whole")
    assert outcome.runs[["status", "attempts"]].to_numpy().tolist() == [["completed", 2]] * len(loaders)


@pytest.mark.parametrize(
    ("at", "keep"), [((1,), "max:python"), ((2, 3), "best:test_loss"), ((3,), "max:python"), ((5,), "last")]
)
def test_a_run_resumes_after_its_last_committed_epoch_as_often_as_it_is_stopped(at, keep):
    for epoch in at:
        announce("stop", 0.1, epoch)
        start_stateful(keep=keep)
    trained()

    start_stateful(keep=keep)

    assert epochs_trained() == [epoch for epoch in WHOLE if epoch >= at[-1]]
    assert left() == undisturbed(keep)
    durations = load_results("runs")["run duration"].tolist()
    assert durations == sorted(durations)  # the clock of a run goes on


def interrupt(epoch, **options):
    """Stop a run in an epoch; return its folder."""
    announce("stop", 0.1, epoch)
    start_stateful(**options)
    trained()
    return reading.run_folder("runs/exp")


def test_an_epoch_that_the_checkpoint_alone_has_is_not_trained_again():
    folder = interrupt(3)
    reading.as_killed(folder, num_lost=1)

    start_stateful()

    assert epochs_trained() == [3, 4]
    assert left() == undisturbed()
    assert list(reading.epochs(folder)) == WHOLE


def with_a_folder_as_member(folder):
    content = bytearray((folder / NEWEST).read_bytes())
    entry = content.rindex(b"PK\x01\x02", 0, content.rindex(b"data/0"))
    content[entry + 38] ^= 0x10  # of the archive's directory, which has no checksum: torch reads nothing then
    (folder / NEWEST).write_bytes(content)


def with_that_of_another_run(folder):
    announce("stop", 0.2, 4)
    start_stateful("other", lrs=[0.2])
    trained()
    shutil.copy(reading.run_folder("other/exp") / NEWEST, folder / NEWEST)


def flip(*names):
    def flip_in(folder):
        for name in names:
            reading.flip(folder / name, 0.1)  # not in the padding of its zip archive

    return flip_in


@pytest.mark.parametrize(
    ("damage", "begun"),
    [
        (flip(NEWEST), [3, 4]),
        (flip(NEWEST, BEFORE), WHOLE),
        (with_a_folder_as_member, [3, 4]),
        (with_that_of_another_run, [3, 4]),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used_or_none(damage, begun):
    damage(interrupt(4))

    with pytest.warns(RunsWarning, match=r"checkpoint\.pt"):
        start_stateful()

    assert epochs_trained() == begun
    assert left() == undisturbed()


def test_the_run_of_two_ranks_is_resumed_by_one_with_a_warning():
    path = interrupt(4) / NEWEST
    saved = torch.load(path)
    torch.save({**saved, "ranks": saved["ranks"] * 2}, path)

    with pytest.warns(RunsWarning, match="2 ranks began the run and 1 resume it"):
        start_stateful()

    assert epochs_trained() == [4]


def test_a_checkpoint_that_the_system_cannot_read_is_not_damaged(monkeypatch):
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
    assert left() == undisturbed()


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


def test_a_folder_that_was_moved_resumes_and_a_completed_run_has_no_checkpoints():
    folder = interrupt(3)
    before = sorted(path.name for path in folder.glob("*.pt"))
    shutil.move("runs", "there")

    start_stateful("there")

    assert epochs_trained() == [3, 4]
    assert left("there") == undisturbed()
    assert before == [BEFORE, NEWEST, "weights.pt"]
    assert [path.name for path in Path("there").rglob("*.pt")] == ["weights.pt"]


def loop(parts, fault=None, network=None, change=str, **options):
    """Train three epochs, the second of which may end in a fault; return the numbers of those begun.

    `change` changes the parts in the first epoch.
    """
    manager = RunManager("exp", display=False, tensorboard=False)
    begun = []
    with contextlib.suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, network):
        for epoch in manager.epochs(3, checkpoint=parts, **options):
            begun.append(epoch)
            manager.track_loss(0.5, 1)
            if fault and epoch == 2:
                raise KeyboardInterrupt
            change(parts)
    return begun


def test_without_a_checkpoint_a_run_starts_over():
    assert [loop(None, fault=True), loop(None)] == [[1, 2], [1, 2, 3]]


class Noisy(torch.utils.data.Dataset[Any]):
    """Draws random numbers where it is read, as augmentation does."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(4)


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
    "names",
    [[n for n in UNSAVED if n != "workers"], pytest.param(["workers"], marks=pytest.mark.slow)],
    ids=len,
)
@pytest.mark.filterwarnings("always")
def test_what_a_checkpoint_does_not_save_is_said_in_the_first_epoch_and_marks_a_resumed_run(names, recwarn):
    named, grid = [UNSAVED[name]()[2] for name in names], {("lr", "what"): [*enumerate(names, 1)]}
    for root, fault in (("whole", 0), ("runs", 2), ("runs", 0)):
        for lr, name in grid["lr", "what"]:
            announce(f"{name}", lr, fault)
        outcome = start(grid, using, root=root, retry_failed=True)
        said = [str(each.message) for each in recwarn if each.category is RunsWarning]
        pairs = zip([each for each in named if each], said, strict=True)
        assert [sentence for each, sentence in pairs if each not in sentence] == []
        recwarn.clear()

    assert outcome.runs["mixed"].tolist() == [bool(each) for each in named]
    assert not load_runs("whole")["mixed"].any()
    exact, whole = ([*table.groupby("run")["loss"]] for table in (outcome.results, load_results("whole")))
    for each, (_, losses), (_, expected) in zip(named, exact, whole, strict=True):
        assert each or losses.tolist() == expected.tolist()


def descend(parts, loss_of, num_epochs, fault=None, begin=str, **options):
    """Train until an epoch that is interrupted; `begin` is called before each. Return the losses."""
    optimizer, losses = parts["optimizer"], []
    manager = RunManager("exp", display=False, tensorboard=False)
    with contextlib.suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, parts["network"]):
        begin(manager.resume_epoch)
        for epoch in manager.epochs(num_epochs, checkpoint=parts, **options):
            begin(epoch if epoch == 2 else 0)
            if epoch == fault:
                raise KeyboardInterrupt
            loss = loss_of()
            minimize(optimizer, loss)
            manager.track_loss(loss, 1)
            losses.append(loss.item())
    return losses


def growing(fault=None, *, asks=True):
    """Train four epochs, the second of which adds a group of parameters."""
    torch.manual_seed(0)
    head, body = nn.Linear(2, 1), nn.Linear(2, 2)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)

    def grow(epoch):
        if epoch >= 2 and len(optimizer.param_groups) == 1 and (asks or epoch == 2):
            optimizer.add_param_group({"params": body.parameters()})

    parts = {"network": head, "body": body, "optimizer": optimizer}
    return descend(parts, lambda: head(body(torch.ones(1, 2))).square().mean(), 4, fault, grow)


def test_a_group_that_the_loop_adds_to_its_optimizer_is_added_before_it_resumes():
    whole = growing()
    shutil.rmtree("runs")
    first = growing(fault=4)

    assert first + growing() == whole


def test_a_group_that_is_missing_on_resume_is_named_with_the_way_out():
    growing(fault=4)

    with pytest.raises(CheckpointError, match="resume_epoch") as caught:
        growing(asks=False)

    assert "code has changed" not in str(caught.value)


def lazy(is_used, keep, fault=None):
    """Train two epochs with lazy layers."""
    torch.manual_seed(0)
    network = nn.ModuleList([nn.LazyLinear(1), nn.LazyLinear(1)])
    parts = {"network": network, "optimizer": torch.optim.Adam(network.parameters(), lr=0.1)}

    def loss_of():
        return sum(layer(torch.ones(3, 2)).mean() for layer in network[: 1 + is_used])

    return descend(parts, loss_of, 2, fault, keep=keep)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_run_with_lazy_layers_resumes_and_one_that_no_batch_has_used_cannot_be_saved():
    whole = lazy(True, None)
    shutil.rmtree("runs")

    assert lazy(True, None, fault=2) + lazy(True, None) == whole
    for keep in (None, "last"):
        shutil.rmtree("runs")
        with pytest.raises(CheckpointError, match="lazy"):
            lazy(False, keep)


OTHER_KINDS: list[tuple[Any, Any]] = [({}, []), ([], {}), ({}, nn.Linear(1, 1))]
UNFIT: list[tuple[Any, Any, list[str]]] = [
    ({"network": nn.Linear(1, 1)}, {"model": nn.Linear(1, 1)}, ["network", "model"]),
    ({"network": nn.Linear(1, 1)}, {"network": nn.Linear(2, 1)}, ["network"]),
    *(({"state": one}, {"state": other}, ["state"]) for one, other in OTHER_KINDS),
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
        ({"state": {"seen": Counter()}}, None, "Counter"), ({}, "best", "'best:<metric>'"),
        ({}, "best:f9", "'max:<metric>'"), ({}, "max:f1", "loss"),
        ({}, ("best:loss", object()), "must have state_dict"), ({}, ("loss", nn.Linear(1, 1)), "pair"),
    ],
)  # fmt: skip
def test_what_cannot_be_saved_or_kept_is_refused(parts, keep, named):
    with pytest.raises(CheckpointError, match=named):
        loop(parts, keep=keep, network=nn.Linear(1, 1))

    assert load_runs("runs")["status"].tolist() == ["failed"]


# Plain state


class Colour(enum.IntEnum):
    RED = 1


def test_a_state_is_filled_in_again_and_dicts_and_lists_inside_are_the_same_objects():
    def change(parts):
        state = parts["state"]
        state["rows"][0]["best"] = np.float64(0.2)
        state["inside"] = {"deep": {"best": np.mean([0.5, 1.0])}, "new": [], "never": math.inf, "none": None}
        state["losses"] += [0.2]
        state["inside"]["deep"]["1"] = state.pop("gone")

    first = {"losses": [0.3], "inside": {"deep": {}}, "rows": [{"best": 1.0}], "gone": True}
    loop({"state": first}, fault=True, change=change)
    deep: dict[str, Any] = {"best": 9.0}
    losses, inside, row = [0.5, 0.6, 0.7], {"deep": deep, "old": 1}, {"best": 9.0}
    state: dict[str, Any] = {"losses": losses, "inside": inside, "rows": [row, {}], "gone": 1}

    loop({"state": state})

    assert [*state] == ["losses", "inside", "rows"]
    assert (losses, row) == ([0.3, 0.2], {"best": 0.2})
    assert inside == {"deep": {"best": 0.75, "1": True}, "new": [], "never": math.inf, "none": None}
    assert state["losses"] is losses
    assert state["inside"] is inside
    assert inside["deep"] is deep
    assert state["rows"][0] is row
    assert type(row["best"]) is float


TWICE = [1]
REFUSED = {
    "weights": (nn.Linear(1, 1).state_dict(), "state_dict()"), "number": (torch.tensor(0.5), "float(...)"),
    "tensor": (torch.zeros(3), "not its state_dict()"), "array": (np.zeros(3), "state_dict()"),
    "float32": (np.float32(1), "float(...)"), "tuple": ((1, 2), "a list"), "enum": (Colour.RED, "int(...)"),
    "function": (len, "state_dict()"), "twice": ([TWICE, TWICE], "twice"),
    "optimizer": (torch.optim.SGD([nn.Parameter(torch.zeros(1))]).state_dict(), "the object itself"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_json_is_refused_with_its_place_and_what_to_write(kind):
    value, advice = REFUSED[kind]

    with pytest.raises(CheckpointError) as caught:
        loop({"state": {"rows": [0, {"best": value}]}})

    assert "checkpoint['state']['rows'][1]['best']" in str(caught.value)
    assert advice in str(caught.value)


# Weights


def compiled(network):
    return torch.compile(network, backend="eager")


@pytest.mark.parametrize("wrapped", [compiled, lambda net: compiled(nn.DataParallel(net))])
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
    with pytest.warns(RunsWarning, match=r"attempt-1.jsonl \(line 4 damaged\)"):
        start({"lr": [0.1]}, train_by_hand)

    with pytest.warns(RunsWarning, match="line 4"):
        rows = load_results("runs/exp")
    assert begun == [1, 3]
    assert rows["epoch"].tolist() == [1, 2, 3, 4, 5]
    assert rows["loss"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.slow
def test_ctrl_c_at_any_write_leaves_no_run_running_and_loses_nothing(own_folder, monkeypatch):
    def interrupt(*_):
        if next(left_calls) == 0:
            signal.raise_signal(signal.SIGINT)

    one, disk = {"lr": [0.1]}, Disk(own_folder, monkeypatch.setattr)
    for number in itertools.count():
        root = own_folder / f"{number}"
        left_calls = itertools.count(number, -1)
        disk.fault = interrupt
        try:
            code = start(one, root=root).exit_code
        except KeyboardInterrupt:  # while the root is looked at
            assert not root.exists()
            continue
        finally:
            disk.fault = lambda *_: None
        is_done = next(left_calls) >= 0

        assert code == (0 if is_done else 130)
        assert load_runs(root / "exp")["status"].tolist()[0] in ("completed", "interrupted", "pending")
        assert start(one, root=root).exit_code == 0
        assert load_results(root / "exp")["loss"].tolist() == [0.1, 0.05, 0.1 / 3]
        if is_done:
            break

    assert number > 20

"""Checkpoints inside epochs: a killed run continues at its next batch, as if nothing had happened."""

import itertools
import random
import time
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from runmanager import (
    CheckpointError,
    ImageTensors,
    InvalidArgumentError,
    LifecycleError,
    RunsWarning,
    TensorBoard,
    TensorLoader,
    fit,
    load_results,
    load_steps,
    run_grid,
)
from tests.border import reading
from tests.border.events import scalars_of
from tests.border.experiments import QUIET, manager_in
from tests.border.work import left as left_of_first

SAMPLES = torch.randn(22, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(22) % 3
DATA = TensorDataset(SAMPLES, LABELS)
BATCHES = [(SAMPLES[i : i + 4], LABELS[i : i + 4]) for i in range(0, 22, 4)]
DURATIONS = ["epoch duration", "run duration"]
CHECKPOINT = "checkpoint.inside.pt"
by_night = pytest.mark.slow(everywhere=True)


class Augmented(ImageTensors):
    """Draws from the random states of this process, as augmentation does."""

    def __getitem__(self, index):
        samples, labels = super().__getitem__(index)
        return samples + 0.1 * torch.randn(4) + random.random() + np.random.random(), labels  # noqa: NPY002, S311


class Resumable:
    """A loader of its own kind that knows where it is."""

    def __init__(self, batches=None):
        self.batches = BATCHES if batches is None else batches
        self.next = 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        while self.next < len(self.batches):
            self.next += 1
            yield self.batches[self.next - 1]
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Stateless(Resumable):
    def state_dict(self):
        raise AttributeError("dl_state_dict")


class Drawing(Resumable):
    """Draws from a generator that no checkpoint saves."""

    def __init__(self):
        super().__init__()
        self.rng = random.Random(1)  # noqa: S311

    def __iter__(self):
        for batch in super().__iter__():
            self.rng.random()
            yield batch


class Other(TensorLoader):
    def load_state_dict(self, state):
        raise KeyError(next(iter(state)))


def generator():
    return torch.Generator().manual_seed(7)


def stateful(batch_size=4, **options):
    module = pytest.importorskip("torchdata.stateful_dataloader")
    with warnings.catch_warnings():  # it calls what torch deprecates
        warnings.simplefilter("ignore")
        return module.StatefulDataLoader(DATA, batch_size, **options)


def shuffled(**options):
    return TensorLoader(ImageTensors(SAMPLES, LABELS), 4, **options)


def batch_by_batch(manager):
    for batch in manager.batches():
        yield batch, 0


def train(root, stop=None, make=shuffled, *, every=1, num_epochs=3, loop=batch_by_batch):
    """Train until `stop`: the epoch and the batch in which it is interrupted. Count the batches per epoch.

    Gradients are added up over three batches, so that a checkpoint finds them in the middle. A `loop` yields
    each batch with a number.
    """
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    state = {"seen": 0}
    parts = {"network": network, "optimizer": optimizer, "scheduler": scheduler, "state": state}
    manager, counts = manager_in(root), dict.fromkeys(range(1, num_epochs + 1), 0)
    with suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, network, make()):
        for epoch in manager.epochs(num_epochs, checkpoint=parts, keep="last", checkpoint_every=every):
            for (samples, labels), number in loop(manager):
                counts[epoch] += 1
                if (epoch, counts[epoch]) == stop:
                    raise KeyboardInterrupt
                preds = network(samples)
                loss = functional.cross_entropy(preds, labels) * (1 + number)
                loss.backward()
                state["seen"] += 1
                if state["seen"] % 3 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                manager.track_loss(loss, samples)
                manager.track_num_correct(preds, labels)
                manager.track(drawn=random.random() + np.random.random())  # noqa: NPY002, S311
                manager.track({"least": loss}, how="min")
                manager.log(step_loss=loss, every=2)
            scheduler.step()
            manager.evaluate(DataLoader(DATA, 5), "validation")
            manager.track(seen=state["seen"])
    return [num for num in counts.values() if num]


def left(root):
    """Return all that a run leaves, without what differs between any two executions."""
    return load_steps(root / "exp").to_csv(), *left_of_first(root)


def folder_of(root):
    return reading.run_folder(root / "exp")


EXACT = {
    "in order": lambda: shuffled(shuffle=False),
    "augmented": lambda: TensorLoader(Augmented(SAMPLES, LABELS), 4),
    "own state": Resumable,
    "stateful": lambda: stateful(shuffle=True),
    "stateful, generator": lambda: stateful(shuffle=True, generator=generator()),
    "stateful, in order": stateful,
    "worker": lambda: shuffled(num_workers=1),
    "two workers": lambda: shuffled(num_workers=2, seed=3),
}
BY_DAY = ("augmented", "own state")


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("name", [n if n in BY_DAY else pytest.param(n, marks=pytest.mark.slow) for n in EXACT])
def test_a_run_that_is_killed_twice_inside_an_epoch_ends_bit_for_bit_as_if_it_was_not(tmp_path, name, epoch):
    train(tmp_path / "whole", make=EXACT[name])

    train(tmp_path / "killed", (epoch, 4), EXACT[name])
    train(tmp_path / "killed", (epoch, 2), EXACT[name])  # the fifth batch of the epoch
    counts = train(tmp_path / "killed", make=EXACT[name])

    assert counts == [2, 6, 6][: 4 - epoch]
    assert left(tmp_path / "killed") == left(tmp_path / "whole")


class Noting(ImageTensors):
    """Writes down what is loaded."""

    loaded: list[int]

    def __getitem__(self, index):
        self.loaded.extend(index)
        return super().__getitem__(index)


def test_batches_that_were_done_are_not_loaded_again(tmp_path):
    data = Noting(SAMPLES, LABELS)
    for stop in ((1, 4), None):
        data.loaded = []
        train(tmp_path, stop, lambda: TensorLoader(data, 4), num_epochs=1)

    assert len(data.loaded) == 22 - 12


def batched_by_user():
    sampler = BatchSampler(RandomSampler(DATA, generator=generator()), 4, drop_last=False)
    return stateful(batch_size=1, batch_sampler=sampler)


INEXACT = {
    "a DataLoader has no state_dict": lambda: DataLoader(DATA, 4),
    "a list has no state_dict": lambda: BATCHES,
    "RandomSampler": lambda: stateful(sampler=RandomSampler(DATA, generator=generator())),
    "BatchSampler": batched_by_user,
    "its loader has no state: AttributeError": Stateless,
}


@pytest.mark.parametrize("named", INEXACT)
def test_a_loader_that_cannot_resume_begins_its_epoch_over_and_is_told_what_to_use(tmp_path, named):
    def execute(root, stop=None):
        with pytest.warns(RunsWarning) as warned:
            counts = train(root, stop, INEXACT[named], num_epochs=2)
        (message,) = [str(each.message) for each in warned]
        assert named in message
        assert "a kill inside an epoch costs that epoch" in message
        return counts

    execute(tmp_path / "whole")
    execute(tmp_path / "killed", (2, 4))

    assert execute(tmp_path / "killed") == [6]
    assert left(tmp_path / "killed") == left(tmp_path / "whole")


def test_without_the_option_nothing_is_said_or_saved_and_what_was_saved_is_used(tmp_path):
    path = tmp_path / "exp/001-lr=0.1" / CHECKPOINT
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunsWarning)
        train(tmp_path / "list", (2, 4), lambda: DataLoader(DATA, 4), every=None)
        assert not path.exists()
        assert train(tmp_path / "list", make=lambda: DataLoader(DATA, 4), every=None) == [6, 6]
        train(tmp_path, (2, 4))
        assert path.exists()
        assert train(tmp_path, (3, 4), every=None) == [3, 4]
        assert not path.exists()
        assert train(tmp_path) == [6]

    assert not list(path.parent.glob("checkpoint*"))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: TensorLoader(ImageTensors(SAMPLES, LABELS), 8), "its loader has changed"),
        (lambda: DataLoader(DATA, 4, generator=generator()), "use TensorLoader or torchdata's Stateful"),
        (lambda: Other(ImageTensors(SAMPLES, LABELS), 4), "its loader cannot load its state: KeyError"),
    ],
    ids=["other batches", "no state", "other state"],
)
def test_an_epoch_that_was_saved_inside_starts_over_with_another_loader(tmp_path, make, why):
    train(tmp_path, (2, 4))
    with pytest.warns(RunsWarning, match=f"epoch 2 starts over, not after batch 3.*{why}"):
        counts = train(tmp_path, make=make, every=None)

    assert counts[0] == counts[1]


@by_night
def test_a_damaged_checkpoint_costs_the_epoch_and_is_named(tmp_path):
    train(tmp_path / "whole")
    train(tmp_path / "killed", (2, 4))
    reading.flip(folder_of(tmp_path / "killed") / CHECKPOINT)

    with pytest.warns(RunsWarning, match=f"{CHECKPOINT} is not used"):
        counts = train(tmp_path / "killed")

    assert counts == [6, 6]
    assert left(tmp_path / "killed") == left(tmp_path / "whole")


@by_night
def test_a_checkpoint_of_an_epoch_that_was_committed_since_is_removed(tmp_path):
    train(tmp_path, (2, 4))
    path = folder_of(tmp_path) / CHECKPOINT
    content = path.read_bytes()
    train(tmp_path, (3, 1))
    path.write_bytes(content)

    assert train(tmp_path, num_epochs=4) == [6, 6]
    assert not path.exists()


def test_a_kill_costs_the_batches_after_the_last_checkpoint_and_the_journal_says_which(tmp_path):
    train(tmp_path, (1, 4))
    train(tmp_path, (2, 6), every=2)
    counts = train(tmp_path, every=2)
    lines = [reading.lines(path) for path in reading.journals(folder_of(tmp_path))]

    assert counts == [2, 6]
    assert lines[1][0]["inside"] == {"epoch": 1, "batch": 3, "step": 3, "num_batches": 6}
    assert lines[2][0]["inside"] == {"epoch": 2, "batch": 4, "step": 10, "num_batches": 6}


@pytest.mark.slow(everywhere=True)
def test_what_the_killed_part_took_until_its_checkpoint_counts(tmp_path):
    def execute(stop):
        took: list[float] = []
        with (
            suppress(KeyboardInterrupt),
            (manager := manager_in(tmp_path)).run({"lr": 0.1}, None, Resumable([1] * 10)),
        ):
            for _ in manager.epochs(1, checkpoint={}, checkpoint_every=4):
                began = time.perf_counter()
                time.sleep(0.1)  # in front of the loop
                for number, _ in enumerate(manager.batches(), manager.resume_batch):
                    took.append(time.perf_counter() - began)
                    began = time.perf_counter()
                    time.sleep(0.02)
                    if number == stop:
                        raise KeyboardInterrupt
                    manager.track_loss(0.5, 1)
                took.append(time.perf_counter() - began)
        return took

    first = execute(6)  # saved after 4 batches
    time.sleep(0.3)
    front, *rest = execute(None)

    (row,) = load_results(tmp_path).to_dict(orient="records")
    assert row["epoch duration"] == pytest.approx(sum(first[:5]) + sum(rest), abs=0.15)
    assert row["run duration"] >= row["epoch duration"] + front - 0.05  # with the second beginning


def attempt(root, stop, each, loader=None, *, num_epochs=1, every=1, before=str, tensorboard=False):
    """Train epochs of six batches until the number of a batch, for each of which something is done."""
    manager = manager_in(root, tensorboard=tensorboard)
    with suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, None, loader or Resumable()):
        for epoch in manager.epochs(num_epochs, checkpoint={}, checkpoint_every=every):
            if before(manager) == "no batch":
                continue
            for number, batch in enumerate(manager.batches(), 6 * epoch - 6 + manager.resume_batch):
                if number == stop:
                    raise KeyboardInterrupt
                each(manager, number, batch)
    return manager


def each_loss(manager, _, batch):
    manager.track_loss(batch[0].mean(), batch[0])


def test_what_is_not_saved_is_said_once_however_often_the_first_epoch_is_saved(tmp_path, recwarn):
    for stop in (4, None):
        attempt(tmp_path, stop, each_loss, Drawing())

    assert [str(each.message).count("loader.rng") for each in recwarn] == [1, 1]


def test_a_run_whose_data_have_changed_begins_the_epoch_over_in_which_it_was_killed(tmp_path):
    def train(run, manager):
        with manager.run(run, None, Resumable()):
            for _ in manager.epochs(1, checkpoint={}, checkpoint_every=1):
                for number, batch in enumerate(manager.batches()):
                    if number == stop:
                        raise KeyboardInterrupt
                    each_loss(manager, number, batch)

    for stop, data in ((4, "a"), (None, "b")):  # noqa: B007 - train() reads it
        run_grid({"lr": [1]}, train, experiment="exp", root=tmp_path, data=data, **QUIET)

    mean = sum(len(samples) * samples.mean() for samples, _ in BATCHES) / 22
    assert load_results(tmp_path)["loss"].tolist() == pytest.approx([float(mean)])
    assert "inside" not in reading.lines(reading.journals(folder_of(tmp_path))[1])[0]


def test_logged_steps_are_on_disk_with_the_checkpoint_that_follows_them(tmp_path):
    def each(manager, number, batch):
        lengths.append(len(load_steps(tmp_path)) if number > 1 else 0)
        each_loss(manager, number, batch)
        manager.log(step_loss=number)

    lengths: list[int] = []
    attempt(tmp_path, None, each, every=2)

    assert lengths == [0, 0, 2, 2, 4, 4]


@pytest.mark.parametrize("is_lost", [True, False])
def test_losses_that_wait_for_their_batch_and_one_that_is_not_finite_are_saved(tmp_path, is_lost):
    def each(manager, number, batch):
        manager.track_loss(batch[0].mean() / (number != 1 or not is_lost))

    def left_by(root, stop=None):
        error = attempt(root, stop, each, shuffled(shuffle=False)).outcome.error
        return load_results(root).drop(columns=DURATIONS, errors="ignore").to_csv(), error

    whole = left_by(tmp_path / "whole")
    left_by(tmp_path / "killed", 5)

    assert left_by(tmp_path / "killed") == whole
    assert ("step 2" in whole[1]) is is_lost


@pytest.mark.parametrize(("every", "is_saved"), [("0.1s", True), ("1h", False)])
def test_an_interval_may_be_a_duration(tmp_path, every, is_saved):
    def each(manager, *_):
        time.sleep(0.06)
        manager.track_loss(0.5, 1)

    begun: list[int] = []
    for stop in (5, None):
        attempt(tmp_path, stop, each, every=every, before=lambda manager: begun.append(manager.resume_batch))

    assert [batch > 0 for batch in begun] == [False, is_saved]


INTERVALS: Any = [0, True, 1.5, "10", "10 minutes", "0min", "-1s", ""]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[({"checkpoint": {}, "checkpoint_every": each}, "must be a number of batches") for each in INTERVALS],
        ({"checkpoint_every": "10min"}, "without checkpoint="),
    ],
)
def test_an_interval_that_cannot_be_used_is_refused(tmp_path, options, message):
    manager = manager_in(tmp_path)
    with pytest.raises(InvalidArgumentError, match=f"checkpoint_every.*{message}"), manager.run({"lr": 0.1}):
        manager.epochs(1, **options)


def test_other_parts_are_refused(tmp_path):
    train(tmp_path, (1, 4))
    manager = manager_in(tmp_path)

    with pytest.raises(CheckpointError, match="the checkpoint inside an epoch holds"), manager.run({"lr": 0.1}):
        manager.epochs(1, checkpoint={"network": nn.Linear(1, 1)})


def killed(root, loop, stop):
    """Interrupt a run and continue it; return what both attempts said, and after which batch it went on."""
    said = []
    for each in (stop, None):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            train(root, each, every=2, num_epochs=2, loop=loop)
        said.append([str(one.message) for one in warned if one.category is RunsWarning])
    return said, reading.lines(reading.journals(folder_of(root))[1])[0].get("inside", {}).get("batch")


def enumerated(manager):
    for number, batch in enumerate(manager.batches(), manager.resume_batch):
        yield batch, number


def sliced(manager):
    for batch in itertools.islice(manager.batches(), 5 - manager.resume_batch):
        yield batch, 0


def evaluating(manager):
    for batch in manager.batches():
        manager.evaluate(manager.loader, "train")
        yield batch, 0


def leaving_out(manager):
    for batch, number in enumerated(manager):
        if number != 3:  # after which the state would be saved
            yield batch, number


def after_other_code(manager):
    manager.evaluate(DataLoader(DATA, 5), "early")
    manager.track(rate=torch.rand(()))
    manager.log(rate_step=torch.rand(()))
    with torch.no_grad():
        manager.network[0].bias += 1  # which is undone
    yield from batch_by_batch(manager)


def ahead(manager):
    batches = manager.batches()
    batch = next(batches)
    for following in batches:
        yield batch, 0
        batch = following
    yield batch, 0


@pytest.mark.parametrize(
    ("loop", "stop", "batch"),
    [
        (enumerated, (1, 4), 2),
        (sliced, (2, 3), 2),
        (evaluating, (1, 5), 4),
        (leaving_out, (1, 5), 5),
        (after_other_code, (2, 4), 2),
    ],
)
def test_a_loop_around_the_batches_begins_after_the_batch_that_was_saved(tmp_path, loop, stop, batch):
    train(tmp_path / "whole", every=2, num_epochs=2, loop=loop)

    assert killed(tmp_path / "killed", loop, stop) == ([[], []], batch)
    assert left(tmp_path / "killed") == left(tmp_path / "whole")


def test_a_loop_that_asks_for_batches_ahead_saves_nothing_and_is_told_so(tmp_path):
    with pytest.warns(RunsWarning, match="the first batch had no tracked value before the next one"):
        train(tmp_path / "whole", every=2, num_epochs=2, loop=ahead)

    (before, _), batch = killed(tmp_path / "killed", ahead, (2, 3))

    assert (len(before), batch) == (1, None)
    assert left(tmp_path / "killed") == left(tmp_path / "whole")


def test_a_loop_that_does_not_use_batches_is_told_so_once(tmp_path):
    def own(_):
        yield from ((batch, 0) for batch in BATCHES)

    with pytest.warns(RunsWarning, match=r"counts the batches of manager.batches\(\), which is not") as said:
        train(tmp_path, loop=own)

    assert len(said) == 1


def test_the_batch_to_begin_with_is_told_in_one_epoch_alone_and_is_0_where_the_epoch_starts_over(tmp_path):
    def told(manager):
        before = manager.resume_batch
        batches = manager.batches()
        numbers.append((before, manager.resume_batch))
        yield from ((batch, 0) for batch in batches)

    numbers: list[tuple[int, int]] = []
    killed(tmp_path / "resumed", told, (1, 4))
    train(tmp_path / "over", (2, 3), every=2, num_epochs=2, loop=told)
    other = DataLoader(DATA, 4, generator=generator())
    with pytest.warns(RunsWarning):
        train(tmp_path / "over", None, lambda: other, every=2, num_epochs=2, loop=told)

    assert numbers == [(0, 0), (2, 2), (0, 0), (0, 0), (0, 0), (0, 0)]
    manager = manager_in(tmp_path)
    with pytest.raises(LifecycleError, match="resume_batch outside an epoch"), manager.run({"lr": 0.2}):
        print(manager.resume_batch)  # noqa: T201


def test_a_program_that_fits_continues_in_a_grid_that_says_where(tmp_path, capsys):
    calls = itertools.count(1)

    def fitting(run, manager):
        def loss(preds, labels):
            if manager.epoch_count == stop and next(calls) == 6:
                raise KeyboardInterrupt
            return functional.cross_entropy(preds, labels)

        torch.manual_seed(1)
        network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        options: dict[str, Any] = {"optimizer": torch.optim.Adam, "epochs": 2, "loss": loss, "keep": "last"}
        fit(run, network, shuffled(), manager, checkpoint_every=2, **options)

    def start(root, **options):
        options = {"executor": "inline", "tensorboard": False, "changed": "keep", **options}
        return run_grid({"lr": [0.1]}, fitting, experiment="exp", root=root, **options)

    stop, where = 0, "inside epoch 2, after batch 4 of 6"
    start(tmp_path / "whole", display=False)
    stop = 2
    stopped = start(tmp_path / "killed")
    panel = capsys.readouterr().out
    start(tmp_path / "killed", plan_only=True)
    plan = capsys.readouterr().out
    start(tmp_path / "killed", display=False)

    assert "! 1 of 1 run is left to execute" in panel
    assert stopped.runs["continues at"].tolist() == [where]
    assert f"continue {where}" in plan
    assert left(tmp_path / "killed") == left(tmp_path / "whole")


def test_tensorboard_shows_steps_and_own_tags_of_the_part_that_was_killed_once(tmp_path):
    def each(manager, number, batch):
        manager.track_loss(batch[0].mean(), batch[0])
        manager.log(step_loss=batch[0].mean())
        manager.tb.add_scalar("own/loss", batch[0].mean(), number)

    def shown(root, stop=None):
        attempt(root, stop, each, num_epochs=2, every=2, tensorboard=TensorBoard(histogram_every=0))
        scalars = scalars_of(root)
        own = scalars.pop("own/loss")
        return {tag: scalars[tag] for tag in scalars if tag.startswith(("steps/", "loss/"))}, own

    whole, own = shown(tmp_path / "whole")
    for stop in (5, 11):
        shown(tmp_path / f"{stop}", stop)
        curves, of_batches = shown(tmp_path / f"{stop}")
        assert curves == whole
        assert of_batches[: stop // 2 * 2] == own[: stop // 2 * 2]  # of what was saved

import contextlib
import itertools
import random
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    TensorDataset,
    default_collate,
)

from runmanager import RunManager, TensorBoard, fit, load_results, load_run, load_runs, load_steps, run_grid
from runmanager.core import files, metrics
from runmanager.core.experiment import read_runs
from runmanager.core.journal import read_attempt
from runmanager.core.loaders import ImageTensors, TensorLoader
from runmanager.core.outcome import Inside
from runmanager.core.state import read_run
from runmanager.errors import CheckpointError, InvalidArgumentError, LifecycleError, RunsWarning
from tests.board.reading import folder_scalars
from tests.damaging import flip

SAMPLES = torch.randn(22, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(22) % 3
DATA = TensorDataset(SAMPLES, LABELS)
DURATIONS = ["epoch duration", "run duration"]
NUM_BATCHES = 6


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


def generator():
    return torch.Generator().manual_seed(7)


def stateful(batch_size=4, **options):
    module = pytest.importorskip("torchdata.stateful_dataloader")
    with warnings.catch_warnings():  # it calls what torch deprecates
        warnings.simplefilter("ignore")
        return module.StatefulDataLoader(DATA, batch_size, **options)


def batched_by_user():
    sampler = BatchSampler(RandomSampler(DATA, generator=generator()), 4, drop_last=False)
    return stateful(batch_size=1, batch_sampler=sampler)


def shuffled(**options):
    return TensorLoader(ImageTensors(SAMPLES, LABELS), 4, **options)


BATCHES = [(SAMPLES[i : i + 4], LABELS[i : i + 4]) for i in range(0, 22, 4)]
EXACT = {
    "TensorLoader": shuffled,
    "in order": lambda: shuffled(shuffle=False),
    "augmented": lambda: TensorLoader(Augmented(SAMPLES, LABELS), 4),
    "own state": Resumable,
    "stateful": lambda: stateful(shuffle=True),
    "stateful, generator": lambda: stateful(shuffle=True, generator=generator()),
    "stateful, in order": stateful,
    "worker": lambda: shuffled(num_workers=1),
    "two workers": lambda: shuffled(num_workers=2, seed=3),
}
BY_DAY = ("TensorLoader", "augmented", "own state")


def train(root, stop=None, make=shuffled, *, every=1, options=None, num_epochs=3, before_loop=None):
    """Train until `stop`: the epoch and the batch in which it is interrupted. Count the batches per epoch.

    Gradients are added up over three batches, so that a checkpoint finds them in the middle.
    """
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    state = {"seen": 0}
    parts = {"network": network, "optimizer": optimizer, "scheduler": scheduler, "state": state}
    manager = RunManager("exp", root, display=False, tensorboard=False, **(options or {}))
    loader = make()
    counts: dict[int, int] = {}
    with contextlib.suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, network, loader):
        for epoch in manager.epochs(num_epochs, checkpoint=parts, keep="last", checkpoint_every=every):
            if before_loop:
                before_loop(manager, network, scheduler)
            for samples, labels in manager.batches():
                counts[epoch] = counts.get(epoch, 0) + 1
                if (epoch, counts[epoch]) == stop:
                    raise KeyboardInterrupt
                preds = network(samples)
                loss = functional.cross_entropy(preds, labels)
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
    return counts


def what_is_left(root):
    """Return all that a run leaves, without what differs between any two executions."""
    table, steps = load_results(root / "exp").drop(columns=DURATIONS), load_steps(root / "exp")
    (weights,) = root.glob(f"exp/*/{files.WEIGHTS}")
    values = torch.load(weights, weights_only=True)
    return table.to_csv(), steps.to_csv(), {name: value.tolist() for name, value in values.items()}


def run_folder(root):
    (folder,) = read_runs(root / "exp")
    return folder


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("stop", [(1, 1), (1, 5), (3, 6)])
def test_a_run_that_is_killed_inside_an_epoch_ends_as_if_it_was_not(tmp_path, stop):
    train(tmp_path / "whole")

    train(tmp_path / "killed", stop)
    counts = train(tmp_path / "killed")

    assert counts[stop[0]] == NUM_BATCHES - (stop[1] - 1)
    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize(
    "name", [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.slow) for name in EXACT]
)
def test_loaders_continue_bit_for_bit(tmp_path, name, epoch):
    train(tmp_path / "whole", make=EXACT[name])

    train(tmp_path / "killed", (epoch, 4), EXACT[name])
    train(
        tmp_path / "killed", (epoch, 2), EXACT[name]
    )  # the second one after it continued, batch 5 of the epoch
    counts = train(tmp_path / "killed", make=EXACT[name])

    assert counts[epoch] == 2
    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


@pytest.mark.slow
def test_workers_that_go_on_yield_the_same_batches_and_it_is_said_what_may_differ(tmp_path):
    def make():
        # only torch's own function is certain to draw no random numbers
        return stateful(shuffle=True, num_workers=1, collate_fn=lambda batch: default_collate(batch))  # noqa: PLW0108

    train(tmp_path / "whole", make=make)

    train(tmp_path / "killed", (1, 4), make)
    with pytest.warns(RunsWarning, match="random numbers that worker processes draw") as warned:
        counts = train(tmp_path / "killed", make=make)

    assert len(warned) == 1
    assert counts[1] == 3
    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


class Noting(ImageTensors):
    """Writes down what is loaded."""

    loaded: list[int]

    def __getitem__(self, index):
        self.loaded.extend(index)
        return super().__getitem__(index)


def test_batches_that_were_done_are_not_loaded_again(tmp_path):
    data = Noting(SAMPLES, LABELS)
    data.loaded = []
    train(tmp_path, (1, 4), lambda: TensorLoader(data, 4), num_epochs=1)
    data.loaded.clear()

    train(tmp_path, make=lambda: TensorLoader(data, 4), num_epochs=1)

    assert len(data.loaded) == 22 - 12


def test_an_evaluation_of_the_same_loader_inside_the_loop_changes_nothing(tmp_path):
    def peek(manager):
        for batch in manager.batches():
            manager.evaluate(manager.loader, "train")
            yield batch, 0

    whole, _ = train_in(tmp_path / "whole", peek)

    assert killed(tmp_path / "killed", peek, 5) == (whole, [], [])


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: DataLoader(DATA, 4), "a DataLoader has no state_dict"),
        (lambda: BATCHES, "a list has no state_dict"),
        (lambda: stateful(sampler=RandomSampler(DATA, generator=generator())), "RandomSampler"),
        (batched_by_user, "BatchSampler"),
    ],
    ids=["DataLoader", "list", "own sampler", "own batch_sampler"],
)
def test_a_loader_that_cannot_resume_begins_its_epoch_over_and_is_told_what_to_use(tmp_path, make, names):
    def execute(root, stop=None):
        with pytest.warns(RunsWarning) as warned:
            counts = train(root, stop, make)
        (message,) = [str(one.message) for one in warned]
        assert names in message
        assert "a kill inside an epoch costs that epoch" in message
        return counts

    execute(tmp_path / "whole")
    execute(tmp_path / "killed", (2, 4))

    assert execute(tmp_path / "killed") == {2: 6, 3: 6}
    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


def test_a_loader_that_cannot_resume_is_told_nothing_without_the_option(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunsWarning)
        train(tmp_path, (2, 4), lambda: DataLoader(DATA, 4), every=None)
        train(tmp_path, make=lambda: DataLoader(DATA, 4), every=None)


class Other(TensorLoader):
    def load_state_dict(self, state):
        raise KeyError(next(iter(state)))


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
    with pytest.warns(RunsWarning, match="epoch 2 starts over, not after batch 3") as warned:
        counts = train(tmp_path, make=make, every=None)

    assert why in str(warned[0].message)
    assert counts[2] == counts[3]


@pytest.mark.slow(everywhere=True)
def test_code_before_the_loop_over_the_batches_is_undone(tmp_path):
    def before_loop(manager, network, scheduler):
        manager.evaluate(DataLoader(DATA, 5), "early")
        manager.track(rate=scheduler.get_last_lr()[0])
        manager.log(rate_step=torch.rand(()))
        scheduler.optimizer.param_groups[0]["lr"] *= 0.5
        torch.randn(3)
        with torch.no_grad():
            network[0].bias += 1

    train(tmp_path / "whole", before_loop=before_loop)
    train(tmp_path / "killed", (2, 4), before_loop=before_loop)
    train(tmp_path / "killed", before_loop=before_loop)

    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


def test_a_kill_costs_the_batches_after_the_last_checkpoint(tmp_path):
    train(tmp_path, (2, 6), every=2)

    assert read_run(run_folder(tmp_path)).inside == Inside(2, 4, 10, NUM_BATCHES)
    assert train(tmp_path, every=2)[2] == 2


def test_what_the_killed_part_took_until_its_checkpoint_counts(tmp_path, monkeypatch):
    now = [0.0]
    for module in ("epoch", "manager", "open_run", "inside_epoch"):
        monkeypatch.setattr(f"runmanager.core.{module}.perf_counter", lambda: now[0])

    def train_slowly(stop):
        manager = RunManager("exp", tmp_path, display=False, tensorboard=False)
        with contextlib.suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, None, Resumable([1] * 10)):
            for _ in manager.epochs(1, checkpoint={}, checkpoint_every=4):
                now[0] += 100  # in front of the loop
                for number, _ in enumerate(manager.batches()):
                    now[0] += 1
                    if number == stop:
                        raise KeyboardInterrupt
                    manager.track_loss(0.5, 1)

    train_slowly(6)  # saved after 4 batches, 104 s
    now[0] += 1000
    train_slowly(None)  # 100 s in front of the loop once more, then 6 batches

    (row,) = load_results(tmp_path).to_dict(orient="records")
    assert row["epoch duration"] == 110
    assert row["run duration"] == 210  # with the second beginning, as for runs that resume after an epoch
    assert read_run(run_folder(tmp_path)).epochs[0].times["throughput_images_per_s"] == pytest.approx(10 / 110)


@pytest.mark.slow(everywhere=True)
def test_sums_of_tensors_continue_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("runmanager.core.metrics.IS_CPU_READ", False)
    monkeypatch.setattr(metrics, "CHUNK", 4)
    train(tmp_path / "whole")

    train(tmp_path / "killed", (2, 4))
    train(tmp_path / "killed")

    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


def test_losses_whose_batch_is_known_later_continue(tmp_path):
    def execute(root, stop):
        manager = RunManager("exp", root, display=False, tensorboard=False)
        with contextlib.suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, None, shuffled(shuffle=False)):
            for _ in manager.epochs(1, checkpoint={}, checkpoint_every=1):
                for samples, labels in manager.batches():
                    manager.track_loss(samples.mean())
                    if torch.equal(labels, stop):
                        raise KeyboardInterrupt
        return load_results(root).drop(columns=DURATIONS, errors="ignore").to_csv()

    whole = execute(tmp_path / "whole", torch.tensor(0))
    execute(tmp_path / "killed", LABELS[12:16])

    assert execute(tmp_path / "killed", torch.tensor(0)) == whole


def test_a_loss_that_is_not_finite_is_found_where_it_was(tmp_path):
    def execute(stop):
        manager = RunManager("exp", tmp_path, display=False, tensorboard=False)
        with contextlib.suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, None, Resumable([1] * 6)):
            for _ in manager.epochs(1, checkpoint={}, checkpoint_every=1):
                for number, _ in enumerate(manager.batches()):
                    manager.track_loss(float("nan") if number == 1 else 0.5, 1)
                    if number == stop:
                        raise KeyboardInterrupt
        return manager.outcome

    execute(4)

    assert "step 2" in execute(None).error


@pytest.mark.slow(everywhere=True)
def test_a_damaged_checkpoint_costs_the_epoch_and_is_named(tmp_path):
    train(tmp_path / "whole")
    train(tmp_path / "killed", (2, 4))
    flip(run_folder(tmp_path / "killed").path / files.INSIDE_CHECKPOINT)

    with pytest.warns(RunsWarning, match="checkpoint.inside.pt is not used"):
        counts = train(tmp_path / "killed")

    assert counts == {2: 6, 3: 6}
    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


@pytest.mark.slow(everywhere=True)
def test_a_checkpoint_of_an_epoch_that_was_committed_since_is_removed(tmp_path):
    train(tmp_path, (2, 4))
    path = run_folder(tmp_path).path / files.INSIDE_CHECKPOINT
    content = path.read_bytes()
    train(tmp_path, (3, 1))
    path.write_bytes(content)

    assert train(tmp_path, num_epochs=4) == {3: 6, 4: 6}
    assert not path.exists()


@pytest.mark.slow(everywhere=True)
def test_without_the_option_a_run_continues_and_saves_no_more(tmp_path):
    train(tmp_path / "whole")
    train(tmp_path / "killed", (2, 4))

    counts = train(tmp_path / "killed", (3, 4), every=None)

    assert counts[2] == 3
    assert not (run_folder(tmp_path / "killed").path / files.INSIDE_CHECKPOINT).exists()
    train(tmp_path / "killed")
    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


def test_by_default_nothing_is_saved_inside_epochs(tmp_path):
    train(tmp_path, (2, 4), every=None)

    assert not (run_folder(tmp_path).path / files.INSIDE_CHECKPOINT).exists()
    assert read_run(run_folder(tmp_path)).inside is None
    assert train(tmp_path, every=None)[2] == 6


def test_a_completed_run_leaves_no_checkpoint(tmp_path):
    train(tmp_path)

    assert not list(run_folder(tmp_path).path.glob("checkpoint*"))


def test_other_parts_are_refused(tmp_path):
    train(tmp_path, (1, 4))
    manager = RunManager("exp", tmp_path, display=False, tensorboard=False)

    with pytest.raises(CheckpointError, match="the checkpoint inside an epoch holds"), manager.run({"lr": 0.1}):
        manager.epochs(1, checkpoint={"network": nn.Linear(1, 1)})


@pytest.mark.parametrize("every", [0, True, 1.5, "10", "10 minutes", "0min", "-1s", ""])
def test_an_interval_that_is_none_is_refused(tmp_path, every):
    manager = RunManager("exp", tmp_path, display=False, tensorboard=False)
    with pytest.raises(InvalidArgumentError, match="checkpoint_every must be a number of batches"):  # noqa: SIM117
        with manager.run({"lr": 0.1}):
            manager.epochs(1, checkpoint={}, checkpoint_every=every)


def test_an_interval_without_a_checkpoint_is_refused(tmp_path):
    manager = RunManager("exp", tmp_path, display=False, tensorboard=False)

    with pytest.raises(InvalidArgumentError, match="without checkpoint="), manager.run({"lr": 0.1}):
        manager.epochs(1, checkpoint_every="10min")


@pytest.mark.slow  # torchmetrics takes seconds to import
def test_a_metric_that_saves_no_state_is_refused(tmp_path):
    torchmetrics = pytest.importorskip("torchmetrics")
    manager = RunManager("exp", tmp_path, display=False, tensorboard=False)
    metric = torchmetrics.MeanMetric()

    with pytest.raises(InvalidArgumentError, match=r"call its persistent\(True\)"), manager.run({"lr": 0.1}):
        manager.epochs(1, checkpoint={"metric": metric}, checkpoint_every=1)


@pytest.mark.slow  # torchmetrics takes seconds to import
def test_a_metric_of_the_loop_continues(tmp_path):
    torchmetrics = pytest.importorskip("torchmetrics")

    def execute(stop):
        metric = torchmetrics.SumMetric()
        metric.persistent(True)
        manager = RunManager("exp", tmp_path, display=False, tensorboard=False)
        with contextlib.suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, None, Resumable([1] * 6)):
            for _ in manager.epochs(1, checkpoint={"metric": metric}, checkpoint_every=1):
                for number, _ in enumerate(manager.batches()):
                    if number == stop:
                        raise KeyboardInterrupt
                    metric.update(1.0)
                    manager.track(share=1.0)
                manager.track(total=metric.compute())
        return load_results(tmp_path)

    execute(4)

    assert execute(None)["total"].tolist() == [6.0]


class Stateless(list[Any]):
    def state_dict(self):
        raise AttributeError("dl_state_dict")

    def load_state_dict(self, state):
        """Load nothing."""


def train_in(root, loop, stop=None, loader=None):
    """Train with `loop`, which yields a batch and a number for each step, until step `stop` of the attempt.

    Return the rows and the weights that are left, and what the attempt has warned of.
    """
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    manager, num_steps = RunManager("exp", root, display=False, tensorboard=False), 0
    with warnings.catch_warnings(record=True) as warned, contextlib.suppress(KeyboardInterrupt):
        warnings.simplefilter("always")
        with manager.run({"lr": 0.1}, network, shuffled() if loader is None else loader):
            parts = {"network": network, "optimizer": optimizer}
            for _ in manager.epochs(2, checkpoint=parts, checkpoint_every=2):
                for (samples, labels), number in loop(manager):
                    num_steps += 1
                    if num_steps == stop:
                        raise KeyboardInterrupt
                    loss = functional.cross_entropy(network(samples), labels) * (1 + number)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    manager.track_loss(loss, samples)
    said = [str(each.message) for each in warned if each.category is RunsWarning]
    rows = load_results(root).drop(columns=DURATIONS, errors="ignore").to_csv()
    return (rows, [parameter.tolist() for parameter in network.parameters()]), said


def killed(root, loop, stop, loader=lambda: None):
    """Interrupt a run, continue it, and return the same of both attempts."""
    _, before = train_in(root, loop, stop, loader())
    result, after = train_in(root, loop, None, loader())
    return result, before, after


def plainly(manager):
    for batch in manager.batches():
        yield batch, 0


def enumerated(manager):
    for number, batch in enumerate(manager.batches(), manager.resume_batch):
        yield batch, number


def zipped(manager):
    for number, batch in zip(itertools.count(manager.resume_batch), manager.batches(), strict=False):
        yield batch, number


def sliced(manager):
    for batch in itertools.islice(manager.batches(), 5 - manager.resume_batch):
        yield batch, 0


def generated(manager):
    yield from plainly(manager)


def listed(manager):
    for batch in list(manager.batches()):
        yield batch, 0


def ahead(manager):
    batches = manager.batches()
    batch = next(batches)
    for following in batches:
        yield batch, 0
        batch = following
    yield batch, 0


class TestALoopAroundTheBatches:
    @pytest.mark.parametrize("stop", [4, 9])
    @pytest.mark.parametrize("loop", [enumerated, zipped, sliced, generated])
    def test_begins_after_the_batch_that_was_saved(self, tmp_path, loop, stop):
        whole, _ = train_in(tmp_path / "whole", loop)

        result, before, after = killed(tmp_path / "killed", loop, stop)

        assert (result, before, after) == (whole, [], [])
        assert '"inside":{' in (tmp_path / "killed/exp/001-lr=0.1/attempt-2.jsonl").read_text()

    @pytest.mark.parametrize("loop", [enumerated, zipped])
    def test_that_starts_over_begins_with_the_first_batch(self, tmp_path, loop):
        def counted(manager):
            for batch, number in loop(manager):
                numbers.append(number)
                yield batch, number

        numbers: list[int] = []
        train_in(tmp_path, counted, 9)
        numbers.clear()
        train_in(tmp_path, counted, None, DataLoader(DATA, 4, shuffle=True, generator=generator()))

        assert numbers == [*range(6)]

    def test_is_told_the_batch_before_it_begins_and_in_one_epoch_alone(self, tmp_path):
        def told(manager):
            before = manager.resume_batch
            batches = manager.batches()
            numbers.append((before, manager.resume_batch))
            for batch in batches:
                yield batch, 0

        numbers: list[tuple[int, int]] = []
        killed(tmp_path, told, 4)

        assert numbers == [(0, 0), (2, 2), (0, 0)]

    def test_needs_an_epoch_for_its_batch(self, tmp_path):
        manager = RunManager("exp", tmp_path, display=False, tensorboard=False)

        with pytest.raises(LifecycleError, match="resume_batch outside an epoch"), manager.run({"lr": 0.1}):
            print(manager.resume_batch)  # noqa: T201

    @pytest.mark.parametrize("loop", [listed, ahead])
    def test_saves_nothing_if_it_asks_for_batches_ahead(self, tmp_path, loop):
        whole, _ = train_in(tmp_path / "whole", loop)

        result, before, _ = killed(tmp_path / "killed", loop, 9)

        assert result == whole
        assert [
            each for each in before if "the first batch had no tracked value before the next one" in each
        ] == before

    def test_may_leave_out_a_batch(self, tmp_path):
        def leave_out(manager):
            for number, batch in enumerate(manager.batches(), manager.resume_batch):
                if number != 3:  # after which the state would be saved
                    yield batch, number

        whole, _ = train_in(tmp_path / "whole", leave_out)

        result, before, after = killed(tmp_path / "killed", leave_out, 5)

        assert (result, before, after) == (whole, [], [])
        assert '"batch":5' in (tmp_path / "killed/exp/001-lr=0.1/attempt-2.jsonl").read_text()


def test_a_loader_that_has_no_state_after_all_ends_no_run(tmp_path):
    _, said = train_in(tmp_path, plainly, loader=Stateless(BATCHES))

    assert ["its loader has no state: AttributeError('dl_state_dict')" in each for each in said] == [True]


class TestSaysOnce:
    def test_that_a_loop_does_not_use_batches(self, tmp_path):
        manager = RunManager("exp", tmp_path, display=False, tensorboard=False)

        def execute():
            with manager.run({"lr": 0.1}, None, Resumable()):
                for _ in manager.epochs(2, checkpoint={}, checkpoint_every=1):
                    for samples, _ in BATCHES:
                        manager.track_loss(samples.mean(), samples)

        with pytest.warns(
            RunsWarning, match=r"counts the batches of manager.batches\(\), which is not used"
        ) as warned:
            execute()

        assert len(warned) == 1


def test_a_program_that_fits_continues(tmp_path):
    def execute(root, stop):
        torch.manual_seed(1)
        network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        seen = 0

        def loss(preds, labels):
            nonlocal seen
            seen += 1
            if seen == stop:
                raise KeyboardInterrupt
            return functional.cross_entropy(preds, labels)

        manager = RunManager("exp", root, display=False, tensorboard=False)
        with contextlib.suppress(KeyboardInterrupt):
            fit(
                {"lr": 0.1}, network, shuffled(), manager, optimizer=torch.optim.Adam, epochs=2, loss=loss,
                keep="last", checkpoint_every=2,
            )  # fmt: skip
        return seen

    execute(tmp_path / "whole", None)
    execute(tmp_path / "killed", 11)

    assert execute(tmp_path / "killed", None) == 12 - 10
    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


def train_run(run, manager):
    torch.manual_seed(1)
    network = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr)
    with manager.run(run, network, shuffled()):
        parts = {"network": network, "optimizer": optimizer}
        for epoch in manager.epochs(2, checkpoint=parts, checkpoint_every=2):
            for number, (samples, labels) in enumerate(manager.batches(), 1):
                if (epoch, number) == STOPS:
                    raise KeyboardInterrupt
                loss = functional.cross_entropy(network(samples), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, samples)


STOPS: tuple[int, int] | None = None


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_grid_says_where_a_run_continues(tmp_path, monkeypatch, capsys, epoch):
    monkeypatch.setitem(globals(), "STOPS", (epoch, 6))
    grid = {"lr": [0.1], "device": ["cpu"]}
    options: dict[str, Any] = {
        "experiment": "exp",
        "root": tmp_path,
        "executor": "inline",
        "tensorboard": False,
    }
    stopped = run_grid(grid, train_run, **options)
    panel = capsys.readouterr().out

    run_grid(grid, train_run, plan_only=True, **options)

    where = f"inside epoch {epoch}, after batch 4 of 6"
    assert "! 1 of 1 run is left to execute" in panel
    assert stopped.runs["continues at"].tolist() == [where]

    assert f"continue inside epoch {epoch}, after batch 4 of 6" in capsys.readouterr().out


def test_the_start_of_the_attempt_says_where_it_continues(tmp_path):
    train(tmp_path, (1, 4))
    train(tmp_path, (2, 4))

    attempts = [read_attempt(path) for path in sorted(run_folder(tmp_path).path.glob("attempt-*[0-9].jsonl"))]

    assert attempts[1].start["inside"] == {"epoch": 1, "batch": 3, "step": 3, "num_batches": 6}
    assert attempts[1].inside == Inside(2, 3, 9, 6)


def test_tensorboard_shows_steps_and_own_tags_of_the_part_that_was_killed_once(tmp_path):
    def execute(root, stop):
        manager = RunManager("exp", root, display=False, tensorboard=TensorBoard(histogram_every=0))
        with contextlib.suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, None, Resumable()):
            for epoch in manager.epochs(2, checkpoint={}, checkpoint_every=2):
                for number, (samples, _) in enumerate(manager.batches(), 6 * epoch - 5):
                    manager.track_loss(samples.mean(), samples)
                    manager.log(step_loss=samples.mean())
                    assert manager.tb
                    manager.tb.add_scalar("own/loss", samples.mean(), number)
                    if number == stop:
                        raise KeyboardInterrupt
        shown = folder_scalars(run_folder(root).path)
        return {tag: shown[tag] for tag in shown if tag.startswith(("steps/", "loss/"))}, shown["own/loss"]

    whole, own = execute(tmp_path / "whole", None)
    for stop in (5, 11):
        execute(tmp_path / f"{stop}", stop)
        shown, own_shown = execute(tmp_path / f"{stop}", None)
        assert shown == whole
        # a loop that counts batches itself begins to count anew
        assert own_shown[: stop // 2 * 2] == own[: stop // 2 * 2]


def test_several_ranks_save_nothing_inside_epochs_and_are_told_so(tmp_path, monkeypatch):
    ranks = SimpleNamespace(num_ranks=lambda: 2)
    monkeypatch.setattr("runmanager.core.inside_epoch.ranks", ranks)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        train(tmp_path, num_epochs=1)

    assert "saves nothing: 2 ranks" in str(warned[0].message)


def test_the_number_of_threads_is_that_of_the_part_that_was_killed(tmp_path):
    train(tmp_path, (1, 4))
    torch.set_num_threads(2)
    train(tmp_path)

    assert load_runs(tmp_path / "exp")["threads"].tolist() == [1]
    assert load_run(tmp_path / "exp" / "1").epochs == 3

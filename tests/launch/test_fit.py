import functools
import itertools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from runmanager import RunManager, fit, load_results
from runmanager.core.loaders import ImageTensors, TensorLoader
from runmanager.errors import InvalidArgumentError
from tests.of_grid import manager_of_grid

GENERATOR = torch.Generator().manual_seed(7)
LABELS = torch.arange(58) % 3
IMAGES = LABELS.float().reshape(-1, 1, 1, 1) + torch.randn(58, 1, 6, 6, generator=GENERATOR)
DATA, TEST = ImageTensors(IMAGES[:48], LABELS[:48]), ImageTensors(IMAGES[48:], LABELS[48:])
RUN = {"lr": 0.1}
OUT_OF_MEMORY = {
    "cpu": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
        "to allocate 92160000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    "python": MemoryError(),
}


class Fault(Exception):  # noqa: N818
    """What interrupts a run."""


@pytest.fixture
def manager(tmp_path):
    return manager_of_grid("exp", tmp_path)


def make_network(norm=nn.Identity, dropout=0.0):
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), norm(4), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(64, 3)
    )


def make_loader(batch_size=10):
    return TensorLoader(DATA, batch_size, seed=2)


def by_fit(manager, network=None, *, run=RUN, optimizer=None, epochs=3, size=10, **options):
    """Train through fit(); return the rows, the weights and the random state."""
    network = network or make_network()
    optimizer = optimizer or functools.partial(SGD, lr=0.1, momentum=0.9)
    fit(run, network, make_loader(size), manager, optimizer=optimizer, epochs=epochs, **options)
    return without_times(manager.run_data), weights(network), torch.get_rng_state().tolist()


def without_times(rows):
    return [{name: value for name, value in row.items() if "duration" not in name} for row in rows]


def weights(network):
    return {name: value.numpy().tobytes() for name, value in network.state_dict().items()}


def needing_memory(fits, error, asked):
    """Return a loss that runs out of memory with more than so many samples."""

    def loss(preds, labels):
        asked.append(len(labels))
        if len(labels) > fits:
            raise error
        return cross_entropy(preds, labels)

    return loss


def test_an_optimizer_and_a_scheduler_may_be_made_before(manager, tmp_path):
    made = by_fit(manager, optimizer=functools.partial(SGD, lr=0.1), scheduler=lambda o: ExponentialLR(o, 0.5))
    network = make_network()
    optimizer = SGD(network.parameters(), lr=0.1)

    given = by_fit(
        RunManager("given", tmp_path), network, optimizer=optimizer, scheduler=ExponentialLR(optimizer, 0.5)
    )

    assert given == made


def test_an_optimizer_is_made_of_parameters_that_are_in_their_place_and_format(manager):
    seen = []

    def make_optimizer(parameters):
        parameters = list(parameters)
        seen.append((manager._is_open, parameters[0].is_contiguous(memory_format=torch.channels_last)))
        return SGD(parameters, lr=0.1)

    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    network[0].register_forward_hook(
        lambda _, __, output: seen.append(output.is_contiguous(memory_format=torch.channels_last))
    )
    by_fit(manager, network, optimizer=make_optimizer, epochs=1, memory_format=torch.channels_last)

    assert seen == [(False, True), *[True] * 5]  # 48 images in batches of 10


def test_a_run_that_is_open_is_trained_and_not_ended(manager):
    network, loader = make_network(), make_loader()

    with manager.run(RUN, network, loader):
        fit(RUN, network, loader, manager, optimizer=functools.partial(SGD, lr=0.1), epochs=2)
        is_open = manager._is_open

    assert is_open
    assert manager.outcome.epochs == 2


def test_no_gradient_is_left_from_the_batch_before(manager):
    seen: list[torch.Tensor | None] = []
    network = make_network()
    network.register_forward_pre_hook(lambda *_: seen.extend(p.grad for p in network.parameters()))

    by_fit(manager, network)

    assert seen
    assert set(seen) == {None}


def test_memory_that_runs_out_in_the_middle_of_a_batch_counts_nothing_twice(manager, tmp_path):
    calls = itertools.count(1)

    def loss(preds, labels):
        if next(calls) in (4, 6):  # the fourth batch; the second half of it
            raise OUT_OF_MEMORY["cuda"]
        return cross_entropy(preds, labels)

    whole, _, _ = by_fit(RunManager("whole", tmp_path), make_network(), epochs=1)
    rows, _, _ = by_fit(manager, make_network(), epochs=1, micro_batch="auto", loss=loss)

    assert rows[0].pop("micro_batch") == 3
    assert rows == [pytest.approx(whole[0], rel=1e-5)]


def test_running_statistics_see_a_batch_that_is_repeated_once(manager):
    network = make_network(nn.BatchNorm2d)

    by_fit(
        manager, network, epochs=1, micro_batch="auto", batch_norm_per_piece=True,
        loss=needing_memory(5, OUT_OF_MEMORY["cuda"], []),
    )  # fmt: skip

    assert network[1].num_batches_tracked == 10  # of five batches in two pieces each


@pytest.mark.parametrize("micro_batch", [None, 5, "auto"])
def test_an_error_that_is_not_about_memory_is_raised_at_once(manager, micro_batch):
    asked: list[int] = []

    with pytest.raises(RuntimeError, match="no such"):
        by_fit(
            manager, micro_batch=micro_batch, loss=needing_memory(0, RuntimeError("no such operation"), asked)
        )

    assert len(asked) == 1


def test_pieces_that_were_asked_for_are_not_reduced(manager):
    with pytest.raises(torch.OutOfMemoryError):
        by_fit(manager, micro_batch=5, loss=needing_memory(4, OUT_OF_MEMORY["cuda"], []))


EVERYTHING = {
    "fp32": {"clip_grad_norm": 0.5, "memory_format": torch.channels_last},
    "fp16": {"precision": "fp16", "micro_batch": 4},
    "auto": {"micro_batch": "auto"},
}


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("options", EVERYTHING.values(), ids=EVERYTHING)
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, options):
    calls = itertools.count(1)
    is_auto = "auto" in options.values()

    def train(root, *, fails_at=None, fits=6):
        def loss(preds, labels):
            if torch.is_grad_enabled():
                if is_auto and len(labels) > fits:
                    raise OUT_OF_MEMORY["cpu"]
                if next(calls) == fails_at:
                    raise Fault
            return cross_entropy(preds, labels)

        network = make_network(dropout=0.3)
        manager = RunManager("exp", root, display=False, tensorboard=False)
        fit(
            RUN, network, make_loader(), manager, optimizer=functools.partial(Adam, lr=0.01), epochs=4,
            loss=loss, scheduler=lambda optimizer: ExponentialLR(optimizer, 0.9), keep="best:test_loss",
            test_loader=TensorLoader(TEST, 4), **options,
        )  # fmt: skip
        return without_times(load_results(root / "exp").to_dict("records")), weights(network)

    undisturbed = train(tmp_path / "whole")
    calls = itertools.count(1)
    with pytest.raises(Fault):
        train(tmp_path / "killed", fails_at=13 if options.get("micro_batch") is None else 35)

    continued = train(tmp_path / "killed", fits=100)  # memory is free again, and the pieces stay

    assert len(load_results(tmp_path / "killed" / "exp")) == 4
    assert repr(continued[0]) == repr(undisturbed[0])
    assert continued[1] == undisturbed[1]


@pytest.mark.parametrize(
    ("run", "network"),
    [({"device": "meta"}, None), (RUN, nn.Linear(1, 1, device="meta"))],
    ids=["device of the run", "device of the network"],
)
def test_a_precision_that_the_device_lacks_is_refused_with_what_it_has(manager, tmp_path, run, network):
    with pytest.raises(InvalidArgumentError) as caught:
        by_fit(manager, network, run=run, precision="bf16")

    assert str(caught.value) == "precision on meta must be one of 'fp32', got 'bf16'"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("micro_batch", [5, "auto"])
def test_pieces_of_a_network_with_batch_statistics_are_refused_until_they_are_accepted(manager, micro_batch):
    with pytest.raises(InvalidArgumentError, match="accept it with batch_norm_per_piece=True"):
        by_fit(manager, make_network(nn.BatchNorm2d), micro_batch=micro_batch)

    by_fit(manager, make_network(nn.BatchNorm2d), micro_batch=micro_batch, batch_norm_per_piece=True)
    assert manager.outcome.epochs == 3


def test_batch_statistics_that_are_not_trained_may_be_cut_in_pieces(manager):
    network = make_network(nn.BatchNorm2d)
    network[1].eval()

    by_fit(manager, network, micro_batch=5)

    assert manager.outcome.epochs == 3


def other_optimizer(_):
    return ExponentialLR(SGD(make_network().parameters()), 0.5)


@pytest.mark.parametrize(
    ("scheduler", "problem"),
    [(ReduceLROnPlateau, "needs a metric"), (other_optimizer, "has another optimizer")],
)
def test_a_scheduler_that_could_not_be_stepped_is_refused(manager, tmp_path, scheduler, problem):
    optimizer = SGD(make_network().parameters(), lr=0.1)

    for given in (scheduler, scheduler(optimizer)):
        with pytest.raises(InvalidArgumentError, match=problem):
            by_fit(manager, scheduler=given)

    assert not list(tmp_path.iterdir())


def weighed(batch):
    """Count the samples of class 0 twice: neither the inputs nor the labels have this length."""
    _, labels = batch
    return len(labels) + int((labels == 0).sum())


def mean_over(preds, labels):
    """Return the mean over the samples that `weighed` counts."""
    losses = cross_entropy(preds, labels, reduction="none")
    return (losses * (1 + (labels == 0))).sum() / weighed((None, labels))


@pytest.mark.parametrize("given_to", ["fit", "manager", "fit of an open run"])
def test_samples_are_counted_as_asked_for_in_rows_and_in_evaluations(tmp_path, given_to):
    counted = []

    def measure(batch):
        counted.append(batch)
        return weighed(batch)

    given = measure if given_to == "manager" else None
    manager = RunManager("exp", tmp_path, tensorboard=False, display=False, batch_size=given)
    loader, network = make_loader(10), make_network()
    options: Any = {"batch_size": None if given else measure, "test_loader": TensorLoader(TEST, 4)}
    options |= {"loss": mean_over, "epochs": 1, "optimizer": functools.partial(SGD, lr=0.0)}
    with manager.run(RUN, network, loader) if "open" in given_to else nullcontext():
        fit(RUN, network, loader, manager, **options)
        num_counted = len(counted)
        if "open" in given_to:
            manager.begin_epoch()
            for inputs, labels in manager.batches():
                manager.track_loss(mean_over(network(inputs), labels), labels)
            manager.end_epoch()

    (row, *_) = manager.run_data
    assert row["loss"] == pytest.approx(mean_over(network(DATA.images), DATA.labels).item(), rel=1e-5)
    assert row["test_loss"] == pytest.approx(mean_over(network(TEST.images), TEST.labels).item(), rel=1e-5)
    assert all(isinstance(batch, tuple) and len(batch) == 2 for batch in counted)
    assert len(counted) == num_counted == 5 + 3  # the manager counts its further epochs as before


def test_pieces_have_their_share_of_the_samples_that_were_asked_for(tmp_path):
    whole, pieces = (
        by_fit(
            RunManager(name, tmp_path, tensorboard=False, display=False),
            loss=mean_over, batch_size=weighed, **options,
        )
        for name, options in (("whole", {}), ("pieces", {"micro_batch": 3}))
    )  # fmt: skip

    assert [row["loss"] for row in pieces[0]] == pytest.approx([row["loss"] for row in whole[0]], rel=1e-5)


def test_a_function_that_counts_pieces_as_the_whole_is_refused(manager):
    with pytest.raises(InvalidArgumentError, match="counts 10 samples in a batch, but 40 in its micro-batches"):
        by_fit(manager, micro_batch=3, batch_size=lambda _: 10)


def test_another_network_than_the_open_runs_is_refused(manager):
    network, loader = make_network(), make_loader()

    with (
        manager.run(RUN, network, loader),
        pytest.raises(InvalidArgumentError, match="another network or loader"),
    ):
        by_fit(manager)

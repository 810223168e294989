"""What counts or loads beside a loop over `batches` when a run continues inside an epoch."""

import contextlib
import itertools
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from runmanager import RunManager, load_results
from runmanager.errors import RunsWarning
from tests.training.test_inside_epoch import DATA, DURATIONS, LABELS, SAMPLES, Augmented, shuffled


def train(root, loop, stop=None, loader=None):
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
    _, before = train(root, loop, stop, loader())
    result, after = train(root, loop, None, loader())
    return result, before, after


def enumerated(manager):
    for number, batch in enumerate(manager.batches(), 1):
        yield batch, number


def doubly(manager):
    for number, (_, batch) in zip(itertools.count(), enumerate(manager.batches()), strict=False):
        yield batch, number


def filtered(manager):
    for number, batch in enumerate(generated(manager)):
        yield batch, number


def generated(manager):
    yield from manager.batches()


def zipped(manager):
    for batch, (other, _) in zip(manager.batches(), DataLoader(DATA, 4, shuffle=True), strict=True):
        yield batch, float(other.sum())


def sliced(manager):
    for batch in itertools.islice(manager.batches(), 5):
        yield batch, 0


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


@pytest.mark.parametrize("stop", [4, 9])
def test_enumerate_counts_on(tmp_path, stop):
    whole, _ = train(tmp_path / "whole", enumerated)

    result, before, after = killed(tmp_path / "killed", enumerated, stop)

    assert result == whole
    assert before == after == []
    assert '"inside":{' in (tmp_path / "killed/exp/001-lr=0.1/attempt-2.jsonl").read_text()


@pytest.mark.parametrize(
    ("loop", "what"), [(zipped, "zip"), (sliced, "islice"), (filtered, "enumerate"), (doubly, "zip")]
)
def test_an_epoch_starts_over_where_something_else_counts(tmp_path, loop, what):
    whole, _ = train(tmp_path / "whole", loop)

    result, before, _ = killed(tmp_path / "killed", loop, 9)

    assert result == whole
    assert any(rf"saves nothing: {what}() around batches() begins again" in each for each in before)


def test_what_was_saved_is_left_where_something_counts_since(tmp_path):
    train(tmp_path, enumerated, 4)

    _, said = train(tmp_path, sliced)

    assert (
        "epoch 1 starts over, not after batch 2: islice() around batches() counts from the beginning" in said[0]
    )


@pytest.mark.parametrize("loop", [listed, ahead])
def test_nothing_is_saved_where_batches_are_asked_for_ahead(tmp_path, loop):
    whole, _ = train(tmp_path / "whole", loop)

    result, before, _ = killed(tmp_path / "killed", loop, 9)

    assert result == whole
    assert [each for each in before if "nothing was tracked of batch 1 before the next one" in each] == before


def test_a_batch_that_is_left_out_is_no_reason_to_save_nothing(tmp_path):
    def leave_out(manager):
        for number, batch in enumerate(manager.batches()):
            if number != 3:  # after which the state would be saved
                yield batch, number

    whole, _ = train(tmp_path / "whole", leave_out)

    result, before, after = killed(tmp_path / "killed", leave_out, 5)

    assert (result, before, after) == (whole, [], [])
    assert '"batch":5' in (tmp_path / "killed/exp/001-lr=0.1/attempt-2.jsonl").read_text()


def test_a_loader_that_somebody_has_left_is_not_said(tmp_path):
    left = iter(DataLoader(DATA, 4))
    next(left)

    _, said = train(tmp_path, plainly)

    assert said == []
    assert next(left)


def test_another_loader_beside_the_loop_is_said(tmp_path):
    def beside(manager):
        others = iter(DataLoader(DATA, 4))
        for batch in manager.batches():
            yield batch, float(next(others)[1].sum())

    _, said = train(tmp_path, beside)

    assert ["a loader is iterated over beside batches()" in each for each in said] == [True]


class Twice(DataLoader[Any]):
    def __iter__(self):
        for _ in range(2):
            yield from super().__iter__()


class Ahead(DataLoader[Any]):
    def __iter__(self):
        batches = super().__iter__()
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch


class Stateless(list[Any]):
    def state_dict(self):
        raise AttributeError("dl_state_dict")

    def load_state_dict(self, state):
        """Load nothing."""


def plainly(manager):
    for batch in manager.batches():
        yield batch, 0


@pytest.mark.parametrize(("stop", "batch"), [(5, 4), (7, 6)])
def test_a_loader_that_repeats_itself_is_saved_the_first_time(tmp_path, stop, batch):
    def make():
        return Twice(DATA, 4, shuffle=True)

    whole, said = train(tmp_path / "whole", plainly, loader=make())

    result, _, after = killed(tmp_path / "killed", plainly, stop, make)

    assert result == whole
    assert ["its loader yields more batches than its sampler gives" in each for each in said] == [True]
    assert f'"batch":{batch}' in (tmp_path / "killed/exp/001-lr=0.1/attempt-2.jsonl").read_text()
    assert len(after) == 1


def test_a_loader_that_has_no_state_after_all_ends_no_run(tmp_path):
    batches = [(SAMPLES[i : i + 4], LABELS[i : i + 4]) for i in range(0, 22, 4)]

    _, said = train(tmp_path, plainly, loader=Stateless(batches))

    assert ["its loader has no state: AttributeError('dl_state_dict')" in each for each in said] == [True]


def test_random_numbers_that_a_loader_draws_ahead_are_said_to_differ(tmp_path):
    _, before, after = killed(tmp_path, plainly, 5, lambda: Ahead(Augmented(SAMPLES, LABELS), 4))

    assert before == []
    assert ["numbers that the loader draws for batches ahead, as for" in each for each in after] == [True]


@pytest.mark.slow  # accelerate takes seconds to import
def test_a_loader_that_accelerate_has_prepared_ends_no_run(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(DATA, 4))

    _, said = train(tmp_path, plainly, loader=loader)

    assert len(said) == 1

import math
from contextlib import suppress

import pytest
import torch
from torch import nn

from runmanager import RunManager, load_results, load_runs, load_steps
from runmanager.core import step_log
from runmanager.core.journal import Journal
from runmanager.core.metrics import read_values
from runmanager.core.step_log import StepLog
from runmanager.errors import InvalidArgumentError, StorageError

LOADER = [(torch.ones(2, 4), torch.tensor([0, 1]))] * 3


@pytest.fixture
def manager(tmp_path):
    return RunManager("exp", tmp_path, tensorboard=False, display=False)


def begin(manager, num_epochs=1, **options):
    """Yield the number of each batch in a run of epochs of three batches."""
    number = 0
    with manager.run({"lr": 0.1}, None, LOADER):
        for _ in manager.epochs(num_epochs, **options):
            for _ in manager.batches():
                number += 1
                yield number


def rows(root):
    return [tuple(row) for row in load_steps(root).drop(columns="lr").itertuples(index=False)]


def test_names_of_one_step_share_a_row_however_they_are_given(manager, tmp_path):
    for number in begin(manager):
        manager.log({"train/loss": number, "every": 2}, momentum=0.5)
        manager.log(grad_norm=torch.tensor([float(number)], requires_grad=True))

    assert list(load_steps(tmp_path)) == [
        "run",
        "epoch",
        "step",
        "lr",
        "train_loss",
        "every",
        "momentum",
        "grad_norm",
    ]
    assert rows(tmp_path) == [(1, 1, n, n, 2, 0.5, n) for n in (1, 2, 3)]


def test_a_name_that_is_logged_again_in_a_batch_begins_a_further_step(manager, tmp_path):
    for number in begin(manager):
        for _ in range(number):
            manager.log(critic=number)
        manager.log(generator=number)

    steps = load_steps(tmp_path).set_index("step")
    assert steps["critic"].to_dict() == {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 3}
    assert steps["generator"].dropna().to_dict() == {1: 1, 3: 2, 6: 3}


def test_without_batches_losses_or_else_calls_are_counted(manager, tmp_path):
    with manager.run({"lr": 0.1}):
        for _ in manager.epochs(2):
            for number in range(1, 5):
                manager.track_loss(1.0, 1)
                if number in (2, 4):
                    manager.log(some=number)
    with manager.run({"lr": 0.2}):
        for _ in manager.epochs(2):
            for number in range(1, 5):
                if number in (2, 4):
                    manager.log(some=number)

    assert rows(tmp_path) == [
        *[(1, 1, 2, 2), (1, 1, 4, 4), (1, 2, 6, 2), (1, 2, 8, 4)],
        *[(2, 1, 1, 2), (2, 1, 2, 4), (2, 2, 3, 2), (2, 2, 4, 4)],
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 5e-324, 1e308, -0.0])
def test_every_number_comes_back(manager, tmp_path, value):
    for _ in begin(manager):
        manager.log(score=torch.tensor(value, dtype=torch.float64))

    assert [str(number) for number in load_steps(tmp_path)["score"]] == [str(value)] * 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": 1}, "'loss' is a column already, which track_loss fills: give the metric another name"),
        ({"epoch": 1}, "'epoch' is a column already"),
        ({"step": 1}, "'step' is a column of load_steps() already: give the value another name"),
        ({"lr": 1}, "'lr' is a hyperparameter"),
        ({"a b": 1}, "'a b' is not an identifier"),
        ({"score": "good"}, "score must be a number or a tensor of one, got 'good'"),
        ({"score": torch.zeros(2)}, "score must be a single value"),
    ],
)
def test_what_cannot_be_logged_is_refused_at_the_first_call(manager, values, message):
    for _ in begin(manager):
        with pytest.raises(InvalidArgumentError) as raised:
            manager.log(values)
        assert message in str(raised.value)


@pytest.mark.parametrize("every", [0, -1, 2.0, True, "2", None])
def test_every_is_a_count(manager, every):
    for _ in begin(manager):
        with pytest.raises(
            InvalidArgumentError, match=r"every must be a whole number, 1 or more, got .*; a value of that"
        ):
            manager.log(score=1, every=every)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_block_is_read_at_once_when_it_is_full_and_at_the_end(manager, tmp_path, monkeypatch, on_device):
    reads = []
    monkeypatch.setattr(step_log, "BLOCK", 4)

    def read(values):
        reads.append(len(values))
        return read_values(values)

    monkeypatch.setattr(step_log, "read_values", read)
    if on_device:  # where a cpu's values wait as an accelerator's do
        monkeypatch.setattr("runmanager.core.metrics.IS_CPU_READ", False)

    sizes = []
    for number in begin(manager, 3):
        manager.log(score=torch.tensor(number / 4), other=number)
        sizes.append(len(load_steps(tmp_path)))

    assert reads == [4, 2, 4, 2, 4, 2]
    assert sizes == [0, 2, 2, 3, 5, 5, 6, 8, 8]  # whoever looks meanwhile sees blocks
    assert load_steps(tmp_path)["score"].tolist() == [number / 4 for number in range(1, 10)]


def test_a_value_that_the_loop_changes_later_is_kept_as_it_was(manager, tmp_path, monkeypatch):
    monkeypatch.setattr("runmanager.core.metrics.IS_CPU_READ", False)
    value = torch.zeros(())
    for _ in begin(manager):
        value += 1
        manager.log(score=value)

    assert load_steps(tmp_path)["score"].tolist() == [1, 2, 3]


def test_a_block_that_waits_for_ten_seconds_is_written(manager, tmp_path, monkeypatch):
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(step_log, "perf_counter", lambda: next(clock))

    sizes = []
    for number in begin(manager, 2):
        manager.log(score=number)
        sizes.append(len(load_steps(tmp_path)))

    assert sizes[0] == 0
    assert 0 < max(sizes[:3]) < 4


def test_a_diverged_run_and_a_failed_one_keep_their_steps(manager, tmp_path):
    with manager.run({"lr": 0.1}, None, LOADER):
        for _ in manager.epochs(2):
            for _ in manager.batches():
                manager.track_loss(math.nan, 1)
                manager.log(step_loss=math.nan)
    with suppress(ZeroDivisionError), manager.run({"lr": 0.2}, None, LOADER):
        for _ in manager.epochs(2):
            for number, _ in enumerate(manager.batches()):
                manager.log(step_loss=number)
                1 / (1 - number)

    assert load_runs(tmp_path)["status"].tolist() == ["diverged", "failed"]
    assert load_steps(tmp_path)[["run", "epoch", "step"]].to_numpy().tolist() == [
        [1, 1, 1], [1, 1, 2], [1, 1, 3], [2, 1, 1], [2, 1, 2],
    ]  # fmt: skip


class Stop(KeyboardInterrupt):
    pass


def interrupted(root, at, num_epochs=3, bonus=0.0):
    """Train, be interrupted at a batch, unless it is 0."""
    manager = RunManager("exp", root, tensorboard=False, display=False)
    state = {"number": 0}
    with manager.run({"lr": 0.1}, None, LOADER):
        for epoch in manager.epochs(num_epochs, checkpoint={"state": state}):
            for _ in manager.batches():
                state["number"] += 1
                manager.track_loss(1.0, 1)
                manager.log(step_loss=state["number"] + bonus, every=2)
                if epoch > 1:
                    manager.log(late=state["number"])
                if state["number"] == at:
                    raise Stop


def test_steps_that_are_executed_again_are_replaced_and_committed_ones_stay(tmp_path):
    for root in ("whole", "cut"):
        if root == "cut":
            for at in (2, 5, 7, 7, 8):
                with pytest.raises(Stop):
                    interrupted(tmp_path / root, at, bonus=0.5 if at < 4 else 0.0)
        interrupted(tmp_path / root, 0)

    whole, cut = load_steps(tmp_path / "whole"), load_steps(tmp_path / "cut")
    assert cut.equals(whole)
    assert cut["step"].tolist() == [2, *range(4, 10)]


def test_the_epoch_that_was_interrupted_shows_its_steps_until_it_is_executed_again(tmp_path):
    with pytest.raises(Stop):
        interrupted(tmp_path, 6)

    assert load_results(tmp_path)["epoch"].tolist() == [1]
    assert load_steps(tmp_path)[["epoch", "step"]].to_numpy().tolist() == [[1, 2], [2, 4], [2, 5], [2, 6]]


def test_a_run_that_starts_over_has_the_steps_of_its_last_attempt_alone(manager, tmp_path):
    for _ in range(2):
        again = RunManager("exp", tmp_path, tensorboard=False, display=False)
        for number in begin(again, 2):
            again.log(score=number)
    for _ in begin(manager):
        pass  # an attempt that logs nothing

    assert load_steps(tmp_path).empty


def test_an_epoch_that_the_checkpoint_alone_has_keeps_its_steps(tmp_path, monkeypatch):
    epoch = Journal.epoch

    def stop(*_):
        raise Stop

    for num_epochs in (1, 2):  # after the first and, in the second attempt, after the second checkpoint
        with monkeypatch.context() as patch, suppress(Stop):
            if num_epochs == 1:
                patch.setattr(Journal, "epoch", stop)
            else:
                patch.setattr(Journal, "epoch", lambda *given: (stop if given[1].epoch > 1 else epoch)(*given))
            interrupted(tmp_path, 0)
        assert len(load_results(tmp_path)) == num_epochs - 1

    interrupted(tmp_path, 0)

    assert load_results(tmp_path)["epoch"].tolist() == [1, 2, 3]
    assert load_steps(tmp_path)["step"].tolist() == [2, *range(4, 10)]


def test_a_full_disk_interrupts_the_run_as_at_the_end_of_an_epoch(manager, tmp_path, monkeypatch):
    monkeypatch.setattr(step_log, "BLOCK", 1)
    line = step_log.block_line
    calls = []

    def fail(*given):
        calls.append(1)
        if len(calls) > 1:
            raise StorageError(28, "cannot write (No space left on device)", "x")
        return line(*given)

    monkeypatch.setattr(step_log, "block_line", fail)
    with suppress(StorageError):
        for number in begin(manager):
            manager.log(score=number)

    assert load_runs(tmp_path)["status"].tolist() == ["interrupted"]
    assert load_steps(tmp_path)["score"].tolist() == [1]


def test_ranks_but_the_first_check_their_values_and_write_none(tmp_path, monkeypatch):
    monkeypatch.setattr("runmanager.core.step_log.ranks.is_main", lambda: False)
    log = StepLog(tmp_path, 1, {})

    log.add({"score": 1}, 1)
    with pytest.raises(InvalidArgumentError):
        log.add({"score": torch.zeros(2)}, 1)
    assert log.write() == 0

    assert not list(tmp_path.iterdir())


def test_logging_draws_no_random_number_and_changes_no_result(tmp_path):
    def train(root, *, log):
        manager = RunManager("exp", root, tensorboard=False, display=False)
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        with manager.run({"lr": 0.1}, network, LOADER):
            for _ in manager.epochs(2):
                for inputs, labels in manager.batches():
                    loss = nn.functional.cross_entropy(network(inputs), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    manager.track_loss(loss, labels)
                    if log:
                        manager.log(step_loss=loss)
        return load_results(root)["loss"].tolist()

    assert train(tmp_path / "with", log=True) == train(tmp_path / "without", log=False)


def test_a_file_of_steps_whose_journal_is_gone_is_in_nobodys_way(manager, tmp_path):
    for number in begin(manager):
        manager.log(score=number)
    (manager.folder / "attempt-1.jsonl").unlink()

    again = RunManager("exp", tmp_path, tensorboard=False, display=False)
    for number in begin(again):
        again.log(score=10 * number)

    assert load_steps(tmp_path)["score"].tolist() == [10, 20, 30]

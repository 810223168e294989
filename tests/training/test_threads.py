import pytest
import torch
from torch import nn

from runmanager import RunBuilder, RunManager, load_runs, run_grid
from runmanager.core.journal import read_attempt, to_line
from runmanager.devices import torch_devices
from runmanager.devices.torch_devices import as_many_threads
from runmanager.errors import RunsWarning


class Train:
    """Trains four epochs, and may be interrupted in the third; remembers the threads of each epoch."""

    def __init__(self, fault=None, *, saves=True, own=None):
        self.fault, self.saves, self.own = fault, saves, own
        self.threads = []

    def __getstate__(self):
        return {}  # a fault is no change of the run

    def __call__(self, run, manager):
        if self.own:
            torch.set_num_threads(self.own)
        self.threads.append(torch.get_num_threads())  # before it has begun
        network = nn.Linear(2, 1)
        with manager.run(run, network):
            for epoch in manager.epochs(4, checkpoint={"network": network} if self.saves else None):
                if self.fault and epoch == 3:
                    raise self.fault
                self.threads.append(torch.get_num_threads())
                manager.track_loss(1.0, 1)


def by_grid(root, train, **options):
    return run_grid(
        {"lr": [0.1]}, train, experiment="exp", root=root, executor="inline", display=False, tensorboard=False,
        **options,
    )  # fmt: skip


def by_manager(root, train):
    manager = RunManager("exp", root, display=False, tensorboard=False)
    for run in manager.remaining(RunBuilder.get_runs({"lr": [0.1]})):
        train(run, manager)


def interrupted(root, train, by=by_grid):
    if by is by_grid:
        by(root, train)
        return
    with pytest.raises(KeyboardInterrupt):
        by(root, train)


def row(root):
    return load_runs(root / "exp").iloc[0]


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Let a machine have two cores; this process computes with one thread, and the tests set other numbers."""
    monkeypatch.setattr(torch_devices, "num_cores", lambda: 2)


@pytest.mark.slow(everywhere=True)
def test_a_resumed_run_keeps_the_threads_of_its_first_attempt_from_its_beginning(tmp_path):
    torch.set_num_threads(2)
    interrupted(tmp_path, Train(KeyboardInterrupt()))
    torch.set_num_threads(1)

    again = Train()
    by_grid(tmp_path, again)

    assert again.threads == [2, 2, 2]
    assert torch.get_num_threads() == 1
    assert (row(tmp_path)["threads"], row(tmp_path)["mixed"]) == (2, False)


def test_a_resumed_run_of_a_bare_loop_keeps_the_threads_of_its_first_attempt(tmp_path):
    torch.set_num_threads(2)
    interrupted(tmp_path, Train(KeyboardInterrupt()), by_manager)
    torch.set_num_threads(1)

    again = Train()
    by_manager(tmp_path, again)

    assert again.threads == [1, 2, 2]
    assert torch.get_num_threads() == 1
    assert (row(tmp_path)["threads"], row(tmp_path)["mixed"]) == (2, False)


@pytest.mark.parametrize("by", [by_grid, by_manager])
def test_a_run_with_more_threads_than_this_machine_has_cores_is_marked_as_mixed(tmp_path, by):
    torch.set_num_threads(3)
    interrupted(tmp_path, Train(KeyboardInterrupt()), by)
    torch.set_num_threads(1)

    again = Train()
    with pytest.warns(RunsWarning, match="began with 3 threads and continues with 1: there are 2 cores"):
        by(tmp_path, again)

    assert again.threads == [1, 1, 1]
    assert (row(tmp_path)["threads"], row(tmp_path)["mixed"]) == (3, True)


@pytest.mark.slow(everywhere=True)
def test_a_run_that_starts_over_gets_the_threads_of_a_new_one(tmp_path):
    torch.set_num_threads(2)
    by_grid(tmp_path, Train(), data="one")
    torch.set_num_threads(1)

    again = Train()
    by_grid(tmp_path, again, data="two")

    assert again.threads == [1] * 5
    assert (row(tmp_path)["threads"], row(tmp_path)["mixed"]) == (1, False)


@pytest.mark.slow(everywhere=True)
def test_a_run_without_a_checkpoint_gets_the_threads_of_a_new_one(tmp_path):
    torch.set_num_threads(2)
    interrupted(tmp_path, Train(KeyboardInterrupt(), saves=False))
    torch.set_num_threads(1)

    again = Train(saves=False)
    by_grid(tmp_path, again)

    assert again.threads == [1] * 5
    assert (row(tmp_path)["threads"], row(tmp_path)["mixed"]) == (1, False)


@pytest.mark.slow(everywhere=True)
def test_a_run_whose_journal_does_not_say_its_threads_is_continued_with_those_of_now(tmp_path):
    torch.set_num_threads(2)
    interrupted(tmp_path, Train(KeyboardInterrupt()))
    torch.set_num_threads(1)
    (journal,) = tmp_path.glob("exp/*/attempt-1.jsonl")
    first, _, rest = journal.read_bytes().partition(b"\n")
    start = {
        name: value for name, value in read_attempt(journal).start.items() if name not in ("crc", "threads")
    }
    assert b'"threads":2' in first
    journal.write_bytes(to_line(start) + rest)

    again = Train()
    by_grid(tmp_path, again)

    assert again.threads == [1, 1, 1]
    assert (row(tmp_path)["threads"], row(tmp_path)["mixed"]) == (1, False)


@pytest.mark.slow(everywhere=True)
def test_a_number_that_train_sets_itself_counts_until_the_run_ends(tmp_path):
    with pytest.warns(RunsWarning, match="the number of threads; they are restored"):
        by_grid(tmp_path, Train(own=2))

    assert torch.get_num_threads() == 1
    assert row(tmp_path)["threads"] == 2


def test_threads_are_given_back_unless_the_run_has_set_others():
    with as_many_threads(2):
        pass
    after = torch.get_num_threads()
    with as_many_threads(2):
        torch.set_num_threads(3)

    assert (after, torch.get_num_threads()) == (1, 3)

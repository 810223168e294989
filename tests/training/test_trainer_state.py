"""A loop that saves its own state continues after `manager.resume_epoch`."""

import math

import pytest

from runmanager import RunManager, SuccessiveHalving, load_results, load_runs, run_grid
from runmanager.core.outcome import Status
from runmanager.errors import LifecycleError

GRID = {"lr": [0.1]}


@pytest.fixture
def start(tmp_path):
    """Start the program once more: a new manager of the same experiment."""
    return lambda: RunManager("exp", root=tmp_path, tensorboard=False, display=False)


def train(run, manager, num_epochs=4, stop=None, every=1, error=KeyboardInterrupt):
    """Train with a state of its own: the sum of the epochs so far, which is the loss."""
    with manager.run(run):
        states = sorted(manager.folder.glob("state-*.txt"), key=lambda path: int(path.stem[6:]))
        if every > 1:  # the last state may be older than the last epoch
            manager.resume_epoch = max((int(path.stem[6:]) for path in states), default=0)
        first = manager.resume_epoch + 1
        total = float((manager.folder / f"state-{first - 1}.txt").read_text()) if first > 1 else 0.0
        for epoch in range(first, num_epochs + 1):
            manager.begin_epoch()
            assert manager.epoch_count == epoch
            total += epoch * getattr(run, "lr", 0.1)
            manager.track_loss(total, 1)
            if epoch == stop:
                raise error
            if epoch % every == 0:
                (manager.folder / f"state-{epoch}.txt").write_text(str(total))
            manager.end_epoch()
            if manager.should_stop:
                break


def execute(root, train, grid=GRID, **options):
    options = {"experiment": "exp", "root": root, "executor": "inline", "display": False, **options}
    return run_grid(grid, train, tensorboard=False, changed="keep", **options)


@pytest.mark.parametrize("every", [1, 2])
def test_an_interrupted_loop_continues_and_has_each_row_once(tmp_path, every):
    execute(tmp_path, lambda run, manager: train(run, manager, every=every), experiment="whole")

    execute(tmp_path, lambda run, manager: train(run, manager, stop=4, every=every))
    before = load_results(tmp_path / "exp")["epoch"].tolist()
    execute(tmp_path, lambda run, manager: train(run, manager, every=every))

    after, whole = (load_results(tmp_path / name) for name in ("exp", "whole"))
    assert before == [1, 2, 3]
    assert after[["epoch", "loss"]].equals(whole[["epoch", "loss"]])
    assert after["run duration"].is_monotonic_increasing


def test_a_loop_over_epochs_continues_there_too(start):
    interrupted(start(), num_epochs=2)
    manager = start()

    with manager.run({"lr": 0.1}):
        assert manager.resume_epoch == 2
        assert [epoch for epoch in manager.epochs(4) if manager.track_loss(epoch, 1) is None] == [3, 4]

    assert manager.results["loss"].tolist() == [1.0, 1.0, 3.0, 4.0]


def test_a_loop_that_does_not_ask_starts_over(start):
    interrupted(start(), num_epochs=2)

    manager = start()
    interrupted(manager, num_epochs=1)

    assert manager.results["epoch"].tolist() == [1]


def test_a_run_whose_epochs_were_all_committed_is_completed_without_one(start):
    interrupted(start(), num_epochs=2)
    manager = start()

    with manager.run({"lr": 0.1}):
        assert manager.resume_epoch == 2

    assert manager.results["epoch"].tolist() == [1, 2]
    assert manager.outcome.status == "completed"


def test_it_is_that_of_the_checkpoint_where_epochs_has_one(start):
    for last in (2, 3):
        manager, seen = start(), []
        with manager.run({"lr": 0.1}):
            for _ in manager.epochs(last, checkpoint={"state": {}}):
                seen.append(manager.resume_epoch)
                manager.track_loss(0.5, 1)
            manager._current.set(Status.INTERRUPTED, "as by Ctrl-C")

    assert seen == [2]


@pytest.mark.slow(everywhere=True)
def test_a_run_that_diverged_is_retried_from_before_that_epoch(tmp_path):
    def diverge(run, manager, at=3):
        with manager.run(run):
            for epoch in range(manager.resume_epoch + 1, 5):
                manager.begin_epoch()
                manager.track_loss(math.nan if epoch == at else 1.0, 1)
                manager.end_epoch()
                if manager.should_stop:
                    break

    first = execute(tmp_path, diverge)
    execute(tmp_path, lambda run, manager: diverge(run, manager, at=0), retry_failed=True)

    assert first.outcomes[0][1].status == "diverged"
    assert load_results(tmp_path / "exp")["loss"].tolist() == [1.0] * 4


def test_other_code_starts_over(tmp_path):
    execute(tmp_path, lambda run, manager: train(run, manager, stop=3))

    run_grid(
        GRID, lambda run, manager: train(run, manager, num_epochs=1), experiment="exp", root=tmp_path,
        executor="inline", display=False, tensorboard=False,
    )  # fmt: skip

    assert load_results(tmp_path / "exp")["epoch"].tolist() == [1]


@pytest.mark.slow(everywhere=True)
def test_loops_that_continue_by_themselves_are_pruned(tmp_path):
    prune = SuccessiveHalving("min:loss", factor=2)

    execute(tmp_path, train, {"lr": [0.1, 0.2, 0.3]}, prune=prune)

    runs = load_runs(tmp_path / "exp")
    assert runs[["status", "epochs"]].values.tolist() == [["completed", 4], ["pruned", 1], ["pruned", 1]]
    assert load_results(tmp_path / "exp").query("run == 1")["epoch"].tolist() == [1, 2, 3, 4]


def test_only_an_epoch_that_is_committed_can_be_continued_after(start):
    interrupted(start(), num_epochs=2)
    manager = start()

    with manager.run({"lr": 0.1}):
        for epoch in (3, -1, 1.5):
            with pytest.raises(LifecycleError, match="a whole number from 0 to 2"):
                manager.resume_epoch = epoch
        manager.resume_epoch = 1
        manager.begin_epoch()
        assert (manager.epoch_count, manager.resume_epoch) == (2, 1)
        with pytest.raises(LifecycleError, match="before the first"):
            manager.resume_epoch = 0
        manager.track_loss(9.0, 1)
        manager.end_epoch()

    assert manager.results["loss"].tolist() == [1.0, 9.0]


def interrupted(manager, num_epochs):
    """Execute epochs of a run, which is then interrupted."""
    with manager.run({"lr": 0.1}):
        for _ in range(num_epochs):
            manager.begin_epoch()
            manager.track_loss(1.0, 1)
            manager.end_epoch()
        manager._current.set(Status.INTERRUPTED, "as by Ctrl-C")

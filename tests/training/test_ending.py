"""How a run will end, and when its loop is told to stop."""

import math

import pytest

from runmanager import RunManager


@pytest.fixture
def manager(tmp_path):
    return RunManager("exp", root=tmp_path, tensorboard=False, display=False)


def own_loop(manager, losses):
    """Train with the hooks alone; return what `should_stop` says after each epoch, in which the loop ends."""
    said = []
    for loss in losses:
        manager.begin_epoch()
        said.append(manager.should_stop)
        manager.track_loss(loss, 1)
        manager.end_epoch()
        said.append(manager.should_stop)
        if manager.should_stop:
            break
    return said


def test_a_loop_of_ones_own_ends_after_the_epoch_in_which_the_loss_diverged(manager):
    assert manager.should_stop is False
    manager.begin_run({"lr": 0.1})

    assert own_loop(manager, [1.0, math.nan, 1.0]) == [False, False, False, True]

    manager.end_run()
    assert (manager.outcome.status, manager.outcome.epochs) == ("diverged", 2)
    assert manager.should_stop is False


def test_it_does_not_stop_a_run_that_becomes_better(manager):
    with manager.run({"lr": 0.1}):
        assert own_loop(manager, [3.0, 2.0]) == [False] * 4


@pytest.mark.parametrize(("stops", "options"), [(True, {"max_seconds": 1e-9}), (False, {})])
def test_after_a_loop_over_epochs_it_says_whether_that_ended_early(manager, stops, options):
    with manager.run({"lr": 0.1}):
        for _ in manager.epochs(2, **options):
            manager.track_loss(1.0, 1)
        assert manager.should_stop is stops

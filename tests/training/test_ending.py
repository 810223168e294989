"""How a run will end, and when its loop is told to stop."""

import math

import pytest

from runmanager import RunManager, load_runs
from runmanager.core.goal import Goal
from runmanager.core.loop_options import EarlyStop, LoopOptions
from runmanager.core.outcome import EpochRecord
from runmanager.errors import CheckpointError, InvalidArgumentError

LOSS = Goal("validation_loss", -1)


def stopped_after(values, goal=LOSS, **options):
    """Return the epoch after which the loop ends, None if it does not, and why."""
    stop = EarlyStop(LoopOptions(**options), goal)
    for epoch, value in enumerate(values, 1):
        record = EpochRecord(epoch, {"validation_loss": value, "run duration": float(epoch)})
        if reason := stop.epoch_ended(record, None):
            return epoch, reason
    return None, None


@pytest.mark.parametrize(
    ("values", "options", "epoch"),
    [
        ([3, 2, 2, 2, 1], {"patience": 2}, 4),
        ([3, 2, 2.5, 1.9, 2, 1.8, 1.8], {"patience": 2}, None),  # each time just in time
        ([3, 2.95, 2.9, 2.85], {"patience": 2, "min_delta": 0.1}, 3),
        ([3, 2.95, 2.85], {"patience": 2, "min_delta": 0.1}, None),  # 0.15 below the best one
        ([1, 1], {"patience": 1}, 2),
        ([math.nan, math.nan, math.nan], {"patience": 2}, 3),
        ([math.nan, 1, 2], {"patience": 2}, None),  # a number is better than none
        ([1, 2, 3], {"patience": 2, "goal": Goal("validation_loss", 1)}, None),
        ([3, 2, 1], {"max_seconds": 2}, 2),
        ([3, 2, 1], {"max_seconds": 4}, None),
        ([1, 2, 3, 4], {"patience": 3, "max_seconds": 2}, 2),
    ],
)
def test_it_ends_after_epochs_without_a_better_value_or_when_its_time_is_over(values, options, epoch):
    assert stopped_after(values, **options)[0] == epoch


def test_the_reason_names_the_best_value_and_where_it_was():
    _, reason = stopped_after([3, 0.44559, 0.6, 0.5], patience=2)

    assert reason == "validation_loss was not better than 0.4456 in epoch 2 for 2 epochs"


def test_there_is_no_column_where_every_loop_came_to_its_end(tmp_path):
    manager = RunManager("e", tmp_path, tensorboard=False, display=False, goal="min:val_loss")

    with manager.run({"lr": 0.1}):
        for epoch in manager.epochs(5, patience=2):
            manager.track(val_loss=-epoch)

    assert load_runs(tmp_path)["epochs"].tolist() == [5]
    assert "stopped early" not in load_runs(tmp_path)


def test_without_keep_the_goal_is_watched(tmp_path):
    manager = RunManager("e", tmp_path, tensorboard=False, display=False, goal="max:reward")

    with manager.run({"lr": 0.1}):
        seen = []
        for epoch in manager.epochs(9, patience=2):
            seen.append(epoch)
            manager.track(reward=-epoch)

    assert seen == [1, 2, 3]
    assert load_runs(tmp_path)["stopped early"][0] == "reward was not better than -1 in epoch 1 for 2 epochs"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 0}, "patience must be a whole number, 1 or more, got 0"),
        ({"patience": 2.5}, "patience must be a whole number, 1 or more, got 2.5"),
        ({"patience": 3}, "patience=3 without a metric to watch: write keep='best:validation_loss', or give"),
        ({"patience": 3, "keep": "last"}, "patience=3 without a metric to watch: write"),
        ({"patience": 3, "min_delta": -1}, "min_delta must be a number, 0 or more, got -1"),
        ({"patience": 3, "min_delta": math.nan}, "min_delta must be a number, 0 or more, got nan"),
        ({"max_seconds": 0}, "max_seconds must be a number of seconds above 0, got 0"),
        ({"max_seconds": "1h"}, "max_seconds must be a number of seconds above 0, got '1h'"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_before_the_first_epoch(tmp_path, options, message):
    manager = RunManager("e", tmp_path, tensorboard=False, display=False)

    with pytest.raises(InvalidArgumentError) as raised, manager.run({"lr": 0.1}):
        manager.epochs(3, **options)

    assert message in str(raised.value)


def test_an_epoch_without_the_metric_is_named(tmp_path):
    manager = RunManager("e", tmp_path, tensorboard=False, display=False, goal="val_loss")

    with manager.run({"lr": 0.1}):
        epochs = manager.epochs(3, patience=2)
        assert next(epochs) == 1
        manager.track(reward=1)
        with pytest.raises(CheckpointError) as raised:
            next(epochs)

    message = (
        "patience= watches 'val_loss', which epoch 1 does not have; it has: epoch duration, run duration, "
    )
    assert str(raised.value) == f"{message}reward"


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


def test_it_does_not_stop_a_run_that_becomes_better(manager):
    with manager.run({"lr": 0.1}):
        assert own_loop(manager, [3.0, 2.0]) == [False] * 4


@pytest.mark.parametrize(("stops", "options"), [(True, {"max_seconds": 1e-9}), (False, {})])
def test_after_a_loop_over_epochs_it_says_whether_that_ended_early(manager, stops, options):
    with manager.run({"lr": 0.1}):
        for _ in manager.epochs(2, **options):
            manager.track_loss(1.0, 1)
        assert manager.should_stop is stops

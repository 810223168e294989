import math
from typing import Any

import pytest

from runmanager import RunManager, load_results, run_grid
from runmanager.board.goal_scalars import GoalScalars
from runmanager.board.rebuild import rebuild
from runmanager.board.tags import OF_GOAL
from runmanager.goal import Goal
from runmanager.outcome import EpochRecord
from runmanager.storage.folders import Experiment
from tests.board.reading import LOADER, folder_scalars, make_network, scalars_in, texts_in, train

NAN = math.nan


def after(goal: Goal | None, *epochs: dict[str, float]) -> list[dict[str, float]]:
    """Follow epochs of 2 s each, and return what is written after each, without their own duration."""
    scalars = GoalScalars(goal)
    written = []
    for number, metrics in enumerate(epochs, 1):
        times = {"epoch duration": 2.0, "run duration": 2.0 * number}
        written.append(scalars.after(EpochRecord(number, {**times, **metrics}, {})))
    return [{k: v for k, v in values.items() if k != "Goal/epoch_s"} for values in written]


def goal_of(best: float, epoch: int, last: float) -> dict[str, float]:
    return {
        "Goal/best": best, "Goal/best_epoch": epoch, "Goal/best_after_s": 2.0 * epoch, "Goal/last": last,
    }  # fmt: skip


def test_the_best_value_is_kept_with_its_epoch_and_time():
    assert after(Goal("f1", 1), {"f1": 0.25}, {"f1": 0.75}, {"f1": 0.5}) == [
        goal_of(0.25, 1, 0.25), goal_of(0.75, 2, 0.75), goal_of(0.75, 2, 0.5),
    ]  # fmt: skip


def test_the_least_value_is_the_best_one_of_a_goal_that_says_so():
    assert after(Goal("cost", -1), {"cost": 3}, {"cost": -1}, {"cost": 2})[-1] == goal_of(-1, 2, 2)


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf, 1e39])
def test_an_epoch_without_a_number_changes_nothing(bad):
    assert after(Goal("f1", 1), {"f1": bad}, {"f1": 0.5}, {"f1": bad}) == [
        {}, goal_of(0.5, 2, 0.5), goal_of(0.5, 2, 0.5),
    ]  # fmt: skip


def test_a_goal_that_is_evaluated_now_and_then_keeps_its_last_value():
    assert after(Goal("f1", 1), {}, {"f1": 0.5}, {})[-1] == goal_of(0.5, 2, 0.5)


def test_without_a_goal_the_metric_decides_that_its_name_tells():
    assert after(None, {"loss": 2, "accuracy": 0.1}, {"loss": 1, "accuracy": 0.3, "val_accuracy": 0.2}) == [
        goal_of(0.1, 1, 0.1), goal_of(0.2, 2, 0.2),
    ]  # fmt: skip


def test_metrics_of_which_none_decides_give_nothing():
    assert after(None, {"entropy": 1.0}) == [{}]


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ({"goal": "max:reward"}, "reward"),
        ({"goal": "validation_f1"}, "validation_f1"),
        ({"goal": "test_accuracy"}, "test_accuracy"),
        ({}, "test_accuracy"),
    ],
)
def test_a_grid_writes_its_goal_whatever_it_is_called(tmp_path, options, column):
    def train_and_track(run: Any, manager: RunManager) -> None:
        def track(epoch: int) -> None:
            manager.track(reward=run.lr - epoch, validation_f1=1 - abs(epoch - 2) / 4)

        train(manager, run, 3, at_end=track)

    run_grid(
        {"lr": [1.0, 2.0]},
        train_and_track,
        experiment="e",
        root=tmp_path,
        executor="inline",
        display=False,
        **options,
    )

    table = load_results(tmp_path / "e")
    for number, folder in enumerate(sorted((tmp_path / "e").glob("0*")), 1):
        values = table.loc[table["run"] == number, column]
        scalars = scalars_in(folder)
        assert {name for name in scalars if name.startswith("Goal/")} == set(OF_GOAL)
        assert [value for _, value in scalars["Goal/last"]] == pytest.approx(values.tolist())
        assert scalars["Goal/best"][-1][1] == pytest.approx(values.max())
        text = texts_in(folder)["run/config"]
        assert ("| goal | " in text) is bool(options)


def test_the_metric_of_the_kept_weights_decides_where_no_goal_is_given(tmp_path):
    manager = RunManager("e", tmp_path, display=False)
    network = make_network()
    with manager.run({"lr": 0.1}, network, LOADER):
        for epoch in manager.epochs(3, checkpoint={"network": network}, keep="best:f1"):
            manager.track_loss(0.5, 1)
            manager.track(f1=[0.5, 0.75, 0.25][epoch - 1], test_accuracy=epoch / 4)

    assert [value for _, value in scalars_in(tmp_path)["Goal/best"]] == [0.5, 0.75, 0.75]


def test_a_loop_follows_the_goal_of_its_experiment(tmp_path):
    def execute(params: dict[str, float], **options: Any) -> list[float]:
        manager = RunManager("e", tmp_path, display=False, **options)
        with manager.run(params):
            for epoch in manager.epochs(2):
                manager.track_loss(0.5, 1)
                manager.track(reward=epoch)
        folder = Experiment(tmp_path / "e").find(params)
        assert folder
        return [value for _, value in scalars_in(folder.path)["Goal/best"]]

    assert execute({"lr": 0.1}, goal="min:reward") == [1, 1]
    assert execute({"lr": 0.2}) == [1, 1]  # another process, which does not repeat it


@pytest.mark.parametrize("how", ["resumed", "rebuilt", "lost"])
def test_a_run_that_is_written_again_has_the_same_scalars(tmp_path, how):
    values = [0.25, 0.75, 0.5]

    def execute(until: int) -> None:
        manager = RunManager("e", tmp_path, display=False, goal="max:reward")
        with manager.run({"lr": 0.1}):
            for epoch in manager.epochs(3, checkpoint={}):
                if epoch > until:
                    raise KeyboardInterrupt
                manager.track_loss(0.5, 1)
                manager.track(reward=values[epoch - 1])

    if how == "resumed":
        with pytest.raises(KeyboardInterrupt):
            execute(2)
    execute(3)
    (folder,) = (tmp_path / "e").glob("001*")
    if how == "lost":
        for path in folder.glob("*tfevents*"):
            path.unlink()
    if how != "resumed":
        rebuild(tmp_path / "e")

    scalars = folder_scalars(folder)
    assert scalars["Goal/best"] == [(1, 0.25), (2, 0.75), (3, 0.75)]
    assert scalars["Goal/best_epoch"] == [(1, 1), (2, 2), (3, 2)]
    assert scalars["Goal/last"] == [(1, 0.25), (2, 0.75), (3, 0.5)]

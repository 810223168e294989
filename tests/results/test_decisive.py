import math
from pathlib import Path

import pandas as pd
import pytest
from torch import nn

from runmanager import (
    RunManager,
    best,
    compare,
    effects,
    export,
    load_results,
    load_runs,
    load_table,
    over_repeats,
    show,
)  # fmt: skip
from runmanager.errors import GridError
from runmanager.goal import Goal
from runmanager.outcome import Outcome, Status
from runmanager.results.conclusion import conclude
from runmanager.results.ranking import own_goals, repeats_of
from runmanager.results.tables import HYPERPARAMETERS
from runmanager.storage.design import Design
from runmanager.storage.folders import Experiment
from tests.results.run_tables import record, write_run

NOTHING = Design()


def experiment(path, rewards, design=NOTHING, **details):
    """Write an experiment in which run i has these rewards, epoch by epoch."""
    for number, values in enumerate(rewards):
        records = [record(epoch, reward=value, policy_loss=-value) for epoch, value in enumerate(values, 1)]
        write_run(path, {"lr": number, "device": "cpu"}, records, **details)
    Experiment(path).decide(design)
    return path


def test_every_reader_follows_the_goal_that_is_written_with_the_experiment(tmp_path):
    path = experiment(tmp_path / "e", [[1, 5], [2, 9], [3, 7]], Design(Goal("reward", 1)))

    runs = load_runs(path)

    assert best(runs)["run"].tolist() == [2, 3, 1]
    assert best(load_results(path)).iloc[0][["run", "reward"]].tolist() == [2, 9]
    assert show(runs).caption.startswith("best reward first")
    assert effects(runs)["mean"].tolist() == [5, 9, 7]
    assert compare(runs, "lr").attrs["compared"] == "reward"
    assert list(over_repeats(runs, "lr")) == [
        *(f"reward {name}" for name in ("n", "mean", "std", "low", "high")), "runs",
    ]  # fmt: skip


def test_a_part_of_the_loss_never_outranks_a_goal(tmp_path):
    path = experiment(tmp_path / "e", [[1], [2]], Design(Goal("reward", -1)))

    assert best(load_runs(path))["run"].tolist() == [1, 2]
    assert own_goals(load_runs(path)) == [Goal("reward", -1)]


def test_a_goal_given_by_hand_comes_first(tmp_path):
    runs = load_runs(experiment(tmp_path / "e", [[1], [2]], Design(Goal("reward", -1))))

    assert best(runs, "loss")["run"].tolist() == [1, 2]
    assert best(runs, "max:reward")["run"].tolist() == [2, 1]


def test_the_direction_of_the_goal_is_known_when_its_column_is_named(tmp_path):
    path = tmp_path / "e"
    for lr, value in enumerate([0.5, 0.25]):
        write_run(path, {"lr": lr}, [record(1, kl=value)])
    Experiment(path).decide(Design(Goal("kl", -1)))

    assert best(load_runs(path), "kl")["kl"].tolist() == [0.25, 0.5]


def test_where_the_best_weights_are_kept_the_goal_counts_at_their_epoch(tmp_path):
    path = experiment(tmp_path / "e", [[8, 1], [3, 4]], keep="best:reward")
    last = experiment(tmp_path / "last", [[8, 1], [3, 4]], keep="last")

    runs = load_runs(path)

    assert runs["kept reward"].tolist() == [8, 4]
    assert runs["reward"].tolist() == [1, 4]
    assert best(runs)["run"].tolist() == [1, 2]
    assert "kept reward" not in load_runs(last)
    assert best(load_runs(last), "reward")["run"].tolist() == [2, 1]


def test_a_goal_that_is_a_result_of_the_whole_run_is_not_of_an_epoch_whose_weights_are_kept(tmp_path):
    manager = RunManager("e", tmp_path, tensorboard=False, display=False, goal="max:final_f1")
    for lr in (1, 2):
        with manager.run({"lr": lr}, nn.Linear(1, 1)):
            for _ in manager.epochs(1, keep="best:loss"):
                manager.track_loss(1, 1)
            manager.summary(final_f1=lr / 10)

    runs = load_runs(tmp_path)

    assert "kept final_f1" not in runs
    assert best(runs)["final_f1"].tolist() == [0.2, 0.1]
    assert conclude(runs, tmp_path).best.text == "Best: run 2 (lr=2), final_f1 0.2"


def test_the_epoch_is_that_of_the_weights_whatever_the_goal_is(tmp_path):
    path = tmp_path / "e"
    records = [record(1, loss=0.5, f1=0.1), record(2, loss=0.25, f1=0.2), record(3, loss=math.nan, f1=0.9)]
    write_run(path, {"lr": 1}, records, Outcome(Status.DIVERGED, "loss became nan"), keep="best:loss")
    write_run(path, {"lr": 2}, [record(1, loss=0.5, f1=0.7), record(2, loss=0.5, f1=0.8)], keep="min:loss")
    write_run(path, {"lr": 3}, [record(1, loss=math.nan, f1=0.7)], keep="min:loss")
    write_run(path, {"lr": 4}, [record(1, f1=0.3), record(2, f1=0.6)])
    Experiment(path).decide(Design(Goal("f1", 1)))

    runs = load_runs(path)

    # the second of equal losses is not kept; an epoch that diverged is not either
    assert runs["kept f1"].tolist()[:2] == [0.2, 0.7]
    assert math.isnan(runs["kept f1"][2])
    assert runs["kept f1"][3] == 0.6
    assert best(runs)["run"].tolist() == [2, 4, 1, 3]


def test_experiments_with_one_goal_are_ranked_together_and_different_goals_are_asked_about(tmp_path):
    design = Design(Goal("reward", 1))
    experiment(tmp_path / "a", [[1], [4]], design, keep="best:reward")
    experiment(tmp_path / "b", [[3], [2]], design)
    runs = load_runs(tmp_path)

    assert best(runs)[["experiment", "run"]].to_numpy().tolist() == [["a", 2], ["b", 1], ["b", 2], ["a", 1]]

    Experiment(tmp_path / "b").decide(Design(Goal("loss", -1)))
    runs = load_runs(tmp_path)
    with pytest.raises(GridError, match=r"different goals \(a has max:reward, b has min:loss\): give one"):
        best(runs)
    assert best(runs[runs["experiment"] == "b"], n=1)["loss"].tolist() == [0.5]
    assert best(runs, "reward", n=1)["reward"].tolist() == [4]


def test_a_goal_that_no_run_tracks_is_named_with_the_metric_that_was_meant(tmp_path):
    path = experiment(tmp_path / "e", [[1], [2]], Design(Goal("rewards", 1)))

    with pytest.raises(GridError, match=r"goal is 'max:rewards', but no run has .* did you mean 'reward'\?"):
        show(load_runs(path))


def test_before_the_first_epoch_nothing_is_wrong_with_a_goal(tmp_path):
    Experiment(tmp_path / "e").plan([{"lr": 1}, {"lr": 2}], {}, Design(Goal("reward", 1), ("lr",)))

    assert (
        "2 pending" in str(load_runs(tmp_path / "e")["status"].value_counts()) or len(load_runs(tmp_path)) == 2
    )
    assert "first" not in show(load_runs(tmp_path / "e")).caption


def test_repeat_axes_of_a_table_are_those_of_its_experiments_unless_given(tmp_path):
    runs = load_runs(experiment(tmp_path / "e", [[1], [2]], Design(repeats=("lr", "fold"))))

    assert repeats_of(runs) == (["lr"], False)
    assert repeats_of(runs, ()) == ([], False)
    assert repeats_of(runs, "device") == (["device"], False)


def test_an_exported_table_still_loads(tmp_path):
    runs = load_runs(experiment(tmp_path / "e", [[1], [2]], Design(Goal("reward", 1)), keep="best:reward"))

    for suffix in ("csv", "json"):
        export(runs, tmp_path / f"runs.{suffix}")
        assert load_table(tmp_path / f"runs.{suffix}").equals(runs)


def test_a_start_that_was_stopped_before_its_first_run_says_so():
    runs = pd.DataFrame({"run": [1, 2], "lr": [1, 2], "status": ["pending", "pending"], "epochs": 0})
    runs.attrs[HYPERPARAMETERS] = ["lr"]

    assert conclude(runs, Path("e"), is_over=False).facts == [("time", "no run was begun")]
    assert conclude(runs, Path("e"), is_over=True).facts == [("time", "nothing was left to execute")]

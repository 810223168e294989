import math
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
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
    show,
)  # fmt: skip
from runmanager.answers.conclusion import conclude
from runmanager.answers.ranking import own_goals, repeats_of
from runmanager.core.experiment import Design, Experiment
from runmanager.core.goal import Goal
from runmanager.core.outcome import Outcome, Status
from runmanager.errors import GridError
from runmanager.tables.columns import HYPERPARAMETERS
from tests.tables.run_tables import METRIC, record, table_of, write_run

FUNCTIONS = [best, compare, effects, show, partial(export, path="runs.csv")]


@pytest.mark.slow(everywhere=True)
@given(st.lists(st.tuples(st.sampled_from([0.1, 0.01]), st.integers(0, 4), METRIC), min_size=1, max_size=30))
def test_averages_over_repeats_agree_with_scipy(rows):
    runs = table_of(*(({"lr": lr, "seed": seed, "device": "cpu"}, value) for lr, seed, value in rows))

    table = best(runs, "min:epoch duration", repeats="seed")

    parts = [f"epoch duration {name}" for name in ("n", "mean", "std", "low", "high")]
    for row in table[["lr", *parts]].itertuples(index=False, name=None):
        lr, n, mean, std, low, high = row
        of_lr = pd.DataFrame(rows, columns=["lr", "seed", "value"])
        of_lr = of_lr[(of_lr["lr"] == lr) & np.isfinite(of_lr["value"])]
        values = of_lr.groupby("seed")["value"].mean().tolist()  # a repeat counts once
        assert n == len(values)
        if n:
            assert mean == pytest.approx(np.mean(values), abs=1e-6)
        if n > 1:
            assert std == pytest.approx(np.std(values, ddof=1), abs=1e-6)
        if n > 1 and std > 1e-6:
            interval = stats.t.interval(0.95, n - 1, loc=mean, scale=stats.sem(values))
            assert (low, high) == pytest.approx(interval, rel=1e-6, abs=1e-6)
        if n < 2:
            assert all(map(math.isnan, (std, low, high)))


def test_statistics_count_completed_runs_only():
    rows = [({"lr": lr, "device": device}, 2.0) for lr in (0.1, 0.2) for device in ("cuda", "cpu")]
    runs = table_of(*rows).assign(status=["completed", "completed", "completed", "interrupted"], seed=0)
    runs.attrs[HYPERPARAMETERS] = ["lr", "device", "seed"]

    pairs, explained = compare(runs), effects(runs, "epoch duration")
    seeds = best(runs, "min:epoch duration", repeats="seed")

    assert pairs["lr"].tolist() == [0.1]
    assert seeds["epoch duration n"].tolist() == [1, 1, 1, 0]
    assert explained.set_index(["axis", "value"])["n"].loc["device"].to_dict() == {"cuda": 2, "cpu": 1}


@pytest.mark.parametrize("helper", [compare, lambda runs, _: effects(runs)])
def test_epochs_are_not_taken_for_runs(helper):
    epochs = pd.DataFrame(
        {"run": [1, 1, 2], "epoch": [1, 2, 1], "lr": [0.1, 0.1, 0.2], "loss": [3.0, 2.0, 1.0]}
    )
    epochs = epochs.assign(**{"epoch duration": 1.0})
    epochs.attrs[HYPERPARAMETERS] = ["lr"]

    with pytest.raises(GridError, match=r"these rows are epochs.*results.groupby\('run'\).tail\(1\)"):
        helper(epochs, "lr")

    assert len(helper(epochs.groupby("run").tail(1), "lr"))


@given(st.lists(METRIC | st.sampled_from([1.0, 2.0]), min_size=1), st.booleans(), st.none() | st.integers(0, 5))
def test_the_best_runs_are_those_that_pandas_sorts_first(values, largest, n):
    runs = table_of(*(({"lr": number}, value) for number, value in enumerate(values)))

    found = best(runs, f"{'max' if largest else 'min'}:epoch duration", n)

    finite = runs["epoch duration"].replace(math.inf, math.nan)
    sign = -1 if largest else 1
    reference = (sign * finite).sort_values(kind="stable").index[:n]
    assert found.index.tolist() == reference.tolist()
    assert (list(found), found.attrs) == (list(runs), runs.attrs)


@pytest.mark.parametrize(
    ("by", "first"),
    [("accuracy", 2), ("best test_accuracy", 2), ("loss", 0), ("run duration", 0), ("peak memory", 0)],
)
def test_which_values_are_good_follows_from_the_name(by, first):
    runs = pd.DataFrame({by: [1.0, 2.0, 3.0]})

    assert best(runs, by).index[0] == first


@pytest.mark.parametrize(
    ("columns", "metric"),
    [
        ({"loss": 1, "accuracy": 1, "test_loss": 1, "test_accuracy": 1}, "test_accuracy"),
        ({"loss": 1, "accuracy": 1, "test_accuracy": 1, "validation_accuracy": 1}, "validation_accuracy"),
        ({"loss": 1, "accuracy": 1, "held_out_accuracy": 1}, "held_out_accuracy"),
        ({"loss": 1, "accuracy": 1, "best accuracy": 1, "test_loss": 1}, "accuracy"),
        ({"loss": 1, "accuracy": math.nan, "test_loss": 1}, "test_loss"),
        ({"loss": 1, "accuracy": math.nan}, "loss"),
        ({"loss": math.nan, "accuracy": math.nan}, None),
        ({"f9": 1, "error": 1, "epoch duration": 1}, None),
        ({"f1": 1}, "f1"),
        ({"loss": 1, "f1": 1}, "loss"),
        ({"policy_loss": 1, "value_loss": 1, "loss": 1, "reward": 1}, "reward"),
        ({"policy_loss": 1, "reward": 1, "eval_reward": 1}, "eval_reward"),
    ],
)
def test_the_main_metric_is_the_one_that_tells_most(columns, metric):
    runs = pd.DataFrame({name: [float(value)] for name, value in columns.items()})

    assert [goal.metric for goal in own_goals(runs)] == ([metric] if metric else [])


def test_without_accuracy_and_loss_the_metric_has_to_be_named():
    runs = pd.DataFrame({"f9": [0.1, 0.3], "loss": [math.nan] * 2})

    with pytest.raises(
        GridError,
        match=r"no run has an accuracy or a loss: name the metric, as goal='max:f1' \(--goal max:f1\)",
    ):
        best(runs)

    assert best(runs, "max:f9")["f9"].tolist() == [0.3, 0.1]
    assert best(runs, "min:f9")["f9"].tolist() == [0.1, 0.3]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"goal": "f2"}, "these runs have no column 'f2'; did you mean 'f9'?"),
        ({"goal": "max:status"}, "column 'status' does not hold numbers: give a metric, as 'loss'"),
        (
            {"goal": "f9"},
            "whether large values of 'f9' are good is not known: write goal='max:f9' or goal='min:f9'",
        ),
        ({"goal": 5}, "goal must be 'max:<metric>', 'min:<metric>', or a metric as 'test_accuracy', got 5"),
        ({"goal": []}, "a goal is a metric, as 'max:f1', got []"),
        ({"n": -1}, "n must be a whole number, 0 or more, got -1"),
        ({"n": 1.5}, "n must be a whole number, 0 or more, got 1.5"),
    ],
)
def test_what_cannot_be_sorted_is_refused(arguments, problem):
    runs = pd.DataFrame({"loss": [1.0], "f9": [1.0], "status": ["completed"]})

    with pytest.raises(GridError) as caught:
        best(runs, **arguments)

    assert caught.value.problems == [problem]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("wrong", ["runs", [1], None])
def test_what_is_no_table_is_refused(function, wrong):
    with pytest.raises(GridError, match=re.escape(f"as load_runs('runs') gives, got {wrong!r}")):
        function(wrong)


def test_a_hyperparameter_is_never_taken_for_a_metric():
    runs = table_of(
        ({"target_accuracy": 0.9, "aux_loss": "none", "loss": 0.5}, 1.0),
        ({"target_accuracy": 0.95, "aux_loss": "mse", "loss": 0.25}, 1.0),
    )
    runs.attrs[HYPERPARAMETERS] = ["target_accuracy", "aux_loss"]

    assert best(runs)["loss"].tolist() == [0.25, 0.5]


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
    assert compare(runs, "lr").sentence.startswith("reward of runs")


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
    assert conclude(runs, tmp_path).best.text == "Run 2 (lr=2) is best: final_f1 0.2"


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

"""`prune=`: the asynchronous rule, Optuna's pruners, TrialPruned (docs/grids.md)."""

import math
import tempfile
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runmanager import (
    Decide,
    GridError,
    InvalidArgumentError,
    RunManager,
    SuccessiveHalving,
    load_runs,
    run_grid,
)
from tests.border.experiments import QUIET, Scored, execute
from tests.border.reading import as_killed, run_folder
from tests.border.screens import terminal
from tests.border.work import statuses

NINE = {"lr": [float(10**-e) for e in range(1, 10)]}


def loss(run):
    return {"loss": run.lr}


def test_the_rule_uses_the_goal_and_a_loop_without_epochs_asks_should_stop(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in range(9):
                manager.begin_epoch()
                manager.track(score=run.lr)
                manager.end_epoch()
                if manager.should_stop:
                    break

    runs = nine(tmp_path, train, {"lr": [0.3, 0.1, 0.2]}, SuccessiveHalving(), goal="max:score").runs

    assert runs["status"].tolist() == ["completed", "pruned", "pruned"]


def test_trial_pruned_in_train_ends_the_run_as_pruned_until_it_is_retried(tmp_path):
    train = Scored(pruned)

    first = execute(tmp_path, {"lr": [0.1, 0.2]}, train)
    execute(tmp_path, {"lr": [0.1, 0.2]}, train)
    execute(tmp_path, {"lr": [0.1, 0.2]}, train, retry_failed=True)

    assert (first.runs["status"].tolist(), first.exit_code) == (["completed", "pruned"], 0)
    assert [run.lr for run in train.executed] == [0.1, 0.2, 0.2]


def pruned(run):
    if run.lr == 0.2:
        raise optuna.TrialPruned
    return {"loss": run.lr}


class TrialPruned(Exception):  # noqa: N818 - as Optuna calls it
    """Of another library."""


def pruned_somewhere(run, manager):
    if run.where == "before":
        raise optuna.TrialPruned
    with manager.run(run, None, [torch.ones(2, 1)] * 3):
        for epoch in range(1, 5):
            manager.begin_epoch()
            for batch in manager.batches():
                manager.track_loss(0.5, batch)
                if (run.where, epoch) == ("batches", 3):
                    raise optuna.TrialPruned
            if (run.where, epoch) == ("epoch", 3):
                raise TrialPruned
            manager.end_epoch()
            if (run.where, epoch) == ("after", 3):
                raise optuna.TrialPruned("too slow")


def test_a_pruned_run_keeps_its_epochs_wherever_it_was_pruned_and_only_by_optunas_exception(tmp_path):
    grid = {"where": ["before", "batches", "epoch", "after", "nowhere"]}

    runs = run_grid(grid, pruned_somewhere, experiment="e", root=tmp_path, on_error="continue", **QUIET).runs

    assert runs["status"].tolist() == ["pruned", "pruned", "failed", "pruned", "completed"]
    assert runs["epochs"].tolist() == [0, 2, 2, 3, 4]
    assert "TrialPruned: too slow" in runs["error"][3]
    assert not runs["error"].str.contains("epoch 1").any()
    assert [path.parent.name for path in tmp_path.rglob("error.log")] == ["003-where=epoch"]


def test_a_bare_manager_records_a_pruned_trial_and_passes_it_on_to_the_study(tmp_path):
    def objective(trial):
        manager = RunManager("e", tmp_path, tensorboard=False, display=False)
        with manager.run({"lr": trial.suggest_float("lr", 0, 1)}):
            raise optuna.TrialPruned

    study = optuna.create_study()
    study.optimize(objective, n_trials=1)

    assert study.trials[0].state == optuna.trial.TrialState.PRUNED
    assert load_runs(tmp_path)["status"].tolist() == ["pruned"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prune": SuccessiveHalving("loss"), "decide": Decide(), "repeats": "seed"}, "decide"),
        ({"prune": "median"}, "'median'"),
        ({"prune": SuccessiveHalving}, "got <class"),
        ({"prune": optuna.pruners.MedianPruner()}, r"run_grid\(goal="),
    ],
)
def test_what_cannot_be_pruned_is_refused(tmp_path, options, named):
    with pytest.raises(GridError, match=named):
        execute(tmp_path, NINE, loss, **options)

    assert list(tmp_path.iterdir()) == []


# The asynchronous rule, run by run


class Falling(Scored):
    """Tracks for nine epochs a loss that falls to the lr; the least lr is the best run.

    Args:
        faults: lr -> the epoch, and what is raised in it, once.
        nan: lr -> the epoch from which on its loss is NaN.
        options: What `manager.epochs` gets beside the number.
    """

    def __init__(self, faults=None, nan=None, **options):
        super().__init__(loss)
        self.faults, self.nan, self.options = faults or {}, nan or {}, options or {"checkpoint": {}}

    def __call__(self, run, manager):
        with manager.run(run):
            for epoch in manager.epochs(9, **self.options):
                self.executed.append((run.lr, epoch))
                if epoch == self.faults.get(run.lr, (0, None))[0]:
                    raise self.faults.pop(run.lr)[1]
                manager.track(score=math.nan if epoch >= self.nan.get(run.lr, 99) else curve(run.lr, epoch))


def curve(lr, epoch):
    """Return the score of a run: it rises again in the end for every third."""
    return lr + 1 / epoch + (0.3 * epoch if lr % 3 == 0 else 0)


MIXED = {"lr": [3, 1, 2, 8, 4, 5, 0, 7, 6]}
THIRD = SuccessiveHalving("min:score", factor=3)
MEDIAN = optuna.pruners.MedianPruner(n_startup_trials=2)
STOPPED = [9, 9, 1, 1, 1, 1, 9, 1, 1]  # 2 is behind 1 of 3 at the first rung, and so on


def nine(tmp_path, train, grid=MIXED, prune=THIRD, **options):
    return execute(tmp_path, grid, train, prune=prune, **options)


def told(tmp_path, rule, values):
    """Return what each run is told that comes to the first rung with these values, one after the other."""
    grid = {("n", "value"): [*enumerate(values)]}
    runs = execute(tmp_path, grid, lambda run: {"score": run.value}, epochs=2, prune=rule).runs
    return [error.partition(": ")[2] for error in runs["error"]]


def test_a_run_whose_metric_is_no_number_is_stopped_at_its_rung_and_compared_with_no_other(tmp_path):
    rule = SuccessiveHalving("max:score", factor=2)

    assert told(tmp_path, rule, [math.nan, 1, -math.inf, math.inf]) == [
        "score is nan", "", "score is -inf", "score is inf"
    ]  # fmt: skip


@pytest.mark.slow(everywhere=True)
@given(st.integers(2, 5), st.lists(st.floats(-9, 9), min_size=1, max_size=9), st.sampled_from(["min", "max"]))
@settings(max_examples=5)
def test_a_run_goes_on_if_fewer_are_ahead_than_go_on_of_those_so_far(factor, values, which):
    with tempfile.TemporaryDirectory() as folder:
        said = told(Path(folder), SuccessiveHalving(f"{which}:score", factor=factor), values)

    for number, value in enumerate(values):
        ahead = sum(other >= value if which == "max" else other <= value for other in values[:number])
        is_behind = ahead >= max((number + 1) // factor, 1)
        assert said[number] == (f"behind {ahead} of {number + 1} runs" if is_behind else "")


def test_rungs_are_powers_of_the_factor_and_between_them_nothing_is_decided(tmp_path):
    """Each run is behind from a later epoch on; it ends at the next rung."""
    behind = {2: 1, 3: 2, 4: 3, 5: 6, 6: 7}  # lr -> epoch

    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(9):
                manager.track(score=run.lr if epoch >= behind.get(run.lr, 0) else -run.lr)

    rule = SuccessiveHalving("min:score", factor=3, min_epochs=2)
    runs = run_grid({"lr": [1, 2, 3, 4, 5, 6]}, train, experiment="e", root=tmp_path, prune=rule, **QUIET).runs

    assert runs["epochs"].tolist() == [9, 2, 2, 6, 6, 9]


@pytest.mark.parametrize("train", [Falling(), Falling(keep=None)], ids=["", "without a checkpoint"])
def test_runs_are_stopped_as_they_come_and_stay_so_until_another_rule_continues_them(tmp_path, train):
    outcome = nine(tmp_path, train)
    number = len(train.executed)
    again = nine(tmp_path, train)

    assert (outcome.exit_code, outcome.runs["epochs"].tolist()) == (0, STOPPED)
    assert statuses(again) == statuses(outcome)
    assert len(train.executed) == number == sum(STOPPED)
    assert outcome.runs["error"][2] == "after epoch 1 of 9: behind 1 of 3 runs"
    milder = nine(tmp_path, train, prune=SuccessiveHalving("min:score", factor=2))
    assert {lr for lr, _ in train.executed[number:]} <= {1, 2}
    assert milder.runs["epochs"].sum() > number
    assert statuses(nine(tmp_path, train, prune=None)) == [("completed", 9)] * 9


@pytest.mark.parametrize("epoch", [1, 4])
def test_a_grid_that_is_interrupted_goes_on_where_it_was(tmp_path, epoch):
    train = Falling({0: (epoch, KeyboardInterrupt())})
    assert nine(tmp_path, train).exit_code == 130
    number = len(train.executed)

    outcome = nine(tmp_path, train)

    assert outcome.runs["epochs"].tolist() == STOPPED
    assert train.executed[number:] == [*((0, each) for each in range(epoch, 10)), (7, 1), (6, 1)]


@pytest.mark.parametrize(("prune", "num_lost"), [(THIRD, 1), (MEDIAN, 0)], ids=["rule", "optuna"])
def test_a_run_that_was_killed_before_its_answer_came_is_judged_when_it_is_resumed(tmp_path, prune, num_lost):
    train = Falling()
    expected = statuses(nine(tmp_path, train, prune=prune, goal="min:score"))
    assert expected[3] == ("pruned", 1)
    as_killed(run_folder(tmp_path / "e", 4), num_lost)
    assert load_runs(tmp_path)["status"][3] == "interrupted"
    num_executed = len(train.executed)

    assert statuses(nine(tmp_path, train, prune=prune, goal="min:score")) == expected
    assert len(train.executed) == num_executed


def test_numbers_of_before_count_unless_code_or_data_have_changed(tmp_path):
    train = Falling()
    nine(tmp_path, train, {"lr": [1, 2]}, prune=None)
    compared = nine(tmp_path, train, {"lr": [1, 2, 4, 5]})
    nine(tmp_path, train, {"lr": [1]}, name="other", data="then")
    changed = nine(tmp_path, train, {"lr": [4, 1]}, name="other", data="now")

    assert statuses(compared) == [("completed", 9)] * 2 + [("pruned", 1)] * 2
    assert statuses(changed) == [("completed", 9)] * 2


@pytest.mark.parametrize("executor", ["inline", pytest.param("lanes", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "prune", [SuccessiveHalving("val_loss"), optuna.pruners.MedianPruner()], ids=["rule", "optuna"]
)
def test_a_metric_that_does_not_exist_ends_the_grid_and_keeps_what_is_committed(tmp_path, executor, prune):
    with pytest.raises(InvalidArgumentError, match="compares runs by 'val_loss', which epoch 1 does not have"):
        nine(tmp_path, Falling(), prune=prune, goal="min:val_loss", executor=executor)

    assert load_runs(tmp_path)[["status", "epochs"]].iloc[0].tolist() == ["interrupted", 1]


def test_a_loop_that_does_not_listen_is_completed(tmp_path):
    def deaf(run, manager):
        manager.begin_run(run)
        for _ in range(4):
            manager.begin_epoch()
            manager.track(score=run.lr)
            manager.end_epoch()
        manager.end_run()

    assert statuses(nine(tmp_path, deaf, {"lr": [1, 2]})) == [("completed", 4)] * 2


@pytest.mark.parametrize("min_epochs", [9, 3])
def test_the_rule_is_announced_and_a_first_rung_that_no_run_goes_beyond_is_named(tmp_path, min_epochs):
    with terminal(120) as screen:
        nine(tmp_path, Falling(), prune=SuccessiveHalving("min:score", min_epochs=min_epochs), display=True)

    assert f"min_epochs={min_epochs}" in screen.text
    assert "none has more epochs than min_epochs=9" in screen.text or min_epochs == 3
    assert ("no run was stopped early" in screen.text) == (min_epochs == 9)
    assert ("runs pruned (continued by the same grid without prune=)" in screen.text) == (min_epochs == 3)


@pytest.mark.parametrize("metric", ["f9", "best:f9", "", "max:", 3])
def test_a_metric_whose_best_value_nobody_knows_is_refused(metric):
    with pytest.raises(GridError, match="metric") as caught:
        SuccessiveHalving(metric, factor=1, min_epochs=0.5)  # type: ignore[arg-type]

    assert len(caught.value.problems) == 3
    assert repr(metric).removeprefix("'best:").strip("'") in caught.value.problems[0]


# Pruners of Optuna

PRUNERS: Any = optuna.pruners
ALL = {
    "median": lambda: PRUNERS.MedianPruner(n_startup_trials=2),
    "percentile": lambda: PRUNERS.PercentilePruner(
        25.0, n_startup_trials=1, n_warmup_steps=2, interval_steps=2
    ),
    "halving auto": PRUNERS.SuccessiveHalvingPruner,
    "hyperband": lambda: PRUNERS.HyperbandPruner(min_resource=1, max_resource=9, reduction_factor=3),
    "threshold": lambda: PRUNERS.ThresholdPruner(upper=5.0, n_warmup_steps=1),
    "patient": lambda: PRUNERS.PatientPruner(PRUNERS.MedianPruner(n_startup_trials=1), patience=1),
}


def in_optuna(pruner, direction="minimize"):
    """Train the same runs in a study of Optuna."""

    def objective(trial):
        for epoch in range(1, 10):
            trial.report(curve(MIXED["lr"][trial.number], epoch), epoch)
            if epoch < 9 and trial.should_prune():
                raise optuna.TrialPruned
        return curve(MIXED["lr"][trial.number], 9)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(study_name="grid", direction=direction, pruner=pruner)
    study.optimize(objective, n_trials=len(MIXED["lr"]))
    states = {optuna.trial.TrialState.COMPLETE: "completed", optuna.trial.TrialState.PRUNED: "pruned"}
    return [(states[trial.state], trial.last_step) for trial in study.trials]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (i % 2)) for i, n in enumerate(ALL)]
)
def test_a_grid_stops_the_same_runs_as_optuna_also_if_it_is_interrupted(tmp_path, name):
    pruner, train = ALL[name](), Falling({4: (4, KeyboardInterrupt())})
    expected = in_optuna(pruner)

    nine(tmp_path, train, prune=pruner, goal="min:score")
    resumed = nine(tmp_path, train, prune=pruner, goal="min:score")

    assert statuses(resumed) == expected


def test_the_direction_is_that_of_the_goal_and_optuna_says_nothing(tmp_path, capfd):
    expected = in_optuna(MEDIAN, "maximize")
    optuna.logging.set_verbosity(optuna.logging.INFO)
    capfd.readouterr()

    outcome = nine(tmp_path, Falling(), prune=MEDIAN, goal="max:score")

    assert optuna.logging.get_verbosity() == optuna.logging.INFO
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    assert capfd.readouterr() == ("", "")
    assert statuses(outcome) == expected != in_optuna(MEDIAN)


def test_a_pruner_of_ones_own_is_asked(tmp_path):
    class EvenNumbers(PRUNERS.BasePruner):  # type: ignore[misc]
        def prune(self, study, trial):
            return trial.number % 2 == 0 and trial.last_step == 2 and study.direction.name == "MINIMIZE"

    outcome = nine(tmp_path, Falling(nan={1: 9}), prune=EvenNumbers(), goal="min:score")

    assert outcome.runs["epochs"].tolist() == [2, 9, 2, 9, 2, 9, 2, 9, 2]
    assert outcome.runs["error"][0] == "after epoch 2 of 9: EvenNumbers"


def test_values_without_a_number_are_left_to_optuna(tmp_path):
    runs = nine(tmp_path, Falling(nan={8: 1}), prune=MEDIAN, goal="min:score").runs.set_index("lr")

    assert (runs["status"][8], runs["epochs"][8]) == ("pruned", 1)
    assert "MedianPruner" in runs["error"][8]

"""The rule of successive halving, and grids whose runs it stops early."""

import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from runmanager import GridError, InvalidArgumentError, SuccessiveHalving, load_results, load_runs, run_grid
from runmanager.core.outcome import EpochRecord
from tests.damaging import as_if_killed

THIRD = SuccessiveHalving("test_loss", factor=3)
MIXED = {"lr": [3, 1, 2, 8, 4, 5, 0, 7, 6]}
ONE_BY_ONE = [
    ("completed", 9),  # the first one
    ("completed", 9),  # better than the first
    ("pruned", 1), ("pruned", 1), ("pruned", 1), ("pruned", 1),  # 2 is behind 1 of 3, and so on
    ("completed", 9), ("pruned", 1), ("pruned", 1),
]  # fmt: skip


class Train:
    """Train up to nine epochs of a network that remembers its random numbers; the least lr is the best run.

    Args:
        faults: lr -> the epoch, and what is raised in it.
        nan: lr -> the epoch from which on its test_loss is NaN.
        options: What `manager.epochs` gets beside the checkpoint.
    """

    def __init__(self, faults=None, nan=None, num_epochs=9, is_saved=True):
        self.faults, self.nan = faults or {}, nan or {}
        self.num_epochs, self.is_saved = num_epochs, is_saved
        self.executed = []

    def __getstate__(self):
        return {**vars(self), "faults": {}, "nan": {}, "executed": []}  # a fault is no change of the run

    def __call__(self, run, manager):
        torch.manual_seed(run.lr)
        network = nn.Linear(2, 1)
        with manager.run(run, network):
            checkpoint = {"network": network} if self.is_saved else None
            for epoch in manager.epochs(self.num_epochs, checkpoint=checkpoint):
                self.executed.append((run.lr, epoch))
                at, fault = self.faults.get(run.lr, (0, None))
                if epoch == at:
                    raise fault
                with torch.no_grad():
                    network.weight += torch.rand(1, 2)
                manager.track_loss(network.weight.sum(), 1)
                manager.track(test_loss=math.nan if epoch >= self.nan.get(run.lr, 99) else run.lr + 1 / epoch)


@pytest.fixture
def start(tmp_path):
    """Start a grid of nine runs under tmp_path."""

    def run(train, params=MIXED, **options):
        quiet: dict[str, Any] = {"tensorboard": False, "display": False, "executor": "inline"} | options
        return run_grid(params, train, experiment="exp", root=tmp_path, **quiet)

    return run


def kept(outcome_or_root):
    """Return how each run stands and how many epochs it has, in the order of the grid."""
    runs = load_runs(outcome_or_root / "exp") if isinstance(outcome_or_root, Path) else outcome_or_root.runs
    return list(zip(runs["status"], runs["epochs"], strict=True))


def numbers(root):
    """Return all that is no duration of the table, as text."""
    return load_results(root / "exp").drop(columns=["epoch duration", "run duration"]).to_csv()


def test_what_is_no_rule_is_refused_before_anything_is_written(start, tmp_path):
    with pytest.raises(GridError, match=r"prune must be SuccessiveHalving\(metric=...\)"):
        start(Train(), prune="test_loss")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("metric", "goal"),
    [
        ("test_loss", ("test_loss", -1)),
        ("accuracy", ("accuracy", 1)),
        ("min:epoch duration", ("epoch duration", -1)),
        ("max:f1", ("f1", 1)),
    ],
)
def test_a_metric_says_which_value_is_best(metric, goal):
    assert SuccessiveHalving(metric).pruner().goal == goal


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        ("f9", "whether large values of 'f9' are good is not known: write metric='max:f9' or metric='min:f9'"),
        ("best:f9", "whether large values of 'f9' are good is not known: write metric='max:f9' or .*"),
        ("", "metric must be 'max:<metric>', 'min:<metric>', or a metric as 'test_accuracy', got ''"),
        ("max:", "metric must be 'max:<metric>', 'min:<metric>', .*, got 'max:'"),
        (3, "metric must be 'max:<metric>', 'min:<metric>', .*, got 3"),
    ],
)
def test_a_metric_whose_best_value_nobody_knows_is_refused(metric, problem):
    with pytest.raises(GridError, match=f"^{problem}$"):
        SuccessiveHalving(metric)


def test_all_problems_of_a_rule_are_told_at_once():
    with pytest.raises(GridError) as caught:
        SuccessiveHalving("f9", factor=1, min_epochs=0.5)  # type: ignore[arg-type]

    assert [problem.partition(",")[0] for problem in caught.value.problems] == [
        "whether large values of 'f9' are good is not known: write metric='max:f9' or metric='min:f9'",
        "factor must be a whole number",
        "min_epochs must be a whole number",
    ]


def judged(rule, values, epoch=1):
    """Return what each run is told that comes to a rung with these values, one after the other."""
    pruner = rule.pruner()
    return [
        pruner.should_stop(str(number), EpochRecord(epoch, {pruner.goal.metric: value}))
        for number, value in enumerate(values)
    ]


def test_a_run_goes_on_if_it_is_among_the_best_that_came_to_its_rung_so_far():
    values = [3, 4, 2, 1, 5, 2.5, 1.5]

    assert judged(SuccessiveHalving("loss", factor=3), values) == [
        "",  # the first one
        "behind 1 of 2 runs",
        "",
        "",
        "behind 4 of 5 runs",
        "behind 2 of 6 runs",
        "",  # second of seven, of which two go on
    ]


def test_values_that_are_no_numbers_are_never_among_the_best():
    rule = SuccessiveHalving("max:reward", factor=2)

    assert judged(rule, [math.nan, 1, -math.inf, math.inf]) == [
        "reward is nan",
        "",
        "reward is -inf",
        "reward is inf",
    ]


@given(st.integers(2, 5), st.lists(st.floats(-9, 9), min_size=1, max_size=30), st.sampled_from(["min", "max"]))
def test_a_run_goes_on_if_fewer_are_ahead_than_go_on_of_those_so_far(factor, values, which):
    rule = SuccessiveHalving(f"{which}:score", factor=factor)

    said = judged(rule, values)

    for number, value in enumerate(values):
        ahead = sum(other >= value if which == "max" else other <= value for other in values[:number])
        assert (said[number] == "") == (ahead < max((number + 1) // factor, 1))


def test_between_rungs_nothing_is_decided():
    rule = SuccessiveHalving("loss", factor=3, min_epochs=2)

    told = {epoch: judged(rule, [1, 2], epoch)[1] for epoch in range(1, 20)}

    assert [epoch for epoch, why in told.items() if why] == [2, 6, 18]


def test_a_run_that_starts_over_counts_once():
    pruner = SuccessiveHalving("loss", factor=2).pruner()
    for id_, epoch, loss in (("a", 1, 2.0), ("a", 2, 2.0), ("a", 1, 3.0)):
        pruner.should_stop(id_, EpochRecord(epoch, {"loss": loss}))

    assert pruner.should_stop("b", EpochRecord(1, {"loss": 2.5})) == ""  # the 2.0 is gone
    assert pruner.should_stop("c", EpochRecord(2, {"loss": 9.0})) == ""  # the first one there


@pytest.mark.slow(everywhere=True)
def test_runs_are_stopped_as_they_come_and_stay_so(start, tmp_path):
    train, again = Train(), Train()

    outcome = start(train, prune=THIRD)
    same = start(again, prune=THIRD)

    assert outcome.exit_code == 0
    assert kept(outcome) == kept(same) == kept(tmp_path) == ONE_BY_ONE
    assert len(train.executed) == len(set(train.executed)) == 33
    assert again.executed == []
    assert outcome.runs["error"].tolist()[:4] == [
        "", "", "after epoch 1 of 9: behind 1 of 3 runs", "after epoch 1 of 9: behind 3 of 4 runs",
    ]  # fmt: skip


@pytest.mark.slow(everywhere=True)
def test_pruned_runs_are_continued_bit_for_bit(start, tmp_path):
    quiet: dict[str, Any] = {"tensorboard": False, "display": False, "executor": "inline"}
    run_grid(MIXED, Train(), experiment="exp", root=tmp_path / "whole", **quiet)
    start(Train(), prune=THIRD)
    rest = Train()

    outcome = start(rest)

    assert kept(outcome) == [("completed", 9)] * 9
    assert numbers(tmp_path) == numbers(tmp_path / "whole")
    assert len(rest.executed) == 9 * 9 - 33


@pytest.mark.slow(everywhere=True)
def test_a_rule_that_stops_fewer_continues_those_that_it_lets_go_on(start):
    start(Train(), prune=THIRD)
    more = Train()

    outcome = start(more, prune=SuccessiveHalving("test_loss", factor=2))

    runs = outcome.runs
    assert runs.loc[runs["status"] == "completed", "lr"].tolist() == [3, 1, 0]
    assert more.executed == [(2, 2)]  # third of nine at the first rung, last of four at the second


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("epoch", [1, 2, 3, 4])
def test_a_grid_that_is_interrupted_goes_on_where_it_was(start, tmp_path, epoch):
    assert start(Train({0: (epoch, KeyboardInterrupt())}), prune=THIRD).exit_code == 128 + signal.SIGINT
    assert kept(tmp_path)[2:6] == ONE_BY_ONE[2:6]
    rest = Train()

    outcome = start(rest, prune=THIRD)

    assert kept(outcome) == ONE_BY_ONE
    assert rest.executed == [*((0, number) for number in range(epoch, 10)), (7, 1), (6, 1)]


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("num_lost", [0, 1])
def test_a_run_that_was_killed_before_its_answer_came_is_judged_when_it_is_resumed(start, tmp_path, num_lost):
    start(Train(), prune=THIRD)
    (folder,) = (tmp_path / "exp").glob("004*")
    as_if_killed(folder, num_lost)
    assert kept(tmp_path)[3][0] == "interrupted"
    again = Train()

    outcome = start(again, prune=THIRD)

    assert kept(outcome) == ONE_BY_ONE
    assert again.executed == []


@pytest.mark.slow(everywhere=True)
def test_a_run_whose_code_has_changed_begins_again_and_its_old_numbers_do_not_count(start):
    start(Train(), {"lr": [0]}, prune=THIRD, data="then")
    again = Train()

    outcome = start(again, {"lr": [3, 0]}, prune=THIRD, data="now")

    assert kept(outcome) == [("completed", 9)] * 2
    assert len(again.executed) == 18


@pytest.mark.slow(everywhere=True)
def test_runs_that_were_completed_before_are_compared(start):
    start(Train(), {"lr": [0, 1]})

    outcome = start(Train(), {"lr": [0, 1, 2, 3]}, prune=THIRD)

    assert kept(outcome) == [("completed", 9), ("completed", 9), ("pruned", 1), ("pruned", 1)]


@pytest.mark.slow(everywhere=True)
def test_a_train_function_without_a_checkpoint_can_be_stopped(start):
    outcome = start(Train(is_saved=False), prune=THIRD)

    assert kept(outcome) == ONE_BY_ONE


@pytest.mark.slow(everywhere=True)
def test_a_run_that_fails_or_diverges_stays_so(start):
    outcome = start(Train({1: (2, ValueError("no"))}, nan={4: 1}), prune=THIRD)

    runs = outcome.runs.set_index("lr")
    assert (runs["status"][1], runs["epochs"][1]) == ("failed", 1)
    assert runs["error"][4] == "after epoch 1 of 9: test_loss is nan"


@pytest.mark.parametrize("executor", ["inline", pytest.param("lanes", marks=pytest.mark.slow)])
def test_a_metric_that_does_not_exist_ends_the_grid_and_keeps_what_is_committed(start, executor, tmp_path):
    message = "compares runs by 'val_loss', which epoch 1 does not have; it has: loss,"
    with pytest.raises(InvalidArgumentError, match=message):
        start(Train(), prune=SuccessiveHalving("val_loss"), executor=executor)

    assert kept(tmp_path)[0] == ("interrupted", 1)


@pytest.mark.slow(everywhere=True)
def test_it_is_said_what_is_decided(start, capsys):
    start(Train(), prune=THIRD, display=None)

    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"{THIRD}: a run that is behind is stopped at once, and can be continued"
    assert "pruned" in lines[4]
    assert "behind 1 of 3 runs" in lines[4]
    start(Train(), prune=THIRD, display=None)
    assert "9 runs, 0 to execute, 3 completed, 6 pruned" in capsys.readouterr().out


def own_loop(run, manager, *, obeys):
    manager.begin_run(run)
    for _ in range(4):
        manager.begin_epoch()
        manager.track(test_loss=run.lr)
        manager.end_epoch()
        if manager.should_stop and obeys:
            break
    manager.end_run()


def test_a_loop_of_ones_own_ends_when_it_is_told_to(start):
    outcome = start(lambda run, manager: own_loop(run, manager, obeys=True), {"lr": [1, 2]}, prune=THIRD)

    assert kept(outcome) == [("completed", 4), ("pruned", 1)]
    assert outcome.runs["error"][1] == "after epoch 1: behind 1 of 2 runs"


def test_a_loop_of_ones_own_that_does_not_listen_is_completed(start):
    outcome = start(lambda run, manager: own_loop(run, manager, obeys=False), {"lr": [1, 2]}, prune=THIRD)

    assert kept(outcome) == [("completed", 4), ("completed", 4)]


def test_a_loop_that_was_left_by_break_is_completed(start):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(4, checkpoint={}):
                manager.track(test_loss=run.lr)
                break

    assert kept(start(train, {"lr": [1, 2]}, prune=THIRD)) == [("completed", 1)] * 2


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("min_epochs", [9, 3])
def test_a_first_rung_that_no_run_goes_beyond_is_named(start, caplog, min_epochs):
    caplog.set_level("INFO", "runmanager")

    start(Train(), prune=SuccessiveHalving("test_loss", min_epochs=min_epochs))

    said = "! no run was stopped early: none has more epochs than min_epochs=9" in caplog.text
    assert said == (min_epochs == 9)

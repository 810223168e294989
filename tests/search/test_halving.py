"""The rule, and grids whose runs are stopped early, all at a rung or one by one; how good a run is is known."""

import itertools
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from runmanager import (
    GridError,
    InvalidArgumentError,
    RunBuilder,
    SuccessiveHalving,
    load_results,
    load_runs,
    run_grid,
)
from runmanager.outcome import EpochRecord
from runmanager.storage.checkpoints import load_checkpoint
from runmanager.storage.folders import read_runs
from tests.board.reading import folder_scalars, sessions_in
from tests.damaging import as_if_killed

NINE = {"lr": list(range(9))}
THIRD = SuccessiveHalving("test_loss", factor=3)
STOP_ALL = SuccessiveHalving("test_loss", factor=9)


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

    def run(train, params=NINE, **options):
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


EXPECTED = [("completed", 9), ("pruned", 3), ("pruned", 3), *[("pruned", 1)] * 6]


def test_of_the_runs_at_each_rung_the_best_go_on(start, tmp_path):
    train = Train()

    outcome = start(train, {"lr": list(range(8, -1, -1))}, prune=THIRD)

    assert outcome.exit_code == 0
    assert kept(outcome) == kept(tmp_path) == EXPECTED[::-1]
    assert len(train.executed) == len(set(train.executed)) == 9 + 3 * 2 + 6
    assert outcome.runs["error"].tolist()[:7] == ["after epoch 1 of 9"] * 6 + ["after epoch 3 of 9"]
    assert len(outcome.results) == 21


@pytest.mark.slow
def test_two_lanes_stop_the_same_runs_as_inline(start, tmp_path):
    outcome = start(Train(), prune=THIRD, executor="lanes", jobs=2)

    assert kept(outcome) == kept(tmp_path) == EXPECTED
    assert (outcome.exit_code, len(load_results(tmp_path / "exp"))) == (0, 21)


@pytest.mark.slow(everywhere=True)
def test_a_grid_without_prune_stops_nothing(start):
    assert kept(start(Train(num_epochs=2))) == [("completed", 2)] * 9


@pytest.mark.slow(everywhere=True)
def test_a_grid_that_is_through_has_nothing_to_do(start):
    start(Train(), prune=THIRD)
    again = Train()

    outcome = start(again, prune=THIRD)

    assert again.executed == []
    assert (outcome.exit_code, kept(outcome)) == (0, EXPECTED)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("executor", ["inline", pytest.param("lanes", marks=pytest.mark.slow)])
def test_pruned_runs_are_continued_bit_for_bit(tmp_path, start, executor):
    run_grid(NINE, Train(), experiment="exp", root=tmp_path / "whole", tensorboard=False, display=False)
    start(Train(), prune=THIRD, executor=executor)
    rest = Train()

    outcome = start(rest, executor=executor)

    assert kept(outcome) == [("completed", 9)] * 9
    assert numbers(tmp_path) == numbers(tmp_path / "whole")
    if executor == "inline":
        assert len(rest.executed) == 9 * 9 - 21


@pytest.mark.slow(everywhere=True)
def test_a_rule_that_stops_fewer_continues_some(start):
    start(Train(), prune=STOP_ALL)
    more = Train()

    outcome = start(more, prune=SuccessiveHalving("test_loss", factor=2))

    assert kept(outcome) == [
        ("completed", 9), ("pruned", 4), ("pruned", 2), ("pruned", 2), *[("pruned", 1)] * 5,
    ]  # fmt: skip
    assert len(more.executed) == 1 + 1 + 1 + 2


@pytest.mark.slow(everywhere=True)
def test_pruned_runs_keep_a_checkpoint_of_their_last_epoch(start, tmp_path):
    start(Train(), prune=THIRD)

    last = {}
    for place in read_runs(tmp_path / "exp"):
        found = load_checkpoint(place.path, place.id, [])
        last[place.params["lr"]] = found and found.record.epoch
    assert last == {0: None, 1: 3, 2: 3, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1, 8: 1}


@pytest.mark.slow
def test_a_grid_that_is_interrupted_again_and_again_ends_as_an_undisturbed_one(start, tmp_path):
    run_grid(
        NINE, Train(), experiment="exp", root=tmp_path / "whole", prune=THIRD, tensorboard=False, display=False
    )

    for lr, epoch in ((0, 1), (4, 1), (8, 1), (1, 2), (2, 3), (0, 4), (0, 9)):
        assert start(Train({lr: (epoch, KeyboardInterrupt())}), prune=THIRD).exit_code == 130
    outcome = start(Train(), prune=THIRD)

    assert kept(outcome) == EXPECTED
    assert numbers(tmp_path) == numbers(tmp_path / "whole")


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("num_lost", [0, 1])
def test_a_run_that_was_killed_at_its_rung_is_compared_and_marked(start, tmp_path, num_lost):
    start(Train(), prune=THIRD)
    for number in (3, 9):
        (folder,) = (tmp_path / "exp").glob(f"{number:03}*")
        as_if_killed(folder, num_lost)
    assert [kept(tmp_path)[number][0] for number in (2, 8)] == ["interrupted"] * 2
    again = Train()

    outcome = start(again, prune=THIRD)

    assert kept(outcome) == kept(tmp_path) == EXPECTED
    assert again.executed == []  # a checkpoint heals a journal that lacks its last line


@pytest.mark.slow(everywhere=True)
def test_a_run_that_was_interrupted_past_its_rung_is_marked_if_it_is_behind(start):
    start(Train({8: (3, KeyboardInterrupt())}), {"lr": [8]})
    rest = Train()

    outcome = start(rest, prune=THIRD)

    assert kept(outcome) == [*EXPECTED[:8], ("pruned", 2)]
    assert outcome.runs["error"].iloc[8] == "behind"


@pytest.mark.slow(everywhere=True)
def test_runs_that_were_completed_before_are_compared_by_their_epoch_at_the_rung(start):
    start(Train(), {"lr": [4, 5]})

    outcome = start(Train(), prune=THIRD)

    assert kept(outcome) == [*EXPECTED[:4], ("completed", 9), ("completed", 9), *EXPECTED[6:]]


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    ("train", "status"),
    [
        (Train({0: (1, ValueError("no")), 1: (2, ValueError("no"))}), "failed"),
        (Train(nan={0: 1, 1: 3}), "pruned"),
    ],
)
def test_the_next_best_go_on_where_runs_fail_or_have_no_number(start, train, status):
    outcome = start(train, prune=THIRD)

    epochs = outcome.runs["epochs"].tolist()
    assert outcome.runs["status"].tolist()[:3] == [status, status, "completed"]
    assert epochs[2:] == [9, 3, 3 if status == "failed" else 1, 1, 1, 1, 1]
    assert outcome.exit_code == (1 if status == "failed" else 0)


@pytest.mark.slow(everywhere=True)
def test_no_run_goes_on_where_none_has_a_number(start, capsys):
    outcome = start(Train(nan=dict.fromkeys(range(9), 1)), prune=THIRD, display=None)

    assert kept(outcome) == [("pruned", 1)] * 9
    assert (
        "after epoch 1, 0 of 9 runs go on; 9 are behind; 9 of these failed, were killed or have no number"
        in (capsys.readouterr().out)
    )


@pytest.mark.slow(everywhere=True)
def test_a_run_that_failed_is_executed_again_if_that_is_wanted(start):
    start(Train({0: (2, ValueError("no"))}), prune=THIRD)

    outcome = start(Train(), prune=THIRD, retry_failed=True)

    assert kept(outcome) == [("completed", 9), ("completed", 9), ("pruned", 3), ("pruned", 3), *EXPECTED[4:]]


@pytest.mark.slow(everywhere=True)
def test_runs_whose_code_has_changed_climb_from_the_first_rung(start):
    start(Train(), prune=THIRD, data="then")
    again = Train()

    outcome = start(again, prune=THIRD, data="now")

    assert kept(outcome) == EXPECTED
    assert len(again.executed) == 21


@pytest.mark.slow(everywhere=True)
def test_a_run_whose_checkpoint_is_lost_climbs_again(start, tmp_path):
    start(Train({0: (5, KeyboardInterrupt())}), prune=THIRD)
    for path in (tmp_path / "exp").glob("001*/checkpoint*"):
        path.unlink()
    again = Train()

    outcome = start(again, prune=THIRD)

    assert kept(outcome) == EXPECTED
    assert again.executed == [(0, epoch) for epoch in range(1, 10)]


def test_a_run_that_can_never_go_on_is_left_alone(start, tmp_path, monkeypatch):
    monkeypatch.setattr("runmanager.training.resuming.checkpoints.load_checkpoint", lambda *_, **__: None)

    outcome = start(Train(), {"lr": [0, 1, 2]}, prune=THIRD)

    assert kept(outcome) == [("pruned", 1)] * 3


def test_a_train_function_without_a_checkpoint_is_refused_at_once(start):
    train = Train(is_saved=False)

    with pytest.raises(
        InvalidArgumentError, match=r"write `for epoch in manager.epochs\(n, checkpoint=\{...\}\)`"
    ):
        start(train, prune=THIRD)

    assert train.executed == []


def test_hooks_alone_cannot_be_stopped(start):
    def train(run, manager):
        manager.begin_run(run)
        manager.begin_epoch()

    with pytest.raises(InvalidArgumentError, match="this run saves no checkpoint"):
        start(train, prune=THIRD)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(("num_epochs", "is_told"), [(3, True), (4, False)])
def test_it_is_told_if_no_run_has_epochs_enough_to_be_stopped(start, capsys, num_epochs, is_told):
    prune = SuccessiveHalving("test_loss", min_epochs=3)

    start(Train(num_epochs=num_epochs), prune=prune, display=True)

    said = "no run was stopped early: none has more epochs than min_epochs=3" in capsys.readouterr().out
    assert said == is_told


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("executor", ["inline", "lanes"])
def test_a_metric_that_does_not_exist_ends_the_grid_and_keeps_what_is_committed(start, executor):
    with pytest.raises(InvalidArgumentError) as caught:
        start(Train(), prune=SuccessiveHalving("val_loss"), executor=executor)
    again = Train()
    outcome = start(again, prune=THIRD)

    assert str(caught.value) == (
        "pruning compares runs by 'val_loss', which the epoch of a rung does not have; it has: loss, "
        "epoch duration, run duration, test_loss. Track it in every epoch"
    )
    assert (0, 1) not in again.executed
    assert kept(outcome) == EXPECTED


def test_what_is_no_rule_is_refused_before_anything_is_written(start, tmp_path):
    with pytest.raises(GridError, match=r"prune must be SuccessiveHalving\(metric=...\)"):
        start(Train(), prune="test_loss")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow(everywhere=True)
def test_it_is_told_what_is_decided_and_how_to_go_on(start, capsys):
    start(Train(), prune=THIRD, display=None)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("9 runs, 9 to execute")
    rule = "SuccessiveHalving(metric='test_loss')"  # the other arguments are the default ones
    assert lines[1] == f"{rule}: runs that are behind are stopped, and can be continued"
    assert lines[2].startswith("–     run 1 lr=0 · test_loss ")  # noqa: RUF001
    assert " · waits for the other runs · " in lines[2]
    assert [line for line in lines if line.startswith("after")] == [
        "after epoch 1, 3 of 9 runs go on, test_loss 1 to 3; 6 are behind",
        "after epoch 3, 1 of 3 runs goes on, test_loss 0.3333; 2 are behind",
    ]
    pruned = lines.index("– Pruned runs keep their checkpoints")  # noqa: RUF001
    assert "· 1 completed · 8 pruned ━" in " ".join(lines)
    assert lines[pruned + 1] == "    the same grid without prune= continues them"


@pytest.mark.slow(everywhere=True)
def test_a_plan_has_the_runs_of_the_next_round(start, capsys):
    start(Train({1: (3, KeyboardInterrupt())}), prune=THIRD)
    start(Train(), prune=THIRD, plan_only=True)

    planned = capsys.readouterr().out.splitlines()

    assert [" ".join(line.split()[2:]) for line in planned[1:10]] == [
        "pruned, left as it is", "continue after epoch 2", "continue after epoch 1",
        *["pruned, left as it is"] * 6,
    ]  # fmt: skip


@pytest.mark.slow(everywhere=True)
def test_tensorboard_shows_one_curve_of_a_run_that_climbed_and_no_end_of_one_that_was_stopped(start, tmp_path):
    start(Train(), prune=THIRD, tensorboard=True)

    best, second, *_, last = sorted((tmp_path / "exp").glob("0*"))
    assert [step for step, _ in folder_scalars(best)["loss/train"]] == list(range(1, 10))
    assert [step for step, _ in folder_scalars(second)["loss/train"]] == [1, 2, 3]
    assert [type(said).__name__ for said in sessions_in(last)] == ["SessionStartInfo"]  # its status is unknown


@pytest.mark.slow(everywhere=True)
def test_runs_of_a_union_are_compared_with_each_other(start):
    runs = RunBuilder.get_runs({"lr": [0, 1]}) + RunBuilder.get_runs({"lr": [2], "momentum": [0.9]})

    outcome = start(Train(), runs, prune=THIRD)

    assert kept(outcome) == [("completed", 9), ("pruned", 1), ("pruned", 1)]
    assert pd.isna(outcome.runs["momentum"]).tolist() == [True, True, False]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_killed_process_keeps_its_place(start, tmp_path):
    program = tmp_path / "killed.py"
    program.write_text(KILLED)

    def run(*options):
        subprocess.run([sys.executable, program, tmp_path, *options], check=False)

    run("kill")
    assert kept(tmp_path)[0] == ("killed", 1)
    run()

    # the second was the best that got to the third epoch
    assert kept(tmp_path) == [("completed", 9), ("completed", 9), ("pruned", 3), *EXPECTED[3:]]


KILLED = """
import os, signal, sys
import torch
from runmanager import (SuccessiveHalving, run_grid)

def train(run, manager, kill):
    network = torch.nn.Linear(1, 1)
    with manager.run(run, network):
        for epoch in manager.epochs(9, checkpoint={"network": network}):
            if kill and run.lr == 0 and epoch == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            manager.track(test_loss=run.lr)

def main():
    from functools import partial
    prune = SuccessiveHalving("test_loss", factor=3)
    run_grid(
        {"lr": list(range(9))}, partial(train, kill="kill" in sys.argv), experiment="exp", root=sys.argv[1],
        prune=prune, display=False, tensorboard=False, jobs=2, changed="keep",
    )

if __name__ == "__main__":
    main()
"""


RULES = st.builds(SuccessiveHalving, st.sampled_from(["loss", "max:f1"]), st.integers(2, 9), st.integers(1, 9))
VALUES = st.lists(st.floats() | st.integers(0, 3).map(float), min_size=1, max_size=30)


@given(RULES, st.integers(0, 1000))
def test_the_next_rung_is_the_first_of_all_rungs_after_an_epoch(rule, epoch):
    rungs = list(itertools.takewhile(lambda rung: rung <= epoch, rule.rungs()))

    following = rule.next_rung(epoch)

    assert following > epoch
    assert following == (rungs[-1] * rule.factor if rungs else rule.min_epochs)


@given(RULES, VALUES)
def test_one_in_factor_goes_on_and_none_that_stays_is_better(rule, values):
    best = rule.best(values)

    is_finite = [math.isfinite(value) for value in values]
    assert len(best) == min(max(len(values) // rule.factor, 1), sum(is_finite))
    assert all(is_finite[place] for place in best)
    sign = rule.goal.sign
    assert all(
        sign * values[place] >= sign * values[other]
        for place in best
        for other in set(range(len(values))) - set(best)
        if is_finite[other]
    )


def test_of_equal_runs_the_first_goes_on():
    assert SuccessiveHalving("loss").best([2.0, 1.0, 1.0, 1.0, 2.0, 3.0]) == [1, 2]


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
    assert SuccessiveHalving(metric).goal == goal


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


def test_a_metric_that_an_epoch_lacks_is_named_beside_those_that_it_has():
    with pytest.raises(InvalidArgumentError) as caught:
        SuccessiveHalving("test_loss").check({"loss": 1.0, "accuracy": 0.5})

    rule = "pruning compares runs by 'test_loss', which the epoch of a rung does not have"
    assert str(caught.value) == f"{rule}; it has: loss, accuracy. Track it in every epoch"


ASYNCHRONOUS = SuccessiveHalving("test_loss", factor=3, asynchronous=True)
MIXED = {"lr": [3, 1, 2, 8, 4, 5, 0, 7, 6]}
ONE_BY_ONE = [
    ("completed", 9),  # the first one
    ("completed", 9),  # better than the first
    ("pruned", 1), ("pruned", 1), ("pruned", 1), ("pruned", 1),  # 2 is behind 1 of 3, and so on
    ("completed", 9), ("pruned", 1), ("pruned", 1),
]  # fmt: skip


@pytest.fixture
def start_mixed(start):
    """Start a grid of nine runs of which the first is not the best."""
    return lambda train, params=MIXED, **options: start(train, params, **options)


def judged(rule, values, epoch=1):
    """Return what each run is told that comes to a rung with these values, one after the other."""
    pruner = rule.pruner()
    return [
        pruner.should_stop(str(number), EpochRecord(epoch, {rule.goal.metric: value}))
        for number, value in enumerate(values)
    ]


def test_a_run_goes_on_if_it_is_among_the_best_that_came_to_its_rung_so_far():
    values = [3, 4, 2, 1, 5, 2.5, 1.5]

    assert judged(SuccessiveHalving("loss", factor=3, asynchronous=True), values) == [
        "",  # the first one
        "behind 1 of 2 runs",
        "",
        "",
        "behind 4 of 5 runs",
        "behind 2 of 6 runs",
        "",  # second of seven, of which two go on
    ]


def test_values_that_are_no_numbers_are_never_among_the_best():
    rule = SuccessiveHalving("max:reward", factor=2, asynchronous=True)

    assert judged(rule, [math.nan, 1, -math.inf, math.inf]) == [
        "reward is nan",
        "",
        "reward is -inf",
        "reward is inf",
    ]


@given(st.integers(2, 5), st.lists(st.floats(-9, 9), min_size=1, max_size=30), st.sampled_from(["min", "max"]))
def test_a_run_goes_on_if_fewer_are_ahead_than_go_on_of_those_so_far(factor, values, which):
    rule = SuccessiveHalving(f"{which}:score", factor=factor, asynchronous=True)

    said = judged(rule, values)

    for number, value in enumerate(values):
        ahead = sum(other >= value if which == "max" else other <= value for other in values[:number])
        assert (said[number] == "") == (ahead < max((number + 1) // factor, 1))


def test_between_rungs_nothing_is_decided():
    rule = SuccessiveHalving("loss", factor=3, min_epochs=2, asynchronous=True)

    told = {epoch: judged(rule, [1, 2], epoch)[1] for epoch in range(1, 20)}

    assert [epoch for epoch, why in told.items() if why] == [2, 6, 18]


def test_a_run_that_starts_over_counts_once():
    pruner = SuccessiveHalving("loss", factor=2, asynchronous=True).pruner()
    for id_, epoch, loss in (("a", 1, 2.0), ("a", 2, 2.0), ("a", 1, 3.0)):
        pruner.should_stop(id_, EpochRecord(epoch, {"loss": loss}))

    assert pruner.should_stop("b", EpochRecord(1, {"loss": 2.5})) == ""  # the 2.0 is gone
    assert pruner.should_stop("c", EpochRecord(2, {"loss": 9.0})) == ""  # the first one there


@pytest.mark.slow(everywhere=True)
def test_runs_are_stopped_as_they_come_and_stay_so(start_mixed, tmp_path):
    train, again = Train(), Train()

    outcome = start_mixed(train, prune=ASYNCHRONOUS)
    same = start_mixed(again, prune=ASYNCHRONOUS)

    assert outcome.exit_code == 0
    assert kept(outcome) == kept(same) == kept(tmp_path) == ONE_BY_ONE
    assert len(train.executed) == len(set(train.executed)) == 33
    assert again.executed == []
    assert outcome.runs["error"].tolist()[:4] == [
        "", "", "after epoch 1 of 9: behind 1 of 3 runs", "after epoch 1 of 9: behind 3 of 4 runs",
    ]  # fmt: skip


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("prune", [None, SuccessiveHalving("test_loss", factor=3)])
def test_pruned_runs_are_continued_bit_for_bit_one_by_one(start_mixed, tmp_path, prune):
    quiet: dict[str, Any] = {"tensorboard": False, "display": False, "executor": "inline", "prune": prune}
    run_grid(MIXED, Train(), experiment="exp", root=tmp_path / "whole", **quiet)
    start_mixed(Train(), prune=ASYNCHRONOUS)
    rest = Train()

    outcome = start_mixed(rest, prune=prune)

    if prune is None:
        assert kept(outcome) == [("completed", 9)] * 9
        assert numbers(tmp_path) == numbers(tmp_path / "whole")
        assert len(rest.executed) == 9 * 9 - 33
    else:
        assert rest.executed == [(2, 2), (2, 3)]  # with the two best, it goes on from the first rung


@pytest.mark.slow(everywhere=True)
def test_a_rule_that_stops_fewer_continues_those_that_it_lets_go_on(start_mixed):
    start_mixed(Train(), prune=ASYNCHRONOUS)
    more = Train()

    outcome = start_mixed(more, prune=SuccessiveHalving("test_loss", factor=2, asynchronous=True))

    runs = outcome.runs
    assert runs.loc[runs["status"] == "completed", "lr"].tolist() == [3, 1, 0]
    assert more.executed == [(2, 2)]  # third of nine at the first rung, last of four at the second


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("epoch", [1, 2, 3, 4])
def test_a_grid_that_is_interrupted_goes_on_where_it_was(start_mixed, tmp_path, epoch):
    assert (
        start_mixed(Train({0: (epoch, KeyboardInterrupt())}), prune=ASYNCHRONOUS).exit_code
        == 128 + signal.SIGINT
    )
    assert kept(tmp_path)[2:6] == ONE_BY_ONE[2:6]
    rest = Train()

    outcome = start_mixed(rest, prune=ASYNCHRONOUS)

    assert kept(outcome) == ONE_BY_ONE
    assert rest.executed == [*((0, number) for number in range(epoch, 10)), (7, 1), (6, 1)]


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("num_lost", [0, 1])
def test_a_run_that_was_killed_before_its_answer_came_is_judged_when_it_is_resumed(
    start_mixed, tmp_path, num_lost
):
    start_mixed(Train(), prune=ASYNCHRONOUS)
    (folder,) = (tmp_path / "exp").glob("004*")
    as_if_killed(folder, num_lost)
    assert kept(tmp_path)[3][0] == "interrupted"
    again = Train()

    outcome = start_mixed(again, prune=ASYNCHRONOUS)

    assert kept(outcome) == ONE_BY_ONE
    assert again.executed == []


@pytest.mark.slow(everywhere=True)
def test_a_run_whose_code_has_changed_begins_again_and_its_old_numbers_do_not_count(start_mixed):
    start_mixed(Train(), {"lr": [0]}, prune=ASYNCHRONOUS, data="then")
    again = Train()

    outcome = start_mixed(again, {"lr": [3, 0]}, prune=ASYNCHRONOUS, data="now")

    assert kept(outcome) == [("completed", 9)] * 2
    assert len(again.executed) == 18


@pytest.mark.slow(everywhere=True)
def test_runs_that_were_completed_before_are_compared(start_mixed):
    start_mixed(Train(), {"lr": [0, 1]})

    outcome = start_mixed(Train(), {"lr": [0, 1, 2, 3]}, prune=ASYNCHRONOUS)

    assert kept(outcome) == [("completed", 9), ("completed", 9), ("pruned", 1), ("pruned", 1)]


@pytest.mark.slow(everywhere=True)
def test_a_train_function_without_a_checkpoint_can_be_stopped(start_mixed):
    outcome = start_mixed(Train(is_saved=False), prune=ASYNCHRONOUS)

    assert kept(outcome) == ONE_BY_ONE


@pytest.mark.slow(everywhere=True)
def test_a_run_that_fails_or_diverges_stays_so(start_mixed):
    outcome = start_mixed(Train({1: (2, ValueError("no"))}, nan={4: 1}), prune=ASYNCHRONOUS)

    runs = outcome.runs.set_index("lr")
    assert (runs["status"][1], runs["epochs"][1]) == ("failed", 1)
    assert runs["error"][4] == "after epoch 1 of 9: test_loss is nan"


@pytest.mark.parametrize("executor", ["inline", pytest.param("lanes", marks=pytest.mark.slow)])
def test_a_metric_that_does_not_exist_ends_the_grid_and_keeps_what_is_committed_one_by_one(
    start_mixed, executor, tmp_path
):
    message = "compares runs by 'val_loss', which epoch 1 does not have; it has: loss,"
    with pytest.raises(InvalidArgumentError, match=message):
        start_mixed(Train(), prune=SuccessiveHalving("val_loss", asynchronous=True), executor=executor)

    assert kept(tmp_path)[0] == ("interrupted", 1)


@pytest.mark.slow(everywhere=True)
def test_it_is_said_what_is_decided(start_mixed, capsys):
    start_mixed(Train(), prune=ASYNCHRONOUS, display=None)

    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"{ASYNCHRONOUS}: a run that is behind is stopped at once, and can be continued"
    assert "pruned" in lines[4]
    assert "behind 1 of 3 runs" in lines[4]
    start_mixed(Train(), prune=ASYNCHRONOUS, display=None)
    assert "9 runs, 0 to execute, 3 done before, 6 pruned before" in capsys.readouterr().out


def own_loop(run, manager, *, obeys):
    manager.begin_run(run)
    for _ in range(4):
        manager.begin_epoch()
        manager.track(test_loss=run.lr)
        manager.end_epoch()
        if manager.should_stop and obeys:
            break
    manager.end_run()


def test_a_loop_of_ones_own_ends_when_it_is_told_to(start_mixed):
    outcome = start_mixed(
        lambda run, manager: own_loop(run, manager, obeys=True), {"lr": [1, 2]}, prune=ASYNCHRONOUS
    )

    assert kept(outcome) == [("completed", 4), ("pruned", 1)]
    assert outcome.runs["error"][1] == "after epoch 1: behind 1 of 2 runs"


def test_a_loop_of_ones_own_that_does_not_listen_is_completed(start_mixed):
    outcome = start_mixed(
        lambda run, manager: own_loop(run, manager, obeys=False), {"lr": [1, 2]}, prune=ASYNCHRONOUS
    )

    assert kept(outcome) == [("completed", 4), ("completed", 4)]


def test_a_loop_that_was_left_by_break_is_completed(start_mixed):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(4, checkpoint={}):
                manager.track(test_loss=run.lr)
                break

    assert kept(start_mixed(train, {"lr": [1, 2]}, prune=ASYNCHRONOUS)) == [("completed", 1)] * 2


def test_the_rule_takes_true_or_false():
    with pytest.raises(InvalidArgumentError, match="asynchronous must be"):
        SuccessiveHalving("loss", asynchronous="yes")  # type: ignore[arg-type]


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("min_epochs", [9, 3])
def test_a_first_rung_that_no_run_goes_beyond_is_named(start_mixed, caplog, min_epochs):
    caplog.set_level("INFO", "runmanager")

    start_mixed(Train(), prune=SuccessiveHalving("test_loss", min_epochs=min_epochs, asynchronous=True))

    said = "! no run was stopped early: none has more epochs than min_epochs=9" in caplog.text
    assert said == (min_epochs == 9)

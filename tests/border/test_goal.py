"""The goal of an experiment: one metric decides wherever the runs are read."""

import warnings

import pytest
import torch

from runmanager import (
    GridError,
    RunManager,
    RunsWarning,
    SuccessiveHalving,
    best,
    load_runs,
    verdict,
    write_report,
)
from tests.border.pages import by_id, parse, text_of
from tests.border.work import start

pytestmark = pytest.mark.usefixtures("own_folder")
GRID = {"lr": [0.1, 0.2, 0.3], "seed": [1, 2]}
by_night = pytest.mark.slow(everywhere=True)


def train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(3, checkpoint={}):
            manager.track_loss(1 / epoch, 1)
            manager.track(reward=10 * run.lr + epoch, policy_loss=-run.lr)


def said(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_each_run_shows_the_metric_that_decides_first(capsys):
    start({"lr": [0.1]}, train, goal="max:reward", display=None)

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    row = next(index for index, words in enumerate(lines) if words[:1] == ["✓"])
    assert lines[row - 1][-5:] == ["reward", "policy_loss", "loss", "run", "duration"]
    assert lines[row][-5:-2] == ["4.000", "-0.1000", "0.3333"]


def test_a_later_start_keeps_the_goal_or_replaces_it_and_says_so(capsys):
    start(GRID, train, goal="max:rewards", repeats=["seed"], display=None)
    assert "no run has that metric; did you mean 'reward'?" in said(capsys)
    start(GRID, train, goal="max:reward")
    start(GRID, train)
    assert best(load_runs("runs"))["lr"].tolist()[0] == 0.3

    start(GRID, train, goal="min:reward", repeats=[], display=None)

    text = said(capsys)
    assert "the goal is min:reward now, no longer max:reward" in text
    assert "the repeat axes are none now, no longer seed" in text
    assert "6 runs, 0 to execute, 6 completed" in text  # it identifies no run
    assert best(load_runs("runs"))["run"].tolist()[0] == 1


def test_pruning_follows_the_goal_of_this_start_or_of_an_earlier_one_and_needs_one():
    prune = SuccessiveHalving()
    with pytest.raises(GridError, match=r"prune= has nothing to compare runs by: give run_grid\(goal="):
        start(GRID, train, prune=prune)

    first = start({"lr": [0.3, 0.1]}, train, goal="max:reward", prune=prune)
    start({"lr": [0.1]}, train, experiment="two", goal="min:reward")
    second = start({"lr": [0.1, 0.2]}, train, experiment="two", prune=prune)

    assert [each.runs["status"].tolist() for each in (first, second)] == [["completed", "pruned"]] * 2


def test_a_loop_of_ones_own_writes_its_goal_with_the_experiment():
    def loop(goal):
        manager = RunManager("exp", tensorboard=False, display=False, goal=goal)
        for lr in (0.1, 0.2):
            with manager.run({"lr": lr}):
                for _ in manager.epochs(1):
                    manager.track(policy_loss=1 - lr, kl=lr)

    with pytest.raises(GridError, match="got 'maximum:kl'; write 'max:kl'"):
        loop("maximum:kl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for goal in ("min:kl", None, "min:kl"):
            loop(goal)
    assert best(load_runs("runs"))["lr"].tolist() == [0.1, 0.2]

    with pytest.warns(RunsWarning, match="the goal is max:kl now, no longer min:kl"):
        loop("max:kl")
    assert best(load_runs("runs"))["lr"].tolist()[0] == 0.2


def keeping(run, manager):
    with manager.run(run, torch.nn.Linear(1, 1)):
        for epoch in manager.epochs(3, checkpoint={}, keep="best:val_f1"):
            value = run.lr - run.width + run.seed / 100
            manager.track(val_f1=value if epoch == 2 else -9.0, val_loss=run.lr * epoch)


@by_night
def test_the_value_of_the_kept_weights_has_one_name_on_every_screen_and_decides():
    outcome = start({"lr": [0.1, 0.2], "width": [1, 2], "seed": [1, 2]}, keeping)

    page = parse(write_report("runs/exp", "page.html"))
    for table in ("runs", "settings"):
        headings = [text_of(cell).replace(" ", "").strip("↕↑↓") for cell in by_id(page, table).iter("th")]
        assert any(heading.endswith("keptval_f1") for heading in headings)
        assert not {"val_f1", "meanval_f1"} & {*headings}
    decision = verdict(load_runs("runs"))
    assert decision.table["kept val_f1"].tolist() == pytest.approx([-0.785, -0.885, -1.785, -1.885])
    assert "Changing width alone changes kept val_f1 by " in str(outcome.panel)

    start({"lr": [0.1, 0.2], "width": [1, 2], "seed": [1, 2]}, keeping, goal="val_loss")

    assert load_runs("runs")["kept val_loss"].tolist()[::4] == pytest.approx([0.2, 0.4])

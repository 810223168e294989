import json
import warnings

import pytest
import torch

from runmanager import (
    RunManager,
    RunsWarning,
    SuccessiveHalving,
    best,
    load_runs,
    run_grid,
    show,
    verdict,
    write_report,
)
from runmanager.core.experiment import Experiment
from runmanager.errors import GridError
from runmanager.tensorboard.server import page_of
from tests.report.reading import by_id, parse, text_of

GRID = {"lr": [0.1, 0.2, 0.3], "device": ["cpu"], "seed": [1, 2]}


def train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(9, checkpoint={}):
            manager.track_loss(1 / epoch, 1)
            manager.track(reward=10 * run.lr + epoch, policy_loss=-run.lr)


def start(root, params=None, **options):
    options = {"executor": "inline", "tensorboard": False, "display": False, "experiment": "e", **options}
    return run_grid(params or GRID, options.pop("train", train), root=root, **options)


@pytest.mark.slow
def test_the_goal_of_a_grid_decides_wherever_it_is_read(tmp_path):
    outcome = start(tmp_path, goal="max:reward", repeats="seed", tensorboard=True)

    stored = json.loads((tmp_path / "e/grid.json").read_text())
    assert (stored["goal"], stored["repeats"]) == ("max:reward", ["seed"])
    for runs in (outcome.runs, load_runs(tmp_path)):
        assert best(runs)["lr"].tolist() == [0.3, 0.2, 0.1]
        assert show(runs).caption.startswith("best mean reward over seed first")
    assert best(outcome.results).iloc[0]["epoch"] == 9
    assert "train/reward" in page_of(tmp_path / "e").link()
    page = parse(write_report(tmp_path / "e", tmp_path / "report.html"))
    assert text_of(next(page.iter("h1"))).startswith("lr=0.3 leads 2 others, but 2 seeds do not decide it")
    assert text_of(by_id(page, "lead")).startswith("lr=0.3 leads: reward 12, the mean of 2 seeds")


@pytest.mark.slow(everywhere=True)
def test_a_later_start_keeps_the_goal_or_replaces_it_and_says_so(tmp_path, capsys):
    start(tmp_path, goal="max:reward", repeats=["seed"])
    start(tmp_path)
    assert best(load_runs(tmp_path))["lr"].tolist()[0] == 0.3

    start(tmp_path, goal="min:reward", repeats=[], display=None)

    lines = capsys.readouterr().out.splitlines()
    assert "! the goal is min:reward now, no longer max:reward" in lines
    assert "! the repeat axes are none now, no longer seed" in lines
    assert any(line.endswith("6 runs, 0 to execute, 6 completed") for line in lines)  # it identifies no run
    assert best(load_runs(tmp_path))["run"].tolist()[0] == 1


def test_each_run_shows_the_metric_that_decides_first(tmp_path, capsys):
    start(tmp_path, {"lr": [0.1]}, goal="max:reward", display=None)

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    row = next(index for index, words in enumerate(lines) if words[0] == "✓")
    assert lines[row - 1][-3:] == ["reward", "loss", "policy_loss"]
    assert lines[row][-3:] == ["10", "0.1111", "-0.1000"]


@pytest.mark.slow
def test_a_goal_that_no_run_tracks_is_told_at_the_end_and_can_be_corrected(tmp_path, capsys):
    start(tmp_path, goal="max:rewards", display=None)
    assert (
        "! the goal is 'max:rewards', but no run has that metric; did you mean 'reward'? (to correct it, start "
        "the grid with another goal=, which executes nothing again)"
    ) in capsys.readouterr().out.replace("\n  with", " with").replace("\n  ", " ")

    start(tmp_path, goal="max:reward", display=None)

    assert best(load_runs(tmp_path)).iloc[0]["lr"] == 0.3
    assert "no run has that metric" not in capsys.readouterr().out


def test_pruning_follows_the_goal(tmp_path):
    outcome = start(tmp_path, {"lr": [0.3, 0.1, 0.2]}, goal="max:reward", prune=SuccessiveHalving())

    assert outcome.runs["status"].tolist() == ["completed", "pruned", "pruned"]


def test_pruning_follows_the_goal_that_an_earlier_start_gave(tmp_path):
    start(tmp_path, {"lr": [0.1]}, goal="min:reward")

    outcome = start(tmp_path, {"lr": [0.1, 0.2, 0.3]}, prune=SuccessiveHalving())

    assert outcome.runs["status"].tolist() == ["completed", "pruned", "pruned"]


def test_pruning_by_nothing_is_refused(tmp_path):
    with pytest.raises(GridError, match=r"prune= has nothing to compare runs by: give run_grid\(goal="):
        start(tmp_path, prune=SuccessiveHalving())

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        (
            {"goal": "kl", "repeats": "sed"},
            [
                "whether large values of 'kl' are good is not known: write goal='max:kl' or goal='min:kl'",
                "repeats='sed', but the grid has no axis 'sed'; did you mean 'seed'?",
            ],
        ),
        (
            {"goal": "max:lr"},
            ["goal='max:lr', but 'lr' is a hyperparameter or a column: name a tracked metric"],
        ),
        (
            {"goal": "max:status"},
            ["goal='max:status', but 'status' is a hyperparameter or a column: name a tracked metric"],
        ),
        ({"repeats": 3}, ["repeats must be the names of axes, as repeats=('seed',), got 3"]),
        (
            {"repeats": ["x9"]},
            ["repeats=['x9'], but the grid has no axis 'x9'; it has: lr, device, seed"],
        ),
    ],
)
def test_what_cannot_decide_is_refused_before_anything_is_written(tmp_path, options, problems):
    with pytest.raises(GridError) as caught:
        start(tmp_path, **options)

    assert caught.value.problems == problems
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_tensorboard_groups_the_runs_of_a_setting(tmp_path):
    start(tmp_path, goal="max:reward", repeats=("seed",), tensorboard=True)

    stored = json.loads((tmp_path / "e/hparams.json").read_text())
    assert (stored["grouped_by"], stored["repeats"]) == (["lr"], ["seed"])
    assert "seed" not in stored["kinds"]


def test_a_loop_of_ones_own_writes_its_goal_with_the_experiment(tmp_path):
    def loop(goal):
        manager = RunManager("e", tmp_path, tensorboard=False, display=False, goal=goal)
        for lr in (0.1, 0.2):
            train_one(manager, lr)

    def train_one(manager, lr):
        with manager.run({"lr": lr}):
            for _ in manager.epochs(1):
                manager.track(policy_loss=1 - lr, kl=lr)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop("min:kl")
        loop(None)
        loop("min:kl")
    assert best(load_runs(tmp_path))["lr"].tolist()[0] == 0.1
    assert len(Experiment(tmp_path / "e").runs) == 2

    with pytest.warns(RunsWarning, match="the goal is max:kl now, no longer min:kl"):
        loop("max:kl")
    assert best(load_runs(tmp_path))["lr"].tolist()[0] == 0.2


def test_a_manager_refuses_a_goal_of_unknown_direction_before_anything_is_written(tmp_path):
    with pytest.raises(GridError, match="write goal='max:kl' or goal='min:kl'"):
        RunManager("e", tmp_path, goal="kl")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow(everywhere=True)
def test_the_value_of_the_kept_weights_has_one_name_on_every_screen(tmp_path):
    def train_with(run, manager):
        with manager.run(run, torch.nn.Linear(1, 1)):
            for epoch in manager.epochs(3, checkpoint={}, keep="best:val_f1"):
                manager.track(val_f1=run.lr - run.width + run.seed / 100 if epoch == 2 else -9.0)

    outcome = start(tmp_path, {"lr": [0.1, 0.2], "width": [1, 2], "seed": [1, 2]}, train=train_with)

    page = parse(write_report(tmp_path / "e", tmp_path / "page.html"))
    for table in ("runs", "settings"):
        headings = [text_of(cell).strip(" ↕↑↓") for cell in by_id(page, table).iter("th")]
        assert any(heading.endswith("kept val_f1") for heading in headings)
        assert not {"val_f1", "mean val_f1"} & {*headings}
    decision = verdict(load_runs(tmp_path))
    assert decision.metric == "kept val_f1"
    assert decision.table["kept val_f1"].tolist() == pytest.approx([-0.785, -0.885, -1.785, -1.885])
    assert "Changing width alone changes kept val_f1 by " in str(outcome.panel)


@pytest.mark.slow(everywhere=True)
def test_the_weights_that_a_run_keeps_decide_at_which_epoch_it_counts(tmp_path):
    def train_with(run, manager):
        with manager.run(run, torch.nn.Linear(1, 1)):
            for epoch in manager.epochs(3, checkpoint={}, keep="best:val_f1"):
                manager.track(val_f1=run.lr if epoch == 2 else 0.0, val_loss=run.lr * epoch)

    run_grid({"lr": [0.1, 0.2]}, train_with, experiment="e", root=tmp_path, executor="inline", display=False)

    runs = load_runs(tmp_path)
    assert runs["kept val_f1"].tolist() == [0.1, 0.2]
    assert best(runs)["lr"].tolist() == [0.2, 0.1]
    assert "loss/val" in page_of(tmp_path / "e").link()

    run_grid(
        {"lr": [0.1, 0.2]}, train_with, experiment="e", root=tmp_path, executor="inline", display=False,
        goal="val_loss",
    )  # fmt: skip

    assert load_runs(tmp_path)["kept val_loss"].tolist() == pytest.approx([0.2, 0.4])

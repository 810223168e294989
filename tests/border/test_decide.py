"""`decide=`: repeats until the verdict is decided (docs/verdict.md)."""

import math
import random
import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runmanager import (
    Decide,
    GridError,
    InvalidArgumentError,
    export,
    load_runs,
    load_table,
    run_grid,
    show,
    verdict,
    write_report,
)
from runmanager.testing import assert_not_worse
from tests.border.experiments import QUIET, Scored, execute
from tests.border.screens import terminal

TWO = {"optimizer": ["adam", "sgd"], "device": ["cpu"]}
FAR = {"adam": 0.9, "sgd": 0.8}
EQUAL = {"adam": 0.8, "sgd": 0.8}


class Train(Scored):
    """Tracks the score of the optimizer, and noise that follows from the seed.

    Args:
        means: Optimizer -> its mean score.
        noise: The standard deviation within a setting.
        faults: (optimizer, seed) -> what is raised, once.
    """

    def __init__(self, means, noise=0.01, faults=None):
        super().__init__(self.score)
        self.means, self.noise, self.faults = means, noise, faults or {}

    def score(self, run):
        if fault := self.faults.pop((run.optimizer, run.seed), None):
            raise fault
        noise = random.Random(f"{run.seed} {run.optimizer}").gauss(0, self.noise)  # noqa: S311
        return {"score": self.means[run.optimizer] + getattr(run, "width", 0) + noise}

    @property
    def names(self):
        return [(run.optimizer, run.seed) for run in self.executed]


@pytest.fixture
def start(tmp_path):
    def start(train, grid=TWO, **options):
        usual = {"repeats": "seed", "goal": "max:score", "decide": Decide()}
        return execute(tmp_path, grid, train, **{**usual, **options})

    return start


def repeats(root):
    runs = load_runs(root)
    return runs[runs["status"] == "completed"].groupby("optimizer").size().to_dict()


def test_a_clear_difference_takes_the_fewest_seeds_that_can_decide(start, tmp_path):
    train = Train(FAR)

    outcome = start(train)

    assert train.names == [(optimizer, seed) for seed in range(6) for optimizer in ("adam", "sgd")]
    assert outcome.exit_code == 0
    decision = verdict(load_runs(tmp_path))
    assert (decision.decided, decision.better, decision.repeats) == (True, {"optimizer": "adam"}, 6)
    assert len(outcome.runs) == len(load_runs(tmp_path)) == 12


@pytest.mark.slow
def test_only_undecided_settings_get_more_seeds(start, tmp_path):
    train = Train({"adam": 0.83, "rmsprop": 0.82, "sgd": 0.2})

    start(train, {"optimizer": list(train.means)}, decide=Decide(max_repeats=40))

    numbers = repeats(tmp_path)
    assert numbers["sgd"] == 7
    assert 7 < numbers["adam"] == numbers["rmsprop"] <= 40


def test_what_is_decided_is_not_repeated_and_a_killed_grid_continues(start):
    train = Train(FAR, faults={("sgd", 3): KeyboardInterrupt()})

    codes = [start(train).exit_code for _ in range(3)]

    assert codes == [130, 0, 0]
    assert sorted(set(train.names)) == sorted((name, seed) for name in FAR for seed in range(6))
    assert len(train.names) == 13  # the interrupted one twice


def test_a_larger_limit_continues(start, tmp_path):
    train = Train(EQUAL)

    with terminal(80) as screen:
        start(train, decide=Decide(max_repeats=7), display=True)
    first = len(train.executed)
    start(train, decide=Decide(max_repeats=8))

    assert "max_repeats" in screen.text
    assert first == 14
    assert train.names[14:] == [("adam", 7), ("sgd", 7)]
    assert repeats(tmp_path) == {"adam": 8, "sgd": 8}


def test_after_each_seed_a_line_has_the_current_state(start):
    with terminal(120) as screen:
        start(Train({"adam": 0.81, "sgd": 0.8}), decide=Decide(max_repeats=8), display=True)

    assert "leads optimizer=sgd, but 6 seeds do not decide it" in screen.text
    assert "; this grid has at most 8 seeds" in screen.text
    assert re.search(r"after 7 seeds: optimizer=adam is 0\.\d+ ahead, evidence \S+ \(20 decides\)", screen.text)


def test_the_limit_may_be_seconds_of_training(start, tmp_path):
    start(Train(EQUAL), decide=Decide(max_seconds=1e-6))

    assert repeats(tmp_path) == {"adam": 6, "sgd": 6}


@pytest.mark.parametrize(
    ("means", "noise", "decide", "outcome"),
    [
        ({"adam": 0.8, "sgd": 0.8001}, 0.01, Decide(margin=0.05), "equal"),
        (EQUAL, 0.0, Decide(), "identical"),
    ],
)
def test_a_grid_also_ends_with_the_verdict_that_settings_are_equal(start, means, noise, decide, outcome):
    runs = start(Train(means, noise), decide=decide).runs

    decision = verdict(runs)
    assert decision.outcome == outcome
    assert str(decision).partition("; ")[0] in show(runs).caption


def test_listed_repeats_run_out(start, tmp_path):
    start(Train(EQUAL), {**TWO, "seed": [7, 5, 3]})

    assert load_runs(tmp_path)["seed"].tolist() == [7, 7, 5, 5, 3, 3]


def test_a_setting_that_loses_all_its_repeats_gets_no_more(start, tmp_path):
    faults = {("sgd", seed): ValueError("no") for seed in range(40)}

    outcome = start(Train({**FAR, "rmsprop": 0.5}, faults=faults), {"optimizer": [*FAR, "rmsprop"]})

    assert outcome.exit_code == 1
    assert repeats(tmp_path) == {"adam": 7, "rmsprop": 7}
    assert "lost 7 of 7 seeds" in str(verdict(load_runs(tmp_path)))


def test_axis_margin_and_error_are_those_of_the_verdict_afterwards_and_of_an_exported_table(start, tmp_path):
    decide = Decide("optimizer", margin=0.5, error=0.1)
    runs = start(Train({"adam": 0.9, "sgd": 0.9}), {**TWO, "width": [1, 2]}, decide=decide).runs

    export(runs, tmp_path / "runs.csv")

    (tmp_path / "e").rename(tmp_path / "moved")  # the table has the rule, not its folder
    decision = verdict(runs)
    assert (decision.outcome, {decision.better, decision.worse}) == ("equal", {"adam", "sgd"})
    assert "10 %" in decision.assumptions
    table = load_table(tmp_path / "runs.csv")
    assert verdict(table).sentence == decision.sentence
    assert "in at most 10 of 100 experiments" in write_report(table, tmp_path / "page.html").read_text()
    assert verdict(runs, margin=1e-9).outcome == "undecided"
    assert verdict(runs, goal="min:epoch duration").outcome != "equal"  # the margin is one of the score
    assert "5 %" in verdict(runs, error=0.05).assumptions
    assert verdict(runs.drop(columns="optimizer")).better == {"width": 2}  # the axis is one of the table


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"repeats": None}, "repeats"),
        ({"repeats": ("fold", "seed")}, "repeats"),
        ({"repeats": "optimizer", "decide": Decide("optimizer")}, "optimizer"),
        ({"decide": Decide("optimiser")}, "'optimiser'"),
        ({"decide": 5}, "5"),
    ],
)
def test_what_cannot_be_decided_is_refused_before_anything_starts(start, tmp_path, options, named):
    with pytest.raises(GridError, match=named):
        start(Train(FAR), **options)

    assert list(tmp_path.iterdir()) == []


# As a test


def scored(mean, fault=None, executed=None):
    """Return a training function that takes a hyperparameter with a default; `fault` is a seed that fails."""

    def train(run, manager, bonus=0.0):
        with manager.run(run):
            for _ in manager.epochs(1):
                if run.seed == fault:
                    raise ValueError("no more")
                if executed is not None:
                    executed.append(run.seed)
                noise = random.Random(f"{run.seed} {mean}").gauss(0, 0.01)  # noqa: S311
                manager.track(f1=mean + bonus + noise)

    return train


@pytest.mark.parametrize(
    ("mean", "margin", "outcome"), [(0.9, 0.002, "better"), (0.8, 0.002, "identical"), (0.801, 0.05, "equal")]
)
def test_assert_not_worse_passes_for_a_better_function_and_an_equal_one(mean, margin, outcome):
    result = assert_not_worse(scored(mean), scored(0.8), "max:f1", margin=margin, params={"bonus": [10.0]})

    assert (result.outcome, result.repeats >= 5) == (outcome, True)
    assert result.table["f1"].tolist() == pytest.approx([10.8] * 2, abs=0.15)


@pytest.mark.parametrize(
    ("new", "options", "named"),
    [
        (scored(0.7), {}, "baseline is better than new by 0"),
        (scored(0.8001), {"max_repeats": 7, "margin": 1e-5}, "7 seeds do not decide it"),
        (scored(0.9, fault=3), {}, "new, seed 3: failed · ValueError: no more"),
    ],
)
def test_assert_not_worse_fails_with_verdict_and_table(new, options, named):
    with pytest.raises(AssertionError, match=named) as caught:
        assert_not_worse(new, scored(0.8), "max:f1", **{"margin": 0.002, **options})

    assert "variant" in str(caught.value) or "failed" in named


@pytest.mark.slow
def test_with_a_root_the_runs_are_kept_and_executed_again_when_the_code_changes(tmp_path):
    def start(mean):
        executed: list[int] = []
        assert_not_worse(scored(mean, None, executed), scored(0.8), "max:f1", margin=0.002, root=tmp_path)
        return executed

    assert [start(mean) for mean in (0.9, 0.9, 0.95)] == [[*range(6)], [], [*range(6)]]
    assert len(load_runs(tmp_path)) == 12


def test_what_cannot_be_asserted_is_an_error():
    with pytest.raises(GridError, match="'variant' is the axis of new and baseline"):
        assert_not_worse(scored(0.9), scored(0.8), "max:f1", 0.001, params={"variant": [1]})
    with pytest.raises(InvalidArgumentError, match="no run has that metric"):
        assert_not_worse(scored(0.9), scored(0.8), "max:f2", margin=0.001)


# What repeats and items can decide


def test_a_plan_says_which_difference_the_largest_number_of_seeds_decides(start):
    def planned(**options):
        with terminal(200) as screen:
            start(Train(FAR), plan_only=True, display=True, **options)
        return screen.text

    assert "at least 6 seeds" in planned(grid={**TWO, "seed": range(3)}, decide=None)
    before = planned(grid={**TWO, "seed": range(8)}, decide=None)
    start(Train(FAR), {**TWO, "seed": range(5)}, decide=None)

    assert "3 seeds tell which difference 8 seeds can decide" in before
    assert "With 30 seeds, a difference of 0.0" in planned(decide=Decide(max_repeats=30))


@pytest.mark.slow(everywhere=True)
def test_the_difference_that_a_plan_names_follows_from_the_spread_of_several_rivals(start):
    spread = {"adam": 0.0, "sgd": 0.001, "lion": 0.1}
    train = Scored(lambda run: {"score": (run.optimizer == "adam") + spread[run.optimizer] * (-1) ** run.seed})
    grid = {"optimizer": [*spread], "device": ["cpu"]}
    start(train, {**grid, "seed": range(5)}, decide=None)

    with terminal(200) as screen:
        start(train, {**grid, "seed": range(30)}, decide=None, plan_only=True, display=True)

    (size,) = re.findall(r"a difference of ([\d.]+) is decided", screen.text)
    assert float(size) > 0.01


class Fixed(nn.Module):
    """Classifies the items of which the input is true correctly."""

    def forward(self, batch):
        labels = batch[:, 1]
        return torch.eye(2)[torch.where(batch[:, 0] > 0, labels, 1 - labels).long()]


@pytest.mark.parametrize(("data", "is_same"), [("test", True), ("val", True), ("test", False)])
def test_a_verdict_says_how_far_the_choice_of_the_items_moves_it(tmp_path, data, is_same):
    def train(run, manager):
        number = 400 if is_same or run.lr == 1 else 300
        draws = torch.rand(number, generator=torch.Generator().manual_seed(run.seed * 10 + run.lr))
        labels = torch.arange(number) % 2
        correct = draws < (0.9 if run.lr == 1 else 0.7)
        items = TensorDataset(torch.stack([correct, labels], dim=1).float(), labels)
        with manager.run(run, Fixed()):
            for _ in manager.epochs(1):
                manager.evaluate(DataLoader(items, 100), data)

    grid = {"lr": [1, 2], "seed": range(3)}
    goal = f"max:{data}_accuracy"
    runs = run_grid(grid, train, experiment="e", root=tmp_path, goal=goal, repeats="seed", **QUIET).runs

    said = re.findall(rf"the choice of the 400 {data} items moves .* about ± ([\d.]+)", str(verdict(runs)))
    first, second = (runs[runs.lr == lr][f"{data}_accuracy"].mean() for lr in (1, 2))
    most = min(first + second, 2 - first - second)
    width = 1.96 * math.sqrt((most - (first - second) ** 2) / 400)
    assert [float(text) for text in said] == ([pytest.approx(width, rel=0.06)] if is_same else [])

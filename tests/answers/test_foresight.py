"""What is said before and during a grid about the differences that its repeats can decide."""

import re
from typing import Any

import numpy as np
import pytest

from runmanager import Decide, run_grid

NUMBERS = re.compile(
    r"With (\d+) seeds(?: \((\d+) s\))?, a difference of ([\d.]+) is decided in 8 of 10 cases; "
)


def train(run, manager):
    shared, noise = np.random.default_rng(run.seed), np.random.default_rng([run.seed, int(10 * run.lr)])
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track(score=0.8 + shared.normal(0, 0.1) + noise.normal(0, 0.01))


@pytest.fixture
def start(tmp_path, capsys):
    """Start a grid of two settings under tmp_path; return what it prints."""

    def run(seeds=None, experiment="exp", **options):
        grid = {"lr": [0.1, 0.2], "device": ["cpu"]} | ({} if seeds is None else {"seed": range(seeds)})
        usual: dict[str, Any] = {
            "repeats": "seed",
            "goal": "max:score",
            "executor": "inline",
            "tensorboard": False,
        }
        run_grid(grid, train, experiment=experiment, root=tmp_path, **usual | options)
        return capsys.readouterr().out

    return run


def last(text):
    return " ".join(text.splitlines()[-1:])


def test_a_plan_says_which_difference_its_seeds_decide(start):
    start(5)

    text = last(start(8, plan_only=True))

    ((number, time, size),) = NUMBERS.findall(text)
    assert (number, time) == ("8", "")
    assert 0.01 < float(size) < 0.06  # 2.2 standard deviations of the differences, which is about 0.014
    assert re.search(r"takes about \d+ seeds, \d+ s \(by the spread of 5 seeds\)$", text)


@pytest.mark.slow(everywhere=True)
def test_a_plan_of_decide_says_what_the_maximum_number_of_seeds_decides(start):
    start(5)

    text = last(start(decide=Decide(max_repeats=30), plan_only=True))

    ((number, time, _),) = NUMBERS.findall(text)
    assert (number, time != "") == ("30", True)


def test_below_three_seeds_there_is_no_number(start):
    start(2)

    assert last(start(8, plan_only=True)) == "3 seeds tell which difference 8 seeds can decide"


@pytest.mark.slow(everywhere=True)
def test_the_spread_may_be_that_of_another_experiment_with_the_same_goal(start):
    start(6, "before")

    assert last(start(8, "new", plan_only=True)).endswith("seeds (by the spread of 6 seeds in before)")
    assert last(start(8, "new", goal="min:score", plan_only=True)).startswith("3 seeds tell")


def test_too_few_seeds_cannot_decide(start):
    assert last(start(5, plan_only=True)) == "! 5 seeds cannot decide: a verdict needs at least 6 seeds"


def test_a_grid_without_repeats_is_planned_without_a_word_about_them(start):
    assert "seed" not in last(start(1, plan_only=True))


def test_a_damaged_experiment_beside_it_does_not_matter(start, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "grid.json").write_text('{"v": 1, "goal": "max:score", "runs": [3]')

    assert last(start(8, plan_only=True)).startswith("3 seeds tell")


@pytest.mark.slow(everywhere=True)
def test_a_limit_that_will_hardly_decide_is_named_once_while_the_grid_runs(start):
    lines = start(decide=Decide(max_repeats=10)).splitlines()

    (line,) = [line for line in lines if "will hardly decide" in line]
    assert line.startswith("! max_repeats=10 will hardly decide. With 10 seeds (")
    assert re.search(r"; the lead of [\d.]+ takes (about|more than) [\d,]+ seeds", line)
    assert lines.index(line) < next(i for i, text in enumerate(lines) if "undecided after all" in text)

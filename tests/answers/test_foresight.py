"""What is said before and during a grid about the differences that its repeats can decide."""

import re
from typing import Any

import numpy as np
import pytest

from runmanager import Decide, run_grid

NUMBERS = re.compile(
    r"With (\d+) seeds, a difference of ([\d.]+) is decided in 8 of 10 cases \(by the spread of 5 seeds\)$"
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

    ((number, size),) = NUMBERS.findall(text)
    assert number == "8"
    assert 0.01 < float(size) < 0.06  # 2.2 standard deviations of the differences, which is about 0.014


@pytest.mark.slow(everywhere=True)
def test_a_plan_of_decide_says_what_the_maximum_number_of_seeds_decides(start):
    start(5)

    text = last(start(decide=Decide(max_repeats=30), plan_only=True))

    ((number, _),) = NUMBERS.findall(text)
    assert number == "30"


def test_below_three_seeds_there_is_no_number(start):
    start(2)

    assert last(start(8, plan_only=True)) == "3 seeds tell which difference 8 seeds can decide"


def test_too_few_seeds_cannot_decide(start):
    assert last(start(5, plan_only=True)) == "! 5 seeds cannot decide: a verdict needs at least 6 seeds"


def test_a_grid_without_repeats_is_planned_without_a_word_about_them(start):
    assert "seed" not in last(start(1, plan_only=True))

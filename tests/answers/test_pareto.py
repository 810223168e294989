import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager import InvalidArgumentError, load_runs, pareto, show, write_report
from runmanager.goal import Goal
from runmanager.storage.design import Design
from runmanager.storage.folders import Experiment
from runmanager.tables.ranking import front_of
from tests.report.reading import by_id, parse, text_of
from tests.tables.run_tables import record, write_run

GOALS = ["test_accuracy", "min:size_mb"]


TWO = "a Pareto front has two goals or more"
UNKNOWN = (
    "whether large values of 'size_mb' are good is not known: write goal='max:size_mb' or goal='min:size_mb'"
)
MISSING = "these runs have no column 'nix'; they have: run, test_accuracy, size_mb"


def table(rows, **more):
    runs = pd.DataFrame(rows, columns=["test_accuracy", "size_mb"]).assign(**more)
    runs.insert(0, "run", range(1, len(runs) + 1))
    runs.attrs["hyperparameters"] = [*more]
    return runs


NUMBERS = st.integers(0, 4).map(float) | st.just(math.nan)


@pytest.mark.slow(everywhere=True)
@given(
    st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[NUMBERS] * width), min_size=1, max_size=30))
)
def test_the_front_is_what_no_other_beats(rows):
    scores = np.array(rows)
    there = [row for row in range(len(rows)) if np.isfinite(scores[row]).all()]

    expected = {
        row
        for row in there
        if not any(
            (scores[other] >= scores[row]).all() and (scores[other] > scores[row]).any() for other in there
        )
    }

    assert set(front_of(scores)) == expected
    assert len(front_of(scores)) == len(expected)


def test_the_best_of_the_first_goal_is_first_and_all_columns_stay():
    runs = table([(0.7, 1), (0.9, 3), (0.8, 2), (0.75, 2.5)], lr=[0.1, 0.2, 0.3, 0.4])

    front = pareto(runs, GOALS)

    assert front["run"].tolist() == [2, 3, 1]
    assert [*front] == [*runs]
    assert "no other is better in all of max:test_accuracy, min:size_mb" in str(show(front))
    assert [line.split()[0] for line in str(show(front)).splitlines()[1:4]] == ["2", "3", "1"]


def test_runs_without_a_result_do_not_compete():
    runs = table([(0.7, 1), (0.9, 3), (math.nan, 0), (0.95, 0)], status=["completed"] * 3 + ["failed"])
    runs.attrs["hyperparameters"] = []

    assert pareto(runs, GOALS)["run"].tolist() == [2, 1]


def test_repeated_settings_compete_by_their_means():
    rows = [(0.9, 3), (0.5, 3), (0.75, 2), (0.75, 2)]
    runs = table(rows, lr=[0.1, 0.1, 0.2, 0.2], seed=[0, 1, 0, 1])

    front = pareto(runs, GOALS, repeats="seed")

    assert front["lr"].tolist() == [0.2]
    assert front["test_accuracy mean"].tolist() == [0.75]
    assert "no other is better in all" in str(show(front))


@pytest.mark.parametrize(
    ("goals", "problems"),
    [
        ("accuracy", [f"{TWO}, got 'accuracy': write goal=['accuracy', 'min:loss']"]),
        (["max:size_mb"], [f"{TWO}, got ['max:size_mb']: write goal=['accuracy', 'min:loss']"]),
        (["max:size_mb", "min:size_mb"], ["'size_mb' is a goal twice: keep one"]),
        (["test_accuracy", "size_mb", "min:nix"], [UNKNOWN, MISSING]),
    ],
)
def test_goals_that_cannot_be_used_are_named_at_once(goals, problems):
    with pytest.raises(InvalidArgumentError) as caught:
        pareto(table([(0.7, 1)]), goals)

    assert caught.value.problems == problems


def test_the_goals_of_a_search_with_several_are_the_default(tmp_path):
    for lr, kl, cost in ((0.1, 0.5, 3.0), (0.2, 0.7, 1.0), (0.3, 0.9, 2.0)):
        write_run(tmp_path / "e", {"lr": lr}, [record(1, kl=kl, cost=cost)])
    goals = (Goal("kl", -1), Goal("cost", -1))
    Experiment(tmp_path / "e").plan([], {}, Design(goal=goals[0], goals=goals))

    front = pareto(load_runs(tmp_path / "e"))
    page = parse(write_report(tmp_path / "e", tmp_path / "page.html"))

    assert front["lr"].tolist() == [0.1, 0.2]
    assert text_of(by_id(page, "front-words")).startswith("2 of 3 runs are on the Pareto front")


def test_without_several_goals_they_are_asked_for():
    with pytest.raises(InvalidArgumentError, match="two goals or more, got"):
        pareto(table([(0.7, 1)]))

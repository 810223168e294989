import json

import pytest

from runmanager.core.experiment import Design, Experiment, Rule
from runmanager.core.goal import Goal, goal_of_kept

REWARD = Design(Goal("reward", 1), ("seed",))


def test_a_design_is_read_back_as_it_was_written(tmp_path):
    experiment = Experiment(tmp_path / "e")

    assert experiment.decide(REWARD) == []

    assert Experiment(tmp_path / "e").design == REWARD


def test_axes_repeat_by_their_names_unless_somebody_has_said_which_do():
    assert Design().repeating(["lr", "seed", "fold"]) == ("seed", "fold")
    assert Design(repeats=()).repeating(["lr", "seed"]) == ()
    assert Design(repeats=("draw",)).repeating(["lr", "seed", "draw"]) == ("draw",)


def test_the_last_design_wins_and_says_so(tmp_path):
    experiment = Experiment(tmp_path / "e")
    experiment.decide(REWARD)

    sentences = experiment.decide(Design(Goal("loss", -1), ()))

    assert sentences == [
        "the goal is min:loss now, no longer max:reward",
        "the repeat axes are none now, no longer seed",
    ]
    assert experiment.design == Design(Goal("loss", -1), ())


def test_what_is_not_given_stays(tmp_path):
    experiment = Experiment(tmp_path / "e")
    experiment.decide(REWARD)
    before = (tmp_path / "e/grid.json").stat()

    assert experiment.decide(Design()) == experiment.decide(Design(repeats=("seed",))) == []

    assert experiment.design == REWARD
    assert (tmp_path / "e/grid.json").stat().st_ino == before.st_ino  # not written again


def test_a_plan_and_a_forgotten_run_keep_the_design_and_a_design_keeps_the_runs(tmp_path):
    experiment = Experiment(tmp_path / "e")
    folders = experiment.plan([{"lr": 1}, {"lr": 2}], {}, REWARD)
    Experiment(tmp_path / "e").plan([{"lr": 1}, {"lr": 2}], {})

    Experiment(tmp_path / "e").forget([folders[0].id])
    Experiment(tmp_path / "e").decide(Design(Goal("f1", 1)))

    again = Experiment(tmp_path / "e")
    assert [dict(run.params) for run in again.runs.values()] == [{"lr": 2}]
    assert again.design == Design(Goal("f1", 1), ("seed",))


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"goal": 3, "repeats": "seed"},
        {"goal": "kl", "repeats": [1]},
        {"goal": ["max:x"], "repeats": {"seed": 1}},
        {"goal": "max:" * 9000 + ":", "repeats": None},
    ],
)
def test_an_old_or_damaged_grid_json_has_no_design(tmp_path, content):
    (tmp_path / "grid.json").write_text(json.dumps({"v": 1, "runs": [], **content}))

    design = Experiment(tmp_path).design

    assert design.repeats is None
    assert design.goal is None or design.goal.metric.endswith(":")


@pytest.mark.parametrize(
    ("starts", "goal"),
    [
        ([{"keep": "best:test_loss"}, {"keep": "max:f1"}, {"keep": "last"}, {}], Goal("f1", 1)),
        ([{"keep": "last"}, {"keep": 3}, {"keep": "best:kl"}], None),
    ],
)
def test_without_a_goal_that_of_the_kept_weights_decides(starts, goal):
    assert goal_of_kept(starts) == goal


def test_what_is_decided_is_read_back_and_a_later_rule_wins(tmp_path):
    experiment = Experiment(tmp_path / "e")
    experiment.decide(Design(decide=Rule("optimizer", 0.002)))
    experiment.decide(Design(Goal("f1", 1)))

    assert Experiment(tmp_path / "e").design.decide == Rule("optimizer", 0.002, 0.05)
    (sentence,) = experiment.decide(Design(decide=Rule(None, 0.01, 0.1)))
    before = "axis='optimizer', margin=0.002, error=0.05"
    assert sentence == f"the rule of decide= is margin=0.01, error=0.1 now, no longer {before}"
    assert Experiment(tmp_path / "e").design.decide == Rule(None, 0.01, 0.1)


@pytest.mark.parametrize(
    "content", ["adam", [], 1, {"axis": 1}, {"margin": -1}, {"margin": True}, {"error": 2}, {"error": "a"}]
)
def test_a_damaged_rule_is_left_out(tmp_path, content):
    (tmp_path / "grid.json").write_text(json.dumps({"goal": "f1", "decide": content}))

    assert Experiment(tmp_path).design == Design(Goal("f1", 1))

import pytest

from runmanager import RunManager
from runmanager.answers.differences import diff
from runmanager.core.experiment import Design, Experiment
from runmanager.core.goal import parse_goal
from runmanager.errors import RunsWarning


@pytest.fixture
def root(tmp_path):
    """Two experiments of one run each, which differ in the learning rate and the loss."""
    for name, lr in (("a", 0.1), ("b", 0.2)):
        manager = RunManager(name, tmp_path, tensorboard=False, display=False)
        for seed in (1, 2):
            with manager.run({"lr": lr, "seed": seed}):
                for _ in manager.epochs(1):
                    manager.track_loss(lr * seed, 1)
    return tmp_path


def test_damage_is_named_in_one_warning(root):
    for path in root.glob("*/001*/attempt-1.jsonl"):
        path.write_bytes(path.read_bytes().replace(b'"loss":', b'"lose":'))

    with pytest.warns(RunsWarning, match="^2 damaged under ") as caught:
        rows = diff(root / "a", root / "b")

    assert len(caught) == 1
    assert "metric" in [row["what"] for row in rows]


@pytest.mark.parametrize("goal", ["max:nothing", "min:max:loss", "max:\x1b[2J"])
def test_a_goal_that_no_run_has_leaves_the_rest_to_compare(root, goal):
    Experiment(root / "b").decide(Design(parse_goal(goal)))

    rows = {row["name"]: row for row in diff(root / "a", root / "b")}

    assert rows["lr"]["second"] == "0.2"
    assert (rows["goal"]["first"], rows["goal"]["second"].isprintable()) == ("", True)
    assert rows["loss, leading setting"]["difference"] == pytest.approx(0.15)

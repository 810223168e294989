from contextlib import suppress

import pytest
import torch

from runmanager import RunManager, load_steps
from runmanager.tensorboard.hparams import tag
from tests.board.reading import event_files, folder_scalars

LOADER = [(torch.ones(2, 4), torch.tensor([0, 1]))] * 3


def train(root, stop_at=0, num_epochs=3):
    """Train epochs of three batches, or until an interruption in a batch."""
    manager = RunManager("exp", root, display=False)
    state = {"number": 0}
    with suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, None, LOADER):
        for _ in manager.epochs(num_epochs, checkpoint={"state": state}):
            for _ in manager.batches():
                state["number"] += 1
                manager.track_loss(state["number"] / 4, 1)
                manager.log(step_loss=state["number"] / 4)
                if state["number"] % 2 == 0:
                    manager.log({"train/norm": state["number"]})
                if state["number"] == stop_at:
                    raise KeyboardInterrupt
            assert manager.tb
            manager.tb.add_scalar("steps/of_my_own", 7.0, state["number"])
    assert manager.folder
    return manager.folder


WHOLE: dict[str, list[tuple[int, float]]] = {
    "steps/step_loss": [(n, n / 4) for n in range(1, 10)],
    "steps/train_norm": [(n, n) for n in range(2, 10, 2)],
}


def shown(folder):
    return {name: points for name, points in folder_scalars(folder).items() if name in WHOLE}


def test_values_are_shown_over_the_step_of_the_run(tmp_path):
    folder = train(tmp_path)

    assert shown(folder) == WHOLE
    assert [step for step, _ in folder_scalars(folder)[tag("loss")]] == [1, 2, 3]


@pytest.mark.parametrize("moments", [[5], [2], [4, 4, 8], [1, 7, 9], [3, 6]])
def test_a_resumed_run_shows_each_step_once(tmp_path, moments):
    for moment in moments:
        train(tmp_path, moment)
    folder = train(tmp_path)

    scalars = folder_scalars(folder)
    assert shown(folder) == WHOLE
    assert scalars["steps/of_my_own"] == [(3, 7), (6, 7), (9, 7)]
    assert [step for step, _ in scalars[tag("loss")]] == [1, 2, 3]


def test_while_a_run_is_stopped_its_last_steps_are_shown(tmp_path):
    folder = train(tmp_path, 5)

    assert shown(folder)["steps/step_loss"] == [(n, n / 4) for n in range(1, 6)]


def test_without_tensorboard_steps_are_in_the_table_alone(tmp_path):
    manager = RunManager("exp", tmp_path, tensorboard=False, display=False)
    with manager.run({"lr": 0.1}):
        for _ in manager.epochs(1):
            manager.log(score=1)

    assert len(load_steps(tmp_path)) == 1
    assert not event_files(tmp_path)


def test_a_value_that_no_scalar_holds_is_shown_as_nan(tmp_path):
    manager = RunManager("exp", tmp_path, display=False)
    with manager.run({"lr": 0.1}):
        for _ in manager.epochs(1):
            manager.log(score=1e300)

    assert manager.folder
    assert str(folder_scalars(manager.folder)["steps/score"]) == "[(1, nan)]"
    assert load_steps(tmp_path)["score"].tolist() == [1e300]

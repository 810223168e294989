"""The x-axis of curves: epochs, steps, samples or a metric, in the table, in TensorBoard and on the page."""

import contextlib
import json
import math

import pytest
import torch

from runmanager import RunManager, RunsWarning, TensorBoard, load_results, write_report
from tests.border import reading
from tests.border.events import scalars_of
from tests.border.experiments import execute

BATCHES = [torch.ones(8, 2), torch.ones(8, 2), torch.ones(4, 2)]
COLUMNS = {
    "steps": ("steps seen", [3, 6]),
    "samples": ("samples seen", [20, 40]),
    "env_steps": ("env_steps", [100, 200]),
}


def train(root, stop=None, x_axis=None):
    """Train two epochs over 20 samples and 3 batches, with 100 steps of an environment."""
    manager = RunManager("exp", root, tensorboard=TensorBoard(x_axis=x_axis), display=False)
    with contextlib.suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, torch.nn.Linear(2, 1), BATCHES):
        for epoch in manager.epochs(2, checkpoint={}):
            for batch in manager.batches():
                manager.track_loss(1 / epoch, batch)
                if epoch == stop:
                    raise KeyboardInterrupt
            manager.track({"env_steps": 100.0 * epoch}, how="last")
            assert manager.tb
            manager.tb.add_scalar("own/tag", epoch, epoch)


def steps_of(root, tag="loss/train"):
    return [step for step, _ in scalars_of(reading.run_folder(root / "exp"))[tag]]


def page_of(root):
    return write_report(root / "exp", root / "page.html").read_text()


@pytest.mark.parametrize("x_axis", COLUMNS)
def test_it_is_a_column_and_that_of_tensorboard_and_of_the_page_also_of_a_run_that_resumes(tmp_path, x_axis):
    column, steps = COLUMNS[x_axis]
    train(tmp_path, x_axis=x_axis, stop=2)
    train(tmp_path)  # without saying it again

    assert load_results(tmp_path)[column].tolist() == steps
    assert steps_of(tmp_path) == steps_of(tmp_path, "time/epoch_s") == steps
    assert steps_of(tmp_path, "own/tag") == [1, 2]  # the user's own
    page = page_of(tmp_path)
    assert f"loss by {column}" in page
    assert f"[[1.0,0.5],{json.dumps(steps, separators=(',', ':'))}]" in page


def test_by_default_it_is_the_epoch_and_no_column_is_added(tmp_path):
    train(tmp_path)

    assert steps_of(tmp_path) == [1, 2]
    assert not [name for name in load_results(tmp_path) if "seen" in str(name)]
    assert "loss by epoch" in page_of(tmp_path)


def test_a_metric_that_is_not_tracked_is_named_once_and_epochs_take_its_place(tmp_path):
    with pytest.warns(RunsWarning, match="env_step.* epoch 1") as warned:
        train(tmp_path, x_axis="env_step")

    assert (len(warned), steps_of(tmp_path)) == (1, [1, 2])


def test_a_grid_has_one(tmp_path):
    def of_grid(run, manager):
        with manager.run(run, None, BATCHES):
            for _ in manager.epochs(2):
                for batch in manager.batches():
                    manager.track_loss(run.lr, batch)

    outcome = execute(tmp_path, {"lr": [0.1, 0.2]}, of_grid, tensorboard=TensorBoard(x_axis="samples"))

    for folder in reading.run_folders(outcome.folder):
        assert [step for step, _ in scalars_of(folder)["loss/train"]] == [20, 40]


def test_another_one_replaces_it_is_announced_and_leaves_epochs_that_have_none_at_their_number(tmp_path):
    train(tmp_path, x_axis="samples", stop=2)
    with pytest.warns(RunsWarning, match="'steps' now, no longer 'samples'"):
        train(tmp_path, x_axis="steps")

    assert steps_of(tmp_path) == [1, 6]
    assert "loss by epoch" in page_of(tmp_path)


def test_samples_are_counted_on_in_a_run_that_began_without(tmp_path):
    train(tmp_path, stop=2)
    train(tmp_path, x_axis="samples")

    first, second = load_results(tmp_path)["samples seen"]
    assert (math.isnan(first), second) == (True, 40)


@pytest.mark.parametrize("x_axis", ["time (s)", "run", "", 3, "lr"])
def test_what_cannot_be_one_is_refused(tmp_path, x_axis):
    with pytest.raises(ValueError, match="x_axis"):
        execute(tmp_path, {"lr": [1]}, print, tensorboard=TensorBoard(x_axis=x_axis))

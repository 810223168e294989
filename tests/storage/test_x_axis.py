import contextlib
import json
import math

import pytest
import torch

from runmanager import RunManager, TensorBoard, load_results, run_grid, write_report
from runmanager.core.experiment import Experiment, read_runs
from runmanager.core.goal import check_x_axis, seen, x_of, x_value
from runmanager.core.outcome import EpochRecord
from runmanager.errors import InvalidArgumentError, RunsWarning
from tests.board.reading import event_files, folder_scalars

BATCHES = [torch.ones(8, 2), torch.ones(8, 2), torch.ones(4, 2)]


def train(root, num_epochs=2, stop=None, x_axis=None):
    """Train over 20 samples and 3 batches in each epoch, with 100 steps of an environment."""
    tensorboard = TensorBoard(x_axis=x_axis)
    manager = RunManager("exp", root, tensorboard=tensorboard, display=False)
    with contextlib.suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, torch.nn.Linear(2, 1), BATCHES):
        for epoch in manager.epochs(num_epochs, checkpoint={}):
            for batch in manager.batches():
                manager.track_loss(1 / epoch, batch)
                if epoch == stop:
                    raise KeyboardInterrupt
            manager.track({"env_steps": 100.0 * epoch}, how="last")
            assert manager.tb
            manager.tb.add_scalar("own/tag", epoch, epoch)


def shown(root):
    (folder,) = read_runs(root / "exp")
    return folder_scalars(folder.path)


COLUMNS = {
    "steps": ("steps seen", [3, 6]),
    "samples": ("samples seen", [20, 40]),
    "env_steps": ("env_steps", [100, 200]),
}


@pytest.mark.parametrize("x_axis", COLUMNS)
class TestAnXAxis:
    def test_is_a_column(self, tmp_path, x_axis):
        column, steps = COLUMNS[x_axis]
        train(tmp_path, x_axis=x_axis)

        assert load_results(tmp_path)[column].tolist() == steps

    def test_is_that_of_tensorboard(self, tmp_path, x_axis):
        steps = COLUMNS[x_axis][1]
        train(tmp_path, x_axis=x_axis)

        scalars = shown(tmp_path)
        assert [step for step, _ in scalars["loss/train"]] == steps
        assert [step for step, _ in scalars["time/epoch_s"]] == steps
        assert [step for step, _ in scalars["own/tag"]] == [1, 2]  # the user's own

    def test_is_that_of_a_run_that_resumes(self, tmp_path, x_axis):
        column, steps = COLUMNS[x_axis]
        train(tmp_path, x_axis=x_axis, stop=2)
        train(tmp_path)  # without saying it again

        assert load_results(tmp_path)[column].tolist() == steps
        assert [(step, round(value, 2)) for step, value in shown(tmp_path)["loss/train"]] == [
            (steps[0], 1.0),
            (steps[1], 0.5),
        ]
        (folder,) = read_runs(tmp_path / "exp")
        assert len(event_files(folder.path)) == 2

    def test_is_that_of_the_page(self, tmp_path, x_axis):
        column, steps = COLUMNS[x_axis]
        train(tmp_path, x_axis=x_axis)

        page = write_report(tmp_path / "exp", tmp_path / "page.html").read_text()

        assert f"loss by {column}" in page
        assert f'"x":"{column}"' in page
        assert f"[[1.0,0.5],{json.dumps(steps, separators=(',', ':'))}]" in page


def test_by_default_it_is_the_epoch_and_no_column_is_added(tmp_path):
    train(tmp_path)

    assert [step for step, _ in shown(tmp_path)["loss/train"]] == [1, 2]
    assert not [name for name in load_results(tmp_path) if "seen" in str(name)]
    assert "loss by epoch" in write_report(tmp_path / "exp", tmp_path / "page.html").read_text()


def test_a_metric_that_is_not_tracked_is_named(tmp_path):
    with pytest.warns(
        RunsWarning, match="no x_axis='env_step' in epoch 1, so its number is the x value"
    ) as warned:
        train(tmp_path, x_axis="env_step")

    assert len(warned) == 1
    assert [step for step, _ in shown(tmp_path)["loss/train"]] == [1, 2]


def test_a_grid_has_one(tmp_path):
    def train(run, manager):
        with manager.run(run, None, BATCHES):
            for _ in manager.epochs(2):
                for batch in manager.batches():
                    manager.track_loss(run.lr, batch)

    grid = {"lr": [0.1, 0.2], "device": ["cpu"]}
    run_grid(
        grid,
        train,
        experiment="exp",
        root=tmp_path,
        executor="inline",
        display=False,
        tensorboard=TensorBoard(x_axis="samples"),
    )

    assert Experiment(tmp_path / "exp").design.x_axis == "samples"
    for folder in read_runs(tmp_path / "exp"):
        assert [step for step, _ in folder_scalars(folder.path)["loss/train"]] == [20, 40]


def test_another_one_replaces_it_and_is_announced(tmp_path):
    train(tmp_path, x_axis="samples", stop=2)
    with pytest.warns(RunsWarning, match="x-axis of curves is 'steps' now, no longer 'samples'"):
        train(tmp_path, x_axis="steps")

    assert [step for step, _ in shown(tmp_path)["loss/train"]] == [1, 6]  # the first has no such column
    assert (
        "loss by epoch" in write_report(tmp_path / "exp", tmp_path / "page.html").read_text()
    )  # as not all epochs have one


def test_samples_are_counted_on_in_a_run_that_began_without(tmp_path):
    train(tmp_path, stop=2)
    train(tmp_path, x_axis="samples")

    values = load_results(tmp_path)["samples seen"].tolist()
    assert math.isnan(values[0])
    assert values[1] == 40


@pytest.mark.parametrize("x_axis", ["time (s)", "run", "", 3])
def test_what_cannot_be_one_is_refused(tmp_path, x_axis):
    with pytest.raises(InvalidArgumentError, match="x_axis must be 'epoch', 'steps', 'samples' or a metric"):
        TensorBoard(x_axis=x_axis)


def test_a_hyperparameter_cannot_be_one():
    with pytest.raises(InvalidArgumentError):
        check_x_axis("lr", ["lr"])


def test_an_epoch_without_a_value_is_at_its_number():
    record = EpochRecord(3, {"env_steps": math.nan})

    assert (x_value(record, "env_steps"), x_of(record, "env_steps"), x_of(record, None)) == (None, 3, 3)


def test_samples_of_epochs_follow_from_their_throughput():
    records = [
        EpochRecord(1, {"epoch duration": 2.0}, {"throughput_images_per_s": 10.0}),
        EpochRecord(2, {"epoch duration": 2.0, "samples seen": 41.0}),
    ]

    assert [seen("samples", records[:n], 0, 0)["samples seen"] for n in (0, 1, 2)] == [0, 20, 41]

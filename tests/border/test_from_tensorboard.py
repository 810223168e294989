"""Event files of any tool as a table (`from_tensorboard`)."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams import summary_v2
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_ndarray
from torch.utils.tensorboard import SummaryWriter

from runmanager import InvalidArgumentError, RunsWarning, from_tensorboard, load_results
from tests.border.events import event_files, events_of, train
from tests.border.experiments import execute

STEPS = range(3)


def write(folder, *, new_style=False, steps=STEPS, offset=0.0, hparams=None):
    """Write a run as torch's tutorial does: two scalars in each step, a histogram and an image."""
    with SummaryWriter(str(folder)) as writer:
        for step in steps:
            writer.add_scalar("Loss/train", 1 / (step + 1) + offset, step, new_style=new_style)
            writer.add_scalar("Accuracy/test", step / 10 + offset, step, new_style=new_style)
            writer.add_histogram("weights", torch.arange(100.0), step)
        writer.add_image("images", torch.zeros(1, 8, 8))
        if hparams:
            writer.add_hparams(hparams, {"hparam/best": 0.5})


def log(folder, *points, hparams=None):
    """Write scalars, points (tag, step, value), and the hyperparameters of the run."""
    with SummaryWriter(str(folder)) as writer:
        if hparams:
            writer._get_file_writer().add_summary(summary_v2.hparams_pb(hparams, trial_id="x"))
        for tag, step, value in points:
            writer.add_scalar(tag, value, step)


def points(table, column):
    """Return the points (epoch, value) of a column."""
    return list(table[["epoch", column]].dropna().itertuples(index=False, name=None))


@pytest.mark.parametrize("new_style", [False, True])
def test_what_torch_wrote_is_what_tensorboard_reads(tmp_path, new_style):
    write(tmp_path / "a" / "first", new_style=new_style)
    write(tmp_path / "b", new_style=new_style, offset=1)

    table = from_tensorboard(tmp_path)

    assert type(table) is pd.DataFrame
    assert list(table) == ["run", "epoch", "loss", "test_accuracy"]
    assert table["run"].tolist() == ["a/first"] * 3 + ["b"] * 3
    for run, rows in table.groupby("run"):
        events = events_of(tmp_path / str(run))
        for tag, column in (("Loss/train", "loss"), ("Accuracy/test", "test_accuracy")):
            if new_style:
                shown = [(e.step, make_ndarray(e.tensor_proto).item()) for e in events.Tensors(tag)]
            else:
                shown = [(e.step, e.value) for e in events.Scalars(tag)]
            assert points(rows, column) == shown


def test_scalars_whose_later_values_name_no_plugin_are_read(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    for step in STEPS:
        summary = scalar_pb("train/f1", step / 8)
        if step:
            summary.value[0].ClearField("metadata")
        writer.add_event(Event(step=step, wall_time=0, summary=summary))
    writer.close()

    assert points(from_tensorboard(tmp_path), "f1") == [(0, 0), (1, 0.125), (2, 0.25)]


def test_what_we_wrote_is_the_table_of_load_results_also_while_a_run_is_in_progress(tmp_path):
    seen: list[int] = []

    def train_two_epochs(run, manager):
        train(manager, run, 2, lambda _: seen.append(len(from_tensorboard(tmp_path))))

    grid = {"lr": [0.1, 1.0], "amp": [True, False]}
    execute(tmp_path, grid, train_two_epochs, "grid", tensorboard=True)

    ours, theirs = load_results(tmp_path), from_tensorboard(tmp_path)
    shared = [name for name in ours if name != "run"]
    assert theirs["run"].unique().tolist()[::3] == ["grid/001-lr=0.1-amp=True", "grid/004-lr=1-amp=False"]
    pd.testing.assert_frame_equal(theirs[shared], ours[shared], rtol=1e-6)
    assert sorted(theirs.attrs["hyperparameters"]) == sorted(ours.attrs["hyperparameters"])
    assert seen == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("name", ["run", "epoch", "loss", "run duration"])
def test_a_hyperparameter_named_like_a_column_stands_beside_it(tmp_path, name):
    write(tmp_path / "a")
    log(tmp_path / "a", hparams={name: 7})

    table = from_tensorboard(tmp_path)

    assert table[f"hparams/{name}"].tolist() == [7] * 3
    assert table[["run", "epoch"]].to_numpy().tolist() == [["a", 0], ["a", 1], ["a", 2]]
    assert table["loss"].tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert set(table.attrs["hyperparameters"]) == {f"hparams/{name}"}


def test_a_name_that_is_taken_leaves_the_tag_as_it_is(tmp_path):
    names = ["train/lr", "lr", "epoch", "loss/train", "train/loss"]
    log(tmp_path, *((name, 1, number) for number, name in enumerate(names)), hparams={"lr": 0.5})

    (row,) = from_tensorboard(tmp_path).to_dict("records")

    assert row == {
        "run": ".", "epoch": 1, "loss": 3, "lr": 0.5,
        "train/lr": 0, "lr (2)": 1, "epoch (2)": 2, "train/loss": 4,
    }  # fmt: skip


def test_a_run_has_the_hyperparameters_that_add_hparams_wrote_below_it(tmp_path):
    write(tmp_path / "a", hparams={"lr": 0.1, "batch": 64, "name": "adam"})
    write(tmp_path / "b", hparams={"lr": 1, "batch": 32, "name": "sgd"})

    table = from_tensorboard(tmp_path)

    curves = table.dropna(subset="loss")
    assert list(table)[:6] == ["run", "epoch", "loss", "batch", "lr", "name"]
    assert curves[["lr", "batch", "name"]].drop_duplicates().to_numpy().tolist() == [
        [0.1, 64, "adam"],
        [1, 32, "sgd"],
    ]
    assert curves.dtypes["batch"] == "int64"
    sessions = table.dropna(subset="hparam/best")
    assert sessions["run"].str.startswith(("a/", "b/")).all()
    assert sessions["batch"].tolist() == [64, 32]


def test_a_run_has_the_hyperparameters_of_the_folder_above_it(tmp_path):
    log(tmp_path / "trial", hparams={"amp": True, "units": 16})
    write(tmp_path / "trial" / "train")
    write(tmp_path / "other")

    table = from_tensorboard(tmp_path)

    assert table.groupby("run")[["amp", "units"]].first().T["trial/train"].tolist() == [True, 16]
    assert table.set_index("run")["amp"]["other"].isna().all()


def test_a_step_that_only_one_scalar_has_is_a_row_and_of_one_logged_again_the_last_value_counts(tmp_path):
    log(tmp_path, ("a", 1, 7), ("a", 10, 0.25), ("b", 2, float("nan")), ("b", 10, 4), ("a", 1, 0.5))

    table = from_tensorboard(tmp_path)

    assert table["run"].tolist() == ["."] * 3
    assert table["epoch"].tolist() == [1, 2, 10]
    np.testing.assert_array_equal(table["a"], [0.5, np.nan, 0.25])
    np.testing.assert_array_equal(table["b"], [np.nan, np.nan, 4])


def test_a_continued_run_drops_the_steps_after_which_it_went_on(tmp_path):
    write(tmp_path, steps=range(6))
    with SummaryWriter(str(tmp_path), purge_step=3, filename_suffix=".2") as writer:
        writer.add_scalar("Loss/train", 9, 3)

    table = from_tensorboard(tmp_path)

    assert points(table, "loss")[2:] == [(2, pytest.approx(1 / 3)), (3, 9.0)]
    assert len(points(table, "test_accuracy")) == 3


# Damage


@pytest.fixture
def small(tmp_path):
    """One event file of a few hundred bytes, with its points."""
    log(tmp_path, *((name, step, step / 3) for step in STEPS for name in ("a", "b")))
    (path,) = event_files(tmp_path)
    return path, found_in(path)[0]


def found_in(path):
    """Return the points of a file, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = from_tensorboard(path.parent)
    found = {(row.epoch, name): getattr(row, name) for row in table.itertuples() for name in table.columns[2:]}
    return {key: value for key, value in found.items() if not np.isnan(value)}, caught


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_file_that_ends_anywhere_gives_the_points_before_its_end(small, stride):
    path, whole = small
    content, lengths = path.read_bytes(), set()

    for end in range(1, len(content), stride):
        path.write_bytes(content[:end])
        found, caught = found_in(path)
        assert list(found.items()) == list(itertools.islice(whole.items(), len(found)))
        assert caught == []
        lengths.add(len(found))

    assert lengths == set(range(len(whole)))


@pytest.mark.parametrize("stride", [9, pytest.param(2, marks=pytest.mark.slow(everywhere=True))])
def test_a_flipped_byte_changes_no_value_and_is_named_once(small, stride):
    path, whole = small
    content = path.read_bytes()

    for place in range(0, len(content), stride):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        found, caught = found_in(path)
        assert found.items() <= whole.items()
        assert len(caught) <= 1
        if len(found) < len(whole):
            assert issubclass(caught[0].category, RunsWarning)
            assert f"{path} (1 records)" in str(caught[0].message)


def test_damaged_hyperparameters_in_an_intact_record_are_named(tmp_path):
    hparams = summary_v2.hparams_pb({"lr": 0.1})
    for value in hparams.value:
        value.metadata.plugin_data.content = b"\xff"
    with SummaryWriter(str(tmp_path)) as writer:
        writer._get_file_writer().add_summary(hparams)
        writer.add_scalar("a", 0.5, 1)

    with pytest.warns(RunsWarning, match=r"\(1 records\)$"):
        table = from_tensorboard(tmp_path)

    assert table["a"].tolist() == [0.5]


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_folder_without_event_files_is_refused_with_what_to_give(tmp_path, name):
    (tmp_path / "empty").mkdir()

    with pytest.raises(InvalidArgumentError, match=f"no event files in .*{name}.*give the folder"):
        from_tensorboard(tmp_path / name)

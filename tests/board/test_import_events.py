import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams import summary_v2
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_ndarray
from torch.utils.tensorboard import SummaryWriter

from runmanager import RunManager, best, compare, from_tensorboard, load_results, run_grid, show, verdict
from runmanager.errors import InvalidArgumentError, RunsWarning
from runmanager.tensorboard import event_file
from runmanager.tensorboard.hparams import tag
from runmanager.tensorboard.import_events import _column
from tests.board.reading import event_files, train

STEPS = range(3)


def write(folder, *, new_style=False, purge_step=None, steps=STEPS, offset=0.0, hparams=None):
    """Write a run as torch's tutorial does: two scalars in each step, a histogram and an image."""
    with SummaryWriter(str(folder), purge_step=purge_step) as writer:
        for step in steps:
            writer.add_scalar("Loss/train", 1 / (step + 1) + offset, step, new_style=new_style)
            writer.add_scalar("Accuracy/test", step / 10 + offset, step, new_style=new_style)
            writer.add_histogram("weights", torch.arange(100.0), step)
        writer.add_image("images", torch.zeros(1, 8, 8))
        if hparams:
            writer.add_hparams(hparams, {"hparam/best": 0.5})


def accumulated(folder):
    """Read each scalar, of both styles, with TensorBoard's reader: tag -> points (step, value)."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    points = {name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]}
    return points | {
        name: [(e.step, make_ndarray(e.tensor_proto).item()) for e in found.Tensors(name)]
        for name in found.Tags()["tensors"]
        if found.SummaryMetadata(name).plugin_data.plugin_name == "scalars"
    }


def points(table, column):
    """Return the points (epoch, value) of a column."""
    return list(table[["epoch", column]].dropna().itertuples(index=False, name=None))


@pytest.mark.parametrize("new_style", [False, True])
def test_what_torch_wrote_is_what_tensorboard_reads(tmp_path, new_style):
    write(tmp_path / "a" / "first", new_style=new_style)
    write(tmp_path / "b", new_style=new_style, offset=1)

    table = from_tensorboard(tmp_path)

    assert list(table) == ["run", "epoch", "loss", "test_accuracy"]
    assert table["run"].tolist() == ["a/first"] * 3 + ["b"] * 3
    for run, rows in table.groupby("run"):
        shown = accumulated(tmp_path / run)
        assert points(rows, "loss") == shown["Loss/train"]
        assert points(rows, "test_accuracy") == shown["Accuracy/test"]


def test_runs_without_hyperparameters_are_ranked_and_an_answer_asks_for_their_names(tmp_path):
    for seed in (1, 0):
        write(tmp_path / f"lr0.1_s{seed}", offset=seed)

    table = from_tensorboard(tmp_path)

    assert show(table).table["run"].tolist() == ["lr0.1_s1"] * 3 + ["lr0.1_s0"] * 3
    assert best(table.groupby("run").tail(1))["run"].tolist() == ["lr0.1_s1", "lr0.1_s0"]
    with pytest.raises(InvalidArgumentError, match=r"name them, as load_table\(runs, hyperparameters="):
        verdict(table)


def test_scalars_whose_later_values_name_no_plugin_are_read(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    for step in STEPS:
        summary = scalar_pb("train/f1", step / 7)
        if step:
            summary.value[0].ClearField("metadata")
        writer.add_event(Event(step=step, wall_time=0, summary=summary))
    writer.close()

    table = from_tensorboard(tmp_path)

    (shown,) = accumulated(tmp_path).values()
    assert points(table, "f1") == shown
    assert len(shown) == len(STEPS)


@pytest.mark.slow(everywhere=True)
def test_what_we_wrote_is_the_table_of_load_results(tmp_path):
    grid = {"lr": [0.1, 1.0], "amp": [True, False]}

    def train_two_epochs(run, manager):
        train(manager, run, num_epochs=2)

    run_grid(grid, train_two_epochs, experiment="grid", root=tmp_path, display=False, executor="inline")

    ours, theirs = load_results(tmp_path), from_tensorboard(tmp_path)

    shared = [name for name in ours if name != "run"]
    assert set(shared) <= set(theirs)
    assert theirs["run"].unique().tolist()[::3] == ["grid/001-lr=0.1-amp=True", "grid/004-lr=1-amp=False"]
    pd.testing.assert_frame_equal(theirs[shared], ours[shared], rtol=1e-6)
    assert sorted(theirs.attrs["hyperparameters"]) == sorted(ours.attrs["hyperparameters"])


@pytest.mark.parametrize(
    "column", ["loss", "accuracy", "epoch duration", "run duration", "test_loss", "train_accuracy", "f1"]
)
def test_a_column_comes_back_from_its_tag(column):
    assert _column(tag(column)) == column


@pytest.mark.parametrize("name", ["run", "epoch", "loss", "accuracy", "epoch duration", "run duration"])
def test_a_hyperparameter_named_like_a_column_stands_beside_it(tmp_path, name):
    write(tmp_path / "a")
    with SummaryWriter(str(tmp_path / "a")) as writer:
        writer.add_hparams({name: 7}, {}, run_name=".")

    table = from_tensorboard(tmp_path)

    assert table[f"hparams/{name}"].tolist() == [7] * 3
    assert table[["run", "epoch", "loss"]].to_dict("list") == {
        "run": ["a"] * 3,
        "epoch": [0, 1, 2],
        "loss": pytest.approx([1, 1 / 2, 1 / 3]),
    }
    assert set(table.attrs["hyperparameters"]) == {f"hparams/{name}"}


def test_a_run_has_the_hyperparameters_that_add_hparams_wrote_below_it(tmp_path):
    write(tmp_path / "a", hparams={"lr": 0.1, "batch": 64, "name": "adam"})
    write(tmp_path / "b", hparams={"lr": 1, "batch": 32, "name": "sgd"})

    table = from_tensorboard(tmp_path)

    curves = table.dropna(subset="loss")
    assert list(table)[:6] == ["run", "epoch", "loss", "batch", "lr", "name"]
    assert curves[["lr", "batch", "name"]].drop_duplicates().to_dict("list") == {
        "lr": [0.1, 1.0],
        "batch": [64, 32],
        "name": ["adam", "sgd"],
    }
    assert curves.dtypes["batch"] == "int64"
    sessions = table.dropna(subset="hparam/best")
    assert sessions["run"].str.startswith(("a/", "b/")).all()
    assert sessions["batch"].tolist() == [64, 32]


def test_sessions_of_one_writer_are_runs_of_their_own(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        for number in range(3):
            writer.add_hparams({"lr": 0.1 * number}, {"hparam/best": number}, run_name=f"trial{number}")

    table = from_tensorboard(tmp_path)

    assert table[["run", "lr", "hparam/best"]].to_dict("list") == {
        "run": ["trial0", "trial1", "trial2"],
        "lr": [0.0, 0.1, 0.2],
        "hparam/best": [0, 1, 2],
    }


def test_a_run_has_the_hyperparameters_of_the_folder_above_it(tmp_path):
    write_events(tmp_path / "trial", {}, {"amp": True, "units": 16})
    write(tmp_path / "trial" / "train")
    write(tmp_path / "other")

    table = from_tensorboard(tmp_path)

    assert table.groupby("run")[["amp", "units"]].first().T["trial/train"].tolist() == [True, 16]
    assert table.set_index("run")["amp"]["other"].isna().all()


def write_events(folder, tags, hparams=None, step=1, start=0):
    """Append hyperparameters, and the scalars of a step."""
    folder.mkdir(parents=True, exist_ok=True)
    events = [event_file.event(step, tags)]
    if hparams:
        events.insert(0, Event(summary=summary_v2.hparams_pb(hparams, trial_id="x")))
    with event_file.begin_file(folder, first_step=start) as file:
        event_file.write(file, *events)


def log(folder, *points_, start=0):
    """Write scalars: points (tag, step, value)."""
    folder.mkdir(parents=True, exist_ok=True)
    events = [event_file.event(step, {name: value}) for name, step, value in points_]
    with event_file.begin_file(folder, first_step=start) as file:
        event_file.write(file, *events)


def test_runs_can_be_compared_by_their_hyperparameters(tmp_path):
    for number, lr in enumerate([0.1, 0.2]):
        write_events(tmp_path / f"run{number}", {"val/loss": number + 1}, {"lr": lr})

    pairs = compare(from_tensorboard(tmp_path), "lr", "val/loss")

    assert pairs.to_dict("list") == {
        "0.1": [1.0],
        "0.2": [2.0],
        "0.2 vs 0.1": [1.0],
        "0.2 / 0.1": [2.0],
    }


def test_a_step_that_only_one_scalar_has_is_a_row(tmp_path):
    log(tmp_path, ("a", 1, 0.5), ("a", 10, 0.25), ("b", 2, float("nan")), ("b", 10, 4))

    table = from_tensorboard(tmp_path)

    assert table["run"].tolist() == ["."] * 3
    assert table["epoch"].tolist() == [1, 2, 10]
    np.testing.assert_array_equal(table["a"], [0.5, np.nan, 0.25])
    np.testing.assert_array_equal(table["b"], [np.nan, np.nan, 4])


def test_of_a_step_that_is_logged_again_the_last_value_counts(tmp_path):
    log(tmp_path, ("a", 1, 1), ("a", 2, 2), ("a", 1, 3))

    assert points(from_tensorboard(tmp_path), "a") == [(1, 3.0), (2, 2.0)]


def test_a_continued_run_drops_the_steps_after_which_it_went_on(tmp_path):
    write(tmp_path, steps=range(6))
    with SummaryWriter(str(tmp_path), purge_step=3, filename_suffix=".2") as writer:
        writer.add_scalar("Loss/train", 9, 3)

    table = from_tensorboard(tmp_path)

    assert points(table, "loss")[2:] == [(2, pytest.approx(1 / 3)), (3, 9.0)]
    assert len(points(table, "test_accuracy")) == 3


def test_a_name_that_is_taken_leaves_the_tag_as_it_is(tmp_path):
    names = ["train/lr", "lr", "epoch", "loss/train", "train/loss"]
    write_events(tmp_path, {name: number for number, name in enumerate(names)}, {"lr": 0.5})

    (row,) = from_tensorboard(tmp_path).to_dict("records")

    assert row == {
        "run": ".", "epoch": 1, "loss": 3, "lr": 0.5,
        "train/lr": 0, "lr (2)": 1, "epoch (2)": 2, "train/loss": 4,
    }  # fmt: skip


def test_no_hyperparameter_takes_the_column_of_another_runs_accuracy(tmp_path):
    for name, hparams in (("a", {"lr": 0.5}), ("b", {"test_accuracy": 7.5, "epoch duration": 9.5})):
        write_events(tmp_path / name, {"accuracy/test": 0.5, "time/epoch_s": 2.0}, hparams)

    table = from_tensorboard(tmp_path)

    assert table["test_accuracy"].tolist() == [0.5, 0.5]
    assert table["epoch duration"].tolist() == [2.0, 2.0]
    assert table["hparams/test_accuracy"].tolist()[1] == 7.5


@pytest.fixture
def small(tmp_path):
    """One event file of a few hundred bytes, with its table."""
    log(tmp_path, *((name, step, step / 3) for step in STEPS for name in ("a", "b")))
    (path,) = event_files(tmp_path)
    return path, from_tensorboard(tmp_path)


@pytest.mark.slow
def test_a_file_that_ends_anywhere_gives_the_points_before_its_end(small):
    path, whole = small
    content = path.read_bytes()
    flat = whole.melt(["run", "epoch"]).sort_values(["epoch", "variable"])["value"].tolist()
    lengths = set()

    for end in range(1, len(content)):
        path.write_bytes(content[:end])
        table = from_tensorboard(path.parent)
        found = table.melt(["run", "epoch"]).dropna().sort_values(["epoch", "variable"])["value"].tolist()
        assert found == flat[: len(found)]
        lengths.add(len(found))

    assert lengths == set(range(len(flat)))


@pytest.mark.slow(everywhere=True)
def test_a_flipped_byte_changes_no_value_and_is_named_once(small):
    path, whole = small
    content = path.read_bytes()
    expected = {(row.epoch, name): getattr(row, name) for row in whole.itertuples() for name in ("a", "b")}

    for place in range(0, len(content), 2):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            table = from_tensorboard(path.parent)
        found = {
            (row.epoch, name): getattr(row, name) for row in table.itertuples() for name in table.columns[2:]
        }
        found = {key: value for key, value in found.items() if value == value}  # noqa: PLR0124 - not NaN
        assert found.items() <= expected.items()
        assert len(caught) <= 1
        if len(found) < len(expected):
            assert issubclass(caught[0].category, RunsWarning)
            assert f"{path} (1 records)" in str(caught[0].message)


def test_damaged_hyperparameters_in_an_intact_record_are_named(tmp_path):
    hparams = Event(summary=summary_v2.hparams_pb({"lr": 0.1}))
    for value in hparams.summary.value:
        value.metadata.plugin_data.content = b"\xff"
    with event_file.begin_file(tmp_path) as file:
        event_file.write(file, hparams, event_file.event(1, {"a": 0.5}))

    with pytest.warns(RunsWarning, match=r"\(1 records\)$"):
        table = from_tensorboard(tmp_path)

    assert table["a"].tolist() == [0.5]


def test_a_file_without_anything_in_it_is_a_run_without_rows(tmp_path):
    (tmp_path / "events.out.tfevents.1").touch()

    table = from_tensorboard(tmp_path)

    assert list(table) == ["run", "epoch"]
    assert len(table) == 0


@pytest.mark.parametrize("name", ["missing", ""])
def test_a_folder_without_event_files_is_refused(tmp_path, name):
    with pytest.raises(
        InvalidArgumentError, match=r"^no event files in .*: give the folder that TensorBoard is started on$"
    ):
        from_tensorboard(tmp_path / name)


def test_the_runs_of_a_manager_are_read_while_they_run(tmp_path):
    seen: list[int] = []

    train(
        RunManager("exp", tmp_path, display=False), {"lr": 0.1}, num_epochs=2,
        at_end=lambda _: seen.append(len(from_tensorboard(tmp_path))),
    )  # fmt: skip

    assert seen == [0, 1]

"""Event files, through TensorBoard's own readers (docs/tensorboard.md); pictures stand in test_pictures.py."""

import contextlib
import math
import re
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams.api_pb2 import Status
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from runmanager import RunsWarning, fit, from_tensorboard, load_results, load_runs, load_steps
from tests.border.disk import small_disk
from tests.border.events import (
    IMAGES,
    LOADER,
    event_files,
    events_of,
    hparams_of,
    make_network,
    manager_in,
    scalars_of,
    sessions_of,
    texts_of,
    train,
    values_of,
)
from tests.border.experiments import execute
from tests.border.work import line_with

RUN = {"lr": 0.1, "batch_size": 5, "net": "small", "bias": True}
TAGS = {
    "loss": "loss/train", "accuracy": "accuracy/train",
    "test_loss": "loss/test", "test_accuracy": "accuracy/test",
    "epoch duration": "time/epoch_s", "run duration": "time/run_s",
    "train_loss": "loss/train_eval", "train_accuracy": "accuracy/train_eval",
    "f1": "train/f1", "val_iou": "iou/val", "grad_norm": "train/grad_norm",
    "top5_accuracy": "accuracy/top5", "validation_f1_macro": "f1_macro/validation",
}  # fmt: skip
OF_REWARD = ("Goal/last max:reward", "Run/best max:reward", "Run/best_epoch")
NAN = math.nan


def fail(*_):
    raise ValueError("cannot be shown")


def interrupt_in(epoch):
    def interrupt(number):
        if number == epoch:
            raise KeyboardInterrupt

    return interrupt


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run of three epochs, with a value per step, an own tag, and metrics of many names."""
    root = tmp_path_factory.mktemp("runs")
    manager = manager_in(root)

    def log(epoch):
        manager.log(score=epoch / 2)
        manager.tb.add_scalar("mine/tag", 10 * epoch, epoch + 100)
        manager.track({"f1": epoch / 3, "val/iou": epoch, "grad_norm": epoch, "top5_accuracy": 1 / epoch})
        manager.track(validation_f1_macro=epoch)
        manager.evaluate(LOADER, "train")

    train(manager, RUN, 3, log)
    return root


# Time series


def test_a_run_has_every_specified_tag_in_order(tmp_path):
    train(manager_in(tmp_path), RUN, 2)

    scalars = [
        "loss/train", "accuracy/train", "time/epoch_s", "time/run_s", "loss/test", "accuracy/test",
        "time/phase_data_s", "time/phase_eval_s", "time/phase_train_s", "time/throughput_images_per_s",
        "Goal/last max:test_accuracy", "Run/best max:test_accuracy", "Run/best_epoch", "Run/time_to_best_s",
        "Run/epoch_s",
        "train/lr", "train/grad_norm",
    ]  # fmt: skip
    drawn = ["weights/1.weight", "weights:grad/1.weight"]
    begin = ["_hparams_/session_start_info", "custom_scalars__config__", "run/config"]
    assert [(step, value.tag) for step, value in values_of(tmp_path)] == [
        *((0, tag) for tag in begin), *((1, tag) for tag in scalars), (0, "visuals/samples"),
        *((1, tag) for tag in drawn), *((2, tag) for tag in (*scalars, *drawn)),
        (2, "visuals/confusion_test"), (2, "_hparams_/session_end_info"),
    ]  # fmt: skip


def test_scalars_equal_the_table_and_come_back_as_its_columns(root):
    table, scalars = load_results(root), scalars_of(root)
    back = from_tensorboard(root / "e").dropna(subset="loss")

    for column, tag in TAGS.items():
        assert scalars[tag] == [*enumerate(table[column].astype("float32").astype(float), 1)]
        if column not in ("val_iou", "validation_f1_macro"):
            assert back[column].tolist() == [value for _, value in scalars[tag]]
    expected = [8 / seconds for seconds in table["epoch duration"]]
    assert [value for _, value in scalars["time/throughput_images_per_s"]] == pytest.approx(expected)


def test_values_of_log_are_curves_over_steps_and_own_tags_keep_their_steps(root):
    scalars, steps = scalars_of(root), load_steps(root)

    assert [value for _, value in scalars["steps/score"]] == steps["score"].tolist() == [0.5, 1.0, 1.5]
    assert [step for step, _ in scalars["steps/score"]] == steps["step"].tolist()
    assert scalars["mine/tag"] == [(101, 10), (102, 20), (103, 30)]


@pytest.mark.parametrize("options", [{}, {"micro_batch": 2}, {"precision": "bf16"}])
def test_the_norm_of_gradients_is_that_before_fit_clips_them(tmp_path, options):
    """One batch per epoch, whose norm is known, as the weights hardly move."""
    batch, networks = (torch.ones(4, 2), torch.zeros(4, dtype=torch.long)), [nn.Linear(2, 2) for _ in "12"]
    networks[0].load_state_dict(networks[1].state_dict())
    for clip, network in zip((None, 0.01), networks, strict=True):
        optimizer = torch.optim.SGD(network.parameters(), 1e-9)
        run = {"clip": clip or 0}
        options |= {"optimizer": optimizer, "epochs": 2, "clip_grad_norm": clip}
        fit(run, network, [batch], manager_in(tmp_path), **options)

    folders = sorted((tmp_path / "e").glob("*-clip=*"))
    clipped, whole = ([norm for _, norm in scalars_of(folder)["train/grad_norm"]] for folder in folders[::-1])
    assert clipped == pytest.approx(whole)
    assert clipped[0] > 0.1


@pytest.mark.parametrize(
    ("lr", "factor", "shown"),
    [(0.5, 0.5, [0.5, 0.25, 0.125]), (torch.tensor(0.5), 1, [0.5] * 3), ("warm", 1, []), (None, None, [])],
)
def test_the_learning_rate_is_that_with_which_the_epoch_began_if_it_is_a_number(tmp_path, lr, factor, shown):
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    optimizer.param_groups[0]["lr"] = lr
    manager = manager_in(tmp_path)

    with manager.run(RUN, network):
        for _ in manager.epochs(3, checkpoint={"network": network, "optimizer": optimizer}):
            if lr is not None:
                optimizer.param_groups[0]["lr"] *= factor

    assert scalars_of(tmp_path).get("train/lr", []) == list(enumerate(shown, 1))


def test_an_evaluation_before_the_first_epoch_is_step_0_once(tmp_path):
    def execute(last):
        manager, network = manager_in(tmp_path), make_network()
        with manager.run(RUN, network, LOADER):
            result = manager.evaluate(LOADER)
            for epoch in manager.epochs(2, checkpoint={"network": network}):
                interrupt_in(last)(epoch)
                manager.evaluate(LOADER)
        return result

    with pytest.raises(KeyboardInterrupt):
        execute(2)
    loss = float(np.float32(execute(3).loss))

    assert scalars_of(tmp_path)["loss/test"] == [(0, loss), (1, loss), (2, loss)]


def test_numbers_that_no_scalar_holds_are_nan_and_odd_tags_harm_nothing(tmp_path):
    manager = manager_in(tmp_path)

    def track(_):
        manager.track({"é/a": math.nan, "x": math.inf, "y": 1e39})
        manager.log(score=1e300)

    train(manager, RUN, at_end=track)

    assert load_results(tmp_path)[["x", "y"]].to_numpy().tolist() == [[math.inf, 1e39]]
    assert load_steps(tmp_path)["score"].tolist() == [1e300]
    scalars = scalars_of(tmp_path)
    assert [str(scalars[tag][0][1]) for tag in ("train/x", "train/y", "steps/score")] == ["nan"] * 3


def test_without_tensorboard_there_are_no_event_files(tmp_path):
    manager = manager_in(tmp_path, tensorboard=False)
    train(manager, RUN, at_end=lambda _: manager.tb.add_scalars("mine", {"a": 1}))

    manager.tb.add_scalar("mine", 2)

    assert event_files(tmp_path) == []


# The goal


@pytest.mark.parametrize(
    ("goal", "epochs", "best", "last"),
    [
        ("max:f1", [{"f1": 0.25}, {"f1": 0.75}, {"f1": 0.5}], [0.25, 0.75, 0.75], [0.25, 0.75, 0.5]),
        ("min:f1", [{"f1": 3}, {"f1": -1}, {"f1": 2}], [3, -1, -1], [3, -1, 2]),
        ("max:f1", [{"f1": NAN}, {"f1": 0.5}, {"f1": math.inf}, {"f1": 1e39}], [0.5] * 3, [0.5] * 3),
        ("max:f1", [{"a": 1}, {"f1": 0.5}, {"a": 1}], [0.5] * 2, [0.5] * 2),
        (None, [{"val_loss": 0.1}, {"val_loss": 0.3, "val_accuracy": 0.2}], [0.1, 0.2], [0.1, 0.2]),
        (None, [{"entropy": 1.0}], [], []),
    ],
)
def test_the_goal_is_followed_over_the_epochs(tmp_path, goal, epochs, best, last):
    manager = manager_in(tmp_path, goal=goal)
    with manager.run(RUN):
        for epoch in manager.epochs(len(epochs)):
            manager.track(**epochs[epoch - 1])

    scalars = scalars_of(tmp_path)
    points = sorted(point for tag in scalars if tag.startswith("Goal/last ") for point in scalars[tag])
    assert [value for _, value in points] == pytest.approx(last)
    points = sorted(point for tag in scalars if tag.startswith("Run/best ") for point in scalars[tag])
    assert [value for _, value in points] == pytest.approx(best)


def test_with_kept_weights_the_goal_has_the_value_of_their_epoch(tmp_path):
    manager = manager_in(tmp_path, goal="max:reward")
    with manager.run(RUN, nn.Linear(1, 1)):
        for epoch in manager.epochs(3, keep="best:val_loss"):
            manager.track(reward=epoch, val_loss=[3, 1, 2][epoch - 1])

    scalars = scalars_of(tmp_path)
    assert scalars["Goal/kept max:reward"] == [(1, 1), (2, 2), (3, 2)]
    assert scalars["Run/best max:reward"] == [(1, 1), (2, 2), (3, 3)]


def test_the_goal_of_a_grid_is_that_of_its_runs_and_of_later_loops_in_its_experiment(tmp_path):
    def reward(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(2):
                manager.track(reward=epoch + run["lr"] if isinstance(run, dict) else epoch)

    execute(tmp_path, {"lr": [1.0]}, reward, goal="min:reward", tensorboard=True)
    reward({"lr": 2.0}, manager_in(tmp_path))

    for folder, first in zip(sorted((tmp_path / "e").glob("0*")), (1, 3), strict=True):
        scalars = scalars_of(folder)
        assert scalars["Goal/last min:reward"] == [(1, first), (2, first + 1)]
        assert scalars["Run/best min:reward"] == [(1, first), (2, first)]
        assert "| goal | min:reward |" in texts_of(folder)["run/config"]


# Text and layout


def test_the_configuration_is_a_table(tmp_path):
    train(manager_in(tmp_path), {"lr": 0.1, "note": "a|b <c>\nd", "schedule": None, "device": "cpu"})

    lines = texts_of(tmp_path)["run/config"].splitlines()
    first = "| setting | value |\n|---|---|\n| lr | 0.1 |\n| note | a\\|b &lt;c> d |\n| schedule | none |"
    assert "\n".join(lines[:5]) == first
    assert {"| device | cpu |", "| parameters | 51 |", f"| torch | {version('torch')} |"} <= set(lines)
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines[2:])
    assert len(set(lines)) == len(lines)


def test_a_failed_run_is_a_failure_with_the_end_of_its_traceback_as_it_is(tmp_path):
    def fail_at_length(_):
        raise ValueError(100_000 * "x" + "the end")

    for lr, at_end in ((1, fail), (2, fail_at_length)):
        with pytest.raises(ValueError, match=r"cannot|end"):
            train(manager_in(tmp_path), {"lr": lr}, at_end=at_end)

    short, long = (texts_of(folder)["run/error"] for folder in sorted((tmp_path / "e").glob("0*")))
    where = f"(in epoch 1, step 2, {line_with('raise ValueError(' + chr(34) + 'cannot')})"
    assert short.splitlines()[0] == f"    ValueError: cannot be shown {where}"
    assert "Traceback (most recent call last):" in short
    assert all(line.startswith("    ") for line in short.splitlines() if line)  # shown as it is
    assert long.endswith("the end")
    assert len(long) < 25_000


@pytest.mark.parametrize(
    ("ending", "status", "shown"),
    [
        (None, Status.STATUS_SUCCESS, ""),
        (ValueError("cannot be shown"), Status.STATUS_FAILURE, "cannot be shown"),
        (KeyboardInterrupt(), None, ""),
        (math.inf, Status.STATUS_FAILURE, "loss became inf in epoch 1"),
    ],
)
def test_the_session_of_a_run_says_how_it_ended(tmp_path, ending, status, shown):
    manager = manager_in(tmp_path)

    def end(_):
        if isinstance(ending, BaseException):
            raise ending
        manager.track_loss(ending or 1.0, 1)

    with contextlib.suppress(ValueError, KeyboardInterrupt):
        train(manager, RUN, 2, end)

    start, *ends = sessions_of(tmp_path)
    assert start.group_name == "e/001"
    assert [end.status for end in ends] == ([] if status is None else [status])
    assert all(start.start_time_secs <= end.end_time_secs for end in ends)
    assert shown in texts_of(tmp_path).get("run/error", "")
    assert ("run/error" in texts_of(tmp_path)) is bool(shown)


def test_the_layout_has_train_and_test_side_by_side_and_in_one_chart(tmp_path):
    train(manager_in(tmp_path), RUN)

    (value,) = [value for _, value in values_of(tmp_path) if value.tag == "custom_scalars__config__"]
    layout = layout_pb2.Layout.FromString(value.tensor.string_val[0])
    tags = sorted(scalars_of(tmp_path))
    assert {
        category.title: [
            [tag for tag in tags for expression in chart.multiline.tag if re.match(expression, tag)]
            for chart in category.chart
        ]
        for category in layout.category
    } == {
        "side by side": [
            ["Goal/last max:test_accuracy"], ["Run/best max:test_accuracy"], ["loss/train"], ["loss/test"],
            ["accuracy/train"], ["accuracy/test"],
        ],
        "overview": [
            ["loss/test", "loss/train"], ["accuracy/test", "accuracy/train"],
            ["time/phase_data_s", "time/phase_eval_s", "time/phase_train_s"],
        ],
    }  # fmt: skip


# Hyperparameters of one run; those of a grid stand in test_hparams.py


def test_hyperparameters_are_numbers_bools_and_short_texts(tmp_path):
    given = {
        "lr": 0.1, "batch": 64, "large": 2**64, "half": np.float32(0.5), "count": np.int64(5), "huge": 10**400,
        "amp": True, "off": np.bool_(False),
        "schedule": None, "sizes": (3, 0.10), "names": ["a", "b"], "target": torch.device("cuda:1"),
        "act": nn.ReLU, "dtype": torch.float16, "folder": Path("a/b"), "limit": math.inf, "text": 300 * "a",
    }  # fmt: skip

    with manager_in(tmp_path).run(given):
        pass

    shown = hparams_of(tmp_path)
    assert shown.pop("huge").startswith("1000")
    assert len(shown.pop("text")) == 64
    assert shown == {
        "lr": 0.1, "batch": 64, "large": 2.0**64, "half": 0.5, "count": 5, "amp": True, "off": False,
        "schedule": "none", "sizes": "(3, 0.1)", "names": "(a, b)", "target": "cuda:1", "act": "torch.nn.ReLU",
        "dtype": "torch.float16", "folder": "a/b", "limit": "inf",
    }  # fmt: skip
    assert {name for name, value in shown.items() if isinstance(value, bool)} == {"amp", "off"}


# Resuming


@pytest.mark.parametrize("clock", [0, -86_400], ids=["", "set back"])
def test_a_resumed_run_has_each_point_once_as_a_run_that_was_not_interrupted(tmp_path, monkeypatch, clock):
    """The goal remembers its best value, and the files are read in order though the clock was set back."""

    def execute(root, interrupted_in=0):
        manager = manager_in(root, goal="max:reward")

        def end(epoch):
            manager.track(reward=[0.25, 0.75, 0.5, 0.6][epoch - 1])
            manager.log(score=epoch)
            manager.tb.add_scalar("mine", 7.0, 2 * epoch)  # there are two batches
            interrupt_in(interrupted_in)(epoch)

        train(manager, RUN, 4, end)

    execute(tmp_path / "whole")
    now = time.time
    for attempt, epoch in enumerate((2, 4, 4)):
        monkeypatch.setattr(time, "time", lambda attempt=attempt: now() + attempt * clock)
        with pytest.raises(KeyboardInterrupt):
            execute(tmp_path / "resumed", epoch)
    execute(tmp_path / "resumed")

    resumed, whole = scalars_of(tmp_path / "resumed"), scalars_of(tmp_path / "whole")
    assert set(resumed) == set(whole)
    for tag in ("loss/train", "accuracy/test", "train/lr", "steps/score", "mine", *OF_REWARD):
        assert resumed[tag] == whole[tag]
    assert whole["Run/best_epoch"] == [(1, 1), (2, 2), (3, 2), (4, 2)]
    histograms = events_of(tmp_path / "resumed").Histograms("weights/1.weight")
    assert [histogram.step for histogram in histograms] == [1, 2, 3, 4]


# Faults


def test_a_full_disk_ends_logging_with_one_warning_and_training_goes_on(tmp_path):
    train(manager_in(tmp_path / "whole"), RUN, 5, checkpoint=False)
    expected = [step for step, _ in values_of(tmp_path / "whole")]
    limit = int(event_files(tmp_path / "whole")[0].stat().st_size * 0.7)

    with small_disk(limit), pytest.warns(RunsWarning, match="File too large.*training goes on") as caught:
        train(manager_in(tmp_path / "cut"), RUN, 5, checkpoint=False)

    assert len(caught) == 1
    assert load_results(tmp_path / "cut")["epoch"].tolist() == [1, 2, 3, 4, 5]
    steps = [step for step, _ in values_of(tmp_path / "cut")]
    assert 5 < len(steps) < len(expected)
    assert steps == expected[: len(steps)]


def test_what_cannot_be_shown_is_one_warning_of_its_run_and_the_rest_is_shown(tmp_path):
    class Figure:
        canvas = None

        def savefig(self, *_, **__):
            fail()

    manager = manager_in(tmp_path)
    for number in (1, 2):
        with pytest.warns(RunsWarning, match=rf"e/00{number}-.*ValueError: cannot be shown") as caught:
            train(manager, {"lr": number}, 2, lambda _: manager.log(plot=Figure()))
        assert len(caught) == 1

        folder = tmp_path / "e" / f"00{number}-lr={number}"
        assert [step for step, _ in scalars_of(folder)["loss/train"]] == [1, 2]
        assert sessions_of(folder)[-1].status == Status.STATUS_SUCCESS
    assert load_runs(tmp_path)["status"].tolist() == ["completed"] * 2


# The writer of a run


def test_the_writer_has_every_method_of_torchs_and_writes_into_the_runs_one_file(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    assert manager_in(tmp_path).tb is None
    manager = manager_in(tmp_path)

    with manager.run(RUN, make_network()):
        assert isinstance(manager.tb, SummaryWriter)
        with manager.tb as tb:
            tb.add_image("image", np.zeros((3, 4, 5), dtype=np.uint8), 1)
            tb.add_images("images", IMAGES, 1)
            tb.add_figure("figure", pyplot.figure(figsize=(1, 1)))
            tb.add_histogram("histogram", np.arange(9), 1)
            tb.add_text("text", "hello", 1)
            tb.add_pr_curve("curve", np.array([0, 1]), np.array([0.1, 0.9]))
            tb.add_scalar("tensor", torch.tensor(2.5), 1)
            tb.add_scalar("new", 2.5, 1, new_style=True)
            tb.add_scalars("several", {"a": 1, "b": torch.tensor(2)}, 1)
            tb.add_hparams({"lr": 5, "other": True}, {"hparam/accuracy": 0.5}, run_name="mine")
            tb.add_embedding(torch.eye(3), metadata=["a", "b", "c"], tag="embedding", global_step=2)
            tb.flush()
        tb.close()
        tb.add_scalar("tensor", 3, 2)  # closing is harmless

    assert len(event_files(tmp_path)) == 1
    tags = events_of(tmp_path).Tags()
    assert set(tags["images"]) == {"image", "images", "figure"}
    assert {"text/text_summary", "curve", "new"} < set(tags["tensors"])
    assert tags["histograms"] == ["histogram"]
    assert scalars_of(tmp_path) == {
        "tensor": [(1, 2.5), (2, 3)], "several/a": [(1, 1)], "several/b": [(1, 2)],
        "hparam/accuracy": [(0, 0.5)],
    }  # fmt: skip
    assert hparams_of(tmp_path) == RUN
    config = (Path(manager.tb.log_dir) / "projector_config.pbtxt").read_text()
    assert f'tensor_path: "{Path("00002/embedding/tensors.tsv")}"' in config
    assert (Path(manager.tb.log_dir) / "00002/embedding/metadata.tsv").read_text().split() == ["a", "b", "c"]


def test_a_writer_belongs_to_its_run_and_warns_once_after_its_end(tmp_path):
    manager, writers = manager_in(tmp_path), []

    for number in (1, 2):
        with manager.run({"lr": number}, make_network()):
            manager.tb.add_scalar("mine", number)
            writers.append(manager.tb)
    with pytest.warns(RunsWarning, match="its run has ended"):
        writers[0].add_scalar("mine", 2, 2)
    writers[0].add_text("mine", "late", 2)  # no further warning, which would be an error

    for number, folder in enumerate(sorted((tmp_path / "e").glob("0*")), 1):
        assert Path(writers[number - 1].log_dir) == folder
        assert scalars_of(folder) == {"mine": [(0, number)]}
        assert list(texts_of(folder)) == ["run/config"]

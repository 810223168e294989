import errno
import io
import math
import re
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams.api_pb2 import Status
from torch import nn

from runmanager import RunManager, RunsWarning, TensorBoard, load_results, load_runs, load_steps, run_grid
from runmanager.core.experiment import Experiment
from runmanager.core.run import id_of
from runmanager.tensorboard import event_file, histograms, hparams, pictures, run_log
from runmanager.tensorboard.hparams import OF_GOAL, tag
from tests.board.reading import (
    LOADER,
    event_files,
    events_in,
    folder_scalars,
    make_network,
    scalars_in,
    sessions_in,
    texts_in,
    train,
    values_in,
)
from tests.locations import line_with

RUN = {"lr": 0.1, "batch_size": 5}


def manager_in(folder: Path, **options: Any) -> RunManager:
    return RunManager("e", folder, display=False, **options)


def float32(value: float) -> float:
    return float(np.float32(value))


def points(folder: Path, name: str) -> list[float]:
    return [value for _, value in scalars_in(folder)[name]]


def histogram_steps(folder: Path) -> list[int]:
    return [step for step, value in values_in(folder) if value.tag == "weights/1.weight"]


def fail(*_: Any, **__: Any) -> None:
    raise ValueError("cannot be shown")


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_run_has_every_specified_tag_in_order(tmp_path):
    train(manager_in(tmp_path), RUN, num_epochs=2)

    logged = [(step, value.tag) for step, value in values_in(tmp_path)]
    begin = ["_hparams_/session_start_info", "custom_scalars__config__", "run/config"]
    scalars = [
        "loss/train", "accuracy/train", "time/epoch_s", "time/run_s", "loss/test", "accuracy/test",
        "time/phase_data_s", "time/phase_eval_s", "time/phase_train_s", "time/throughput_images_per_s",
        "Goal/best max:test_accuracy", "Goal/best_after_s", "Goal/best_epoch", "Goal/last", "Goal/epoch_s",
        "train/grad_norm",
    ]  # fmt: skip
    drawn = ["weights/1.weight", "weights:grad/1.weight"]
    assert logged == [
        *((0, name) for name in begin),
        *((1, name) for name in scalars),
        (0, "visuals/samples"),
        *((1, name) for name in drawn),
        *((2, name) for name in (*scalars, *drawn)),
        (2, "visuals/confusion_test"),
        (2, "_hparams_/session_end_info"),
    ]


def test_the_scalars_of_an_epoch_are_one_event(tmp_path):
    train(manager_in(tmp_path, tensorboard=TensorBoard(histogram_every=0)), RUN, num_epochs=3)

    logged = [event for event in events_in(tmp_path) if event.step > 0]
    sizes = [(event.step, len(event.summary.value)) for event in logged]
    assert sizes == [(1, 16), (2, 16), (3, 16), (3, 1), (3, 1)]


def test_scalars_equal_the_table(tmp_path):
    train(manager_in(tmp_path), RUN, num_epochs=3)

    table, shown = load_results(tmp_path), scalars_in(tmp_path)
    for column in ("loss", "accuracy", "epoch duration", "run duration", "test_loss", "test_accuracy"):
        expected = [(number, float32(value)) for number, value in enumerate(table[column], 1)]
        assert shown[tag(column)] == expected
    assert {tuple(step for step, _ in series) for series in shown.values()} == {(1, 2, 3)}


def test_further_metrics_equal_the_table(tmp_path):
    manager = manager_in(tmp_path)

    train(
        manager,
        RUN,
        2,
        at_end=lambda epoch: manager.track(f1=epoch / 3, grad_norm=epoch, top5_accuracy=1 / epoch),
    )

    table, shown = load_results(tmp_path), scalars_in(tmp_path)
    names = {"f1": "train/f1", "grad_norm": "train/grad_norm", "top5_accuracy": "accuracy/top5"}
    for column, name in names.items():
        assert shown[name] == [(number, float32(value)) for number, value in enumerate(table[column], 1)]


def test_a_logged_image_or_figure_is_shown_once_per_epoch(tmp_path):
    manager = manager_in(tmp_path, tensorboard=TensorBoard(histogram_every=0))
    figure = Figure(figsize=(1, 2), dpi=50)
    figure.add_subplot().plot([1, 2])

    def log(epoch: int) -> None:
        color = np.zeros((3, 5, 4), np.uint8)
        color[0] = 10 * epoch
        manager.log({"val/mask": torch.eye(4)[:2] > 0, "score": 1.5}, plot=figure, color=color, every=1)
        manager.log(color=np.zeros((3, 5, 4)), every=7)  # the first of the epoch is shown

    train(manager, RUN, 2, at_end=log)

    drawn = [(step, value.tag, value.image) for step, value in values_in(tmp_path) if "images/" in value.tag]
    names = ["images/val_mask", "images/plot", "images/color"]
    assert [(step, name) for step, name, _ in drawn] == [(step, name) for step in (1, 2) for name in names]
    pixels = [np.asarray(Image.open(io.BytesIO(image.encoded_image_string))) for _, _, image in drawn]
    assert pixels[0][:, :, 0].tolist() == [[255, 0, 0, 0], [0, 255, 0, 0]]
    assert pixels[1].shape == (100, 50, 4)
    assert (drawn[1][2].height, drawn[1][2].width, drawn[1][2].colorspace) == (100, 50, 4)
    assert [pixels[index][4, 3].tolist() for index in (2, 5)] == [[10, 0, 0], [20, 0, 0]]
    assert set(load_steps(tmp_path)) == {"run", "epoch", "step", "score", *RUN}


def test_a_figure_that_cannot_be_drawn_ends_no_run(tmp_path):
    manager = manager_in(tmp_path)
    figure = SimpleNamespace(canvas=None, savefig=fail)

    with pytest.warns(RunsWarning, match="image_logged: ValueError: cannot be shown"):
        train(manager, RUN, at_end=lambda _: manager.log(plot=figure))

    assert load_runs(tmp_path)["status"].tolist() == ["completed"]


def test_an_evaluation_named_train_stands_beside_the_training_itself(tmp_path):
    manager = manager_in(tmp_path)

    train(manager, RUN, at_end=lambda _: manager.evaluate(LOADER, "train"))

    table = load_results(tmp_path)
    assert points(tmp_path, "loss/train") == [float32(table["loss"][0])]
    assert points(tmp_path, "loss/train_eval") == [float32(table["train_loss"][0])]
    assert points(tmp_path, "accuracy/train_eval") == [float32(table["train_accuracy"][0])]


def test_an_evaluation_before_the_first_epoch_is_step_0(tmp_path):
    manager = manager_in(tmp_path)

    with manager.run(RUN, make_network(), LOADER):
        result = manager.evaluate(LOADER)
        for _ in manager.epochs(1):
            manager.evaluate(LOADER)

    shown = scalars_in(tmp_path)
    expected = (float32(result.loss), float32(result.accuracy))
    assert shown["loss/test"] == [(0, expected[0]), (1, expected[0])]
    assert shown["accuracy/test"] == [(0, expected[1]), (1, expected[1])]


@pytest.mark.parametrize(
    ("every", "steps"), [(1, [1, 2, 3, 4, 5]), (2, [1, 3, 5]), (3, [1, 4, 5]), (9, [1, 5]), (0, [])]
)
def test_histograms_come_as_often_as_asked_and_of_the_last_epoch(tmp_path, every, steps):
    train(manager_in(tmp_path, tensorboard=TensorBoard(histogram_every=every)), RUN, num_epochs=5)

    assert histogram_steps(tmp_path) == steps


def test_a_continued_run_has_the_evaluation_before_its_first_epoch_once(tmp_path):
    def execute(last: int) -> None:
        manager, network = manager_in(tmp_path), make_network()
        with manager.run(RUN, network, LOADER):
            manager.evaluate(LOADER)
            for epoch in manager.epochs(2, checkpoint={"network": network}):
                if epoch > last:
                    raise KeyboardInterrupt
                manager.evaluate(LOADER)

    with pytest.raises(KeyboardInterrupt):
        execute(1)
    execute(2)

    (folder,) = (path for path in (tmp_path / "e").iterdir() if path.is_dir())
    assert [step for step, _ in folder_scalars(folder)["loss/test"]] == [0, 1, 2]


def test_the_throughput_is_samples_per_second_of_the_epoch(tmp_path):
    train(manager_in(tmp_path), RUN, num_epochs=2)

    expected = [8 / seconds for seconds in load_results(tmp_path)["epoch duration"]]
    assert points(tmp_path, "time/throughput_images_per_s") == pytest.approx(expected)


def test_the_learning_rate_is_that_with_which_the_epoch_began(tmp_path):
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    manager = manager_in(tmp_path)

    with manager.run(RUN, network):
        for _ in manager.epochs(3, checkpoint={"network": network, "optimizer": optimizer}):
            optimizer.param_groups[0]["lr"] /= 2

    assert points(tmp_path, "train/lr") == [0.5, 0.25, 0.125]


@pytest.mark.parametrize("lr", [torch.tensor(0.5), "warm", None])
def test_a_learning_rate_that_is_no_number_is_not_shown(tmp_path, lr):
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    optimizer.param_groups[0]["lr"] = lr
    manager = manager_in(tmp_path)

    with manager.run(RUN, network):
        for _ in manager.epochs(1, checkpoint={"network": network, "optimizer": optimizer}):
            pass

    expected = [(1, 0.5)] if isinstance(lr, torch.Tensor) else []
    assert scalars_in(tmp_path).get("train/lr", []) == expected


def test_the_error_of_a_failed_run_is_cut_to_its_end(tmp_path):
    def fail_at_length(_: int) -> None:
        raise ValueError(100_000 * "x" + "the end")

    with pytest.raises(ValueError, match="the end"):
        train(manager_in(tmp_path), RUN, at_end=fail_at_length)

    shown = texts_in(tmp_path)["run/error"]
    assert shown.endswith("the end")
    assert len(shown) < 25_000


def test_the_samples_are_the_first_input(tmp_path):
    train(manager_in(tmp_path), RUN)

    (sheet,) = [value.image for _, value in values_in(tmp_path) if value.tag == "visuals/samples"]
    assert sheet == pictures.sheet(LOADER[0][0])
    assert (sheet.width, sheet.height, sheet.colorspace) == (5 * 6, 6, 3)


def test_the_samples_are_as_the_network_saw_them(tmp_path):
    batch, network = LOADER[0][0].clone(), make_network()
    manager = manager_in(tmp_path)

    with manager.run(RUN, network):
        for _ in manager.epochs(1):
            network(batch)
            batch.zero_()

    (sheet,) = [value.image for _, value in values_in(tmp_path) if value.tag == "visuals/samples"]
    assert sheet == pictures.sheet(LOADER[0][0])


def test_inputs_that_are_no_images_are_not_shown(tmp_path):
    network = nn.Linear(16, 3)
    manager = manager_in(tmp_path)

    with manager.run(RUN, network):
        for _ in manager.epochs(1):
            network(torch.zeros(2, 16))

    assert "visuals/samples" not in [value.tag for _, value in values_in(tmp_path)]


@pytest.mark.parametrize("num_epochs", [0, 1])
def test_no_hook_stays_on_the_network(tmp_path, num_epochs):
    network = make_network()

    train(manager_in(tmp_path), RUN, num_epochs, network)

    assert not network._forward_pre_hooks


def test_the_layout_has_train_and_test_side_by_side_and_in_one_chart(tmp_path):
    train(manager_in(tmp_path), RUN)

    (value,) = [value for _, value in values_in(tmp_path) if value.tag == "custom_scalars__config__"]
    layout = layout_pb2.Layout.FromString(value.tensor.string_val[0])
    tags = sorted(scalars_in(tmp_path))
    assert {
        category.title: [
            [name for name in tags for expression in chart.multiline.tag if re.match(expression, name)]
            for chart in category.chart
        ]
        for category in layout.category
    } == {
        "side by side": [
            ["Goal/best max:test_accuracy"], ["Goal/last"], ["loss/train"], ["loss/test"], ["accuracy/train"],
            ["accuracy/test"],
        ],
        "overview": [
            ["loss/test", "loss/train"], ["accuracy/test", "accuracy/train"], ["time/epoch_s"],
            ["time/phase_data_s", "time/phase_eval_s", "time/phase_train_s"],
        ],
    }  # fmt: skip


def test_the_configuration_is_a_table(tmp_path):
    train(manager_in(tmp_path), {"lr": 0.1, "note": "a|b <c>\nd", "schedule": None, "device": "cpu"})

    lines = texts_in(tmp_path)["run/config"].splitlines()
    assert lines[:5] == [
        "| setting | value |",
        "|---|---|",
        "| lr | 0.1 |",
        "| note | a\\|b &lt;c> d |",
        "| schedule | none |",
    ]
    assert {"| device | cpu |", "| parameters | 51 |", f"| torch | {version('torch')} |"} <= set(lines)
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines[2:])
    assert len(set(lines)) == len(lines)


def test_a_completed_run_is_a_session_with_all_hyperparameters(tmp_path):
    train(manager_in(tmp_path), {"lr": np.float32(0.5), "amp": True, "device": "cpu", "schedule": None})

    start, end = sessions_in(tmp_path)
    shown = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert shown == {"lr": 0.5, "amp": True, "device": "cpu", "schedule": "none"}
    assert start.group_name == "e/001"
    assert end.status == Status.STATUS_SUCCESS
    assert start.start_time_secs <= end.end_time_secs


def test_a_failed_run_is_a_failure_with_its_error(tmp_path):
    with pytest.raises(ValueError, match="cannot be shown"):
        train(manager_in(tmp_path), RUN, at_end=fail)

    assert sessions_in(tmp_path)[-1].status == Status.STATUS_FAILURE
    error = texts_in(tmp_path)["run/error"].splitlines()
    line = line_with('raise ValueError("cannot')
    assert error[:3] == [
        f"    ValueError: cannot be shown (in epoch 1, step 2, {line})",
        "    ",
        "    Traceback (most recent call last):",
    ]
    assert error[-1] == "    ValueError: cannot be shown"
    assert all(line.startswith("    ") for line in error)  # shown as it is


def test_a_diverged_run_is_a_failure_and_its_loss_is_nan(tmp_path):
    manager = manager_in(tmp_path)

    with manager.run(RUN, make_network()):
        for _ in manager.epochs(3):
            manager.track_loss(math.inf, 1)

    assert sessions_in(tmp_path)[-1].status == Status.STATUS_FAILURE
    assert texts_in(tmp_path)["run/error"] == "    loss became inf in epoch 1, step 1"
    (loss,) = points(tmp_path, "loss/train")
    assert math.isnan(loss)


def test_an_interrupted_run_has_no_end_and_keeps_its_epochs(tmp_path):
    def interrupt(epoch: int) -> None:
        if epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(manager_in(tmp_path), RUN, 5, at_end=interrupt)

    assert len(sessions_in(tmp_path)) == 1
    assert [step for step, _ in scalars_in(tmp_path)["loss/train"]] == [1, 2]


def test_a_failed_run_that_succeeds_when_repeated_is_a_success(tmp_path):
    with pytest.raises(ValueError, match="cannot be shown"):
        train(manager_in(tmp_path), RUN, 3, at_end=fail)

    train(manager_in(tmp_path), RUN)

    assert [info.status for info in sessions_in(tmp_path)[1:]] == [Status.STATUS_SUCCESS]
    assert list(texts_in(tmp_path)) == ["run/config"]


def test_an_interrupted_run_that_is_repeated_shows_every_epoch_once(tmp_path):
    def interrupt(epoch: int) -> None:
        if epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(manager_in(tmp_path), RUN, 5, at_end=interrupt)
    train(manager_in(tmp_path), RUN, num_epochs=2)

    folder = next(path for path in (tmp_path / "e").iterdir() if path.is_dir())
    read = EventAccumulator(str(folder)).Reload()
    table = load_results(tmp_path)
    expected = [(number, float32(loss)) for number, loss in enumerate(table["loss"], 1)]
    assert [(point.step, point.value) for point in read.Scalars("loss/train")] == expected


@pytest.mark.parametrize("first", range(1, 8))
def test_a_full_disk_ends_logging_with_one_warning_and_training_goes_on(tmp_path, monkeypatch, first):
    write, calls = event_file.write, iter(range(1, 100))

    def some(file: Any, *events: Any) -> None:
        if file is not None and next(calls) >= first:
            no_space()
        write(file, *events)

    monkeypatch.setattr(event_file, "write", some)

    with pytest.warns(RunsWarning, match="No space left on device") as caught:
        train(manager_in(tmp_path), RUN, num_epochs=3)

    assert len(caught) == 1
    assert "training goes on" in str(caught[0].message)
    assert load_results(tmp_path)["epoch"].tolist() == [1, 2, 3]
    assert load_runs(tmp_path)["status"].tolist() == ["completed"]
    assert next(calls) == first + 1  # nothing was tried again


def test_a_limit_in_the_middle_of_an_event_keeps_those_before_it(tmp_path):
    train(manager_in(tmp_path / "whole"), RUN, num_epochs=5)
    expected = [event.step for event in events_in(tmp_path / "whole")]
    size = event_files(tmp_path / "whole")[0].stat().st_size
    resource = pytest.importorskip("resource", reason="Windows has no limits of file sizes")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        with pytest.warns(RunsWarning, match="File too large"):
            train(manager_in(tmp_path / "cut"), RUN, num_epochs=5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert load_results(tmp_path / "cut")["epoch"].tolist() == [1, 2, 3, 4, 5]
    assert event_files(tmp_path / "cut")[0].stat().st_size == size // 2
    steps = [event.step for event in events_in(tmp_path / "cut")]
    assert 5 < len(steps) < len(expected)
    assert steps == expected[: len(steps)]


def test_an_event_file_that_cannot_be_made_ends_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(event_file, "begin_file", no_space)

    with pytest.warns(RunsWarning, match=r"e/001-.*: TensorBoard lacks some content"):
        train(manager_in(tmp_path), RUN)

    assert load_runs(tmp_path)["status"].tolist() == ["completed"]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (hparams, "session_start"),
        (event_file, "event"),
        (pictures, "samples"),
        (pictures, "sheet"),
        (run_log, "tensors"),
    ],
)
def test_whatever_cannot_be_shown_is_one_warning(tmp_path, monkeypatch, module, name):
    monkeypatch.setattr(module, name, fail)

    with pytest.warns(RunsWarning, match="ValueError: cannot be shown") as caught:
        train(manager_in(tmp_path), RUN, num_epochs=2)

    assert len(caught) == 1
    assert load_runs(tmp_path)["epochs"].tolist() == [2]


def test_all_that_fails_together_is_one_warning_and_the_rest_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "sheet", fail)
    monkeypatch.setattr(histograms, "statistics", fail)

    with pytest.warns(RunsWarning) as caught:
        train(manager_in(tmp_path), RUN, num_epochs=3)

    assert len(caught) == 1
    assert len(points(tmp_path, "loss/train")) == 3
    assert sessions_in(tmp_path)[-1].status == Status.STATUS_SUCCESS


def test_every_run_has_a_warning_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "sheet", fail)
    manager = manager_in(tmp_path)

    with pytest.warns(RunsWarning, match="e/001-lr=1:"):
        train(manager, {"lr": 1})
    with pytest.warns(RunsWarning, match="e/002-lr=2:"):
        train(manager, {"lr": 2})


def test_a_killed_runs_last_event_may_be_cut_and_the_others_are_read(tmp_path):
    train(manager_in(tmp_path), RUN, num_epochs=2)
    (path,) = event_files(tmp_path)
    whole = len(events_in(tmp_path))

    path.write_bytes(path.read_bytes()[:-7])

    assert len(events_in(tmp_path)) == whole - 1


NAN = math.nan


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

    scalars = scalars_in(tmp_path)
    assert [value for _, value in scalars.get("Goal/last", [])] == pytest.approx(last)
    points = sorted(point for name in scalars if name.startswith("Goal/best ") for point in scalars[name])
    assert [value for _, value in points] == pytest.approx(best)


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ({"goal": "max:reward"}, "reward"),
        ({"goal": "validation_f1"}, "validation_f1"),
        ({"goal": "test_accuracy"}, "test_accuracy"),
        ({}, "test_accuracy"),
    ],
)
def test_a_grid_writes_its_goal_whatever_it_is_called(tmp_path, options, column):
    def train_and_track(run: Any, manager: RunManager) -> None:
        def track(epoch: int) -> None:
            manager.track(reward=run.lr - epoch, validation_f1=1 - abs(epoch - 2) / 4)

        train(manager, run, 3, at_end=track)

    run_grid(
        {"lr": [1.0, 2.0]},
        train_and_track,
        experiment="e",
        root=tmp_path,
        executor="inline",
        display=False,
        **options,
    )

    table = load_results(tmp_path / "e")
    for number, folder in enumerate(sorted((tmp_path / "e").glob("0*")), 1):
        values = table.loc[table["run"] == number, column]
        scalars = scalars_in(folder)
        assert {name for name in scalars if name.startswith("Goal/")} == {
            *OF_GOAL[1:],
            f"Goal/best max:{column}",
        }
        assert [value for _, value in scalars["Goal/last"]] == pytest.approx(values.tolist())
        assert scalars[f"Goal/best max:{column}"][-1][1] == pytest.approx(values.max())
        text = texts_in(folder)["run/config"]
        assert ("| goal | " in text) is bool(options)


def test_the_metric_of_the_kept_weights_decides_where_no_goal_is_given(tmp_path):
    manager = RunManager("e", tmp_path, display=False)
    network = make_network()
    with manager.run({"lr": 0.1}, network, LOADER):
        for epoch in manager.epochs(3, checkpoint={"network": network}, keep="best:f1"):
            manager.track_loss(0.5, 1)
            manager.track(f1=[0.5, 0.75, 0.25][epoch - 1], test_accuracy=epoch / 4)

    assert [value for _, value in scalars_in(tmp_path)["Goal/best max:f1"]] == [0.5, 0.75, 0.75]


def test_a_loop_follows_the_goal_of_its_experiment(tmp_path):
    def execute(params: dict[str, float], **options: Any) -> list[float]:
        manager = RunManager("e", tmp_path, display=False, **options)
        with manager.run(params):
            for epoch in manager.epochs(2):
                manager.track_loss(0.5, 1)
                manager.track(reward=epoch)
        folder = Experiment(tmp_path / "e").runs[id_of(params)]
        return [value for _, value in scalars_in(folder.path)["Goal/best min:reward"]]

    assert execute({"lr": 0.1}, goal="min:reward") == [1, 1]
    assert execute({"lr": 0.2}) == [1, 1]  # another process, which does not repeat it


@pytest.mark.parametrize("how", ["resumed", "whole"])
def test_a_run_that_is_written_again_has_the_same_scalars(tmp_path, how):
    values = [0.25, 0.75, 0.5]

    def execute(until: int) -> None:
        manager = RunManager("e", tmp_path, display=False, goal="max:reward")
        with manager.run({"lr": 0.1}):
            for epoch in manager.epochs(3, checkpoint={}):
                if epoch > until:
                    raise KeyboardInterrupt
                manager.track_loss(0.5, 1)
                manager.track(reward=values[epoch - 1])

    if how == "resumed":
        with pytest.raises(KeyboardInterrupt):
            execute(2)
    execute(3)
    (folder,) = (tmp_path / "e").glob("001*")

    scalars = folder_scalars(folder)
    assert scalars["Goal/best max:reward"] == [(1, 0.25), (2, 0.75), (3, 0.75)]
    assert scalars["Goal/best_epoch"] == [(1, 1), (2, 2), (3, 2)]
    assert scalars["Goal/last"] == [(1, 0.25), (2, 0.75), (3, 0.5)]

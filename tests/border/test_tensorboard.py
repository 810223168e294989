"""Event files, through TensorBoard's EventAccumulator (docs/tensorboard.md)."""

import json
import urllib.request

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from runmanager import (
    RunManager,
    RunManagerError,
    fit,
    from_tensorboard,
    load_results,
    load_steps,
    open_tensorboard,
    run_grid,
)
from tests.border.events import events_of, hparams_of, make_network, scalars_of, train
from tests.border.experiments import QUIET

RUN = {"lr": 0.1, "batch_size": 5, "net": "small", "bias": True}


def manager_in(folder, **options):
    return RunManager("e", folder, display=False, **options)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run of three epochs, with a figure, an image, a value per step and an own tag."""
    root = tmp_path_factory.mktemp("runs")
    figure = Figure(figsize=(1, 2), dpi=50)
    figure.add_subplot().plot([1, 2])
    manager = manager_in(root)

    def log(epoch):
        manager.log(score=epoch / 2, plot=figure, mask=torch.eye(4)[:2] > 0)
        manager.tb.add_scalar("mine/tag", 10 * epoch, epoch + 100)
        manager.track({"f1": epoch / 3, "val/iou": epoch})

    train(manager, RUN, 3, log)
    return root


# Time series


def test_scalars_equal_the_table(root):
    table, scalars = load_results(root), scalars_of(root)

    for column, tag in (
        ("loss", "loss/train"), ("accuracy", "accuracy/train"), ("test_loss", "loss/test"),
        ("test_accuracy", "accuracy/test"), ("epoch duration", "time/epoch_s"), ("run duration", "time/run_s"),
        ("f1", "train/f1"), ("val_iou", "iou/val"),
    ):  # fmt: skip
        assert scalars[tag] == [
            (epoch, float(np.float32(value))) for epoch, value in enumerate(table[column], 1)
        ]


@pytest.mark.parametrize("options", [{}, {"micro_batch": 2}, {"precision": "bf16"}])
def test_the_norm_of_gradients_is_that_before_fit_clips_them(tmp_path, options):
    """One batch per epoch, whose norm is known, as the weights hardly move."""
    batch, networks = (torch.ones(4, 2), torch.zeros(4, dtype=torch.long)), [nn.Linear(2, 2) for _ in "12"]
    networks[0].load_state_dict(networks[1].state_dict())
    for clip, network in zip((None, 0.01), networks, strict=True):
        optimizer = torch.optim.SGD(network.parameters(), 1e-9)
        run = {"clip": clip or 0}
        fit(
            run, network, [batch], manager_in(tmp_path), optimizer=optimizer, epochs=2, clip_grad_norm=clip,
            **options,
        )  # fmt: skip

    folders = sorted((tmp_path / "e").glob("*-clip=*"))
    clipped, whole = ([norm for _, norm in scalars_of(folder)["train/grad_norm"]] for folder in folders[::-1])
    assert clipped == pytest.approx(whole)
    assert clipped[0] > 0.1


def test_the_learning_rate_and_the_goal_are_scalars(root):
    scalars, table = scalars_of(root), load_results(root)

    assert [value for tag in scalars if "lr" in tag for _, value in scalars[tag]] == pytest.approx([0.1] * 3)
    assert all(value > 0 for _, value in scalars["train/grad_norm"])
    goal = {tag: value for tag, value in scalars.items() if tag.startswith("Goal/")}
    best = "Goal/best max:test_accuracy"
    assert set(goal) == {best, "Goal/best_after_s", "Goal/best_epoch", "Goal/last", "Goal/epoch_s"}
    assert goal["Goal/last"][-1][1] == pytest.approx(table["test_accuracy"].iloc[-1])
    assert goal[best][-1][1] == pytest.approx(table["test_accuracy"].max())


def test_values_of_log_are_curves_over_steps_and_own_tags_keep_their_steps(root):
    scalars = scalars_of(root)

    steps = load_steps(root)
    assert [value for _, value in scalars["steps/score"]] == steps["score"].tolist() == [0.5, 1.0, 1.5]
    assert [step for step, _ in scalars["steps/score"]] == steps["step"].tolist()
    assert scalars["mine/tag"] == [(101, 10), (102, 20), (103, 30)]


def test_images_figures_samples_and_confusion_matrix_are_drawn(root):
    events = events_of(root)
    drawn = events.Tags()["images"]

    assert {"images/plot", "images/mask", "visuals/samples", "visuals/confusion_test"} <= set(drawn)
    assert [image.step for image in events.Images("images/plot")] == [1, 2, 3]
    assert (events.Images("images/plot")[0].width, events.Images("images/plot")[0].height) == (50, 100)
    assert events.Images("visuals/confusion_test")[-1].step == 3


def test_weights_and_gradients_have_histograms(root):
    events = events_of(root)

    for tag in ("weights/1.weight", "weights:grad/1.weight"):
        histograms = events.Histograms(tag)
        assert [histogram.step for histogram in histograms] == [1, 2, 3]
        assert histograms[0].histogram_value.num == 48
    weights = make_network().get_parameter("1.weight")
    first = events.Histograms("weights/1.weight")[0].histogram_value
    assert first.min == pytest.approx(weights.min().item(), abs=0.2)


def test_the_network_is_a_graph(root):
    assert b"Linear" in events_of(root).Graph().SerializeToString()


def test_settings_and_the_traceback_of_a_failed_run_are_text(root, tmp_path):
    manager = manager_in(tmp_path)
    with pytest.raises(ZeroDivisionError):
        train(manager, RUN, at_end=lambda _: 1 / 0)

    texts = [
        tensor.tensor_proto.string_val[0].decode()
        for folder in (root, tmp_path)
        for tag in events_of(folder).Tags()["tensors"]
        if "text" in events_of(folder).SummaryMetadata(tag).plugin_data.plugin_name
        for tensor in events_of(folder).Tensors(tag)
    ]
    assert any("batch_size" in text for text in texts)
    assert any("ZeroDivisionError" in text for text in texts)


def test_custom_scalars_have_a_layout(root):
    assert [tag for tag in events_of(root).Tags()["tensors"] if "custom_scalars" in tag]


def test_without_tensorboard_there_are_no_event_files(tmp_path):
    train(manager_in(tmp_path, tensorboard=False), RUN)

    assert not list(tmp_path.rglob("*tfevents*"))


def test_drawing_disturbs_no_random_number_and_no_gradient(tmp_path):
    def numbers(name, **options):
        torch.manual_seed(3)
        train(RunManager(name, tmp_path, display=False, **options), RUN, 2)
        table = load_results(tmp_path / name).drop(columns=["epoch duration", "run duration"])
        return torch.rand(3).tolist(), table.to_csv()

    assert numbers("with") == numbers("without", tensorboard=False)


def test_a_value_that_is_not_finite_and_a_tag_with_odd_characters_harm_nothing(tmp_path):
    manager = manager_in(tmp_path)
    train(manager, RUN, at_end=lambda _: manager.track({"é/a": float("nan"), "x": float("inf")}))

    assert load_results(tmp_path)["x"].tolist() == [float("inf")]
    assert scalars_of(tmp_path)


# HParams


def test_hyperparameters_have_their_types(root):
    assert hparams_of(root).items() >= RUN.items()


# Resuming


def test_a_resumed_run_has_each_step_once_and_the_numbers_of_the_last_attempt(tmp_path):
    train(manager_in(tmp_path / "whole"), RUN, 4)

    def interrupt(epoch):
        if epoch == 3:
            manager.log(lost=1.0)
            raise KeyboardInterrupt

    manager = manager_in(tmp_path / "resumed")
    with pytest.raises(KeyboardInterrupt):
        train(manager, RUN, 4, interrupt)
    train(manager_in(tmp_path / "resumed"), RUN, 4)

    resumed, whole = scalars_of(tmp_path / "resumed"), scalars_of(tmp_path / "whole")
    for tag in ("loss/train", "accuracy/test", "loss/test"):
        assert resumed[tag] == whole[tag]
        assert [step for step, _ in resumed[tag]] == [1, 2, 3, 4]
    images = events_of(tmp_path / "resumed").Histograms("weights/1.weight")
    assert [image.step for image in images] == [1, 2, 3, 4]


# Tables of event files


def test_event_files_of_a_run_are_a_table_with_hyperparameters(root):
    table = from_tensorboard(root / "e")

    assert type(table) is pd.DataFrame
    table = table.dropna(subset="loss")
    assert table["epoch"].tolist() == [1, 2, 3]
    assert table["lr"].tolist() == [0.1] * 3
    assert table["loss"].tolist() == pytest.approx(load_results(root)["loss"].tolist(), rel=1e-6)


def test_event_files_of_any_tool_are_a_table_in_the_same_format(tmp_path):
    for name, lr in (("one", 0.1), ("two", 0.2)):
        with SummaryWriter(str(tmp_path / name)) as writer:
            for step in (1, 2):
                writer.add_scalar("loss/val", lr * step, step)
            writer.add_hparams({"lr": lr, "net": "a"}, {"final": lr}, run_name=".")

    table = from_tensorboard(tmp_path)

    rows = table.dropna(subset=["val_loss"])
    assert rows.groupby("lr")["val_loss"].last().to_dict() == pytest.approx({0.1: 0.2, 0.2: 0.4})
    assert set(table["net"]) == {"a"}


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_folder_without_event_files_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()

    with pytest.raises(RunManagerError, match=name):
        from_tensorboard(tmp_path / name)


# The server


def test_what_cannot_be_opened_is_refused(root, tmp_path):
    with pytest.raises(RunManagerError, match="missing"):
        open_tensorboard(tmp_path / "missing")
    with pytest.raises(RunManagerError, match="other"):
        open_tensorboard(root, "other")


@pytest.mark.slow
def test_a_server_shows_the_hyperparameters_of_one_experiment_on_a_configured_page(tmp_path, capsys):
    def scored(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(val_accuracy=run.lr)

    grid = {"lr": [0.1, 0.2], "net": ["a", "b"]}
    for name in ("e", "other"):
        run_grid(grid, scored, experiment=name, root=tmp_path, **{**QUIET, "tensorboard": True})

    open_tensorboard(tmp_path, "e")

    url = next(word for word in capsys.readouterr().out.split() if word.startswith("http://127.0.0.1:"))
    base = url.partition("?")[0]
    ask = f"{base}data/plugin/hparams/experiment?request=%7B%7D"
    runs = json.loads(urllib.request.urlopen(f"{base}data/runs", timeout=30).read())  # noqa: S310
    hparams = json.loads(urllib.request.urlopen(ask, timeout=30).read())  # noqa: S310
    assert "pinnedCards" in url
    assert len(runs) == 4
    assert {"lr", "net"} <= {info["name"] for info in hparams["hparamInfos"]}
    assert "Goal/last" in {info["name"]["tag"] for info in hparams["metricInfos"]}

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.compat.proto.graph_pb2 import GraphDef
from torch.utils.tensorboard import SummaryWriter

from runmanager import RunManager, RunsWarning
from tests.board.reading import (
    IMAGES,
    accumulated,
    event_files,
    events_in,
    make_network,
    scalars_in,
    sessions_in,
    texts_in,
    train,
)

RUN = {"lr": 0.1}


@pytest.fixture
def manager(tmp_path):
    """Open a run, that the test ends before it reads."""
    manager = RunManager("e", tmp_path, display=False)
    manager.begin_run(RUN, make_network())
    yield manager
    if manager._is_open:
        manager.end_run()


def test_tb_is_a_summary_writer_of_the_runs_folder(tmp_path, manager):
    manager.end_run()

    assert isinstance(manager.tb, SummaryWriter)
    assert manager.tb is manager.tb
    assert Path(manager.tb.log_dir) == tmp_path / "e" / "001-lr=0.1"


def test_there_is_no_tb_before_the_first_run(tmp_path):
    assert RunManager("e", tmp_path, display=False).tb is None


@pytest.mark.parametrize(
    ("call", "kind", "tags"),
    [
        (lambda tb: tb.add_image("mine", np.zeros((3, 4, 5), dtype=np.uint8), 1), "images", ["mine"]),
        (lambda tb: tb.add_images("mine", IMAGES, 1), "images", ["mine"]),
        (lambda tb: tb.add_histogram("mine", np.arange(9), 1), "histograms", ["mine"]),
        (lambda tb: tb.add_text("mine", "hello", 1), "tensors", ["mine/text_summary"]),
        (lambda tb: tb.add_pr_curve("mine", np.array([0, 1]), np.array([0.1, 0.9])), "tensors", ["mine"]),
        (lambda tb: tb.add_scalar("mine", torch.tensor(2.5), 1), "scalars", ["mine"]),
        (lambda tb: tb.add_scalar("mine", 2.5, 1, new_style=True), "tensors", ["mine"]),
        (lambda tb: tb.add_scalars("mine", {"a": 1, "b": 2}, 1), "scalars", ["mine/a", "mine/b"]),
        (lambda tb: tb.add_hparams({"x": [1]}, {"mine": 2.5}), "scalars", ["mine"]),
    ],
    ids=["image", "images", "histogram", "text", "pr_curve", "scalar", "new_style", "scalars", "hparams"],
)
def test_what_is_added_is_in_the_runs_one_event_file(tmp_path, manager, call, kind, tags):
    call(manager.tb)
    manager.end_run()

    read = accumulated(tmp_path).Tags()[kind]
    assert [tag for tag in read if tag.startswith("mine")] == tags


def test_a_figure_is_an_image(tmp_path, manager):
    pyplot = pytest.importorskip("matplotlib.pyplot")

    manager.tb.add_figure("mine", pyplot.figure(figsize=(1, 1)))
    manager.end_run()

    assert accumulated(tmp_path).Tags()["images"] == ["mine"]


def test_scalars_keep_their_values_and_steps(tmp_path, manager):
    for step in range(3):
        manager.tb.add_scalar("mine/a", step / 4, step)
        manager.tb.add_scalars("mine/b", {"c": step, "d": torch.tensor(step)}, step)
    manager.end_run()

    points = scalars_in(tmp_path)
    assert points["mine/a"] == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert points["mine/b/c"] == points["mine/b/d"] == [(0, 0.0), (1, 1.0), (2, 2.0)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_graph_of_the_users_own_comes_after_the_runs(tmp_path):
    manager: Any = RunManager("e", tmp_path, display=False)

    train(manager, RUN, at_end=lambda _: manager.tb.add_graph(make_network(), IMAGES))

    own, ours = [e.graph_def for e in events_in(tmp_path) if e.HasField("graph_def")]
    names = {node.name for node in GraphDef.FromString(own).node}
    assert any("Linear" in name for name in names)
    assert "output" in {node.op for node in GraphDef.FromString(ours).node}


def test_an_embedding_is_beside_the_event_file_and_no_run(tmp_path, manager):
    manager.tb.add_embedding(torch.eye(3), metadata=["a", "b", "c"], tag="mine", global_step=2)
    manager.end_run()

    assert len(event_files(tmp_path)) == 1
    folder = tmp_path / "e" / "001-lr=0.1"
    config = (folder / "projector_config.pbtxt").read_text()
    assert 'tensor_name: "mine:00002"' in config
    assert (folder / "00002" / "mine" / "metadata.tsv").read_text().split() == ["a", "b", "c"]
    assert f'tensor_path: "{Path("00002/mine/tensors.tsv")}"' in config


def test_hparams_stay_those_of_the_run(tmp_path, manager):
    manager.tb.add_hparams({"lr": 5, "other": True}, {"hparam/accuracy": 0.5}, run_name="mine")
    manager.end_run()

    start, _ = sessions_in(tmp_path)
    assert {name: value.number_value for name, value in start.hparams.items()} == RUN
    assert scalars_in(tmp_path)["hparam/accuracy"] == [(0, 0.5)]


def test_what_is_added_stands_between_the_epochs(tmp_path):
    manager: Any = RunManager("e", tmp_path, display=False)

    train(manager, RUN, 3, at_end=lambda epoch: manager.tb.add_scalar("mine", epoch, epoch))

    points = scalars_in(tmp_path)
    assert points["mine"] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert [step for step, _ in points["loss/train"]] == [1, 2, 3]


def test_every_run_has_a_writer_into_its_own_file(tmp_path):
    manager: Any = RunManager("e", tmp_path, display=False)

    for number in (1, 2):
        with manager.run({"lr": number}, make_network()):
            manager.tb.add_scalar("mine", number)

    assert scalars_in(tmp_path / "e" / "001-lr=1") == {"mine": [(0, 1.0)]}
    assert scalars_in(tmp_path / "e" / "002-lr=2") == {"mine": [(0, 2.0)]}


def test_after_the_run_has_ended_it_warns_once_and_writes_nothing(tmp_path, manager):
    manager.tb.add_scalar("mine", 1, 1)
    manager.end_run()

    with pytest.warns(RunsWarning, match="its run has ended"):
        manager.tb.add_scalar("mine", 2, 2)
    manager.tb.add_text("mine", "late", 2)  # no further warning, which would be an error

    assert scalars_in(tmp_path)["mine"] == [(1, 1.0)]
    assert list(texts_in(tmp_path)) == ["run/config"]


def test_closing_and_flushing_are_harmless(tmp_path, manager):
    with manager.tb as writer:
        writer.add_scalar("mine", 1, 1)
        writer.flush()
    writer.close()
    writer.add_scalar("mine", 2, 2)
    writer.close()
    manager.end_run()

    assert scalars_in(tmp_path)["mine"] == [(1, 1.0), (2, 2.0)]
    assert len(sessions_in(tmp_path)) == 2


def test_without_tensorboard_it_writes_nothing(tmp_path):
    manager: Any = RunManager("e", tmp_path, tensorboard=False, display=False)

    with manager.run(RUN, make_network()):
        manager.tb.add_scalar("mine", 1)
        manager.tb.add_scalars("mine", {"a": 1})
    manager.tb.add_scalar("mine", 2)

    assert event_files(tmp_path) == []

"""One run: load_run and what it has."""

import io
import os
import struct
import zipfile
from collections import namedtuple
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from runmanager import CheckpointError, LoadedRun, RunManager, RunManagerError, best, load_run, load_runs
from tests.border import reading


def network_of(width):
    return nn.Linear(2, width)


def fail_if(is_wrong):
    if is_wrong:
        raise ValueError("no")


@pytest.fixture
def root(own_folder):
    """Two runs of an experiment; the second one failed."""
    for width in (1, 2):
        manager = RunManager("exp", tensorboard=False, display=False)
        network = network_of(width)
        with suppress(ValueError), manager.run({"width": width, "name": "a b"}, network):
            for epoch in manager.epochs(2, keep="best:loss"):
                with torch.no_grad():
                    network.weight.fill_(10 * width + epoch)
                manager.track_loss(epoch, 1)
            manager.summary(final=width)
            fail_if(width == 2)
    return Path("runs")


def test_a_run_is_found_by_its_number(root):
    run = load_run("runs/exp/2")

    assert (run.number, run.status, run.epochs, run.summary) == (2, "failed", 2, {"final": 2})
    assert run.params == {"width": 2, "name": "a b"}
    assert isinstance(run, LoadedRun)
    assert run.error.startswith("ValueError: no")
    assert run.folder == root / "exp" / "002-width=2-name=a_b"
    assert run.results["loss"].tolist() == [1, 2]
    assert all(text in repr(run) for text in ("run 2", "width=2", "failed"))


def test_its_folder_and_rows_of_tables_are_runs_too(root):
    runs = load_runs("runs")
    row = namedtuple("Row", ["folder"])(runs["folder"][0])  # noqa: PYI024 - as itertuples makes them
    for given in (
        Path("runs/exp/001-width=1-name=a_b"), (root / "exp" / "1").absolute(), runs.iloc[0],
        best(runs, "loss").iloc[0], runs.to_dict("records")[0], row, load_run("runs/exp/1"),
    ):  # fmt: skip
        assert load_run(given).params["width"] == 1


def test_the_weights_that_were_kept_are_loaded(root):
    network = network_of(1)
    load_run("runs/exp/1").load_weights(network)

    assert network.weight.tolist() == [[11, 11]]
    with pytest.raises(CheckpointError, match=r"weights\.pt"):
        load_run("runs/exp/1").load_weights(network_of(3))


def compressed(path):
    content = path.read_bytes()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as plain,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped,
    ):
        for name in plain.namelist():
            zipped.writestr(name, plain.read(name))


def replaced(make):
    def replace(path):
        path.rename(path.with_name("other.pt"))
        make(path)

    return replace


DAMAGES = {
    "a bit": lambda path: path.write_bytes(
        path.read_bytes().replace(struct.pack("f", 11), struct.pack("f", 12))
    ),
    "compressed": compressed,
    "a pipe": replaced(os.mkfifo),
    "a link": replaced(lambda path: path.symlink_to("other.pt")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_weights_are_refused(root, damage):
    DAMAGES[damage](reading.run_folder("runs/exp") / "weights.pt")

    with pytest.raises(CheckpointError, match=r"weights\.pt cannot be loaded"):
        load_run("runs/exp/1").load_weights(network_of(1))


def test_a_run_that_failed_before_its_weights_says_so(root):
    with suppress(ValueError), RunManager("exp", tensorboard=False, display=False).run({"width": 3}):
        fail_if(True)

    with pytest.raises(CheckpointError, match=r"003-width=3.*failed"):
        load_run("runs/exp/3").load_weights(network_of(3))


@pytest.mark.parametrize(
    ("run", "named"),
    [("runs/exp", ["runs/exp", "'runs/exp/1'"]), ("runs/exp/7", ["'7'", "1 to 2"]), ("runs/none/7", ["exp"])],
)
def test_a_run_that_is_not_there_is_named_with_those_that_are(root, run, named):
    with pytest.raises(RunManagerError) as raised:
        load_run(run)

    assert [text for text in named if text not in str(raised.value)] == []


def test_its_artifacts_are_named_with_their_paths(root):
    manager = RunManager("exp", tensorboard=False, display=False)
    with manager.run({"width": 1, "name": "a b"}):  # again, as after a change of the code
        manager.artifact("text", "notes.txt")
        manager.artifact("more", "plots/more.txt")

    run = load_run("runs/exp/1")

    assert {name: path.is_file() for name, path in run.artifacts.items()} == {
        "notes.txt": True, "plots": False, "plots/more.txt": True,
    }  # fmt: skip
    assert run.artifacts["notes.txt"].read_text() == "text"
    assert load_run("runs/exp/2").artifacts == {}

"""What a run has beside its epochs: summary, artifacts, weights."""

import contextlib
import itertools
import math
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from runmanager import (
    CheckpointError,
    InvalidArgumentError,
    StorageError,
    best,
    load_results,
    load_run,
    load_runs,
    show,
)
from tests.border.experiments import manager_in

LOADER = [(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3)]


def train(manager, network=None, lr=0.1, after=lambda: None, **options):
    with manager.run({"lr": lr}, network):
        for epoch in manager.epochs(3, **options):
            if network:
                with torch.no_grad():
                    network.weight.fill_(epoch)
            manager.track_loss(abs(epoch - 2) + lr, 1)
        after()


def test_a_result_of_the_whole_run_is_a_column_of_the_runs_alone(manager, tmp_path):
    train(manager, after=lambda: manager.summary({"final/f1": torch.tensor(0.5)}, seconds=3))
    train(manager, lr=0.2)

    runs = load_runs(tmp_path)
    assert runs["final_f1"].tolist()[0] == 0.5
    assert math.isnan(runs["final_f1"][1])
    assert runs["seconds"][0] == 3
    assert "final_f1" not in load_results(tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_kept(manager, tmp_path, value):
    train(manager, after=lambda: manager.summary(score=value))

    read = load_runs(tmp_path)["score"][0]
    assert math.isnan(read) if math.isnan(value) else read == value


def test_runs_are_ranked_by_it(manager, tmp_path):
    for lr, score in ((0.1, 1.0), (0.2, 3.0), (0.3, 2.0)):
        train(manager, lr=lr, after=lambda score=score: manager.summary(score=score))

    runs = load_runs(tmp_path)
    assert best(runs, "max:score")["run"].tolist() == [2, 3, 1]
    assert "score" in show(runs, "max:score")._repr_html_()


def test_the_final_test_on_the_best_weights_takes_two_lines(manager, tmp_path):
    network = nn.Linear(4, 3)

    def test():
        assert network.weight[0, 0] == 3
        manager.load_weights()
        assert network.weight[0, 0] == 2
        manager.evaluate(LOADER, "final")

    train(manager, network, after=test, keep="best:loss")

    (row,) = load_runs(tmp_path).to_dict("records")
    expected = nn.functional.cross_entropy(network(LOADER[0][0]), LOADER[0][1]).item()
    assert row["final_loss"] == pytest.approx(expected, abs=1e-6)
    assert "final_loss" not in load_results(tmp_path)


def test_a_run_that_was_interrupted_before_it_ended_has_it_in_the_end(manager, tmp_path):
    def interrupt():
        manager.summary(score=1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(manager, after=interrupt, checkpoint={"state": {}})
    again = manager_in(tmp_path)
    train(again, after=lambda: again.summary(score=2), checkpoint={"state": {}})

    runs = load_runs(tmp_path)
    assert runs[["status", "epochs", "score"]].to_numpy().tolist() == [["completed", 3, 2]]


@pytest.mark.parametrize(
    "values",
    [
        {"loss": 1}, {"status": 1}, {"folder": 1}, {"lr": 1}, {"a b": 1}, {"score": "good"},
        {"score": torch.zeros(2)},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_result_or_has_the_name_of_another_column_is_refused(manager, values):
    def add():
        with pytest.raises(ValueError, match=next(iter(values))):
            manager.summary(values)

    train(manager, after=add)


def test_a_column_of_the_epochs_is_not_evaluated_again_after_them(manager):
    def after():
        with pytest.raises(ValueError, match="test_loss"):
            manager.evaluate(LOADER)

    with manager.run({"lr": 0.1}, nn.Linear(4, 3)):
        for _ in manager.epochs(1):
            manager.evaluate(LOADER)
        after()


def test_without_kept_weights_there_are_none_to_load(manager, tmp_path):
    def load():
        with pytest.raises(CheckpointError, match=r"001-lr=0.1.*keep="):
            manager.load_weights()

    train(manager, nn.Linear(4, 3), after=load)


def test_damaged_weights_and_those_of_another_network_are_named(manager, tmp_path):
    def load():
        with pytest.raises(CheckpointError, match="weight"):
            manager.load_weights(nn.Linear(5, 3))
        path = manager.folder / "weights.pt"
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(CheckpointError, match=r"weights\.pt"):
            manager.load_weights()

    train(manager, nn.Linear(4, 3), after=load, keep="last")


def test_an_artifact_is_kept_over_a_resume_and_belongs_to_its_run(manager, tmp_path):
    def keep(manager, text):
        manager.artifact(f"{text}\n", "notes.txt")
        manager.artifact(f"{manager.folder}/run.json", "deep/run.json")

    def interrupt():
        keep(manager, "first")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(manager, after=interrupt, checkpoint={"state": {}})
    again = manager_in(tmp_path)
    train(again, checkpoint={"state": {}})
    assert again.folder
    kept = (again.folder / "artifacts" / "notes.txt").read_text()
    train(again, lr=0.2, after=lambda: keep(again, "second"))

    assert kept == "first\n"
    assert [path.read_text() for path in sorted(tmp_path.rglob("notes.txt"))] == ["first\n", "second\n"]
    assert len(list(tmp_path.rglob("deep/run.json"))) == 2


def test_a_figure_of_matplotlib_is_kept_as_png(manager):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.add_subplot()
    axes.plot([1, 2])

    train(manager, after=lambda: [manager.artifact(figure, "curve"), manager.artifact(axes, "axes.svg")])

    assert (manager.folder / "artifacts" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (manager.folder / "artifacts" / "axes.svg").read_bytes()


def test_files_folders_texts_and_what_saves_itself_are_kept(manager, tmp_path):
    (tmp_path / "given" / "deep").mkdir(parents=True)
    (tmp_path / "given" / "deep" / "a.csv").write_text("1")
    (tmp_path / "given" / "deep").chmod(0o555)

    def keep():
        manager.artifact(tmp_path / "given")
        manager.artifact(tmp_path / "given")  # replaces it
        manager.artifact(tmp_path / "given" / "deep" / "a.csv", "renamed.csv")
        manager.artifact("old", "text.txt")
        manager.artifact("new\n", "text.txt")  # replaces it
        manager.artifact(Image.new("L", (8, 8)), "mask")

    train(manager, after=keep)

    artifacts = load_run(manager.folder).artifacts
    assert artifacts["text.txt"].read_text() == "new\n"
    assert artifacts["given/deep/a.csv"].read_text() == artifacts["renamed.csv"].read_text() == "1"
    assert artifacts["given/deep/a.csv"].parent.stat().st_mode & 0o200  # it can be removed
    assert artifacts["mask.png"].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["../up.txt", "/abs.txt", "", "a\x00b"])
def test_names_that_lead_elsewhere_are_refused_and_nothing_is_written(manager, tmp_path, name):
    def keep():
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises((ValueError, StorageError)):
            manager.artifact("text", name)
        assert sorted(tmp_path.rglob("*")) == before

    train(manager, after=keep)


def test_an_artifact_below_a_file_is_refused_and_the_run_goes_on(manager):
    def keep():
        manager.artifact("text", "plots")
        with pytest.raises(InvalidArgumentError, match="plots' is a file"):
            manager.artifact("text", "plots/a.txt")

    train(manager, after=keep)

    assert load_run(manager.folder).artifacts["plots"].read_text() == "text"


@pytest.mark.parametrize("target", ["nowhere", "."])
def test_a_folder_that_cannot_be_copied_is_refused_and_is_no_fault_of_the_storage(manager, tmp_path, target):
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "link").symlink_to(target)

    def keep():
        with pytest.raises(InvalidArgumentError, match="linked/link' is neither a file nor a folder"):
            manager.artifact(tmp_path / "linked")

    train(manager, after=keep)

    assert not load_run(manager.folder).artifacts


class Figure:
    """What matplotlib's figures have."""

    def savefig(self, path):
        Path(path).write_text(f"a {Path(path).suffix}")


class Model:
    """Saves itself as a folder, as some formats are."""

    def save(self, path):
        Path(path).mkdir()
        Path(path, "weights").write_text("of a model")


class Elsewhere:
    def save(self, path):
        Path(f"{path}.npy").write_text("an array")


@pytest.fixture
def given(tmp_path, monkeypatch):
    """What a run may keep, in the working directory: a file, a folder and links to them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model/deep").mkdir(parents=True)
    for name in ("table.csv", "model/a.txt", "model/deep/b.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("table.csv")
    (tmp_path / "model/link").symlink_to("a.txt")


def kept(manager):
    """Return what is under artifacts/: name -> content, None of folders."""
    top = manager.folder / "artifacts"
    paths = {path.relative_to(top).as_posix(): path for path in top.rglob("*")}
    assert not [name for name, path in paths.items() if path.is_symlink() or name.startswith(".")]
    return {name: path.read_text() if path.is_file() else None for name, path in paths.items()}


@contextlib.contextmanager
def small_disk(most):
    """Refuse to write files of more bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_artifact_of_any_kind_replaces_one_of_any_kind_and_no_fault_loses_it(manager, given, tmp_path):
    folder: dict[str, str | None] = {"": None, "/a.txt": "model/a.txt", "/link": "model/a.txt"}
    folder |= {"/deep": None, "/deep/b.txt": "model/deep/b.txt"}
    kinds: dict[Any, dict[str, str | None]] = {
        "table.csv": {"": "table.csv"}, "model": folder, "a text": {"": "a text"}, Figure(): {"": "a .png"},
        Model(): {"": None, "/weights": "of a model"},
    }  # fmt: skip
    (tmp_path / "large").mkdir()
    (tmp_path / "large/file").write_text("x" * 10_000)

    def keep():
        for first, second in itertools.product(kinds, kinds):
            manager.artifact(first, "same.png")
            manager.artifact(second, "same.png")
            expected = {f"same.png{name}": content for name, content in kinds[second].items()}
            assert kept(manager) == expected
            for large in ("large", "large/file", "x\n" * 5000):
                with small_disk(5000), pytest.raises(StorageError, match="same"):
                    manager.artifact(large, "same.png")
                assert kept(manager) == expected
        manager.artifact("model")
        manager.artifact("link")
        manager.artifact(manager.folder / "artifacts/model")  # itself
        manager.artifact(manager.folder / "artifacts/model/deep", "model")
        assert kept(manager) == {
            **expected,
            "link": "table.csv",
            "model": None,
            "model/b.txt": "model/deep/b.txt",
        }

    train(manager, after=keep)

    assert load_runs(tmp_path)["status"].tolist() == ["completed"]


@pytest.mark.parametrize(
    ("content", "name", "named"),
    [
        ("tabel.csv", None, "tabel.csv"), *((Path("tabel.csv"), name, "tabel.csv") for name in (None, "x")),
        ("x" * 5000, None, "no file or folder"), ("a\0b", None, "no file or folder"), (Figure(), None, "name"),
        (Elsewhere(), "x", "'x' is not the name"), (7, "x", "got 7"), (None, None, "path"), (b"b", "x", "path"),
        *((path, "all", "contains the artifact itself") for path in (".", "exp", "exp/001-lr=0.1/artifacts")),
    ],
)  # fmt: skip
def test_what_cannot_be_an_artifact_is_refused_and_nothing_is_written(manager, given, content, name, named):
    def keep():
        manager.artifact("a text", "x.txt")
        with pytest.raises(InvalidArgumentError, match=named):
            manager.artifact(content, name)
        assert kept(manager) == {"x.txt": "a text"}

    train(manager, after=keep)

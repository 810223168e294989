"""What a run has beside its epochs: summary, artifacts, weights."""

import itertools
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from runmanager import CheckpointError, InvalidArgumentError, StorageError, load_results, load_run, load_runs
from tests.border.disk import small_disk
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
    values = {"final/f1": torch.tensor(0.5), "seconds": 3, "nan": math.nan, "inf": math.inf, "least": -math.inf}
    train(manager, after=lambda: manager.summary(values))
    train(manager, lr=0.2)

    runs = load_runs(tmp_path)
    assert repr(runs[["final_f1", "seconds", "nan", "inf", "least"]].to_numpy().tolist()) == repr(
        [[0.5, 3.0, math.nan, math.inf, -math.inf], [math.nan] * 5]
    )
    assert "final_f1" not in load_results(tmp_path)


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


@pytest.mark.parametrize(
    ("keep", "width", "num_bytes", "named"),
    [(None, 4, None, "001-lr=0.1.*keep="), ("last", 5, None, "weight"), ("last", 4, 100, r"weights\.pt")],
)
def test_weights_that_are_not_there_are_damaged_or_of_another_network_are_named(
    manager, keep, width, num_bytes, named
):
    def load():
        if num_bytes:
            os.truncate(manager.folder / "weights.pt", num_bytes)
        with pytest.raises(CheckpointError, match=named):
            manager.load_weights(nn.Linear(width, 3))

    train(manager, nn.Linear(4, 3), after=load, keep=keep)


def test_a_summary_and_artifacts_are_those_of_the_last_attempt_and_belong_to_their_run(manager, tmp_path):
    def keep(manager, text, score):
        manager.artifact(f"{text}\n", "notes.txt")
        manager.artifact(f"{manager.folder}/run.json", f"deep/{text}.json")
        manager.summary(score=score)

    def interrupt():
        keep(manager, "first", 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(manager, after=interrupt, checkpoint={"state": {}})
    again = manager_in(tmp_path)
    train(again, after=lambda: again.summary(score=2), checkpoint={"state": {}})
    assert load_run(tmp_path / "exp/1").artifacts["notes.txt"].read_text() == "first\n"
    train(again, lr=0.2, after=lambda: keep(again, "second", 3))

    assert [path.read_text() for path in sorted(tmp_path.rglob("notes.txt"))] == ["first\n", "second\n"]
    assert sorted(path.name for path in tmp_path.rglob("deep/*")) == ["first.json", "second.json"]
    assert load_runs(tmp_path)[["epochs", "score"]].to_numpy().tolist() == [[3, 2], [3, 3]]


def test_figures_and_images_are_kept_as_png(manager):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.add_subplot()
    contents = {"curve": figure, "axes.svg": axes, "mask": Image.new("L", (8, 8))}

    train(manager, after=lambda: [manager.artifact(content, name) for name, content in contents.items()])

    artifacts = load_run(manager.folder).artifacts
    assert [artifacts[name].read_bytes()[:4] for name in ("curve.png", "mask.png")] == [b"\x89PNG"] * 2
    assert b"<svg" in artifacts["axes.svg"].read_bytes()


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
def given(own_folder):
    """What a run may keep, in the working directory: a file, a folder and links to them."""
    Path("model/deep").mkdir(parents=True)
    for name in ("table.csv", "model/a.txt", "model/deep/b.txt"):
        Path(name).write_text(name)
    Path("link").symlink_to("table.csv")
    Path("model/link").symlink_to("a.txt")
    Path("model/deep").chmod(0o555)


def kept(manager):
    """Return what is under artifacts/: name -> content, None of folders."""
    top = manager.folder / "artifacts"
    paths = {path.relative_to(top).as_posix(): path for path in top.rglob("*")}
    assert not [name for name, path in paths.items() if path.is_symlink() or name.startswith(".")]
    return {name: path.read_text() if path.is_file() else None for name, path in paths.items()}


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
        of_model = {"model": None, "model/b.txt": "model/deep/b.txt"}
        assert kept(manager) == {**expected, "link": "table.csv", **of_model}
        assert (manager.folder / "artifacts/model").stat().st_mode & 0o200  # it can be removed
        with pytest.raises(InvalidArgumentError, match="link' is a file"):
            manager.artifact("text", "link/a.txt")

    train(manager, after=keep)

    assert load_runs(tmp_path)["status"].tolist() == ["completed"]


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    ("before", "after"), [("model", "model/deep"), ("model", "table.csv"), ("table.csv", "model")]
)
def test_a_kill_while_an_artifact_is_replaced_leaves_the_earlier_or_the_later_one(
    manager, given, before, after
):
    def replace_and_die(number):
        left = itertools.count(-number)

        def hook(event, _):
            if event in ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree") and next(left) == 0:
                os._exit(9)

        sys.addaudithook(hook)
        manager.artifact(after, "same")
        os._exit(0)

    def look():
        artifacts = load_run(manager.folder).artifacts
        return {name: path.is_file() and path.read_text() for name, path in artifacts.items()}

    def keep():
        manager.artifact(after, "same")
        later = look()
        manager.artifact(before, "same")
        whole = [look(), later]
        for number in itertools.count():
            if not (child := os.fork()):
                replace_and_die(number)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert look() in whole
            manager.artifact(before, "same")
            if code == 0:
                break
        assert number > 1

    train(manager, after=keep)


@pytest.mark.parametrize(
    ("content", "name", "named"),
    [
        ("tabel.csv", None, "tabel.csv"), *((Path("tabel.csv"), name, "tabel.csv") for name in (None, "x")),
        ("x" * 5000, None, "no file or folder"), ("a\0b", None, "no file or folder"), (Figure(), None, "name"),
        (Elsewhere(), "x", "'x' is not the name"), (7, "x", "got 7"), (None, None, "path"), (b"b", "x", "path"),
        *((path, "all", "contains the artifact itself") for path in (".", "exp", "exp/001-lr=0.1/artifacts")),
        *(("text", name, ".") for name in ("../up.txt", "/abs.txt", "", "a\x00b")),
    ],
)  # fmt: skip
def test_what_cannot_be_an_artifact_is_refused_and_nothing_is_written(
    manager, given, tmp_path, content, name, named
):
    def keep():
        manager.artifact("a text", "x.txt")
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises((ValueError, StorageError), match=named):
            manager.artifact(content, name)
        assert sorted(tmp_path.rglob("*")) == before

    train(manager, after=keep)

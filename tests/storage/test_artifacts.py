import errno
import os
from pathlib import Path

import pytest
from PIL import Image

from runmanager.errors import InvalidArgumentError, StorageError
from runmanager.front.artifacts import keep


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a run; beside it is what it may keep."""
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("a,b\n")
    for name in ("model/a.txt", "model/deep/b.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(name)
    Path("model/empty").mkdir()
    run = tmp_path / "runs" / "exp" / "001"
    run.mkdir(parents=True)
    return run


def files_in(folder):
    """Return what is under artifacts/: name -> content, None of folders."""
    top = folder / "artifacts"
    return {
        path.relative_to(top).as_posix(): path.read_text() if path.is_file() else None
        for path in top.rglob("*")
    }


class Figure:
    """What matplotlib's figures have."""

    def savefig(self, path):
        suffix = Path(path).suffix[1:]
        if suffix not in ("png", "pdf"):
            raise ValueError(f"Format {suffix!r} is not supported")
        Path(path).write_text(f"a {suffix}")


class Axes:
    figure = Figure()


class Elsewhere:
    def save(self, path):
        Path(f"{path}.npy").write_text("an array")


def test_figures_are_png_unless_their_name_says_another_format(folder):
    for content, name in ((Figure(), "roc"), (Figure(), "plots/roc.pdf"), (Axes(), "axes.png")):
        keep(folder, content, name)

    contents = {name: text for name, text in files_in(folder).items() if text}
    assert contents == {"roc.png": "a png", "plots/roc.pdf": "a pdf", "axes.png": "a png"}


def test_what_saves_itself_to_a_path_is_kept(folder):
    class Model:
        def save(self, path):  # a folder, as some formats are
            Path(path).mkdir()
            Path(path, "weights").write_text("of a model")

    for content, name in (
        (Image.new("L", (2, 3), 7), "mask"), (Image.new("RGB", (2, 3)), "mask.jpg"), (Model(), "model"),
    ):  # fmt: skip
        keep(folder, content, name)

    kept = folder / "artifacts"
    names = ["mask.jpg", "mask.png", "model", "model/weights"]
    assert sorted(path.relative_to(kept).as_posix() for path in kept.rglob("*")) == names
    assert Image.open(kept / "mask.png").getpixel((1, 2)) == 7
    assert (kept / "model" / "weights").read_text() == "of a model"


@pytest.mark.parametrize("first", ["table.csv", "model", "a text", Figure()])
@pytest.mark.parametrize("second", ["table.csv", "model", "a text", Figure()])
def test_the_same_name_again_replaces(folder, first, second):
    keep(folder, first, "same.png")
    keep(folder, second, "same.png")
    replaced = files_in(folder)
    keep(folder, second, "other.png")

    kept = {name.replace("same", "other"): content for name, content in replaced.items()}
    assert replaced | kept == files_in(folder)
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("tabel.csv", None, "no file or folder 'tabel.csv': give one that is there"),
        (Path("nothing"), "x", "no file or folder 'nothing': give one that is there, or a text with its name"),
        ("x" * 5000, None, "no file or folder 'xxx"),
        ("a\0b", None, "no file or folder 'a"),
        (Figure(), None, "this figure needs a name: write artifact(figure, 'figure')"),
        (Elsewhere(), "x", "'x' is not the name under which it saves itself: save it to a file, and give"),
        (
            7,
            "x",
            "or an object with savefig(path) or save(path), got 7: write it to a file, as torch",
        ),
        (None, None, "artifact() takes the path"),
        (b"bytes", "x", "artifact() takes the path"),
    ],
)
def test_what_is_neither_is_refused(folder, content, name, message):
    with pytest.raises(InvalidArgumentError) as raised:
        keep(folder, content, name)

    assert message in str(raised.value)
    assert not [path for path in folder.rglob("*") if path.name != "artifacts"]


def test_what_a_link_names_is_copied(folder):
    Path("link").symlink_to("table.csv")
    Path("model/link").symlink_to("a.txt")

    keep(folder, "link", None)
    keep(folder, "model", None)

    assert files_in(folder)["link"] == "a,b\n"
    assert files_in(folder)["model/link"] == "model/a.txt"
    assert not [path for path in (folder / "artifacts").rglob("*") if path.is_symlink()]


def test_a_folder_that_has_the_run_in_it_is_refused(folder):
    keep(folder, "model", None)
    for content in (".", "runs", folder, folder / "artifacts"):
        with pytest.raises(InvalidArgumentError, match="contains the artifact itself: give a part of it"):
            keep(folder, content, "all")


def test_an_artifact_may_be_given_again_and_a_part_of_it_replace_it(folder):
    first = keep(folder, "model", None)
    keep(folder, first, None)
    keep(folder, first / "deep", "model")

    assert files_in(folder) == {"model": None, "model/b.txt": "model/deep/b.txt"}


@pytest.mark.parametrize("kind", ["table.csv", "model", "a text"])
@pytest.mark.parametrize("before", [None, "table.csv", "model"])
def test_what_was_there_stays_where_the_disk_is_full(folder, monkeypatch, kind, before):
    if before:
        keep(folder, before, "same")
    kept = files_in(folder)

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", fail)
    monkeypatch.setattr("shutil.copyfile", fail)
    with pytest.raises(StorageError, match=r"cannot write .*No space left on device"):
        keep(folder, kind, "same")

    assert files_in(folder) == kept


def test_others_than_the_first_rank_write_nothing(folder):
    assert keep(folder, Figure(), "roc", is_writer=False) == folder / "artifacts" / "roc.png"
    assert list(folder.iterdir()) == []

import errno
import os
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from runmanager.errors import InvalidArgumentError, StorageError
from runmanager.storage import artifacts, durable
from runmanager.storage.artifacts import keep


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
        (pd.DataFrame({"a": [1]}), "rows"),
    ):  # fmt: skip
        keep(folder, content, name)

    kept = folder / "artifacts"
    assert artifacts.names(folder) == ["mask.jpg", "mask.png", "model", "model/weights", "rows.csv"]
    assert Image.open(kept / "mask.png").getpixel((1, 2)) == 7
    assert (kept / "model" / "weights").read_text() == "of a model"
    assert (kept / "rows.csv").read_text().replace("\r", "") == ",a\n0,1\n"


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
        ("tabel.csv", None, "no file or folder 'tabel.csv': did you mean 'table.csv'"),
        ("tabel.csv", "table.csv", "no file or folder 'tabel.csv': did you mean 'table.csv'"),
        (Path("nothing"), "x", "no file or folder 'nothing': give one that is there, or a text with its name"),
        ("x" * 5000, None, "no file or folder 'xxx"),
        ("a\0b", None, "no file or folder 'a"),
        (Figure(), None, "this Figure needs a name: write artifact(figure, 'figure')"),
        (Figure(), "roc.0.5", "'roc.0.5' has no suffix of a figure: write 'roc.0.5.png' (Format '5'"),
        (Image.new("L", (2, 3)), "a.b", "'a.b' has no suffix of a figure: write 'a.b.png' (unknown file ext"),
        (Elsewhere(), "x", "'x' is not the name under which it saves itself: save it to a file, and give"),
        (
            7,
            "x",
            "or an object with savefig(path), save(path) or to_csv(path), got 7: write it to a file, as torch",
        ),
        (None, None, "artifact() takes the path"),
        (b"bytes", "x", "artifact() takes the path"),
    ],
)
def test_what_is_neither_is_refused(folder, content, name, message):
    with pytest.raises(InvalidArgumentError) as raised:
        keep(folder, content, name)

    assert message in str(raised.value)
    assert list(folder.iterdir()) == []


def test_links_and_special_files_are_refused_wherever_they_are(folder):
    Path("link").symlink_to("table.csv")
    Path("to_folder").symlink_to("model")
    os.mkfifo("pipe")
    Path("model/link").symlink_to("/etc/passwd")
    Path("model/deep/pipe").symlink_to("nowhere")

    for content in ("link", "to_folder"):
        with pytest.raises(InvalidArgumentError, match="is a link: give the file or folder that it leads to"):
            keep(folder, content, None)
    with pytest.raises(InvalidArgumentError, match="'pipe' is no file or folder"):
        keep(folder, "pipe", None)
    with pytest.raises(InvalidArgumentError, match=r"2 problems(.|\n)*model/link' in 'model' is neither"):
        keep(folder, "model", None)
    assert list(folder.iterdir()) == []


def test_a_folder_that_has_the_run_in_it_is_refused(folder):
    keep(folder, "model", None)
    for content in (".", "runs", folder, folder / "artifacts"):
        with pytest.raises(InvalidArgumentError, match="contains the artifact itself: give a part of it"):
            keep(folder, content, "all")


def test_links_in_the_folder_of_a_run_are_not_followed(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "artifacts").symlink_to(outside)
    with pytest.raises(InvalidArgumentError, match="artifacts' is a link, which is not followed: remove it"):
        keep(folder, "table.csv", None)
    assert artifacts.names(folder) == []
    (folder / "artifacts").unlink()
    keep(folder, "table.csv", "plots/table.csv")
    (folder / "artifacts" / "link").symlink_to(outside)
    (folder / "artifacts" / "file").symlink_to(tmp_path / "table.csv")

    for name in ("link/table.csv", "link", "file"):
        with pytest.raises(InvalidArgumentError, match="is a link, which is not followed: remove it"):
            keep(folder, "a text", name)
    with pytest.raises(InvalidArgumentError, match=r"plots/table.csv' is a file and cannot contain others"):
        keep(folder, "a text", "plots/table.csv/x")
    assert list(outside.iterdir()) == []
    assert artifacts.names(folder) == ["plots", "plots/table.csv"]
    assert artifacts.names(folder, files_only=True) == ["plots/table.csv"]


def test_an_artifact_may_be_given_again_and_a_part_of_it_replace_it(folder):
    first = keep(folder, "model", None)
    keep(folder, first, None)
    keep(folder, first / "deep", "model")

    assert files_in(folder) == {"model": None, "model/b.txt": "model/deep/b.txt"}


def test_a_file_of_any_size_is_copied_in_pieces(folder, monkeypatch):
    monkeypatch.setattr(durable, "_AT_ONCE", 3)
    content = bytes(range(256))
    Path("large").write_bytes(content)

    assert keep(folder, "large", None).read_bytes() == content


@pytest.mark.parametrize("kind", ["table.csv", "model", "a text"])
@pytest.mark.parametrize("before", [None, "table.csv", "model"])
def test_what_was_there_stays_where_the_disk_is_full(folder, monkeypatch, kind, before):
    if before:
        keep(folder, before, "same")
    kept = files_in(folder)

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.write", fail)
    with pytest.raises(StorageError, match=r"cannot write \(No space left on device"):
        keep(folder, kind, "same")

    assert files_in(folder) == kept


class Killed(BaseException):
    pass


@pytest.mark.parametrize("content", ["model/deep", "table.csv", "a text"])
def test_a_kill_at_any_call_leaves_the_old_or_the_new_content(folder, monkeypatch, content):
    keep(folder, "model", "same")
    old = files_in(folder)
    keep(folder, content, "whole")
    new = {name: text for name, text in files_in(folder).items() if name.startswith("whole")}
    new = {name.replace("whole", "same"): text for name, text in new.items()}
    (folder / "artifacts" / "whole").rename(folder / "whole")
    calls = ("os.write", "os.fsync", "os.replace", "os.open", "os.mkdir", "os.rename", "os.unlink", "os.rmdir")
    real = {name: getattr(os, name.partition(".")[2]) for name in calls}
    real |= {f"pathlib.Path.{name}": getattr(Path, name) for name in ("rename", "mkdir", "unlink")}
    moment, ends = 0, set()
    is_done = False
    while not is_done:
        moment += 1
        with monkeypatch.context() as patch:
            left = [moment]

            def guard(call, left=left):
                def guarded(*given, **options):
                    left[0] -= 1
                    if left[0] <= 0:  # a process that is killed makes no further call
                        raise Killed
                    return call(*given, **options)

                return guarded

            for name, call in real.items():
                patch.setattr(name, guard(call))
            try:
                keep(folder, content, "same")
                is_done = True
            except Killed:
                pass
        keep(folder, "other", "other.txt")  # as the next process does, which finds what is left
        (folder / "artifacts" / "other.txt").unlink()
        state = files_in(folder)
        assert state in (old, new), moment
        ends.add(state == new)
        if state == new and not is_done:
            keep(folder, folder.parents[2] / "model", "same")
    assert ends == {True, False}
    assert moment > 5


def test_others_than_the_first_rank_write_nothing(folder):
    assert keep(folder, Figure(), "roc", is_writer=False) == folder / "artifacts" / "roc.png"
    assert list(folder.iterdir()) == []


def test_names_that_windows_takes_for_a_device_or_for_another_artifact_are_refused(tmp_path):
    keep(tmp_path, "a", "curve.txt")

    with pytest.raises(InvalidArgumentError, match="characters that other systems refuse"):
        keep(tmp_path, "a", "con.txt")
    with pytest.raises(InvalidArgumentError, match=r"'Curve.txt' and 'curve.txt' in .* differ in case alone"):
        keep(tmp_path, "a", "Curve.txt")
